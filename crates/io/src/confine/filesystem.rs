//! No file system: an empty root in a mount namespace of its own, and Landlock.
//!
//! Namespaces are made with a user namespace, in which this process has the right to mount; where
//! those are forbidden, root makes the others without one. Landlock (Linux 5.13) is set up in any
//! case: where there are no namespaces it alone refuses every path, and it refuses to change
//! mounts.

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetStatus, Scope,
};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use rustix::process::{chdir, pivot_root};

use crate::process_sys::unshare;

/// Where the empty root is mounted first: a directory that every Linux has.
const WORKBENCH: &str = "/proc";
/// The root directory alone.
const TMPFS_OPTIONS: &std::ffi::CStr = c"size=4k,nr_inodes=1,mode=0555";

/// Moves this process, which has one thread, into namespaces of its own with nothing in its root.
///
/// # Errors
/// What the kernel or a sandbox refuses. Namespaces may have been made by then.
pub(super) fn leave() -> Result<(), Errno> {
    const OTHERS: i32 = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    unshare(libc::CLONE_NEWUSER | OTHERS).or_else(|_| unshare(OTHERS))?;
    // Else what is mounted here would be seen outside.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    mount("towpath", WORKBENCH, "tmpfs", flags, Some(TMPFS_OPTIONS))?;
    chdir(WORKBENCH)?;
    // The old root is put over the new one, and taken away with all that is mounted in it.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")
}

/// Has Landlock refuse all access by paths to this thread, and those that it starts, and abstract
/// Unix sockets of others (Linux 6.12). False where the kernel has no Landlock.
///
/// Signals stay permitted: the kernel takes the signal that process 1 of the program asked for in
/// case of this process's death for one that this process sends, and would leave it alive.
pub(super) fn forbid() -> bool {
    // The newest that is known: of each kernel, all that it can refuse.
    let restricted = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V6))
        .and_then(|rules| rules.scope(Scope::AbstractUnixSocket))
        .and_then(Ruleset::create)
        .and_then(landlock::RulesetCreated::restrict_self);
    restricted.is_ok_and(|status| status.ruleset != RulesetStatus::NotEnforced)
}
