//! Connections that a policy judges before they are native.
//!
//! # Theory of operation
//!
//! The policy is the gateway's, with the names that addresses have, and all counters. So the
//! supervisor makes a socket of the host ready, asks the gateway about the address that it leads
//! to, and connects that socket when the answer is yes. The call waits meanwhile, others do not. An
//! answer may be that the interface decides: then the program's own socket connects.
//!
//! The gateway learns once of the end of each connection that it has admitted ([`Ticket`]). When a
//! new policy withdraws some, they are reset; those whose sockets are not found are looked for
//! again at intervals.
//!
//! If the gateway cannot be asked, the connection takes the interface, which leads to the same
//! gateway.
//!
//! Limit: [`JUDGED_MAX`].

use super::judge::NativeVerdict;
use super::link;
use super::table::Kept;
use super::ticket::{Ends, Ticket};
use super::{Next, Place, Supervisor, Waiting, address};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use towpath_io::native::calls::Call;
use towpath_net::time::Instant;

/// Most calls that wait for a verdict. Two descriptors each; further ones take the interface. Their
/// messages and one about ends fit the buffer of the link beside those about listeners.
pub(super) const JUDGED_MAX: usize = 32;
/// Time to the next look for withdrawn connections that were not found.
const WITHDRAW_INTERVAL: Duration = Duration::from_secs(1);

/// Connections under a policy.
#[derive(Default)]
pub(super) struct Judging {
    asked: HashMap<u64, Asked>,
    /// The number of the last connection that the gateway was asked about.
    last: u64,
    ends: Ends,
    /// The gateway has not taken the last message about ends.
    is_reporting: bool,
    /// When to look again for withdrawn connections.
    withdraws_at: Option<Instant>,
}

/// A call that waits for the verdict.
pub(super) struct Asked {
    pub(super) call: Call,
    /// The program's socket, and the one of the host that may take its place.
    pub(super) own: OwnedFd,
    pub(super) host: OwnedFd,
    pub(super) place: Place,
}

impl Place {
    /// Returns where the connection leads.
    fn to(&self) -> SocketAddr {
        address::canonical(self.peers[1])
    }
}

impl Judging {
    /// Forgets the call of a thread, which makes another one.
    pub(super) fn forget(&mut self, call: &Call) {
        self.asked.retain(|_, asked| asked.call.thread != call.thread);
    }
}

impl Supervisor {
    /// Asks the gateway whether a socket of the host may connect.
    pub(super) fn ask_verdict(&mut self, asked: Asked) -> Result<Next, Errno> {
        let judging = &mut self.judging;
        let number = judging.last + 1;
        let to = asked.place.to();
        if judging.asked.len() >= JUDGED_MAX
            || link::ask_verdict(self.gateway.as_fd(), number, to).is_err()
        {
            self.table.keep(Kept::Full);
            return self.connect_own(&asked.call, asked.own, asked.place.peers[0]);
        }
        judging.last = number;
        judging.asked.insert(number, asked);
        Ok(Next::Nothing)
    }

    /// The gateway has answered.
    pub(super) fn on_verdict(&mut self, number: u64, verdict: NativeVerdict) {
        let Judging { asked, ends, .. } = &mut self.judging;
        let ticket = (verdict == NativeVerdict::Native).then(|| Ticket::new(number, ends));
        // If the call was interrupted, the connection is over before it begins.
        let Some(Asked { call, own, host, place }) = asked.remove(&number) else { return };
        let next = match verdict {
            NativeVerdict::Native => self.connect_native(&call, host, Place { ticket, ..place }),
            NativeVerdict::Interface => {
                self.table.keep(Kept::Policy);
                self.connect_own(&call, own, place.peers[0])
            }
            NativeVerdict::Denied => {
                self.table.denied();
                Ok(Next::Answer(Err(prohibited(place.to()))))
            }
        };
        self.conclude(&call, next);
    }

    /// A new policy denies connections: those that are being made fail, the others end soon.
    pub(super) fn withdraw(&mut self, numbers: Vec<u64>) {
        let numbers = HashSet::from_iter(numbers);
        let is_one = |place: &Place| {
            place.ticket.as_ref().is_some_and(|ticket| numbers.contains(&ticket.number()))
        };
        let begun = self.waiting.iter().filter(|(_, one)| one.place.as_ref().is_some_and(is_one));
        let begun: Vec<_> = begun.map(|(key, _)| key).collect();
        for key in begun {
            if let Some(Waiting { call, place: Some(place), .. }) = self.take_waiting(key) {
                self.table.denied();
                self.calls.answer(&call, Err(prohibited(place.to())));
            }
        }
        self.table.withdraw(&numbers);
        self.judging.withdraws_at = Some(self.now());
    }

    /// Ends withdrawn connections when it is time; returns when the next time is.
    pub(super) fn withdraw_later(&mut self) -> Option<Duration> {
        let left = self.judging.withdraws_at?.since(self.now());
        if !left.is_zero() {
            return Some(left);
        }
        let is_done = self.table.end_withdrawn(&mut self.diag);
        self.judging.withdraws_at = (!is_done).then(|| self.now() + WITHDRAW_INTERVAL);
        (!is_done).then_some(WITHDRAW_INTERVAL)
    }

    /// The gateway has taken the last message about ends.
    pub(super) fn ends_taken(&mut self) {
        self.judging.is_reporting = false;
    }

    /// Reports ends to the gateway, if there are any and it has taken those before.
    pub(super) fn report_ends(&mut self) {
        let Judging { ends, is_reporting, .. } = &mut self.judging;
        let mut ends = ends.borrow_mut();
        if *is_reporting || ends.is_empty() {
            return;
        }
        let count = ends.len().min(link::ENDS_PER_MESSAGE);
        // A gateway that does not read receives them later.
        if link::report_ends(self.gateway.as_fd(), &ends.make_contiguous()[..count]).is_ok() {
            ends.drain(..count);
            *is_reporting = true;
        }
    }
}

/// The error of a connection that the policy denies: that which the interface's ICMP message
/// "administratively prohibited" gives.
fn prohibited(to: SocketAddr) -> Errno {
    match to {
        SocketAddr::V4(_) => Errno::HOSTUNREACH,
        SocketAddr::V6(_) => Errno::ACCESS,
    }
}
