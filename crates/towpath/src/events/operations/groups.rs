//! Groups of buffers that the program has lent to its queue. A multishot receive takes a buffer of
//! its group for each arrival, and none before.
//!
//! A buffer moves: it belongs to the program, to a group, or to a receive that has filled it. A
//! receive that finds bytes but no buffer waits in the group's queue, and is tried again when a
//! buffer is given back.

use crate::events::queue::RAISED;
use crate::events::registrations::multishot::Multishot;
use crate::events::registrations::pool::{GROUP_BUFFERS_MAX, Group};
use crate::events::registrations::source::{Kind, Source};
use crate::events::{EventQueue, Interest, NotBegun, Stream, Token, Trigger};
use crate::host::{AnyBuffer, Fill};
use rustix::io::Errno;
use std::io;
use std::time::Instant;

impl EventQueue {
    /// Lends buffers to the queue as a group, for [`EventQueue::receive_multishot`].
    ///
    /// # Errors
    /// `EINVAL` if one of them is empty; `ENOSPC` for more than [`GROUP_BUFFERS_MAX`] buffers or
    /// [`GROUPS_MAX`](crate::events::GROUPS_MAX) groups. The buffers are handed back.
    pub fn add_group<B: Fill>(&mut self, free: Vec<B>) -> Result<Group, (io::Error, Vec<B>)> {
        if free.iter().any(|buffer| buffer.len() == 0) {
            return Err((Errno::INVAL.into(), free));
        }
        if free.len() > GROUP_BUFFERS_MAX {
            return Err((Errno::NOSPC.into(), free));
        }
        match self.groups.add() {
            Ok((group, pool)) => {
                pool.free = free.into_iter().map(AnyBuffer::to_fill).collect();
                Ok(group)
            }
            Err(errno) => Err((errno.into(), free)),
        }
    }

    /// Gives a buffer to a group: one that a receive had filled, or a new one, of any type. A
    /// receive that waits for a buffer continues with the next wait.
    ///
    /// # Errors
    /// `ESTALE` if the group was removed, `EINVAL` for an empty buffer, `ENOSPC` if the group has
    /// [`GROUP_BUFFERS_MAX`] of them. The buffer is handed back.
    pub fn give<B: Fill>(&mut self, group: Group, buffer: B) -> Result<(), NotBegun<B>> {
        let errno = match self.groups.get(group) {
            None => Errno::STALE,
            Some(_) if buffer.len() == 0 => Errno::INVAL,
            Some(pool) if pool.free.len() >= GROUP_BUFFERS_MAX => Errno::NOSPC,
            Some(pool) => {
                pool.put(AnyBuffer::to_fill(buffer));
                self.serve_waiters();
                // If updating the queue's descriptor fails now, the next call repeats it.
                let _ = self.settle();
                return Ok(());
            }
        };
        Err(NotBegun { error: errno.into(), buffer })
    }

    /// Ends a group and returns its free buffers; [`AnyBuffer::downcast`] restores their type. All
    /// others belong to the program already.
    ///
    /// # Errors
    /// `ESTALE` if the group was removed; `EBUSY` while a receive uses it.
    pub fn remove_group(&mut self, group: Group) -> io::Result<Vec<AnyBuffer>> {
        Ok(self.groups.remove(group)?.free)
    }

    /// Polls the first receive that waits for each group with a free buffer. One that does not take
    /// the buffer is followed by the next.
    pub(in crate::events) fn serve_waiters(&mut self) {
        for index in 0..self.groups.len() {
            while let Some(token) = self.groups.next_waiter(index) {
                let source = self.slots.get(token).map(|registration| &mut registration.source);
                // Some have ended.
                if let Some(Kind::Multishot { multishot, is_reported: false, .. }) = source {
                    multishot.stopped_waiting();
                    self.push(token, RAISED);
                    break;
                }
            }
        }
    }

    /// Receives repeatedly, until the stream ends, the operation is cancelled, or `deadline` has
    /// passed. Whenever there are bytes, a buffer of the group is filled with as many as are
    /// available and fit: a wait reports
    /// [`EventKind::Received`](crate::events::EventKind::Received), and [`EventQueue::take`]
    /// returns them. If there are bytes but no buffer, a wait reports
    /// [`EventKind::Starved`](crate::events::EventKind::Starved) once, and the receive continues
    /// when a buffer is [given](EventQueue::give); the bytes stay in the stream. At the end a wait
    /// reports [`EventKind::Completed`](crate::events::EventKind::Completed), and
    /// [`EventQueue::take`] returns the reason.
    ///
    /// # Errors
    /// `ESTALE` if the group was removed; `ENOSPC` if the queue is full; errors of epoll_ctl(2) for
    /// a kernel socket.
    pub fn receive_multishot(
        &mut self,
        stream: impl Into<Stream>,
        group: Group,
        deadline: Option<Instant>,
        data: u64,
    ) -> io::Result<Token> {
        self.check_process()?;
        self.groups.get(group).ok_or(Errno::STALE)?;
        let multishot = Box::new(Multishot::new(stream.into(), group));
        let kind = Kind::Multishot { multishot, wakes: None, deadline: None, is_reported: false };
        let (interest, trigger) = (Interest::READ, Trigger::Edge);
        let token = self.begin_add(Source { kind, interest, trigger }, data)?;
        self.groups.join(group)?;
        if let (Some(due), Some(registration)) = (deadline, self.slots.get(token))
            && let Kind::Multishot { deadline, .. } = &mut registration.source
        {
            *deadline = Some(self.timers.set(due, token));
        }
        // The receive has started. If updating the queue's descriptor fails now, the next call
        // repeats it.
        let _ = self.settle();
        Ok(token)
    }
}
