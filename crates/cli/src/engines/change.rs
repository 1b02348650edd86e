//! Links and files that towpath makes for engines.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// How the first line of each file begins that towpath makes.
const MARK: &str = "# Made by `towpath engines install";
/// The suffix of a file while it is written.
const SUFFIX: &str = ".towpath-new";

/// A link or a file that is to exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A symbolic link.
    Link { path: PathBuf, target: PathBuf },
    /// A file, without its first line.
    File { path: PathBuf, engine: &'static str, text: String },
}

/// What exists where a link or a file is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing.
    Absent,
    /// What is to be there.
    Same,
    /// What towpath made earlier.
    Older,
}

impl Change {
    /// Returns where it is.
    pub(super) fn path(&self) -> &Path {
        match self {
            Change::Link { path, .. } | Change::File { path, .. } => path,
        }
    }

    /// Returns the whole text of a file; a link has none.
    pub(super) fn text(&self) -> String {
        match self {
            Change::Link { .. } => String::new(),
            Change::File { engine, text, .. } => {
                format!("{MARK} {engine}`; `towpath engines remove {engine}` removes it.\n{text}")
            }
        }
    }

    /// Returns what is there now.
    ///
    /// # Errors
    /// Something that towpath did not make, with what to do.
    pub(super) fn state(&self) -> anyhow::Result<State> {
        let path = self.path();
        let found = match fs::symlink_metadata(path) {
            Ok(found) => found,
            Err(error) if is_absence(&error) => return Ok(State::Absent),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot look at {}", path.display()));
            }
        };
        match self {
            Change::Link { target, .. } if found.is_symlink() => {
                let leads_to = fs::read_link(path)
                    .with_context(|| format!("cannot read the link {}", path.display()))?;
                match leads_to {
                    leads_to if leads_to == *target => Ok(State::Same),
                    leads_to if is_towpath(&leads_to) => Ok(State::Older),
                    leads_to => bail!(
                        "{} is a link to {}, which is not towpath; remove or rename the link",
                        path.display(),
                        leads_to.display()
                    ),
                }
            }
            Change::Link { .. } => {
                bail!("{} exists and is no link to towpath; rename it", path.display())
            }
            Change::File { .. } if found.is_file() => {
                let text =
                    fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
                match text {
                    text if text == self.text().as_bytes() => Ok(State::Same),
                    text if text.starts_with(MARK.as_bytes()) => Ok(State::Older),
                    _ => bail!("{} exists and was not made by towpath; rename it", path.display()),
                }
            }
            Change::File { .. } => bail!("{} exists and is no file; rename it", path.display()),
        }
    }

    /// Makes it, with the folders above it. It is complete at each moment at which it exists.
    pub(super) fn apply(&self) -> anyhow::Result<()> {
        let path = self.path();
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        let mut name = path.as_os_str().to_owned();
        name.push(SUFFIX);
        let new = PathBuf::from(name);
        let made = match self {
            Change::Link { target, .. } => {
                remove_if_there(&new).and_then(|()| symlink(target, &new))
            }
            Change::File { .. } => fs::write(&new, self.text()),
        };
        let made = made.and_then(|()| fs::rename(&new, path));
        if made.is_err() {
            // The error of this matters less.
            let _ = remove_if_there(&new);
        }
        made.with_context(|| format!("cannot make {}", path.display()))
    }

    /// Removes it, and the folders above it that are empty then, below `floor`.
    pub(super) fn revert(&self, floor: &Path) -> anyhow::Result<()> {
        let path = self.path();
        remove_if_there(path).with_context(|| format!("cannot remove {}", path.display()))?;
        for folder in path.ancestors().skip(1).take_while(|folder| *folder != floor) {
            // It has other files in it, or belongs to others.
            if !folder.starts_with(floor) || fs::remove_dir(folder).is_err() {
                break;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Link { path, target } => {
                write!(f, "{}, a link to {}", path.display(), target.display())
            }
            Change::File { path, .. } => write!(f, "{}", path.display()),
        }
    }
}

/// Whether a path is that of a program named towpath, which may be gone.
fn is_towpath(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == crate::NAME)
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if !is_absence(&error) => Err(error),
        _ => Ok(()),
    }
}
