//! The access log: a line for each answer, in the common log format.
//!
//! Lines are collected and written together. While some are written, others are collected; lines
//! without room are dropped and counted.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// Size from which collected lines are written at once.
const BATCH_BYTES: usize = 64 << 10;
/// Most bytes that wait to be written.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Longest request target that is logged.
const LINE_BYTES_MAX: usize = 1024;

/// Lines to write to a file.
pub(super) struct Log {
    pub(super) file: Arc<File>,
    lines: Vec<u8>,
    /// A spare buffer; `None` while lines are being written.
    spare: Option<Vec<u8>>,
    lost: u64,
}

impl Log {
    /// Opens the log at `path` for appending.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Self { file: Arc::new(file), lines: Vec::new(), spare: Some(Vec::new()), lost: 0 })
    }

    /// Adds a line; `date` is an HTTP date.
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
        // Escapes bytes, so that a client cannot forge a line or move a terminal's cursor.
        for byte in line.bytes().take(LINE_BYTES_MAX) {
            match byte {
                b'"' | b'\\' | ..=0x1f | 0x7f.. => drop(write!(self.lines, "\\x{byte:02x}")),
                byte => self.lines.push(byte),
            }
        }
        let _ = writeln!(self.lines, "\" {status} {bytes}");
    }

    /// Returns true if there are enough lines to write them at once.
    pub(super) fn is_full(&self) -> bool {
        self.lines.len() >= BATCH_BYTES
    }

    /// Takes the lines to write; [give](Self::give_back) the buffer back afterwards. Returns `None`
    /// if there are none, or if a write is in progress.
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

    /// Returns true if no write is in progress.
    pub(super) fn is_at_rest(&self) -> bool {
        self.spare.is_some()
    }
}
