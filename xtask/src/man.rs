//! The manual page that is checked in is the one that the command writes.

use std::fs;
use std::path::PathBuf;

use crate::ci::cargo;
use crate::root;

pub(crate) fn write() -> Result<(), String> {
    fs::write(path(), page()?).map_err(|error| format!("{}: {error}", path().display()))
}

pub(crate) fn check() -> Result<(), String> {
    let stored = fs::read(path()).map_err(|error| format!("{}: {error}", path().display()))?;
    if stored == page()? {
        return Ok(());
    }
    Err(format!("{} differs from the command: run `cargo xtask man`", path().display()))
}

fn path() -> PathBuf {
    root().join("docs/man/towpath.1")
}

fn page() -> Result<Vec<u8>, String> {
    let mut command = cargo(["run", "--release", "--quiet", "--locked", "--package", "towpath"]);
    let output = command.args(["--", "man"]).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!("towpath man: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}
