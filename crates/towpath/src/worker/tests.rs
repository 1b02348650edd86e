//! A worker beside an inside that is made for one question each.

use super::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use towpath_packet::sync::{AtomicU32, Ordering::Relaxed};

/// Turns within which an inside must have been looked at.
const TURNS_MAX: u32 = 100;

/// An inside whose turn is always due, and that can only be polled.
struct Busy {
    /// Never readable.
    file: OwnedFd,
    looked_at: OwnedFd,
    turns: u32,
}

impl AsFd for Busy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Side for Busy {
    type Error = io::Error;

    fn caps(&self) -> Caps {
        Caps::plain(1500)
    }

    fn next_deadline(&self) -> Option<Instant> {
        Some(Instant::START)
    }

    fn turn(&mut self, _: bool, _: &mut SideContext<'_>) -> io::Result<()> {
        self.turns += 1;
        match self.turns {
            ..TURNS_MAX => Ok(()),
            _ => Err(io::Error::other("nobody looked at it")),
        }
    }

    fn poll(&mut self) -> bool {
        rustix::io::write(&self.looked_at, &1_u64.to_ne_bytes()).expect("room");
        false
    }

    fn receive(&mut self, _: &mut Burst, _: &mut SideContext<'_>) -> io::Result<Input> {
        Ok(Input::Done)
    }

    fn transmit(&mut self, _: &mut Burst, _: &mut SideContext<'_>) -> io::Result<()> {
        Ok(())
    }

    fn rest(&mut self) {}

    fn add_to(&self, _: &mut Report) {}
}

/// Goal: a worker that never sleeps asks for no kicks, so it has to look at the inside.
/// Method: it ends when it is looked at, and fails after so many turns.
#[test]
fn a_busy_worker_looks_at_its_inside() {
    let file = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let looked_at = file();
    let end = looked_at.try_clone().unwrap();
    let side = Busy { file: file(), looked_at, turns: 0 };
    let mut worker = Worker::serving(&Config::default(), side, Arc::default()).unwrap();
    assert_eq!(worker.run_until(&[end.as_fd()]).unwrap(), 0);
}

/// An inside that is always readable and has a packet for each time that it is read, but many at
/// last.
struct Singles {
    file: OwnedFd,
    end: OwnedFd,
    /// Packets that are still to come alone, and then together.
    alone: u32,
    together: u32,
    /// Looks that found nothing.
    vain: Arc<AtomicU32>,
}

impl AsFd for Singles {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Side for Singles {
    type Error = io::Error;

    fn caps(&self) -> Caps {
        Caps::plain(1500)
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn turn(&mut self, _: bool, _: &mut SideContext<'_>) -> io::Result<()> {
        Ok(())
    }

    fn looks_by_call(&self) -> bool {
        true
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut SideContext<'_>) -> io::Result<Input> {
        let is_alone = self.alone > 0;
        while !burst.is_full() {
            let left = if is_alone { &mut self.alone } else { &mut self.together };
            if *left == 0 || is_alone && !burst.is_empty() {
                self.vain.fetch_add(1, Relaxed);
                break;
            }
            *left -= 1;
            burst.push(cx.memory.packet().expect("memory")).expect("room");
        }
        if self.alone + self.together == 0 {
            rustix::io::write(&self.end, &1_u64.to_ne_bytes())?;
        }
        Ok(Input::Done)
    }

    fn transmit(&mut self, _: &mut Burst, _: &mut SideContext<'_>) -> io::Result<()> {
        Ok(())
    }

    fn rest(&mut self) {}

    fn add_to(&self, _: &mut Report) {}
}

/// Goal: where packets come alone an empty inside is hardly asked, and whatever comes is taken.
/// Method: an inside counts looks in vain; the worker ends when it has taken all.
#[test]
fn an_inside_with_single_packets_is_not_asked_for_more() {
    let vain = Arc::new(AtomicU32::new(0));
    let end = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let side = Singles {
        file: eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap(),
        end: end.try_clone().unwrap(),
        alone: 160,
        together: 100,
        vain: vain.clone(),
    };
    let mut worker = Worker::serving(&Config::default(), side, Arc::default()).unwrap();
    assert_eq!(worker.run_until(&[end.as_fd()]).unwrap(), 0);
    assert_eq!(worker.side().alone + worker.side().together, 0, "all were taken");
    let vain = vain.load(Relaxed);
    assert!((4..30).contains(&vain), "{vain} looks in vain for 160 packets");
}
