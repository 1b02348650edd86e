//! Target: messages of guests to the services of a network, in any order and over time: DHCP,
//! DHCPv6, DNS queries, router solicitations, and arbitrary frames.
//!
//! Goal: each answer is a correct frame, as judged by an oracle that shares no code with the
//! services. Stored leases are read back unchanged. All memory is returned.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use towpath_gateway::services::{Config, Disabled, Ipv4, Ipv6, LEASE_TIME_MIN, Services};
use towpath_net::stack::Context;
use towpath_net::time::Instant;
use towpath_net::wire::{MacAddr, Protocol, ipv4, ipv6, udp};
use towpath_packet::{Burst, Checksum, Ledger, Memory, Packet};
use towpath_sim::oracle;

use crate::input::Input;
use crate::packets;

/// Most steps of one input.
const STEPS_MAX: usize = 64;
const MTU: u16 = 1500;
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const DNS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const DNS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);
/// All DHCPv6 servers and relay agents (RFC 8415 §7.1), and all routers (RFC 4291 §2.7.1).
const SERVERS6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const ROUTERS6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Longest message.
const PAYLOAD_BYTES_MAX: usize = 1400;

/// Runs steps: a byte selects each, and its arguments follow.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut net = Net {
        services: Services::new(config(input.u8())),
        memory: packets::memory(),
        ledger: Ledger::new(),
        now: Instant::START + Duration::from_secs(1000),
    };
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        net.step(&mut input);
    }
    net.check_leases();
    packets::check_returned(net.memory);
}

/// Few addresses, so that inputs exhaust them.
fn config(seed: u8) -> Config {
    let name = |text: &str| text.parse().expect("a domain name");
    Config {
        mac: MAC,
        mtu: MTU,
        domain: Some(name("lan.example")),
        search: vec![name("lan.example"), name("example")],
        ipv4: Some(Ipv4 {
            gateway: GATEWAY,
            network: GATEWAY,
            prefix_len: 24,
            dns: vec![DNS],
            pool: [10, 0, 2, 10].into()..=[10, 0, 2, 15].into(),
        }),
        ipv6: Some(Ipv6 {
            gateway: GATEWAY6,
            network: GATEWAY6,
            prefix_len: 64,
            dns: vec![DNS6],
            autonomous: true,
            pool: Some(address6(0x1000)..=address6(0x1003)),
        }),
        hosts: vec![(name("gateway"), GATEWAY.into())],
        lease_time: LEASE_TIME_MIN,
        leases_per_port_max: 2,
        disabled: Disabled::default(),
        seed: seed.into(),
    }
}

fn address6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)
}

struct Net {
    services: Services,
    memory: Memory,
    ledger: Ledger,
    now: Instant,
}

impl Net {
    fn step(&mut self, input: &mut Input<'_>) {
        let kind = input.u8();
        let guest = input.u8() % 4;
        match kind % 8 {
            0 => self.send_v4(guest, (68, 67), Ipv4Addr::BROADCAST, input),
            1 => self.send_v4(guest, (5353, 53), DNS, input),
            2 => self.send_v6(guest, Some((546, 547)), SERVERS6, input),
            3 => self.send_v6(guest, Some((5353, 53)), DNS6, input),
            4 => self.send_v6(guest, None, ROUTERS6, input),
            5 => {
                let bytes = input.counted();
                if let Some(packet) = packets::received(&mut self.memory, bytes) {
                    self.input(guest, packet);
                }
            }
            6 => {
                self.now += Duration::from_secs(u64::from(input.u8()) * 10);
                self.answer(|services, cx, replies| services.on_deadline(cx, replies));
            }
            _ => self.services.forget_port(guest.into()),
        }
    }

    fn send_v4(&mut self, guest: u8, ports: (u16, u16), to: Ipv4Addr, input: &mut Input<'_>) {
        let from = Ipv4Addr::from(u32::from(DNS) + u32::from(input.u8()));
        let header = ipv4::Header {
            tos: 0,
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: Protocol::UDP,
            source: if ports.0 == 68 { Ipv4Addr::UNSPECIFIED } else { from },
            destination: to,
            total_len: 0,
            header_len: ipv4::HEADER_LEN as u8,
            has_source_route: false,
        };
        let datagram = datagram(ports, input);
        let total_len = (ipv4::HEADER_LEN + datagram.len()) as u16;
        let mut ip = vec![0; ipv4::HEADER_LEN];
        ipv4::Header { total_len, ..header }.emit(&mut ip);
        self.send(guest, [0x08, 0x00], &ip, &datagram);
    }

    fn send_v6(
        &mut self,
        guest: u8,
        ports: Option<(u16, u16)>,
        to: Ipv6Addr,
        input: &mut Input<'_>,
    ) {
        let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, u16::from(input.u8()));
        let message = match ports {
            Some(ports) => datagram(ports, input),
            None => payload(input).to_vec(),
        };
        let header = ipv6::Header {
            traffic_class: 0,
            flow_label: 0,
            payload_len: message.len() as u16,
            next_header: if ports.is_some() { Protocol::UDP } else { Protocol::ICMPV6 },
            hop_limit: 255,
            source: if to == DNS6 { address6(0x2000) } else { from },
            destination: to,
        };
        let mut ip = vec![0; ipv6::HEADER_LEN];
        header.emit(&mut ip);
        self.send(guest, [0x86, 0xdd], &ip, &message);
    }

    fn send(&mut self, guest: u8, ethertype: [u8; 2], ip: &[u8], message: &[u8]) {
        let macs = [MAC.0, [2, 0, 0, 0, 1, guest]].concat();
        let frame = [&macs, &ethertype[..], ip, message].concat();
        let Some(mut packet) = packets::received(&mut self.memory, &frame) else { return };
        let mut offload = *packet.offload();
        offload.checksum = Checksum::Unnecessary;
        packet.set_offload(offload);
        self.input(guest, packet);
    }

    fn input(&mut self, guest: u8, mut packet: Packet) {
        self.answer(|services, cx, replies| {
            services.intercept(guest.into(), &mut packet, cx, replies);
        });
    }

    fn answer(&mut self, act: impl FnOnce(&mut Services, &mut Context<'_>, &mut Burst)) {
        let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now: self.now };
        let mut replies = Burst::new();
        act(&mut self.services, &mut cx, &mut replies);
        assert!(replies.len() <= 1, "{} answers to one message", replies.len());
        while let Some(reply) = replies.pop() {
            let frame = oracle::flatten(&reply);
            if let Err(problem) = oracle::check_frame(&frame, MTU.into()) {
                panic!("{problem}: {frame:02x?}");
            }
        }
    }

    /// Checks that stored leases are read back unchanged, whatever names guests have.
    fn check_leases(&self) {
        let wall = Duration::from_secs(1_700_000_000);
        let text = self.services.leases(self.now, wall);
        let mut again = Services::new(config(0));
        let restored = again.restore(&text, self.now, wall);
        assert_eq!((restored.unusable, restored.elsewhere), (0, 0), "{text}");
        assert_eq!(restored.taken + restored.over, text.lines().count(), "{text}");
        if restored.over == 0 {
            assert_eq!(again.leases(self.now, wall), text);
        }
    }
}

fn payload<'a>(input: &mut Input<'a>) -> &'a [u8] {
    let bytes = input.counted();
    &bytes[..bytes.len().min(PAYLOAD_BYTES_MAX)]
}

fn datagram((source_port, destination_port): (u16, u16), input: &mut Input<'_>) -> Vec<u8> {
    let payload = payload(input);
    let length = (udp::HEADER_LEN + payload.len()) as u16;
    let header = udp::Header { source_port, destination_port, length, checksum: 0 };
    let mut bytes = vec![0; udp::HEADER_LEN];
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}
