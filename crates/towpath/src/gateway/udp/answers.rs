//! Whence those who used a published port are answered: from the address that they sent to.
//!
//! Several sockets may lead to one port of the program, and one socket may be bound to all of the
//! host's addresses. The program sends an answer to whoever asked; only here it is known where the
//! question came in.
//!
//! Bound: [`ANSWERS_MAX`], the oldest gives way; those are answered by the first socket, from the
//! address that the kernel chooses.

use crate::gateway::slots::Slot;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// Peers of published ports that are remembered.
const ANSWERS_MAX: usize = 1024;

/// Port of the program, and who asked it.
type Key = (SocketAddr, SocketAddr);

/// Where questions came in.
#[derive(Default)]
pub(super) struct Answers {
    ways: HashMap<Key, (Slot, Option<IpAddr>)>,
    /// In the order in which they were first used.
    order: VecDeque<Key>,
}

impl Answers {
    /// `peer` sent something to the program, by the socket of `slot`, to this address of the host.
    pub(super) fn asked(
        &mut self,
        program: SocketAddr,
        peer: SocketAddr,
        way: (Slot, Option<IpAddr>),
    ) {
        let key = (program, peer);
        if self.ways.insert(key, way).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > ANSWERS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ways.remove(&oldest);
        }
    }

    /// The socket and the address by which the program answers `peer`, if he has asked.
    pub(super) fn way(
        &self,
        program: SocketAddr,
        peer: SocketAddr,
    ) -> Option<(Slot, Option<IpAddr>)> {
        self.ways.get(&(program, peer)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_peer_gives_way() {
        let program = SocketAddr::from(([10, 0, 2, 15], 53));
        let peer = |number: usize| SocketAddr::from(([192, 0, 2, 1], 1 + number as u16));
        let way = |index| (Slot { index, generation: 0 }, Some(IpAddr::from([192, 0, 2, 9])));
        let mut answers = Answers::default();
        (0..ANSWERS_MAX).for_each(|number| answers.asked(program, peer(number), way(1)));
        answers.asked(program, peer(0), way(2));
        assert_eq!(answers.way(program, peer(0)), Some(way(2)), "the latest way counts");
        answers.asked(program, peer(ANSWERS_MAX), way(1));
        assert_eq!(answers.way(program, peer(0)), None);
        assert_eq!(answers.way(program, peer(1)), Some(way(1)));
        assert_eq!((answers.ways.len(), answers.order.len()), (ANSWERS_MAX, ANSWERS_MAX));
    }
}
