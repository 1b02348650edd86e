//! Packets to local addresses: they never reach the device, and its MTU does not apply to them.
//!
//! [`Stack::output`](super::Stack::output) receives them unchanged, without a copy of the payload
//! and with partial checksums, as a kernel passes packets to a TAP device.

use super::coalesce::parsed;
use super::ingress::Way;
use super::{Context, Stack};
use crate::counters::DropReason;
use crate::fragment;
use crate::wire::Protocol;
use crate::wire::ethernet::{self, EtherType};
use core::net::IpAddr;
use towpath_packet::Packet;

impl Stack {
    /// Largest packet to `destination` that the link takes without fragmentation.
    pub(crate) fn link_mtu(&self, destination: IpAddr) -> u16 {
        if self.is_local(destination) { u16::MAX } else { self.caps.mtu }
    }

    /// Queues a packet to a local address, from its IP header on.
    pub(super) fn keep_looped(&mut self, mut packet: Packet, destination: IpAddr) {
        let ethertype = if destination.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let mac = self.config.mac;
        let header = ethernet::Header { destination: mac, source: mac, ethertype };
        header.emit(packet.push_header(ethernet::HEADER_LEN));
        self.looped.push_back(packet);
    }

    /// Receives the queued packets, as far as there is room for datagrams.
    pub(super) fn receive_looped(&mut self, cx: &mut Context<'_>) {
        while self.datagrams.len() < self.config.limits.datagrams
            && let Some(packet) = self.looped.pop_front()
        {
            if let Err(reason) = self.receive_own(packet, cx) {
                self.counters.drop(reason);
            }
            self.emptied += u64::from(!self.has_ready());
        }
    }

    fn receive_own(&mut self, packet: Packet, cx: &mut Context<'_>) -> Result<(), DropReason> {
        let info = parsed(&packet).ok_or(DropReason::IpMalformed)?;
        if matches!(info.protocol, Protocol::TCP | Protocol::UDP) {
            // Other protocols are offered to raw sockets in `receive_frame`.
            self.offer_raw(&info, &packet, cx);
        }
        match info.protocol {
            Protocol::TCP => self.deliver_tcp(&info, packet, cx),
            Protocol::UDP => self.deliver_udp(&info, packet, cx),
            _ => {
                let received = fragment::into_received(packet, cx.memory);
                self.receive_frame(received.map_err(|_| DropReason::NoMemory)?, Way::Looped, cx);
                Ok(())
            }
        }
    }
}
