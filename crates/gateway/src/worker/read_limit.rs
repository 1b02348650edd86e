//! Limits the number of packets to read from the inside at once, by the size of the last ones.
//!
//! Small packets are read many at a time: datagrams that the program sends one by one are joined
//! within a burst, and so is the work for the host's sockets. Super-packets are read few at a time,
//! so that they stay in the cache until the host's sockets have taken them. So a burst has room for
//! [`BURST_BYTES`] of packets of the last burst's size, and for twice as many packets as that burst
//! at most: large packets may follow a few small ones.
//!
//! Packets may also come one at a time, such as the requests of one connection. A device reports
//! that it is empty by a system call that returns nothing: one call per burst, so one for each
//! packet that comes alone. After [`SINGLY_MIN`] small packets that came alone, the worker takes
//! the next one without asking for another. If there is another, the file is still readable, and
//! the next turn takes it. One burst in [`ASKED_EVERY`] is read to its end, to notice when packets
//! come together again. Large packets come in trains and are always read to the end.
//!
//! A turn of the worker reads fewer small packets than others ([`ReadLimit::expects_small`]), so
//! that a flood of them takes little of the thread.

use towpath_packet::burst::BURST_MAX;

/// Least room of a burst in packets, however large they are.
const BURST_MIN: usize = 8;
/// Bytes that a burst has room for if more than [`BURST_MIN`] packets fit: of datagrams, what one
/// call for a host socket takes.
const BURST_BYTES: usize = 64 << 10;
/// Small packets in a row that must come alone before the next is expected alone.
const SINGLY_MIN: u32 = 4;
/// One burst in this many is read until nothing is left, whatever came before.
const ASKED_EVERY: u32 = 16;
/// Most bytes of a small packet, on average over a burst: it costs as much work as one of a full
/// MTU.
const SMALL_BYTES_MAX: usize = 512;
/// Most bytes of a packet that is not part of a train: a packet that was not segmented.
const UNSEGMENTED_BYTES_MAX: usize = 1514;

/// The limit, and the recent packets that it depends on.
#[derive(Debug)]
pub(super) struct ReadLimit {
    /// Room of a burst of packets like the last ones.
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

    /// Returns the most packets to read now. `looks_by_call`: the device needs a system call to
    /// report that it is empty.
    pub(super) fn get(&self, looks_by_call: bool) -> usize {
        let is_asked = self.alone < SINGLY_MIN || self.alone.is_multiple_of(ASKED_EVERY);
        if is_asked || !looks_by_call { self.burst } else { 1 }
    }

    /// Returns true if the last burst was of small packets, as in a flood.
    pub(super) fn expects_small(&self) -> bool {
        self.are_small
    }

    /// Records the size of a received burst.
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
            assert!(at >= SINGLY_MIN || limit.get(true) > 1, "too few packets came alone yet");
            assert!(limit.get(false) > 1, "asking costs no call");
            asked += u32::from(limit.get(true) > 1);
            limit.came(1, 60);
        }
        assert_eq!(asked, SINGLY_MIN + 9, "and then one burst in ASKED_EVERY");
    }

    /// Goal: packets that come together, or part of a train, end reading one at a time.
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

    /// Goal: many small packets fill a burst, few super-packets do, and the limit follows each
    /// change.
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
