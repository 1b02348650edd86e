//! Bytes that show where they belong: each word is a function of its place, so that loss,
//! repetition and reordering all show.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex};

const BLOCK: usize = 64 << 10;

/// A stream of `len` bytes; another seed gives another stream.
pub(crate) struct Pattern {
    at: u64,
    len: u64,
    seed: u64,
}

impl Pattern {
    pub(crate) fn new(len: u64) -> Self {
        Self::seeded(len, 0)
    }

    pub(crate) fn seeded(len: u64, seed: u64) -> Self {
        Self { at: 0, len, seed }
    }

    /// Writes the whole stream.
    pub(crate) fn write_to(mut self, mut sink: impl Write) -> io::Result<()> {
        io::copy(&mut self, &mut sink).map(|_| ())
    }

    pub(crate) fn bytes(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes).expect("cannot fail");
        bytes
    }
}

fn word(place: u64, seed: u64) -> [u8; 8] {
    let mixed = (place ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).to_le_bytes()
}

impl Read for Pattern {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min((self.len - self.at) as usize);
        let mut done = 0;
        while done < count {
            let place = self.at + done as u64;
            let skip = (place % 8) as usize;
            let word = word(place / 8, self.seed);
            let step = (8 - skip).min(count - done);
            buffer[done..done + step].copy_from_slice(&word[skip..skip + step]);
            done += step;
        }
        self.at += count as u64;
        Ok(count)
    }
}

/// Compares what arrives with a pattern.
pub(crate) struct Checker {
    expected: Pattern,
    buffer: Vec<u8>,
}

impl Checker {
    pub(crate) fn new(expected: Pattern) -> Self {
        Self { expected, buffer: vec![0; BLOCK] }
    }

    /// Checks the next bytes; returns where they differ.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        for part in bytes.chunks(BLOCK) {
            let at = self.expected.at;
            let expected = &mut self.buffer[..part.len()];
            let count = self.expected.read(expected).expect("cannot fail");
            if count < part.len() {
                return Err(format!("more than {} bytes", self.expected.len));
            }
            if let Some(offset) = part.iter().zip(&*expected).position(|(a, b)| a != b) {
                return Err(format!("byte {} is wrong", at + offset as u64));
            }
        }
        Ok(())
    }

    /// Reads to the end and checks that everything has arrived.
    pub(crate) fn read_all(mut self, mut source: impl Read) -> Result<u64, String> {
        let mut buffer = vec![0; BLOCK];
        loop {
            match source.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => self.take(&buffer[..count])?,
                Err(error) => return Err(format!("{error} after {} bytes", self.expected.at)),
            }
        }
        let Pattern { at, len, .. } = self.expected;
        if at == len { Ok(len) } else { Err(format!("{at} of {len} bytes")) }
    }
}

/// Returns the SHA-256 of what `source` returns, by sha256sum.
pub(crate) fn digest(mut source: impl Read) -> io::Result<String> {
    let mut child =
        Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut sink = child.stdin.take().expect("piped");
    let copied = io::copy(&mut source, &mut sink);
    drop(sink);
    let output = child.wait_with_output()?;
    copied?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split(' ').next().unwrap_or_default().into())
}

/// Returns the SHA-256 of a pattern.
pub(crate) fn digest_of(len: u64) -> String {
    static KNOWN: LazyLock<Mutex<HashMap<u64, String>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    known.entry(len).or_insert_with(|| digest(Pattern::new(len)).expect("sha256sum")).clone()
}
