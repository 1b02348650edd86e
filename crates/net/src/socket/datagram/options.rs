//! Options that only datagram sockets have.

/// Options of datagram sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramOptions {
    /// May name a broadcast address (`SO_BROADCAST`).
    pub broadcast: bool,
    /// ICMP errors wait in the error queue (`IP_RECVERR`); set with
    /// [`Sockets::set_receive_errors`](crate::socket::Sockets::set_receive_errors).
    pub receive_errors_v4: bool,
    /// The same of ICMPv6 (`IPV6_RECVERR`).
    pub receive_errors_v6: bool,
    /// What is sent over IPv6 goes in fragments of so many bytes at most (`IPV6_MTU`).
    pub fragment_size_v6: Option<u16>,
    /// What is sent over IPv6 is not fragmented, but refused (`IPV6_DONTFRAG`).
    pub dont_fragment_v6: bool,
    /// Cut what is sent into datagrams of so many bytes (`UDP_SEGMENT`); zero for not.
    pub segment_size: u16,
    /// What is sent waits for more (`UDP_CORK`); who switches it off sends what waits with
    /// [`Sockets::push_datagram`](crate::socket::Sockets::push_datagram).
    pub cork: bool,
    /// Receive datagrams that were coalesced as one (`UDP_GRO`).
    pub coalesced: bool,
}
