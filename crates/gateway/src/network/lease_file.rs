//! A file in which leases outlive the process.
//!
//! # Theory of operation
//!
//! What has changed is written [`WRITE_AFTER`] later, whole, by a thread of its own: a disk that
//! is slow or full holds up no packet. The two threads share a queue of one text; while it is
//! taken the next has to wait, and is newer then. At the end what is left is written and the
//! thread waited for. Whoever is killed loses the changes of [`WRITE_AFTER`].
//!
//! A file that cannot be read is left alone. One with lines that are no leases is copied beside
//! before it is replaced.
//!
//! Whoever keeps a file holds a lock (flock) on another with `.lock` behind the name, because the
//! file itself is replaced. It goes with the process, however that ends; the file of the lock
//! stays. Where it cannot be made no leases can be written either, and it is tried again with them.

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

/// How long a change waits for others: guests that boot together ask within it.
pub const WRITE_AFTER: Duration = Duration::from_secs(1);
/// Longest file that is read: the leases of two full pools with the longest names take six.
pub const LEASE_FILE_BYTES_MAX: u64 = 8 << 20;

/// What became of a lease file at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeasesFound {
    /// Its leases.
    pub restored: Restored,
    /// The copy of a file with lines that are no leases.
    pub set_aside: Option<PathBuf>,
}

/// Hears when writing fails, with the error, and when it works again.
pub type TellLeaseFile = Box<dyn Fn(Option<io::Error>) + Send>;

/// A lease file that is kept up to date.
pub(super) struct LeaseFile {
    /// When a change is written.
    due: Option<Instant>,
    to_writer: SyncSender<String>,
    writer: Writer,
}

/// The thread that writes. It begins with the first text: whoever confines this process has done
/// so by then.
enum Writer {
    Waiting(Box<dyn FnOnce() + Send>),
    Running(JoinHandle<()>),
    /// It could not be started.
    Lost,
}

impl LeaseFile {
    /// Takes over what the file has, if there is one, and begins to keep it.
    pub(super) fn open(
        path: &Path,
        services: &mut Services,
        now: Instant,
        tell: TellLeaseFile,
    ) -> io::Result<(Self, LeasesFound)> {
        let mut lock = Lock::new(path);
        // Where nothing can be written is told when there is something to write.
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

    /// Leases have changed.
    pub(super) fn changed(&mut self, now: Instant) {
        self.due = self.due.or(Some(now + WRITE_AFTER));
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Has written what is due.
    pub(super) fn turn(&mut self, services: &Services, now: Instant) {
        if self.due.take_if(|due| *due <= now).is_some() {
            self.start();
            match self.to_writer.try_send(services.leases(now, wall())) {
                // The one before is still being written.
                Err(TrySendError::Full(_)) => self.due = Some(now + WRITE_AFTER),
                Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            }
        }
    }

    /// Writes the last, and waits until it is written.
    pub(super) fn close(mut self, services: &Services, now: Instant) {
        self.start();
        // Fails only if the thread has gone, and so does waiting for it.
        let _ = self.to_writer.send(services.leases(now, wall()));
        drop(self.to_writer);
        if let Writer::Running(writer) = self.writer {
            let _ = writer.join();
        }
    }

    /// Starts the thread if it waits for that. One that cannot be started writes nothing, as one
    /// that has gone.
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

/// Says that a lease file is this process's.
struct Lock {
    path: PathBuf,
    /// Locked.
    file: Option<File>,
}

impl Lock {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None }
    }

    /// Fails with [`ErrorKind::ResourceBusy`] if another has it.
    fn take(&mut self) -> io::Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        let file = outside::lease_lock().unwrap_or_else(|| open_lock(&self.path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(io::Error::new(
                ErrorKind::ResourceBusy,
                "another network keeps its leases there",
            )),
            locked => {
                locked?;
                self.file = Some(file);
                Ok(())
            }
        }
    }
}

/// The thread.
fn write(path: &Path, mut lock: Lock, texts: &Receiver<String>, tell: &TellLeaseFile) {
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

/// The text of a file; `None` if there is none.
fn read(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(LEASE_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LEASE_FILE_BYTES_MAX {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "it is too large for a lease file"));
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Time since 1970.
fn wall() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
