//! Exit codes of towpath, and errors that carry one.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::OnceLock;

/// towpath itself failed.
pub(crate) const FAILED: u8 = 125;
/// CMD was found and could not be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// CMD was not found.
pub(crate) const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that killed CMD.
const KILLED_BASE: u8 = 128;

/// An argument is not valid.
pub(crate) const USAGE: u8 = 2;
/// The code for all failures while towpath acts as another program.
const FAILED_AS_OTHER: u8 = 1;

/// The program that towpath acts as.
static ACTS_AS: OnceLock<&'static str> = OnceLock::new();

/// Makes messages begin with this name from now on, and gives all failures the exit code of such
/// programs.
pub(crate) fn act_as(name: &'static str) {
    // A second name changes nothing.
    let _ = ACTS_AS.set(name);
}

/// Returns the name with which messages begin.
pub(crate) fn name() -> &'static str {
    ACTS_AS.get().copied().unwrap_or(crate::NAME)
}

/// Returns the exit code for a failure that is `code` in towpath's own terms.
pub(crate) fn failure_code(code: u8) -> u8 {
    if ACTS_AS.get().is_some() && code != 0 { FAILED_AS_OTHER } else { code }
}

/// Returns the section of a command's help text about its exit codes.
pub(crate) fn help(command: &str) -> String {
    let lines = lines(Some(command)).into_iter().map(|line| format!("\n  {line}"));
    format!("Exit status:{}", lines.collect::<String>())
}

/// Returns the lines about the exit codes of a command, or of all.
pub(crate) fn lines(command: Option<&str>) -> Vec<&'static str> {
    let mut lines: Vec<_> = HELP.lines().skip(1).map(str::trim_start).collect();
    lines.retain(|line| is_of(line, command));
    if command.is_some_and(|command| command != "run")
        && !lines.iter().any(|line| line.starts_with("0 "))
    {
        lines.push(SUCCESS);
    }
    lines
}

/// Whether a line of [`HELP`] is about a command. A line without a command in front is about all of
/// them, or about CMD, which `run` runs.
fn is_of(line: &str, command: Option<&str>) -> bool {
    let Some(command) = command else { return true };
    let named = line.split_once('`').and_then(|(_, rest)| rest.split_once("`:"));
    match named {
        Some((name, _)) => name == command,
        None => !line.contains("CMD") || command == "run",
    }
}

/// The section of the help text about the exit codes of all commands.
pub(crate) const HELP: &str = "\
Exit status:
  that of CMD, if it ran; 128+N if signal N killed it
  125  towpath itself failed
  126  CMD was found but could not be executed
  127  CMD was not found
  2    an option or argument is not valid
  0    `attach`: the namespace ended, or SIGINT or SIGTERM arrived
  0    `up`: SIGINT or SIGTERM arrived, or the machine has gone (--one-off)
  0    `doctor`: `towpath run` works here
  1    `doctor`: `towpath run` does not work here
  0    `engines`: it is done, or all engines work
  1    `engines`: `check` found an engine that does not work
  0    `policy`: the file is a policy, or allows the flow to `explain`
  1    `policy`: the file is no policy, or denies the flow to `explain`";

/// The code 0 of a command of which [`HELP`] says nothing.
const SUCCESS: &str = "0    all was done";

/// How a successful command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With this code.
    Code(u8),
    /// By this signal, or with 128 added to its number.
    Signal(u8),
}

/// An error with the exit code that it leads to.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// `None` if the user has seen the error already.
    pub(crate) error: Option<anyhow::Error>,
}

impl Ending {
    /// Converts a wait(2) status.
    pub(crate) fn from_raw(status: i32) -> Self {
        ExitStatus::from_raw(status).into()
    }

    /// Returns the equivalent exit code.
    pub(crate) fn code(self) -> u8 {
        match self {
            Ending::Code(code) => code,
            Ending::Signal(signal) => KILLED_BASE.saturating_add(signal),
        }
    }
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Self {
        let byte = |number: i32| u8::try_from(number).ok();
        if let Some(signal) = status.signal().and_then(byte) {
            return Ending::Signal(signal);
        }
        Ending::Code(status.code().and_then(byte).unwrap_or(FAILED))
    }
}

impl Failure {
    /// Returns a failure whose error the user has seen already.
    pub(crate) fn reported(code: u8) -> Self {
        Self { code, error: None }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { code: FAILED, error: Some(error.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_wait_become_endings() {
        assert_eq!(Ending::from_raw(7 << 8).code(), 7);
        assert_eq!(Ending::from_raw(0).code(), 0);
        assert_eq!(Ending::from_raw(15).code(), 143);
        assert_eq!(Ending::from_raw(11 | 0x80), Ending::Signal(11), "with core");
    }
}
