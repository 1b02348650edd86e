//! A disk that does as it is told: a file system of one file, served by a thread of the test over
//! `/dev/fuse`. Reads can be held, cut short and refused, writes too, and the test sets size and
//! time stamp. No cache of the kernel is in between.

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

/// How often the server looks whether what was held may go on.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// What the file is, and what becomes of reads and writes.
#[derive(Default)]
pub(super) struct Told {
    /// As the file system says; there may be fewer bytes.
    pub(super) size: u64,
    pub(super) bytes: Vec<u8>,
    /// When it was changed, in seconds since 1970.
    pub(super) changed: u64,
    /// Reads and writes that reach this offset fail with this error, and so do syncs, and where it
    /// is none looks, too.
    pub(super) fails: Option<(u64, i32)>,
    /// Questions of what the file is like are kept until they may go on.
    pub(super) holds_looks: bool,
    /// Reads, writes and syncs are kept until they may go on.
    pub(super) is_held: bool,
    /// The server ends, and answers nothing any more.
    pub(super) is_gone: bool,
    /// Offsets of the reads that came.
    pub(super) reads: Vec<u64>,
    held: Vec<Vec<u8>>,
}

struct Shared {
    told: Mutex<Told>,
    /// A read or a write came.
    came: Condvar,
}

/// See the module's documentation. It goes with its last file.
pub(super) struct Disk {
    shared: Arc<Shared>,
    pub(super) file: Arc<File>,
}

impl Disk {
    /// With a file of these bytes that was changed long ago; `None` where that is not allowed.
    pub(super) fn new(name: &str, bytes: Vec<u8>) -> Option<Self> {
        let told = Told { size: bytes.len() as u64, bytes, changed: 1, ..Told::default() };
        let shared = Arc::new(Shared { told: Mutex::new(told), came: Condvar::new() });
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
            // As that thread sees it.
            let root = PathBuf::from(format!("/proc/self/task/{thread}/root"));
            let path = root.join(at.strip_prefix("/").unwrap()).join("file");
            OpenOptions::new().read(true).write(true).open(path).unwrap()
        });
        let _ = opened.send(());
        mounter.join().unwrap();
        let _ = fs::remove_dir(&at);
        Some(Self { shared, file: Arc::new(file?) })
    }

    pub(super) fn tell(&self) -> MutexGuard<'_, Told> {
        self.shared.told.lock().unwrap()
    }

    /// Waits until so many reads or writes are held.
    pub(super) fn until_held(&self, count: usize) {
        let told = self.tell();
        let is_short = |told: &mut Told| told.held.len() < count;
        let (told, waited) = self.shared.came.wait_timeout_while(told, PATIENCE, is_short).unwrap();
        assert!(!waited.timed_out(), "{} of {count} came", told.held.len());
    }

    /// How many requests are held.
    pub(super) fn held(&self) -> usize {
        self.tell().held.len()
    }

    /// Lets reads and writes go on, those that come, too.
    pub(super) fn let_go(&self) {
        let mut told = self.tell();
        (told.is_held, told.holds_looks) = (false, false);
    }
}

/// Mounts it in a namespace of this thread alone. The thread gets a table of descriptors of its
/// own, too: when the process is killed the device is closed whatever waits for the disk.
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

/// Requests (`linux/fuse.h`).
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
/// Of an open file: no cache.
const DIRECT_IO: u32 = 1;

fn word(request: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(request[at..at + 4].try_into().unwrap())
}

fn long(request: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(request[at..at + 8].try_into().unwrap())
}

impl Shared {
    /// Answers until the file system is gone.
    fn serve(&self, device: &File) {
        let mut buffer = vec![0; (1 << 20) + 4096];
        loop {
            let mut waits = [PollFd::new(device, PollFlags::IN)];
            rustix::event::poll(&mut waits, Some(&LOOK_AGAIN)).unwrap();
            if waits[0].revents().is_empty() {
                let mut told = self.told.lock().unwrap();
                if told.is_gone {
                    return;
                }
                if !told.is_held && !told.holds_looks {
                    let held = std::mem::take(&mut told.held);
                    held.iter().for_each(|request| answer(&mut told, request, device));
                }
                continue;
            }
            let Ok(count) = rustix::io::read(device, &mut buffer) else { return };
            let request = &buffer[..count];
            let mut told = self.told.lock().unwrap();
            match word(request, 4) {
                FORGET | BATCH_FORGET | INTERRUPT => {}
                kind if told.holds(kind) => {
                    told.note(request);
                    told.held.push(request.to_vec());
                    self.came.notify_all();
                }
                _ => {
                    told.note(request);
                    answer(&mut told, request, device);
                }
            }
        }
    }
}

impl Told {
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

fn answer(told: &mut Told, request: &[u8], device: &File) {
    let (error, body) = match body(told, request) {
        Ok(body) => (0, body),
        Err(errno) => (-errno, Vec::new()),
    };
    let mut answer = ((ANSWER + body.len()) as u32).to_ne_bytes().to_vec();
    answer.extend(error.to_ne_bytes());
    answer.extend(&request[8..16]);
    answer.extend(body);
    // Nobody may wait for it any more.
    let _ = rustix::io::write(device, &answer);
}

/// What a request is answered with, or its error.
fn body(told: &mut Told, request: &[u8]) -> Result<Vec<u8>, i32> {
    let node = long(request, 16);
    let zero = [0; 8];
    match word(request, 4) {
        INIT => {
            let mut body = [7u32, 31, 0, 0].map(u32::to_ne_bytes).concat();
            // Requests in the background, and the longest write.
            body.extend([16u16, 12].map(u16::to_ne_bytes).concat());
            body.extend((128u32 << 10).to_ne_bytes());
            body.resize(64, 0);
            Ok(body)
        }
        LOOKUP => Ok([&2u64.to_ne_bytes(), &zero, &zero, &zero, &zero]
            .into_iter()
            .flatten()
            .copied()
            .chain(attributes(told, 2))
            .collect()),
        GETATTR if told.fails.is_some_and(|(from, _)| from == u64::MAX) => Err(libc::EIO),
        GETATTR => Ok([zero, zero].concat().into_iter().chain(attributes(told, node)).collect()),
        OPEN => Ok([0, 0, DIRECT_IO, 0].map(u32::to_ne_bytes).concat()),
        READ | WRITE => {
            let (at, len) = (long(request, REQUEST + 8), u64::from(word(request, REQUEST + 16)));
            if let Some((_, errno)) = told.fails.filter(|(from, _)| at + len > *from) {
                return Err(errno);
            }
            if word(request, 4) == READ {
                let end = told.bytes.len();
                let from = (at as usize).min(end);
                return Ok(told.bytes[from..(from + len as usize).min(end)].to_vec());
            }
            let end = (at + len) as usize;
            if told.bytes.len() < end {
                told.bytes.resize(end, 0);
            }
            told.bytes[at as usize..end].copy_from_slice(&request[REQUEST + 40..][..len as usize]);
            told.size = told.size.max(end as u64);
            Ok([len as u32, 0].map(u32::to_ne_bytes).concat())
        }
        FSYNC => told.fails.map_or(Ok(Vec::new()), |(_, errno)| Err(errno)),
        FLUSH | RELEASE => Ok(Vec::new()),
        _ => Err(libc::ENOSYS),
    }
}

/// `struct fuse_attr` of the directory or the file.
fn attributes(told: &Told, node: u64) -> Vec<u8> {
    let (mode, size) = if node == 1 { (0o040_700, 0) } else { (0o100_600, told.size) };
    let longs = [node, size, size.div_ceil(512), 0, told.changed, told.changed];
    // Nanoseconds, mode, links, owner, group, device, block, flags.
    let words = [0u32, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
    [longs.map(u64::to_ne_bytes).concat(), words.map(u32::to_ne_bytes).concat()].concat()
}
