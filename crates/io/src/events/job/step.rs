//! The steps of jobs, as a back end carries them out.

use super::Calls;
use super::ranges::Ranges;
use super::sink::Sink;
use rustix::fd::OwnedFd;
use rustix::fs::Statx;
use std::fs::File;
use std::net::SocketAddr;
use towpath_packet::PinnedPiece;

/// The next step of a job.
#[derive(Debug)]
pub(in super::super) enum Step<'a> {
    /// Nothing: the job is complete.
    Over,
    /// Nothing, until the caller has taken connections.
    Idle,
    Accept {
        listener: &'a OwnedFd,
    },
    /// `Look`, `Read`, `Write`, `WritePieces` and `Sync` may block for as long as a disk takes.
    Look {
        file: &'a File,
        into: &'a mut Statx,
    },
    Read {
        file: &'a File,
        into: &'a mut [u8],
        at: u64,
    },
    Write {
        file: &'a File,
        bytes: &'a [u8],
        at: u64,
    },
    WritePieces {
        file: &'a File,
        /// The first one without `skip` bytes, which were written.
        pieces: &'a [PinnedPiece],
        skip: usize,
        /// The same bytes for the kernel.
        ranges: &'a Ranges,
        at: u64,
    },
    Sync {
        file: &'a File,
        data_only: bool,
    },
    /// `Receive` and `Send` are io_uring requests, or calls.
    Receive {
        socket: &'a OwnedFd,
        into: &'a mut [u8],
        all: bool,
    },
    Send {
        socket: &'a OwnedFd,
        bytes: &'a [u8],
        more: bool,
    },
    /// An io_uring request that lends the rest of a buffer of `all` bytes. The kernel uses the
    /// bytes until it reports that it is done with them.
    Lend {
        socket: &'a OwnedFd,
        bytes: &'a [u8],
        all: u64,
    },
    /// `Connect` and the following steps are calls in both back ends.
    Connect {
        socket: &'a OwnedFd,
        remote: SocketAddr,
    },
    SendFile {
        socket: &'a OwnedFd,
        file: &'a File,
        at: u64,
        count: usize,
    },
    Splice {
        from: &'a OwnedFd,
        to: &'a OwnedFd,
        count: usize,
        /// The destination, while no byte is in the pipe.
        sink: Option<&'a mut Sink>,
    },
    Call {
        calls: &'a mut Calls,
        done: u64,
    },
}

impl Step<'_> {
    /// True if the step may block for as long as a disk takes.
    pub(in super::super) fn is_on_file(&self) -> bool {
        matches!(
            self,
            Self::Look { .. }
                | Self::Read { .. }
                | Self::Write { .. }
                | Self::WritePieces { .. }
                | Self::Sync { .. }
        )
    }
}
