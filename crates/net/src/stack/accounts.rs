//! Accounts of what connections hold: memory, and places in the table. They keep one peer, or one
//! port of a switch, from taking the share of others. The owner of the stack enforces the shares of
//! memory.
//!
//! Only transparent stacks account for memory. A connection is charged to the port at which its
//! peer's last acceptable packet was received (`Packet::ingress`), or to no port. Sums are updated
//! after each change of a connection.

use super::Stack;
use super::handles::TcpHandle;
use crate::tcp::Connection;
use alloc::vec::Vec;

/// Memory that the queues of connections keep from its lenders, in bytes, by frame size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// In small frames.
    pub small: usize,
    /// In large frames and other loans.
    pub large: usize,
}

/// Memory held by connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sent or unsent data that the peer has not acknowledged.
    pub sending: Frames,
    /// Received data that the owner has not taken, including out-of-order data.
    pub receiving: Frames,
}

impl Usage {
    fn of(connection: &Connection) -> Self {
        let (sending, receiving) = connection.held_frames();
        let frames = |(small, large)| Frames { small, large };
        Self { sending: frames(sending), receiving: frames(receiving) }
    }

    fn parts(&mut self) -> [&mut usize; 4] {
        let Self { sending, receiving } = self;
        [&mut sending.small, &mut sending.large, &mut receiving.small, &mut receiving.large]
    }

    /// Replaces `before`, which is part of the sum, by `after`.
    fn change(&mut self, mut before: Self, mut after: Self) {
        for (sum, (before, after)) in
            self.parts().into_iter().zip(before.parts().into_iter().zip(after.parts()))
        {
            *sum = *sum - *before + *after;
        }
    }
}

/// What one connection is charged.
#[derive(Clone, Copy, Default)]
pub(super) struct Share {
    usage: Usage,
    /// Index of the account charged.
    account: u16,
    is_half_open: bool,
}

impl Share {
    /// True for an incoming connection that is not open yet.
    pub(super) fn is_half_open(&self) -> bool {
        self.is_half_open
    }
}

/// Totals of all connections of a port.
#[derive(Clone, Copy, Default)]
struct Account {
    usage: Usage,
    connections: usize,
    half_open: usize,
}

/// Totals of all ports.
#[derive(Default)]
pub(super) struct Accounts {
    total: Usage,
    /// Indexed by [`index_of`].
    accounts: Vec<Account>,
}

/// A port may have this many times as many connections as places are free. So one greedy port
/// leaves a ninth of the places, two leave a seventeenth, and a port with few connections finds a
/// place.
const PLACES_PER_FREE: usize = 8;

impl Accounts {
    /// Updates the charge of a connection whose memory has changed.
    #[inline]
    pub(super) fn update(&mut self, share: &mut Share, connection: &Connection) {
        let usage = Usage::of(connection);
        if usage != share.usage {
            self.set(share, usage);
        }
    }

    /// Adds a connection.
    pub(super) fn insert(&mut self, share: &Share) {
        self.of(share).connections += 1;
    }

    /// Removes a connection.
    pub(super) fn remove(&mut self, share: &mut Share) {
        if share.usage != Usage::default() {
            self.set(share, Usage::default());
        }
        self.set_half_open(share, false);
        self.of(share).connections -= 1;
        share.account = 0;
    }

    /// Sets whether an incoming connection is half-open.
    pub(super) fn set_half_open(&mut self, share: &mut Share, is_half_open: bool) {
        if share.is_half_open != is_half_open {
            share.is_half_open = is_half_open;
            let half_open = &mut self.of(share).half_open;
            *half_open = if is_half_open { *half_open + 1 } else { *half_open - 1 };
        }
    }

    /// True if a port may not have another connection while `free` places are free.
    pub(super) fn is_crowded(&self, port: Option<u16>, free: usize) -> bool {
        let account = self.accounts.get(usize::from(index_of(port)));
        let connections = account.map_or(0, |account| account.connections);
        free == 0 || port.is_some() && connections >= PLACES_PER_FREE * free
    }

    /// Highest number of half-open connections of any account.
    pub(super) fn most_half_open(&self) -> usize {
        self.accounts.iter().map(|account| account.half_open).max().unwrap_or(0)
    }

    /// Number of half-open connections of this connection's account.
    pub(super) fn half_open_of(&self, share: &Share) -> usize {
        self.accounts.get(usize::from(share.account)).map_or(0, |account| account.half_open)
    }

    /// Charges the connection to the port at which its peer's packet was received.
    #[inline]
    pub(super) fn assign(&mut self, share: &mut Share, port: Option<u16>) {
        let account = index_of(port);
        if account != share.account {
            let Share { usage, is_half_open, .. } = *share;
            self.remove(share);
            share.account = account;
            self.insert(share);
            self.set(share, usage);
            self.set_half_open(share, is_half_open);
        }
    }

    fn of(&mut self, share: &Share) -> &mut Account {
        let index = usize::from(share.account);
        if self.accounts.len() <= index {
            self.accounts.resize(index + 1, Account::default());
        }
        &mut self.accounts[index]
    }

    fn set(&mut self, share: &mut Share, usage: Usage) {
        self.of(share).usage.change(share.usage, usage);
        self.total.change(share.usage, usage);
        share.usage = usage;
    }
}

/// Index of a port's account; 0 for no port.
fn index_of(port: Option<u16>) -> u16 {
    port.map_or(0, |port| port.saturating_add(1))
}

impl Stack {
    /// Memory held by all connections.
    pub fn tcp_usage(&self) -> &Usage {
        &self.tcp.accounts.total
    }

    /// Port at which packets of this connection's peer are received, if any, and the memory held by
    /// all connections of that port.
    pub fn tcp_account(&self, handle: TcpHandle) -> (Option<u16>, Usage) {
        let slot = self.tcp.slots.place(handle.0);
        let account = slot.map_or(0, |slot| slot.share.account);
        let usage = self.tcp.accounts.accounts.get(usize::from(account)).map(|it| it.usage);
        (account.checked_sub(1), usage.unwrap_or_default())
    }
}
