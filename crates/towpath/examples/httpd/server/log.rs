//! The access log: a line for each answer, in the common log format.
//!
//! Lines are gathered and written together. While some are written, others gather; what has no room
//! then is lost and counted.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// Lines that are written together take so much.
const BATCH_BYTES: usize = 64 << 10;
/// Most that waits to be written.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Longest target of a request that is shown.
const LINE_BYTES_MAX: usize = 1024;

/// Lines to be written to a file.
pub(super) struct Log {
    pub(super) file: Arc<File>,
    lines: Vec<u8>,
    /// Those that are being written are back here afterwards.
    spare: Option<Vec<u8>>,
    lost: u64,
}

impl Log {
    /// Appends to what is at `path`.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Self { file: Arc::new(file), lines: Vec::new(), spare: Some(Vec::new()), lost: 0 })
    }

    /// A line; `date` is HTTP's.
    pub(super) fn add(&mut self, peer: Option<IpAddr>, date: &str, answer: (&str, u16, u64)) {
        let (line, status, bytes) = answer;
        if self.lines.len() > WAITING_BYTES_MAX {
            self.lost += 1;
            return;
        }
        let (day, month, year, time) = (&date[5..7], &date[8..11], &date[12..16], &date[17..25]);
        match peer {
            Some(peer) => drop(write!(self.lines, "{peer}")),
            None => self.lines.push(b'-'),
        }
        let _ = write!(self.lines, " - - [{day}/{month}/{year}:{time} +0000] \"");
        // Nothing that a client sends makes another line of it, or moves a terminal's cursor.
        for byte in line.bytes().take(LINE_BYTES_MAX) {
            match byte {
                b'"' | b'\\' | ..=0x1f | 0x7f.. => drop(write!(self.lines, "\\x{byte:02x}")),
                byte => self.lines.push(byte),
            }
        }
        let _ = writeln!(self.lines, "\" {status} {bytes}");
    }

    /// Whether there is so much that it should not wait for more.
    pub(super) fn is_full(&self) -> bool {
        self.lines.len() >= BATCH_BYTES
    }

    /// What is to be written, to be [given back](Self::give_back) then. `None` if there is nothing,
    /// or something is under way.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        if self.lines.is_empty() {
            return None;
        }
        let empty = self.spare.take()?;
        if self.lost > 0 {
            let _ = writeln!(self.lines, "- {} lines were lost", std::mem::take(&mut self.lost));
        }
        Some(std::mem::replace(&mut self.lines, empty))
    }

    pub(super) fn give_back(&mut self, mut written: Vec<u8>) {
        written.clear();
        self.spare = Some(written);
    }

    /// Whether nothing is under way.
    pub(super) fn is_at_rest(&self) -> bool {
        self.spare.is_some()
    }
}
