//! Reductions of the window that were a mistake (RFC 4015): what must be known to detect and undo
//! them.
//!
//! Echoed timestamps (Eifel, RFC 3522), reported duplicates (RFC 3708) or F-RTO (RFC 5682) reveal a
//! mistake.

use crate::tcp::seq::Seq;
use crate::time::Instant;

/// State of the latest episode of recovery.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Undo {
    /// First unacknowledged number at the beginning of a reduction that may still be undone.
    from: Option<Seq>,
    /// Segments retransmitted since then and not reported as duplicates; `None` before any.
    resent: Option<u32>,
    /// Slow-start threshold to restore (pipe_prev of RFC 4015 §3).
    ssthresh: Option<u32>,
    /// When the first retransmission of this episode was sent (RetransmitTS of RFC 3522 §3.2).
    resent_at: Option<Instant>,
}

impl Undo {
    /// A reduction begins at `una`. Retransmissions in flight, `out`, may be reported as duplicates
    /// later.
    pub(super) fn begin(&mut self, una: Seq, out: u32) {
        self.from = Some(una);
        self.resent = (out > 0).then_some(out);
    }

    /// The reduction of now on must not be undone, or is undone.
    pub(super) fn forget(&mut self) {
        self.from = None;
    }

    /// Sets the threshold to restore; `None` if it must not be restored.
    pub(super) fn set_ssthresh(&mut self, ssthresh: Option<u32>) {
        self.ssthresh = ssthresh;
    }

    /// Counts `segments` that were retransmitted.
    pub(super) fn note_resent(&mut self, segments: u32, now: Instant) {
        self.resent_at.get_or_insert(now);
        self.resent = Some(self.resent.unwrap_or(0).saturating_add(segments));
    }

    /// Counts `count` retransmitted segments that were reported as duplicates, up to `end`.
    pub(super) fn note_duplicates(&mut self, count: u32, end: Seq) {
        if self.from.is_some_and(|from| end.after(from)) {
            self.resent = self.resent.map(|left| left.saturating_sub(count));
        }
    }

    /// Starts the episode's clock unless it runs.
    pub(super) fn start_clock(&mut self, now: Instant) {
        self.resent_at.get_or_insert(now);
    }

    /// Stops the episode's clock: nothing retransmitted is outstanding.
    pub(super) fn stop_clock(&mut self) {
        self.resent_at = None;
    }

    /// When the first retransmission of this episode was sent.
    pub(super) fn resent_at(&self) -> Option<Instant> {
        self.resent_at
    }

    /// Slow-start threshold to restore.
    pub(super) fn ssthresh(&self) -> Option<u32> {
        self.ssthresh
    }

    /// True if there is a reduction that may be undone.
    pub(super) fn is_open(&self) -> bool {
        self.from.is_some()
    }

    /// True if every retransmission was reported as a duplicate (RFC 3708).
    pub(super) fn all_duplicates(&self) -> bool {
        self.is_open() && self.resent == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::START;

    /// RFC 3708: the reduction was a mistake once every retransmission was reported as a duplicate;
    /// duplicates of earlier data do not count.
    #[test]
    fn all_retransmissions_must_be_duplicates() {
        let mut undo = Undo::default();
        undo.begin(Seq(100), 0);
        assert!(!undo.all_duplicates(), "nothing was retransmitted");
        undo.note_resent(2, NOW);
        undo.note_duplicates(1, Seq(100));
        undo.note_duplicates(1, Seq(200));
        assert!(!undo.all_duplicates());
        undo.note_duplicates(7, Seq(300));
        assert!(undo.all_duplicates());
        undo.forget();
        assert!(!undo.all_duplicates());
    }

    /// RFC 3522 §3.2: the first retransmission counts.
    #[test]
    fn the_clock_starts_once() {
        let mut undo = Undo::default();
        undo.note_resent(1, NOW);
        undo.note_resent(1, NOW + crate::time::Duration::from_millis(5));
        assert_eq!(undo.resent_at(), Some(NOW));
        undo.stop_clock();
        assert_eq!(undo.resent_at(), None);
    }
}
