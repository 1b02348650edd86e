//! What is known of files and holds for ever, as that they have offsets: a system call for each
//! file instead of one for each operation.
//!
//! Those of the last operations are known by their place in memory, which a weak reference keeps,
//! and the file may be closed all the same.

use rustix::io::Errno;
use std::fs::File;
use std::sync::{Arc, Weak};

/// What was found of files that were looked at.
#[derive(Debug, Default)]
pub struct Known<T>([(Weak<File>, T); FILES_MAX]);

/// Files that are known at a time: as many as a server sends again and again.
const FILES_MAX: usize = 32;
/// Bytes between two places: of a counted file.
const PLACE_BYTES: usize = size_of::<[usize; 4]>();

impl<T: Copy> Known<T> {
    /// What a look at a file finds, or found before.
    ///
    /// # Errors
    /// What was found to be wrong with it; it is looked at again.
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

    /// Goal: what is known of a file is never taken for another's that came to be where it was.
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
