//! A network namespace for tests of the kernel, which disturb no network that is in use.

use std::path::Path;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process_sys::unshare;

/// This process's network namespace.
const OWN_NETWORK: &str = "/proc/self/ns/net";

/// A new network namespace of the process's user namespace, in which the process is until
/// [`leave`](Self::leave). What is in it goes with it.
#[derive(Debug)]
pub struct ScratchNetwork {
    /// The namespace to return to.
    home: OwnedFd,
}

impl ScratchNetwork {
    /// Moves this process, which must have one thread, into a new network namespace.
    ///
    /// # Errors
    /// Those of unshare(2); the process stays in its namespace.
    pub fn enter() -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let home = rustix::fs::open(Path::new(OWN_NETWORK), flags, Mode::empty())?;
        unshare(libc::CLONE_NEWNET)?;
        Ok(Self { home })
    }

    /// Returns to the namespace that the process came from.
    ///
    /// # Errors
    /// Those of setns(2); the process stays in the new namespace and must not go on.
    pub fn leave(self) -> Result<(), Errno> {
        move_into_link_name_space(self.home.as_fd(), Some(LinkNameSpaceType::Network))
    }
}
