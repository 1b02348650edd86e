//! Directories for files of a measurement, such as sockets.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A directory that is removed with this value, with all its files. Open files stay usable.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory inside `parent`.
    pub(super) fn inside(parent: &Path) -> anyhow::Result<Self> {
        // Not named by the PID of this process, which is not unique across PID namespaces. The name
        // is short, because socket paths must be.
        let path = parent.join(format!("towpath-{:08x}", RandomState::new().hash_one(0) as u32));
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    /// Path of the directory.
    pub(super) fn directory(&self) -> &Path {
        &self.0
    }

    /// Path of a file with this name.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Files that cannot be removed do no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
