//! A stack under test: frames go in and come out as bytes.

use crate::checksum;
use crate::counters::DropReason;
use crate::stack::{Address, Config, Context, Limits, Stack};
use crate::tcp::Settings;
use crate::time::{Duration, Instant};
use crate::wire::ethernet::{self, EtherType};
use crate::wire::{MacAddr, Protocol, arp, ipv4, ipv6, tcp, udp};
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_packet::{Burst, Caps, Ledger, Memory, MemoryConfig, Offload, Packet};

pub(super) const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(super) const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub(super) const OURS4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(super) const PEER4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
pub(super) const OURS6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
pub(super) const PEER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
/// Addresses off the link, for a transparent stack.
pub(super) const FAR4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
pub(super) const FAR6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// Local address and peer's address of both families.
pub(super) const FAMILIES: [(IpAddr, IpAddr); 2] = [(OURS4, PEER4), (OURS6, PEER6)];

/// A sent frame.
#[derive(Clone, Debug)]
pub(super) struct Out {
    pub(super) bytes: Vec<u8>,
    pub(super) offload: Offload,
}

impl Out {
    pub(super) fn ethertype(&self) -> u16 {
        u16::from_be_bytes([self.bytes[12], self.bytes[13]])
    }

    pub(super) fn is_v4(&self) -> bool {
        self.ethertype() == EtherType::IPV4.0
    }

    pub(super) fn protocol(&self) -> Protocol {
        Protocol(self.bytes[if self.is_v4() { 23 } else { 20 }])
    }

    /// Bytes behind an IP header without options.
    pub(super) fn transport(&self) -> &[u8] {
        &self.bytes[if self.is_v4() { 34 } else { 54 }..]
    }

    pub(super) fn tcp(&self) -> (tcp::Header, tcp::Options) {
        assert_eq!(self.protocol(), Protocol::TCP);
        tcp::Header::parse(self.transport()).expect("a valid TCP header")
    }

    /// TCP payload.
    pub(super) fn data(&self) -> &[u8] {
        &self.transport()[usize::from(self.tcp().0.header_len)..]
    }

    /// True if the transport checksum of a frame with whole headers is correct.
    pub(super) fn is_sound(&self) -> bool {
        let (source, destination) = if self.is_v4() {
            assert!(ipv4::Header::parse(&self.bytes[14..], self.bytes.len() - 14).is_ok());
            let at = |at: usize| {
                IpAddr::from(<[u8; 4]>::try_from(&self.bytes[at..at + 4]).expect("four bytes"))
            };
            (at(26), at(30))
        } else {
            let at = |at: usize| {
                IpAddr::from(<[u8; 16]>::try_from(&self.bytes[at..at + 16]).expect("sixteen"))
            };
            (at(22), at(38))
        };
        transport_sum(source, destination, self.protocol(), self.transport()) == 0
    }
}

/// Checksum over a transport header and its data; zero if it contains a correct checksum.
pub(super) fn transport_sum(from: IpAddr, to: IpAddr, protocol: Protocol, bytes: &[u8]) -> u16 {
    let mut sum = match protocol {
        Protocol::ICMP => checksum::Sum::new(),
        _ => checksum::pseudo_header(from, to, protocol, bytes.len() as u32),
    };
    sum.add(bytes);
    sum.finish()
}

/// An Ethernet frame.
pub(super) fn frame(from: MacAddr, to: MacAddr, ethertype: EtherType, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::HEADER_LEN];
    ethernet::Header { destination: to, source: from, ethertype }.emit(&mut bytes);
    bytes.extend_from_slice(body);
    bytes
}

/// An IP packet from the peer's station with these fields.
pub(super) fn ip(from: IpAddr, to: IpAddr, protocol: Protocol, ttl: u8, body: &[u8]) -> Vec<u8> {
    let (mut bytes, ethertype) = match (from, to) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut bytes = vec![0; ipv4::HEADER_LEN];
            let header = ipv4::Header {
                tos: 0,
                ident: 7,
                dont_fragment: false,
                more_fragments: false,
                fragment_offset: 0,
                ttl,
                protocol,
                source,
                destination,
                total_len: (ipv4::HEADER_LEN + body.len()) as u16,
                header_len: ipv4::HEADER_LEN as u8,
                has_source_route: false,
            };
            header.emit(&mut bytes);
            (bytes, EtherType::IPV4)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut bytes = vec![0; ipv6::HEADER_LEN];
            let header = ipv6::Header {
                traffic_class: 0,
                flow_label: 0,
                payload_len: body.len() as u16,
                next_header: protocol,
                hop_limit: ttl,
                source,
                destination,
            };
            header.emit(&mut bytes);
            (bytes, EtherType::IPV6)
        }
        _ => panic!("two families"),
    };
    bytes.extend_from_slice(body);
    frame(PEER_MAC, OUR_MAC, ethertype, &bytes)
}

/// A UDP datagram from the peer's station.
pub(super) fn udp(from: SocketAddr, to: SocketAddr, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; udp::HEADER_LEN];
    let header = udp::Header {
        source_port: from.port(),
        destination_port: to.port(),
        length: (udp::HEADER_LEN + data.len()) as u16,
        checksum: 0,
    };
    header.emit(&mut bytes);
    bytes.extend_from_slice(data);
    let sum = checksum::udp_nonzero(transport_sum(from.ip(), to.ip(), Protocol::UDP, &bytes));
    bytes[6..8].copy_from_slice(&sum.to_be_bytes());
    ip(from.ip(), to.ip(), Protocol::UDP, 64, &bytes)
}

/// A TCP segment from the peer's station.
pub(super) fn segment(
    from: SocketAddr,
    to: SocketAddr,
    flags: tcp::Flags,
    (sequence, acknowledgment): (u32, u32),
    options: &tcp::Options,
    data: &[u8],
) -> Vec<u8> {
    let header = tcp::Header {
        source_port: from.port(),
        destination_port: to.port(),
        sequence,
        acknowledgment,
        flags,
        window: 65_535,
        checksum: 0,
        urgent: 0,
        header_len: 0,
    };
    let mut bytes = vec![0; tcp::HEADER_LEN + options.emitted_len(flags.contains(tcp::Flags::SYN))];
    header.emit(options, &mut bytes);
    bytes.extend_from_slice(data);
    let sum = transport_sum(from.ip(), to.ip(), Protocol::TCP, &bytes);
    let at = tcp::CHECKSUM_OFFSET;
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    ip(from.ip(), to.ip(), Protocol::TCP, 64, &bytes)
}

/// An ICMP or ICMPv6 message with its checksum.
pub(super) fn icmp(from: IpAddr, to: IpAddr, ttl: u8, message: &[u8]) -> Vec<u8> {
    let protocol = if from.is_ipv4() { Protocol::ICMP } else { Protocol::ICMPV6 };
    let mut bytes = message.to_vec();
    bytes[2..4].fill(0);
    let sum = transport_sum(from, to, protocol, &bytes);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    ip(from, to, protocol, ttl, &bytes)
}

/// A stack with memory, ledger and clock.
pub(super) struct Bench {
    pub(super) stack: Stack,
    pub(super) memory: Memory,
    pub(super) ledger: Ledger,
    pub(super) now: Instant,
}

/// A device with all capabilities.
pub(super) fn able() -> Caps {
    Caps {
        mtu: 1500,
        checksum: true,
        tso4: true,
        tso6: true,
        uso: true,
        tunnel: false,
        gso_bytes_max: 65_549,
        segments: false,
    }
}

pub(super) fn config(transparent: bool) -> Config {
    Config {
        mac: OUR_MAC,
        addresses: vec![
            Address { address: OURS4, prefix_len: 24 },
            Address { address: OURS6, prefix_len: 64 },
        ],
        next_hops: Vec::new(),
        transparent,
        secret: [1, 2],
        tcp: Settings::default(),
        limits: Limits::default(),
    }
}

impl Bench {
    pub(super) fn with(config: Config, caps: Caps) -> Self {
        let memory = MemoryConfig { packets: 512, small_frames: 1024, large_frames: 128 };
        Self {
            stack: Stack::new(config, caps),
            memory: Memory::new(memory),
            ledger: Ledger::new(),
            now: Instant::from_micros(1_000_000),
        }
    }

    /// A host with the peer's station as permanent neighbour.
    pub(super) fn host(caps: Caps) -> Self {
        let mut bench = Self::with(config(false), caps);
        bench.stack.set_neighbor(PEER4, PEER_MAC);
        bench.stack.set_neighbor(PEER6, PEER_MAC);
        bench
    }

    /// A transparent stack with the peer's station as permanent neighbour.
    pub(super) fn transparent(caps: Caps) -> Self {
        let mut bench = Self::with(config(true), caps);
        bench.stack.set_neighbor(PEER4, PEER_MAC);
        bench.stack.set_neighbor(PEER6, PEER_MAC);
        bench
    }

    /// A packet with these bytes in frames, as a device delivers them.
    pub(super) fn packet(&mut self, bytes: &[u8]) -> Packet {
        let mut packet = self.memory.packet().expect("enough packets");
        let mut rest = bytes;
        let mut pool = &mut self.memory.small;
        while !rest.is_empty() {
            let mut memory = pool.take().expect("enough frames");
            let count = rest.len().min(memory.len());
            memory[..count].copy_from_slice(&rest[..count]);
            packet.push_piece(memory.freeze(count)).expect("few pieces");
            rest = &rest[count..];
            pool = &mut self.memory.large;
        }
        packet
    }

    pub(super) fn input(&mut self, bytes: &[u8]) -> &mut Self {
        self.input_burst(&[bytes])
    }

    pub(super) fn input_offload(&mut self, bytes: &[u8], offload: Offload) -> &mut Self {
        let mut packet = self.packet(bytes);
        packet.set_offload(offload);
        let mut burst = Burst::new();
        burst.push(packet).expect("empty");
        self.input_packets(&mut burst)
    }

    /// Receives a frame that entered a switch at this port.
    pub(super) fn input_by(&mut self, port: u16, bytes: &[u8]) -> &mut Self {
        let mut packet = self.packet(bytes);
        packet.set_ingress(Some(port));
        let mut burst = Burst::new();
        burst.push(packet).expect("empty");
        self.input_packets(&mut burst)
    }

    /// Receives several frames in one call.
    pub(super) fn input_burst(&mut self, frames: &[&[u8]]) -> &mut Self {
        let mut burst = Burst::new();
        for bytes in frames {
            let packet = self.packet(bytes);
            burst.push(packet).expect("few frames");
        }
        self.input_packets(&mut burst)
    }

    fn input_packets(&mut self, burst: &mut Burst) -> &mut Self {
        self.with_context(|stack, cx| stack.input(burst, cx));
        assert!(burst.is_empty());
        self
    }

    pub(super) fn with_context<R>(
        &mut self,
        act: impl FnOnce(&mut Stack, &mut Context<'_>) -> R,
    ) -> R {
        let (memory, ledger) = (&mut self.memory, &self.ledger);
        act(&mut self.stack, &mut Context { memory, ledger, now: self.now })
    }

    /// All frames that the stack has to send.
    pub(super) fn output(&mut self) -> Vec<Out> {
        let mut frames = Vec::new();
        let mut burst = Burst::new();
        loop {
            self.with_context(|stack, cx| stack.output(&mut burst, cx));
            if burst.is_empty() {
                return frames;
            }
            while let Some(packet) = burst.pop() {
                let mut bytes = packet.headers().to_vec();
                for piece in packet.pieces() {
                    bytes.extend_from_slice(piece.bytes().expect("private"));
                }
                frames.push(Out { bytes, offload: *packet.offload() });
            }
        }
    }

    /// The only frame that the stack has to send.
    #[track_caller]
    pub(super) fn one(&mut self) -> Out {
        let mut frames = self.output();
        assert_eq!(frames.len(), 1, "one frame, not {frames:?}");
        frames.remove(0)
    }

    #[track_caller]
    pub(super) fn quiet(&mut self) -> &mut Self {
        let frames = self.output();
        assert!(frames.is_empty(), "nothing, not {frames:?}");
        self
    }

    /// Advances the clock and runs timers when due; returns the frames sent meanwhile.
    pub(super) fn wait(&mut self, time: Duration) -> Vec<Out> {
        let end = self.now + time;
        let mut frames = self.output();
        while let Some(deadline) = self.stack.next_deadline()
            && deadline <= end
        {
            self.now = self.now.max(deadline);
            self.with_context(|stack, cx| stack.on_deadline(cx));
            frames.extend(self.output());
        }
        self.now = end;
        frames
    }

    /// Asserts that exactly these drops were counted.
    #[track_caller]
    pub(super) fn dropped(&self, expected: &[(DropReason, u64)]) {
        let drops: Vec<_> = self.stack.counters().drops().collect();
        assert_eq!(drops, expected);
    }

    /// Asserts that no memory is held, except by the owner, and that no payload was copied.
    #[track_caller]
    pub(super) fn assert_clean(&self) {
        self.assert_no_leak();
        assert_eq!(self.ledger.copied(), 0, "payload bytes copied");
    }

    #[track_caller]
    pub(super) fn assert_no_leak(&self) {
        assert_eq!(self.memory.packets.out_count(), 0, "packets kept");
        assert_eq!(self.memory.small.out_count(), 0, "small frames kept");
        assert_eq!(self.memory.large.out_count(), 0, "large frames kept");
    }
}

/// An ARP message from a station.
pub(super) fn arp(message: &arp::Packet, to: MacAddr) -> Vec<u8> {
    let mut bytes = vec![0; arp::LEN];
    message.emit(&mut bytes);
    frame(message.sender_mac, to, EtherType::ARP, &bytes)
}

pub(super) fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(v4) => v4,
        IpAddr::V6(_) => panic!("an IPv4 address"),
    }
}

pub(super) fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V6(v6) => v6,
        IpAddr::V4(_) => panic!("an IPv6 address"),
    }
}
