//! What leaves in one call, in which order, and what happens when a socket takes nothing.

use std::collections::VecDeque;
use std::num::NonZeroU16;

use towpath_net::vxlan::remotes::{Change, Origin};
use towpath_packet::segmentation::{Layout, Template};
use towpath_packet::{Ledger, Memory, MemoryConfig, Offload, Piece, Segmentation};

use super::*;

/// Payload bytes of each segment of a super-packet.
const SIZE: usize = 1000;

/// A datagram that left: its socket, its receiver, and its bytes.
type Datagram = (usize, IpAddr, Vec<u8>);

/// Sockets in memory. A call that finds a result in `results` returns it and sends nothing.
struct Recorder {
    has_room: bool,
    results: VecDeque<Option<Refusal>>,
    unreachable: Option<IpAddr>,
    mtu: Option<u32>,
    calls: usize,
    sent: Vec<Datagram>,
}

#[derive(Clone, Copy)]
enum Refusal {
    Is(Errno),
    NotSegmentable,
}

impl Wire for Recorder {
    fn send<'a>(
        &mut self,
        socket: usize,
        to: SocketAddr,
        parts: impl Iterator<Item = Part<'a>>,
        gso_size: Option<NonZeroU16>,
    ) -> io::Result<Sent> {
        self.calls += 1;
        if self.unreachable == Some(to.ip()) {
            return Err(Errno::HOSTUNREACH.into());
        }
        match self.results.pop_front().flatten() {
            Some(Refusal::Is(errno)) => return Err(errno.into()),
            Some(Refusal::NotSegmentable) => return Ok(Sent::NotSegmentable),
            None => {}
        }
        let mut bytes = Vec::new();
        let of = |piece: &Piece| piece.bytes().expect("a frame").to_vec();
        for part in parts {
            match part {
                Part::Bytes(one) => bytes.extend(one),
                Part::Piece(piece) => bytes.extend(of(piece)),
                Part::Range(piece, range) => bytes.extend(&of(piece)[range]),
            }
        }
        let size = gso_size.map_or(bytes.len(), |size| size.get().into());
        assert!(bytes.len() <= RUN_BYTES_MAX && bytes.len().div_ceil(size) <= RUN_MAX);
        self.sent.extend(bytes.chunks(size).map(|one| (socket, to.ip(), one.to_vec())));
        Ok(Sent::Whole)
    }

    fn has_room(&self, _: usize) -> bool {
        self.has_room
    }

    fn mtu(&self, _: SocketAddr) -> io::Result<u32> {
        Ok(self.mtu.unwrap_or(1500))
    }
}

/// A port with two remotes: station 1 is behind the first, all others behind the second.
struct Bench {
    outgoing: Outgoing<Recorder>,
    remotes: Remotes,
    counters: VxlanCounters,
    memory: Memory,
    ledger: Ledger,
}

fn remote(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, number])
}

impl Bench {
    fn new() -> Self {
        let mut remotes = Remotes::new(true, Duration::from_secs(300), 7);
        for station in 1..=4 {
            let (mac, to) = (MacAddr([2, 0, 0, 0, 0, station]), remote(station.min(2)));
            remotes.apply(Change::AddStation { mac, remote: to }, Origin::Static).expect("room");
        }
        let vni = Vni::new(100).expect("24 bits");
        let wire = Recorder {
            has_room: true,
            results: VecDeque::new(),
            unreachable: None,
            mtu: None,
            calls: 0,
            sent: Vec::new(),
        };
        let config = MemoryConfig { packets: 256, small_frames: 64, large_frames: 64 };
        Self {
            outgoing: Outgoing::new(wire, vni, vxlan::PORT),
            remotes,
            counters: VxlanCounters::default(),
            memory: Memory::new(config),
            ledger: Ledger::new(),
        }
    }

    /// Headers of a TCP packet to a station, of the flow with this port.
    fn headers(station: u8, port: u8) -> [u8; 54] {
        let mut headers = [0; 54];
        headers[..12].copy_from_slice(&[2, 0, 0, 0, 0, station, 2, 0, 0, 0, 0, 9]);
        headers[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        headers[23] = Protocol::TCP.0;
        headers[37] = port;
        headers[46] = 0x50;
        headers
    }

    /// A packet of `len` bytes that is one frame, whose last byte is `number`.
    fn frame(&mut self, (station, port, len): (u8, u8, usize), number: u8) -> Packet {
        let mut bytes = Self::headers(station, port).to_vec();
        bytes.resize(len, number);
        let mut packet = self.memory.packet().expect("free");
        packet.fill_inline(len, |memory| memory.copy_from_slice(&bytes));
        packet
    }

    /// A super-packet of `segments` segments, the last of which has `last` bytes of payload. The
    /// payload of each begins with its number.
    fn super_packet(&mut self, (station, port): (u8, u8), segments: usize, last: usize) -> Packet {
        let mut payload = vec![0; (segments - 1) * SIZE + last];
        payload.chunks_mut(SIZE).zip(0..).for_each(|(segment, number)| segment[0] = number);
        let mut packet = self.memory.packet().expect("free");
        for part in payload.chunks(16 << 10) {
            let mut frame = self.memory.large.take().expect("free");
            frame[..part.len()].copy_from_slice(part);
            packet.push_piece(frame.freeze(part.len())).expect("room");
        }
        packet.push_header_of(&Self::headers(station, port));
        let layout = Layout {
            is_ipv4: true,
            is_tcp: true,
            ip_at: 14,
            transport_at: 34,
            end: 54,
            pseudo_header: 0,
            ip_header: 0,
        };
        let size = NonZeroU16::new(SIZE as u16).expect("bytes");
        let segmentation = Segmentation::new(Template::new(layout), packet.headers_mut(), size);
        packet.set_segmentation(segmentation);
        let checksum = Checksum::Partial { start: 34, offset: 16 };
        packet.set_offload(Offload { checksum, gso: None });
        packet
    }

    fn transmit(&mut self, burst: &mut Burst) {
        let Self { outgoing, remotes, counters, memory, ledger } = self;
        let mut cx = Context { memory, ledger, now: Instant::START };
        outgoing.transmit(burst, remotes, counters, &mut cx);
    }

    /// Sends frames, each with its place in the list as its number.
    fn send(&mut self, frames: &[(u8, u8, usize)]) -> Burst {
        let mut burst = Burst::new();
        for (frame, number) in frames.iter().zip(0..) {
            let packet = self.frame(*frame, number);
            burst.push(packet).expect("room");
        }
        self.transmit(&mut burst);
        burst
    }

    /// Last bytes of the datagrams that left.
    fn numbers(&self) -> Vec<u8> {
        let sent = self.outgoing.wire.sent.iter();
        sent.map(|(_, _, bytes)| *bytes.last().expect("bytes")).collect()
    }

    fn calls(&mut self) -> usize {
        std::mem::take(&mut self.outgoing.wire.calls)
    }

    fn refuse(&mut self, results: impl IntoIterator<Item = Option<Refusal>>) {
        self.outgoing.wire.results = results.into_iter().collect();
    }

    /// Goal of every test: all memory is back, and each frame was sent or counted.
    fn assert_done(&self, frames: u64) {
        assert_eq!(self.memory.packets.out_count(), 0, "packets");
        assert_eq!(self.memory.large.out_count(), 0, "frames");
        assert_eq!(self.counters.sent + self.counters.dropped(), frames);
        assert_eq!(self.counters.sent, self.outgoing.wire.sent.len() as u64);
    }
}

/// Goal: frames leave in one call only if they have one receiver, one flow, and one length but for
/// the last.
#[test]
fn runs_are_of_one_flow_and_length() {
    for (frames, calls) in [
        (&[][..], 0),
        (&[(1, 1, 100)], 1),
        (&[(1, 1, 100), (1, 1, 100), (1, 1, 90), (1, 1, 90)], 2),
        (&[(1, 1, 90), (1, 1, 100)], 2),
        (&[(1, 1, 100), (1, 1, 100), (2, 1, 100)], 2),
        (&[(1, 1, 100), (1, 2, 100)], 2),
        (&[(1, 1, 100); BURST_MAX], 1),
    ] {
        let mut bench = Bench::new();
        assert!(bench.send(frames).is_empty());
        assert_eq!(bench.calls(), calls, "{frames:?}");
        bench.assert_done(frames.len() as u64);
        let bytes: usize = frames.iter().map(|(_, _, len)| len).sum();
        assert_eq!(bench.counters.sent_bytes, bytes as u64);
    }
}

/// Goal: frames of flows that alternate leave in a call for each flow, and in order within each.
#[test]
fn flows_that_alternate_leave_together() {
    let mut bench = Bench::new();
    let frames: Vec<_> = (0..60).map(|at: u8| (1 + at % 3, 10 + at % 5, 100)).collect();
    assert!(bench.send(&frames).is_empty());
    assert_eq!(bench.calls(), 15, "as many as flows");
    let numbers = bench.numbers();
    for (station, port) in (1..=3).flat_map(|station| (10..15).map(move |port| (station, port))) {
        let is_it = |number: &&u8| {
            let (to, of, _) = frames[usize::from(**number)];
            (to, of) == (station, port)
        };
        let of_flow: Vec<_> = numbers.iter().filter(is_it).collect();
        assert!(of_flow.is_sorted() && of_flow.len() == 4, "{numbers:?}");
    }
    let wire = &bench.outgoing.wire;
    let is_right = |(_, to, bytes): &Datagram| *to == remote(bytes[HEADER_LEN + 5].min(2));
    assert!(wire.sent.iter().all(is_right), "each to its remote");
    bench.assert_done(60);
}

/// Goal: the fragments of a packet stay in one flow, though only the first one has ports.
#[test]
fn fragments_are_one_flow() {
    let mut bench = Bench::new();
    let mut packets: Vec<_> = (0..2).map(|port| bench.frame((1, port, 100), 0)).collect();
    for (packet, fragment) in packets.iter_mut().zip([0x2000_u16, 0x0010]) {
        packet.headers_mut()[20..22].copy_from_slice(&fragment.to_be_bytes());
    }
    assert_eq!(flow(&packets[0]), flow(&packets[1]));
    packets.iter_mut().for_each(|packet| packet.headers_mut()[20..22].fill(0));
    assert_ne!(flow(&packets[0]), flow(&packets[1]));
}

/// Goal: the segments of a super-packet leave in as few calls as their bytes permit, in order, with
/// heads of their own.
#[test]
fn super_packets_are_cut() {
    let mut bench = Bench::new();
    let packet = bench.super_packet((1, 1), 64, 10);
    let mut burst = Burst::new();
    burst.push(packet).expect("room");
    let after = bench.frame((1, 1, 100), 0);
    burst.push(after).expect("room");
    bench.transmit(&mut burst);
    assert!(burst.is_empty());
    assert_eq!(bench.calls(), 3, "61 segments fill a datagram; the rest; the frame");
    let sent = &bench.outgoing.wire.sent;
    for (number, (socket, _, bytes)) in sent[..64].iter().enumerate() {
        let len = if number == 63 { 10 } else { SIZE };
        assert_eq!((*socket, bytes.len()), (sent[0].0, HEADER_LEN + 54 + len));
        assert_eq!(usize::from(bytes[HEADER_LEN + 54]), number);
        let sequence = u32::try_from(number * SIZE).expect("small").to_be_bytes();
        assert_eq!(bytes[HEADER_LEN + 38..][..4], sequence);
    }
    bench.assert_done(65);
}

/// Goal: what a full socket does not take stays in order, and leaves later: whole packets, and the
/// rest of a super-packet. Nothing is lost, and nothing leaves twice.
#[test]
fn what_finds_no_room_waits() {
    for errno in [Errno::AGAIN, Errno::NOBUFS, Errno::NOMEM] {
        let full = Some(Refusal::Is(errno));
        let mut bench = Bench::new();
        bench.refuse([None, full, full]);
        let frames = [(1, 1, 100), (1, 1, 90), (1, 1, 80), (1, 1, 80)];
        let mut burst = bench.send(&frames);
        assert_eq!((bench.numbers(), burst.len()), (vec![0, 1], 2));
        bench.transmit(&mut burst);
        assert_eq!(burst.len(), 2);
        bench.transmit(&mut burst);
        assert_eq!((bench.numbers(), burst.len()), (vec![0, 1, 2, 3], 0));
        bench.assert_done(4);

        let mut bench = Bench::new();
        let packet = bench.super_packet((1, 1), 64, 10);
        burst.push(packet).expect("room");
        bench.refuse([None, full]);
        bench.transmit(&mut burst);
        assert_eq!((bench.counters.sent, burst.frames()), (61, 3));
        bench.transmit(&mut burst);
        let firsts = bench.outgoing.wire.sent.iter().map(|(_, _, bytes)| bytes[HEADER_LEN + 54]);
        assert!(firsts.eq(0..64) && burst.is_empty());
        bench.assert_done(64);
    }
}

/// Goal: a run goes on from one super-packet to the next of its flow, in order and with heads of
/// its own, also when the socket is full in between. Other flows have calls of their own.
#[test]
fn runs_go_on_in_the_next_super_packet() {
    let full = Some(Refusal::Is(Errno::AGAIN));
    for refusals in [&[][..], &[full], &[None, full], &[None, None, full]] {
        let mut bench = Bench::new();
        let mut burst = Burst::new();
        for (flow, segments) in [(1, 64), (2, 64), (1, 64), (2, 10), (1, 2)] {
            let packet = bench.super_packet((1, flow), segments, SIZE);
            burst.push(packet).expect("room");
        }
        bench.refuse(refusals.iter().copied());
        bench.transmit(&mut burst);
        assert_eq!(burst.is_empty(), refusals.is_empty());
        bench.transmit(&mut burst);
        assert!(burst.is_empty());
        assert_eq!(bench.calls(), 3 + 2 + refusals.len().min(1), "61 segments fill a datagram");
        for (flow, counts) in [(1, &[64, 64, 2][..]), (2, &[64, 10])] {
            let sent = bench.outgoing.wire.sent.iter().map(|(_, _, bytes)| &bytes[HEADER_LEN..]);
            let of_flow = sent.filter(|frame| frame[37] == flow);
            let wanted = counts.iter().flat_map(|count| 0..*count);
            let firsts = of_flow.map(|frame| (frame[54], frame[38..42].to_vec()));
            let wanted = wanted.map(|number: u8| {
                (number, (u32::from(number) * SIZE as u32).to_be_bytes().to_vec())
            });
            assert!(firsts.eq(wanted), "flow {flow}");
        }
        bench.assert_done(64 + 64 + 64 + 10 + 2);
    }
}

/// Goal: a burst that waits for a full socket is not looked at before the socket has room.
#[test]
fn a_full_socket_is_asked_first() {
    let mut bench = Bench::new();
    bench.refuse([Some(Refusal::Is(Errno::AGAIN))]);
    let mut burst = bench.send(&[(1, 1, 100)]);
    assert_eq!(bench.calls(), 1);
    bench.outgoing.wire.has_room = false;
    bench.transmit(&mut burst);
    assert_eq!((bench.calls(), burst.len()), (0, 1));
    bench.outgoing.wire.has_room = true;
    bench.transmit(&mut burst);
    assert_eq!((bench.calls(), burst.len()), (1, 0));
    bench.outgoing.wire.has_room = false;
    assert!(bench.send(&[(1, 1, 100)]).is_empty(), "it was not full");
    bench.assert_done(2);
}

/// Goal: where the kernel cannot segment, each frame leaves by itself; a socket that is full in the
/// middle keeps the rest.
#[test]
fn a_run_that_cannot_be_segmented_leaves_singly() {
    let full = Some(Refusal::Is(Errno::AGAIN));
    let mut bench = Bench::new();
    bench.refuse([Some(Refusal::NotSegmentable), None, None, full]);
    let mut burst = bench.send(&[(1, 1, 100), (1, 1, 100), (1, 1, 100), (1, 1, 90)]);
    assert_eq!((bench.numbers(), burst.len()), (vec![0, 1], 2));
    bench.transmit(&mut burst);
    assert_eq!((bench.numbers(), burst.len()), (vec![0, 1, 2, 3], 0));
    assert_eq!(bench.counters.sent_bytes, 390);
    bench.assert_done(4);

    let mut bench = Bench::new();
    let packet = bench.super_packet((1, 1), 10, 10);
    burst.push(packet).expect("room");
    bench.refuse([Some(Refusal::NotSegmentable), None, None, full]);
    bench.transmit(&mut burst);
    assert_eq!((bench.counters.sent, burst.frames()), (2, 8));
    bench.transmit(&mut burst);
    let firsts = bench.outgoing.wire.sent.iter().map(|(_, _, bytes)| bytes[HEADER_LEN + 54]);
    assert!(firsts.eq(0..10) && burst.is_empty());
    bench.assert_done(10);
}

/// Goal: a remote that cannot be reached keeps nothing from others, and what was for it is counted.
#[test]
fn an_unreachable_remote_blocks_no_other() {
    let mut bench = Bench::new();
    bench.outgoing.wire.unreachable = Some(remote(1));
    let frames = [(1, 1, 100), (2, 1, 100), (1, 1, 100), (3, 1, 100)];
    assert!(bench.send(&frames).is_empty());
    let mut numbers = bench.numbers();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 3]);
    assert_eq!(bench.counters.unreachable, 2);
    let packet = bench.super_packet((1, 1), 64, 10);
    let mut burst = Burst::new();
    burst.push(packet).expect("room");
    bench.transmit(&mut burst);
    assert!(burst.is_empty());
    assert_eq!(bench.counters.unreachable, 2 + 64);
    bench.assert_done(4 + 64);
}

/// Goal: a packet for a station that no table knows goes to all remotes of the flood list, a
/// super-packet in segments.
#[test]
fn super_packets_are_flooded() {
    let mut bench = Bench::new();
    for number in [1, 2, 3] {
        bench.remotes.apply(Change::AddFlood(remote(number)), Origin::Static).expect("room");
    }
    let packet = bench.super_packet((77, 1), 5, 10);
    let mut burst = Burst::new();
    burst.push(packet).expect("room");
    bench.refuse([None, Some(Refusal::Is(Errno::AGAIN))]);
    bench.transmit(&mut burst);
    assert!(burst.is_empty());
    assert_eq!((bench.counters.sent, bench.counters.flood_full), (10, 5));
    bench.assert_done(15);
}

/// Goal: frames that do not fit the path are dropped, whether that is known or the kernel says it,
/// also those of a super-packet.
#[test]
fn what_is_too_large_is_dropped() {
    let mut bench = Bench::new();
    bench.refuse([Some(Refusal::Is(Errno::MSGSIZE))]);
    assert!(bench.send(&[(1, 1, 100)]).is_empty());
    assert_eq!(bench.counters.too_large, 1);
    let mut burst = Burst::new();
    for mtu in [1500, 1000] {
        bench.outgoing.wire.mtu = Some(mtu);
        bench.outgoing.paths.clear();
        let packet = bench.super_packet((1, 1), 3, 10);
        burst.push(packet).expect("room");
        bench.transmit(&mut burst);
        assert!(burst.is_empty());
    }
    assert_eq!((bench.counters.sent, bench.counters.too_large), (3, 1 + 3));
    bench.assert_done(1 + 3 + 3);
}

/// Goal: a partial checksum is completed, and one that is nowhere in the packet is counted.
#[test]
fn checksums_are_completed() {
    let mut bench = Bench::new();
    let mut burst = Burst::new();
    for offset in [16, 200] {
        let mut packet = bench.frame((1, 1, 100), 1);
        let checksum = Checksum::Partial { start: 34, offset };
        packet.set_offload(Offload { checksum, gso: None });
        burst.push(packet).expect("room");
    }
    bench.transmit(&mut burst);
    assert!(burst.is_empty());
    assert_eq!(bench.counters.checksum_misplaced, 1);
    let field = &bench.outgoing.wire.sent[0].2[HEADER_LEN + 50..][..2];
    assert_ne!(field, [0, 0]);
    bench.assert_done(2);
}

/// Goal: super-packets that the kernel makes for such a limit leave in one call, with timestamps or
/// not, over IPv4 and IPv6, and are at most one segment shorter than a call takes.
#[test]
fn super_packets_within_the_limit_leave_in_one_call() {
    for mtu in 1280..=9000 {
        let limit = super_packet_max(mtu) as usize;
        // Linux takes 257 to 321 off, as it was built.
        for (headers, taken_off) in [(40, 321), (52, 257), (52, 321), (60, 257), (72, 257)] {
            let payload = usize::from(mtu) - headers;
            let datagram = HEADER_LEN + ETHERNET_BYTES + usize::from(mtu);
            let (count, most) = ((limit - taken_off) / payload, RUN_BYTES_MAX / datagram);
            assert!(count * datagram <= RUN_BYTES_MAX, "{mtu}, {headers}: {count} of {most}");
            assert!(count <= RUN_MAX && count + 1 >= most.min(RUN_MAX), "{mtu}: {count} of {most}");
        }
    }
}
