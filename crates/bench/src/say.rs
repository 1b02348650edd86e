//! Words to the user: lines on standard error that begin with the program's name.

use std::fmt::Display;
use std::io::Write;

/// Something failed.
pub(crate) fn error(text: impl Display) {
    say(&text);
}

/// What is done, and what differs from what was asked for.
pub(crate) fn notice(text: impl Display) {
    say(&text);
}

fn say(text: &dyn Display) {
    let line = format!("towpath-bench: {text}\n");
    // There is nobody left to tell that standard error is gone.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
