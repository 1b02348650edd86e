//! How a worker waits: it busy-polls for a while where that pays, and then sleeps.

use super::{Inside, Worker};
use crate::flows::Token;
use std::hint::spin_loop;
use std::io;
use std::time::Duration;
use towpath_io::reactor::Events;

/// Processor pauses between two system calls for the kernel's events while the inside is polled,
/// each with one poll of the inside: together about as long as the system call takes.
pub(crate) const LOOKS: u32 = 8;
/// How long to poll for events of a young connection: longer than a peer on this machine takes to
/// answer, and as long as it takes to wake a thread whose processor sleeps.
pub(super) const YOUNG_POLL: Duration = Duration::from_micros(20);

impl<S: Inside> Worker<S> {
    /// Waits for events, or until the inside has work.
    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Events,
    ) -> io::Result<()> {
        let is_busy = timeout.is_some_and(|timeout| timeout.is_zero());
        // While memory is short, the packets of the inside have to wait.
        let is_paused = !self.engine.is_watched();
        if is_busy || is_paused {
            if !is_paused {
                // Only polling finds work of the inside here.
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
            // The next turn sends the ACKs, and may find other work.
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
        self.asleep += slept;
        if events.iter().any(|event| event.token == Token::Inside.encode()) {
            self.busy_poll.slept(slept);
        }
        if !events.is_empty() && self.gateway.has_young_flow(began) {
            self.young_poll.slept(slept);
        }
        Ok(())
    }

    /// Polls for events of a young connection for as long as that pays, for `timeout` at most, and
    /// at least once if ACKs wait for it. Returns true if there are any.
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
                self.asleep += spent.unwrap_or_default();
                self.young_poll.found(spent);
                return Ok(true);
            }
            let so_far = self.clock.now().since(began);
            if so_far >= window {
                self.asleep += so_far;
                if !window.is_zero() {
                    self.young_poll.missed();
                }
                return Ok(false);
            }
            spent = Some(so_far);
        }
    }

    /// Polls the inside for as long as that pays, for `timeout` at most. Returns true if the inside
    /// has work or `events` is not empty.
    fn poll(&mut self, timeout: Option<Duration>, events: &mut Events) -> io::Result<bool> {
        let window = self.busy_poll.window().min(timeout.unwrap_or(Duration::MAX));
        if window.is_zero() {
            return Ok(false);
        }
        let began = self.clock.now();
        let (was_there, before) = (self.engine.device.poll(), self.asleep);
        loop {
            let found = was_there
                || (0..LOOKS).any(|_| {
                    spin_loop();
                    self.engine.device.poll()
                });
            let spent = self.clock.now().since(began);
            self.asleep = before + spent;
            if found {
                self.busy_poll.found((!was_there).then_some(spent));
            } else if spent >= window {
                self.busy_poll.missed();
                return Ok(false);
            }
            // Events of other sources are collected as long as the inside is busy.
            self.reactor.wait(Some(Duration::ZERO), events)?;
            if found || !events.is_empty() {
                return Ok(true);
            }
        }
    }
}
