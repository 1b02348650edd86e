//! What is learnt of the path: ICMP errors about segments of ours, and how large those may be.

use super::connection::{Connection, MSS_MIN, TIMESTAMPS_LEN};
use super::seq::Seq;
use super::state::{ConnectionError, State};
use crate::time::Instant;

impl Connection {
    /// An ICMP error that quotes `sequence` says that the peer cannot be reached. Ends an opening
    /// connection; an open one goes on trying (RFC 1122 §4.2.3.9, RFC 5461), and so does one that
    /// Fast Open let in and its owner has `accepted`, as on Linux.
    /// False if nothing of that number is on its way.
    pub fn unreachable(&mut self, sequence: Seq, accepted: bool) -> bool {
        if !self.was_sent(sequence) {
            return false;
        }
        let passive = self.state == State::SynReceived && !(self.fast_open.accepted && accepted);
        if passive || self.state == State::SynSent {
            self.finish(Some(ConnectionError::Unreachable));
        }
        true
    }

    /// An ICMP error that quotes `sequence` says that the path takes segments of `mss` bytes with
    /// options at most (RFC 1191, RFC 8201). What is outstanding is sent again: a SYN without the
    /// data that was too much. False if nothing of that number is on its way.
    pub fn too_big(&mut self, sequence: Seq, mss: u32, now: Instant) -> bool {
        if !self.was_sent(sequence) {
            return false;
        }
        if self.state == State::SynReceived || self.path_mtu_fixed {
            return true;
        }
        if self.state == State::SynSent {
            if self.fast_open.sent > 0 && mss < self.mss_local {
                self.mss_local = mss.max(MSS_MIN);
                self.send.syn_due = true;
            }
            return true;
        }
        let before = self.send.mss;
        self.limit_path(mss);
        if self.send.mss < before {
            self.resend_larger(now);
        }
        true
    }

    /// Whether errors about segments that are too large are believed (`IP_MTU_DISCOVER`).
    pub fn set_path_mtu(&mut self, believed: bool) {
        self.path_mtu_fixed = !believed;
    }

    /// The device takes segments of `mss` bytes with options at most, from now on.
    pub fn limit_mss(&mut self, mss: u32) {
        self.mss_local = self.mss_local.min(mss.max(MSS_MIN));
        self.limit_path(mss);
    }

    /// The path takes such segments at most.
    fn limit_path(&mut self, mss: u32) {
        self.path_mss = self.path_mss.min(mss.max(MSS_MIN));
        let options = if self.timestamps.enabled { TIMESTAMPS_LEN } else { 0 };
        let limited = mss.saturating_sub(options).max(MSS_MIN);
        if limited < self.send.mss {
            self.send.mss = limited;
        }
    }

    /// RFC 5927 §4: an error that quotes what is not outstanding is forged or late.
    fn was_sent(&self, sequence: Seq) -> bool {
        let first = if self.state.is_opening() { self.send.iss } else { self.send.una };
        sequence.at_or_after(first) && sequence.before(self.send.nxt)
    }
}
