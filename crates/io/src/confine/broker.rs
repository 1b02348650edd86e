//! The broker: a small process outside the sandbox that acts for a confined process.
//!
//! It is forked before the process that it serves has threads. It keeps the user's rights, and of
//! root's capabilities those that its requests need. It ends with the process that it serves, and
//! it sees no packets. It answers one request at a time, and refuses those for which it was not
//! started ([`Duties`]): an attacker who controls the served process can make the broker do these
//! things and no others. The broker checks each number, name and descriptor that comes with a
//! request.
//!
//! Limits: [`SOCKETS_MAX`], [`TAPS_MAX`].

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socketpair, sockopt};
use rustix::process::{Signal, pidfd_send_signal};
use rustix::thread::CapabilitySet;

use super::give_up;
use crate::endpoint;
use crate::log_files::LogFiles;
use crate::namespace::init::release_standard_streams;
use crate::namespace::signals;
use crate::netlink;
use crate::outside::{self, Answer, Request, TEXT_BYTES_MAX, Wanted};
use crate::pcapng;
use crate::process_sys::{Forked, end_with_only, fork_into};
use crate::tap;
use crate::uplink;

/// Most Unix sockets at a time: one for each port that a network can have.
pub const SOCKETS_MAX: usize = 1024;
/// Most names of TAP devices that the broker knows: one for each port that a network can have. With
/// more, it forgets the oldest ones.
pub const TAPS_MAX: usize = 1024;
/// The host's resolver configuration.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Longest lease file that the broker writes.
const LEASES_BYTES_MAX: u64 = 64 << 20;
/// Capabilities that the requests need: low ports, raw sockets, TAP devices, XDP programs, signals
/// to a program of another user, and files of other users.
const RIGHTS: CapabilitySet = CapabilitySet::NET_BIND_SERVICE
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER);

/// Requests that a broker accepts.
#[derive(Debug, Default)]
pub struct Duties {
    /// The ports to which it binds sockets.
    pub ports: Ports,
    /// The paths that the control sockets may have, each with its inode. The broker removes them
    /// when it is asked to or when the served process has gone.
    pub control: Vec<(PathBuf, u64)>,
    /// Sockets that exist already, with the identities of their files. The broker removes them when
    /// it is asked to or when the served process has gone.
    pub sockets: Vec<(PathBuf, (u64, u64))>,
    /// The file of the served namespace.
    pub namespace: Option<PathBuf>,
    /// The lease file that it replaces.
    pub leases: Option<PathBuf>,
    /// The log whose files it opens and renames.
    pub log: Option<LogFiles>,
    /// Settings for a network of guests.
    pub guests: Option<Guests>,
}

/// Ports to which sockets may be bound.
#[derive(Debug)]
pub enum Ports {
    /// These TCP ports, and these UDP ports.
    These(Vec<u16>, Vec<u16>),
    /// All.
    Any,
}

impl Default for Ports {
    fn default() -> Self {
        Self::These(Vec::new(), Vec::new())
    }
}

/// Settings for a network of guests: it may listen, connect, and open TAP devices and uplinks.
#[derive(Debug, Default)]
pub struct Guests {
    /// Paths that may be connected to, and directories that contain such paths.
    pub connect: Vec<PathBuf>,
    /// Interfaces that may be uplinks.
    pub uplinks: Vec<String>,
}

/// Forks the broker of this process, which must have one thread. `child` is the pidfd of the child
/// that the broker may kill on request.
///
/// # Errors
/// Those of fork, and `AlreadyExists` if there is a broker already.
pub fn start(mut duties: Duties, child: Option<BorrowedFd<'_>>) -> io::Result<()> {
    // A separate process, so that a slow disk does not delay other requests.
    if let Some(leases) = duties.leases.take() {
        let keeper = Duties { leases: Some(leases), ..Duties::default() };
        outside::set_keeper(fork(keeper, None)?)?;
    }
    if let Some(log) = duties.log.take() {
        let logger = Duties { log: Some(log), ..Duties::default() };
        outside::set_logger(fork(logger, None)?)?;
    }
    outside::set(fork(duties, child)?)
}

/// Forks a broker; returns the channel to it.
fn fork(mut duties: Duties, child: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    const NO_NAMESPACES: i32 = 0;
    if let Forked::Child = fork_into(NO_NAMESPACES)? {
        let kept = [theirs.as_fd(), child.unwrap_or(theirs.as_fd())];
        end_with_only(kept, || match prepare() {
            Ok(()) => {
                let sockets = std::mem::take(&mut duties.sockets);
                let taps = VecDeque::new();
                Broker { duties, child, program: None, sockets, taps }.serve(theirs.as_fd())
            }
            Err(_) => 1,
        });
    }
    Ok(ours)
}

fn prepare() -> io::Result<()> {
    release_standard_streams()?;
    give_up(RIGHTS)
}

struct Broker<'a> {
    duties: Duties,
    child: Option<BorrowedFd<'a>>,
    program: Option<OwnedFd>,
    /// The sockets it made or was given, with the identities of their files.
    sockets: Vec<(PathBuf, (u64, u64))>,
    /// The names of TAP devices that it opened.
    taps: VecDeque<String>,
}

impl Broker<'_> {
    /// Answers requests until the other end of the channel is closed.
    fn serve(mut self, channel: BorrowedFd<'_>) -> i32 {
        while let Ok(Some(request)) = outside::receive_request(channel) {
            let answer = self.answer(request);
            if outside::send_answer(channel, &answer).is_err() {
                break;
            }
        }
        // Whatever is left belongs to a process that was killed.
        let _ = self.withdraw();
        for (path, identity) in &self.sockets {
            endpoint::unlink(path, *identity);
        }
        0
    }

    fn answer(&mut self, request: Request) -> Result<Answer, Errno> {
        let Request { wanted, number, text, file } = request;
        let path = Path::new(OsStr::from_bytes(&text));
        match wanted {
            Wanted::Bind => self.bind(file.ok_or(Errno::BADF)?, &text),
            Wanted::Ping => ping(number),
            Wanted::ResolvConf => resolv_conf(),
            Wanted::Namespace => self.namespace(),
            Wanted::Program => match &self.program {
                Some(_) => Err(Errno::EXIST),
                None => {
                    self.program = Some(file.ok_or(Errno::BADF)?);
                    Ok(Answer::default())
                }
            },
            Wanted::Signal => self.signal(number),
            Wanted::EndChild => {
                let child = self.child.ok_or(Errno::SRCH)?;
                pidfd_send_signal(child, Signal::KILL).map(|()| Answer::default())
            }
            Wanted::Withdraw => self.withdraw(),
            Wanted::Leases => self.leases(file.ok_or(Errno::BADF)?, number),
            Wanted::LeaseLock => self.lease_lock(),
            Wanted::Log => self.log(number),
            Wanted::Reopen => reopen(&file.ok_or(Errno::BADF)?),
            Wanted::Unlink => self.unlink(path),
            Wanted::Packet | Wanted::Xdp | Wanted::XdpProgram => {
                self.uplink(wanted, &text, number, file)
            }
            Wanted::Tap => self.tap(&text, number),
            Wanted::SuperPackets => {
                let known = self.taps.iter().find(|known| known.as_bytes() == text);
                let limited = netlink::limit_for(known.ok_or(Errno::PERM)?, number);
                limited.map(|()| Answer::default())
            }
            Wanted::Listen | Wanted::Connect => {
                let guests = self.duties.guests.as_ref().ok_or(Errno::PERM)?;
                match wanted {
                    Wanted::Connect if !guests.may_connect(path) => Err(Errno::PERM),
                    Wanted::Connect => endpoint::connect_for(path),
                    _ => self.listen(path),
                }
            }
        }
    }

    fn bind(&self, socket: OwnedFd, address: &[u8]) -> Result<Answer, Errno> {
        let address = std::str::from_utf8(address).ok().and_then(|text| text.parse().ok());
        let address: SocketAddr = address.ok_or(Errno::INVAL)?;
        let (tcp, udp) = (Some(ipproto::TCP), Some(ipproto::UDP));
        let ports = match (sockopt::socket_protocol(&socket)?, &self.duties.ports) {
            (protocol, Ports::Any) if protocol == tcp || protocol == udp => None,
            (protocol, Ports::These(ports, _)) if protocol == tcp => Some(ports),
            (protocol, Ports::These(_, ports)) if protocol == udp => Some(ports),
            _ => return Err(Errno::PERM),
        };
        if ports.is_some_and(|ports| !ports.contains(&address.port())) {
            return Err(Errno::PERM);
        }
        rustix::net::bind(&socket, &address).map(|()| Answer::default())
    }

    fn namespace(&self) -> Result<Answer, Errno> {
        let path = self.duties.namespace.as_ref().ok_or(Errno::PERM)?;
        let found = rustix::fs::stat(path)?;
        Ok(Answer { numbers: [found.st_dev, found.st_ino, 0, 0], ..Answer::default() })
    }

    fn signal(&self, number: u64) -> Result<Answer, Errno> {
        let program = self.program.as_ref().ok_or(Errno::SRCH)?;
        let number = i32::try_from(number).map_err(|_| Errno::INVAL)?;
        let signal = signals::passed_on(number).ok_or(Errno::INVAL)?;
        pidfd_send_signal(program, signal).map(|()| Answer::default())
    }

    fn withdraw(&mut self) -> Result<Answer, Errno> {
        for (path, inode) in std::mem::take(&mut self.duties.control) {
            if rustix::fs::lstat(&path).is_ok_and(|found| found.st_ino == inode) {
                let _ = rustix::fs::unlink(&path);
            }
        }
        Ok(Answer::default())
    }

    /// Replaces the lease file by the content of the pipe, if that is `len` bytes long. A shorter
    /// one comes from a process that was killed during the write; the older file is worth more
    /// then.
    fn leases(&self, text: OwnedFd, len: u64) -> Result<Answer, Errno> {
        let path = self.duties.leases.as_ref().ok_or(Errno::PERM)?;
        let mut bytes = Vec::new();
        let read = File::from(text).take(LEASES_BYTES_MAX + 1).read_to_end(&mut bytes);
        let replaced = read.and_then(|count| match count as u64 {
            count if count > LEASES_BYTES_MAX => Err(io::ErrorKind::FileTooLarge.into()),
            count if count != len => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => replace_file(path, &bytes),
        });
        replaced.map(|()| Answer::default()).map_err(|error| errno_of(&error))
    }

    fn lease_lock(&self) -> Result<Answer, Errno> {
        let path = self.duties.leases.as_ref().ok_or(Errno::PERM)?;
        let file = open_lock(path).map_err(|error| errno_of(&error))?;
        Ok(Answer { file: Some(file.into()), ..Answer::default() })
    }

    fn log(&self, number: u64) -> Result<Answer, Errno> {
        let log = self.duties.log.as_ref().ok_or(Errno::PERM)?;
        let opened = if number == 0 { log.open() } else { log.rotate() };
        let file = opened.map_err(|error| errno_of(&error))?;
        Ok(Answer { file: Some(file.into()), ..Answer::default() })
    }

    fn tap(&mut self, name: &[u8], kind: u64) -> Result<Answer, Errno> {
        self.duties.guests.as_ref().ok_or(Errno::PERM)?;
        let name = std::str::from_utf8(name).map_err(|_| Errno::INVAL)?;
        let answer = tap::attach_for(name, kind)?;
        if answer.file.is_some() && !self.taps.iter().any(|known| known == name) {
            self.taps.truncate(TAPS_MAX - 1);
            self.taps.push_front(name.to_owned());
        }
        Ok(answer)
    }

    fn listen(&mut self, path: &Path) -> Result<Answer, Errno> {
        if self.sockets.len() >= SOCKETS_MAX {
            return Err(Errno::NOSPC);
        }
        let answer = endpoint::listen_for(path)?;
        if answer.file.is_some() {
            let [_, _, device, inode] = answer.numbers;
            self.sockets.push((path.to_owned(), (device, inode)));
        }
        Ok(answer)
    }

    fn uplink(
        &self,
        wanted: Wanted,
        interface: &[u8],
        number: u64,
        file: Option<OwnedFd>,
    ) -> Result<Answer, Errno> {
        let guests = self.duties.guests.as_ref().ok_or(Errno::PERM)?;
        let known = guests.uplinks.iter().find(|known| known.as_bytes() == interface);
        let interface = known.ok_or(Errno::PERM)?;
        match wanted {
            Wanted::Packet => Ok(uplink::packet_for(interface)),
            Wanted::Xdp => Ok(uplink::xdp_for(interface)),
            _ => uplink::attach_for(interface, number, file.ok_or(Errno::BADF)?.as_fd()),
        }
    }

    fn unlink(&mut self, path: &Path) -> Result<Answer, Errno> {
        let index = self.sockets.iter().rposition(|(known, _)| known == path);
        let (path, identity) = self.sockets.swap_remove(index.ok_or(Errno::NOENT)?);
        endpoint::unlink(&path, identity);
        Ok(Answer::default())
    }
}

impl Guests {
    fn may_connect(&self, path: &Path) -> bool {
        let is_plain =
            path.is_absolute() && !path.components().any(|part| part.as_os_str() == "..");
        self.connect.iter().any(|known| {
            known == path || is_plain && known.is_dir() && path.parent() == Some(known.as_path())
        })
    }
}

/// Opens a pipe or character device again, for captures.
fn reopen(file: &OwnedFd) -> Result<Answer, Errno> {
    let mode = rustix::fs::fstat(file)?.st_mode;
    match FileType::from_raw_mode(mode) {
        FileType::Fifo | FileType::CharacterDevice => {
            Ok(Answer { file: Some(pcapng::reopen(file)?), ..Answer::default() })
        }
        _ => Err(Errno::PERM),
    }
}

/// Opens a raw socket for ICMP echo.
fn ping(version: u64) -> Result<Answer, Errno> {
    let (family, protocol) = match version {
        4 => (AddressFamily::INET, ipproto::ICMP),
        6 => (AddressFamily::INET6, ipproto::ICMPV6),
        _ => return Err(Errno::INVAL),
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let file = rustix::net::socket_with(family, SocketType::RAW, flags, Some(protocol))?;
    Ok(Answer { file: Some(file), ..Answer::default() })
}

/// Reads the resolver configuration.
fn resolv_conf() -> Result<Answer, Errno> {
    let read = || -> io::Result<Answer> {
        let file = File::open(RESOLV_CONF)?;
        let mut text = Vec::new();
        file.take(TEXT_BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
        if text.len() > TEXT_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        Ok(Answer { text, ..Answer::default() })
    };
    read().map_err(|error| errno_of(&error))
}

/// Opens the lock file of `path`: the process that holds its lock owns the file at
/// `path`.
///
/// # Errors
/// Those of the file system.
pub fn open_lock(path: &Path) -> io::Result<File> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lock");
    File::options().create(true).truncate(false).write(true).open(Path::new(&beside))
}

/// Replaces the file at `path` by `bytes`, completely or not at all.
///
/// # Errors
/// Those of the file system.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let written = File::create(&beside).and_then(|mut file| {
        io::Write::write_all(&mut file, bytes)?;
        file.sync_data()?;
        fs::rename(&beside, path)
    });
    if written.is_err() {
        // A partial file is useless, and may be what filled the disk.
        let _ = fs::remove_file(&beside);
    }
    written
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file is replaced as a whole.
    #[test]
    fn the_lease_file_is_replaced() {
        let dir = std::env::temp_dir().join(format!("towpath-broker-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("leases");
        for text in ["one\n", "two\n"] {
            replace_file(&path, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        assert!(replace_file(&dir.join("none/leases"), b"").is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// Goal: only interfaces of TAP devices that the broker has opened are limited.
    #[test]
    fn super_packets_of_other_interfaces_are_not_limited() {
        let duties = Duties { guests: Some(Guests::default()), ..Duties::default() };
        let (sockets, taps) = (Vec::new(), VecDeque::from(["tap-of-none".to_owned()]));
        let mut broker = Broker { duties, child: None, program: None, sockets, taps };
        let mut limit = |name: &str, number| {
            let (wanted, text, file) = (Wanted::SuperPackets, name.into(), None);
            broker.answer(Request { wanted, number, text, file }).map(drop)
        };
        for name in ["lo", "", "tap-of", "tap-of-none\0"] {
            assert_eq!(limit(name, 60_000), Err(Errno::PERM), "{name}");
        }
        assert_eq!(limit("tap-of-none", u64::MAX), Err(Errno::INVAL));
        assert_eq!(limit("tap-of-none", 60_000), Err(Errno::NODEV), "it is tried");
    }

    /// Goal: a process that is killed while it hands over leases leaves the old file in place.
    /// Method: pipes that end early, or hold too much.
    #[test]
    fn leases_that_are_not_whole_replace_nothing() {
        let dir = std::env::temp_dir().join(format!("towpath-half-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("leases");
        let duties = Duties { leases: Some(path.clone()), ..Duties::default() };
        let (sockets, taps) = (Vec::new(), VecDeque::new());
        let mut broker = Broker { duties, child: None, program: None, sockets, taps };
        let mut hand_over = |begun: &str, len| {
            let (outlet, inlet) = rustix::pipe::pipe().unwrap();
            rustix::io::write(&inlet, begun.as_bytes()).unwrap();
            drop(inlet);
            let (wanted, text, file) = (Wanted::Leases, Vec::new(), Some(outlet));
            let answer = broker.answer(Request { wanted, number: len, text, file });
            (answer.is_ok(), std::fs::read_to_string(&path).unwrap())
        };
        assert_eq!(hand_over("one\n", 4), (true, "one\n".to_owned()));
        for (half, len) in [("", 8), ("one\n", 8), ("one\ntwo\nthree\n", 8)] {
            assert_eq!(hand_over(half, len), (false, "one\n".to_owned()), "{half:?}");
        }
        assert_eq!(hand_over("one\ntwo\n", 8), (true, "one\ntwo\n".to_owned()));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
