//! Removes access to the file system: an empty root in an own mount namespace, and Landlock.
//!
//! The namespaces are created with a user namespace, in which this process may mount. Where user
//! namespaces are forbidden, root creates the others without one. Landlock (Linux 5.13) is set up
//! in any case: it also forbids to change mounts, and without namespaces it alone refuses every
//! path.

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, LandlockStatus, Ruleset, RulesetAttr,
    RulesetStatus, Scope,
};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use rustix::process::{chdir, pivot_root};

use crate::process_sys::unshare;

/// Where the empty root is mounted first: a directory that exists on every Linux system.
const WORKBENCH: &str = "/proc";
/// Room for the root directory only.
const TMPFS_OPTIONS: &std::ffi::CStr = c"size=4k,nr_inodes=1,mode=0555";

/// Moves this process, which must have one thread, into namespaces of its own with an empty root.
///
/// # Errors
/// Those of the kernel or a sandbox. Some namespaces may have been created by then.
pub(super) fn leave() -> Result<(), Errno> {
    const OTHERS: i32 = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    unshare(libc::CLONE_NEWUSER | OTHERS).or_else(|_| unshare(OTHERS))?;
    // Otherwise the mounts made here would be visible outside.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    mount("towpath", WORKBENCH, "tmpfs", flags, Some(TMPFS_OPTIONS))?;
    chdir(WORKBENCH)?;
    // The old root is stacked over the new one, and then detached with all its mounts.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")
}

/// Makes Landlock refuse all access by path to this thread and the threads that it starts, and
/// refuse abstract Unix sockets of other processes (Linux 6.12). Returns the kernel's version of
/// Landlock, or `None` if it has none.
///
/// Signals stay permitted. Process 1 of the program has asked for a signal when this process dies.
/// The kernel treats it as sent by this process; a Landlock restriction would suppress it, and
/// process 1 would survive.
pub(super) fn forbid() -> Option<u8> {
    // The newest ABI known. Each kernel enforces as much of it as it supports.
    let restricted = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V6))
        .and_then(|rules| rules.scope(Scope::AbstractUnixSocket))
        .and_then(Ruleset::create)
        .and_then(landlock::RulesetCreated::restrict_self);
    let status = restricted.ok()?;
    match status.landlock {
        LandlockStatus::Available { effective_abi, kernel_abi }
            if status.ruleset != RulesetStatus::NotEnforced =>
        {
            u8::try_from(kernel_abi.unwrap_or(effective_abi as i32)).ok()
        }
        _ => None,
    }
}
