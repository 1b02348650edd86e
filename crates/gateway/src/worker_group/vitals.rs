//! What workers tell each other about themselves: written by its worker before each turn, read by
//! the others. Nothing depends on an order between these values.

use towpath_net::time::Instant;
use towpath_packet::sync::Ordering::Relaxed;
use towpath_packet::sync::{AtomicU64, AtomicUsize};

use crate::config::Config;
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
    /// Bytes of frames of its memory that are out.
    memory: AtomicUsize,
}

/// What the workers have together.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) flows_max: usize,
    /// Bytes of frames of all workers, and of each one after the first.
    pub(super) memory_bytes: usize,
    pub(super) memory_share: usize,
}

impl Bounds {
    /// The bounds of the workers of a configuration.
    pub(super) fn of(config: &Config) -> Self {
        Self {
            flows_max: config.flows_max,
            memory_bytes: config.memory_bytes,
            memory_share: config.memory_share(),
        }
    }

    /// Returns how much memory worker `index` may use. `others` are the other workers: the index of
    /// each, and how much is out of its memory. The first worker leaves a share to each of those
    /// that serve, of which there are `serving`, and all leave what is out already.
    fn memory(
        &self,
        index: usize,
        serving: usize,
        others: impl Iterator<Item = (usize, usize)>,
    ) -> usize {
        let share = |other| if other <= serving && other > 0 { self.memory_share } else { 0 };
        let left: usize = others.map(|(other, out)| out.max(share(other))).sum();
        let most = if index == 0 { self.memory_bytes } else { self.memory_share };
        self.memory_bytes.saturating_sub(left).min(most)
    }
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
        flows.memory().collect();
        self.memory.store(flows.memory().out_bytes(), Relaxed);
    }

    pub(super) fn busy_us(&self) -> u64 {
        self.busy_us.load(Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Connections and mappings.
    pub(super) fn flows(&self) -> usize {
        self.connections.load(Relaxed) + self.mappings.load(Relaxed)
    }
}

/// Writes what worker `index` tells, and leaves it as many flows and as much memory as the others
/// do not have, or are to have; see [`Bounds::memory`]. Returns how much is out of its memory.
pub(super) fn tell(
    all: &[Vitals],
    index: usize,
    bounds: Bounds,
    serving: usize,
    flows: &mut Exchange<'_>,
) -> usize {
    all[index].tell(flows);
    let others = || all.iter().enumerate().filter(|(other, _)| *other != index);
    let (connections, mappings) = others().fold((0, 0), |(connections, mappings), (_, one)| {
        (connections + one.connections.load(Relaxed), mappings + one.mappings.load(Relaxed))
    });
    flows.limit(
        bounds.flows_max.saturating_sub(connections),
        mappings_max(bounds.flows_max).saturating_sub(mappings),
    );
    let out = others().map(|(other, one)| (other, one.memory.load(Relaxed)));
    flows.memory().limit(bounds.memory(index, serving, out));
    flows.memory().out_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the first worker has all memory while it is alone, and all have no more together than
    /// there is, whatever is out.
    #[test]
    fn memory_is_divided_while_others_serve() {
        let bounds = Bounds { flows_max: 1, memory_bytes: 400, memory_share: 100 };
        let of_first = |serving, out: [usize; 2]| bounds.memory(0, serving, (1..).zip(out));
        assert_eq!(of_first(0, [0, 0]), 400);
        assert_eq!(of_first(1, [0, 0]), 300);
        assert_eq!(of_first(2, [30, 100]), 200);
        // What is still out of a worker that has left.
        assert_eq!(of_first(0, [30, 70]), 300);
        assert_eq!(of_first(1, [30, 70]), 230);
        let of_second = |out: [usize; 2]| bounds.memory(1, 0, [0, 2].into_iter().zip(out));
        assert_eq!(of_second([200, 0]), 100);
        // The first one had it all when this one joined.
        assert_eq!(of_second([350, 0]), 50);
        assert_eq!(of_second([350, 100]), 0);
    }
}
