//! Raw and packet sockets: IP packets and frames, copied or lent like datagrams.
//!
//! They are datagram sockets of another kind: queues, budgets, terms, modes and buffer ownership
//! are those of [`UdpSocket`]. The stack implements Linux's raw(7) and packet(7).

use crate::host::core::send_queue::Crowded;
use crate::host::sockets::udp::UdpSocket;
use crate::host::{Host, Lend, ReceivedPiece, SendError, SendMode, Sending, family, io_error};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};
use std::time::Duration;
use towpath_net::bpf::Program;
use towpath_net::socket::{
    Error, LinkDestination, Options, PacketOptions, RawOptions, ReceivedDatagram, SendTo, Sockets,
};
use towpath_net::wire::ethernet::EtherType;
use towpath_net::wire::{MacAddr, Protocol};

/// A socket that sends and receives unmodified packets of one IP protocol. Any thread may use it.
///
/// It receives each packet for a local address whose protocol and addresses match, before the
/// protocol itself does: over IPv4 with the IP header, over IPv6 without. Sent packets get an IP
/// header, unless [`RawOptions::header_included`] says that they begin with one. The port of
/// addresses is zero.
#[derive(Clone)]
pub struct RawSocket(UdpSocket);

/// A socket that sends and receives frames of the host's link. Any thread may use it.
///
/// Frames are complete with their Ethernet header, or begin after it ([`FramePart`]). The socket
/// sees super-packets whole, and checksums that the device completes as still incomplete. A socket
/// for all protocols ([`PacketOptions::ALL`]) also sees outgoing frames, except its own.
#[derive(Clone)]
pub struct PacketSocket(UdpSocket);

/// The part of a frame that a [`PacketSocket`] reads and sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePart {
    /// The complete frame (`SOCK_RAW`).
    Whole,
    /// The part after the Ethernet header, which is built from a [`LinkDestination`]
    /// (`SOCK_DGRAM`).
    Payload,
}

impl RawSocket {
    /// Creates a socket for an IP protocol number, bound to an address of the host or to all of a
    /// family. Protocol 255 receives no packets, and over IPv4 sends packets with their own
    /// headers.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` for protocol 0; `EADDRNOTAVAIL` for an address that is not the host's.
    pub fn bind(host: &Host, address: IpAddr, protocol: u8) -> io::Result<Self> {
        let address = SocketAddr::new(address, 0);
        let socket = UdpSocket::open(host, Some(address), |sockets| {
            sockets.raw(family(address), Protocol(protocol))
        });
        Ok(Self(socket?))
    }

    /// Connects the socket to one peer.
    pub fn connect(&self, remote: IpAddr) -> io::Result<()> {
        self.0.connect(SocketAddr::new(remote, 0))
    }

    /// Sends a packet with the payload `bytes` to `remote`. Blocks while the device accepts
    /// nothing.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is larger than a packet can be, or, with a header of its own, than the MTU.
    pub fn send_to(&self, bytes: &[u8], remote: IpAddr) -> io::Result<usize> {
        self.0.send_to(bytes, SocketAddr::new(remote, 0))
    }

    /// Sends `buffer` to `remote`, like [`UdpSocket::send_zc_to`].
    pub fn send_zc_to<B: Lend>(
        &self,
        buffer: B,
        remote: IpAddr,
    ) -> Result<Sending<B>, SendError<B>> {
        self.0.send_zc_to(buffer, SocketAddr::new(remote, 0))
    }

    /// Receives a packet and returns its source address. Bytes that do not fit into `into` are
    /// lost.
    pub fn recv_from(&self, into: &mut [u8]) -> io::Result<(usize, IpAddr)> {
        let (count, from) = self.0.recv_from(into)?;
        Ok((count, from.ip()))
    }

    /// Returns the local address; the unspecified address if the socket is neither bound nor
    /// connected.
    pub fn local_addr(&self) -> io::Result<IpAddr> {
        Ok(self.0.local_addr()?.ip())
    }

    /// Returns the address of the connected peer.
    ///
    /// # Errors
    /// `ENOTCONN` if the socket is not connected.
    pub fn peer_addr(&self) -> io::Result<IpAddr> {
        let reported = self.0.with_state(Sockets::raw_peer);
        reported.map_err(io_error)
    }

    /// Returns the options that only raw sockets have.
    pub fn raw_options(&self) -> io::Result<RawOptions> {
        let reported = self.0.with_sockets(|sockets, id, _| sockets.raw_options(id).copied());
        reported.ok_or_else(|| io_error(Error::BadSocket))
    }

    /// Changes the options that only raw sockets have, except the protocol.
    ///
    /// # Errors
    /// `EINVAL` for an odd checksum offset.
    pub fn set_raw_options(&self, change: impl FnOnce(&mut RawOptions)) -> io::Result<()> {
        self.0.with_sockets(|sockets, id, _| sockets.set_raw_options(id, change)).map_err(io_error)
    }
}

impl PacketSocket {
    /// Creates a socket for frames of `protocol`, of all protocols ([`PacketOptions::ALL`]), or of
    /// none ([`NONE`](PacketOptions::NONE)).
    ///
    /// # Errors
    /// Fails if there are too many sockets.
    pub fn new(host: &Host, protocol: EtherType, part: FramePart) -> io::Result<Self> {
        let socket = UdpSocket::open(host, None, |sockets| {
            let id = sockets.packet_socket(protocol, part == FramePart::Payload)?;
            sockets.set_packet_options(id, |options| options.bound = true)?;
            Ok(id)
        });
        Ok(Self(socket?))
    }

    /// Sends `payload` as a frame to a station.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is larger than the MTU; `EINVAL` if the destination has no address.
    pub fn send_to(&self, payload: &[u8], to: LinkDestination) -> io::Result<usize> {
        self.0.send_with(payload, &SendTo { link: Some(to), ..SendTo::default() })
    }

    /// Lends `payload` as a frame to a station, like [`UdpSocket::send_zc_to`].
    pub fn send_zc_to<B: Lend>(
        &self,
        payload: B,
        to: LinkDestination,
    ) -> Result<Sending<B>, SendError<B>> {
        self.0.send_zc_with(payload, &SendTo { link: Some(to), ..SendTo::default() })
    }

    /// Receives a frame and returns its details ([`ReceivedDatagram::link`]). Bytes that do not fit
    /// into `into` are lost.
    pub fn recv_from(&self, into: &mut [u8]) -> io::Result<ReceivedDatagram> {
        self.0.receive(into, false)
    }

    /// Returns the link-layer address of the host, which the socket's frames have as their source.
    pub fn local_addr(&self) -> MacAddr {
        self.0.host().mac()
    }

    /// Sets which frames the socket receives from now on, and how much of each; `None` means all.
    pub fn set_filter(&self, filter: Option<Program>) -> io::Result<()> {
        self.0
            .with_sockets(|sockets, id, _| sockets.set_packet_filter(id, filter).map(drop))
            .map_err(io_error)
    }

    /// Returns the options that only packet sockets have.
    pub fn packet_options(&self) -> io::Result<PacketOptions> {
        let reported = self.0.with_sockets(|sockets, id, _| sockets.packet_options(id).copied());
        reported.ok_or_else(|| io_error(Error::BadSocket))
    }

    /// Changes the options that only packet sockets have.
    pub fn set_packet_options(&self, change: impl FnOnce(&mut PacketOptions)) -> io::Result<()> {
        self.0
            .with_sockets(|sockets, id, _| sockets.set_packet_options(id, change))
            .map_err(io_error)
    }

    /// Takes the counts since the last call: frames for this socket, and how many of them were
    /// lost.
    pub fn take_statistics(&self) -> io::Result<(u32, u32)> {
        self.0.with_sockets(|sockets, id, _| sockets.take_packet_statistics(id)).map_err(io_error)
    }
}

/// Calls that both kinds share with [`UdpSocket`].
macro_rules! calls_of_datagrams {
    ($socket:ident) => {
        impl $socket {
            /// Sends `bytes` to the connected peer, or, if they begin with a header, to its
            /// destination.
            pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
                self.0.send(bytes)
            }

            /// Sends `buffer` without an explicit destination, like [`UdpSocket::send_zc`].
            pub fn send_zc<B: Lend>(&self, buffer: B) -> Result<Sending<B>, SendError<B>> {
                self.0.send_zc(buffer)
            }

            /// Sends `buffer` like [`UdpSocket::send_zc_with`], with the options of `send`.
            pub fn send_zc_with<B: Lend>(
                &self,
                buffer: B,
                send: &SendTo,
            ) -> Result<Sending<B>, SendError<B>> {
                self.0.send_zc_with(buffer, send)
            }

            /// Sends `buffer` like [`UdpSocket::send_zc_async`], as a future.
            pub async fn send_zc_async<B: Lend>(
                &self,
                buffer: B,
                send: &SendTo,
            ) -> Result<Sending<B>, SendError<B>> {
                self.0.send_zc_async(buffer, send).await
            }

            /// Receives into `into`, for hand-written futures. Bytes that do not fit are lost.
            pub fn poll_recv_from(
                &self,
                cx: &mut Context<'_>,
                into: &mut [u8],
            ) -> Poll<io::Result<ReceivedDatagram>> {
                self.0.poll_recv_from(cx, into)
            }

            /// Receives without copying, like [`UdpSocket::recv_lent`]: private headers are
            /// appended to `headers`, and the rest as pieces to `into`. The number of private
            /// header bytes depends on the packet's origin.
            ///
            /// # Errors
            /// `WouldBlock` after the timeout, or at once if the socket is non-blocking; `ENOBUFS`
            /// if too many bytes are held. The packet stays in the queue.
            pub fn recv_lent(
                &self,
                headers: &mut Vec<u8>,
                into: &mut Vec<ReceivedPiece>,
            ) -> io::Result<ReceivedDatagram> {
                self.0.recv_frame_lent(headers, into)
            }

            /// Receives without copying like [`recv_lent`](Self::recv_lent), for hand-written
            /// futures.
            pub fn poll_recv_lent(
                &self,
                cx: &mut Context<'_>,
                headers: &mut Vec<u8>,
                into: &mut Vec<ReceivedPiece>,
            ) -> Poll<io::Result<ReceivedDatagram>> {
                self.0.poll_recv_frame_lent(cx, Crowded::Fails, headers, into)
            }

            /// Returns whether [`send_zc`](Self::send_zc) lends or copies.
            pub fn send_mode(&self) -> SendMode {
                self.0.send_mode()
            }

            /// Sets whether buffers are lent or copied, from the next call on.
            pub fn set_send_mode(&self, mode: SendMode) {
                self.0.set_send_mode(mode);
            }

            /// Sets how long a buffer is lent at most, like [`UdpSocket::set_term`].
            pub fn set_term(&self, term: Option<Duration>) {
                self.0.set_term(term);
            }

            /// Takes the pending error.
            pub fn take_error(&self) -> io::Result<Option<io::Error>> {
                self.0.take_error()
            }

            /// Returns the underlying datagram socket.
            pub(crate) fn as_datagrams(&self) -> &UdpSocket {
                &self.0
            }

            /// Returns the current options.
            pub fn options(&self) -> io::Result<Options> {
                self.0.options()
            }

            /// Changes options.
            pub fn set_options(&self, change: impl FnOnce(&mut Options)) -> io::Result<()> {
                self.0.set_options(change)
            }

            /// Sets how long a receiving call blocks; `None` for no limit.
            pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.set_read_timeout(timeout)
            }

            /// Sets how long a sending call blocks; `None` for no limit.
            pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.set_write_timeout(timeout)
            }

            /// Sets whether calls fail with `WouldBlock` instead of blocking.
            pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
                self.0.set_nonblocking(nonblocking)
            }
        }

        impl fmt::Debug for $socket {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($socket)).finish_non_exhaustive()
            }
        }
    };
}

calls_of_datagrams!(RawSocket);
calls_of_datagrams!(PacketSocket);
