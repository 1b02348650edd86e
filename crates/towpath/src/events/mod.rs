//! An event queue: one place to wait for sockets of towpath and of the kernel, returned buffers,
//! timers, file changes, signals, child processes, other threads, and operations on files and
//! streams.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use towpath::events::{EventQueue, EventKind, Source};
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
//! assert_eq!((events[0].token, events[0].kind), (timer, EventKind::Expired { count: 1 }));
//! assert_eq!((events[1].token, events[1].kind), (other, EventKind::Notified { count: 1 }));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Theory of operation
//!
//! [`EventQueue::add`] registers a [`Source`] with a number of the caller's choice and returns a
//! [`Token`]. A wait returns all events, as [`Event`]s of fixed size. A source that is already
//! ready when it is added is reported by the next wait. A token names one registration and is never
//! reused: once the registration is removed, no event carries its token, and calls reject it.
//!
//! A wait returns at least as many events as the caller asked for, unless its deadline passes
//! first. It takes them in turn from the kernel, from towpath's own sources and from the timers, so
//! that none starves another. A wait reports a registration once, except for edge-triggered ones
//! and for a [send](EventQueue::send), which may be accepted and complete in one wait.
//!
//! Operations are submitted and reported when they complete. There are operations on files
//! ([`EventQueue::submit`]); on streams of towpath and of the kernel ([`EventQueue::connect`],
//! [`accept`](EventQueue::accept), [`receive`](EventQueue::receive),
//! [`receive_multishot`](EventQueue::receive_multishot),
//! [`receive_lent`](EventQueue::receive_lent), [`send`](EventQueue::send)); between files and
//! streams ([`send_file`](EventQueue::send_file), [`receive_file`](EventQueue::receive_file),
//! [`splice`](EventQueue::splice)); and on datagram, raw and packet sockets of towpath
//! ([`receive_datagram`](EventQueue::receive_datagram),
//! [`receive_datagram_lent`](EventQueue::receive_datagram_lent),
//! [`send_datagrams`](EventQueue::send_datagrams)). The kernel or a thread carries out operations
//! on kernel objects; waits carry out operations on towpath sockets.
//!
//! The queue keeps its sources open: a file or a socket closes when it has been removed *and*
//! dropped by its owner.
//!
//! One thread at a time uses a queue; any thread may [notify](Notifier) it. A queue belongs to the
//! process that created it: in the child of a fork every call fails. `docs/theory/events.md`
//! describes costs and shutdown.

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

/// Identifies a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    slot: u32,
    generation: u32,
}

impl Token {
    /// Returns the token as a number, for passing it through another language.
    pub fn bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// Returns the token for a number from [`bits`](Self::bits). Any other number gives a token
    /// that is stale or belongs to another registration.
    pub fn from_bits(bits: u64) -> Self {
        Self { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// An event of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The registration that the event belongs to.
    pub token: Token,
    /// The number that was passed to [`EventQueue::add`] or to the operation.
    pub data: u64,
    /// What happened.
    pub kind: EventKind,
    /// True if the registration has ended. Its token is rejected from now on.
    pub is_over: bool,
}

/// What happened to a source or an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A file descriptor or socket was ready when the queue looked at it. Reading or writing may
    /// still return `EWOULDBLOCK`.
    Ready(Readiness),
    /// The buffer of a send is back: [`Sending::returned`](crate::host::Sending::returned) does not
    /// block. The registration has ended.
    Returned {
        /// True if some of its bytes were copied.
        copied: bool,
    },
    /// A timer has expired. Unless the timer is periodic, its registration has ended.
    Expired {
        /// Expirations since the last report.
        count: u64,
    },
    /// A [`Notifier`] was used.
    Notified {
        /// Notifications since the last report.
        count: u64,
    },
    /// A signal arrived. Several signals of one number in quick succession are reported once.
    Signal {
        /// The signal number.
        signal: i32,
        /// The process that sent it; 0 if no process did.
        sender: u32,
    },
    /// A process has ended. If it is a child, the program must still wait for it. The registration
    /// has ended.
    Exited(Exit),
    /// A file or directory has changed.
    Changed(Changes),
    /// A connection was accepted: [`EventQueue::take`] returns it.
    Connection,
    /// A socket has accepted a buffer and will send it. [`EventKind::Completed`] reports when its
    /// memory is back.
    Accepted {
        /// Bytes accepted, from the start of the buffer: all of them, or those that were copied
        /// before the connection failed.
        bytes: usize,
    },
    /// A multishot receive has received bytes: [`EventQueue::take`] returns them.
    Received {
        /// Number of bytes.
        bytes: usize,
    },
    /// There are bytes to receive, but the group has no buffer left. The receive continues with the
    /// next buffer that is [given](EventQueue::give).
    Starved,
    /// A [task](EventQueue::start) reports a step.
    Step {
        /// A value whose meaning the task defines.
        result: i64,
    },
    /// An operation is complete. [`EventQueue::take`] returns its result and everything that was
    /// passed to it, and ends the registration.
    Completed,
}
