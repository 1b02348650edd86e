//! Remembers permanent properties of files, such as that they have offsets. This costs one system
//! call per file instead of one per operation.
//!
//! The files of the last operations are recognised by their address in memory. A weak reference
//! keeps the address from being used again; the file itself may be closed.

use rustix::io::Errno;
use std::fs::File;
use std::sync::{Arc, Weak};

/// Properties found of files.
#[derive(Debug, Default)]
pub struct Known<T>([(Weak<File>, T); FILES_MAX]);

/// Most files remembered: as many as a server typically sends repeatedly.
const FILES_MAX: usize = 32;
/// Distance of two addresses: the size of a counted file.
const PLACE_BYTES: usize = size_of::<[usize; 4]>();

impl<T: Copy> Known<T> {
    /// Returns the result of `look` for a file, from memory if possible.
    ///
    /// # Errors
    /// Those of `look`. They are not remembered, so the next call looks again.
    pub fn check(
        &mut self,
        file: &Arc<File>,
        look: impl FnOnce(&File) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let place = Arc::as_ptr(file);
        let (known, found) = &mut self.0[place.addr() / PLACE_BYTES % FILES_MAX];
        if !std::ptr::eq(known.as_ptr(), place) {
            *found = look(file)?;
            *known = Arc::downgrade(file);
        }
        Ok(*found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the properties of a file are never returned for another file at the same address.
    #[test]
    fn pipes_have_none_wherever_they_are() {
        let mut known = Known::default();
        let has_offsets = |file: &File| rustix::fs::tell(file).map(drop);
        for _ in 0..4 * FILES_MAX {
            let file = Arc::new(File::open("/proc/self/exe").unwrap());
            assert_eq!(known.check(&file, has_offsets), Ok(()));
            assert_eq!(known.check(&file, has_offsets), Ok(()));
            drop(file);
            let (pipe, _other) = rustix::pipe::pipe().unwrap();
            let pipe = Arc::new(File::from(pipe));
            assert_eq!(known.check(&pipe, has_offsets), Err(Errno::SPIPE));
            assert_eq!(known.check(&pipe, has_offsets), Err(Errno::SPIPE));
        }
    }
}
