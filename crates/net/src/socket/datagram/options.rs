//! Options that only datagram sockets have.

use super::MulticastOptions;

/// Options of datagram sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramOptions {
    /// May send to a broadcast address (`SO_BROADCAST`).
    pub broadcast: bool,
    /// Puts ICMP errors into the error queue (`IP_RECVERR`); set with
    /// [`Sockets::set_receive_errors`](crate::socket::Sockets::set_receive_errors).
    pub receive_errors_v4: bool,
    /// Puts ICMPv6 errors into the error queue (`IPV6_RECVERR`); set with
    /// [`Sockets::set_receive_errors`](crate::socket::Sockets::set_receive_errors).
    pub receive_errors_v6: bool,
    /// Largest IPv6 packet to send; larger ones are fragmented (`IPV6_MTU`).
    pub fragment_size_v6: Option<u16>,
    /// Rejects IPv6 datagrams that would need fragmentation (`IPV6_DONTFRAG`).
    pub dont_fragment_v6: bool,
    /// Segments payloads into datagrams of this many bytes (`UDP_SEGMENT`); zero for no
    /// segmentation.
    pub segment_size: u16,
    /// Delays sends until more data follows (`UDP_CORK`). After switching it off, the caller sends
    /// the pending datagram with [`Sockets::push_datagram`](crate::socket::Sockets::push_datagram).
    pub cork: bool,
    /// Receives coalesced datagrams as one (`UDP_GRO`).
    pub coalesced: bool,
    /// Options for multicast datagrams.
    pub multicast: MulticastOptions,
}
