//! BGP messages in the form that the speaker uses.
//!
//! The formats are those of the crate `rustbgpd-wire`; this module picks what EVPN over VXLAN needs
//! from them and decides what an invalid message means. Any bytes may come in. An UPDATE with
//! invalid attributes withdraws its routes (RFC 7606); what cannot be split into routes ends the
//! session with the [`Notification`] that is returned.
//!
//! RFC 4271 §4 (messages), RFC 4760 (address families), RFC 5492 (capabilities), RFC 7432 §7 and
//! RFC 8365 §5 (routes).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use rustbgpd_wire as wire;
use rustbgpd_wire::{Afi, Capability, PathAttribute, Safi};
use towpath_net::wire::MacAddr;

/// Most bytes of a message (RFC 4271 §4.1). Longer ones (RFC 8654) are not negotiated.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// Most routes of an UPDATE that [`announce`] and [`withdraw`] write.
///
/// Header and lengths take 23 bytes; the attributes of an announcement at most 110, of which the
/// next hop is at most 24 and the communities 27. A route takes at most 51 bytes: type, length,
/// distinguisher, segment, tag, and MAC address, IPv6 address and VNI with their lengths.
pub const ROUTES_PER_UPDATE: usize = 76;
const _: () = assert!(23 + 110 + 51 * ROUTES_PER_UPDATE <= MESSAGE_BYTES_MAX);

/// VXLAN as the value of the encapsulation community (RFC 8365 §11).
const ENCAPSULATION_VXLAN: u16 = 8;
/// Stands for numbers of autonomous systems above 65,535 in old fields (RFC 6793 §9).
const AS_TRANS: u16 = 23_456;

/// A message of a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// What the neighbour is and can do.
    Open(Open),
    /// Routes.
    Update(Update),
    /// The neighbour is alive.
    Keepalive,
    /// The neighbour ends the session.
    Notification(Notification),
    /// The neighbour asks for all routes again; false if those of another address family.
    Refresh(bool),
}

/// An OPEN message (RFC 4271 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Number of the autonomous system.
    pub as_number: u32,
    /// Longest silence that the sender accepts, in seconds; zero: any.
    pub hold_seconds: u16,
    /// BGP identifier.
    pub router_id: Ipv4Addr,
    /// The sender knows EVPN routes (AFI 25, SAFI 70).
    pub speaks_evpn: bool,
    /// The sender writes numbers of autonomous systems in four octets (RFC 6793).
    pub has_wide_as: bool,
    /// The sender resends its routes on request (RFC 2918).
    pub refreshes: bool,
    /// Graceful restart (RFC 4724).
    pub restart: Option<Restart>,
}

/// Graceful restart as the sender offers it (RFC 4724 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// How long it takes to come back, in seconds.
    pub seconds: u16,
    /// A NOTIFICATION also announces a restart, unless it says otherwise (RFC 8538).
    pub covers_notifications: bool,
}

/// What distinguishes a route from others (RFC 7432 §7.2, §7.3). The Ethernet tag is zero
/// (RFC 8365 §5.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey {
    /// Route distinguisher of the sender (RFC 4364 §4.2).
    pub distinguisher: [u8; 8],
    /// The rest.
    pub route: Route,
}

/// What a route is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
    /// Type 3: what is flooded reaches the network also at this router.
    Flood(IpAddr),
    /// Type 2: a station, and an address of it if there is one.
    Station(MacAddr, Option<IpAddr>),
}

/// Attributes that all routes of an UPDATE share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Address of the VTEP.
    pub next_hop: IpAddr,
    /// Raw route targets (RFC 4364 §4.3.1).
    pub targets: Vec<[u8; 8]>,
    /// MAC mobility (RFC 7432 §7.7).
    pub mobility: Mobility,
    /// Encapsulation is VXLAN, or not stated, which RFC 8365 §5.1.3 leaves to the configuration.
    pub is_vxlan: bool,
    /// Flooding is by ingress replication (RFC 7432 §11.2).
    pub replicates: bool,
    /// VNI for flooding (RFC 8365 §5.1.3).
    pub flood_vni: u32,
    /// Router that sent the route into this autonomous system, if a reflector says so (RFC 4456).
    pub originator: Option<Ipv4Addr>,
    /// The route left this autonomous system on its way.
    pub has_as_path: bool,
}

/// Where a station is if several hosts claim it (RFC 7432 §7.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mobility {
    /// The station never moves (RFC 7432 §15.2).
    pub is_sticky: bool,
    /// Number of moves.
    pub sequence: u32,
}

/// An UPDATE message, as far as it is about EVPN.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// Attributes of the announced routes; `None` if there are none.
    pub attributes: Option<Attributes>,
    /// Announced routes, each with the VNI of its data plane.
    pub announced: Vec<(RouteKey, u32)>,
    /// Withdrawn routes, also those whose attributes were invalid.
    pub withdrawn: Vec<RouteKey>,
    /// Routes of other types, or with an Ethernet tag.
    pub ignored: u32,
    /// Attributes were invalid.
    pub is_malformed: bool,
    /// All routes have been sent (RFC 4724 §2).
    pub is_end_of_rib: bool,
}

/// A NOTIFICATION message, which ends a session (RFC 4271 §4.5).
#[derive(Clone, PartialEq, Eq)]
pub struct Notification {
    /// Error code.
    pub code: u8,
    /// Error subcode.
    pub subcode: u8,
    /// What shows the error.
    pub data: Vec<u8>,
}

impl Notification {
    /// One without data.
    pub const fn new(code: u8, subcode: u8) -> Self {
        Self { code, subcode, data: Vec::new() }
    }

    /// True if the sender says that it does not come back soon (RFC 8538 §3).
    pub fn is_hard_reset(&self) -> bool {
        (self.code, self.subcode) == (6, 9)
    }
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = wire::NotificationCode::from_u8(self.code);
        let text = wire::notification::description(code, self.subcode);
        write!(f, "{text} ({}/{})", self.code, self.subcode)
    }
}

impl fmt::Debug for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<wire::DecodeError> for Notification {
    fn from(error: wire::DecodeError) -> Self {
        let (code, subcode, data) = error.to_notification();
        Self { code: code.as_u8(), subcode, data: data.to_vec() }
    }
}

/// Length of the message at the start of `bytes`, once its header is there.
///
/// # Errors
///
/// The header is invalid; the session ends with this.
pub fn length(bytes: &[u8]) -> Result<Option<usize>, Notification> {
    Ok(wire::peek_message_length(bytes, MESSAGE_BYTES_MAX as u16)?.map(usize::from))
}

/// Parses one whole message; `has_wide_as` says whether numbers of autonomous systems take four
/// octets.
///
/// # Errors
///
/// The message is invalid in a way that ends the session.
pub fn parse(bytes: &[u8], has_wide_as: bool) -> Result<Message, Notification> {
    let mut bytes = Bytes::copy_from_slice(bytes);
    Ok(match wire::decode_message(&mut bytes, MESSAGE_BYTES_MAX as u16)? {
        wire::Message::Open(open) => Message::Open(parse_open(&open)),
        wire::Message::Update(update) => Message::Update(parse_update(&update, has_wide_as)?),
        wire::Message::Keepalive => Message::Keepalive,
        wire::Message::Notification(wire::NotificationMessage { code, subcode, data }) => {
            Message::Notification(Notification { code: code.as_u8(), subcode, data: data.to_vec() })
        }
        wire::Message::RouteRefresh(refresh) => Message::Refresh(
            refresh.afi() == Some(Afi::L2Vpn) && refresh.safi() == Some(Safi::Evpn),
        ),
        // The type is open for more. Those it has today are above.
        _ => return Err(Notification::new(1, 3)),
    })
}

fn parse_open(open: &wire::OpenMessage) -> Open {
    let mut parsed = Open {
        as_number: u32::from(open.my_as),
        hold_seconds: open.hold_time,
        router_id: open.bgp_identifier,
        speaks_evpn: false,
        has_wide_as: false,
        refreshes: false,
        restart: None,
    };
    for capability in &open.capabilities {
        match *capability {
            Capability::MultiProtocol { afi: Afi::L2Vpn, safi: Safi::Evpn } => {
                parsed.speaks_evpn = true;
            }
            Capability::FourOctetAs { asn } => {
                parsed.as_number = asn;
                parsed.has_wide_as = true;
            }
            Capability::RouteRefresh => parsed.refreshes = true,
            Capability::GracefulRestart { restart_time, notification, .. } => {
                let restart = Restart { seconds: restart_time, covers_notifications: notification };
                parsed.restart = Some(restart);
            }
            _ => {}
        }
    }
    parsed
}

fn parse_update(update: &wire::UpdateMessage, wide: bool) -> Result<Update, Notification> {
    let raw = update.parse_revised(wide, true, false, &[])?;
    let attributes = &raw.update.attributes;
    let mut parsed = Update::default();
    let mut announced: &[wire::EvpnRoute] = &[];
    let mut next_hop = None;
    for attribute in attributes {
        match attribute {
            PathAttribute::MpReachNlri(reach) if is_evpn(reach.afi, reach.safi) => {
                announced = &reach.evpn_announced;
                next_hop = Some(reach.next_hop);
            }
            PathAttribute::MpUnreachNlri(unreach) if is_evpn(unreach.afi, unreach.safi) => {
                // RFC 4724 §2.
                parsed.is_end_of_rib = unreach.evpn_withdrawn.is_empty() && attributes.len() == 1;
                for route in &unreach.evpn_withdrawn {
                    match parse_route(route) {
                        Some((key, _)) => parsed.withdrawn.push(key),
                        None => parsed.ignored += 1,
                    }
                }
            }
            _ => {}
        }
    }
    for route in announced {
        match parse_route(route) {
            Some(route) => parsed.announced.push(route),
            None => parsed.ignored += 1,
        }
    }
    let mut worst = raw.malformed.iter().map(|malformed| malformed.disposition).max();
    if let Err(error) =
        wire::validate::validate_update_attributes(attributes, !announced.is_empty(), false, false)
    {
        worst = worst.max(Some(error.disposition));
        if error.disposition == wire::ErrorDisposition::SessionReset {
            return Err(Notification { code: 3, subcode: error.subcode, data: error.data });
        }
    }
    match worst {
        // RFC 7606 §2: as if the sender had withdrawn the routes.
        Some(wire::ErrorDisposition::TreatAsWithdraw) => {
            parsed.is_malformed = true;
            parsed.withdrawn.extend(parsed.announced.drain(..).map(|(key, _)| key));
        }
        Some(wire::ErrorDisposition::SessionReset) => return Err(Notification::new(3, 1)),
        Some(wire::ErrorDisposition::AttributeDiscard) => parsed.is_malformed = true,
        None => {}
    }
    parsed.attributes = next_hop
        .filter(|_| !parsed.announced.is_empty())
        .map(|next_hop| parse_attributes(next_hop, attributes));
    Ok(parsed)
}

fn is_evpn(afi: Afi, safi: Safi) -> bool {
    afi == Afi::L2Vpn && safi == Safi::Evpn
}

fn parse_route(route: &wire::EvpnRoute) -> Option<(RouteKey, u32)> {
    let (rd, tag, route, vni) = match route {
        wire::EvpnRoute::MacIp(station) => {
            let mac = MacAddr(station.mac.octets());
            let route = Route::Station(mac, station.ip);
            (station.rd, station.ethernet_tag, route, station.label1.as_vni())
        }
        wire::EvpnRoute::Imet(flood) => {
            (flood.rd, flood.ethernet_tag, Route::Flood(flood.originator_ip), 0)
        }
        _ => return None,
    };
    (tag.0 == 0).then_some((RouteKey { distinguisher: rd.octets(), route }, vni))
}

fn parse_attributes(next_hop: IpAddr, attributes: &[PathAttribute]) -> Attributes {
    let mut parsed = Attributes {
        next_hop,
        targets: Vec::new(),
        mobility: Mobility::default(),
        is_vxlan: true,
        replicates: false,
        flood_vni: 0,
        originator: None,
        has_as_path: false,
    };
    for attribute in attributes {
        match attribute {
            PathAttribute::AsPath(path) => parsed.has_as_path = !path.is_empty(),
            PathAttribute::OriginatorId(id) => parsed.originator = Some(*id),
            PathAttribute::PmsiTunnel(tunnel) | PathAttribute::PmsiTunnelPartial(tunnel) => {
                parsed.replicates = tunnel.tunnel_type == wire::PmsiTunnelType::IngressReplication;
                parsed.flood_vni = tunnel.mpls_label;
            }
            _ => {}
        }
        for community in attribute.extended_communities().unwrap_or_default() {
            if let Some((is_sticky, sequence)) = community.as_mac_mobility() {
                parsed.mobility = Mobility { is_sticky, sequence };
            } else if let Some(encapsulation) = community.as_bgp_encapsulation() {
                parsed.is_vxlan = encapsulation == ENCAPSULATION_VXLAN;
            } else if community.route_target().is_some() {
                parsed.targets.push(community.as_u64().to_be_bytes());
            }
        }
    }
    parsed
}

/// Appends an OPEN message to `out`.
pub fn open(open: &Open, out: &mut Vec<u8>) {
    let mut capabilities = Vec::new();
    if open.speaks_evpn {
        capabilities.push(Capability::MultiProtocol { afi: Afi::L2Vpn, safi: Safi::Evpn });
    }
    if open.refreshes {
        capabilities.push(Capability::RouteRefresh);
    }
    if open.has_wide_as {
        capabilities.push(Capability::FourOctetAs { asn: open.as_number });
    }
    if let Some(restart) = open.restart {
        capabilities.push(Capability::GracefulRestart {
            restart_state: false,
            notification: restart.covers_notifications,
            restart_time: restart.seconds,
            families: Vec::new(),
        });
    }
    let message = wire::Message::Open(wire::OpenMessage {
        version: 4,
        my_as: u16::try_from(open.as_number).unwrap_or(AS_TRANS),
        hold_time: open.hold_seconds,
        bgp_identifier: open.router_id,
        capabilities,
    });
    append(&message, out);
}

/// Appends a KEEPALIVE message to `out`.
pub fn keepalive(out: &mut Vec<u8>) {
    append(&wire::Message::Keepalive, out);
}

/// Appends a ROUTE-REFRESH message for EVPN routes to `out`.
pub fn refresh(out: &mut Vec<u8>) {
    let refresh = wire::RouteRefreshMessage::new(Afi::L2Vpn, Safi::Evpn);
    append(&wire::Message::RouteRefresh(refresh), out);
}

/// Appends a NOTIFICATION message to `out`. Data beyond what a message holds is left out.
pub fn notification(notification: &Notification, out: &mut Vec<u8>) {
    let room = MESSAGE_BYTES_MAX - 21;
    let data = &notification.data[..notification.data.len().min(room)];
    let code = wire::NotificationCode::from_u8(notification.code);
    let data = Bytes::copy_from_slice(data);
    let message = wire::NotificationMessage::new(code, notification.subcode, data);
    append(&wire::Message::Notification(message), out);
}

/// Appends an UPDATE to `out` that announces `routes`, at most [`ROUTES_PER_UPDATE`], each with its
/// VNI. Those of stations and those for flooding need messages of their own.
pub fn announce(attributes: &Attributes, routes: &[(RouteKey, u32)], out: &mut Vec<u8>) {
    let mobility = attributes.mobility;
    let mut communities: Vec<_> = attributes
        .targets
        .iter()
        .map(|target| wire::ExtendedCommunity::new(u64::from_be_bytes(*target)))
        .collect();
    communities.push(wire::ExtendedCommunity::bgp_encapsulation(ENCAPSULATION_VXLAN));
    if mobility != Mobility::default() {
        let mobility = wire::ExtendedCommunity::mac_mobility(mobility.is_sticky, mobility.sequence);
        communities.push(mobility);
    }
    let reach = wire::MpReachNlri {
        afi: Afi::L2Vpn,
        safi: Safi::Evpn,
        next_hop: attributes.next_hop,
        link_local_next_hop: None,
        announced: Vec::new(),
        flowspec_announced: Vec::new(),
        evpn_announced: routes.iter().map(|(key, vni)| emit_route(key, *vni)).collect(),
        bgpls_announced: Vec::new(),
        vpn_announced: Vec::new(),
        labeled_announced: Vec::new(),
        rtc_announced: Vec::new(),
    };
    let mut list = vec![
        PathAttribute::MpReachNlri(Box::new(reach)),
        PathAttribute::Origin(wire::Origin::Igp),
        PathAttribute::AsPath(wire::AsPath { segments: Vec::new() }),
        // RFC 4271 §5.1.5: within an autonomous system. The value is the usual default.
        PathAttribute::LocalPref(100),
        PathAttribute::ExtendedCommunities(communities),
    ];
    if attributes.replicates {
        let (vni, end) = (attributes.flood_vni, attributes.next_hop);
        let tunnel = wire::PmsiTunnel::for_evpn_ingress_replication(vni, end);
        list.push(PathAttribute::PmsiTunnel(tunnel));
    }
    append_update(&list, out);
}

/// Appends an UPDATE to `out` that withdraws `routes`, at most [`ROUTES_PER_UPDATE`]. Without
/// routes, it says that all have been sent (RFC 4724 §2).
pub fn withdraw(routes: &[RouteKey], out: &mut Vec<u8>) {
    let unreach = wire::MpUnreachNlri {
        afi: Afi::L2Vpn,
        safi: Safi::Evpn,
        withdrawn: Vec::new(),
        flowspec_withdrawn: Vec::new(),
        evpn_withdrawn: routes.iter().map(|key| emit_route(key, 0)).collect(),
        bgpls_withdrawn: Vec::new(),
        vpn_withdrawn: Vec::new(),
        labeled_withdrawn: Vec::new(),
        rtc_withdrawn: Vec::new(),
    };
    append_update(&[PathAttribute::MpUnreachNlri(Box::new(unreach))], out);
}

fn emit_route(key: &RouteKey, vni: u32) -> wire::EvpnRoute {
    let rd = wire::RouteDistinguisher::new(key.distinguisher);
    let ethernet_tag = wire::EthernetTagId(0);
    match key.route {
        Route::Flood(originator_ip) => {
            wire::EvpnRoute::Imet(wire::EvpnImet { rd, ethernet_tag, originator_ip })
        }
        Route::Station(mac, ip) => wire::EvpnRoute::MacIp(wire::EvpnMacIp {
            rd,
            esi: wire::EthernetSegmentIdentifier::ZERO,
            ethernet_tag,
            mac: wire::MacAddress::new(mac.0),
            ip,
            label1: wire::MplsLabel::new(vni),
            label2: None,
        }),
    }
}

fn append_update(attributes: &[PathAttribute], out: &mut Vec<u8>) {
    let mode = wire::Ipv4UnicastMode::MpReach;
    let update = wire::UpdateMessage::try_build(&[], &[], attributes, true, false, mode)
        .expect("all values come from types that fit");
    append(&wire::Message::Update(update), out);
}

fn append(message: &wire::Message, out: &mut Vec<u8>) {
    let bytes = wire::encode_message(message).expect("callers keep to the bounds of a message");
    out.extend_from_slice(&bytes);
}

#[cfg(test)]
mod tests;
