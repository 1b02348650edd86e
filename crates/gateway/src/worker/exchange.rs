//! How an inside exchanges flows with other workers.

use crate::flows::{Gateway, Guests, Io, MovedFlows};
use crate::owners::Buckets;
use std::net::IpAddr;
use std::time::Duration;
use towpath_net::time::Instant;
use towpath_packet::Memory;

/// The flows of a worker, between two turns: nothing that the program sent waits unprocessed.
pub struct Exchange<'a> {
    pub(super) gateway: &'a mut Gateway,
    pub(super) io: Io<'a>,
    pub(super) has_unsent: bool,
    pub(super) is_finishing: bool,
    pub(super) asleep: Duration,
}

impl Exchange<'_> {
    /// Returns true if flows may be taken out: no packet of them waits to be sent.
    pub(crate) fn may_take(&self) -> bool {
        !self.has_unsent
    }

    /// Takes out the flows of these buckets; see [`Gateway::take_flows`].
    pub(crate) fn take(&mut self, buckets: &Buckets) -> MovedFlows {
        assert!(self.may_take(), "packets that wait would be overtaken");
        self.gateway.take_flows(buckets, &mut self.io)
    }

    /// Continues flows.
    pub(crate) fn put(&mut self, flows: MovedFlows) {
        self.gateway.put_flows(flows, &mut self.io);
    }

    /// Returns the gateway.
    pub(crate) fn gateway(&mut self) -> &mut Gateway {
        self.gateway
    }

    /// Sets how many connections and how many mappings this worker may have before it refuses new
    /// ones.
    pub(crate) fn limit(&mut self, connections: usize, mappings: usize) {
        self.io.stack.set_connections_max(connections);
        self.gateway.limit_mappings(mappings);
    }

    /// Returns the number of half-open connections.
    pub(crate) fn half_open(&self) -> usize {
        self.io.stack.tcp_half_open_count()
    }

    /// Sets how many half-open connections this worker may have before it evicts old ones.
    pub(crate) fn limit_half_open(&mut self, most: usize) {
        self.io.stack.set_half_open_max(most);
    }

    /// Returns the memory of this worker.
    pub(crate) fn memory(&mut self) -> &mut Memory {
        self.io.memory
    }

    /// Returns the time.
    pub(crate) fn now(&self) -> Instant {
        self.io.now
    }

    /// Returns for how long the thread has slept, or polled in vain, since it began.
    pub(crate) fn asleep(&self) -> Duration {
        self.asleep
    }

    /// Returns true if the worker only passes on what remains.
    pub(crate) fn is_finishing(&self) -> bool {
        self.is_finishing
    }
}

/// A program alone has no guests.
pub(super) struct NoGuests;

impl Guests for NoGuests {
    fn address_of(&self, _: &str, _: bool, _: Instant) -> Option<IpAddr> {
        None
    }
}
