//! One place to wait for everything: sockets of towpath and of the host, buffers that come back,
//! timers, files that change, signals, children, other threads, and operations on files.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use towpath::events::{EventQueue, News, Source};
//!
//! let mut queue = EventQueue::new()?;
//! let timer = queue.add(Source::at(Instant::now() + Duration::from_millis(5)), 7)?;
//! let other = queue.add(Source::user(), 8)?;
//! let notifier = queue.notifier(other).expect("it is registered");
//! std::thread::spawn(move || notifier.notify());
//!
//! let mut events = Vec::new();
//! queue.wait_many(&mut events, 2..=64, None)?;
//! events.sort_by_key(|event| event.data);
//! assert_eq!((events[0].token, events[0].news), (timer, News::Expired { count: 1 }));
//! assert_eq!((events[1].token, events[1].news), (other, News::Notified { count: 1 }));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Theory of operation
//!
//! [`EventQueue::add`] registers a [`Source`] with a number of the caller's and returns a
//! [`Token`]. All news come by one way, a wait, as [`Event`]s of fixed size; what holds already
//! when something is added is told by the next wait. A token names its registration and no other,
//! for ever: after the removal nothing is told of it, whatever was on its way, and calls refuse it.
//!
//! A wait tells at least as many events as it was asked for, unless its deadline passes first; and
//! takes them by turns from the kernel, from towpath's own sources and from the timers, so that
//! none of them starves another. A registration is told of once in a wait, unless it is by edge or
//! a [send](EventQueue::send), which may be accepted and over in one.
//!
//! Operations are begun and told when they are over: on files ([`EventQueue::submit`]), on streams
//! of towpath and of the kernel ([`EventQueue::connect`], [`accept`](EventQueue::accept),
//! [`receive`](EventQueue::receive), [`receive_multishot`](EventQueue::receive_multishot),
//! [`receive_lent`](EventQueue::receive_lent),
//! [`send`](EventQueue::send)), and between them ([`send_file`](EventQueue::send_file),
//! [`receive_file`](EventQueue::receive_file), [`splice`](EventQueue::splice)); on datagram, raw
//! and packet sockets of towpath ([`receive_datagram`](EventQueue::receive_datagram),
//! [`receive_datagram_lent`](EventQueue::receive_datagram_lent),
//! [`send_datagrams`](EventQueue::send_datagrams)). The kernel or threads carry out
//! what is the kernel's, the waits themselves what is towpath's.
//!
//! The queue keeps what it was given open: a file or a socket is closed when it was removed *and*
//! dropped by its owner.
//!
//! One thread at a time uses a queue; any thread may [notify](Notifier). A queue belongs to the
//! process that made it: in the child of a fork every call fails. What things cost, and what
//! happens at the end, is in `docs/theory/events.md`.

mod clock;
pub mod custom;
mod expose;
mod exposed;
mod operations;
mod queue;
mod registrations;
mod wait;

pub use crate::host::files::file_cache::{BlockRange, FileCache, Load};
pub use crate::host::files::file_source::FileSource;
pub use operations::completion::{Completed, Completion, Connected, Sent};
pub use operations::datagrams::{ReceivedInto, ReceivedLent};
pub use operations::files::Refused;
pub use operations::streams::NotBegun;
pub use operations::transfer::FileSent;
pub use queue::{Change, Config, EventQueue, REGISTRATIONS_DEFAULT};
pub use registrations::changes::Changes;
pub use registrations::multishot::Received;
pub use registrations::pool::{GROUP_BUFFERS_MAX, GROUPS_MAX, Group};
pub use registrations::relay::Moved;
pub use registrations::socket::{DatagramSocket, Listener, Stack, Stream};
pub use registrations::source::{Exit, Notifier, Source};
pub use towpath_io::events::{
    Action, Call, Calls, Choice, Interest, Memory, Operation, Readiness, SendFile, Trigger,
};
pub use wait::EVENTS_DEFAULT;

/// Names a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    slot: u32,
    generation: u32,
}

impl Token {
    /// The token as a number, for whoever hands it through another language.
    pub fn bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The token of such a number. One that nobody was given is stale, or of another registration.
    pub fn from_bits(bits: u64) -> Self {
        Self { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// News of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which.
    pub token: Token,
    /// The number that it was added with.
    pub data: u64,
    /// What.
    pub news: News,
    /// The registration is over, and its token refused from now on.
    pub is_over: bool,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// A file descriptor or socket is ready, which was so when it was looked at: reading or writing
    /// may find that it would block all the same.
    Ready(Readiness),
    /// The buffer of a send is back, and [`Sending::returned`](crate::host::Sending::returned)
    /// does not wait. The registration is over.
    Returned {
        /// Bytes of it were copied.
        copied: bool,
    },
    /// A timer has expired. The registration of one that is not periodic is over.
    Expired {
        /// How often since it was last told.
        count: u64,
    },
    /// A [`Notifier`] was used.
    Notified {
        /// How often since it was last told.
        count: u64,
    },
    /// A signal came. Signals of the same number that come close together are one.
    Signal {
        /// Its number.
        signal: i32,
        /// The process that sent it; 0 if none did.
        sender: u32,
    },
    /// A process has ended. A child is still to be waited for. The registration is over.
    Exited(Exit),
    /// A file or directory has changed.
    Changed(Changes),
    /// There is a connection: [`EventQueue::take`] has it.
    Connection,
    /// A socket has accepted a buffer, which will be sent. Its memory is not back: that is told by
    /// [`News::Completed`].
    Accepted {
        /// The first bytes of it: all, or those that were copied before the connection failed.
        bytes: usize,
    },
    /// Bytes were received: [`EventQueue::take`] has them.
    Received {
        /// How many.
        bytes: usize,
    },
    /// There are bytes to receive, and no buffer in the group. It goes on with one that is
    /// [given](EventQueue::give).
    Starved,
    /// A [task](EventQueue::start) tells this.
    Step {
        /// Its own.
        result: i64,
    },
    /// An operation is over, and what it was given is back: [`EventQueue::take`] has what became of
    /// it, and ends the registration.
    Completed,
}
