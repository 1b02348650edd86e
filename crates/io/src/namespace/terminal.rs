//! The controlling terminal: who is in the foreground.
//!
//! A shell that runs as the program makes process groups of its own and may leave the terminal to
//! one that no longer exists; [`Foreground::restore`] puts that right.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use crate::process_sys::SignalSet;

/// The terminal of which this process's group was in the foreground.
#[derive(Debug)]
pub struct Foreground(Option<OwnedFd>);

impl Foreground {
    /// Notes whether this process's group is in the foreground of a terminal now.
    pub fn note() -> Self {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok();
        Self(terminal.filter(|terminal| tcgetpgrp(terminal) == Ok(getpgrp())))
    }

    /// Puts this process's group into the foreground again if it was there.
    pub fn restore(&self) {
        let Some(terminal) = &self.0 else { return };
        // From the background the call would stop this process with SIGTTOU.
        let Ok(mask) = SignalSet::of(&[Signal::TTOU.as_raw()]).block() else { return };
        // A terminal that is gone needs no foreground.
        let _ = tcsetpgrp(terminal, getpgrp());
        // The mask was valid before.
        let _ = mask.restore();
    }
}
