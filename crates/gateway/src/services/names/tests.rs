//! Tests of names and of the DNS answers about them.

use super::super::config::{Guest, StaticLease};
use super::super::testing::{GATEWAY, GATEWAY6, config, vm};
use super::*;

fn at(seconds: u64) -> Instant {
    Instant::START + Duration::from_secs(seconds)
}

fn name(text: &str) -> DomainName {
    text.parse().unwrap()
}

fn claim(
    names: &mut Names,
    text: &str,
    number: u8,
    address: impl Into<IpAddr>,
    until: u64,
) -> bool {
    let mac = vm(number).1;
    names.claim(&name(text), &Client::Mac(mac), (mac, Some(1)), address.into(), at(until), at(0))
}

/// Returns a query as dig sends it.
fn question(text: &str, kind: TYPE) -> Vec<u8> {
    let mut query = Packet::new_query(7);
    query.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(text).unwrap().into_owned();
    query.questions.push(simple_dns::Question::new(name, kind.into(), CLASS::IN.into(), false));
    query.build_bytes_vec().unwrap()
}

/// Returns code and data of the answer; `None` if the query continues to the stack.
fn ask(names: &mut Names, text: &str, kind: TYPE, now: u64) -> Option<(RCODE, Vec<String>)> {
    let bytes = names.answer(&question(text, kind), at(now))?;
    let reply = Packet::parse(&bytes).unwrap();
    assert!(reply.has_flags(PacketFlag::RESPONSE | PacketFlag::AUTHORITATIVE_ANSWER));
    assert!(reply.has_flags(PacketFlag::RECURSION_DESIRED) && reply.id() == 7);
    assert_eq!(reply.questions[0].qname.to_string(), text, "spelled as in the query");
    assert_eq!(reply.answers.is_empty(), !reply.name_servers.is_empty(), "RFC 2308 §3");
    let data = reply.answers.iter().map(|record| {
        assert!(record.ttl <= TTL.as_secs() as u32);
        match &record.rdata {
            RData::A(a) => Ipv4Addr::from(a.address).to_string(),
            RData::AAAA(aaaa) => Ipv6Addr::from(aaaa.address).to_string(),
            RData::PTR(ptr) => ptr.0.to_string(),
            other => panic!("{other:?}"),
        }
    });
    Some((reply.rcode(), data.collect()))
}

fn found(data: &[&str]) -> Option<(RCODE, Vec<String>)> {
    Some((RCODE::NoError, data.iter().map(|text| (*text).into()).collect()))
}

/// Goal: both forms of a name, both families and both reverse names resolve; another type has no
/// answer.
#[test]
fn guests_have_names() {
    let mut names = Names::new(&config());
    assert!(claim(&mut names, "vm1", 1, [10, 0, 2, 15], 100));
    let v6: Ipv6Addr = "fd00::1015".parse().unwrap();
    assert!(claim(&mut names, "vm1", 1, v6, 100));
    assert_eq!(ask(&mut names, "vm1.lan.example", TYPE::A, 0), found(&["10.0.2.15"]));
    assert_eq!(ask(&mut names, "VM1.Lan.eXample", TYPE::AAAA, 0), found(&["fd00::1015"]));
    assert_eq!(ask(&mut names, "vm1", TYPE::A, 0), found(&["10.0.2.15"]));
    assert_eq!(ask(&mut names, "vm1.lan.example", TYPE::MX, 0), found(&[]));
    assert_eq!(
        ask(&mut names, "15.2.0.10.in-addr.arpa", TYPE::PTR, 0),
        found(&["vm1.lan.example"])
    );
    let reverse = "5.1.0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa";
    assert_eq!(ask(&mut names, reverse, TYPE::PTR, 0), found(&["vm1.lan.example"]));
    assert_eq!(ask(&mut names, "gateway", TYPE::A, 0), found(&[&GATEWAY.to_string()]));
    assert_eq!(ask(&mut names, "lan.example", TYPE::A, 0), found(&[]));
    // Names end with their leases.
    let unknown = Some((RCODE::NameError, vec![]));
    assert_eq!(ask(&mut names, "vm1.lan.example", TYPE::A, 100), unknown);
    assert_eq!(ask(&mut names, "15.2.0.10.in-addr.arpa", TYPE::PTR, 100), unknown);
    assert_eq!(ask(&mut names, "vm1", TYPE::A, 100), None, "a single label goes on");
}

/// Goal: an unknown local name does not exist. Queries for other names continue to the stack, as
/// does everything that is not a plain query.
#[test]
fn what_is_answered_and_what_goes_on() {
    let mut names = Names::new(&config());
    let unknown = Some((RCODE::NameError, vec![]));
    for text in ["vm9.lan.example", "a.b.lan.example", "_x.lan.example", "9.2.0.10.in-addr.arpa"] {
        assert_eq!(ask(&mut names, text, TYPE::A, 0), unknown, "{text}");
    }
    for text in [
        "example",
        "www.example.org",
        "lan.example.org",
        "xlan.example",
        "vm9",
        "",
        "1.1.1.1.in-addr.arpa",
        "2.0.10.in-addr.arpa",
        "300.2.0.10.in-addr.arpa",
        "1.ip6.arpa",
    ] {
        assert_eq!(ask(&mut names, text, TYPE::A, 0), None, "{text}");
    }
    let good = question("gateway", TYPE::A);
    for len in 0..good.len() {
        assert!(names.answer(&good[..len], at(0)).is_none(), "{len} bytes");
    }
    for (at_byte, value) in [(2, 0x80), (2, 0x08), (2, 0x28), (5, 0), (5, 2), (good.len() - 1, 3)] {
        let mut bad = good.clone();
        bad[at_byte] = value;
        assert!(names.answer(&bad, at(0)).is_none(), "{value:#x} at {at_byte}");
    }
}

/// Goal: the first claim wins until its lease is over; given names cannot be claimed.
#[test]
fn a_name_has_one_owner() {
    let mut names = Names::new(&config());
    assert!(claim(&mut names, "vm1", 1, [10, 0, 2, 15], 100));
    assert!(!claim(&mut names, "vm1", 2, [10, 0, 2, 16], 100));
    assert!(!claim(&mut names, "gateway", 2, [10, 0, 2, 16], 100));
    assert_eq!(names.conflicts, 2);
    let mac = vm(2).1;
    let later = |names: &mut Names| {
        names.claim(
            &name("vm1"),
            &Client::Mac(mac),
            (mac, Some(1)),
            [10, 0, 2, 16].into(),
            at(300),
            at(100),
        )
    };
    assert!(later(&mut names));
    assert_eq!(ask(&mut names, "vm1", TYPE::A, 100), found(&["10.0.2.16"]));
    // Another name for the same address replaces the first.
    assert!(claim(&mut names, "other", 2, [10, 0, 2, 16], 300));
    assert_eq!(ask(&mut names, "vm1.lan.example", TYPE::A, 100), Some((RCODE::NameError, vec![])));
    names.release([10, 0, 2, 16].into());
    assert_eq!(ask(&mut names, "other.lan.example", TYPE::A, 0), Some((RCODE::NameError, vec![])));
}

/// Goal: a name that the configuration gives a guest exists before the guest does.
#[test]
fn given_names() {
    let guest = Guest::Port("first".into());
    let (ipv4, ipv6) = (Some([10, 0, 2, 20].into()), None);
    let lease = StaticLease { ipv4, ipv6, name: Some(name("db")), ..StaticLease::of(guest) };
    let mut names = Names::new(&config());
    names.give_guest(0, &lease);
    assert_eq!(ask(&mut names, "db.lan.example", TYPE::A, 0), found(&["10.0.2.20"]));
    assert!(!claim(&mut names, "db", 2, [10, 0, 2, 30], 100));
    let (client, mac) = (Client::Static(0), vm(1).1);
    assert!(names.claim(
        &name("db"),
        &client,
        (mac, Some(1)),
        [10, 0, 2, 20].into(),
        at(50),
        at(0)
    ));
    // An address of the pool has the name for the time of its lease, renewed or not.
    for until in [40, 50] {
        assert!(names.claim(
            &name("db"),
            &client,
            (mac, Some(1)),
            GATEWAY6.into(),
            at(until),
            at(0)
        ));
    }
    names.release([10, 0, 2, 20].into());
    assert_eq!(ask(&mut names, "db", TYPE::A, 99), found(&["10.0.2.20"]));
    assert_eq!(ask(&mut names, "db", TYPE::AAAA, 49), found(&[&GATEWAY6.to_string()]));
    assert_eq!(ask(&mut names, "db", TYPE::AAAA, 50), found(&[]));
}

/// Goal: names and addresses are bounded, and there is room again when leases are over.
#[test]
fn names_are_bounded() {
    let mut names = Names::new(&config());
    for number in 0..NAMES_MAX as u32 + 10 {
        let address = Ipv4Addr::from(0x0a00_0000 + number);
        let fits = claim(&mut names, &format!("n{number}"), 1, address, 100);
        assert_eq!(fits, number < NAMES_MAX as u32 - 1, "{number}: one is the gateway's");
    }
    let mac = vm(1).1;
    let client = Client::Mac(mac);
    let address = |number: u32| IpAddr::from(Ipv4Addr::from(0x0b00_0000 + number));
    for number in 0..=ADDRESSES_PER_NAME_MAX {
        let fits = names.claim(
            &name("new"),
            &client,
            (mac, Some(1)),
            address(number as u32),
            at(300),
            at(200),
        );
        assert_eq!(fits, number < ADDRESSES_PER_NAME_MAX);
    }
    assert_eq!(names.by_name.len(), 2);
}

/// Goal: a name belongs to the station at its port. The same station address at another port does
/// not get the name until the first port is gone.
#[test]
fn a_name_belongs_to_its_port() {
    let mut names = Names::new(&config());
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let take = |names: &mut Names, port, last| {
        let station = (mac, Some(port));
        let client = Client::Mac(mac);
        names.claim(&name("vm1"), &client, station, [10, 0, 2, last].into(), at(100), at(0))
    };
    assert!(take(&mut names, 1, 15));
    assert!(!take(&mut names, 2, 16));
    assert!(take(&mut names, 1, 17), "another address of its own");
    names.forget_port(1);
    assert!(take(&mut names, 2, 16));
    assert!(!take(&mut names, 1, 18), "it belongs to the other port now");
}
