//! A network of guests for tests of the services: frames go in at ports, answers come out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::wire::dhcpv4::{self, MessageType};
use super::wire::dhcpv6;
use towpath_net::stack::Context;
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;
use towpath_packet::pool::{Frame, MemoryConfig};
use towpath_packet::{Burst, Checksum, Ledger, Memory, Packet, Site};

use super::config::{Config, Disabled, Ipv4, Ipv6, LEASE_TIME_DEFAULT};
use super::frame::{self, Envelope, Request};
use super::{Services, link_local};

pub(super) const GATEWAY_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
pub(super) const DNS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
pub(super) const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
pub(super) const DNS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);

pub(super) fn config() -> Config {
    Config {
        mac: GATEWAY_MAC,
        mtu: 1400,
        domain: Some("lan.example".parse().unwrap()),
        search: vec!["lan.example".parse().unwrap(), "example".parse().unwrap()],
        ipv4: Some(Ipv4 {
            gateway: GATEWAY,
            network: GATEWAY,
            prefix_len: 24,
            dns: vec![DNS],
            pool: [10, 0, 2, 10].into()..=[10, 0, 2, 99].into(),
        }),
        ipv6: Some(Ipv6 {
            gateway: GATEWAY6,
            network: GATEWAY6,
            prefix_len: 64,
            dns: vec![DNS6],
            autonomous: true,
            pool: Some(
                Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x1000)
                    ..=Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x1fff),
            ),
        }),
        hosts: vec![("gateway".parse().unwrap(), GATEWAY.into())],
        lease_time: LEASE_TIME_DEFAULT,
        leases_per_port_max: 4,
        disabled: Disabled::default(),
        seed: 1,
    }
}

/// A guest: its port and its address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vm(pub(super) u32, pub(super) MacAddr);

pub(super) fn vm(number: u8) -> Vm {
    Vm(number.into(), MacAddr([2, 0, 0, 0, 1, number]))
}

/// An answer as it is on the wire.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) to_mac: MacAddr,
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) ports: (u16, u16),
    pub(super) payload: Vec<u8>,
}

pub(super) struct Bench {
    pub(super) services: Services,
    pub(super) now: Instant,
    memory: Memory,
    held: Vec<Frame>,
    ledger: Ledger,
}

impl Bench {
    pub(super) fn new(config: Config) -> Self {
        let memory = Memory::new(MemoryConfig { packets: 64, small_frames: 64, large_frames: 4 });
        let now = Instant::START + Duration::from_secs(1000);
        Self {
            services: Services::new(config),
            now,
            memory,
            held: Vec::new(),
            ledger: Ledger::new(),
        }
    }

    /// Leaves `count` small frames free for the rest of the test.
    pub(super) fn hold_all_frames_but(&mut self, count: usize) {
        while self.memory.small.free_count() > count {
            self.held.push(self.memory.small.take().expect("one is free"));
        }
    }

    pub(super) fn pass(&mut self, time: Duration) -> &mut Self {
        self.now += time;
        self
    }

    /// Returns the frame of a message, as guests send it.
    pub(super) fn frame(&mut self, envelope: &Envelope, payload: &[u8]) -> Vec<u8> {
        let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now: self.now };
        let mut burst = Burst::new();
        assert!(frame::send(envelope, &mut payload.to_vec(), &mut cx, &mut burst));
        bytes_of(&burst.pop().unwrap())
    }

    /// Passes in a frame; returns whether the services took it, and the answers.
    pub(super) fn input(&mut self, port: u32, frame: &[u8]) -> (bool, Vec<Answer>) {
        let mut packet = self.memory.packet().unwrap();
        for chunk in frame.chunks(2048) {
            let mut memory = self.memory.small.take().unwrap();
            memory[..chunk.len()].copy_from_slice(chunk);
            packet.push_piece(memory.freeze(chunk.len())).expect("few pieces");
        }
        let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now: self.now };
        let mut burst = Burst::new();
        let taken = self.services.intercept(port, &mut packet, &mut cx, &mut burst);
        assert!(packet.peek_headers().len() <= frame.len(), "the stack can peek the packet again");
        drop(packet);
        (taken, answers(&mut burst))
    }

    /// Serves the deadline, which must be due, or the shutdown.
    pub(super) fn advertised(&mut self, shut_down: bool) -> Vec<Answer> {
        let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now: self.now };
        let mut burst = Burst::new();
        if shut_down {
            self.services.shut_down(&mut cx, &mut burst);
        } else {
            self.services.on_deadline(&mut cx, &mut burst);
        }
        answers(&mut burst)
    }

    /// Broadcasts a DHCP message of a guest.
    pub(super) fn dhcpv4(&mut self, vm: Vm, message: &dhcpv4::Message) -> Option<dhcpv4::Message> {
        let answer = self.dhcpv4_answer(vm, message)?;
        assert_eq!((answer.from, answer.ports), (GATEWAY.into(), (67, 68)));
        Some(dhcpv4::Message::parse(&answer.payload).unwrap())
    }

    pub(super) fn dhcpv4_answer(&mut self, vm: Vm, message: &dhcpv4::Message) -> Option<Answer> {
        let envelope = Envelope {
            mac: vm.1,
            to_mac: MacAddr::BROADCAST,
            source: message.client_address.into(),
            destination: Ipv4Addr::BROADCAST.into(),
            ports: Some((68, 67)),
        };
        let frame = self.frame(&envelope, &message.emit(1000));
        let (taken, mut answers) = self.input(vm.0, &frame);
        assert!(taken && answers.len() <= 1, "{answers:?}");
        answers.pop()
    }

    /// Sends a message of DHCP for IPv6.
    pub(super) fn dhcpv6(&mut self, vm: Vm, message: &dhcpv6::Message) -> Option<dhcpv6::Message> {
        let envelope = Envelope {
            mac: vm.1,
            to_mac: frame::group_mac(dhcpv6::ALL_SERVERS),
            source: link_local(vm.1).into(),
            destination: dhcpv6::ALL_SERVERS.into(),
            ports: Some((546, 547)),
        };
        let frame = self.frame(&envelope, &message.emit(1000));
        let (taken, mut answers) = self.input(vm.0, &frame);
        assert!(taken && answers.len() <= 1, "{answers:?}");
        let answer = answers.pop()?;
        assert_eq!((answer.to_mac, answer.to), (vm.1, link_local(vm.1).into()));
        assert_eq!((answer.from, answer.ports), (link_local(GATEWAY_MAC).into(), (547, 546)));
        Some(dhcpv6::Message::parse(&answer.payload).unwrap())
    }
}

fn answers(burst: &mut Burst) -> Vec<Answer> {
    let mut answers = Vec::new();
    while let Some(packet) = burst.pop() {
        let frame = bytes_of(&packet);
        // Parsing checks lengths and checksums.
        let request = Request::parse(&frame, Checksum::None).expect("a valid frame");
        assert_eq!(request.mac, GATEWAY_MAC);
        answers.push(Answer {
            to_mac: request.destination_mac,
            from: request.source,
            to: request.destination,
            ports: (request.source_port, request.destination_port),
            payload: request.payload.to_vec(),
        });
    }
    answers
}

fn bytes_of(packet: &Packet) -> Vec<u8> {
    let mut bytes = packet.headers().to_vec();
    for piece in packet.pieces() {
        let from = bytes.len();
        bytes.resize(from + piece.len(), 0);
        Ledger::new().copy(Site::Linearise, piece, &mut bytes[from..]);
    }
    bytes
}

/// Returns a message of a client with these options.
pub(super) fn message(vm: Vm, kind: MessageType, options: &[(u8, &[u8])]) -> dhcpv4::Message {
    let mut set = dhcpv4::Options::default();
    set.set(dhcpv4::option::MESSAGE_TYPE, &[kind as u8]);
    options.iter().for_each(|(code, value)| set.set(*code, value));
    dhcpv4::Message {
        is_reply: false,
        hops: 0,
        transaction_id: 0x0102_0304,
        elapsed_s: 0,
        broadcast: false,
        client_address: Ipv4Addr::UNSPECIFIED,
        your_address: Ipv4Addr::UNSPECIFIED,
        next_server: Ipv4Addr::UNSPECIFIED,
        relay: Ipv4Addr::UNSPECIFIED,
        client_mac: vm.1,
        options: set,
    }
}
