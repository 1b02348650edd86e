//! The public items of `towpath`, which programs are written against: `cargo xtask api`.
//!
//! They are listed in `docs/api/towpath.txt`. What changes there is a decision, so the gate
//! compares them; `--write` stores those of now. They come from rustdoc's JSON, which a stable
//! compiler writes only if it is told to behave as an unstable one.

use std::collections::BTreeSet;
use std::fs;

use crate::count::Count;
use crate::{cargo, root};

const STORED: &str = "docs/api/towpath.txt";

pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    match arguments {
        [] => compare().map(|_| println!("the public items are as stored")),
        ["--write"] => {
            fs::write(root().join(STORED), list()?).map_err(|error| format!("{STORED}: {error}"))
        }
        _ => Err("api [--write]".into()),
    }
}

/// Fails with the difference if the items are others than stored.
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
    let mut rustdoc = cargo(["rustdoc", "--package", "towpath", "--lib", "--all-features"]);
    rustdoc.args(["--locked", "--", "-Z", "unstable-options", "--output-format", "json"]);
    let status = rustdoc.env("RUSTC_BOOTSTRAP", "1").status().map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(format!("rustdoc: {status}"));
    }
    let folder =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    let mut lister = cargo(["run", "--quiet", "--locked", "--package", "api-list", "--"]);
    let output = lister.arg(folder.join("doc/towpath.json")).output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}
