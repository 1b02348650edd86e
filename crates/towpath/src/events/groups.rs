//! Groups of buffers that the program has lent to its queue: a receive that goes on takes one of
//! its group with each arrival, and none before.
//!
//! A buffer moves: it is the program's, or in a group, or in a receive that has filled it. A
//! receive that finds bytes and no buffer stands in the group's line, and is tried again when one
//! is given back.

use super::multishot::{Multishot, Received};
use super::queue::RAISED;
use super::slots::Slots;
use super::source::Kind;
use super::{EventQueue, NotBegun, Token};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;

/// Most buffers of a group, as io_uring has it.
pub const GROUP_BUFFERS_MAX: usize = 1 << 15;
/// Most groups of a queue: some sizes of buffers, for some kinds of streams.
pub const GROUPS_MAX: usize = 64;

/// Names a group of buffers of a queue, and no other ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    index: u32,
    generation: u32,
}

/// The groups of a queue.
#[derive(Default)]
pub(super) struct Groups(Vec<Place>);

#[derive(Default)]
struct Place {
    generation: u32,
    pool: Option<Pool>,
}

/// The buffers of a group that are free.
#[derive(Default)]
pub(super) struct Pool {
    free: Vec<Vec<u8>>,
    /// Receives that have found none.
    line: VecDeque<Token>,
    /// Receives that may take some.
    users: usize,
}

impl Pool {
    /// A buffer, which is to be put back or handed to the program.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        self.free.pop()
    }

    /// Puts a buffer back.
    pub(super) fn put(&mut self, buffer: Vec<u8>) {
        self.free.push(buffer);
    }

    /// Has a receive tried again when there is a buffer.
    pub(super) fn stand_in_line(&mut self, token: Token) {
        self.line.push_back(token);
    }
}

impl Groups {
    pub(super) fn get(&mut self, group: Group) -> Option<&mut Pool> {
        let place = self.0.get_mut(group.index as usize)?;
        place.pool.as_mut().filter(|_| place.generation == group.generation)
    }

    /// One more receive may take buffers.
    pub(super) fn join(&mut self, group: Group) -> Result<(), Errno> {
        self.get(group).ok_or(Errno::STALE)?.users += 1;
        Ok(())
    }

    /// A receive takes no more. What it has and nobody took is free again.
    pub(super) fn leave(&mut self, multishot: &mut Multishot) {
        if let Some(pool) = self.get(multishot.group()) {
            pool.users -= 1;
            pool.free.extend(multishot.take_all());
        }
    }

    /// The next that is to be tried again, and stands in the line no more.
    fn next_in_line(&mut self, index: usize, slots: &mut Slots) -> Option<Token> {
        let pool = self.0[index].pool.as_mut().filter(|pool| !pool.free.is_empty())?;
        // Some may be over.
        while let Some(token) = pool.line.pop_front() {
            let source = slots.get(token).map(|registration| &mut registration.source);
            if let Some(Kind::Multishot { multishot, is_told: false, .. }) = source {
                multishot.left_line();
                return Some(token);
            }
        }
        None
    }

    fn add(&mut self, pool: Pool) -> Result<Group, (Errno, Pool)> {
        let is_free = |place: &Place| place.pool.is_none() && place.generation < u32::MAX;
        let index = match self.0.iter().position(is_free) {
            Some(index) => index,
            None if self.0.len() < GROUPS_MAX => {
                self.0.push(Place::default());
                self.0.len() - 1
            }
            None => return Err((Errno::NOSPC, pool)),
        };
        let place = &mut self.0[index];
        place.generation += 1;
        place.pool = Some(pool);
        Ok(Group { index: index as u32, generation: place.generation })
    }
}

impl EventQueue {
    /// Lends buffers as a group, for [`EventQueue::receive_multishot`].
    ///
    /// # Errors
    /// `EINVAL` if one of them is empty, `ENOSPC` for more than [`GROUP_BUFFERS_MAX`] or
    /// [`GROUPS_MAX`]. The buffers are handed back.
    pub fn add_group(&mut self, free: Vec<Vec<u8>>) -> Result<Group, (io::Error, Vec<Vec<u8>>)> {
        if free.iter().any(Vec::is_empty) {
            return Err((Errno::INVAL.into(), free));
        }
        if free.len() > GROUP_BUFFERS_MAX {
            return Err((Errno::NOSPC.into(), free));
        }
        let pool = Pool { free, ..Pool::default() };
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
        let pool = self.groups.get(group).ok_or(Errno::STALE)?;
        if pool.users > 0 {
            return Err(Errno::BUSY.into());
        }
        let pool = self.groups.0[group.index as usize].pool.take();
        Ok(pool.map_or_else(Vec::new, |pool| pool.free))
    }

    /// Has the next in each line tried again for which there is a buffer. Who leaves it where it
    /// was is followed by the next one.
    pub(super) fn serve_lines(&mut self) {
        for index in 0..self.groups.0.len() {
            let Some(token) = self.groups.next_in_line(index, &mut self.slots) else { continue };
            self.push(token, RAISED);
        }
    }

    /// The oldest buffer that a [multishot receive](EventQueue::receive_multishot) has filled.
    ///
    /// After [`News::Completed`](super::News::Completed), when all were taken: no bytes and no
    /// buffer at the end of the stream, or why it ended. This ends the registration. `None` if
    /// there is nothing to take, or of another operation.
    pub fn take_received(&mut self, token: Token) -> Option<io::Result<Received>> {
        let Kind::Multishot { multishot, is_told, .. } = &mut self.slots.get(token)?.source else {
            return None;
        };
        let taken = multishot.take(*is_told)?;
        if !matches!(&taken, Ok(received) if received.len > 0) {
            self.end(token);
        }
        Some(taken)
    }
}
