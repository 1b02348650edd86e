//! Memory that can be lent: owned, so that nobody else can touch it meanwhile.
//!
//! A buffer moves into the send. Until it comes back it is reached through [`Parcel`] only, which
//! is shared by the one who waits for it and by the loans of its bytes; the last of these to go
//! leaves it to the waiting one, or frees it if he is gone.

use std::sync::Arc;
use towpath_packet::{Lender, Loans, Piece};

pub(super) mod sealed {
    /// Bytes that stay where they are and as they are while the value is shared.
    pub trait Memory: Send + Sync + 'static {
        /// Bytes in all.
        fn len(&self) -> usize;
        /// What begins at `at` and is in one stretch; empty only at the end.
        fn rest(&self, at: usize) -> &[u8];

        /// True if bytes were copied so that they can be lent.
        fn is_copy(&self) -> bool {
            false
        }
    }
}

#[cfg(test)]
use sealed::Memory;

/// What can be lent to a send: [`Vec<u8>`], `Box<[u8]>`, `Arc<[u8]>`, `&'static [u8]`, a
/// [`Buffer`](super::Buffer), a [`FileRange`](super::FileRange), with the feature `bytes` a
/// `bytes::Bytes`, and of these pairs and a [`Chain`]. The list is closed: each is known to stay
/// where it is while it is shared.
///
/// A slice that is borrowed for less than for ever cannot be lent:
///
/// ```compile_fail,E0597
/// # use towpath::host::{TcpStream, Sending};
/// fn send(stream: &TcpStream) -> Sending<&'static [u8]> {
///     let bytes = vec![0; 4096];
///     stream.send_zc(&bytes[..]).ok().unwrap()
/// }
/// ```
pub trait Lend: sealed::Memory {}

impl<M: sealed::Memory> Lend for M {}

macro_rules! lend_slice {
    ($($kind:ty),+) => {$(
        impl sealed::Memory for $kind {
            fn len(&self) -> usize {
                <[u8]>::len(self)
            }

            fn rest(&self, at: usize) -> &[u8] {
                &self[at..]
            }
        }
    )+};
}

lend_slice!(Vec<u8>, Box<[u8]>, Arc<[u8]>, &'static [u8]);
#[cfg(feature = "bytes")]
lend_slice!(bytes::Bytes);

/// Buffers that are sent one after the other and come back together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain<B>(pub Vec<B>);

impl<B: Lend> sealed::Memory for Chain<B> {
    fn len(&self) -> usize {
        self.0.iter().map(B::len).sum()
    }

    fn rest(&self, mut at: usize) -> &[u8] {
        for buffer in &self.0 {
            match at.checked_sub(buffer.len()) {
                None => return buffer.rest(at),
                Some(behind) => at = behind,
            }
        }
        &[]
    }

    fn is_copy(&self) -> bool {
        self.0.iter().any(B::is_copy)
    }
}

impl<A: Lend, B: Lend> sealed::Memory for (A, B) {
    fn len(&self) -> usize {
        self.0.len() + self.1.len()
    }

    fn rest(&self, at: usize) -> &[u8] {
        match at.checked_sub(self.0.len()) {
            None => self.0.rest(at),
            Some(behind) => self.1.rest(behind),
        }
    }

    fn is_copy(&self) -> bool {
        self.0.is_copy() || self.1.is_copy()
    }
}

/// A buffer while it is lent.
pub(super) struct Parcel<B>(pub(super) B);

impl<B: Lend> AsRef<[u8]> for Parcel<B> {
    fn as_ref(&self) -> &[u8] {
        self.0.rest(0)
    }
}

/// A stretch of a buffer in several that does not begin it.
struct Stretch<B> {
    held: Arc<Parcel<B>>,
    at: usize,
}

impl<B: Lend> AsRef<[u8]> for Stretch<B> {
    fn as_ref(&self) -> &[u8] {
        self.held.0.rest(self.at)
    }
}

/// A buffer of whatever kind, for whoever lends parts of it.
pub(super) trait Source: Send + Sync {
    /// Bytes in all.
    fn len(&self) -> usize;

    /// What begins at `at` and is in one stretch; empty only at the end.
    fn stretch(&self, at: usize) -> &[u8];

    /// Lends at most `most` bytes from `at` on, which are not at the end: one stretch. `None`
    /// without a free descriptor.
    fn lend(
        self: Arc<Self>,
        loans: &mut Loans,
        at: usize,
        most: usize,
        lender: Arc<dyn Lender>,
        token: u64,
    ) -> Option<Piece>;
}

impl<B: Lend> Source for Parcel<B> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn stretch(&self, at: usize) -> &[u8] {
        self.0.rest(at)
    }

    fn lend(
        self: Arc<Self>,
        loans: &mut Loans,
        at: usize,
        most: usize,
        lender: Arc<dyn Lender>,
        token: u64,
    ) -> Option<Piece> {
        let first = self.0.rest(0).len();
        if at < first {
            return loans.lend_recallable(&self, (at, count(first - at, most)), lender, token);
        }
        let stretch = Arc::new(Stretch { held: self, at });
        let len = count(stretch.as_ref().as_ref().len(), most);
        loans.lend_recallable(&stretch, (0, len), lender, token)
    }
}

/// Bytes of a loan: of `rest`, `most` and what a loan can have the least.
fn count(rest: usize, most: usize) -> u32 {
    rest.min(most).min(u32::MAX as usize) as u32
}

/// A copy that was made because a buffer had to go back: nobody wants it back.
pub(super) struct Copied(pub(super) Vec<u8>);

impl AsRef<[u8]> for Copied {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Source for Copied {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn stretch(&self, at: usize) -> &[u8] {
        &self.0[at..]
    }

    fn lend(
        self: Arc<Self>,
        loans: &mut Loans,
        at: usize,
        most: usize,
        lender: Arc<dyn Lender>,
        token: u64,
    ) -> Option<Piece> {
        loans.lend_shared(&self, (at, count(self.0.len() - at, most)), lender, token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_its_buffers_one_after_the_other() {
        let chain = (vec![1, 2, 3], Chain(vec![vec![], vec![4], vec![5, 6]]));
        assert_eq!(Memory::len(&chain), 6);
        let rests: Vec<&[u8]> = (0..=6).map(|at| chain.rest(at)).collect();
        let expected: [&[u8]; 7] = [&[1, 2, 3], &[2, 3], &[3], &[4], &[5, 6], &[6], &[]];
        assert_eq!(rests, expected);
    }
}
