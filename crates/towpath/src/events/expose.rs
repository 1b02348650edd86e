//! Waiting for a queue through its own descriptor. Once the descriptor exists, each call of the
//! queue updates it; until then it costs nothing.

use crate::events::exposed::Exposed;
use crate::events::queue::RAISED;
use crate::events::registrations::source::Kind;
use crate::events::{EVENTS_DEFAULT, Event, EventQueue};
use rustix::fd::{AsFd, OwnedFd};
use std::io;

impl EventQueue {
    /// Returns a descriptor that is readable while the queue has events to report. It may stay
    /// readable a little longer; then a wait finds nothing. A program that watches it
    /// edge-triggered must wait until nothing is found before it relies on the next edge. The
    /// descriptor is useful as long as the queue exists.
    pub fn descriptor(&mut self) -> io::Result<OwnedFd> {
        self.check_process()?;
        if self.exposed.is_none() {
            self.exposed = Some(Exposed::new(self.back.as_fd())?);
        }
        self.settle()?;
        let exposed = self.exposed.as_ref().expect("it was just made");
        exposed.descriptor()
    }

    /// Waits for events like [`wait`](Self::wait), as a future. `readable` must complete when the
    /// runtime reports the [descriptor](Self::descriptor) as readable; it may also complete
    /// spuriously. Dropping the future loses no event.
    ///
    /// With tokio, if `fd` is an `AsyncFd` of the descriptor and `events` a vector:
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
    /// The errors of [`wait`](Self::wait) and of `readable`.
    pub async fn wait_async(
        &mut self,
        into: &mut Vec<Event>,
        mut readable: impl AsyncFnMut() -> io::Result<()>,
    ) -> io::Result<usize> {
        loop {
            // Look once more after each edge, so that no event is missed.
            let count = self.wait_many(into, 0..=EVENTS_DEFAULT, None)?;
            if count > 0 {
                return Ok(count);
            }
            readable().await?;
        }
    }

    /// Releases removed registrations and updates the descriptor, if there is one.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        self.back.settle()?;
        self.removed.clear();
        if self.exposed.is_none() {
            return Ok(());
        }
        self.look_again()?;
        let mut reports = std::mem::take(&mut self.reports);
        let flushed = self.back.flush(&mut reports);
        self.note(&mut reports);
        self.reports = reports;
        flushed?;
        self.collect(self.clock.now());
        self.look_at_sockets();
        let waits = !self.pending.is_empty() || self.back.is_busy() || !self.ready.arm();
        let (now, due) = (self.clock.now(), self.timers.next());
        self.exposed.as_mut().map_or(Ok(()), |exposed| exposed.show(waits, now, due))
    }

    /// Drops towpath sockets that are not ready from the pending ones; their wakers raise them
    /// again.
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
