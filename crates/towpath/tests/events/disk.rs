//! A controllable disk: a file system with one file, served by a thread of the test over
//! `/dev/fuse`. The test can hold, shorten and fail reads, hold and fail writes, and set size and
//! time stamp. No kernel cache is involved.

use super::PATIENCE;
use nix::sched::CloneFlags;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};

/// How often the server checks whether held requests may continue.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// State of the file, and the treatment of requests.
#[derive(Default)]
pub(super) struct Seen {
    /// The size that the file system reports; there may be fewer bytes.
    pub(super) size: u64,
    pub(super) bytes: Vec<u8>,
    /// Modification time, in seconds since 1970.
    pub(super) changed: u64,
    /// Reads and writes that reach this offset fail with this error, and so do syncs. With the
    /// offset `u64::MAX`, status requests fail, with `EIO`.
    pub(super) fails: Option<(u64, i32)>,
    /// Status requests are held.
    pub(super) holds_looks: bool,
    /// Reads, writes and syncs are held.
    pub(super) is_held: bool,
    /// The server ends and answers nothing more.
    pub(super) is_gone: bool,
    /// Offsets of the reads that arrived.
    pub(super) reads: Vec<u64>,
    held: Vec<Vec<u8>>,
}

struct Shared {
    reported: Mutex<Seen>,
    /// A read or a write arrived.
    came: Condvar,
}

/// A controllable disk; see the module documentation. It ends with its last open file.
pub(super) struct Disk {
    shared: Arc<Shared>,
    pub(super) file: Arc<File>,
}

impl Disk {
    /// Creates a disk whose file has these bytes and changed long ago; `None` if mounting is not
    /// allowed.
    pub(super) fn new(name: &str, bytes: Vec<u8>) -> Option<Self> {
        let reported = Seen { size: bytes.len() as u64, bytes, changed: 1, ..Seen::default() };
        let shared = Arc::new(Shared { reported: Mutex::new(reported), came: Condvar::new() });
        let at = std::env::temp_dir().join(format!("towpath-{}-{name}", std::process::id()));
        let (server, path) = (shared.clone(), at.clone());
        let (mounted, is_mounted) = mpsc::channel();
        let (opened, is_opened) = mpsc::channel::<()>();
        let mounter = std::thread::spawn(move || {
            let device = mount_disk(&path);
            let thread = rustix::thread::gettid();
            if let Ok(device) = device {
                std::thread::spawn(move || server.serve(&device));
                mounted.send(thread).unwrap();
                is_opened.recv_timeout(PATIENCE).unwrap();
                unmount(&path, UnmountFlags::DETACH).unwrap();
            }
        });
        let file = is_mounted.recv().ok().map(|thread| {
            // The path as that thread sees it.
            let root = PathBuf::from(format!("/proc/self/task/{thread}/root"));
            let path = root.join(at.strip_prefix("/").unwrap()).join("file");
            OpenOptions::new().read(true).write(true).open(path).unwrap()
        });
        let _ = opened.send(());
        mounter.join().unwrap();
        let _ = fs::remove_dir(&at);
        Some(Self { shared, file: Arc::new(file?) })
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.shared.reported.lock().unwrap()
    }

    /// Waits until `count` requests are held.
    pub(super) fn until_held(&self, count: usize) {
        let reported = self.seen();
        let is_short = |reported: &mut Seen| reported.held.len() < count;
        let (reported, waited) =
            self.shared.came.wait_timeout_while(reported, PATIENCE, is_short).unwrap();
        assert!(!waited.timed_out(), "{} of {count} held", reported.held.len());
    }

    /// Returns the number of held requests.
    pub(super) fn held(&self) -> usize {
        self.seen().held.len()
    }

    /// Releases held requests, and holds no more.
    pub(super) fn let_go(&self) {
        let mut reported = self.seen();
        (reported.is_held, reported.holds_looks) = (false, false);
    }
}

/// Mounts the file system in a mount namespace of this thread alone. The thread also gets its own
/// descriptor table: if the process is killed, the device is closed even while a thread waits for
/// the disk.
fn mount_disk(path: &Path) -> io::Result<File> {
    nix::sched::unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FILES)?;
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    fs::create_dir_all(path)?;
    let fd = device.as_raw_fd();
    let options = CString::new(format!("fd={fd},rootmode=40000,user_id=0,group_id=0"))?;
    mount("disk", path, "fuse", MountFlags::empty(), &*options)?;
    Ok(device)
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Request types (`linux/fuse.h`).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
/// Bytes of the headers of requests and answers.
const REQUEST: usize = 40;
const ANSWER: usize = 16;
/// Flag of an open file: no cache.
const DIRECT_IO: u32 = 1;

fn word(request: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(request[at..at + 4].try_into().unwrap())
}

fn long(request: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(request[at..at + 8].try_into().unwrap())
}

impl Shared {
    /// Answers requests until the file system is gone.
    fn serve(&self, device: &File) {
        let mut buffer = vec![0; (1 << 20) + 4096];
        loop {
            let mut waits = [PollFd::new(device, PollFlags::IN)];
            rustix::event::poll(&mut waits, Some(&LOOK_AGAIN)).unwrap();
            if waits[0].revents().is_empty() {
                let mut reported = self.reported.lock().unwrap();
                if reported.is_gone {
                    return;
                }
                if !reported.is_held && !reported.holds_looks {
                    let held = std::mem::take(&mut reported.held);
                    held.iter().for_each(|request| answer(&mut reported, request, device));
                }
                continue;
            }
            let Ok(count) = rustix::io::read(device, &mut buffer) else { return };
            let request = &buffer[..count];
            let mut reported = self.reported.lock().unwrap();
            match word(request, 4) {
                FORGET | BATCH_FORGET | INTERRUPT => {}
                kind if reported.holds(kind) => {
                    reported.note(request);
                    reported.held.push(request.to_vec());
                    self.came.notify_all();
                }
                _ => {
                    reported.note(request);
                    answer(&mut reported, request, device);
                }
            }
        }
    }
}

impl Seen {
    fn holds(&self, kind: u32) -> bool {
        match kind {
            GETATTR => self.holds_looks,
            READ | WRITE | FSYNC => self.is_held,
            _ => false,
        }
    }

    fn note(&mut self, request: &[u8]) {
        if word(request, 4) == READ {
            self.reads.push(long(request, REQUEST + 8));
        }
    }
}

fn answer(reported: &mut Seen, request: &[u8], device: &File) {
    let (error, body) = match body(reported, request) {
        Ok(body) => (0, body),
        Err(errno) => (-errno, Vec::new()),
    };
    let mut answer = ((ANSWER + body.len()) as u32).to_ne_bytes().to_vec();
    answer.extend(error.to_ne_bytes());
    answer.extend(&request[8..16]);
    answer.extend(body);
    // Fails if the request is no longer waited for.
    let _ = rustix::io::write(device, &answer);
}

/// Returns the answer to a request, or its error.
fn body(reported: &mut Seen, request: &[u8]) -> Result<Vec<u8>, i32> {
    let node = long(request, 16);
    let zero = [0; 8];
    match word(request, 4) {
        INIT => {
            let mut body = [7u32, 31, 0, 0].map(u32::to_ne_bytes).concat();
            // Background requests, and the longest write.
            body.extend([16u16, 12].map(u16::to_ne_bytes).concat());
            body.extend((128u32 << 10).to_ne_bytes());
            body.resize(64, 0);
            Ok(body)
        }
        LOOKUP => Ok([&2u64.to_ne_bytes(), &zero, &zero, &zero, &zero]
            .into_iter()
            .flatten()
            .copied()
            .chain(attributes(reported, 2))
            .collect()),
        GETATTR if reported.fails.is_some_and(|(from, _)| from == u64::MAX) => Err(libc::EIO),
        GETATTR => {
            Ok([zero, zero].concat().into_iter().chain(attributes(reported, node)).collect())
        }
        OPEN => Ok([0, 0, DIRECT_IO, 0].map(u32::to_ne_bytes).concat()),
        READ | WRITE => {
            let (at, len) = (long(request, REQUEST + 8), u64::from(word(request, REQUEST + 16)));
            if let Some((_, errno)) = reported.fails.filter(|(from, _)| at + len > *from) {
                return Err(errno);
            }
            if word(request, 4) == READ {
                let end = reported.bytes.len();
                let from = (at as usize).min(end);
                return Ok(reported.bytes[from..(from + len as usize).min(end)].to_vec());
            }
            let end = (at + len) as usize;
            if reported.bytes.len() < end {
                reported.bytes.resize(end, 0);
            }
            reported.bytes[at as usize..end]
                .copy_from_slice(&request[REQUEST + 40..][..len as usize]);
            reported.size = reported.size.max(end as u64);
            Ok([len as u32, 0].map(u32::to_ne_bytes).concat())
        }
        FSYNC => reported.fails.map_or(Ok(Vec::new()), |(_, errno)| Err(errno)),
        FLUSH | RELEASE => Ok(Vec::new()),
        _ => Err(libc::ENOSYS),
    }
}

/// Returns the `struct fuse_attr` of the directory or the file.
fn attributes(reported: &Seen, node: u64) -> Vec<u8> {
    let (mode, size) = if node == 1 { (0o040_700, 0) } else { (0o100_600, reported.size) };
    let longs = [node, size, size.div_ceil(512), 0, reported.changed, reported.changed];
    // Nanoseconds, mode, links, owner, group, device, block, flags.
    let words = [0u32, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
    [longs.map(u64::to_ne_bytes).concat(), words.map(u32::to_ne_bytes).concat()].concat()
}
