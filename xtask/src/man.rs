//! Writes the stored manual page from the command's definitions. A test of the command compares
//! them.

use std::fs;
use std::path::PathBuf;

use crate::{cargo, root};

pub(crate) fn write() -> Result<(), String> {
    fs::write(path(), page()?).map_err(|error| format!("{}: {error}", path().display()))
}

fn path() -> PathBuf {
    root().join("docs/man/towpath.1")
}

fn page() -> Result<Vec<u8>, String> {
    let mut command =
        cargo(["run", "--release", "--quiet", "--locked", "--package", "towpath-cli"]);
    let output = command.args(["--", "man"]).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!("towpath man: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}
