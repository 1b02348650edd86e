//! The controlling terminal and its foreground process group.
//!
//! A shell that runs as the program creates process groups of its own, and may leave the terminal
//! to one that no longer exists; [`Foreground::restore`] corrects this.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use crate::process_sys::SignalSet;

/// The terminal in whose foreground this process's group was, if any.
#[derive(Debug)]
pub struct Foreground(Option<OwnedFd>);

impl Foreground {
    /// Notes whether this process's group is in the foreground of its terminal now.
    pub fn note() -> Self {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok();
        Self(terminal.filter(|terminal| tcgetpgrp(terminal) == Ok(getpgrp())))
    }

    /// Puts this process's group into the foreground again, if it was there.
    pub fn restore(&self) {
        let Some(terminal) = &self.0 else { return };
        // The call from the background would otherwise stop this process with SIGTTOU.
        let Ok(mask) = SignalSet::of(&[Signal::TTOU.as_raw()]).block() else { return };
        // Fails if the terminal is gone, and is not needed then.
        let _ = tcsetpgrp(terminal, getpgrp());
        // Cannot fail, because the mask was valid before.
        let _ = mask.restore();
    }
}
