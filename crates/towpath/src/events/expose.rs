//! Waiting for a queue by its own descriptor. Once there is one, each call of the queue leaves it
//! as it is to be; before, nobody pays for it.

use crate::events::exposed::Exposed;
use crate::events::queue::RAISED;
use crate::events::registrations::source::Kind;
use crate::events::{EVENTS_DEFAULT, Event, EventQueue};
use rustix::fd::{AsFd, OwnedFd};
use std::io;

impl EventQueue {
    /// A descriptor that is readable while there are events to wait for. It may be readable a
    /// moment longer, too: then a wait finds nothing. Who watches it by edge waits until nothing is
    /// found before he relies on the next edge. It is good as long as the queue is there.
    pub fn descriptor(&mut self) -> io::Result<OwnedFd> {
        self.check_process()?;
        if self.exposed.is_none() {
            self.exposed = Some(Exposed::new(self.back.as_fd())?);
        }
        self.settle()?;
        let exposed = self.exposed.as_ref().expect("it was just made");
        exposed.descriptor()
    }

    /// As [`wait`](Self::wait), as a future: `readable` ends when the
    /// [descriptor](Self::descriptor) is readable, as the runtime at hand tells it. It may end for
    /// nothing. Nothing is lost if the future is dropped.
    ///
    /// With tokio, where `fd` is an `AsyncFd` of the descriptor, and `events` a vector:
    ///
    /// ```ignore
    /// let readable = async || {
    ///     fd.readable().await?.clear_ready();
    ///     Ok(())
    /// };
    /// queue.wait_async(&mut events, readable).await?;
    /// ```
    ///
    /// # Errors
    /// As there, and those of `readable`.
    pub async fn wait_async(
        &mut self,
        into: &mut Vec<Event>,
        mut readable: impl AsyncFnMut() -> io::Result<()>,
    ) -> io::Result<usize> {
        loop {
            // It is looked at once more after each edge, so that none is missed.
            let count = self.wait_many(into, 0..=EVENTS_DEFAULT, None)?;
            if count > 0 {
                return Ok(count);
            }
            readable().await?;
        }
    }

    /// Lets go of what was removed, and sees to the descriptor, if there is one.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        self.back.settle()?;
        self.removed.clear();
        if self.exposed.is_none() {
            return Ok(());
        }
        self.look_again()?;
        let mut news = std::mem::take(&mut self.news);
        let flushed = self.back.flush(&mut news);
        self.note(&mut news);
        self.news = news;
        flushed?;
        self.collect(self.clock.now());
        self.look_at_sockets();
        let waits = !self.pending.is_empty() || self.back.is_busy() || !self.ready.arm();
        let (now, due) = (self.clock.now(), self.timers.next());
        self.exposed.as_mut().map_or(Ok(()), |exposed| exposed.show(waits, now, due))
    }

    /// Forgets sockets of towpath that are not ready: they tell when they are.
    fn look_at_sockets(&mut self) {
        let slots = &mut self.slots;
        self.pending.of[RAISED].retain(|&token| {
            let Some(registration) = slots.get(token) else { return false };
            let (interest, source) = (registration.interest, &mut registration.source);
            registration.is_pending = match source {
                Kind::Socket(socket, Some(wakes)) => {
                    !socket.poll_ready(interest, &wakes.waker).is_empty()
                }
                Kind::Custom(socket, Some(wakes)) => {
                    socket.poll_ready(interest, &wakes.waker).is_none_or(|ready| !ready.is_empty())
                }
                _ => return true,
            };
            registration.is_pending
        });
    }
}
