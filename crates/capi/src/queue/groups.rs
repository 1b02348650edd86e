//! Multishot receives: each fills buffers of a group that the program has lent.
//!
//! A group is a range of memory that is divided into numbered buffers of equal size. A buffer is
//! free, or belongs to the program, which was notified of its content and gives it back. A receive
//! that waits has no buffer, so a few buffers serve many streams.
//!
//! A receive that finds bytes but no free buffer waits in the group's line. When a buffer becomes
//! free, the first in the line is woken. A receive that is woken and does not need the buffer, or
//! ends, wakes the next one.

use super::numbers::{PROGRESS, STARVED};
use super::pending::Pending;
use super::reports::TowpathEvent;
use super::stream::End;
use crate::errno::{Errno, Outcome};
use crate::memory::pointers::Posted;
use rustix::fd::AsFd;
use rustix::io::Errno as Kernel;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;
use towpath::events::custom::{Step, Task};
use towpath::events::{EventQueue, GROUP_BUFFERS_MAX, GROUPS_MAX, Token};

/// The groups of a queue, by numbers that are never reused.
#[derive(Default)]
pub(super) struct Groups {
    groups: HashMap<i32, Arc<Group>>,
    last: i32,
}

impl Groups {
    /// Makes a group of `count` buffers of `size` bytes each. Returns its number.
    ///
    /// # Errors
    /// `EINVAL` unless `memory` has exactly that size, and for no buffers; `ENOSPC` for too many.
    pub(super) fn add(&mut self, memory: Posted, size: usize, count: usize) -> Outcome<i32> {
        let is_one = size > 0 && count > 0 && size.checked_mul(count) == Some(memory.len());
        if !is_one || i32::try_from(size).is_err() {
            return Err(Errno::INVAL);
        }
        let last = self.last.checked_add(1).filter(|_| self.groups.len() < GROUPS_MAX);
        self.last = last.filter(|_| count <= GROUP_BUFFERS_MAX).ok_or(Errno(libc::ENOSPC))?;
        let buffers = Buffers {
            memory,
            size,
            free: (0..count as u32).rev().collect(),
            is_free: vec![true; count],
            line: VecDeque::new(),
            last_place: 0,
        };
        self.groups.insert(self.last, Arc::new(Group(Mutex::new(buffers))));
        Ok(self.last)
    }

    /// The group with this number.
    ///
    /// # Errors
    /// `ESTALE` if there is none.
    pub(super) fn get(&self, number: i32) -> Outcome<&Arc<Group>> {
        self.groups.get(&number).ok_or(Errno(libc::ESTALE))
    }

    /// Removes a group.
    ///
    /// # Errors
    /// `ESTALE` if there is none; `EBUSY` while a receive may use it.
    pub(super) fn remove(&mut self, number: i32) -> Outcome<()> {
        if Arc::strong_count(self.get(number)?) > 1 {
            return Err(Errno(libc::EBUSY));
        }
        self.groups.remove(&number);
        Ok(())
    }
}

/// A group of buffers.
pub(super) struct Group(Mutex<Buffers>);

struct Buffers {
    memory: Posted,
    /// Bytes of each buffer.
    size: usize,
    free: Vec<u32>,
    is_free: Vec<bool>,
    /// Receives that wait for a buffer, by increasing places.
    line: VecDeque<(u64, Waker)>,
    last_place: u64,
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees a buffer that belongs to the program.
    ///
    /// # Errors
    /// `EINVAL` if it does not belong to the program or does not exist.
    pub(super) fn give(&self, buffer: i32) -> Outcome<()> {
        let mut buffers = self.lock();
        let number = usize::try_from(buffer).map_err(|_| Errno::INVAL)?;
        match buffers.is_free.get_mut(number) {
            Some(is_free @ false) => *is_free = true,
            _ => return Err(Errno::INVAL),
        }
        buffers.free.push(number as u32);
        buffers.wake_next();
        Ok(())
    }
}

impl Buffers {
    /// Wakes the first receive in the line, if a buffer is free.
    fn wake_next(&mut self) {
        if !self.free.is_empty()
            && let Some((_, waker)) = self.line.pop_front()
        {
            waker.wake();
        }
    }

    /// Fills a free buffer with `call`. Returns its number and the number of bytes; `None` if no
    /// buffer is free.
    fn fill(
        &mut self,
        call: impl FnOnce(&mut [u8]) -> Outcome<usize>,
    ) -> Option<Outcome<(u32, usize)>> {
        let number = *self.free.last()?;
        let into = self.memory.part(number as usize * self.size, self.size);
        let received = call(into);
        match received {
            Ok(1..) => {
                self.free.pop();
                self.is_free[number as usize] = false;
            }
            // The buffer is left for another receive.
            _ => self.wake_next(),
        }
        Some(received.map(|count| (number, count)))
    }
}

/// A multishot receive.
struct Multishot {
    end: End,
    group: Arc<Group>,
    /// Its last place in the line.
    place: Option<u64>,
    /// The lack of a buffer was reported, and none was found since.
    is_starved: bool,
    stopped: Option<Errno>,
}

/// Starts a multishot receive on a stream.
pub(super) fn begin(
    events: &mut EventQueue,
    end: End,
    group: Arc<Group>,
    (deadline, data): (Option<Instant>, u64),
) -> Outcome<(Token, Pending)> {
    let multishot = Multishot { end, group, place: None, is_starved: false, stopped: None };
    Ok((events.start(multishot, deadline, data)?, Pending::Multishot))
}

/// A step that reports bytes in a buffer.
fn filled(buffer: u32, bytes: usize) -> Step {
    Step::Progress(i64::from(buffer) << 32 | bytes as i64)
}

/// A step that reports that no buffer is free.
const NONE_FREE: Step = Step::Progress(-1);

/// The event for a step that is not the last one.
pub(super) fn step(event: TowpathEvent, step: i64) -> TowpathEvent {
    if Step::Progress(step) == NONE_FREE {
        return TowpathEvent { what: STARVED, result: 0, ..event };
    }
    TowpathEvent {
        what: PROGRESS,
        result: step & i64::from(u32::MAX),
        detail: (step >> 32) as u32,
        ..event
    }
}

impl Multishot {
    /// Joins the line, unless it is in the line.
    fn stand_in_line(&mut self, waker: &Waker) {
        let mut buffers = self.group.lock();
        let first = buffers.line.front().map(|(place, _)| *place);
        if self.place.is_none_or(|own| first.is_none_or(|first| own < first)) {
            buffers.last_place += 1;
            let place = buffers.last_place;
            buffers.line.push_back((place, waker.clone()));
            self.place = Some(place);
        }
    }
}

impl Task for Multishot {
    fn poll(&mut self, waker: &Waker) -> Option<Step> {
        if let Some(Errno(number)) = self.stopped {
            return Some(Step::Complete(-i64::from(number)));
        }
        let Self { end, group, .. } = self;
        let found = group.lock().fill(|into| end.receive(into, waker));
        match found {
            Some(Ok((buffer, bytes @ 1..))) => {
                self.is_starved = false;
                return Some(filled(buffer, bytes));
            }
            Some(Ok(_)) => return Some(Step::Complete(0)),
            Some(Err(Errno::AGAIN)) => return None,
            Some(Err(Errno(number))) => return Some(Step::Complete(-i64::from(number))),
            None => {}
        }
        // The end of the stream needs no buffer.
        match end.look(waker) {
            Ok(0) => Some(Step::Complete(0)),
            Ok(_) => {
                self.stand_in_line(waker);
                (!std::mem::replace(&mut self.is_starved, true)).then_some(NONE_FREE)
            }
            Err(Errno::AGAIN) => None,
            Err(Errno(number)) => Some(Step::Complete(-i64::from(number))),
        }
    }

    fn stop(&mut self, why: Kernel) {
        self.stopped.get_or_insert(why.into());
    }

    fn fd(&self) -> Option<&dyn AsFd> {
        self.end.kernel().map(|socket| socket as _)
    }
}

impl Drop for Multishot {
    fn drop(&mut self) {
        let mut buffers = self.group.lock();
        let own = self.place;
        buffers.line.retain(|(place, _)| Some(*place) != own);
        // It may have been woken for a buffer.
        buffers.wake_next();
    }
}
