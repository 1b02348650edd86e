//! Sources that can be registered.

use crate::host::operations::operation::Work;
use crate::host::sockets::readiness::{Return, Watched};
use crate::host::{Lend, Sending, Sniffer};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};
use towpath_io::doorbell::EventDoorbell;
use towpath_io::events::{Interest, Trigger};
use towpath_io::process_sys::SignalSet;
use towpath_packet::ready::Raiser;

use crate::events::custom::{Pollable, Task};
use crate::events::registrations::changes::{self, Changes};
use crate::events::registrations::multishot::Multishot;
use crate::events::registrations::ongoing::Ongoing;
use crate::events::registrations::relay::Relay;
use crate::events::registrations::socket::{DatagramSocket, End, Listener, Stream};
use crate::events::registrations::timers::{Setting, UNSET};

/// A source to wait for; pass it to [`EventQueue::add`](crate::events::EventQueue::add).
pub struct Source {
    pub(in crate::events) kind: Kind,
    pub(in crate::events) interest: Interest,
    pub(in crate::events) trigger: Trigger,
}

pub(in crate::events) enum Kind {
    Fd(Box<dyn AsFd + Send>),
    Socket(Watched, Option<Wakes>),
    Custom(Box<dyn Pollable>, Option<Wakes>),
    Return(Return, Option<Wakes>),
    Timer {
        due: Instant,
        period: Option<Duration>,
        setting: Setting,
        count: u64,
    },
    User {
        wakes: Option<Wakes>,
        count: u64,
    },
    Signal {
        number: i32,
        fd: Option<OwnedFd>,
    },
    Child {
        id: u32,
        fd: Option<OwnedFd>,
    },
    File {
        path: PathBuf,
        watch: Option<changes::Watch>,
        changed: Changes,
    },
    Stream {
        work: Work,
        wakes: Option<Wakes>,
        deadline: Option<Setting>,
        is_reported: bool,
    },
    Task {
        task: Box<dyn Task>,
        wakes: Option<Wakes>,
        deadline: Option<Setting>,
        is_over: bool,
    },
    Relay {
        relay: Box<Relay>,
        wakes: Option<Wakes>,
        deadline: Option<Setting>,
        is_reported: bool,
    },
    Multishot {
        multishot: Box<Multishot>,
        wakes: Option<Wakes>,
        deadline: Option<Setting>,
        is_reported: bool,
    },
    Operation(Ongoing),
}

impl Source {
    pub(in crate::events) fn of(kind: Kind) -> Self {
        Self { kind, interest: Interest::READ, trigger: Trigger::Level }
    }

    fn socket(socket: Watched, interest: Interest, trigger: Trigger) -> Self {
        Self { interest, trigger, ..Self::of(Kind::Socket(socket, None)) }
    }

    /// Returns a source for a file descriptor of the kernel, such as an `Arc<TcpStream>` of the
    /// standard library. The queue keeps it open until it is removed. Regular files are always
    /// ready and are rejected by `add`.
    pub fn fd(fd: impl AsFd + Send + 'static, interest: Interest, trigger: Trigger) -> Self {
        Self { interest, trigger, ..Self::of(Kind::Fd(Box::new(fd))) }
    }

    /// Returns a source for a connection.
    pub fn stream(stream: impl Into<Stream>, interest: Interest, trigger: Trigger) -> Self {
        match stream.into().0 {
            End::Host(stream) => Self::socket(Watched::Stream(stream), interest, trigger),
            End::Kernel(socket) => Self::fd(socket, interest, trigger),
        }
    }

    /// Returns a source for a listening socket: readable while there is a connection to accept.
    pub fn listener(listener: impl Into<Listener>, trigger: Trigger) -> Self {
        match listener.into().0 {
            End::Host(listener) => {
                Self::socket(Watched::Listener(listener), Interest::READ, trigger)
            }
            End::Kernel(socket) => Self::fd(socket, Interest::READ, trigger),
        }
    }

    /// Returns a source for a datagram, raw or packet socket of a towpath host.
    pub fn datagram(
        socket: impl Into<DatagramSocket>,
        interest: Interest,
        trigger: Trigger,
    ) -> Self {
        Self::socket(Watched::Datagram(socket.into().0), interest, trigger)
    }

    /// Returns a source for a sniffer of a towpath host: readable while there is a frame to
    /// [receive](Sniffer::recv_lent).
    pub fn sniffer(sniffer: &Sniffer, trigger: Trigger) -> Self {
        let socket = sniffer.as_datagrams().clone();
        Self::socket(Watched::Datagram(socket), Interest::READ, trigger)
    }

    /// Returns a one-shot source for the return of a buffer.
    pub fn sending<B: Lend>(sending: &Sending<B>) -> Self {
        Self::of(Kind::Return(Return::of(sending), None))
    }

    /// Returns a one-shot timer that expires at `due`.
    pub fn at(due: Instant) -> Self {
        Self::of(Kind::Timer { due, period: None, setting: UNSET, count: 0 })
    }

    /// Returns a periodic timer that expires at `first` and then every `period`. Expirations that
    /// were not reported in time are counted; the schedule does not drift.
    pub fn every(first: Instant, period: Duration) -> Self {
        Self::of(Kind::Timer { due: first, period: Some(period), setting: UNSET, count: 0 })
    }

    /// Returns a source that is triggered by its [`Notifier`]s.
    pub fn user() -> Self {
        Self::of(Kind::User { wakes: None, count: 0 })
    }

    /// Returns a source for a signal. [`EventQueue::add`](crate::events::EventQueue::add) blocks
    /// the signal in the calling thread. A thread that was started before and does not block it may
    /// receive the signal instead of the queue, so add signals before starting threads.
    pub fn signal(number: i32) -> Self {
        Self::of(Kind::Signal { number, fd: None })
    }

    /// Returns a one-shot source for the end of a process.
    pub fn child(id: u32) -> Self {
        Self::of(Kind::Child { id, fd: None })
    }

    /// Returns a source for changes of a file, or of a directory's contents. The path is looked up
    /// once: a file that later takes its place is not watched.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::of(Kind::File { path: path.into(), watch: None, changed: Changes::default() })
    }
}

impl Kind {
    /// Returns the descriptor that the back end watches for this source.
    pub(in crate::events) fn fd(&self) -> Option<&dyn AsFd> {
        match self {
            Self::Fd(fd) => Some(&**fd),
            Self::Relay { relay, .. } => relay.fd(),
            Self::Task { task, .. } => task.fd(),
            Self::Multishot { multishot, .. } => multishot.fd(),
            Self::Signal { fd, .. } | Self::Child { fd, .. } => fd.as_ref().map(|fd| fd as _),
            _ => None,
        }
    }

    /// Returns where the source keeps its entry of the ready list; `None` if it needs none.
    pub(in crate::events) fn wakes_mut(&mut self) -> Option<&mut Option<Wakes>> {
        match self {
            Self::Socket(_, wakes)
            | Self::Custom(_, wakes)
            | Self::Return(_, wakes)
            | Self::Stream { wakes, .. }
            | Self::Task { wakes, .. }
            | Self::Relay { wakes, .. }
            | Self::Multishot { wakes, .. }
            | Self::User { wakes, .. } => Some(wakes),
            _ => None,
        }
    }
}

/// An entry of the ready list: a handle that raises it, and a waker that does the same.
pub(in crate::events) struct Wakes {
    pub(in crate::events) raiser: Raiser<EventDoorbell>,
    pub(in crate::events) waker: Waker,
}

impl Wakes {
    pub(in crate::events) fn new(raiser: Raiser<EventDoorbell>) -> Self {
        let waker = Waker::from(Arc::new(Notifier(raiser.clone())));
        Self { raiser, waker }
    }
}

/// Notifies a queue from any thread.
#[derive(Clone)]
pub struct Notifier(pub(in crate::events) Raiser<EventDoorbell>);

impl Notifier {
    /// Raises the registration's event. It costs one or two atomic operations, and a system call if
    /// the queue's thread sleeps. It is a no-op once the registration has been removed.
    pub fn notify(&self) {
        self.0.raise();
    }

    /// Returns a waker that notifies like [`notify`](Self::notify), so that a queue can drive
    /// futures.
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::new(self.clone()))
    }
}

impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        self.0.raise();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.raise();
    }
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// It was killed by this signal.
    Signal(i32),
    /// Unknown: the process is not a child of this one, or its status was already collected.
    Unknown,
}

/// Returns a descriptor that is readable once the process has ended.
pub(in crate::events) fn child_descriptor(id: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Returns how the process behind the descriptor ended, and leaves its status to be collected.
pub(in crate::events) fn exit_of(fd: &OwnedFd) -> Exit {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let Ok(Some(status)) = rustix::process::waitid(WaitId::PidFd(fd.as_fd()), options) else {
        return Exit::Unknown;
    };
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code),
        (_, Some(signal)) => Exit::Signal(signal),
        _ => Exit::Unknown,
    }
}

/// Returns a descriptor that yields signals of this number, and blocks the signal in the calling
/// thread.
pub(in crate::events) fn signal_descriptor(number: i32) -> io::Result<OwnedFd> {
    // SIGKILL and SIGSTOP cannot be blocked; 32 and 33 belong to the C library.
    const KILL_AND_STOP: [i32; 2] = [9, 19];
    let can_wait = matches!(number, 1..=31 | 34..=64) && !KILL_AND_STOP.contains(&number);
    if !can_wait {
        return Err(Errno::INVAL.into());
    }
    let set = SignalSet::of(&[number]);
    set.block()?;
    set.descriptor()
}

/// Bytes of a record of a signal descriptor (`struct signalfd_siginfo`), and the offset of the
/// sender in it. The signal number is at offset 0.
const RECORD_BYTES: usize = 128;
const SENDER_AT: usize = 12;

/// Reads the next signal: its number and its sender.
pub(in crate::events) fn next_signal(fd: &OwnedFd) -> Option<(i32, u32)> {
    let mut record = [0; RECORD_BYTES];
    let count = rustix::io::read(fd, &mut record).ok()?;
    let word = |at: usize| {
        u32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
    };
    (count == RECORD_BYTES).then(|| (word(0) as i32, word(SENDER_AT)))
}
