//! Groups of buffers that the program has lent to its queue.

use crate::events::Token;
use crate::host::AnyBuffer;
use rustix::io::Errno;
use std::collections::VecDeque;

/// Most buffers in a group; io_uring has the same limit.
pub const GROUP_BUFFERS_MAX: usize = 1 << 15;
/// Most groups in a queue: enough for several buffer sizes and kinds of streams.
pub const GROUPS_MAX: usize = 64;

/// Identifies a group of buffers of a queue. It is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    index: u32,
    generation: u32,
}

/// The groups of a queue.
#[derive(Default)]
pub(in crate::events) struct Groups(Vec<Place>);

#[derive(Default)]
struct Place {
    generation: u32,
    pool: Option<Pool>,
}

/// The free buffers of a group.
#[derive(Default)]
pub(in crate::events) struct Pool {
    pub(in crate::events) free: Vec<AnyBuffer>,
    /// Receives that found no buffer, in order.
    waiters: VecDeque<Token>,
    /// Number of receives that may take buffers.
    users: usize,
}

impl Pool {
    /// Takes a buffer. The caller puts it back or hands it to the program.
    pub(in crate::events) fn take(&mut self) -> Option<AnyBuffer> {
        self.free.pop()
    }

    /// Puts a buffer back.
    pub(in crate::events) fn put(&mut self, buffer: AnyBuffer) {
        self.free.push(buffer);
    }

    /// Queues a receive to be tried again when there is a buffer.
    pub(in crate::events) fn enqueue(&mut self, token: Token) {
        self.waiters.push_back(token);
    }
}

impl Groups {
    pub(in crate::events) fn get(&mut self, group: Group) -> Option<&mut Pool> {
        let place = self.0.get_mut(group.index as usize)?;
        place.pool.as_mut().filter(|_| place.generation == group.generation)
    }

    /// Counts one more receive that may take buffers.
    pub(in crate::events) fn join(&mut self, group: Group) -> Result<(), Errno> {
        self.get(group).ok_or(Errno::STALE)?.users += 1;
        Ok(())
    }

    /// Ends a receive's use of the group. Buffers that it filled and the program did not take
    /// become free again.
    pub(in crate::events) fn leave(
        &mut self,
        group: Group,
        buffers: impl Iterator<Item = AnyBuffer>,
    ) {
        if let Some(pool) = self.get(group) {
            pool.users -= 1;
            pool.free.extend(buffers);
        }
    }

    /// Returns the number of groups that exist or existed.
    pub(in crate::events) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes the next receive that waits for a buffer of a group, if the group has a free buffer.
    pub(in crate::events) fn next_waiter(&mut self, index: usize) -> Option<Token> {
        let pool = self.0[index].pool.as_mut().filter(|pool| !pool.free.is_empty())?;
        pool.waiters.pop_front()
    }

    /// Ends a group that no receive uses.
    pub(in crate::events) fn remove(&mut self, group: Group) -> Result<Pool, Errno> {
        let pool = self.get(group).ok_or(Errno::STALE)?;
        if pool.users > 0 {
            return Err(Errno::BUSY);
        }
        Ok(std::mem::take(&mut self.0[group.index as usize].pool).unwrap_or_default())
    }

    /// Adds a group without buffers.
    pub(in crate::events) fn add(&mut self) -> Result<(Group, &mut Pool), Errno> {
        let is_free = |place: &Place| place.pool.is_none() && place.generation < u32::MAX;
        let index = match self.0.iter().position(is_free) {
            Some(index) => index,
            None if self.0.len() < GROUPS_MAX => {
                self.0.push(Place::default());
                self.0.len() - 1
            }
            None => return Err(Errno::NOSPC),
        };
        let place = &mut self.0[index];
        place.generation += 1;
        let group = Group { index: index as u32, generation: place.generation };
        Ok((group, place.pool.insert(Pool::default())))
    }
}
