//! Ingress: judges each packet of a burst and determines its destination.

use towpath_packet::packet::PIECES_MAX;
use towpath_packet::pool::LARGE_FRAME_BYTES;
use towpath_packet::{Checksum, Gso, Packet, Tunnel};

use super::fdb::Key;
use super::frame::Frame;
use super::guard::Owners;
use super::port::{Egress, PortId};
use super::vlan::{TAG_LEN, VID_MASK, Vid};
use super::{Context, Switch, router};
use crate::counters::PortDrop;
use crate::gso::{self, IP_BYTES_MAX};
use crate::wire::MacAddr;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::headers::Headers;

/// Destination of a packet.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Port(PortId),
    /// All ports of its VLAN that the ingress port may send to.
    Flood,
}

/// Result of judging a packet.
#[derive(Clone, Copy)]
pub(super) struct Verdict {
    pub(super) target: Target,
    pub(super) vid: Vid,
    /// Priority and drop eligibility, as in a tag.
    pub(super) priority: u16,
    pub(super) has_tag: bool,
    /// Another tag follows the header, or its tag.
    pub(super) has_inner_tag: bool,
    /// The headers, for packets with offload work left.
    pub(super) headers: Option<Headers>,
}

/// Cached table lookups of the previous packet; the next packet of a flow has the same addresses.
pub(super) struct Recent {
    /// Source that is known to be behind the ingress port.
    source: Option<Key>,
    /// Destination that was looked up, and the result.
    destination: Option<(Key, Option<Result<Target, PortDrop>>)>,
}

impl Recent {
    pub(super) const NOTHING: Self = Self { source: None, destination: None };
}

impl Switch {
    /// Judges a packet received on port `from`. Afterwards all headers that the verdict depends on
    /// are private and pulled.
    pub(super) fn classify(
        &mut self,
        from: PortId,
        packet: &mut Packet,
        recent: &mut Recent,
        cx: &mut Context<'_>,
        out: &impl Egress,
    ) -> Result<Verdict, PortDrop> {
        let is_raw = packet.headers().is_empty();
        if is_raw {
            packet.peek_headers();
        }
        if packet.len() > FRAME_BYTES_MAX {
            return Err(PortDrop::TooLong);
        }
        let headers = packet.headers();
        let mut frame = Frame::read(headers).ok_or(PortDrop::EthernetMalformed)?;
        check_addresses(&frame)?;
        let config = &self.port(from).config;
        let vid = config.vlans.classify(frame.tci).ok_or(PortDrop::VlanRefused)?;
        let is_own = |address| out.owner(vid, address).is_none_or(|owner| owner == from);
        let owners: Option<Owners<'_>> = config.respects_owners.then_some(&is_own);
        let has_inner_tag = frame.ethertype == EtherType::VLAN;
        frame.skip_tags(headers).ok_or(PortDrop::EthernetMalformed)?;
        let mut judged = config.guard.check(headers, &frame, owners)?;
        if !config.is_router {
            judged = judged.max(router::check(headers, &frame)?);
        }
        let is_trusted = config.is_trusted;
        let headers = settle_offload(packet, &frame, is_raw.then_some(judged), is_trusted)?;
        let mut verdict = Verdict {
            target: Target::Flood,
            vid,
            priority: frame.tci.map_or(0, |tci| tci & !VID_MASK),
            has_tag: frame.tci.is_some(),
            has_inner_tag,
            headers,
        };
        if frame.destination.is_multicast() {
            self.check_storm(from, frame.destination, packet, cx)?;
            self.learn(from, (frame.source, vid), recent, cx, out)?;
        } else {
            self.learn(from, (frame.source, vid), recent, cx, out)?;
            let destination = Key::new(frame.destination, vid);
            match self.look_up(from, destination, vid, recent, cx) {
                Some(target) => verdict.target = target?,
                None => self.check_storm(from, frame.destination, packet, cx)?,
            }
        }
        if self.config.copies_payload && !gso::orphan_payload(packet, cx.memory, cx.ledger) {
            return Err(PortDrop::NoMemory);
        }
        Ok(verdict)
    }

    /// Learns the sender's port.
    fn learn(
        &mut self,
        from: PortId,
        (station, vid): (MacAddr, Vid),
        recent: &mut Recent,
        cx: &Context<'_>,
        out: &impl Egress,
    ) -> Result<(), PortDrop> {
        let key = Key::new(station, vid);
        if recent.source == Some(key) {
            return Ok(());
        }
        let known = self.fdb.find(key, cx.now);
        let holder = known.map(|entry| entry.port).or_else(|| self.fdb.holder(key));
        let is_full = self.fdb.count(from.0) >= self.port(from).config.addresses_max;
        let port = self.port_mut(from);
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
                let counters = &mut self.port_mut(from).counters;
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
        let has_room = self.fdb.count(home.0) < self.port(home).config.addresses_max;
        if has_room || holder == Some(home.0) {
            self.fdb.put(key, home.0, false, cx.now);
            self.port_mut(home).counters.learned += 1;
        }
    }

    /// Destination of a packet for this station, or the drop reason; `None` if the station is
    /// unknown.
    fn look_up(
        &self,
        from: PortId,
        key: Key,
        vid: Vid,
        recent: &mut Recent,
        cx: &Context<'_>,
    ) -> Option<Result<Target, PortDrop>> {
        if let Some((last, found)) = recent.destination
            && last == key
        {
            return found;
        }
        let found = self.fdb.find(key, cx.now).map(|entry| self.target(from, entry.port, vid));
        recent.destination = Some((key, found));
        found
    }

    fn target(&self, from: PortId, to: u8, vid: Vid) -> Result<Target, PortDrop> {
        if to == from.0 {
            return Err(PortDrop::SamePort);
        }
        let other = &self.port(PortId(to)).config;
        let may_talk = self.port(from).config.role.reaches(other.role);
        if !may_talk || other.vlans.leaves(vid).is_none() {
            return Err(PortDrop::Isolated);
        }
        Ok(Target::Port(PortId(to)))
    }

    /// Applies storm control to a packet that will be flooded.
    fn check_storm(
        &mut self,
        from: PortId,
        destination: MacAddr,
        packet: &Packet,
        cx: &Context<'_>,
    ) -> Result<(), PortDrop> {
        let storms = &mut self.port_mut(from).storms;
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
