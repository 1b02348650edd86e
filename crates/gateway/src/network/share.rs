//! A port's share of the gateway. The gateway serves packets in order of arrival, so the amount
//! read from a port at a time decides how much of the gateway's thread its guest gets.
//!
//! A port that alone uses the gateway is read one burst at a time. While several ports use it, each
//! is read for packets that take about the same time: a packet costs [`PACKET_COST`] plus its
//! bytes, and a share is [`SHARE`]. So a flood of small packets and a flow of super-packets get
//! half of the thread each, if both can use it.

use std::time::Duration;

use towpath_net::time::Instant;
use towpath_packet::burst::BURST_MAX;
use towpath_packet::under_way::UnderWay;

/// Cost of a packet in addition to its bytes, in bytes copied.
const PACKET_COST: usize = 8 << 10;
/// Cost of the packets read from a port at a time while others use the gateway too: 18 packets of
/// 64 bytes, 15 of 1500, or two super-packets.
const SHARE: usize = 150 << 10;
/// How long a port counts as a user of the gateway after its last packet to it.
const USES_FOR: Duration = Duration::from_millis(10);

/// A port's current use of the gateway.
pub(super) struct PortShare {
    /// Packets of the port that wait for the gateway.
    waiting: usize,
    /// Cost of a packet, on average over the last burst.
    cost: usize,
    /// The port counts as a user of the gateway until then.
    used_until: Instant,
}

impl PortShare {
    pub(super) const fn new() -> Self {
        Self { waiting: 0, cost: PACKET_COST, used_until: Instant::START }
    }

    /// Returns true if the port recently had a packet for the gateway.
    pub(super) fn is_used(&self, now: Instant) -> bool {
        self.used_until > now
    }

    /// Returns how many packets to read from the port now. `is_shared`: other ports use the gateway
    /// too.
    pub(super) fn room(&self, is_shared: bool, now: Instant) -> usize {
        if !is_shared || !self.is_used(now) {
            return if self.waiting < BURST_MAX { BURST_MAX } else { 0 };
        }
        self.share().saturating_sub(self.waiting)
    }

    /// Returns the packets of a share.
    fn share(&self) -> usize {
        (SHARE / self.cost).clamp(1, BURST_MAX)
    }

    /// For a port of another thread than the gateway's: takes note of its packets that are
    /// `under_way`. Returns true if the port must not be read before half of a share is left of
    /// them; then [`UnderWay::finish`] tells when that is so.
    pub(super) fn hold(&mut self, is_shared: bool, now: Instant, under_way: &UnderWay) -> bool {
        self.waiting = under_way.count();
        if self.room(is_shared, now) > 0 {
            return false;
        }
        let waits = under_way.wait(self.share() / 2);
        self.waiting = under_way.count();
        waits
    }

    /// Records a received burst; `waiting` of its packets wait for the gateway now.
    pub(super) fn came(&mut self, packets: usize, bytes: usize, waiting: usize, now: Instant) {
        self.cost = PACKET_COST + bytes / packets.max(1);
        if waiting > 0 {
            self.waiting += waiting;
            self.used_until = now + USES_FOR;
        }
    }

    /// Records that packets wait for another thread to judge them.
    pub(super) fn wait_for(&mut self, packets: usize) {
        self.waiting += packets;
    }

    /// Sets how many packets of the port wait for the gateway, when another worker takes it over.
    pub(super) fn take_over(&mut self, waiting: usize) {
        self.waiting = waiting;
    }

    /// The gateway took a packet.
    pub(super) fn taken(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// No packet waits for the gateway.
    pub(super) fn all_taken(&mut self) {
        self.waiting = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_micros(1_000_000);

    /// Goal: shares take about the same time, whatever is sent. Method: packets of one size each,
    /// and how many are read next.
    #[test]
    fn shares_weigh_packets_and_bytes() {
        for (bytes, room) in [(64, 18), (660, 17), (1514, 15), (9014, 8), (65_549, 2)] {
            let mut share = PortShare::new();
            share.came(8, 8 * bytes, 1, NOW);
            share.taken();
            assert_eq!(share.room(true, NOW), room, "packets of {bytes} bytes");
            assert_eq!(share.room(false, NOW), BURST_MAX, "no other port uses the gateway");
        }
    }

    #[test]
    fn what_waits_is_part_of_the_share() {
        let mut share = PortShare::new();
        share.came(10, 640, 10, NOW);
        assert_eq!(share.room(true, NOW), 8);
        assert_eq!(share.room(false, NOW), BURST_MAX);
        share.came(54, 640, 54, NOW);
        assert_eq!((share.room(true, NOW), share.room(false, NOW)), (0, 0));
        share.all_taken();
        assert_eq!(share.room(true, NOW), 18);
    }

    /// Goal: a port whose guest talks only to other guests is read in whole bursts, as is a port
    /// some time after its last packet to the gateway.
    #[test]
    fn a_guest_without_gateway_traffic_has_whole_bursts() {
        let mut share = PortShare::new();
        share.came(64, 4096, 0, NOW);
        assert!(!share.is_used(NOW));
        assert_eq!(share.room(true, NOW), BURST_MAX);
        share.came(64, 4096, 1, NOW);
        assert!(share.is_used(NOW));
        assert!(!share.is_used(NOW + USES_FOR));
    }
}
