//! Ranges of files that can be lent.
//!
//! A sealed memory file is lent in place ([`SealedMapping`] says why that is safe). Any other file
//! may be written to or truncated while its bytes are being sent: the bytes could then differ from
//! their checksum, and reading them could raise SIGBUS. Such a range is first read into a buffer,
//! on the caller's thread. That is one copy, which is counted and reported.

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

/// A range of a file ([`Host::file_range`]). It dereferences to its bytes.
pub struct FileRange(Bytes);

enum Bytes {
    /// Mapped from a sealed file.
    Mapped(SealedMapping),
    /// Read from a file that is not sealed.
    Read(Buffer),
}

impl Host {
    /// Returns the bytes `offset..offset + len` of `file`, to be lent.
    ///
    /// A memory file with `F_SEAL_WRITE` and `F_SEAL_SHRINK` (`memfd_create(2)`) is mapped, and
    /// sent without a copy; the file may be closed. Any other file is read now, so this blocks as
    /// long as the disk takes; a send then reports the bytes as
    /// [copied](crate::host::Returned::copied).
    ///
    /// # Errors
    /// `UnexpectedEof` if the file is shorter; `OutOfMemory`; errors of reading and mapping.
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
    /// Returns true if the bytes are the file's own memory and not a copy.
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
