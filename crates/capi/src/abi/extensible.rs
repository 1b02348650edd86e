//! Structures to which later versions of the library may append fields, single or in an array.
//!
//! The program passes their size. Fields that an older program does not know count as zero and are
//! not filled in. If a newer program sets a field that this library does not know, that is `E2BIG`;
//! such fields are filled in with zero.
#![allow(unsafe_code)]

use super::shapes::{
    ERROR_AT, ID_AT, TowpathChange, TowpathConfig, TowpathLent, TowpathOperation, TowpathTransfer,
};
use crate::errno::{Errno, Outcome};
use crate::memory::pointers::bytes;
use crate::queue::TowpathEvent;
use libc::c_int;
use std::mem::{MaybeUninit, offset_of};

/// Largest structure that a later program may pass.
const STRUCTURE_BYTES_MAX: usize = 4096;

/// A structure of C to which later versions may append fields.
///
/// # Safety
/// All bit patterns are valid for it, and its first [`Extensible::FIRST`] bytes contain no padding
/// that matters to Rust: it is read and written as bytes.
pub(super) unsafe trait Extensible: Copy {
    /// Bytes of its first version. No program has a shorter one.
    const FIRST: usize;
}

// SAFETY: it contains only integers and raw pointers, for which all bytes are valid.
unsafe impl Extensible for TowpathConfig {
    const FIRST: usize = offset_of!(TowpathConfig, file_cache);
}

// SAFETY: it contains only integers and raw pointers, for which all bytes are valid.
unsafe impl Extensible for TowpathChange {
    const FIRST: usize = 88;
}

// SAFETY: it contains only integers and raw pointers, for which all bytes are valid.
unsafe impl Extensible for TowpathOperation {
    const FIRST: usize = 80;
}

// SAFETY: it contains only integers and raw pointers, for which all bytes are valid.
unsafe impl Extensible for TowpathTransfer {
    const FIRST: usize = 80;
}

// SAFETY: it contains only integers and raw pointers, for which all bytes are valid.
unsafe impl Extensible for TowpathLent {
    const FIRST: usize = 64;
}

// SAFETY: it contains only integers, for which all bytes are valid, and no padding.
unsafe impl Extensible for TowpathEvent {
    const FIRST: usize = 40;
}

/// Fails unless a version of the structure can have this size.
fn check_size<T: Extensible>(size: usize) -> Outcome<()> {
    if size < T::FIRST || !size.is_multiple_of(align_of::<T>()) {
        return Err(Errno::INVAL);
    }
    if size > STRUCTURE_BYTES_MAX { Err(Errno(libc::E2BIG)) } else { Ok(()) }
}

/// Fails with `E2BIG` if a structure sets a field that this library does not know.
///
/// # Safety
/// `pointer` is null or names `size` bytes.
pub(super) unsafe fn check_rest<T: Extensible>(pointer: *const T, size: usize) -> Outcome<()> {
    check_size::<T>(size)?;
    // SAFETY: the caller vouches for it.
    let given = unsafe { bytes(pointer.cast(), size) }?;
    let is_set = given.iter().skip(size_of::<T>()).any(|&byte| byte != 0);
    if is_set { Err(Errno(libc::E2BIG)) } else { Ok(()) }
}

/// Reads a structure, as far as this library knows it.
///
/// # Safety
/// `pointer` is null or names `size` bytes.
pub(super) unsafe fn read_grown<T: Extensible>(pointer: *const T, size: usize) -> Outcome<T> {
    // SAFETY: the caller vouches for it.
    unsafe { check_rest(pointer, size) }?;
    let mut known = MaybeUninit::<T>::zeroed();
    let (to, len) = (known.as_mut_ptr().cast::<u8>(), size.min(size_of::<T>()));
    // SAFETY: both have `len` bytes, and no other code uses ours.
    unsafe { to.copy_from_nonoverlapping(pointer.cast(), len) };
    // SAFETY: all bytes are set, and all bytes are valid for it.
    Ok(unsafe { known.assume_init() })
}

/// An array of C, whose elements have the size that the program knows.
pub(super) struct Elements<T> {
    first: *mut T,
    count: usize,
    size: usize,
}

impl<T: Extensible> Elements<T> {
    /// Makes the array. A negative count is `EINVAL`.
    ///
    /// # Safety
    /// `first` is null or names `count` contiguous elements of `size` bytes, which no other code
    /// uses while this exists.
    pub(super) unsafe fn new(first: *mut T, count: c_int, size: usize) -> Outcome<Self> {
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        check_size::<T>(size)?;
        if first.is_null() && count > 0 {
            Err(Errno::FAULT)
        } else {
            Ok(Self { first, count, size })
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Reads an element, as far as this library knows it.
    pub(super) fn read(&self, at: usize) -> Outcome<T> {
        // SAFETY: `new` was promised that the element has `size` bytes.
        unsafe { read_grown(self.element(at).cast(), self.size) }
    }

    /// Writes an element, as far as the program knows it. Fields that this library does not know
    /// become zero.
    pub(super) fn write(&mut self, at: usize, value: &T) {
        let (to, len) = (self.element(at), self.size.min(size_of::<T>()));
        // SAFETY: both have `len` bytes, and `new` was promised that no other code uses the
        // element.
        unsafe { to.copy_from_nonoverlapping((&raw const *value).cast(), len) };
        // SAFETY: `len` is at most `size`, so this is within the element or at its end.
        let rest = unsafe { to.add(len) };
        // SAFETY: these are the last bytes of the element, and `new` was promised that no other
        // code uses them.
        unsafe { rest.write_bytes(0, self.size - len) };
    }

    /// Address of an element.
    fn element(&self, at: usize) -> *mut u8 {
        assert!(at < self.count, "it is one of the array");
        // SAFETY: `new` was promised the whole array, and the index is within it.
        unsafe { self.first.cast::<u8>().add(at * self.size) }
    }
}

/// Structures into which the result is written.
pub(super) trait Answered: Extensible {}
impl Answered for TowpathChange {}
impl Answered for TowpathOperation {}

impl<T: Answered> Elements<T> {
    /// Writes the result of an element into it: its identifier, or an error.
    pub(super) fn answer(&mut self, at: usize, result: Outcome<u64>) {
        let element = self.element(at);
        let error = result.map_or_else(|Errno(number)| number, |_| 0);
        let (error_place, id_place) = (element.wrapping_add(ERROR_AT), element.wrapping_add(ID_AT));
        // SAFETY: the field is in the first version, so every element has it. `new` was promised
        // that no other code uses it.
        unsafe { error_place.cast::<c_int>().write_unaligned(error) };
        if let Ok(id) = result {
            // SAFETY: the field is in the first version, so every element has it. `new` was
            // promised that no other code uses it.
            unsafe { id_place.cast::<u64>().write_unaligned(id) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A structure whose second version has one more field.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Second {
        first: u64,
        second: u64,
    }

    // SAFETY: it contains only integers, for which all bytes are valid.
    unsafe impl Extensible for Second {
        const FIRST: usize = 8;
    }

    fn elements(words: &mut [u64], size: usize) -> Outcome<Elements<Second>> {
        let count = (size_of_val(words) / size.max(1)) as c_int;
        // SAFETY: the array has this many elements, and the caller has borrowed the words.
        unsafe { Elements::new(words.as_mut_ptr().cast(), count, size) }
    }

    /// Goal: programs of the first, of this and of a later version can pass arrays. Nothing beyond
    /// an element is read or written, and no field that is set is ignored.
    #[test]
    fn elements_are_as_long_as_the_program_knows_them() {
        let of = |first, second| Ok(Second { first, second });
        let mut words = [1, 2, 3, 4, 5, 0];
        let mut old = elements(&mut words, 8).expect("the first version");
        assert_eq!((old.len(), old.read(0), old.read(5)), (6, of(1, 0), of(0, 0)));
        old.write(1, &Second { first: 7, second: 8 });
        let same = elements(&mut words, 16).expect("this version");
        assert_eq!((same.len(), same.read(0), same.read(2)), (3, of(1, 7), of(5, 0)));
        let mut new = elements(&mut words, 24).expect("a later version");
        assert_eq!((new.len(), new.read(0)), (2, Err(Errno(libc::E2BIG))));
        assert_eq!(new.read(1), of(4, 5));
        new.write(0, &Second { first: 9, second: 8 });
        assert_eq!(words, [9, 8, 0, 4, 5, 0]);
        for (size, errno) in [(0, libc::EINVAL), (12, libc::EINVAL), (4104, libc::E2BIG)] {
            assert_eq!(elements(&mut [0; 520], size).err(), Some(Errno(errno)), "{size}");
        }
    }
}
