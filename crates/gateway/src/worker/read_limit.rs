//! How many packets of the inside to read at once: as many as came like the last ones.
//!
//! Datagrams that the program sends one by one are joined within a burst, and so is work for the
//! host's sockets, so that small packets are read many at a time; super-packets are read few at a
//! time, so that they stay in the cache until the host's sockets have taken them. So a burst has
//! room for [`BURST_BYTES`] of packets like those of the last one, and for twice as many at most:
//! what comes after a few small ones may be large.
//!
//! Packets may also come one at a time, as requests of one connection do. A device tells that it is
//! empty by a system call that brings nothing: one for each burst, and so one for each packet that
//! comes alone. After [`SINGLY_MIN`] small packets that came alone the next is taken without asking
//! for another; if there is one after all, the file is still readable, and the next turn takes it.
//! One burst in [`ASKED_EVERY`] is asked for whole, so it is found out when more come together.
//! Large packets come in trains, and are always asked for.
//!
//! Of small packets a turn of the worker reads fewer than of others ([`ReadLimit::expects_small`]),
//! so that a flood of them takes little of the thread.

use towpath_packet::burst::BURST_MAX;

/// Packets of a burst, at least, however large they are.
const BURST_MIN: usize = 8;
/// Bytes of a burst, if more than [`BURST_MIN`] packets come to less: of datagrams, what one call
/// for a host socket takes.
const BURST_BYTES: usize = 64 << 10;
/// Small packets that have to come alone before it is relied on.
const SINGLY_MIN: u32 = 4;
/// One burst in so many is read until nothing is left, however the others were.
const ASKED_EVERY: u32 = 16;
/// Most bytes of a small packet, on average over a burst: it costs as much work as one of an MTU.
const SMALL_BYTES_MAX: usize = 512;
/// Most bytes of a packet that is no part of a train: one that was not segmented.
const UNSEGMENTED_BYTES_MAX: usize = 1514;

/// See the module text.
#[derive(Debug)]
pub(super) struct ReadLimit {
    /// Packets of a burst that are like the last ones.
    burst: usize,
    /// Packets in a row that came alone.
    alone: u32,
    /// The packets of the last burst were small.
    are_small: bool,
}

impl ReadLimit {
    pub(super) const fn new() -> Self {
        Self { burst: BURST_MIN, alone: 0, are_small: false }
    }

    /// Most packets to read now from what tells by a call that it is empty, or not.
    pub(super) fn get(&self, looks_by_call: bool) -> usize {
        let is_asked = self.alone < SINGLY_MIN || self.alone.is_multiple_of(ASKED_EVERY);
        if is_asked || !looks_by_call { self.burst } else { 1 }
    }

    /// True if the last burst was of small packets, as floods are.
    pub(super) fn expects_small(&self) -> bool {
        self.are_small
    }

    /// So much came.
    pub(super) fn came(&mut self, packets: usize, bytes: usize) {
        let is_alone = packets == 1 && bytes <= UNSEGMENTED_BYTES_MAX;
        self.alone = if is_alone { self.alone.wrapping_add(1) } else { 0 };
        if packets > 0 {
            let alike = (BURST_BYTES * packets / bytes.max(1)).min(2 * packets);
            self.burst = alike.clamp(BURST_MIN, BURST_MAX);
            self.are_small = bytes <= SMALL_BYTES_MAX * packets;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_come_alone_are_not_asked_beyond() {
        let mut limit = ReadLimit::new();
        let mut asked = 0;
        for at in 0..10 * ASKED_EVERY {
            assert!(at >= SINGLY_MIN || limit.get(true) > 1, "little is known yet");
            assert!(limit.get(false) > 1, "looking costs nothing");
            asked += u32::from(limit.get(true) > 1);
            limit.came(1, 60);
        }
        assert_eq!(asked, SINGLY_MIN + 9, "and then one in so many");
    }

    /// Goal: whatever comes together ends it, as does a part of a train.
    #[test]
    fn trains_are_read_whole() {
        for (packets, bytes) in [(2, 120), (1, UNSEGMENTED_BYTES_MAX + 1)] {
            let mut limit = ReadLimit::new();
            (0..=SINGLY_MIN).for_each(|_| limit.came(1, 60));
            assert_eq!(limit.get(true), 1);
            limit.came(packets, bytes);
            assert!(limit.get(true) > 1);
        }
    }

    #[test]
    fn what_floods_send_is_small() {
        let mut limit = ReadLimit::new();
        for (packets, bytes, expected) in [
            (64, 64 * 60, true),
            (0, 0, true),
            (8, 8 * 1514, false),
            (1, 512, true),
            (1, 513, false),
        ] {
            limit.came(packets, bytes);
            assert_eq!(limit.expects_small(), expected, "{packets} packets of {bytes} bytes");
        }
    }

    /// Goal: small packets fill a burst, super-packets have a few, and each change is followed.
    #[test]
    fn a_burst_has_room_for_its_bytes() {
        let mut limit = ReadLimit::new();
        assert_eq!(limit.get(true), BURST_MIN);
        for (packets, bytes, expected) in [
            (1, 60, BURST_MIN),
            (8, 8 * 60, 16),
            (16, 16 * 60, 32),
            (32, 32 * 1514, 43),
            (43, 43 * 1514, 43),
            (43, 43 * 60, BURST_MAX),
            (8, 8 * 65_535, BURST_MIN),
            (8, 8 * 6000, 10),
            (0, 0, 10),
            (64, 0, BURST_MAX),
            (1, usize::MAX, BURST_MIN),
        ] {
            limit.came(packets, bytes);
            assert_eq!(limit.get(true), expected, "{packets} of {bytes} bytes");
        }
    }
}
