//! Items under way between two threads: a sender that waits is woken, whatever it waits for, and a
//! wakeup is for one wait. A lost wakeup leaves the sender waiting forever, which loom reports.

use loom::sync::{Arc, Notify};
use loom::thread::{self, JoinHandle};
use towpath_packet::under_way::UnderWay;

/// The sender's side, with the thread that finishes items one by one.
struct Sender {
    under_way: Arc<UnderWay>,
    bell: Arc<Notify>,
    /// Lets the finisher go on.
    more: Arc<Notify>,
    /// Returns the number of wakeups.
    finisher: JoinHandle<usize>,
    /// Times that the sender announced to wait.
    announced: usize,
}

impl Sender {
    /// Sends items. Another thread finishes `first` of them, one by one, and `then` more once
    /// `more` notifies it: a wakeup that is missed by then never comes.
    fn new(items: usize, first: usize, then: usize) -> Self {
        let (under_way, bell) = (Arc::new(UnderWay::default()), Arc::new(Notify::new()));
        let more = Arc::new(Notify::new());
        under_way.add(items);
        let (theirs, rings, goes_on) = (under_way.clone(), bell.clone(), more.clone());
        let finisher = thread::spawn(move || {
            let mut wakeups = 0;
            for item in 0..first + then {
                if item == first {
                    goes_on.wait();
                }
                if theirs.finish(1) {
                    wakeups += 1;
                    rings.notify();
                }
            }
            wakeups
        });
        Self { under_way, bell, more, finisher, announced: 0 }
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

/// Goal: no wakeup is lost, whether the sender waits until one item is left or none.
///
/// This test and the next one fail if `wait` and `finish` order nothing.
#[test]
fn a_sender_that_waits_is_woken() {
    for mark in [0, 1] {
        loom::model(move || {
            let mut sender = Sender::new(2, 2 - mark, mark);
            sender.wait(mark);
            sender.more.notify();
            sender.end();
        });
    }
}

/// Goal: a sender that is awake for another reason, while its announcement stands, may wait for
/// fewer or for more items to be left.
#[test]
fn a_later_wait_replaces_an_earlier_one() {
    for (earlier, mark) in [(0, 1), (1, 0)] {
        loom::model(move || {
            let mut sender = Sender::new(2, 2 - mark, mark);
            let _ = sender.announce(earlier);
            sender.wait(mark);
            sender.more.notify();
            sender.end();
        });
    }
}

/// Goal: a sender that is awake for another reason, while its announcement stands, may send more
/// and wait again.
#[test]
fn more_is_sent_while_an_announcement_stands() {
    loom::model(|| {
        let mut sender = Sender::new(1, 1, 1);
        let _ = sender.announce(0);
        sender.under_way.add(1);
        sender.more.notify();
        sender.wait(0);
        sender.end();
    });
}
