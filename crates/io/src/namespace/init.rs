//! Process 1 of the program's PID namespace.
//!
//! It starts the program, reaps every process that dies in the namespace, reports the program's
//! exit status to towpath and ends. The kernel then kills the remaining processes of the namespace.
//! Process 1 handles no signal, so the kernel delivers it none from inside the namespace: signals
//! of the terminal affect only the program.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, wait};

use super::channel::{Channel, ChannelError, Message};
use crate::process_sys::{Inherited, SignalSet};

/// Why the program did not run.
#[derive(Debug)]
pub enum InitError {
    /// The program could not be executed.
    Execute(io::Error),
    /// towpath has gone, or sent an unexpected message.
    Channel(ChannelError),
    /// A system call failed.
    System(io::Error),
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Execute(..) => f.write_str("cannot execute the program"),
            Self::Channel(error) => error.fmt(f),
            Self::System(..) => f.write_str("process 1 of the namespaces failed"),
        }
    }
}

impl std::error::Error for InitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Execute(error) => Some(error),
            Self::Channel(error) => error.source(),
            Self::System(error) => Some(error),
        }
    }
}

impl From<ChannelError> for InitError {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

impl From<io::Error> for InitError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// Waits for the message to begin, runs `command` with the signal mask `mask`, and returns its exit
/// status after reporting it to towpath. The caller then ends.
///
/// # Errors
/// [`InitError`]; then towpath has not received a status.
pub fn run(
    channel: &Channel,
    mut command: Command,
    mask: &SignalSet,
    inherited: Inherited,
) -> Result<ExitStatus, InitError> {
    let Message::Go = channel.receive()? else {
        return Err(ChannelError::Unexpected.into());
    };
    // The program inherits the mask.
    mask.restore()?;
    let program = command.spawn().map_err(InitError::Execute)?;
    // The program has inherited these.
    drop((command, inherited));
    let pid = i32::try_from(program.id()).ok().and_then(Pid::from_raw);
    let pid = pid.expect("a started process has a positive number");
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
    channel.send(&Message::Started(pidfd))?;
    release_standard_streams()?;
    let status = reap_until(pid)?;
    channel.send(&Message::Ended(status))?;
    Ok(ExitStatus::from_raw(status))
}

/// Redirects standard input, output and error to /dev/null, so that their other ends see a close as
/// soon as the program closes its copies.
///
/// # Errors
/// Those of opening and duplicating /dev/null.
pub(crate) fn release_standard_streams() -> io::Result<()> {
    let null = null_device()?;
    release_input_and_output(&null)?;
    Ok(rustix::stdio::dup2_stderr(null)?)
}

/// Redirects standard input and output to `null`, but keeps standard error for messages.
///
/// # Errors
/// Those of dup2(2).
pub fn release_input_and_output(null: &OwnedFd) -> io::Result<()> {
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    Ok(())
}

/// Redirects standard error to `file`.
///
/// # Errors
/// Those of dup2(2).
pub fn redirect_error(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::stdio::dup2_stderr(file)?)
}

/// Opens /dev/null.
///
/// # Errors
/// Those of opening it.
pub fn null_device() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Reaps children until `program` has ended; returns its status of wait(2).
fn reap_until(program: Pid) -> io::Result<i32> {
    loop {
        match rustix::io::retry_on_intr(|| wait(WaitOptions::empty()))? {
            Some((pid, status)) if pid == program => return Ok(status.as_raw()),
            _ => {}
        }
    }
}
