//! What passed and what was dropped. Every drop has a reason; the enum is its documentation.

/// Declares the reasons once: variant, name in reports, meaning.
macro_rules! drop_reasons {
    (
        $(#[$about:meta])+ $reasons:ident;
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
    };
}

drop_reasons! {
    /// Why the stack dropped a packet, or part of one.
    DropReason;
    /// Not a whole Ethernet header.
    EthernetMalformed = "ethernet_malformed",
    /// For another station.
    NotForUs = "not_for_us",
    /// Neither ARP nor IP.
    EtherTypeUnknown = "ethertype_unknown",
    /// ARP that is malformed or contradicts itself.
    ArpMalformed = "arp_malformed",
    /// IPv4 or IPv6 header truncated, lying about a length or with a bad option.
    IpMalformed = "ip_malformed",
    /// IPv4 header checksum wrong.
    IpChecksum = "ip_checksum",
    /// Source routing is not followed.
    SourceRoute = "source_route",
    /// Source address that nobody can have, or that is ours.
    SourceMartian = "source_martian",
    /// Destination that is neither ours nor served.
    DestinationNotServed = "destination_not_served",
    /// Protocol that is not handled.
    ProtocolUnknown = "protocol_unknown",
    /// Time to live ran out.
    TtlExceeded = "ttl_exceeded",
    /// A fragment that overlaps, lies or finds its bounds exceeded.
    Fragment = "fragment",
    /// Offload fields that contradict the packet.
    OffloadMalformed = "offload_malformed",
    /// TCP header malformed.
    TcpMalformed = "tcp_malformed",
    /// TCP checksum wrong.
    TcpChecksum = "tcp_checksum",
    /// TCP segment with a signature, for which there is no key.
    TcpSignature = "tcp_signature",
    /// TCP segment that its connection did not accept.
    TcpUnacceptable = "tcp_unacceptable",
    /// TCP segment of no connection; answered with a reset.
    TcpNoConnection = "tcp_no_connection",
    /// TCP data for which the connection had no room.
    TcpNoRoom = "tcp_no_room",
    /// A SYN beyond the limit of connections.
    TcpConnectionLimit = "tcp_connection_limit",
    /// A half-open connection given up for a newer one.
    TcpHalfOpenEvicted = "tcp_half_open_evicted",
    /// An ACK without data, for a listener that waits for data before there is a child.
    TcpDeferred = "tcp_deferred",
    /// A segment that would have made a child for which its listener's queue had no room.
    TcpAcceptQueueFull = "tcp_accept_queue_full",
    /// A SYN for a listener with too many requests.
    TcpRequestLimit = "tcp_request_limit",
    /// UDP header malformed.
    UdpMalformed = "udp_malformed",
    /// UDP checksum wrong, or absent over IPv6.
    UdpChecksum = "udp_checksum",
    /// Nobody took received datagrams fast enough.
    UdpQueueFull = "udp_queue_full",
    /// Nobody took received echo requests fast enough.
    EchoQueueFull = "echo_queue_full",
    /// Nobody took received packets for raw sockets fast enough.
    RawQueueFull = "raw_queue_full",
    /// A datagram for a port that no socket has; answered with an ICMP error.
    UdpNoSocket = "udp_no_socket",
    /// A datagram, or an error about one, for which its socket's receive buffer had no room.
    UdpNoRoom = "udp_no_room",
    /// A packet with a wrong checksum that a raw socket looks at.
    RawChecksum = "raw_checksum",
    /// Nobody took the frames for packet sockets fast enough.
    LinkQueueFull = "link_queue_full",
    /// ICMP message malformed or with a wrong checksum.
    IcmpMalformed = "icmp_malformed",
    /// ICMP message of a kind that is not acted on.
    IcmpIgnored = "icmp_ignored",
    /// An ICMP error about a segment of a connection that is not on its way.
    IcmpOutOfWindow = "icmp_out_of_window",
    /// An ICMP error not sent because of the rate limit.
    IcmpRateLimited = "icmp_rate_limited",
    /// Neighbour discovery message malformed or from off the link.
    NeighborMalformed = "neighbor_malformed",
    /// Too many packets wait for a neighbour's address.
    NeighborQueueFull = "neighbor_queue_full",
    /// A neighbour did not answer.
    NeighborUnreachable = "neighbor_unreachable",
    /// No packet handle or frame was free.
    NoMemory = "no_memory",
    /// The queue of the device was full.
    DeviceFull = "device_full",
    /// The device, or the other end of the link, is gone.
    LinkGone = "link_gone",
    /// A packet larger than the device takes and not to be cut.
    TooLarge = "too_large",
}

drop_reasons! {
    /// Why a port of the switch dropped a packet: on its way in, or on its way out.
    PortDrop;
    /// In: not a whole Ethernet header, or not a whole tag.
    EthernetMalformed = "ethernet_malformed",
    /// In: longer than an Ethernet frame with a tag and the largest IP packet.
    TooLong = "too_long",
    /// In: the source is a group of stations, or none.
    SourceInvalid = "source_invalid",
    /// In: for a group address that no switch forwards (IEEE 802.1Q table 8-1).
    GroupReserved = "group_reserved",
    /// In: of a VLAN that the port is not in.
    VlanRefused = "vlan_refused",
    /// In: from a link-layer address, or claiming one, that the port's station may not have.
    MacSpoofed = "mac_spoofed",
    /// In: from a link-layer address that was given to another port.
    MacLocked = "mac_locked",
    /// In: from an IP address, or answering for one, that the port's station may not have.
    AddressSpoofed = "address_spoofed",
    /// In: announces a router, redirects or answers DHCP, or cannot be read so far, from a port
    /// whose station is no router.
    RouterRefused = "router_refused",
    /// In: offload fields that contradict the packet.
    OffloadMalformed = "offload_malformed",
    /// In: more broadcasts than the port may send.
    StormBroadcast = "storm_broadcast",
    /// In: more for groups than the port may send.
    StormMulticast = "storm_multicast",
    /// In: more for unknown stations than the port may send.
    StormUnknown = "storm_unknown",
    /// In: its destination is behind the port that it came by.
    SamePort = "same_port",
    /// In: its destination is behind a port that this one may not talk to, or that has left the
    /// VLAN.
    Isolated = "isolated",
    /// In: nobody else is in the VLAN.
    NobodyElse = "nobody_else",
    /// In or out: no packet handle or frame was free.
    NoMemory = "no_memory",
    /// Out: larger than the port takes, and not to be cut.
    TooLarge = "too_large",
    /// Out: would leave without its tag and show another, which is the way into a VLAN of one's
    /// choice.
    DoubleTag = "double_tag",
    /// Out: its checksum cannot be completed for a port that takes no partial ones.
    ChecksumMisplaced = "checksum_misplaced",
    /// Out: the port's queue was full.
    QueueFull = "queue_full",
}

/// Counters of one stack. Plain numbers: one thread writes, reports copy.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Packets taken in.
    pub packets_in: u64,
    /// Bytes taken in, Ethernet headers included.
    pub bytes_in: u64,
    /// Of them super-packets.
    pub super_packets_in: u64,
    /// Packets handed out.
    pub packets_out: u64,
    /// Bytes handed out.
    pub bytes_out: u64,
    /// Of them super-packets.
    pub super_packets_out: u64,
    /// TCP connections opened, by either side.
    pub connections: u64,
    /// SYNs answered with a cookie.
    pub syn_cookies_sent: u64,
    /// ACKs with a valid SYN cookie.
    pub syn_cookies_received: u64,
    /// ACKs with an invalid one, while there were some to come.
    pub syn_cookies_failed: u64,
    /// Connections that nobody owned reset because there were too many.
    pub orphans_reset: u64,
    /// TCP segments or super-packets sent again.
    pub retransmitted: u64,
    /// Of them loss probes: nothing had been heard of the last segments for two round trips.
    pub tail_probes: u64,
    /// Fragments put together.
    pub reassembled: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            packets_in: 0,
            bytes_in: 0,
            super_packets_in: 0,
            packets_out: 0,
            bytes_out: 0,
            super_packets_out: 0,
            connections: 0,
            syn_cookies_sent: 0,
            syn_cookies_received: 0,
            syn_cookies_failed: 0,
            orphans_reset: 0,
            retransmitted: 0,
            tail_probes: 0,
            reassembled: 0,
            drops: [0; DropReason::ALL.len()],
        }
    }
}

impl Counters {
    /// Counts a drop.
    pub fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Drops for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Adds those of another stack.
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
        for (count, more) in self.drops.iter_mut().zip(other.drops) {
            *count += more;
        }
    }

    /// Reasons that occurred, with their counts.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason, self.dropped(reason)))
            .filter(|&(_, count)| count > 0)
    }
}
