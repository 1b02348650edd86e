//! `sendfile`: bytes of a file to a socket.
//!
//! A stream is lent blocks of the instance's file cache, which are read once for all sends; the
//! calling thread reads those that are missing. Everything else is read into a buffer and copied:
//! for datagram sockets, short sends, files that have just changed or are no regular ones, and
//! blocks that someone else is reading, for which this thread might have to wait without an end.

use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, SeekFrom};
use std::fs::File;
use std::sync::Arc;
use std::task::Waker;
use towpath::events::{BlockRange, FileSource, Load};
use towpath::layers::io::events::{COPIED_FILE_MAX, kind, status};
use towpath::layers::net::socket::{SendFlags, SocketId};
use towpath::layers::packet::Lender;

/// Bytes copied at a time.
const CHUNK: usize = 64 << 10;
/// Bytes whose blocks are requested at a time: four blocks.
const STRETCH: u64 = 1 << 20;

/// What was sent of the blocks of a file.
#[derive(Clone, Copy, Default)]
struct Sent {
    bytes: usize,
    /// The socket takes no more now.
    is_full: bool,
}

/// A block that a stream is lent.
struct Lent(BlockRange);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl Lender for Lent {
    /// No action: the last reference releases the block.
    fn returned(&self, _: u64, _: bool) {}
}

impl Instance {
    /// Sends up to `count` bytes of a file from `offset` on, or from the file's own position, which
    /// is advanced. Returns the number of bytes.
    pub fn send_file(
        &self,
        to: i32,
        file: BorrowedFd<'_>,
        offset: Option<u64>,
        count: usize,
    ) -> Outcome<usize> {
        let is_stream = !self.lock().files.socket(to)?.datagram;
        let own = match offset {
            Some(_) => 0,
            None => rustix::fs::seek(file, SeekFrom::Current(0))?,
        };
        let start = offset.unwrap_or(own);
        let mut sent = Sent::default();
        if is_stream && count > COPIED_FILE_MAX {
            sent = self.send_blocks(to, file, start, count)?;
        }
        if sent.bytes < count && !sent.is_full {
            match self.send_copies(to, file, start + sent.bytes as u64, count - sent.bytes) {
                Ok(bytes) => sent.bytes += bytes,
                Err(_) if sent.bytes > 0 => {}
                Err(error) => return Err(error),
            }
        }
        if offset.is_none() {
            rustix::fs::seek(file, SeekFrom::Start(start + sent.bytes as u64))?;
        }
        Ok(sent.bytes)
    }

    /// Lends blocks of a file to a stream, up to the first that is not available.
    fn send_blocks(
        &self,
        to: i32,
        file: BorrowedFd<'_>,
        start: u64,
        count: usize,
    ) -> Outcome<Sent> {
        let mut sent = Sent::default();
        let status = status(file)?;
        if kind(&status) != FileType::RegularFile {
            return Ok(sent);
        }
        let timeout = self.check_send(to, 0)?;
        let end = status.stx_size.min(start.saturating_add(count as u64));
        let file: Arc<File> = Arc::new(rustix::io::fcntl_dupfd_cloexec(file, 0)?.into());
        loop {
            let at = start + sent.bytes as u64;
            if at >= end {
                return Ok(sent);
            }
            let stretch = at..end.min(at + STRETCH);
            let mut source = FileSource::new(&self.file_cache, &file, stretch.clone())?;
            if !source.is_shared() {
                return Ok(sent);
            }
            while let Some(block) = next(&mut source) {
                let len = block.as_ref().len();
                let block = Arc::new(Lent(block));
                let taken = self.send_parts(to, len, 0, (timeout, 0), |state, done| {
                    let id = state.id(to)?;
                    state.send_block(id, &block, done)
                });
                match taken {
                    Err(error) if sent.bytes == 0 => return Err(error),
                    taken => sent.bytes += taken.unwrap_or(0),
                }
                if taken != Ok(len) {
                    return Ok(Sent { is_full: true, ..sent });
                }
            }
            if stretch.end > start + sent.bytes as u64 {
                return Ok(sent);
            }
        }
    }

    /// Sends copies of parts of a file.
    fn send_copies(
        &self,
        to: i32,
        file: BorrowedFd<'_>,
        start: u64,
        count: usize,
    ) -> Outcome<usize> {
        let mut buffer = vec![0; CHUNK.min(count)];
        let mut sent = 0;
        while sent < count {
            let wanted = buffer.len().min(count - sent);
            let read = match rustix::io::pread(file, &mut buffer[..wanted], start + sent as u64) {
                Ok(0) => break,
                Ok(read) => read,
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error.into()),
            };
            let more = if sent + read < count { libc::MSG_MORE } else { 0 };
            match self.send(to, &[&buffer[..read]], more) {
                Ok(taken) => {
                    sent += taken;
                    if taken < read {
                        break;
                    }
                }
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}

/// The next block, which this thread reads if it has to. `None` at the end of the range, after an
/// error, and if someone else is reading the block.
fn next(source: &mut FileSource) -> Option<BlockRange> {
    loop {
        // Without a block lent by this source, it never waits for memory.
        if let Some(next) = source.next(0, Waker::noop()) {
            // A copy of the rest finds the error again.
            return next?.ok();
        }
        let loads = source.take_loads();
        if loads.is_empty() {
            return None;
        }
        loads.into_iter().for_each(Load::carry_out);
    }
}

impl State {
    /// Lends the bytes of a block from `from` on to a stream, as many as there is room for. Returns
    /// their number. Copies them if no descriptor of a loan is free.
    pub(crate) fn send_block<B>(
        &mut self,
        id: SocketId,
        block: &Arc<B>,
        from: usize,
    ) -> Outcome<usize>
    where
        B: AsRef<[u8]> + Lender + 'static,
    {
        let room = self.with(|sockets, cx| sockets.send_room(id, cx.now))?;
        if room == 0 {
            return Err(Errno::AGAIN);
        }
        let rest = &(**block).as_ref()[from..];
        let len = rest.len().min(room).min(u32::MAX as usize);
        let sent = self.with_loans(|sockets, loans, cx| {
            let piece = loans.lend_shared(block, (from, len as u32), block.clone(), 0)?;
            Some(sockets.send_piece(id, piece, cx).map(|()| len))
        });
        match sent {
            Some(sent) => Ok(sent?),
            None => self.send_bytes(id, rest),
        }
    }

    /// Sends copies of the beginning of `bytes`. Returns how many.
    pub(crate) fn send_bytes(&mut self, id: SocketId, bytes: &[u8]) -> Outcome<usize> {
        Ok(self.with(|sockets, cx| sockets.send(id, &[bytes], SendFlags::default(), cx))?)
    }
}
