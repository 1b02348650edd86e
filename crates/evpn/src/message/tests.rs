//! Messages as FRR 8.4.4 and GoBGP 3.10 sent them, and properties of what this module writes.

use std::net::Ipv6Addr;

use proptest::prelude::*;

use super::*;

const HEADER: [u8; 16] = [0xff; 16];

/// A whole message of this type with this body.
fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = (19 + body.len() as u16).to_be_bytes();
    [&HEADER[..], &len, &[kind], body].concat()
}

/// OPEN of FRR, as a reflector in AS 65001.
const FRR_OPEN: &[u8] = &[
    0x04, 0xfd, 0xe9, 0x00, 0xb4, 0xc0, 0x00, 0x02, 0x01, 0x41, 0x02, 0x06, 0x01, 0x04, 0x00, 0x19,
    0x00, 0x46, 0x02, 0x02, 0x80, 0x00, 0x02, 0x02, 0x02, 0x00, 0x02, 0x02, 0x46, 0x00, 0x02, 0x06,
    0x41, 0x04, 0x00, 0x00, 0xfd, 0xe9, 0x02, 0x02, 0x06, 0x00, 0x02, 0x06, 0x45, 0x04, 0x00, 0x19,
    0x46, 0x01, 0x02, 0x06, 0x49, 0x04, 0x02, 0x72, 0x72, 0x00, 0x02, 0x04, 0x40, 0x02, 0xc0, 0x78,
    0x02, 0x09, 0x47, 0x07, 0x00, 0x19, 0x46, 0x80, 0x00, 0x00, 0x00,
];

/// OPEN of GoBGP, as a reflector in AS 65001.
const GOBGP_OPEN: &[u8] = &[
    0x04, 0xfd, 0xe9, 0x00, 0x5a, 0xc0, 0x00, 0x02, 0x01, 0x1e, 0x02, 0x1c, 0x02, 0x00, 0x49, 0x04,
    0x02, 0x76, 0x6d, 0x00, 0x01, 0x04, 0x00, 0x19, 0x00, 0x46, 0x41, 0x04, 0x00, 0x00, 0xfd, 0xe9,
    0x05, 0x06, 0x00, 0x19, 0x00, 0x46, 0x00, 0x02,
];

/// A station of a kernel's VTEP with FRR, reflected by FRR.
const FRR_STATION: &[u8] = &[
    0x00, 0x00, 0x00, 0x67, 0x90, 0x0e, 0x00, 0x2c, 0x00, 0x19, 0x46, 0x04, 0xc0, 0x00, 0x02, 0x0d,
    0x00, 0x02, 0x21, 0x00, 0x01, 0xc0, 0x00, 0x02, 0x0d, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x30, 0x8a, 0xf7, 0xe6, 0xb0, 0xea, 0x83,
    0x00, 0x00, 0x00, 0x64, 0x40, 0x01, 0x01, 0x00, 0x50, 0x02, 0x00, 0x00, 0x80, 0x04, 0x04, 0x00,
    0x00, 0x00, 0x00, 0x40, 0x05, 0x04, 0x00, 0x00, 0x00, 0x64, 0x80, 0x09, 0x04, 0xc0, 0x00, 0x02,
    0x0d, 0x80, 0x0a, 0x04, 0xc0, 0x00, 0x02, 0x01, 0xc0, 0x10, 0x10, 0x00, 0x02, 0xfd, 0xe9, 0x00,
    0x00, 0x00, 0x64, 0x03, 0x0c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08,
];

/// Flooding to that VTEP.
const FRR_FLOOD: &[u8] = &[
    0x00, 0x00, 0x00, 0x63, 0x90, 0x0e, 0x00, 0x1c, 0x00, 0x19, 0x46, 0x04, 0xc0, 0x00, 0x02, 0x0d,
    0x00, 0x03, 0x11, 0x00, 0x01, 0xc0, 0x00, 0x02, 0x0d, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x20,
    0xc0, 0x00, 0x02, 0x0d, 0x40, 0x01, 0x01, 0x00, 0x50, 0x02, 0x00, 0x00, 0x80, 0x04, 0x04, 0x00,
    0x00, 0x00, 0x00, 0x40, 0x05, 0x04, 0x00, 0x00, 0x00, 0x64, 0x80, 0x09, 0x04, 0xc0, 0x00, 0x02,
    0x0d, 0x80, 0x0a, 0x04, 0xc0, 0x00, 0x02, 0x01, 0xc0, 0x10, 0x10, 0x00, 0x02, 0xfd, 0xe9, 0x00,
    0x00, 0x00, 0x64, 0x03, 0x0c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0xc0, 0x16, 0x09, 0x00, 0x06,
    0x00, 0x00, 0x64, 0xc0, 0x00, 0x02, 0x0d,
];

/// A sticky station with an IP address, reflected by GoBGP.
const GOBGP_STATION: &[u8] = &[
    0x00, 0x00, 0x00, 0x6a, 0x40, 0x01, 0x01, 0x00, 0x40, 0x02, 0x00, 0x40, 0x05, 0x04, 0x00, 0x00,
    0x00, 0x64, 0x80, 0x09, 0x04, 0xc0, 0x00, 0x02, 0x0c, 0x80, 0x0a, 0x04, 0xc0, 0x00, 0x02, 0x01,
    0x80, 0x0e, 0x30, 0x00, 0x19, 0x46, 0x04, 0xc0, 0x00, 0x02, 0x0c, 0x00, 0x02, 0x25, 0x00, 0x01,
    0xc0, 0x00, 0x02, 0x0c, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x30, 0x02, 0x00, 0x0c, 0x00, 0x00, 0x00, 0x20, 0x0a, 0x0c, 0x00, 0x00,
    0x00, 0x00, 0x64, 0xc0, 0x10, 0x18, 0x00, 0x02, 0xfd, 0xe9, 0x00, 0x00, 0x00, 0x64, 0x03, 0x0c,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x06, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
];

/// GoBGP withdraws a station.
const GOBGP_WITHDRAWAL: &[u8] = &[
    0x00, 0x00, 0x00, 0x29, 0x80, 0x0f, 0x26, 0x00, 0x19, 0x46, 0x02, 0x21, 0x00, 0x01, 0xc0, 0x00,
    0x02, 0x0c, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x30, 0x02, 0x00, 0x0c, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x64,
];

/// FRR has sent all its routes.
const FRR_END: &[u8] = &[0x00, 0x00, 0x00, 0x06, 0x80, 0x0f, 0x03, 0x00, 0x19, 0x46];

fn update(body: &[u8]) -> Update {
    match parse(&framed(2, body), true) {
        Ok(Message::Update(update)) => update,
        other => panic!("no update: {other:?}"),
    }
}

#[test]
fn opens_of_other_speakers() {
    let frr = Open {
        as_number: 65001,
        hold_seconds: 180,
        router_id: Ipv4Addr::new(192, 0, 2, 1),
        speaks_evpn: true,
        has_wide_as: true,
        refreshes: true,
        restart: Some(Restart { seconds: 120, covers_notifications: true }),
    };
    assert_eq!(parse(&framed(1, FRR_OPEN), true), Ok(Message::Open(frr)));
    let gobgp = Open { hold_seconds: 90, restart: None, ..frr };
    assert_eq!(parse(&framed(1, GOBGP_OPEN), true), Ok(Message::Open(gobgp)));
}

#[test]
fn a_station_of_frr() {
    let update = update(FRR_STATION);
    let mac = MacAddr([0x8a, 0xf7, 0xe6, 0xb0, 0xea, 0x83]);
    let distinguisher = [0, 1, 192, 0, 2, 13, 0, 2];
    let key = RouteKey { distinguisher, route: Route::Station(mac, None) };
    assert_eq!(update.announced, [(key, 100)]);
    let expected = Attributes {
        next_hop: IpAddr::from([192, 0, 2, 13]),
        targets: vec![[0, 2, 0xfd, 0xe9, 0, 0, 0, 100]],
        mobility: Mobility::default(),
        is_vxlan: true,
        replicates: false,
        flood_vni: 0,
        originator: Some(Ipv4Addr::new(192, 0, 2, 13)),
        has_as_path: false,
    };
    assert_eq!(update.attributes, Some(expected));
    assert!(!update.is_malformed && !update.is_end_of_rib);
}

#[test]
fn flooding_to_frr() {
    let update = update(FRR_FLOOD);
    let vtep = IpAddr::from([192, 0, 2, 13]);
    assert_eq!(update.announced[0].0.route, Route::Flood(vtep));
    let attributes = update.attributes.unwrap();
    assert!(attributes.replicates);
    assert_eq!((attributes.next_hop, attributes.flood_vni), (vtep, 100));
}

#[test]
fn a_sticky_station_of_gobgp() {
    let update = update(GOBGP_STATION);
    let address = IpAddr::from([10, 12, 0, 0]);
    let route = Route::Station(MacAddr([2, 0, 12, 0, 0, 0]), Some(address));
    assert_eq!((update.announced[0].0.route, update.announced[0].1), (route, 100));
    let mobility = Mobility { is_sticky: true, sequence: 0 };
    assert_eq!(update.attributes.unwrap().mobility, mobility);
}

#[test]
fn withdrawals_and_the_end() {
    let route = Route::Station(MacAddr([2, 0, 12, 0, 0, 1]), None);
    assert_eq!(update(GOBGP_WITHDRAWAL).withdrawn[0].route, route);
    let end = update(FRR_END);
    assert!(end.is_end_of_rib && end.withdrawn.is_empty());
}

/// RFC 7606: an invalid attribute withdraws the routes, and the session goes on.
#[test]
fn an_invalid_attribute_withdraws_its_routes() {
    let mut body = FRR_STATION.to_vec();
    // The value of ORIGIN, of which 0 to 2 are defined.
    let origin = body.windows(3).position(|bytes| bytes == [0x40, 0x01, 0x01]).unwrap() + 3;
    body[origin] = 9;
    let update = update(&body);
    assert!(update.is_malformed && update.announced.is_empty());
    assert_eq!(update.withdrawn.len(), 1);
}

/// RFC 7606 §5.3: what cannot be split into routes ends the session.
#[test]
fn an_invalid_route_ends_the_session() {
    let mut body = FRR_STATION.to_vec();
    // The length of the route: longer than the attribute.
    body[18] = 0x22;
    assert_eq!(parse(&framed(2, &body), true).unwrap_err().code, 3);
}

#[test]
fn routes_of_unknown_types_are_ignored() {
    let mut body = FRR_STATION.to_vec();
    body[17] = 77;
    let update = update(&body);
    assert!(update.announced.is_empty() && update.withdrawn.is_empty() && !update.is_malformed);
}

#[test]
fn invalid_headers() {
    assert_eq!(length(&framed(9, &[])), Err(Notification { code: 1, subcode: 3, data: vec![9] }));
    let mut bytes = framed(4, &[]);
    bytes[0] = 0;
    assert_eq!(length(&bytes), Err(Notification::new(1, 1)));
    let long = [&HEADER[..], &[0x10, 0x01, 2]].concat();
    let expected = Notification { code: 1, subcode: 2, data: vec![0x10, 0x01] };
    assert_eq!(length(&long), Err(expected));
    assert_eq!(length(&HEADER), Ok(None));
}

fn key() -> impl Strategy<Value = RouteKey> {
    let address = prop_oneof![
        Just(None),
        any::<[u8; 4]>().prop_map(|octets| Some(IpAddr::from(octets))),
        any::<[u8; 16]>().prop_map(|octets| Some(IpAddr::from(octets))),
    ];
    (any::<[u8; 8]>(), any::<[u8; 6]>(), address).prop_map(|(distinguisher, mac, address)| {
        RouteKey { distinguisher, route: Route::Station(MacAddr(mac), address) }
    })
}

proptest! {
    /// Goal: what is written is read as it was. Method: the largest messages occur, too.
    #[test]
    fn announcements_and_withdrawals_are_read_as_written(
        keys in proptest::collection::vec(key(), 1..=ROUTES_PER_UPDATE),
        vni in 0u32..1 << 24, is_sticky: bool, sequence: u32, wide: bool,
    ) {
        let next_hop = if wide {
            IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))
        } else {
            IpAddr::from([192, 0, 2, 1])
        };
        let attributes = Attributes {
            next_hop,
            targets: vec![[0, 2, 1, 2, 3, 4, 5, 6]],
            mobility: Mobility { is_sticky, sequence },
            is_vxlan: true,
            replicates: false,
            flood_vni: 0,
            originator: None,
            has_as_path: false,
        };
        let routes: Vec<_> = keys.iter().map(|key| (*key, vni)).collect();
        let mut bytes = Vec::new();
        announce(&attributes, &routes, &mut bytes);
        prop_assert_eq!(length(&bytes), Ok(Some(bytes.len())));
        let Ok(Message::Update(read)) = parse(&bytes, true) else { panic!("no update") };
        prop_assert_eq!(read.announced, routes);
        prop_assert_eq!(read.attributes, Some(attributes));
        bytes.clear();
        withdraw(&keys, &mut bytes);
        let Ok(Message::Update(read)) = parse(&bytes, true) else { panic!("no update") };
        prop_assert_eq!(read.withdrawn, keys);
    }

    /// Goal: bytes that were changed on the way never panic.
    #[test]
    fn changed_messages_do_not_panic(
        which in 0usize..5, at in 0usize..200, value: u8, end in 0usize..200,
    ) {
        let bodies = [FRR_OPEN, FRR_STATION, FRR_FLOOD, GOBGP_STATION, GOBGP_WITHDRAWAL];
        let mut body = bodies[which].to_vec();
        body.truncate(end.max(1));
        let at = at % body.len();
        body[at] = value;
        let _ = parse(&framed(if which == 0 { 1 } else { 2 }, &body), true);
    }
}
