//! Target: a whole stack that receives arbitrary frames with arbitrary virtio-net headers over
//! time.
//!
//! Goal, besides no panic: frames that the stack sends to a device without offloads are correct, as
//! judged by an oracle that shares no code with it. When the stack is dropped, all its packets are
//! returned.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use towpath_net::gso::UDP_SEGMENTS_MAX;
use towpath_net::stack::{Address, Config, Context, Limits, Stack, Unreachable};
use towpath_net::tcp::{Events, Settings};
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Caps, Ledger, Memory, VirtioHeader};
use towpath_sim::oracle;

use crate::input::Input;
use crate::packets;

/// Most steps of one input.
const STEPS_MAX: usize = 64;
/// Most bursts in answer to one step. More would mean that the stack answers itself.
const BURSTS_MAX: usize = 1000;
/// MTU of the device.
const MTU: u16 = 1500;
/// Payload of a datagram that fits the device, over IPv6.
const SEGMENT_BYTES_MAX: usize = MTU as usize - 40 - 8;
/// Low, so that inputs reach the bounds.
const LIMITS: Limits =
    Limits { connections: 8, half_open: 4, orphans: 4, time_wait: 4, datagrams: 4 };

/// The stack's address; the stored frames are sent to it.
const LOCAL_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// The stack's IPv6 address.
const LOCAL_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

/// Reads one byte of configuration, then runs steps: a byte selects each, and its arguments follow.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut owner = Owner::new(input.u8());
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        owner.step(&mut input);
        owner.drain();
        owner.transmit();
    }
    let Owner { memory, stack, .. } = owner;
    drop(stack);
    packets::check_returned(memory);
}

/// A stack and its owner.
struct Owner {
    stack: Stack,
    memory: Memory,
    ledger: Ledger,
    now: Instant,
    /// True if the device has no offloads, so that the oracle can judge frames.
    plain: bool,
    /// How incoming connections and datagrams are handled.
    kind: u8,
}

impl Owner {
    fn new(configuration: u8) -> Self {
        let plain = configuration & 1 == 0;
        let caps = match plain {
            true => Caps::plain(MTU),
            false => Caps {
                checksum: true,
                tso4: true,
                tso6: true,
                uso: true,
                gso_bytes_max: 65_549,
                ..Caps::plain(MTU)
            },
        };
        let mut stack = Stack::new(config(configuration & 2 != 0), caps);
        if configuration & 4 != 0 {
            let mac = MacAddr([2, 0, 0, 0, 0, 1]);
            stack.set_neighbor(Ipv4Addr::new(192, 0, 2, 1).into(), mac);
            stack.set_neighbor(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(), mac);
        }
        stack.tcp_listen(SocketAddr::new(LOCAL_V4.into(), 80));
        stack.tcp_listen(SocketAddr::new(LOCAL_V6.into(), 80));
        Self {
            stack,
            memory: packets::memory(),
            ledger: Ledger::new(),
            now: Instant::START,
            plain,
            kind: configuration >> 3,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 8 {
            0 => {
                self.now += Duration::from_micros(u64::from(input.u32()));
                let mut cx = context(&mut self.memory, &self.ledger, self.now);
                self.stack.on_deadline(&mut cx);
                let next = self.stack.next_deadline();
                assert!(next.is_none_or(|at| at > self.now), "a deadline was not served");
            }
            1 => {
                let port = input.u16();
                let remote = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), port);
                let local = SocketAddr::new(LOCAL_V4.into(), 4000);
                let _ = self.stack.tcp_connect(local, remote, self.now);
            }
            2 => self.send_datagram(input),
            3 => {
                let frame = input.counted();
                self.receive([0; VirtioHeader::LEN], frame);
            }
            _ => {
                let header = input.array();
                let frame = input.counted();
                self.receive(header, frame);
            }
        }
    }

    fn receive(&mut self, header: [u8; VirtioHeader::LEN], frame: &[u8]) {
        // A device drops frames without a whole Ethernet header or with a header that it cannot
        // decode.
        let Ok(offload) = VirtioHeader(header).decode() else { return };
        let Some(mut packet) = packets::received(&mut self.memory, frame) else { return };
        packet.set_offload(offload);
        let mut burst = Burst::new();
        burst.push(packet).expect("the burst is empty");
        let mut cx = context(&mut self.memory, &self.ledger, self.now);
        self.stack.input(&mut burst, &mut cx);
        assert!(burst.is_empty(), "a stack takes all packets");
    }

    fn send_datagram(&mut self, input: &mut Input<'_>) {
        let segment_size = std::num::NonZeroU16::new(input.u16());
        let len = usize::from(input.u16());
        let (remote, local): (IpAddr, IpAddr) = match input.u8() % 2 {
            0 => (Ipv4Addr::new(192, 0, 2, 1).into(), LOCAL_V4.into()),
            _ => (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(), LOCAL_V6.into()),
        };
        let bytes = vec![0x5a; len];
        let Some(packet) = packets::parsed(&mut self.memory, &[], &bytes, 16 << 10) else {
            return;
        };
        // The caller must pass datagrams that fit the device, and not too many at once.
        let segment_size = segment_size.filter(|size| {
            let size = usize::from(size.get());
            size <= SEGMENT_BYTES_MAX && len.div_ceil(size) <= UDP_SEGMENTS_MAX
        });
        let (local, remote) = (SocketAddr::new(local, 53), SocketAddr::new(remote, 9));
        let mut cx = context(&mut self.memory, &self.ledger, self.now);
        self.stack.udp_send(packet, local, remote, segment_size, &mut cx);
    }

    /// Handles the stack's events.
    fn drain(&mut self) {
        while let Some((handle, events)) = self.stack.next_event() {
            let mut cx = context(&mut self.memory, &self.ledger, self.now);
            if events.contains(Events::INCOMING) && self.kind & 1 != 0 {
                self.stack.tcp_refuse(handle, &mut cx);
                continue;
            }
            self.stack.with_tcp(handle, self.now, |connection| {
                if events.contains(Events::INCOMING) {
                    connection.accept();
                }
                let received = connection.received_len();
                connection.consume(received);
                if events.contains(Events::PEER_CLOSED) {
                    connection.close_send();
                }
            });
            if events.contains(Events::CLOSED) {
                self.stack.tcp_release(handle, self.now);
            }
        }
        while let Some(datagram) = self.stack.next_datagram() {
            let mut cx = context(&mut self.memory, &self.ledger, self.now);
            if self.kind & 2 != 0 {
                let why = UNREACHABLE[usize::from(self.kind >> 2) % UNREACHABLE.len()];
                self.stack.udp_unreachable(datagram.local, datagram.remote, why, &mut cx);
            }
        }
        while let Some(echo) = self.stack.next_echo() {
            let mut cx = context(&mut self.memory, &self.ledger, self.now);
            self.stack.echo_reply(echo.into(), &mut cx);
        }
    }

    /// Takes and checks the packets that the stack sends.
    fn transmit(&mut self) {
        let mut burst = Burst::new();
        for _ in 0..BURSTS_MAX {
            let mut cx = context(&mut self.memory, &self.ledger, self.now);
            self.stack.output(&mut burst, &mut cx);
            if burst.is_empty() {
                return;
            }
            while let Some(packet) = burst.pop() {
                let frame = oracle::flatten(&packet);
                if self.plain
                    && let Err(problem) = oracle::check_frame(&frame, MTU.into())
                {
                    panic!("{problem} in {:02x?}", &frame[..frame.len().min(128)]);
                }
            }
        }
        panic!("the stack sends without end");
    }
}

/// Errors that may answer a datagram.
const UNREACHABLE: [Unreachable; 5] = [
    Unreachable::Network,
    Unreachable::Host,
    Unreachable::Port,
    Unreachable::Prohibited,
    Unreachable::TooBig(1300),
];

fn context<'a>(memory: &'a mut Memory, ledger: &'a Ledger, now: Instant) -> Context<'a> {
    Context { memory, ledger, now }
}

fn config(transparent: bool) -> Config {
    let address = |address, prefix_len| Address { address, prefix_len };
    Config {
        mac: MacAddr([2, 0, 0, 0, 0, 2]),
        addresses: vec![address(LOCAL_V4.into(), 24), address(LOCAL_V6.into(), 64)],
        next_hops: vec![
            Ipv4Addr::new(192, 0, 2, 1).into(),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        ],
        transparent,
        secret: [1, 2],
        tcp: Settings::default(),
        limits: LIMITS,
    }
}
