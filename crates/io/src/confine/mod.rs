//! Confining this process: what it gives up before it serves strangers.
//!
//! # Theory of operation
//!
//! In this order, because each step takes away what those before it need:
//!
//! 1. [`broker::start`] forks the broker, which keeps the rights of the user and does the few
//!    things that are needed later ([`outside`](crate::outside)).
//! 2. [`isolate`], while there is one thread: namespaces of its own with an empty root, no
//!    capability in any set, `no_new_privs`, not dumpable, no core file, Landlock. Threads that are
//!    started from here on have all of that too.
//! 3. [`seal`], when all threads and files are there and before the first packet is looked at: a
//!    filter of system calls for all threads, which ends the process at any other.
//!
//! What the system does not offer is left out, and [`state`] tells what is in force. What needs no
//! offer, capabilities and the flags of the process, is an error if it fails.
//!
//! Inherited descriptors are the affair of [`Inherited`](crate::process_sys::Inherited); all others
//! have owners.
use std::fmt;
use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{CapabilitySet, set_no_new_privs};
use towpath_packet::sync::{AtomicU8, Ordering};

#[cfg(debug_assertions)]
pub mod attempts;
pub mod broker;
mod capabilities;
mod filesystem;
mod seccomp;

pub use seccomp::FilterError;

/// Which system calls are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Those of serving one program.
    Program,
    /// Those of serving a network of guests.
    Network,
}

/// What is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State(u8);

impl State {
    const PRIVILEGES: u8 = 1;
    const NAMESPACES: u8 = 2;
    const LANDLOCK: u8 = 4;
    const SECCOMP: u8 = 8;
    const NAMES: [(u8, &'static str); 4] = [
        (Self::PRIVILEGES, "privileges"),
        (Self::NAMESPACES, "namespaces"),
        (Self::LANDLOCK, "landlock"),
        (Self::SECCOMP, "seccomp"),
    ];

    /// Each layer, and whether it is in force.
    pub fn layers(self) -> impl Iterator<Item = (&'static str, bool)> {
        Self::NAMES.into_iter().map(move |(bit, name)| (name, self.0 & bit != 0))
    }

    /// True if nothing hides the host's files.
    pub fn has_files(self) -> bool {
        self.0 & (Self::NAMESPACES | Self::LANDLOCK) == 0
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("off");
        }
        let mut separator = "";
        for (name, _) in self.layers().filter(|(_, is_in_force)| *is_in_force) {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        Ok(())
    }
}

static STATE: AtomicU8 = AtomicU8::new(0);

/// What is in force in this process.
pub fn state() -> State {
    // Relaxed: nothing is read that the number stands for.
    State(STATE.load(Ordering::Relaxed))
}

fn add(layer: u8) {
    // Relaxed: as above.
    STATE.fetch_or(layer, Ordering::Relaxed);
}

/// Gives up everything but system calls. For a process with one thread, which has had its broker
/// forked. What is returned is why there are no namespaces, if so.
///
/// # Errors
/// Those of giving up privileges, which never fails where there is nothing wrong with the system.
pub fn isolate() -> io::Result<Option<Errno>> {
    // Memory that is lent to the kernel counts against this limit once CAP_IPC_LOCK is gone. Who
    // may not raise it had neither before.
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
    let namespaces = filesystem::leave();
    if namespaces.is_ok() {
        add(State::NAMESPACES);
    }
    give_up(CapabilitySet::empty())?;
    add(State::PRIVILEGES);
    if filesystem::forbid() {
        add(State::LANDLOCK);
    }
    Ok(namespaces.err())
}

/// Has the process killed at any system call that `mode` does not need, in all threads.
///
/// # Errors
/// [`FilterError`]: none is in force then.
pub fn seal(mode: Mode) -> Result<(), FilterError> {
    seccomp::install(mode)?;
    add(State::SECCOMP);
    Ok(())
}

/// Gives up capabilities but `kept`, and what programs and debuggers could make of this process.
fn give_up(kept: CapabilitySet) -> io::Result<()> {
    capabilities::keep(kept)?;
    set_no_new_privs(true)?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}
