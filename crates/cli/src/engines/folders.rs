//! The folders of the user, or of the system if the user is root.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::process::geteuid;

use super::probe;

/// Where settings and links of engines are.
#[derive(Clone, Debug)]
pub(super) struct Folders {
    /// Whether the folders are those of the system, for all users.
    pub(super) are_of_root: bool,
    /// The folder below which programs are that other programs start.
    pub(super) libexec: PathBuf,
    /// The folder below which settings are.
    pub(super) config: PathBuf,
    /// The folder of programs, which is in the `PATH`.
    pub(super) bin: PathBuf,
    /// This program, by a name that stays the same when it is upgraded.
    pub(super) towpath: PathBuf,
}

impl Folders {
    /// Returns the folders of the user who runs this process.
    ///
    /// # Errors
    /// The user has no home directory.
    pub(super) fn of_user() -> anyhow::Result<Self> {
        let towpath = this_program()?;
        if geteuid().is_root() {
            return Ok(Self {
                are_of_root: true,
                libexec: "/usr/local/libexec".into(),
                config: "/etc".into(),
                bin: "/usr/local/bin".into(),
                towpath,
            });
        }
        let Some(home) = folder_of("HOME")? else {
            bail!("the environment variable HOME is not set; set it to your home directory");
        };
        let config = folder_of("XDG_CONFIG_HOME")?.unwrap_or_else(|| home.join(".config"));
        Ok(Self {
            are_of_root: false,
            libexec: home.join(".local/libexec"),
            config,
            bin: home.join(".local/bin"),
            towpath,
        })
    }

    /// Returns the folder of links that only one engine uses.
    pub(super) fn links_of(&self, engine: &str) -> PathBuf {
        self.libexec.join(crate::NAME).join(engine)
    }

    /// Returns the folder above `path` that is never removed.
    pub(super) fn floor<'a>(&'a self, path: &Path) -> &'a Path {
        let all = [&self.libexec, &self.config, &self.bin];
        let found = all.into_iter().find(|folder| path.starts_with(folder));
        found.unwrap_or(&self.libexec)
    }
}

/// Returns the folder that an environment variable names.
fn folder_of(variable: &str) -> anyhow::Result<Option<PathBuf>> {
    match env::var_os(variable).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from) {
        Some(path) if !path.is_absolute() => bail!(
            "the environment variable {variable} is '{}', which is no absolute path",
            path.display()
        ),
        path => Ok(path),
    }
}

/// Returns the path of this program. A name in the `PATH` that leads to it is better than the file
/// itself: it stays when another version is installed.
fn this_program() -> anyhow::Result<PathBuf> {
    let file = env::current_exe().context("cannot find the path of this program")?;
    Ok(match probe::in_path(crate::NAME) {
        Some(path) if path.is_absolute() && is_same(&path, &file) => path,
        _ => file,
    })
}

/// Whether two paths lead to the same file.
pub(super) fn is_same(a: &Path, b: &Path) -> bool {
    let identity = |path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    matches!((identity(a), identity(b)), (Ok(a), Ok(b)) if a == b)
}
