//! Whether a call with `MSG_ZEROCOPY` on a stream lends or copies, if the program leaves that to
//! the library (`TOWPATH_SO_ZEROCOPY_AUTO`). The decisions are those of `SendMode::Auto` in Rust.
//!
//! A call that copies takes a number and has a notice like one that lends, so the program does not
//! have to know. Outcomes of lent calls are learned when their groups end, under the lock of the
//! instance: nothing is shared between threads here.

use crate::errno::Outcome;
use crate::instance::State;
use towpath::layers::choosing::{self, Choice, Gauge, process_time};
use towpath::layers::net::socket::{LentCall, LentWatch};
use towpath::layers::net::time::{Duration, Instant};

/// `TOWPATH_SO_ZEROCOPY_AUTO` of `towpath.h`.
pub(super) const TOWPATH_SO_ZEROCOPY_AUTO: i32 = 0x7003;

/// What was chosen for a call.
#[derive(Clone, Copy)]
pub(super) enum Chosen {
    Copy,
    Lend(Option<LentWatch>),
}

impl Chosen {
    /// A part of the call, to the sockets; `first` if it is the first one.
    pub(super) fn part(self, term: Option<Duration>, first: bool) -> LentCall {
        let mut part = match self {
            Chosen::Copy => LentCall::copying(),
            Chosen::Lend(Some(watch)) if first => LentCall::default().watched(watch),
            Chosen::Lend(_) => LentCall::default(),
        };
        part.set_term(term);
        part
    }
}

impl State {
    /// Chooses for a call of `size` bytes on a stream.
    pub(super) fn choose(&mut self, fd: i32, size: usize) -> Outcome<Chosen> {
        if !self.engine.protocols.options(self.id(fd)?)?.lent_auto {
            return Ok(Chosen::Lend(None));
        }
        let chooser = &mut self.files.socket_mut(fd)?.chooser;
        let chooser = chooser.get_or_insert_with(|| self.choosing.chooser()).clone();
        Ok(match chooser.choose(size, self) {
            Choice::Copy => Chosen::Copy,
            Choice::Lend => Chosen::Lend(None),
            Choice::LendWatched(round) => {
                Chosen::Lend(Some(LentWatch { round, size, began: self.now() }))
            }
        })
    }

    /// Learns from the calls whose memory is back.
    pub(crate) fn learn(&mut self) {
        while let Some((id, watch, copied)) = self.engine.protocols.next_outcome() {
            let now = self.now();
            let LentWatch { round, size, began } = watch;
            let file = self.files.of_socket(id).and_then(|fd| self.files.socket(fd).ok());
            if let Some(chooser) = file.and_then(|file| file.chooser.as_ref()) {
                let nanos = now.since(began).as_nanos() as u64;
                chooser.learn(choosing::Outcome { round, size, copied, nanos });
            }
        }
    }
}

impl Gauge for State {
    fn now(&self) -> Duration {
        self.clock.now().since(Instant::START)
    }

    fn used(&self) -> Duration {
        process_time()
    }

    fn out(&self) -> u64 {
        (self.engine.protocols.lent_pages() as u64) << 12
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Instance};

    /// Goal: what a socket has learned from its own calls decides its next ones; without the option
    /// every call lends.
    #[test]
    fn a_socket_learns_from_wasted_loans() {
        let config = Config::with_addresses("192.0.2.1/24").expect("an address");
        let instance = Instance::new(&config).expect("an instance");
        let fd = instance.socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("room");
        let chosen = |size| instance.call(|state| state.choose(fd, size)).expect("open");
        assert!(matches!(chosen(1), Chosen::Lend(None)));
        let on = 1_i32.to_ne_bytes();
        instance.set_option(fd, libc::SOL_SOCKET, TOWPATH_SO_ZEROCOPY_AUTO, &on).expect("on");
        assert!(matches!(chosen(1), Chosen::Copy));
        // Each wasted loan makes the next one watched; the fourth ends lending.
        for _ in 0..4 {
            let Chosen::Lend(Some(watch)) = chosen(1 << 20) else { panic!("not watched") };
            instance.call(|state| {
                let chooser = state.files.socket(fd).expect("open").chooser.clone();
                let outcome = choosing::Outcome {
                    round: watch.round,
                    size: watch.size,
                    copied: true,
                    nanos: 0,
                };
                chooser.expect("made").learn(outcome);
            });
        }
        assert!(matches!(chosen(1 << 20), Chosen::Copy));
        assert!(matches!(chosen(2 << 20), Chosen::Lend(_)));
    }
}
