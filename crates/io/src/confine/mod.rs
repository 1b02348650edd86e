//! Confines this process: drops its privileges before it handles untrusted input.
//!
//! # Theory of operation
//!
//! In this order, because each step removes what the steps before it need:
//!
//! 1. [`broker::start`] forks the broker, which keeps the user's rights and does the few things
//!    that the process needs later ([`outside`](crate::outside)).
//! 2. [`isolate`], while there is one thread: own namespaces with an empty root, no capability in
//!    any set, `no_new_privs`, not dumpable, no core file, Landlock. Threads that start later
//!    inherit all of it.
//! 3. [`seal`], when all threads and files exist and before the first packet is parsed: a system
//!    call filter for all threads, which kills the process at any other call.
//!
//! Layers that the system does not offer are left out; [`state`] reports which are in force. A
//! failure to drop capabilities or to set the process flags is an error, because every system has
//! them.
//!
//! [`Inherited`](crate::process_sys::Inherited) deals with inherited descriptors; all other
//! descriptors have owners.
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

/// Which set of system calls a process needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The calls for serving one program.
    Program,
    /// The calls for serving a network of guests.
    Network,
}

/// The layers of confinement that are in force.
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

    /// True if neither namespaces nor Landlock hides the host's files.
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
/// The kernel's version of Landlock (its ABI), once [`isolate`] has restricted this process.
static LANDLOCK_VERSION: AtomicU8 = AtomicU8::new(0);

/// Returns the layers that are in force in this process.
pub fn state() -> State {
    // Relaxed: the number protects no other memory.
    State(STATE.load(Ordering::Relaxed))
}

/// Returns the kernel's version of Landlock (its ABI); 0 if Landlock is not in force.
pub fn landlock_version() -> u8 {
    // Relaxed: the number protects no other memory.
    LANDLOCK_VERSION.load(Ordering::Relaxed)
}

fn add(layer: u8) {
    // Relaxed: the number protects no other memory.
    STATE.fetch_or(layer, Ordering::Relaxed);
}

/// Gives up everything but system calls. The process must have one thread, and its broker must have
/// been forked. Returns the reason if namespaces could not be made.
///
/// # Errors
/// Those of dropping privileges, which no working system refuses.
pub fn isolate() -> io::Result<Option<Errno>> {
    // Memory that is lent to the kernel counts against this limit once CAP_IPC_LOCK is gone. A
    // process that may not raise the limit did not have the capability either.
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
    let namespaces = filesystem::leave();
    if namespaces.is_ok() {
        add(State::NAMESPACES);
    }
    give_up(CapabilitySet::empty())?;
    add(State::PRIVILEGES);
    if let Some(version) = filesystem::forbid() {
        // Relaxed: the number protects no other memory.
        LANDLOCK_VERSION.store(version, Ordering::Relaxed);
        add(State::LANDLOCK);
    }
    Ok(namespaces.err())
}

/// Kills the process at any system call that `mode` does not need, in any thread.
///
/// # Errors
/// [`FilterError`]; no filter is in force then.
pub fn seal(mode: Mode) -> Result<(), FilterError> {
    seccomp::install(mode)?;
    add(State::SECCOMP);
    Ok(())
}

/// Drops all capabilities but `kept`, and forbids new privileges, core files and debuggers.
pub(crate) fn give_up(kept: CapabilitySet) -> io::Result<()> {
    capabilities::keep(kept)?;
    set_no_new_privs(true)?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}
