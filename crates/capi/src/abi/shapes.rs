//! The structures that C fills, as `towpath.h` has them. Later versions may add fields behind those
//! that there are.

use crate::instance::Instance;
use crate::queue::Told;
use libc::{c_char, c_int, c_uint, c_void, itimerspec, msghdr, off_t, size_t, timespec};
use std::mem::offset_of;

/// What an attached instance is told, as C has it. A zero stands for the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TowpathConfig {
    /// Bytes of this structure as the program knows it.
    pub size: size_t,
    /// Addresses, each with the length of its link's prefix, separated by spaces.
    pub addresses: *const c_char,
    /// Next hops for what is not on the link, at most one of each family; or null.
    pub gateways: *const c_char,
    /// Bytes of packet memory.
    pub memory: size_t,
    /// Largest IP packet.
    pub mtu: c_uint,
    /// The link-layer address.
    pub mac: [u8; 6],
    /// Zero.
    pub reserved: [u8; 6],
    /// Bytes of files in memory.
    pub file_cache: size_t,
    /// Milliseconds that its end waits; negative for not at all.
    pub linger: c_int,
    /// Zero.
    pub more_reserved: c_int,
}

/// A change, as C has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TowpathChange {
    /// What is to be done.
    pub command: c_int,
    /// Filled in: why it was not done, or zero.
    pub error: c_int,
    /// Of which registration; of a new one it is filled in.
    pub id: u64,
    /// What is added or modified.
    pub source: c_int,
    /// `EPOLLIN` and others of descriptors, `TOWPATH_ABSTIME` of timers.
    pub events: u32,
    /// A descriptor, a signal or a process.
    pub ident: c_int,
    /// Zero.
    pub reserved: c_uint,
    /// Whose the descriptor is; null for the kernel's.
    pub instance: *const Instance,
    /// Of a file.
    pub path: *const c_char,
    /// Of a timer.
    pub timer: itimerspec,
    /// Comes with the events.
    pub data: u64,
}

/// An operation, as C has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TowpathOperation {
    /// What is to be done.
    pub operation: c_int,
    /// Filled in: why it was not begun, or zero.
    pub error: c_int,
    /// Filled in.
    pub id: u64,
    /// Whose the descriptor is.
    pub instance: *const Instance,
    /// With what it is done.
    pub fd: c_int,
    /// `SOCK_NONBLOCK` and others of an accept, `MSG_WAITALL` and others of a receive.
    pub flags: c_int,
    /// Memory, an address, a message, or a [`TowpathTransfer`].
    pub buffer: *mut c_void,
    /// Its bytes.
    pub len: size_t,
    /// In a file.
    pub offset: off_t,
    /// Whose buffers are received into.
    pub group: c_int,
    /// Zero.
    pub reserved: c_uint,
    /// When it is cancelled; or null.
    pub deadline: *const timespec,
    /// Comes with the events.
    pub data: u64,
}

/// What is moved between a socket and a file, or another socket, as C has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TowpathTransfer {
    /// The file, or the other socket.
    pub fd: c_int,
    /// Zero.
    pub reserved: c_uint,
    /// Whose the other socket is; null for the kernel's, and for a file.
    pub instance: *const Instance,
    /// In the file.
    pub offset: off_t,
    /// Bytes.
    pub count: u64,
    /// What goes before a file that is sent, and what comes behind.
    pub header: *const c_void,
    /// Its bytes.
    pub header_len: size_t,
    /// See `header`.
    pub trailer: *const c_void,
    /// Its bytes.
    pub trailer_len: size_t,
    /// Memory for what was taken and has not arrived.
    pub rest: *mut c_void,
    /// Its bytes.
    pub rest_len: size_t,
}

/// What is received without a copy, as C has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TowpathLent {
    /// Its pieces are filled in.
    pub message: msghdr,
    /// Filled in: with which they are returned.
    pub token: u64,
}

/// As `towpath.h` has them.
const _: () = assert!(
    size_of::<TowpathChange>() == 88
        && size_of::<TowpathTransfer>() == 80
        && size_of::<TowpathOperation>() == 80
        && size_of::<TowpathLent>() == 64
        && size_of::<Told>() == 40
);

/// Where changes and operations have what is filled in.
pub(super) const ERROR_AT: usize = offset_of!(TowpathOperation, error);
pub(super) const ID_AT: usize = offset_of!(TowpathOperation, id);

const _: () =
    assert!(offset_of!(TowpathChange, error) == ERROR_AT && offset_of!(TowpathChange, id) == ID_AT);
