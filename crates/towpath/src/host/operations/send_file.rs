//! Sending a range of a file on a stream, between a header and a trailer.
//!
//! Header and trailer are copied: they are short, and belong to the caller. Blocks of the [file
//! cache](crate::host::files::file_cache) are lent to the stream one after the other, as its
//! [source](crate::host::files::file_source) yields them.
//!
//! A small file with its header and trailer ([`WHOLE_MAX`]) is sent with one copy, if the kernel
//! has the file in memory: it is read into the frame that is sent, which costs less than lending
//! and uses no part of the cache.

use crate::host::files::file_cache::{BlockRange, Load};
use crate::host::files::file_source::FileSource;
use crate::host::lending::lend::sealed::{Mark, Memory};
use crate::host::sockets::stream::Going;
use crate::host::{SendError, Sending, TcpStream};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use towpath_io::events::{Known, SendFile, kind, read_now, status};
use towpath_packet::Site;
use towpath_packet::pool::LARGE_FRAME_BYTES;

/// Most bytes, header and trailer included, that are copied: one frame.
const WHOLE_MAX: usize = LARGE_FRAME_BYTES;

/// A part of the data to send.
enum Part {
    Header(Vec<u8>),
    Block(BlockRange),
    Trailer(Vec<u8>),
}

/// Result of a send: bytes accepted, why not all, and the parts handed back.
pub(crate) type FileSent = (u64, io::Result<()>, SendFile);

/// The part that follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Header,
    Range,
    Trailer,
    /// Nothing: everything was accepted, or the send has failed.
    End,
}

/// What a send reports.
pub(crate) enum FileStep {
    /// The stream has accepted all that it will accept.
    Sent(u64),
    Over,
}

/// A send in progress.
pub(crate) struct FileSend {
    stream: TcpStream,
    /// `None` before a send with one copy was tried, and once nothing more is sent.
    source: Option<FileSource>,
    parts: SendFile,
    next: Next,
    /// The part that the stream is accepting.
    going: Option<Going<Part>>,
    /// Blocks that the stream has accepted and not given back.
    out: VecDeque<Sending<Part>>,
    sent: u64,
    is_reported: bool,
    failed: Option<io::Error>,
}

impl FileSend {
    /// Creates a send. The contents are those that the file has now or when it is first polled.
    /// `regular` contains files known to be regular.
    ///
    /// # Errors
    /// `INVAL` if the range exceeds the largest file offset or is reversed, or if the file is no
    /// regular file; errors of statx(2).
    pub(crate) fn new(
        stream: TcpStream,
        parts: SendFile,
        regular: &mut Known<()>,
    ) -> Result<Self, (io::Error, SendFile)> {
        let Range { start, end } = parts.range;
        if start > end || i64::try_from(end).is_err() {
            return Err((Errno::INVAL.into(), parts));
        }
        let is_little = (1..=WHOLE_MAX as u64).contains(&parts.bytes());
        let looked = match is_little {
            true => regular.check(&parts.file, check_regular).map(|()| None).map_err(Into::into),
            false => source(&stream, &parts).map(Some),
        };
        let source = match looked {
            Ok(source) => source,
            Err(error) => return Err((error, parts)),
        };
        Ok(Self {
            stream,
            source,
            parts,
            next: Next::Header,
            going: None,
            out: VecDeque::new(),
            sent: 0,
            is_reported: false,
            failed: None,
        })
    }

    /// Continues and returns what to report. After `None`, the waker is woken when it should be
    /// polled again.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Option<FileStep> {
        if self.source.is_none() && self.next == Next::Header && !self.send_whole() {
            match source(&self.stream, &self.parts) {
                Ok(source) => self.source = Some(source),
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
        if !std::mem::replace(&mut self.is_reported, true) {
            return Some(FileStep::Sent(self.sent));
        }
        Some(FileStep::Over)
    }

    /// Ends it for this reason. Accepted bytes are still sent.
    pub(crate) fn stop(&mut self, why: Errno) {
        if !self.is_reported {
            if let Some(mut going) = self.going.take() {
                self.accepted(going.stop(why.into()));
            }
            self.fail(why.into());
            self.is_reported = true;
        }
    }

    /// Takes the loads to carry out. Dropping a load gives it up.
    pub(crate) fn take_loads(&mut self) -> Vec<Load> {
        self.source.as_mut().map(FileSource::take_loads).unwrap_or_default()
    }

    /// Returns the result of a send that is complete or was not started.
    pub(crate) fn finish(self) -> FileSent {
        (self.sent, self.failed.map_or(Ok(()), Err), self.parts)
    }

    /// Sends everything with one copy. Returns false if that is not possible now; then nothing was
    /// done.
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

    /// Drops blocks that are no longer lent.
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

    /// Returns the next part, or `Some(None)` at the end. Returns `None` if it is not available
    /// yet.
    fn next_part(&mut self, waker: &Waker) -> Option<Option<Part>> {
        loop {
            if let Some(source) = &mut self.source {
                source.read_ahead(self.out.len(), waker);
            }
            match self.next {
                Next::Header => {
                    self.next = Next::Range;
                    if !self.parts.header.is_empty() {
                        return Some(Some(Part::Header(std::mem::take(&mut self.parts.header))));
                    }
                }
                Next::Range => match self.next_block(waker)? {
                    Some(Ok(range)) => return Some(Some(Part::Block(range))),
                    Some(Err(error)) => self.fail(error),
                    None => self.next = Next::Trailer,
                },
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

    /// Returns the next block, or `Some(None)` after the last. Returns `None` if it is not
    /// available yet.
    fn next_block(&mut self, waker: &Waker) -> Option<Option<io::Result<BlockRange>>> {
        match &mut self.source {
            Some(source) => source.next(self.out.len(), waker),
            None => Some(None),
        }
    }

    /// Handles the stream's answer to a part.
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

    /// Stops sending.
    fn fail(&mut self, why: io::Error) {
        self.next = Next::End;
        self.source = None;
        self.failed.get_or_insert(why);
    }
}

/// Creates the source of the file's blocks.
fn source(stream: &TcpStream, parts: &SendFile) -> io::Result<FileSource> {
    let (host, _) = stream.parts();
    FileSource::new(&host.owner.files, &parts.file, parts.range.clone())
}

/// Checks that a file is a regular file.
fn check_regular(file: &File) -> Result<(), Errno> {
    match kind(&status(file)?) {
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
