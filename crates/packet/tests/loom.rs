//! Model checks: every interleaving of threads that share loans, slabs and rings.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p towpath-packet --test loom --release`.
//!
//! Loom checks the cells of a loan and the stand-ins for memory: `Shadow` for frames and copies,
//! the cell of a `Writer` for lent memory. So each ordering of `loan`, `recall` and `returns` has a
//! model that fails when the ordering is weakened; "Fails without" names the ordering.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;
use std::sync::atomic::{AtomicUsize, Ordering};
use towpath_packet::pool::{Frame, Pool};
use towpath_packet::slab::{Returning, Slab, give_back};

#[path = "loom/ready.rs"]
mod ready;
#[path = "loom/ring.rs"]
mod ring;
#[path = "loom/table.rs"]
mod table;
#[path = "loom/tokens.rs"]
mod tokens;
#[path = "loom/under_way.rs"]
mod under_way;

use towpath_packet::{
    Burst, Ledger, Lender, Loans, PacketPool, Piece, PinnedPiece, Pins, Readers, Recall, Returns,
    Watch,
};

/// A slot value whose accesses loom checks for races.
struct Watched(UnsafeCell<u32>);

unsafe impl Sync for Watched {}

/// Signals to another thread how far this one is, and orders nothing. Loom records only the last
/// access to an atomic, so it does not find each interleaving without this.
#[derive(Clone)]
struct Flag(Arc<AtomicBool>);

impl Flag {
    fn new() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn wait(&self) {
        while !self.0.load(Ordering::Relaxed) {
            thread::yield_now();
        }
    }
}

struct Carry<T>(std::ptr::NonNull<T>);

unsafe impl<T> Send for Carry<T> {}

/// Goal: a thread's accesses to a slot that it gives back happen before the owner hands it out
/// again.
#[test]
fn a_slot_given_back_elsewhere_is_handed_over_whole() {
    loom::model(|| {
        let mut slab = Slab::new(1, |_| Watched(UnsafeCell::new(0)));
        let slot = Carry(slab.take().unwrap());
        let giver = thread::spawn(move || {
            let slot = slot;
            unsafe { slot.0.as_ref() }.value().0.with_mut(|value| unsafe { *value = 1 });
            unsafe { give_back(slot.0) };
        });
        if let Some(slot) = slab.take() {
            let value = unsafe { slot.as_ref() }.value().0.with(|value| unsafe { *value });
            assert_eq!(value, 1);
            unsafe { give_back(slot) };
        }
        giver.join().unwrap();
    });
}

/// Goal: no slot is lost when two threads give slots back.
#[test]
fn two_givers_lose_nothing() {
    loom::model(|| {
        let mut slab = Slab::new(2, |_| ());
        let slots = [Carry(slab.take().unwrap()), Carry(slab.take().unwrap())];
        let givers = slots.map(|slot| {
            thread::spawn(move || {
                let slot = slot;
                unsafe { give_back(slot.0) }
            })
        });
        for giver in givers {
            giver.join().unwrap();
        }
        assert_eq!(slab.free_count(), 2);
        assert!(slab.take().is_some() && slab.take().is_some() && slab.take().is_none());
    });
}

/// Goal: storage is freed once, by the owner or a returning thread, whichever is last. Loom reports
/// a double free or a leak of its own objects, which are in the slots.
#[test]
fn storage_is_freed_once_by_the_last_holder() {
    loom::model(|| {
        let mut slab = Slab::new(2, |_| Watched(UnsafeCell::new(0)));
        let slots = [Carry(slab.take().unwrap()), Carry(slab.take().unwrap())];
        let givers = slots.map(|slot| {
            thread::spawn(move || {
                let slot = slot;
                unsafe { give_back(slot.0) }
            })
        });
        drop(slab);
        for giver in givers {
            giver.join().unwrap();
        }
    });
}

/// Goal: pieces read and dropped on two threads return their loan exactly once, and the lender,
/// which writes at once, does not race with a reader.
///
/// Fails without the Release of `Piece::drop` or the first Acquire of `end_loan`.
#[test]
fn a_loan_shared_by_two_threads_returns_once() {
    loom::model(|| {
        let mut loans = Loans::new(1);
        let (writer, piece) = Writer::lend(&mut loans).unwrap();
        let (other, reads) = (piece.slice(2, 3), writer.clone());
        let dropper = thread::spawn(move || {
            reads.read(&other);
            drop(other);
        });
        let third = piece.clone();
        drop(piece);
        writer.read(&third);
        drop(third);
        dropper.join().unwrap();
        assert_eq!(writer.reported(), 1);
        assert_eq!(loans.out_count(), 0);
    });
}

/// Goal: reserved holders and pieces made of them end the loan once, on two threads.
#[test]
fn holders_counted_together_end_on_two_threads() {
    loom::model(|| {
        let mut loans = Loans::new(1);
        let (writer, piece) = Writer::lend(&mut loans).unwrap();
        let mut holders = piece.reserve(2);
        let (other, reads) = (holders.slice(&piece, 2, 3), writer.clone());
        let dropper = thread::spawn(move || {
            reads.read(&other);
            drop(other);
        });
        drop(piece);
        drop(holders);
        dropper.join().unwrap();
        assert_eq!(writer.reported(), 1);
        assert_eq!(loans.out_count(), 0);
    });
}

/// Goal: packets dropped together on one thread keep what another thread shares, and return
/// completely while the pool's owner takes packets.
#[test]
fn packets_dropped_together_go_back_whole() {
    loom::model(|| {
        let (mut packets, mut loans) = (PacketPool::new(2), Loans::new(1));
        let (writer, piece) = Writer::lend(&mut loans).unwrap();
        let mut burst = Burst::new();
        for at in 0..2 {
            let mut packet = packets.take().unwrap();
            packet.push_piece(piece.slice(at, 1)).unwrap();
            burst.push(packet).unwrap();
        }
        let dropper = thread::spawn(move || burst.clear());
        writer.read(&piece);
        drop(piece);
        if let Some(packet) = packets.take() {
            assert!(packet.is_empty());
        }
        dropper.join().unwrap();
        assert_eq!((writer.reported(), loans.out_count(), packets.out_count()), (1, 0, 0));
        assert_eq!(packets.free_count(), 2);
    });
}

/// Goal: storage is freed once when a run of slots and a single slot go back while the owner is
/// dropped.
#[test]
fn a_run_of_slots_outlives_its_owner() {
    loom::model(|| {
        let mut slab = Slab::new(3, |_| Watched(UnsafeCell::new(0)));
        let slots = [0; 3].map(|_| Carry(slab.take().unwrap()));
        let giver = thread::spawn(move || {
            let [one, other, single] = slots;
            let mut together = Returning::new();
            unsafe { together.add(one.0) };
            unsafe { together.add(other.0) };
            drop(together);
            unsafe { give_back(single.0) };
        });
        drop(slab);
        giver.join().unwrap();
    });
}

/// Goal: a frame freed on another thread can be taken again, has one holder then, and is not
/// written before all reads are over.
#[test]
fn a_frame_freed_elsewhere_is_taken_again() {
    loom::model(|| {
        let mut pool = Pool::new(1, 64);
        let piece = pool.take().unwrap().freeze(8);
        let clone = piece.clone();
        let token = Arc::new(());
        let held = token.clone();
        let dropper = thread::spawn(move || {
            assert!(clone.bytes().is_some());
            drop(clone);
            drop(held);
        });
        drop(piece);
        if let Some(mut frame) = pool.take() {
            frame[0] = 1;
        }
        dropper.join().unwrap();
        assert_eq!(pool.out_count(), 0);
    });
}

/// Goal: a frame is written behind a piece only if there is no other holder, and not before all
/// reads are over. Fails without the Acquire of `Piece::into_frame`.
#[test]
fn a_frame_is_reopened_by_its_only_holder() {
    loom::model(|| {
        let mut pool = Pool::new(1, 64);
        let piece = pool.take().unwrap().freeze(8);
        let clone = piece.clone();
        let reader = thread::spawn(move || {
            assert!(clone.bytes().is_some());
            drop(clone);
        });
        if let Ok((mut frame, range)) = Frame::reopen(piece) {
            frame[range.end] = 1;
        }
        reader.join().unwrap();
        assert_eq!(pool.out_count(), 0);
    });
}

/// Goal: a group whose shares end on two threads, while its owner checks and lends more, is
/// reported once for each time it was begun, with `copied` set.
#[test]
fn a_group_ends_once_while_its_owner_looks() {
    loom::model(|| {
        let returns = Returns::new(2);
        returns.begin(0);
        assert!(returns.share(0));
        returns.begin(1);
        let givers = [(0, true), (1, false)].map(|(group, copied)| {
            let returns = returns.clone();
            thread::spawn(move || returns.end(group, copied))
        });
        let mut reported = [0, 0];
        let mut was_copied = false;
        let mut look = |returns: &Returns| {
            returns.take(|group, copied| {
                reported[group as usize] += 1;
                was_copied |= group == 0 && copied;
            });
        };
        look(&returns);
        // Another call joins the group unless it is over.
        if returns.share(0) {
            returns.end(0, false);
        }
        returns.end(0, false);
        for giver in givers {
            giver.join().unwrap();
        }
        look(&returns);
        assert_eq!((reported, was_copied), ([1, 1], true));
    });
}

/// Goal: accesses by the holders of shares happen before the owner learns that their group has
/// ended.
///
/// Fails without the Acquire or the Release of `Returns::end`, the Release of `push` or the
/// Acquire of `take`.
#[test]
fn what_holders_did_is_over_when_their_group_is() {
    loom::model(|| {
        let returns = Returns::new(2);
        returns.begin(0);
        assert!(returns.share(0));
        returns.begin(1);
        let used = Arc::new([Watched(UnsafeCell::new(0)), Watched(UnsafeCell::new(0))]);
        let holder = {
            let (returns, used) = (returns.clone(), used.clone());
            thread::spawn(move || {
                used[1].0.with_mut(|value| unsafe { *value = 1 });
                returns.end(0, false);
                returns.end(1, false);
            })
        };
        let other = {
            let (returns, used) = (returns.clone(), used.clone());
            thread::spawn(move || {
                used[0].0.with_mut(|value| unsafe { *value = 1 });
                returns.end(0, true);
            })
        };
        returns.take(|group, copied| {
            if group == 0 {
                assert!(copied);
                used.iter().for_each(|used| used.0.with_mut(|value| unsafe { *value = 2 }));
            } else {
                used[1].0.with_mut(|value| unsafe { *value = 2 });
            }
        });
        holder.join().unwrap();
        other.join().unwrap();
    });
}

/// Eight bytes of a lender that writes to them as soon as they are returned. Loom checks the
/// accesses to `cell`, which stands for them.
struct Writer {
    memory: u64,
    cell: UnsafeCell<()>,
    reported: AtomicUsize,
}

unsafe impl Sync for Writer {}
unsafe impl Send for Writer {}

impl Lender for Writer {
    fn returned(&self, _: u64, _: bool) {
        self.cell.with_mut(|_| ());
        self.reported.fetch_add(1, Ordering::SeqCst);
    }
}

impl Writer {
    /// Lends the bytes. `None` while all descriptors are out.
    fn lend(loans: &mut Loans) -> Option<(std::sync::Arc<Writer>, Piece)> {
        let memory = u64::from_ne_bytes([7; 8]);
        let writer = Writer { memory, cell: UnsafeCell::new(()), reported: AtomicUsize::new(0) };
        let writer = std::sync::Arc::new(writer);
        let base = std::ptr::NonNull::from(&writer.memory).cast();
        let piece = unsafe { loans.lend_foreign(base, 8, writer.clone(), 1) }?;
        Some((writer, piece))
    }

    fn lend_watched(loans: &mut Loans) -> (std::sync::Arc<Writer>, Piece, Watch) {
        let (writer, mut piece) = Writer::lend(loans).unwrap();
        let watch = piece.watch().unwrap();
        (writer, piece, watch)
    }

    /// Reads the bytes of a piece as a system call does. Returns whether that was the copy.
    fn read(&self, piece: &Piece) -> bool {
        let pinned = piece.pin();
        self.look(pinned.address())
    }

    /// Reads a byte of a pinned piece. Returns whether it was a byte of the copy.
    fn look(&self, from: *const u8) -> bool {
        let old = std::ptr::from_ref(&self.memory).cast::<u8>();
        let is_copy = !(old..old.wrapping_add(8)).contains(&from);
        if !is_copy {
            self.cell.with(|_| ());
        }
        assert!(!from.is_null());
        assert_eq!(unsafe { from.read_volatile() }, 7);
        is_copy
    }

    fn reported(&self) -> usize {
        self.reported.load(Ordering::SeqCst)
    }
}

/// Goal: a lender that writes as soon as it is notified never races with a reader, at whatever time
/// the recall runs.
///
/// Fails without the Release of `Pinned::drop`, the Acquire at the end of a recall, the Release of
/// `Watch::swap` or either Acquire of `Loan::pin`.
#[test]
fn memory_that_was_recalled_is_not_read() {
    loom::model(|| {
        let (mut loans, ledger) = (Loans::new(1), Ledger::new());
        let (writer, piece, mut watch) = Writer::lend_watched(&mut loans);
        let (other, reads) = (piece.clone(), writer.clone());
        let reader = thread::spawn(move || reads.read(&other));
        let first = watch.recall(&ledger);
        writer.read(&piece);
        reader.join().unwrap();
        match first {
            Recall::Done => assert_eq!(watch.recall(&ledger), Recall::Gone),
            _ => assert_eq!((first, watch.recall(&ledger)), (Recall::Busy, Recall::Done)),
        }
        assert_eq!(writer.reported(), 1);
    });
}

/// Goal: pieces pinned one after the other are read as if each were pinned separately.
///
/// Fails for the same reasons as `memory_that_was_recalled_is_not_read`.
#[test]
fn memory_pinned_for_several_pieces_is_not_recalled_between_them() {
    loom::model(|| {
        let (mut loans, ledger) = (Loans::new(1), Ledger::new());
        let (writer, piece, mut watch) = Writer::lend_watched(&mut loans);
        let (parts, reads) = ([piece.slice(0, 4), piece.slice(4, 4)], writer.clone());
        let reader = thread::spawn(move || {
            let mut pins = Pins::new();
            let first = reads.look(pins.address(&parts[0]));
            assert_eq!(reads.look(pins.address(&parts[1])), first, "both old, or both the copy");
        });
        let first = watch.recall(&ledger);
        reader.join().unwrap();
        match first {
            Recall::Done => assert_eq!(watch.recall(&ledger), Recall::Gone),
            _ => assert_eq!((first, watch.recall(&ledger)), (Recall::Busy, Recall::Done)),
        }
        drop(piece);
        assert_eq!(writer.reported(), 1);
    });
}

/// Goal: a piece that one thread has pinned and another one reads and drops holds its memory.
///
/// Fails for the same reasons as `memory_that_was_recalled_is_not_read`.
#[test]
fn a_pinned_piece_that_moves_holds_the_memory() {
    loom::model(|| {
        let (mut loans, ledger) = (Loans::new(1), Ledger::new());
        let (writer, piece, mut watch) = Writer::lend_watched(&mut loans);
        let (pinned, reads) = (PinnedPiece::new(piece.clone()), writer.clone());
        let reader = thread::spawn(move || {
            assert!(!reads.look(pinned.address()), "it was pinned before the recall");
        });
        let first = watch.recall(&ledger);
        reader.join().unwrap();
        match first {
            Recall::Done => assert_eq!(watch.recall(&ledger), Recall::Gone),
            _ => assert_eq!((first, watch.recall(&ledger)), (Recall::Busy, Recall::Done)),
        }
        drop(piece);
        assert_eq!(writer.reported(), 1);
    });
}

/// Goal: each of two readers of one loan holds its memory.
#[test]
fn each_reader_holds_the_memory() {
    let mut model = loom::model::Builder::new();
    // With three threads: all interleavings with few preemptions.
    model.preemption_bound = Some(2);
    model.check(|| {
        let (mut loans, ledger) = (Loans::new(1), Ledger::new());
        let (writer, piece, mut watch) = Writer::lend_watched(&mut loans);
        let readers = [piece.clone(), piece].map(|piece| {
            let writer = writer.clone();
            thread::spawn(move || {
                writer.read(&piece);
                // Held until the end, so that the recall notifies the lender and not the end of the
                // loan.
                piece
            })
        });
        let first = watch.recall(&ledger);
        let pieces = readers.map(|reader| reader.join().unwrap());
        if first == Recall::Busy {
            assert_eq!(watch.recall(&ledger), Recall::Done);
        }
        drop(pieces);
        assert_eq!(writer.reported(), 1);
    });
}

/// Goal: when the last piece is read and dropped while the loan is recalled and the watch ends, the
/// lender is notified once, the copy is not freed while it is read, and the descriptor is freed
/// once.
///
/// Fails without the Release of `OVER` in `finish` or the Acquire of `Watch::drop`.
#[test]
fn a_loan_that_ends_while_it_is_recalled_is_reported_once() {
    loom::model(|| {
        let (mut loans, ledger) = (Loans::new(1), Ledger::new());
        let (writer, piece, mut watch) = Writer::lend_watched(&mut loans);
        let reads = writer.clone();
        let reader = thread::spawn(move || {
            reads.read(&piece);
            drop(piece);
        });
        let recalled = watch.recall(&ledger);
        assert!(writer.reported() == 1 || matches!(recalled, Recall::Busy | Recall::Gone));
        drop(watch);
        // Only the return of the descriptor orders the writes to it here.
        drop(Writer::lend(&mut loans));
        reader.join().unwrap();
        assert_eq!(writer.reported(), 1);
        assert_eq!(loans.out_count(), 0);
    });
}

/// Goal: the copy is freed after its last reader, which may end the loan while the recall is
/// running.
///
/// Fails without either half of the change that ends a recall, or of `ENDED` in `end_loan`.
#[test]
fn a_copy_is_freed_after_its_last_reader() {
    loom::model(|| {
        let (mut loans, ledger) = (Loans::new(1), Ledger::new());
        let (writer, piece, mut watch) = Writer::lend_watched(&mut loans);
        let reads = writer.clone();
        let reader = thread::spawn(move || {
            while !reads.read(&piece) {
                thread::yield_now();
            }
            drop(piece);
        });
        let recalled = watch.recall(&ledger);
        assert!(matches!(recalled, Recall::Done | Recall::Busy | Recall::Gone));
        reader.join().unwrap();
        drop(watch);
        assert_eq!(writer.reported(), 1);
    });
}

/// Goal: a descriptor is reused only when neither the watch nor the last holder accesses it any
/// more.
///
/// Fails without the Acquire of `state` in `end_loan` or in `finish`, the Acquire of `OVER` there,
/// or the Release of `Watch::drop`.
#[test]
fn a_descriptor_is_lent_anew_after_its_watch() {
    loom::model(|| {
        let (mut loans, ledger) = (Loans::new(1), Ledger::new());
        let (writer, piece, mut watch) = Writer::lend_watched(&mut loans);
        let recaller = thread::spawn(move || {
            watch.recall(&ledger);
            assert_eq!(watch.bytes(), 8);
        });
        drop(piece);
        drop(Writer::lend(&mut loans));
        recaller.join().unwrap();
        assert_eq!(writer.reported(), 1);
        assert_eq!(loans.out_count(), 0);
    });
}

/// Goal: a second watch sees all that the first one did.
///
/// Fails without the Acquire of `state` in `Piece::watch`.
#[test]
fn a_watch_follows_another() {
    loom::model(|| {
        let (mut loans, ledger) = (Loans::new(1), Arc::new(Ledger::new()));
        let (writer, mut piece, mut watch) = Writer::lend_watched(&mut loans);
        let recaller = {
            let ledger = ledger.clone();
            thread::spawn(move || watch.recall(&ledger))
        };
        let second = piece.watch().map(|mut watch| watch.recall(&ledger));
        assert!(matches!(second, None | Some(Recall::Gone)));
        writer.read(&piece);
        match recaller.join().unwrap() {
            Recall::Busy => assert_eq!(second, None, "no thread reads before the second watch"),
            first => assert_eq!(first, Recall::Done),
        }
        drop(piece);
        assert_eq!(writer.reported(), 1);
        assert_eq!(loans.out_count(), 0);
    });
}

/// Goal: when a loan was read without pins, a later watch starts after these reads are over.
///
/// Fails without the Acquire of `holders` in `Piece::watch`.
#[test]
fn a_watch_follows_other_holders() {
    loom::model(|| {
        let (mut loans, ledger) = (Loans::new(1), Ledger::new());
        let (writer, mut piece) = Writer::lend(&mut loans).unwrap();
        let (other, reads) = (piece.clone(), writer.clone());
        let flag = Flag::new();
        let raised = flag.clone();
        let reader = thread::spawn(move || {
            reads.read(&other);
            drop(other);
            raised.raise();
        });
        flag.wait();
        if let Some(mut watch) = piece.watch() {
            assert_eq!(watch.recall(&ledger), Recall::Done);
        }
        reader.join().unwrap();
        drop(piece);
        assert_eq!(writer.reported(), 1);
    });
}

/// Goal: an owner that waits for a reader is notified once, for every interleaving of its wait and
/// two drops, and all counts end at zero.
#[test]
fn an_owner_that_waits_for_a_reader_is_woken_once() {
    let mut model = loom::model::Builder::new();
    // Three threads, so preemptions are bounded; the model also holds without a bound, but takes
    // ten minutes.
    model.preemption_bound = Some(3);
    model.check(|| {
        let mut pool = Pool::new(2, 64);
        let mut readers = Readers::new(1, None);
        let reader = readers.open().unwrap();
        let held = [(); 2].map(|()| reader.hold(pool.take().unwrap().freeze(8)));
        let droppers = held.map(|held| thread::spawn(move || drop(held)));
        let mut reported = 0;
        readers.wait(&reader, 0);
        readers.wait(&reader, 64);
        readers.take(|_| reported += 1);
        for dropper in droppers {
            dropper.join().unwrap();
        }
        readers.take(|_| reported += 1);
        assert_eq!((reported, reader.held(), readers.held()), (1, 0, 0));
        assert_eq!(pool.out_count(), 0);
    });
}

/// Goal: an owner that sleeps is woken for a group that ends, or sees it before it sleeps: for
/// every interleaving of arming and two ends it takes both groups.
#[test]
fn a_sleeping_owner_is_woken() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let returns = Returns::new(2);
        returns.begin(0);
        returns.begin(1);
        let enders = [0, 1].map(|group| {
            let returns = returns.clone();
            thread::spawn(move || usize::from(returns.end(group, false)))
        });
        let mut taken = 0;
        let asleep = returns.arm();
        if !asleep {
            returns.take(|_, _| taken += 1);
            assert!(taken > 0, "it stays awake for a reason");
        }
        let woken: usize = enders.map(|ender| ender.join().unwrap()).iter().sum();
        assert_eq!(woken, usize::from(asleep), "once, and only if it sleeps");
        returns.take(|_, _| taken += 1);
        assert_eq!(taken, 2);
    });
}
