//! Buffers of any kind as one type.

use crate::host::lending::lend::sealed::{Mark, Memory};
use crate::host::lending::lend::{Lend, Parcel, Source, stretches};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

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

/// A buffer while the kernel sends it, with all of its bytes contiguous.
pub(crate) struct Held(Arc<Parcel<AnyBuffer>>);

/// The bytes of the buffer that the kernel gets.
struct Bytes(Arc<Parcel<AnyBuffer>>);

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self.0.stretch(0)
    }
}

impl Held {
    /// Holds a buffer. Returns the bytes for the kernel, and whether they are a copy because the
    /// buffer is not contiguous.
    pub(crate) fn new(buffer: AnyBuffer) -> (Self, Box<dyn AsRef<[u8]> + Send>, bool) {
        let copy = (!Memory::is_one(&buffer)).then(|| stretches(&buffer, 0, usize::MAX).concat());
        let held = Arc::new(Parcel::new(buffer));
        match copy {
            Some(bytes) => (Self(held), Box::new(bytes), true),
            None => (Self(held.clone()), Box::new(Bytes(held)), false),
        }
    }

    /// Returns the buffer once the kernel's bytes were dropped.
    pub(crate) fn into_buffer(self) -> Option<AnyBuffer> {
        Arc::into_inner(self.0).map(Parcel::into_buffer)
    }
}

impl Memory for AnyBuffer {
    const IS_ONE: bool = false;

    fn is_one(&self) -> bool {
        match &self.0 {
            Kind::Vec(_) => true,
            Kind::Other(other) => other.is_one(),
        }
    }

    fn len(&self) -> usize {
        match &self.0 {
            Kind::Vec(bytes) => bytes.len(),
            Kind::Other(other) => other.len(),
        }
    }

    fn rest(&self, at: usize, mark: &mut Mark) -> &[u8] {
        match &self.0 {
            Kind::Vec(bytes) => bytes.get(at..).unwrap_or_default(),
            Kind::Other(other) => other.rest(at, mark),
        }
    }

    fn is_copy(&self) -> bool {
        match &self.0 {
            Kind::Vec(_) => false,
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
}
