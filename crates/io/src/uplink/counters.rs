//! Counters of an uplink: traffic, and drops by reason.

use crate::tap::Traffic;

/// Counters of an uplink from our side: received means that frames arrived at the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UplinkCounters {
    /// From the interface.
    pub received: Traffic,
    /// To the interface.
    pub transmitted: Traffic,
    /// Dropped on receive: too few frames were free to hold the packet.
    pub receive_no_memory: u64,
    /// Dropped on receive: shorter than an Ethernet header.
    pub receive_short: u64,
    /// Dropped on receive: invalid virtio-net header.
    pub receive_bad_header: u64,
    /// Lost by the kernel at the read: super-packets of a kind that the header cannot express.
    pub receive_lost: u64,
    /// Dropped by the kernel because the socket was not read in time, or because a frame was longer
    /// than a frame of an AF_XDP socket's memory.
    pub receive_overrun: u64,
    /// Times that receiving paused because no memory was free; nothing was dropped.
    pub receive_paused: u64,
    /// Packets of an AF_XDP socket that were copied because too many of its frames are lent.
    pub receive_copied: u64,
    /// Not transmitted: the kernel refused the packet, or it is longer than a frame of an AF_XDP
    /// socket's memory.
    pub transmit_refused: u64,
    /// Not transmitted: the interface is down.
    pub transmit_down: u64,
    /// Times that the socket was full; nothing was dropped.
    pub transmit_full: u64,
}

impl UplinkCounters {
    /// Packets dropped on receive, for any reason.
    pub fn receive_dropped(&self) -> u64 {
        self.receive_no_memory
            + self.receive_short
            + self.receive_bad_header
            + self.receive_lost
            + self.receive_overrun
    }

    /// Packets dropped on transmit, for any reason.
    pub fn transmit_dropped(&self) -> u64 {
        self.transmit_refused + self.transmit_down
    }
}
