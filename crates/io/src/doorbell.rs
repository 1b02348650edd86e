//! A doorbell for consumers of rings: an eventfd, to wait for in a reactor or by itself.
//!
//! Where the kernel can (`membarrier`, Linux 4.14; filters for system calls may forbid it), the
//! consumer makes the memory barrier of all threads when it goes to sleep, so that producers have
//! none to pay for each time that they publish.
//!
//! Any thread rings; the consumer's waits and clears.

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::thread::{MembarrierCommand, membarrier};
use std::sync::Arc;
use towpath_packet::ring::Doorbell;

/// An eventfd; clones are the same one.
#[derive(Clone, Debug)]
pub struct EventDoorbell {
    event: Arc<OwnedFd>,
    has_barrier: bool,
}

impl EventDoorbell {
    /// One that has not rung. Fails if there are too many descriptors.
    pub fn new() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let has_barrier = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        Ok(Self { event: Arc::new(event), has_barrier })
    }

    /// One whose producers pay for barriers, for rings that are seldom used and often slept on.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn fenced() -> Result<Self, Errno> {
        Ok(Self { has_barrier: false, ..Self::new()? })
    }

    /// Sleeps until it rings, unless it has since it was last cleared, and clears it. Signals that
    /// are handled end the sleep early.
    pub fn wait(&self) {
        // An interruption is as good as a ring: who waits looks what there is.
        let _ = poll(&mut [PollFd::new(&self.event, PollFlags::IN)], None);
        self.clear();
    }

    /// Forgets that it rang: to be called when it was found readable, and before looking what there
    /// is.
    pub fn clear(&self) {
        // Nothing to read is as good.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl AsFd for EventDoorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Doorbell for EventDoorbell {
    fn ring(&self) {
        // Fails only if the counter is full: then it has rung.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn barrier(&self) -> bool {
        self.has_barrier && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::Timespec;
    use std::thread;
    use towpath_packet::Burst;
    use towpath_packet::ring::{self, BusyPoll, Closed};
    use towpath_packet::{Memory, MemoryConfig};

    fn is_readable(bell: &EventDoorbell) -> bool {
        let now = Timespec::default();
        poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&now)) == Ok(1)
    }

    #[test]
    fn it_is_readable_from_ringing_until_it_is_cleared() {
        let bell = EventDoorbell::new().expect("a descriptor");
        assert!(!is_readable(&bell));
        bell.ring();
        bell.clone().ring();
        assert!(is_readable(&bell));
        bell.wait();
        assert!(!is_readable(&bell));
        bell.clear();
    }

    /// Goal: a consumer that sleeps after each packet misses none, with the barrier and without it.
    /// A wake-up that is lost leaves the test hanging.
    #[test]
    fn a_consumer_that_sleeps_often_misses_nothing() {
        const PACKETS: u32 = 20_000;
        let with = EventDoorbell::new().expect("a descriptor");
        let without = EventDoorbell::fenced().expect("another");
        println!("the kernel makes barriers: {}", with.has_barrier);
        for bell in [with, without] {
            let (mut producer, mut consumer) = ring::single(4, bell.clone()).expect("a ring");
            let consumer = thread::spawn(move || {
                let (mut burst, mut poll) = (Burst::new(), BusyPoll::new(3));
                let mut count = 0;
                loop {
                    let slept = || bell.wait();
                    match consumer.dequeue_or_sleep(&mut burst, &mut poll, slept) {
                        Ok(taken) => count += taken as u32,
                        Err(Closed) => return count,
                    }
                    burst.clear();
                }
            });
            let config = MemoryConfig { packets: 16, small_frames: 1, large_frames: 1 };
            let (mut memory, mut burst) = (Memory::new(config), Burst::limited(1));
            for _ in 0..PACKETS {
                let packet = loop {
                    match memory.packet() {
                        Some(packet) => break packet,
                        None => thread::yield_now(),
                    }
                };
                assert!(burst.push(packet).is_ok());
                while producer.enqueue(&mut burst) == Ok(0) {
                    thread::yield_now();
                }
            }
            drop(producer);
            assert_eq!(consumer.join().expect("no panic"), PACKETS);
        }
    }
}
