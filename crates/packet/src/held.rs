//! Pieces that readers keep: counted as long as they do, whoever drops them.
//!
//! What was received is handed to a reader as it lies in memory, which he then keeps from its
//! lender. A [`Held`] is a piece that counts: with its [`Reader`], and with all [`Readers`] of a
//! stack. Both counts go down when it is dropped, on any thread.
//!
//! # Theory of operation
//!
//! The owner of the counts may wait for a part of what a reader keeps ([`Readers::wait`]): a bit
//! beside the count, in the same word. The drop that finds the count low enough clears the bit and
//! puts the reader's number on a list of [`Returns`], as a group that has ended. As both are one
//! word, either the owner sees the lower count or the drop sees the bit. The list needs no memory,
//! so telling cannot fail.
//!
//! Any thread may drop a [`Held`] and look at a [`Reader`]; all else is for the owner's thread.

use crate::ledger::{Ledger, Site};
use crate::loan::{Piece, View};
use crate::returns::Returns;
use crate::sync::{AtomicU64, Ordering};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::task::Waker;

/// The owner waits: the lowest bit of a reader's state. The bytes held are above it.
const WAITED: u64 = 1;

/// What all readers share with those who drop.
struct Shared {
    /// Bytes that all readers keep from their lenders.
    held: AtomicU64,
    /// Readers whom the owner has waited for long enough.
    told: Arc<Returns>,
    /// Woken for each of them.
    waker: Option<Waker>,
}

/// What the owner knows of a number.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Waited for, and not taken from the list since.
    waited: bool,
    /// Its reader is no more.
    closed: bool,
}

/// All readers of a stack. See the module's documentation.
pub struct Readers {
    shared: Arc<Shared>,
    places: Vec<Place>,
    free: Vec<u32>,
    max: usize,
}

impl Readers {
    /// Room for `max` readers. `waker` is woken whenever [`Readers::take`] will find something new.
    pub fn new(max: usize, waker: Option<Waker>) -> Self {
        let (held, told) = (AtomicU64::new(0), Returns::new(max));
        let shared = Arc::new(Shared { held, told, waker });
        Self { shared, places: Vec::new(), free: Vec::new(), max }
    }

    /// A reader who holds nothing yet; `None` if there are too many.
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

    /// A reader reads no more; what he holds stays his, and counts until he drops it.
    pub fn close(&mut self, reader: &Reader) {
        let place = &mut self.places[reader.number as usize];
        place.closed = true;
        if place.waited {
            // The number is free when it comes back from the list.
            reader.stop_waiting();
        } else {
            self.free.push(reader.number);
        }
    }

    /// Has [`Readers::take`] tell of the reader once he holds no more than `mark` bytes, whatever
    /// mark he was waited for with before.
    pub fn wait(&mut self, reader: &Reader, mark: u64) {
        let place = &mut self.places[reader.number as usize];
        let waited = core::mem::replace(&mut place.waited, true);
        if !waited {
            self.shared.told.begin(reader.number);
        }
        // Relaxed: published by the exchange below.
        reader.mark.store(mark, Ordering::Relaxed);
        // Release: publishes the mark; pairs with the Acquire of a drop. The bit stays cleared if a
        // drop was first to clear it.
        let before = reader.state.fetch_or(if waited { 0 } else { WAITED }, Ordering::AcqRel);
        if before >> 1 <= mark {
            reader.stop_waiting();
        }
    }

    /// True if [`Readers::take`] would find something.
    pub fn has_told(&self) -> bool {
        self.shared.told.has_ended()
    }

    /// Tells `each` the numbers of the readers who were waited for and hold little enough.
    pub fn take(&mut self, mut each: impl FnMut(u32)) {
        let (places, free) = (&mut self.places, &mut self.free);
        self.shared.told.take(|number, _| {
            let place = &mut places[number as usize];
            place.waited = false;
            if place.closed { free.push(number) } else { each(number) }
        });
    }

    /// Bytes that all readers keep from their lenders.
    pub fn held(&self) -> u64 {
        // Relaxed: a count that may be old.
        self.shared.held.load(Ordering::Relaxed)
    }
}

/// One who reads without copying. Shared by the owner and what the reader holds.
pub struct Reader {
    /// Twice the bytes that he keeps from their lenders, and [`WAITED`].
    state: AtomicU64,
    /// What he may hold at most when the owner hears of it.
    mark: AtomicU64,
    number: u32,
    shared: Arc<Shared>,
}

impl Reader {
    /// His number among the readers of his stack.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Bytes that a piece counts for with a reader: those that it [keeps](Piece::held), or its own
    /// if there are more, as of a part of a large loan.
    pub fn charge(piece: &Piece) -> usize {
        piece.held().max(piece.len())
    }

    /// Bytes that he keeps from their lenders.
    pub fn held(&self) -> u64 {
        // Relaxed: a count that may be old.
        self.state.load(Ordering::Relaxed) >> 1
    }

    /// Hands him a piece: he holds what it [counts for](Reader::charge), and as often as he has
    /// pieces of its loan.
    pub fn hold(self: &Arc<Self>, piece: Piece) -> Held {
        let held = Self::charge(&piece) as u64;
        // Relaxed: taking more orders nothing.
        self.state.fetch_add(held << 1, Ordering::Relaxed);
        // Relaxed: as above.
        self.shared.held.fetch_add(held, Ordering::Relaxed);
        Held { piece, held, reader: self.clone() }
    }

    fn release(&self, held: u64) {
        // Relaxed: a count; memory is ordered by the piece.
        self.shared.held.fetch_sub(held, Ordering::Relaxed);
        // Acquire: pairs with the Release of `wait`, for the mark.
        let before = self.state.fetch_sub(held << 1, Ordering::AcqRel);
        // Relaxed: published by the bit.
        if before & WAITED != 0 && (before >> 1) - held <= self.mark.load(Ordering::Relaxed) {
            self.stop_waiting();
        }
    }

    /// Whoever clears the bit tells, so that it is told once.
    fn stop_waiting(&self) {
        // AcqRel: between the setting of the bit and the next.
        if self.state.fetch_and(!WAITED, Ordering::AcqRel) & WAITED == 0 {
            return;
        }
        self.shared.told.end(self.number, false);
        if let Some(waker) = &self.shared.waker {
            waker.wake_by_ref();
        }
    }
}

/// A piece that its reader keeps. Dropping it gives the memory back.
pub struct Held {
    piece: Piece,
    held: u64,
    reader: Arc<Reader>,
}

impl Held {
    /// Bytes in the piece.
    pub fn len(&self) -> usize {
        self.piece.len()
    }

    /// True for a piece of no bytes.
    pub fn is_empty(&self) -> bool {
        self.piece.is_empty()
    }

    /// The bytes, if nobody can write them; `None` for foreign memory. While what this returns
    /// lives, the memory cannot go back to its lender, whatever its term.
    pub fn bytes(&self) -> Option<View<'_>> {
        self.piece.view()
    }

    /// Copies the start into `to`, which foreign memory needs to be read; returns how much.
    pub fn copy(&self, to: &mut [u8], ledger: &Ledger) -> usize {
        ledger.copy(Site::SocketReceive, &self.piece, to)
    }

    /// The piece, to be sent on. A clone of it does not count with the reader.
    pub fn piece(&self) -> &Piece {
        &self.piece
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.reader.release(self.held);
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({:?})", self.piece)
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

    /// Goal: what is held counts until it is dropped, with the reader and with all, and a clone of
    /// the piece keeps the frame but does not count.
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

    /// Goal: a part of a large loan counts for a super-packet, or for its own bytes if more.
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

    /// Goal: the owner hears of a reader when enough is back, once for each time that he waits,
    /// also if he waits too late, and never after the reader was closed.
    #[test]
    fn the_owner_hears_when_enough_is_back() {
        let mut pool = Pool::new(3, 2048);
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let woken = || count.0.load(core::sync::atomic::Ordering::SeqCst);
        let mut readers = Readers::new(1, Some(count.clone().into()));
        let reader = readers.open().unwrap();
        let mut held: Vec<Held> =
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
        assert!(readers.has_told() && readers.open().is_none(), "its number is not free yet");
        assert_eq!(taken(&mut readers), []);
        let other = readers.open().unwrap();
        drop(held);
        assert_eq!((other.number(), taken(&mut readers)), (0, alloc::vec![]));
    }
}
