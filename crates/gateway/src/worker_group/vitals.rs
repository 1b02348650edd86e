//! What workers tell each other about themselves: written by its worker before each turn, read by
//! the others. Nothing depends on an order between these values.

use towpath_net::time::Instant;
use towpath_packet::sync::Ordering::Relaxed;
use towpath_packet::sync::{AtomicU64, AtomicUsize};

use crate::flows::mappings_max;
use crate::worker::Exchange;

/// What one worker tells.
#[derive(Default)]
pub(super) struct Vitals {
    /// For how long it was busy, in microseconds.
    busy_us: AtomicU64,
    /// Payload bytes that it moved.
    bytes: AtomicU64,
    connections: AtomicUsize,
    mappings: AtomicUsize,
}

impl Vitals {
    /// Writes what is so now.
    pub(super) fn tell(&self, flows: &mut Exchange<'_>) {
        let busy = flows.now().since(Instant::START).saturating_sub(flows.asleep());
        self.busy_us.store(busy.as_micros() as u64, Relaxed);
        let counters = flows.gateway().counters();
        self.bytes.store(counters.bytes_in + counters.bytes_out, Relaxed);
        let (tcp, udp, _) = flows.gateway().flow_counts();
        self.connections.store(tcp, Relaxed);
        self.mappings.store(udp, Relaxed);
    }

    pub(super) fn busy_us(&self) -> u64 {
        self.busy_us.load(Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// Writes what worker `index` tells, and leaves it as many flows as the others do not have.
pub(super) fn tell(all: &[Vitals], index: usize, flows_max: usize, flows: &mut Exchange<'_>) {
    all[index].tell(flows);
    let others = all.iter().enumerate().filter(|(other, _)| *other != index);
    let (connections, mappings) = others.fold((0, 0), |(connections, mappings), (_, one)| {
        (connections + one.connections.load(Relaxed), mappings + one.mappings.load(Relaxed))
    });
    flows.limit(
        flows_max.saturating_sub(connections),
        mappings_max(flows_max).saturating_sub(mappings),
    );
}
