//! Writes the stored manual pages of the command from its definitions. A test of the command
//! compares them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{cargo, root};

pub(crate) fn write() -> Result<(), String> {
    let folder = root().join("docs/man");
    // Pages of commands that no longer exist must not stay.
    for page in pages(&folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        fs::remove_file(&page).map_err(|error| format!("{}: {error}", page.display()))?;
    }
    let mut command =
        cargo(["run", "--release", "--quiet", "--locked", "--package", "towpath-cli"]);
    command.args(["--", "man"]).arg(&folder);
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("towpath man: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// The stored pages of the command: those of section 1.
fn pages(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    let is_page = |path: &PathBuf| path.extension().is_some_and(|section| section == "1");
    Ok(paths.into_iter().filter(is_page).collect())
}
