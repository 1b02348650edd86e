//! A doorbell for consumers of rings: an eventfd to wait for in a reactor or on its own.
//!
//! Where the kernel permits it (`membarrier`, Linux 4.14; system call filters may forbid it), the
//! consumer issues the memory barrier for all threads before it sleeps. The producer then needs no
//! barrier of its own each time it publishes. If a filter forbids the call later, the ring falls
//! back to barriers of the producer. A filter that kills for the call ends the thread or the
//! process, as with every system call that it forbids.
//!
//! Any thread rings; only the consumer's thread waits and clears.

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::thread::{MembarrierCommand, membarrier};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use towpath_packet::ring::Doorbell;

/// Pause after a refused barrier: until the producer's next call, the consumer polls instead of
/// sleeping.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

/// A doorbell. Clones share one eventfd.
#[derive(Clone, Debug)]
pub struct EventDoorbell {
    event: Arc<OwnedFd>,
    has_barrier: bool,
}

impl EventDoorbell {
    /// A doorbell that has not rung. Fails if the process has too many descriptors.
    pub fn new() -> Result<Self, Errno> {
        let has_barrier = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok();
        Ok(Self { has_barrier, ..Self::fenced()? })
    }

    /// A doorbell whose producers issue their own barriers, for rings whose consumer often sleeps.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn fenced() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event: Arc::new(event), has_barrier: false })
    }

    /// Sleeps until the doorbell rings, unless it has rung since it was last cleared; then clears
    /// it. A handled signal ends the sleep early.
    pub fn wait(&self) {
        // An interruption is as good as a ring: the caller then looks into its rings.
        let _ = poll(&mut [PollFd::new(&self.event, PollFlags::IN)], None);
        self.clear();
    }

    /// Forgets all rings so far. Call it when the doorbell is readable, before looking into the
    /// rings.
    pub fn clear(&self) {
        // Fails only if there was nothing to read, which is no error.
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
        // Fails only if the counter is at its maximum; then the doorbell has already rung.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn barrier(&self) -> bool {
        if !self.has_barrier {
            return false;
        }
        let is_done = membarrier(MembarrierCommand::PrivateExpedited).is_ok();
        if !is_done {
            thread::sleep(REFUSED_PAUSE);
        }
        is_done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::Timespec;
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
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

    const PACKETS: u32 = 5_000;

    /// Passes packets to a consumer that sleeps after each. Its thread forbids itself barriers when
    /// it has taken `allowed` packets. A lost wake-up makes this hang.
    fn pass_packets(bell: EventDoorbell, allowed: u32) {
        let (mut producer, mut consumer) = ring::single(4, bell.clone()).expect("a ring");
        let consumer = thread::spawn(move || {
            let (mut burst, mut poll) = (Burst::new(), BusyPoll::new(3));
            let (mut count, mut is_allowed) = (0, true);
            loop {
                if count >= allowed && std::mem::take(&mut is_allowed) {
                    forbid_barriers();
                }
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

    /// Makes the kernel refuse `membarrier` to this thread.
    fn forbid_barriers() {
        let refused = SeccompAction::Errno(libc::EPERM as u32);
        let calls = [(libc::SYS_membarrier, Vec::new())].into();
        let arch = std::env::consts::ARCH.try_into().expect("a known processor");
        let filter = SeccompFilter::new(calls, SeccompAction::Allow, refused, arch);
        let program: BpfProgram = filter.and_then(TryInto::try_into).expect("a filter");
        seccompiler::apply_filter(&program).expect("a kernel with filters");
    }

    /// Goal: a consumer that sleeps after each packet misses none, with the barrier and without it.
    #[test]
    fn a_consumer_that_sleeps_often_misses_nothing() {
        let with = EventDoorbell::new().expect("a descriptor");
        println!("membarrier is available: {}", with.has_barrier);
        pass_packets(with, u32::MAX);
        pass_packets(EventDoorbell::fenced().expect("a descriptor"), u32::MAX);
    }

    /// Goal: nor does it if the kernel refuses the barrier from some packet on, the first included.
    #[test]
    fn a_barrier_that_is_refused_later_loses_no_wake_up() {
        for allowed in [0, 1, PACKETS / 2] {
            pass_packets(EventDoorbell::new().expect("a descriptor"), allowed);
        }
    }

    /// Goal: where the barrier is refused from the beginning, the doorbell does not promise it.
    #[test]
    fn a_refused_barrier_is_not_promised() {
        let bell = thread::spawn(|| {
            forbid_barriers();
            EventDoorbell::new().expect("a descriptor")
        });
        assert!(!bell.join().expect("no panic").barrier());
    }
}
