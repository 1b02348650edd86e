//! Per-socket settings: blocking mode, timeouts and the term of loans.

use std::io;
use std::time::Duration;
use towpath_packet::sync::{AtomicBool, AtomicU64, Ordering};

/// Encodes the absence of a timeout.
const NONE: u64 = u64::MAX;

/// The blocking mode and timeouts of a socket, as in the standard library, and the term of its
/// loans. Relaxed throughout: a call that runs beside a change uses the old or the new value.
pub(in crate::host) struct Shape {
    nonblocking: AtomicBool,
    read_micros: AtomicU64,
    write_micros: AtomicU64,
    term_micros: AtomicU64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            nonblocking: AtomicBool::new(false),
            read_micros: AtomicU64::new(NONE),
            write_micros: AtomicU64::new(NONE),
            term_micros: AtomicU64::new(NONE),
        }
    }
}

impl Shape {
    pub(in crate::host) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    pub(in crate::host) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.read_micros.store(micros(timeout)?, Ordering::Relaxed);
        Ok(())
    }

    pub(in crate::host) fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.write_micros.store(micros(timeout)?, Ordering::Relaxed);
        Ok(())
    }

    pub(in crate::host) fn set_term(&self, term: Option<Duration>) {
        let micros = |term: Duration| u64::try_from(term.as_micros()).unwrap_or(NONE - 1);
        self.term_micros.store(term.map_or(NONE, micros), Ordering::Relaxed);
    }

    /// Returns the term of loans.
    pub(in crate::host) fn term(&self) -> Option<Duration> {
        duration(&self.term_micros)
    }

    /// Returns the read timeout.
    pub(in crate::host) fn read_timeout(&self) -> Option<Duration> {
        duration(&self.read_micros)
    }

    /// Returns the write timeout.
    pub(in crate::host) fn write_timeout(&self) -> Option<Duration> {
        duration(&self.write_micros)
    }

    /// Returns how long a reading call blocks.
    pub(in crate::host) fn read_wait(&self) -> Option<Duration> {
        if self.nonblocking.load(Ordering::Relaxed) {
            return Some(Duration::ZERO);
        }
        self.read_timeout()
    }

    /// Returns how long a writing call blocks.
    pub(in crate::host) fn write_wait(&self) -> Option<Duration> {
        if self.nonblocking.load(Ordering::Relaxed) {
            return Some(Duration::ZERO);
        }
        self.write_timeout()
    }
}

/// Converts a timeout. As in the standard library, zero is rejected.
fn micros(timeout: Option<Duration>) -> io::Result<u64> {
    match timeout {
        None => Ok(NONE),
        Some(Duration::ZERO) => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "a timeout must be longer than zero"))
        }
        Some(timeout) => Ok(u64::try_from(timeout.as_micros()).unwrap_or(NONE - 1).max(1)),
    }
}

fn duration(micros: &AtomicU64) -> Option<Duration> {
    let micros = micros.load(Ordering::Relaxed);
    (micros != NONE).then(|| Duration::from_micros(micros))
}
