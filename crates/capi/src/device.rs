//! What an instance is attached to, and how packets get in and out.

use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::sync::Arc;
use towpath_io::tap::Tap;
use towpath_net::socket::Sockets;
use towpath_net::stack::Context;
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Caps, Device, Ledger, Memory, Packet, Site};

/// Bytes of an Ethernet header.
const ETHERNET_LEN: usize = 14;
/// Our link-layer address on a wire that has none.
pub(crate) const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// The one neighbour's.
pub(crate) const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// Packets read from a device at a time: few enough that calls get the lock soon.
const READ_BURST: usize = 16;
/// Packets that may wait for whoever moves them, so that the stack's own queues fill up, and calls
/// wait or fail, where nobody takes any: more than a window of 4 MiB in segments of 1,448 bytes.
const WIRE_PACKETS_MAX: usize = 4096;
/// How long a device waits for memory, or a packet for room in the device.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// Where packets come from and go to.
pub(crate) enum Link {
    /// The caller moves them.
    Wire(Wire),
    /// A device.
    Port(Box<Port>),
}

impl Link {
    /// The next packet that left and waits for the caller.
    pub(crate) fn take(&mut self) -> Option<(Instant, Vec<u8>)> {
        match self {
            Link::Wire(wire) => wire.out.pop_front(),
            Link::Port(_) => None,
        }
    }

    /// Packets that the device did not take, such as those whose memory had gone: the program
    /// unmapped what it had lent.
    pub(crate) fn refused(&self) -> u64 {
        match self {
            Link::Wire(_) => 0,
            Link::Port(port) => port.tap.counters().transmit_refused,
        }
    }

    /// Nothing more is taken from the stack until the caller has taken what waits.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Link::Wire(wire) if wire.out.len() >= WIRE_PACKETS_MAX)
    }

    /// True if the device was deleted: nothing moves any more.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Link::Port(port) if port.gone)
    }

    /// True if packets have left the stack that nobody has taken yet.
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Link::Wire(wire) => !wire.out.is_empty(),
            Link::Port(port) => !port.to_send.is_empty(),
        }
    }

    /// Takes what the stack has to send, as far as there is room.
    pub(crate) fn send(&mut self, sockets: &mut Sockets, cx: &mut Context<'_>) {
        match self {
            Link::Wire(wire) => wire.collect(sockets, cx),
            Link::Port(port) => port.send(sockets, cx),
        }
    }
}

/// Whoever drives the instance moves IP packets himself: they have no Ethernet header there, which
/// is put on and taken off here.
#[derive(Default)]
pub(crate) struct Wire {
    /// Packets that left and were not taken yet, with the time when.
    out: VecDeque<(Instant, Vec<u8>)>,
}

impl Wire {
    fn collect(&mut self, sockets: &mut Sockets, cx: &mut Context<'_>) {
        let mut burst = Burst::new();
        while self.out.len() < WIRE_PACKETS_MAX {
            sockets.output(&mut burst, cx);
            if burst.is_empty() {
                return;
            }
            while let Some(packet) = burst.pop() {
                self.out.push_back((cx.now, flatten(&packet, cx.ledger)));
            }
        }
    }
}

/// A TAP device. The worker reads it and runs timers; whoever makes the stack send something
/// writes it at once, and wakes the worker if that has to be up earlier than it thought.
pub(crate) struct Port {
    tap: Tap,
    received: Burst,
    to_send: Burst,
    /// The device took a part only, or there was no memory: try again then.
    retry_at: Option<Instant>,
    /// Reading waits until then for memory.
    paused_until: Option<Instant>,
    /// The interface was deleted: nothing moves any more, as with the cable out.
    gone: bool,
    /// Wakes the worker.
    alarm: Arc<OwnedFd>,
    /// When the worker wakes by itself; `None` for never.
    wakes_at: Option<Instant>,
}

impl Port {
    /// Takes over a device. Writing to `alarm`, an eventfd, wakes the worker.
    pub(crate) fn new(tap: Tap, alarm: Arc<OwnedFd>) -> Self {
        Self {
            tap,
            received: Burst::limited(READ_BURST),
            to_send: Burst::new(),
            retry_at: None,
            paused_until: None,
            gone: false,
            alarm,
            wakes_at: None,
        }
    }

    /// What the device can do.
    pub(crate) fn caps(&self) -> Caps {
        self.tap.caps()
    }

    /// The device's file.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        rustix::fd::AsFd::as_fd(&self.tap)
    }

    /// True if the interface was deleted.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// True while reading waits for memory.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused_until.is_some()
    }

    /// Wakes the worker.
    pub(crate) fn ring(&self) {
        // Fails only if the counter is full: then it rings already.
        let _ = rustix::io::write(&self.alarm, &1_u64.to_ne_bytes());
    }

    /// Reads a burst and gives it to the stack.
    pub(crate) fn receive(&mut self, sockets: &mut Sockets, cx: &mut Context<'_>) {
        self.paused_until.take_if(|until| *until <= cx.now);
        if self.gone || self.is_paused() {
            return;
        }
        let starved = self.tap.counters().receive_paused;
        self.gone = self.tap.receive(cx.memory, &mut self.received).is_err();
        if self.tap.counters().receive_paused > starved {
            self.paused_until = Some(cx.now + MEMORY_PAUSE);
        }
        sockets.input(&mut self.received, cx);
    }

    fn send(&mut self, sockets: &mut Sockets, cx: &mut Context<'_>) {
        self.retry_at = None;
        loop {
            if self.to_send.is_empty() {
                sockets.output(&mut self.to_send, cx);
            }
            if self.to_send.is_empty() {
                break;
            }
            if self.gone {
                sockets.stack_mut().count_gone(self.to_send.len());
                self.to_send.clear();
            } else {
                self.gone = self.tap.transmit(&mut self.to_send).is_err();
                sockets.stack_mut().set_caps(self.tap.caps());
                if !self.to_send.is_empty() && !self.gone {
                    break;
                }
            }
        }
        if !self.to_send.is_empty() || sockets.stack().has_output() {
            self.retry_at = Some(cx.now + MEMORY_PAUSE);
        }
        let due = self.due(sockets);
        if due.is_some_and(|due| self.wakes_at.is_none_or(|at| due < at)) {
            self.wakes_at = due;
            self.ring();
        }
    }

    /// Gives back what was kept ready for reading.
    pub(crate) fn rest(&mut self) {
        self.tap.release_frames();
    }

    /// When the worker has to be up; it promises to wake then.
    pub(crate) fn sleep(&mut self, sockets: &Sockets) -> Option<Instant> {
        self.wakes_at = self.due(sockets);
        self.wakes_at
    }

    fn due(&self, sockets: &Sockets) -> Option<Instant> {
        let deadline = sockets.next_deadline();
        [deadline, self.retry_at, self.paused_until].into_iter().flatten().min()
    }
}

/// The bytes of a packet without its Ethernet header.
fn flatten(packet: &Packet, ledger: &Ledger) -> Vec<u8> {
    let mut bytes = packet.headers()[ETHERNET_LEN..].to_vec();
    for piece in packet.pieces() {
        let start = bytes.len();
        bytes.resize(start + piece.len(), 0);
        ledger.copy(Site::Linearise, piece, &mut bytes[start..]);
    }
    bytes
}

/// An IP packet as a device would have received it; `None` without memory.
pub(crate) fn packet(bytes: &[u8], memory: &mut Memory) -> Option<Packet> {
    let kind: [u8; 2] = if bytes.first()? >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    let mut packet = memory.packet()?;
    let mut frame = memory.small.take()?;
    frame[..6].copy_from_slice(&OUR_MAC.0);
    frame[6..12].copy_from_slice(&PEER_MAC.0);
    frame[12..ETHERNET_LEN].copy_from_slice(&kind);
    let count = bytes.len().min(frame.len() - ETHERNET_LEN);
    frame[ETHERNET_LEN..ETHERNET_LEN + count].copy_from_slice(&bytes[..count]);
    packet.push_piece(frame.freeze(ETHERNET_LEN + count)).ok()?;
    let mut rest = &bytes[count..];
    while !rest.is_empty() {
        let mut frame = memory.large.take()?;
        let count = rest.len().min(frame.len());
        frame[..count].copy_from_slice(&rest[..count]);
        packet.push_piece(frame.freeze(count)).ok()?;
        rest = &rest[count..];
    }
    Some(packet)
}

/// A wire that takes super-packets whole.
#[cfg(feature = "packetdrill")]
pub(crate) const fn wire_caps(mtu: u16) -> Caps {
    Caps {
        mtu,
        checksum: true,
        tso4: true,
        tso6: true,
        uso: true,
        tunnel: false,
        gso_bytes_max: ETHERNET_LEN as u32 + 65_535,
        cuts: false,
    }
}
