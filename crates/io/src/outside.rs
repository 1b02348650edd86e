//! What a confined process cannot do itself, and asks its broker for.
//!
//! # Theory of operation
//!
//! A process that is confined (see `confine`) has no file system, no capability
//! and few system calls. The few things that it needs later are done by its *broker*, a process
//! outside of the sandbox that was forked before. A request is one message on a pair of sockets
//! that keep message boundaries: a number that says what is wanted, a number, a text, and at most
//! one descriptor. One message answers. The set of requests is closed ([`Wanted`]), and the broker
//! refuses what its process was not started for.
//!
//! There is at most one broker for a process. Where there is none, callers do themselves what they
//! would ask for: [`ask`] returns `None`.
//!
//! Any thread; one request at a time. A call waits for the answer.
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

/// Longest text of a message: a resolv.conf of the size that is read at most.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wanted {
    /// Bind a socket that comes along to a port that this process may not bind itself.
    Bind = 1,
    /// A raw ICMP (4) or ICMPv6 (6) socket, where datagram sockets for echo are not permitted.
    Ping = 2,
    /// The text of the host's resolv.conf, and what tells its version from others.
    ResolvConf = 3,
    /// What the served namespace's file is known by now.
    Namespace = 4,
    /// Take note of the program: its pidfd comes along. Once.
    Program = 5,
    /// Send the program a signal.
    Signal = 6,
    /// Kill the child of this process that was forked before.
    EndChild = 7,
    /// Remove the control socket.
    Withdraw = 8,
    /// A TAP device of a name.
    Tap = 9,
    /// A Unix socket that listens at a path.
    Listen = 10,
    /// A Unix socket that is connected to a path.
    Connect = 11,
    /// Remove the file of a socket that was made by [`Wanted::Listen`].
    Unlink = 12,
    /// Replace the lease file by what is in a pipe that comes along; its length is the number.
    Leases = 13,
    /// The file of the lease file's lock.
    LeaseLock = 14,
    /// A pipe or a character device that comes along, opened anew to be written without waiting.
    Reopen = 15,
}

impl Wanted {
    const ALL: [Self; 15] = [
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
    ];
}

/// A request, as the broker reads it.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) wanted: Wanted,
    pub(crate) number: u64,
    pub(crate) text: Vec<u8>,
    pub(crate) file: Option<OwnedFd>,
}

/// An answer that is no error.
#[derive(Debug, Default)]
pub struct Answer {
    /// Numbers, of which each request has a meaning of its own.
    pub numbers: [u64; NUMBERS],
    /// A text.
    pub text: Vec<u8>,
    /// A descriptor.
    pub file: Option<OwnedFd>,
}

/// Where the broker is asked.
static BROKER: OnceLock<Mutex<OwnedFd>> = OnceLock::new();

/// Where the one that keeps the lease file is asked: it may wait for a disk.
static KEEPER: OnceLock<Mutex<OwnedFd>> = OnceLock::new();

/// Has lease files go to the broker at the other end of `channel`.
///
/// # Errors
/// `AlreadyExists`: there is one.
pub(crate) fn set_keeper(channel: OwnedFd) -> io::Result<()> {
    KEEPER.set(Mutex::new(channel)).map_err(|_| io::ErrorKind::AlreadyExists.into())
}

/// Has all requests of this process go to the broker at the other end of `channel`.
///
/// # Errors
/// `AlreadyExists`: there is one.
pub(crate) fn set(channel: OwnedFd) -> io::Result<()> {
    BROKER.set(Mutex::new(channel)).map_err(|_| io::ErrorKind::AlreadyExists.into())
}

/// Has the broker do something; `None` if this process has none.
pub fn ask(
    wanted: Wanted,
    number: u64,
    text: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> Option<Result<Answer, Errno>> {
    let broker = BROKER.get()?;
    // What was asked when a thread panicked has been answered or not; the channel is whole.
    let channel = broker.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = send_request(channel.as_fd(), wanted, number, text, file);
    Some(asked.and_then(|()| receive_answer(channel.as_fd())))
}

/// Has a pipe or character device opened anew, to be written without waiting; `None` without a
/// broker.
pub(crate) fn reopen(file: BorrowedFd<'_>) -> Option<Result<OwnedFd, Errno>> {
    let answer = ask(Wanted::Reopen, 0, &[], Some(file))?;
    Some(answer.and_then(|answer| answer.file.ok_or(Errno::PROTO)))
}

/// Has the lease file replaced; `None` without a broker that does.
pub fn replace_leases(text: &[u8]) -> Option<io::Result<()>> {
    let keeper = KEEPER.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    let replace = || {
        let (outlet, inlet) = pipe_with(PipeFlags::CLOEXEC)?;
        // Whoever is killed before all of it is written leaves less than this in the pipe.
        let len = text.len() as u64;
        send_request(keeper.as_fd(), Wanted::Leases, len, &[], Some(outlet.as_fd()))?;
        drop(outlet);
        // It reads to the end, whatever comes; if it has gone, this fails, and so does the answer.
        let _ = File::from(inlet).write_all(text);
        receive_answer(keeper.as_fd())?;
        Ok(())
    };
    Some(replace())
}

/// The file of the lease file's lock; `None` without a broker that keeps one.
pub fn lease_lock() -> Option<io::Result<File>> {
    let keeper = KEEPER.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    let open = || {
        send_request(keeper.as_fd(), Wanted::LeaseLock, 0, &[], None)?;
        let file = receive_answer(keeper.as_fd())?.file.ok_or(Errno::PROTO)?;
        Ok(File::from(file))
    };
    Some(open())
}

/// Has the broker bind `socket`; `None` without a broker.
pub fn bind(socket: BorrowedFd<'_>, address: &SocketAddr) -> Option<Result<(), Errno>> {
    let text = address.to_string();
    Some(ask(Wanted::Bind, 0, text.as_bytes(), Some(socket))?.map(drop))
}

/// A raw socket for echo with `to`; `None` without a broker.
pub fn ping(to: IpAddr) -> Option<Result<OwnedFd, Errno>> {
    let version = if to.is_ipv6() { 6 } else { 4 };
    let answer = ask(Wanted::Ping, version, &[], None)?;
    Some(answer.and_then(|answer| answer.file.ok_or(Errno::PROTO)))
}

/// The host's resolv.conf, and what tells its version from others; `None` without a broker.
pub fn resolv_conf() -> Option<Result<([u64; NUMBERS], String), Errno>> {
    let answer = ask(Wanted::ResolvConf, 0, &[], None)?;
    Some(answer.map(|answer| (answer.numbers, String::from_utf8_lossy(&answer.text).into_owned())))
}

/// Kills the child of this process; `None` without a broker, an error if that has gone.
pub(crate) fn end_child() -> Option<Result<(), Errno>> {
    Some(ask(Wanted::EndChild, 0, &[], None)?.map(drop))
}

/// True for what [`ask`] fails with when the broker has been killed.
pub(crate) fn means_no_broker(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET)
}

/// Removes the control socket; false without a broker.
pub fn withdraw() -> bool {
    ask(Wanted::Withdraw, 0, &[], None).is_some()
}

/// Asks for something at a path; `None` without a broker.
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

/// The next request; `None` at the end of who asks.
///
/// # Errors
/// EBADMSG for what is no request; those of recvmsg(2).
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

/// Answers a request.
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

/// A message and its descriptor.
type Received = (Vec<u8>, Option<OwnedFd>);

/// The next message; `None` at the end of the other side.
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

/// Numbers of an answer.
const NUMBERS: usize = 4;
/// What is wanted, and a number.
const REQUEST_HEAD: usize = 1 + 8;
/// The error, or zero, and numbers.
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
        // It is a copy of their end.
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
