//! Extension points for other stacks: sockets to watch, and tasks that waits carry out.
//!
//! The queue wakes them through its own wakers and polls them when it waits. Sockets of a stack
//! without a [`Host`](crate::host::Host) are therefore reported like all other sources.

use crate::events::{Interest, Load, Operation, Readiness};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::task::Waker;

/// A socket of another stack.
pub trait Pollable: Send {
    /// Returns which of the requested conditions hold now; an error or a hang-up is returned even
    /// if it was not requested. `waker` is woken once, from any thread, when there is something
    /// new. `None` means that the socket is gone: the queue reports a hang-up with an error once
    /// and ends the registration.
    fn poll_ready(&mut self, interest: Interest, waker: &Waker) -> Option<Readiness>;
}

/// An operation of another stack.
pub trait Task: Send {
    /// Continues as far as possible without blocking. After `None`, `waker` is woken, from any
    /// thread, when the task should be polled again. A completed task is not polled.
    fn poll(&mut self, waker: &Waker) -> Option<Step>;

    /// Asks the task to end as soon as possible. The next polls report `why`, unless the task has
    /// another result by then.
    fn stop(&mut self, why: Errno);

    /// Returns a kernel socket whose events also cause a poll. It is watched edge-triggered for the
    /// whole life of the task.
    fn fd(&self) -> Option<&dyn AsFd> {
        None
    }

    /// Takes the file blocks to read, after each poll
    /// ([`FileSource::take_loads`](crate::events::FileSource::take_loads)). Tasks that wait for a
    /// block are woken.
    fn take_loads(&mut self) -> Vec<Load> {
        Vec::new()
    }

    /// Takes the next file access, after each poll: the device of the file, and the operation.
    /// There is one access at a time, and the task does not complete before it.
    fn take_access(&mut self) -> Option<(u64, Operation)> {
        None
    }

    /// Passes in the result of that access, before the next poll. If the task was stopped, the
    /// access was cancelled.
    fn accessed(&mut self, _: Accessed) {}
}

/// The completed file access of a task.
#[derive(Debug)]
#[non_exhaustive]
pub struct Accessed {
    /// Bytes read or written.
    pub bytes: u64,
    /// Why it is short; `None` also if the file ended.
    pub failure: Option<Errno>,
    /// The buffer of the operation.
    pub buffer: Vec<u8>,
}

impl<T: Task + ?Sized> Task for Box<T> {
    fn poll(&mut self, waker: &Waker) -> Option<Step> {
        (**self).poll(waker)
    }

    fn stop(&mut self, why: Errno) {
        (**self).stop(why);
    }

    fn fd(&self) -> Option<&dyn AsFd> {
        (**self).fd()
    }

    fn take_loads(&mut self) -> Vec<Load> {
        (**self).take_loads()
    }

    fn take_access(&mut self) -> Option<(u64, Operation)> {
        (**self).take_access()
    }

    fn accessed(&mut self, accessed: Accessed) {
        (**self).accessed(accessed);
    }
}

/// What a task reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// An intermediate value; the task continues.
    Progress(i64),
    /// The last value; the task is complete.
    Complete(i64),
}
