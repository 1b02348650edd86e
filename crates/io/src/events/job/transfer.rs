//! Moves bytes between files and sockets, and between two sockets.
//!
//! # Files to sockets
//!
//! A small file is sent in one call, together with its header and trailer. Of a larger one,
//! sendfile(2) sends what is in the page cache, and the rest is read into memory first, so that a
//! call of the queue's thread never waits for a disk. The exception is memory that the kernel
//! evicts between the check and the call, which costs reads of at most [`SENDFILE_BYTES`].

use super::super::SendFile;
use super::sink::Sink;
use super::{BLOCK_BYTES, COPIED_FILE_MAX, Socket, Step};
use crate::reactor::Interest;
use crate::sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, ReadWriteFlags, ioctl_fionbio, preadv2};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::IoSliceMut;
use std::ops::Range;

/// Most bytes of a file that one call sends.
const SENDFILE_BYTES: u64 = 1 << 20;

/// Bytes that pass through memory.
#[derive(Debug, Default)]
pub(super) struct Block {
    buffer: Vec<u8>,
    /// The bytes that are still to be sent or written.
    pub(super) left: Range<usize>,
}

/// A file that is being sent to a socket.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) socket: Socket,
    pub(super) parts: SendFile,
    pub(super) block: Block,
    /// The kind of the last step.
    pub(super) way: Way,
    /// The kernel cannot send this file, or not to this socket: each block is read.
    pub(super) always_reads: bool,
    /// The page cache held the file up to here at the last check.
    pub(super) seen: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// No step yet.
    Begin,
    Bytes,
    File,
    Read,
}

/// Bytes that move between two sockets: through a pipe, or through memory if the kernel does not
/// support that.
#[derive(Debug)]
pub(super) struct Splicing {
    from: Socket,
    to: Sink,
    pub(super) count: u64,
    pub(super) pipe: Option<(OwnedFd, OwnedFd)>,
    pub(super) in_pipe: usize,
    block: Block,
}

impl SendFile {
    /// Total bytes. The sum is clamped to what the type can hold.
    pub fn bytes(&self) -> u64 {
        let around = (self.header.len() + self.trailer.len()) as u64;
        around.saturating_add(self.range.end.saturating_sub(self.range.start))
    }
}

impl Block {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.left.clone()]
    }

    /// Returns a buffer of `count` bytes, or of fewer.
    pub(super) fn room(&mut self, count: u64) -> &mut [u8] {
        let count = usize::try_from(count).map_or(BLOCK_BYTES, |count| count.min(BLOCK_BYTES));
        self.buffer.resize(self.buffer.len().max(count), 0);
        &mut self.buffer[..count]
    }

    /// Copies all parts together, if they are small and the page cache holds the file.
    fn fill(&mut self, parts: &SendFile) {
        let all = parts.bytes();
        if all > COPIED_FILE_MAX as u64 {
            return;
        }
        let mut buffer = Vec::with_capacity(all as usize);
        buffer.extend_from_slice(&parts.header);
        let file = buffer.len()..all as usize - parts.trailer.len();
        buffer.resize(file.end, 0);
        if read_now(&parts.file, &mut buffer[file.clone()], parts.range.start) == file.len() {
            buffer.extend_from_slice(&parts.trailer);
            *self = Self { left: 0..buffer.len(), buffer };
        }
    }
}

/// Reads the bytes of a file that are in the page cache, without waiting for a disk; returns how
/// many.
pub fn read_now(file: &File, into: &mut [u8], at: u64) -> usize {
    // An error shows again in the read that follows.
    preadv2(file, &mut [IoSliceMut::new(into)], at, ReadWriteFlags::NOWAIT).unwrap_or(0)
}

impl Sending {
    /// Returns the next step after `done` bytes were sent.
    pub(super) fn next(&mut self, done: u64) -> Step<'_> {
        let Self { socket, parts, block, way, always_reads, seen } = self;
        if *way == Way::Begin {
            block.fill(parts);
        }
        let (header, all) = (parts.header.len() as u64, parts.bytes());
        let trailer = all - parts.trailer.len() as u64;
        let bytes = if !block.left.is_empty() {
            block.bytes()
        } else if done < header {
            &parts.header[done as usize..]
        } else if done < trailer {
            let (at, left) = (parts.range.start + (done - header), trailer - done);
            // The check also covers bytes for which the socket had no room then.
            let most = if at < *seen { *seen - at } else { SENDFILE_BYTES };
            let count = left.min(most) as usize;
            let file = &*parts.file;
            // Makes the socket non-blocking before the first such step. A socket without such a
            // step stays as it is: on a blocking one, io_uring requests wait without a poll.
            if !*always_reads
                && (at < *seen || sys::is_in_memory(file.as_fd(), at, count))
                && (*way == Way::File || ioctl_fionbio(&*socket, true).is_ok())
            {
                (*way, *seen) = (Way::File, at + count as u64);
                return Step::SendFile { socket, file, at, count };
            }
            // The kernel reports what is in memory only to root and to the file's owner, so try a
            // read.
            let read = read_now(file, block.room(left), at);
            if read == 0 {
                *way = Way::Read;
                return Step::Read { file, into: block.room(left), at };
            }
            block.left = 0..read;
            block.bytes()
        } else {
            &parts.trailer[(done - trailer) as usize..]
        };
        *way = Way::Bytes;
        Step::Send { socket, bytes, more: done + (bytes.len() as u64) < all }
    }

    /// Takes the result of the last step; returns the bytes that were sent.
    pub(super) fn done(&mut self, count: usize) -> u64 {
        match self.way {
            Way::Read => {
                self.block.left = 0..count;
                0
            }
            Way::Bytes if !self.block.left.is_empty() => {
                self.block.left.start += count;
                count as u64
            }
            _ => count as u64,
        }
    }
}

impl Splicing {
    pub(super) fn new(from: &Socket, to: &Socket, count: u64) -> Result<Self, Errno> {
        ioctl_fionbio(from, true)?;
        ioctl_fionbio(to, true)?;
        let pipe = Some(pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?);
        let (from, to) = (from.clone(), Sink::new(to));
        Ok(Self { from, to, count, pipe, in_pipe: 0, block: Block::default() })
    }

    pub(super) fn holds_none(&self) -> bool {
        self.in_pipe == 0 && self.block.left.is_empty()
    }

    /// The condition for which a step waits if it would block.
    pub(super) fn waits_for(&self) -> (&Socket, Interest) {
        match self.holds_none() {
            true => (self.to.either().unwrap_or(&self.from), Interest::READ),
            false => (self.to.socket(), Interest::WRITE),
        }
    }

    pub(super) fn next(&mut self, done: u64) -> Step<'_> {
        let left = self.count - done;
        let Self { from, to, pipe, in_pipe, block, .. } = self;
        match pipe {
            Some((_, into)) if *in_pipe == 0 => {
                let count = left.min(BLOCK_BYTES as u64) as usize;
                Step::Splice { from, to: into, count, sink: Some(to) }
            }
            Some((out, _)) => {
                Step::Splice { from: out, to: to.socket(), count: *in_pipe, sink: None }
            }
            None if block.left.is_empty() => {
                Step::Receive { socket: from, into: block.room(left), all: false }
            }
            None => Step::Send { socket: to.socket(), bytes: block.bytes(), more: false },
        }
    }

    /// Takes the result of the last step; returns the bytes that were delivered.
    pub(super) fn done(&mut self, count: usize) -> u64 {
        let was_sent = !self.holds_none();
        match (&self.pipe, was_sent) {
            (Some(_), true) => self.in_pipe -= count,
            (Some(_), false) => self.in_pipe = count,
            (None, true) => self.block.left.start += count,
            (None, false) => self.block.left = 0..count,
        }
        if was_sent { count as u64 } else { 0 }
    }

    /// Bytes that were taken from the source and not delivered.
    pub(super) fn rest(self) -> Vec<u8> {
        let Some((out, _)) = self.pipe else { return self.block.bytes().to_vec() };
        let mut rest = vec![0; self.in_pipe];
        // The bytes are in our own pipe, so this neither waits nor fails.
        let count = rustix::io::read(out, &mut rest).unwrap_or(0);
        rest.truncate(count);
        rest
    }
}
