//! What connections hold, and on whose account, so that no peer, and no port of a switch, keeps the
//! others from theirs: memory, of which the owner sees to that, and places in the table.
//!
//! Transparent stacks alone keep accounts of memory. A connection is on the account of the port by
//! which its peer's last acceptable packet came (`Packet::ingress`), or of no port. Sums are kept
//! up after each change of a connection.

use super::Stack;
use super::tcp::TcpHandle;
use crate::tcp::Connection;
use alloc::vec::Vec;

/// Memory that queues of connections keep from its lenders, in bytes, by the size of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// In frames of the smaller size.
    pub small: usize,
    /// In others.
    pub large: usize,
}

/// What connections hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// For peers that have not acknowledged it.
    pub sending: Frames,
    /// For owners that have not taken it, what came ahead of its turn included.
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

    /// Puts `after` in the place of `before`, which is a part of it.
    fn change(&mut self, mut before: Self, mut after: Self) {
        for (sum, (before, after)) in
            self.parts().into_iter().zip(before.parts().into_iter().zip(after.parts()))
        {
            *sum = *sum - *before + *after;
        }
    }
}

/// A connection's part of its account.
#[derive(Clone, Copy, Default)]
pub(super) struct Share {
    usage: Usage,
    /// Index of the account.
    account: u16,
    is_half_open: bool,
}

impl Share {
    /// The connection came in and is not open yet.
    pub(super) fn is_half_open(&self) -> bool {
        self.is_half_open
    }
}

/// What all connections of a port hold.
#[derive(Clone, Copy, Default)]
struct Account {
    usage: Usage,
    connections: usize,
    half_open: usize,
}

/// The sums.
#[derive(Default)]
pub(super) struct Accounts {
    total: Usage,
    /// By [`index_of`].
    accounts: Vec<Account>,
}

/// A port may have so many times as many connections as there are places left. So one that takes
/// all it gets leaves a ninth, two leave a seventeenth, and who has few finds a place.
const PLACES_PER_FREE: usize = 8;

impl Accounts {
    /// A connection holds something else now.
    #[inline]
    pub(super) fn update(&mut self, share: &mut Share, connection: &Connection) {
        let usage = Usage::of(connection);
        if usage != share.usage {
            self.set(share, usage);
        }
    }

    /// There is a connection more.
    pub(super) fn insert(&mut self, share: &Share) {
        self.of(share).connections += 1;
    }

    /// A connection is gone.
    pub(super) fn remove(&mut self, share: &mut Share) {
        if share.usage != Usage::default() {
            self.set(share, Usage::default());
        }
        self.set_half_open(share, false);
        self.of(share).connections -= 1;
        share.account = 0;
    }

    /// A connection that came in is not open yet, or is no longer so.
    pub(super) fn set_half_open(&mut self, share: &mut Share, is_half_open: bool) {
        if share.is_half_open != is_half_open {
            share.is_half_open = is_half_open;
            let half_open = &mut self.of(share).half_open;
            *half_open = if is_half_open { *half_open + 1 } else { *half_open - 1 };
        }
    }

    /// True if a port may have no further connection, with so many places left.
    pub(super) fn is_crowded(&self, port: Option<u16>, free: usize) -> bool {
        let account = self.accounts.get(usize::from(index_of(port)));
        let connections = account.map_or(0, |account| account.connections);
        free == 0 || port.is_some() && connections >= PLACES_PER_FREE * free
    }

    /// The most connections of an account that are half-open.
    pub(super) fn most_half_open(&self) -> usize {
        self.accounts.iter().map(|account| account.half_open).max().unwrap_or(0)
    }

    /// Those of the account that this connection is on.
    pub(super) fn half_open_of(&self, share: &Share) -> usize {
        self.accounts.get(usize::from(share.account)).map_or(0, |account| account.half_open)
    }

    /// The connection's peer sent a packet that came by this port.
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

/// Account 0 is that of no port.
fn index_of(port: Option<u16>) -> u16 {
    port.map_or(0, |port| port.saturating_add(1))
}

impl Stack {
    /// What all connections hold.
    pub fn tcp_usage(&self) -> &Usage {
        &self.tcp.accounts.total
    }

    /// The port by which packets of this connection's peer come, if they come by one, and what all
    /// connections of that port hold.
    pub fn tcp_account(&self, handle: TcpHandle) -> (Option<u16>, Usage) {
        let slot = self.tcp.slots.get(handle.index());
        let account = slot.map_or(0, |slot| slot.share.account);
        let usage = self.tcp.accounts.accounts.get(usize::from(account)).map(|it| it.usage);
        (account.checked_sub(1), usage.unwrap_or_default())
    }
}
