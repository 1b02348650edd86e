//! Directories for what a measurement has in files, such as sockets.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A directory that goes with this value, with all that is in it. Who has a file open keeps it.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// A directory inside of `parent`.
    pub(super) fn inside(parent: &Path) -> anyhow::Result<Self> {
        // Not by the number of this process, which others have in namespaces of their own; short,
        // because paths of sockets must be.
        let path = parent.join(format!("towpath-{:08x}", RandomState::new().hash_one(0) as u32));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    /// The directory itself.
    pub(super) fn directory(&self) -> &Path {
        &self.0
    }

    /// Where a file of this name is.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is of no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
