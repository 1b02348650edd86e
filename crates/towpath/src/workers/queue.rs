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
//! So [`Owners`] say whose a packet is, by its headers alone: TCP of the program from ports that
//! are not published is served where it comes; that from published ports belongs to a worker that
//! a hash of ours tells, who also begins the connection; and everything else to the first. What
//! comes to another's queue is handed over, through a ring of the owner's. He answers by his own
//! queue, so the kernel leads the flow there.
//!
//! Invariants: whether a packet is handed over depends on nothing but the packet, so it is the
//! same for all packets of a TCP connection, and no two workers have connections with the same
//! addresses and ports. Order is kept in the ring and in the queues, not between them. What a ring
//! has no room for is dropped and counted. Each side belongs to one worker's thread; the rings
//! alone are shared.
//!
//! Limit: [`HANDED_MAX`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use towpath_io::doorbell::EventDoorbell;
use towpath_io::tap::{Tap, TapError};
use towpath_net::time::Instant;
use towpath_net::wire::Protocol;
use towpath_packet::ring::{self, Consumer, SharedProducer};
use towpath_packet::{Burst, Caps, Device, Packet};

use crate::publish::{self, Publish};
use crate::report::Report;
use crate::worker::{Input, Side, SideContext};

/// Packets that may wait for a worker: as many as a TAP device's own queue holds.
pub const HANDED_MAX: usize = 1024;

/// The queue of a worker, and what the others hand over to him.
pub(super) struct Queue {
    tap: Tap,
    index: usize,
    owners: Arc<Owners>,
    /// What the others hand over.
    handed: Consumer<Packet>,
    /// To each worker, with the one that has this, so that no ring ends.
    to: Vec<SharedProducer<Packet>>,
    /// What came by the device and is not looked at yet, and what goes to each worker.
    received: Burst,
    leaving: Vec<Burst>,
    bell: EventDoorbell,
    /// Something was handed over and not taken yet, when last looked at.
    has_handed: bool,
    /// The ring is read before the device; they take turns, so that neither can starve the other.
    is_ring_first: bool,
    /// Packets that went to others.
    handed_over: u64,
    /// Packets that found no room there.
    full: u64,
}

impl Queue {
    /// One for each queue of the device.
    pub(super) fn all(taps: Vec<Tap>, owners: &Arc<Owners>) -> io::Result<Vec<Self>> {
        let mut ends = Vec::new();
        for _ in &taps {
            // Handing over is rare, and each sleep of the owner would be a barrier of all threads.
            let bell = EventDoorbell::fenced()?;
            let (to, handed) = ring::shared(HANDED_MAX, bell.clone()).map_err(io::Error::other)?;
            ends.push((bell, to, handed));
        }
        let to: Vec<_> = ends.iter().map(|end| end.1.clone()).collect();
        let ends = taps.into_iter().zip(ends).enumerate();
        let each = ends.map(|(index, (tap, (bell, _, handed)))| Self {
            tap,
            index,
            owners: owners.clone(),
            handed,
            leaving: to.iter().map(|_| Burst::new()).collect(),
            to: to.clone(),
            received: Burst::new(),
            bell,
            has_handed: false,
            is_ring_first: true,
            handed_over: 0,
            full: 0,
        });
        Ok(each.collect())
    }

    /// Reads the device until `burst` is full, and hands over what is not of this worker.
    fn read(&mut self, burst: &mut Burst, cx: &mut SideContext<'_>) -> Result<Input, TapError> {
        let room = burst.room();
        if room == 0 {
            return Ok(Input::Done);
        }
        self.received.limit(room);
        let input = Side::receive(&mut self.tap, &mut self.received, cx)?;
        let is_full = self.received.is_full();
        while let Some(mut packet) = self.received.pop() {
            let owner = self.owners.of_packet(packet.peek_headers()).unwrap_or(self.index);
            let to = if owner == self.index { &mut *burst } else { &mut self.leaving[owner] };
            to.push(packet).expect("there is room for what was received");
        }
        let mut of_others = 0;
        for (leaving, to) in self.leaving.iter_mut().zip(&mut self.to) {
            if !leaving.is_empty() {
                let count = leaving.len();
                of_others += leaving.iter().map(Packet::len).sum::<usize>();
                let dropped = to.enqueue_or_drop(leaving);
                self.full += dropped as u64;
                self.handed_over += (count - dropped) as u64;
            }
        }
        Ok(match input {
            Input::Done if is_full && of_others > 0 => Input::HandedOver(of_others),
            input => input,
        })
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }
}

impl Side for Queue {
    type Error = TapError;

    fn caps(&self) -> Caps {
        Device::caps(&self.tap)
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn heard(&mut self) {
        self.bell.clear();
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.has_handed.then_some(Instant::START)
    }

    fn turn(&mut self, _: bool, _: &mut SideContext<'_>) -> Result<(), TapError> {
        Ok(())
    }

    fn poll(&mut self) -> bool {
        self.has_handed = !self.handed.is_empty();
        self.has_handed
    }

    fn arm(&mut self) -> bool {
        self.has_handed = !self.handed.needs_wakeup();
        self.has_handed
    }

    fn looks_by_call(&self) -> bool {
        true
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut SideContext<'_>) -> Result<Input, TapError> {
        if self.is_ring_first {
            self.handed.dequeue(burst);
        }
        let input = self.read(burst, cx)?;
        if !self.is_ring_first {
            self.handed.dequeue(burst);
        }
        self.is_ring_first = !self.is_ring_first;
        // While memory is short nothing is due.
        self.has_handed = input != Input::NoMemory && !self.handed.is_empty();
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

/// Whose packets and connections are.
pub(crate) struct Owners {
    /// The program's TCP ports that are published: a bit for each port.
    published: Box<[u64; PORT_WORDS]>,
    workers: usize,
}

impl Owners {
    pub(super) fn new(publish: &[Publish], workers: usize) -> Self {
        let mut published = Box::new([0; PORT_WORDS]);
        for publish in publish.iter().filter(|one| one.protocol == publish::Protocol::Tcp) {
            let port = usize::from(publish.program_port);
            published[port / 64] |= 1 << (port % 64);
        }
        Self { published, workers }
    }

    fn is_published(&self, port: u16) -> bool {
        let port = usize::from(port);
        self.published[port / 64] & 1 << (port % 64) != 0
    }

    /// Who has the connection of a peer, as the program sees him, to a published port.
    pub(crate) fn of_connection(&self, peer: SocketAddr, program_port: u16) -> usize {
        let ports = [peer.port().to_be_bytes(), program_port.to_be_bytes()];
        match peer.ip() {
            IpAddr::V4(ip) => self.hashed(&ip.octets(), ports),
            IpAddr::V6(ip) => self.hashed(&ip.octets(), ports),
        }
    }

    fn hashed(&self, address: &[u8], [peer, program]: [[u8; 2]; 2]) -> usize {
        let ports = [peer[0], peer[1], program[0], program[1]];
        let words = address.chunks_exact(4).chain([&ports[..]]);
        let hash = words.fold(0_u64, |hash, word| {
            let word = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
            (hash.rotate_left(5) ^ u64::from(word)).wrapping_mul(SPREADING)
        });
        // The upper bits depend on all others.
        (hash >> 32) as usize % self.workers
    }

    /// Who has the frame of the program that begins with `headers`; `None` if it is whoever got it:
    /// for whole TCP over IPv4, or over IPv6 without extension headers, from a port that is not
    /// published. What is malformed is the first worker's.
    fn of_packet(&self, headers: &[u8]) -> Option<usize> {
        match self.tcp_of(headers) {
            None => Some(0),
            Some((_, _, program)) if !self.is_published(u16::from_be_bytes(program)) => None,
            Some((address, peer, program)) => Some(self.hashed(address, [peer, program])),
        }
    }

    /// Of a whole TCP segment the peer's address and port, and the program's port.
    fn tcp_of<'a>(&self, headers: &'a [u8]) -> Option<(&'a [u8], [u8; 2], [u8; 2])> {
        let (ethernet, ip) = headers.split_at_checked(ETHERNET_BYTES)?;
        let (protocol, address, at) = match ([ethernet[12], ethernet[13]], ip.first()? >> 4) {
            (ETHERTYPE_IPV4, 4) => {
                let bits = ip.get(6..8)?;
                if u16::from_be_bytes([bits[0], bits[1]]) & FRAGMENT_BITS != 0 {
                    return None;
                }
                (ip.get(9)?, ip.get(16..20)?, usize::from(ip[0] & 0xf) * 4)
            }
            (ETHERTYPE_IPV6, 6) => (ip.get(6)?, ip.get(24..40)?, IPV6_BYTES),
            _ => return None,
        };
        let &[a, b, c, d] = ip.get(at..at + 4)? else { return None };
        (Protocol(*protocol) == Protocol::TCP).then_some((address, [c, d], [a, b]))
    }
}

/// Words of a bit for each port.
const PORT_WORDS: usize = (u16::MAX as usize + 1) / 64;
/// Of a multiplicative hash: odd, with its bits spread.
const SPREADING: u64 = 0x9e37_79b9_7f4a_7c15;
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

    fn published(ports: &[u16]) -> Owners {
        let spec: Vec<String> = ports.iter().map(|port| format!("9000:{port}")).collect();
        let mut publish = publish::parse(publish::Protocol::Tcp, &spec, &(1..=1)).expect("ports");
        publish.extend(
            publish::parse(publish::Protocol::Udp, &["9001:1".into()], &(1..=1)).expect("one"),
        );
        Owners::new(&publish, 3)
    }

    #[test]
    fn tcp_of_the_program_stays() {
        let none = published(&[1]);
        for ip_bytes in [20, 24, 60] {
            assert_eq!(none.of_packet(&frame(ETHERTYPE_IPV4, 6, ip_bytes)), None);
        }
        assert_eq!(none.of_packet(&frame(ETHERTYPE_IPV6, 6, 40)), None);
    }

    /// Goal: who begins a connection gets its packets, and connections are spread.
    /// Method: packets of one whose peers differ by a port, beside what their addresses tell.
    #[test]
    fn packets_of_published_ports_find_who_began() {
        let one = published(&[0x1234]);
        for (ethertype, ip_bytes, at) in [(ETHERTYPE_IPV4, 24, 16), (ETHERTYPE_IPV6, 40, 24)] {
            let mut counts = [0; 3];
            for port in 1000..1300_u16 {
                let mut frame = frame(ethertype, 6, ip_bytes);
                let ip: IpAddr = if ip_bytes == 24 {
                    frame[14 + at..][..4].copy_from_slice(&[10, 1, 2, 3]);
                    [10, 1, 2, 3].into()
                } else {
                    frame[14 + at..][..16].copy_from_slice(&[7; 16]);
                    [7; 16].into()
                };
                frame[14 + ip_bytes + 2..][..2].copy_from_slice(&port.to_be_bytes());
                let owner = one.of_connection(SocketAddr::new(ip, port), 0x1234);
                assert_eq!(one.of_packet(&frame), Some(owner));
                counts[owner] += 1;
            }
            assert!(counts.iter().all(|count| (40..160).contains(count)), "{counts:?}");
        }
        for port in [0, 1, 63, 64, u16::MAX] {
            let set = published(&[port.max(1)]);
            assert!(set.is_published(port.max(1)) && !set.is_published(port ^ 0x40));
        }
    }

    /// Bad input: every length from nothing on, fragments, other protocols, an IPv4 header length
    /// that leads beyond the end, versions that the frame's type contradicts.
    #[test]
    fn everything_else_is_the_first_workers() {
        let none = published(&[1]);
        for whole in [frame(ETHERTYPE_IPV4, 6, 20), frame(ETHERTYPE_IPV6, 6, 40)] {
            let ports_end = whole.len();
            for len in 0..ports_end {
                assert_eq!(none.of_packet(&whole[..len]), Some(0), "{len}");
            }
            assert_eq!(none.of_packet(&whole), None);
            for protocol in [0, 1, 17, 44, 58, 255] {
                let mut other = whole.clone();
                other[if whole[14] >> 4 == 4 { 14 + 9 } else { 14 + 6 }] = protocol;
                assert_eq!(none.of_packet(&other), Some(0), "{protocol}");
            }
            let mut version = whole.clone();
            version[14] ^= 0x20;
            assert_eq!(none.of_packet(&version), Some(0));
            let mut arp = whole;
            arp[12..14].copy_from_slice(&[0x08, 0x06]);
            assert_eq!(none.of_packet(&arp), Some(0));
        }
        for bits in [[0x20, 0], [0, 1], [0x1f, 0xff]] {
            let mut fragment = frame(ETHERTYPE_IPV4, 6, 20);
            fragment[20..22].copy_from_slice(&bits);
            assert_eq!(none.of_packet(&fragment), Some(0), "{bits:?}");
        }
        let mut long = frame(ETHERTYPE_IPV4, 6, 20);
        long[14] = 0x4f;
        assert_eq!(none.of_packet(&long), Some(0));
    }
}
