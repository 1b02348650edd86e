//! Tests of the DHCP server for IPv6, named by sections of RFC 8415.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::super::config::{Guest, StaticLease};
use super::super::testing::{Bench, DNS6, GATEWAY6, Vm, config, vm};
use super::*;
use towpath_net::wire::MacAddr;

fn ia(id: u32, addresses: &[Ipv6Addr]) -> IdentityAssociation {
    let lease = |address: &Ipv6Addr| AddressLease { address: *address, preferred_s: 0, valid_s: 0 };
    let addresses = addresses.iter().map(lease).collect();
    IdentityAssociation { id, renew_s: 0, rebind_s: 0, addresses, status: None }
}

fn message(kind: MessageType, vm: Vm, to_us: bool, asked: &[IdentityAssociation]) -> Message {
    let mut options = Options::default();
    options.push(option::CLIENT_ID, &duid_of(vm.1));
    if to_us {
        options.push(option::SERVER_ID, &duid_of(config().mac));
    }
    asked.iter().for_each(|ia| options.push(option::IA_NA, &ia.emit()));
    Message { kind, transaction_id: 0x01_0203, options }
}

fn associations(message: &Message) -> Vec<IdentityAssociation> {
    message.options.all(option::IA_NA).map(|ia| IdentityAssociation::parse(ia).unwrap()).collect()
}

/// Gets a lease with all four messages.
fn lease(bench: &mut Bench, vm: Vm, id: u32) -> Ipv6Addr {
    let solicit = message(MessageType::Solicit, vm, false, &[ia(id, &[])]);
    let advertise = bench.dhcpv6(vm, &solicit).expect("an answer");
    assert_eq!(advertise.kind, MessageType::Advertise);
    let offered = associations(&advertise)[0].addresses[0].address;
    let request = message(MessageType::Request, vm, true, &[ia(id, &[offered])]);
    let reply = bench.dhcpv6(vm, &request).expect("an answer");
    let got = associations(&reply)[0].addresses[0].address;
    assert_eq!((reply.kind, got), (MessageType::Reply, offered));
    got
}

/// §18.3.1, §18.3.2: both answers have what a client needs, and identify client and server.
#[test]
fn rfc8415_18_3_1_advertise_and_reply() {
    let mut bench = Bench::new(config());
    let asked = ia(7, &[]);
    let solicit = message(MessageType::Solicit, vm(1), false, std::slice::from_ref(&asked));
    let advertise = bench.dhcpv6(vm(1), &solicit).unwrap();
    assert_eq!(advertise.options.get(option::PREFERENCE), Some(&[255][..]));
    let request = message(MessageType::Request, vm(1), true, &[asked]);
    let reply = bench.dhcpv6(vm(1), &request).unwrap();
    for answer in [advertise, reply] {
        let options = &answer.options;
        assert_eq!(answer.transaction_id, 0x01_0203);
        assert_eq!(options.get(option::CLIENT_ID), Some(&duid_of(vm(1).1)[..]));
        assert_eq!(options.get(option::SERVER_ID), Some(&duid_of(config().mac)[..]));
        assert_eq!(options.get(option::DNS_SERVERS), Some(&DNS6.octets()[..]));
        let search = domain::parse_list(options.get(option::DOMAIN_LIST).unwrap());
        assert_eq!(search, Some(config().search));
        let [given] = &associations(&answer)[..] else { panic!("one association") };
        assert_eq!((given.id, given.renew_s, given.rebind_s), (7, 16_200, 25_920));
        let lease = given.addresses[0];
        assert_eq!((lease.preferred_s, lease.valid_s), (32_400, 43_200));
        assert!(config().ipv6.unwrap().pool.unwrap().contains(&lease.address));
    }
}

/// §18.3.1: rapid commit; §21.7: only the requested options; §16: a message with the wrong
/// identifiers is dropped.
#[test]
fn rfc8415_16_validation() {
    let mut bench = Bench::new(config());
    let mut rapid = message(MessageType::Solicit, vm(1), false, &[ia(1, &[])]);
    rapid.options.push(option::RAPID_COMMIT, &[]);
    rapid.options.push(option::ORO, &[0, 23]);
    let reply = bench.dhcpv6(vm(1), &rapid).unwrap();
    assert_eq!(reply.kind, MessageType::Reply);
    assert!(reply.options.get(option::RAPID_COMMIT).is_some());
    assert!(reply.options.get(option::DNS_SERVERS).is_some());
    assert!(reply.options.get(option::DOMAIN_LIST).is_none());
    for (kind, to_us) in [
        (MessageType::Solicit, true),
        (MessageType::Confirm, true),
        (MessageType::Rebind, true),
        (MessageType::Request, false),
        (MessageType::Renew, false),
        (MessageType::Release, false),
        (MessageType::Decline, false),
        (MessageType::Advertise, true),
        (MessageType::Reply, true),
        (MessageType::Reconfigure, true),
    ] {
        let bad = message(kind, vm(1), to_us, &[ia(1, &[])]);
        assert_eq!(bench.dhcpv6(vm(1), &bad), None, "{kind:?}");
    }
    // No identifier; an identifier that is too short; a truncated association.
    let nobody = Message { options: Options::default(), ..rapid.clone() };
    assert_eq!(bench.dhcpv6(vm(1), &nobody), None);
    let mut short = nobody.clone();
    short.options.push(option::CLIENT_ID, &[0, 3]);
    assert_eq!(bench.dhcpv6(vm(1), &short), None);
    let mut cut = message(MessageType::Solicit, vm(1), false, &[]);
    cut.options.push(option::IA_NA, &[0; 11]);
    assert_eq!(bench.dhcpv6(vm(1), &cut), None);
    assert_eq!(bench.services.counters().malformed, 13);
    let mut other = message(MessageType::Request, vm(1), false, &[ia(1, &[])]);
    other.options.push(option::SERVER_ID, &duid_of(vm(5).1));
    assert_eq!(bench.dhcpv6(vm(1), &other), None);
    assert_eq!(bench.services.counters().other_server, 1);
}

/// §18.3.3: addresses of this link are confirmed, others are not, and a message without one is
/// ignored.
#[test]
fn rfc8415_18_3_3_confirm() {
    let mut bench = Bench::new(config());
    let elsewhere: Ipv6Addr = "2001:db8::1".parse().unwrap();
    for (asked, expected) in [
        (vec![GATEWAY6], Some(Status::SUCCESS)),
        (vec![GATEWAY6, elsewhere], Some(Status::NOT_ON_LINK)),
        (vec![], None),
    ] {
        let confirm = message(MessageType::Confirm, vm(1), false, &[ia(1, &asked)]);
        let reply = bench.dhcpv6(vm(1), &confirm);
        assert_eq!(reply.map(|reply| Status::of(&reply.options).unwrap()), expected);
    }
}

/// §18.3.2: NotOnLink for an address of another link; §18.3.4 and §18.3.5: addresses that the
/// client should no longer use get zero lifetimes; leases are extended, and expire without renewal.
#[test]
fn rfc8415_18_3_4_renew_and_rebind() {
    let mut bench = Bench::new(config());
    let elsewhere: Ipv6Addr = "2001:db8::1".parse().unwrap();
    let request = message(MessageType::Request, vm(1), true, &[ia(1, &[elsewhere])]);
    let answer = associations(&bench.dhcpv6(vm(1), &request).unwrap());
    assert_eq!((answer[0].status, answer[0].addresses.len()), (Some(Status::NOT_ON_LINK), 0));
    let address = lease(&mut bench, vm(1), 1);
    for kind in [MessageType::Renew, MessageType::Rebind] {
        bench.pass(Duration::from_secs(43_199));
        let to_us = kind == MessageType::Renew;
        let renew = message(kind, vm(1), to_us, &[ia(1, &[elsewhere, address])]);
        let answer = associations(&bench.dhcpv6(vm(1), &renew).unwrap());
        let times: Vec<_> =
            answer[0].addresses.iter().map(|lease| (lease.address, lease.valid_s)).collect();
        assert_eq!(times, [(address, 43_200), (elsewhere, 0)]);
    }
    bench.pass(Duration::from_secs(43_200));
    let solicit = message(MessageType::Solicit, vm(2), false, &[ia(1, &[address])]);
    let answer = associations(&bench.dhcpv6(vm(2), &solicit).unwrap());
    assert_eq!(answer[0].addresses[0].address, address);
}

/// §18.3.7, §18.3.8: an address released by its holder is free, a declined one is quarantined; a
/// client that does not have it gets NoBinding.
#[test]
fn rfc8415_18_3_7_release_and_decline() {
    let mut bench = Bench::new(config());
    let first = lease(&mut bench, vm(1), 1);
    let second = lease(&mut bench, vm(1), 2);
    let thief = message(MessageType::Release, vm(2), true, &[ia(1, &[first])]);
    let reply = bench.dhcpv6(vm(2), &thief).unwrap();
    assert_eq!(Status::of(&reply.options), Some(Status::SUCCESS));
    assert_eq!(associations(&reply)[0].status, Some(Status::NO_BINDING));
    let release = message(MessageType::Release, vm(1), true, &[ia(1, &[first])]);
    assert!(associations(&bench.dhcpv6(vm(1), &release).unwrap()).is_empty());
    let decline = message(MessageType::Decline, vm(1), true, &[ia(2, &[second])]);
    assert!(associations(&bench.dhcpv6(vm(1), &decline).unwrap()).is_empty());
    let counters = bench.services.counters();
    assert_eq!((counters.releases, counters.declines, counters.not_yours), (1, 1, 1));
    for (wanted, granted) in [(first, true), (second, false)] {
        let solicit = message(MessageType::Solicit, vm(2), false, &[ia(9, &[wanted])]);
        let answer = associations(&bench.dhcpv6(vm(2), &solicit).unwrap());
        assert_eq!(answer[0].addresses[0].address == wanted, granted);
    }
}

/// §18.3.6: information alone, also for clients without an identifier, and from a server without
/// leases.
#[test]
fn rfc8415_18_3_6_information() {
    let mut config = config();
    config.ipv6.as_mut().unwrap().pool = None;
    let mut bench = Bench::new(config);
    let asked = Message {
        kind: MessageType::InformationRequest,
        transaction_id: 5,
        options: Options::default(),
    };
    let reply = bench.dhcpv6(vm(1), &asked).unwrap();
    assert_eq!(reply.options.get(option::DNS_SERVERS), Some(&DNS6.octets()[..]));
    let solicit = message(MessageType::Solicit, vm(1), false, &[ia(1, &[])]);
    let answer = associations(&bench.dhcpv6(vm(1), &solicit).unwrap());
    assert_eq!(answer[0].status, Some(Status::NO_ADDRESSES));
}

/// Static leases apply to the first association, by port, link-layer address or identifier; in a
/// message with many associations, only some are answered.
#[test]
fn static_leases_and_many_associations() {
    let address = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    let lease_of =
        |guest, last| StaticLease { ipv6: Some(address(last)), ..StaticLease::of(guest) };
    let mut bench = Bench::new(config());
    bench.services.name_port(1, "first");
    for lease in [
        lease_of(Guest::Port("first".into()), 0x20),
        lease_of(Guest::Mac(vm(2).1), 0x21),
        lease_of(Guest::Duid(duid_of(MacAddr([9; 6])).into()), 0x1022),
    ] {
        bench.services.add_static_lease(lease, bench.now).unwrap();
    }
    assert_eq!(lease(&mut bench, vm(1), 1), address(0x20));
    assert_eq!(lease(&mut bench, vm(2), 77), address(0x21));
    let many: Vec<_> = (0..10).map(|id| ia(id, &[])).collect();
    let solicit = message(MessageType::Solicit, vm(1), false, &many);
    let answers = associations(&bench.dhcpv6(vm(1), &solicit).unwrap());
    assert_eq!(answers.len(), ASSOCIATIONS_MAX);
    assert_eq!(answers[0].addresses[0].address, address(0x20));
    let given: std::collections::HashSet<_> =
        answers.iter().flat_map(|ia| &ia.addresses).map(|lease| lease.address).collect();
    assert_eq!(given.len(), ASSOCIATIONS_MAX, "each association has its own address");
}
