//! Copying memory that others may write while it is copied.
//!
//! The bytes may come out torn, and that is all: what comes out of each is a value that it had,
//! nothing is decided by what was read, and no reference to such memory exists. Where the processor
//! has instructions for it, the copy is one that the compiler does not look into; elsewhere it is
//! made of volatile accesses. Long copies of memory that is ours are made here too, for their speed
//! ([`copy_own`]). Any thread.
#![allow(unsafe_code)]

/// From here on the instruction for whole strings is used, which takes long to begin: vectors are
/// quicker for headers, and for the payload of a frame.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STRING_BYTES_MIN: usize = 1537;

/// Distances from source to target, between multiples of a page, that strings take an order of
/// magnitude longer for: on processors of AMD (measured on Zen 4) those of a part of a cache line.
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
const SLOW_DISTANCES: core::ops::Range<usize> = 1..LINE_BYTES;
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
const PAGE_BYTES: usize = 4096;

/// From here on vectors of 32 bytes are used where there are some: with fewer, what is done before
/// and behind the loop is most of it.
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
const WIDE_BYTES_MIN: usize = 256;

/// Bytes that one call has fetched at most: more would push out what was fetched before.
pub const PREFETCH_BYTES_MAX: usize = 1536;
/// Bytes of the virtio-net header, which is in front of each packet of a guest.
pub(crate) const VIRTIO_HEADER_BYTES: usize = 12;
/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Copies all of `from` to the start of `to`, as `copy_from_slice` does; quick also at the
/// distances at which memcpy of the C library takes an order of magnitude longer.
///
/// # Panics
/// If `to` is shorter.
#[inline]
pub fn copy_own(from: &[u8], to: &mut [u8]) {
    let to = &mut to[..from.len()];
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if from.len() >= STRING_BYTES_MIN {
        // SAFETY: both are valid for their length, which is the same.
        return unsafe { copy(from.as_ptr(), to.as_mut_ptr(), to.len()) };
    }
    to.copy_from_slice(from);
}

/// Has memory fetched that is read soon. Any address will do: what is not there is left out.
#[inline]
pub fn prefetch_read(at: *const u8, len: usize) {
    each_line(at, len, prefetch_line_read);
}

/// The same of memory that no cache has, as far as the second cache only: few lines can be on their
/// way into the first, and copies of what is there already need those.
#[inline]
pub fn prefetch_read_far(at: *const u8, len: usize) {
    each_line(at, len, prefetch_line_read_far);
}

/// As [`prefetch_read`] for memory that is written soon.
#[inline]
pub fn prefetch_write(at: *const u8, len: usize) {
    each_line(at, len, prefetch_line_write);
}

/// A function that asks for one cache line with an instruction of the processor.
macro_rules! line_hint {
    ($(#[$doc:meta])* $visibility:vis $name:ident, $instruction:literal) => {
        $(#[$doc])*
        #[inline]
        $visibility fn $name(at: *const u8) {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: a hint, which reads nothing and cannot fail; processors that do not know it
            // do nothing.
            unsafe {
                core::arch::asm!(concat!($instruction, " [{}]"), in(reg) at,
                                 options(nostack, preserves_flags, readonly));
            }
            #[cfg(not(all(target_arch = "x86_64", not(miri))))]
            let _ = at;
        }
    };
}

line_hint! {
    /// As [`prefetch_read`], of the cache line at an address.
    pub(crate) prefetch_line_read, "prefetcht0"
}
line_hint! {
    /// As [`prefetch_read_far`], of one cache line.
    prefetch_line_read_far, "prefetcht1"
}
line_hint! {
    /// As [`prefetch_line_read`] for a line that is written soon.
    pub(crate) prefetch_line_write, "prefetchw"
}

/// Calls `each` with an address in each cache line of the first bytes.
#[inline]
fn each_line(at: *const u8, len: usize, each: impl Fn(*const u8)) {
    let before = at.addr() % LINE_BYTES;
    let mut left = (before + len.min(PREFETCH_BYTES_MAX)).div_ceil(LINE_BYTES);
    let mut line = at.wrapping_sub(before);
    // Four to a round: counting them would take as long as asking for them.
    while left >= 4 {
        for number in 0..4 {
            each(line.wrapping_add(number * LINE_BYTES));
        }
        (line, left) = (line.wrapping_add(4 * LINE_BYTES), left - 4);
    }
    for number in 0..left {
        each(line.wrapping_add(number * LINE_BYTES));
    }
}

/// Copies `len` bytes; either end may be memory that others write meanwhile. If they overlap, those
/// at `to` come out as any.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    match len {
        // SAFETY: the caller's promise, and this length.
        VIRTIO_HEADER_BYTES => unsafe { copy_virtio_header(from, to) },
        // SAFETY: as above.
        8..16 => unsafe { copy_words(from, to, len) },
        // SAFETY: as above; fewer than those of vectors, or so far apart that strings are quick.
        ..8 => unsafe { copy_string(from, to, len) },
        // SAFETY: as above.
        STRING_BYTES_MIN.. if !is_slow_as_string(from, to) => unsafe {
            copy_string(from, to, len);
        },
        // SAFETY: as above; the processor and the system have such vectors.
        WIDE_BYTES_MIN.. if wide::is_there() => unsafe { copy_wide(from, to, len) },
        // SAFETY: as above.
        _ => unsafe { copy_vectors(from, to, len) },
    }
}

/// Whether the target begins so little behind the source, pages aside, that strings are slow.
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
#[inline]
fn is_slow_as_string(from: *const u8, to: *mut u8) -> bool {
    SLOW_DISTANCES.contains(&(to.addr().wrapping_sub(from.addr()) % PAGE_BYTES))
}

/// Eight bytes and four: what was stored as these can be loaded before the stores are done. Other
/// loads would wait for all stores before them, such as a packet's to memory that no cache has.
///
/// # Safety
/// As for `copy`, of twelve bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_virtio_header(from: *const u8, to: *mut u8) {
    // SAFETY: reads and writes eight bytes from 0 on and four from 8 on, within what the caller
    // vouches for; no alignment is asked for, and no other state is touched.
    unsafe {
        core::arch::asm!(
            "mov {first}, [{from}]",
            "mov {second:e}, [{from} + 8]",
            "mov [{to}], {first}",
            "mov [{to} + 8], {second:e}",
            from = in(reg) from,
            to = in(reg) to,
            first = out(reg) _,
            second = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// The first eight bytes and the last eight, which may overlap.
///
/// # Safety
/// As for `copy`, of eight bytes or more; those beyond sixteen are not copied.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_words(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: reads and writes eight bytes from 0 on and from `len - 8` on, within what the caller
    // vouches for; no alignment is asked for, and no other state is touched.
    unsafe {
        core::arch::asm!(
            "mov {first}, [{from}]",
            "mov {second}, [{from} + {last}]",
            "mov [{to}], {first}",
            "mov [{to} + {last}], {second}",
            from = in(reg) from,
            to = in(reg) to,
            last = in(reg) len - 8,
            first = out(reg) _,
            second = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// By sixteen bytes, four at a time where there are so many; the last sixteen may overlap those
/// before them.
///
/// # Safety
/// As for `copy`, of sixteen bytes or more.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_vectors(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: reads and writes 64 bytes at multiples of 64 as long as `len` bytes are not
    // exceeded, sixteen at multiples of 16 below `len - 16`, and sixteen at `len - 16`: within what
    // the caller vouches for. No alignment is asked for; the flags and the registers are said to
    // change.
    unsafe {
        core::arch::asm!(
            "cmp {last}, 48",
            "jb 3f",
            "2:",
            "movups {a}, [{from} + {at}]",
            "movups {b}, [{from} + {at} + 16]",
            "movups {c}, [{from} + {at} + 32]",
            "movups {d}, [{from} + {at} + 48]",
            "movups [{to} + {at}], {a}",
            "movups [{to} + {at} + 16], {b}",
            "movups [{to} + {at} + 32], {c}",
            "movups [{to} + {at} + 48], {d}",
            "add {at}, 64",
            "lea {end}, [{at} + 48]",
            "cmp {end}, {last}",
            "jbe 2b",
            "jmp 4f",
            "3:",
            "movups {a}, [{from} + {at}]",
            "movups [{to} + {at}], {a}",
            "add {at}, 16",
            "4:",
            "cmp {at}, {last}",
            "jb 3b",
            "movups {a}, [{from} + {last}]",
            "movups [{to} + {last}], {a}",
            from = in(reg) from,
            to = in(reg) to,
            last = in(reg) len - 16,
            at = inout(reg) 0_usize => _,
            end = out(reg) _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// By 32 bytes: the first, then from a multiple of 32 of `to` on, where no store touches two cache
/// lines; the last 128 may overlap those before them.
///
/// # Safety
/// As for `copy`, of 128 bytes or more, and [`wide::is_there`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_wide(from: *const u8, to: *mut u8, len: usize) {
    let aligned = 32 - to.addr() % 32;
    // SAFETY: reads and writes 32 bytes at 0, 128 from `aligned` on as long as they begin below
    // `len - 128`, and 128 at `len - 128`: within what the caller vouches for. The stores of the
    // loop are at multiples of 32. The instructions are there, by the caller's promise; the flags
    // and all registers whose upper halves are cleared at the end are said to change.
    unsafe {
        core::arch::asm!(
            "vmovdqu ymm0, [{from}]",
            "vmovdqu [{to}], ymm0",
            "cmp {at}, {last}",
            "jae 3f",
            "2:",
            "vmovdqu ymm0, [{from} + {at}]",
            "vmovdqu ymm1, [{from} + {at} + 32]",
            "vmovdqu ymm2, [{from} + {at} + 64]",
            "vmovdqu ymm3, [{from} + {at} + 96]",
            "vmovdqa [{to} + {at}], ymm0",
            "vmovdqa [{to} + {at} + 32], ymm1",
            "vmovdqa [{to} + {at} + 64], ymm2",
            "vmovdqa [{to} + {at} + 96], ymm3",
            "add {at}, 128",
            "cmp {at}, {last}",
            "jb 2b",
            "3:",
            "vmovdqu ymm0, [{from} + {last}]",
            "vmovdqu ymm1, [{from} + {last} + 32]",
            "vmovdqu ymm2, [{from} + {last} + 64]",
            "vmovdqu ymm3, [{from} + {last} + 96]",
            "vmovdqu [{to} + {last}], ymm0",
            "vmovdqu [{to} + {last} + 32], ymm1",
            "vmovdqu [{to} + {last} + 64], ymm2",
            "vmovdqu [{to} + {last} + 96], ymm3",
            "vzeroupper",
            from = in(reg) from,
            to = in(reg) to,
            last = in(reg) len - 128,
            at = inout(reg) aligned => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

/// Byte by byte, as the processor likes it.
///
/// # Safety
/// As for `copy`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_string(from: *const u8, to: *mut u8, len: usize) {
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

/// Whether the processor has vectors of 32 bytes, and the system keeps them for each thread.
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
mod wide {
    use crate::sync::{AtomicU8, Ordering};

    pub(super) fn is_there() -> bool {
        // Relaxed: a number that stands for itself, and that everybody finds the same.
        match KNOWN.load(Ordering::Relaxed) {
            UNKNOWN => look(),
            known => known == YES,
        }
    }

    #[cold]
    fn look() -> bool {
        let features = features();
        let is_there = features & AVX != 0 && enabled(features) & STATES == STATES;
        // Relaxed: as above.
        KNOWN.store(if is_there { YES } else { NO }, Ordering::Relaxed);
        is_there
    }

    /// Of the processor.
    fn features() -> u32 {
        let features;
        // SAFETY: leaf 1 exists on every x86-64; `rbx`, which the compiler keeps for itself, is
        // put back.
        unsafe {
            core::arch::asm!(
                "mov {kept}, rbx", "cpuid", "mov rbx, {kept}",
                kept = out(reg) _,
                inout("eax") 1 => _,
                out("ecx") features,
                out("edx") _,
                options(nostack, nomem, preserves_flags),
            );
        }
        features
    }

    /// What the system keeps for each thread.
    fn enabled(features: u32) -> u32 {
        if features & OSXSAVE == 0 {
            return 0;
        }
        let states;
        // SAFETY: the instruction is there, as the feature says; it reads a register.
        unsafe {
            core::arch::asm!(
                "xgetbv",
                in("ecx") 0,
                out("eax") states,
                out("edx") _,
                options(nostack, nomem, preserves_flags),
            );
        }
        states
    }

    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    const OSXSAVE: u32 = 1 << 27;
    const AVX: u32 = 1 << 28;
    /// Those of `xmm` and `ymm` registers.
    const STATES: u32 = 1 << 1 | 1 << 2;
}

/// Loom's atomics are no constants.
#[cfg(all(target_arch = "x86_64", not(miri), loom))]
mod wide {
    pub(super) fn is_there() -> bool {
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Goal: exactly the bytes asked for arrive, at every alignment of both ends.
    #[test]
    #[cfg_attr(
        miri,
        ignore = "minutes of single bytes; what Miri runs instead of assembly is short"
    )]
    fn any_length_and_alignment_is_copied() {
        let source: Vec<u8> = (0..2100_usize).map(|at| (at % 251) as u8).collect();
        for (from, to) in (0..9).flat_map(|from| (0..9).map(move |to| (from, to))) {
            for len in (0..40).chain([64, 127, 180, 255, 1460, 1535, 1536, 1537]) {
                let mut target = [0xff; 2100];
                let start = source[from..].as_ptr();
                // SAFETY: `from + len` and `to + len` are below 2100.
                unsafe { copy(start, target[to..].as_mut_ptr(), len) };
                assert_eq!(target[to..to + len], source[from..from + len]);
                assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 0xff));
            }
        }
    }

    /// Goal: long copies are whole at each distance near those that strings are slow at, and which
    /// these are.
    #[test]
    #[cfg_attr(miri, ignore = "there is no assembly under Miri")]
    fn long_copies_are_whole_at_any_distance() {
        const LEN: usize = 5000;
        let source: Vec<u8> = (0..LEN + 64).map(|at| (at % 251) as u8).collect();
        let mut space = alloc::vec![0xff_u8; LEN + 2 * PAGE_BYTES];
        for distance in (0..70).chain(PAGE_BYTES - 20..PAGE_BYTES) {
            for from in [0, 1, 54] {
                let start = source[from..].as_ptr();
                let base = space.as_ptr().addr();
                let before = start.addr().wrapping_add(distance).wrapping_sub(base) % PAGE_BYTES;
                let to = space[before..].as_mut_ptr();
                assert_eq!(is_slow_as_string(start, to), (1..64).contains(&distance));
                // SAFETY: `before` is less than a page, and both have these bytes.
                unsafe { copy(start, to, LEN) };
                let (head, tail) = space.split_at(before + LEN);
                assert_eq!(head[before..], source[from..][..LEN], "{distance} behind");
                assert!(head[..before].iter().chain(tail).all(|&byte| byte == 0xff));
                space.fill(0xff);
            }
        }
    }

    /// Goal: the same where vectors are wide, whose stores are aligned in the midst of a copy.
    /// Method: every alignment of the target, lengths around those where the loop ends.
    #[test]
    #[cfg_attr(miri, ignore = "there is no assembly under Miri")]
    fn stores_that_are_aligned_leave_nothing_out() {
        let source: Vec<u8> = (0..1600_usize).map(|at| (at % 251) as u8).collect();
        let lengths = (WIDE_BYTES_MIN - 1..WIDE_BYTES_MIN + 132).chain([1279, 1280, 1281, 1536]);
        for (len, to) in lengths.flat_map(|len| (0..64).map(move |to| (len, to))) {
            let mut target = [0xff; 1664];
            // SAFETY: `len` is below 1600, and `to + len` below 1664.
            unsafe { copy(source[to % 3..].as_ptr(), target[to..].as_mut_ptr(), len) };
            assert_eq!(target[to..to + len], source[to % 3..][..len], "{len} bytes to {to}");
            assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 0xff));
        }
    }
}
