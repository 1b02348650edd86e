//! Bytes on their way between files and sockets, and between two sockets.
//!
//! # Files to sockets
//!
//! What is small goes out in one send, along with what is around it. Of the rest, what the kernel
//! has in memory is sent where it is, by sendfile(2), and what it has not is read first: a call of
//! the queue's thread never waits for a disk. Memory that the kernel drops between the look and the
//! call is an exception, and costs reads of at most [`SENDFILE_BYTES`].

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

/// Bytes on their way through memory.
#[derive(Debug, Default)]
pub(super) struct Block {
    buffer: Vec<u8>,
    /// Which of them are still to be sent or written.
    pub(super) left: Range<usize>,
}

/// A file on its way into a socket.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) socket: Socket,
    pub(super) parts: SendFile,
    pub(super) block: Block,
    /// What the last step was.
    pub(super) way: Way,
    /// The kernel does not send this file, or to this socket: each block is read.
    pub(super) always_reads: bool,
    /// Up to here the kernel had the file in memory when it was looked at.
    pub(super) seen: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// None yet.
    Begin,
    Bytes,
    File,
    Read,
}

/// Bytes on their way between two sockets: in a pipe, or in memory if the kernel does not move
/// them.
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
    /// Bytes of it all. A range of a file and two buffers are fewer than the type can count.
    pub fn bytes(&self) -> u64 {
        let around = (self.header.len() + self.trailer.len()) as u64;
        around.saturating_add(self.range.end.saturating_sub(self.range.start))
    }
}

impl Block {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.left.clone()]
    }

    /// Room for so many bytes, or for some of them.
    pub(super) fn room(&mut self, count: u64) -> &mut [u8] {
        let count = usize::try_from(count).map_or(BLOCK_BYTES, |count| count.min(BLOCK_BYTES));
        self.buffer.resize(self.buffer.len().max(count), 0);
        &mut self.buffer[..count]
    }

    /// All that is to be sent, if it is little and the kernel has the file in memory.
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

/// Reads what the kernel has in memory of a file, without waiting for a disk: this many bytes.
pub fn read_now(file: &File, into: &mut [u8], at: u64) -> usize {
    // What is wrong with the file is told by the read that follows.
    preadv2(file, &mut [IoSliceMut::new(into)], at, ReadWriteFlags::NOWAIT).unwrap_or(0)
}

impl Sending {
    /// Where `done` bytes were sent.
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
            // What a socket had no room for was seen with what it took.
            let most = if at < *seen { *seen - at } else { SENDFILE_BYTES };
            let count = left.min(most) as usize;
            let file = &*parts.file;
            // After such a step the socket is as it must be. It is left alone where none is taken:
            // on one that blocks, requests to io_uring wait without a poll.
            if !*always_reads
                && (at < *seen || sys::is_in_memory(file.as_fd(), at, count))
                && (*way == Way::File || ioctl_fionbio(&*socket, true).is_ok())
            {
                (*way, *seen) = (Way::File, at + count as u64);
                return Step::SendFile { socket, file, at, count };
            }
            // As root only, and the owner, are told what is in memory.
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

    /// Bytes of the last step that were sent.
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

    /// What a step waits for that cannot be done now.
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

    /// Bytes of the last step that have arrived.
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

    /// What was taken and has not arrived.
    pub(super) fn rest(self) -> Vec<u8> {
        let Some((out, _)) = self.pipe else { return self.block.bytes().to_vec() };
        let mut rest = vec![0; self.in_pipe];
        // It is there, and the pipe is ours: this neither waits nor fails.
        let count = rustix::io::read(out, &mut rest).unwrap_or(0);
        rest.truncate(count);
        rest
    }
}
