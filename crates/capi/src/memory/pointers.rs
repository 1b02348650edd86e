//! Memory of C programs as slices, and writes to it.
//!
//! Only functions of `abi` and `packetdrill` call these, for the time of one call. A null pointer
//! where memory is needed is `EFAULT`; any other is trusted, as the C library's functions do.
#![allow(unsafe_code)]

use super::address::{self, Name};
use super::control::Received;
use super::page_state::{Known, pages};
use crate::errno::{Errno, Outcome};
use libc::{c_char, c_int, c_void, iovec, msghdr, sock_filter, sock_fprog, sockaddr, socklen_t};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno as Kernel;
use std::cell::RefCell;
use std::ffi::{CStr, OsStr};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::{NonNull, without_provenance_mut};
use towpath::layers::net::bpf::{Instruction, Program};
use towpath::layers::net::socket::Borrower;
use towpath::layers::packet::{Loans, Piece};

/// Most pieces of one scattered read or write (`UIO_MAXIOV`).
pub(crate) const IOV_MAX: usize = 1024;
/// Most bytes of one call. A call uses only these of a longer buffer.
const BYTES_MAX: usize = 0x7fff_f000;
/// Most bytes of an address (`struct sockaddr_storage`).
const ADDRESS_BYTES_MAX: usize = 128;

/// A length by the kernel's rules: `EFAULT` if negative as a signed number, else limited.
fn length(len: usize) -> Outcome<usize> {
    if isize::try_from(len).is_err() { Err(Errno::FAULT) } else { Ok(len.min(BYTES_MAX)) }
}

/// The caller's bytes, for reading.
///
/// # Safety
/// `pointer` is null or names `len` bytes that do not change meanwhile.
pub(crate) unsafe fn bytes<'a>(pointer: *const c_void, len: usize) -> Outcome<&'a [u8]> {
    let len = length(len)?;
    if len == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller vouches for it.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), len) })
}

/// The caller's bytes, for writing.
///
/// # Safety
/// `pointer` is null or names `len` bytes that no other code uses meanwhile.
pub(crate) unsafe fn bytes_mut<'a>(pointer: *mut c_void, len: usize) -> Outcome<&'a mut [u8]> {
    let len = length(len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    if pointer.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller vouches for it.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), len) })
}

/// The caller's address, for reading.
///
/// # Safety
/// `pointer` is null or names `len` bytes that do not change meanwhile.
pub(crate) unsafe fn sockaddr_bytes<'a>(
    pointer: *const sockaddr,
    len: socklen_t,
) -> Outcome<&'a [u8]> {
    let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
    if len > ADDRESS_BYTES_MAX {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller vouches for it.
    unsafe { bytes(pointer.cast(), len) }
}

/// # Safety
/// `pointer` is null or names `count` structures.
pub(crate) unsafe fn pieces<'a>(pointer: *const iovec, count: usize) -> Outcome<&'a [iovec]> {
    if count > IOV_MAX {
        return Err(Errno(libc::EMSGSIZE));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller vouches for it.
    let pieces = unsafe { std::slice::from_raw_parts(pointer, count) };
    // Lengths that are negative as signed numbers are invalid.
    if pieces.iter().any(|piece| isize::try_from(piece.iov_len).is_err()) {
        return Err(Errno::INVAL);
    }
    Ok(pieces)
}

/// # Safety
/// `pointer` is null or names `count` structures, each of which names bytes that can be read.
pub(crate) unsafe fn gather<'a>(pointer: *const iovec, count: usize) -> Outcome<Vec<&'a [u8]>> {
    // SAFETY: the caller vouches for it.
    let pieces = used(unsafe { pieces(pointer, count) }?);
    // SAFETY: the caller vouches for each piece, and so for its beginning.
    pieces.map(|(base, len)| unsafe { bytes(base, len) }).collect()
}

/// The part of its pieces that a call uses: the first `BYTES_MAX` bytes.
fn used(pieces: &[iovec]) -> impl Iterator<Item = (*mut c_void, usize)> {
    let mut left = BYTES_MAX;
    pieces.iter().map(move |piece| {
        let len = piece.iov_len.min(left);
        left -= len;
        (piece.iov_base, len)
    })
}

/// # Safety
/// `pointer` is null or names `count` structures, each of which names bytes that can be written.
pub(crate) unsafe fn scatter<'a>(
    pointer: *const iovec,
    count: usize,
) -> Outcome<Vec<&'a mut [u8]>> {
    // SAFETY: the caller vouches for it.
    let pieces = used(unsafe { pieces(pointer, count) }?);
    // SAFETY: the caller vouches for each piece, and so for its beginning.
    pieces.map(|(base, len)| unsafe { bytes_mut(base, len) }).collect()
}

/// A path that the caller names.
///
/// # Safety
/// `pointer` is null or a string.
pub(crate) unsafe fn path(pointer: *const c_char) -> Outcome<PathBuf> {
    if pointer.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller vouches for it.
    let path = unsafe { CStr::from_ptr(pointer) };
    Ok(OsStr::from_bytes(path.to_bytes()).into())
}

/// Memory that a program has posted to be filled. It belongs to the operation until its end.
pub(crate) struct Posted {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: `new` was promised that only this value reaches the memory, on any thread.
unsafe impl Send for Posted {}

impl Posted {
    /// The memory at `pointer`. `EFAULT` if that is null or not mapped.
    ///
    /// # Safety
    /// No other code uses the bytes, and they stay mapped, until the operation's end is reported.
    pub(crate) unsafe fn new(pointer: *mut c_void, len: usize) -> Outcome<Self> {
        let base = base_of(pointer, len)?;
        if len > 0 {
            check_mapped(base, len)?;
        }
        Ok(Self { base, len })
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The bytes after the first `done` bytes.
    pub(crate) fn rest(&mut self, done: usize) -> &mut [u8] {
        // SAFETY: `new` was promised these bytes, and `self` is borrowed as long.
        let all = unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) };
        &mut all[done..]
    }

    /// The `len` bytes from `at` on. Other parts may belong to the program again.
    pub(crate) fn part(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "it is within the memory");
        // SAFETY: it is within the memory, as just asserted.
        let base = unsafe { self.base.add(at) };
        // SAFETY: `new` was promised these bytes, and `self` is borrowed as long.
        unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), len) }
    }
}

/// Start of a range of the caller's; any pointer will do if it is empty. `EFAULT` if there is none.
fn base_of(pointer: *mut c_void, len: usize) -> Outcome<NonNull<u8>> {
    isize::try_from(len).map_err(|_| Errno::FAULT)?;
    match len {
        0 => Ok(NonNull::dangling()),
        _ => NonNull::new(pointer.cast()).ok_or(Errno::FAULT),
    }
}

/// Fails with `EFAULT` unless the whole range is mapped. Does not access it.
fn check_mapped(base: NonNull<u8>, len: usize) -> Outcome<()> {
    thread_local!(static MAPPED: RefCell<Box<Known>> = RefCell::new(Known::boxed()));
    let ask = |pages: &Range<usize>| {
        let (start, flags) = (without_provenance_mut(pages.start), rustix::mm::MsyncFlags::ASYNC);
        // SAFETY: with this flag `msync` only checks that the pages are mapped.
        unsafe { rustix::mm::msync(start, pages.len(), flags) }.map_err(|_| Errno::FAULT)
    };
    MAPPED.with_borrow_mut(|known| known.check(pages(base.as_ptr().addr(), len)?, ask))
}

/// Ranges of memory that a program lends, in the order in which they are sent.
pub(crate) struct Ranges {
    ranges: Vec<(NonNull<u8>, usize)>,
    len: usize,
}

// SAFETY: `new` was promised that the bytes can be read, on any thread; ranges are addresses.
unsafe impl Send for Ranges {}

impl Ranges {
    /// The memory of `buffers`. Buffers that are adjacent in memory become one range.
    ///
    /// # Safety
    /// The bytes can be read until their return is reported to the program.
    pub(crate) unsafe fn new(buffers: &[&[u8]]) -> Self {
        let mut ranges: Vec<(NonNull<u8>, usize)> = Vec::with_capacity(buffers.len());
        for buffer in buffers.iter().filter(|buffer| !buffer.is_empty()) {
            match ranges.last_mut() {
                Some((base, len))
                    if base.as_ptr().wrapping_add(*len).cast_const() == buffer.as_ptr() =>
                {
                    *len += buffer.len();
                }
                _ => ranges.push((NonNull::from(*buffer).cast(), buffer.len())),
            }
        }
        let len = ranges.iter().map(|(_, len)| len).sum();
        Self { ranges, len }
    }

    /// Fails with `EFAULT` unless all bytes can be read now, as in the kernel: later the device
    /// could only drop their packets. Kernels before 5.14 cannot check this.
    pub(crate) fn check_readable(&self) -> Outcome<()> {
        self.ranges.iter().try_for_each(|(base, len)| check_readable(*base, *len))
    }

    /// Number of bytes in all ranges.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Lends bytes after the first `done` ones: at most `most` bytes of one range. `None` if no
    /// descriptor is free.
    pub(crate) fn lend(
        &self,
        loans: &mut Loans,
        done: usize,
        most: usize,
        borrower: Borrower,
    ) -> Option<Piece> {
        let (from, len) = self.after(done)?;
        let count = len.min(most).min(u32::MAX as usize) as u32;
        // SAFETY: `new` was promised that the bytes can be read until they are returned.
        unsafe { loans.lend_foreign(from, count, borrower.lender, borrower.token) }
    }

    /// The rest, after the first `done` bytes, of the range that contains the next byte.
    fn after(&self, done: usize) -> Option<(NonNull<u8>, usize)> {
        let mut skip = done;
        let (base, len) = self.ranges.iter().find_map(|(base, len)| {
            let found = skip < *len;
            if !found {
                skip -= len;
            }
            found.then_some((*base, *len))
        })?;
        // SAFETY: `skip` is within the range.
        Some((unsafe { base.add(skip) }, len - skip))
    }
}

/// Memory of any size that a program lends as one range.
pub(crate) struct Lent {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: `new` was promised that the bytes can be read, on any thread; it is an address.
unsafe impl Send for Lent {}

impl Lent {
    /// The memory at `pointer`. `EFAULT` if it cannot be read.
    ///
    /// # Safety
    /// The bytes do not change, and stay mapped, until their return is reported to the program.
    pub(crate) unsafe fn new(pointer: *const c_void, len: usize) -> Outcome<Self> {
        let base = base_of(pointer.cast_mut(), len)?;
        if len > 0 {
            check_readable(base, len)?;
        }
        Ok(Self { base, len })
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `new` was promised that the bytes can be read and do not change.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl From<Lent> for Ranges {
    fn from(Lent { base, len }: Lent) -> Self {
        Self { ranges: vec![(base, len)], len }
    }
}

/// Room that a program passes for receiving without a copy.
pub(crate) struct Lending<'a> {
    /// Room for headers that are in no piece.
    pub(crate) room: Option<&'a mut [u8]>,
    /// Most pieces.
    pub(crate) pieces: usize,
    pub(crate) control: &'a mut [u8],
}

/// The place where a token is stored for a program.
pub(crate) struct TokenPlace(NonNull<u64>);

// SAFETY: `new` was promised that only this value reaches the place, on any thread.
unsafe impl Send for TokenPlace {}

impl TokenPlace {
    /// The place, set to zero. `EFAULT` if it is null.
    ///
    /// # Safety
    /// No other code uses it until the end is reported to the program.
    pub(crate) unsafe fn new(pointer: *mut u64) -> Outcome<Self> {
        let mut place = Self(NonNull::new(pointer).ok_or(Errno::FAULT)?);
        place.set(0);
        Ok(place)
    }

    pub(crate) fn set(&mut self, token: u64) {
        // SAFETY: `new` was promised that the place can be written.
        unsafe { self.0.write(token) }
    }
}

/// A message with which a program sends or receives, and the memory that it names.
pub(crate) struct Message(NonNull<msghdr>);

// SAFETY: `new` was promised that only this value reaches the memory, on any thread.
unsafe impl Send for Message {}

impl Message {
    /// The message at `pointer`. `EFAULT` if it is null.
    ///
    /// # Safety
    /// Message and memory can be read until the end is reported to the program. For receiving, no
    /// other code uses them until then.
    pub(crate) unsafe fn new(pointer: *mut msghdr) -> Outcome<Self> {
        NonNull::new(pointer).map(Self).ok_or(Errno::FAULT)
    }

    /// Receives a message from the kernel if there is one.
    pub(crate) fn receive_on(&mut self, socket: BorrowedFd<'_>, flags: c_int) -> Outcome<usize> {
        let flags = flags | libc::MSG_DONTWAIT;
        // SAFETY: `new` was promised that message and memory can be used.
        moved(unsafe { libc::recvmsg(socket.as_raw_fd(), self.0.as_ptr(), flags) })
    }

    /// Sends with the kernel if there is room.
    pub(crate) fn send_on(&self, socket: BorrowedFd<'_>) -> Outcome<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `new` was promised that message and memory can be read.
        moved(unsafe { libc::sendmsg(socket.as_raw_fd(), self.0.as_ptr(), flags) })
    }

    /// Lets `call` fill the message: it gets room for bytes and for control messages.
    pub(crate) fn receive(
        &mut self,
        call: impl FnOnce(&mut [&mut [u8]], &mut [u8]) -> Outcome<Received>,
    ) -> Outcome<usize> {
        // SAFETY: `new` was promised the message, and `self` is borrowed as long.
        let message = unsafe { self.0.as_mut() };
        // SAFETY: `new` was promised the memory that the message names.
        let mut buffers = unsafe { scatter(message.msg_iov, message.msg_iovlen) }?;
        // SAFETY: `new` was promised the memory that the message names.
        let control = unsafe { bytes_mut(message.msg_control, message.msg_controllen) };
        let received = call(&mut buffers, control.unwrap_or_default())?;
        let (name, len) = (message.msg_name.cast(), &raw mut message.msg_namelen);
        // SAFETY: `new` was promised the memory that the message names.
        unsafe { write_source(received.source, name, len) }?;
        message.msg_controllen = received.control;
        message.msg_flags = received.flags;
        Ok(received.len)
    }

    /// Lets `call` fill in the addresses and lengths of pieces. It gets room for headers if
    /// `with_room`, the number of further pieces, and room for control messages, and it reports
    /// each piece. Returns the number of bytes and the token.
    pub(crate) fn receive_lent(
        &mut self,
        with_room: bool,
        call: impl FnOnce(Lending<'_>, &mut dyn FnMut(&[u8])) -> Outcome<(Received, u64, usize)>,
    ) -> Outcome<(usize, u64)> {
        // SAFETY: `new` was promised the message, and `self` is borrowed as long.
        let message = unsafe { self.0.as_mut() };
        let count = message.msg_iovlen.min(IOV_MAX);
        if message.msg_iov.is_null() && count > 0 {
            return Err(Errno::FAULT);
        }
        if with_room && count == 0 {
            return Err(Errno(libc::EMSGSIZE));
        }
        // Nothing may fail after the call: pieces that were handed out would have no token.
        if !message.msg_name.is_null() && (message.msg_namelen as i32) < 0 {
            return Err(Errno::INVAL);
        }
        let mut filled = usize::from(with_room);
        // SAFETY: there is at least one place, as just checked.
        let first = if with_room { Some(unsafe { message.msg_iov.read() }) } else { None };
        // SAFETY: `new` was promised the memory that the message names.
        let room = first.map(|iovec| unsafe { bytes_mut(iovec.iov_base, iovec.iov_len) });
        let room = room.transpose()?;
        // SAFETY: `new` was promised the memory that the message names.
        let control = unsafe { bytes_mut(message.msg_control, message.msg_controllen) };
        let lending =
            Lending { room, pieces: count - filled, control: control.unwrap_or_default() };
        let (received, token, headers) = call(lending, &mut |bytes| {
            assert!(filled < count, "there are no more pieces than places");
            let piece = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            // SAFETY: it is within the places, as just asserted.
            let place = unsafe { message.msg_iov.add(filled) };
            // SAFETY: `new` was promised the memory that the message names.
            unsafe { place.write(piece) };
            filled += 1;
        })?;
        message.msg_iovlen = filled;
        if let Some(first) = first {
            let headers = iovec { iov_len: headers, ..first };
            // SAFETY: there is at least one place, as `first` shows.
            unsafe { message.msg_iov.write(headers) };
        }
        let (name, len) = (message.msg_name.cast(), &raw mut message.msg_namelen);
        message.msg_controllen = received.control;
        message.msg_flags = received.flags;
        // SAFETY: `new` was promised the memory that the message names.
        unsafe { write_source(received.source, name, len) }?;
        Ok((received.len, token))
    }

    /// Lets `call` send the message: it gets bytes, an address and control messages.
    pub(crate) fn send(
        &self,
        call: impl FnOnce(&[&[u8]], Option<&[u8]>, &[u8]) -> Outcome<usize>,
    ) -> Outcome<usize> {
        // SAFETY: `new` was promised the message, for reading.
        let message = unsafe { self.0.as_ref() };
        // SAFETY: `new` was promised the memory that the message names.
        let buffers = unsafe { gather(message.msg_iov, message.msg_iovlen) }?;
        let name_len = if message.msg_name.is_null() { 0 } else { message.msg_namelen };
        // SAFETY: `new` was promised the memory that the message names.
        let address = unsafe { sockaddr_bytes(message.msg_name.cast(), name_len) }?;
        let control_len = if message.msg_control.is_null() { 0 } else { message.msg_controllen };
        // SAFETY: `new` was promised the memory that the message names.
        let control = unsafe { bytes(message.msg_control, control_len) }?;
        call(&buffers, Some(address).filter(|address| !address.is_empty()), control)
    }
}

/// The result of a call of the C library: its byte count, or its error.
fn moved(count: isize) -> Outcome<usize> {
    let last = || Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    usize::try_from(count).map_err(|_| last())
}

/// Fails with `EFAULT` unless the whole range can be read now.
fn check_readable(base: NonNull<u8>, len: usize) -> Outcome<()> {
    thread_local!(static READABLE: RefCell<Box<Known>> = RefCell::new(Known::boxed()));
    let ask = |asked: &Range<usize>| match populate(asked) {
        Ok(()) => Ok(()),
        // The kernel does not know this query, or the pages cannot be read.
        Err(Kernel::INVAL) if populate(&pages((&raw const len).addr(), 1)?).is_err() => Ok(()),
        Err(_) => Err(Errno::FAULT),
    };
    READABLE.with_borrow_mut(|known| known.check(pages(base.as_ptr().addr(), len)?, ask))
}

/// Makes the kernel fault in pages, for reading.
fn populate(pages: &Range<usize>) -> Result<(), Kernel> {
    let (start, advice) =
        (without_provenance_mut(pages.start), rustix::mm::Advice::LinuxPopulateRead);
    // SAFETY: this advice changes no byte of any mapping; it fails for a range that is not mapped.
    unsafe { rustix::mm::madvise(start, pages.len(), advice) }
}

/// Writes an address to the caller's room, truncated to it, and its full length.
///
/// # Safety
/// `to` is null or names as many bytes as `len` says. `len` is null or valid.
pub(crate) unsafe fn write_address(
    source: impl Into<Name>,
    to: *mut sockaddr,
    len: *mut socklen_t,
) -> Outcome<()> {
    if to.is_null() {
        return Ok(());
    }
    // SAFETY: the caller vouches for it.
    let len = unsafe { len.as_mut() }.ok_or(Errno::FAULT)?;
    if *len as i32 <= -1 {
        return Err(Errno::INVAL);
    }
    let source = address::write(source.into());
    // SAFETY: the caller vouches for it.
    let room = unsafe { bytes_mut(to.cast(), *len as usize) }?;
    let count = source.len().min(room.len());
    room[..count].copy_from_slice(&source[..count]);
    *len = source.len() as socklen_t;
    Ok(())
}

/// Writes the source of a message, if the caller asked for it. Without a source it writes a length
/// of zero.
///
/// # Safety
/// `to` is null or names as many bytes as `len` says. `len` is null or valid.
pub(crate) unsafe fn write_source(
    source: Option<Name>,
    to: *mut sockaddr,
    len: *mut socklen_t,
) -> Outcome<()> {
    if to.is_null() {
        return Ok(());
    }
    if let Some(source) = source {
        // SAFETY: the caller vouches for it.
        return unsafe { write_address(source, to, len) };
    }
    // SAFETY: the caller vouches for it.
    if let Some(len) = unsafe { len.as_mut() } {
        *len = 0;
    }
    Ok(())
}

/// A file of the kernel, for the time of a call.
///
/// # Safety
/// The caller does not close it meanwhile.
pub(crate) unsafe fn file<'a>(fd: c_int) -> Outcome<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the caller vouches for it; -1 was refused.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// The program of a caller's `struct sock_fprog`. `EINVAL` if it is invalid.
///
/// # Safety
/// `value` is such a structure, and names as many instructions as it says.
pub(crate) unsafe fn filter(value: &[u8]) -> Outcome<Program> {
    if value.len() != size_of::<sock_fprog>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: it has the length of the structure, and any bytes are valid for it.
    let sock_fprog { len, filter } =
        unsafe { value.as_ptr().cast::<sock_fprog>().read_unaligned() };
    if filter.is_null() {
        return Err(Errno::INVAL);
    }
    let at = |index: usize| {
        // SAFETY: the caller vouches for `len` instructions.
        let place = unsafe { filter.add(index) };
        // SAFETY: the caller vouches for `len` instructions.
        let sock_filter { code, jt, jf, k } = unsafe { place.read_unaligned() };
        Instruction { code, jt, jf, k }
    };
    let instructions = (0..usize::from(len)).map(at).collect();
    Program::new(instructions).map_err(|_| Errno::INVAL)
}

/// A string of the caller's.
///
/// # Safety
/// `pointer` is null or names a string.
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> Outcome<&'a str> {
    if pointer.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller vouches for it.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Errno::INVAL)
}
