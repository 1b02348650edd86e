//! The file cache of a host or of another stack: blocks of files in memory that is lent, shared by
//! all its sockets.
//!
//! A block is read from its file once and then lent to any number of sends; a [`Block`] is one
//! user's hold of it. The memory is the cache's own and not a mapping: truncating a file only ends
//! a send early, and bytes that were read do not change while they are sent.
//!
//! # Theory of operation
//!
//! Blocks are found by the [`Version`] of their file, which each send determines when it begins: a
//! file that has changed has a new version, and is read again. The first user of a missing block
//! gets the [`Load`], the right and the duty to read it; other users wait for that load. If the
//! load is dropped, it is given up: the waiters are notified, and the next of them gets a new load.
//!
//! Memory is charged to a [`Budget`] in pages, from the start of the load until the last user is
//! gone. When the budget is used up, the clock algorithm chooses the block to evict among those
//! without users. A block that was used again since the hand passed gets a second chance, so that a
//! large file that is sent once does not evict files that are sent often. If all blocks are in use,
//! the caller waits, or reads the next bytes [privately](FileCache::private).
//!
//! Blocks that are neither here nor in the kernel's page cache are read [past the page
//! cache](crate::host::files::cold).
//!
//! A file that has just changed may change again without a new time stamp ([`SETTLED`]): its blocks
//! are charged, but not shared.
//!
//! Any thread may call. The lock is held for a few steps; only an eviction may look at all blocks,
//! twice.

mod load;
mod look;

use crate::host::files::direct_read::Cold;
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

/// Bytes of a block, except the last of a file: large enough for efficient disk reads, small enough
/// that a range of a file brings little unrelated data with it.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;
const _: () = assert!(BLOCK_BYTES == LARGE_BLOCK_BYTES, "a large block holds one block");
/// Bytes of a block that is read privately: one super-packet.
pub(crate) const PRIVATE_BYTES: usize = 64 << 10;
/// Unit in which blocks are charged, so that their number is bounded as well: a page.
const UNIT_BYTES: usize = 4096;
/// Age from which a file's next change certainly gets a new time stamp. FAT has the coarsest time
/// stamps of all file systems: two seconds.
const SETTLED: Duration = Duration::from_secs(2);

/// A state of a file. Changes through a shared mapping appear in it when the kernel notices them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Version {
    device: u64,
    inode: u64,
    /// Size of the file in bytes.
    pub(crate) size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
}

/// A file in the state in which a send found it.
pub(crate) struct View {
    file: Arc<File>,
    pub(crate) version: Version,
    /// True if its blocks are shared.
    is_settled: bool,
    /// The file opened for direct I/O, if possible; set on first use.
    direct: OnceLock<Option<Arc<File>>>,
}

impl View {
    /// Creates the view of a file with its current status.
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

    /// True if its blocks are shared.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Returns the file opened for direct I/O, if nothing of the block at `at` is in the page
    /// cache.
    fn cold(&self, at: u64) -> Option<Arc<File>> {
        let open = || direct::reopen(&self.file).map(Arc::new);
        let file = self.direct.get_or_init(open).as_ref()?;
        direct::is_cold(&self.file, at, BLOCK_BYTES as u64).then(|| file.clone())
    }
}

/// Identifies a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::host) struct Key {
    version: Version,
    at: u64,
}

/// Blocks of files in memory that is lent, shared by all sockets of a stack. A
/// [`Host`](crate::host::Host) has one; another stack creates its own for the
/// [`FileSource`](crate::host::files::file_source::FileSource)s of its tasks.
pub struct FileCache {
    table: Mutex<Table>,
    mounts: Mutex<Mounts>,
    room: Arc<Budget>,
    /// In bytes.
    limit: usize,
    /// Counts the bytes that are read.
    ledger: Arc<Ledger>,
}

struct Table {
    entries: HashMap<Key, Entry>,
    /// The clock of cold blocks, and that of all others.
    clocks: [Clock; 2],
    cold: Cold,
    /// Entries so far: the number of the last one.
    last: u64,
    stats: FileCacheStats,
}

/// Blocks that evict one another.
#[derive(Default)]
struct Clock {
    /// All keys, in the order in which the hand reaches them.
    keys: VecDeque<Key>,
    /// Bytes of entries without users.
    idle: usize,
}

/// The clock that a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Cold,
    Other,
}

struct Entry {
    content: Arc<Content>,
    kind: Kind,
    /// Memory in bytes.
    bytes: usize,
    number: u64,
    /// Holds, and the load.
    users: usize,
    /// Used again since the hand passed.
    is_hot: bool,
}

/// State that the users of a block share.
struct Content {
    bytes: Awaited<Bytes>,
    /// Dropped after the bytes.
    charge: Charge,
}

/// Result of a load, for all waiters.
struct Awaited<T> {
    /// Set when the load is complete.
    result: OnceLock<Result<T, Failure>>,
    waiters: Mutex<Waiters>,
}

/// The bytes of a block.
enum Bytes {
    Own(Vec<u8>),
    /// A large block, and how many of its bytes are valid.
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

/// Why a block is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Reading failed.
    Error(Errno),
    /// The load was given up: request the block again.
    GivenUp,
}

/// Charge for memory, as long as the memory exists.
struct Charge {
    room: Arc<Budget>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.room.give(self.bytes);
    }
}

/// Statistics of the file cache of a host ([`Host::file_cache`](crate::host::Host::file_cache)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileCacheStats {
    /// Bytes of memory in use, in whole pages.
    pub bytes: usize,
    /// Requested blocks that were present or being read.
    pub hits: u64,
    /// Requested blocks that had to be read.
    pub misses: u64,
    /// Blocks that were read for one send alone, because all memory was lent.
    pub private: u64,
    /// Blocks that were evicted.
    pub evicted: u64,
    /// Blocks that were read with direct I/O, past the kernel's page cache, without a copy.
    pub direct: u64,
}

/// Result of a request for a block.
pub(crate) enum Wanted {
    /// The block is present or being read.
    Known(Block),
    /// The caller must carry out the load.
    Missing(Block, Load),
    /// All memory is in use. The waker is woken when the request should be repeated.
    NoRoom,
}

impl FileCache {
    /// Creates a cache of at most `limit` bytes, or of one block if `limit` is smaller. `ledger`
    /// counts the bytes that are read.
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

    /// Returns the statistics so far.
    pub fn stats(&self) -> FileCacheStats {
        FileCacheStats { bytes: self.room.used(), ..self.lock().stats }
    }

    /// Requests the block of `file` that contains the byte at `offset`, which must be within the
    /// file.
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
        // Short blocks are not worth direct I/O: copying them is quick.
        let (mut direct, mut looks) = (None, len == BLOCK_BYTES && file.is_settled);
        loop {
            let mut table = cache.lock();
            if file.is_settled
                && let Some((number, content)) = table.find(&key)
            {
                return Wanted::Known(Block { content, place: Some(place(number)), at, len });
            }
            if std::mem::take(&mut looks) && table.cold.is_first(&key) {
                // Without the lock, because it asks the kernel.
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
                // The memory is reused if it fits.
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

    /// Returns a block that starts at `offset`, which must be within the file, in memory that is
    /// neither charged nor shared: `most` bytes or [`PRIVATE_BYTES`], or fewer at the end of the
    /// file.
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

    /// Charges memory for a block and allocates it, using `memory` if it fits. Returns `None` if
    /// there is no room.
    fn room(&self, len: usize, memory: &mut Option<Vec<u8>>) -> Option<(Charge, Buffer)> {
        let bytes = len.next_multiple_of(UNIT_BYTES);
        let charge = self.room.take(bytes).then(|| Charge { room: self.room.clone(), bytes })?;
        Some((charge, Buffer::new(memory.take(), len)))
    }

    /// Returns memory for a block that is read from `direct`. It is charged to the memory set aside
    /// for cold blocks.
    ///
    /// # Errors
    /// The kind of block that must be evicted first.
    fn cold_room(&self, table: &mut Table, direct: &Arc<File>) -> Result<(Charge, Buffer), Kind> {
        let missing = table.cold.missing();
        if missing > 0 {
            let idle = table.clocks[Kind::Other as usize].idle;
            if self.room.used() + missing > self.limit + idle {
                // There is no cold block to evict, so the caller falls back.
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

    /// Ends one use of an entry.
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
        // Waiters for room can evict this block.
        self.room.give(0);
    }

    /// Removes an entry, so that it is no longer found.
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
    /// Adds a user to an entry. Returns its number and its shared state.
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

    /// Inserts an entry with two users, one of them the load. Returns its number.
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

    /// Removes an entry without users. Returns `None` if there is none.
    fn evict(&mut self, kind: Kind) -> Option<Arc<Content>> {
        let Self { entries, clocks, stats, .. } = self;
        let clock = &mut clocks[kind as usize];
        if clock.idle == 0 {
            return None;
        }
        loop {
            // There is an entry without users: the second round finds it at the latest.
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

    /// Returns the memory of a block without users and ends its charge.
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
    /// Sets the result and wakes the waiters.
    fn set(&self, result: Result<T, Failure>) {
        // A load completes once, so this cannot fail.
        let _ = self.result.set(result);
        let waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner).take();
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Returns the result; or `None`, and `waker` is woken when there is one.
    fn poll(&self, waker: &Waker) -> Option<Result<&T, Failure>> {
        if self.result.get().is_none() {
            // `set` takes the waiters after it sets the result.
            self.waiters.lock().unwrap_or_else(PoisonError::into_inner).add(waker);
        }
        Some(self.result.get()?.as_ref().map_err(|failure| *failure))
    }
}

/// The entry of a block, counted as one of its users until this is dropped.
struct Place {
    cache: Arc<FileCache>,
    key: Key,
    /// Number of the entry.
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.cache.release(&self.key, self.number);
    }
}

/// A user's hold of a block.
pub(crate) struct Block {
    /// Dropped first: the table alone holds a block without users.
    content: Arc<Content>,
    /// `None` if the block is not shared.
    place: Option<Place>,
    /// Offset in the file.
    pub(crate) at: u64,
    /// Length in bytes; fewer are read if the file has become shorter.
    pub(crate) len: usize,
}

impl Block {
    /// Returns the bytes once the load is complete, fewer than expected if the file has become
    /// shorter. Until then it returns `None`, and `waker` is woken when the load is complete.
    ///
    /// # Errors
    /// Why there are no bytes.
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

/// A range of a block, to be lent. Its bytes do not change as long as it exists.
pub struct BlockRange {
    block: Block,
    from: usize,
    len: usize,
}

impl BlockRange {
    /// Creates a range of `len` bytes from `from` on, or fewer if the block is shorter.
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
