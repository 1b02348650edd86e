//! What a session tells about itself: its state and its counters.

/// Who opened a connection. A neighbour has at most one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// This host.
    Opened,
    /// The neighbour.
    Accepted,
    /// The neighbour, while there was one that it had opened before.
    AcceptedAgain,
}

impl Link {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Opened, Self::Accepted, Self::AcceptedAgain];

    /// True if the neighbour has opened the connection.
    pub fn is_accepted(self) -> bool {
        self != Self::Opened
    }
}

/// State of a session (RFC 4271 §8.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Waits until the next attempt.
    Idle,
    /// The owner connects.
    Connect,
    /// The neighbour is to connect: this host is passive.
    Active,
    /// Connected; the neighbour's OPEN message is expected.
    OpenSent,
    /// The neighbour has yet to confirm this host's OPEN message.
    OpenConfirm,
    /// Routes are exchanged.
    Established,
}

impl State {
    /// All states, in the order in which a session passes them.
    pub const ALL: [Self; 6] = [
        Self::Idle,
        Self::Connect,
        Self::Active,
        Self::OpenSent,
        Self::OpenConfirm,
        Self::Established,
    ];

    /// Its name in RFC 4271.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::Connect => "Connect",
            Self::Active => "Active",
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

impl Counters {
    pub(super) fn add(&mut self, other: &Self) {
        let Self { received, updates_received, sent, updates_sent, established, errors } = other;
        self.received += received;
        self.updates_received += updates_received;
        self.sent += sent;
        self.updates_sent += updates_sent;
        self.established += established;
        self.errors += errors;
    }
}
