//! Which peers may send to a flow, and by which socket users of a published port are answered.
//!
//! A mapping takes datagrams from the peers that it has sent to. The flow itself records the latest
//! one, which is all that most flows need; one table holds the others.
//!
//! Several sockets may lead to one port of the program, and one socket may be bound to all of the
//! host's addresses. The program sends an answer to the address that asked; only this table knows
//! where the question came in.
//!
//! Bounds: [`PEERS_MAX`] and [`ANSWERS_MAX`], of all flows together. At the bound the guest, or the
//! published port, with most entries loses its least recently used one. Such a peer of a mapping is
//! filtered until the mapping sends to it again. An answer to such a user of a published port
//! leaves like any other datagram of the program.

use crate::flows::Slot;
use crate::flows::shares::{Share, Table};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// Peers of mappings besides the latest of each: enough for 2,048 mappings that talk to 16 hosts
/// each, at about 100 bytes per peer.
const PEERS_MAX: usize = 32_768;
/// Users of published ports that are remembered, about 150 bytes each.
const ANSWERS_MAX: usize = 16_384;

/// How a question came in, which is how its answer leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// The flow whose socket received it.
    pub(super) slot: Slot,
    /// The address of the host that it was sent to.
    pub(super) at: Option<IpAddr>,
    /// The peer that sent it.
    pub(super) peer: SocketAddr,
}

/// All peers of all flows.
pub(super) struct Peers {
    sent_to: Table<(Slot, SocketAddr), ()>,
    /// By the port of the program and the peer that asked it, as the program sees that peer.
    answers: Table<(SocketAddr, SocketAddr), Way>,
    /// It may have peers of flows that are gone.
    is_stale: bool,
}

/// The peer that a flow has sent to last.
pub(super) type Latest = Option<SocketAddr>;

impl Peers {
    pub(super) fn new() -> Self {
        let (sent_to, answers) = (Table::new(PEERS_MAX), Table::new(ANSWERS_MAX));
        Self { sent_to, answers, is_stale: false }
    }

    /// The flow of `slot` has sent to `peer`. Returns true if another entry was evicted.
    pub(super) fn sent_to(
        &mut self,
        slot: Slot,
        latest: &mut Latest,
        share: Share,
        peer: SocketAddr,
    ) -> bool {
        if *latest == Some(peer) {
            return false;
        }
        let before = latest.replace(peer);
        before.is_some_and(|before| self.sent_to.put((slot, before), share, ()).is_some())
    }

    /// Adds a peer of a flow besides its latest. Returns true if another entry was evicted.
    pub(super) fn add(&mut self, slot: Slot, share: Share, peer: SocketAddr) -> bool {
        self.sent_to.put((slot, peer), share, ()).is_some()
    }

    /// Moves the peers of these flows, except the latest of each, into their lists.
    pub(super) fn take_of(&mut self, flows: &mut HashMap<Slot, Vec<SocketAddr>>) {
        self.sent_to.retain(|(slot, peer), ()| match flows.get_mut(slot) {
            Some(peers) => {
                peers.push(*peer);
                false
            }
            None => true,
        });
    }

    /// Returns true if the flow of `slot` takes datagrams from `peer`.
    pub(super) fn may_send(&mut self, slot: Slot, latest: Latest, peer: SocketAddr) -> bool {
        latest == Some(peer) || self.sent_to.use_of(&(slot, peer)).is_some()
    }

    /// A peer that the program sees as `peer` sent a datagram to the program, by `way`. Returns
    /// true if another entry was evicted.
    pub(super) fn asked(&mut self, program: SocketAddr, peer: SocketAddr, way: Way) -> bool {
        let share = Share::Published(way.slot.index);
        self.answers.put((program, peer), share, way).is_some()
    }

    /// Returns how the program answers the peer that it sees as `peer`, if that has asked.
    pub(super) fn way(&self, program: SocketAddr, peer: SocketAddr) -> Option<Way> {
        self.answers.get(&(program, peer))
    }

    /// A flow has ended.
    pub(super) fn flow_ended(&mut self) {
        self.is_stale = true;
    }

    /// Removes the peers of flows that are gone.
    pub(super) fn forget_gone(&mut self, is_there: impl Fn(Slot) -> bool) {
        if std::mem::take(&mut self.is_stale) {
            self.sent_to.retain(|(slot, _), ()| is_there(*slot));
            self.answers.retain(|_, way| is_there(way.slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Share = Share::Guest(Some(1));

    fn peer(number: u32) -> SocketAddr {
        SocketAddr::from((std::net::Ipv4Addr::from_bits(0xc000_0000 + number), 0))
    }

    /// Goal: a mapping keeps far more peers than it could in a table of its own. A mapping that
    /// sends to endless hosts loses its own peers, and those of another guest stay.
    #[test]
    fn peers_of_others_stay() {
        let mut peers = Peers::new();
        let slot = |index| Slot { index, generation: 0 };
        let (mut one, mut other) = (None, None);
        for number in 0..200 {
            assert!(!peers.sent_to(slot(0), &mut one, GUEST, peer(number)));
        }
        let more = PEERS_MAX as u32 + 1000;
        let evicted = (0..more)
            .filter(|&number| {
                peers.sent_to(slot(1), &mut other, Share::Guest(Some(2)), peer(number))
            })
            .count();
        assert_eq!(evicted, 1000 - 1 + 199);
        assert!((0..200).all(|number| peers.may_send(slot(0), one, peer(number))));
        assert!(!peers.may_send(slot(1), other, peer(0)));
        assert!(peers.may_send(slot(1), other, peer(more - 2)));
        assert!(!peers.may_send(slot(0), one, peer(more - 2)), "each flow has its own");
        peers.flow_ended();
        peers.forget_gone(|slot| slot.index == 0);
        assert!(!peers.may_send(slot(1), None, peer(more - 2)));
        assert!(peers.may_send(slot(0), None, peer(0)));
    }

    /// Goal: the latest way counts, and a flood of one published port takes no entry from another.
    #[test]
    fn each_published_port_has_its_part() {
        let mut peers = Peers::new();
        let program = |port| SocketAddr::from(([10, 0, 2, 15], port));
        let at = Some(IpAddr::from([192, 0, 2, 9]));
        let way = |index| Way { slot: Slot { index, generation: 0 }, at, peer: peer(9) };
        assert!(!peers.asked(program(1), peer(0), way(1)));
        let flood = (0..2 * ANSWERS_MAX as u32)
            .filter(|number| peers.asked(program(2), peer(*number), way(2)));
        assert_eq!(flood.count(), ANSWERS_MAX + 1);
        assert_eq!(peers.way(program(1), peer(0)), Some(way(1)));
        peers.asked(program(1), peer(0), way(3));
        assert_eq!(peers.way(program(1), peer(0)), Some(way(3)));
        peers.flow_ended();
        peers.forget_gone(|slot| slot.index == 2);
        assert_eq!(peers.way(program(1), peer(0)), None);
    }
}
