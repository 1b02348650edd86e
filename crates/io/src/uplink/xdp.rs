//! Uplinks through AF_XDP sockets: frames of one queue of an interface, past the kernel's stack.
//!
//! # Theory of operation
//!
//! A small XDP program passes the frames of the queue to the socket, and those of other queues to
//! the kernel's stack. It runs in the driver (native) or in the kernel's generic receive path. It
//! belongs to a link whose only descriptor is here: the kernel detaches it when this process ends,
//! however that happens.
//!
//! Received frames are lent where they are, and their memory returns to the kernel when the last
//! piece is dropped. If receivers hold so many that fewer than [`RESERVE`] are left, further
//! packets are copied into the worker's own frames: a slow receiver does not stop the others. A
//! packet to send is copied into a frame of the socket, in one piece, and the switch has segmented
//! it and completed its checksums before.
//!
//! The kernel takes packets to send when it is called, once per burst of 32; drivers in zero-copy
//! mode only when they sleep (`XDP_USE_NEED_WAKEUP`). An interface that goes down or away is
//! noticed by a check every [`CHECK`], because epoll does not report it for these sockets.
//!
//! Invariants: each packet taken from a burst is passed to the kernel or counted under one drop
//! reason. No call blocks or allocates. One thread at a time.
//!
//! Limits: those of `umem`, [`MTU_MAX`]. Sources: Documentation/networking/af_xdp.rst.

use super::counters::UplinkCounters;
use super::error::{Problem, Step, UplinkError};
use super::open::{self, Attached, Opened};
use super::packet::CHECK;
use super::settings::{Mode, XdpSettings};
use super::umem::{Confused, TRANSMIT_ENTRIES, Umem};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{xdp_options, xdp_statistics};
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpOptionsFlags};
use rustix::net::{RecvFlags, SendFlags, bind, recv, send};
use std::time::Duration;
use towpath_packet::ledger::Site;
use towpath_packet::time::Instant;
use towpath_packet::{Burst, Caps, Context, Device, Frame, Input, Memory, Offload, Packet};

/// Largest MTU of an interface: what a frame of 4 KiB holds behind the kernel's headroom and an
/// Ethernet header with a tag.
pub const MTU_MAX: u32 = mtu_max(LARGE_FRAME);
/// Free frames below which received packets are copied: those that packets to send may need.
pub const RESERVE: usize = TRANSMIT_ENTRIES as usize;

/// Bytes of the socket's frames.
const SMALL_FRAME: usize = 2048;
const LARGE_FRAME: usize = 4096;
/// Bytes that the kernel leaves free in front of a received frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// Bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;
const TAG_BYTES: usize = 4;
/// Time until the kernel is called again for packets that it has left in the ring.
const RETRY: Duration = Duration::from_millis(1);
/// Most attempts to bind to a queue, and the time between them: the kernel releases the queue of a
/// closed socket a little later.
const BINDS_MAX: u32 = 20;
const BIND_PAUSE: Duration = Duration::from_millis(5);

/// An AF_XDP socket; see the module documentation.
pub(super) struct Xdp {
    /// Detaches the program. Dropped first, so that no frame is passed to a closed socket.
    _link: OwnedFd,
    umem: Umem,
    settings: XdpSettings,
    is_native: bool,
    is_zerocopy: bool,
    mtu: u16,
    counters: UplinkCounters,
    is_up: bool,
    /// When the interface is checked again.
    check: Instant,
    /// The kernel has left packets in the transmit ring.
    retry: Option<Instant>,
}

impl Xdp {
    /// Opens a socket for a queue of an interface in the network namespace of this thread, for IP
    /// packets of at most `mtu` bytes.
    pub(super) fn open(settings: &XdpSettings, mtu: u16) -> Result<Self, UplinkError> {
        let XdpSettings { interface, queue, mode } = settings;
        let Opened { socket, index, mtu: own } = open::xdp(interface)?;
        if own > MTU_MAX {
            return Err(Problem::MtuTooLarge { mtu: own, max: MTU_MAX }.of(interface));
        }
        let frame_bytes = if own <= mtu_max(SMALL_FRAME) { SMALL_FRAME } else { LARGE_FRAME };
        let mut umem = Umem::new(socket, frame_bytes)
            .map_err(|errno| Problem::at(Step::Memory, errno).of(interface))?;
        umem.refill();
        bind_to(umem.socket(), index, *queue, *mode).map_err(|problem| problem.of(interface))?;
        let Attached { link, is_native } = open::attach(interface, *queue, *mode, umem.socket())?;
        let is_zerocopy = xdp_options(umem.socket())
            .is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        if is_zerocopy && !is_native {
            // The driver has the queue's memory, so the generic path cannot fill it.
            return Err(Problem::NoNative(Errno::OPNOTSUPP).of(interface));
        }
        Ok(Self {
            _link: link,
            umem,
            settings: settings.clone(),
            is_native,
            is_zerocopy,
            mtu: own.min(mtu.into()) as u16,
            counters: UplinkCounters::default(),
            is_up: true,
            // The first turn checks it.
            check: Instant::START,
            retry: None,
        })
    }

    /// Counters, including the kernel's own.
    pub(super) fn counters(&self) -> UplinkCounters {
        let lost = xdp_statistics(self.umem.socket())
            .map_or(0, |kernel| kernel.rx_dropped + kernel.rx_ring_full.unwrap_or(0));
        UplinkCounters { receive_overrun: lost, ..self.counters }
    }

    pub(super) fn is_up(&self) -> bool {
        self.is_up
    }

    /// How the program runs, and whether the driver fills the memory without a copy.
    pub(super) fn way(&self) -> (Mode, bool) {
        (if self.is_native { Mode::Native } else { Mode::Generic }, self.is_zerocopy)
    }

    /// Moves a received packet into `packet`: lends its frame, or copies it if `lends` is false.
    /// Returns false if there is no memory for the copy.
    fn accept(
        &mut self,
        (frame, from, to): (Frame, usize, usize),
        packet: &mut Packet,
        cx: &mut Context<'_>,
        lends: bool,
    ) -> bool {
        let mut piece = if lends {
            let mut piece = frame.freeze(to);
            piece.advance(from);
            piece
        } else {
            let bytes = &frame[from..to];
            let Some(mut own) = frame_for(cx.memory, bytes.len()) else { return false };
            own[..bytes.len()].copy_from_slice(bytes);
            cx.ledger.count(Site::GuestSmall, bytes.len());
            self.counters.receive_copied += 1;
            own.freeze(bytes.len())
        };
        piece.truncate(to - from);
        self.counters.received.count(piece.len(), &Offload::default());
        packet.push_piece(piece).expect("an empty packet has room");
        true
    }

    /// Calls the kernel until it has taken the packets in the transmit ring, or takes no more.
    fn kick(&mut self, now: Instant) -> Result<(), UplinkError> {
        self.retry = None;
        let mut left = self.umem.unsent();
        while left > 0 && self.umem.waits_to_send() {
            self.counters.transmitted.calls += 1;
            let sent = send(self.umem.socket(), &[], SendFlags::DONTWAIT);
            let before = std::mem::replace(&mut left, self.umem.unsent());
            match sent {
                Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => return self.look(now),
                // It takes some of the packets per call, and fails if there are more.
                _ if left < before => {}
                _ => break,
            }
        }
        if left > 0 {
            self.retry = Some(now + RETRY);
        }
        Ok(())
    }

    /// Checks whether the interface is up, and whether it is there.
    fn look(&mut self, now: Instant) -> Result<(), UplinkError> {
        self.check = now + CHECK;
        self.is_up = match send(self.umem.socket(), &[], SendFlags::DONTWAIT) {
            Err(errno @ (Errno::NXIO | Errno::NODEV)) => return Err(self.failed(errno)),
            Err(Errno::NETDOWN) => false,
            // Full queues and the like.
            _ => true,
        };
        Ok(())
    }

    fn failed(&self, errno: Errno) -> UplinkError {
        Problem::at(Step::Use, errno).of(&self.settings.interface)
    }

    fn confused(&self, Confused: Confused) -> UplinkError {
        Problem::Confused.of(&self.settings.interface)
    }
}

impl AsFd for Xdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.umem.socket()
    }
}

impl Device for Xdp {
    type Error = UplinkError;

    fn caps(&self) -> Caps {
        Caps::plain(self.mtu)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.umem.socket())
    }

    fn next_deadline(&self) -> Option<Instant> {
        Some(self.retry.map_or(self.check, |retry| retry.min(self.check)))
    }

    fn turn(&mut self, _: bool, cx: &mut Context<'_>) -> Result<(), UplinkError> {
        if self.retry.is_some_and(|at| at <= cx.now) {
            self.kick(cx.now)?;
        }
        if self.check <= cx.now {
            self.look(cx.now)?;
        }
        Ok(())
    }

    fn poll(&mut self) -> bool {
        self.umem.has_received()
    }

    fn arm(&mut self) -> bool {
        self.umem.has_received()
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, UplinkError> {
        let mut input = Input::Done;
        // Looking at the pool once per burst is enough: the reserve is larger than a burst.
        let lends = self.umem.free_count() >= RESERVE;
        while !burst.is_full() && self.umem.has_received() {
            let Some(mut packet) = cx.memory.packet().filter(|_| lends || has_frame(cx.memory))
            else {
                self.counters.receive_paused += 1;
                input = Input::NoMemory;
                break;
            };
            let received = self.umem.receive().map_err(|confused| self.confused(confused))?;
            let Some((frame, range)) = received else { break };
            if range.len() < ETHERNET_BYTES {
                self.counters.receive_short += 1;
            } else if self.accept((frame, range.start, range.end), &mut packet, cx, lends) {
                burst.push(packet).expect("the burst has room");
            } else {
                self.counters.receive_no_memory += 1;
            }
        }
        self.umem.release();
        self.umem.refill();
        if self.umem.waits_for_frames() {
            // Drivers that sleep for lack of frames; the result is in the rings.
            let _ = recv(self.umem.socket(), &mut [0; 0], RecvFlags::DONTWAIT);
        }
        Ok(input)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), UplinkError> {
        if !self.is_up {
            self.counters.transmit_down += burst.len() as u64;
            burst.clear();
            return Ok(());
        }
        burst.prefetch();
        self.umem.reap().map_err(|confused| self.confused(confused))?;
        while let Some(packet) = burst.first() {
            let len = packet.len();
            if len > self.umem.frame_bytes() {
                self.counters.transmit_refused += 1;
                burst.pop();
                continue;
            }
            let Some(mut frame) = self.umem.frame() else {
                self.counters.transmit_full += 1;
                break;
            };
            packet.copy_to(&mut frame[..len], cx.ledger);
            self.umem.send(frame, len);
            self.counters.transmitted.count(len, &Offload::default());
            burst.pop();
        }
        self.umem.publish();
        self.kick(cx.now)
    }

    fn refused(&self) -> u64 {
        self.counters.transmit_refused
    }
}

/// Largest IP packet in a frame of the socket.
const fn mtu_max(frame_bytes: usize) -> u32 {
    (frame_bytes - HEADROOM - ETHERNET_BYTES - TAG_BYTES) as u32
}

/// Takes a frame of the worker's own for `bytes` bytes.
fn frame_for(memory: &mut Memory, bytes: usize) -> Option<Frame> {
    if bytes <= memory.small.frame_bytes() { memory.small.take() } else { memory.large.take() }
}

/// True if [`frame_for`] returns a frame for every packet.
fn has_frame(memory: &mut Memory) -> bool {
    memory.small.free_count() > 0 && memory.large.free_count() > 0
}

/// Binds a socket to a queue.
fn bind_to(socket: BorrowedFd<'_>, index: u32, queue: u32, mode: Mode) -> Result<(), Problem> {
    let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    // Otherwise the driver fills the memory itself, if it can.
    flags.set(SocketAddrXdpFlags::XDP_COPY, mode == Mode::Generic);
    let address = SocketAddrXdp::new(flags, index, queue);
    let mut bound = bind(socket, &address);
    for _ in 1..BINDS_MAX {
        if bound != Err(Errno::BUSY) {
            break;
        }
        std::thread::sleep(BIND_PAUSE);
        bound = bind(socket, &address);
    }
    bound.map_err(|errno| match errno {
        Errno::BUSY => Problem::QueueTaken(queue),
        Errno::INVAL => Problem::NoQueue(queue),
        errno => Problem::at(Step::Bind, errno),
    })
}
