//! Ranges of memory in the form in which the kernel takes them.

use towpath_packet::PinnedPiece;

/// Ranges of memory with the layout of `struct iovec`.
#[derive(Debug, Default)]
pub(in super::super) struct Ranges(Vec<Range>);

#[derive(Debug)]
#[repr(C)]
struct Range {
    address: usize,
    len: usize,
}

const _: () = assert!(
    size_of::<Range>() == size_of::<libc::iovec>()
        && align_of::<Range>() == align_of::<libc::iovec>()
);

impl Ranges {
    /// Names the bytes of these pieces but the first `skip`.
    pub(super) fn fill(&mut self, pieces: &[PinnedPiece], mut skip: usize) {
        self.0.clear();
        self.0.extend(pieces.iter().map(|pinned| {
            let skip = std::mem::take(&mut skip);
            let address = pinned.address().expose_provenance() + skip;
            Range { address, len: pinned.piece().len() - skip }
        }));
    }

    /// The array for the kernel, valid until this is filled again or dropped.
    pub(in super::super) fn as_ptr(&self) -> *const libc::iovec {
        self.0.as_ptr().cast()
    }

    pub(in super::super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(in super::super) fn bytes(&self) -> usize {
        self.0.iter().map(|range| range.len).sum()
    }
}
