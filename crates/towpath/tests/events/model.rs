//! A queue against a model: random registrations, operations and waits in simulated time.
//!
//! After each step: everything that happened in the model is reported, once each, or repeatedly if
//! level-triggered, and nothing else is. A wait ends at the earliest time at which something is
//! due, or at its own deadline. Removed registrations are silent and their tokens stale. At the end
//! every buffer is back.
//!
//! `TOWPATH_SEED=<seed>` replays a seed that failed.

use super::{Case, config, errno, now};
use crate::taken::Taken;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use towpath::events::{
    Choice, Config, Event, EventKind, EventQueue, Interest, Notifier, Source, Token, Trigger,
};

pub(super) const CASES: &[Case] = &[("a_queue_does_what_a_model_says", seeds)];

const SEEDS: u64 = 500;
const STEPS: u32 = 250;
/// Registrations at a time.
const MOST: usize = 12;
/// How often a queue is polled for events that the kernel may delay.
const ASKED_MAX: u32 = 100_000;

struct Random(u64);

impl Random {
    /// Returns the next number below `end` (SplitMix64).
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }
}

/// What the model knows of a registration; its event data is its number.
struct Known {
    token: Token,
    what: What,
}

enum What {
    User(Notifier, u64),
    /// When it expires next, and its period.
    Timer(Option<Instant>, Option<Duration>),
    /// A handle of the watched socket, its peer, the bytes in it, whether it is one-shot, and
    /// whether it was reported.
    Socket {
        own: UnixStream,
        peer: UnixStream,
        bytes: u64,
        once: bool,
        reported: bool,
    },
    Receive {
        peer: UnixStream,
        deadline: Instant,
        end: Option<End>,
    },
}

/// How an operation has ended.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Bytes,
    Cancelled,
    Late,
}

struct Scene {
    queue: EventQueue,
    random: Random,
    known: BTreeMap<u64, Known>,
    stale: Vec<Token>,
    next: u64,
    buffers: u64,
}

impl Scene {
    fn span(&mut self) -> Duration {
        Duration::from_millis(1 + self.random.below(500))
    }

    fn add(&mut self) {
        let (data, now, span) = (self.next, self.queue.now(), self.span());
        let pair = || UnixStream::pair().unwrap();
        let (token, what) = match self.random.below(5) {
            0 => {
                let token = self.queue.add(Source::user(), data).unwrap();
                (token, What::User(self.queue.notifier(token).unwrap(), 0))
            }
            1 => {
                let token = self.queue.add(Source::at(now + span), data).unwrap();
                (token, What::Timer(Some(now + span), None))
            }
            2 => {
                let token = self.queue.add(Source::every(now + span, span), data).unwrap();
                (token, What::Timer(Some(now + span), Some(span)))
            }
            3 => {
                let ((watched, peer), once) = (pair(), self.random.below(2) == 0);
                let own = watched.try_clone().unwrap();
                let trigger = if once { Trigger::OneShot } else { Trigger::Level };
                let source = Source::fd(watched, Interest::READ, trigger);
                let token = self.queue.add(source, data).unwrap();
                (token, What::Socket { own, peer, bytes: 0, once, reported: false })
            }
            _ => {
                let ((own, peer), deadline) = (pair(), now + span);
                let begun = self.queue.receive(own, vec![0; 9], Some(deadline), data);
                self.buffers += 1;
                (begun.unwrap(), What::Receive { peer, deadline, end: None })
            }
        };
        self.known.insert(data, Known { token, what });
        self.next += 1;
    }

    /// Changes a random existing registration.
    fn touch(&mut self) {
        let (at, again, span) = (self.random.below(MOST as u64), self.random.below(3), self.span());
        let now = self.queue.now();
        let Some((&data, known)) = self.known.iter_mut().nth(at as usize) else { return };
        let token = known.token;
        match &mut known.what {
            What::Receive { peer, end, .. } if again > 0 => {
                if end.is_none() {
                    *end = Some(End::Bytes);
                    peer.write_all(b"something").unwrap();
                }
            }
            What::Receive { end, .. } => {
                self.queue.cancel(token).unwrap();
                end.get_or_insert(End::Cancelled);
            }
            _ if again == 0 => {
                self.queue.remove(token).unwrap();
                self.stale.push(token);
                self.known.remove(&data);
            }
            What::User(notifier, count) => {
                notifier.notify();
                *count += 1;
            }
            What::Timer(due, period) => {
                self.queue.set_timer(token, now + span).unwrap();
                (*due, *period) = (Some(now + span), *period);
            }
            What::Socket { own, bytes, .. } if again == 1 && *bytes > 0 => {
                own.read_exact(&mut vec![0; *bytes as usize]).unwrap();
                *bytes = 0;
            }
            What::Socket { peer, bytes, once, reported, .. } => {
                peer.write_all(&[1]).unwrap();
                *bytes += 1;
                if *once {
                    self.queue.modify(token, Interest::READ, Trigger::OneShot).unwrap();
                    *reported = false;
                }
            }
        }
    }

    /// Returns the numbers of registrations that must be reported now.
    fn due(&self) -> Vec<u64> {
        let now = self.queue.now();
        let is_due = |known: &Known| match &known.what {
            What::User(_, count) => *count > 0,
            What::Timer(due, _) => due.is_some_and(|due| due <= now),
            What::Socket { bytes, once, reported, .. } => *bytes > 0 && !(*once && *reported),
            What::Receive { deadline, end, .. } => end.is_some() || *deadline <= now,
        };
        let due = self.known.iter().filter(|(_, known)| is_due(known));
        due.map(|(data, _)| *data).collect()
    }

    /// Processes an event. Returns false for a level-triggered one, which is reported again.
    fn take(&mut self, event: &Event) -> bool {
        let now = self.queue.now();
        let known = self.known.get_mut(&event.data).expect("removed ones are silent");
        assert_eq!(event.token, known.token);
        match (&mut known.what, event.kind) {
            (What::User(_, count), EventKind::Notified { count: reported }) => {
                assert_eq!(reported, std::mem::take(count));
                return true;
            }
            (What::Timer(due, None), EventKind::Expired { count: 1 }) => {
                assert!(due.take().is_some_and(|due| due <= now) && event.is_over);
            }
            (What::Timer(due, Some(period)), EventKind::Expired { count: 1 }) => {
                assert_eq!(*due, Some(now), "no wait skips one");
                *due = Some(now + *period);
                return true;
            }
            (What::Socket { bytes, once, reported, .. }, EventKind::Ready(_)) => {
                assert!(*bytes > 0 && !(*once && *reported));
                *reported = true;
                return *once;
            }
            (What::Receive { deadline, end, .. }, EventKind::Completed) => {
                let end = end.unwrap_or(End::Late);
                assert!(end != End::Late || *deadline <= now);
                let completed = self.queue.take_done(event.token).unwrap();
                assert_eq!(completed.buffer.len(), 9);
                self.buffers -= 1;
                match completed.result {
                    Ok(count) => assert!(count == 9 && end == End::Bytes),
                    Err(error) => {
                        let wanted =
                            if end == End::Late { Errno::TIMEDOUT } else { Errno::CANCELED };
                        assert!(end != End::Bytes && errno::<()>(Err(error)) == wanted);
                    }
                }
            }
            (_, kind) => panic!("{kind:?}"),
        }
        self.stale.push(event.token);
        self.known.remove(&event.data);
        true
    }

    /// Checks that everything due is reported, and nothing else.
    fn tell(&mut self) {
        let mut wanted = self.due();
        for _ in 0..ASKED_MAX {
            for event in now(&mut self.queue) {
                let place = wanted.iter().position(|data| *data == event.data);
                assert!(!self.take(&event) || place.is_some(), "{event:?} is not due");
                place.map(|place| wanted.swap_remove(place));
            }
            if wanted.is_empty() {
                return;
            }
            std::thread::yield_now();
        }
        panic!("{wanted:?} were not reported");
    }

    /// Waits while nothing happens.
    fn pass(&mut self) {
        if !self.due().is_empty() {
            // Level-triggered events end any wait.
            return;
        }
        let until = self.queue.now() + self.span();
        let first = self.known.values().filter_map(|known| match known.what {
            What::Timer(due, _) => due,
            What::Receive { deadline, .. } => Some(deadline),
            _ => None,
        });
        let first = first.min().filter(|first| *first <= until);
        let mut events = Vec::new();
        let count = self.queue.wait_many(&mut events, 1..=1, Some(until)).unwrap();
        assert_eq!(self.queue.now(), first.unwrap_or(until));
        // What is due exactly at the end of a wait may be reported by the next one.
        assert!(count == usize::from(first.is_some()) || count == 0 && first == Some(until));
        let due = self.due();
        for event in events {
            assert!(due.contains(&event.data) && self.take(&event));
        }
    }

    fn step(&mut self) {
        match self.random.below(4) {
            0 if self.known.len() < MOST => self.add(),
            3 => self.pass(),
            _ => self.touch(),
        }
        self.tell();
        if let Some(token) = self.stale.pop() {
            assert!(self.queue.remove(token).is_err() && self.queue.cancel(token).is_err());
        }
    }

    fn end(mut self) {
        while let Some(known) = self.known.values_mut().next() {
            let token = known.token;
            if let What::Receive { end, .. } = &mut known.what {
                self.queue.cancel(token).unwrap();
                end.get_or_insert(End::Cancelled);
                self.tell();
            } else {
                self.queue.remove(token).unwrap();
                self.known.retain(|_, known| known.token != token);
            }
        }
        assert!(self.buffers == 0 && self.queue.is_empty() && now(&mut self.queue).is_empty());
    }
}

fn seeds(choice: Choice) {
    let given = std::env::var("TOWPATH_SEED").ok();
    let given = given.map(|seed| seed.parse().expect("a number"));
    for seed in given.map_or(0..SEEDS, |seed: u64| seed..seed + 1) {
        let queue = EventQueue::with(&Config { simulated: true, ..config(choice) }).unwrap();
        let known = BTreeMap::new();
        let random = Random(seed);
        let scene = Scene { queue, random, known, stale: Vec::new(), next: 0, buffers: 0 };
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut scene = scene;
            (0..STEPS).for_each(|_| scene.step());
            scene.end();
        }));
        assert!(played.is_ok(), "failed; again with TOWPATH_SEED={seed}");
    }
}
