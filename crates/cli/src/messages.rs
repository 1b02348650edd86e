//! towpath's own words to the user: lines on standard error that begin with its name.

use std::fmt::Display;
use std::io::Write;

/// How much towpath says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Messages {
    /// Errors only.
    Quiet,
    /// Also what differs from what was asked for.
    Normal,
    /// Also what is done.
    Verbose,
}

impl Messages {
    /// Something failed.
    pub(crate) fn error(self, text: impl Display) {
        say(&text);
    }

    /// Something is not as the user might expect.
    pub(crate) fn notice(self, text: impl Display) {
        if self >= Messages::Normal {
            say(&text);
        }
    }

    /// Something worth knowing when looking for a cause.
    pub(crate) fn detail(self, text: impl Display) {
        if self >= Messages::Verbose {
            say(&text);
        }
    }
}

fn say(text: &dyn Display) {
    let line = format!("towpath: {text}\n");
    // There is nobody left to tell that standard error is gone.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
