//! Handles files that are truncated while they are mapped: the port fails, not the process.
//!
//! # Theory of operation
//!
//! An access to a mapped page past the end of its file raises SIGBUS, which ends the process. So
//! does a page that cannot be allocated, for example when huge pages have run out, and one that the
//! machine has lost. Any holder of the file can cause this at any time, even between a check and
//! the access, and seals forbid only some of it. So accesses are not checked; [`guard`] installs a
//! handler for the signal instead. If the address lies in a watched mapping (`Watch`), as all of a
//! guest's are, the handler replaces the whole mapping by zeros, sets a flag, and the access
//! continues. The owner of the mapping checks the flag (`Watch::is_lost`) and ends the session. A
//! SIGBUS for any other address, or one that a process sent, ends this process as it would without
//! the handler.
//!
//! The handler calls only mmap and sigaction, takes no lock and allocates nothing: a watched
//! mapping is one number in a table that never moves. When the kernel itself copies from such
//! memory, it raises no signal but fails with EFAULT.
//!
//! Signal handlers belong to the process, so a library does not install one by itself: without
//! [`guard`] the process ends. Any thread. Limit: [`WATCHED_MAX`] mappings; further ones are
//! refused.
#![allow(unsafe_code)]

use super::message::REGIONS_MAX;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::NonNull;
use towpath_packet::sync::{AtomicBool, AtomicU64, Ordering};

/// Most mappings watched at a time: all regions, the dirty log and the in-flight region of 256
/// guests, each twice while one replaces another.
pub const WATCHED_MAX: usize = 256 * 2 * (REGIONS_MAX + 2);

/// Addresses are stored in units of 4 KiB; every page size is a multiple of that.
const UNIT_BITS: u32 = 12;
/// Bits for the length, below those for the start: up to 1 TiB, and addresses of 48 bits.
const LENGTH_BITS: u32 = 28;

/// si_code of an access to memory that the machine has lost (sigaction(2)).
const BUS_MCEERR_AR: c_int = 4;

/// Start and length in units; zero if not in use. One number, so that it cannot be half updated.
static RANGES: [AtomicU64; WATCHED_MAX] = [const { AtomicU64::new(0) }; WATCHED_MAX];
/// Which of the ranges were replaced.
static CUT: [AtomicBool; WATCHED_MAX] = [const { AtomicBool::new(false) }; WATCHED_MAX];

/// Handles SIGBUS for watched mappings from now on, in all threads. For the code that owns the
/// process's signal handlers; one call is enough.
///
/// # Errors
/// Those of sigaction(2).
pub fn guard() -> io::Result<()> {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
    set_action(handler as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK)
}

/// A mapping in the table, until this value is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    slot: usize,
}

impl Watch {
    /// Watches a mapping of `bytes` bytes at `start`. Returns `None` if the table is full or cannot
    /// store the range.
    ///
    /// # Safety
    /// The range must be a mapping of this process, or a page-aligned part of one, for as long as
    /// the value lives. No code may rely on its content, which may turn into zeros at any time.
    pub(super) unsafe fn new(start: NonNull<c_void>, bytes: usize) -> Option<Self> {
        let (start, length) = ((start.addr().get() as u64) >> UNIT_BITS, bytes as u64 >> UNIT_BITS);
        if start >> (u64::BITS - LENGTH_BITS) != 0 || length == 0 || length >> LENGTH_BITS != 0 {
            return None;
        }
        let range = start << LENGTH_BITS | length;
        let slot = RANGES.iter().position(|place| {
            // Relaxed: a check that avoids the exchange where the slot is in use.
            if place.load(Ordering::Relaxed) != 0 {
                return false;
            }
            // Release: pairs with the Acquire of the slot's next owner and of the handler. Both
            // then see the flag as the last `drop` cleared it, not as set for an earlier range.
            place.compare_exchange(0, range, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        Some(Self { slot })
    }

    /// True if the mapping's file was truncated and zeros have replaced it.
    pub(super) fn is_lost(&self) -> bool {
        // Relaxed: the flag protects no other memory.
        CUT[self.slot].load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Relaxed: ordered by the Release below.
        CUT[self.slot].store(false, Ordering::Relaxed);
        // Release: pairs with the AcqRel of the slot's next owner.
        RANGES[self.slot].store(0, Ordering::Release);
    }
}

/// Runs on the thread whose access failed, in place of that access.
extern "C" fn on_bus_error(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: SA_SIGINFO is set, so the kernel passes a pointer to a valid structure.
    let info = unsafe { &*info };
    // SAFETY: for SIGBUS this field holds the address or, if a process sent the signal, the
    // sender's number; either is a valid value.
    let address = unsafe { info.si_addr() };
    let is_access = matches!(info.si_code, libc::BUS_ADRERR | BUS_MCEERR_AR);
    if is_access && replace(address.addr() as u64) {
        return;
    }
    // The repeated access or signal then ends the process. If the handler cannot be reset, the
    // access is repeated forever, which affects only this thread.
    let _ = set_action(libc::SIG_DFL, 0);
    if info.si_code <= 0 {
        // SAFETY: the call accesses no memory. The signal stays pending until this handler returns.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}

/// Replaces the watched mapping that contains this address by zeros; false if there is none.
fn replace(address: u64) -> bool {
    for (place, cut) in RANGES.iter().zip(&CUT) {
        // Acquire: pairs with the AcqRel of `Watch::new`.
        let range = place.load(Ordering::Acquire);
        let start = (range >> LENGTH_BITS) << UNIT_BITS;
        let bytes = (range & ((1 << LENGTH_BITS) - 1)) << UNIT_BITS;
        if address < start || address - start >= bytes {
            continue;
        }
        let at = std::ptr::with_exposed_provenance_mut(start as usize);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the contract of `Watch::new` says that the range is a mapping on whose content no
        // code relies, so it may be replaced. The mapping still exists: the failed access goes
        // through its owner, which still has the `Watch`.
        let mapped = unsafe { rustix::mm::mmap_anonymous(at, bytes as usize, protection, flags) };
        // Relaxed: the flag protects no other memory.
        cut.store(mapped.is_ok(), Ordering::Relaxed);
        return mapped.is_ok();
    }
    false
}

fn set_action(handler: libc::sighandler_t, flags: c_int) -> io::Result<()> {
    // SAFETY: zeros are a valid value of this structure of numbers: no signal is blocked.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: the structure is valid, and the handler has the type that its flags require.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vhost_user::shared::Mapping;
    use rustix::fs::MemfdFlags;

    const PAGE: u64 = 4096;

    /// Goal: reads and writes of truncated memory continue and read zeros, and the right mapping is
    /// flagged. A mapping that uses the same table slot later is not flagged.
    #[test]
    fn a_mapping_that_is_truncated_is_replaced() {
        guard().unwrap();
        let file = || {
            let file = rustix::fs::memfd_create("cut", MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, 4 * PAGE).unwrap();
            file
        };
        let (cut, whole) = (file(), file());
        for _ in 0..3 {
            rustix::fs::ftruncate(&cut, 4 * PAGE).unwrap();
            let [mapping, other] = [&cut, &whole].map(|f| Mapping::new(f, 0, 4 * PAGE).unwrap());
            assert!(!mapping.is_lost());
            for mapping in [&mapping, &other] {
                mapping.stretch(PAGE as usize, 3).write(b"abc");
            }
            rustix::fs::ftruncate(&cut, 0).unwrap();
            let mut bytes = [1; 3];
            mapping.stretch(PAGE as usize, 3).read(&mut bytes);
            assert_eq!(bytes, [0; 3]);
            mapping.stretch(3 * PAGE as usize, 3).write(b"xyz");
            assert!(mapping.is_lost() && !other.is_lost());
            other.stretch(PAGE as usize, 3).read(&mut bytes);
            assert_eq!(&bytes, b"abc");
        }
    }
}
