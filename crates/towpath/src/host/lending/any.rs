//! Buffers of any kind as one type.

use crate::host::lending::lend::sealed::{Mark, Memory, Room};
use crate::host::lending::lend::{Fill, Lend, stretches};
use std::any::Any;
use std::fmt;
use towpath_io::events::{Buffer, OtherBuffer};

/// A buffer of any kind that can be lent. [`AnyBuffer::downcast`] restores the original type.
///
/// ```
/// use towpath::host::AnyBuffer;
/// let any = AnyBuffer::new("towpath".to_owned());
/// assert_eq!(any.len(), 7);
/// let any = any.downcast::<Vec<u8>>().expect_err("it is a text");
/// assert_eq!(any.downcast::<String>().expect("it is a text"), "towpath");
/// ```
pub struct AnyBuffer(Kind);

/// Most buffers are vectors of bytes, which need no box.
enum Kind {
    Vec(Vec<u8>),
    Other(Box<dyn Other>),
    Fill(Box<dyn OtherFill>),
}

/// A buffer of another kind.
trait Other: Send + Sync {
    fn len(&self) -> usize;
    fn rest(&self, at: usize, mark: &mut Mark) -> &[u8];
    fn is_one(&self) -> bool;
    fn is_copy(&self) -> bool;
    fn as_any(&self) -> &dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<B: Lend> Other for B {
    fn len(&self) -> usize {
        Memory::len(self)
    }

    fn rest(&self, at: usize, mark: &mut Mark) -> &[u8] {
        Memory::rest(self, at, mark)
    }

    fn is_one(&self) -> bool {
        Memory::is_one(self)
    }

    fn is_copy(&self) -> bool {
        Memory::is_copy(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// A buffer of another kind that can be filled.
trait OtherFill: Other {
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl<B: Fill> OtherFill for B {
    fn bytes_mut(&mut self) -> &mut [u8] {
        Room::bytes_mut(self)
    }
}

impl AnyBuffer {
    /// Wraps a buffer.
    pub fn new<B: Lend>(buffer: B) -> Self {
        let mut buffer = Some(buffer);
        let any: &mut dyn Any = &mut buffer;
        if let Some(this) = any.downcast_mut::<Option<Self>>().and_then(Option::take) {
            return this;
        }
        if let Some(bytes) = any.downcast_mut::<Option<Vec<u8>>>().and_then(Option::take) {
            return Self(Kind::Vec(bytes));
        }
        Self(Kind::Other(Box::new(buffer.expect("it is of neither kind"))))
    }

    /// Wraps a buffer that is to be filled.
    pub(crate) fn to_fill<B: Fill>(buffer: B) -> Self {
        let mut buffer = Some(buffer);
        let any: &mut dyn Any = &mut buffer;
        match any.downcast_mut::<Option<Vec<u8>>>().and_then(Option::take) {
            Some(bytes) => Self(Kind::Vec(bytes)),
            None => Self(Kind::Fill(Box::new(buffer.expect("it is no vector of bytes")))),
        }
    }

    /// Returns the buffer if it is of type `B`.
    ///
    /// # Errors
    /// Returns `self` if it is of another type.
    pub fn downcast<B: Lend>(self) -> Result<B, Self> {
        match self.0 {
            Kind::Vec(bytes) => {
                let mut bytes = Some(bytes);
                let any: &mut dyn Any = &mut bytes;
                match any.downcast_mut::<Option<B>>().and_then(Option::take) {
                    Some(buffer) => Ok(buffer),
                    None => Err(Self(Kind::Vec(bytes.unwrap_or_default()))),
                }
            }
            Kind::Other(other) if other.as_any().is::<B>() => {
                Ok(*other.into_any().downcast().expect("it is of this kind"))
            }
            Kind::Fill(other) if other.as_any().is::<B>() => {
                Ok(*other.into_any().downcast().expect("it is of this kind"))
            }
            other => Err(Self(other)),
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        Memory::len(self)
    }

    /// Returns true if the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the vector of bytes, or `self` if the buffer is of another kind.
    pub(crate) fn into_vec(self) -> Result<Vec<u8>, Self> {
        match self.0 {
            Kind::Vec(bytes) => Ok(bytes),
            other => Err(Self(other)),
        }
    }
}

/// A buffer while the back end of an event queue uses it, as contiguous bytes.
struct Contiguous {
    buffer: AnyBuffer,
    /// The bytes, if those of the buffer are not contiguous.
    copy: Option<Vec<u8>>,
}

impl OtherBuffer for Contiguous {
    fn bytes(&self) -> &[u8] {
        match &self.copy {
            Some(copy) => copy,
            None => Memory::rest(&self.buffer, 0, &mut None),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }
}

impl AnyBuffer {
    /// Returns the bytes to fill; empty unless the buffer was [wrapped to be
    /// filled](Self::to_fill).
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Kind::Vec(bytes) => bytes,
            Kind::Fill(other) => other.bytes_mut(),
            Kind::Other(_) => &mut [],
        }
    }

    /// Returns the buffer for a job of the back end, and whether its bytes were copied because they
    /// are not contiguous.
    pub(crate) fn into_job(self) -> (Buffer, bool) {
        let buffer = match self.into_vec() {
            Ok(bytes) => return (bytes.into(), false),
            Err(other) => other,
        };
        let is_one = Memory::is_one(&buffer);
        let copy = (!is_one).then(|| stretches(&buffer, 0, usize::MAX).concat());
        (Buffer::Other(Box::new(Contiguous { buffer, copy })), !is_one)
    }

    /// Takes the buffer of a job back. Also returns whether its bytes were copied because they are
    /// not contiguous.
    pub(crate) fn of_job(buffer: Buffer) -> (Self, bool) {
        match buffer {
            Buffer::Vec(bytes) => (Self(Kind::Vec(bytes)), false),
            Buffer::Other(other) => {
                let other: Box<dyn Any> = other;
                let contiguous = other.downcast::<Contiguous>().expect("`into_job` made it");
                (contiguous.buffer, contiguous.copy.is_some())
            }
        }
    }
}

impl Memory for AnyBuffer {
    const IS_ONE: bool = false;

    fn is_one(&self) -> bool {
        match &self.0 {
            Kind::Vec(_) | Kind::Fill(_) => true,
            Kind::Other(other) => other.is_one(),
        }
    }

    fn len(&self) -> usize {
        match &self.0 {
            Kind::Vec(bytes) => bytes.len(),
            Kind::Other(other) => other.len(),
            Kind::Fill(other) => other.len(),
        }
    }

    fn rest(&self, at: usize, mark: &mut Mark) -> &[u8] {
        match &self.0 {
            Kind::Vec(bytes) => bytes.get(at..).unwrap_or_default(),
            Kind::Other(other) => other.rest(at, mark),
            Kind::Fill(other) => other.rest(at, mark),
        }
    }

    fn is_copy(&self) -> bool {
        match &self.0 {
            Kind::Vec(_) | Kind::Fill(_) => false,
            Kind::Other(other) => other.is_copy(),
        }
    }
}

impl fmt::Debug for AnyBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyBuffer").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::lending::lend::{Chain, Part};

    /// Goal: a wrapped buffer shows the same bytes as the original and can be restored to it.
    #[test]
    fn a_buffer_of_any_kind_is_itself() {
        let bytes = AnyBuffer::new(vec![1, 2, 3]);
        assert!(Memory::is_one(&bytes));
        assert_eq!(stretches(&bytes, 1, usize::MAX), [&[2, 3]]);
        assert_eq!(bytes.downcast::<Vec<u8>>().unwrap(), [1, 2, 3]);

        let part = Part::new(Chain(vec![vec![1, 2], vec![3, 4, 5]]), 1..4).unwrap();
        let any = AnyBuffer::new(AnyBuffer::new(part.clone()));
        assert!(!Memory::is_one(&any) && any.len() == 3);
        assert_eq!(stretches(&any, 0, usize::MAX), [&[2][..], &[3, 4]]);
        let any = any.downcast::<Vec<u8>>().unwrap_err();
        assert_eq!(any.downcast::<Part<Chain<Vec<u8>>>>().unwrap(), part);
        let text = AnyBuffer::new("text").downcast::<String>().unwrap_err();
        assert_eq!(text.downcast::<&'static str>().unwrap(), "text");
    }

    /// Fills a wrapped buffer with 1, 2 and so on, and restores it.
    fn fill<B: Fill>(buffer: B) -> B {
        let mut any = AnyBuffer::to_fill(buffer);
        let len = any.len();
        assert_eq!(any.bytes_mut().len(), len);
        any.bytes_mut().iter_mut().zip(1..).for_each(|(byte, number)| *byte = number);
        assert!(Memory::is_one(&any) && !Memory::is_copy(&any));
        let expected: Vec<u8> = (1..=len as u8).collect();
        assert_eq!(stretches(&any, 0, usize::MAX).concat(), expected);
        assert!(Memory::rest(&any, len, &mut None).is_empty());
        any.downcast().unwrap()
    }

    /// Goal: each kind of buffer is filled where its bytes are, and a part only in its range.
    #[test]
    fn a_buffer_of_any_kind_is_filled() {
        assert_eq!(fill(vec![0; 3]), [1, 2, 3]);
        assert_eq!(*fill(vec![0; 3].into_boxed_slice()), [1, 2, 3]);
        assert_eq!(*fill(Box::new([0; 3])), [1, 2, 3]);
        assert!(fill(Vec::new()).is_empty() && fill(Box::new([])).is_empty());
        #[cfg(feature = "bytes")]
        assert_eq!(fill(bytes::BytesMut::zeroed(3)), [1, 2, 3][..]);
        #[cfg(feature = "bytemuck")]
        {
            use crate::host::Typed;
            let word = u16::from_ne_bytes([1, 2]);
            assert_eq!(fill(Typed(vec![0_u16])).0, [word]);
            assert_eq!(*fill(Typed(vec![0_u16].into_boxed_slice())).0, [word]);
        }
        for (range, expected) in [
            (0..2, [1, 2, 0, 0, 0]),
            (2..4, [0, 0, 1, 2, 0]),
            (3..5, [0, 0, 0, 1, 2]),
            (5..5, [0; 5]),
        ] {
            let part = Part::new(vec![0; 5], range).unwrap();
            assert_eq!(fill(part).into_buffer(), expected);
        }
        let inner = Part::new(Box::new([0; 6]), 1..5).unwrap();
        let part = Part::new(inner, 2..4).unwrap();
        assert_eq!(*fill(part).into_buffer().into_buffer(), [0, 0, 0, 1, 2, 0]);
    }

    /// Goal: a buffer comes back from the back end as it was, and only a buffer of several parts is
    /// copied.
    #[test]
    fn a_buffer_comes_back_from_the_back_end() {
        let (job, is_copy) = AnyBuffer::new(vec![1, 2]).into_job();
        assert!(matches!(job, Buffer::Vec(_)) && !is_copy);
        assert_eq!(AnyBuffer::of_job(job).0.into_vec().unwrap(), [1, 2]);
        let chain = Chain(vec![vec![1], vec![2, 3]]);
        let (job, is_copy) = AnyBuffer::new(chain.clone()).into_job();
        let Buffer::Other(mut other) = job else { panic!("it is no vector") };
        assert!(is_copy && other.bytes() == [1, 2, 3] && other.bytes_mut().is_empty());
        let (back, was_copy) = AnyBuffer::of_job(Buffer::Other(other));
        assert!(was_copy && back.downcast::<Chain<Vec<u8>>>().unwrap() == chain);
        let (job, is_copy) = AnyBuffer::to_fill(Box::new([0; 3])).into_job();
        let Buffer::Other(mut other) = job else { panic!("it is no vector") };
        other.bytes_mut()[1] = 7;
        assert!(!is_copy && other.bytes() == [0, 7, 0]);
        let (back, was_copy) = AnyBuffer::of_job(Buffer::Other(other));
        assert_eq!((*back.downcast::<Box<[u8; 3]>>().unwrap(), was_copy), ([0, 7, 0], false));
    }
}
