//! Where stations are, for announcements in any order.

use proptest::prelude::*;

use super::station::MOVES_MAX;
use super::*;

const AS: u32 = 65001;

fn vni() -> Vni {
    Vni::new(100).unwrap()
}

fn host(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, number])
}

fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

fn at(seconds: u64) -> Instant {
    Instant::START + Duration::from_secs(seconds)
}

/// The table of host 11, with network 100.
fn table() -> Table {
    let mut table = Table::new(host(11), Ipv4Addr::new(192, 0, 2, 11), AS);
    assert!(table.add_network(vni()));
    table.take_touched();
    table
}

fn attributes(from: u8, mobility: Mobility) -> Attributes {
    Attributes {
        next_hop: host(from),
        targets: vec![[0, 2, 0xfd, 0xe9, 0, 0, 0, 100]],
        mobility,
        is_vxlan: true,
        replicates: false,
        flood_vni: 0,
        originator: None,
        has_as_path: false,
    }
}

fn key(from: u8, route: Route) -> RouteKey {
    RouteKey { distinguisher: [0, 1, 192, 0, 2, from, 0, 1], route }
}

fn station(from: u8, number: u8, mobility: Mobility) -> Update {
    let key = key(from, Route::Station(mac(number), None));
    Update {
        attributes: Some(attributes(from, mobility)),
        announced: vec![(key, 100)],
        ..Update::default()
    }
}

fn gone(from: u8, number: u8) -> Update {
    let withdrawn = vec![key(from, Route::Station(mac(number), None))];
    Update { withdrawn, ..Update::default() }
}

fn moved(sequence: u32) -> Mobility {
    Mobility { is_sticky: false, sequence }
}

fn changes(table: &mut Table) -> Vec<Change> {
    table.take_changes().into_iter().map(|(_, change)| change).collect()
}

fn at_host(number: u8, from: u8) -> Change {
    Change::AddStation { mac: mac(number), remote: host(from) }
}

fn own_mobility(table: &Table, number: u8) -> Option<Mobility> {
    table.own.get(&OwnRoute { vni: vni(), number: 1, station: Some((mac(number), None)) }).copied()
}

#[test]
fn the_best_path_is_sticky_then_newest_then_lowest() {
    let mut table = table();
    table.update(0, &station(14, 1, moved(0)), at(0));
    table.update(0, &station(13, 1, moved(0)), at(0));
    table.update(0, &station(15, 1, moved(1)), at(0));
    let sticky = Mobility { is_sticky: true, sequence: 0 };
    table.update(0, &station(16, 1, sticky), at(0));
    let expected = [at_host(1, 14), at_host(1, 13), at_host(1, 15), at_host(1, 16)];
    assert_eq!(changes(&mut table), expected);
    table.update(0, &gone(16, 1), at(0));
    table.update(0, &gone(15, 1), at(0));
    table.update(0, &gone(13, 1), at(0));
    table.update(0, &gone(14, 1), at(0));
    let expected = [at_host(1, 15), at_host(1, 13), at_host(1, 14), Change::DelStation(mac(1))];
    assert_eq!(changes(&mut table), expected);
    assert!(table.stations.values().all(Station::is_gone) && table.paths == 0);
}

/// RFC 7432 §15: the new place announces the next number, the old one withdraws.
#[test]
fn a_station_that_moves_keeps_one_place() {
    let mut table = table();
    table.update(0, &station(12, 1, moved(3)), at(0));
    table.learn(vni(), mac(1), &[], false, at(1)).unwrap();
    assert_eq!(changes(&mut table), [at_host(1, 12), Change::DelStation(mac(1))]);
    assert_eq!(own_mobility(&table, 1), Some(moved(4)));
    // Until the other host has heard of it, its route is there and does not matter.
    table.update(0, &gone(12, 1), at(1));
    assert_eq!(changes(&mut table), []);
    // It moves on.
    table.update(0, &station(12, 1, moved(5)), at(2));
    assert_eq!(changes(&mut table), [at_host(1, 12)]);
    assert_eq!(own_mobility(&table, 1), None);
    assert_eq!((table.counters.moved_here, table.counters.moved_away), (1, 1));
}

/// Goal: a station whose routes have all been withdrawn continues with its number where it was
/// last, and with the next one at another host, so that speakers that remember the number do not
/// ignore it; and the memory for that is bounded.
#[test]
fn a_station_that_comes_back_continues_with_its_number() {
    let mut table = table();
    // This host had it last.
    table.update(0, &station(12, 1, moved(3)), at(0));
    table.learn(vni(), mac(1), &[], false, at(1)).unwrap();
    table.update(0, &gone(12, 1), at(1));
    table.forget(vni(), mac(1), at(2));
    assert_eq!(own_mobility(&table, 1), None);
    table.learn(vni(), mac(1), &[], false, at(300)).unwrap();
    assert_eq!(own_mobility(&table, 1), Some(moved(4)));
    // Another host had it last, and withdrew it before it was heard here.
    table.update(0, &station(12, 2, moved(0)), at(300));
    table.update(0, &gone(12, 2), at(300));
    table.learn(vni(), mac(2), &[], false, at(300)).unwrap();
    assert_eq!(own_mobility(&table, 2), Some(moved(1)));
    assert_eq!(table.counters.moved_here, 2);
    // Long after that it is new.
    table.forget(vni(), mac(2), at(300));
    table.tick(at(3899));
    assert!(table.stations.contains_key(&(vni(), mac(2))));
    table.tick(at(3900));
    assert!(!table.stations.contains_key(&(vni(), mac(2))));
    for round in 0..2 * NUMBERS_MAX {
        let [.., a, b] = (round as u32).to_be_bytes();
        let route = Route::Station(MacAddr([2, 1, 0, 0, a, b]), None);
        let announced = vec![(key(12, route), 100)];
        let attributes = Some(attributes(12, moved(1)));
        table.update(0, &Update { attributes, announced, ..Update::default() }, at(4000));
        table.update(0, &Update { withdrawn: vec![key(12, route)], ..Update::default() }, at(4000));
    }
    assert_eq!((table.gone.len(), table.stations.len()), (NUMBERS_MAX, 1 + NUMBERS_MAX));
}

/// Both hosts saw the station first: the lower VTEP keeps it (RFC 7432 §15).
#[test]
fn equal_numbers_are_decided_by_the_lower_vtep() {
    for (other, keeps) in [(10, false), (12, true)] {
        let mut table = table();
        table.learn(vni(), mac(1), &[], false, at(0)).unwrap();
        table.update(0, &station(other, 1, moved(0)), at(0));
        assert_eq!(own_mobility(&table, 1).is_some(), keeps, "{other}");
    }
}

#[test]
fn a_sticky_station_of_another_host_is_not_announced() {
    let mut table = table();
    table.update(0, &station(12, 1, Mobility { is_sticky: true, sequence: 0 }), at(0));
    assert_eq!(table.learn(vni(), mac(1), &[], false, at(0)), Err(LearnError::Sticky));
    assert_eq!(changes(&mut table), [at_host(1, 12)]);
    assert_eq!(table.counters.sticky, 1);
    // A sticky station of this host does not move away.
    table.learn(vni(), mac(2), &[], true, at(0)).unwrap();
    table.update(0, &station(12, 2, moved(9)), at(0));
    assert!(own_mobility(&table, 2).unwrap().is_sticky);
}

/// RFC 7432 §15.1: five moves within 180 seconds.
#[test]
fn a_duplicate_is_not_followed() {
    let mut table = table();
    let mut sequence = 0;
    let mut second = 0;
    let mut outcome = Ok(());
    while outcome.is_ok() && second < 20 {
        table.update(0, &station(12, 1, moved(sequence)), at(second));
        outcome = table.learn(vni(), mac(1), &[], false, at(second));
        sequence += 2;
        second += 1;
    }
    assert_eq!(outcome, Err(LearnError::Duplicate));
    let counters = table.counters;
    let moves = counters.moved_here + counters.moved_away;
    assert_eq!((moves, counters.duplicates), (u64::from(MOVES_MAX) - 1, 1));
    // It stays at the other host, and still does after many more attempts.
    assert_eq!(table.learn(vni(), mac(1), &[], false, at(30)), Err(LearnError::Duplicate));
    assert_eq!(table.stations[&(vni(), mac(1))].chosen, Some(host(12)));
    // Later it may move again.
    let end = table.deadline().unwrap();
    table.tick(end);
    table.learn(vni(), mac(1), &[], false, end).unwrap();
    assert_eq!(table.deadline(), None);
}

#[test]
fn slow_moves_make_no_duplicate() {
    let mut table = table();
    for round in 0..20 {
        let now = at(round * 91);
        table.update(0, &station(12, 1, moved(2 * round as u32)), now);
        table.learn(vni(), mac(1), &[], false, now).unwrap();
    }
    assert_eq!(table.counters.duplicates, 0);
}

#[test]
fn routes_for_other_networks_and_data_planes_are_not_used() {
    let mut table = table();
    let good = station(12, 1, moved(0));
    let with = |change: fn(&mut Update, &mut Attributes)| {
        let mut update = good.clone();
        let mut attributes = update.attributes.take().unwrap();
        change(&mut update, &mut attributes);
        Update { attributes: Some(attributes), ..update }
    };
    table.update(0, &with(|_, of| of.targets[0][7] = 101), at(0));
    table.update(0, &with(|_, of| of.targets[0][3] = 1), at(0));
    assert_eq!(table.counters.foreign, 2);
    table.update(0, &with(|of, _| of.announced[0].1 = 101), at(0));
    table.update(0, &with(|_, of| of.is_vxlan = false), at(0));
    table.update(0, &with(|_, of| of.has_as_path = true), at(0));
    table.update(0, &with(|_, of| of.next_hop = "2001:db8::1".parse().unwrap()), at(0));
    assert_eq!(table.counters.unusable, 4);
    table.update(0, &with(|_, of| of.next_hop = host(11)), at(0));
    assert_eq!(table.counters.own, 1);
    assert_eq!(changes(&mut table), []);
    // RFC 8365 §5.1.2.1: the target that says that it holds a VNI.
    table.update(0, &with(|_, of| of.targets[0][4] = 0x10), at(0));
    assert_eq!(changes(&mut table), [at_host(1, 12)]);
    // The same route for another network withdraws it here.
    table.update(0, &with(|_, of| of.targets[0][7] = 101), at(0));
    assert_eq!(changes(&mut table), [Change::DelStation(mac(1))]);
}

#[test]
fn addresses_follow_the_station() {
    let mut table = table();
    let address = IpAddr::from([10, 0, 0, 1]);
    let with_address = |from: u8, sequence| {
        let mut update = station(from, 1, moved(sequence));
        update.announced[0].0.route = Route::Station(mac(1), Some(address));
        update
    };
    table.update(0, &with_address(12, 0), at(0));
    let added = Change::AddAddress { address, mac: mac(1) };
    assert_eq!(changes(&mut table), [at_host(1, 12), added]);
    // The address is the same at the new place.
    table.update(0, &with_address(13, 1), at(0));
    assert_eq!(changes(&mut table), [at_host(1, 13)]);
    table.learn(vni(), mac(1), &[address], false, at(0)).unwrap();
    assert_eq!(changes(&mut table), [Change::DelStation(mac(1)), Change::DelAddress(address)]);
    let own = OwnRoute { vni: vni(), number: 1, station: Some((mac(1), Some(address))) };
    assert_eq!(table.own.get(&own), Some(&moved(2)));
    // A station that gives its address up.
    table.learn(vni(), mac(1), &[], false, at(0)).unwrap();
    assert_eq!(table.own.get(&own), None);
    assert_eq!(own_mobility(&table, 1), Some(moved(2)));
}

/// Two stations with one address: the data plane has the lower one, in any order of routes, and the
/// other when that one is gone.
#[test]
fn the_lower_station_has_a_common_address() {
    let address = IpAddr::from([10, 0, 0, 1]);
    let of = |number: u8| {
        let mut update = station(12, number, moved(0));
        update.announced[0].0.route = Route::Station(mac(number), Some(address));
        update
    };
    let withdrawn = |number: u8| {
        let withdrawn = vec![key(12, Route::Station(mac(number), Some(address)))];
        Update { withdrawn, ..Update::default() }
    };
    let owner = |number: u8| Change::AddAddress { address, mac: mac(number) };
    for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
        let mut table = table();
        order.iter().for_each(|number| table.update(0, &of(*number), at(0)));
        let last = |changes: Vec<Change>| {
            changes.into_iter().rfind(|change| !matches!(change, Change::AddStation { .. }))
        };
        assert_eq!(last(changes(&mut table)), Some(owner(1)), "{order:?}");
        table.update(0, &withdrawn(2), at(0));
        assert_eq!(changes(&mut table), [Change::DelStation(mac(2))]);
        table.update(0, &withdrawn(1), at(0));
        assert_eq!(changes(&mut table), [Change::DelStation(mac(1)), owner(3)]);
        table.update(0, &withdrawn(3), at(0));
        assert_eq!(changes(&mut table), [Change::DelStation(mac(3)), Change::DelAddress(address)]);
        assert!(table.owners.is_empty());
    }
}

#[test]
fn a_network_is_removed_with_all_that_belongs_to_it() {
    let mut table = table();
    table.update(0, &station(12, 1, moved(0)), at(0));
    table.learn(vni(), mac(2), &[[10, 0, 0, 2].into()], false, at(0)).unwrap();
    table.take_touched();
    assert!(table.remove_network(vni()) && !table.remove_network(vni()));
    assert_eq!((table.paths, table.stations.len(), table.own.len()), (0, 0, 0));
    let withdrawn = table.take_touched();
    let keys: Vec<RouteKey> = withdrawn.iter().map(|route| table.key(route)).collect();
    assert_eq!(keys.len(), 3, "{keys:?}");
    assert!(keys.contains(&key(11, Route::Flood(host(11)))));
    assert_eq!(changes(&mut table), [], "the data plane is gone");
    // It comes back as another network: withdrawals of the old routes do not touch the new ones.
    assert!(table.add_network(vni()));
    let route = table.take_touched()[0];
    assert_eq!(table.key(&route).distinguisher, [0, 1, 192, 0, 2, 11, 0, 2]);
}

#[test]
fn flooding_reaches_each_vtep_once() {
    let mut table = table();
    let flood = |from: u8, vtep: u8| {
        let mut attributes = attributes(vtep, moved(0));
        attributes.replicates = true;
        attributes.flood_vni = 100;
        let key = key(from, Route::Flood(host(from)));
        Update { attributes: Some(attributes), announced: vec![(key, 0)], ..Update::default() }
    };
    // Two reflectors.
    table.update(0, &flood(12, 12), at(0));
    table.update(1, &flood(12, 12), at(0));
    assert_eq!(changes(&mut table), [Change::AddFlood(host(12))]);
    table.sweep(0, false, at(0));
    assert_eq!(changes(&mut table), []);
    // The host has another address.
    table.update(1, &flood(12, 13), at(0));
    assert_eq!(changes(&mut table), [Change::DelFlood(host(12)), Change::AddFlood(host(13))]);
    table.sweep(1, false, at(0));
    assert_eq!(changes(&mut table), [Change::DelFlood(host(13))]);
    assert_eq!(table.paths, 0);
}

#[test]
fn stale_paths_stay_until_they_are_swept() {
    let mut table = table();
    table.update(0, &station(12, 1, moved(0)), at(0));
    table.update(0, &station(12, 2, moved(0)), at(0));
    changes(&mut table);
    table.mark_stale(0);
    assert_eq!(table.paths_of(0), (2, 2));
    table.update(0, &station(12, 1, moved(0)), at(1));
    table.sweep(0, true, at(2));
    assert_eq!(changes(&mut table), [Change::DelStation(mac(2))]);
    assert_eq!(table.paths_of(0), (1, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Announce(u8, u8, Mobility),
    Withdraw(u8, u8),
    Learn(u8, bool),
    Forget(u8),
    Lose(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let mobility =
        (any::<bool>(), 0u32..4).prop_map(|(is_sticky, sequence)| Mobility { is_sticky, sequence });
    prop_oneof![
        4 => (9u8..14, 1u8..4, mobility).prop_map(|(from, mac, mobility)| {
            Step::Announce(from, mac, mobility)
        }),
        2 => (9u8..14, 1u8..4).prop_map(|(from, mac)| Step::Withdraw(from, mac)),
        2 => (1u8..4, any::<bool>()).prop_map(|(mac, is_sticky)| Step::Learn(mac, is_sticky)),
        1 => (1u8..4).prop_map(Step::Forget),
        1 => (0u8..2).prop_map(Step::Lose),
    ]
}

proptest! {
    /// Goal: the data plane that carries out all changes has what the table holds; a station that
    /// is announced as being here is at no other host; counts agree. Method: a model that only
    /// carries out changes.
    #[test]
    fn changes_lead_to_the_state(steps in proptest::collection::vec(step(), 1..80)) {
        let mut table = table();
        let mut model: HashMap<MacAddr, IpAddr> = HashMap::new();
        for (index, step) in steps.into_iter().enumerate() {
            // Slow enough that nothing is a duplicate.
            let now = at(index as u64 * 200);
            match step {
                // Host 11 is this one.
                Step::Announce(from, number, mobility) => {
                    table.update(from % 2, &station(from, number, mobility), now);
                }
                Step::Withdraw(from, number) => table.update(from % 2, &gone(from, number), now),
                Step::Learn(number, is_sticky) => {
                    let _ = table.learn(vni(), mac(number), &[], is_sticky, now);
                }
                Step::Forget(number) => table.forget(vni(), mac(number), now),
                Step::Lose(neighbor) => table.sweep(neighbor, false, now),
            }
            for change in changes(&mut table) {
                match change {
                    Change::AddStation { mac, remote } => {
                        prop_assert_ne!(model.insert(mac, remote), Some(remote), "no news");
                    }
                    Change::DelStation(mac) => prop_assert!(model.remove(&mac).is_some()),
                    other => panic!("{other:?}"),
                }
            }
            let mut paths = 0;
            for ((_, mac), station) in &table.stations {
                paths += station.paths.len();
                prop_assert_eq!(station.chosen, model.get(mac).copied());
                let own = OwnRoute { vni: vni(), number: 1, station: Some((*mac, None)) };
                prop_assert_eq!(station.local.is_some(), table.own.contains_key(&own));
                prop_assert!(station.local.is_none() || station.chosen.is_none());
                let is_somewhere = station.local.is_some() || station.chosen.is_some();
                prop_assert!(station.is_gone() || is_somewhere);
            }
            prop_assert_eq!(paths, table.paths);
            prop_assert!(model.keys().all(|mac| table.stations.contains_key(&(vni(), *mac))));
        }
    }
}
