//! Structures that later versions of the library may add fields to, by themselves and several in an
//! array.
//!
//! The program says how long they are. What an older program does not know of a structure is taken
//! as zero, and not told; what a newer one has set that this library does not know is `E2BIG`, and
//! what it would be told is zero.
#![allow(unsafe_code)]

use super::shapes::{
    ERROR_AT, ID_AT, TowpathChange, TowpathConfig, TowpathLent, TowpathOperation, TowpathTransfer,
};
use crate::errno::{Errno, Outcome};
use crate::memory::pointers::bytes;
use crate::queue::Told;
use libc::c_int;
use std::mem::{MaybeUninit, offset_of};

/// Largest structure that a program of the future may give.
const STRUCTURE_BYTES_MAX: usize = 4096;

/// A structure of C's that later versions may add fields to, behind those that there are.
///
/// # Safety
/// Any bytes are one, and the first [`Grown::FIRST`] of it have no padding that matters to Rust:
/// it is read and written as bytes.
pub(super) unsafe trait Grown: Copy {
    /// Bytes of its first version: no program has a shorter one.
    const FIRST: usize;
}

// SAFETY: integers and pointers only, which all bytes are.
unsafe impl Grown for TowpathConfig {
    const FIRST: usize = offset_of!(TowpathConfig, file_cache);
}

// SAFETY: integers and pointers only, which all bytes are.
unsafe impl Grown for TowpathChange {
    const FIRST: usize = 88;
}

// SAFETY: integers and pointers only, which all bytes are.
unsafe impl Grown for TowpathOperation {
    const FIRST: usize = 80;
}

// SAFETY: integers and pointers only, which all bytes are.
unsafe impl Grown for TowpathTransfer {
    const FIRST: usize = 80;
}

// SAFETY: integers and pointers only, which all bytes are.
unsafe impl Grown for TowpathLent {
    const FIRST: usize = 64;
}

// SAFETY: integers only, which all bytes are, and no padding.
unsafe impl Grown for Told {
    const FIRST: usize = 40;
}

/// Fails unless a version of the structure can have this size.
fn check_size<T: Grown>(size: usize) -> Outcome<()> {
    if size < T::FIRST || !size.is_multiple_of(align_of::<T>()) {
        return Err(Errno::INVAL);
    }
    if size > STRUCTURE_BYTES_MAX { Err(Errno(libc::E2BIG)) } else { Ok(()) }
}

/// Fails with `E2BIG` if a structure has something set that this library does not know.
///
/// # Safety
/// `pointer` is null or names `size` bytes.
pub(super) unsafe fn check_rest<T: Grown>(pointer: *const T, size: usize) -> Outcome<()> {
    check_size::<T>(size)?;
    // SAFETY: the caller vouches for it.
    let given = unsafe { bytes(pointer.cast(), size) }?;
    let is_set = given.iter().skip(size_of::<T>()).any(|&byte| byte != 0);
    if is_set { Err(Errno(libc::E2BIG)) } else { Ok(()) }
}

/// A structure as this library knows it.
///
/// # Safety
/// As [`check_rest`].
pub(super) unsafe fn read_grown<T: Grown>(pointer: *const T, size: usize) -> Outcome<T> {
    // SAFETY: the caller vouches for it.
    unsafe { check_rest(pointer, size) }?;
    let mut known = MaybeUninit::<T>::zeroed();
    let (to, len) = (known.as_mut_ptr().cast::<u8>(), size.min(size_of::<T>()));
    // SAFETY: both have so many bytes, and ours are nobody else's.
    unsafe { to.copy_from_nonoverlapping(pointer.cast(), len) };
    // SAFETY: all of it is set, and any bytes are one.
    Ok(unsafe { known.assume_init() })
}

/// An array of C's, of elements that are as long as the program knows them.
pub(super) struct Elements<T> {
    first: *mut T,
    count: usize,
    size: usize,
}

impl<T: Grown> Elements<T> {
    /// The array. A negative count is `EINVAL`.
    ///
    /// # Safety
    /// `first` is null or names `count` elements of `size` bytes, one behind the other, that
    /// nobody else uses as long as this is there.
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

    /// The element as this library knows it.
    pub(super) fn read(&self, at: usize) -> Outcome<T> {
        // SAFETY: it has `size` bytes, as `new` was promised.
        unsafe { read_grown(self.element(at).cast(), self.size) }
    }

    /// Fills an element, as far as the program knows it; what this library does not know is zero.
    pub(super) fn write(&mut self, at: usize, value: &T) {
        let (to, len) = (self.element(at), self.size.min(size_of::<T>()));
        // SAFETY: both have so many bytes, and `new` was promised that nobody else uses these.
        unsafe { to.copy_from_nonoverlapping((&raw const *value).cast(), len) };
        // SAFETY: `len` is at most `size`, so this is within the element or at its end.
        let rest = unsafe { to.add(len) };
        // SAFETY: these are the last bytes of the element, and `new` was promised that nobody else
        // uses them.
        unsafe { rest.write_bytes(0, self.size - len) };
    }

    /// Where an element begins.
    fn element(&self, at: usize) -> *mut u8 {
        assert!(at < self.count, "it is one of the array");
        // SAFETY: it is within the array, as `new` was promised.
        unsafe { self.first.cast::<u8>().add(at * self.size) }
    }
}

/// What is answered in the element itself.
pub(super) trait Answered: Grown {}
impl Answered for TowpathChange {}
impl Answered for TowpathOperation {}

impl<T: Answered> Elements<T> {
    /// Fills in what became of an element: its identifier, or an error.
    pub(super) fn answer(&mut self, at: usize, result: Outcome<u64>) {
        let element = self.element(at);
        let error = result.map_or_else(|Errno(number)| number, |_| 0);
        let (error_place, id_place) = (element.wrapping_add(ERROR_AT), element.wrapping_add(ID_AT));
        // SAFETY: a field of the first version, which every element has; `new` was promised that
        // nobody else uses it.
        unsafe { error_place.cast::<c_int>().write_unaligned(error) };
        if let Ok(id) = result {
            // SAFETY: a field of the first version, too, of which nobody else makes use.
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

    // SAFETY: integers only.
    unsafe impl Grown for Second {
        const FIRST: usize = 8;
    }

    fn elements(words: &mut [u64], size: usize) -> Outcome<Elements<Second>> {
        let count = (size_of_val(words) / size.max(1)) as c_int;
        // SAFETY: so many of them are there, and the words are borrowed by the caller.
        unsafe { Elements::new(words.as_mut_ptr().cast(), count, size) }
    }

    /// Goal: programs of the first, of this and of a later version pass arrays: nobody is told, and
    /// nothing is read, beyond an element, and nothing that was set is passed over.
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
