//! The files under a directory, and none outside of it.
//!
//! Whatever a path says, the kernel looks it up without leaving the directory: neither by `..`, nor
//! by a link, nor when somebody renames directories meanwhile (openat2(2), `RESOLVE_BENEATH`).
//!
//! A file that was found stays open for [`FRESH`], so that many requests for it look it up once;
//! what is sent then may be as old. At most [`KEPT_MAX`] are kept.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// How long a file is taken for what it was.
const FRESH: Duration = Duration::from_secs(1);
/// Files that are kept open.
const KEPT_MAX: usize = 512;

/// A directory that is served.
pub(super) struct Root {
    directory: OwnedFd,
    kept: HashMap<Box<str>, (Duration, Rc<Found>)>,
}

/// A file.
pub(super) struct Found {
    pub(super) file: Arc<File>,
    pub(super) len: u64,
    /// In whole seconds, as HTTP has them.
    pub(super) modified: SystemTime,
    pub(super) etag: String,
    /// Headers that describe it, but for the length.
    pub(super) fields: String,
}

/// What a path leads to.
pub(super) enum Target {
    File(Rc<Found>),
    /// A directory that was asked for as if it were a file.
    Directory,
    Nothing,
}

impl Root {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { directory, kept: HashMap::new() })
    }

    /// What `path` leads to; `now` is any clock's.
    ///
    /// # Errors
    /// The system's, where it says nothing about the path.
    pub(super) fn find(&mut self, path: &str, now: Duration) -> Result<Target, Errno> {
        if let Some((found_at, found)) = self.kept.get(path)
            && now.saturating_sub(*found_at) < FRESH
        {
            return Ok(Target::File(found.clone()));
        }
        let target = self.look_up(path)?;
        if let Target::File(found) = &target {
            if self.kept.len() >= KEPT_MAX {
                self.kept.retain(|_, (found_at, _)| now.saturating_sub(*found_at) < FRESH);
            }
            if self.kept.len() < KEPT_MAX {
                self.kept.insert(path.into(), (now, found.clone()));
            }
        }
        Ok(target)
    }

    fn look_up(&self, path: &str) -> Result<Target, Errno> {
        let index;
        let name = if path.is_empty() || path.ends_with('/') {
            index = format!("{path}{INDEX}");
            &index
        } else {
            path
        };
        // A FIFO would block until somebody writes to it.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = match openat2(&self.directory, name, flags, Mode::empty(), inside) {
            Ok(file) => File::from(file),
            // Out of descriptors or memory, or a disk that fails.
            Err(
                errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO | Errno::NOSYS),
            ) => {
                return Err(errno);
            }
            Err(_) => return Ok(Target::Nothing),
        };
        let metadata = file.metadata().map_err(|_| Errno::IO)?;
        if metadata.is_dir() && std::ptr::eq(name, path) {
            return Ok(Target::Directory);
        }
        if !metadata.is_file() {
            return Ok(Target::Nothing);
        }
        let seconds = u64::try_from(metadata.mtime()).unwrap_or(0);
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let (len, inode) = (metadata.len(), metadata.ino());
        let etag = format!("\"{inode:x}-{len:x}-{seconds:x}.{:x}\"", metadata.mtime_nsec());
        let fields = format!(
            "Content-Type: {}\r\nLast-Modified: {}\r\nETag: {etag}\r\nAccept-Ranges: bytes\r\n",
            content_type(name),
            httpdate::fmt_http_date(modified),
        );
        let file = Arc::new(file);
        Ok(Target::File(Rc::new(Found { file, len, modified, etag, fields })))
    }
}

/// What stands for a directory.
const INDEX: &str = "index.html";

fn content_type(name: &str) -> &'static str {
    let suffix = name.rsplit('/').next().and_then(|name| name.rsplit_once('.'));
    let suffix = suffix.map(|(_, suffix)| suffix.to_ascii_lowercase()).unwrap_or_default();
    let known = TYPES.iter().find(|(known, _)| *known == suffix);
    known.map_or("application/octet-stream", |(_, name)| name)
}

/// By suffix.
const TYPES: [(&str, &str); 20] = [
    ("html", "text/html; charset=utf-8"),
    ("htm", "text/html; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("txt", "text/plain; charset=utf-8"),
    ("md", "text/markdown; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("json", "application/json"),
    ("xml", "application/xml"),
    ("pdf", "application/pdf"),
    ("wasm", "application/wasm"),
    ("gz", "application/gzip"),
    ("zip", "application/zip"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("webp", "image/webp"),
    ("mp4", "video/mp4"),
];
