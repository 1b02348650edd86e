//! Hosts that lease addresses of one network.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::config::{Automatic, Guest, StaticLease, StaticLeaseError};
use super::super::testing::{Bench, GATEWAY, Vm, config, message, vm};
use super::super::wire::dhcpv4::{Message, MessageType, option};
use super::*;

/// Long enough for all but the renewal of leases.
const SECOND: Duration = Duration::from_secs(1);

fn host(number: u8) -> IpAddr {
    [192, 0, 2, number].into()
}

/// The host with this number, which shares the pool with others.
fn bench(number: u8, others: &[u8]) -> Bench {
    let mut bench = Bench::new(config());
    bench.services.share(host(number), true, true);
    for other in others {
        hear(&mut bench, Change::AddFlood(host(*other)), false);
    }
    bench.services.settle();
    bench
}

fn hear(bench: &mut Bench, change: Change, is_here: bool) -> Option<Conflict> {
    bench.services.hear(change, |_| is_here, bench.now)
}

fn announced(vm: Vm, address: Ipv4Addr) -> Change {
    Change::AddAddress { address: address.into(), mac: vm.1 }
}

fn kind(message: &Message) -> MessageType {
    MessageType::of(&message.options).unwrap()
}

fn discover(bench: &mut Bench, vm: Vm) -> Option<Ipv4Addr> {
    let offer = bench.dhcpv4(vm, &message(vm, MessageType::Discover, &[]))?;
    Some(offer.your_address)
}

/// Asks for an address as a client that starts again.
fn reboot(bench: &mut Bench, vm: Vm, address: Ipv4Addr) -> Option<MessageType> {
    let options = [(option::REQUESTED_ADDRESS, &address.octets()[..])];
    let answer = bench.dhcpv4(vm, &message(vm, MessageType::Request, &options))?;
    Some(kind(&answer))
}

/// Renews a lease.
fn renew(bench: &mut Bench, vm: Vm, address: Ipv4Addr) -> MessageType {
    let mut renew = message(vm, MessageType::Request, &[]);
    renew.client_address = address;
    kind(&bench.dhcpv4(vm, &renew).unwrap())
}

fn lease(bench: &mut Bench, vm: Vm) -> Ipv4Addr {
    let address = discover(bench, vm).expect("an offer");
    let (server, wanted) = (GATEWAY.octets(), address.octets());
    let options = [(option::SERVER_ID, &server[..]), (option::REQUESTED_ADDRESS, &wanted[..])];
    let ack = bench.dhcpv4(vm, &message(vm, MessageType::Request, &options)).unwrap();
    assert_eq!((kind(&ack), ack.your_address), (MessageType::Ack, address));
    address
}

/// Goal: no two hosts give clients the same address, and together they give all.
#[test]
fn hosts_lease_their_shares() {
    let mut given: HashMap<Ipv4Addr, u8> = HashMap::new();
    for number in [1, 2, 3] {
        let others: Vec<u8> = (1..=3).filter(|other| *other != number).collect();
        let mut bench = bench(number, &others);
        // Each guest has a port of its own, as those of one port are bounded.
        for guest in 0..=u8::MAX {
            let Some(address) = discover(&mut bench, vm(guest)) else { break };
            assert_eq!(given.insert(address, number), None, "{address}");
        }
        assert_eq!(bench.services.counters().pool_exhausted, 1);
    }
    assert_eq!(given.len(), 90, "the pool of the configuration");
}

/// Goal: an address that was offered here and is leased by another host meanwhile is not given out,
/// whichever station has the lower address; an offer is no conflict.
#[test]
fn an_offer_yields_to_a_lease() {
    for other in [1, 3] {
        let mut bench = bench(1, &[]);
        let offered = discover(&mut bench, vm(2)).expect("an offer");
        assert_eq!(hear(&mut bench, announced(vm(other), offered), false), None);
        assert_eq!(reboot(&mut bench, vm(2), offered), Some(MessageType::Nak));
        assert_ne!(lease(&mut bench, vm(2)), offered);
    }
}

/// Goal: a host that does not know the others yet serves only clients whose address it knows.
#[test]
fn a_host_waits_until_it_knows_the_others() {
    let mut bench = Bench::new(config());
    let before = lease(&mut bench, vm(1));
    bench.services.share(host(1), true, true);
    assert_eq!(renew(&mut bench, vm(1), before), MessageType::Ack);
    let wanted = Ipv4Addr::from(u32::from(before) + 1);
    assert_eq!(discover(&mut bench, vm(2)), None);
    assert_eq!(reboot(&mut bench, vm(2), wanted), None, "neither granted nor refused");
    hear(&mut bench, announced(vm(2), wanted), false);
    assert_eq!(reboot(&mut bench, vm(2), wanted), Some(MessageType::Ack));
    assert_eq!(bench.services.counters().settling, 2);
    bench.services.settle();
    assert!(discover(&mut bench, vm(3)).is_some());
}

/// Goal: a guest that moves to another host keeps its address there, whether it asks for it or not,
/// before the old host has let it go or after, and no one else gets the address at either host.
#[test]
fn a_guest_keeps_its_address_at_another_host() {
    let mut old = bench(1, &[2]);
    let address = lease(&mut old, vm(1));
    assert_eq!(old.services.port_of(vm(1).1, old.now), Some(1));
    for is_told_before in [false, true] {
        let mut new = bench(2, &[1]);
        hear(&mut new, announced(vm(1), address), false);
        assert_ne!(reboot(&mut new, vm(9), address), Some(MessageType::Ack));
        if is_told_before {
            hear(&mut new, Change::DelAddress(address.into()), true);
            assert_eq!(new.services.brought(vm(1).1, new.now), [IpAddr::from(address)]);
        }
        assert_eq!(discover(&mut new, vm(1)), Some(address));
        assert_eq!(reboot(&mut new, vm(1), address), Some(MessageType::Ack));
        hear(&mut new, Change::DelAddress(address.into()), true);
        new.pass(SECOND);
        assert_eq!(reboot(&mut new, vm(9), address), Some(MessageType::Nak));
        assert_eq!(renew(&mut new, vm(1), address), MessageType::Ack);
        assert_eq!(new.services.port_of(vm(1).1, new.now), Some(1));
        assert_eq!(new.services.brought(vm(1).1, new.now), [] as [IpAddr; 0], "it is leased here");
    }
    // The old host: nothing holds the station, and its address stays its own.
    old.services.moved_away(&HashSet::from([vm(1).1]));
    hear(&mut old, announced(vm(1), address), false);
    assert_eq!(old.services.port_of(vm(1).1, old.now), None);
    assert_eq!(old.services.holder(address.into(), old.now), None);
    assert_eq!(reboot(&mut old, vm(9), address), Some(MessageType::Nak));
    // It comes back, to another port.
    hear(&mut old, Change::DelAddress(address.into()), true);
    let Vm(_, mac) = vm(1);
    assert_eq!(reboot(&mut old, Vm(7, mac), address), Some(MessageType::Ack));
    assert_eq!(old.services.port_of(mac, old.now), Some(7));
}

/// Goal: an address outlives the host that leased it by the lease time, for its station only.
#[test]
fn an_address_of_a_host_that_failed_is_kept() {
    let mut bench = bench(1, &[]);
    let address = discover(&mut bench, vm(2)).unwrap();
    bench.pass(Duration::from_secs(60));
    hear(&mut bench, announced(vm(1), address), false);
    hear(&mut bench, Change::DelAddress(address.into()), false);
    bench.pass(config().lease_time - SECOND);
    assert_eq!(reboot(&mut bench, vm(2), address), Some(MessageType::Nak));
    assert_eq!(bench.services.brought(vm(1).1, bench.now), [] as [IpAddr; 0], "it is not here");
    bench.pass(SECOND);
    assert_eq!(reboot(&mut bench, vm(2), address), Some(MessageType::Ack));
}

/// Goal: two hosts that have leased one address agree on the guest that keeps it; the other one is
/// refused when it renews, and gets another address. It is reported and counted once.
#[test]
fn a_conflict_ends_at_the_renewal() {
    let [mut low, mut high] = [1, 2].map(|number| bench(number, &[]));
    let address = lease(&mut low, vm(1));
    assert_eq!(reboot(&mut high, vm(2), address), Some(MessageType::Ack), "apart, both lease all");
    hear(&mut low, Change::AddFlood(host(2)), false);
    hear(&mut high, Change::AddFlood(host(1)), false);
    let kept = hear(&mut low, announced(vm(2), address), false).expect("a conflict");
    let lost = hear(&mut high, announced(vm(1), address), false).expect("a conflict");
    assert!(!kept.is_lost && lost.is_lost, "{kept} {lost}");
    assert_eq!((kept.port, lost.port), (1, 2));
    assert_eq!(hear(&mut high, announced(vm(1), address), false), None, "it is known");
    assert_eq!([&low, &high].map(|bench| bench.services.counters().conflicts), [1, 1]);

    assert_eq!(renew(&mut low, vm(1), address), MessageType::Ack);
    assert_eq!(renew(&mut high, vm(2), address), MessageType::Nak);
    assert_ne!(lease(&mut high, vm(2)), address);
    // The one that keeps it does not wait for the other one to end.
    hear(&mut low, Change::DelAddress(address.into()), false);
    assert_eq!(renew(&mut low, vm(1), address), MessageType::Ack);
}

/// A static lease is this host's own: no conflict ends it, and its address is never given away.
#[test]
fn a_static_lease_stays() {
    let mut bench = bench(1, &[2]);
    let address = Ipv4Addr::new(10, 0, 2, 200);
    let lease_of =
        |vm: Vm| StaticLease { ipv4: Some(address), ..StaticLease::of(Guest::Mac(vm.1)) };
    bench.services.add_static_lease(lease_of(vm(5)), bench.now).unwrap();
    assert_eq!(lease(&mut bench, vm(5)), address);
    let conflict = hear(&mut bench, announced(vm(1), address), false).expect("a conflict");
    assert!(!conflict.is_lost);
    assert_eq!(renew(&mut bench, vm(5), address), MessageType::Ack);
    assert_ne!(discover(&mut bench, vm(1)), Some(address));
    // Before it is leased here, it is not given to two: the other one has to go first.
    bench.pass(config().lease_time);
    assert_eq!(discover(&mut bench, vm(5)), None);
    hear(&mut bench, Change::DelAddress(address.into()), false);
    assert_eq!(lease(&mut bench, vm(5)), address);
}

/// Reserves an address for the guest at a port, which the network chooses unless it is given.
fn attach(
    bench: &mut Bench,
    vm: Vm,
    address: Option<Ipv4Addr>,
) -> Result<Ipv4Addr, StaticLeaseError> {
    let name = format!("port{}", vm.0);
    bench.services.name_port(vm.0, &name);
    let guest = Guest::Port(name);
    let lease =
        StaticLease { ipv4: address, station: Some(vm.1), ..StaticLease::of(guest.clone()) };
    let auto = Automatic { ipv4: true, ..Automatic::default() };
    bench.services.add_automatic_lease(lease, auto, bench.now)?;
    let mut added = bench.services.static_leases().filter(|lease| lease.guest == guest);
    Ok(added.next().and_then(|lease| lease.ipv4).expect("it has an address"))
}

fn detach(bench: &mut Bench, vm: Vm) {
    bench.services.remove_static_lease(&Guest::Port(format!("port{}", vm.0))).unwrap();
}

/// Goal: addresses that are chosen for static leases are of the host's share, once it is known, as
/// those of clients are. Together hosts reserve all addresses, and none twice, for the same guests.
#[test]
fn hosts_reserve_addresses_of_their_shares() {
    let mut given: HashMap<Ipv4Addr, u8> = HashMap::new();
    for number in [1, 2] {
        let mut bench = Bench::new(config());
        bench.services.share(host(number), true, true);
        assert_eq!(attach(&mut bench, vm(0), None), Err(StaticLeaseError::Settling));
        hear(&mut bench, Change::AddFlood(host(3 - number)), false);
        bench.services.settle();
        let leased = lease(&mut bench, vm(200));
        given.insert(leased, number);
        for guest in 0.. {
            match attach(&mut bench, vm(guest), None) {
                Ok(address) => assert_eq!(given.insert(address, number), None, "{address}"),
                Err(error) => {
                    assert_eq!(error, StaticLeaseError::Exhausted(4));
                    break;
                }
            }
        }
    }
    assert_eq!(given.len(), 90, "the pool of the configuration");
}

/// Goal: a guest that is attached again gets its address again, and a station that comes from
/// another host the one that it had there, once that host has let it go.
#[test]
fn a_guest_that_is_attached_again_keeps_its_address() {
    let mut bench = bench(1, &[2]);
    let first = attach(&mut bench, vm(1), None).unwrap();
    let second = attach(&mut bench, vm(2), None).unwrap();
    detach(&mut bench, vm(1));
    assert_ne!(attach(&mut bench, vm(3), None), Ok(second));
    assert_eq!(attach(&mut bench, vm(1), None), Ok(first));

    let elsewhere = Ipv4Addr::new(10, 0, 2, 200);
    hear(&mut bench, announced(vm(4), elsewhere), false);
    assert_ne!(attach(&mut bench, vm(4), None), Ok(elsewhere), "the other host has it");
    detach(&mut bench, vm(4));
    hear(&mut bench, Change::DelAddress(elsewhere.into()), false);
    assert_eq!(attach(&mut bench, vm(4), None), Ok(elsewhere));
    assert_eq!(bench.services.brought(vm(4).1, bench.now), [] as [IpAddr; 0]);
}

/// Goal: a given address need not be of the share. It is refused while another host announces it
/// for another station, once that is known; and if both hosts give it in the same moment, that is a
/// conflict.
#[test]
fn a_given_address_is_not_anothers() {
    let mut new = Bench::new(config());
    new.services.share(host(1), true, true);
    let early = attach(&mut new, vm(1), Some(Ipv4Addr::new(10, 0, 2, 200)));
    assert_eq!(early, Err(StaticLeaseError::Settling));
    let mut bench = bench(1, &[2]);
    let address = Ipv4Addr::new(10, 0, 2, 200);
    hear(&mut bench, announced(vm(9), address), false);
    let refused = StaticLeaseError::Announced { address: address.into(), mac: vm(9).1 };
    assert_eq!(attach(&mut bench, vm(1), Some(address)), Err(refused));
    assert_eq!(attach(&mut bench, vm(9), Some(address)), Ok(address), "its own");
    detach(&mut bench, vm(9));
    hear(&mut bench, Change::DelAddress(address.into()), false);
    assert_eq!(attach(&mut bench, vm(1), Some(address)), Ok(address));
    let conflict = hear(&mut bench, announced(vm(9), address), false).expect("a conflict");
    assert_eq!((conflict.port, conflict.here, conflict.is_lost), (1, vm(1).1, false));
}
