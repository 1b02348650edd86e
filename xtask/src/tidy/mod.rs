//! Checks that neither the compiler nor clippy makes.
//!
//! Each check inspects files and returns problems as `PATH:LINE: what is wrong`.

mod cycles;
mod docs;
mod limits;
mod order;
mod prose;
mod text;
mod unsafety;

use crate::source::{self, Source};

/// A check of all files.
type Check = fn(&[Source]) -> Vec<String>;

const CHECKS: [(&str, Check); 8] = [
    ("headers, lengths and widths", text::shape),
    ("words", text::words),
    ("prose", prose::check),
    ("order of modules", order::check),
    ("cycles of modules", cycles::check),
    ("unsafe code and atomics", unsafety::check),
    ("links", docs::links),
    ("limits", limits::check),
];

pub(crate) fn run() -> Result<(), String> {
    let files = source::all()?;
    let mut problems = 0;
    for (name, check) in CHECKS {
        let found = check(&files);
        println!("{name}: {}", if found.is_empty() { "ok" } else { "not ok" });
        found.iter().for_each(|problem| println!("  {problem}"));
        problems += found.len();
    }
    if problems == 0 {
        Ok(())
    } else {
        Err(format!("{problems} problems in {} files", files.len()))
    }
}
