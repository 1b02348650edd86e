//! Egress: each port gets a packet in the form that it takes.

use towpath_packet::{Caps, Checksum, Gso, GsoKind, Memory, Packet};

use super::Context;
use super::ingress::Verdict;
use super::port::{Egress, Port, PortId};
use super::vlan::{Leaves, TAG_LEN, set_tag};
use crate::counters::PortDrop;
use crate::gso::{self, Checksums, SegmentError};
use crate::wire::ethernet;
use crate::wire::headers::Headers;

impl Port {
    /// Queues a packet in the form that the port takes. Returns why it cannot.
    pub(super) fn send(
        &mut self,
        id: PortId,
        mut packet: Packet,
        verdict: &Verdict,
        cx: &mut Context<'_>,
        out: &mut impl Egress,
    ) -> Result<(), PortDrop> {
        let is_tagged = match self.config.vlans.leaves(verdict.vid) {
            Some(Leaves::Tagged) => true,
            Some(Leaves::Untagged) if verdict.has_inner_tag => return Err(PortDrop::DoubleTag),
            _ => false,
        };
        let tag = is_tagged.then_some(verdict.priority | verdict.vid.number());
        let moved = set_tag(&mut packet, verdict.has_tag, tag);
        let headers = verdict.headers.map(|headers| headers.moved(moved));
        let caps = self.config.caps;
        let network_at = ethernet::HEADER_LEN + if is_tagged { TAG_LEN } else { 0 };
        let ip_len = match packet.offload().gso {
            Some(gso) => packet.headers().len() - network_at + usize::from(gso.size.get()),
            None => packet.len() - network_at,
        };
        if ip_len > usize::from(caps.mtu) {
            return Err(PortDrop::TooLarge);
        }
        match (packet.offload().gso, &headers) {
            (Some(gso), Some(headers)) if !takes_whole(&caps, &gso, packet.len()) => {
                if !caps.segments || !leave_to_device(&mut packet, headers)? {
                    return self.send_segments(id, packet, headers, cx, out);
                }
                self.counters.cut += 1;
            }
            (None, Some(_)) if !caps.checksum => {
                gso::complete_checksum(&mut packet, cx.ledger)
                    .map_err(|_| PortDrop::ChecksumMisplaced)?;
                self.counters.checksums += 1;
            }
            _ => {}
        }
        forget_checksum(&mut packet, &caps);
        self.queue(id, packet, cx, out);
        Ok(())
    }

    fn send_segments(
        &mut self,
        id: PortId,
        packet: Packet,
        headers: &Headers,
        cx: &mut Context<'_>,
        out: &mut impl Egress,
    ) -> Result<(), PortDrop> {
        let caps = self.config.caps;
        let checksums = if caps.checksum { Checksums::LeavePartial } else { Checksums::Complete };
        let (ledger, now) = (cx.ledger, cx.now);
        let mut queue = |mut segment: Packet, memory: &mut Memory| {
            forget_checksum(&mut segment, &caps);
            self.queue(id, segment, &mut Context { memory, ledger, now }, out);
        };
        let cut = gso::segment(packet, cx.memory, ledger, headers, checksums, &mut queue);
        let count = cut.map_err(|(error, _)| match error {
            SegmentError::NoPackets => PortDrop::NoMemory,
            SegmentError::Offload(_) | SegmentError::Checksum(_) => PortDrop::ChecksumMisplaced,
        })?;
        self.counters.cut += 1;
        self.counters.checksums += if caps.checksum { 0 } else { count as u64 };
        Ok(())
    }
}

/// Calls [`gso::leave_to_device`] and converts its error.
fn leave_to_device(packet: &mut Packet, headers: &Headers) -> Result<bool, PortDrop> {
    gso::leave_to_device(packet, headers).map_err(|_| PortDrop::ChecksumMisplaced)
}

/// True if a port takes a super-packet as it is.
fn takes_whole(caps: &Caps, gso: &Gso, len: usize) -> bool {
    let takes_kind = match gso.kind {
        GsoKind::Tcp4 => caps.tso4,
        GsoKind::Tcp6 => caps.tso6,
        GsoKind::Udp => caps.uso,
    };
    let takes_tunnel = gso.tunnel.is_none() || caps.tunnel;
    let is_short = u32::try_from(len).is_ok_and(|len| len <= caps.gso_bytes_max);
    takes_kind && takes_tunnel && caps.checksum && is_short
}

/// A device that takes no partial checksums must not get verified ones either (virtio 1.2
/// §5.1.6.4).
fn forget_checksum(packet: &mut Packet, caps: &Caps) {
    let mut offload = *packet.offload();
    if !caps.checksum && offload.checksum == Checksum::Unnecessary {
        offload.checksum = Checksum::None;
        packet.set_offload(offload);
    }
}
