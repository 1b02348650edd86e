//! Waiting: collects events and decides the order in which they are reported.

use crate::driver::bell::{hold, let_ring};
use crate::events::custom::{Accessed, Step};
use crate::events::queue::{CHANGES_SLOT, EXPIRED, KERNEL, RAISED, kernel_slot, own_slot};
use crate::events::registrations::pool::Groups;
use crate::events::registrations::slots::Registration;
use crate::events::registrations::source::{Kind, exit_of, next_signal};
use crate::events::registrations::timers::UNSET;
use crate::events::{Event, EventKind, EventQueue, Interest, Readiness, Token, Trigger};
use crate::host::operations::operation;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::io;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};
use towpath_io::events::{Buffer, Job, Operation, Outcome, Parts, What, look as look_at};

/// Most events that a wait returns by default.
pub const EVENTS_DEFAULT: usize = 256;

impl EventQueue {
    /// Waits for at least one event, or until `deadline`. Appends up to [`EVENTS_DEFAULT`] events
    /// to `into` and returns their number.
    pub fn wait(&mut self, into: &mut Vec<Event>, deadline: Option<Instant>) -> io::Result<usize> {
        self.wait_many(into, 1..=EVENTS_DEFAULT, deadline)
    }

    /// Waits until there are `count.start()` events, or until `deadline`. Appends up to
    /// `count.end()` events to `into` and returns their number. Signals that the program handles do
    /// not end a wait. With `0..=max` it does not block.
    ///
    /// # Errors
    /// `EINVAL` if `count` is empty or ends with zero; `EDEADLK` in simulated time if nothing would
    /// end the wait. Events found before the error are in `into`.
    pub fn wait_many(
        &mut self,
        into: &mut Vec<Event>,
        count: RangeInclusive<usize>,
        deadline: Option<Instant>,
    ) -> io::Result<usize> {
        self.check_process()?;
        let (min, max) = (*count.start(), *count.end());
        if min > max || max == 0 {
            return Err(Errno::INVAL.into());
        }
        let before = into.len();
        self.waits += 1;
        self.look_again()?;
        let mut is_first = true;
        loop {
            let now = self.clock.now();
            self.collect(now);
            let is_late = min == 0 || deadline.is_some_and(|deadline| deadline <= now);
            let is_short = into.len() - before < min && !is_late;
            let sleeps = is_short && self.pending.is_empty() && self.ready.arm();
            if sleeps {
                if !is_first {
                    self.pause_reported()?;
                }
                self.sleep(deadline)?;
            } else if is_first && self.pending.of[KERNEL].is_empty() {
                self.ask_kernel(Some(Duration::ZERO))?;
            }
            is_first = false;
            self.report(into, before.saturating_add(max))?;
            if is_late || into.len() - before >= min {
                break;
            }
        }
        self.settle()?;
        Ok(into.len() - before)
    }

    /// Waits in the kernel for an event or the next deadline.
    fn sleep(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let due = deadline.into_iter().chain(self.timers.next()).min();
        let asked = self.ask_kernel(self.clock.until(due, self.late > 0));
        self.ready.disarm();
        asked?;
        self.collect(self.clock.now());
        if self.pending.is_empty() && !self.clock.pass(due) {
            return Err(Errno::DEADLK.into());
        }
        Ok(())
    }

    /// Looks again at level-triggered registrations that were reported; those that are still ready
    /// become pending.
    pub(super) fn look_again(&mut self) -> io::Result<()> {
        for token in std::mem::take(&mut self.again) {
            let Some(registration) = self.slots.get(token) else { continue };
            if let Some(fd) = registration.source.fd() {
                let was_paused = std::mem::take(&mut registration.is_paused);
                let state = (registration.interest, was_paused);
                self.back.resume(kernel_slot(token), fd.as_fd(), state)?;
            } else {
                self.push(token, RAISED);
            }
        }
        Ok(())
    }

    /// Pauses the level-triggered descriptors that this wait has reported, so that they do not end
    /// its sleep.
    fn pause_reported(&mut self) -> io::Result<()> {
        for &token in &self.again {
            let Some(registration) = self.slots.get(token) else { continue };
            let Some(fd) = registration.source.fd() else { continue };
            if !std::mem::replace(&mut registration.is_paused, true) {
                self.back.pause(kernel_slot(token), fd.as_fd(), registration.interest)?;
            }
        }
        Ok(())
    }

    /// Lets the back end wait and notes its reports.
    pub(super) fn ask_kernel(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let mut reports = std::mem::take(&mut self.reports);
        let asked = self.back.wait(timeout, &mut reports);
        self.note(&mut reports);
        self.reports = reports;
        asked
    }

    /// Notes the reports of the back end.
    pub(super) fn note(&mut self, reports: &mut Vec<(u32, What)>) {
        for (slot, what) in reports.drain(..) {
            if slot == CHANGES_SLOT {
                self.note_changes();
                continue;
            }
            let Some(slot) = own_slot(slot) else {
                if let What::Over(outcome) = what {
                    self.loads.finish(slot, outcome, &mut self.back);
                }
                continue;
            };
            let Some(token) = self.slots.token(slot) else { continue };
            let Some(registration) = self.slots.get(token) else { continue };
            match what {
                What::Ready(ready) => {
                    registration.ready = registration.ready.or(ready);
                    registration.noted_in = self.waits;
                }
                What::Accepted(connection) => {
                    if let Kind::Operation(ongoing) = &mut registration.source {
                        ongoing.accepted(connection);
                    }
                }
                What::Sent(bytes) => {
                    if let Kind::Operation(ongoing) = &mut registration.source {
                        ongoing.sent(bytes);
                    }
                }
                What::Over(outcome) => {
                    let Kind::Operation(ongoing) = &mut registration.source else { continue };
                    ongoing.over(outcome);
                    self.late -= u32::from(ongoing.is_late);
                    if ongoing.deadline.take().is_some() {
                        self.unset_timer();
                    }
                }
            }
            self.push(token, KERNEL);
        }
        self.note_accessed();
    }

    /// Reads file changes from inotify.
    fn note_changes(&mut self) {
        let Some(inotify) = &mut self.inotify else { return };
        let mut reported = Vec::new();
        inotify.read(|token, note| {
            if let Some(Registration { source: Kind::File { changed, .. }, .. }) =
                self.slots.get(token)
            {
                note(changed);
                reported.push(token);
            }
        });
        let state = (Interest::READ, false);
        // If the kernel refuses, another call returns the error.
        let _ = self.back.resume(CHANGES_SLOT, inotify.as_fd(), state);
        reported.into_iter().for_each(|token| self.push(token, KERNEL));
    }

    /// Notes which registrations other threads have raised and which timers have expired.
    pub(super) fn collect(&mut self, now: Instant) {
        let Self { ready, entries, slots, pending, .. } = self;
        ready.take(|index, raised| {
            let token = entries[index as usize];
            let Some(registration) = slots.get(token) else { return };
            if let Kind::User { count, .. } = &mut registration.source {
                *count += raised;
            }
            if !std::mem::replace(&mut registration.is_pending, true) {
                pending.of[RAISED].push_back(token);
            }
        });
        while let Some((token, setting)) = self.timers.pop(now) {
            self.expire(token, setting, now);
        }
        self.note_accessed();
    }

    /// Passes results of file writes to streams, and results of accesses to tasks.
    pub(super) fn note_accessed(&mut self) {
        while let Some((token, outcome)) = self.loads.take_accessed() {
            match self.slots.get(token).map(|registration| &mut registration.source) {
                Some(Kind::Stream { work, .. }) => work.written(outcome),
                Some(Kind::Task { task, .. }) => {
                    let Outcome { bytes, failure, parts } = outcome;
                    let Parts::Buffer(Buffer::Vec(buffer)) = parts else {
                        unreachable!("it has a vector")
                    };
                    task.accessed(Accessed { bytes, failure, buffer });
                }
                _ => continue,
            }
            self.push(token, KERNEL);
        }
    }

    /// Handles a timer that is due.
    fn expire(&mut self, token: Token, setting: u64, now: Instant) {
        if self.slots.setting(token) != Some(setting) {
            return;
        }
        self.timers.fired();
        let Some(registration) = self.slots.get(token) else { return };
        match &mut registration.source {
            Kind::Timer { due, period: Some(period), setting, count } => {
                let late = now.saturating_duration_since(*due).as_nanos();
                let times = late / period.as_nanos() + 1;
                *count = count.saturating_add(u64::try_from(times).unwrap_or(u64::MAX));
                // An expiry beyond the range of the clock never comes.
                let times = u32::try_from(times).unwrap_or(u32::MAX);
                let next = period.checked_mul(times).and_then(|late| due.checked_add(late));
                *setting = next.map_or(UNSET, |next| self.timers.set(next, token));
                *due = next.unwrap_or(*due);
                self.push(token, EXPIRED);
            }
            Kind::Timer { setting, count, .. } => {
                (*setting, *count) = (UNSET, 1);
                self.push(token, EXPIRED);
            }
            Kind::Stream { work, deadline, .. } => {
                *deadline = None;
                work.stop(Errno::TIMEDOUT);
                self.loads.withdraw(token, &mut self.back);
                self.push(token, EXPIRED);
            }
            Kind::Relay { relay, deadline, .. } => {
                *deadline = None;
                relay.stop(Errno::TIMEDOUT);
                self.push(token, EXPIRED);
            }
            Kind::Multishot { multishot, deadline, .. } => {
                *deadline = None;
                multishot.stop(Errno::TIMEDOUT);
                self.push(token, EXPIRED);
            }
            Kind::Task { task, deadline, .. } => {
                *deadline = None;
                task.stop(Errno::TIMEDOUT);
                self.loads.withdraw(token, &mut self.back);
                self.push(token, EXPIRED);
            }
            Kind::Operation(ongoing) => {
                (ongoing.deadline, ongoing.is_late) = (None, true);
                self.late += 1;
                self.back.cancel(kernel_slot(token));
            }
            _ => {}
        }
    }

    /// Appends events until there are `limit`. Wakes each worker of a host once for all of them.
    fn report(&mut self, into: &mut Vec<Event>, limit: usize) -> io::Result<()> {
        let reported = self.report_each(into, limit);
        let_ring();
        reported
    }

    fn report_each(&mut self, into: &mut Vec<Event>, limit: usize) -> io::Result<()> {
        while into.len() < limit {
            let Some(token) = self.pending.next() else { break };
            let Some(registration) = self.slots.get(token) else { continue };
            registration.is_pending = false;
            let by_level = registration.trigger == Trigger::Level
                && matches!(
                    registration.source,
                    Kind::Fd(_) | Kind::Socket(..) | Kind::Custom(..) | Kind::Signal { .. }
                );
            if by_level && registration.reported_in == self.waits {
                // It is already in `again`.
                registration.ready = Readiness::default();
                continue;
            }
            let Registration { interest, trigger, .. } = *registration;
            let is_left = registration.noted_in != self.waits && trigger != Trigger::Edge;
            if let (Kind::Fd(fd), true) = (&registration.source, is_left) {
                // The program may have drained it since: look again.
                let fd = (**fd).as_fd();
                registration.ready = look_at(fd, interest)?;
                if registration.ready.is_empty() && trigger == Trigger::OneShot {
                    self.back.modify(kernel_slot(token), fd, interest, trigger)?;
                }
            }
            let data = registration.data;
            let found = next_event(registration, &mut self.groups, token);
            match &mut registration.source {
                Kind::Stream { work, .. } => {
                    let (loads, write) = (work.take_loads(), work.take_write());
                    self.loads.begin(token, (loads, write), &mut self.back);
                }
                Kind::Task { task, is_over: false, .. } => {
                    let access = (task.take_loads(), task.take_access().map(on_file));
                    self.loads.begin(token, access, &mut self.back);
                }
                _ => {}
            }
            let (kind, is_over) = match found {
                Some(found) => found,
                None => {
                    if by_level && registration.source.fd().is_some() {
                        self.again.push(token);
                    }
                    continue;
                }
            };
            registration.reported_in = self.waits;
            registration.is_spent = registration.trigger == Trigger::OneShot;
            into.push(Event { token, data, kind, is_over });
            if is_over {
                self.begin_remove(token)?;
            } else if let EventKind::Accepted { .. }
            | EventKind::Step { .. }
            | EventKind::Received { .. } = kind
            {
                // There may already be more.
                self.push(token, RAISED);
            } else if let Kind::Stream { is_reported: true, deadline, .. }
            | Kind::Relay { is_reported: true, deadline, .. }
            | Kind::Multishot { is_reported: true, deadline, .. } =
                &mut registration.source
            {
                if deadline.take().is_some() {
                    self.unset_timer();
                }
            } else if by_level {
                self.again.push(token);
            }
        }
        // Accesses that could not be started are already complete.
        self.note_accessed();
        self.serve_waiters();
        Ok(())
    }
}

/// Readiness of a socket that no longer exists.
const GONE: Readiness =
    Readiness { readable: false, writable: false, peer_closed: false, hangup: true, error: true };

/// The access of a task as a job, with the device of its file.
fn on_file((device, operation): (u64, Operation)) -> (u64, Job) {
    (device, Job::File(operation.map(Buffer::from)))
}

/// Returns what a registration has to report, and whether the registration ends with it.
fn next_event(
    registration: &mut Registration,
    groups: &mut Groups,
    token: Token,
) -> Option<(EventKind, bool)> {
    let Registration { source, ready, interest, is_spent, .. } = registration;
    match source {
        Kind::Fd(_) => {
            let ready = std::mem::take(ready);
            (!ready.is_empty() && !*is_spent).then_some((EventKind::Ready(ready), false))
        }
        Kind::Socket(socket, wakes) => {
            let waker = &wakes.as_ref()?.waker;
            let ready = (!*is_spent).then(|| socket.poll_ready(*interest, waker))?;
            (!ready.is_empty()).then_some((EventKind::Ready(ready), false))
        }
        Kind::Custom(socket, wakes) => {
            let waker = &wakes.as_ref()?.waker;
            match (!*is_spent).then(|| socket.poll_ready(*interest, waker))? {
                Some(ready) => (!ready.is_empty()).then_some((EventKind::Ready(ready), false)),
                None => Some((EventKind::Ready(GONE), true)),
            }
        }
        Kind::Return(back, wakes) => {
            let copied = back.poll(&wakes.as_ref()?.waker)?;
            Some((EventKind::Returned { copied }, true))
        }
        Kind::Stream { work, wakes, is_reported, .. } => {
            let waker = &wakes.as_ref().filter(|_| !*is_reported)?.waker;
            let kind = match hold(|| work.poll(waker))? {
                operation::Step::Accepted => EventKind::Connection,
                operation::Step::Sent(bytes) => EventKind::Accepted { bytes },
                operation::Step::Over => EventKind::Completed,
            };
            *is_reported = kind == EventKind::Completed;
            Some((kind, false))
        }
        Kind::Relay { relay, wakes, is_reported, .. } => {
            let waker = &wakes.as_ref().filter(|_| !*is_reported)?.waker;
            *is_reported = relay.poll(waker);
            is_reported.then_some((EventKind::Completed, false))
        }
        Kind::Multishot { multishot, wakes, is_reported, .. } => {
            let waker = &wakes.as_ref().filter(|_| !*is_reported)?.waker;
            let kind = multishot.poll(waker, groups, token)?;
            *is_reported = kind == EventKind::Completed;
            Some((kind, false))
        }
        Kind::Task { task, wakes, is_over, .. } => {
            let (result, over) = match task.poll(&wakes.as_ref()?.waker)? {
                Step::Progress(result) => (result, false),
                Step::Complete(result) => (result, true),
            };
            *is_over = over;
            Some((EventKind::Step { result }, over))
        }
        Kind::Timer { period, count, .. } => {
            let count = std::mem::take(count);
            (count > 0).then_some((EventKind::Expired { count }, period.is_none()))
        }
        Kind::User { count, .. } => {
            let count = std::mem::take(count);
            (count > 0).then_some((EventKind::Notified { count }, false))
        }
        Kind::Signal { fd, .. } => {
            let (signal, sender) = next_signal(fd.as_ref()?)?;
            Some((EventKind::Signal { signal, sender }, false))
        }
        Kind::Child { fd, .. } => Some((EventKind::Exited(exit_of(fd.as_ref()?)), true)),
        Kind::File { changed, .. } => Some((EventKind::Changed(std::mem::take(changed)), false)),
        Kind::Operation(ongoing) => ongoing.next_event().map(|kind| (kind, false)),
    }
}
