//! What the supervisor sees of the thread that made a call: its memory and its descriptors.
//!
//! Everything is read by the number of the thread, which another thread may get once this one has
//! ended. So the supervisor opens first, then asks whether the caller still waits, and then uses
//! what it opened.
//!
//! The program can change its memory and its descriptors meanwhile. What is read here is copied
//! once, and only describes the program to itself: which connection it wants, and with which
//! options.
//!
//! Limits: [`FILES_MAX`], [`EPOLL_BYTES_MAX`].

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Most descriptors that are looked through for others that lead to a socket. A look at one costs
/// about a microsecond, so a call waits at most a millisecond for it.
pub const FILES_MAX: usize = 1024;
/// Most bytes of the description of an epoll set that are read: about 800 files.
pub const EPOLL_BYTES_MAX: u64 = 64 << 10;

/// A thread that waits for the answer to its call.
#[derive(Debug)]
pub struct Caller {
    thread: Pid,
    memory: File,
    process: OwnedFd,
}

impl Caller {
    /// Opens the memory and the process of a thread.
    ///
    /// # Errors
    /// The thread has gone, or the system does not let this process look at it.
    pub fn open(thread: Pid) -> Result<Self, Errno> {
        let path = format!("/proc/{}/mem", thread.as_raw_pid());
        let memory = File::options().read(true).write(true).open(path);
        let memory = memory.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Self { thread, memory, process: open_process(thread)? })
    }

    /// Copies memory of the caller.
    ///
    /// # Errors
    /// EFAULT.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.memory.read_exact_at(bytes, at).map_err(|_| Errno::FAULT)
    }

    /// Writes memory of the caller.
    ///
    /// # Errors
    /// EFAULT.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.memory.write_all_at(bytes, at).map_err(|_| Errno::FAULT)
    }

    /// Returns another descriptor of the file behind the caller's descriptor `number`.
    ///
    /// # Errors
    /// Those of pidfd_getfd(2).
    pub fn file(&self, number: RawFd) -> Result<OwnedFd, Errno> {
        if number < 0 {
            return Err(Errno::BADF);
        }
        pidfd_getfd(&self.process, number, PidfdGetfdFlags::empty())
    }

    /// Returns true if the caller's descriptor `number` closes on execve(2).
    ///
    /// # Errors
    /// The caller has no such descriptor.
    pub fn closes_on_exec(&self, number: RawFd) -> Result<bool, Errno> {
        let text = self.description(number)?;
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        Ok(flags.ok_or(Errno::INVAL)? & libc::O_CLOEXEC != 0)
    }

    /// Returns true if the caller may reach the socket behind its descriptor `number` in another
    /// way: by another descriptor, or through an epoll set that watches it. Also if there is too
    /// much to look through.
    ///
    /// # Errors
    /// Those of reading /proc.
    pub fn has_other_ways(&self, number: RawFd, socket: &OwnedFd) -> Result<bool, Errno> {
        let inode = fstat(socket)?.st_ino;
        let same = format!("socket:[{inode}]");
        let directory = format!("/proc/{}/fd", self.thread.as_raw_pid());
        let entries = fs::read_dir(&directory);
        let entries = entries.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        for (count, entry) in entries.flatten().enumerate() {
            if count >= FILES_MAX {
                return Ok(true);
            }
            let other = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(other) = other.filter(|other: &RawFd| *other != number) else { continue };
            // A descriptor that was closed meanwhile.
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            if target.as_os_str() == same.as_str() {
                return Ok(true);
            }
            if target.as_os_str() == "anon_inode:[eventpoll]"
                && self.description(other).is_ok_and(|text| watches(&text, inode))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the start of the kernel's description of a descriptor.
    fn description(&self, number: RawFd) -> Result<String, Errno> {
        let path = format!("/proc/{}/fdinfo/{number}", self.thread.as_raw_pid());
        let mut text = String::new();
        let read =
            File::open(path).and_then(|file| file.take(EPOLL_BYTES_MAX).read_to_string(&mut text));
        read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(text)
    }
}

/// Opens the process of a thread.
pub(super) fn open_process(thread: Pid) -> Result<OwnedFd, Errno> {
    // `PIDFD_THREAD` of linux/pidfd.h, Linux 6.9: the descriptors are those of this thread.
    let of_thread = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
    pidfd_open(thread, of_thread).or_else(|_| {
        let status = fs::read_to_string(format!("/proc/{}/status", thread.as_raw_pid()));
        let status = status.map_err(|_| Errno::SRCH)?;
        let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
        let leader = leader.and_then(|number| number.trim().parse().ok()).and_then(Pid::from_raw);
        pidfd_open(leader.ok_or(Errno::SRCH)?, PidfdFlags::empty())
    })
}

/// Returns true if an epoll set with this description watches the file with this inode, or if the
/// description is not whole.
fn watches(description: &str, inode: u64) -> bool {
    let is_whole = (description.len() as u64) < EPOLL_BYTES_MAX;
    let field = format!("ino:{inode:x}");
    let mut entries = description.lines().filter(|line| line.starts_with("tfd:"));
    !is_whole || entries.any(|line| line.split_ascii_whitespace().any(|part| part == field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::os::fd::AsRawFd;

    use rustix::event::epoll;

    #[test]
    fn descriptions_of_epoll_sets() {
        let text = "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t1f\n\
                    tfd:        5 events:       19 data: 5  pos:0 ino:2a9 sdev:8\n";
        assert!(watches(text, 0x2a9));
        assert!(!watches(text, 0x2a) && !watches(text, 0x1f) && !watches(text, 0));
        assert!(watches(&" ".repeat(EPOLL_BYTES_MAX as usize), 1), "not whole");
    }

    /// Goal: this thread's memory and descriptors are seen as they are; a copy of a descriptor and
    /// an epoll set are other ways to a socket.
    #[test]
    fn a_thread_is_seen() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let number = socket.as_raw_fd();
        let caller = Caller::open(rustix::thread::gettid()).unwrap();
        let word = [7_u8; 4];
        let mut copy = [0; 4];
        caller.read(word.as_ptr() as u64, &mut copy).unwrap();
        assert_eq!(copy, word);
        assert_eq!(caller.read(8, &mut copy), Err(Errno::FAULT));
        assert!(caller.closes_on_exec(number).unwrap());
        let inode = fstat(&socket).unwrap().st_ino;
        let file = caller.file(number).unwrap();
        assert_eq!(fstat(&file).unwrap().st_ino, inode);
        assert!(caller.has_other_ways(number, &file).unwrap(), "this test has two descriptors");
        let only = OwnedFd::from(socket);
        drop(file);
        assert!(!caller.has_other_ways(number, &only).unwrap());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, &only, data, epoll::EventFlags::IN).unwrap();
        assert!(caller.has_other_ways(number, &only).unwrap());
        epoll::delete(&epoll, &only).unwrap();
        assert!(!caller.has_other_ways(number, &only).unwrap());
        assert_eq!(caller.file(-1).unwrap_err(), Errno::BADF);
    }
}
