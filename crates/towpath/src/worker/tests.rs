//! A worker beside an inside that is made for one question each.

use super::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};

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
