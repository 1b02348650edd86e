//! One connection: it routes segments, calls and timers to its parts, and holds what joins them.
//!
//! The parts do not know each other: `Sender`, `Receiver`, `Handshake`, `Keepalive`. A connection
//! gives each what it needs of the others, and acts on their results: it changes state (RFC 9293
//! §3.3.2), builds packets, and notes events for the owner. `input` and `opening` follow the order
//! of checks of RFC 9293 §3.10.7, `output` chooses and builds the next packet, `timers` asks each
//! part when its deadline passes, `closing` ends connections, `owner` has the owner's calls, `info`
//! shows the state of all parts.

/// What a call of the sender needs to know; borrows only some fields.
macro_rules! turn {
    ($connection:expr, $now:expr) => {
        Turn {
            settings: &$connection.settings,
            timestamps: &$connection.timestamps,
            owned: $connection.owned,
            sack_len: $connection.receive.sack_len(),
            now: $now,
        }
    };
}

/// Passes calls on to a part of the connection.
macro_rules! forward {
    ($part:ident:) => {};
    ($part:ident: $(#[$doc:meta])* fn $name:ident(&self $(, $arg:ident: $type:ty)*)
        $(-> $result:ty)?; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $name(&self $(, $arg: $type)*) $(-> $result)? {
            self.$part.$name($($arg),*)
        }
        forward!($part: $($rest)*);
    };
    ($part:ident: $(#[$doc:meta])* fn $name:ident(&mut self $(, $arg:ident: $type:ty)*)
        $(-> $result:ty)?; $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $name(&mut self $(, $arg: $type)*) $(-> $result)? {
            self.$part.$name($($arg),*)
        }
        forward!($part: $($rest)*);
    };
}

mod closing;
mod errors;
mod info;
mod input;
mod opening;
mod output;
mod owner;
#[cfg(test)]
mod tests;
mod timers;
mod writing;

use super::handshake::Handshake;
use super::info::Info;
use super::keepalive::Keepalive;
use super::receiver::{Flow, Receiver};
use super::segment::{Segment, mss_default};
use super::sender::{Path, SegmentSizes, Sender, Turn};
use super::seq::Seq;
use super::settings::Settings;
use super::state::{ConnectionError, Events, State};
use super::timestamps::Timestamps;
use crate::time::Instant;
pub(crate) use closing::TimeWaitState;
use core::net::SocketAddr;
use info::Counters;
pub use opening::Opening;

/// One connection.
pub struct Connection {
    local: SocketAddr,
    remote: SocketAddr,
    state: State,
    owned: bool,
    /// The connection waits in a listener's queue and is not accepted yet.
    pub(crate) is_queued: bool,
    error: Option<ConnectionError>,
    events: Events,
    settings: Settings,
    timestamps: Timestamps,
    handshake: Handshake,
    receive: Receiver,
    send: Sender,
    keepalive: Keepalive,
    /// End of FIN-WAIT-2 without an owner.
    fin_wait: Option<Instant>,
    reset_due: bool,
    /// When a segment that may be forged was last answered.
    answered_at: Option<Instant>,
    ip: IpFields,
    counters: Counters,
}

/// Fields of the IP header of the connection's packets.
#[derive(Clone, Copy, Debug, Default)]
struct IpFields {
    /// Upper six bits of the TOS or traffic-class octet: the DSCP (RFC 2474).
    traffic_class: u8,
    /// ECN codepoint of the packet built last.
    codepoint: u8,
    ttl: Option<u8>,
}

impl Connection {
    fn new(
        opening: Opening,
        (state, handshake): (State, Handshake),
        settings: &Settings,
        now: Instant,
    ) -> Self {
        let Opening { local, remote, sizes, .. } = opening;
        let (v4, discovery) = (remote.is_ipv4(), settings.path_mtu_of(remote));
        let path = Path::new(sizes, (v4, mss_default(remote)), discovery, now);
        let receive = Receiver::new(settings, path.mss(), sizes.advertised, v4, now);
        Self {
            local,
            remote,
            state,
            owned: true,
            is_queued: false,
            error: None,
            events: Events::default(),
            settings: *settings,
            timestamps: Timestamps::new(opening.timestamp_offset, now),
            handshake,
            receive,
            send: Sender::new(settings, Seq(opening.iss), path, now),
            keepalive: Keepalive::new(settings),
            fin_wait: None,
            reset_due: false,
            answered_at: None,
            ip: IpFields::default(),
            counters: Counters::default(),
        }
    }

    /// State of the connection.
    pub fn state(&self) -> State {
        self.state
    }

    /// Our address and port.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The peer's address and port.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Error that ended the connection; `None` if both sides closed it.
    pub fn error(&self) -> Option<ConnectionError> {
        self.error
    }

    /// The peer's initial sequence number.
    pub fn irs(&self) -> u32 {
        self.receive.irs().0
    }

    /// Returns the events since the last call and clears them.
    pub fn take_events(&mut self) -> Events {
        core::mem::take(&mut self.events)
    }

    /// True if there are events to take.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    fn note(&mut self, events: Events) {
        self.events |= events;
    }
}

/// What the receiver needs to know of the sending side.
fn flow(send: &Sender, now: Instant) -> Flow<'_> {
    Flow { rtt: send.rtt(), mss: send.mss(), now }
}
