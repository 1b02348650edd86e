//! A parsed segment, the sizes that segments may have, and the verdict on one that arrived.

use super::seq::Seq;
use crate::wire::tcp::{Flags, Header, Options};
use core::net::SocketAddr;

/// IPv4 segment size assumed if the peer sends no MSS option (RFC 9293 §3.7.1).
pub(super) const MSS_DEFAULT_V4: u32 = 536;
/// IPv6 segment size assumed if the peer sends no MSS option: 1280 bytes less 40 (IPv6 header) and
/// 20 (TCP header).
pub(super) const MSS_DEFAULT_V6: u32 = 1220;
/// Smallest segment size that a peer can impose: Linux's default of `net.ipv4.tcp_min_snd_mss`.
pub(super) const MSS_MIN: u32 = 48;
/// Bytes of the timestamps option with its padding.
pub(super) const TIMESTAMPS_LEN: u32 = 12;
/// Largest packet: the length field of IP has 16 bits.
pub(super) const SUPER_BYTES: u32 = 65_535;

/// Segment size to assume for `remote` while it has sent no MSS option.
pub(super) fn mss_default(remote: SocketAddr) -> u32 {
    if remote.is_ipv4() { MSS_DEFAULT_V4 } else { MSS_DEFAULT_V6 }
}

/// A parsed segment. Its payload is passed separately, as the pieces of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// The header.
    pub header: Header,
    /// Options of the header.
    pub options: Options,
    /// Bytes of payload.
    pub len: u32,
    /// ECN codepoint of the IP header ([`super::ecn::codepoint`]).
    pub ecn: u8,
}

impl Segment {
    pub(super) fn seq(&self) -> Seq {
        Seq(self.header.sequence)
    }

    pub(super) fn ack(&self) -> Seq {
        Seq(self.header.acknowledgment)
    }

    pub(super) fn has(&self, flags: Flags) -> bool {
        self.header.flags.intersects(flags)
    }

    /// Returns the segment without its data and FIN.
    pub(crate) fn without_data(mut self) -> Self {
        self.len = 0;
        self.header.flags.remove(Flags::FIN | Flags::PSH);
        self
    }

    /// Sequence numbers that the segment occupies.
    pub(super) fn seq_len(&self) -> u32 {
        self.len + u32::from(self.has(Flags::SYN)) + u32::from(self.has(Flags::FIN))
    }

    /// Sequence number after the last one of the segment.
    pub(super) fn end(&self) -> Seq {
        self.seq() + self.seq_len()
    }

    /// True if the segment has data or a FIN.
    pub(super) fn takes_numbers(&self) -> bool {
        self.len > 0 || self.has(Flags::FIN)
    }

    /// Header of the reset that answers this segment if no connection matches it (RFC 9293
    /// §3.10.7.1). `None` if the segment is a reset itself.
    pub fn reset(&self) -> Option<Header> {
        if self.has(Flags::RST) {
            return None;
        }
        let (sequence, acknowledgment, flags) = if self.has(Flags::ACK) {
            (self.ack().0, 0, Flags::RST)
        } else {
            (0, self.end().0, Flags::RST | Flags::ACK)
        };
        Some(Header {
            source_port: self.header.destination_port,
            destination_port: self.header.source_port,
            sequence,
            acknowledgment,
            flags,
            window: 0,
            checksum: 0,
            urgent: 0,
            header_len: 0,
        })
    }
}

/// Result of processing a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Processed; [`super::Connection::output`] builds the answer, if there is one.
    Done,
    /// Not acceptable; possibly answered with an ACK.
    Unacceptable,
    /// Not acceptable, and possibly forged: [`super::Connection::challenge`] answers it as far as
    /// the stack's budget allows (RFC 5961 §7).
    Challenge,
    /// Not acceptable; answered with a reset made from the segment.
    Reset,
    /// It acknowledges a SYN-ACK, which does not count before data arrives (`TCP_DEFER_ACCEPT`).
    Deferred,
    /// Its data was dropped: no memory or no room for more out-of-order data.
    NoRoom,
}
