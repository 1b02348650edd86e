//! Sending a range of a file over a stream, between a header and a trailer.
//!
//! Header and trailer are copied: they are short, and the caller's. Blocks of the
//! [file cache](super::file_cache) are lent to the stream one after the other. While
//! some are on their way, the next ones are read ahead ([`AHEAD_MAX`]); all in all a send
//! holds at most [`BLOCKS_MAX`], so that a peer who does not read keeps that much and no more. It
//! reads nothing itself: whoever polls it carries out the [loads](FileSend::take_loads) that it
//! asks for.
//!
//! What is little altogether ([`WHOLE_MAX`]) goes out by one copy, if the kernel has the file in
//! memory: it is read into the frame that is sent, which costs less than lending, and takes no part
//! of the cache.
//!
//! A send whose peer makes progress never waits for the memory of others: if all of the cache is
//! lent, it waits for what it has lent itself, and without anything lent it reads a little
//! privately.

use super::file_cache::{BLOCK_BYTES, Block, BlockRange, Failure, FileCache, Load, View, Wanted};
use super::lend::sealed::{Mark, Memory};
use super::stream::Going;
use super::{SendError, Sending, TcpStream};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use towpath_io::events::{Known, SendFile, read_now};
use towpath_packet::Site;
use towpath_packet::pool::LARGE_FRAME_BYTES;

/// Blocks of one send that are being read, or wait to be lent.
const AHEAD_MAX: usize = 4;
/// Blocks of one send in all: those, and what is lent: a window of 4 MiB.
const BLOCKS_MAX: usize = 16;
const _: () = assert!(AHEAD_MAX < BLOCKS_MAX && BLOCKS_MAX * BLOCK_BYTES == 4 << 20);

/// Most bytes, with what is around the file, that are copied: those of one frame.
const WHOLE_MAX: usize = LARGE_FRAME_BYTES;

/// A part of what is sent.
enum Part {
    Header(Vec<u8>),
    Block(BlockRange),
    Trailer(Vec<u8>),
}

/// What became of a send: the bytes that were accepted, why not all were, and what was to be sent.
pub(crate) type FileSent = (u64, io::Result<()>, SendFile);

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Header,
    Range,
    Trailer,
    /// Nothing: all was accepted, or there will be no more.
    End,
}

/// A block that was asked for.
struct Ahead {
    block: Block,
    /// Bytes of it that are to be sent.
    from: usize,
    len: usize,
}

/// What there is to tell of a send.
pub(crate) enum FileStep {
    /// The stream has taken all that it will take.
    Sent(u64),
    Over,
}

/// A send under way.
pub(crate) struct FileSend {
    stream: TcpStream,
    /// `None` of what may go out by one copy, until that was tried.
    file: Option<View>,
    /// What is not asked for yet.
    left: Range<u64>,
    /// The range goes on beyond the end of the file.
    is_short: bool,
    parts: SendFile,
    next: Next,
    ahead: VecDeque<Ahead>,
    /// Loads that nobody carries out yet.
    loads: Vec<Load>,
    /// What the stream is about to take.
    going: Option<Going<Part>>,
    /// Blocks that it has taken and not given back.
    out: VecDeque<Sending<Part>>,
    sent: u64,
    is_told: bool,
    failed: Option<io::Error>,
}

impl FileSend {
    /// Of what the range of the file has now, or when it is first polled. `regular` are files that
    /// are known to be regular ones.
    ///
    /// # Errors
    /// `INVAL` for a range that no file can have, or if there is no regular file; those of
    /// fstat(2).
    pub(crate) fn new(
        stream: TcpStream,
        parts: SendFile,
        regular: &mut Known,
    ) -> Result<Self, (io::Error, SendFile)> {
        let Range { start, end } = parts.range;
        if start > end || i64::try_from(end).is_err() {
            return Err((Errno::INVAL.into(), parts));
        }
        let is_little = (1..=WHOLE_MAX as u64).contains(&parts.bytes());
        let looked = match is_little {
            true => regular.check(&parts.file, check_regular).map(|()| None).map_err(Into::into),
            false => View::new(&parts.file).map(Some),
        };
        let file = match looked {
            Ok(file) => file,
            Err(error) => return Err((error, parts)),
        };
        let mut send = Self {
            stream,
            is_short: false,
            file: None,
            left: 0..0,
            parts,
            next: Next::Header,
            ahead: VecDeque::new(),
            loads: Vec::new(),
            going: None,
            out: VecDeque::new(),
            sent: 0,
            is_told: false,
            failed: None,
        };
        if let Some(file) = file {
            send.look_at(file);
        }
        Ok(send)
    }

    /// What is to be sent of a file as it is now.
    fn look_at(&mut self, file: View) {
        let (Range { start, end }, size) = (self.parts.range.clone(), file.version.size);
        self.is_short = start < end && end > size;
        self.left = start.min(size)..end.min(size);
        self.file = Some(file);
    }

    /// Goes on. `None` if there is nothing to tell: then the waker is woken when it is worth trying
    /// again.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Option<FileStep> {
        if self.file.is_none() && self.next == Next::Header && !self.send_whole() {
            match View::new(&self.parts.file) {
                Ok(file) => self.look_at(file),
                Err(error) => self.fail(error),
            }
        }
        loop {
            self.collect(cx);
            if self.going.is_none() {
                let part = self.next_part(cx.waker())?;
                self.going = part.map(|part| match part {
                    Part::Block(_) => Going::new(&self.stream, part, self.stream.term()),
                    Part::Header(_) | Part::Trailer(_) => Going::copying(part),
                });
            }
            let Some(going) = &mut self.going else { break };
            match self.stream.poll_send_zc(cx, going) {
                Poll::Pending => return None,
                Poll::Ready(sent) => self.accepted(sent),
            }
        }
        if !std::mem::replace(&mut self.is_told, true) {
            return Some(FileStep::Sent(self.sent));
        }
        Some(FileStep::Over)
    }

    /// Ends it for this reason. What was accepted is sent all the same.
    pub(crate) fn stop(&mut self, why: Errno) {
        if !self.is_told {
            if let Some(mut going) = self.going.take() {
                self.accepted(going.stop(why.into()));
            }
            self.fail(why.into());
            self.is_told = true;
        }
    }

    /// What is to be read. One that is dropped is given up.
    pub(crate) fn take_loads(&mut self) -> Vec<Load> {
        std::mem::take(&mut self.loads)
    }

    /// What became of it when it is over, or of one that was not begun.
    pub(crate) fn finish(self) -> FileSent {
        (self.sent, self.failed.map_or(Ok(()), Err), self.parts)
    }

    /// Sends all by one copy. False if that cannot be now: then nothing was done.
    fn send_whole(&mut self) -> bool {
        let Self { parts, stream, .. } = self;
        let SendFile { header, file, range, trailer } = parts;
        let count = (range.end - range.start) as usize;
        let sent = stream.send_frame(header.len() + count + trailer.len(), |into| {
            let (first, rest) = into.split_at_mut(header.len());
            let (middle, last) = rest.split_at_mut(count);
            if count > 0 && read_now(file, middle, range.start) < count {
                return None;
            }
            first.copy_from_slice(header);
            last.copy_from_slice(trailer);
            Some(())
        });
        match sent {
            None => return false,
            Some(Ok(())) => {
                let (host, _) = stream.parts();
                host.ledger().count(Site::File, count);
                host.ledger().count(Site::SocketSend, header.len() + trailer.len());
                self.sent = parts.bytes();
                self.next = Next::End;
            }
            Some(Err(error)) => self.fail(error),
        }
        true
    }

    /// Forgets blocks that are not lent any more.
    fn collect(&mut self, cx: &mut Context<'_>) {
        while let Some(first) = self.out.front_mut() {
            if Pin::new(first).poll(cx).is_pending() {
                return;
            }
            self.out.pop_front();
        }
    }

    fn take_back(&mut self, part: Part) {
        match part {
            Part::Header(header) => self.parts.header = header,
            Part::Trailer(trailer) => self.parts.trailer = trailer,
            Part::Block(_) => {}
        }
    }

    /// Asks for blocks.
    fn read_ahead(&mut self, waker: &Waker) {
        let (host, _) = self.stream.parts();
        let Some(file) = &self.file else { return };
        while !self.left.is_empty()
            && self.ahead.len() < AHEAD_MAX
            && self.ahead.len() + self.out.len() < BLOCKS_MAX
        {
            let (offset, most) = (self.left.start, self.left.end - self.left.start);
            let (block, load) = match FileCache::want(host, file, offset, waker) {
                Wanted::Known(block) => (block, None),
                Wanted::Missing(block, load) => (block, Some(load)),
                Wanted::NoRoom if self.ahead.is_empty() && self.out.is_empty() => {
                    let (block, load) = FileCache::private(host, file, offset, most);
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

    /// The next part; `Some(None)` at the end. `None` if it is not there yet.
    fn next_part(&mut self, waker: &Waker) -> Option<Option<Part>> {
        loop {
            self.read_ahead(waker);
            match self.next {
                Next::Header => {
                    self.next = Next::Range;
                    if !self.parts.header.is_empty() {
                        return Some(Some(Part::Header(std::mem::take(&mut self.parts.header))));
                    }
                }
                Next::Range => {
                    if let Some(part) = self.next_block(waker)? {
                        return Some(Some(part));
                    }
                }
                Next::Trailer => {
                    self.next = Next::End;
                    if !self.parts.trailer.is_empty() {
                        return Some(Some(Part::Trailer(std::mem::take(&mut self.parts.trailer))));
                    }
                }
                Next::End => return Some(None),
            }
        }
    }

    /// The next block; `Some(None)` if something else comes next. `None` if it is not there yet.
    fn next_block(&mut self, waker: &Waker) -> Option<Option<Part>> {
        let Some(first) = self.ahead.front() else {
            if !self.left.is_empty() {
                return None;
            }
            match self.is_short {
                true => self.fail(io::ErrorKind::UnexpectedEof.into()),
                false => self.next = Next::Trailer,
            }
            return Some(None);
        };
        let failed = first.block.poll(waker)?.err();
        let Ahead { block, from, len } = self.ahead.pop_front()?;
        match failed {
            None => {
                let range = BlockRange::new(block, from, len);
                if range.len() < len {
                    self.fail(io::ErrorKind::UnexpectedEof.into());
                }
                return Some((range.len() > 0).then_some(Part::Block(range)));
            }
            Some(Failure::Error(errno)) => self.fail(errno.into()),
            Some(Failure::GivenUp) => {
                // From there on once more.
                self.left.start = block.at + from as u64;
                self.ahead.clear();
            }
        }
        Some(None)
    }

    /// The stream has taken a part, or will not.
    fn accepted(&mut self, sent: Result<Sending<Part>, SendError<Part>>) {
        self.going = None;
        match sent {
            Ok(sending) => {
                self.sent += sending.accepted() as u64;
                match sending.try_returned() {
                    Ok(returned) => self.take_back(returned.buffer),
                    Err(sending) => self.out.push_back(sending),
                }
            }
            Err(failed) => {
                self.take_back(failed.buffer);
                self.fail(failed.error);
            }
        }
    }

    /// No more is sent.
    fn fail(&mut self, why: io::Error) {
        self.next = Next::End;
        self.left = 0..0;
        self.ahead.clear();
        self.failed.get_or_insert(why);
    }
}

/// Whether there is a regular file.
fn check_regular(file: &File) -> Result<(), Errno> {
    let status = rustix::fs::fstat(file)?;
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

impl Memory for Part {
    fn len(&self) -> usize {
        match self {
            Self::Header(bytes) | Self::Trailer(bytes) => Memory::len(bytes),
            Self::Block(range) => Memory::len(range),
        }
    }

    fn rest(&self, at: usize, mark: &mut Mark) -> &[u8] {
        match self {
            Self::Header(bytes) | Self::Trailer(bytes) => Memory::rest(bytes, at, mark),
            Self::Block(range) => range.rest(at, mark),
        }
    }
}
