//! Copies of memory that others may write during the copy.
//!
//! A copy may be torn, but that is its only flaw: each byte is a value that the byte had, no
//! decision depends on the bytes read, and there is no reference to such memory. On x86-64 the copy
//! is assembly, which the compiler does not see into; elsewhere it consists of volatile accesses.
//! Long copies of memory that belongs to us are made here, too, for speed ([`copy_own`]). Any
//! thread may call.
#![allow(unsafe_code)]

/// Copies from this size on use the string instruction. It has a long start-up time: vectors are
/// faster for headers and for the payload of one frame.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STRING_BYTES_MIN: usize = 1537;

/// Distances from source to target, modulo the page size, at which string instructions take an
/// order of magnitude longer: on AMD processors (measured on Zen 4) those below a cache line.
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
const SLOW_DISTANCES: core::ops::Range<usize> = 1..LINE_BYTES;
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
const PAGE_BYTES: usize = 4096;

/// Copies from this size on use vectors of 32 bytes if the processor has them. For shorter copies
/// the code before and after the loop would take most of the time.
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
const WIDE_BYTES_MIN: usize = 256;

/// Most bytes that one call prefetches: more would evict bytes that were prefetched before.
pub const PREFETCH_BYTES_MAX: usize = 1536;
/// Bytes of the virtio-net header, which precedes each packet of a guest.
pub(crate) const VIRTIO_HEADER_BYTES: usize = 12;
/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Copies all of `from` to the start of `to`, as `copy_from_slice` does. It is also fast at the
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

/// Prefetches memory that is read soon. Any address is allowed: unmapped memory is skipped.
#[inline]
pub fn prefetch_read(at: *const u8, len: usize) {
    each_line(at, len, prefetch_line_read);
}

/// Prefetches memory that is in no cache, into the second-level cache only: few lines can be on
/// their way into the first level at a time, and copies of present data need those.
#[inline]
pub fn prefetch_read_far(at: *const u8, len: usize) {
    each_line(at, len, prefetch_line_read_far);
}

/// Prefetches memory that is written soon. Any address is allowed.
#[inline]
pub fn prefetch_write(at: *const u8, len: usize) {
    each_line(at, len, prefetch_line_write);
}

/// Prefetches the cache lines of the first and of the last byte of up to 128 bytes, which are read
/// soon. Any address is allowed.
#[inline]
pub fn prefetch_ends_read(at: *const u8, len: usize) {
    prefetch_line_read(at);
    prefetch_line_read(at.wrapping_add(len.saturating_sub(1)));
}

/// Prefetches the cache lines of the first and of the last byte of up to 128 bytes, which are
/// written soon. Any address is allowed.
#[inline]
pub fn prefetch_ends_write(at: *const u8, len: usize) {
    prefetch_line_write(at);
    prefetch_line_write(at.wrapping_add(len.saturating_sub(1)));
}

/// Defines a function that prefetches one cache line with an instruction of the processor.
macro_rules! line_hint {
    ($(#[$doc:meta])* $visibility:vis $name:ident, $instruction:literal) => {
        $(#[$doc])*
        #[inline]
        $visibility fn $name(at: *const u8) {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: a hint, which accesses no memory and cannot fail. Processors without the
            // instruction do nothing.
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
    /// Prefetches the cache line at an address, for reading.
    pub(crate) prefetch_line_read, "prefetcht0"
}
line_hint! {
    /// Prefetches one cache line into the second-level cache, for reading.
    prefetch_line_read_far, "prefetcht1"
}
line_hint! {
    /// Prefetches the cache line at an address, for writing.
    pub(crate) prefetch_line_write, "prefetchw"
}

/// Calls `each` with an address in each cache line of the range, up to `PREFETCH_BYTES_MAX`.
#[inline]
fn each_line(at: *const u8, len: usize, each: impl Fn(*const u8)) {
    let before = at.addr() % LINE_BYTES;
    let mut left = (before + len.min(PREFETCH_BYTES_MAX)).div_ceil(LINE_BYTES);
    let mut line = at.wrapping_sub(before);
    // Unrolled by four: the loop counter would take as long as the prefetches.
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

/// Copies `len` bytes. Others may write either range during the copy. If the ranges overlap, the
/// bytes at `to` are unspecified.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    match len {
        // First, because most copies are of short frames.
        // SAFETY: the caller guarantees the ranges, and the length is at least sixteen.
        16..WIDE_BYTES_MIN => unsafe { copy_vectors(from, to, len) },
        // SAFETY: the caller guarantees the ranges, and the length is that of the header.
        VIRTIO_HEADER_BYTES => unsafe { copy_virtio_header(from, to) },
        // SAFETY: the caller guarantees the ranges, and the length is at least eight.
        8..16 => unsafe { copy_words(from, to, len) },
        // SAFETY: the caller guarantees the ranges. Too short for vectors.
        ..8 => unsafe { copy_string(from, to, len) },
        // SAFETY: the caller guarantees the ranges.
        STRING_BYTES_MIN.. if !is_slow_as_string(from, to) => unsafe {
            copy_string(from, to, len);
        },
        // SAFETY: the caller guarantees the ranges; the length suffices, and these vectors are
        // there.
        WIDE_BYTES_MIN.. if wide::is_there() => unsafe { copy_wide(from, to, len) },
        // SAFETY: the caller guarantees the ranges, and the length is at least sixteen.
        _ => unsafe { copy_vectors(from, to, len) },
    }
}

/// True if the target begins so shortly behind the source, modulo the page size, that string
/// instructions are slow.
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
#[inline]
fn is_slow_as_string(from: *const u8, to: *mut u8) -> bool {
    SLOW_DISTANCES.contains(&(to.addr().wrapping_sub(from.addr()) % PAGE_BYTES))
}

/// Copies the twelve bytes of a virtio-net header, as [`copy`] does: eight bytes and four. A load
/// of the same size as an earlier store can take its data before the store is complete. Other loads
/// would wait for all earlier stores, such as those of a packet to memory that is in no cache.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of twelve bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub unsafe fn copy_virtio_header(from: *const u8, to: *mut u8) {
    // SAFETY: reads and writes eight bytes at 0 and four at 8, which the caller guarantees; the
    // instructions need no alignment and touch no other state.
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

/// Copies the twelve bytes of a virtio-net header, as [`copy`] does.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of twelve bytes.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub unsafe fn copy_virtio_header(from: *const u8, to: *mut u8) {
    // SAFETY: the caller guarantees the ranges.
    unsafe { copy(from, to, VIRTIO_HEADER_BYTES) };
}

/// Copies the first eight bytes and the last eight, which may overlap.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, which is at least eight. Bytes
/// beyond sixteen are not copied.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_words(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: reads and writes eight bytes at 0 and eight at `len - 8`, which the caller
    // guarantees; the instructions need no alignment and touch no other state.
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

/// Copies sixteen bytes at a time, in blocks of four where possible. The last sixteen may overlap
/// those before them.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, which is at least sixteen.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_vectors(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: reads and writes 64 bytes at multiples of 64 while that stays within `len` bytes,
    // sixteen at multiples of 16 below `len - 16`, and sixteen at `len - 16`: all within the ranges
    // that the caller guarantees. The instructions need no alignment; the flags and the registers
    // are declared as changed.
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

/// Copies the first 32 bytes, then blocks from a multiple of 32 of `to` on, where no store crosses
/// a cache line. The last 128 bytes may overlap those before them.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, which is at least 128, and
/// [`wide::is_there`] returned true.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_wide(from: *const u8, to: *mut u8, len: usize) {
    let aligned = 32 - to.addr() % 32;
    // SAFETY: reads and writes 32 bytes at 0, 128 from `aligned` on while they begin below `len -
    // 128`, and 128 at `len - 128`: all within the ranges that the caller guarantees. The stores of
    // the loop are at multiples of 32 of `to`. The caller guarantees that the instructions exist.
    // The flags, and all registers whose upper halves are cleared at the end, are declared as
    // changed.
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

/// Copies with the string instruction, byte by byte for the program.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_string(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: moves `len` bytes upwards from `rsi` to `rdi`, which the caller guarantees. The
    // direction flag is clear, as at the start of every function. The three registers are declared
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

/// Copies `len` bytes. Others may write either range during the copy. If the ranges overlap, the
/// bytes at `to` are unspecified.
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
            // SAFETY: `at + WORD <= len`, so the target is within the caller's range.
            let target = unsafe { to.add(at) }.cast::<u64>();
            // SAFETY: the caller guarantees that it is valid, and `head` bytes align it.
            let word = unsafe { source.read_volatile() };
            // SAFETY: the caller guarantees that it is valid, and both ranges have the same
            // alignment.
            unsafe { target.write_volatile(word) };
            at += WORD;
        }
    }
    // SAFETY: `at <= len`.
    unsafe { copy_bytes(from, to, at, len) };
}

/// Copies the bytes from `at` to `end`, one by one, and returns their number.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `end` bytes.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, at: usize, end: usize) -> usize {
    for index in at..end {
        // SAFETY: `index < end`, so it is within the caller's range.
        let byte = unsafe { from.add(index).read_volatile() };
        // SAFETY: `index < end`, so it is within the caller's range.
        unsafe { to.add(index).write_volatile(byte) };
    }
    end.saturating_sub(at)
}

/// Detects whether the processor has vectors of 32 bytes, and the operating system saves them for
/// each thread.
#[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
mod wide {
    use crate::sync::{AtomicU8, Ordering};

    pub(super) fn is_there() -> bool {
        // Relaxed: the value depends on nothing else, and every thread finds the same one.
        match KNOWN.load(Ordering::Relaxed) {
            UNKNOWN => look(),
            known => known == YES,
        }
    }

    #[cold]
    fn look() -> bool {
        let features = features();
        let is_there = features & AVX != 0 && enabled(features) & STATES == STATES;
        // Relaxed: the value depends on nothing else.
        KNOWN.store(if is_there { YES } else { NO }, Ordering::Relaxed);
        is_there
    }

    /// Feature bits of the processor.
    fn features() -> u32 {
        let features;
        // SAFETY: leaf 1 exists on every x86-64 processor. `rbx`, which the compiler reserves, is
        // restored.
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

    /// Register states that the operating system saves for each thread.
    fn enabled(features: u32) -> u32 {
        if features & OSXSAVE == 0 {
            return 0;
        }
        let states;
        // SAFETY: the instruction exists, as the feature bit says. It reads a register.
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
    /// States of the `xmm` and `ymm` registers.
    const STATES: u32 = 1 << 1 | 1 << 2;
}

/// Loom's atomics cannot be constants, so the model does without this.
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

    /// Goal: exactly the requested bytes arrive, at every alignment of both ends.
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

    /// Goal: long copies are complete at each distance near those at which string instructions are
    /// slow, and these distances are recognised.
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

    /// Goal: wide copies, whose stores are aligned from the second on, are complete. Method: every
    /// alignment of the target, and lengths around those at which the loop ends.
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
