//! Memory that can be lent. It is owned, so that nothing else can access it meanwhile.
//!
//! A buffer moves into the send. Until it comes back, it is only reachable through [`Parcel`],
//! which the waiting [`Sending`](crate::host::Sending) and the loans of its bytes share. The last
//! loan leaves the buffer to the `Sending`, or frees it if that was dropped.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_packet::{Lender, Loans, Piece};

pub(in crate::host) mod sealed {
    /// Bytes that neither move nor change while the value is shared.
    pub trait Memory: Send + Sync + 'static {
        /// True if the bytes of all values are contiguous.
        const IS_ONE: bool = true;

        /// Returns the number of bytes.
        fn len(&self) -> usize;

        /// Returns the contiguous bytes that begin at `at`; empty only at or after the end. `mark`
        /// comes from an earlier call for the same value, or is empty: it saves the search.
        fn rest(&self, at: usize, mark: &mut Mark) -> &[u8];

        /// Returns true if the bytes of this value are contiguous.
        fn is_one(&self) -> bool {
            Self::IS_ONE
        }

        /// Returns true if bytes were copied to make them lendable.
        fn is_copy(&self) -> bool {
            false
        }
    }

    /// Bytes that can be filled. They are contiguous, and the same ones that
    /// [`rest`](Memory::rest) returns from 0 on.
    pub trait Room: Memory {
        /// Returns the bytes.
        fn bytes_mut(&mut self) -> &mut [u8];
    }

    /// The position in several buffers where a call ended, if any.
    pub(crate) type Mark = Option<Box<Place>>;

    /// One of several buffers.
    #[derive(Debug, Default)]
    pub struct Place {
        pub(in crate::host) index: usize,
        /// Offset of its first byte.
        pub(in crate::host) start: usize,
        pub(in crate::host) inner: Mark,
    }
}

use sealed::{Mark, Memory, Place, Room};

/// Types that can be lent to a send:
///
/// - [`Vec<u8>`], `Box<[u8]>`, `Box<[u8; N]>`, `Arc<[u8]>`, `&'static [u8]`;
/// - [`String`], `Box<str>`, `Arc<str>`, `&'static str`;
/// - a [`Buffer`](crate::host::Buffer), a [`FileRange`](crate::host::FileRange);
/// - with the feature `bytes`, `bytes::Bytes` and `bytes::BytesMut`;
/// - with the feature `bytemuck`, a `Vec`, a boxed slice or an `Arc` of numbers or of other plain
///   values, as `Typed`;
/// - a [`Part`] of any of these; pairs, and a [`Chain`], of any of these, which are sent one after
///   the other.
///
/// The list is closed: the bytes of each type neither move nor change while it is shared.
///
/// A slice that is not `'static` cannot be lent:
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

/// Types that a receive or a read can fill:
///
/// - [`Vec<u8>`], `Box<[u8]>`, `Box<[u8; N]>`, a [`Buffer`](crate::host::Buffer);
/// - with the feature `bytes`, `bytes::BytesMut`;
/// - with the feature `bytemuck`, a `Vec` or a boxed slice of numbers or of other plain values, as
///   `Typed`;
/// - a [`Part`] of any of these: only the part is filled.
///
/// A buffer is filled up to its length, not to its capacity, and its length does not change. The
/// list is closed: the bytes of each type are contiguous, and only the operation reaches them until
/// the buffer is back.
///
/// Shared or read-only memory cannot be filled:
///
/// ```compile_fail,E0277
/// # use std::sync::Arc;
/// # use towpath::events::{EventQueue, Stream};
/// fn receive(queue: &mut EventQueue, stream: Stream, shared: Arc<[u8]>) {
///     let _ = queue.receive(stream, shared, None, 0);
/// }
/// ```
pub trait Fill: Lend + sealed::Room {}

impl<R: sealed::Room> Fill for R {}

macro_rules! fill {
    ($([$($of:tt)*] $kind:ty, $this:ident => $bytes:expr;)+) => {$(
        impl<$($of)*> Room for $kind {
            fn bytes_mut(&mut self) -> &mut [u8] {
                let $this = self;
                $bytes
            }
        }
    )+};
}

fill! {
    [] Vec<u8>, this => this;
    [] Box<[u8]>, this => this;
    [const N: usize] Box<[u8; N]>, this => &mut this[..];
    [B: Fill] Part<B>, this => &mut this.buffer.bytes_mut()[this.range.clone()];
}
#[cfg(feature = "bytes")]
fill! {
    [] bytes::BytesMut, this => this;
}
#[cfg(feature = "bytemuck")]
fill! {
    [T: bytemuck::NoUninit + bytemuck::AnyBitPattern + Send + Sync] Typed<Vec<T>>,
        this => bytemuck::cast_slice_mut(&mut this.0);
    [T: bytemuck::NoUninit + bytemuck::AnyBitPattern + Send + Sync] Typed<Box<[T]>>,
        this => bytemuck::cast_slice_mut(&mut this.0);
}

macro_rules! lend_slice {
    ($($kind:ty),+) => {$(
        impl Memory for $kind {
            fn len(&self) -> usize {
                <[u8]>::len(self)
            }

            fn rest(&self, at: usize, _: &mut Mark) -> &[u8] {
                self.get(at..).unwrap_or_default()
            }
        }
    )+};
}

lend_slice!(Vec<u8>, Box<[u8]>, Arc<[u8]>, &'static [u8]);
#[cfg(feature = "bytes")]
lend_slice!(bytes::Bytes, bytes::BytesMut);

impl<const N: usize> Memory for Box<[u8; N]> {
    fn len(&self) -> usize {
        N
    }

    fn rest(&self, at: usize, _: &mut Mark) -> &[u8] {
        self.get(at..).unwrap_or_default()
    }
}

macro_rules! lend_text {
    ($($kind:ty),+) => {$(
        impl Memory for $kind {
            fn len(&self) -> usize {
                str::len(self)
            }

            fn rest(&self, at: usize, _: &mut Mark) -> &[u8] {
                self.as_bytes().get(at..).unwrap_or_default()
            }
        }
    )+};
}

lend_text!(String, Box<str>, Arc<str>, &'static str);

/// Numbers, or other values that are plain bytes without padding, sent as they are in memory: in
/// the byte order of this machine.
///
/// ```
/// # #[cfg(feature = "bytemuck")] {
/// use towpath::host::{Sending, TcpStream, Typed};
/// fn send(stream: &TcpStream, samples: Vec<f32>) -> Option<Sending<Typed<Vec<f32>>>> {
///     stream.send_zc(Typed(samples)).ok()
/// }
/// # }
/// ```
#[cfg(feature = "bytemuck")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Typed<V>(pub V);

#[cfg(feature = "bytemuck")]
macro_rules! lend_typed {
    ($($kind:ty),+) => {$(
        impl<T: bytemuck::NoUninit + Send + Sync> Memory for Typed<$kind> {
            fn len(&self) -> usize {
                size_of_val::<[T]>(&self.0)
            }

            fn rest(&self, at: usize, _: &mut Mark) -> &[u8] {
                bytemuck::cast_slice(&self.0).get(at..).unwrap_or_default()
            }
        }
    )+};
}

#[cfg(feature = "bytemuck")]
lend_typed!(Vec<T>, Box<[T]>, Arc<[T]>);

/// A part of a buffer: only the part is sent or filled, and the whole buffer comes back.
///
/// ```
/// use towpath::host::Part;
/// let part = Part::new(vec![1, 2, 3, 4], 1..3).expect("within the buffer");
/// assert_eq!((part.buffer(), part.range()), (&vec![1, 2, 3, 4], 1..3));
/// assert_eq!(part.into_buffer(), [1, 2, 3, 4]);
/// assert!(Part::new(vec![1, 2, 3, 4], 1..5).is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part<B> {
    buffer: B,
    range: Range<usize>,
}

impl<B: Lend> Part<B> {
    /// Selects a range of bytes of `buffer`.
    ///
    /// # Errors
    /// Hands the buffer back if the range is not within it.
    pub fn new(buffer: B, range: Range<usize>) -> Result<Self, B> {
        match range.start <= range.end && range.end <= buffer.len() {
            true => Ok(Self { buffer, range }),
            false => Err(buffer),
        }
    }

    /// Returns the range that is sent or filled.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns the whole buffer.
    pub fn buffer(&self) -> &B {
        &self.buffer
    }

    /// Unwraps the whole buffer.
    pub fn into_buffer(self) -> B {
        self.buffer
    }
}

impl<B: Lend> Memory for Part<B> {
    const IS_ONE: bool = B::IS_ONE;

    fn is_one(&self) -> bool {
        self.buffer.is_one()
    }

    fn len(&self) -> usize {
        self.range.len()
    }

    fn rest(&self, at: usize, mark: &mut Mark) -> &[u8] {
        let Some(left) = self.range.len().checked_sub(at) else { return &[] };
        let rest = self.buffer.rest(self.range.start + at, mark);
        &rest[..rest.len().min(left)]
    }

    fn is_copy(&self) -> bool {
        self.buffer.is_copy()
    }
}

/// Buffers that are sent one after the other and come back together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain<B>(pub Vec<B>);

impl<B: Lend> Memory for Chain<B> {
    const IS_ONE: bool = false;

    fn len(&self) -> usize {
        self.0.iter().map(B::len).sum()
    }

    fn rest(&self, at: usize, mark: &mut Mark) -> &[u8] {
        let place = mark.get_or_insert_default();
        if at < place.start {
            **place = Place::default();
        }
        while let Some(buffer) = self.0.get(place.index) {
            let rest = buffer.rest(at - place.start, &mut place.inner);
            if !rest.is_empty() {
                return rest;
            }
            let (index, start) = (place.index + 1, place.start + buffer.len());
            **place = Place { index, start, inner: None };
        }
        &[]
    }

    fn is_copy(&self) -> bool {
        self.0.iter().any(B::is_copy)
    }
}

impl<A: Lend, B: Lend> Memory for (A, B) {
    const IS_ONE: bool = false;

    fn len(&self) -> usize {
        self.0.len() + self.1.len()
    }

    fn rest(&self, at: usize, mark: &mut Mark) -> &[u8] {
        let place = mark.get_or_insert_default();
        if at < place.start {
            **place = Place::default();
        }
        if place.index == 0 {
            let rest = self.0.rest(at, &mut place.inner);
            if !rest.is_empty() {
                return rest;
            }
            **place = Place { index: 1, start: self.0.len(), inner: None };
        }
        self.1.rest(at - place.start, &mut place.inner)
    }

    fn is_copy(&self) -> bool {
        self.0.is_copy() || self.1.is_copy()
    }
}

/// A buffer while it is lent.
pub(in crate::host) struct Parcel<B> {
    buffer: B,
    len: usize,
    /// Where the last access to a buffer in several parts ended; the next one usually continues
    /// there.
    mark: Mutex<Mark>,
}

impl<B: Lend> Parcel<B> {
    pub(in crate::host) fn new(buffer: B) -> Self {
        Self { len: buffer.len(), buffer, mark: Mutex::default() }
    }

    /// Returns the buffer, once nothing else holds it.
    pub(in crate::host) fn into_buffer(self) -> B {
        self.buffer
    }

    fn mark(&self) -> MutexGuard<'_, Mark> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Lend> AsRef<[u8]> for Parcel<B> {
    fn as_ref(&self) -> &[u8] {
        self.stretch(0)
    }
}

/// A contiguous part of a buffer in several parts.
struct Stretch<B> {
    held: Arc<Parcel<B>>,
    at: usize,
}

impl<B: Lend> AsRef<[u8]> for Stretch<B> {
    fn as_ref(&self) -> &[u8] {
        self.held.stretch(self.at)
    }
}

/// A buffer of any kind, parts of which can be lent.
pub(in crate::host) trait Source: Send + Sync {
    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns the contiguous bytes that begin at `at`; empty only at the end.
    fn stretch(&self, at: usize) -> &[u8];

    /// Lends one contiguous part that begins at `at`, before the end, of at most `most` bytes.
    /// Returns `None` if no descriptor is free.
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
        self.len
    }

    fn stretch(&self, at: usize) -> &[u8] {
        if self.buffer.is_one() {
            return self.buffer.rest(at, &mut None);
        }
        self.buffer.rest(at, &mut self.mark())
    }

    fn lend(
        self: Arc<Self>,
        loans: &mut Loans,
        at: usize,
        most: usize,
        lender: Arc<dyn Lender>,
        token: u64,
    ) -> Option<Piece> {
        if self.buffer.is_one() {
            let len = count(self.len - at, most);
            return loans.lend_recallable(&self, (at, len), lender, token);
        }
        let len = count(self.stretch(at).len(), most);
        loans.lend_recallable(&Arc::new(Stretch { held: self, at }), (0, len), lender, token)
    }
}

/// Returns at most `most` bytes of a buffer from `at` on, as contiguous parts in order.
pub(in crate::host) fn stretches<B: Lend>(
    buffer: &B,
    mut at: usize,
    mut most: usize,
) -> Vec<&[u8]> {
    let (mut stretches, mut mark) = (Vec::new(), None);
    loop {
        let next = buffer.rest(at, &mut mark);
        let next = &next[..next.len().min(most)];
        if next.is_empty() {
            return stretches;
        }
        (at, most) = (at + next.len(), most - next.len());
        stretches.push(next);
    }
}

/// Returns the length of a loan: the minimum of `rest`, `most` and the largest loan.
fn count(rest: usize, most: usize) -> u32 {
    rest.min(most).min(u32::MAX as usize) as u32
}

/// A copy made because a buffer had to go back. It need not come back itself.
pub(in crate::host) struct Copied(pub(in crate::host) Vec<u8>);

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
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_chain_is_its_buffers_one_after_the_other() {
        let chain = (vec![1, 2, 3], Chain(vec![vec![], vec![4], vec![5, 6]]));
        assert_eq!(Memory::len(&chain), 6);
        let expected: [&[u8]; 8] = [&[1, 2, 3], &[2, 3], &[3], &[4], &[5, 6], &[6], &[], &[]];
        // Forwards, backwards and in jumps, with one mark.
        let mark = &mut None;
        for at in [0, 1, 2, 3, 4, 5, 6, 7, 6, 5, 4, 3, 2, 1, 0, 5, 0, 3, 7, 2, 6, 1, 4] {
            assert_eq!(chain.rest(at, mark), expected[at], "from {at} on");
        }
    }

    /// Goal: a part yields exactly its bytes, of one buffer and of several.
    #[test]
    fn a_part_is_its_range() {
        let part = Part::new(Chain(vec![vec![1, 2], vec![3, 4, 5]]), 1..4).unwrap();
        assert_eq!(stretches(&part, 0, usize::MAX), [&[2][..], &[3, 4]]);
        assert_eq!(stretches(&part, 2, usize::MAX), [&[4]]);
        assert!(stretches(&part, 3, usize::MAX).is_empty());
        assert!(stretches(&part, 4, usize::MAX).is_empty());
        let text = Part::new("towpath".to_owned(), 3..7).unwrap();
        assert_eq!((Memory::len(&text), stretches(&text, 0, 2)), (4, vec![&b"pa"[..]]));
        let backwards = Range { start: 3, end: 2 };
        assert_eq!(Part::new(vec![0; 4], backwards), Err(vec![0; 4]));
        assert_eq!(Part::new(vec![0; 4], 2..5), Err(vec![0; 4]));
        let none = Part::new(Vec::new(), 0..0).unwrap();
        assert!(stretches(&none, 0, usize::MAX).is_empty());
    }

    /// Goal: values are sent as they are in memory.
    #[cfg(feature = "bytemuck")]
    #[test]
    fn values_are_their_bytes() {
        let typed = Typed(vec![1_u32, 0x0203_0405]);
        let bytes = [1_u32.to_ne_bytes(), 0x0203_0405_u32.to_ne_bytes()].concat();
        assert_eq!(Memory::len(&typed), 8);
        assert_eq!(stretches(&typed, 3, usize::MAX), [&bytes[3..]]);
        let shared = Typed(Arc::<[f64]>::from([0.5]));
        assert_eq!(stretches(&shared, 0, usize::MAX), [&0.5_f64.to_ne_bytes()]);
    }

    /// A buffer that counts accesses.
    struct Counted(Vec<u8>, Arc<AtomicUsize>);

    impl Memory for Counted {
        fn len(&self) -> usize {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.len()
        }

        fn rest(&self, at: usize, mark: &mut Mark) -> &[u8] {
            self.1.fetch_add(1, Ordering::Relaxed);
            Memory::rest(&self.0, at, mark)
        }
    }

    struct Nobody;

    impl Lender for Nobody {
        fn returned(&self, _: u64, _: bool) {}
    }

    /// Goal: lending a chain takes work proportional to its buffers, however they are nested, even
    /// if half of them are empty. Method: counts accesses to buffers instead of time.
    #[test]
    fn lending_a_chain_looks_at_each_buffer_a_few_times() {
        const BUFFERS: usize = 10_000;
        let looks = Arc::new(AtomicUsize::new(0));
        let buffer = |index| Counted(vec![index as u8; index % 2 * 3], looks.clone());
        let flat = Chain((0..BUFFERS).map(buffer).collect());
        let halves =
            [0, BUFFERS / 2].map(|from| Chain((from..from + BUFFERS / 2).map(buffer).collect()));
        let [first, second] = halves;
        let sources: [Arc<dyn Source>; 2] =
            [Arc::new(Parcel::new(flat)), Arc::new(Parcel::new((Chain(vec![first]), second)))];
        let mut loans = Loans::new(1);
        for source in sources {
            let (mut at, mut lent) = (0, Vec::new());
            while at < source.len() {
                // Two bytes, then the third.
                let piece = source.clone().lend(&mut loans, at, 2, Arc::new(Nobody), 0).unwrap();
                at += piece.len();
                lent.extend_from_slice(&piece.view().unwrap());
            }
            let expected = (0..BUFFERS).flat_map(|index| vec![index as u8; index % 2 * 3]);
            assert!(lent == expected.collect::<Vec<u8>>());
            let looks = looks.swap(0, Ordering::Relaxed);
            assert!(looks <= 10 * BUFFERS, "{looks} looks");
        }
    }
}
