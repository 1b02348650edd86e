//! Long-lived service threads: how they start, and what they do when idle.

use std::io;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::process_sys::SignalSet;
use crate::reactor::{Events, Reactor};
use crate::release_pages;

/// Time without an event after which a thread gives memory back to the system.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Shortest contiguous range of unused frames that goes back to the system. Memory that a few small
/// flows leave stays mapped, so that they continue without page faults.
const RELEASED_MIN: usize = 512 << 10;
/// Linux's signals, except the two that the C library reserves and those that the kernel sends to a
/// thread whose instruction failed: if that thread blocked them, they would end the process even
/// where the program has a handler.
const SIGNALS: [RangeInclusive<i32>; 5] = [1..=3, 6..=6, 9..=10, 12..=30, 34..=64];

/// Starts a service thread of the library. The thread blocks all asynchronous signals, so that the
/// program's own threads receive them. If it panics, the process aborts, because callers would
/// otherwise wait for the thread indefinitely.
///
/// # Errors
/// There are too many threads, or too little memory.
pub fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let signals: Vec<i32> = SIGNALS.into_iter().flatten().collect();
    let before = SignalSet::of(&signals).block()?;
    let thread = Builder::new().name("towpath".into()).spawn(move || {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            std::process::abort();
        }
    });
    before.restore()?;
    thread
}

/// Waits for events and detects idleness: one second without an event. A timeout that expires does
/// not end the rest; the next event does.
#[derive(Debug, Default)]
pub struct Rest {
    at_rest: bool,
}

impl Rest {
    /// A thread that is not at rest.
    pub const fn new() -> Self {
        Self { at_rest: false }
    }

    /// Waits as [`Reactor::wait`] does, possibly for a shorter time. Returns true if the rest
    /// begins: the caller then gives back the memory that it kept ready.
    ///
    /// # Errors
    /// Those of [`Reactor::wait`].
    pub fn wait(
        &mut self,
        reactor: &mut Reactor,
        timeout: Option<Duration>,
        events: &mut Events,
    ) -> io::Result<bool> {
        let may_rest = !self.at_rest && timeout.is_none_or(|timeout| timeout > IDLE_AFTER);
        reactor.wait(if may_rest { Some(IDLE_AFTER) } else { timeout }, events)?;
        let rests = may_rest && events.is_empty();
        self.at_rest = rests || self.at_rest && events.is_empty();
        Ok(rests)
    }
}

/// Gives unused memory back to the system if there is enough to be worth a system call. For use
/// with [`towpath_packet::Memory::unused`].
pub fn release_unused(bytes: &mut [u8]) {
    if bytes.len() >= RELEASED_MIN {
        release_pages(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doorbell::EventDoorbell;
    use crate::reactor::Interest;
    use towpath_packet::ring::Doorbell;

    #[test]
    fn rest_begins_once_and_ends_with_an_event() {
        let mut reactor = Reactor::new().unwrap();
        let bell = EventDoorbell::new().unwrap();
        reactor.add(&bell, 7, Interest::READ, false).unwrap();
        let (mut rest, mut events) = (Rest::new(), Events::new());
        let short = Some(Duration::from_millis(1));
        assert!(!rest.wait(&mut reactor, short, &mut events).unwrap(), "a timer is near");
        assert!(rest.wait(&mut reactor, None, &mut events).unwrap());
        assert!(!rest.wait(&mut reactor, short, &mut events).unwrap(), "it is at rest");
        bell.ring();
        assert!(!rest.wait(&mut reactor, None, &mut events).unwrap());
        assert_eq!(events.len(), 1);
        bell.clear();
        assert!(rest.wait(&mut reactor, None, &mut events).unwrap(), "a second later");
    }

    #[test]
    fn a_thread_blocks_signals_and_its_starter_does_not() {
        let blocked = |status: &str| {
            let line = status.lines().find(|line| line.starts_with("SigBlk:")).unwrap();
            u64::from_str_radix(line[7..].trim(), 16).unwrap()
        };
        let status = || std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let before = blocked(&status());
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = spawn(move || sender.send(status()).unwrap()).unwrap();
        // SIGKILL and SIGSTOP cannot be blocked; 32 and 33 belong to the C library. A failing
        // instruction raises SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV or SIGSYS.
        let never =
            [9, 19, 32, 33, 4, 5, 7, 8, 11, 31].map(|signal| 1 << (signal - 1)).iter().sum::<u64>();
        assert_eq!(blocked(&receiver.recv().unwrap()) | never, u64::MAX);
        assert_eq!(blocked(&status()), before);
        thread.join().unwrap();
    }
}
