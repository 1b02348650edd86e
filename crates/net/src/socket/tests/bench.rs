//! Two hosts with sockets, and a link without loss or delay.

use crate::socket::{Error, Family, Readiness, ReceiveFlags, SendFlags, SocketId, Sockets};
use crate::stack::{Address, Config, Context, Limits, Stack};
use crate::tcp::Settings;
use crate::time::{Duration, Instant};
use crate::wire::MacAddr;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_packet::{Burst, Caps, Checksum, Ledger, Memory, MemoryConfig, Offload, Site};

/// The host that listens.
pub(super) const SERVER: usize = 0;
/// The host that connects.
pub(super) const CLIENT: usize = 1;

pub(super) fn v4(host: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, host as u8 + 1))
}

pub(super) fn v6(host: usize) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host as u16 + 1))
}

/// The server's address.
pub(super) fn at(port: u16) -> SocketAddr {
    SocketAddr::new(v4(SERVER), port)
}

/// Offset of the TCP flags in an IPv4 frame.
const TCP_FLAGS_AT: usize = 14 + 20 + 13;

pub(super) struct Bench {
    pub(super) hosts: [Sockets; 2],
    /// Memory of each host.
    pub(super) memory: [Memory; 2],
    ledger: Ledger,
    pub(super) now: Instant,
    /// Changes frames in transit.
    pub(super) damage: Option<fn(&mut Vec<u8>, u64)>,
    carried: u64,
    /// TCP segments with data: sender, payload bytes, PSH flag.
    pub(super) segments: Vec<(usize, usize, bool)>,
    /// The link marks the next packet with payload as copied.
    pub(super) marks_copied: bool,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::with_memory([MemoryConfig::within(16 << 20); 2])
    }

    pub(super) fn with_memory(memory: [MemoryConfig; 2]) -> Self {
        let mac = |host: usize| MacAddr([2, 0, 0, 0, 0, host as u8 + 1]);
        let host = |host: usize| {
            let address = |address| Address { address, prefix_len: 24 };
            let config = Config {
                mac: mac(host),
                addresses: vec![address(v4(host)), address(v6(host))],
                next_hops: Vec::new(),
                transparent: false,
                secret: [1, host as u64],
                tcp: Settings::default(),
                limits: Limits::default(),
            };
            let mut stack = Stack::new(config, Caps { checksum: true, ..Caps::plain(1500) });
            stack.set_neighbor(v4(1 - host), mac(1 - host));
            stack.set_neighbor(v6(1 - host), mac(1 - host));
            Sockets::new(stack)
        };
        Self {
            hosts: [host(SERVER), host(CLIENT)],
            memory: memory.map(Memory::new),
            ledger: Ledger::new(),
            now: Instant::START,
            damage: None,
            carried: 0,
            segments: Vec::new(),
            marks_copied: false,
        }
    }

    /// Moves packets until neither host has any.
    pub(super) fn settle(&mut self) {
        for turn in 0.. {
            assert!(turn < 1000, "packets are exchanged without end");
            let moved = self.carry(SERVER) | self.carry(CLIENT);
            if !moved {
                return;
            }
        }
    }

    fn carry(&mut self, from: usize) -> bool {
        let Self { hosts, memory, ledger, now, damage, carried, segments, marks_copied } = self;
        let (mut out, mut received) = (Burst::new(), Burst::new());
        hosts[from].output(&mut out, &mut Context { memory: &mut memory[from], ledger, now: *now });
        let memory = &mut memory[1 - from];
        let moved = !out.is_empty();
        while let Some(packet) = out.pop() {
            let mut bytes = packet.headers().to_vec();
            if packet.payload_len() > 0
                && let Some(flags) = bytes.get(TCP_FLAGS_AT)
            {
                segments.push((from, packet.payload_len(), flags & 0x08 != 0));
            }
            for piece in packet.pieces() {
                if core::mem::take(marks_copied) {
                    piece.mark_copied();
                }
                let start = bytes.len();
                bytes.resize(start + piece.len(), 0);
                ledger.copy(Site::Linearise, piece, &mut bytes[start..]);
            }
            let checksum = packet.offload().checksum;
            let mut offload = Offload { checksum, ..Offload::default() };
            if let Some(damage) = damage {
                *carried += 1;
                damage(&mut bytes, *carried);
                // Otherwise wrong checksums would hide the damage behind them.
                offload.checksum = Checksum::Unnecessary;
            }
            let mut frame = memory.small.take().expect("memory");
            frame[..bytes.len()].copy_from_slice(&bytes);
            let mut packet = memory.packet().expect("memory");
            packet.push_piece(frame.freeze(bytes.len())).expect("room");
            packet.set_offload(offload);
            received.push(packet).expect("room");
        }
        hosts[1 - from].input(&mut received, &mut Context { memory, ledger, now: *now });
        moved
    }

    /// Advances the clock and runs the timers that are due.
    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        for host in [SERVER, CLIENT] {
            self.with(host, |host, cx| host.on_deadline(cx));
        }
        self.settle();
    }

    /// Runs `act` on a host.
    pub(super) fn with<R>(
        &mut self,
        host: usize,
        act: impl FnOnce(&mut Sockets, &mut Context<'_>) -> R,
    ) -> R {
        let Self { hosts, memory, ledger, now, .. } = self;
        act(&mut hosts[host], &mut Context { memory: &mut memory[host], ledger, now: *now })
    }

    /// Bytes copied so far at a site.
    pub(super) fn copied_at(&self, site: Site) -> u64 {
        self.ledger.copied_at(site)
    }

    /// Payload bytes that both hosts took from or passed to programs.
    pub(super) fn carried(&self) -> u64 {
        self.ledger.carried()
    }

    /// Bytes of all frames.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory[SERVER].capacity_bytes()
    }

    /// Packets and frames in use.
    pub(super) fn in_use(&self) -> usize {
        let out = |memory: &Memory| {
            let Memory { packets, small, large } = memory;
            packets.out_count() + small.out_count() + large.out_count()
        };
        self.memory.iter().map(out).sum()
    }

    /// Sockets with events since the last call, and the events.
    pub(super) fn wakes(&mut self, host: usize) -> Vec<(SocketId, Readiness)> {
        core::iter::from_fn(|| self.hosts[host].next_wake()).collect()
    }

    pub(super) fn stream(&mut self, host: usize) -> SocketId {
        self.hosts[host].stream(Family::V4).expect("room")
    }

    /// A listening socket of the server.
    pub(super) fn listen(&mut self, port: u16, backlog: i32) -> SocketId {
        let id = self.stream(SERVER);
        self.hosts[SERVER].bind(id, at(port)).expect("free");
        self.hosts[SERVER].listen(id, backlog, self.now).expect("free");
        id
    }

    /// A socket of the client that has started to connect; the handshake is exchanged.
    pub(super) fn connecting(&mut self, port: u16) -> SocketId {
        let id = self.stream(CLIENT);
        assert_eq!(self.hosts[CLIENT].connect(id, at(port), self.now), Err(Error::InProgress));
        id
    }

    /// Both ends of a connection: server, client.
    pub(super) fn connected(&mut self) -> (SocketId, SocketId) {
        let listener = self.listen(80, 1);
        let client = self.connecting(80);
        self.settle();
        assert_eq!(self.hosts[CLIENT].connect(client, at(80), self.now), Ok(()));
        let (server, _) = self.hosts[SERVER].accept(listener, self.now).expect("a connection");
        self.hosts[SERVER].close(listener, self.now).expect("open socket");
        (server, client)
    }

    pub(super) fn send(&mut self, host: usize, id: SocketId, bytes: &[u8]) -> Result<usize, Error> {
        let Self { hosts, memory, ledger, now, .. } = self;
        let mut cx = Context { memory: &mut memory[host], ledger, now: *now };
        hosts[host].send(id, &[bytes], SendFlags::default(), &mut cx)
    }

    pub(super) fn receive(&mut self, host: usize, id: SocketId) -> Result<Vec<u8>, Error> {
        let Self { hosts, memory, ledger, now, .. } = self;
        let mut into = [0; 100];
        let mut cx = Context { memory: &mut memory[host], ledger, now: *now };
        let count = hosts[host].receive(id, &mut into, ReceiveFlags::default(), &mut cx)?;
        Ok(into[..count].to_vec())
    }
}
