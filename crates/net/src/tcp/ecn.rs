//! Explicit congestion notification (RFC 3168).

use super::connection::Segment;
use crate::wire::tcp::Flags;

/// Codepoints in the two lowest bits of the type of service or traffic class (RFC 3168 §5).
pub mod codepoint {
    /// The sender does not understand ECN.
    pub const NOT_ECT: u8 = 0;
    /// The sender does: what Linux sends.
    pub const ECT0: u8 = 2;
    /// Congestion experienced.
    pub const CE: u8 = 3;
    /// The bits.
    pub const MASK: u8 = 3;
}

/// What a connection knows of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ecn {
    /// Our SYN asks for it.
    pub(super) asked: bool,
    /// Both sides understand it.
    pub(super) enabled: bool,
    /// Congestion was experienced, and the peer has not said that it slowed down (§6.1.3).
    pub(super) echo: bool,
    /// We slowed down and have not said so (§6.1.2).
    pub(super) reduced: bool,
    /// A packet that could be marked has been seen.
    pub(super) seen: bool,
}

impl Ecn {
    /// §6.1.1: a SYN asks with both flags, and comes without a codepoint.
    pub(super) fn take_syn(&mut self, syn: &Segment, setting: u8) {
        let asks = syn.header.flags.contains(Flags::ECE | Flags::CWR);
        self.enabled = asks && setting != 0 && syn.ecn == codepoint::NOT_ECT;
    }

    /// §6.1.1: an answer agrees with one flag; both would be a reflection.
    pub(super) fn take_answer(&mut self, answer: &Segment) {
        let agrees = answer.has(Flags::ECE) && !answer.has(Flags::CWR);
        self.enabled = self.asked && agrees;
    }

    /// Takes in the marks of a segment with data. True if it is to be acknowledged at once.
    pub(super) fn receive(&mut self, segment: &Segment) -> bool {
        if !self.enabled {
            return false;
        }
        let slowed = segment.has(Flags::CWR);
        if slowed {
            self.echo = false;
        }
        match segment.ecn & codepoint::MASK {
            codepoint::CE => {
                self.seen = true;
                slowed | !core::mem::replace(&mut self.echo, true)
            }
            // A retransmission, most likely (RFC 3168 §6.1.5).
            codepoint::NOT_ECT => slowed | self.seen,
            _ => {
                self.seen = true;
                slowed
            }
        }
    }

    /// Flags and codepoint of a segment to be sent; `fresh` if it has data and goes for the first
    /// time (§6.1.5).
    pub(super) fn mark(&mut self, fresh: bool) -> (Flags, u8) {
        if !self.enabled {
            return (Flags::NONE, codepoint::NOT_ECT);
        }
        let mut flags = if self.echo { Flags::ECE } else { Flags::NONE };
        if !fresh {
            return (flags, codepoint::NOT_ECT);
        }
        if core::mem::take(&mut self.reduced) {
            flags |= Flags::CWR;
        }
        (flags, codepoint::ECT0)
    }
}
