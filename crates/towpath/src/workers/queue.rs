//! The queues of a TAP device, one for each worker, and what is handed over between them.
//!
//! # Theory of operation
//!
//! A flow has to stay with one worker, and the kernel alone decides which queue a packet goes to
//! ([`Tap::add_queue`]): the one that last wrote a packet of its flow within three seconds, else
//! the one that a hash of its addresses and ports tells, which is always the same one. A TCP flow
//! that the program begins thus comes to the hash's queue, is answered there, and never comes
//! anywhere else, however long it rests. All else has no such home. Flows that the host begins come
//! to the hash's queue after a rest; datagrams of one port of the program go to many peers, but
//! have one host socket; fragments and errors are spread by their addresses alone.
//!
//! So the first worker serves everything, and each of the others nothing but TCP of the program
//! from ports that are not published. What else comes to another's queue is handed over to the
//! first, through a ring. It answers by its own queue, so the kernel leads the flow there.
//!
//! Invariants: whether a packet is handed over depends on nothing but the packet, so it is the same
//! for all packets of a TCP connection. Order is kept in the ring and in the queues, not between
//! them. What the ring has no room for is dropped and counted. Each side belongs to one worker's
//! thread; the ring alone is shared.
//!
//! Limit: [`HANDED_MAX`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use towpath_io::doorbell::EventDoorbell;
use towpath_io::reactor::{Interest, Reactor};
use towpath_io::tap::{Tap, TapError};
use towpath_net::time::Instant;
use towpath_net::wire::Protocol;
use towpath_packet::ring::{self, Consumer, SharedProducer};
use towpath_packet::{Burst, Caps, Device, Packet};

use crate::publish::{self, Publish};
use crate::report::Report;
use crate::worker::{Input, READ_BURST, Side, SideContext};

/// Packets that may wait for the first worker: as many as a TAP device's own queue holds.
pub const HANDED_MAX: usize = 1024;

/// The queue of the worker that serves everything.
pub(super) struct FirstQueue {
    tap: Tap,
    /// What the others hand over.
    handed: Consumer<Packet>,
    /// Kept so that the ring never ends.
    to_first: SharedProducer<Packet>,
    bell: EventDoorbell,
    /// Readable when the device or the bell is.
    reactor: Reactor,
    /// Something was handed over and not taken yet, when last looked at.
    has_handed: bool,
    /// The bell may have rung.
    is_armed: bool,
    /// The ring is read before the device; they take turns, so that neither can starve the other.
    is_ring_first: bool,
}

impl FirstQueue {
    pub(super) fn new(tap: Tap) -> io::Result<Self> {
        let bell = EventDoorbell::new()?;
        let (to_first, handed) =
            ring::shared(HANDED_MAX, bell.clone()).map_err(io::Error::other)?;
        let reactor = Reactor::new()?;
        reactor.add(&tap, TOKEN_TAP, Interest::READ, false)?;
        reactor.add(&bell, TOKEN_BELL, Interest::READ, false)?;
        let (has_handed, is_armed, is_ring_first) = (false, false, true);
        Ok(Self { tap, handed, to_first, bell, reactor, has_handed, is_armed, is_ring_first })
    }

    /// The side of another worker.
    pub(super) fn another(&self, tap: Tap, published: Arc<Published>) -> OtherQueue {
        OtherQueue {
            tap,
            published,
            to_first: self.to_first.clone(),
            received: Burst::limited(READ_BURST),
            leaving: Burst::limited(READ_BURST),
            handed_over: 0,
            full: 0,
        }
    }
}

impl AsFd for FirstQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reactor.as_fd()
    }
}

impl Side for FirstQueue {
    type Error = TapError;

    fn caps(&self) -> Caps {
        Device::caps(&self.tap)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.has_handed.then_some(Instant::START)
    }

    fn turn(&mut self, is_readable: bool, _: &mut SideContext<'_>) -> Result<(), TapError> {
        if is_readable && self.is_armed {
            self.bell.clear();
            self.is_armed = false;
        }
        Ok(())
    }

    fn poll(&mut self) -> bool {
        self.has_handed = !self.handed.is_empty();
        self.has_handed
    }

    fn arm(&mut self) -> bool {
        self.is_armed = true;
        self.has_handed = !self.handed.needs_wakeup();
        self.has_handed
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut SideContext<'_>) -> Result<Input, TapError> {
        if self.is_ring_first {
            self.handed.dequeue(burst);
        }
        let input = Side::receive(&mut self.tap, burst, cx)?;
        if !self.is_ring_first {
            self.handed.dequeue(burst);
        }
        self.is_ring_first = !self.is_ring_first;
        self.has_handed = !self.handed.is_empty();
        Ok(input)
    }

    fn transmit(&mut self, burst: &mut Burst, _: &mut SideContext<'_>) -> Result<(), TapError> {
        Device::transmit(&mut self.tap, burst)
    }

    fn rest(&mut self) {
        self.tap.release_frames();
    }

    fn add_to(&self, report: &mut Report) {
        self.tap.add_to(report);
    }
}

/// The queue of a worker that serves TCP connections of the program alone.
pub(super) struct OtherQueue {
    tap: Tap,
    published: Arc<Published>,
    to_first: SharedProducer<Packet>,
    received: Burst,
    leaving: Burst,
    /// Packets that went into the ring.
    handed_over: u64,
    /// Packets that found no room there.
    full: u64,
}

impl AsFd for OtherQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }
}

impl Side for OtherQueue {
    type Error = TapError;

    fn caps(&self) -> Caps {
        Device::caps(&self.tap)
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn turn(&mut self, _: bool, _: &mut SideContext<'_>) -> Result<(), TapError> {
        Ok(())
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut SideContext<'_>) -> Result<Input, TapError> {
        let input = Side::receive(&mut self.tap, &mut self.received, cx)?;
        while let Some(mut packet) = self.received.pop() {
            let stays = self.published.is_of_another(packet.peek_headers());
            let to = if stays { &mut *burst } else { &mut self.leaving };
            to.push(packet).expect("a worker's burst is empty and has room for what was received");
        }
        if !self.leaving.is_empty() {
            let count = self.leaving.len();
            let dropped = self.to_first.enqueue_or_drop(&mut self.leaving);
            self.full += dropped as u64;
            self.handed_over += (count - dropped) as u64;
        }
        Ok(input)
    }

    fn transmit(&mut self, burst: &mut Burst, _: &mut SideContext<'_>) -> Result<(), TapError> {
        Device::transmit(&mut self.tap, burst)
    }

    fn rest(&mut self) {
        self.tap.release_frames();
    }

    fn add_to(&self, report: &mut Report) {
        self.tap.add_to(report);
        report.handed_over = self.handed_over;
        report.hand_over_full = self.full;
    }
}

/// The program's TCP ports that are published: a bit for each port.
pub(super) struct Published(Box<[u64; PORT_WORDS]>);

impl Published {
    pub(super) fn new(publish: &[Publish]) -> Self {
        let mut bits = Box::new([0; PORT_WORDS]);
        for publish in publish.iter().filter(|one| one.protocol == publish::Protocol::Tcp) {
            let port = usize::from(publish.program_port);
            bits[port / 64] |= 1 << (port % 64);
        }
        Self(bits)
    }

    fn contains(&self, port: u16) -> bool {
        let port = usize::from(port);
        self.0[port / 64] & 1 << (port % 64) != 0
    }

    /// True if a frame of the program that begins with `headers` belongs to another worker than the
    /// first: whole TCP over IPv4, or over IPv6 without extension headers, from a port that is not
    /// published. What is malformed is the first worker's.
    fn is_of_another(&self, headers: &[u8]) -> bool {
        let Some((ethernet, ip)) = headers.split_at_checked(ETHERNET_BYTES) else { return false };
        let Some(first) = ip.first() else { return false };
        let (protocol, at) = match ([ethernet[12], ethernet[13]], first >> 4) {
            (ETHERTYPE_IPV4, 4) => {
                let Some([high, low]) = ip.get(6..8) else { return false };
                if u16::from_be_bytes([*high, *low]) & FRAGMENT_BITS != 0 {
                    return false;
                }
                (ip.get(9), usize::from(first & 0xf) * 4)
            }
            (ETHERTYPE_IPV6, 6) => (ip.get(6), IPV6_BYTES),
            _ => return false,
        };
        let ports = ip.get(at..at + 2);
        protocol.is_some_and(|protocol| Protocol(*protocol) == Protocol::TCP)
            && ports.is_some_and(|port| !self.contains(u16::from_be_bytes([port[0], port[1]])))
    }
}

const TOKEN_TAP: u64 = 0;
const TOKEN_BELL: u64 = 1;
/// Words of a bit for each port.
const PORT_WORDS: usize = (u16::MAX as usize + 1) / 64;
const ETHERNET_BYTES: usize = 14;
const IPV6_BYTES: usize = 40;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// More fragments, and the offset of this one.
const FRAGMENT_BITS: u16 = 0x3fff;

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of a frame from port 0x1234, and of one with options where there can be some.
    fn frame(ethertype: [u8; 2], protocol: u8, ip_bytes: usize) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET_BYTES + ip_bytes];
        frame[12..14].copy_from_slice(&ethertype);
        if ethertype == ETHERTYPE_IPV4 {
            frame[14] = 0x40 | (ip_bytes / 4) as u8;
            frame[14 + 9] = protocol;
            // Not to be fragmented: no fragment.
            frame[14 + 6] = 0x40;
        } else {
            frame[14] = 0x60;
            frame[14 + 6] = protocol;
        }
        frame.extend([0x12, 0x34, 0, 80]);
        frame
    }

    fn published(ports: &[u16]) -> Published {
        let spec: Vec<String> = ports.iter().map(|port| format!("9000:{port}")).collect();
        let mut publish = publish::parse(publish::Protocol::Tcp, &spec, &(1..=1)).expect("ports");
        publish.extend(
            publish::parse(publish::Protocol::Udp, &["9001:1".into()], &(1..=1)).expect("one"),
        );
        Published::new(&publish)
    }

    #[test]
    fn tcp_of_the_program_stays() {
        let none = published(&[1]);
        for ip_bytes in [20, 24, 60] {
            assert!(none.is_of_another(&frame(ETHERTYPE_IPV4, 6, ip_bytes)));
        }
        assert!(none.is_of_another(&frame(ETHERTYPE_IPV6, 6, 40)));
    }

    #[test]
    fn published_ports_are_the_first_workers() {
        let one = published(&[0x1234]);
        assert!(!one.is_of_another(&frame(ETHERTYPE_IPV4, 6, 20)));
        assert!(!one.is_of_another(&frame(ETHERTYPE_IPV6, 6, 40)));
        for port in [0, 1, 63, 64, u16::MAX] {
            let set = published(&[port.max(1)]);
            assert!(set.contains(port.max(1)) && !set.contains(port ^ 0x40));
        }
    }

    /// Bad input: every length from nothing on, fragments, other protocols, an IPv4 header length
    /// that leads beyond the end, versions that the frame's type contradicts.
    #[test]
    fn everything_else_is_the_first_workers() {
        let none = published(&[1]);
        for whole in [frame(ETHERTYPE_IPV4, 6, 20), frame(ETHERTYPE_IPV6, 6, 40)] {
            let ports_end = whole.len() - 2;
            for len in 0..ports_end {
                assert!(!none.is_of_another(&whole[..len]), "{len}");
            }
            assert!(none.is_of_another(&whole[..ports_end]));
            for protocol in [0, 1, 17, 44, 58, 255] {
                let mut other = whole.clone();
                other[if whole[14] >> 4 == 4 { 14 + 9 } else { 14 + 6 }] = protocol;
                assert!(!none.is_of_another(&other), "{protocol}");
            }
            let mut version = whole.clone();
            version[14] ^= 0x20;
            assert!(!none.is_of_another(&version));
            let mut arp = whole;
            arp[12..14].copy_from_slice(&[0x08, 0x06]);
            assert!(!none.is_of_another(&arp));
        }
        for bits in [[0x20, 0], [0, 1], [0x1f, 0xff]] {
            let mut fragment = frame(ETHERTYPE_IPV4, 6, 20);
            fragment[20..22].copy_from_slice(&bits);
            assert!(!none.is_of_another(&fragment), "{bits:?}");
        }
        let mut long = frame(ETHERTYPE_IPV4, 6, 20);
        long[14] = 0x4f;
        assert!(!none.is_of_another(&long));
    }
}
