//! Explicit congestion notification (RFC 3168): how both sides agree on it, and how the receiver
//! echoes marks. The sender's part is its reaction, see `loss`.

use super::segment::Segment;
use crate::wire::tcp::Flags;
use core::fmt;

/// Codepoints in the two lowest bits of the type of service or traffic class (RFC 3168 §5).
pub mod codepoint {
    /// The sender does not support ECN.
    pub const NOT_ECT: u8 = 0;
    /// The sender supports ECN; the codepoint to send (`ecn/ecn-uses-ect0.pkt`).
    pub const ECT0: u8 = 2;
    /// Congestion experienced.
    pub const CE: u8 = 3;
    /// Mask of the two bits.
    pub const MASK: u8 = 3;
}

/// Use of ECN by new connections (`tcp_ecn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EcnUse {
    /// ECN is neither requested nor accepted.
    Off,
    /// ECN is requested and accepted.
    Request,
    /// ECN is only accepted.
    #[default]
    Accept,
}

impl EcnUse {
    /// The use that a value of `tcp_ecn` selects.
    pub fn from_setting(value: i64) -> Result<Self, UnknownEcnUse> {
        match value {
            0 => Ok(EcnUse::Off),
            1 => Ok(EcnUse::Request),
            2 => Ok(EcnUse::Accept),
            _ => Err(UnknownEcnUse(value)),
        }
    }
}

/// A value of `tcp_ecn` that selects no [`EcnUse`]. Values 3 to 5 mean Accurate ECN (RFC 9768) in
/// Linux's `ip-sysctl.rst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownEcnUse(pub i64);

impl fmt::Display for UnknownEcnUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "tcp_ecn is {}, but must be 0 (off), 1 (request and accept ECN) or 2 (accept ECN); \
             Accurate ECN (RFC 9768) is not implemented",
            self.0
        )
    }
}

impl core::error::Error for UnknownEcnUse {}

/// True if the peer's SYN asks for ECN: it has both flags and no codepoint (RFC 3168 §6.1.1).
pub(super) fn asks(syn: &Segment) -> bool {
    syn.header.flags.contains(Flags::ECE | Flags::CWR) && syn.ecn == codepoint::NOT_ECT
}

/// True if the peer's SYN-ACK agrees to ECN: it has ECE alone; both flags are a reflection (RFC
/// 3168 §6.1.1).
pub(super) fn agrees(answer: &Segment) -> bool {
    answer.has(Flags::ECE) && !answer.has(Flags::CWR)
}

/// The receiver's part (RFC 3168 §6.1.3).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Echo {
    /// Both sides agreed on ECN.
    enabled: bool,
    /// Congestion was experienced, and the peer has not confirmed a reduction yet.
    due: bool,
    /// A packet with an ECN-capable codepoint has arrived.
    seen: bool,
}

impl Echo {
    /// Sets whether both sides agreed on ECN.
    pub(super) fn agree(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Processes the ECN marks of a segment with data. Returns true if it must be acknowledged at
    /// once.
    pub(super) fn receive(&mut self, segment: &Segment) -> bool {
        if !self.enabled {
            return false;
        }
        let slowed = segment.has(Flags::CWR);
        if slowed {
            self.due = false;
        }
        match segment.ecn & codepoint::MASK {
            codepoint::CE => {
                self.seen = true;
                slowed | !core::mem::replace(&mut self.due, true)
            }
            // Most likely a retransmission (RFC 3168 §6.1.5).
            codepoint::NOT_ECT => slowed | self.seen,
            _ => {
                self.seen = true;
                slowed
            }
        }
    }

    /// True if both sides agreed on ECN.
    pub(super) fn enabled(&self) -> bool {
        self.enabled
    }

    /// True if segments echo congestion.
    pub(super) fn is_due(&self) -> bool {
        self.enabled && self.due
    }

    /// True if a packet with an ECN-capable codepoint has arrived.
    pub(super) fn seen(&self) -> bool {
        self.seen
    }
}
