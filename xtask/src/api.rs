//! The public items of `towpath`, which programs are written against: `cargo xtask api`.
//!
//! They are listed in `docs/api/towpath.txt`. What changes there is a decision, so the gate
//! compares them; `--write` stores the present ones. They come from rustdoc's JSON, which a stable
//! compiler writes only if it behaves as an unstable one. rustdoc checks the
//! documentation on the way, so the gate runs it once for both.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::count::Count;
use crate::{cargo, root, target_folder};

const STORED: &str = "docs/api/towpath.txt";

pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    match arguments {
        [] => {
            document()?;
            compare().map(|_| println!("the public items are as stored"))
        }
        ["--write"] => {
            document()?;
            fs::write(root().join(STORED), list()?).map_err(|error| format!("{STORED}: {error}"))
        }
        _ => Err("api [--write]".into()),
    }
}

/// Checks the documentation of all crates, and writes what rustdoc knows of them as JSON.
pub(crate) fn document() -> Result<(), String> {
    let mut doc = cargo(["doc", "--workspace", "--all-features", "--no-deps", "--locked", "--lib"]);
    // With an example, dependencies have the features that clippy has checked them with: without
    // one, half of them would be checked again.
    doc.args(["--example", "virtq"]);
    doc.env("RUSTDOC", root().join("scripts/rustdoc-unstable"));
    doc.env("RUSTDOCFLAGS", "--deny warnings -Zunstable-options --output-format=json");
    let status = doc.status().map_err(|error| format!("{doc:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{doc:?}: {status}")) }
}

/// Fails with the difference if the documented items are others than stored.
pub(crate) fn compare() -> Result<Count, String> {
    let stored = fs::read_to_string(root().join(STORED));
    let stored = stored.map_err(|error| format!("{STORED}: {error}"))?;
    let now = list()?;
    let [before, after]: [BTreeSet<&str>; 2] = [&stored, &now].map(|text| text.lines().collect());
    for line in before.difference(&after) {
        println!("- {line}");
    }
    for line in after.difference(&before) {
        println!("+ {line}");
    }
    match before == after {
        true => Ok(Count::default()),
        false => Err(format!(
            "the public items of towpath are not those of {STORED}: if they are meant, \
             `cargo xtask api --write` stores them"
        )),
    }
}

fn list() -> Result<String, String> {
    // With the features of the tests' build, most of it is there already.
    let mut build = cargo(["build", "--workspace", "--all-features", "--locked"]);
    let built = build.args(["--bin", "api-list"]).status().map_err(|error| error.to_string())?;
    if !built.success() {
        return Err(format!("{build:?}: {built}"));
    }
    let mut lister = Command::new(target_folder("debug/api-list"));
    let output = lister.arg(target_folder("doc/towpath.json")).output();
    let output = output.map_err(|error| format!("{lister:?}: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}
