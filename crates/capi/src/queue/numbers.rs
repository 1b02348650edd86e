//! Numbers of `towpath.h` for event queues, by their names without `TOWPATH_`.

/// Back ends.
pub(crate) const QUEUE_EPOLL: u32 = 1;
pub(crate) const QUEUE_IO_URING: u32 = 2;

/// Commands of changes.
pub(crate) const ADD: i32 = 1;
pub(crate) const MODIFY: i32 = 2;
pub(crate) const REMOVE: i32 = 3;

/// Sources.
pub(crate) const SOURCE_FD: i32 = 1;
pub(crate) const SOURCE_TIMER: i32 = 2;
pub(crate) const SOURCE_USER: i32 = 3;
pub(crate) const SOURCE_SIGNAL: i32 = 4;
pub(crate) const SOURCE_CHILD: i32 = 5;
pub(crate) const SOURCE_FILE: i32 = 6;

/// Flags of timers.
pub(crate) const ABSTIME: u32 = 1;

/// Operations.
pub(crate) const CONNECT: i32 = 1;
pub(crate) const ACCEPT: i32 = 2;
pub(crate) const RECV: i32 = 3;
pub(crate) const SEND: i32 = 4;
pub(crate) const READ: i32 = 5;
pub(crate) const WRITE: i32 = 6;
pub(crate) const FSYNC: i32 = 7;
pub(crate) const FDATASYNC: i32 = 8;
pub(crate) const RECVMSG: i32 = 9;
pub(crate) const SENDMSG: i32 = 10;
pub(crate) const SENDFILE: i32 = 11;
pub(crate) const RECVFILE: i32 = 12;
pub(crate) const SPLICE: i32 = 13;
pub(crate) const RECV_MULTISHOT: i32 = 14;
pub(crate) const RECVMSG_LENT: i32 = 15;

/// Kinds of events.
pub(crate) const READY: i32 = 1;
pub(crate) const EXPIRED: i32 = 2;
pub(crate) const NOTIFIED: i32 = 3;
pub(crate) const SIGNALLED: i32 = 4;
pub(crate) const EXITED: i32 = 5;
pub(crate) const CHANGED: i32 = 6;
pub(crate) const PROGRESS: i32 = 7;
pub(crate) const DONE: i32 = 8;
pub(crate) const STARVED: i32 = 9;

/// Flags of events.
pub(crate) const OVER: u32 = 1;
pub(crate) const COPIED: u32 = 2;
