//! Ranges of files that can be lent.
//!
//! A file in memory that is sealed is lent where it is ([`SealedMapping`] says why that is safe).
//! Any other may be written or cut short by whoever has it open, while its bytes are on their way:
//! they could differ from their checksum, and reading them could end the process. So they are read
//! into a buffer first, in the thread of the caller, which is one copy, counted and told.

use crate::host::lending::buffers::Buffer;
use crate::host::lending::lend::sealed::{Mark, Memory};
use crate::host::worker::Host;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use towpath_io::sealed::SealedMapping;
use towpath_packet::Site;

/// A range of a file ([`Host::file_range`]). Dereferences to its bytes.
pub struct FileRange(Bytes);

enum Bytes {
    /// Where they are in a sealed file.
    Mapped(SealedMapping),
    /// Read from one that is not.
    Read(Buffer),
}

impl Host {
    /// The bytes `offset..offset + len` of `file`, to be lent.
    ///
    /// Those of a memory file with `F_SEAL_WRITE` and `F_SEAL_SHRINK` (`memfd_create(2)`) are
    /// mapped, and sent without a copy; the file may be closed. Those of any other file are read,
    /// so that this blocks as long as the disk takes; the bytes are those of this moment, and come
    /// back from a send as [copied](crate::host::Returned::copied).
    ///
    /// # Errors
    /// `UnexpectedEof` if the file is shorter; `OutOfMemory`; those of reading and mapping.
    pub fn file_range(&self, file: &File, offset: u64, len: usize) -> io::Result<FileRange> {
        let size = file.metadata()?.len();
        if offset.checked_add(len as u64).is_none_or(|end| end > size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(mapping) = SealedMapping::new(file, offset, len)? {
            return Ok(FileRange(Bytes::Mapped(mapping)));
        }
        let mut buffer = self.buffer(len);
        file.read_exact_at(&mut buffer, offset)?;
        self.ledger().count(Site::SocketSend, len);
        Ok(FileRange(Bytes::Read(buffer)))
    }
}

impl FileRange {
    /// True if the bytes are the file's own, and not a copy.
    pub fn is_mapped(&self) -> bool {
        matches!(self.0, Bytes::Mapped(_))
    }
}

impl Deref for FileRange {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Mapped(mapping) => mapping.as_ref(),
            Bytes::Read(buffer) => buffer,
        }
    }
}

impl Memory for FileRange {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn rest(&self, at: usize, _: &mut Mark) -> &[u8] {
        self.get(at..).unwrap_or_default()
    }

    fn is_copy(&self) -> bool {
        !self.is_mapped()
    }
}

impl fmt::Debug for FileRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.is_mapped() { "mapped" } else { "read" };
        write!(f, "FileRange({} bytes, {how})", self.len())
    }
}
