//! Raw and packet sockets: packets of IP and frames, copied or lent as datagrams are.
//!
//! They are datagram sockets of another kind: queues, budgets, terms and modes are those of
//! [`UdpSocket`], and so are the rules of who owns a buffer and when. What the stack does with
//! them is Linux's raw(7) and packet(7).

use crate::host::core::feed::Crowded;
use crate::host::sockets::udp::UdpSocket;
use crate::host::{Held, Host, Lend, SendError, SendMode, Sending, family, io_error};
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

/// A socket that sends and takes packets of one protocol of IP as they are; any thread.
///
/// Each packet for one of our addresses whose protocol and addresses fit is shared with it, before
/// the protocol sees it: over IPv4 with the IP header, over IPv6 without. What is sent gets an IP
/// header, unless [`RawOptions::header_included`] says that it begins with one. Addresses have port
/// zero.
#[derive(Clone)]
pub struct RawSocket(UdpSocket);

/// A socket that sends and takes frames of the host's link; any thread.
///
/// Frames are whole, with their Ethernet header, or what is behind it ([`FramePart`]). It sees
/// super-packets whole, and checksums that the device completes as they are before. One for all
/// protocols ([`PacketOptions::ALL`]) sees what leaves, too, but not what it sends itself.
#[derive(Clone)]
pub struct PacketSocket(UdpSocket);

/// What of a frame a [`PacketSocket`] reads and sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramePart {
    /// All of it (`SOCK_RAW`).
    Whole,
    /// What is behind the Ethernet header, which is made of a [`LinkDestination`] (`SOCK_DGRAM`).
    Payload,
}

impl RawSocket {
    /// A socket for a protocol, as IP numbers it, bound to an address of the host or to all of a
    /// family. 255 takes no packets, and over IPv4 sends them with headers.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` for protocol 0, `EADDRNOTAVAIL` for an address of somebody else.
    pub fn bind(host: &Host, address: IpAddr, protocol: u8) -> io::Result<Self> {
        let address = SocketAddr::new(address, 0);
        let socket = UdpSocket::open(host, Some(address), |sockets| {
            sockets.raw(family(address), Protocol(protocol))
        });
        Ok(Self(socket?))
    }

    /// Names the one peer.
    pub fn connect(&self, remote: IpAddr) -> io::Result<()> {
        self.0.connect(SocketAddr::new(remote, 0))
    }

    /// Sends a packet with these bytes to `remote`. Waits while the device takes nothing.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is larger than a packet can be, or than the MTU with an own header.
    pub fn send_to(&self, bytes: &[u8], remote: IpAddr) -> io::Result<usize> {
        self.0.send_to(bytes, SocketAddr::new(remote, 0))
    }

    /// As [`UdpSocket::send_zc_to`].
    pub fn send_zc_to<B: Lend>(
        &self,
        buffer: B,
        remote: IpAddr,
    ) -> Result<Sending<B>, SendError<B>> {
        self.0.send_zc_to(buffer, SocketAddr::new(remote, 0))
    }

    /// Receives a packet, and tells where it came from. What `into` has no room for is lost.
    pub fn recv_from(&self, into: &mut [u8]) -> io::Result<(usize, IpAddr)> {
        let (count, from) = self.0.recv_from(into)?;
        Ok((count, from.ip()))
    }

    /// Our address; the unspecified one if it is bound to none and has no peer.
    pub fn local_addr(&self) -> io::Result<IpAddr> {
        Ok(self.0.local_addr()?.ip())
    }

    /// The peer's address.
    ///
    /// # Errors
    /// `ENOTCONN` without one.
    pub fn peer_addr(&self) -> io::Result<IpAddr> {
        let told = self.0.with_state(Sockets::raw_peer);
        told.map_err(io_error)
    }

    /// The options that only raw sockets have.
    pub fn raw_options(&self) -> io::Result<RawOptions> {
        let told = self.0.with_sockets(|sockets, id, _| sockets.raw_options(id).copied());
        told.ok_or_else(|| io_error(Error::BadSocket))
    }

    /// Changes them. The protocol stays.
    ///
    /// # Errors
    /// `EINVAL` for an odd place of a checksum.
    pub fn set_raw_options(&self, change: impl FnOnce(&mut RawOptions)) -> io::Result<()> {
        self.0.with_sockets(|sockets, id, _| sockets.set_raw_options(id, change)).map_err(io_error)
    }
}

impl PacketSocket {
    /// A socket for frames that carry `protocol`, or [`PacketOptions::ALL`] or
    /// [`NONE`](PacketOptions::NONE) of them.
    ///
    /// # Errors
    /// There are too many sockets.
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
    /// `EMSGSIZE` if it is larger than the MTU, `EINVAL` if the destination has no address.
    pub fn send_to(&self, payload: &[u8], to: LinkDestination) -> io::Result<usize> {
        self.0.send_with(payload, &SendTo { link: Some(to), ..SendTo::default() })
    }

    /// Lends `payload` as a frame to a station, as [`UdpSocket::send_zc_to`] does to a peer.
    pub fn send_zc_to<B: Lend>(
        &self,
        payload: B,
        to: LinkDestination,
    ) -> Result<Sending<B>, SendError<B>> {
        self.0.send_zc_with(payload, &SendTo { link: Some(to), ..SendTo::default() })
    }

    /// Receives a frame, and tells of it ([`ReceivedDatagram::link`]). What `into` has no room for
    /// is lost.
    pub fn recv_from(&self, into: &mut [u8]) -> io::Result<ReceivedDatagram> {
        self.0.receive(into, false)
    }

    /// The link's own address, which frames that it makes come from.
    pub fn local_addr(&self) -> MacAddr {
        self.0.host().mac()
    }

    /// Sets which frames it sees from now on, and how much of each; `None` takes all.
    pub fn set_filter(&self, filter: Option<Program>) -> io::Result<()> {
        self.0
            .with_sockets(|sockets, id, _| sockets.set_packet_filter(id, filter).map(drop))
            .map_err(io_error)
    }

    /// The options that only packet sockets have.
    pub fn packet_options(&self) -> io::Result<PacketOptions> {
        let told = self.0.with_sockets(|sockets, id, _| sockets.packet_options(id).copied());
        told.ok_or_else(|| io_error(Error::BadSocket))
    }

    /// Changes them.
    pub fn set_packet_options(&self, change: impl FnOnce(&mut PacketOptions)) -> io::Result<()> {
        self.0
            .with_sockets(|sockets, id, _| sockets.set_packet_options(id, change))
            .map_err(io_error)
    }

    /// Frames for this socket, and those of them that it lost, since the last call.
    pub fn take_statistics(&self) -> io::Result<(u32, u32)> {
        self.0.with_sockets(|sockets, id, _| sockets.take_packet_statistics(id)).map_err(io_error)
    }
}

/// What both do as a [`UdpSocket`] does.
macro_rules! calls_of_datagrams {
    ($socket:ident) => {
        impl $socket {
            /// Sends what needs no destination: to the peer, or with the header that it begins
            /// with.
            pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
                self.0.send(bytes)
            }

            /// The same, but lends: as [`UdpSocket::send_zc`].
            pub fn send_zc<B: Lend>(&self, buffer: B) -> Result<Sending<B>, SendError<B>> {
                self.0.send_zc(buffer)
            }

            /// The same, as `send` says.
            pub fn send_zc_with<B: Lend>(
                &self,
                buffer: B,
                send: &SendTo,
            ) -> Result<Sending<B>, SendError<B>> {
                self.0.send_zc_with(buffer, send)
            }

            /// The same for tasks: as [`UdpSocket::send_zc_async`].
            pub async fn send_zc_async<B: Lend>(
                &self,
                buffer: B,
                send: &SendTo,
            ) -> Result<Sending<B>, SendError<B>> {
                self.0.send_zc_async(buffer, send).await
            }

            /// Receives into `into`, and tells of it, for futures. What `into` has no room for is
            /// lost.
            pub fn poll_recv_from(
                &self,
                cx: &mut Context<'_>,
                into: &mut [u8],
            ) -> Poll<io::Result<ReceivedDatagram>> {
                self.0.poll_recv_from(cx, into)
            }

            /// Receives without copying: headers, as far as they are private, are appended to
            /// `headers`, and what follows them to `into` as pieces, as [`UdpSocket::recv_lent`]
            /// does. How many headers are private depends on where the packet comes from.
            ///
            /// # Errors
            /// `WouldBlock` after the timeout, or without a packet if it is not to wait; `ENOBUFS`
            /// if too much is kept: the packet stays.
            pub fn recv_lent(
                &self,
                headers: &mut Vec<u8>,
                into: &mut Vec<Held>,
            ) -> io::Result<ReceivedDatagram> {
                self.0.recv_frame_lent(headers, into)
            }

            /// The same for futures made by hand.
            pub fn poll_recv_lent(
                &self,
                cx: &mut Context<'_>,
                headers: &mut Vec<u8>,
                into: &mut Vec<Held>,
            ) -> Poll<io::Result<ReceivedDatagram>> {
                self.0.poll_recv_frame_lent(cx, Crowded::Fails, headers, into)
            }

            /// What becomes of buffers that are sent with [`send_zc`](Self::send_zc).
            pub fn send_mode(&self) -> SendMode {
                self.0.send_mode()
            }

            /// Sets it, from the next call on.
            pub fn set_send_mode(&self, mode: SendMode) {
                self.0.set_send_mode(mode);
            }

            /// How long a buffer is lent at most: as [`UdpSocket::set_term`].
            pub fn set_term(&self, term: Option<Duration>) {
                self.0.set_term(term);
            }

            /// The pending error.
            pub fn take_error(&self) -> io::Result<Option<io::Error>> {
                self.0.take_error()
            }

            /// The datagram socket that it is to the host.
            pub(crate) fn as_datagrams(&self) -> &UdpSocket {
                &self.0
            }

            /// Options, as they are.
            pub fn options(&self) -> io::Result<Options> {
                self.0.options()
            }

            /// Changes options.
            pub fn set_options(&self, change: impl FnOnce(&mut Options)) -> io::Result<()> {
                self.0.set_options(change)
            }

            /// How long a call that receives waits; `None` for as long as it takes.
            pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.set_read_timeout(timeout)
            }

            /// How long a call that sends waits; `None` for as long as it takes.
            pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.set_write_timeout(timeout)
            }

            /// Whether calls fail instead of waiting.
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
