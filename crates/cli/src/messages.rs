//! Messages of towpath to the user: lines on standard error that begin with its name.

use std::fmt::Display;
use std::io::Write;

use crate::exit;

/// Which messages towpath prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Messages {
    /// Errors only.
    Quiet,
    /// Also deviations from what was asked for.
    Normal,
    /// Also the actions taken.
    Verbose,
}

impl Messages {
    /// Prints an error.
    pub(crate) fn error(self, text: impl Display) {
        say(&text);
    }

    /// Prints a notice about something that the user may not expect.
    pub(crate) fn notice(self, text: impl Display) {
        if self >= Messages::Normal {
            say(&text);
        }
    }

    /// Prints a detail that helps to find a cause.
    pub(crate) fn detail(self, text: impl Display) {
        if self >= Messages::Verbose {
            say(&text);
        }
    }
}

fn say(text: &dyn Display) {
    let line = format!("{}: {text}\n", exit::name());
    // Standard error is gone; the failure cannot be reported.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
