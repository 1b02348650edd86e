//! Target: reassembly of arbitrary fragments in any order, and fragmentation followed by
//! reassembly.
//!
//! The payload of each datagram is a stream of its own, by offset. So each reassembled payload must
//! equal that stream from its first byte, and the table must stay within its bounds at every step.

use std::net::{Ipv4Addr, Ipv6Addr};

use towpath_net::fragment::{
    FRAGMENTS_MAX, HELD_BYTES_MAX, Limits, Outcome, Reassembler, fragment_ipv4, fragment_ipv6,
};
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::ethernet::HEADER_LEN as IP_AT;
use towpath_net::wire::headers::Headers;
use towpath_net::wire::{Protocol, ipv4, ipv6};
use towpath_packet::{Ledger, Memory, Packet, Piece};
use towpath_sim::oracle;

use crate::input::Input;
use crate::packets;

/// Most steps of one input.
const STEPS_MAX: usize = 200;
/// Small, so that inputs reach the bounds.
const LIMITS: Limits = Limits { held_bytes: 64 << 10, datagrams: 8 };
/// Longest payload of one fragment.
const PAYLOAD_MAX: usize = 4096;
/// Length of pieces; some fragments have several.
const PIECE_MAX: usize = 1500;
/// Protocol of this target's datagrams; it has no transport header that would be parsed.
const PROTOCOL: Protocol = Protocol(253);

/// Runs steps: a byte selects each, and its arguments follow.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut table = Table {
        memory: packets::memory(),
        ledger: Ledger::new(),
        reassembler: Reassembler::new(LIMITS),
        now: Instant::START,
    };
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        table.step(&mut input);
        assert!(table.reassembler.held_bytes() <= LIMITS.held_bytes);
        assert!(table.reassembler.datagram_count() <= LIMITS.datagrams);
    }
    let Table { memory, reassembler, .. } = table;
    drop(reassembler);
    packets::check_returned(memory);
}

struct Table {
    memory: Memory,
    ledger: Ledger,
    reassembler: Reassembler,
    now: Instant,
}

impl Table {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 8 {
            0 => self.pass(Duration::from_millis(u64::from(input.u16()))),
            1 => self.there_and_back(input),
            2 => self.any_ipv4(input),
            3 => self.any_ipv6(input),
            kind => self.fragment(kind & 1 == 0, input),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let before = self.reassembler.datagram_count();
        let expired = self.reassembler.expire(self.now, &mut drop);
        assert_eq!(self.reassembler.datagram_count() + expired, before);
        assert!(self.reassembler.next_deadline().is_none_or(|at| at > self.now));
    }

    /// Adds a well-formed fragment of one of a few datagrams.
    fn fragment(&mut self, v4: bool, input: &mut Input<'_>) {
        let (ident, source, flags) = (input.u8() & 7, input.u8() & 3, input.u8());
        let offset = input.u16() & 0xfff8;
        let len = usize::from(input.u16()) % PAYLOAD_MAX;
        let more = flags & 1 != 0;
        let len = if more { len & !7 } else { len };
        let mut payload = vec![0; len];
        let stream = stream(v4, ident, source);
        oracle::fill(stream, offset.into(), &mut payload);
        let headers = match v4 {
            true => ipv4_headers(ident, source, offset, more, flags >> 1 & 3, len),
            false => ipv6_headers(ident, source, offset, more, flags >> 1 & 3, len),
        };
        let Some(packet) = packets::parsed(&mut self.memory, &headers, &payload, PIECE_MAX) else {
            return;
        };
        let outcome = if v4 { self.receive_ipv4(packet) } else { self.receive_ipv6(packet) };
        if let Some(Outcome::Reassembled(whole)) = outcome {
            check_whole(&whole, v4);
            assert!(oracle::matches(stream, 0, &packets::payload(&whole)), "foreign bytes");
        }
    }

    /// Adds a fragment with arbitrary header and payload. No oracle checks it, only the bounds.
    fn any_ipv4(&mut self, input: &mut Input<'_>) {
        let mut headers = vec![0; IP_AT];
        headers.extend_from_slice(input.bytes(ipv4::HEADER_LEN));
        let payload = input.counted();
        if let Some(packet) = packets::parsed(&mut self.memory, &headers, payload, PIECE_MAX) {
            self.receive_ipv4(packet);
        }
    }

    fn any_ipv6(&mut self, input: &mut Input<'_>) {
        let mut headers = vec![0; IP_AT];
        headers.extend_from_slice(input.bytes(ipv6::HEADER_LEN));
        let extensions_len = usize::from(input.u8()) & 0x78;
        headers.extend_from_slice(input.bytes(extensions_len));
        let payload = input.counted();
        if headers.len() <= towpath_packet::packet::PEEK_BYTES
            && let Some(packet) = packets::parsed(&mut self.memory, &headers, payload, PIECE_MAX)
        {
            self.receive_ipv6(packet);
        }
    }

    fn receive_ipv4(&mut self, packet: Packet) -> Option<Outcome> {
        let (memory, ledger) = (&mut self.memory, &self.ledger);
        Some(self.reassembler.receive_ipv4(packet, IP_AT, self.now, memory, ledger))
    }

    /// Receives a packet as the stack does: it is a fragment only if the walk over the headers
    /// finds a fragment header.
    fn receive_ipv6(&mut self, packet: Packet) -> Option<Outcome> {
        let len = packet.len() - IP_AT;
        let ip = &packet.headers()[IP_AT..];
        let header = ipv6::Header::parse(ip, len).ok()?;
        let rest = &ip[ipv6::HEADER_LEN..];
        let payload_len = usize::from(header.payload_len);
        let rest = &rest[..rest.len().min(payload_len)];
        let fragment =
            ipv6::Extensions::walk(header.next_header, rest, payload_len).ok()?.fragment?;
        let (memory, ledger) = (&mut self.memory, &self.ledger);
        let table = &mut self.reassembler;
        Some(table.receive_ipv6(packet, IP_AT, &fragment, self.now, memory, ledger))
    }

    /// Fragments a packet and reassembles it in any order.
    fn there_and_back(&mut self, input: &mut Input<'_>) {
        let v4 = input.u8() & 1 == 0;
        let mtu = usize::from(input.u16());
        let len = usize::from(input.u16());
        let turn = usize::from(input.u8());
        let mut payload = vec![0; len];
        oracle::fill(0, 0, &mut payload);
        let headers = match v4 {
            true => ipv4_headers(0xff, 0xff, 0, false, 0, len),
            false => whole_ipv6_headers(len),
        };
        let Some(packet) = packets::parsed(&mut self.memory, &headers, &payload, 8 << 10) else {
            return;
        };
        let headers = &Headers::read_ip(packet.headers(), IP_AT).expect("an IP packet");
        let mut fragments = Vec::new();
        let mut out = |fragment| fragments.push(fragment);
        let (memory, ledger) = (&mut self.memory, &self.ledger);
        let cut = match v4 {
            true => fragment_ipv4(packet, mtu, headers, memory, ledger, &mut out),
            false => fragment_ipv6(packet, mtu, headers, 7, memory, ledger, &mut out),
        };
        let Ok(count) = cut else {
            assert!(fragments.is_empty(), "a refused packet makes no fragments");
            return;
        };
        assert_eq!(count, fragments.len());
        if count == 1 {
            return;
        }
        fragments.rotate_left(turn % count);
        let mut own = Table {
            memory: packets::memory(),
            ledger: Ledger::new(),
            reassembler: Reassembler::new(Limits::default()),
            now: Instant::START,
        };
        let held = fragments.iter().flat_map(Packet::pieces).map(Piece::held).sum();
        let mut whole = None;
        for fragment in fragments {
            assert!(fragment.len() - IP_AT <= mtu);
            let outcome = if v4 { own.receive_ipv4(fragment) } else { own.receive_ipv6(fragment) };
            if let Some(Outcome::Reassembled(packet)) = outcome {
                assert!(whole.replace(packet).is_none());
            }
        }
        let Some(whole) = whole else { return expect_refusal(count, held) };
        check_whole(&whole, v4);
        assert_eq!(packets::payload(&whole), payload);
    }
}

/// Checks that a datagram that was not reassembled exceeds the table's bounds. A loan counts once
/// for each fragment that shares it.
fn expect_refusal(fragments: usize, held: usize) {
    let within = fragments <= FRAGMENTS_MAX && held <= HELD_BYTES_MAX;
    assert!(!within, "{fragments} fragments that hold {held} bytes were not reassembled");
}

/// Checks that the headers of a reassembled packet match its payload and show no trace of
/// fragmentation.
fn check_whole(whole: &Packet, v4: bool) {
    let len = whole.len() - IP_AT;
    let ip = &whole.headers()[IP_AT..];
    if v4 {
        let header = ipv4::Header::parse(ip, len).expect("a valid header");
        assert!(!header.is_fragment());
        assert_eq!(usize::from(header.total_len), len);
    } else {
        let header = ipv6::Header::parse(ip, len).expect("a valid header");
        assert_eq!(usize::from(header.payload_len) + ipv6::HEADER_LEN, len);
        assert_eq!(header.next_header, PROTOCOL);
    }
}

fn stream(v4: bool, ident: u8, source: u8) -> u64 {
    u64::from(v4) << 16 | u64::from(ident) << 8 | u64::from(source)
}

fn ipv4_headers(ident: u8, source: u8, offset: u16, more: bool, ecn: u8, len: usize) -> Vec<u8> {
    let mut headers = vec![0; IP_AT + ipv4::HEADER_LEN];
    let header = ipv4::Header {
        tos: ecn,
        ident: ident.into(),
        dont_fragment: false,
        more_fragments: more,
        fragment_offset: offset,
        ttl: 64,
        protocol: PROTOCOL,
        source: Ipv4Addr::new(192, 0, 2, source),
        destination: Ipv4Addr::new(198, 51, 100, 1),
        total_len: (ipv4::HEADER_LEN + len).min(0xffff) as u16,
        header_len: ipv4::HEADER_LEN as u8,
        has_source_route: false,
    };
    header.emit(&mut headers[IP_AT..]);
    headers
}

fn ipv6_headers(ident: u8, source: u8, offset: u16, more: bool, ecn: u8, len: usize) -> Vec<u8> {
    let at = IP_AT + ipv6::HEADER_LEN;
    let mut headers = vec![0; at + ipv6::FRAGMENT_HEADER_LEN];
    let payload_len = ipv6::FRAGMENT_HEADER_LEN + len;
    ipv6_header(source, ecn, payload_len, Protocol::IPV6_FRAGMENT).emit(&mut headers[IP_AT..]);
    ipv6::emit_fragment_header(&mut headers[at..], PROTOCOL, offset, more, ident.into());
    headers
}

fn whole_ipv6_headers(len: usize) -> Vec<u8> {
    let mut headers = vec![0; IP_AT + ipv6::HEADER_LEN];
    ipv6_header(0xff, 0, len, PROTOCOL).emit(&mut headers[IP_AT..]);
    headers
}

fn ipv6_header(source: u8, ecn: u8, payload_len: usize, next_header: Protocol) -> ipv6::Header {
    ipv6::Header {
        traffic_class: ecn,
        flow_label: 0,
        payload_len: payload_len as u16,
        next_header,
        hop_limit: 64,
        source: Ipv6Addr::new(0x2001, 0xdb8, 0, source.into(), 0, 0, 0, 1),
        destination: Ipv6Addr::new(0x2001, 0xdb8, 0, 0xff, 0, 0, 0, 1),
    }
}
