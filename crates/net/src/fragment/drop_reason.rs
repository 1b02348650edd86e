//! Why fragments and datagrams are dropped.

use core::fmt;

/// Why a fragment was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// No valid IP header, or it does not end where the packet's headers do.
    BadHeader,
    /// Less payload than the IP header says, or none.
    BadLength,
    /// More fragments follow one whose length is not a multiple of 8.
    NotMultipleOf8,
    /// It reaches beyond the longest IP packet, or the whole would.
    TooLong,
    /// The first fragment does not hold a whole transport header.
    Tiny,
    /// It is there already.
    Duplicate,
    /// It overlaps another without being the same.
    Overlap,
    /// It ends where the datagram does not, or beyond its end.
    EndConflict,
    /// More than [`FRAGMENTS_MAX`](super::FRAGMENTS_MAX) fragments.
    TooManyFragments,
    /// Congestion was marked on a datagram whose sender, by another fragment, does not know ECN.
    Ecn,
    /// Its datagram was dropped before.
    Dead,
    /// It does not fit the table beside what is held for its source.
    NoRoom,
    /// Frames or packet handles ran out when the datagram was whole.
    NoMemory,
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadHeader => "fragment with a bad IP header",
            Self::BadLength => "fragment with a bad length",
            Self::NotMultipleOf8 => "fragment whose length is not a multiple of 8",
            Self::TooLong => "fragment beyond the longest packet",
            Self::Tiny => "first fragment without transport header",
            Self::Duplicate => "duplicate fragment",
            Self::Overlap => "overlapping fragment",
            Self::EndConflict => "fragments with different ends",
            Self::TooManyFragments => "too many fragments",
            Self::Ecn => "fragments with contradicting ECN",
            Self::Dead => "fragment of a dropped datagram",
            Self::NoRoom => "no room for fragment",
            Self::NoMemory => "no memory for reassembled datagram",
        })
    }
}
