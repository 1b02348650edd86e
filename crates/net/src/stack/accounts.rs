//! How much memory connections hold, and on whose account: so that their owner can see to it that
//! no peer, and no port of a switch, keeps the others from theirs.
//!
//! Transparent stacks alone keep accounts. A connection is on the account of the port by which its
//! peer's last acceptable packet came (`Packet::ingress`), or of no port. Sums are kept up after
//! each change of a connection.

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
}

/// The sums.
#[derive(Default)]
pub(super) struct Accounts {
    total: Usage,
    /// By [`index_of`].
    accounts: Vec<Usage>,
}

impl Accounts {
    /// A connection holds something else now.
    #[inline]
    pub(super) fn update(&mut self, share: &mut Share, connection: &Connection) {
        let usage = Usage::of(connection);
        if usage != share.usage {
            self.set(share, usage);
        }
    }

    /// A connection is gone.
    pub(super) fn remove(&mut self, share: &mut Share) {
        self.set(share, Usage::default());
        *share = Share::default();
    }

    /// The connection's peer sent a packet that came by this port.
    #[inline]
    pub(super) fn assign(&mut self, share: &mut Share, port: Option<u16>) {
        let account = index_of(port);
        if account != share.account {
            let usage = share.usage;
            self.set(share, Usage::default());
            share.account = account;
            self.set(share, usage);
        }
    }

    fn set(&mut self, share: &mut Share, usage: Usage) {
        let index = usize::from(share.account);
        if self.accounts.len() <= index {
            self.accounts.resize(index + 1, Usage::default());
        }
        self.accounts[index].change(share.usage, usage);
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
        let usage = self.tcp.accounts.accounts.get(usize::from(account)).copied();
        (account.checked_sub(1), usage.unwrap_or_default())
    }
}
