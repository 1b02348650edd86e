//! The memory and the rings that an AF_XDP socket shares with the kernel.
//!
//! # Theory of operation
//!
//! The memory (UMEM) is a mapping of its own, divided into frames of a [`Pool`]. Four rings pass
//! frames to the kernel and back, as offsets in the memory:
//!
//! ```text
//! fill        ──> kernel ──> receive       empty frames; received packets
//! transmit    ──> kernel ──> completion    packets to send; frames that were sent
//! ```
//!
//! A frame is either in the pool, or has a holder in this process, or is with the kernel. While it
//! is with the kernel, its [`Frame`] lies in `kernel`, where no code reads or writes it. So safe
//! code cannot reach bytes that the kernel may write, and cannot pass a frame to the kernel twice.
//! An offset from the kernel is only an index into `kernel`: one that the kernel does not have is
//! an error ([`Confused`]).
//!
//! Each ring has one producer and one consumer, and two indices that only grow, modulo 2³². An
//! entry is written before the store of the producer's index (release) and read after its load
//! (acquire); it is read before the store of the consumer's index (release), and overwritten after
//! its load (acquire). [`Producer`] and [`Consumer`] are our side of a ring.
//!
//! When this value is dropped, the kernel may still write frames of the fill ring for a moment. It
//! then writes pages that it holds itself: they stay in our address space until the last piece of a
//! frame is dropped, and no frame leaves the pool meanwhile, because the pool has gone.
//!
//! One thread at a time; pieces of frames may be dropped by any thread. Sources: linux/if_xdp.h,
//! Documentation/networking/af_xdp.rst.
#![allow(unsafe_code)]

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_mmap_offsets,
};
use rustix::net::xdp::{
    XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING,
    XdpDesc, XdpDescOptions, XdpRingFlags, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use towpath_packet::sync::{AtomicU32, Ordering};
use towpath_packet::{Frame, Pool};

/// Frames of a socket: those of the fill and transmit rings, a reserve for packets to send, and as
/// many as these for packets that are lent.
pub const FRAMES: usize = 4096;
/// Entries of the fill and receive rings: the packets of 2.5 ms at 10 Gbit/s and 1500 bytes.
pub const RECEIVE_ENTRIES: u32 = 2048;
/// Entries of the transmit and completion rings: eight bursts.
pub const TRANSMIT_ENTRIES: u32 = 512;
const _: () = assert!(RECEIVE_ENTRIES.is_power_of_two() && TRANSMIT_ENTRIES.is_power_of_two());
const _: () = assert!(FRAMES >= (RECEIVE_ENTRIES + 2 * TRANSMIT_ENTRIES) as usize);

/// The kernel returned a frame that it did not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Confused;

/// The memory of a socket and its rings; see the module documentation.
pub(super) struct Umem {
    /// Closed first: from then on the kernel passes no frames.
    socket: OwnedFd,
    fill: Producer<u64>,
    receive: Consumer<XdpDesc>,
    transmit: Producer<XdpDesc>,
    completion: Consumer<u64>,
    /// The frames that the kernel has, by their number.
    kernel: Box<[Option<Frame>]>,
    pool: Pool,
    /// Address of the first frame.
    base: usize,
}

impl Umem {
    /// Registers memory with `FRAMES` frames of `frame_bytes`, which is 2048 or 4096, and makes the
    /// rings of `socket`, an AF_XDP socket that is not bound yet.
    ///
    /// # Errors
    /// Those of mmap(2) and setsockopt(2); ENOBUFS if less memory may be locked.
    pub(super) fn new(socket: OwnedFd, frame_bytes: usize) -> Result<Self, Errno> {
        let bytes = FRAMES * frame_bytes;
        let mapping = Mapping::anonymous(bytes)?;
        let start = mapping.start;
        let registration = XdpUmemReg {
            addr: start.as_ptr().expose_provenance() as u64,
            len: bytes as u64,
            chunk_size: frame_bytes as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        // From here on the kernel may write frames that it gets through the rings, and no others.
        set_xdp_umem_reg(&socket, registration)?;
        set_xdp_umem_fill_ring_size(&socket, RECEIVE_ENTRIES)?;
        set_xdp_umem_completion_ring_size(&socket, TRANSMIT_ENTRIES)?;
        set_xdp_rx_ring_size(&socket, RECEIVE_ENTRIES)?;
        set_xdp_tx_ring_size(&socket, TRANSMIT_ENTRIES)?;
        let offsets = xdp_mmap_offsets(&socket)?;
        let ring = |offset, entries, page| Ring::map(&socket, offset, entries, page);
        let fill = ring(&offsets.fr, RECEIVE_ENTRIES, XDP_UMEM_PGOFF_FILL_RING)?;
        let completion = ring(&offsets.cr, TRANSMIT_ENTRIES, XDP_UMEM_PGOFF_COMPLETION_RING)?;
        let ring = |offset, entries, page| Ring::map(&socket, offset, entries, page);
        let receive = ring(&offsets.rx, RECEIVE_ENTRIES, XDP_PGOFF_RX_RING)?;
        let transmit = ring(&offsets.tx, TRANSMIT_ENTRIES, XDP_PGOFF_TX_RING)?;
        // SAFETY: the mapping has this size, is zeroed, readable and writable, and lives as long as
        // the pool and its pieces, which keep it. Only the kernel has its address besides, and
        // it writes only frames that lie in `kernel` (invariant of this type).
        let pool = unsafe { Pool::over(start, FRAMES, frame_bytes, Box::new(mapping)) };
        Ok(Self {
            fill: Producer::new(fill),
            receive: Consumer::new(receive),
            transmit: Producer::new(transmit),
            completion: Consumer::new(completion),
            kernel: std::iter::repeat_with(|| None).take(FRAMES).collect(),
            pool: pool.ok_or(Errno::NOMEM)?,
            base: start.addr().get(),
            socket,
        })
    }

    /// The socket.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Bytes of a frame.
    pub(super) fn frame_bytes(&self) -> usize {
        self.pool.frame_bytes()
    }

    /// Frames in the pool, at least.
    pub(super) fn free_count(&mut self) -> usize {
        self.pool.free_count()
    }

    /// Passes empty frames to the kernel, as many as the fill ring takes.
    pub(super) fn refill(&mut self) {
        let mut room = self.fill.room();
        while room > 0
            && let Some(frame) = self.pool.take()
        {
            let at = self.give(frame);
            self.fill.put(at);
            room -= 1;
        }
        self.fill.publish();
    }

    /// True if a received packet waits.
    pub(super) fn has_received(&mut self) -> bool {
        self.receive.has_entry()
    }

    /// Takes a received packet: its frame, and its bytes in that. The kernel can use its place in
    /// the ring after [`release`](Self::release).
    pub(super) fn receive(&mut self) -> Result<Option<(Frame, Range<usize>)>, Confused> {
        let Some(XdpDesc { addr, len, .. }) = self.receive.take() else { return Ok(None) };
        let (frame, from) = self.take_back(addr)?;
        let to = from.checked_add(len as usize).filter(|to| *to <= frame.len());
        Ok(Some((frame, from..to.ok_or(Confused)?)))
    }

    /// Returns the places of taken packets to the kernel.
    pub(super) fn release(&mut self) {
        self.receive.release();
    }

    /// Takes an empty frame for a packet to send; `None` if the transmit ring is full or no frame
    /// is free.
    pub(super) fn frame(&mut self) -> Option<Frame> {
        if self.transmit.room() == 0 { None } else { self.pool.take() }
    }

    /// Sends the first `len` bytes of a frame that [`frame`](Self::frame) returned just before. The
    /// kernel sees it after [`publish`](Self::publish).
    ///
    /// # Panics
    /// If the frame is not of this memory or is shorter, or if the ring has no room.
    pub(super) fn send(&mut self, frame: Frame, len: usize) {
        assert!(len <= frame.len() && self.transmit.room() > 0);
        let addr = self.give(frame);
        self.transmit.put(XdpDesc { addr, len: len as u32, options: XdpDescOptions::empty() });
    }

    /// Shows the kernel the packets to send.
    pub(super) fn publish(&mut self) {
        self.transmit.publish();
    }

    /// Takes back the frames of packets that were sent.
    pub(super) fn reap(&mut self) -> Result<(), Confused> {
        while let Some(at) = self.completion.take() {
            self.take_back(at)?;
        }
        self.completion.release();
        Ok(())
    }

    /// Number of packets to send that the kernel has not taken yet.
    pub(super) fn unsent(&mut self) -> u32 {
        TRANSMIT_ENTRIES - self.transmit.room()
    }

    /// True if the kernel takes packets to send only when it is called.
    pub(super) fn waits_to_send(&self) -> bool {
        self.transmit.ring.needs_wakeup()
    }

    /// True if the kernel takes empty frames only when it is called.
    pub(super) fn waits_for_frames(&self) -> bool {
        self.fill.ring.needs_wakeup()
    }

    /// Passes a frame to the kernel; returns its offset.
    fn give(&mut self, frame: Frame) -> u64 {
        let at = frame.as_ptr().addr().wrapping_sub(self.base);
        let place = self.kernel.get_mut(at / self.pool.frame_bytes());
        let place = place.expect("the frame is of this memory");
        assert!(place.is_none(), "a frame has one holder");
        *place = Some(frame);
        at as u64
    }

    /// Takes back a frame at an offset that may point into it; returns the position in the frame.
    fn take_back(&mut self, at: u64) -> Result<(Frame, usize), Confused> {
        let at = usize::try_from(at).map_err(|_| Confused)?;
        let frame_bytes = self.pool.frame_bytes();
        let frame = self.kernel.get_mut(at / frame_bytes).and_then(Option::take);
        Ok((frame.ok_or(Confused)?, at % frame_bytes))
    }
}

/// A mapping in our address space, which starts at a page boundary.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` only gives the address and the length, which never change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed memory.
    fn anonymous(bytes: usize) -> Result<Self, Errno> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let hint = std::ptr::null_mut();
        // SAFETY: without an address hint and `MAP_FIXED`, the kernel places the new mapping where
        // no memory is in use.
        Self::of(unsafe { rustix::mm::mmap_anonymous(hint, bytes, access, flags) }?, bytes)
    }

    /// Maps a ring of a socket.
    fn ring(socket: &OwnedFd, page: u64, bytes: usize) -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let hint = std::ptr::null_mut();
        // SAFETY: without an address hint and `MAP_FIXED`, the kernel places the new mapping where
        // no memory is in use.
        Self::of(unsafe { rustix::mm::mmap(hint, bytes, access, flags, socket, page) }?, bytes)
    }

    fn of(start: *mut c_void, bytes: usize) -> Result<Self, Errno> {
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::FAULT)?, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is our own mapping. Its owner, a ring or the region of a pool, is the last
        // user of its addresses and is being dropped. An error means that nothing was mapped there,
        // which is the goal.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// An entry of a ring: a plain structure of 64-bit alignment for which any bits are valid.
trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for XdpDesc {}

/// A ring that the kernel made.
///
/// Invariants: the three indices are aligned 32-bit numbers in the mapping, and `entries` points to
/// `mask + 1` aligned entries in it, a power of two. This process accesses the indices only by
/// atomics.
struct Ring<T> {
    producer: NonNull<u32>,
    consumer: NonNull<u32>,
    /// `None` before Linux 5.4.
    flags: Option<NonNull<u32>>,
    entries: NonNull<T>,
    mask: u32,
    _mapping: Mapping,
}

// SAFETY: the pointers lead into the mapping that the ring owns, which belongs to no thread.
unsafe impl<T: Entry> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    /// Maps a ring with `entries` entries, a power of two, whose fields are at the offsets that the
    /// kernel has reported.
    fn map(
        socket: &OwnedFd,
        offset: &XdpRingOffset,
        entries: u32,
        page: u64,
    ) -> Result<Self, Errno> {
        let size = size_of::<T>() as u64 * u64::from(entries);
        let bytes = offset.desc.checked_add(size).ok_or(Errno::OVERFLOW)?;
        let mapping = Mapping::ring(socket, page, usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let field = |at| mapping.field::<u32>(at, size_of::<u32>() as u64);
        Ok(Self {
            producer: field(offset.producer)?,
            consumer: field(offset.consumer)?,
            flags: offset.flags.map(field).transpose()?,
            entries: mapping.field(offset.desc, size)?,
            mask: entries - 1,
            _mapping: mapping,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: an aligned number in the mapping, which `self` keeps mapped; only atomics access
        // it (invariants of the type).
        unsafe { AtomicU32::from_ptr(self.producer.as_ptr()) }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: an aligned number in the mapping, which `self` keeps mapped; only atomics access
        // it (invariants of the type).
        unsafe { AtomicU32::from_ptr(self.consumer.as_ptr()) }
    }

    /// True if the kernel sleeps and must be called.
    fn needs_wakeup(&self) -> bool {
        let Some(flags) = self.flags else { return true };
        // SAFETY: an aligned number in the mapping, which `self` keeps mapped; only atomics access
        // it (invariants of the type).
        let flags = unsafe { AtomicU32::from_ptr(flags.as_ptr()) };
        // Relaxed: the kernel sets the flag before it looks at the ring for the last time, and
        // orders both itself. A flag that is seen late is seen at the next call.
        flags.load(Ordering::Relaxed) & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
    }

    /// Address of an entry.
    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the masked index is less than the number of entries (invariant of the type).
        unsafe { self.entries.add((index & self.mask) as usize) }
    }
}

impl Mapping {
    /// Returns the address of a field of `bytes` bytes.
    ///
    /// # Errors
    /// EOVERFLOW if it is not in the mapping, or not aligned to `T`.
    fn field<T>(&self, at: u64, bytes: u64) -> Result<NonNull<T>, Errno> {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.bytes as u64);
        if !fits {
            return Err(Errno::OVERFLOW);
        }
        // SAFETY: the field is in the mapping, as checked above.
        let field = unsafe { self.start.add(at as usize) }.cast::<T>();
        if field.is_aligned() { Ok(field) } else { Err(Errno::OVERFLOW) }
    }
}

/// Our side of a ring that we fill.
struct Producer<T> {
    ring: Ring<T>,
    /// Index of the next entry to write. Entries from the published index on are not shown yet.
    next: u32,
    /// The consumer's index, as last read.
    taken: u32,
}

impl<T: Entry> Producer<T> {
    fn new(ring: Ring<T>) -> Self {
        Self { ring, next: 0, taken: 0 }
    }

    /// Entries that can be written.
    fn room(&mut self) -> u32 {
        // Acquire: pairs with the kernel's release of the consumer's index, after it has read the
        // entries.
        self.taken = self.ring.consumer().load(Ordering::Acquire);
        (self.ring.mask + 1).saturating_sub(self.next.wrapping_sub(self.taken))
    }

    /// Writes an entry, for which there must be room.
    fn put(&mut self, entry: T) {
        let place = self.ring.entry(self.next);
        // SAFETY: the place is in the mapping and aligned (invariant of `Ring`). The kernel does
        // not read it before the index is published, and has read what was there: `room` was not
        // zero. Even without room, this would only change which offset the kernel reads.
        unsafe { place.write_volatile(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the written entries to the kernel.
    fn publish(&mut self) {
        // Release: pairs with the kernel's acquire of the producer's index; the entries, and the
        // bytes of the frames, are written before.
        self.ring.producer().store(self.next, Ordering::Release);
    }
}

/// Our side of a ring that the kernel fills.
struct Consumer<T> {
    ring: Ring<T>,
    /// Index of the next entry to read.
    next: u32,
    /// The producer's index, as last read.
    filled: u32,
}

impl<T: Entry> Consumer<T> {
    fn new(ring: Ring<T>) -> Self {
        Self { ring, next: 0, filled: 0 }
    }

    fn has_entry(&mut self) -> bool {
        if self.next == self.filled {
            // Acquire: pairs with the kernel's release of the producer's index, after it has
            // written the entries and the bytes of the frames.
            self.filled = self.ring.producer().load(Ordering::Acquire);
        }
        self.next != self.filled
    }

    /// Reads an entry, if there is one.
    fn take(&mut self) -> Option<T> {
        if !self.has_entry() {
            return None;
        }
        let place = self.ring.entry(self.next);
        // SAFETY: the place is in the mapping and aligned (invariant of `Ring`), and any bits are a
        // valid entry. The kernel does not write it before it is released.
        let entry = unsafe { place.read_volatile() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Returns the read entries to the kernel.
    fn release(&mut self) {
        // Release: pairs with the kernel's acquire of the consumer's index; the entries are read
        // before.
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}
