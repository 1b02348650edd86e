//! A file that keeps leases across restarts.
//!
//! # Theory of operation
//!
//! A change is written [`WRITE_AFTER`] later, as a whole file, by a separate thread, so a slow or
//! full disk delays no packets. The two threads share a queue of one text. While the queue is full
//! the next text waits, and is newer when it is sent. At the end the last text is written, and the
//! thread is joined. A killed process loses the changes of [`WRITE_AFTER`].
//!
//! A file that cannot be read is not replaced. A file with lines that are not leases is copied to
//! another name before it is replaced.
//!
//! The process holds a lock (flock) on a second file, with `.lock` appended to the name, because
//! the lease file itself is replaced. The lock ends with the process, however that ends; the lock
//! file remains. Where the lock file cannot be made, leases cannot be written either, and each
//! write tries both again.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use towpath_io::confine::broker::{open_lock, replace_file};
use towpath_io::outside;
use towpath_net::time::Instant;

use crate::services::{Restored, Services};

/// How long a change waits for others: the requests of guests that boot together fall within it.
pub const WRITE_AFTER: Duration = Duration::from_secs(1);
/// Longest file that is read, in bytes: the leases of two full pools with the longest names take
/// six MiB.
pub const LEASE_FILE_BYTES_MAX: u64 = 8 << 20;

/// The result of opening a lease file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeasesFound {
    /// The leases that it restored.
    pub restored: Restored,
    /// The copy that was made of a file with lines that are not leases.
    pub set_aside: Option<PathBuf>,
}

/// Called when writing fails, with the error, and when it works again.
pub type ReportLeaseFile = Box<dyn Fn(Option<io::Error>) + Send>;

/// A lease file that is kept up to date.
pub(super) struct LeaseFile {
    /// When the change is written.
    due: Option<Instant>,
    to_writer: SyncSender<String>,
    writer: Writer,
}

/// The thread that writes. It starts with the first text, after the process has been confined.
enum Writer {
    Waiting(Box<dyn FnOnce() + Send>),
    Running(JoinHandle<()>),
    /// The thread could not be started.
    Lost,
}

impl LeaseFile {
    /// Restores the leases in the file, if it exists, and begins to keep it up to date.
    pub(super) fn open(
        path: &Path,
        services: &mut Services,
        now: Instant,
        tell: ReportLeaseFile,
    ) -> io::Result<(Self, LeasesFound)> {
        let mut lock = Lock::new(path);
        // A directory that cannot be written is reported when there is something to write.
        if let Err(error) = lock.take()
            && error.kind() == ErrorKind::ResourceBusy
        {
            return Err(error);
        }
        let mut found = LeasesFound::default();
        if let Some(text) = read(path)? {
            found.restored = services.restore(&text, now, wall());
            if found.restored.unusable > 0 {
                let mut beside = path.as_os_str().to_owned();
                beside.push(".damaged");
                fs::copy(path, &beside)?;
                found.set_aside = Some(beside.into());
            }
        }
        let (to_writer, texts) = sync_channel(1);
        let path = path.to_owned();
        let writer = Writer::Waiting(Box::new(move || write(&path, lock, &texts, &tell)));
        Ok((Self { due: None, to_writer, writer }, found))
    }

    /// Schedules a write, as leases have changed.
    pub(super) fn changed(&mut self, now: Instant) {
        self.due = self.due.or(Some(now + WRITE_AFTER));
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Writes the leases if that is due.
    pub(super) fn turn(&mut self, services: &Services, now: Instant) {
        if self.due.take_if(|due| *due <= now).is_some() {
            self.start();
            match self.to_writer.try_send(services.leases(now, wall())) {
                // The text before is still being written.
                Err(TrySendError::Full(_)) => self.due = Some(now + WRITE_AFTER),
                Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            }
        }
    }

    /// Writes the last text, and waits until it is written.
    pub(super) fn close(mut self, services: &Services, now: Instant) {
        self.start();
        // A failure means that the thread is gone; joining it then fails as well.
        let _ = self.to_writer.send(services.leases(now, wall()));
        drop(self.to_writer);
        if let Writer::Running(writer) = self.writer {
            let _ = writer.join();
        }
    }

    /// Starts the thread if it has not started. If it cannot be started, nothing is written.
    fn start(&mut self) {
        self.writer = match std::mem::replace(&mut self.writer, Writer::Lost) {
            Writer::Waiting(work) => {
                let thread = thread::Builder::new().name("lease file".to_owned());
                thread.spawn(work).map_or(Writer::Lost, Writer::Running)
            }
            other => other,
        };
    }
}

/// The lock of a lease file.
struct Lock {
    path: PathBuf,
    /// The lock file, once it is locked.
    file: Option<File>,
}

impl Lock {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None }
    }

    /// Takes the lock. Fails with [`ErrorKind::ResourceBusy`] if another process holds it.
    fn take(&mut self) -> io::Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        let file = outside::lease_lock().unwrap_or_else(|| open_lock(&self.path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                Err(io::Error::new(ErrorKind::ResourceBusy, "another network uses this file"))
            }
            locked => {
                locked?;
                self.file = Some(file);
                Ok(())
            }
        }
    }
}

/// Runs on the thread: writes each text.
fn write(path: &Path, mut lock: Lock, texts: &Receiver<String>, tell: &ReportLeaseFile) {
    let mut fails = false;
    for text in texts {
        let result = lock.take().and_then(|()| {
            let replaced = outside::replace_leases(text.as_bytes());
            replaced.unwrap_or_else(|| replace_file(path, text.as_bytes()))
        });
        if result.is_err() != fails {
            fails = result.is_err();
            tell(result.err());
        }
    }
}

/// Returns the text of a file; `None` if it does not exist.
fn read(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(LEASE_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LEASE_FILE_BYTES_MAX {
        return Err(io::Error::new(
            ErrorKind::FileTooLarge,
            "the file is too large for a lease file",
        ));
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Returns the time since 1970.
fn wall() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
