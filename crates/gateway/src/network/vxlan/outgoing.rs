//! The sending half of a VXLAN port.
//!
//! # Theory of operation
//!
//! A burst is sorted by flow first, so that frames of flows which alternate leave together. Then
//! *runs* leave from its front, each in one call: segments of super-packets, whose heads are
//! written here ([`Cut`]), or packets that are frames already. All have the same stations and flow,
//! and one length but for a shorter last one. A run of segments goes on from one super-packet to
//! the next. What a full socket does not take stays in the burst, a super-packet from its first
//! segment that was not sent. The next call asks whether the socket has room before it sorts and
//! writes heads again.
//!
//! Invariants: each frame that is taken from a burst was sent or counted as a drop. Frames of one
//! flow leave in order. What is wrong with one remote keeps nothing from others.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::ops::Range;

use rustix::io::Errno;
use towpath_io::socket::{Part, SEND_PARTS_MAX, Sent, UdpSocket, path_mtu};
use towpath_net::gso::complete_checksum;
use towpath_net::time::{Duration, Instant};
use towpath_net::vxlan::answers::{self, Answer};
use towpath_net::vxlan::encapsulate::{Cut, PARTS_MAX, PIECES_MAX, Stretch};
use towpath_net::vxlan::remotes::Remotes;
use towpath_net::vxlan::{self, HEADER_LEN, Vni};
use towpath_net::wire::{MacAddr, Protocol};
use towpath_packet::burst::BURST_MAX;
use towpath_packet::{Burst, Checksum, Context, Packet};

use super::VxlanCounters;
use crate::network::tunnel::MTU_DEFAULT;

/// Sockets that send: as many source ports.
pub(super) const SENDERS: usize = 16;
/// Answers that wait for the next read.
pub(super) const ANSWERS_MAX: usize = 16;
/// How long the MTU of a path is believed.
const PATH_AGE: Duration = Duration::from_secs(60);

/// Datagrams that one call sends: `UDP_MAX_SEGMENTS` of kernels before 6.9.
const RUN_MAX: usize = PARTS_MAX;
/// Bytes of the datagrams that one call sends: those of the largest one.
const RUN_BYTES_MAX: usize = 65_535 - 40 - 8;
/// Parts of a frame besides its pieces: VXLAN header and private headers.
const HEADER_PARTS: usize = 2;
/// Bytes of an Ethernet header, which the MTU does not count.
const ETHERNET_BYTES: usize = 14;
/// Bytes of the headers of TCP over IPv4 with timestamps.
const TCP_BYTES: usize = 52;
/// What the kernel takes off the limit of an interface for headers (`MAX_TCP_HEADER`, and 1): 321
/// at most.
const KERNEL_TCP_BYTES: usize = 321;
// Each segment is a head and a payload, which may go on in another piece.
const _: () = assert!(2 * RUN_MAX + PIECES_MAX <= SEND_PARTS_MAX);

/// Where datagrams leave.
pub(super) trait Wire {
    /// Sends the parts by this socket, as [`UdpSocket::send_parts`] does.
    fn send<'a>(
        &mut self,
        socket: usize,
        to: SocketAddr,
        parts: impl Iterator<Item = Part<'a>>,
        gso_size: Option<NonZeroU16>,
    ) -> io::Result<Sent>;

    /// True if this socket may have room again.
    fn has_room(&self, socket: usize) -> bool;

    /// The MTU of the path to a remote.
    fn mtu(&self, to: SocketAddr) -> io::Result<u32>;
}

/// The sockets that send.
pub(super) struct Sockets {
    pub(super) senders: Vec<UdpSocket>,
    /// Where tunnels end, with port 0.
    pub(super) local: SocketAddr,
}

impl Wire for Sockets {
    fn send<'a>(
        &mut self,
        socket: usize,
        to: SocketAddr,
        parts: impl Iterator<Item = Part<'a>>,
        gso_size: Option<NonZeroU16>,
    ) -> io::Result<Sent> {
        self.senders[socket].send_parts(to, parts, gso_size)
    }

    fn has_room(&self, socket: usize) -> bool {
        self.senders[socket].is_writable()
    }

    fn mtu(&self, to: SocketAddr) -> io::Result<u32> {
        path_mtu(self.local, to)
    }
}

/// The sending half of a port; see the module documentation.
pub(super) struct Outgoing<W> {
    wire: W,
    /// The UDP port of all remotes.
    port: u16,
    header: [u8; HEADER_LEN],
    /// Segments of the super-packets that are sent.
    cut: Cut,
    /// The socket that took no more in the last call.
    full: Option<usize>,
    paths: HashMap<IpAddr, Path>,
    /// Answers to what was sent, which the next read gets.
    pub(super) answers: VecDeque<Answer>,
}

/// The path to a remote.
#[derive(Clone, Copy)]
struct Path {
    mtu: u16,
    known_since: Instant,
}

/// Frames at the front of a burst that are sent together.
struct Run {
    /// They are segments of the first packets, as [`Outgoing::cut`] has them.
    is_cut: bool,
    count: usize,
    /// Bytes of each frame but the last.
    len: usize,
    /// Bytes of all frames.
    bytes: usize,
}

/// A run at the front of a burst, on its way to a remote.
struct Sending<'a> {
    burst: &'a Burst,
    run: &'a Run,
    to: IpAddr,
    counters: &'a mut VxlanCounters,
    now: Instant,
}

impl<W: Wire> Outgoing<W> {
    pub(super) fn new(wire: W, vni: Vni, port: u16) -> Self {
        Self {
            wire,
            port,
            header: vxlan::header(vni),
            cut: Cut::default(),
            full: None,
            paths: HashMap::new(),
            answers: VecDeque::with_capacity(ANSWERS_MAX),
        }
    }

    /// Sends the packets of a burst. Those that a full socket does not take stay in it.
    pub(super) fn transmit(
        &mut self,
        burst: &mut Burst,
        remotes: &mut Remotes,
        counters: &mut VxlanCounters,
        cx: &mut Context<'_>,
    ) {
        if let Some(socket) = self.full.take()
            && burst.first().is_some_and(|first| socket_of(first) == socket)
            && !self.wire.has_room(socket)
        {
            self.full = Some(socket);
            return;
        }
        burst.prefetch();
        for packet in burst.iter_mut().filter(|packet| packet.segmentation().is_none()) {
            // One that cannot be completed is found below.
            let _ = complete_checksum(packet, cx.ledger);
        }
        sort(burst);
        while let Some(first) = burst.first() {
            let alike = burst.iter().take_while(|packet| flow(packet) == flow(first));
            let is_cut = self.cut.write(alike, &self.header, RUN_BYTES_MAX, cx.ledger);
            if !is_cut && !is_ready(first) {
                counters.checksum_misplaced += 1;
                burst.pop();
                continue;
            }
            let to = remotes.lookup(destination_of(first), cx.now);
            let run = match (is_cut, to) {
                (true, _) => Run::of_segments(&self.cut),
                (false, Some(_)) => Run::of_packets(burst, RUN_MAX),
                // The next one may be a request that is answered here.
                (false, None) => Run::of_packets(burst, 1),
            };
            let gone = match to {
                Some(to) => {
                    let now = cx.now;
                    self.send(&mut Sending { burst, run: &run, to, counters, now })
                }
                None => {
                    self.flood(burst, &run, remotes, counters, cx.now);
                    run.count
                }
            };
            if gone < run.count {
                self.full = Some(socket_of(first));
            }
            take_sent(burst, &run, gone);
            if gone < run.count {
                break;
            }
        }
    }

    /// Sends the run at the front of a burst to each remote of the flood list.
    fn flood(
        &mut self,
        burst: &Burst,
        run: &Run,
        remotes: &Remotes,
        counters: &mut VxlanCounters,
        now: Instant,
    ) {
        let Some(packet) = burst.first() else { return };
        let known = answers::resolve(packet.headers(), |address| remotes.station_of(address));
        if let Some(answer) = known
            && self.answer(answer)
        {
            counters.resolved += 1;
            return;
        }
        if remotes.flood().is_empty() {
            counters.no_remote += run.count as u64;
        }
        for to in remotes.flood() {
            let gone = self.send(&mut Sending { burst, run, to: *to, counters, now });
            counters.flood_full += (run.count - gone) as u64;
        }
    }

    /// Sends a run. Returns how many of its frames were sent or dropped; if that is not all, the
    /// socket is full.
    fn send(&mut self, sending: &mut Sending<'_>) -> usize {
        let run = sending.run;
        if self.is_too_big(sending) {
            return run.count;
        }
        let gso_size = u16::try_from(HEADER_LEN + run.len).ok().and_then(NonZeroU16::new);
        let gso_size = gso_size.filter(|_| run.count > 1);
        match self.send_frames(sending, 0..run.count, gso_size) {
            Ok(Sent::Whole) => {}
            // The kernel does not tell whether the path has become narrower.
            Ok(Sent::NotSegmentable) if self.is_too_big_now(sending) => {}
            Ok(Sent::NotSegmentable) => return self.send_singly(sending),
            Err(error) if is_full(&error) => return 0,
            Err(error) if error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()) => {
                if !self.is_too_big_now(sending) {
                    sending.counters.too_large += run.count as u64;
                }
            }
            Err(_) => sending.counters.unreachable += run.count as u64,
        }
        run.count
    }

    /// Sends each frame of a run by itself, as [`Outgoing::send`] does.
    fn send_singly(&mut self, sending: &mut Sending<'_>) -> usize {
        let run = sending.run;
        for index in 0..run.count {
            match self.send_frames(sending, index..index + 1, None) {
                Ok(_) => {}
                Err(error) if is_full(&error) => return index,
                Err(_) => sending.counters.unreachable += 1,
            }
        }
        run.count
    }

    /// Sends these frames of a run in one call, and counts them if they were sent.
    fn send_frames(
        &mut self,
        sending: &mut Sending<'_>,
        frames: Range<usize>,
        gso_size: Option<NonZeroU16>,
    ) -> io::Result<Sent> {
        let Sending { burst, run, to, counters, .. } = sending;
        let Some(first) = burst.first() else { return Ok(Sent::Whole) };
        let Self { wire, cut, header, port, .. } = self;
        let (socket, to) = (socket_of(first), SocketAddr::new(*to, *port));
        let (count, bytes) = (frames.len(), run.bytes_of(&frames));
        let sent = if run.is_cut {
            let parts = cut.stretches(burst.iter(), frames).map(|stretch| match stretch {
                Stretch::Head(head) => Part::Bytes(head),
                Stretch::Payload(piece, range) => Part::Range(piece, range),
            });
            wire.send(socket, to, parts, gso_size)
        } else {
            let packets = burst.iter_from(frames.start).take(count);
            wire.send(socket, to, packets.flat_map(|packet| frame(header, packet)), gso_size)
        };
        counters.sends += 1;
        if matches!(sent, Ok(Sent::Whole)) {
            counters.sent += count as u64;
            counters.sent_bytes += bytes as u64;
        }
        sent
    }

    /// True if the frames of a run do not fit the path to their remote. They are counted as dropped
    /// then, and the sender gets an ICMP error.
    fn is_too_big(&mut self, sending: &mut Sending<'_>) -> bool {
        let Sending { burst, run, to, counters, now } = sending;
        let mtu = self.mtu_to(*to, *now);
        if run.len <= usize::from(mtu) + ETHERNET_BYTES {
            return false;
        }
        counters.too_large += run.count as u64;
        let answer = burst.first().and_then(|packet| answers::too_big(packet.headers(), mtu));
        if let Some(answer) = answer
            && self.answer(answer)
        {
            counters.too_big += 1;
        }
        true
    }

    /// As [`Outgoing::is_too_big`], after a refusal: the path may have become narrower.
    fn is_too_big_now(&mut self, sending: &mut Sending<'_>) -> bool {
        self.paths.remove(&sending.to);
        self.is_too_big(sending)
    }

    /// The largest IP packet that reaches a remote in one datagram.
    fn mtu_to(&mut self, to: IpAddr, now: Instant) -> u16 {
        let known = self.paths.get(&to).filter(|path| now < path.known_since + PATH_AGE);
        if let Some(path) = known {
            return path.mtu;
        }
        let of_path = self.wire.mtu(SocketAddr::new(to, self.port));
        let of_path = of_path.map_or(MTU_DEFAULT, |mtu| u16::try_from(mtu).unwrap_or(u16::MAX));
        let mtu = of_path.saturating_sub(vxlan::overhead(&to));
        if self.paths.len() >= vxlan::remotes::REMOTES_MAX {
            self.paths.clear();
        }
        self.paths.insert(to, Path { mtu, known_since: now });
        mtu
    }

    /// Keeps an answer for the next read; false if there are too many.
    fn answer(&mut self, answer: Answer) -> bool {
        let has_room = self.answers.len() < ANSWERS_MAX;
        if has_room {
            self.answers.push_back(answer);
        }
        has_room
    }
}

impl Run {
    /// The segments of a super-packet that are cut.
    fn of_segments(cut: &Cut) -> Self {
        let (count, len) = (cut.count(), cut.len_of(0));
        Self { is_cut: true, count, len, bytes: (count - 1) * len + cut.len_of(count - 1) }
    }

    /// The packets at the front of a burst that can be sent in one call, at most `most`.
    fn of_packets(burst: &Burst, most: usize) -> Self {
        let mut run = Self { is_cut: false, count: 0, len: 0, bytes: 0 };
        let Some(first) = burst.first() else { return run };
        run.len = first.len();
        let (mut parts, mut bytes) = (0, 0);
        for packet in burst.iter().take(most) {
            parts += HEADER_PARTS + packet.piece_count();
            bytes += HEADER_LEN + packet.len();
            let fits = parts <= SEND_PARTS_MAX && bytes <= RUN_BYTES_MAX;
            let is_next = packet.len() <= run.len
                && packet.segmentation().is_none()
                && is_ready(packet)
                && flow(packet) == flow(first);
            if run.count > 0 && !(fits && is_next) {
                break;
            }
            run.count += 1;
            run.bytes += packet.len();
            if packet.len() < run.len {
                break;
            }
        }
        run
    }

    /// Bytes of these frames.
    fn bytes_of(&self, frames: &Range<usize>) -> usize {
        let end = if frames.end == self.count { self.bytes } else { frames.end * self.len };
        end - frames.start * self.len
    }
}

/// Returns the limit for the super-packets of an interface, as it counts bytes (`gso_max_size`),
/// with which each of TCP leaves in one call: as many segments as a call takes if they fill this
/// MTU.
pub(crate) fn super_packet_max(mtu: u16) -> u32 {
    let mtu = usize::from(mtu);
    let count = (RUN_BYTES_MAX / (HEADER_LEN + ETHERNET_BYTES + mtu)).min(RUN_MAX);
    // Without timestamps there is one segment less.
    (count * mtu.saturating_sub(TCP_BYTES) + KERNEL_TCP_BYTES) as u32
}

/// Removes the first `count` frames of a run, which is at the front of a burst.
fn take_sent(burst: &mut Burst, run: &Run, mut count: usize) {
    if !run.is_cut {
        return burst.drop_front(count);
    }
    while let Some(frames) = burst.first().map(Packet::frames).filter(|frames| *frames <= count) {
        burst.drop_front(1);
        count -= frames;
    }
    if count > 0 {
        burst.iter_mut().take(1).for_each(|packet| packet.drop_parts(count));
    }
}

/// Sorts packets by their flows, so that those of one flow are together, in the order in which they
/// were.
fn sort(burst: &mut Burst) {
    let mut keys = [0; BURST_MAX];
    for (index, packet) in burst.iter().enumerate() {
        keys[index] = u64::from(hash_of(packet)) << 32 | index as u64;
    }
    let keys = &mut keys[..burst.len()];
    if keys.is_sorted() {
        return;
    }
    keys.sort_unstable();
    let mut packets = [const { None }; BURST_MAX];
    packets.iter_mut().for_each(|place| *place = burst.pop());
    for key in keys {
        let packet = packets[*key as u32 as usize].take().expect("each index is there once");
        burst.push(packet).expect("it came from this burst");
    }
}

/// True if a packet is a frame as it is sent: with a complete checksum.
fn is_ready(packet: &Packet) -> bool {
    !matches!(packet.offload().checksum, Checksum::Partial { .. })
}

/// The parts of a datagram with this frame.
fn frame<'a>(header: &'a [u8], packet: &'a Packet) -> impl Iterator<Item = Part<'a>> {
    let headers = [Part::Bytes(header), Part::Bytes(packet.wire_headers())];
    headers.into_iter().chain(packet.pieces().map(Part::Piece))
}

/// True if a socket has no room now.
fn is_full(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::WouldBlock, io::ErrorKind::OutOfMemory];
    kinds.contains(&error.kind()) || error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error())
}

/// The bytes that identify a packet's flow: link-layer addresses, and of IP the addresses and, of
/// TCP and UDP, the ports where they are at their usual offset. Frames of one run have the same.
fn flow(packet: &Packet) -> (&[u8], &[u8]) {
    let headers = packet.headers();
    let has_ports = |protocol: u8| [Protocol::TCP, Protocol::UDP].contains(&Protocol(protocol));
    let range = match headers.get(12..15) {
        // RFC 791 §3.1: without options the ports follow the addresses, but not in fragments.
        Some([0x08, 0x00, 0x45]) => match headers.get(20..24) {
            Some([high, 0, _, protocol]) if high & 0x3f == 0 && has_ports(*protocol) => 26..38,
            _ => 26..34,
        },
        Some([0x08, 0x00, _]) => 26..34,
        // RFC 8200 §3.
        Some([0x86, 0xdd, _]) => match headers.get(20) {
            Some(protocol) if has_ports(*protocol) => 22..58,
            _ => 22..54,
        },
        _ => 12..14,
    };
    let stations = headers.get(..12).unwrap_or(headers);
    (stations, headers.get(range).unwrap_or_default())
}

/// A hash of a packet's flow.
fn hash_of(packet: &Packet) -> u32 {
    let (stations, ends) = flow(packet);
    // FNV-1a: the input is short, and a sender gains nothing from collisions.
    let bytes = stations.iter().chain(ends);
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The number of the socket that sends a packet.
fn socket_of(packet: &Packet) -> usize {
    (hash_of(packet) >> 16) as usize % SENDERS
}

fn destination_of(packet: &Packet) -> MacAddr {
    packet.headers().first_chunk().map_or(MacAddr::BROADCAST, |address| MacAddr(*address))
}

#[cfg(test)]
mod tests;
