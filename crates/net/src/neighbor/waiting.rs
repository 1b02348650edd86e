//! Packets that wait for a neighbour's link-layer address.

use super::WAITING_OVERHEAD;
use alloc::collections::VecDeque;
use towpath_packet::Packet;

/// A packet to be sent to the device.
pub struct Outgoing {
    /// The packet, from its IP header on.
    pub packet: Packet,
    /// Larger packets are sent in fragments of at most this size.
    pub mtu: u16,
}

impl Outgoing {
    fn waiting_bytes(&self) -> usize {
        self.packet.len() + WAITING_OVERHEAD
    }
}

/// Packets that wait for one address, in order.
#[derive(Default)]
pub(super) struct Waiting {
    packets: VecDeque<Outgoing>,
    /// Bytes charged for the packets.
    bytes: usize,
}

impl Waiting {
    /// Bytes charged for the packets.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Queues a packet, and drops the oldest while all exceed `most` bytes; returns how many were
    /// dropped. One packet is always queued (RFC 4861 §7.2.2).
    pub(super) fn push(&mut self, packet: Outgoing, most: usize) -> usize {
        let before = self.packets.len();
        self.bytes += packet.waiting_bytes();
        while self.bytes > most
            && let Some(oldest) = self.packets.pop_front()
        {
            self.bytes -= oldest.waiting_bytes();
        }
        let dropped = before - self.packets.len();
        self.packets.push_back(packet);
        dropped
    }

    /// Takes all packets.
    pub(super) fn take(&mut self) -> VecDeque<Outgoing> {
        self.bytes = 0;
        core::mem::take(&mut self.packets)
    }

    /// Number of packets.
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }
}
