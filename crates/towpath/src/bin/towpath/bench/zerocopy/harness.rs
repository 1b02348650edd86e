//! Two stacks in one thread, which hand each other their packets: no clock, no thread, no device.
//! The same calls take the same instructions, so that these can be counted.
//!
//! The client sends, call by call; after each, packets travel until there are none, and the server
//! drops what it receives. Time goes on by a fixed step for each exchange.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use towpath_net::fragment::into_received;
use towpath_net::socket::{Borrower, Error, Family, LentCall, SendFlags, SocketId, Sockets};
use towpath_net::stack::{Address, Config, Context, Limits, Stack};
use towpath_net::tcp::Settings;
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Caps, Ledger, Loans, Memory, MemoryConfig};

/// What is run: as text, `WAY,BYTES,CALLS`.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct Harness {
    pub(super) way: Way,
    /// Of a call.
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
    /// Copy, each call a packet of its own.
    Plain,
}

impl FromStr for Harness {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let words: Vec<_> = text.split(',').collect();
        let &[way, bytes, calls] = &words[..] else { bail!("WAY,BYTES,CALLS is expected") };
        let way = [Way::Lend, Way::Copy, Way::Plain].into_iter().find(|known| known.name() == way);
        Ok(Self { way: way.context("no such way")?, bytes: bytes.parse()?, calls: calls.parse()? })
    }
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Lend => "lend",
            Self::Copy => "copy",
            Self::Plain => "plain",
        }
    }

    fn caps(self) -> Caps {
        let whole = self != Self::Plain;
        let gso_bytes_max = if whole { 14 + u32::from(u16::MAX) } else { 0 };
        let whole = Caps { tso4: whole, tso6: whole, uso: whole, ..Caps::plain(MTU) };
        Caps { checksum: true, gso_bytes_max, ..whole }
    }
}

/// Bytes of a call that fills a packet: [`MTU`] without the headers of IPv4 and TCP and without
/// timestamps.
pub(super) const PLAIN_BYTES: usize = MTU as usize - 20 - 20 - 12;
const MTU: u16 = 1500;

impl Harness {
    pub(in crate::bench) fn run(self) -> anyhow::Result<()> {
        let mut rig = Rig::new(self.way.caps())?;
        let buffer = Arc::new(vec![0x5a; self.bytes]);
        for call in 0..self.calls {
            rig.call(&buffer, self.way == Way::Lend)?;
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
    /// Ends of the connection, by host.
    ends: [SocketId; 2],
    memory: Memory,
    ledger: Ledger,
    loans: Loans,
    now: Instant,
    received: u64,
    /// Packets on their way.
    sent: Burst,
    arrived: Burst,
}

impl Rig {
    /// Two hosts with a connection.
    fn new(caps: Caps) -> anyhow::Result<Self> {
        let mut hosts = [host(SERVER, caps), host(CLIENT, caps)];
        let listener = hosts[SERVER].stream(Family::V4).map_err(told)?;
        let client = hosts[CLIENT].stream(Family::V4).map_err(told)?;
        let mut rig = Self {
            hosts,
            ends: [listener, client],
            memory: Memory::new(MemoryConfig::within(MEMORY_BYTES)),
            ledger: Ledger::new(),
            loans: Loans::new(LOANS),
            now: Instant::START,
            received: 0,
            sent: Burst::new(),
            arrived: Burst::new(),
        };
        let (at, now) = (SocketAddr::new(address(SERVER), PORT), rig.now);
        rig.hosts[SERVER].bind(listener, at).map_err(told)?;
        rig.hosts[SERVER].listen(listener, 1, now).map_err(told)?;
        match rig.hosts[CLIENT].connect(client, at, now) {
            Ok(()) | Err(Error::InProgress) => {}
            Err(error) => return Err(told(error)),
        }
        while rig.carry(CLIENT)? | rig.carry(SERVER)? {}
        rig.ends[SERVER] = rig.hosts[SERVER].accept(listener, now).map_err(told)?.0;
        rig.hosts[CLIENT].connect(client, at, now).map_err(told)?;
        Ok(rig)
    }

    /// Sends all of a buffer.
    fn call(&mut self, buffer: &Arc<Vec<u8>>, lends: bool) -> anyhow::Result<()> {
        let (mut at, mut call, mut waited) = (0, LentCall::default(), 0);
        while at < buffer.len() {
            let flags = SendFlags { continues: at > 0, ..SendFlags::default() };
            let sent = match lends {
                true => self.lend(buffer, at, &mut call, flags),
                false => self.copy(&buffer[at..], flags),
            };
            match sent {
                Ok(sent) => (at, waited) = (at + sent, 0),
                Err(Error::WouldBlock) if waited < WAITS_MAX => waited += 1,
                Err(error) => return Err(told(error)),
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

    /// Lets packets travel until there are none.
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
            while let Ok(count @ 1..) =
                self.hosts[SERVER].discard(self.ends[SERVER], usize::MAX, self.now)
            {
                self.received += count as u64;
            }
            moved |= self.carry(SERVER)?;
            if !moved {
                return Ok(());
            }
        }
    }

    /// Moves a burst from a host to the other. False if there was none.
    fn carry(&mut self, from: usize) -> anyhow::Result<bool> {
        let Self { hosts, memory, ledger, now, sent, arrived, .. } = self;
        hosts[from].output(sent, &mut Context { memory, ledger, now: *now });
        let moved = !sent.is_empty();
        while let Some(packet) = sent.pop() {
            let packet = into_received(packet, memory).map_err(|_| anyhow!("short of memory"))?;
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
    Sockets::new(stack, 1)
}

fn address(host: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, host as u8 + 1))
}

fn mac(host: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, host as u8 + 1])
}

fn told(error: Error) -> anyhow::Error {
    anyhow!("the stack says {error:?}")
}

const PORT: u16 = 80;
const MEMORY_BYTES: usize = 32 << 20;
/// More than a send buffer of the smallest sends has.
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
        for (way, bytes) in [("lend", 512), ("lend", 1 << 20), ("copy", 65536), ("plain", 1448)] {
            let harness: Harness = format!("{way},{bytes},50").parse().unwrap();
            harness.run().unwrap();
        }
        assert!("lend,1".parse::<Harness>().is_err() && "lead,1,1".parse::<Harness>().is_err());
    }
}
