//! Files that are cut while they are mapped: the port fails, not the process.
//!
//! # Theory of operation
//!
//! Touching a mapped page behind the end of its file raises SIGBUS, which ends the process; so does
//! a page that cannot be had, as where huge pages have run out, and one that the machine has lost.
//! Whoever holds the file can bring that about at any time, between any check and the access, and
//! seals forbid only some of it. So accesses are not checked: [`guard`] has the signal handled. If
//! the address lies in a mapping that is watched (`Watch`), as all of a guest's are, the handler
//! puts zeros of our own in the place of the whole mapping, notes that it was cut, and the access
//! goes on. Whoever owns the mapping looks at the note (`Watch::is_cut`) and ends the session. A
//! SIGBUS for any other address, and one that somebody sent, ends the process as before.
//!
//! The handler calls nothing but mmap and sigaction, takes no lock and allocates nothing: a watched
//! mapping is one number in a table that is never moved. What the kernel copies out of such memory
//! raises no signal, it fails with EFAULT.
//!
//! Signal handlers belong to the process, so a library does not take one: without [`guard`] the
//! process ends. Any thread. Limit: [`WATCHED_MAX`], beyond which nothing is mapped.
#![allow(unsafe_code)]

use super::message::REGIONS_MAX;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::NonNull;
use towpath_packet::sync::{AtomicBool, AtomicU64, Ordering};

/// Mappings that can be watched at a time: of 256 guests all regions, the dirty log and the area
/// for what is in flight, each twice while one takes the place of the other.
pub const WATCHED_MAX: usize = 256 * 2 * (REGIONS_MAX + 2);

/// Addresses are noted in units of 4 KiB, of which every size of page is a multiple.
const UNIT_BITS: u32 = 12;
/// Bits for a length, below those for the start: 1 TiB, and addresses of 48 bits.
const LENGTH_BITS: u32 = 28;

/// An access to memory that the machine has lost (sigaction(2)).
const BUS_MCEERR_AR: c_int = 4;

/// Start and length in units; zero: not in use. One number, so that it is never half of another.
static RANGES: [AtomicU64; WATCHED_MAX] = [const { AtomicU64::new(0) }; WATCHED_MAX];
/// Which of them were cut.
static CUT: [AtomicBool; WATCHED_MAX] = [const { AtomicBool::new(false) }; WATCHED_MAX];

/// Has SIGBUS for watched mappings handled from now on, in all threads. For whoever owns the
/// process's signals; once is enough.
///
/// # Errors
/// Those of sigaction(2).
pub fn guard() -> io::Result<()> {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
    set_action(handler as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK)
}

/// A mapping in the table, until it is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    slot: usize,
}

impl Watch {
    /// Watches a mapping of `bytes` at `start`; `None` if the table is full or has no numbers for
    /// it.
    ///
    /// # Safety
    /// The range is one mapping of this process, or a part of one that begins and ends on its
    /// pages, and stays that for as long as the value lives. Nobody relies on what is in it.
    pub(super) unsafe fn new(start: NonNull<c_void>, bytes: usize) -> Option<Self> {
        let (start, length) = ((start.addr().get() as u64) >> UNIT_BITS, bytes as u64 >> UNIT_BITS);
        if start >> (u64::BITS - LENGTH_BITS) != 0 || length == 0 || length >> LENGTH_BITS != 0 {
            return None;
        }
        let range = start << LENGTH_BITS | length;
        let slot = RANGES.iter().position(|place| {
            // Relaxed: a look that spares the exchange where the place is not free.
            if place.load(Ordering::Relaxed) != 0 {
                return false;
            }
            // Release: pairs with the Acquire of whoever takes the place afterwards, and of the
            // handler, which then finds the note below, not that of the range before.
            place.compare_exchange(0, range, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        Some(Self { slot })
    }

    /// True if the mapping's file was cut, and zeros are in its place.
    pub(super) fn is_cut(&self) -> bool {
        // Relaxed: nothing is read that the note stands for.
        CUT[self.slot].load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Relaxed: ordered by the Release below.
        CUT[self.slot].store(false, Ordering::Relaxed);
        // Release: pairs with the AcqRel of the next who takes the place.
        RANGES[self.slot].store(0, Ordering::Release);
    }
}

/// Runs on the thread whose access failed, in the place of that access.
extern "C" fn on_bus_error(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel hands over a valid structure, as SA_SIGINFO was set.
    let info = unsafe { &*info };
    // SAFETY: for this signal the field is the address, or the sender's number if somebody sent it.
    let address = unsafe { info.si_addr() };
    let is_access = matches!(info.si_code, libc::BUS_ADRERR | BUS_MCEERR_AR);
    if is_access && replace(address.addr() as u64) {
        return;
    }
    // The access fails again, or the signal comes again, and ends the process. If that cannot be
    // arranged, the access is tried for ever, which is not better but bounded to this thread.
    let _ = set_action(libc::SIG_DFL, 0);
    if info.si_code <= 0 {
        // SAFETY: no memory is touched. The signal waits until this handler is over.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}

/// Puts zeros in the place of the watched mapping that has this address; false if there is none.
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
        // SAFETY: the range is a mapping that nobody relies on the bytes of, as `Watch::new` was
        // promised. It is still there: the access that failed is one through whoever watches it.
        let mapped = unsafe { rustix::mm::mmap_anonymous(at, bytes as usize, protection, flags) };
        // Relaxed: nothing is read that the note stands for.
        cut.store(mapped.is_ok(), Ordering::Relaxed);
        return mapped.is_ok();
    }
    false
}

fn set_action(handler: libc::sighandler_t, flags: c_int) -> io::Result<()> {
    // SAFETY: zeros are a valid value of this structure of numbers: no signals are blocked.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: the structure is valid; the handler has the type that its flags ask for.
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

    /// Goal: whoever reads and writes what is gone reads zeros and goes on, and it is known which
    /// mapping it was; a mapping that was made later in the same place of the table is not it.
    #[test]
    fn a_mapping_that_is_cut_is_replaced() {
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
            assert!(!mapping.is_cut());
            for mapping in [&mapping, &other] {
                mapping.stretch(PAGE as usize, 3).write(b"abc");
            }
            rustix::fs::ftruncate(&cut, 0).unwrap();
            let mut bytes = [1; 3];
            mapping.stretch(PAGE as usize, 3).read(&mut bytes);
            assert_eq!(bytes, [0; 3]);
            mapping.stretch(3 * PAGE as usize, 3).write(b"xyz");
            assert!(mapping.is_cut() && !other.is_cut());
            other.stretch(PAGE as usize, 3).read(&mut bytes);
            assert_eq!(&bytes, b"abc");
        }
    }
}
