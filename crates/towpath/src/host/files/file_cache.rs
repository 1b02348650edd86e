//! The file cache of a host, or of another stack: blocks of files in memory that is lent, shared by
//! all its sockets.
//!
//! A block is read from its file once and then lent to as many sends as want it; a [`Block`] is one
//! user's hold of it. The memory is the cache's own and no mapping: a file that is cut short
//! ends a send early and nothing else, and what was read stays as it is while it is sent.
//!
//! # Theory of operation
//!
//! Blocks are found by the [`Version`] of their file, which is asked for at the beginning of each
//! send: a file that was changed since has another, and is read anew. Whoever wants a block that is
//! not there gets the [`Load`], the right and the duty to read it; others who want it meanwhile
//! wait for him. A load that is dropped is given up: those who wait hear of it, and the next of
//! them gets a load of his own.
//!
//! Memory counts with a [`Budget`], in pages, from the begin of a load until the last user is gone.
//! Where it is used up, the block that gives way is chosen by the clock algorithm among those that
//! nobody uses: a block has a second chance if it was wanted again since it was last looked at, so
//! that a large file that is sent once does not drive out those that are sent often. If all are in
//! use, the caller waits, or reads [privately](FileCache::private) what he needs next.
//!
//! What neither the cache nor the kernel has is read [past the kernel's
//! cache](crate::host::files::cold).
//!
//! A file that was changed just now may be changed again without another time stamp
//! ([`SETTLED`]): blocks of it count, but nobody else gets them.
//!
//! Any thread calls; the lock is held for a few steps, but for choosing who gives way, which may
//! look at all blocks twice.

mod load;
mod look;

use crate::host::files::cold::Cold;
use crate::host::lending::budget::Budget;
use crate::host::lending::lend::sealed::{Mark, Memory};
use crate::host::wait::Waiters;
use load::Buffer;
pub use load::Load;
pub(in crate::host) use look::{Look, Seen};
use rustix::fs::Statx;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, SystemTime};
use towpath_io::direct;
use towpath_io::events::{Mounts, device};
use towpath_io::large_pages::{LARGE_BLOCK_BYTES, LargeBlock};
use towpath_packet::Ledger;

/// Bytes of a block, but for the last of a file: so many that a disk is asked for a stretch, and so
/// few that a range of a file brings little else with it.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;
const _: () = assert!(BLOCK_BYTES == LARGE_BLOCK_BYTES, "a block is read into a block");
/// Bytes of a block that is read privately: a super-packet.
pub(crate) const PRIVATE_BYTES: usize = 64 << 10;
/// What blocks are counted in, so that their number is bounded, too: a page.
const UNIT_BYTES: usize = 4096;
/// A file that was changed longer ago than this gets another time stamp with the next change: two
/// seconds are the coarsest stamps of a file system (FAT).
const SETTLED: Duration = Duration::from_secs(2);

/// A state of a file. Changes through a shared mapping show in it when the kernel notices them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Version {
    device: u64,
    inode: u64,
    /// Bytes.
    pub(crate) size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
}

/// A file in the state in which a send found it.
pub(crate) struct View {
    file: Arc<File>,
    pub(crate) version: Version,
    /// Its blocks are shared.
    is_settled: bool,
    /// The same file past the kernel's cache, where that can be, once it was asked for.
    direct: OnceLock<Option<Arc<File>>>,
}

impl View {
    /// The file as it was found to be now.
    fn new(file: &Arc<File>, found: &Statx) -> Self {
        let version = Version {
            device: device(found),
            inode: found.stx_ino,
            size: found.stx_size,
            modified: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
            changed: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let is_old = |(seconds, nanos): (i64, u32)| {
            let stamp = Duration::new(seconds.max(0) as u64, nanos);
            now.abs_diff(stamp) > SETTLED
        };
        let is_settled = is_old(version.modified) && is_old(version.changed);
        Self { file: file.clone(), version, is_settled, direct: OnceLock::new() }
    }

    /// The file past the kernel's cache, if the kernel has nothing of the block at `at`.
    fn cold(&self, at: u64) -> Option<Arc<File>> {
        let open = || direct::reopen(&self.file).map(Arc::new);
        let file = self.direct.get_or_init(open).as_ref()?;
        direct::is_cold(&self.file, at, BLOCK_BYTES as u64).then(|| file.clone())
    }
}

/// Names a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::host) struct Key {
    version: Version,
    at: u64,
}

/// Blocks of files in memory that is lent, shared by all sockets of a stack. A
/// [`Host`](crate::host::Host) has one; another stack makes its own for the
/// [`FileSource`](crate::host::files::file_source::FileSource)s of its tasks.
pub struct FileCache {
    table: Mutex<Table>,
    mounts: Mutex<Mounts>,
    room: Arc<Budget>,
    /// Bytes.
    limit: usize,
    /// Where reads are counted.
    ledger: Arc<Ledger>,
}

struct Table {
    entries: HashMap<Key, Entry>,
    /// Those of cold blocks, and of all others.
    clocks: [Clock; 2],
    cold: Cold,
    /// Entries so far: the number of the last.
    last: u64,
    stats: FileCacheStats,
}

/// Blocks that give way to one another.
#[derive(Default)]
struct Clock {
    /// All keys, in the order in which the hand comes to them.
    keys: VecDeque<Key>,
    /// Bytes of entries without users.
    idle: usize,
}

/// Of which clock a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Cold,
    Other,
}

struct Entry {
    content: Arc<Content>,
    kind: Kind,
    /// Of memory.
    bytes: usize,
    number: u64,
    /// Holds, and the load.
    users: usize,
    /// It was wanted again since the hand passed.
    is_hot: bool,
}

/// What a block's users share.
struct Content {
    bytes: Awaited<Bytes>,
    /// Dropped after the bytes.
    charge: Charge,
}

/// What a load brings to all who wait for it.
struct Awaited<T> {
    /// Set when the load is over.
    result: OnceLock<Result<T, Failure>>,
    waiters: Mutex<Waiters>,
}

/// Where the bytes of a block are.
enum Bytes {
    Own(Vec<u8>),
    /// So many of a block.
    Large(LargeBlock, usize),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Large(block, len) => &block[..*len],
        }
    }
}

/// Why a block is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It could not be read.
    Error(Errno),
    /// Nobody reads it any more: it is to be asked for again.
    GivenUp,
}

/// What memory counts with, as long as it is there.
struct Charge {
    room: Arc<Budget>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.room.give(self.bytes);
    }
}

/// What the file cache of a host has done ([`Host::file_cache`](crate::host::Host::file_cache)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileCacheStats {
    /// Bytes of memory in use now, in whole pages.
    pub bytes: usize,
    /// Blocks that were wanted and there, or on their way.
    pub hits: u64,
    /// Blocks that were wanted and had to be read.
    pub misses: u64,
    /// Blocks that were read for one send alone, because all memory was lent.
    pub private: u64,
    /// Blocks that gave way to others.
    pub evicted: u64,
    /// Blocks that were read past the kernel's cache, without a copy.
    pub direct: u64,
}

/// What there is of a block that is wanted.
pub(crate) enum Wanted {
    /// It is there or on its way.
    Known(Block),
    /// The caller is the one who reads it.
    Missing(Block, Load),
    /// All memory is in use. The waker is woken when it is worth trying again.
    NoRoom,
}

impl FileCache {
    /// At most `limit` bytes, or one block if that is less; `ledger` counts what is read.
    pub fn new(limit: usize, ledger: Arc<Ledger>) -> Self {
        let table = Table {
            entries: HashMap::new(),
            clocks: Default::default(),
            cold: Cold::new(limit),
            last: 0,
            stats: FileCacheStats::default(),
        };
        let room = Arc::new(Budget::new(limit));
        Self { table: Mutex::new(table), mounts: Mutex::default(), room, limit, ledger }
    }

    /// What it has done.
    pub fn stats(&self) -> FileCacheStats {
        FileCacheStats { bytes: self.room.used(), ..self.lock().stats }
    }

    /// The block of `file` that the byte at `offset` is in, which is within the file.
    pub(in crate::host) fn want(
        cache: &Arc<Self>,
        file: &View,
        offset: u64,
        waker: &Waker,
    ) -> Wanted {
        let at = offset - offset % BLOCK_BYTES as u64;
        let len = (file.version.size - at).min(BLOCK_BYTES as u64) as usize;
        let key = Key { version: file.version, at };
        let place = |number| Place { cache: cache.clone(), key, number };
        let (mut memory, mut watches) = (None, false);
        // What is short is copied soon.
        let (mut direct, mut looks) = (None, len == BLOCK_BYTES && file.is_settled);
        loop {
            let mut table = cache.lock();
            if file.is_settled
                && let Some((number, content)) = table.find(&key)
            {
                return Wanted::Known(Block { content, place: Some(place(number)), at, len });
            }
            if std::mem::take(&mut looks) && table.cold.is_first(&key) {
                // Without the lock: it asks the kernel.
                drop(table);
                direct = file.cold(at);
                continue;
            }
            let room = match &direct {
                Some(direct) => cache.cold_room(&mut table, direct),
                None => cache.room(len, &mut memory).ok_or(Kind::Other),
            };
            let full = match room {
                Ok((charge, buffer)) => {
                    table.stats.misses += 1;
                    let kind = if direct.is_some() {
                        table.cold.note(&key);
                        Kind::Cold
                    } else {
                        Kind::Other
                    };
                    let content = Content::new(charge);
                    let number = file.is_settled.then(|| table.insert(key, &content, kind));
                    drop(table);
                    let [block, own] = [content.clone(), content].map(|content| Block {
                        content,
                        place: number.map(place),
                        at,
                        len,
                    });
                    return Wanted::Missing(block, Load::new(cache, file, own, buffer));
                }
                Err(full) => full,
            };
            let evicted = table.evict(full);
            drop(table);
            match evicted {
                // Its memory is used again if it fits.
                Some(content) => memory = Content::into_memory(content),
                None if direct.is_some() => direct = None,
                None if watches => return Wanted::NoRoom,
                None => {
                    cache.room.watch(waker);
                    watches = true;
                }
            }
        }
    }

    /// What begins at `offset`, which is within the file, in memory that does not count and is
    /// nobody else's: `most` bytes or [`PRIVATE_BYTES`], if there are so many.
    pub(in crate::host) fn private(
        cache: &Arc<Self>,
        file: &View,
        offset: u64,
        most: u64,
    ) -> (Block, Load) {
        let len = (file.version.size - offset).min(most).min(PRIVATE_BYTES as u64) as usize;
        let content = Content::new(Charge { room: cache.room.clone(), bytes: 0 });
        cache.lock().stats.private += 1;
        let [block, own] = [content.clone(), content].map(|content| Block {
            content,
            place: None,
            at: offset,
            len,
        });
        (block, Load::new(cache, file, own, Buffer::new(None, len)))
    }

    /// Memory for a block, `memory` if it fits, or `None` if there is no room.
    fn room(&self, len: usize, memory: &mut Option<Vec<u8>>) -> Option<(Charge, Buffer)> {
        let bytes = len.next_multiple_of(UNIT_BYTES);
        let charge = self.room.take(bytes).then(|| Charge { room: self.room.clone(), bytes })?;
        Some((charge, Buffer::new(memory.take(), len)))
    }

    /// Memory for a block that is read from `direct`. It counts with what is set aside for those.
    ///
    /// # Errors
    /// Whose turn it is to give way.
    fn cold_room(&self, table: &mut Table, direct: &Arc<File>) -> Result<(Charge, Buffer), Kind> {
        let missing = table.cold.missing();
        if missing > 0 {
            let idle = table.clocks[Kind::Other as usize].idle;
            if self.room.used() + missing > self.limit + idle {
                // None of these is there.
                return Err(Kind::Cold);
            }
            if !self.room.take(missing) {
                return Err(Kind::Other);
            }
            if !table.cold.fill() {
                self.room.give(missing);
            }
        }
        let block = table.cold.take().ok_or(Kind::Cold)?;
        let charge = Charge { room: self.room.clone(), bytes: 0 };
        Ok((charge, Buffer::Large(block, direct.clone())))
    }

    /// A user is gone.
    fn release(&self, key: &Key, number: u64) {
        let mut table = self.lock();
        let Table { entries, clocks, .. } = &mut *table;
        let Some(entry) = entries.get_mut(key).filter(|entry| entry.number == number) else {
            return;
        };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        clocks[entry.kind as usize].idle += entry.bytes;
        drop(table);
        // Who waits for room can have this.
        self.room.give(0);
    }

    /// Nobody finds this entry any more.
    fn forget(&self, key: &Key, number: u64) {
        let mut table = self.lock();
        let entry = table.entries.get(key).filter(|entry| entry.number == number);
        if let Some(kind) = entry.map(|entry| entry.kind) {
            table.clocks[kind as usize].keys.retain(|known| known != key);
            let entry = table.entries.remove(key);
            drop(table);
            drop(entry);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Another user of an entry: its number and what it shares.
    fn find(&mut self, key: &Key) -> Option<(u64, Arc<Content>)> {
        let entry = self.entries.get_mut(key)?;
        if entry.users == 0 {
            self.clocks[entry.kind as usize].idle -= entry.bytes;
        }
        entry.users += 1;
        entry.is_hot = true;
        self.stats.hits += 1;
        Some((entry.number, entry.content.clone()))
    }

    /// A new entry with two users, one of them the load; its number.
    fn insert(&mut self, key: Key, content: &Arc<Content>, kind: Kind) -> u64 {
        self.last += 1;
        let number = self.last;
        let bytes = match kind {
            Kind::Cold => BLOCK_BYTES,
            Kind::Other => content.charge.bytes,
        };
        let content = content.clone();
        let entry = Entry { content, kind, bytes, number, users: 2, is_hot: false };
        self.entries.insert(key, entry);
        self.clocks[kind as usize].keys.push_back(key);
        number
    }

    /// Takes out an entry without users. `None` if there is none.
    fn evict(&mut self, kind: Kind) -> Option<Arc<Content>> {
        let Self { entries, clocks, stats, .. } = self;
        let clock = &mut clocks[kind as usize];
        if clock.idle == 0 {
            return None;
        }
        loop {
            // One without users is there: it is found in the second turn at the latest.
            let key = clock.keys.pop_front()?;
            let Some(entry) = entries.get_mut(&key) else { continue };
            if entry.users > 0 || std::mem::take(&mut entry.is_hot) {
                clock.keys.push_back(key);
                continue;
            }
            clock.idle -= entry.bytes;
            stats.evicted += 1;
            return entries.remove(&key).map(|entry| entry.content);
        }
    }
}

impl Content {
    fn new(charge: Charge) -> Arc<Self> {
        Arc::new(Self { bytes: Awaited::default(), charge })
    }

    /// The memory of a block that nobody uses any more, which counts no longer.
    fn into_memory(own: Arc<Self>) -> Option<Vec<u8>> {
        match Arc::into_inner(own)?.bytes.result.into_inner()?.ok()? {
            Bytes::Own(memory) => Some(memory),
            Bytes::Large(..) => None,
        }
    }
}

impl<T> Default for Awaited<T> {
    fn default() -> Self {
        Self { result: OnceLock::new(), waiters: Mutex::default() }
    }
}

impl<T> Awaited<T> {
    /// The load is over.
    fn set(&self, result: Result<T, Failure>) {
        // A load is over once.
        let _ = self.result.set(result);
        let waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner).take();
        waiters.into_iter().for_each(Waker::wake);
    }

    /// What it brought, or `None`, and `waker` is woken when there is something.
    fn poll(&self, waker: &Waker) -> Option<Result<&T, Failure>> {
        if self.result.get().is_none() {
            // Whoever sets it takes the waiters afterwards.
            self.waiters.lock().unwrap_or_else(PoisonError::into_inner).add(waker);
        }
        Some(self.result.get()?.as_ref().map_err(|failure| *failure))
    }
}

/// Where a block is known, for one of its users, who is counted until this is dropped.
struct Place {
    cache: Arc<FileCache>,
    key: Key,
    /// Of the entry.
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.cache.release(&self.key, self.number);
    }
}

/// A user's hold of a block.
pub(crate) struct Block {
    /// Dropped first: a block without users is nobody's but the table's.
    content: Arc<Content>,
    /// `None` if nobody else finds it.
    place: Option<Place>,
    /// Where in the file it begins.
    pub(crate) at: u64,
    /// Bytes, unless the file is shorter by now.
    pub(crate) len: usize,
}

impl Block {
    /// Its bytes, fewer than expected if the file is shorter by now, once the load is over; else
    /// `None`, and `waker` is woken then.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<Result<&[u8], Failure>> {
        Some(self.content.bytes.poll(waker)?.map(Deref::deref))
    }

    fn bytes(&self) -> &[u8] {
        match self.content.bytes.result.get() {
            Some(Ok(bytes)) => bytes,
            _ => &[],
        }
    }
}

/// A range of a block, to be lent: bytes that nobody changes as long as this is there.
pub struct BlockRange {
    block: Block,
    from: usize,
    len: usize,
}

impl BlockRange {
    /// `len` bytes from `from` on, or as many as the block has.
    pub(crate) fn new(block: Block, from: usize, len: usize) -> Self {
        let len = block.bytes().len().saturating_sub(from).min(len);
        Self { block, from, len }
    }
}

impl AsRef<[u8]> for BlockRange {
    fn as_ref(&self) -> &[u8] {
        self.block.bytes().get(self.from..self.from + self.len).unwrap_or_default()
    }
}

impl Memory for BlockRange {
    fn len(&self) -> usize {
        self.len
    }

    fn rest(&self, at: usize, _: &mut Mark) -> &[u8] {
        self.as_ref().get(at..).unwrap_or_default()
    }
}
