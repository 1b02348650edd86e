//! The structures that C fills, with the layout of `towpath.h`. Later versions may append fields.

use crate::instance::Instance;
use crate::queue::TowpathEvent;
use libc::{c_char, c_int, c_uint, c_void, itimerspec, msghdr, off_t, size_t, timespec};
use std::mem::offset_of;

/// `struct towpath_config`: the configuration of an attached instance. Zero selects the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TowpathConfig {
    /// Size of this structure as the program knows it.
    pub size: size_t,
    /// Addresses with prefix lengths, separated by spaces.
    pub addresses: *const c_char,
    /// Next hops for destinations that are not on the link, at most one of each family; or null.
    pub gateways: *const c_char,
    /// Bytes of packet memory.
    pub memory: size_t,
    /// Size of the largest IP packet.
    pub mtu: c_uint,
    /// The link-layer address.
    pub mac: [u8; 6],
    /// Must be zero.
    pub reserved: [u8; 6],
    /// Bytes of memory that caches files.
    pub file_cache: size_t,
    /// Milliseconds that its end waits; negative for no wait.
    pub linger: c_int,
    /// One if sockets begin with `TOWPATH_SO_ZEROCOPY_AUTO`.
    pub zerocopy_auto: c_int,
}

/// `struct towpath_change`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TowpathChange {
    /// The command.
    pub command: c_int,
    /// Filled in: zero, or an error number if the change was not made.
    pub error: c_int,
    /// Identifies the registration. Filled in for a new one.
    pub id: u64,
    /// The source that is added or modified.
    pub source: c_int,
    /// `EPOLLIN` and others for descriptors, `TOWPATH_ABSTIME` for timers.
    pub events: u32,
    /// The descriptor, signal or process.
    pub ident: c_int,
    /// Must be zero.
    pub reserved: c_uint,
    /// The instance of the descriptor; null for the kernel.
    pub instance: *const Instance,
    /// The path of a file.
    pub path: *const c_char,
    /// The times of a timer.
    pub timer: itimerspec,
    /// Returned with each event.
    pub data: u64,
}

/// `struct towpath_operation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TowpathOperation {
    /// The kind of the operation.
    pub operation: c_int,
    /// Filled in: zero, or an error number if the operation was not started.
    pub error: c_int,
    /// Filled in: identifies the operation.
    pub id: u64,
    /// The instance of the descriptor; null for the kernel.
    pub instance: *const Instance,
    /// The descriptor.
    pub fd: c_int,
    /// `SOCK_NONBLOCK` and others for accepting, `MSG_WAITALL` and others for receiving.
    pub flags: c_int,
    /// A buffer, an address, a message, or a [`TowpathTransfer`].
    pub buffer: *mut c_void,
    /// Size of the buffer.
    pub len: size_t,
    /// Offset in the file.
    pub offset: off_t,
    /// The group whose buffers are filled.
    pub group: c_int,
    /// Must be zero.
    pub reserved: c_uint,
    /// Time at which the operation is cancelled; or null.
    pub deadline: *const timespec,
    /// Returned with each event.
    pub data: u64,
}

/// `struct towpath_transfer`: a transfer between a socket and a file or another socket.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TowpathTransfer {
    /// The file, or the other socket.
    pub fd: c_int,
    /// Must be zero.
    pub reserved: c_uint,
    /// The instance of the other socket; null for the kernel, and for a file.
    pub instance: *const Instance,
    /// Offset in the file.
    pub offset: off_t,
    /// Most bytes to move.
    pub count: u64,
    /// Bytes sent before a file.
    pub header: *const c_void,
    /// Size of the header.
    pub header_len: size_t,
    /// Bytes sent after a file.
    pub trailer: *const c_void,
    /// Size of the trailer.
    pub trailer_len: size_t,
    /// Memory for bytes that were taken and not delivered.
    pub rest: *mut c_void,
    /// Size of this memory.
    pub rest_len: size_t,
}

/// `struct towpath_lent`: a message received without a copy.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TowpathLent {
    /// The message, whose pieces are filled in.
    pub message: msghdr,
    /// Filled in: the token for returning the pieces.
    pub token: u64,
}

/// The sizes of `towpath.h`.
const _: () = assert!(
    size_of::<TowpathChange>() == 88
        && size_of::<TowpathTransfer>() == 80
        && size_of::<TowpathOperation>() == 80
        && size_of::<TowpathLent>() == 64
        && size_of::<TowpathEvent>() == 40
);

/// Offsets of the fields that are filled in, in changes and operations.
pub(super) const ERROR_AT: usize = offset_of!(TowpathOperation, error);
pub(super) const ID_AT: usize = offset_of!(TowpathOperation, id);

const _: () =
    assert!(offset_of!(TowpathChange, error) == ERROR_AT && offset_of!(TowpathChange, id) == ID_AT);
