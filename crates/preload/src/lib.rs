//! A library for `LD_PRELOAD`: unmodified programs use the TCP/IP stack of towpath in their own
//! process.
//!
//! # Theory of operation
//!
//! The library defines functions of the C library that take descriptors: `socket`, `read`,
//! `epoll_wait` and others. The dynamic linker gives them to the program in place of the originals.
//! Each looks its descriptor up in a `table`. A file of the kernel goes to the original function
//! (`next`). A socket of the stack goes to the function of the same name in the C library of
//! towpath, `towpath-capi`.
//!
//! Internet sockets for streams and datagrams are replaced, all others are the kernel's. The first
//! one that the program makes attaches the stack to its device (`stack`). A program that makes
//! none, such as a shell, has no stack.
//!
//! A socket's number is real: a placeholder in the kernel reserves it. The same is true for files
//! that the stack itself opened. The table knows these, too, and the program cannot close them.
//!
//! A wait for files of both kinds is one wait in the kernel. `poll` and `select` add an eventfd,
//! which the stack's thread signals when a socket of the call has an event. A set of `epoll`
//! contains the kernel's files itself. For the sockets in it there is a second set, in the stack,
//! whose alarm is a file in the first.
//!
//! The library and the packages below it enter the kernel directly, or through the replaced
//! functions with files that are not in the table. So no call comes back to the stack.
//!
//! Modules form a line, and each uses only those before it: `{deadline, options, table} → next →
//! stack → {epoll, poll} → exports`.
#![deny(unsafe_code)]

mod deadline;
mod epoll;
pub mod exports;
mod next;
mod options;
mod poll;
mod stack;
mod table;
