//! Requests of a confined process to its broker, for what the sandbox forbids.
//!
//! # Theory of operation
//!
//! A confined process (see `confine`) has no file system, no capability and few system calls. Its
//! *broker*, a process outside the sandbox that was forked before, does the few things that it
//! needs later. A request is one message on a socket pair that keeps message boundaries: the kind
//! of request, a number, a text and at most one descriptor. One message is the answer. The set of
//! requests is closed ([`Wanted`]), and the broker refuses requests for which it was not started.
//!
//! A process has at most one broker. Without one, [`ask`] returns `None` and the caller does the
//! work itself.
//!
//! Any thread may ask; one request is in progress at a time. A call waits for the answer.
//!
//! Limit: [`TEXT_BYTES_MAX`].

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::pipe::{PipeFlags, pipe_with};

/// Longest text of a message, which is also the largest resolv.conf that the broker reads.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wanted {
    /// Bind the attached socket to a port that this process may not bind itself.
    Bind = 1,
    /// Open a raw ICMP (4) or ICMPv6 (6) socket, where the system forbids datagram sockets for
    /// echo.
    Ping = 2,
    /// Read the host's resolv.conf.
    ResolvConf = 3,
    /// Return the device and inode number of the served namespace's file.
    Namespace = 4,
    /// Remember the program, whose pidfd is attached. Accepted once.
    Program = 5,
    /// Send the program a signal.
    Signal = 6,
    /// Kill the child of this process, which was forked before the broker.
    EndChild = 7,
    /// Remove the control socket.
    Withdraw = 8,
    /// Open the TAP device of a name.
    Tap = 9,
    /// Open a Unix socket that listens at a path.
    Listen = 10,
    /// Open a Unix socket that is connected to a path.
    Connect = 11,
    /// Remove the file of a socket that [`Wanted::Listen`] made, or that existed when the broker
    /// was started.
    Unlink = 12,
    /// Replace the lease file by the content of the attached pipe. The number is its length in
    /// bytes.
    Leases = 13,
    /// Open the lock file of the lease file.
    LeaseLock = 14,
    /// Open the attached pipe or character device again, for non-blocking writes.
    Reopen = 15,
    /// Open a packet socket for the interface of a name.
    Packet = 16,
    /// Open an AF_XDP socket for the interface of a name.
    Xdp = 17,
    /// Attach an XDP program to the interface of a name: the attached socket gets the frames of a
    /// queue. The number is the queue times 256, plus the mode.
    XdpProgram = 18,
    /// Open the next file of the log: an empty one (1), or the one that has the name (0).
    Log = 19,
    /// Limit the super-packets of the TAP device of a name, which this process has opened. The
    /// number is the most bytes of one.
    SuperPackets = 20,
}

impl Wanted {
    const ALL: [Self; 20] = [
        Self::Bind,
        Self::Ping,
        Self::ResolvConf,
        Self::Namespace,
        Self::Program,
        Self::Signal,
        Self::EndChild,
        Self::Withdraw,
        Self::Tap,
        Self::Listen,
        Self::Connect,
        Self::Unlink,
        Self::Leases,
        Self::LeaseLock,
        Self::Reopen,
        Self::Packet,
        Self::Xdp,
        Self::XdpProgram,
        Self::Log,
        Self::SuperPackets,
    ];
}

/// A request as the broker receives it.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) wanted: Wanted,
    pub(crate) number: u64,
    pub(crate) text: Vec<u8>,
    pub(crate) file: Option<OwnedFd>,
}

/// A successful answer.
#[derive(Debug, Default)]
pub struct Answer {
    /// Numbers, whose meaning depends on the request.
    pub numbers: [u64; NUMBERS],
    /// A text.
    pub text: Vec<u8>,
    /// A descriptor.
    pub file: Option<OwnedFd>,
}

/// Channel to the broker.
static BROKER: OnceLock<Mutex<OwnedFd>> = OnceLock::new();

/// Channel to the broker that keeps the lease file. It is separate because it may wait for a disk.
static KEEPER: OnceLock<Mutex<OwnedFd>> = OnceLock::new();

/// Sends lease requests to the broker at the other end of `channel` from now on.
///
/// # Errors
/// `AlreadyExists` if there is such a broker already.
pub(crate) fn set_keeper(channel: OwnedFd) -> io::Result<()> {
    KEEPER.set(Mutex::new(channel)).map_err(|_| io::ErrorKind::AlreadyExists.into())
}

/// Channel to the broker that keeps the log. It is separate because it may wait for a disk.
static LOGGER: OnceLock<Mutex<OwnedFd>> = OnceLock::new();

/// Sends requests about the log to the broker at the other end of `channel` from now on.
///
/// # Errors
/// `AlreadyExists` if there is such a broker already.
pub(crate) fn set_logger(channel: OwnedFd) -> io::Result<()> {
    LOGGER.set(Mutex::new(channel)).map_err(|_| io::ErrorKind::AlreadyExists.into())
}

/// Sends all other requests of this process to the broker at the other end of `channel` from now
/// on.
///
/// # Errors
/// `AlreadyExists` if there is a broker already.
pub(crate) fn set(channel: OwnedFd) -> io::Result<()> {
    BROKER.set(Mutex::new(channel)).map_err(|_| io::ErrorKind::AlreadyExists.into())
}

/// Sends a request to the broker and waits for its answer; `None` if this process has no broker.
pub fn ask(
    wanted: Wanted,
    number: u64,
    text: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> Option<Result<Answer, Errno>> {
    let broker = BROKER.get()?;
    // The channel stays usable after a thread panicked while it held the lock.
    let channel = broker.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = send_request(channel.as_fd(), wanted, number, text, file);
    Some(asked.and_then(|()| receive_answer(channel.as_fd())))
}

/// Opens a pipe or character device again, for non-blocking writes; `None` without a broker.
pub(crate) fn reopen(file: BorrowedFd<'_>) -> Option<Result<OwnedFd, Errno>> {
    let answer = ask(Wanted::Reopen, 0, &[], Some(file))?;
    Some(answer.and_then(|answer| answer.file.ok_or(Errno::PROTO)))
}

/// Replaces the lease file; `None` without a broker for it.
pub fn replace_leases(text: &[u8]) -> Option<io::Result<()>> {
    let keeper = KEEPER.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    let replace = || {
        let (outlet, inlet) = pipe_with(PipeFlags::CLOEXEC)?;
        // If this process is killed during the write, the pipe holds fewer bytes than this.
        let len = text.len() as u64;
        send_request(keeper.as_fd(), Wanted::Leases, len, &[], Some(outlet.as_fd()))?;
        drop(outlet);
        // The broker always reads to the end. If it has gone, this fails, and so does the answer.
        let _ = File::from(inlet).write_all(text);
        receive_answer(keeper.as_fd())?;
        Ok(())
    };
    Some(replace())
}

/// Opens the lock file of the lease file; `None` without a broker for it.
pub fn lease_lock() -> Option<io::Result<File>> {
    let keeper = KEEPER.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    let open = || {
        send_request(keeper.as_fd(), Wanted::LeaseLock, 0, &[], None)?;
        let file = receive_answer(keeper.as_fd())?.file.ok_or(Errno::PROTO)?;
        Ok(File::from(file))
    };
    Some(open())
}

/// Opens the next file of the log: an empty one, beside which the present one is kept, or the one
/// that has the name. `None` without a broker for it.
pub fn next_log(is_empty: bool) -> Option<io::Result<File>> {
    let logger = LOGGER.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    let open = || {
        send_request(logger.as_fd(), Wanted::Log, u64::from(is_empty), &[], None)?;
        let file = receive_answer(logger.as_fd())?.file.ok_or(Errno::PROTO)?;
        Ok(File::from(file))
    };
    Some(open())
}

/// Binds `socket` through the broker; `None` without a broker.
pub fn bind(socket: BorrowedFd<'_>, address: &SocketAddr) -> Option<Result<(), Errno>> {
    let text = address.to_string();
    Some(ask(Wanted::Bind, 0, text.as_bytes(), Some(socket))?.map(drop))
}

/// Opens a raw socket for ICMP echo with `to`; `None` without a broker.
pub fn ping(to: IpAddr) -> Option<Result<OwnedFd, Errno>> {
    let version = if to.is_ipv6() { 6 } else { 4 };
    let answer = ask(Wanted::Ping, version, &[], None)?;
    Some(answer.and_then(|answer| answer.file.ok_or(Errno::PROTO)))
}

/// Returns the host's resolv.conf; `None` without a broker.
pub fn resolv_conf() -> Option<Result<String, Errno>> {
    let answer = ask(Wanted::ResolvConf, 0, &[], None)?;
    Some(answer.map(|answer| String::from_utf8_lossy(&answer.text).into_owned()))
}

/// Kills the child of this process; `None` without a broker, an error if the broker has gone.
pub(crate) fn end_child() -> Option<Result<(), Errno>> {
    Some(ask(Wanted::EndChild, 0, &[], None)?.map(drop))
}

/// True for the errors with which [`ask`] fails when the broker has been killed.
pub(crate) fn means_no_broker(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET)
}

/// Removes the control socket; returns false without a broker.
pub fn withdraw() -> bool {
    ask(Wanted::Withdraw, 0, &[], None).is_some()
}

/// Sends a request about a path; `None` without a broker.
pub(crate) fn at_path(wanted: Wanted, path: &Path) -> Option<Result<Answer, Errno>> {
    use std::os::unix::ffi::OsStrExt;
    ask(wanted, 0, path.as_os_str().as_bytes(), None)
}

fn send_request(
    channel: BorrowedFd<'_>,
    wanted: Wanted,
    number: u64,
    text: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut head = [0; REQUEST_HEAD];
    head[0] = wanted as u8;
    head[1..].copy_from_slice(&number.to_ne_bytes());
    send(channel, &head, text, file)
}

/// Waits for the next request; `None` once the other end of the channel is closed.
///
/// # Errors
/// EBADMSG for a malformed request; those of recvmsg(2).
pub(crate) fn receive_request(channel: BorrowedFd<'_>) -> Result<Option<Request>, Errno> {
    let Some((bytes, file)) = receive(channel)? else { return Ok(None) };
    let (head, text) = bytes.split_first_chunk::<REQUEST_HEAD>().ok_or(Errno::BADMSG)?;
    let [wanted, number @ ..] = *head;
    let wanted = Wanted::ALL.into_iter().find(|known| *known as u8 == wanted);
    Ok(Some(Request {
        wanted: wanted.ok_or(Errno::BADMSG)?,
        number: u64::from_ne_bytes(number),
        text: text.to_owned(),
        file,
    }))
}

/// Sends the answer to a request.
pub(crate) fn send_answer(
    channel: BorrowedFd<'_>,
    answer: &Result<Answer, Errno>,
) -> Result<(), Errno> {
    let mut head = [0; ANSWER_HEAD];
    match answer {
        Ok(answer) => {
            for (place, number) in head[4..].chunks_exact_mut(8).zip(answer.numbers) {
                place.copy_from_slice(&number.to_ne_bytes());
            }
            send(channel, &head, &answer.text, answer.file.as_ref().map(AsFd::as_fd))
        }
        Err(errno) => {
            head[..4].copy_from_slice(&errno.raw_os_error().to_ne_bytes());
            send(channel, &head, &[], None)
        }
    }
}

fn receive_answer(channel: BorrowedFd<'_>) -> Result<Answer, Errno> {
    let (bytes, file) = receive(channel)?.ok_or(Errno::PIPE)?;
    let (head, text) = bytes.split_first_chunk::<ANSWER_HEAD>().ok_or(Errno::BADMSG)?;
    let (errno, numbers) = head.split_at(4);
    let errno = i32::from_ne_bytes(errno.try_into().map_err(|_| Errno::BADMSG)?);
    if errno != 0 {
        return Err(Errno::from_raw_os_error(errno));
    }
    let mut answer = Answer { text: text.to_owned(), file, ..Answer::default() };
    for (number, bytes) in answer.numbers.iter_mut().zip(numbers.as_chunks().0) {
        *number = u64::from_ne_bytes(*bytes);
    }
    Ok(answer)
}

fn send(
    channel: BorrowedFd<'_>,
    head: &[u8],
    text: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Errno::TOOBIG);
    }
    let files: Vec<_> = file.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(&files));
        assert!(fits, "there is room for a descriptor");
    }
    let slices = [IoSlice::new(head), IoSlice::new(text)];
    retry_on_intr(|| sendmsg(channel, &slices, &mut ancillary, SendFlags::NOSIGNAL)).map(drop)
}

/// Bytes of a message and its descriptor.
type Received = (Vec<u8>, Option<OwnedFd>);

/// Waits for the next message; `None` once the other end of the channel is closed.
fn receive(channel: BorrowedFd<'_>) -> Result<Option<Received>, Errno> {
    let mut bytes = vec![0; HEAD_MAX + TEXT_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        recvmsg(channel, slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    });
    let received = match received {
        Err(Errno::CONNRESET) => return Ok(None),
        received => received?,
    };
    let mut file = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            file = files.last();
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE);
    }
    bytes.truncate(received.bytes);
    Ok(Some((bytes, file)))
}

/// Numbers in an answer.
const NUMBERS: usize = 4;
/// Bytes of the kind of request and its number.
const REQUEST_HEAD: usize = 1 + 8;
/// Bytes of the error, or zero, and the numbers.
const ANSWER_HEAD: usize = 4 + 8 * NUMBERS;
const HEAD_MAX: usize = ANSWER_HEAD;
const _: () = assert!(REQUEST_HEAD <= HEAD_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn requests_and_answers_arrive_as_sent() {
        let (ours, theirs) = pair();
        let text = vec![b'x'; TEXT_BYTES_MAX];
        send_request(ours.as_fd(), Wanted::Listen, 7, &text, Some(theirs.as_fd())).unwrap();
        let request = receive_request(theirs.as_fd()).unwrap().unwrap();
        assert_eq!((request.wanted, request.number), (Wanted::Listen, 7));
        assert!(request.text == text && request.file.is_some());
        let numbers = [1, 2, 3, u64::MAX];
        let answer = Answer { numbers, text: b"y".into(), file: request.file };
        send_answer(theirs.as_fd(), &Ok(answer)).unwrap();
        let answer = receive_answer(ours.as_fd()).unwrap();
        assert_eq!((answer.numbers, answer.text.as_slice()), (numbers, &b"y"[..]));
        assert!(answer.file.is_some());
        // The received descriptor is a duplicate of the other end.
        drop(answer);
        send_answer(theirs.as_fd(), &Err(Errno::PERM)).unwrap();
        assert_eq!(receive_answer(ours.as_fd()).unwrap_err(), Errno::PERM);
        drop(theirs);
        assert_eq!(receive_answer(ours.as_fd()).unwrap_err(), Errno::PIPE);
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let (ours, theirs) = pair();
        for wrong in [&b"\x01"[..], b"\0\0\0\0\0\0\0\0\0", b"\xff\0\0\0\0\0\0\0\0"] {
            rustix::net::send(&ours, wrong, SendFlags::empty()).unwrap();
            assert_eq!(receive_request(theirs.as_fd()).unwrap_err(), Errno::BADMSG);
        }
        assert_eq!(send(ours.as_fd(), &[], &vec![0; TEXT_BYTES_MAX + 1], None), Err(Errno::TOOBIG));
        drop(ours);
        assert!(receive_request(theirs.as_fd()).unwrap().is_none());
    }
}
