//! Tests of the DHCP server for IPv4, named by sections of RFC 2131 where one applies.

use std::time::Duration;

use super::super::config::{Guest, StaticLease};
use super::super::testing::{Bench, DNS, GATEWAY, Vm, config, message, vm};
use super::*;

fn discover(bench: &mut Bench, vm: Vm, options: &[(u8, &[u8])]) -> Option<Message> {
    bench.dhcpv4(vm, &message(vm, MessageType::Discover, options))
}

fn request(bench: &mut Bench, vm: Vm, address: Ipv4Addr, options: &[(u8, &[u8])]) -> Message {
    let (server, address) = (GATEWAY.octets(), address.octets());
    let mut all = vec![(option::SERVER_ID, &server[..]), (option::REQUESTED_ADDRESS, &address[..])];
    all.extend(options);
    bench.dhcpv4(vm, &message(vm, MessageType::Request, &all)).expect("an answer")
}

fn kind(message: &Message) -> MessageType {
    MessageType::of(&message.options).unwrap()
}

/// Gets a lease with all four messages.
fn lease(bench: &mut Bench, vm: Vm, options: &[(u8, &[u8])]) -> Ipv4Addr {
    let offer = discover(bench, vm, options).expect("an offer");
    assert_eq!(kind(&offer), MessageType::Offer);
    let ack = request(bench, vm, offer.your_address, options);
    assert_eq!((kind(&ack), ack.your_address), (MessageType::Ack, offer.your_address));
    ack.your_address
}

/// §4.3.1: an offer has everything that a client needs, and the acknowledgement has the same.
#[test]
fn rfc2131_4_3_1_offer_and_acknowledgement() {
    let mut bench = Bench::new(config());
    let offer = discover(&mut bench, vm(1), &[]).unwrap();
    let ack = request(&mut bench, vm(1), offer.your_address, &[]);
    for (message, expected) in [(&offer, MessageType::Offer), (&ack, MessageType::Ack)] {
        let options = &message.options;
        assert_eq!(kind(message), expected);
        assert_eq!((message.transaction_id, message.client_mac), (0x0102_0304, vm(1).1));
        assert_eq!(options.address(option::SERVER_ID), Some(GATEWAY));
        assert_eq!(options.u32(option::LEASE_TIME), Some(43_200));
        assert_eq!(options.u32(option::RENEWAL_TIME), Some(21_600));
        assert_eq!(options.u32(option::REBINDING_TIME), Some(37_800));
        assert_eq!(options.address(option::SUBNET_MASK), Some([255, 255, 255, 0].into()));
        assert_eq!(options.address(option::ROUTERS), Some(GATEWAY));
        assert_eq!(options.address(option::DNS_SERVERS), Some(DNS));
        assert_eq!(options.u16(option::MTU), Some(1400));
        assert_eq!(options.get(option::DOMAIN_NAME), Some(&b"lan.example"[..]));
        let search = domain::parse_list(options.get(option::SEARCH_LIST).unwrap()).unwrap();
        assert_eq!(search, config().search);
    }
    assert!(config().ipv4.unwrap().pool.contains(&ack.your_address));
    let counters = bench.services.counters();
    assert_eq!((counters.offers, counters.acks), (1, 1));
}

/// §4.3.1: the client gets what it lists, and nothing else beyond what it must have.
#[test]
fn rfc2131_4_3_1_the_parameter_list_is_honoured() {
    let mut bench = Bench::new(config());
    let list = [option::ROUTERS, option::MTU, 200];
    let offer = discover(&mut bench, vm(1), &[(option::PARAMETER_LIST, &list)]).unwrap();
    let codes: Vec<u8> = offer.options.iter().map(|(code, _)| code).collect();
    let expected = [53, 54, 51, 58, 59, option::ROUTERS, option::MTU];
    assert_eq!(codes, expected);
}

/// §3.5, §9.10 of RFC 2132: no message is longer than the client accepts; it always accepts 576
/// bytes.
#[test]
fn rfc2132_9_10_messages_fit() {
    let mut config = config();
    config.search = (0..60).map(|n| format!("n{n}.example").parse().unwrap()).collect();
    let mut bench = Bench::new(config);
    for (max, has_list) in [(0u16, false), (576, false), (1400, true), (u16::MAX, true)] {
        let options = [(option::MAX_MESSAGE_LEN, &max.to_be_bytes()[..])];
        let discover = message(vm(1), MessageType::Discover, &options);
        let answer = bench.dhcpv4_answer(vm(1), &discover).unwrap();
        assert!(answer.payload.len() + 28 <= usize::from(max.clamp(576, 1400)), "{max}");
        let offer = Message::parse(&answer.payload).unwrap();
        assert_eq!(offer.options.get(option::SEARCH_LIST).is_some(), has_list, "{max}");
    }
}

/// RFC 6842 §3: the answer has the client identifier. RFC 2131 §4.2: it identifies the client
/// instead of the hardware address; one that is too short is ignored.
#[test]
fn rfc6842_3_the_client_identifier() {
    let mut bench = Bench::new(config());
    let id: &[(u8, &[u8])] = &[(option::CLIENT_ID, &[255, 1, 2, 3])];
    let offer = discover(&mut bench, vm(1), id).unwrap();
    assert_eq!(offer.options.get(option::CLIENT_ID), Some(&[255, 1, 2, 3][..]));
    let first = lease(&mut bench, vm(1), id);
    let other_mac = Vm(1, vm(9).1);
    assert_eq!(lease(&mut bench, other_mac, id), first);
    assert_ne!(lease(&mut bench, vm(1), &[]), first);
    let short: &[(u8, &[u8])] = &[(option::CLIENT_ID, &[7])];
    assert_ne!(lease(&mut bench, vm(2), short), lease(&mut bench, vm(3), short));
}

/// RFC 4039 §4: two messages instead of four.
#[test]
fn rfc4039_4_rapid_commit() {
    let mut bench = Bench::new(config());
    let ack = discover(&mut bench, vm(1), &[(option::RAPID_COMMIT, &[])]).unwrap();
    assert_eq!(
        (kind(&ack), ack.options.get(option::RAPID_COMMIT)),
        (MessageType::Ack, Some(&[][..]))
    );
    assert!(bench.services.take_changed() && !bench.services.take_changed());
    let offer = discover(&mut bench, vm(2), &[(option::RAPID_COMMIT, &[1])]).unwrap();
    assert_eq!(kind(&offer), MessageType::Offer, "an option of another length is ignored");
}

/// §4.1: to the client's address, else broadcast if requested, else to the new address at its
/// station.
#[test]
fn rfc2131_4_1_where_answers_go() {
    let mut bench = Bench::new(config());
    let mut asked = message(vm(1), MessageType::Discover, &[]);
    let answer = bench.dhcpv4_answer(vm(1), &asked).unwrap();
    let given = Message::parse(&answer.payload).unwrap().your_address;
    assert_eq!((answer.to_mac, answer.to), (vm(1).1, given.into()));
    asked.broadcast = true;
    let answer = bench.dhcpv4_answer(vm(1), &asked).unwrap();
    assert_eq!((answer.to_mac, answer.to), (MacAddr::BROADCAST, Ipv4Addr::BROADCAST.into()));
    lease(&mut bench, vm(1), &[]);
    let mut renew = message(vm(1), MessageType::Request, &[]);
    (renew.client_address, renew.broadcast) = (given, true);
    let answer = bench.dhcpv4_answer(vm(1), &renew).unwrap();
    assert_eq!((answer.to_mac, answer.to), (vm(1).1, given.into()));
    let ack = Message::parse(&answer.payload).unwrap();
    assert_eq!((ack.client_address, ack.your_address), (given, given));
}

/// §4.3.2 SELECTING: if another server was chosen, the offer is free for others; an address that
/// was not offered is refused.
#[test]
fn rfc2131_4_3_2_selecting() {
    let mut config = config();
    config.ipv4.as_mut().unwrap().pool = [10, 0, 2, 10].into()..=[10, 0, 2, 10].into();
    let mut bench = Bench::new(config);
    discover(&mut bench, vm(1), &[]).unwrap();
    assert_eq!(discover(&mut bench, vm(2), &[]), None, "held for the first");
    assert_eq!(bench.services.counters().pool_exhausted, 1);
    let nak = request(&mut bench, vm(1), [10, 0, 2, 11].into(), &[]);
    assert_eq!(kind(&nak), MessageType::Nak);
    let other = message(
        vm(1),
        MessageType::Request,
        &[(option::SERVER_ID, &[10, 0, 2, 77]), (option::REQUESTED_ADDRESS, &[10, 0, 2, 10])],
    );
    assert_eq!(bench.dhcpv4(vm(1), &other), None);
    assert_eq!(bench.services.counters().other_server, 1);
    assert!(discover(&mut bench, vm(2), &[]).is_some());
    // An offer that is not requested expires.
    bench.pass(OFFER_HOLD);
    assert!(discover(&mut bench, vm(1), &[]).is_some());
}

/// §4.3.2 INIT-REBOOT: refused by broadcast for another network or another client's address;
/// granted if the address is free, as after a restart of the server.
#[test]
fn rfc2131_4_3_2_init_reboot() {
    let mut bench = Bench::new(config());
    let taken = lease(&mut bench, vm(1), &[]);
    for wrong in [[192, 168, 1, 5].into(), GATEWAY, DNS, [10, 0, 2, 255].into(), taken] {
        let asked =
            message(vm(2), MessageType::Request, &[(option::REQUESTED_ADDRESS, &wrong.octets())]);
        let answer = bench.dhcpv4_answer(vm(2), &asked).unwrap();
        assert_eq!((answer.to_mac, answer.to), (MacAddr::BROADCAST, Ipv4Addr::BROADCAST.into()));
        let nak = Message::parse(&answer.payload).unwrap();
        assert_eq!((kind(&nak), nak.your_address), (MessageType::Nak, Ipv4Addr::UNSPECIFIED));
    }
    let free = message(
        vm(2),
        MessageType::Request,
        &[(option::REQUESTED_ADDRESS, &[10, 0, 2, if taken.octets()[3] == 50 { 51 } else { 50 }])],
    );
    assert_eq!(kind(&bench.dhcpv4(vm(2), &free).unwrap()), MessageType::Ack);
}

/// §4.3.2 RENEWING and REBINDING: the lease is extended from now, and expires without renewal.
#[test]
fn rfc2131_4_3_2_renewing() {
    let mut bench = Bench::new(config());
    let address = lease(&mut bench, vm(1), &[]);
    for _ in 0..3 {
        bench.pass(LEASE - Duration::from_secs(1));
        let mut renew = message(vm(1), MessageType::Request, &[]);
        renew.client_address = address;
        assert_eq!(kind(&bench.dhcpv4(vm(1), &renew).unwrap()), MessageType::Ack);
    }
    bench.pass(LEASE);
    let wanted = address.octets();
    let other = discover(&mut bench, vm(2), &[(option::REQUESTED_ADDRESS, &wanted)]).unwrap();
    assert_eq!(other.your_address, address);
}

/// §4.3.3: an address in use by another station is not given out for a while.
#[test]
fn rfc2131_4_3_3_decline() {
    let mut bench = Bench::new(config());
    let address = lease(&mut bench, vm(1), &[(option::HOST_NAME, b"one")]);
    let wanted = address.octets();
    let options: &[(u8, &[u8])] =
        &[(option::SERVER_ID, &GATEWAY.octets()), (option::REQUESTED_ADDRESS, &wanted)];
    let decline = message(vm(2), MessageType::Decline, options);
    assert_eq!(bench.dhcpv4(vm(2), &decline), None);
    assert_eq!(bench.services.counters().not_yours, 1);
    let decline = message(vm(1), MessageType::Decline, options);
    assert_eq!(bench.dhcpv4(vm(1), &decline), None);
    assert_eq!(bench.services.counters().declines, 1);
    let offer = discover(&mut bench, vm(1), &[(option::REQUESTED_ADDRESS, &wanted)]).unwrap();
    assert_ne!(offer.your_address, address);
    let offer = discover(&mut bench, vm(2), &[(option::REQUESTED_ADDRESS, &wanted)]).unwrap();
    assert_ne!(offer.your_address, address);
    bench.pass(Duration::from_secs(601));
    let offer = discover(&mut bench, vm(3), &[(option::REQUESTED_ADDRESS, &wanted)]).unwrap();
    assert_eq!(offer.your_address, address);
}

/// §4.3.4: an address is free once its holder, and no other client, releases it.
#[test]
fn rfc2131_4_3_4_release() {
    let mut bench = Bench::new(config());
    let address = lease(&mut bench, vm(1), &[]);
    let mut release = message(vm(2), MessageType::Release, &[]);
    release.client_address = address;
    assert_eq!(bench.dhcpv4(vm(2), &release), None);
    let counters = bench.services.counters();
    assert_eq!((counters.not_yours, counters.releases), (1, 0));
    release.client_mac = vm(1).1;
    assert_eq!(bench.dhcpv4(vm(1), &release), None);
    assert_eq!(bench.services.counters().releases, 1);
    let wanted = address.octets();
    let offer = discover(&mut bench, vm(2), &[(option::REQUESTED_ADDRESS, &wanted)]).unwrap();
    assert_eq!(offer.your_address, address);
}

/// §4.3.5: parameters without address and times.
#[test]
fn rfc2131_4_3_5_inform() {
    let mut bench = Bench::new(config());
    let mut inform = message(vm(1), MessageType::Inform, &[]);
    inform.client_address = [10, 0, 2, 200].into();
    let answer = bench.dhcpv4_answer(vm(1), &inform).unwrap();
    assert_eq!((answer.to_mac, answer.to), (vm(1).1, inform.client_address.into()));
    let ack = Message::parse(&answer.payload).unwrap();
    assert_eq!((kind(&ack), ack.your_address), (MessageType::Ack, Ipv4Addr::UNSPECIFIED));
    assert_eq!(ack.options.get(option::LEASE_TIME), None);
    assert_eq!(ack.options.address(option::DNS_SERVERS), Some(DNS));
}

/// Static leases by port, link-layer address and identifier: no other client gets the address, and
/// the guest has the given name, whatever it sends.
#[test]
fn static_leases() {
    let lease_of = |guest, last, name: &str| StaticLease {
        ipv4: Some([10, 0, 2, last].into()),
        name: Some(name.parse().unwrap()),
        ..StaticLease::of(guest)
    };
    let mut bench = Bench::new(config());
    bench.services.name_port(1, "first");
    for lease in [
        lease_of(Guest::Port("first".into()), 20, "one"),
        lease_of(Guest::Mac(vm(2).1), 21, "two"),
        lease_of(Guest::ClientId(vec![0, 9]), 222, "three"),
    ] {
        bench.services.add_static_lease(lease, bench.now).unwrap();
    }
    assert_eq!(lease(&mut bench, vm(1), &[]), Ipv4Addr::new(10, 0, 2, 20));
    // A guest's boot loader and its system send different identifiers.
    let id: &[(u8, &[u8])] = &[(option::CLIENT_ID, &[1, 1]), (option::HOST_NAME, b"mallory")];
    assert_eq!(lease(&mut bench, Vm(1, vm(8).1), id), Ipv4Addr::new(10, 0, 2, 20));
    assert_eq!(lease(&mut bench, vm(2), &[]), Ipv4Addr::new(10, 0, 2, 21));
    let id: &[(u8, &[u8])] = &[(option::CLIENT_ID, &[0, 9])];
    assert_eq!(lease(&mut bench, vm(3), id), Ipv4Addr::new(10, 0, 2, 222), "outside the pool");
    let ack = request(&mut bench, vm(3), [10, 0, 2, 222].into(), id);
    assert_eq!(ack.options.get(option::HOST_NAME), Some(&b"three"[..]));
    let wanted: &[(u8, &[u8])] = &[(option::REQUESTED_ADDRESS, &[10, 0, 2, 20])];
    assert_ne!(
        discover(&mut bench, vm(4), wanted).unwrap().your_address,
        Ipv4Addr::new(10, 0, 2, 20)
    );
}

/// RFC 4702 §3: the FQDN option is answered with what became of the name, in the client's encoding.
#[test]
fn rfc4702_3_whole_names() {
    let mut bench = Bench::new(config());
    let asked: &[(u8, &[u8])] = &[(option::FQDN, b"\x05\0\0\x03vm1")];
    let address = lease(&mut bench, vm(1), asked);
    let ack = request(&mut bench, vm(1), address, asked);
    let expected = b"\x05\xff\xff\x03vm1\x03lan\x07example\0";
    assert_eq!(ack.options.get(option::FQDN), Some(&expected[..]));
    // The name is taken now, so the next client that asks for it learns that no update was made.
    let address = lease(&mut bench, vm(2), asked);
    let ack = request(&mut bench, vm(2), address, asked);
    assert_eq!(ack.options.get(option::FQDN), Some(&b"\x0e\xff\xff"[..]));
    assert!(bench.services.counters().name_conflicts > 0);
    let ascii: &[(u8, &[u8])] = &[(option::FQDN, b"\0\0\0vm3.elsewhere.example")];
    let address = lease(&mut bench, vm(3), ascii);
    let ack = request(&mut bench, vm(3), address, ascii);
    assert_eq!(ack.options.get(option::FQDN), Some(&b"\x03\xff\xffvm3.lan.example"[..]));
}

/// Bad input: addresses that are not the sender's, relays, answers, messages without a type.
#[test]
fn what_is_not_from_a_client_is_dropped() {
    let mut bench = Bench::new(config());
    let good = message(vm(1), MessageType::Discover, &[]);
    for mac in [vm(2).1, MacAddr::UNSPECIFIED, MacAddr::BROADCAST] {
        assert_eq!(bench.dhcpv4(vm(1), &Message { client_mac: mac, ..good.clone() }), None);
    }
    let group = Vm(1, MacAddr([3, 0, 0, 0, 0, 1]));
    assert_eq!(bench.dhcpv4(group, &message(group, MessageType::Discover, &[])), None);
    assert_eq!(bench.services.counters().spoofed, 4);
    assert_eq!(bench.dhcpv4(vm(1), &Message { relay: [10, 0, 2, 9].into(), ..good.clone() }), None);
    assert_eq!(bench.services.counters().relayed, 1);
    assert_eq!(bench.dhcpv4(vm(1), &Message { is_reply: true, ..good.clone() }), None);
    for kind in [MessageType::Offer, MessageType::Ack, MessageType::Nak] {
        assert_eq!(bench.dhcpv4(vm(1), &message(vm(1), kind, &[])), None);
    }
    let mut none = good.clone();
    none.options.remove(option::MESSAGE_TYPE);
    assert_eq!(bench.dhcpv4(vm(1), &none), None);
    // A request that names no address at all.
    assert_eq!(bench.dhcpv4(vm(1), &message(vm(1), MessageType::Request, &[])), None);
    assert_eq!(bench.services.counters().malformed, 6);
    assert_eq!(bench.services.counters().offers, 0);
    assert!(bench.dhcpv4(vm(1), &good).is_some());
}

/// Starvation: a port with a thousand stations gets its share and is slowed down; the next port
/// gets its lease at once.
#[test]
fn a_port_that_starves_others() {
    let mut bench = Bench::new(config());
    for number in 0..1000u16 {
        let [high, low] = number.to_be_bytes();
        let flood = Vm(7, MacAddr([2, 0, 0, 9, high, low]));
        if let Some(offer) = discover(&mut bench, flood, &[]) {
            request(&mut bench, flood, offer.your_address, &[]);
        }
        bench.pass(Duration::from_millis(1));
    }
    let counters = bench.services.counters();
    assert!(counters.rate_limited > 900 && counters.port_full > 0, "{counters:?}");
    let leases = bench.services.leases(bench.now, Duration::ZERO);
    assert_eq!(leases.lines().count(), 4, "{leases}");
    lease(&mut bench, vm(1), &[]);
}

const LEASE: Duration = super::super::LEASE_TIME_DEFAULT;

/// Goal: a client gets the MTU of its port, or that of the network, which the gateway has, if it is
/// smaller.
#[test]
fn the_mtu_is_that_of_the_port() {
    let mut bench = Bench::new(config());
    let mut mtu = |port_mtu| {
        bench.services.set_port_mtu(vm(1).0, port_mtu);
        let offer = discover(&mut bench, vm(1), &[]).unwrap();
        offer.options.u16(option::MTU)
    };
    let offered = [None, Some(1300), Some(9000), None].map(&mut mtu);
    assert_eq!(offered, [Some(1400), Some(1300), Some(1400), Some(1400)]);
    bench.services.set_port_mtu(vm(1).0, Some(600));
    bench.services.forget_port(vm(1).0);
    assert_eq!(discover(&mut bench, vm(1), &[]).unwrap().options.u16(option::MTU), Some(1400));
}
