//! Receiving by remapping pages instead of copying (`TCP_ZEROCOPY_RECEIVE`). Unsafe zone: the
//! kernel maps received pages into an area of this process.
//!
//! The kernel maps a page only if it holds nothing but payload, begins with it, and was allocated
//! alone: a network card that separates headers from payload makes such pages, with an MTU that
//! fits a page. All other bytes are copied by the same call. Here both ends are on the loopback
//! device, the sender's writes are whole pages, and `_share` says how many bytes were mapped.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::time::{ClockId, Timespec};

use super::Group;
use super::transfer::cpu;
use crate::cases::{Better, Case, Selection};
use crate::ping_pong::Stopwatch;

const SYSTEMS: [&str; 2] = ["mapped", "read"];
/// Bytes of a measurement, and of a short one.
const BYTES: usize = 1 << 30;
const BYTES_SHORT: usize = 16 << 20;
/// Most bytes of one call.
const AREA_BYTES: usize = 256 << 10;
/// Bytes of one write.
const WRITE_BYTES: usize = 1 << 20;
/// Longest wait for bytes.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Speed, processor time of the receiving thread, and bytes that were mapped.
fn cases() -> &'static [Case; 3] {
    static CASES: LazyLock<[Case; 3]> = LazyLock::new(|| {
        let case = |name: &'static str, unit, better| Case { name: name.into(), unit, better };
        [
            case("kernel_receive_mapped", "MiB/s", Better::High),
            case("kernel_receive_mapped_cpu_thread", "ms/GiB", Better::Low),
            case("kernel_receive_mapped_share", "% of bytes", Better::High),
        ]
    });
    &CASES
}

pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    cases().iter()
}

/// The group, if one of its cases is selected.
pub(super) fn group(selection: &Selection) -> Option<Group<'static>> {
    let group =
        Group { cases: all().collect(), systems: SYSTEMS.into(), measure: Box::new(measure) };
    group.is_selected(selection).then_some(group)
}

fn measure(system: &str, span: Duration) -> anyhow::Result<Vec<f64>> {
    let bytes = if span >= Duration::from_secs(1) { BYTES } else { BYTES_SHORT };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?;
    let to = listener.local_addr().context("cannot listen")?;
    let mut near = TcpStream::connect(to).context("cannot connect")?;
    let far = listener.accept().context("cannot accept")?.0;
    thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let block = vec![0x5a; WRITE_BYTES];
            (0..bytes / WRITE_BYTES).try_for_each(|_| near.write_all(&block))
        });
        let (watch, before) = (Stopwatch::start(), cpu(ClockId::ThreadCPUTime));
        let mapped = match system {
            "mapped" => Area::new(&far)?.receive(bytes)?,
            _ => read(&far, bytes).map(|()| 0)?,
        };
        let (taken, used) = (watch.elapsed(), cpu(ClockId::ThreadCPUTime) - before);
        sender.join().map_err(|_| anyhow!("the sender failed"))?.context("cannot send")?;
        let gib = bytes as f64 / f64::from(1 << 30);
        Ok(vec![
            gib * 1024.0 / taken.as_secs_f64(),
            used.as_secs_f64() * 1e3 / gib,
            100.0 * mapped as f64 / bytes as f64,
        ])
    })
}

fn read(mut stream: &TcpStream, bytes: usize) -> anyhow::Result<()> {
    let (mut buffer, mut left) = (vec![0; AREA_BYTES], bytes);
    while left > 0 {
        let count = stream.read(&mut buffer).context("cannot receive")?;
        ensure!(count > 0, "the sender closed {left} bytes too early");
        left -= count;
    }
    Ok(())
}

/// `struct tcp_zerocopy_receive` of linux/tcp.h.
#[derive(Default)]
#[repr(C)]
struct ZerocopyReceive {
    address: u64,
    length: u32,
    recv_skip_hint: u32,
    inq: u32,
    err: i32,
    copybuf_address: u64,
    copybuf_len: i32,
    flags: u32,
    msg_control: u64,
    msg_controllen: u64,
    msg_flags: u32,
    reserved: u32,
}

/// Addresses of this process at which a socket's received pages appear, and a buffer for the bytes
/// that do not fill a page.
struct Area<'a> {
    stream: &'a TcpStream,
    address: NonNull<libc::c_void>,
    copied: Vec<u8>,
}

impl<'a> Area<'a> {
    fn new(stream: &'a TcpStream) -> anyhow::Result<Self> {
        let (read, shared) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address, so no memory in use is replaced.
        let address = unsafe { mmap(std::ptr::null_mut(), AREA_BYTES, read, shared, stream, 0) };
        let address = NonNull::new(address.context("the socket cannot be mapped")?);
        let address = address.context("the kernel mapped address 0")?;
        Ok(Self { stream, address, copied: vec![0; AREA_BYTES] })
    }

    /// Receives so many bytes; returns how many were mapped.
    fn receive(&mut self, bytes: usize) -> anyhow::Result<usize> {
        let (mut left, mut mapped) = (bytes, 0);
        while left > 0 {
            let mut ready = [PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN)];
            ensure!(poll(&mut ready, Some(&PATIENCE))? > 0, "no more data moves");
            let call = self.call()?;
            let (in_pages, copied) = (call.length as usize, call.copybuf_len.max(0) as usize);
            mapped += in_pages;
            left = left.saturating_sub(in_pages + copied);
            if in_pages + copied == 0 {
                // The next bytes fill no page, and the call did not copy them.
                let hint = (call.recv_skip_hint as usize).clamp(1, AREA_BYTES);
                let count = self.stream.read(&mut self.copied[..hint]).context("cannot receive")?;
                ensure!(count > 0, "the sender closed {left} bytes too early");
                left = left.saturating_sub(count);
            }
        }
        Ok(mapped)
    }

    /// Maps and copies what has been received. Pages that an earlier call mapped are replaced.
    fn call(&mut self) -> anyhow::Result<ZerocopyReceive> {
        let mut call = ZerocopyReceive {
            address: self.address.as_ptr() as u64,
            length: AREA_BYTES as u32,
            copybuf_address: self.copied.as_mut_ptr() as u64,
            copybuf_len: AREA_BYTES as i32,
            ..ZerocopyReceive::default()
        };
        let mut size = size_of::<ZerocopyReceive>() as libc::socklen_t;
        let pointer = (&raw mut call).cast();
        let (protocol, option) = (libc::IPPROTO_TCP, 35 /* TCP_ZEROCOPY_RECEIVE */);
        // SAFETY: the kernel writes `size` bytes at most to `call`, AREA_BYTES at most to `copied`,
        // which the vector owns, and replaces pages only inside the mapping of this socket at
        // `address`, which is AREA_BYTES long. No reference to the mapping exists.
        let result = unsafe {
            libc::getsockopt(self.stream.as_raw_fd(), protocol, option, pointer, &raw mut size)
        };
        let error = std::io::Error::last_os_error();
        ensure!(result == 0, "TCP_ZEROCOPY_RECEIVE: {error}");
        Ok(call)
    }
}

impl Drop for Area<'_> {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and no reference to it exists.
        let _ = unsafe { munmap(self.address.as_ptr(), AREA_BYTES) };
    }
}
