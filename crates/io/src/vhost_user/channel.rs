//! A connection to a front end: receives requests, sends replies.
//!
//! The socket is a stream, so a message may arrive in parts, with its descriptors attached to any
//! part. A read never goes beyond the current message, so descriptors cannot be assigned to the
//! wrong one. No call blocks. One thread at a time.
//!
//! Of the descriptors that a front end can send, the kernel alone answers for events and memory
//! files. Any call on another file, even close(2), may wait for the file's server. So the first
//! other descriptor ends the connection. It stays open until [`Channel::into_files`].
//!
//! One UNIX stream socket is an exception: the *back end's channel*, on which
//! [`Channel::report_change`] sends. The kernel alone answers for sending, but closing may wait for
//! files that are queued in the socket. So it, too, stays open until [`Channel::into_files`], and
//! nothing is read from it.
//!
//! Limits: [`DESCRIPTORS_MAX`] per message; one back end's channel. A front end that does not read
//! its replies loses the connection when the socket is full.

use super::event;
use super::message::{
    CONFIG_CHANGED, DESCRIPTORS_MAX, HEADER_BYTES, Header, HeaderError, PAYLOAD_BYTES_MAX,
    REPLY_BYTES_MAX, Reply, Request, RequestError, code,
};
use super::shared::is_memory;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, recvmsg, send, sendmsg,
    sockopt,
};
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelError {
    /// The front end has closed it.
    Closed,
    /// A header after which the start of the next message is unknown.
    Header(HeaderError),
    /// More descriptors than any message may carry.
    Descriptors,
    /// A descriptor that is neither an event nor memory, and not the first socket for reports with
    /// the request for it.
    Foreign,
    /// The front end does not read its replies.
    NotRead,
    /// The socket failed.
    Os(Errno),
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the front end closed the connection"),
            Self::Header(error) => write!(f, "{error}"),
            Self::Descriptors => {
                write!(f, "the front end sent more than {DESCRIPTORS_MAX} descriptors at once")
            }
            Self::Foreign => f.write_str(
                "the front end sent a descriptor that is neither an eventfd nor memory; it must \
                 share guest memory as a memfd, or as a file of tmpfs or hugetlbfs",
            ),
            Self::NotRead => f.write_str("the front end does not read its replies"),
            Self::Os(error) => write!(f, "the socket to the front end failed: {error}"),
        }
    }
}

impl std::error::Error for ChannelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Header(error) => Some(error),
            _ => None,
        }
    }
}

impl From<HeaderError> for ChannelError {
    fn from(error: HeaderError) -> Self {
        Self::Header(error)
    }
}

impl From<Errno> for ChannelError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::Closed,
            errno => Self::Os(errno),
        }
    }
}

/// A received message.
#[derive(Debug)]
pub struct Incoming {
    /// The request number, which a reply repeats.
    pub code: u32,
    /// An acknowledgement is requested; valid if the feature is negotiated.
    pub need_reply: bool,
    /// The request, or why it is refused.
    pub request: Result<Request, RequestError>,
}

/// A connection to a front end; see the module documentation.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    bytes: [u8; HEADER_BYTES + PAYLOAD_BYTES_MAX],
    filled: usize,
    /// Received descriptors of events and memory.
    descriptors: Vec<OwnedFd>,
    /// The back end's channel.
    back: Option<OwnedFd>,
    /// It came with the message that is being received.
    has_back: bool,
    /// All other received descriptors.
    foreign: Vec<OwnedFd>,
}

impl Channel {
    /// Takes over a connected, non-blocking stream socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            bytes: [0; HEADER_BYTES + PAYLOAD_BYTES_MAX],
            filled: 0,
            descriptors: Vec::new(),
            back: None,
            has_back: false,
            foreign: Vec::new(),
        }
    }

    /// Returns the next message, if all of it has arrived.
    ///
    /// # Errors
    /// [`ChannelError`]; the connection cannot be used any more.
    pub fn receive(&mut self) -> Result<Option<Incoming>, ChannelError> {
        if !self.fill(HEADER_BYTES)? {
            return Ok(None);
        }
        let header = self.bytes.first_chunk().expect("longer than a header");
        let header = Header::parse(header)?;
        let end = HEADER_BYTES + header.payload_bytes;
        if !self.fill(end)? {
            return Ok(None);
        }
        self.filled = 0;
        let descriptors = std::mem::take(&mut self.descriptors);
        let Header { code, need_reply, .. } = header;
        let wants_socket = code == code::SET_BACKEND_REQ_FD;
        let request = match (std::mem::take(&mut self.has_back), wants_socket) {
            (true, false) => return Err(ChannelError::Foreign),
            (false, true) => Err(RequestError::Descriptors { code, count: descriptors.len() }),
            _ => Request::parse(code, &self.bytes[HEADER_BYTES..end], descriptors),
        };
        Ok(Some(Incoming { code, need_reply, request }))
    }

    /// Reports on the back end's channel that the configuration space has changed. Returns true if
    /// the front end will learn of it. If the socket is full, it will: it has not read earlier
    /// reports, which say the same.
    pub fn report_change(&self) -> bool {
        let Some(back) = &self.back else { return false };
        let bytes = CONFIG_CHANGED.map(u32::to_ne_bytes);
        match rustix::io::retry_on_intr(|| send(back, bytes.as_flattened(), SEND_FLAGS)) {
            Ok(count) => count == HEADER_BYTES,
            Err(errno) => errno == Errno::AGAIN,
        }
    }

    /// True if closing may block even though the front end has closed the connection.
    pub fn has_back(&self) -> bool {
        self.back.is_some()
    }

    /// Returns the socket, the back end's channel and the forbidden descriptors. Closing them may
    /// block.
    pub fn into_files(self) -> Vec<OwnedFd> {
        let mut files = self.foreign;
        files.extend(self.back);
        files.push(self.socket);
        files
    }

    /// Sends the reply to request `code`, with `descriptor` attached.
    ///
    /// # Errors
    /// [`ChannelError`]; the connection cannot be used any more.
    pub fn send(
        &self,
        code: u32,
        reply: &Reply,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), ChannelError> {
        let mut bytes = [0; REPLY_BYTES_MAX];
        let bytes = reply.emit(code, &mut bytes);
        let descriptors = descriptor.map(|descriptor| [descriptor]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(descriptors) = &descriptors {
            let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
            assert!(fits, "there is room for one descriptor");
        }
        let slices = [IoSlice::new(bytes)];
        let sent =
            rustix::io::retry_on_intr(|| sendmsg(&self.socket, &slices, &mut control, SEND_FLAGS));
        match sent {
            Ok(count) if count == bytes.len() => Ok(()),
            // A reply is so short that it is truncated only if the socket is full.
            Ok(_) | Err(Errno::AGAIN) => Err(ChannelError::NotRead),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads until there are `end` bytes; false if they have not arrived yet.
    fn fill(&mut self, end: usize) -> Result<bool, ChannelError> {
        while self.filled < end {
            // Room for the most descriptors possible: the kernel would close those that do not fit,
            // here, and that may block.
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [IoSliceMut::new(&mut self.bytes[self.filled..end])];
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let received = match recvmsg(&self.socket, &mut slices, &mut control, flags) {
                Ok(received) => received,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    descriptors.for_each(|file| self.keep(file));
                }
            }
            if !self.foreign.is_empty() {
                return Err(ChannelError::Foreign);
            }
            if received.flags.contains(ReturnFlags::CTRUNC)
                || self.descriptors.len() > DESCRIPTORS_MAX
            {
                return Err(ChannelError::Descriptors);
            }
            if received.bytes == 0 {
                return Err(ChannelError::Closed);
            }
            self.filled += received.bytes;
        }
        Ok(true)
    }

    /// Keeps a descriptor until the message that it came with is complete.
    fn keep(&mut self, file: OwnedFd) {
        if is_memory(&file) || event::is_event(&file) {
            self.descriptors.push(file);
        } else if self.back.is_none() && is_unix_stream(&file) {
            (self.back, self.has_back) = (Some(file), true);
        } else {
            self.foreign.push(file);
        }
    }
}

/// True if `file` is a UNIX stream socket. The kernel answers from its own records, and refuses
/// these calls on all files that are no sockets.
fn is_unix_stream(file: &OwnedFd) -> bool {
    sockopt::socket_domain(file) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(file) == Ok(SocketType::STREAM)
}

/// Sending neither waits nor raises a signal.
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Most descriptors in one message that the kernel passes on (`SCM_MAX_FD`).
const SENT_MAX: usize = 253;

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests;
