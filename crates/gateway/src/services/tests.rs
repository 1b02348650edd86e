//! Tests of the services as a whole: frames in, frames out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::wire::advertisement::{RouterAdvertisement, search_list_option};
use super::wire::dhcpv4::{self, MessageType, option};
use super::wire::dhcpv6;
use towpath_net::wire::MacAddr;
use towpath_net::wire::icmpv6::Message;

use super::frame::{Envelope, group_mac};
use super::testing::{Bench, DNS, DNS6, GATEWAY, GATEWAY_MAC, GATEWAY6, Vm, config, message, vm};
use super::*;

const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

fn discover_frame(bench: &mut Bench, vm: Vm) -> Vec<u8> {
    let discover = message(vm, MessageType::Discover, &[(option::HOST_NAME, b"vm1")]);
    let envelope = Envelope {
        mac: vm.1,
        to_mac: MacAddr::BROADCAST,
        source: Ipv4Addr::UNSPECIFIED.into(),
        destination: Ipv4Addr::BROADCAST.into(),
        ports: Some((68, 67)),
    };
    bench.frame(&envelope, &discover.emit(600))
}

/// Gets a lease with a name, by rapid commit.
fn lease(bench: &mut Bench, vm: Vm, name: &str) -> Ipv4Addr {
    let options: &[(u8, &[u8])] =
        &[(option::RAPID_COMMIT, &[]), (option::HOST_NAME, name.as_bytes())];
    bench.dhcpv4(vm, &message(vm, MessageType::Discover, options)).unwrap().your_address
}

fn solicitation(source: Ipv6Addr, vm: Vm, with_address: bool) -> (Envelope, Vec<u8>) {
    let source_link_layer = with_address.then_some(vm.1);
    let solicit = Message::RouterSolicitation { source_link_layer };
    let mut bytes = vec![0; solicit.emitted_len()];
    solicit.emit(&mut bytes);
    let (mac, to_mac) = (vm.1, group_mac(ALL_ROUTERS));
    let (source, destination) = (source.into(), ALL_ROUTERS.into());
    (Envelope { mac, to_mac, source, destination, ports: None }, bytes)
}

fn question(name: &str) -> Vec<u8> {
    let mut query = simple_dns::Packet::new_query(9);
    let name = simple_dns::Name::new(name).unwrap().into_owned();
    let (kind, class) = (simple_dns::TYPE::A.into(), simple_dns::CLASS::IN.into());
    query.questions.push(simple_dns::Question::new(name, kind, class, false));
    query.build_bytes_vec().unwrap()
}

fn ask(bench: &mut Bench, vm: Vm, dns: IpAddr, name: &str) -> (bool, Option<Vec<u8>>) {
    let source: IpAddr =
        if dns.is_ipv4() { [10, 0, 2, 15].into() } else { link_local(vm.1).into() };
    let ports = Some((5353, 53));
    let envelope = Envelope { mac: vm.1, to_mac: GATEWAY_MAC, source, destination: dns, ports };
    let frame = bench.frame(&envelope, &question(name));
    let (taken, mut answers) = bench.input(vm.0, &frame);
    let answer = answers.pop().map(|answer| {
        assert_eq!((answer.from, answer.to, answer.ports), (dns, source, (53, 5353)));
        answer.payload
    });
    (taken, answer)
}

/// Goal: every frame is taken or left, and none panics. Method: a valid frame is truncated
/// everywhere, and each of its bytes is changed in three ways; no damaged frame gets an answer.
#[test]
fn damaged_frames_are_refused_or_left() {
    let mut bench = Bench::new(config());
    let good = discover_frame(&mut bench, vm(1));
    let (taken, answers) = bench.input(1, &good);
    assert!(taken && answers.len() == 1);
    for len in 0..good.len() {
        bench.pass(Duration::from_secs(1));
        let (_, answers) = bench.input(1, &good[..len]);
        assert!(answers.is_empty(), "{len} bytes");
    }
    for at in 14..good.len() {
        for change in [0x01, 0x80, 0xff] {
            bench.pass(Duration::from_secs(1));
            let mut bad = good.clone();
            bad[at] ^= change;
            let (_, answers) = bench.input(1, &bad);
            assert!(answers.is_empty(), "{change:#x} at {at}");
        }
    }
    let long = [&good[..], &[0; 2048]].concat();
    let (taken, answers) = bench.input(1, &long);
    assert!(!taken && answers.is_empty());
}

/// Goal: only frames for the gateway or for all stations are taken; other traffic is not examined.
#[test]
fn what_is_for_others_is_left() {
    let mut bench = Bench::new(config());
    let good = discover_frame(&mut bench, vm(1));
    let mut to_other = good.clone();
    to_other[..6].copy_from_slice(&vm(2).1.0);
    assert!(!bench.input(1, &to_other).0);
    let (envelope, payload) = (
        Envelope {
            mac: vm(1).1,
            to_mac: GATEWAY_MAC,
            source: [10, 0, 2, 15].into(),
            destination: [192, 0, 2, 1].into(),
            ports: Some((68, 67)),
        },
        message(vm(1), MessageType::Release, &[]).emit(600),
    );
    let frame = bench.frame(&envelope, &payload);
    assert!(!bench.input(1, &frame).0, "a server outside");
    let solicit = Envelope {
        mac: vm(1).1,
        to_mac: GATEWAY_MAC,
        source: link_local(vm(1).1).into(),
        destination: "2001:db8::1".parse().unwrap(),
        ports: Some((546, 547)),
    };
    let frame = bench.frame(&solicit, &[11, 0, 0, 1]);
    assert!(!bench.input(1, &frame).0, "a server outside, over IPv6");
    let mut config = config();
    config.ipv4 = None;
    assert!(!Bench::new(config).input(1, &good).0, "no service for IPv4");
    assert_eq!(bench.services.counters(), Counters::default());
}

/// Goal: an answer to a solicitation has the configured values, and goes to the sender.
#[test]
fn rfc4861_6_2_6_a_solicitation_is_answered() {
    let mut bench = Bench::new(config());
    for (source, to) in
        [(link_local(vm(1).1), link_local(vm(1).1)), (Ipv6Addr::UNSPECIFIED, ALL_NODES)]
    {
        let (envelope, bytes) = solicitation(source, vm(1), !source.is_unspecified());
        let frame = bench.frame(&envelope, &bytes);
        let (taken, answers) = bench.input(1, &frame);
        assert!(taken);
        assert_eq!((answers[0].to_mac, answers[0].to), (vm(1).1, to.into()));
        assert_eq!(answers[0].from, IpAddr::from(link_local(GATEWAY_MAC)));
        let ra = RouterAdvertisement::parse(&answers[0].payload).unwrap();
        assert_eq!(
            (ra.router_lifetime_s, ra.managed, ra.other, ra.mtu),
            (1800, true, true, Some(1400))
        );
        assert_eq!(ra.source_link_layer, Some(GATEWAY_MAC));
        let [prefix] = ra.prefixes() else { panic!("one prefix") };
        assert_eq!((prefix.prefix, prefix.prefix_len), ("fd00::".parse().unwrap(), 64));
        assert!(prefix.on_link && prefix.autonomous);
        assert_eq!((ra.dns_servers(), ra.dns_lifetime_s), (&[DNS6][..], 1800));
        let search = search_list_option(&config().search, 1800);
        assert!(answers[0].payload.ends_with(&search));
    }
}

/// RFC 4861 §6.1.1, bad input: a hop limit that a router decremented, a code, a truncated message,
/// a link-layer address from the unspecified address. A flood gets as many answers as a port may
/// request.
#[test]
fn rfc4861_6_1_1_bad_solicitations() {
    let mut bench = Bench::new(config());
    let (envelope, bytes) = solicitation(link_local(vm(1).1), vm(1), true);
    let good = bench.frame(&envelope, &bytes);
    let mut far = good.clone();
    far[14 + 7] = 254;
    assert!(!bench.input(1, &far).0);
    let mut coded = bytes.clone();
    coded[1] = 1;
    let coded = bench.frame(&envelope, &coded);
    let short = bench.frame(&envelope, &bytes[..7]);
    let (nobody, with_address) = solicitation(Ipv6Addr::UNSPECIFIED, vm(1), true);
    let nobody = bench.frame(&nobody, &with_address);
    for bad in [coded, short, nobody] {
        let (_, answers) = bench.input(1, &bad);
        assert!(answers.is_empty());
    }
    assert_eq!(bench.services.counters().malformed, 3);
    let answered = (0..1000).filter(|_| !bench.input(1, &good).1.is_empty()).count();
    assert_eq!(answered, REQUESTS_BURST as usize - 3);
    assert_eq!(bench.input(2, &good).1.len(), 1, "another port");
    bench.pass(Duration::from_secs(1));
    let answered = (0..1000).filter(|_| !bench.input(1, &good).1.is_empty()).count();
    assert_eq!(answered, REQUESTS_PER_SECOND as usize);
}

/// RFC 4861 §6.2.4 and §6.2.5: unsolicited advertisements to all, and a last one at shutdown.
#[test]
fn rfc4861_6_2_5_the_last_advertisement() {
    let mut bench = Bench::new(config());
    assert!(bench.services.next_deadline().is_some_and(|at| at <= bench.now));
    let first = bench.advertised(false);
    assert_eq!((first[0].to_mac, first[0].to), (group_mac(ALL_NODES), ALL_NODES.into()));
    assert!(bench.services.next_deadline().is_some_and(|at| at > bench.now));
    assert!(bench.advertised(false).is_empty(), "not due");
    let last = bench.advertised(true);
    let ra = RouterAdvertisement::parse(&last[0].payload).unwrap();
    let lifetimes =
        (ra.router_lifetime_s, ra.dns_lifetime_s, ra.prefixes()[0].preferred_lifetime_s);
    assert_eq!(lifetimes, (0, 0, 0));
    assert_eq!(bench.services.next_deadline(), None);
}

/// Goal: the name that a guest sends when it asks for an address is in DNS, over both families;
/// queries about other names continue to the stack.
#[test]
fn names_of_leases_are_in_dns() {
    let mut bench = Bench::new(config());
    let address = lease(&mut bench, vm(1), "Vm1.somewhere.example");
    for dns in [IpAddr::from(DNS), DNS6.into()] {
        let (taken, answer) = ask(&mut bench, vm(2), dns, "vm1.lan.example");
        let answer = answer.expect("an answer");
        let reply = simple_dns::Packet::parse(&answer).unwrap();
        let simple_dns::rdata::RData::A(a) = &reply.answers[0].rdata else { panic!("no address") };
        assert!(taken && Ipv4Addr::from(a.address) == address);
        assert_eq!(ask(&mut bench, vm(2), dns, "www.example.org"), (false, None));
    }
    assert_eq!(ask(&mut bench, vm(2), GATEWAY.into(), "vm1"), (false, None), "no DNS server");
    assert_eq!(bench.services.counters().names_answered, 2);
    // The name ends with the lease.
    let mut release = message(vm(1), MessageType::Release, &[]);
    release.client_address = address;
    assert!(bench.dhcpv4(vm(1), &release).is_none());
    let (_, answer) = ask(&mut bench, vm(2), DNS.into(), "vm1.lan.example");
    let answer = answer.expect("an answer");
    let reply = simple_dns::Packet::parse(&answer).unwrap();
    assert_eq!(reply.rcode(), simple_dns::RCODE::NameError);
}

/// Bad input: names that are not valid are ignored, and the lease is given.
#[test]
fn bad_names_cost_nothing_but_the_name() {
    for bad in ["", "-a", "a b", "x_y", "\u{e4}", "a..b", "evil\nnameserver"] {
        let mut bench = Bench::new(config());
        lease(&mut bench, vm(1), bad);
        let text = bench.services.leases(bench.now, Duration::ZERO);
        assert_eq!(text.split(' ').nth(3), Some("-"), "{bad:?}: {text}");
    }
}

/// Goal: leases survive a restart, with names and without static ones; bad lines are skipped.
#[test]
fn leases_outlive_a_restart() {
    let mut first = Bench::new(config());
    let address = lease(&mut first, vm(1), "vm1");
    let solicit = {
        let mut options = dhcpv6::Options::default();
        options.push(dhcpv6::option::CLIENT_ID, &dhcpv6::duid_of(vm(1).1));
        options.push(dhcpv6::option::RAPID_COMMIT, &[]);
        options.push(dhcpv6::option::IA_NA, &[0; 12]);
        let kind = dhcpv6::MessageType::Solicit;
        dhcpv6::Message { kind, transaction_id: 1, options }
    };
    first.dhcpv6(vm(1), &solicit).unwrap();
    let text = first.services.leases(first.now, Duration::from_secs(1_000_000));
    assert_eq!(text.lines().count(), 2, "{text}");
    let bad = "x\n1000 10.0.2.15 02:00:00:00:00:01 - mac\n9999999 10.0.2.15 02 - mac\n\
               9999999 10.9.9.9 02:00:00:00:00:01 - mac\n\
               9999999 10.0.2.15 02:00:00:00:00:01 - id:0\n\
               99999999999999999999 10.0.2.15 02:00:00:00:00:01 - mac\n\
               9999999 10.0.2.2 02:00:00:00:00:01 a_b mac";
    let mut second = Bench::new(config());
    let wall = Duration::from_secs(1_000_100);
    let restored = second.services.restore(&format!("{text}{bad}"), second.now, wall);
    let expected = Restored { taken: 2, over: 1, elsewhere: 1, unusable: 5 };
    assert_eq!(restored, expected);
    // A hundred seconds of the lease have passed; the rest is unchanged.
    assert_eq!(second.services.leases(second.now, wall), text);
    let wanted = address.octets();
    let options: &[(u8, &[u8])] = &[(option::REQUESTED_ADDRESS, &wanted)];
    let offer = second.dhcpv4(vm(2), &message(vm(2), MessageType::Discover, options)).unwrap();
    assert_ne!(offer.your_address, address, "still lent");
    let (_, answer) = ask(&mut second, vm(2), DNS.into(), "vm1");
    assert!(answer.is_some());
    // The client continues its lease, at any port.
    let moved = Vm(9, vm(1).1);
    assert_eq!(lease(&mut second, moved, "vm1"), address);
}

/// Goal: static leases can be added and removed. A rejected one leaves no trace; a guest keeps an
/// address that it already has; undoing changes restores everything.
#[test]
fn static_leases_come_and_go() {
    let mut bench = Bench::new(config());
    (0..3).for_each(|port| bench.services.name_port(port, &format!("port{port}")));
    let now = bench.now;
    let had = lease(&mut bench, vm(1), "vm1");
    let lease_of = |guest: Guest, ipv4: Option<Ipv4Addr>, name: Option<&str>| StaticLease {
        ipv4,
        name: name.map(|name| name.parse().unwrap()),
        ..StaticLease::of(guest)
    };
    let port = |number: u8| Guest::Port(format!("port{number}"));
    let free = Ipv4Addr::new(10, 0, 2, 77);
    let lent = bench.services.lent(now);
    let mut add = |guest, ipv4, name| {
        bench.services.add_static_lease(lease_of(guest, ipv4, name), now).map_err(|e| e.to_string())
    };
    for (guest, ipv4, name, expected) in [
        (port(2), None, None, "a static lease needs ipv4, ipv6 or name"),
        (port(2), Some([10, 0, 3, 1].into()), None, "10.0.3.1 is not an address for guests"),
        (port(2), Some(GATEWAY), None, "10.0.2.2 is reserved"),
        (port(2), Some([10, 0, 2, 255].into()), None, "10.0.2.255 is reserved"),
        (port(2), Some(had), None, "is leased to 02:00:00:00:01:01 for another"),
        (port(2), None, Some("gateway"), "'gateway' is in use"),
    ] {
        let error = add(guest, ipv4, name).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    add(port(1), Some(had), Some("web")).unwrap();
    add(port(2), Some(free), None).unwrap();
    for (guest, ipv4, name, expected) in [
        (port(1), None, Some("other"), "port port1 already has a static lease; remove it first"),
        (Guest::Mac(vm(3).1), Some(free), None, "in use by another guest"),
        (Guest::Mac(vm(3).1), None, Some("web"), "'web' is in use"),
    ] {
        let error = add(guest, ipv4, name).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(bench.services.lent(now), lent);
    assert_eq!(bench.services.static_leases().count(), 2);
    // A renewal makes the lease static; the guest of the other port gets its own address.
    assert_eq!(lease(&mut bench, vm(1), "vm1"), had);
    assert!(bench.services.lent(now)[0].is_static);
    assert_eq!(bench.services.lent(now)[0].name, Some("web".parse().unwrap()));
    assert_eq!(bench.services.address_of("web", true, now), Some(had.into()));
    assert_eq!(bench.services.address_of("port1", true, now), Some(had.into()));
    assert_eq!(
        bench.services.address_of("port2", true, now),
        Some(free.into()),
        "the guest has not asked yet"
    );
    assert_eq!(bench.services.address_of("port2", false, now), None);
    assert_eq!(lease(&mut bench, vm(2), "vm2"), free);

    let checkpoint = bench.services.checkpoint();
    let before = bench.services.lent(now);
    bench.services.remove_static_lease(&port(1)).unwrap();
    bench.services.remove_static_lease(&port(2)).unwrap();
    let gone = bench.services.remove_static_lease(&port(2)).unwrap_err().to_string();
    assert_eq!(gone, "port port2 has no static lease");
    assert_eq!(
        (bench.services.lent(now), bench.services.address_of("web", true, now)),
        (vec![], None)
    );
    bench.services.return_to(checkpoint);
    assert_eq!((bench.services.lent(now), bench.services.static_leases().count()), (before, 2));
    assert_eq!(lease(&mut bench, vm(2), "vm2"), free);
    // A port's name is gone with the port.
    bench.services.forget_port(2);
    assert_ne!(lease(&mut bench, vm(2), "vm2"), free);
}

/// Goal: a static lease leaves out a name that another guest has, if it may, and otherwise takes
/// it from a guest that only claimed it; an IP version that is not leased has nothing to choose.
#[test]
fn parts_of_a_static_lease_are_left_to_the_network() {
    let mut bench = Bench::new(Config { ipv6: None, ..config() });
    lease(&mut bench, vm(1), "web");
    let now = bench.now;
    let mut add = |port: &str, name: &str, auto| {
        let guest = Guest::Port(port.to_owned());
        let lease = StaticLease { name: name.parse().ok(), ..StaticLease::of(guest.clone()) };
        bench.services.add_automatic_lease(lease, auto, now)?;
        let mut added = bench.services.static_leases().filter(|lease| lease.guest == guest);
        Ok(added.next().and_then(|lease| lease.name.as_ref().map(ToString::to_string)))
    };
    let auto = Automatic { ipv4: true, ipv6: false, name: true };
    assert_eq!(add("a", "web", auto), Ok(None));
    assert_eq!(add("b", "db", auto), Ok(Some("db".to_owned())));
    assert_eq!(add("c", "db", auto), Ok(None));
    let certain = Automatic { name: false, ..auto };
    assert_eq!(add("d", "web", certain), Ok(Some("web".to_owned())));
    let name = StaticLeaseError::Name("db".parse().unwrap());
    assert_eq!(add("e", "db", certain), Err(name));
    assert_eq!(add("e", "e", Automatic { ipv6: true, ..auto }), Err(StaticLeaseError::NoPool(6)));
}

/// Goal: the number of static leases is bounded.
#[test]
fn static_leases_are_bounded() {
    let mut bench = Bench::new(config());
    for number in 0..=STATIC_LEASES_MAX {
        let guest = Guest::Port(number.to_string());
        let name = Some(format!("n{number}").parse().unwrap());
        let lease = StaticLease { name, ..StaticLease::of(guest) };
        let added = bench.services.add_static_lease(lease, bench.now);
        assert_eq!(added.is_ok(), number < STATIC_LEASES_MAX);
    }
}

/// Goal: an answer that finds no room is lost and counted, and the message was taken.
#[test]
fn answers_without_room_are_counted() {
    let mut bench = Bench::new(config());
    bench.hold_all_frames_but(1);
    let frame = dhcpv4_frame(&mut bench);
    let (taken, answers) = bench.input(1, &frame);
    assert!(taken && answers.is_empty());
    assert_eq!(bench.services.counters().no_memory, 1);
}

fn dhcpv4_frame(bench: &mut Bench) -> Vec<u8> {
    let frame = discover_frame(bench, vm(1));
    assert!(dhcpv4::Message::parse(&frame[42..]).is_ok());
    frame
}

/// Goal: each service that is off is silent, and the others go on.
#[test]
fn single_services_are_off() {
    for off in 0..3 {
        let disabled = Disabled { dhcpv4: off == 0, dhcpv6: off == 1, advertisements: off == 2 };
        let mut bench = Bench::new(Config { disabled, ..config() });
        let discover = discover_frame(&mut bench, vm(1));
        let (taken, answers) = bench.input(1, &discover);
        assert_eq!((taken, answers.len()), (off != 0, usize::from(off != 0)));
        let (envelope, bytes) = solicitation(link_local(vm(1).1), vm(1), true);
        let frame = bench.frame(&envelope, &bytes);
        let (taken, answers) = bench.input(1, &frame);
        assert_eq!((taken, answers.len()), (off != 2, usize::from(off != 2)));
        if let Some(answer) = answers.first() {
            let router = RouterAdvertisement::parse(&answer.payload).unwrap();
            assert_eq!((router.managed, router.other), (off != 1, off != 1));
        }
        let expected = usize::from(off != 2);
        assert_eq!(bench.advertised(true).len(), expected, "at the end");
        assert!(bench.services.next_deadline().is_none());
    }
}

/// Goal: a router outside of the network is given with a route to it (RFC 3442), and a network of a
/// single address has that address.
#[test]
fn a_router_outside_of_the_network() {
    let own = Ipv4Addr::new(198, 51, 100, 7);
    let ipv4 =
        Ipv4 { gateway: GATEWAY, network: own, prefix_len: 32, dns: vec![DNS], pool: own..=own };
    let mut bench = Bench::new(Config { ipv4: Some(ipv4), hosts: Vec::new(), ..config() });
    let discover = message(vm(1), MessageType::Discover, &[(option::RAPID_COMMIT, &[])]);
    let ack = bench.dhcpv4(vm(1), &discover).unwrap();
    assert_eq!(ack.your_address, own);
    let router = GATEWAY.octets();
    let routes = [&[32], &router[..], &[0; 4], &[0], &router].concat();
    assert_eq!(ack.options.get(option::CLASSLESS_ROUTES), Some(&routes[..]));
    let usual = Bench::new(config()).dhcpv4(vm(1), &discover).unwrap();
    assert_eq!(usual.options.get(option::CLASSLESS_ROUTES), None);
}

/// Goal: ports are published to a guest that has no lease, at the address that it was last seen to
/// use. Bad input: addresses of other networks, of the gateway and its name server.
#[test]
fn a_guest_without_a_lease_has_the_address_that_it_uses() {
    let now = Instant::from_micros(1);
    let mut services = Services::new(config());
    services.name_port(1, "vm1");
    services.name_port(2, "vm2");
    let own = |last: u16| IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0x5054, 0xff, 0xfe12, last));
    let elsewhere = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 9);
    let link_local = link_local(vm(1).1);
    for address in [GATEWAY.into(), GATEWAY6.into(), DNS.into(), DNS6.into(), elsewhere.into()] {
        services.note_unleased(1, address);
    }
    services.note_unleased(1, link_local.into());
    let addresses = |services: &Services, guest: &str| {
        [true, false].map(|is_ipv4| services.address_of(guest, is_ipv4, now))
    };
    assert_eq!(addresses(&services, "vm1"), [None, None]);
    services.note_unleased(1, own(1));
    services.note_unleased(1, [10, 0, 2, 200].into());
    assert_eq!(addresses(&services, "vm1"), [Some([10, 0, 2, 200].into()), Some(own(1))]);
    services.note_unleased(1, own(2));
    assert_eq!(services.address_of("vm1", false, now), Some(own(2)), "it has changed its address");
    assert_eq!(addresses(&services, "vm2"), [None, None]);
    services.forget_port(1);
    services.name_port(1, "vm1");
    assert_eq!(addresses(&services, "vm1"), [None, None], "another guest");
}

/// A leased address counts more than one that the guest formed itself.
#[test]
fn a_lease_counts_more_than_an_address_in_use() {
    let mut bench = Bench::new(config());
    bench.services.name_port(1, "vm1");
    let leased = lease(&mut bench, vm(1), "vm1");
    let now = bench.now;
    bench.services.note_unleased(1, [10, 0, 2, 200].into());
    assert_eq!(bench.services.address_of("vm1", true, now), Some(leased.into()));
}
