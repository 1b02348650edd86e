//! Drops all capabilities from every set.
//!
//! Capabilities belong to threads. This is for a process with one thread; threads that it starts
//! later have none either.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Drops all capabilities permanently, except those of `kept` that this process has. Without
/// CAP_SETPCAP the bounding set cannot be reduced; it does not matter once `no_new_privs` is set,
/// because no executed program gains capabilities then.
///
/// # Errors
/// Those of capset(2).
pub(super) fn keep(kept: CapabilitySet) -> Result<(), Errno> {
    // Kernels before 4.3 have no ambient set.
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(errno),
    }
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // The kernel has no capability of this number, or this process may not reduce the set.
            Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    let has = capabilities(None)?.permitted & kept;
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: has, permitted: has, inheritable })
}
