//! Buffers that the program has lent to its queue, in groups.

use crate::events::Token;
use rustix::io::Errno;
use std::collections::VecDeque;

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
pub(in crate::events) struct Groups(Vec<Place>);

#[derive(Default)]
struct Place {
    generation: u32,
    pool: Option<Pool>,
}

/// The buffers of a group that are free.
#[derive(Default)]
pub(in crate::events) struct Pool {
    pub(in crate::events) free: Vec<Vec<u8>>,
    /// Receives that have found none.
    line: VecDeque<Token>,
    /// Receives that may take some.
    users: usize,
}

impl Pool {
    /// A pool of these buffers.
    pub(in crate::events) fn of(free: Vec<Vec<u8>>) -> Self {
        Self { free, ..Self::default() }
    }

    /// A buffer, which is to be put back or handed to the program.
    pub(in crate::events) fn take(&mut self) -> Option<Vec<u8>> {
        self.free.pop()
    }

    /// Puts a buffer back.
    pub(in crate::events) fn put(&mut self, buffer: Vec<u8>) {
        self.free.push(buffer);
    }

    /// Has a receive tried again when there is a buffer.
    pub(in crate::events) fn stand_in_line(&mut self, token: Token) {
        self.line.push_back(token);
    }
}

impl Groups {
    pub(in crate::events) fn get(&mut self, group: Group) -> Option<&mut Pool> {
        let place = self.0.get_mut(group.index as usize)?;
        place.pool.as_mut().filter(|_| place.generation == group.generation)
    }

    /// One more receive may take buffers.
    pub(in crate::events) fn join(&mut self, group: Group) -> Result<(), Errno> {
        self.get(group).ok_or(Errno::STALE)?.users += 1;
        Ok(())
    }

    /// A receive takes no more. The buffers that it has filled and nobody took are free again.
    pub(in crate::events) fn leave(
        &mut self,
        group: Group,
        buffers: impl Iterator<Item = Vec<u8>>,
    ) {
        if let Some(pool) = self.get(group) {
            pool.users -= 1;
            pool.free.extend(buffers);
        }
    }

    /// Groups that there are or were.
    pub(in crate::events) fn len(&self) -> usize {
        self.0.len()
    }

    /// The next in the line of a group that has a free buffer; it stands in the line no more.
    pub(in crate::events) fn next_in_line(&mut self, index: usize) -> Option<Token> {
        let pool = self.0[index].pool.as_mut().filter(|pool| !pool.free.is_empty())?;
        pool.line.pop_front()
    }

    /// Ends a group that nobody uses.
    pub(in crate::events) fn remove(&mut self, group: Group) -> Result<Pool, Errno> {
        let pool = self.get(group).ok_or(Errno::STALE)?;
        if pool.users > 0 {
            return Err(Errno::BUSY);
        }
        Ok(std::mem::take(&mut self.0[group.index as usize].pool).unwrap_or_default())
    }

    pub(in crate::events) fn add(&mut self, pool: Pool) -> Result<Group, (Errno, Pool)> {
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
