//! Counters of a TAP device: traffic, and drops by reason.

/// Traffic of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets; a super-packet is one.
    pub packets: u64,
    /// Bytes of Ethernet frames, without the virtio-net header.
    pub bytes: u64,
    /// The packets that were super-packets.
    pub super_packets: u64,
    /// System calls, including those that moved nothing.
    pub calls: u64,
}

/// Counters of a TAP device from our side: received means sent by programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapCounters {
    /// From the device.
    pub received: Traffic,
    /// To the device.
    pub transmitted: Traffic,
    /// Dropped on receive: too few frames were free to hold the packet.
    pub receive_no_memory: u64,
    /// Dropped on receive: shorter than an Ethernet header.
    pub receive_short: u64,
    /// Dropped on receive: longer than the largest IP packet.
    pub receive_long: u64,
    /// Dropped on receive: invalid virtio-net header.
    pub receive_bad_header: u64,
    /// Lost by the kernel at the read: super-packets of a kind that the header cannot express.
    pub receive_lost: u64,
    /// Times that receiving paused because no memory was free; nothing was dropped.
    pub receive_paused: u64,
    /// Not transmitted: the kernel refused the packet.
    pub transmit_refused: u64,
    /// Not transmitted: the kernel had no memory for it.
    pub transmit_no_memory: u64,
    /// Not transmitted: the interface is down.
    pub transmit_down: u64,
    /// Times that the device was full; nothing was dropped.
    pub transmit_full: u64,
}

impl TapCounters {
    /// Packets dropped on receive, for any reason.
    pub fn receive_dropped(&self) -> u64 {
        self.receive_no_memory
            + self.receive_short
            + self.receive_long
            + self.receive_bad_header
            + self.receive_lost
    }

    /// The sum of two devices' counters.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            received: self.received.plus(&other.received),
            transmitted: self.transmitted.plus(&other.transmitted),
            receive_no_memory: self.receive_no_memory + other.receive_no_memory,
            receive_short: self.receive_short + other.receive_short,
            receive_long: self.receive_long + other.receive_long,
            receive_bad_header: self.receive_bad_header + other.receive_bad_header,
            receive_lost: self.receive_lost + other.receive_lost,
            receive_paused: self.receive_paused + other.receive_paused,
            transmit_refused: self.transmit_refused + other.transmit_refused,
            transmit_no_memory: self.transmit_no_memory + other.transmit_no_memory,
            transmit_down: self.transmit_down + other.transmit_down,
            transmit_full: self.transmit_full + other.transmit_full,
        }
    }

    /// Packets dropped on transmit, for any reason.
    pub fn transmit_dropped(&self) -> u64 {
        self.transmit_refused + self.transmit_no_memory + self.transmit_down
    }
}

impl Traffic {
    pub(crate) fn count(&mut self, bytes: usize, offload: &towpath_packet::Offload) {
        self.packets += 1;
        self.bytes += bytes as u64;
        self.super_packets += u64::from(offload.gso.is_some());
    }

    /// The sum of two directions or devices.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            super_packets: self.super_packets + other.super_packets,
            calls: self.calls + other.calls,
        }
    }
}
