//! What other stacks bring along: sockets to watch, and tasks that the waits carry out.
//!
//! The queue knows neither: it keeps them, has them woken by wakers of its own, and looks at them
//! when it waits. So sockets of a stack that has no [`Host`](crate::host::Host) are told of by the
//! same way as all else.

use super::source::{Kind, Source};
use super::{EventQueue, Interest, Readiness, Token, Trigger};
use rustix::io::Errno;
use std::io;
use std::task::Waker;
use std::time::Instant;

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
}

impl<T: Task + ?Sized> Task for Box<T> {
    fn poll(&mut self, waker: &Waker) -> Option<Step> {
        (**self).poll(waker)
    }

    fn stop(&mut self, why: Errno) {
        (**self).stop(why);
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

impl Source {
    /// A socket of another stack.
    pub fn custom(socket: impl Pollable + 'static, interest: Interest, trigger: Trigger) -> Self {
        let kind = Kind::Custom(Box::new(socket), None);
        Self { interest, trigger, ..Self::of(kind) }
    }
}

impl EventQueue {
    /// Begins a task. A wait tells [`News::Step`](super::News::Step) of each step; the last ends
    /// the registration. [`EventQueue::cancel`] and the deadline stop it.
    ///
    /// Dropping the queue drops the task.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full: the task is dropped.
    pub fn start(
        &mut self,
        task: impl Task + 'static,
        deadline: Option<Instant>,
        data: u64,
    ) -> io::Result<Token> {
        self.check_process()?;
        let token = self.slots.next().ok_or(Errno::NOSPC)?;
        let deadline = deadline.map(|due| self.timers.set(due, token));
        let kind = Kind::Task { task: Box::new(task), wakes: None, deadline, is_over: false };
        let added = self.begin_add(Source::of(kind), data);
        debug_assert!(added.is_ok_and(|added| added == token), "there was room");
        // It is under way: what cannot be shown now is shown by the next call.
        let _ = self.settle();
        Ok(token)
    }
}
