//! Coalescing: packets that merge, packets that do not, and segmentation as the inverse.

use super::*;
use crate::gso::testing::*;
use crate::gso::{Checksums, segment};
use alloc::vec::Vec;
use proptest::prelude::*;
use towpath_packet::{Gso, GsoKind, Loans, Memory, Offload};

/// Modification of a test frame, besides its [`Spec`].
#[derive(Clone, Debug)]
enum Twist {
    None,
    /// Inverts this byte of the frame after the checksums were computed.
    Corrupt(usize),
    /// Adds Ethernet padding to a packet that the device has verified.
    Pad(usize),
    /// Delivered with a partial checksum.
    Partial,
}

struct Bench {
    memory: Memory,
    ledger: Ledger,
    coalescer: Coalescer<()>,
    out: Vec<Packet>,
}

impl Bench {
    fn new() -> Self {
        let coalescer = Coalescer::new(1);
        Self { memory: memory(), ledger: Ledger::new(), coalescer, out: Vec::new() }
    }

    /// Delivers one frame; returns the frame as it must leave.
    fn receive(&mut self, spec: &Spec, twist: &Twist, cuts: &[usize]) -> Vec<u8> {
        let mut frame = spec.frame();
        match *twist {
            Twist::None | Twist::Partial => {}
            Twist::Corrupt(at) => {
                let at = at % frame.len();
                frame[at] ^= 0x11;
            }
            Twist::Pad(len) => frame.resize(frame.len() + len, 0),
        }
        let delivered = match twist {
            Twist::Partial => spec.partial_frame(),
            _ => frame.clone(),
        };
        let headers = spec.headers_len();
        let mut packet = parsed(&mut self.memory, &delivered, headers, cuts);
        let checksum = match twist {
            Twist::None | Twist::Corrupt(_) => Checksum::None,
            Twist::Pad(_) => Checksum::Unnecessary,
            Twist::Partial => spec.partial(),
        };
        packet.set_offload(Offload { checksum, gso: None });
        self.pass(packet);
        frame
    }

    /// Delivers a frame with headers of `spec`, verified by the device, and checks that it is
    /// delivered at once and unchanged.
    fn passes_alone(&mut self, spec: &Spec, frame: &[u8]) {
        let mut packet = parsed(&mut self.memory, frame, spec.headers_len(), &[]);
        packet.set_offload(Offload { checksum: Checksum::Unnecessary, gso: None });
        self.pass(packet);
        assert_eq!(self.coalescer.held_count(), 0);
        let last = self.out.last().expect("it was delivered");
        assert_eq!(bytes_of(last), frame);
    }

    /// Coalesces a packet; one without whole headers is delivered.
    fn pass(&mut self, packet: Packet) {
        let out = &mut |packet, ()| self.out.push(packet);
        match read_headers(&packet) {
            Some(headers) => self.coalescer.receive(packet, &headers, (), &self.ledger, out),
            None => out(packet, ()),
        }
    }

    fn flush(&mut self) {
        self.coalescer.flush(&mut |packet, ()| self.out.push(packet));
    }

    /// Segments the delivered packets; returns frames.
    fn cut(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for packet in self.out.drain(..) {
            let (headers, checksums) = (headers_of(&packet), Checksums::Complete);
            let (memory, ledger) = (&mut self.memory, &self.ledger);
            let result = segment(packet, memory, ledger, &headers, checksums, &mut |packet, _| {
                frames.push(bytes_of(&packet));
            });
            result.expect("what was coalesced can be cut");
        }
        frames
    }

    fn assert_all_back(self) {
        assert_eq!(self.coalescer.held_count(), 0);
        assert!(self.out.is_empty());
        assert_all_back(&self.memory, &self.ledger);
    }
}

/// Parameters of a packet that may or may not continue its flow.
fn any_next() -> impl Strategy<Value = (u8, u8, usize, Twist, Vec<usize>)> {
    let twist = prop_oneof![
        12 => Just(Twist::None),
        1 => (0..200usize).prop_map(Twist::Corrupt),
        1 => (1..20usize).prop_map(Twist::Pad),
        2 => Just(Twist::Partial),
    ];
    let len = prop_oneof![6 => Just(1000usize), 1 => 0..1000usize, 1 => 1001..1400usize];
    (0..4u8, 0..40u8, len, twist, prop::collection::vec(0..1500usize, 0..3))
}

/// Turns the last packet of a flow into its next packet; `change` breaks one rule or none.
fn advance(spec: &mut Spec, change: u8, len: usize) {
    spec.sequence = spec.sequence.wrapping_add(spec.payload.len() as u32);
    spec.ident = spec.ident.wrapping_add(1);
    spec.flags = ACK;
    match change {
        0 => spec.ttl ^= 1,
        1 => spec.tos ^= 4,
        2 => spec.dont_fragment ^= true,
        3 => spec.ident = spec.ident.wrapping_add(1),
        4 => spec.ident = spec.ident.wrapping_sub(1),
        5 => spec.flow_label ^= 1,
        6 => spec.ack += 1,
        7 => spec.window += 1,
        8 => spec.options = alloc::vec![1; (spec.options.len() + 4) % 12],
        9 => spec.sequence = spec.sequence.wrapping_add(1),
        10 => spec.flags |= PSH,
        11 => spec.flags |= FIN | PSH,
        12 => spec.flags |= CWR,
        13 => spec.flags |= SYN,
        14 => spec.flags |= 0x40,
        15 => spec.ip_options = (spec.ip_options + 1) % 3,
        _ => {}
    }
    spec.payload = pattern(len);
}

proptest! {
    /// Goal: for any input, segmentation of the delivered packets restores every packet, byte for
    /// byte and in the order of its flow; partial checksums are completed. No payload is copied.
    #[test]
    fn cutting_undoes_coalescing(arrivals in prop::collection::vec(any_next(), 1..120)) {
        let mut bench = Bench::new();
        let mut flows: Vec<Spec> = (0..4u16)
            .map(|flow| {
                let mut spec = Spec::plain(flow & 1 != 0, flow & 2 != 0, Vec::new());
                spec.source_port = 4000 + flow;
                spec
            })
            .collect();
        let mut sent = alloc::vec![Vec::new(); flows.len()];
        for (flow, change, len, twist, cuts) in arrivals {
            let spec = &mut flows[usize::from(flow)];
            advance(spec, change, len);
            // Corrupt headers may belong to any flow; only the payload is changed here.
            let twist = match twist {
                Twist::Corrupt(_) if len == 0 => Twist::None,
                Twist::Corrupt(at) => Twist::Corrupt(spec.headers_len() + at % len),
                twist => twist,
            };
            let frame = bench.receive(spec, &twist, &cuts);
            sent[usize::from(flow)].push(frame);
        }
        bench.flush();
        let mut came = alloc::vec![Vec::new(); flows.len()];
        for frame in bench.cut() {
            let is_udp = frame[23] == 17 && frame[14] >> 4 == 4 || frame[14] >> 4 == 6
                && (frame[20] == 17 || frame[20] == 0 && frame[54] == 17);
            let flow = usize::from(frame[14] >> 4 == 6) + if is_udp { 0 } else { 2 };
            came[flow].push(frame);
        }
        prop_assert_eq!(came, sent);
        bench.assert_all_back();
    }

    /// Goal: segmentation and coalescing are inverse: the segments of a super-packet become that
    /// super-packet again, as far as its pieces and limits allow.
    #[test]
    fn coalescing_undoes_cutting(
        mut spec in any_spec(2000..16_000),
        cuts in prop::collection::vec(0..16_000usize, 0..2),
        size in 1000u16..1500,
    ) {
        if !spec.v6 {
            spec.ip_options = 0;
        }
        spec.flags &= !0x26;
        let mut bench = Bench::new();
        let mut packet =
            parsed(&mut bench.memory, &spec.partial_frame(), spec.headers_len(), &cuts);
        packet.set_offload(spec.offload(size));
        let mut segments = Vec::new();
        let checksums = Checksums::Complete;
        let headers = headers_of(&packet);
        let (memory, ledger) = (&mut bench.memory, &bench.ledger);
        segment(packet, memory, ledger, &headers, checksums, &mut |part, _| segments.push(part))
            .expect("valid");
        for part in segments {
            bench.pass(part);
        }
        bench.flush();
        prop_assert_eq!(bench.out.len(), 1);
        let whole = bench.out.pop().expect("one");
        prop_assert_eq!(bytes_of(&whole), spec.partial_frame());
        prop_assert_eq!(*whole.offload(), spec.offload(size));
        drop(whole);
        bench.assert_all_back();
    }

    /// Goal: any bytes with headers at any place are delivered or held without a panic.
    #[test]
    fn strangers_may_send_anything(
        frames in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 60..150), 0..150usize, 0..80usize),
            1..40,
        ),
    ) {
        let mut bench = Bench::new();
        let mut count = 0;
        for (frame, len, ip_at) in &frames {
            let packet = parsed(&mut bench.memory, frame, *len % frame.len(), &[]);
            let Some(headers) = Headers::read(packet.headers(), *ip_at) else { continue };
            let out = &mut |packet, ()| bench.out.push(packet);
            bench.coalescer.receive(packet, &headers, (), &bench.ledger, out);
            count += 1;
        }
        bench.flush();
        prop_assert_eq!(bench.out.len(), count);
        bench.out.clear();
        bench.assert_all_back();
    }
}

/// Receives packets with the given payload lengths and flags; returns the payload lengths delivered
/// before the flush, and all of them.
fn lengths(v6: bool, tcp: bool, packets: &[(usize, u8)]) -> (Vec<usize>, Vec<usize>) {
    let mut bench = Bench::new();
    let mut spec = Spec::plain(v6, tcp, Vec::new());
    for &(len, flags) in packets {
        advance(&mut spec, u8::MAX, len);
        spec.flags = flags;
        bench.receive(&spec, &Twist::None, &[]);
    }
    let lengths =
        |bench: &Bench| -> Vec<usize> { bench.out.iter().map(Packet::payload_len).collect() };
    let before = lengths(&bench);
    bench.flush();
    let all = lengths(&bench);
    bench.out.clear();
    bench.assert_all_back();
    (before, all)
}

/// When a super-packet is delivered: PSH, FIN, a shorter payload, a longer one, the limits.
#[test]
fn super_packets_go_up_as_linux_sends_them_up() {
    for v6 in [false, true] {
        let tcp = |packets: &[_]| lengths(v6, true, packets);
        assert_eq!(tcp(&[(900, ACK); 3]), (alloc::vec![], alloc::vec![2700]));
        assert_eq!(tcp(&[(900, ACK), (900, ACK | PSH), (900, ACK)]).0, [1800]);
        assert_eq!(tcp(&[(900, ACK), (900, ACK | FIN)]).0, [1800]);
        assert_eq!(tcp(&[(900, ACK), (10, ACK), (900, ACK)]).0, [910]);
        assert_eq!(tcp(&[(900, ACK), (901, ACK)]), (alloc::vec![900], alloc::vec![900, 901]));
        assert_eq!(tcp(&[(900, ACK), (0, ACK), (900, ACK)]).0, [900, 0]);
        assert_eq!(tcp(&[(900, ACK | PSH), (900, ACK)]).0, [900]);
        assert_eq!(tcp(&[(900, ACK), (900, ACK | CWR)]).0, [900]);
        assert_eq!(tcp(&[(900, ACK | CWR), (900, ACK)]).1, [1800]);
        for alone in [SYN, RST, URG] {
            assert_eq!(tcp(&[(900, ACK | alone); 2]).0, [900, 900]);
        }
        assert_eq!(tcp(&[(900, ACK); 40]).1, [16_200, 16_200, 3600]);
        let udp = |packets: &[_]| lengths(v6, false, packets);
        assert_eq!(udp(&[(900, 0); 3]).1, [2700]);
        assert_eq!(udp(&[(900, 0), (10, 0), (900, 0)]).0, [910]);
        assert_eq!(udp(&[(900, 0), (901, 0)]).0, [900]);
    }
}

/// Offload fields of the result: first payload length, kind, partial checksum, CWR as ECN.
#[test]
fn a_super_packet_is_marked() {
    let mut bench = Bench::new();
    let mut spec = Spec::plain(true, true, pattern(800));
    spec.flags = ACK | CWR;
    bench.receive(&spec, &Twist::None, &[]);
    advance(&mut spec, u8::MAX, 700);
    bench.receive(&spec, &Twist::None, &[]);
    let packet = bench.out.pop().expect("a short payload is the last");
    let gso =
        Gso { kind: GsoKind::Tcp6, size: 800.try_into().expect("not 0"), ecn: true, tunnel: None };
    assert_eq!(*packet.offload(), Offload { checksum: spec.partial(), gso: Some(gso) });
    assert_eq!(packet.len(), spec.headers_len() + 1500);
    drop(packet);
    bench.assert_all_back();
}

/// Goal: at most 64 UDP datagrams and 65,535 bytes of IP packet, also when pieces join and impose
/// no limit. Method: all payloads are ranges of one loan.
#[test]
fn joined_pieces_stop_at_the_other_limits() {
    for (tcp, len, count, first) in [(false, 16, 70, 64 * 16), (true, 8000, 12, 8 * 8000)] {
        let mut bench = Bench::new();
        let mut loans = Loans::new(1);
        let memory = alloc::vec![0; len * count].into_boxed_slice();
        let whole = loans.lend_owned(memory).expect("one loan");
        let mut spec = Spec::plain(false, tcp, Vec::new());
        for index in 0..count {
            advance(&mut spec, u8::MAX, 0);
            spec.payload = alloc::vec![0; len];
            let headers = spec.headers_len();
            let mut packet = parsed(&mut bench.memory, &spec.frame(), headers, &[]);
            packet.truncate(0);
            packet.push_piece(whole.slice(index * len, len)).expect("room");
            bench.pass(packet);
        }
        drop(whole);
        bench.flush();
        assert_eq!(bench.out[0].payload_len(), first);
        assert_eq!(bench.out[0].piece_count(), 1);
        bench.out.clear();
        assert_eq!(loans.out_count(), 0);
        bench.assert_all_back();
    }
}

/// One's complement has two zeros. A sender that writes the other one is arithmetically correct.
/// Its packet is delivered unchanged, as segmentation would write the usual one.
#[test]
fn the_other_zero_passes_alone() {
    let mut bench = Bench::new();
    let mut spec = Spec::plain(true, true, pattern(100));
    bench.receive(&spec, &Twist::None, &[]);
    advance(&mut spec, u8::MAX, 0);
    spec.payload = alloc::vec![0; 100];
    let frame = spec.frame();
    let field = spec.transport_at() + 16;
    spec.payload[98..].copy_from_slice(&frame[field..field + 2]);
    let mut frame = spec.frame();
    assert_eq!(frame[field..field + 2], [0, 0]);
    frame[field..field + 2].fill(0xff);
    bench.passes_alone(&spec, &frame);
    assert_eq!(bench.out.len(), 2, "after the one that was held");
    bench.out.clear();

    // The same value in an IPv4 header checksum; the identification makes up the difference.
    let mut spec = Spec::plain(false, true, pattern(100));
    spec.ident = 0;
    let frame = spec.frame();
    spec.ident = u16::from_be_bytes([frame[24], frame[25]]);
    let mut frame = spec.frame();
    assert_eq!(frame[24..26], [0, 0]);
    frame[24..26].fill(0xff);
    bench.passes_alone(&spec, &frame);
    bench.out.clear();
    bench.assert_all_back();
}

/// UDP without a checksum, and UDP shorter than its IP packet, are not what segmentation produces:
/// they are delivered unchanged even if a device has verified them.
#[test]
fn unusual_udp_passes_alone() {
    let mut bench = Bench::new();
    let spec = Spec::plain(false, false, pattern(100));
    let mut no_checksum = spec.frame();
    no_checksum[40..42].fill(0);
    bench.passes_alone(&spec, &no_checksum);
    let mut shorter = spec.frame();
    shorter[39] -= 10;
    bench.passes_alone(&spec, &shorter);
    bench.out.clear();
    bench.assert_all_back();
}

/// The table is bounded: with more flows than it holds, the oldest of a bucket is delivered.
#[test]
fn many_flows_send_up_the_oldest() {
    let mut bench = Bench::new();
    let mut spec = Spec::plain(false, true, pattern(100));
    for port in 0..400 {
        spec.source_port = port;
        bench.receive(&spec, &Twist::None, &[]);
        assert!(bench.coalescer.held_count() <= BUCKETS * AGGREGATES_PER_BUCKET);
    }
    assert_eq!(bench.out.len() + bench.coalescer.held_count(), 400);
    bench.flush();
    assert_eq!(bench.out.len(), 400);
    bench.out.clear();
    bench.assert_all_back();
}
