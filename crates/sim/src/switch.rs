//! A learning Ethernet switch as a model: which port a frame leaves by (IEEE 802.1D §7).

use std::collections::HashMap;
use towpath_net::time::{Duration, Instant};

/// Addresses remembered; beyond it nothing new is learned and frames go everywhere.
const ADDRESSES_MAX: usize = 1024;
/// How long an address is remembered after its last frame (802.1D table 7-5).
const AGE_MAX: Duration = Duration::from_secs(300);

/// A switch.
#[derive(Debug, Default)]
pub struct Switch {
    learned: HashMap<[u8; 6], (usize, Instant)>,
    counters: SwitchCounters,
}

/// What became of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounters {
    /// Frames that came.
    pub received: u64,
    /// Frames that left, each copy for itself.
    pub sent: u64,
    /// Copies beyond the first.
    pub copies: u64,
    /// Frames for the port they came from, or without addresses.
    pub filtered: u64,
}

impl Switch {
    /// Ports that a frame from `port` of `ports` leaves by; learns where its sender is.
    pub fn forward(&mut self, frame: &[u8], port: usize, ports: usize, now: Instant) -> Vec<usize> {
        self.counters.received += 1;
        let address = |at: usize| frame.get(at..).and_then(<[u8]>::first_chunk::<6>).copied();
        let (Some(destination), Some(source)) = (address(0), address(6)) else {
            self.counters.filtered += 1;
            return Vec::new();
        };
        let known = self.learned.contains_key(&source);
        if source[0] & 1 == 0 && (known || self.learned.len() < ADDRESSES_MAX) {
            self.learned.insert(source, (port, now));
        }
        let learned = self.learned.get(&destination).filter(|(_, at)| now.since(*at) < AGE_MAX);
        let targets: Vec<usize> = match learned {
            Some((known, _)) if *known == port => Vec::new(),
            Some((known, _)) => vec![*known],
            None => (0..ports).filter(|other| *other != port).collect(),
        };
        self.counters.sent += targets.len() as u64;
        match targets.len() as u64 {
            0 => self.counters.filtered += 1,
            count => self.counters.copies += count - 1,
        }
        targets
    }

    /// What became of frames.
    pub fn counters(&self) -> SwitchCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(destination: u8, source: u8) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, destination, 2, 0, 0, 0, 0, source];
        frame.resize(60, 0);
        frame
    }

    #[test]
    fn a_switch_learns_and_forgets() {
        let (mut switch, mut now) = (Switch::default(), Instant::START);
        assert_eq!(switch.forward(&frame(2, 1), 0, 3, now), [1, 2]);
        assert_eq!(switch.forward(&frame(1, 2), 1, 3, now), [0]);
        assert_eq!(switch.forward(&frame(2, 1), 0, 3, now), [1]);
        // It moved to another port.
        assert_eq!(switch.forward(&frame(1, 2), 2, 3, now), [0]);
        assert_eq!(switch.forward(&frame(2, 1), 0, 3, now), [2]);
        assert!(switch.forward(&frame(1, 1), 0, 3, now).is_empty());
        now += AGE_MAX;
        assert_eq!(switch.forward(&frame(2, 1), 0, 3, now), [1, 2]);
        let counters = switch.counters();
        assert_eq!(counters.received + counters.copies, counters.sent + counters.filtered);
    }
}
