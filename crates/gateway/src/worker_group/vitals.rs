//! What workers tell each other about themselves: written by its worker before each turn, read by
//! the others. Nothing depends on an order between these values.

use towpath_net::stack::Limits;
use towpath_net::time::Instant;
use towpath_packet::sync::Ordering::Relaxed;
use towpath_packet::sync::{AtomicU64, AtomicUsize};

use crate::config::{Config, shares};
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
    half_open: AtomicUsize,
    /// Bytes of frames of its memory that are out.
    memory: AtomicUsize,
}

/// What the workers have together.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    flows_max: usize,
    /// Half-open connections.
    half_open: Divided,
    /// Bytes of frames.
    memory: Divided,
}

impl Bounds {
    /// The bounds of the workers of a configuration.
    pub(super) fn of(config: &Config) -> Self {
        Self {
            flows_max: config.flows_max,
            half_open: Divided::new(Limits::default().half_open, config.workers),
            memory: Divided::new(config.memory_bytes, config.workers),
        }
    }
}

/// A number of something of which each worker that serves has a share.
#[derive(Clone, Copy)]
struct Divided {
    all: usize,
    /// The share of each worker after the first, which has the rest.
    share: usize,
}

impl Divided {
    fn new(all: usize, workers: usize) -> Self {
        Self { all, share: shares::of_other(all, workers) }
    }

    /// Returns how much worker `index` may use. `others` are the other workers: the index of each,
    /// and how much it uses. The first worker leaves a share to each of those that serve, of which
    /// there are `serving`, and all leave what others use already.
    fn left_to(
        self,
        index: usize,
        serving: usize,
        others: impl Iterator<Item = (usize, usize)>,
    ) -> usize {
        let share = |other| if other <= serving && other > 0 { self.share } else { 0 };
        let left: usize = others.map(|(other, used)| used.max(share(other))).sum();
        let most = if index == 0 { self.all } else { self.share };
        self.all.saturating_sub(left).min(most)
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
        self.half_open.store(flows.half_open(), Relaxed);
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

/// Writes what worker `index` tells, and limits its flows, half-open connections and memory to what
/// the others do not have, or are to have; see [`Divided::left_to`]. Returns how much is out of its
/// memory.
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
    let half_open = others().map(|(other, one)| (other, one.half_open.load(Relaxed)));
    flows.limit_half_open(bounds.half_open.left_to(index, serving, half_open));
    let out = others().map(|(other, one)| (other, one.memory.load(Relaxed)));
    flows.memory().limit(bounds.memory.left_to(index, serving, out));
    flows.memory().out_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the first worker has everything while it is alone, and all have no more together than
    /// there is, whatever they use.
    #[test]
    fn workers_that_serve_have_shares() {
        let memory = Divided::new(400, 3);
        let of_first = |serving, out: [usize; 2]| memory.left_to(0, serving, (1..).zip(out));
        assert_eq!(of_first(0, [0, 0]), 400);
        assert_eq!(of_first(1, [0, 0]), 300);
        assert_eq!(of_first(2, [30, 100]), 200);
        // What a worker that has left still uses.
        assert_eq!(of_first(0, [30, 70]), 300);
        assert_eq!(of_first(1, [30, 70]), 230);
        let of_second = |out: [usize; 2]| memory.left_to(1, 0, [0, 2].into_iter().zip(out));
        assert_eq!(of_second([200, 0]), 100);
        // The first one had it all when this one joined.
        assert_eq!(of_second([350, 0]), 50);
        assert_eq!(of_second([350, 100]), 0);
    }
}
