//! Pieces that readers keep: they count for as long as they exist, on any thread.
//!
//! Received pieces are handed to a reader in place, without a copy; while the reader keeps them,
//! their lender cannot have the memory back. A [`ReceivedPiece`] is a piece that counts: with its
//! [`Reader`], and with all [`Readers`] of a stack. Dropping it, on any thread, decreases both
//! counts.
//!
//! # Theory of operation
//!
//! The owner of the counts may wait until a reader holds little enough ([`Readers::wait`]). A bit
//! beside the count, in the same word, says that it waits. The drop that finds the count low enough
//! clears the bit and puts the reader's number on a list of [`Returns`], as a group that has ended.
//! Because count and bit are one word, either the owner sees the lower count or the drop sees the
//! bit. The list needs no memory, so the notification cannot fail.
//!
//! Any thread may drop a [`ReceivedPiece`] and query a [`Reader`]. All other calls belong to the
//! owner's thread.

use crate::ledger::{Ledger, Site};
use crate::loan::{Piece, View};
use crate::returns::Returns;
use crate::sync::{AtomicU64, Ordering};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::task::Waker;

/// Lowest bit of a reader's state: the owner waits. The other bits are the bytes held.
const WAITED: u64 = 1;

/// State that all readers share with the threads that drop pieces.
struct Shared {
    /// Bytes that all readers keep from their lenders.
    held: AtomicU64,
    /// Readers that the owner waits for and that hold little enough.
    reported: Arc<Returns>,
    /// Woken for each reader on that list.
    waker: Option<Waker>,
}

/// The owner's state of a reader's number.
#[derive(Clone, Copy, Default)]
struct Place {
    /// The owner waits for the reader, or has not taken it from the list yet.
    waited: bool,
    /// The reader is closed.
    closed: bool,
}

/// All readers of a stack. See the module text.
pub struct Readers {
    shared: Arc<Shared>,
    places: Vec<Place>,
    free: Vec<u32>,
    max: usize,
}

impl Readers {
    /// Room for `max` readers. `waker` is woken whenever there is a new reader for
    /// [`Readers::take`].
    pub fn new(max: usize, waker: Option<Waker>) -> Self {
        let (held, reported) = (AtomicU64::new(0), Returns::new(max));
        let shared = Arc::new(Shared { held, reported, waker });
        Self { shared, places: Vec::new(), free: Vec::new(), max }
    }

    /// Opens a reader, which holds nothing. `None` if there are `max` readers.
    pub fn open(&mut self) -> Option<Arc<Reader>> {
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.places.len() < self.max => {
                self.places.push(Place::default());
                (self.places.len() - 1) as u32
            }
            None => return None,
        };
        self.places[number as usize] = Place::default();
        let (state, mark) = (AtomicU64::new(0), AtomicU64::new(0));
        Some(Arc::new(Reader { state, mark, number, shared: self.shared.clone() }))
    }

    /// Closes a reader: it reads no more. The pieces that it holds stay valid and count until they
    /// are dropped.
    pub fn close(&mut self, reader: &Reader) {
        let place = &mut self.places[reader.number as usize];
        place.closed = true;
        if place.waited {
            // The number is free when the owner takes it from the list.
            reader.stop_waiting();
        } else {
            self.free.push(reader.number);
        }
    }

    /// Makes [`Readers::take`] report the reader once it holds no more than `mark` bytes. Replaces
    /// an earlier mark.
    pub fn wait(&mut self, reader: &Reader, mark: u64) {
        let place = &mut self.places[reader.number as usize];
        let waited = core::mem::replace(&mut place.waited, true);
        if !waited {
            self.shared.reported.begin(reader.number);
        }
        // Relaxed: the exchange below publishes it.
        reader.mark.store(mark, Ordering::Relaxed);
        // Release: publishes the mark; pairs with the Acquire of a drop. If a drop has already
        // cleared the bit of an earlier wait, the bit stays cleared.
        let before = reader.state.fetch_or(if waited { 0 } else { WAITED }, Ordering::AcqRel);
        if before >> 1 <= mark {
            reader.stop_waiting();
        }
    }

    /// True if [`Readers::take`] would report a reader.
    pub fn has_reported(&self) -> bool {
        self.shared.reported.has_ended()
    }

    /// Calls `each` with the number of each reader that was waited for and holds little enough.
    pub fn take(&mut self, mut each: impl FnMut(u32)) {
        let (places, free) = (&mut self.places, &mut self.free);
        self.shared.reported.take(|number, _| {
            let place = &mut places[number as usize];
            place.waited = false;
            if place.closed { free.push(number) } else { each(number) }
        });
    }

    /// Bytes that all readers keep from their lenders.
    pub fn held(&self) -> u64 {
        // Relaxed: the count may be outdated.
        self.shared.held.load(Ordering::Relaxed)
    }
}

/// A reader that does not copy. Shared by the owner and the pieces that the reader holds.
pub struct Reader {
    /// Twice the bytes that it keeps from their lenders, plus [`WAITED`].
    state: AtomicU64,
    /// The owner is notified when the reader holds at most this many bytes.
    mark: AtomicU64,
    number: u32,
    shared: Arc<Shared>,
}

impl Reader {
    /// Its number among the readers of its stack.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Bytes that a piece counts for with a reader: the bytes that it [keeps](Piece::held), or its
    /// own length if that is larger, as for a large part of a large loan.
    pub fn charge(piece: &Piece) -> usize {
        piece.held().max(piece.len())
    }

    /// Bytes that the reader keeps from their lenders.
    pub fn held(&self) -> u64 {
        // Relaxed: the count may be outdated.
        self.state.load(Ordering::Relaxed) >> 1
    }

    /// Gives the reader a piece, which counts as [`Reader::charge`] says. Several pieces of one
    /// loan count separately.
    pub fn hold(self: &Arc<Self>, piece: Piece) -> ReceivedPiece {
        let held = Self::charge(&piece) as u64;
        // Relaxed: an increase orders nothing.
        self.state.fetch_add(held << 1, Ordering::Relaxed);
        // Relaxed: an increase orders nothing.
        self.shared.held.fetch_add(held, Ordering::Relaxed);
        ReceivedPiece { piece, held, reader: self.clone() }
    }

    fn release(&self, held: u64) {
        // Relaxed: only a count; the piece orders accesses to memory.
        self.shared.held.fetch_sub(held, Ordering::Relaxed);
        // Acquire: pairs with the Release of `wait`, for the mark.
        let before = self.state.fetch_sub(held << 1, Ordering::AcqRel);
        // Relaxed: the bit publishes it.
        if before & WAITED != 0 && (before >> 1) - held <= self.mark.load(Ordering::Relaxed) {
            self.stop_waiting();
        }
    }

    /// Clears the bit. The thread that clears it notifies the owner, so there is one notification.
    fn stop_waiting(&self) {
        // AcqRel: orders this clearing between two settings of the bit.
        if self.state.fetch_and(!WAITED, Ordering::AcqRel) & WAITED == 0 {
            return;
        }
        self.shared.reported.end(self.number, false);
        if let Some(waker) = &self.shared.waker {
            waker.wake_by_ref();
        }
    }
}

/// A piece that its reader keeps. Dropping it returns the memory.
pub struct ReceivedPiece {
    piece: Piece,
    held: u64,
    reader: Arc<Reader>,
}

impl ReceivedPiece {
    /// Bytes in the piece.
    pub fn len(&self) -> usize {
        self.piece.len()
    }

    /// True if the piece has no bytes.
    pub fn is_empty(&self) -> bool {
        self.piece.is_empty()
    }

    /// A view of the bytes, if they cannot change. `None` for foreign memory. While the view
    /// exists, the memory cannot go back to its lender, even after its term.
    pub fn bytes(&self) -> Option<View<'_>> {
        self.piece.view()
    }

    /// Copies the beginning into `to` and returns the number of bytes. The only way to read foreign
    /// memory.
    pub fn copy(&self, to: &mut [u8], ledger: &Ledger) -> usize {
        ledger.copy(Site::SocketReceive, &self.piece, to)
    }

    /// The piece, for sending it on. A clone of it does not count with the reader.
    pub fn piece(&self) -> &Piece {
        &self.piece
    }
}

impl Drop for ReceivedPiece {
    fn drop(&mut self) {
        self.reader.release(self.held);
    }
}

impl fmt::Debug for ReceivedPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceivedPiece({:?})", self.piece)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use alloc::task::Wake;
    use core::sync::atomic::AtomicUsize;

    fn taken(readers: &mut Readers) -> Vec<u32> {
        let mut taken = Vec::new();
        readers.take(|number| taken.push(number));
        taken
    }

    /// Goal: held bytes count until they are dropped, with the reader and with all readers; a clone
    /// of the piece keeps the frame but does not count.
    #[test]
    fn what_is_held_counts() {
        let mut pool = Pool::new(3, 2048);
        let mut readers = Readers::new(2, None);
        let (a, b) = (readers.open().unwrap(), readers.open().unwrap());
        assert!(readers.open().is_none());
        let first = a.hold(pool.take().unwrap().freeze(10));
        let second = b.hold(pool.take().unwrap().freeze(20));
        assert_eq!((a.held(), b.held(), readers.held()), (2048, 2048, 4096));
        let clone = first.piece().clone();
        drop(first);
        assert_eq!((a.held(), readers.held(), pool.out_count()), (0, 2048, 2));
        drop(clone);
        readers.close(&b);
        drop(second);
        assert_eq!((readers.held(), pool.out_count()), (0, 0));
        assert_eq!(readers.open().unwrap().number(), b.number());
    }

    /// Goal: a part of a large loan counts as a super-packet, or with its own length if that is
    /// larger.
    #[test]
    fn parts_of_a_large_loan_count_for_what_they_show() {
        let mut loans = crate::Loans::new(1);
        let mut readers = Readers::new(1, None);
        let reader = readers.open().unwrap();
        let large = loans.lend_owned(alloc::vec![7; 1 << 20].into()).unwrap();
        let lens = [1, 64 << 10, 1 << 20];
        let held = lens.map(|len| reader.hold(large.slice(0, len)));
        let counted: Vec<u64> = held.iter().map(|held| held.held).collect();
        assert_eq!(counted, [64 << 10, 64 << 10, 1 << 20]);
        assert_eq!((reader.held(), readers.held()), (1_179_648, 1_179_648));
        drop(held);
        assert_eq!((reader.held(), readers.held()), (0, 0));
    }

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, core::sync::atomic::Ordering::SeqCst);
        }
    }

    /// Goal: the owner is notified of a reader when enough is back, once for each wait, even if it
    /// waits too late, and never after the reader was closed.
    #[test]
    fn the_owner_is_woken_when_enough_is_back() {
        let mut pool = Pool::new(3, 2048);
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let woken = || count.0.load(core::sync::atomic::Ordering::SeqCst);
        let mut readers = Readers::new(1, Some(count.clone().into()));
        let reader = readers.open().unwrap();
        let mut held: Vec<ReceivedPiece> =
            (0..3).map(|_| reader.hold(pool.take().unwrap().freeze(1))).collect();
        readers.wait(&reader, 4096);
        readers.wait(&reader, 2048);
        held.pop();
        assert_eq!((taken(&mut readers), woken()), (alloc::vec![], 0), "the last mark counts");
        held.pop();
        assert_eq!((taken(&mut readers), woken()), (alloc::vec![0], 1));
        readers.wait(&reader, 2048);
        assert_eq!(taken(&mut readers), [0], "it is back already");
        readers.wait(&reader, 0);
        readers.close(&reader);
        assert!(readers.has_reported() && readers.open().is_none(), "its number is not free yet");
        assert_eq!(taken(&mut readers), []);
        let other = readers.open().unwrap();
        drop(held);
        assert_eq!((other.number(), taken(&mut readers)), (0, alloc::vec![]));
    }
}
