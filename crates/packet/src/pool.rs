//! Pools: fixed sets of equal frames; and [`Memory`], the pools of one worker.
//!
//! The one holder of a [`Frame`] writes it and then freezes it into a [`Piece`], which is lent like
//! any other memory. The descriptor of its loan is made when the frame is first used and stays with
//! the frame. When the last piece is dropped, on any thread, the frame is free again.
//!
//! There are two sizes, so that a read leaves little memory unused: a read is offered one small
//! frame followed by large ones. A datagram or an ACK fills only the small one; a super-packet of
//! 64 KiB continues into four large ones. Frames that a read did not reach are used by the next
//! read.
//!
//! Frame memory is zeroed and not touched before it is first used: a pool of hundreds of megabytes
//! costs only address space. Frames used last are used next. Memory that a busy period has used can
//! be returned to the system ([`Pool::unused`]).
#![allow(unsafe_code)]

use crate::loan::{Extent, Kind, Loan, Owner, Piece, end_loan};
use crate::packet::{Packet, PacketPool};
use crate::region::{FRAME_ALIGN, Region};
use crate::slab::{Returning, Slab, Slot};
use crate::sync::{Ordering, UnsafeCell};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::ops::{Deref, DerefMut, Range};
use core::ptr::NonNull;

/// Bytes of a small frame: a full Ethernet frame at MTU 1500 with room to spare.
pub const SMALL_FRAME_BYTES: usize = 2048;
/// Bytes of a large frame: four of them and a small one hold the largest IP packet.
pub const LARGE_FRAME_BYTES: usize = 16 * 1024;
/// Large frames that a read of one super-packet may need.
pub const LARGE_FRAMES_PER_PACKET: usize = 4;

// A read must never be truncated: 18 bytes of Ethernet with a tag, and 65,535 of IP.
const _: () = assert!(
    SMALL_FRAME_BYTES + LARGE_FRAMES_PER_PACKET * LARGE_FRAME_BYTES >= 18 + 65_535,
    "a read buffer holds the largest packet"
);

/// Is called with each run of free slots.
type EachRun<'a> = &'a mut dyn FnMut(Range<usize>);

/// A fixed set of equal frames. One thread takes; any thread gives back by dropping.
pub struct Pool {
    slab: Slab<Loan>,
    region: Arc<Region>,
    frame_bytes: u32,
}

impl Pool {
    /// A pool of `count` frames of `frame_bytes` each, a multiple of 64. `None` if there is not
    /// enough memory.
    ///
    /// # Panics
    /// If `frame_bytes` is zero, is not a multiple of 64, or is 4 GiB or more.
    pub fn try_new(count: usize, frame_bytes: usize) -> Option<Self> {
        assert!(frame_bytes > 0 && frame_bytes.is_multiple_of(FRAME_ALIGN));
        let region = Region::try_new(count.checked_mul(frame_bytes)?)?;
        // SAFETY: the region has this size, is new, and keeps its own memory.
        unsafe { Self::in_region(region, count, frame_bytes) }
    }

    /// A pool of `count` frames of `frame_bytes` each, a multiple of 64, in memory that starts at
    /// `base`. Drops `keeper` after the last piece of a frame. `None` if there is not enough memory
    /// for the descriptors.
    ///
    /// # Panics
    /// If `frame_bytes` is zero, is not a multiple of 64, or is 4 GiB or more, or if `base` is not
    /// a multiple of 64.
    ///
    /// # Safety
    /// While `keeper` lives, `count * frame_bytes` bytes from `base` on are initialised, valid for
    /// reads and writes, and reached only through frames of this pool and their pieces. The holder
    /// of a frame may let the kernel write it for as long as no reference to its bytes exists.
    pub unsafe fn over(
        base: NonNull<u8>,
        count: usize,
        frame_bytes: usize,
        keeper: Box<dyn Send + Sync>,
    ) -> Option<Self> {
        assert!(base.addr().get().is_multiple_of(FRAME_ALIGN));
        assert!(frame_bytes > 0 && frame_bytes.is_multiple_of(FRAME_ALIGN));
        // SAFETY: the caller guarantees the size, and that `keeper` keeps the memory.
        unsafe { Self::in_region(Region::kept(base, keeper), count, frame_bytes) }
    }

    /// # Safety
    /// The region has `count` frames of `frame_bytes`, which no one else uses.
    unsafe fn in_region(region: Region, count: usize, frame_bytes: usize) -> Option<Self> {
        let capacity = u32::try_from(frame_bytes).expect("a frame is smaller than 4 GiB");
        let region = Arc::new(region);
        let memory = region.clone();
        let slab = Slab::try_new(count, move |index| {
            let loan = Loan::free();
            // SAFETY: frame `index` lies within the region, by this function's contract.
            let base = unsafe { memory.first_frame().add(index * frame_bytes) };
            let extent = UnsafeCell::new(Extent { base, capacity, kind: Kind::Frame });
            Loan { extent, owner: UnsafeCell::new(Owner::Pool(memory.clone())), ..loan }
        })?;
        Some(Self { slab, region, frame_bytes: capacity })
    }

    /// Makes a pool as [`try_new`](Self::try_new) does, for small ones.
    ///
    /// # Panics
    /// If there is no memory, or if `frame_bytes` is zero, is not a multiple of 64, or is 4 GiB or
    /// more.
    pub fn new(count: usize, frame_bytes: usize) -> Self {
        Self::try_new(count, frame_bytes).expect("memory for a pool")
    }

    /// Takes a frame. `None` if all are out.
    pub fn take(&mut self) -> Option<Frame> {
        let slot = self.slab.take()?;
        // SAFETY: the slot is out of the slab, so its storage is valid.
        let loan = unsafe { slot.as_ref() }.value();
        // Relaxed: no other thread can reach the slot, so the check and the store need not be one
        // operation.
        assert_eq!(loan.holders.load(Ordering::Relaxed), 0, "a free frame has no holder");
        // Relaxed: no other thread can reach the slot.
        loan.holders.store(1, Ordering::Relaxed);
        Some(Frame { slot: Some(slot) })
    }

    /// Calls `each` with the memory of frames that were used and are free, in ranges as long as
    /// possible. `each` may overwrite it or return it to the system. For idle times: scans all
    /// frames that were ever used, and allocates.
    pub fn unused(&mut self, each: impl FnMut(&mut [u8])) {
        self.see_free(|slab, each| slab.free_runs(each), each);
    }

    /// Calls `each` with the memory of frames that were used and are beyond the
    /// [limit](Self::limit), as [`unused`](Self::unused) does.
    pub fn withheld(&mut self, each: impl FnMut(&mut [u8])) {
        self.see_free(|slab, each| slab.withheld_runs(each), each);
    }

    /// Calls `each` with the memory of the runs of free frames that `runs` finds.
    fn see_free(
        &mut self,
        runs: fn(&mut Slab<Loan>, EachRun<'_>),
        mut each: impl FnMut(&mut [u8]),
    ) {
        let (first, frame_bytes) = (self.region.first_frame(), self.frame_bytes());
        runs(&mut self.slab, &mut |run| {
            // SAFETY: the frames of the run lie within the region.
            let start = unsafe { first.add(run.start * frame_bytes) };
            let len = run.len() * frame_bytes;
            // SAFETY: this is initialised memory of free frames that follow each other. No frame
            // can be taken while `self` is borrowed, and the former holders no longer use them.
            each(unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), len) });
        });
    }

    /// Sets how many frames may be out: `most`, or all if there are fewer. Frames that are out stay
    /// out; while there are more of them, none can be taken. All free counts and the capacity are
    /// those within the limit.
    pub fn limit(&mut self, most: usize) {
        self.slab.limit(most);
    }

    /// Frames that can be taken, at least. Collects returned frames.
    #[inline]
    pub fn free_count(&mut self) -> usize {
        self.slab.free_count()
    }

    /// Frames that can be taken without collecting returned ones: a lower bound.
    #[inline]
    pub fn free_at_least(&self) -> usize {
        self.slab.free_at_least()
    }

    /// Frames that may be out.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// Bytes of one frame.
    #[inline]
    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes as usize
    }

    /// Frames out. Walks a list: for tests and reports.
    pub fn out_count(&self) -> usize {
        self.slab.out_count()
    }
}

/// A frame that its one holder may write. Dereferences to all its bytes, which keep the content of
/// an earlier use.
pub struct Frame {
    /// `None` only after [`Frame::freeze`] took it.
    slot: Option<NonNull<Slot<Loan>>>,
}

// SAFETY: the right to the memory moves with the value, its one holder.
unsafe impl Send for Frame {}

impl Frame {
    /// Turns a piece back into the frame that it is a range of, so that more can be written behind
    /// it. Returns the range as well. Returns the piece if it is not part of a frame, or if the
    /// frame has other holders.
    pub fn reopen(piece: Piece) -> Result<(Self, Range<usize>), Piece> {
        let (slot, range) = piece.into_frame()?;
        Ok((Self { slot: Some(slot) }, range))
    }

    /// Ends writing: the first `len` bytes become a piece.
    ///
    /// # Panics
    /// If the frame is shorter.
    pub fn freeze(mut self, len: usize) -> Piece {
        assert!(len <= self.extent().capacity as usize);
        let slot = self.slot.take().expect("a frame is frozen once");
        // SAFETY: the frame was the one holder and passes that to the piece; the range fits.
        unsafe { Piece::first(slot, 0, len as u32) }
    }

    fn extent(&self) -> Extent {
        self.loan().extent()
    }

    fn loan(&self) -> &Loan {
        let slot = self.slot.expect("a frame that is not frozen has its slot");
        // SAFETY: a slot that is out stays in its slab's storage, and this frame holds it.
        unsafe { slot.as_ref() }.value()
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let extent = self.extent();
        // SAFETY: initialised memory of this length, of which this frame is the one holder.
        unsafe { core::slice::from_raw_parts(extent.base.as_ptr(), extent.capacity as usize) }
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        let extent = self.extent();
        let (base, capacity) = (extent.base, extent.capacity as usize);
        self.loan().shown.write();
        // SAFETY: initialised memory of this length; `&mut self` is its one holder.
        unsafe { core::slice::from_raw_parts_mut(base.as_ptr(), capacity) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            // SAFETY: the frame was the one holder, and it is not used afterwards.
            unsafe { end_loan(slot, &mut Returning::new()) };
        }
    }
}

/// Numbers of packets and frames of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// Packet handles.
    pub packets: usize,
    /// Frames of [`SMALL_FRAME_BYTES`].
    pub small_frames: usize,
    /// Frames of [`LARGE_FRAME_BYTES`].
    pub large_frames: usize,
}

impl MemoryConfig {
    /// Divides `bytes`: a quarter to small frames, the rest to large ones. Handles (2.5 MB) and
    /// descriptors (one for each frame) need memory in addition, as far as they are used.
    pub fn within(bytes: usize) -> Self {
        Self {
            packets: 4096,
            small_frames: (bytes / 4 / SMALL_FRAME_BYTES).max(64),
            large_frames: (bytes / 4 * 3 / LARGE_FRAME_BYTES).max(32),
        }
    }

    /// Bytes of all frames.
    fn bytes(&self) -> usize {
        let small = self.small_frames.saturating_mul(SMALL_FRAME_BYTES);
        small.saturating_add(self.large_frames.saturating_mul(LARGE_FRAME_BYTES))
    }
}

/// There is not enough memory for the pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory {
    /// Bytes of frames that were requested.
    pub bytes: usize,
}

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(shift, _): &&(u32, &str)| self.bytes.is_multiple_of(1 << shift);
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let (shift, unit) = *units.iter().find(fits).unwrap_or(&(0, "bytes"));
        write!(f, "cannot allocate {} {unit} of memory for packets", self.bytes >> shift)
    }
}

impl core::error::Error for NoMemory {}

/// The memory of one worker: packet handles and frames of both sizes.
pub struct Memory {
    /// Packet handles.
    pub packets: PacketPool,
    /// Frames of [`SMALL_FRAME_BYTES`].
    pub small: Pool,
    /// Frames of [`LARGE_FRAME_BYTES`].
    pub large: Pool,
}

impl Memory {
    /// Makes the pools.
    ///
    /// # Errors
    /// [`NoMemory`] if there is not enough memory.
    pub fn try_new(config: MemoryConfig) -> Result<Self, NoMemory> {
        let make = || {
            Some(Self {
                packets: PacketPool::try_new(config.packets)?,
                small: Pool::try_new(config.small_frames, SMALL_FRAME_BYTES)?,
                large: Pool::try_new(config.large_frames, LARGE_FRAME_BYTES)?,
            })
        };
        make().ok_or(NoMemory { bytes: config.bytes() })
    }

    /// Makes the pools as [`try_new`](Self::try_new) does, for small ones.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new(config: MemoryConfig) -> Self {
        Self::try_new(config).expect("memory for packets")
    }

    /// Takes a packet handle. `None` if all are out.
    pub fn packet(&mut self) -> Option<Packet> {
        self.packets.take()
    }

    /// Calls `each` with the memory of frames of both pools that were used and are free: see
    /// [`Pool::unused`].
    pub fn unused(&mut self, mut each: impl FnMut(&mut [u8])) {
        self.small.unused(&mut each);
        self.large.unused(each);
    }

    /// Sets how many bytes of frames may be out, as [`MemoryConfig::within`] divides them. Frames
    /// that are out stay out: see [`Pool::limit`].
    pub fn limit(&mut self, bytes: usize) {
        let config = MemoryConfig::within(bytes);
        self.small.limit(config.small_frames);
        self.large.limit(config.large_frames);
    }

    /// Calls `each` with the memory of frames of both pools that were used and are beyond the
    /// limit: see [`Pool::withheld`].
    pub fn withheld(&mut self, mut each: impl FnMut(&mut [u8])) {
        self.small.withheld(&mut each);
        self.large.withheld(each);
    }

    /// Bytes of all frames that are out, at most: those that other threads returned count until
    /// they are collected.
    pub fn out_bytes(&self) -> usize {
        let [small, large] = [&self.small, &self.large].map(|pool| pool.slab.out_at_most());
        small * SMALL_FRAME_BYTES + large * LARGE_FRAME_BYTES
    }

    /// Bytes of all frames that may be out.
    pub fn capacity_bytes(&self) -> usize {
        self.small.capacity() * SMALL_FRAME_BYTES + self.large.capacity() * LARGE_FRAME_BYTES
    }

    /// Collects returned frames: they are taken next, while they are warm in the cache.
    #[inline]
    pub fn collect(&mut self) {
        self.small.slab.collect();
        self.large.slab.collect();
    }

    /// Takes back frames of these pools, on the owner's thread.
    #[inline]
    pub(crate) fn absorb(&mut self, frames: &mut Returning<Loan>) {
        self.small.slab.absorb(frames);
        self.large.slab.absorb(frames);
    }

    /// True if [`Memory::free_share`] is at least `share`. Collects returned frames only if there
    /// are too few without them.
    #[inline]
    pub fn has_free(&mut self, share: u32) -> bool {
        let has = |pool: &Pool| pool.free_at_least() * 256 > pool.capacity() * share as usize;
        has(&self.small) && has(&self.large) || self.free_share() >= share
    }

    /// Free frame memory in 1/256 of all: receive windows are scaled by it when memory runs short.
    #[inline(never)]
    pub fn free_share(&mut self) -> u32 {
        let small = self.small.free_count() * 256 / self.small.capacity().max(1);
        let large = self.large.free_count() * 256 / self.large.capacity().max(1);
        small.min(large) as u32
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
