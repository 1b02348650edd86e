//! Messages to the user: lines on standard error that begin with the program's name.

use std::fmt::Display;
use std::io::Write;

/// Reports an error.
pub(crate) fn error(text: impl Display) {
    say(&text);
}

/// Reports progress, and deviations from what was requested.
pub(crate) fn notice(text: impl Display) {
    say(&text);
}

fn say(text: &dyn Display) {
    let line = format!("towpath-bench: {text}\n");
    // If standard error is gone, no one can be notified.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
