//! Items under way between two threads: a sender that waits is woken, whatever it waits for, and a
//! wakeup is for one wait. A lost wakeup leaves the sender waiting forever, which loom reports.

use super::Flag;
use loom::sync::{Arc, Notify};
use loom::thread::{self, JoinHandle};
use towpath_packet::under_way::UnderWay;

/// The sender's side, with the thread that finishes items one by one.
struct Sender {
    under_way: Arc<UnderWay>,
    bell: Arc<Notify>,
    /// Returns the number of wakeups.
    finisher: JoinHandle<usize>,
    /// Times that the sender announced to wait.
    announced: usize,
}

impl Sender {
    /// Sends `items`, which another thread finishes. The last `late` of them are sent later: that
    /// thread goes on once the flag is raised.
    fn new(items: usize, late: usize) -> (Self, Flag) {
        let (under_way, bell) = (Arc::new(UnderWay::default()), Arc::new(Notify::new()));
        let flag = Flag::new();
        under_way.add(items - late);
        let (theirs, rings, goes_on) = (under_way.clone(), bell.clone(), flag.clone());
        let finisher = thread::spawn(move || {
            let mut wakeups = 0;
            for item in 0..items {
                if item == items - late {
                    goes_on.wait();
                }
                if theirs.finish(1) {
                    wakeups += 1;
                    rings.notify();
                }
            }
            wakeups
        });
        (Self { under_way, bell, finisher, announced: 0 }, flag)
    }

    fn announce(&mut self, mark: usize) -> bool {
        self.announced += 1;
        self.under_way.wait(mark)
    }

    /// Sleeps until at most `mark` items are left.
    fn wait(&mut self, mark: usize) {
        while self.announce(mark) {
            self.bell.wait();
        }
        assert!(self.under_way.count() <= mark);
    }

    fn end(self) {
        assert!(self.finisher.join().unwrap() <= self.announced, "a wakeup is for one wait");
        assert_eq!(self.under_way.count(), 0);
    }
}

/// Goal: no wakeup is lost, whether the sender waits for some items or for all, once or twice.
#[test]
fn a_sender_that_waits_is_woken() {
    for marks in [&[1][..], &[0], &[1, 0]] {
        loom::model(move || {
            let (mut sender, _) = Sender::new(2, 0);
            marks.iter().for_each(|mark| sender.wait(*mark));
            sender.end();
        });
    }
}

/// Goal: a sender that is awake for another reason, while its announcement stands, may wait for
/// fewer or for more items to be left.
///
/// Fails without the Release of `wait` or the Acquire of `finish`.
#[test]
fn a_later_wait_replaces_an_earlier_one() {
    for (first, second) in [(0, 1), (1, 0)] {
        loom::model(move || {
            let (mut sender, _) = Sender::new(3, 0);
            let _ = sender.announce(first);
            sender.wait(second);
            sender.end();
        });
    }
}

/// Goal: a sender that is awake for another reason, while its announcement stands, may send more
/// and wait again.
#[test]
fn more_is_sent_while_an_announcement_stands() {
    loom::model(|| {
        let (mut sender, flag) = Sender::new(2, 1);
        let _ = sender.announce(0);
        sender.under_way.add(1);
        flag.raise();
        sender.wait(0);
        sender.end();
    });
}
