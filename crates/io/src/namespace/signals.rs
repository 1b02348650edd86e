//! Signals that reach towpath, and which of them go to the program.
//!
//! towpath blocks these signals and reads them from a descriptor. The terminal sends its signals
//! (Ctrl-C, Ctrl-\, window size changes) to the whole foreground process group, which includes the
//! program, so the program has them already. towpath passes on a signal that was sent to towpath
//! alone. Ctrl-Z is not handled: it stops both towpath and the program, as intended.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::Signal;

use crate::outside::{self, Wanted};
use crate::process_sys::SignalSet;

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Which one.
    pub signal: Signal,
    /// True if the kernel sent it to the whole foreground process group.
    pub from_terminal: bool,
}

/// Blocked signals, readable as events. They stay blocked after this value is dropped.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
    mask_before: SignalSet,
}

impl Signals {
    /// Blocks the signals that towpath handles, in this thread and in those that it starts later.
    ///
    /// # Errors
    /// Those of pthread_sigmask(3) and signalfd(2).
    pub fn block() -> io::Result<Self> {
        let set = SignalSet::of(&HANDLED.map(Signal::as_raw));
        let mask_before = set.block()?;
        Ok(Self { descriptor: set.descriptor()?, mask_before })
    }

    /// The previous signal mask, with which the program should be started.
    pub fn mask_before(&self) -> &SignalSet {
        &self.mask_before
    }

    /// Returns the next signal, if one has arrived.
    ///
    /// # Errors
    /// Those of read(2).
    pub fn next(&self) -> io::Result<Option<Arrived>> {
        let mut info = [0; SIGNALFD_SIGINFO_LEN];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.descriptor, &mut info)) {
            Ok(SIGNALFD_SIGINFO_LEN) => {}
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        // signalfd(2): ssi_signo and ssi_code are the first and the third 32-bit number.
        let number = |at: usize| c_int::from_ne_bytes([0, 1, 2, 3].map(|byte| info[at + byte]));
        let signal = Signal::from_named_raw(number(0)).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some(Arrived { signal, from_terminal: number(8) == libc::SI_KERNEL }))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Arrived {
    /// True if the program already has this signal, as a member of the terminal's foreground group.
    /// A hangup also goes to the session leader, which may be towpath, so it is always passed on.
    pub fn is_known_to_program(&self) -> bool {
        self.from_terminal && self.signal != Signal::HUP
    }

    /// Sends this signal to the process behind `pidfd`, which may have ended.
    ///
    /// # Errors
    /// The broker, which would send it, has gone.
    pub fn pass_on(&self, pidfd: BorrowedFd<'_>) -> io::Result<()> {
        let number = self.signal.as_raw().unsigned_abs().into();
        match outside::ask(Wanted::Signal, number, &[], None) {
            Some(Err(errno)) if outside::means_no_broker(errno) => return Err(errno.into()),
            Some(_) => {}
            // Fails if the process has ended, and needs no signal then.
            None => drop(rustix::process::pidfd_send_signal(pidfd, self.signal)),
        }
        Ok(())
    }

    /// True if the signal asks for termination.
    pub fn is_end(&self) -> bool {
        matches!(self.signal, Signal::INT | Signal::QUIT | Signal::TERM | Signal::HUP)
    }
}

/// Number of the signal that Ctrl-C sends.
pub const INTERRUPT_NUMBER: u8 = 2;
const _: () = assert!(INTERRUPT_NUMBER as c_int == libc::SIGINT);

/// Ends this process by SIGINT, so that a shell sees how the program ended. Returns only if that is
/// impossible, as for process 1 of a container.
pub fn end_by_interrupt() {
    // If either call fails, the function returns, and the caller exits.
    let _ = SignalSet::of(&[]).restore();
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::INT);
}

/// Passes the program's `pidfd` to the broker, if there is one, which sends signals to the program
/// from then on. The broker may also signal a program that has changed its user.
///
/// # Errors
/// The broker has gone.
pub fn notify_program(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    match outside::ask(Wanted::Program, 0, &[], Some(pidfd)) {
        Some(answer) => Ok(answer.map(drop)?),
        None => Ok(()),
    }
}

/// The signal with this number, if it is one that is passed on.
pub(crate) fn passed_on(number: c_int) -> Option<Signal> {
    HANDLED.into_iter().find(|signal| signal.as_raw() == number)
}

/// The signals that ask a program for something, except job control.
const HANDLED: [Signal; 7] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
];
/// `sizeof(struct signalfd_siginfo)`.
const SIGNALFD_SIGINFO_LEN: usize = 128;
