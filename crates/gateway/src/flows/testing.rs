//! A gateway with real host sockets and no worker: tests say when it runs, and what time it is.

use std::net::IpAddr;
use std::time::Duration;

use towpath_io::reactor::{Event, Events, Reactor};
use towpath_io::receive::ReceiveBuffer;
use towpath_net::stack::{self, Address, Limits, Stack};
use towpath_net::tcp::Settings;
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;
use towpath_packet::{Caps, Ledger, Memory, MemoryConfig};

use super::{Gateway, Guests, Io, Token};
use crate::config::Config;

/// A gateway, and what its worker would have. The time is [`Instant::START`] at first.
pub(super) struct Bench {
    pub(super) gateway: Gateway,
    pub(super) stack: Stack,
    pub(super) memory: Memory,
    pub(super) ledger: Ledger,
    pub(super) reactor: Reactor,
    pub(super) now: Instant,
    buffer: ReceiveBuffer,
}

impl Bench {
    /// `next_hops` are addresses that the gateway's stack has on its link.
    pub(super) fn new(config: &Config, next_hops: Vec<IpAddr>) -> Self {
        let reactor = Reactor::new().expect("a reactor");
        Self {
            gateway: Gateway::new(config, &reactor).expect("a gateway"),
            stack: stack(config.gateway_mac, vec![], next_hops, true),
            memory: Memory::new(MemoryConfig::within(16 << 20)),
            ledger: Ledger::new(),
            reactor,
            buffer: ReceiveBuffer::new(),
            now: Instant::START,
        }
    }

    pub(super) fn with<R>(&mut self, act: impl FnOnce(&mut Gateway, &mut Io<'_>) -> R) -> R {
        let mut io = Io {
            stack: &mut self.stack,
            memory: &mut self.memory,
            ledger: &self.ledger,
            reactor: &self.reactor,
            buffer: &mut self.buffer,
            guests: &Nobody,
            now: self.now,
        };
        act(&mut self.gateway, &mut io)
    }

    /// Waits for events of host sockets, at most this long, and passes them on. Returns false if
    /// there were none.
    pub(super) fn serve_events(&mut self, patience: Duration) -> bool {
        let mut events = Events::new();
        self.reactor.wait(Some(patience), &mut events).expect("events");
        let all: Vec<Event> = events.iter().collect();
        self.with(|gateway, io| {
            for event in &all {
                gateway.on_event(Token::decode(event.token).expect("a token"), *event, io);
            }
        });
        !all.is_empty()
    }

    /// Lets time pass, and serves deadlines.
    pub(super) fn later(&mut self, by: Duration) {
        self.now += by;
        self.with(|gateway, io| gateway.on_deadline(io));
    }
}

/// Returns a stack for a link with plain packets of 1500 bytes.
pub(super) fn stack(
    mac: [u8; 6],
    addresses: Vec<Address>,
    next_hops: Vec<IpAddr>,
    transparent: bool,
) -> Stack {
    let config = stack::Config {
        mac: MacAddr(mac),
        addresses,
        next_hops,
        transparent,
        secret: [1, 2],
        tcp: Settings::default(),
        limits: Limits::default(),
    };
    Stack::new(config, Caps::plain(1500))
}

struct Nobody;

impl Guests for Nobody {
    fn address_of(&self, _: &str, _: bool, _: Instant) -> Option<IpAddr> {
        None
    }
}
