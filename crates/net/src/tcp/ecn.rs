//! Explicit congestion notification (RFC 3168).

use super::connection::Segment;
use crate::wire::tcp::Flags;

/// Codepoints in the two lowest bits of the type of service or traffic class (RFC 3168 §5).
pub mod codepoint {
    /// The sender does not support ECN.
    pub const NOT_ECT: u8 = 0;
    /// The sender supports ECN; the codepoint that Linux sends.
    pub const ECT0: u8 = 2;
    /// Congestion experienced.
    pub const CE: u8 = 3;
    /// Mask of the two bits.
    pub const MASK: u8 = 3;
}

/// ECN state of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ecn {
    /// Our SYN asks for ECN.
    pub(super) asked: bool,
    /// Both sides agreed on ECN.
    pub(super) enabled: bool,
    /// Congestion was experienced, and the peer has not confirmed a reduction yet (RFC 3168
    /// §6.1.3).
    pub(super) echo: bool,
    /// We reduced the window and have not sent CWR yet (RFC 3168 §6.1.2).
    pub(super) reduced: bool,
    /// A packet with an ECN-capable codepoint has arrived.
    pub(super) seen: bool,
}

impl Ecn {
    /// Takes the peer's SYN: it asks with both flags and has no codepoint (RFC 3168 §6.1.1).
    pub(super) fn take_syn(&mut self, syn: &Segment, setting: u8) {
        let asks = syn.header.flags.contains(Flags::ECE | Flags::CWR);
        self.enabled = asks && setting != 0 && syn.ecn == codepoint::NOT_ECT;
    }

    /// Takes the peer's SYN-ACK: it agrees with ECE alone; both flags are a reflection (RFC 3168
    /// §6.1.1).
    pub(super) fn take_answer(&mut self, answer: &Segment) {
        let agrees = answer.has(Flags::ECE) && !answer.has(Flags::CWR);
        self.enabled = self.asked && agrees;
    }

    /// Processes the ECN marks of a segment with data. Returns true if it must be acknowledged at
    /// once.
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
            // Most likely a retransmission (RFC 3168 §6.1.5).
            codepoint::NOT_ECT => slowed | self.seen,
            _ => {
                self.seen = true;
                slowed
            }
        }
    }

    /// Flags and codepoint of a segment to be sent. `fresh` means that it carries new data (RFC
    /// 3168 §6.1.5).
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
