//! A host: a TCP/IP stack in this process, with sockets in the shape of the standard library's and
//! sends that lend their buffers.
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
//! // The buffer moves into the send, and comes back when nobody uses it any more.
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
//! nothing to do. A host is attached to a TAP device or, by [`Host::pair`], to another host of this
//! process: then pieces travel, and bytes that one lends are read by the other where they are.
//! Calls move no packets, but for datagrams that leave over such a link. Datagrams that are lent
//! faster than they come back are left to the worker.
//!
//! What a call costs its thread, when it does not wait:
//!
//! - [`send_zc`](TcpStream::send_zc) that lends: the lock of the socket's queue, one atomic
//!   operation on each of two budgets or three, two small allocations, and a system call if the
//!   worker sleeps;
//! - to look whether it is back: one atomic load;
//! - `write`: a lock of the pool and one of the queue for each frame of 16 KiB, an atomic operation
//!   on the budget of the queue, and a system call if the worker sleeps;
//! - `read`: the stack's lock, and a system call if an ACK has to go and the worker sleeps.
//!
//! A send does not take the stack's lock: it appends to a queue, and the worker takes all that
//! has come in the meantime at once, lends it to the connection and builds packets. What waits,
//! waits for a budget: of copied bytes in the queue, or of lent bytes by socket, by user of the
//! library ([`Host::group`]) and by host. At a limit a blocking call waits, a future is pending and
//! a call that does not block says so and hands the buffer back.
//!
//! A buffer comes back early, copied, when its term is over ([`TcpStream::set_term`],
//! [`TcpStream::send_zc_for`]), when it is asked for ([`Sending::recall`]), or when a receiver in
//! this process keeps it for long ([`Config::default_term`]): nobody can keep memory by not
//! reading.
//!
//! Small buffers are cheaper copied than lent. [`SendMode::Auto`] decides for each call; what it
//! goes by is in `docs/theory/host.md`.
//!
//! # The end
//!
//! Dropping a socket closes it: what was sent is still sent, and buffers still come back to whoever
//! kept the [`Sending`]. The worker ends with the last [`Host`] and socket; what was not sent by
//! then is lost, and all memory comes back. [`Host::finish`] waits for the network first.

mod choosing;
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
pub use lending::lend::{Chain, Lend, Part};
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
pub use towpath_net::bpf;
pub use towpath_net::counters::DropReason;
pub use towpath_net::path_mtu::PathMtu;
pub use towpath_net::socket::{
    DatagramOptions, FrameKind, FrameSource, LENT_RANGES_MAX, LentStats, Linger, LinkDestination,
    Options, PacketOptions, RawOptions, ReceivedDatagram, SendTo, Timestamping,
};
pub use towpath_net::tcp::congestion::Kind as CongestionControl;
pub use towpath_net::tcp::fastopen::FastOpenKeys;
pub use towpath_net::tcp::{FinWait, Info, Settings};
pub use towpath_net::wire::MacAddr;
pub use towpath_net::wire::ethernet::EtherType;
pub use towpath_packet::{Held, Ledger, Piece, View};
pub use worker::Host;

use std::io;
use std::net::SocketAddr;
use towpath_net::socket::{Error, Family};

/// An error of the stack as the standard library has it.
fn io_error(error: Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

/// A call would have to wait longer than it may.
fn would_block() -> io::Error {
    io::ErrorKind::WouldBlock.into()
}

/// The family of sockets that an address is for.
fn family(address: SocketAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}
