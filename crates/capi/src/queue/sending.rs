//! Sends that lend the program's memory: a whole buffer of any size, and its return.
//!
//! As many bytes as there is room for become a loan, whose pieces the stack keeps until the peer
//! has acknowledged them. One report says that all bytes are accepted; another one, when no loan is
//! left, that the memory belongs to the program again. Stopping recalls the loans: their bytes are
//! copied and still sent.

use super::socket::{Place, WRITES, over};
use crate::errno::{Errno, Outcome};
use crate::instance::State;
use crate::memory::pointers::Ranges;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use towpath::events::custom::Step;
use towpath::layers::net::socket::Borrower;
use towpath::layers::packet::{Lender, Recall, Watch};

/// A send in progress.
pub(super) struct Sending {
    ranges: Ranges,
    /// Bytes that the socket has accepted.
    sent: usize,
    /// It accepts no more bytes, and this was reported.
    is_accepted: bool,
    loans: Arc<Loaned>,
    /// Watches for recalling the loans.
    watches: Vec<Watch>,
}

/// Counts loans.
#[derive(Default)]
pub(super) struct Loaned(Mutex<Out>);

#[derive(Default)]
struct Out {
    count: usize,
    /// Some bytes were copied.
    copied: bool,
    waker: Option<Waker>,
}

impl Loaned {
    fn lock(&self) -> MutexGuard<'_, Out> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if some bytes were copied.
    pub(super) fn copied(&self) -> bool {
        self.lock().copied
    }

    /// True if no loan is out; otherwise `waker` is woken when that is so.
    fn are_back(&self, waker: &Waker) -> bool {
        let mut out = self.lock();
        if out.count > 0 {
            out.waker = Some(waker.clone());
        }
        out.count == 0
    }
}

impl Lender for Loaned {
    fn returned(&self, _: u64, copied: bool) {
        let mut out = self.lock();
        out.count -= 1;
        out.copied |= copied;
        if out.count == 0 {
            out.waker.take().into_iter().for_each(Waker::wake);
        }
    }
}

impl Sending {
    pub(super) fn new(ranges: Ranges) -> Self {
        let loans = Arc::default();
        Self { ranges, sent: 0, is_accepted: false, loans, watches: Vec::new() }
    }

    pub(super) fn loans(&self) -> &Arc<Loaned> {
        &self.loans
    }

    /// Continues: reports when all bytes are accepted, and when the memory is back.
    pub(super) fn poll(
        &mut self,
        place: &mut Place,
        waker: &Waker,
        stopped: Option<Errno>,
    ) -> Option<Step> {
        self.watches.retain(|watch| !watch.is_over());
        if !self.is_accepted {
            match self.go_on(place, waker, stopped) {
                Err(Errno::AGAIN) => return None,
                Err(error) if self.sent == 0 => return Some(over(Err(error))),
                _ => {}
            }
            self.is_accepted = true;
            return Some(Step::Progress(self.sent as i64));
        }
        if stopped.is_some() {
            self.recall(place, waker);
        }
        self.loans.are_back(waker).then(|| over(Ok(self.sent)))
    }

    /// Lends as many bytes as there is room for. [`Errno::AGAIN`] if there are more to lend later.
    fn go_on(&mut self, place: &mut Place, waker: &Waker, stopped: Option<Errno>) -> Outcome<()> {
        let gone = Errno(libc::ECANCELED);
        stopped.map_or(Ok(()), Err)?;
        let instance = place.instance().ok_or(gone)?;
        let mut state = instance.lock();
        let fd = place.fd(&state).ok_or(gone)?;
        let outcome = loop {
            if self.sent == self.ranges.len() {
                break Ok(());
            }
            match self.lend(&mut state, fd) {
                // Packets leave, which may make room.
                Ok(()) => instance.settle(&mut state),
                Err(error) => break Err(error),
            }
        };
        if outcome == Err(Errno::AGAIN) {
            place.watch(&mut state, waker, WRITES);
        }
        instance.settle(&mut state);
        outcome
    }

    /// Lends one piece, as large as there is room for.
    fn lend(&mut self, state: &mut State, fd: i32) -> Outcome<()> {
        let (id, now) = (state.id(fd)?, state.now());
        let room = state.engine.protocols.send_room(id, now)?;
        if room == 0 {
            return Err(Errno::AGAIN);
        }
        let Self { ranges, sent, loans, watches, .. } = self;
        state.with_loans(|sockets, from, cx| {
            loans.lock().count += 1;
            let borrower = Borrower { lender: loans.clone(), token: 0 };
            let Some(mut piece) = ranges.lend(from, *sent, room, borrower) else {
                loans.lock().count -= 1;
                return Err(Errno(libc::ENOBUFS));
            };
            let (len, watch) = (piece.len(), piece.watch());
            sockets.send_piece(id, piece, cx)?;
            *sent += len;
            watches.extend(watch);
            Ok(())
        })
    }

    /// Recalls the memory. Loans that cannot be copied now are recalled again when the socket has
    /// events.
    fn recall(&mut self, place: &mut Place, waker: &Waker) {
        // All loans have ended with the instance.
        let Some(instance) = place.instance() else { return };
        let mut state = instance.lock();
        let is_late = state.with(|_, cx| {
            let recall = |watch: &mut Watch| watch.recall(cx.ledger);
            let late = self.watches.iter_mut().map(recall);
            late.filter(|recall| matches!(recall, Recall::Busy | Recall::NoMemory)).count() > 0
        });
        if is_late {
            place.watch(&mut state, waker, u32::MAX);
        }
    }
}
