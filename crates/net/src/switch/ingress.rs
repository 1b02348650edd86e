//! Ingress: judges each packet of a burst, learns its sender and determines its destination.

use towpath_packet::packet::PIECES_MAX;
use towpath_packet::pool::LARGE_FRAME_BYTES;
use towpath_packet::{Checksum, Gso, Packet, Tunnel};

use super::fdb::Key;
use super::frame::Frame;
use super::guard::Owners;
use super::port::{Egress, PortConfig, PortId};
use super::vlan::{TAG_LEN, VID_MASK, Vid};
use super::{Config, Context, Switch, router};
use crate::counters::PortDrop;
use crate::gso::{self, IP_BYTES_MAX};
use crate::wire::MacAddr;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::headers::Headers;

/// Destination of a packet.
pub(super) enum Target {
    Port(PortId),
    /// All ports of its VLAN that the ingress port may send to.
    Flood,
}

/// A received packet whose addresses and VLAN were read.
pub(super) struct Arrival {
    pub(super) frame: Frame,
    pub(super) vid: Vid,
    /// The headers are peeked, not pulled.
    is_peeked: bool,
}

impl Arrival {
    pub(super) fn source(&self) -> Key {
        Key::new(self.frame.source, self.vid)
    }

    pub(super) fn destination(&self) -> Key {
        Key::new(self.frame.destination, self.vid)
    }
}

/// Result of judging a packet. A caller has a place for it, as a copy of the whole would wait for
/// the stores of its fields.
pub(super) struct Verdict {
    pub(super) vid: Vid,
    /// Priority and drop eligibility, as in a tag.
    pub(super) priority: u16,
    pub(super) has_tag: bool,
    /// Another tag follows the header, or its tag.
    pub(super) has_inner_tag: bool,
    /// The headers, for packets with offload work left.
    pub(super) headers: Option<Headers>,
}

impl Verdict {
    /// Before a packet was judged.
    pub(super) const NONE: Self = Self {
        vid: Vid::DEFAULT,
        priority: 0,
        has_tag: false,
        has_inner_tag: false,
        headers: None,
    };
}

/// Cached table lookups of the previous packet; the next packet of a flow has the same addresses.
pub(super) struct Recent {
    /// Source that is known to be behind the ingress port.
    pub(super) source: Option<Key>,
    /// Destination that was looked up, and the result.
    destination: Option<(Key, Option<Result<PortId, PortDrop>>)>,
}

impl Recent {
    pub(super) const NOTHING: Self = Self { source: None, destination: None };

    /// Port of a destination, or the drop reason; `None` if the station is unknown.
    pub(super) fn look_up(
        &mut self,
        key: Key,
        find: impl FnOnce() -> Option<Result<PortId, PortDrop>>,
    ) -> Option<Result<PortId, PortDrop>> {
        if let Some((last, found)) = self.destination
            && last == key
        {
            return found;
        }
        let found = find();
        self.destination = Some((key, found));
        found
    }
}

impl PortConfig {
    /// Reads the addresses and the VLAN of a packet received on this port. Afterwards its first
    /// bytes are private, and it may be read again: the result is the same.
    #[inline]
    pub(super) fn read(&self, packet: &mut Packet) -> Result<Arrival, PortDrop> {
        // A packet that a forwarder left to the owner is peeked already.
        let is_peeked = packet.wire_headers().is_empty();
        if is_peeked {
            packet.peek_headers();
        }
        if packet.len() > FRAME_BYTES_MAX {
            return Err(PortDrop::TooLong);
        }
        let frame = Frame::read(packet.headers()).ok_or(PortDrop::EthernetMalformed)?;
        check_addresses(&frame)?;
        let vid = self.vlans.classify(frame.tci).ok_or(PortDrop::VlanRefused)?;
        Ok(Arrival { frame, vid, is_peeked })
    }

    /// Judges a packet that was read: what its sender may claim, and its offload fields. Afterwards
    /// all headers that the verdict depends on are private and pulled.
    #[inline]
    pub(super) fn judge(
        &self,
        packet: &mut Packet,
        arrival: &mut Arrival,
        owners: Owners<'_>,
        verdict: &mut Verdict,
    ) -> Result<(), PortDrop> {
        let Arrival { frame, vid, is_peeked } = arrival;
        let headers = packet.headers();
        let has_inner_tag = frame.ethertype == EtherType::VLAN;
        frame.skip_tags(headers).ok_or(PortDrop::EthernetMalformed)?;
        let owners = self.respects_owners.then_some(owners);
        let mut judged = self.guard.check(headers, frame, owners)?;
        if !self.is_router {
            judged = judged.max(router::check(headers, frame)?);
        }
        verdict.headers =
            settle_offload(packet, frame, is_peeked.then_some(judged), self.is_trusted)?;
        verdict.vid = *vid;
        verdict.priority = frame.tci.map_or(0, |tci| tci & !VID_MASK);
        verdict.has_tag = frame.tci.is_some();
        verdict.has_inner_tag = has_inner_tag;
        Ok(())
    }
}

impl Config {
    /// Copies the payload of a packet that will be forwarded, if that is configured.
    #[inline]
    pub(super) fn copy_payload(
        &self,
        packet: &mut Packet,
        cx: &mut Context<'_>,
    ) -> Result<(), PortDrop> {
        let is_done = !self.copies_payload || gso::orphan_payload(packet, cx.memory, cx.ledger);
        if is_done { Ok(()) } else { Err(PortDrop::NoMemory) }
    }
}

impl Switch {
    /// Judges a packet received on port `from`, learns its sender, and finds its destination.
    pub(super) fn classify(
        &mut self,
        from: PortId,
        packet: &mut Packet,
        (recent, verdict): (&mut Recent, &mut Verdict),
        cx: &mut Context<'_>,
        out: &impl Egress,
    ) -> Result<Target, PortDrop> {
        let config = &self.ports.port(from).config;
        let mut arrival = config.read(packet)?;
        let vid = arrival.vid;
        let is_own = |address| out.owner(vid, address).is_none_or(|owner| owner == from);
        config.judge(packet, &mut arrival, &is_own, verdict)?;
        let mut target = Target::Flood;
        let destination = arrival.frame.destination;
        if destination.is_multicast() {
            self.check_storm(from, destination, packet, cx)?;
        }
        // The packet before is often from the same sender.
        if recent.source != Some(arrival.source()) {
            self.learn(from, (arrival.frame.source, vid), recent, cx, out)?;
        }
        if !destination.is_multicast() {
            let key = arrival.destination();
            let find = || self.ports.route(from, PortId(self.fdb.find(key, cx.now)?.port), vid);
            match recent.look_up(key, find) {
                Some(found) => target = Target::Port(found?),
                None => self.check_storm(from, destination, packet, cx)?,
            }
        }
        self.config.copy_payload(packet, cx)?;
        Ok(target)
    }

    /// Learns the port of a sender that is not the one before.
    fn learn(
        &mut self,
        from: PortId,
        (station, vid): (MacAddr, Vid),
        recent: &mut Recent,
        cx: &Context<'_>,
        out: &impl Egress,
    ) -> Result<(), PortDrop> {
        let key = Key::new(station, vid);
        let known = self.fdb.find(key, cx.now);
        let holder = known.map(|entry| entry.port).or_else(|| self.fdb.holder(key));
        let is_full = self.fdb.count(from.0) >= self.ports.port(from).config.addresses_max;
        let port = self.ports.port_mut(from);
        match known {
            Some(entry) if entry.is_static => {
                if entry.port != from.0 {
                    return Err(PortDrop::MacLocked);
                }
                recent.source = Some(key);
                return Ok(());
            }
            // The entry is refreshed.
            Some(entry) if entry.port == from.0 => {}
            _ if is_full && holder != Some(from.0) => {
                port.counters.learn_refused += 1;
                return Ok(());
            }
            Some(_) if !port.moves.take(1, cx.now) => {
                port.counters.moves_refused += 1;
                return Ok(());
            }
            _ => {
                // A guard list of link-layer addresses alone decides, like a list of IP addresses.
                let is_listed = !port.config.guard.macs.is_empty();
                let home = if is_listed { None } else { out.home(vid, station) };
                if let Some(home) = home.filter(|home| *home != from) {
                    // With an entry there, another such frame is a move, which is rate-limited.
                    if known.is_none() && self.config_of(home).is_some() {
                        self.learn_at_home(home, key, holder, cx);
                    }
                    return Err(PortDrop::MacLocked);
                }
                let counters = &mut self.ports.port_mut(from).counters;
                match known {
                    Some(_) => counters.moves += 1,
                    None => counters.learned += 1,
                }
            }
        }
        self.fdb.put(key, from.0, false, cx.now);
        // The table changed, so cached lookups may be stale.
        *recent = Recent { source: Some(key), destination: None };
        Ok(())
    }

    /// Learns a station at its home port, if that has room.
    fn learn_at_home(&mut self, home: PortId, key: Key, holder: Option<u8>, cx: &Context<'_>) {
        let has_room = self.fdb.count(home.0) < self.ports.port(home).config.addresses_max;
        if has_room || holder == Some(home.0) {
            self.fdb.put(key, home.0, false, cx.now);
            self.ports.port_mut(home).counters.learned += 1;
        }
    }

    /// Applies storm control to a packet that will be flooded.
    fn check_storm(
        &mut self,
        from: PortId,
        destination: MacAddr,
        packet: &Packet,
        cx: &Context<'_>,
    ) -> Result<(), PortDrop> {
        let storms = &mut self.ports.port_mut(from).storms;
        let (bucket, reason) = if destination.is_broadcast() {
            (&mut storms.broadcast, PortDrop::StormBroadcast)
        } else if destination.is_multicast() {
            (&mut storms.multicast, PortDrop::StormMulticast)
        } else {
            (&mut storms.unknown, PortDrop::StormUnknown)
        };
        let segments = match packet.offload().gso {
            Some(gso) => packet.payload_len().div_ceil(usize::from(gso.size.get())),
            None => 1,
        };
        let passes = bucket.as_mut().is_none_or(|bucket| bucket.take(segments, cx.now));
        if passes { Ok(()) } else { Err(reason) }
    }
}

fn check_addresses(frame: &Frame) -> Result<(), PortDrop> {
    if !frame.source.is_unicast() {
        return Err(PortDrop::SourceInvalid);
    }
    let [group @ .., last] = frame.destination.0;
    if group == RESERVED_GROUPS && last < RESERVED_GROUPS_COUNT {
        return Err(PortDrop::GroupReserved);
    }
    Ok(())
}

/// Pulls the headers if they were `judged` but not pulled yet, and checks the offload fields.
/// Returns the headers if offload work is left.
#[inline]
fn settle_offload(
    packet: &mut Packet,
    frame: &Frame,
    judged: Option<usize>,
    is_trusted: bool,
) -> Result<Option<Headers>, PortDrop> {
    let mut offload = *packet.offload();
    let is_partial = matches!(offload.checksum, Checksum::Partial { .. });
    if !is_partial && offload.gso.is_none() {
        if let Some(judged) = judged {
            packet.pull(judged);
        }
        if !is_trusted && offload.checksum == Checksum::Unnecessary {
            offload.checksum = Checksum::None;
            packet.set_offload(offload);
        }
        return Ok(None);
    }
    locate_offload(packet, frame, judged, is_partial).map(Some)
}

/// Checks the offload fields of a packet with offload work left, and pulls its headers.
fn locate_offload(
    packet: &mut Packet,
    frame: &Frame,
    judged: Option<usize>,
    is_partial: bool,
) -> Result<Headers, PortDrop> {
    let mut offload = *packet.offload();
    // virtio 1.2 §5.1.6.2.1: segmentation offload requires a partial checksum.
    if !is_partial {
        return Err(PortDrop::OffloadMalformed);
    }
    let headers = frame.headers(packet.headers()).filter(|_| !frame.has_more_tags);
    let headers = headers.ok_or(PortDrop::OffloadMalformed)?;
    let mut end = headers.end;
    if let Some(Gso { tunnel: Some(tunnel), .. }) = &mut offload.gso {
        count_tag(tunnel, frame, &headers);
        packet.set_offload(offload);
        let inner = gso::headers_end(packet.headers(), &offload);
        end = end.max(inner.ok_or(PortDrop::OffloadMalformed)?);
    }
    if let Some(judged) = judged {
        packet.pull(judged.max(end));
    }
    let checked = gso::check_offload(packet, &headers);
    checked.map(|()| headers).map_err(|_| PortDrop::OffloadMalformed)
}

/// Adds the tag to a tunnel's offsets. Linux 6.18 omits the VLAN tag from these offsets, but counts
/// it for the checksum.
fn count_tag(tunnel: &mut Tunnel, frame: &Frame, headers: &Headers) {
    let is_short = usize::from(tunnel.transport_at) + TAG_LEN == headers.transport_at;
    if frame.tci.is_some() && is_short {
        tunnel.transport_at += TAG_LEN as u16;
        tunnel.network_at = tunnel.network_at.saturating_add(TAG_LEN as u16);
    }
}

/// Prefix of group addresses that are not forwarded (IEEE 802.1Q table 8-1).
const RESERVED_GROUPS: [u8; 5] = [0x01, 0x80, 0xc2, 0x00, 0x00];
/// Number of these group addresses.
const RESERVED_GROUPS_COUNT: u8 = 16;

/// Longest frame: header, one tag, and the largest IP packet.
pub const FRAME_BYTES_MAX: usize = ethernet::HEADER_LEN + TAG_LEN + IP_BYTES_MAX;

// A copy of the longest frame fits the frames of one packet.
const _: () = assert!(FRAME_BYTES_MAX.div_ceil(LARGE_FRAME_BYTES) < PIECES_MAX);
