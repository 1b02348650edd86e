//! Copying memory that others may write while it is copied.
//!
//! The bytes may come out torn, and that is all: each is read once and written once, nothing is
//! decided by what was read, and no reference to such memory exists. Where the processor has an
//! instruction for it, the copy is one that the compiler does not look into; elsewhere it is made
//! of volatile accesses. Any thread.
#![allow(unsafe_code)]

/// Copies `len` bytes; either end may be memory that others write meanwhile. If they overlap, those
/// at `to` come out as any.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: moves `len` bytes upwards from `rsi` to `rdi`, which the caller vouches for; the
    // direction flag is clear, as at every function's start; the three registers are given back
    // as changed, and no other state is touched.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies `len` bytes; either end may be memory that others write meanwhile. If they overlap, those
/// at `to` come out as any.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    const WORD: usize = size_of::<u64>();
    let mut at = 0;
    if from.addr() % WORD == to.addr() % WORD {
        let head = from.addr().wrapping_neg() % WORD;
        let words = len.saturating_sub(head) / WORD;
        // SAFETY: `head` is within `len`, or there are no words and `bytes` is bounded by `len`.
        at += unsafe { copy_bytes(from, to, 0, head.min(len)) };
        for _ in 0..words {
            // SAFETY: `at + WORD <= len`.
            let source = unsafe { from.add(at) }.cast::<u64>();
            // SAFETY: as above.
            let target = unsafe { to.add(at) }.cast::<u64>();
            // SAFETY: valid by the caller, aligned by `head`.
            let word = unsafe { source.read_volatile() };
            // SAFETY: as above; both ends have the same alignment.
            unsafe { target.write_volatile(word) };
            at += WORD;
        }
    }
    // SAFETY: `at <= len`.
    unsafe { copy_bytes(from, to, at, len) };
}

/// Copies the bytes from `at` to `end`, one by one; returns how many.
///
/// # Safety
/// As for `copy`, of `end` bytes.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, at: usize, end: usize) -> usize {
    for index in at..end {
        // SAFETY: `index < end`.
        let byte = unsafe { from.add(index).read_volatile() };
        // SAFETY: as above.
        unsafe { to.add(index).write_volatile(byte) };
    }
    end.saturating_sub(at)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Goal: exactly the bytes asked for arrive, at every alignment of both ends.
    #[test]
    fn any_length_and_alignment_is_copied() {
        let source: Vec<u8> = (0..200u8).collect();
        for (from, to) in (0..9).flat_map(|from| (0..9).map(move |to| (from, to))) {
            for len in (0..40).chain([64, 127, 180]) {
                let mut target = [0xaa; 200];
                let start = source[from..].as_ptr();
                // SAFETY: `from + len` and `to + len` are below 200.
                unsafe { copy(start, target[to..].as_mut_ptr(), len) };
                assert_eq!(target[to..to + len], source[from..from + len]);
                assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 0xaa));
            }
        }
    }
}
