//! Unit tests of waiting: what holds whichever back end it is.

use super::{BackEnd, Choice, Interest, Trigger};
use crate::doorbell::EventDoorbell;
use rustix::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use towpath_packet::ring::Doorbell;

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(20);

/// Goal: who rings after the caller looked and before it waits is heard, although the kernel may
/// tell of it before the wait has begun.
#[test]
fn a_doorbell_that_rings_before_the_wait_ends_it() {
    for choice in [Choice::IoUring, Choice::Epoll] {
        let (bell, late) = (EventDoorbell::new().unwrap(), EventDoorbell::new().unwrap());
        let Ok(mut back) = BackEnd::new(choice, &bell) else {
            println!("skipped: this kernel does not allow {choice:?}");
            continue;
        };
        back.add(0, late.as_fd(), Interest::READ, Trigger::Level).unwrap();
        let (done, is_done) = mpsc::channel();
        let watchdog = thread::spawn(move || {
            if is_done.recv_timeout(PATIENCE).is_err() {
                late.ring();
            }
        });
        for _ in 0..3 {
            let mut news = Vec::new();
            // Afterwards the kernel looks at the doorbell.
            back.wait(Some(Duration::ZERO), &mut news).unwrap();
            bell.ring();
            // Another system call gives the kernel the occasion to tell.
            thread::yield_now();
            back.wait(None, &mut news).unwrap();
            assert!(news.is_empty(), "{choice:?} did not hear the doorbell");
        }
        done.send(()).unwrap();
        watchdog.join().unwrap();
    }
}
