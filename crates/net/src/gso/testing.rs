//! Packets for tests, built and checked byte by byte without the code under test.

use alloc::vec::Vec;

use proptest::prelude::*;
use towpath_packet::{Checksum, Gso, GsoKind, Ledger, Memory, MemoryConfig, Offload, Packet};

use crate::wire::ethernet;
use crate::wire::headers::Headers;

mod tunnel;

pub(crate) use tunnel::{Tunnelled, any_tunnelled};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const URG: u8 = 0x20;
pub(crate) const CWR: u8 = 0x80;

/// Offset of the IP header.
pub(crate) const IP_AT: usize = ethernet::HEADER_LEN;

pub(crate) fn memory() -> Memory {
    Memory::new(MemoryConfig { packets: 2048, small_frames: 512, large_frames: 64 })
}

/// Goal of nearly every test: no memory is held, and nothing was copied.
pub(crate) fn assert_all_back(memory: &Memory, ledger: &Ledger) {
    assert_eq!(memory.packets.out_count(), 0, "packets");
    assert_eq!(memory.small.out_count(), 0, "small frames");
    assert_eq!(memory.large.out_count(), 0, "large frames");
    assert_eq!(ledger.copied(), 0, "payload bytes copied");
}

/// Parameters of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) v6: bool,
    pub(crate) tcp: bool,
    /// IPv4 options or IPv6 hop-by-hop options (padding only), in units of 8 bytes.
    pub(crate) ip_options: usize,
    /// TCP options in bytes; the length is a multiple of 4.
    pub(crate) options: Vec<u8>,
    pub(crate) ident: u16,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) dont_fragment: bool,
    pub(crate) flow_label: u32,
    pub(crate) source_port: u16,
    pub(crate) sequence: u32,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) flags: u8,
    pub(crate) payload: Vec<u8>,
}

impl Spec {
    pub(crate) fn plain(v6: bool, tcp: bool, payload: Vec<u8>) -> Self {
        Self {
            v6,
            tcp,
            ip_options: 0,
            options: Vec::new(),
            ident: 0xfffe,
            tos: 0,
            ttl: 64,
            dont_fragment: false,
            flow_label: 0x12345,
            source_port: 1000,
            sequence: 0xffff_ff00,
            ack: 77,
            window: 500,
            flags: ACK,
            payload,
        }
    }

    pub(crate) fn transport_at(&self) -> usize {
        let ip = if self.v6 { 40 } else { 20 };
        IP_AT + ip + 8 * self.ip_options
    }

    pub(crate) fn headers_len(&self) -> usize {
        self.transport_at() + if self.tcp { 20 + self.options.len() } else { 8 }
    }

    /// The whole frame with correct lengths and checksums.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut transport = self.transport_header();
        transport.extend(&self.payload);
        let at = if self.tcp { 16 } else { 6 };
        let sum = naive_sum(&self.pseudo_header(transport.len()), naive_sum(&transport, 0));
        let sum = match !(sum as u16) {
            0 if !self.tcp => 0xffff,
            sum => sum,
        };
        transport[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        let mut frame = [[2u8, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]].concat();
        frame.extend(if self.v6 { [0x86, 0xdd] } else { [8, 0] });
        frame.extend(self.ip_header(transport.len()));
        frame.extend(transport);
        frame
    }

    /// The frame with a partial checksum.
    pub(crate) fn partial_frame(&self) -> Vec<u8> {
        let mut frame = self.frame();
        let transport_at = self.transport_at();
        let sum = naive_sum(&self.pseudo_header(frame.len() - transport_at), 0);
        let at = transport_at + if self.tcp { 16 } else { 6 };
        frame[at..at + 2].copy_from_slice(&(sum as u16).to_be_bytes());
        frame
    }

    pub(crate) fn partial(&self) -> Checksum {
        let offset = if self.tcp { 16 } else { 6 };
        Checksum::Partial { start: self.transport_at() as u16, offset }
    }

    pub(crate) fn offload(&self, size: u16) -> Offload {
        let kind = match (self.tcp, self.v6) {
            (false, _) => GsoKind::Udp,
            (true, false) => GsoKind::Tcp4,
            (true, true) => GsoKind::Tcp6,
        };
        let size = size.try_into().expect("not zero");
        let gso = Gso { kind, size, ecn: self.tcp && self.flags & CWR != 0, tunnel: None };
        Offload { checksum: self.partial(), gso: Some(gso) }
    }

    /// The packets of a sender without offloads, by the rules of Linux.
    pub(crate) fn segments(&self, size: usize) -> Vec<Spec> {
        let count = self.payload.len().div_ceil(size);
        let cut = |(index, payload): (usize, &[u8])| {
            let mut spec = self.clone();
            spec.payload = payload.to_vec();
            spec.ident = self.ident.wrapping_add(index as u16);
            spec.sequence = self.sequence.wrapping_add((index * size) as u32);
            if index > 0 {
                spec.flags &= !CWR;
            }
            if index + 1 < count {
                spec.flags &= !(FIN | PSH);
            }
            spec
        };
        self.payload.chunks(size).enumerate().map(cut).collect()
    }

    fn transport_header(&self) -> Vec<u8> {
        let mut header = [self.source_port.to_be_bytes(), 80u16.to_be_bytes()].concat();
        if self.tcp {
            header.extend(self.sequence.to_be_bytes());
            header.extend(self.ack.to_be_bytes());
            header.extend([((20 + self.options.len()) / 4 * 16) as u8, self.flags]);
            header.extend(self.window.to_be_bytes());
            header.extend([0, 0, 0, 0]);
            header.extend(&self.options);
        } else {
            header.extend((8 + self.payload.len() as u16).to_be_bytes());
            header.extend([0, 0]);
        }
        header
    }

    fn ip_header(&self, behind: usize) -> Vec<u8> {
        let protocol = if self.tcp { 6 } else { 17 };
        let (source, destination) = self.addresses();
        let options = self.ip_options * 8;
        let mut header = Vec::new();
        if self.v6 {
            header.extend((6 << 28 | u32::from(self.tos) << 20 | self.flow_label).to_be_bytes());
            header.extend(((options + behind) as u16).to_be_bytes());
            header.extend([if options > 0 { 0 } else { protocol }, self.ttl]);
            header.extend(source);
            header.extend(destination);
            if options > 0 {
                header.extend([protocol, self.ip_options as u8 - 1, 1, options as u8 - 4]);
                header.resize(40 + options, 0);
            }
            return header;
        }
        header.extend([0x45 + self.ip_options as u8 * 2, self.tos]);
        header.extend(((20 + options + behind) as u16).to_be_bytes());
        header.extend(self.ident.to_be_bytes());
        header.extend([if self.dont_fragment { 0x40 } else { 0 }, 0, self.ttl, protocol, 0, 0]);
        header.extend(source);
        header.extend(destination);
        header.resize(20 + options, 1);
        let sum = !(naive_sum(&header, 0) as u16);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    fn addresses(&self) -> (Vec<u8>, Vec<u8>) {
        let len = if self.v6 { 16 } else { 4 };
        let address = |last| {
            let mut address = alloc::vec![10; len];
            address[len - 1] = last;
            address
        };
        (address(1), address(2))
    }

    fn pseudo_header(&self, len: usize) -> Vec<u8> {
        let (source, destination) = self.addresses();
        let mut bytes = [source, destination].concat();
        bytes.extend((len as u32).to_be_bytes());
        bytes.extend([0, 0, 0, if self.tcp { 6 } else { 17 }]);
        bytes
    }
}

/// One's complement sum in the form of RFC 1071 §4.1, beginning with `start`.
pub(crate) fn naive_sum(bytes: &[u8], start: u32) -> u32 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// A packet as a device delivers it: `frame` in pieces of private frames, split at `cuts`.
pub(crate) fn received(memory: &mut Memory, frame: &[u8], cuts: &[usize]) -> Packet {
    let mut packet = memory.packet().expect("free");
    let mut borders: Vec<usize> = cuts.iter().map(|cut| cut % (frame.len() + 1)).collect();
    borders.push(frame.len());
    borders.sort_unstable();
    let mut start = 0;
    for end in borders {
        for chunk in frame[start..end].chunks(16 * 1024) {
            let pool = if chunk.len() > 2048 { &mut memory.large } else { &mut memory.small };
            let mut place = pool.take().expect("free");
            place[..chunk.len()].copy_from_slice(chunk);
            packet.push_piece(place.freeze(chunk.len())).expect("room");
        }
        start = end;
    }
    packet
}

/// A packet as a device delivers it, with the first `headers` bytes pulled.
pub(crate) fn parsed(memory: &mut Memory, frame: &[u8], headers: usize, cuts: &[usize]) -> Packet {
    let mut packet = received(memory, frame, cuts);
    packet.peek_headers();
    packet.pull(headers);
    packet
}

/// The headers of a packet, if it has whole ones.
pub(crate) fn read_headers(packet: &Packet) -> Option<Headers> {
    Headers::read(packet.headers(), IP_AT)
}

/// The headers of a packet that has whole ones.
pub(crate) fn headers_of(packet: &Packet) -> Headers {
    read_headers(packet).expect("whole headers")
}

/// Concatenated headers and payload.
pub(crate) fn bytes_of(packet: &Packet) -> Vec<u8> {
    let mut bytes = packet.headers().to_vec();
    for piece in packet.pieces() {
        bytes.extend(piece.bytes().expect("private"));
    }
    bytes
}

/// `len` bytes that differ by position.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|place| (place * 31 + place / 251) as u8).collect()
}

/// Any frame with a payload length in `payload`.
pub(crate) fn any_spec(payload: core::ops::Range<usize>) -> impl Strategy<Value = Spec> {
    let kind = (any::<bool>(), any::<bool>(), 0..3usize, 0..=10usize, any::<bool>());
    let numbers = any::<(u16, u8, u8, u32, u32, u16)>();
    let flags = prop::sample::select(alloc::vec![ACK, ACK | PSH, ACK | FIN, ACK | CWR, 0xdf]);
    (kind, numbers, flags, payload).prop_map(|(kind, numbers, flags, len)| {
        let (v6, tcp, ip_options, options, dont_fragment) = kind;
        let (ident, tos, ttl, sequence, ack, window) = numbers;
        let (ident, options) = (ident, alloc::vec![1; options * 4]);
        let plain = Spec::plain(v6, tcp, pattern(len));
        Spec {
            ip_options,
            options,
            ident,
            tos,
            ttl,
            dont_fragment,
            sequence,
            ack,
            window,
            flags,
            ..plain
        }
    })
}

/// Positions at which to split a frame into pieces.
pub(crate) fn any_cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..70_000usize, 0..8)
}
