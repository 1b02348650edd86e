//! The files under a directory, and none outside of it.
//!
//! The kernel looks up each path without leaving the directory, whether by `..`, by a link, or by
//! concurrent renames (openat2(2), `RESOLVE_BENEATH`).
//!
//! A file that was found stays open for [`FRESH`], so that many requests cause one lookup; answers
//! may be that old. At most [`KEPT_MAX`] files are kept open.

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

/// How long a found file is used without another lookup.
const FRESH: Duration = Duration::from_secs(1);
/// Most files that are kept open.
const KEPT_MAX: usize = 512;

/// A directory that is served.
pub(super) struct Root {
    directory: OwnedFd,
    kept: HashMap<Box<str>, (Duration, Rc<Found>)>,
}

/// A file that was found.
pub(super) struct Found {
    pub(super) file: Arc<File>,
    pub(super) len: u64,
    /// In whole seconds, as in HTTP.
    pub(super) modified: SystemTime,
    pub(super) etag: String,
    /// Headers that describe the file, except its length.
    pub(super) fields: String,
}

/// The object that a path names.
pub(super) enum Target {
    File(Rc<Found>),
    /// A directory whose path has no trailing slash.
    Directory,
    Nothing,
}

impl Root {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { directory, kept: HashMap::new() })
    }

    /// Looks up `path`; `now` is of any monotonic clock.
    ///
    /// # Errors
    /// Errors of the system that do not depend on the path.
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
        // Without NONBLOCK, opening a FIFO would block until it has a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = match openat2(&self.directory, name, flags, Mode::empty(), inside) {
            Ok(file) => File::from(file),
            // Descriptors or memory ran out, or the disk fails.
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

/// The file that is served for a directory.
const INDEX: &str = "index.html";

fn content_type(name: &str) -> &'static str {
    let suffix = name.rsplit('/').next().and_then(|name| name.rsplit_once('.'));
    let suffix = suffix.map(|(_, suffix)| suffix.to_ascii_lowercase()).unwrap_or_default();
    let known = TYPES.iter().find(|(known, _)| *known == suffix);
    known.map_or("application/octet-stream", |(_, name)| name)
}

/// Content types by suffix.
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
