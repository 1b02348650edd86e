//! One segment or super-packet to be sent.

use super::seq::Seq;
use crate::wire::tcp::Flags;

/// What is sent.
pub(super) struct Plan {
    pub(super) seq: Seq,
    /// Bytes of payload.
    pub(super) len: u32,
    /// A FIN follows the payload.
    pub(super) fin: bool,
    pub(super) flags: Flags,
    pub(super) kind: Kind,
}

impl Plan {
    /// A segment without data.
    pub(super) fn bare(seq: Seq, flags: Flags, kind: Kind) -> Self {
        Self { seq, len: 0, fin: false, flags, kind }
    }

    /// Sequence number after the last one.
    pub(super) fn end(&self) -> Seq {
        self.seq + self.len + u32::from(self.fin)
    }
}

/// Why it is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Syn,
    /// Data or FIN, sent for the first time.
    New,
    /// New data in one segment that is larger than others: a probe of the path MTU.
    MtuProbe,
    /// Data or FIN, retransmitted.
    Again,
    /// The last segment, retransmitted as a tail loss probe.
    Tail,
    Ack,
    Probe,
    Reset,
}
