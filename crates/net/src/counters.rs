//! Counters of traffic and of drops. Every drop has a reason, which its variant documents.

/// Declares drop reasons (variant, name in reports, meaning), and their counters.
macro_rules! drop_reasons {
    (
        $(#[$about:meta])+ $reasons:ident, $drops:ident;
        $($(#[$doc:meta])+ $variant:ident = $name:literal,)+
    ) => {
        $(#[$about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum $reasons {
            $($(#[$doc])+ $variant,)+
        }

        impl $reasons {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [$reasons] = &[$($reasons::$variant,)+];

            /// Name used in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $($reasons::$variant => $name,)+
                }
            }
        }

        /// Drops by reason.
        #[derive(Clone, Debug)]
        pub(crate) struct $drops([u64; $reasons::ALL.len()]);

        impl Default for $drops {
            fn default() -> Self {
                Self([0; $reasons::ALL.len()])
            }
        }

        impl $drops {
            pub(crate) fn count(&mut self, reason: $reasons, packets: usize) {
                self.0[reason as usize] += packets as u64;
            }

            pub(crate) fn get(&self, reason: $reasons) -> u64 {
                self.0[reason as usize]
            }

            /// Reasons that occurred, with their counts.
            pub(crate) fn iter(&self) -> impl Iterator<Item = ($reasons, u64)> + '_ {
                let all = $reasons::ALL.iter().map(|&reason| (reason, self.get(reason)));
                all.filter(|&(_, count)| count > 0)
            }
        }
    };
}

drop_reasons! {
    /// Reason why the stack dropped a packet, or part of one.
    DropReason, Drops;
    /// The Ethernet header is incomplete.
    EthernetMalformed = "ethernet_malformed",
    /// The frame is for another station.
    NotForUs = "not_for_us",
    /// The EtherType is neither ARP nor IP.
    EtherTypeUnknown = "ethertype_unknown",
    /// The ARP packet is malformed or inconsistent.
    ArpMalformed = "arp_malformed",
    /// The IPv4 or IPv6 header is truncated, or has a wrong length or an invalid option.
    IpMalformed = "ip_malformed",
    /// The IPv4 header checksum is wrong.
    IpChecksum = "ip_checksum",
    /// The packet has a source route, which is not followed.
    SourceRoute = "source_route",
    /// The source address is martian or local.
    SourceMartian = "source_martian",
    /// The destination is neither local nor served.
    DestinationNotServed = "destination_not_served",
    /// The IP protocol is not supported.
    ProtocolUnknown = "protocol_unknown",
    /// The time to live ran out.
    TtlExceeded = "ttl_exceeded",
    /// The fragment overlaps, is invalid or exceeds a limit.
    Fragment = "fragment",
    /// The offload fields contradict the packet.
    OffloadMalformed = "offload_malformed",
    /// The TCP header is malformed.
    TcpMalformed = "tcp_malformed",
    /// The TCP checksum is wrong.
    TcpChecksum = "tcp_checksum",
    /// The TCP segment has a signature, for which there is no key.
    TcpSignature = "tcp_signature",
    /// The TCP segment was not acceptable to its connection.
    TcpUnacceptable = "tcp_unacceptable",
    /// The TCP segment belongs to no connection; answered with a reset.
    TcpNoConnection = "tcp_no_connection",
    /// A TCP segment was not answered with a reset: its port has had those of this second.
    TcpResetLimited = "tcp_reset_limited",
    /// The connection had no room for the TCP data.
    TcpNoRoom = "tcp_no_room",
    /// A SYN exceeded the limit of connections.
    TcpConnectionLimit = "tcp_connection_limit",
    /// A half-open connection was evicted by a newer one.
    TcpHalfOpenEvicted = "tcp_half_open_evicted",
    /// The listener defers accepting, and the ACK has no data.
    TcpDeferred = "tcp_deferred",
    /// The segment would have made a child, but the listener's queue was full.
    TcpAcceptQueueFull = "tcp_accept_queue_full",
    /// The listener has too many requests for another SYN.
    TcpRequestLimit = "tcp_request_limit",
    /// The UDP header is malformed.
    UdpMalformed = "udp_malformed",
    /// The UDP checksum is wrong, or missing over IPv6.
    UdpChecksum = "udp_checksum",
    /// The queue of received datagrams was full.
    UdpQueueFull = "udp_queue_full",
    /// The queue of received echo requests was full.
    EchoQueueFull = "echo_queue_full",
    /// The queue of received packets for raw sockets was full.
    RawQueueFull = "raw_queue_full",
    /// No socket has the datagram's port; answered with an ICMP error.
    UdpNoSocket = "udp_no_socket",
    /// The socket's receive buffer had no room for a datagram, or for an error about one.
    UdpNoRoom = "udp_no_room",
    /// A packet for a raw socket that verifies checksums has a wrong one.
    RawChecksum = "raw_checksum",
    /// The queue of frames for packet sockets was full.
    LinkQueueFull = "link_queue_full",
    /// The ICMP message is malformed or has a wrong checksum.
    IcmpMalformed = "icmp_malformed",
    /// The ICMP message is of a kind that is ignored.
    IcmpIgnored = "icmp_ignored",
    /// The ICMP error quotes a packet that was not sent, or a segment that is not in flight.
    IcmpOutOfWindow = "icmp_out_of_window",
    /// The ICMP error was not sent because of the rate limit.
    IcmpRateLimited = "icmp_rate_limited",
    /// The group membership message is malformed, from off the link or without a router alert.
    MembershipMalformed = "membership_malformed",
    /// The neighbour discovery message is malformed or from off the link.
    NeighborMalformed = "neighbor_malformed",
    /// Too many packets wait for the neighbour's link-layer address.
    NeighborQueueFull = "neighbor_queue_full",
    /// The packet waited for a neighbour whose entry was evicted from a full table or replaced, or
    /// the table had no room for its neighbour.
    NeighborEvicted = "neighbor_evicted",
    /// The neighbour did not answer.
    NeighborUnreachable = "neighbor_unreachable",
    /// The message shows that another station uses a local address.
    AddressConflict = "address_conflict",
    /// No packet handle or frame was free.
    NoMemory = "no_memory",
    /// The device's queue was full.
    DeviceFull = "device_full",
    /// The device, or the other end of the link, is gone.
    LinkGone = "link_gone",
    /// The packet exceeds the MTU or the maximum length, and cannot be fragmented.
    TooLarge = "too_large",
}

drop_reasons! {
    /// Reason why a switch port dropped a packet: on ingress or on egress.
    PortDrop, PortDrops;
    /// In: the Ethernet header or the tag is incomplete.
    EthernetMalformed = "ethernet_malformed",
    /// In: the frame is longer than a tag and the largest IP packet allow.
    TooLong = "too_long",
    /// In: the source address is multicast or zero.
    SourceInvalid = "source_invalid",
    /// In: the destination is a group address that switches do not forward (IEEE 802.1Q table 8-1).
    GroupReserved = "group_reserved",
    /// In: the port is not in the frame's VLAN.
    VlanRefused = "vlan_refused",
    /// In: the link-layer source, or a claimed link-layer address, is not allowed for the port.
    MacSpoofed = "mac_spoofed",
    /// In: the link-layer source belongs to another port.
    MacLocked = "mac_locked",
    /// In: the IP source, or a claimed IP address, is not allowed for the port.
    AddressSpoofed = "address_spoofed",
    /// In: a router advertisement, a redirect, a packet to a DHCP client, or a packet that cannot
    /// be parsed that far, from a port without a router.
    RouterRefused = "router_refused",
    /// In: a request for addresses or a router that came through a tunnel: the guest's own host
    /// answers it.
    ForeignRequest = "foreign_request",
    /// In: the offload fields contradict the packet.
    OffloadMalformed = "offload_malformed",
    /// In: the broadcast rate limit of the port was exceeded.
    StormBroadcast = "storm_broadcast",
    /// In: the multicast rate limit of the port was exceeded.
    StormMulticast = "storm_multicast",
    /// In: the rate limit of the port for unknown destinations was exceeded.
    StormUnknown = "storm_unknown",
    /// In: the destination is behind the ingress port.
    SamePort = "same_port",
    /// In: the destination is behind a port that the ingress port may not send to, or that has left
    /// the VLAN.
    Isolated = "isolated",
    /// In: no other port is in the VLAN.
    NobodyElse = "nobody_else",
    /// In or out: the port's link is down.
    LinkDown = "link_down",
    /// In or out: no packet handle or frame was free.
    NoMemory = "no_memory",
    /// Out: the packet exceeds the port's MTU and cannot be segmented.
    TooLarge = "too_large",
    /// Out: removing the tag would expose an inner tag, which would let the sender choose a VLAN.
    DoubleTag = "double_tag",
    /// Out: the checksum cannot be completed for a port that takes no partial ones.
    ChecksumMisplaced = "checksum_misplaced",
    /// Out: the port's queue was full.
    QueueFull = "queue_full",
}

/// Counters of one stack. Plain numbers: one thread writes them, and reports copy them.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Packets received.
    pub packets_in: u64,
    /// Bytes received, Ethernet headers included.
    pub bytes_in: u64,
    /// Super-packets received.
    pub super_packets_in: u64,
    /// Packets sent.
    pub packets_out: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Super-packets sent.
    pub super_packets_out: u64,
    /// TCP connections opened, by either side.
    pub connections: u64,
    /// SYNs answered with a cookie.
    pub syn_cookies_sent: u64,
    /// ACKs with a valid SYN cookie.
    pub syn_cookies_received: u64,
    /// ACKs with an invalid SYN cookie, while cookies were outstanding.
    pub syn_cookies_failed: u64,
    /// Connections without an owner that were reset because there were too many.
    pub orphans_reset: u64,
    /// TCP segments or super-packets retransmitted.
    pub retransmitted: u64,
    /// Tail loss probes among the retransmissions: no ACK for the last segments for two round
    /// trips.
    pub tail_probes: u64,
    /// Datagrams reassembled from fragments.
    pub reassembled: u64,
    drops: Drops,
}

impl Counters {
    /// Counts a drop.
    pub fn drop(&mut self, reason: DropReason) {
        self.drops.count(reason, 1);
    }

    /// Number of drops for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops.get(reason)
    }

    /// Adds the counters of another stack.
    pub fn add(&mut self, other: &Self) {
        self.packets_in += other.packets_in;
        self.bytes_in += other.bytes_in;
        self.super_packets_in += other.super_packets_in;
        self.packets_out += other.packets_out;
        self.bytes_out += other.bytes_out;
        self.super_packets_out += other.super_packets_out;
        self.connections += other.connections;
        self.syn_cookies_sent += other.syn_cookies_sent;
        self.syn_cookies_received += other.syn_cookies_received;
        self.syn_cookies_failed += other.syn_cookies_failed;
        self.orphans_reset += other.orphans_reset;
        self.retransmitted += other.retransmitted;
        self.tail_probes += other.tail_probes;
        self.reassembled += other.reassembled;
        for (reason, count) in other.drops.iter() {
            self.drops.count(reason, count as usize);
        }
    }

    /// Drop reasons that occurred, with their counts.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        self.drops.iter()
    }
}
