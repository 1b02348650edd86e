//! Groups of buffers that the program has lent to its queue: a receive that goes on takes one of
//! its group with each arrival, and none before.
//!
//! A buffer moves: it is the program's, or in a group, or in a receive that has filled it. A
//! receive that finds bytes and no buffer stands in the group's line, and is tried again when one
//! is given back.

use crate::events::queue::RAISED;
use crate::events::registrations::multishot::Multishot;
use crate::events::registrations::pool::{GROUP_BUFFERS_MAX, Group, Pool};
use crate::events::registrations::source::{Kind, Source};
use crate::events::{EventQueue, Interest, NotBegun, Stream, Token, Trigger};
use rustix::io::Errno;
use std::io;
use std::time::Instant;

impl EventQueue {
    /// Lends buffers as a group, for [`EventQueue::receive_multishot`].
    ///
    /// # Errors
    /// `EINVAL` if one of them is empty, `ENOSPC` for more than [`GROUP_BUFFERS_MAX`] or
    /// [`GROUPS_MAX`](crate::events::GROUPS_MAX). The buffers are handed back.
    pub fn add_group(&mut self, free: Vec<Vec<u8>>) -> Result<Group, (io::Error, Vec<Vec<u8>>)> {
        if free.iter().any(Vec::is_empty) {
            return Err((Errno::INVAL.into(), free));
        }
        if free.len() > GROUP_BUFFERS_MAX {
            return Err((Errno::NOSPC.into(), free));
        }
        let pool = Pool::of(free);
        self.groups.add(pool).map_err(|(errno, pool)| (errno.into(), pool.free))
    }

    /// Gives a buffer to a group: one that a receive had filled, or another. A receive that was
    /// waiting for one goes on with the next wait.
    ///
    /// # Errors
    /// `ESTALE` if the group was removed, `EINVAL` for an empty buffer, `ENOSPC` if the group has
    /// [`GROUP_BUFFERS_MAX`] of them. The buffer is handed back.
    pub fn give(&mut self, group: Group, buffer: Vec<u8>) -> Result<(), NotBegun> {
        let errno = match self.groups.get(group) {
            None => Errno::STALE,
            Some(_) if buffer.is_empty() => Errno::INVAL,
            Some(pool) if pool.free.len() >= GROUP_BUFFERS_MAX => Errno::NOSPC,
            Some(pool) => {
                pool.put(buffer);
                self.serve_lines();
                // What cannot be shown now is shown by the next call.
                let _ = self.settle();
                return Ok(());
            }
        };
        Err(NotBegun { error: errno.into(), buffer })
    }

    /// Ends a group: the buffers that are free. Others are the program's already.
    ///
    /// # Errors
    /// `ESTALE` if it was removed, `EBUSY` while a receive may take buffers of it.
    pub fn remove_group(&mut self, group: Group) -> io::Result<Vec<Vec<u8>>> {
        Ok(self.groups.remove(group)?.free)
    }

    /// Has the next in each line tried again for which there is a buffer. Who leaves it where it
    /// was is followed by the next one.
    pub(in crate::events) fn serve_lines(&mut self) {
        for index in 0..self.groups.len() {
            while let Some(token) = self.groups.next_in_line(index) {
                let source = self.slots.get(token).map(|registration| &mut registration.source);
                // Some may be over.
                if let Some(Kind::Multishot { multishot, is_told: false, .. }) = source {
                    multishot.left_line();
                    self.push(token, RAISED);
                    break;
                }
            }
        }
    }

    /// Receives again and again, until the stream ends, it is cancelled, or `deadline` has passed.
    /// Whenever there are bytes, one buffer of the group is filled with as many as fit and are
    /// there: a wait tells [`News::Received`](crate::events::News::Received), and
    /// [`EventQueue::take`] has them. When there are bytes and no buffer, a wait tells
    /// [`News::Starved`](crate::events::News::Starved), once, and it goes on when one is
    /// [given](EventQueue::give) back; what is not received stays with the stream. At the end there
    /// is [`News::Completed`](crate::events::News::Completed), and the reason is taken in the same
    /// way.
    ///
    /// # Errors
    /// `ESTALE` if the group was removed; `ENOSPC` if the queue is full; those of epoll_ctl(2) of a
    /// socket of the kernel.
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
        let kind = Kind::Multishot { multishot, wakes: None, deadline: None, is_told: false };
        let (interest, trigger) = (Interest::READ, Trigger::Edge);
        let token = self.begin_add(Source { kind, interest, trigger }, data)?;
        self.groups.join(group)?;
        if let (Some(due), Some(registration)) = (deadline, self.slots.get(token))
            && let Kind::Multishot { deadline, .. } = &mut registration.source
        {
            *deadline = Some(self.timers.set(due, token));
        }
        // It is under way: what cannot be shown now is shown by the next call.
        let _ = self.settle();
        Ok(token)
    }
}
