//! The blocks of a range of a file in their order, for whoever lends them to a stream.
//!
//! While some are on their way, the next ones are read ahead ([`AHEAD_MAX`]); all in all a range
//! holds at most [`BLOCKS_MAX`], so that a peer who does not read keeps that much and no more.
//! Nothing is read here: whoever asks for blocks carries out the [loads](FileSource::take_loads).
//!
//! Who makes progress never waits for the memory of others: if all of the cache is lent, he waits
//! for what he has lent himself, and without anything lent he reads a little privately.

use crate::host::files::file_cache::{
    BLOCK_BYTES, Block, BlockRange, Failure, FileCache, Load, Look, Seen, View, Wanted,
};
use crate::host::lending::lend::sealed::Memory;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

/// Blocks of one range that are being read, or wait to be lent.
const AHEAD_MAX: usize = 4;
/// Blocks of one range in all: those, and what is lent: a window of 4 MiB.
const BLOCKS_MAX: usize = 16;
const _: () = assert!(AHEAD_MAX < BLOCKS_MAX && BLOCKS_MAX * BLOCK_BYTES == 4 << 20);

/// A block that was asked for.
struct Ahead {
    block: Block,
    /// Bytes of it that are to be sent.
    from: usize,
    len: usize,
}

/// The blocks of a range of a file, read ahead into a [`FileCache`].
pub struct FileSource {
    cache: Arc<FileCache>,
    file: Arc<File>,
    /// `None` until it is told what the file is like.
    view: Option<View>,
    look: Option<Look>,
    /// What is not asked for yet.
    left: Range<u64>,
    /// The file ends before the range.
    is_short: bool,
    ahead: VecDeque<Ahead>,
    /// Loads that nobody carries out yet.
    loads: Vec<Load>,
}

impl FileSource {
    /// Of what the file has now; of one that is asked for at a server, of what it has when that is
    /// carried out. A range that begins or ends behind its end is cut off there, which is an error
    /// when it comes to that.
    ///
    /// # Errors
    /// `INVAL` if there is no regular file; those of statx(2).
    pub fn new(cache: &Arc<FileCache>, file: &Arc<File>, range: Range<u64>) -> io::Result<Self> {
        let mut source = Self {
            cache: cache.clone(),
            file: file.clone(),
            view: None,
            look: None,
            left: range,
            is_short: false,
            ahead: VecDeque::new(),
            loads: Vec::new(),
        };
        source.look()?;
        Ok(source)
    }

    /// Begins to look at the file.
    fn look(&mut self) -> io::Result<()> {
        match self.cache.look(&self.file)? {
            Seen::Now(view) => self.seen(view),
            Seen::Later(look, load) => {
                self.look = Some(look);
                self.loads.push(load);
            }
        }
        Ok(())
    }

    fn seen(&mut self, view: View) {
        let (Range { start, end }, size) = (self.left.clone(), view.version.size);
        self.is_short = start < end && end > size;
        self.left = start.min(size)..end.min(size);
        self.view = Some(view);
        self.look = None;
    }

    /// Takes up what was told of the file. `None` if that was not yet.
    ///
    /// # Errors
    /// Why nobody tells.
    fn poll_look(&mut self, waker: &Waker) -> Option<io::Result<()>> {
        let Some(look) = &self.look else { return Some(Ok(())) };
        Some(match look.poll(waker)? {
            Ok(view) => {
                self.seen(view);
                Ok(())
            }
            Err(Failure::Error(errno)) => Err(errno.into()),
            Err(Failure::GivenUp) => match self.look() {
                Ok(()) => return self.poll_look(waker),
                Err(error) => Err(error),
            },
        })
    }

    /// The next bytes, `Some(None)` behind the last. `None` if they are not there yet: then `waker`
    /// is woken when it is worth trying again. `out` is how many blocks the caller has lent.
    ///
    /// # Errors
    /// Why there are no more: `UnexpectedEof` if the file has no more, or what reading told.
    pub fn next(&mut self, out: usize, waker: &Waker) -> Option<Option<io::Result<BlockRange>>> {
        if let Err(error) = self.poll_look(waker)? {
            self.end();
            return Some(Some(Err(error)));
        }
        loop {
            self.read_ahead(out, waker);
            let Some(first) = self.ahead.front() else {
                if !self.left.is_empty() {
                    return None;
                }
                let end = || io::Error::from(io::ErrorKind::UnexpectedEof);
                return Some(self.is_short.then(|| Err(end())));
            };
            let failed = first.block.poll(waker)?.err();
            let Ahead { block, from, len } = self.ahead.pop_front()?;
            match failed {
                None => {
                    let range = BlockRange::new(block, from, len);
                    if range.len() < len {
                        // The file was cut short: what is behind is no more.
                        self.end();
                        self.is_short = true;
                    }
                    if range.len() > 0 {
                        return Some(Some(Ok(range)));
                    }
                }
                Some(Failure::Error(errno)) => {
                    self.end();
                    return Some(Some(Err(errno.into())));
                }
                Some(Failure::GivenUp) => {
                    // From there on once more.
                    self.left.start = block.at + from as u64;
                    self.ahead.clear();
                }
            }
        }
    }

    /// What is to be read, after each call of [`FileSource::next`]. A load that is dropped is given
    /// up.
    pub fn take_loads(&mut self) -> Vec<Load> {
        std::mem::take(&mut self.loads)
    }

    /// Asks for blocks.
    pub(in crate::host) fn read_ahead(&mut self, out: usize, waker: &Waker) {
        let Some(file) = &self.view else { return };
        while !self.left.is_empty()
            && self.ahead.len() < AHEAD_MAX
            && self.ahead.len() + out < BLOCKS_MAX
        {
            let (offset, most) = (self.left.start, self.left.end - self.left.start);
            let (block, load) = match FileCache::want(&self.cache, file, offset, waker) {
                Wanted::Known(block) => (block, None),
                Wanted::Missing(block, load) => (block, Some(load)),
                Wanted::NoRoom if self.ahead.is_empty() && out == 0 => {
                    let (block, load) = FileCache::private(&self.cache, file, offset, most);
                    (block, Some(load))
                }
                Wanted::NoRoom => return,
            };
            self.loads.extend(load);
            let from = (offset - block.at) as usize;
            let len = most.min((block.len - from) as u64) as usize;
            self.left.start += len as u64;
            self.ahead.push_back(Ahead { block, from, len });
        }
    }

    /// No more is asked for.
    fn end(&mut self) {
        self.look = None;
        self.left = 0..0;
        self.ahead.clear();
    }
}
