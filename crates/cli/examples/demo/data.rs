//! The bytes to transfer: random, different in every block, the same on each run.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use crate::Result;

/// Bytes written at once.
pub(crate) const BLOCK: usize = 1 << 20;

/// Returns one block after another.
pub(crate) struct Source {
    block: Vec<u8>,
    index: u64,
    left: usize,
}

impl Source {
    /// Makes a source of `bytes` in total.
    pub(crate) fn new(bytes: usize) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let words = std::iter::repeat_with(|| {
            // xorshift64 (Marsaglia 2003).
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        });
        let block = words.take(BLOCK / 8).flat_map(u64::to_le_bytes).collect();
        Self { block, index: 0, left: bytes }
    }

    /// Returns the next bytes; empty at the end.
    pub(crate) fn next(&mut self) -> &[u8] {
        self.block[..8].copy_from_slice(&self.index.to_le_bytes());
        self.index += 1;
        let count = self.left.min(BLOCK);
        self.left -= count;
        &self.block[..count]
    }

    /// Hashes the remaining bytes.
    pub(crate) fn sha256(mut self) -> Result<String> {
        sha256(|to| {
            loop {
                match self.next() {
                    [] => return Ok(()),
                    bytes => to.write_all(bytes)?,
                }
            }
        })
    }
}

/// Returns memory for `bytes` that has been touched, so that its first use causes no page faults.
pub(crate) fn room(bytes: usize) -> Vec<u8> {
    vec![0xff; bytes]
}

/// Returns the SHA-256 of what `feed` writes, computed by coreutils: a demonstration needs no
/// library for it.
pub(crate) fn sha256(feed: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<String> {
    let mut command = Command::new("sha256sum");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("sha256sum: {error}"))?;
    let mut stdin = child.stdin.take().ok_or("no standard input")?;
    feed(&mut stdin)?;
    drop(stdin);
    let output = child.wait_with_output()?;
    let text = String::from_utf8(output.stdout)?;
    match text.split_whitespace().next() {
        Some(hash) if output.status.success() => Ok(hash.into()),
        _ => Err(format!("sha256sum: {}", output.status).into()),
    }
}
