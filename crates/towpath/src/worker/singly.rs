//! Whether packets of the inside come one at a time, as requests of one connection do.
//!
//! A device tells that it is empty by a system call that brings nothing: one for each burst, and so
//! one for each packet that comes alone. After [`SINGLY_MIN`] small packets that came alone the
//! next is taken without asking for another; if there is one after all, the file is still readable,
//! and the next turn takes it. One burst in [`ASKED_EVERY`] is asked for whole, so it is found out
//! when more come together. Large packets come in trains, and are always asked for.

use super::READ_BURST;

/// Small packets that have to come alone before it is relied on.
const SINGLY_MIN: u32 = 4;
/// One burst in so many is read until nothing is left, however the others were.
const ASKED_EVERY: u32 = 16;
/// Bytes of a packet that is no part of a train: one that was not segmented.
const SMALL_BYTES_MAX: usize = 1514;

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct Singly {
    /// Packets in a row that came alone.
    alone: u32,
}

impl Singly {
    /// Most packets to read now.
    pub(super) fn limit(&self) -> usize {
        let is_asked = self.alone < SINGLY_MIN || self.alone.is_multiple_of(ASKED_EVERY);
        if is_asked { READ_BURST } else { 1 }
    }

    /// So much came.
    pub(super) fn came(&mut self, packets: usize, bytes: usize) {
        let is_alone = packets == 1 && bytes <= SMALL_BYTES_MAX;
        self.alone = if is_alone { self.alone.wrapping_add(1) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_come_alone_are_not_asked_beyond() {
        let mut singly = Singly::default();
        let mut asked = 0;
        for at in 0..10 * ASKED_EVERY {
            assert!(at >= SINGLY_MIN || singly.limit() == READ_BURST, "little is known yet");
            asked += u32::from(singly.limit() == READ_BURST);
            singly.came(1, 60);
        }
        assert_eq!(asked, SINGLY_MIN + 9, "and then one in so many");
    }

    /// Goal: whatever comes together ends it, as does a part of a train.
    #[test]
    fn trains_are_read_whole() {
        for (packets, bytes) in [(2, 120), (1, SMALL_BYTES_MAX + 1)] {
            let mut singly = Singly::default();
            (0..=SINGLY_MIN).for_each(|_| singly.came(1, 60));
            assert_eq!(singly.limit(), 1);
            singly.came(packets, bytes);
            assert_eq!(singly.limit(), READ_BURST);
        }
    }
}
