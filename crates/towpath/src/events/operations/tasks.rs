//! Sockets and operations of other stacks in a queue.

use crate::events::custom::{Pollable, Task};
use crate::events::registrations::source::{Kind, Source};
use crate::events::{EventQueue, Interest, Token, Trigger};
use std::io;
use std::time::Instant;

impl Source {
    /// Returns a source for a socket of another stack.
    pub fn custom(socket: impl Pollable + 'static, interest: Interest, trigger: Trigger) -> Self {
        let kind = Kind::Custom(Box::new(socket), None);
        Self { interest, trigger, ..Self::of(kind) }
    }
}

impl EventQueue {
    /// Starts a task. A wait reports each step as
    /// [`EventKind::Step`](crate::events::EventKind::Step); the last one ends the registration.
    /// [`EventQueue::cancel`] and the deadline stop it.
    ///
    /// Dropping the queue drops the task.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full, or the back end's error if it cannot watch the task's
    /// descriptor. The task is dropped.
    pub fn start(
        &mut self,
        task: impl Task + 'static,
        deadline: Option<Instant>,
        data: u64,
    ) -> io::Result<Token> {
        self.check_process()?;
        let kind = Kind::Task { task: Box::new(task), wakes: None, deadline: None, is_over: false };
        let (interest, trigger) = (Interest::BOTH, Trigger::Edge);
        let token = self.begin_add(Source { kind, interest, trigger }, data)?;
        if let (Some(due), Some(registration)) = (deadline, self.slots.get(token))
            && let Kind::Task { deadline, .. } = &mut registration.source
        {
            *deadline = Some(self.timers.set(due, token));
        }
        // The task has started. If updating the queue's descriptor fails now, the next call repeats
        // it.
        let _ = self.settle();
        Ok(token)
    }
}
