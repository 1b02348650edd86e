//! Flows that move from one worker to another.
//!
//! A flow moves between two turns, with everything that belongs to it: the connection of the stack
//! and its queues, whose frames stay those of the first worker's memory, the host socket, and what
//! waits for a flow to begin. Only the socket's registration is new, and it reports again what the
//! socket has to read. No packet is sent, and no byte is copied.
//!
//! These do not move: joined flows, published UDP ports, and mappings for queries to groups, as the
//! first worker gets their packets in any case. An answer that a query to a resolver waits for
//! moves with the mapping.

use super::accepted::Accepted;
use super::destinations::MovedDestinations;
use super::newcomers::Message;
use super::ping::MovedPing;
use super::tcp::MovedConnection;
use super::udp::MovedMapping;
use super::{Gateway, Io};
use crate::owners::{Buckets, of_echo, of_port};

/// All flows of some buckets, between two workers.
pub(crate) struct MovedFlows {
    connections: Vec<MovedConnection>,
    mappings: Vec<MovedMapping>,
    pings: Vec<MovedPing>,
    /// What waits for a flow.
    accepted: Vec<Accepted>,
    messages: Vec<Message>,
    /// What the policy has allowed.
    destinations: MovedDestinations,
}

impl MovedFlows {
    /// Returns the number of flows that are open.
    pub(crate) fn len(&self) -> usize {
        let with_flow = |one: &&MovedConnection| one.has_flow();
        self.connections.iter().filter(with_flow).count() + self.mappings.len() + self.pings.len()
    }
}

/// An order of the first worker to another one, about flows.
pub(crate) enum Order {
    /// To serve these flows.
    Take(Box<MovedFlows>),
    /// To begin the flow of this connection.
    Accept(Accepted),
    /// To return the flows of these buckets, once this many packets have been taken from the ring.
    Return(Buckets, u64),
}

impl Gateway {
    /// Takes out all flows of these buckets. Visits all flows. The stack must have no events and no
    /// unsent packets.
    pub(crate) fn take_flows(&mut self, buckets: &Buckets, io: &mut Io<'_>) -> MovedFlows {
        let is_wanted = |message: &Message| {
            let (is_echo, _, number) = message.flow();
            buckets.contains(if is_echo { of_echo(number) } else { of_port(number) })
        };
        MovedFlows {
            connections: self.take_connections(buckets, io),
            mappings: self.take_mappings(buckets, io),
            pings: self.take_pings(buckets, io),
            accepted: self.listeners.take_handed_over(buckets),
            messages: self.newcomers.take_messages(is_wanted),
            destinations: self.take_destinations(buckets, io.now),
        }
    }

    /// Continues flows. A flow ends if its socket cannot be watched.
    pub(crate) fn put_flows(&mut self, flows: MovedFlows, io: &mut Io<'_>) {
        let MovedFlows { connections, mappings, pings, accepted, messages, destinations } = flows;
        self.put_destinations(destinations, io.now);
        connections.into_iter().for_each(|one| self.put_connection(one, io));
        mappings.into_iter().for_each(|one| self.put_mapping(one, io));
        pings.into_iter().for_each(|one| self.put_ping(one, io));
        self.take_over(accepted);
        messages.into_iter().for_each(|one| self.message_waits(one, io));
    }
}
