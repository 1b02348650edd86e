//! Packets to local addresses: they never reach the device, and its MTU does not apply to them.
//!
//! [`Stack::output`](super::Stack::output) receives them unchanged, without a copy of the payload
//! and with partial checksums, as a kernel passes packets to a TAP device.

use super::ingress::{IpInfo, Way, parse};
use super::{Context, Stack};
use crate::counters::DropReason;
use crate::fragment;
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

    /// A packet whose headers end with its TCP or UDP header is received as it is, any other as if
    /// it came from a device.
    fn receive_own(&mut self, packet: Packet, cx: &mut Context<'_>) -> Result<(), DropReason> {
        let frame = ethernet::Header::parse(packet.headers()).ok();
        let info = frame.and_then(|frame| parse(&packet, &frame).ok()).map(|parsed| parsed.info);
        let ends = |info: &IpInfo| info.transport.is_some() && info.end == packet.headers().len();
        match info.filter(ends) {
            Some(info) => self.receive_ip(info, None, packet, Way::Looped, cx),
            None => {
                let received = fragment::into_received(packet, cx.memory);
                let received = received.map_err(|_| DropReason::NoMemory)?;
                self.receive_frame(received, Way::Looped, cx);
            }
        }
        Ok(())
    }
}
