//! The blocks of a file range in order, for lending them to a stream.
//!
//! While some blocks are being read, the next ones are read ahead ([`AHEAD_MAX`]). A range holds at
//! most [`BLOCKS_MAX`] blocks, which bounds the memory that a peer can hold by not reading. Nothing
//! is read here: the caller carries out the [loads](FileSource::take_loads).
//!
//! A source never waits for memory that others have lent. If the whole cache is lent, it waits for
//! its own lent blocks; without lent blocks, it reads a little into private memory.

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

/// Most blocks of a range that are being read or wait to be lent.
const AHEAD_MAX: usize = 4;
/// Most blocks of a range in all, including lent ones: a window of 4 MiB.
const BLOCKS_MAX: usize = 16;
const _: () = assert!(AHEAD_MAX < BLOCKS_MAX && BLOCKS_MAX * BLOCK_BYTES == 4 << 20);

/// A block that was requested.
struct Ahead {
    block: Block,
    /// The range of its bytes to send: offset and length.
    from: usize,
    len: usize,
}

/// The blocks of a file range, read ahead into a [`FileCache`].
pub struct FileSource {
    cache: Arc<FileCache>,
    file: Arc<File>,
    /// `None` until the file's status is known.
    view: Option<View>,
    look: Option<Look>,
    /// The part of the range that was not requested yet.
    left: Range<u64>,
    /// The file ends before the range.
    is_short: bool,
    ahead: VecDeque<Ahead>,
    /// Loads that the caller has not taken yet.
    loads: Vec<Load>,
}

impl FileSource {
    /// Creates a source for the file's current contents; the status of a file on a server is read
    /// by the first load. A range that exceeds the file is cut at the end of the file, which is an
    /// error once the source gets there.
    ///
    /// # Errors
    /// `INVAL` if the file is no regular file; errors of statx(2).
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

    /// Returns true if sends of the file share its blocks: its status is known, and it has not
    /// changed within the last two seconds.
    pub fn is_shared(&self) -> bool {
        self.view.as_ref().is_some_and(View::is_settled)
    }

    /// Starts to read the file's status.
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

    /// Waits for the file's status. Returns `None` if it is not known yet.
    ///
    /// # Errors
    /// Why the status cannot be read.
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

    /// Returns the next bytes, or `Some(None)` after the last. Returns `None` if they are not
    /// available yet: then `waker` is woken when the call should be repeated. `out` is the number
    /// of blocks that the caller has lent.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file is shorter than the range; errors of reading.
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
                        // The file was truncated: nothing follows.
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
                    // Request again from here on.
                    self.left.start = block.at + from as u64;
                    self.ahead.clear();
                }
            }
        }
    }

    /// Takes the loads to carry out, after each call of [`FileSource::next`]. Dropping a load gives
    /// it up.
    pub fn take_loads(&mut self) -> Vec<Load> {
        std::mem::take(&mut self.loads)
    }

    /// Requests blocks.
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

    /// Ends the requests.
    fn end(&mut self) {
        self.look = None;
        self.left = 0..0;
        self.ahead.clear();
    }
}
