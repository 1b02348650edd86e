//! How a worker waits: it looks for news for a while where that pays, and then sleeps.

use super::{Side, Worker};
use crate::flows::Token;
use std::hint::spin_loop;
use std::io;
use std::time::Duration;
use towpath_io::reactor::Events;

/// Pauses of the processor between two looks at the kernel's events while the inside is polled,
/// each with a look at the inside: about as long as the system call takes.
const LOOKS: u32 = 8;
/// How long news of a young connection are looked for: longer than a peer on this machine takes,
/// and as long as it takes to wake a thread whose processor sleeps.
pub(super) const YOUNG_POLL: Duration = Duration::from_micros(20);

impl<S: Side> Worker<S> {
    /// Waits for events, or until there is something to do inside.
    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Events,
    ) -> io::Result<()> {
        let is_busy = timeout.is_some_and(|timeout| timeout.is_zero());
        // While memory is short, what is inside has to wait.
        let is_paused = !self.engine.is_watched();
        if is_busy || is_paused {
            if !is_paused {
                // Nothing but this tells of it.
                self.engine.device.poll();
            }
            self.rest.wait(&mut self.reactor, timeout, events)?;
            return Ok(());
        }
        if self.poll(timeout, events)? || self.poll_young(timeout, events)? {
            return Ok(());
        }
        if self.gateway.awaits_answers() {
            let now = self.clock.now();
            self.with_gateway(now, |gateway, io| gateway.answers_are_late(io));
            // The turn that follows sends the ACKs, and may find what else there is to do.
            events.clear();
            return Ok(());
        }
        if self.engine.arm() {
            return self.reactor.wait(Some(Duration::ZERO), events);
        }
        let began = self.clock.now();
        if self.rest.wait(&mut self.reactor, timeout, events)? {
            self.give_back();
        }
        let slept = self.clock.now().since(began);
        if events.iter().any(|event| event.token == Token::Side.encode()) {
            self.busy_poll.slept(slept);
        }
        if !events.is_empty() && self.gateway.has_young_flow(began) {
            self.young_poll.slept(slept);
        }
        Ok(())
    }

    /// Looks for news of a young connection for as long as that pays, `timeout` at most, and once
    /// in any case if ACKs wait for it. True if there are any.
    fn poll_young(&mut self, timeout: Option<Duration>, events: &mut Events) -> io::Result<bool> {
        let began = self.clock.now();
        let mut window = Duration::ZERO;
        if self.gateway.has_young_flow(began) {
            window = self.young_poll.window().min(timeout.unwrap_or(Duration::MAX));
        }
        if window.is_zero() && !self.gateway.awaits_answers() {
            return Ok(false);
        }
        let mut spent = None;
        loop {
            let found = self.engine.device.poll();
            self.reactor.wait(Some(Duration::ZERO), events)?;
            if found || !events.is_empty() {
                self.young_poll.found(spent);
                return Ok(true);
            }
            let so_far = self.clock.now().since(began);
            if so_far >= window {
                if !window.is_zero() {
                    self.young_poll.missed();
                }
                return Ok(false);
            }
            spent = Some(so_far);
        }
    }

    /// Polls the inside for as long as that pays, `timeout` at most. True if there is something to
    /// do, be it for `events`.
    fn poll(&mut self, timeout: Option<Duration>, events: &mut Events) -> io::Result<bool> {
        let window = self.busy_poll.window().min(timeout.unwrap_or(Duration::MAX));
        if window.is_zero() {
            return Ok(false);
        }
        let began = self.clock.now();
        let was_there = self.engine.device.poll();
        loop {
            let found = was_there
                || (0..LOOKS).any(|_| {
                    spin_loop();
                    self.engine.device.poll()
                });
            let spent = self.clock.now().since(began);
            if found {
                self.busy_poll.found((!was_there).then_some(spent));
            } else if spent >= window {
                self.busy_poll.missed();
                return Ok(false);
            }
            // Of others, too, news are heard of as long as the inside is busy.
            self.reactor.wait(Some(Duration::ZERO), events)?;
            if found || !events.is_empty() {
                return Ok(true);
            }
        }
    }
}
