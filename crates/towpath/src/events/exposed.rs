//! The queue's own descriptor. It is readable while events wait, so that a program can wait for the
//! queue in another queue, in epoll, or in a runtime's loop.
//!
//! It is an epoll set of the back end, of a timer for the next deadline, and of an alarm for events
//! that the kernel does not know or has already reported.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::time::{Duration, Instant};
use towpath_io::doorbell::EventDoorbell;
use towpath_io::reactor::{Interest, Reactor};
use towpath_packet::ring::Doorbell;

/// The descriptor's parts. See the module documentation.
pub(super) struct Exposed {
    set: Reactor,
    alarm: EventDoorbell,
    rings: bool,
    timer: OwnedFd,
    due: Option<Instant>,
}

impl Exposed {
    /// Creates the descriptor of a queue whose back end is `back`.
    pub(super) fn new(back: BorrowedFd<'_>) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let (set, alarm) = (Reactor::new()?, EventDoorbell::new()?);
        for fd in [back, timer.as_fd(), alarm.as_fd()] {
            set.add(fd, 0, Interest::READ, false)?;
        }
        Ok(Self { set, alarm, rings: false, timer, due: None })
    }

    /// Returns a duplicate of the set's descriptor.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(&self.set, 0)?)
    }

    /// Makes the set readable if `waits`, because the queue has events to report, or once it is
    /// `due`.
    pub(super) fn show(
        &mut self,
        waits: bool,
        now: Instant,
        due: Option<Instant>,
    ) -> io::Result<()> {
        if waits != std::mem::replace(&mut self.rings, waits) {
            if waits { self.alarm.ring() } else { self.alarm.clear() }
        }
        if due != self.due {
            // A zero value would disarm the timer.
            let left = |due: Instant| due.saturating_duration_since(now).max(SOON);
            let left = due.map_or(Duration::ZERO, left);
            let it_value = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let value = Itimerspec { it_interval, it_value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)?;
            self.due = due;
        }
        Ok(())
    }
}

/// The shortest time that a timer can be set to.
const SOON: Duration = Duration::from_nanos(1);
