//! Reasons to drop fragments and datagrams.

/// Reason to drop a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The IP header is invalid, or does not end where the packet's headers do.
    BadHeader,
    /// The payload is empty, or shorter than the IP header states.
    BadLength,
    /// The length is not a multiple of 8, and more fragments follow.
    NotMultipleOf8,
    /// The fragment or its datagram would exceed the longest IP packet.
    TooLong,
    /// The first fragment does not contain the whole transport header.
    Tiny,
    /// The fragment is an exact duplicate.
    Duplicate,
    /// The fragment overlaps another without being a duplicate.
    Overlap,
    /// The fragment's end conflicts with the end of the datagram.
    EndConflict,
    /// More than [`FRAGMENTS_MAX`](super::FRAGMENTS_MAX) fragments.
    TooManyFragments,
    /// Congestion is marked, but another fragment is not ECN-capable.
    Ecn,
    /// The datagram was dropped before.
    Dead,
    /// At the limits of the table, and the fragment's source uses most.
    NoRoom,
    /// No frames or packet handles were free when the datagram was complete.
    NoMemory,
}
