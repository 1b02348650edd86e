//! UDP mappings that move from one worker to another, with their peers, and the bound that all
//! workers share.

use super::questions::Question;
use super::{Flow, Realm, SWEEP, UdpFlows};
use crate::flows::{Gateway, Io, Slot, Token};
use crate::owners::{Buckets, of_port};
use std::collections::HashMap;
use std::net::SocketAddr;
use towpath_io::reactor::Interest;

/// Least bound of mappings.
const LIMIT_MIN: usize = 16;

/// Returns the bound of mappings for this limit of flows.
pub(crate) fn mappings_max(flows_max: usize) -> usize {
    (flows_max / 4).max(LIMIT_MIN)
}

/// A mapping between two workers.
pub(in crate::flows) struct MovedMapping {
    flow: Flow,
    question: Question,
    peers: Vec<SocketAddr>,
}

impl UdpFlows {
    /// Sets the number of mappings at which one is evicted for a new one.
    pub(in crate::flows) fn limit(&mut self, most: usize) {
        self.limit = most.max(LIMIT_MIN);
    }

    /// Removes and returns a flow, and the query that it keeps.
    pub(super) fn take(&mut self, slot: Slot) -> Option<(Flow, Question)> {
        let mut flow = self.slots.remove(slot)?;
        if flow.published.is_none() {
            self.idle.ended(flow.share);
        }
        let question = self.questions.take(&mut flow.dns.question, flow.share);
        self.peers.flow_ended();
        let key = (flow.program, flow.realm);
        if self.index.get(&key) == Some(&slot) {
            self.index.remove(&key);
        }
        Some((flow, question))
    }
}

impl Gateway {
    /// Takes out the mappings of these buckets.
    pub(in crate::flows) fn take_mappings(
        &mut self,
        buckets: &Buckets,
        io: &mut Io<'_>,
    ) -> Vec<MovedMapping> {
        let is_wanted = |flow: &Flow| {
            let stays = flow.published.is_some() || matches!(flow.realm, Realm::Group(_));
            !stays && buckets.contains(of_port(flow.program.port()))
        };
        let wanted = self.udp.slots.iter().filter(|(_, flow)| is_wanted(flow));
        let wanted: Vec<Slot> = wanted.map(|(slot, _)| slot).collect();
        let mut peers: HashMap<Slot, Vec<SocketAddr>> =
            wanted.iter().map(|slot| (*slot, Vec::new())).collect();
        if !wanted.is_empty() {
            self.udp.peers.take_of(&mut peers);
        }
        let moved = wanted.into_iter().filter_map(|slot| {
            let (flow, question) = self.udp.take(slot)?;
            // It was added when the flow began; removing it cannot fail.
            let _ = io.reactor.remove(&flow.socket);
            Some(MovedMapping { flow, question, peers: peers.remove(&slot)? })
        });
        moved.collect()
    }

    /// Continues a mapping.
    pub(in crate::flows) fn put_mapping(&mut self, moved: MovedMapping, io: &mut Io<'_>) {
        let MovedMapping { mut flow, question, peers } = moved;
        let (slot, share, used_at) = (self.udp.slots.next_key(), flow.share, flow.used_at);
        let token = Token::Udp(slot).encode();
        if io.reactor.add(&flow.socket, token, Interest::READ, true).is_err() {
            self.counters.no_descriptor += 1;
            return;
        }
        flow.queued = false;
        self.udp.questions.put_back(&mut flow.dns.question, question, share);
        self.udp.index.insert((flow.program, flow.realm), slot);
        self.udp.slots.insert(flow);
        self.udp.idle.begin(share, slot, used_at);
        self.udp.sweep_at = self.udp.sweep_at.or(Some(io.now + SWEEP));
        for peer in peers {
            self.counters.peers_evicted += u64::from(self.udp.peers.add(slot, share, peer));
        }
        self.udp.queue(slot);
    }
}
