//! Two stacks in one thread that pass packets to each other, without a clock, threads or a device.
//! The same calls always take the same instructions, so these can be counted.
//!
//! The client sends, call by call. After each call, packets travel until none are left, and the
//! server discards the data. Time advances by a fixed step per exchange.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use towpath_net::fragment::into_received;
use towpath_net::socket::{
    Borrower, Error, Family, LentCall, ReadMost, SendFlags, SendTo, SocketId, Sockets,
};
use towpath_net::stack::{Address, Config, Context, Limits, Stack};
use towpath_net::tcp::Settings;
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;
use towpath_packet::packet::PIECES_MAX;
use towpath_packet::{Burst, Caps, Ledger, Loans, Memory, MemoryConfig, ReceivedPiece};

use super::datagrams::DATAGRAM_BYTES;

/// The work to run, as text: `WAY,BYTES,CALLS`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Harness {
    pub(super) way: Way,
    /// Bytes of a call.
    pub(super) bytes: usize,
    pub(super) calls: usize,
}

/// How to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Lend, in super-packets.
    Lend,
    /// Copy, in super-packets.
    Copy,
    /// Copy, with a separate packet for each call.
    Plain,
    /// Lend as a datagram, or as datagrams of 1472 bytes if it is longer than one.
    UdpLend,
    /// Copy as a datagram, or as datagrams of 1472 bytes if it is longer than one.
    UdpCopy,
}

impl FromStr for Harness {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let words: Vec<_> = text.split(',').collect();
        let &[way, bytes, calls] = &words[..] else { bail!("expected WAY,BYTES,CALLS") };
        let way = Way::ALL.into_iter().find(|known| known.name() == way);
        Ok(Self { way: way.context("unknown WAY")?, bytes: bytes.parse()?, calls: calls.parse()? })
    }
}

impl Way {
    const ALL: [Self; 5] = [Self::Lend, Self::Copy, Self::Plain, Self::UdpLend, Self::UdpCopy];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Lend => "lend",
            Self::Copy => "copy",
            Self::Plain => "plain",
            Self::UdpLend => "udp_lend",
            Self::UdpCopy => "udp_copy",
        }
    }

    /// True if the bytes are lent.
    fn lends(self) -> bool {
        matches!(self, Self::Lend | Self::UdpLend)
    }

    /// True if the bytes are sent as datagrams.
    fn is_udp(self) -> bool {
        matches!(self, Self::UdpLend | Self::UdpCopy)
    }

    fn caps(self) -> Caps {
        let whole = self != Self::Plain;
        let gso_bytes_max = if whole { 14 + u32::from(u16::MAX) } else { 0 };
        let whole = Caps { tso4: whole, tso6: whole, uso: whole, ..Caps::plain(MTU) };
        Caps { checksum: true, gso_bytes_max, ..whole }
    }
}

/// Bytes of a call that fills a packet: [`MTU`] less the headers of IPv4 and TCP and the timestamps
/// option.
pub(super) const PLAIN_BYTES: usize = MTU as usize - 20 - 20 - 12;
const MTU: u16 = 1500;

impl Harness {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut rig = if self.way.is_udp() {
            Rig::of_datagrams(self.way.caps())
        } else {
            Rig::of_streams(self.way.caps())
        }?;
        let buffer = Arc::new(vec![0x5a; self.bytes]);
        for call in 0..self.calls {
            rig.call(&buffer, self.way)?;
            if call % CALLS_UNTIL_LOOK == 0 {
                rig.take_notices();
            }
        }
        let sent = (self.bytes * self.calls) as u64;
        for _ in 0..WAITS_MAX {
            rig.take_notices();
            if rig.received == sent {
                break;
            }
            rig.exchange()?;
        }
        ensure!(rig.received == sent, "{sent} bytes were sent, {} received", rig.received);
        Ok(())
    }
}

const SERVER: usize = 0;
const CLIENT: usize = 1;

struct Rig {
    hosts: [Sockets; 2],
    /// Sockets at both ends of the connection, by host.
    ends: [SocketId; 2],
    memory: Memory,
    ledger: Ledger,
    loans: Loans,
    now: Instant,
    received: u64,
    /// Whether the sockets are UDP sockets.
    datagrams: bool,
    /// Pieces of a datagram, which are dropped.
    held: Vec<ReceivedPiece>,
    /// Packets in transit.
    sent: Burst,
    arrived: Burst,
}

impl Rig {
    fn new(hosts: [Sockets; 2], ends: [SocketId; 2]) -> Self {
        Self {
            hosts,
            ends,
            memory: Memory::new(MemoryConfig::within(MEMORY_BYTES)),
            ledger: Ledger::new(),
            loans: Loans::new(LOANS),
            now: Instant::START,
            received: 0,
            datagrams: false,
            held: Vec::new(),
            sent: Burst::new(),
            arrived: Burst::new(),
        }
    }

    /// Two hosts with a datagram socket each; the client's socket is connected to the server's.
    fn of_datagrams(caps: Caps) -> anyhow::Result<Self> {
        let mut hosts = [host(SERVER, caps), host(CLIENT, caps)];
        let server = hosts[SERVER].datagram(Family::V4).map_err(reported)?;
        let client = hosts[CLIENT].datagram(Family::V4).map_err(reported)?;
        let at = SocketAddr::new(address(SERVER), PORT);
        hosts[SERVER].bind(server, at).map_err(reported)?;
        hosts[CLIENT].connect(client, at, Instant::START).map_err(reported)?;
        Ok(Self { datagrams: true, ..Self::new(hosts, [server, client]) })
    }

    /// Two hosts with a connection.
    fn of_streams(caps: Caps) -> anyhow::Result<Self> {
        let mut hosts = [host(SERVER, caps), host(CLIENT, caps)];
        let listener = hosts[SERVER].stream(Family::V4).map_err(reported)?;
        let client = hosts[CLIENT].stream(Family::V4).map_err(reported)?;
        let mut rig = Self::new(hosts, [listener, client]);
        let (at, now) = (SocketAddr::new(address(SERVER), PORT), rig.now);
        rig.hosts[SERVER].bind(listener, at).map_err(reported)?;
        rig.hosts[SERVER].listen(listener, 1, now).map_err(reported)?;
        match rig.hosts[CLIENT].connect(client, at, now) {
            Ok(()) | Err(Error::InProgress) => {}
            Err(error) => return Err(reported(error)),
        }
        while rig.carry(CLIENT)? | rig.carry(SERVER)? {}
        rig.ends[SERVER] = rig.hosts[SERVER].accept(listener, now).map_err(reported)?.0;
        rig.hosts[CLIENT].connect(client, at, now).map_err(reported)?;
        Ok(rig)
    }

    /// Sends all of a buffer.
    fn call(&mut self, buffer: &Arc<Vec<u8>>, way: Way) -> anyhow::Result<()> {
        let (mut at, mut call, mut waited) = (0, LentCall::default(), 0);
        while at < buffer.len() {
            let flags = SendFlags { continues: at > 0, ..SendFlags::default() };
            let sent = match (way.is_udp(), way.lends()) {
                (false, true) => self.lend(buffer, at, &mut call, flags),
                (false, false) => self.copy(&buffer[at..], flags),
                (true, true) => self.lend_datagrams(buffer, at, &mut call),
                (true, false) => self.copy_datagrams(&buffer[at..]),
            };
            match sent {
                Ok(sent) => (at, waited) = (at + sent, 0),
                Err(Error::WouldBlock) if waited < WAITS_MAX => waited += 1,
                Err(error) => return Err(reported(error)),
            }
            self.exchange()?;
        }
        Ok(())
    }

    fn copy(&mut self, bytes: &[u8], flags: SendFlags) -> Result<usize, Error> {
        let Self { hosts, ends, memory, ledger, now, .. } = self;
        let mut cx = Context { memory, ledger, now: *now };
        hosts[CLIENT].send(ends[CLIENT], &[bytes], flags, &mut cx)
    }

    fn copy_datagrams(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let Self { hosts, ends, memory, ledger, now, .. } = self;
        let mut cx = Context { memory, ledger, now: *now };
        let send = send_of(bytes.len());
        let most = hosts[CLIENT].datagrams_max(ends[CLIENT], &send)?.min(bytes.len());
        hosts[CLIENT].send_datagram(ends[CLIENT], &[&bytes[..most]], &send, &mut cx)
    }

    fn lend_datagrams(
        &mut self,
        buffer: &Arc<Vec<u8>>,
        from: usize,
        call: &mut LentCall,
    ) -> Result<usize, Error> {
        let Self { hosts, ends, memory, ledger, loans, now, .. } = self;
        let total = buffer.len() - from;
        let lend = |at: usize, most: usize, Borrower { lender, token }: Borrower| {
            let len = most.min(total - at);
            loans.lend_shared(buffer, (from + at, len as u32), lender, token)
        };
        let (mut cx, send) = (Context { memory, ledger, now: *now }, send_of(buffer.len()));
        hosts[CLIENT].send_lent_datagrams(ends[CLIENT], call, total, &send, lend, &mut cx)
    }

    fn lend(
        &mut self,
        buffer: &Arc<Vec<u8>>,
        mut at: usize,
        call: &mut LentCall,
        flags: SendFlags,
    ) -> Result<usize, Error> {
        let Self { hosts, ends, memory, ledger, loans, now, .. } = self;
        let total = buffer.len() - at;
        let lend = |room: usize, Borrower { lender, token }: Borrower| {
            let len = room.min(buffer.len() - at);
            let piece = loans.lend_shared(buffer, (at, len as u32), lender, token)?;
            at += len;
            Some(piece)
        };
        let mut cx = Context { memory, ledger, now: *now };
        hosts[CLIENT].send_lent(ends[CLIENT], call, total, flags, lend, &mut cx)
    }

    /// Lets packets travel until none are left.
    fn exchange(&mut self) -> anyhow::Result<()> {
        self.now += STEP;
        for host in [CLIENT, SERVER] {
            let Self { hosts, memory, ledger, now, .. } = self;
            if hosts[host].stack().next_deadline().is_some_and(|at| at <= *now) {
                hosts[host].on_deadline(&mut Context { memory, ledger, now: *now });
            }
        }
        loop {
            let mut moved = self.carry(CLIENT)?;
            self.receive();
            moved |= self.carry(SERVER)?;
            if !moved {
                return Ok(());
            }
        }
    }

    /// Discards the data that the server has received.
    fn receive(&mut self) {
        let Self { hosts, ends, memory, ledger, now, held, received, datagrams, .. } = self;
        let (server, end) = (&mut hosts[SERVER], ends[SERVER]);
        if !*datagrams {
            while let Ok(count @ 1..) = server.discard(end, usize::MAX, *now) {
                *received += count as u64;
            }
            return;
        }
        let mut cx = Context { memory, ledger, now: *now };
        while let Ok(datagram) = server.receive_datagram_lent(end, &WHOLE, held, &mut cx) {
            *received += datagram.len as u64;
            held.clear();
        }
    }

    /// Moves a burst from one host to the other. False if there was none.
    fn carry(&mut self, from: usize) -> anyhow::Result<bool> {
        let Self { hosts, memory, ledger, now, sent, arrived, .. } = self;
        hosts[from].output(sent, &mut Context { memory, ledger, now: *now });
        let moved = !sent.is_empty();
        while let Some(packet) = sent.pop() {
            let packet =
                into_received(packet, memory).map_err(|_| anyhow!("no memory for a packet"))?;
            arrived.push(packet).map_err(|_| anyhow!("a burst is larger than another"))?;
        }
        if moved {
            hosts[1 - from].input(arrived, &mut Context { memory, ledger, now: *now });
        }
        while hosts[from].next_wake().is_some() || hosts[1 - from].next_wake().is_some() {}
        Ok(moved)
    }

    fn take_notices(&mut self) {
        while self.hosts[CLIENT].take_notice(self.ends[CLIENT]).is_ok() {}
    }
}

fn host(host: usize, caps: Caps) -> Sockets {
    let config = Config {
        mac: mac(host),
        addresses: vec![Address { address: address(host), prefix_len: 24 }],
        next_hops: Vec::new(),
        transparent: false,
        secret: [1, host as u64],
        tcp: Settings::default(),
        limits: Limits::default(),
    };
    let mut stack = Stack::new(config, caps);
    stack.set_neighbor(address(1 - host), mac(1 - host));
    Sockets::new(stack)
}

fn address(host: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, host as u8 + 1))
}

fn mac(host: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, host as u8 + 1])
}

/// How a buffer of `bytes` bytes is sent as datagrams.
fn send_of(bytes: usize) -> SendTo {
    let cut = bytes > DATAGRAM_MAX;
    SendTo { segment_size: cut.then_some(DATAGRAM_BYTES), ..SendTo::default() }
}

fn reported(error: Error) -> anyhow::Error {
    anyhow!("the stack returned {error:?}")
}

/// Longer buffers are split into datagrams of [`DATAGRAM_BYTES`].
const DATAGRAM_MAX: usize = u16::MAX as usize - 28;
/// Reads a whole datagram.
const WHOLE: ReadMost = ReadMost { bytes: usize::MAX, pieces: PIECES_MAX, private: true };
const PORT: u16 = 80;
const MEMORY_BYTES: usize = 32 << 20;
/// More than a send buffer holds in loans of the smallest size.
const LOANS: usize = 16_384;
/// Time between two exchanges.
const STEP: Duration = Duration::from_micros(20);
/// Exchanges without progress: longer than a delayed ACK takes.
const WAITS_MAX: usize = 100_000;
const CALLS_UNTIL_LOOK: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_moves_all_bytes() {
        let udp =
            ["udp_lend", "udp_copy"].map(|way| [512, 4096, 1 << 20].map(|bytes| (way, bytes)));
        let tcp = [("lend", 512), ("lend", 1 << 20), ("copy", 65536), ("plain", 1448)];
        for (way, bytes) in tcp.into_iter().chain(udp.into_iter().flatten()) {
            let harness: Harness = format!("{way},{bytes},50").parse().unwrap();
            harness.run().unwrap();
        }
        assert!("lend,1".parse::<Harness>().is_err() && "lead,1,1".parse::<Harness>().is_err());
    }
}
