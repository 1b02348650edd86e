//! Buffers that are recycled: memory that was used before is cheaper than new memory from the
//! system.

use crate::host::lending::lend::sealed;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that a host keeps for reuse: as many as one socket may lend by default.
const KEPT_MAX: usize = 64 << 20;
/// Smallest buffer: a page.
const BUFFER_MIN: usize = 4096;

/// Unused buffers, by the logarithm of their size.
#[derive(Default)]
pub(in crate::host) struct Buffers {
    kept: Mutex<Kept>,
}

struct Kept {
    by_size: [Vec<Box<[u8]>>; usize::BITS as usize],
    bytes: usize,
}

impl Default for Kept {
    fn default() -> Self {
        Self { by_size: [const { Vec::new() }; usize::BITS as usize], bytes: 0 }
    }
}

impl Buffers {
    /// Returns a buffer of `len` bytes.
    pub(in crate::host) fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let size = len.max(BUFFER_MIN).next_power_of_two();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.by_size[size.trailing_zeros() as usize].pop();
        kept.bytes -= known.as_ref().map_or(0, |known| known.len());
        drop(kept);
        let bytes = known.unwrap_or_else(|| vec![0; size].into_boxed_slice());
        Buffer { bytes, len, home: self.clone() }
    }

    fn give_back(&self, bytes: Box<[u8]>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.bytes + bytes.len() <= KEPT_MAX {
            kept.bytes += bytes.len();
            kept.by_size[bytes.len().trailing_zeros() as usize].push(bytes);
        }
    }
}

/// A recycled buffer of a host ([`crate::host::Host::buffer`]). Its memory is reused after it is
/// dropped. It dereferences to its bytes, whose initial contents are unspecified.
pub struct Buffer {
    /// Its length is a power of two.
    bytes: Box<[u8]>,
    len: usize,
    home: Arc<Buffers>,
}

impl Buffer {
    /// Shortens the buffer to its first `len` bytes; no effect if it is shorter already.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl sealed::Memory for Buffer {
    fn len(&self) -> usize {
        self.len
    }

    fn rest(&self, at: usize, _: &mut sealed::Mark) -> &[u8] {
        self.get(at..).unwrap_or_default()
    }
}

impl sealed::Room for Buffer {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.bytes));
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_up_to_a_bound() {
        let buffers = Arc::new(Buffers::default());
        let mut buffer = buffers.take(5000);
        buffer[4999] = 7;
        buffer.truncate(6000);
        let address = buffer.as_ptr();
        assert_eq!(buffer.len(), 5000);
        drop(buffer);
        let again = buffers.take(8000);
        assert_eq!((again.as_ptr(), again[4999]), (address, 7));
        assert_ne!(buffers.take(8000).as_ptr(), address);
        let large: Vec<Buffer> = (0..3).map(|_| buffers.take(KEPT_MAX / 2)).collect();
        drop(large);
        let kept = buffers.kept.lock().expect("no panic").bytes;
        assert!(kept <= KEPT_MAX && kept > KEPT_MAX / 2);
        assert_eq!(buffers.take(0).len(), 0);
    }
}
