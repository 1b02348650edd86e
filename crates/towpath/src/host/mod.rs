//! A host: a TCP/IP stack in this process, with sockets shaped like those of the standard library
//! and sends that lend their buffers.
//!
//! ```
//! use std::io::{Read, Write};
//! use towpath::host::{Config, Host, TcpListener, TcpStream};
//!
//! let a = Config::with_address([10, 0, 0, 1], 24);
//! let b = Config::with_address([10, 0, 0, 2], 24);
//! let (a, b) = Host::pair(&a, &b)?;
//! let listener = TcpListener::bind(&b, "10.0.0.2:80")?;
//! let stream = TcpStream::connect(&a, "10.0.0.2:80")?;
//! let (mut peer, _) = listener.accept()?;
//!
//! // The buffer moves into the send, and comes back when it is no longer used.
//! let sending = stream.send_zc(vec![7; 1 << 20])?;
//! let mut received = vec![0; 1 << 20];
//! peer.read_exact(&mut received)?;
//! let returned = sending.returned();
//! assert_eq!(returned.buffer, received);
//! assert!(!returned.copied);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Theory of operation
//!
//! A host has a *worker*, a thread that moves packets and runs timers, and sleeps when there is
//! nothing to do. A host is attached to a TAP device or, by [`Host::pair`], to another host in this
//! process. Between paired hosts pieces travel: one host reads lent bytes where the other keeps
//! them. Calls do not move packets, with one exception: over such a link a call itself hands its
//! datagrams on. Datagrams that are lent faster than they come back are left to the worker.
//!
//! Cost of a call for its thread, if it does not block:
//!
//! - [`send_zc`](TcpStream::send_zc) that lends: the lock of the socket's queue, one atomic
//!   operation on each of two or three budgets, two small allocations, and a system call if the
//!   worker sleeps;
//! - to check whether the buffer is back: one atomic load;
//! - `write`: for each frame of 16 KiB one lock of the pool and one of the queue; one atomic
//!   operation on the budget of the queue, and a system call if the worker sleeps;
//! - `read`: the stack's lock, and a system call if an ACK is due and the worker sleeps.
//!
//! A send does not take the stack's lock. It appends to a queue; the worker takes everything that
//! has been queued at once, lends it to the connection and builds packets. A send that waits, waits
//! for a budget: of copied bytes in the queue, or of lent bytes per socket, per user of the library
//! ([`Host::group`]) and per host. At a limit a blocking call blocks, a future is pending, and a
//! non-blocking call fails with `WouldBlock` and hands the buffer back.
//!
//! A buffer comes back early, with its bytes copied, when its term is over
//! ([`TcpStream::set_term`], [`TcpStream::send_zc_for`]), when the program recalls it
//! ([`Sending::recall`]), or when a receiver in this process keeps it for long
//! ([`Config::default_term`]). A peer therefore cannot hold memory by not reading.
//!
//! Small buffers are cheaper to copy than to lend. [`SendMode::Auto`] decides for each call;
//! `docs/theory/host.md` describes how.
//!
//! # Shutdown
//!
//! Dropping a socket closes it: queued data is still sent, and buffers still come back through
//! their [`Sending`]. The worker ends with the last [`Host`] and socket; data that has not been
//! sent by then is lost, and all memory comes back. [`Host::finish`] waits for the network first.

pub mod bpf;
pub(crate) mod choosing;
mod config;
mod core;
pub(crate) mod files;
pub(crate) mod lending;
mod link;
pub(crate) mod operations;
pub(crate) mod resolver;
pub(crate) mod sockets;
mod wait;
mod worker;

pub use self::config::{Config, StartError};
pub use choosing::mode::SendMode;
pub use files::file_cache::FileCacheStats;
pub use lending::any::AnyBuffer;
pub use lending::buffers::Buffer;
#[cfg(feature = "bytemuck")]
pub use lending::lend::Typed;
pub use lending::lend::{Chain, Fill, Lend, Part};
pub use lending::queue::LENT_OVERHEAD;
pub use lending::sending::{Completions, Returned, SendError, Sending};
pub use resolver::{Resolver, Target, ToSocketAddrs};
pub use sockets::file::FileRange;
pub use sockets::listener::TcpListener;
pub use sockets::raw::{FramePart, PacketSocket, RawSocket};
pub use sockets::sniffer::Sniffer;
pub use sockets::stream::TcpStream;
pub use sockets::tcp_socket::TcpSocket;
pub use sockets::udp::UdpSocket;
pub use towpath_net::counters::DropReason;
pub use towpath_net::pmtu_mode::PathMtu;
pub use towpath_net::socket::{
    DatagramOptions, FrameKind, FrameSource, LENT_RANGES_MAX, LentStats, Linger, LinkDestination,
    MulticastOptions, Options, PacketOptions, RawOptions, ReceivedDatagram, SendTo, Timestamping,
};
pub use towpath_net::stack::{AddressError, Conflict};
pub use towpath_net::tcp::congestion::Kind as CongestionControl;
pub use towpath_net::tcp::fastopen::FastOpenKeys;
pub use towpath_net::tcp::{FinWait, Info, Settings};
pub use towpath_net::wire::MacAddr;
pub use towpath_net::wire::ethernet::EtherType;
pub use towpath_packet::{Ledger, Piece, ReceivedPiece, View};
pub use worker::Host;

use std::io;
use std::net::SocketAddr;
use towpath_net::socket::{Error, Family};

/// Converts an error of the stack into one of the standard library.
fn io_error(error: Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

/// The error of a non-blocking call that would have to wait.
fn would_block() -> io::Error {
    io::ErrorKind::WouldBlock.into()
}

/// Returns the socket family of an address.
fn family(address: SocketAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}
