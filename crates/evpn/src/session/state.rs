//! What a session tells about itself: its state and its counters.

/// State of a session (RFC 4271 §8.2.2; `Active`, which waits for the neighbour's connection, does
/// not occur).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Waits until the next attempt.
    Idle,
    /// The owner connects.
    Connect,
    /// Connected; the neighbour's OPEN message is expected.
    OpenSent,
    /// The neighbour has yet to confirm this host's OPEN message.
    OpenConfirm,
    /// Routes are exchanged.
    Established,
}

impl State {
    /// All states, in the order in which a session passes them.
    pub const ALL: [Self; 5] =
        [Self::Idle, Self::Connect, Self::OpenSent, Self::OpenConfirm, Self::Established];

    /// Its name in RFC 4271.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::Connect => "Connect",
            Self::OpenSent => "OpenSent",
            Self::OpenConfirm => "OpenConfirm",
            Self::Established => "Established",
        }
    }
}

/// Messages since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// All messages received.
    pub received: u64,
    /// UPDATE messages received.
    pub updates_received: u64,
    /// All messages sent.
    pub sent: u64,
    /// UPDATE messages sent.
    pub updates_sent: u64,
    /// Times that the session was established.
    pub established: u64,
    /// Sessions that ended because of what the neighbour sent.
    pub errors: u64,
}
