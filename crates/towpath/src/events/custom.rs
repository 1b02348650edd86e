//! What other stacks bring along: sockets to watch, and tasks that the waits carry out.
//!
//! The queue knows neither: it keeps them, has them woken by wakers of its own, and looks at them
//! when it waits. So sockets of a stack that has no [`Host`](crate::host::Host) are told of by the
//! same way as all else.

use crate::events::{Interest, Load, Operation, Readiness};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::task::Waker;

/// A socket of another stack.
pub trait Pollable: Send {
    /// What holds now of what is asked for; an error or a hang-up whether it is asked for or not.
    /// `waker` is woken once when there is something new, from any thread. `None` if the socket is
    /// gone: that is told as a hang-up with an error, once, and ends the registration.
    fn poll_ready(&mut self, interest: Interest, waker: &Waker) -> Option<Readiness>;
}

/// An operation of another stack.
pub trait Task: Send {
    /// Goes on as far as it can without waiting. `None` if there is nothing to tell: then `waker`
    /// is woken, from any thread, when it is worth trying again. Not called any more once it is
    /// over.
    fn poll(&mut self, waker: &Waker) -> Option<Step>;

    /// Is to end as soon as may be, for this reason, which the next polls tell unless something
    /// came of it before.
    fn stop(&mut self, why: Errno);

    /// A socket of the kernel's, whose news have the task polled, too. It is watched by edge, from
    /// the beginning to the end.
    fn fd(&self) -> Option<&dyn AsFd> {
        None
    }

    /// Blocks of files that are to be read, asked for after each poll
    /// ([`FileSource::take_loads`](crate::events::FileSource::take_loads)). Whoever waits for one
    /// is woken.
    fn take_loads(&mut self) -> Vec<Load> {
        Vec::new()
    }

    /// A file that is to be read or written, asked for after each poll: the device that it is on,
    /// and what to do. There is one at a time, and the task is not over before it is.
    fn take_access(&mut self) -> Option<(u64, Operation)> {
        None
    }

    /// What became of that, before the next poll. If the task was stopped it was cancelled.
    fn accessed(&mut self, _: Accessed) {}
}

/// A read or a write of a file for a task, which is over.
#[derive(Debug)]
pub struct Accessed {
    /// Bytes that were read or written.
    pub bytes: u64,
    /// Why not all, unless the file ended.
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

/// What a task tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// This, and it goes on.
    Told(i64),
    /// This is the last.
    Over(i64),
}
