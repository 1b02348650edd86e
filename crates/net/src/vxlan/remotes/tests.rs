//! Precedence, bounds and ageing of the table of remotes.

use super::*;

const AGE: Duration = Duration::from_secs(300);

fn mac(number: u32) -> MacAddr {
    let [a, b, c, d] = number.to_be_bytes();
    MacAddr([2, 0, a, b, c, d])
}

fn host(number: u8) -> IpAddr {
    [192, 0, 2, number].into()
}

fn at(seconds: u64) -> Instant {
    Instant::from_micros(seconds * 1_000_000)
}

fn learning(flood: &[u8]) -> Remotes {
    let mut remotes = Remotes::new(true, AGE, 7);
    for &number in flood {
        remotes.apply(Change::AddFlood(host(number)), Origin::Static).expect("room");
    }
    remotes
}

fn counts_are_right(remotes: &Remotes) {
    let all: Vec<_> = remotes.stations.iter().map(|(_, value)| Entry::unpack(value)).collect();
    assert_eq!(remotes.station_count, all.len());
    let learned = all.iter().filter(|entry| entry.origin == Origin::Learned).count();
    assert_eq!(remotes.learned_count, learned);
    let named: u32 = remotes.remotes().map(|remote| remote.stations).sum();
    assert_eq!(named as usize, all.len());
    let flooded = remotes.remotes().filter(|remote| remote.flood.is_some()).count();
    assert_eq!(flooded, remotes.flood.len());
    assert_eq!(remotes.remotes().count(), remotes.by_address.len());
}

#[test]
fn stations_are_learned_move_and_age() {
    let mut remotes = learning(&[1, 2]);
    let [one, two] = [1, 2].map(|number| remotes.known(host(number)).expect("it is known"));
    assert_eq!(remotes.lookup(mac(1), at(1)), None);
    assert_eq!(remotes.learn(mac(1), one, at(1)), Ok(()));
    assert_eq!(remotes.lookup(mac(1), at(1)), Some(host(1)));
    assert_eq!(remotes.learn(mac(1), two, at(2)), Ok(()));
    assert_eq!(remotes.lookup(mac(1), at(2)), Some(host(2)));
    assert_eq!(remotes.counters(), Counters { learned: 1, moved: 1, refused: 0 });
    // A frame keeps the station.
    assert_eq!(remotes.learn(mac(1), two, at(200)), Ok(()));
    assert_eq!(remotes.next_deadline(), Some(at(301)));
    remotes.expire(at(301));
    assert_eq!(remotes.lookup(mac(1), at(499)), Some(host(2)));
    assert_eq!(remotes.lookup(mac(1), at(500)), None);
    assert_eq!(remotes.next_deadline(), Some(at(500)));
    remotes.expire(at(500));
    assert_eq!((remotes.stations(at(0)).count(), remotes.next_deadline()), (0, None));
    counts_are_right(&remotes);
}

/// Goal: what was configured beats what a control plane says, and both beat what frames claim.
#[test]
fn origins_have_precedence() {
    let mut remotes = learning(&[1, 2, 3]);
    let [one, two] = [1, 2].map(|number| remotes.known(host(number)).expect("it is known"));
    remotes.learn(mac(1), one, at(1)).expect("not locked");
    let add = |number| Change::AddStation { mac: mac(1), remote: host(number) };
    assert_eq!(remotes.apply(add(2), Origin::Pushed), Ok(()));
    assert_eq!(remotes.lookup(mac(1), at(1)), Some(host(2)));
    // A frame from elsewhere passes, as the control plane may be late, but teaches nothing.
    assert_eq!(remotes.learn(mac(1), one, at(2)), Ok(()));
    assert_eq!(remotes.lookup(mac(1), at(10_000)), Some(host(2)), "it does not age");
    assert_eq!(remotes.apply(add(3), Origin::Static), Ok(()));
    assert_eq!(remotes.apply(add(2), Origin::Pushed), Err(ChangeError::Overruled));
    assert_eq!(
        remotes.apply(Change::DelStation(mac(1)), Origin::Pushed),
        Err(ChangeError::Overruled)
    );
    assert_eq!(remotes.learn(mac(1), two, at(2)), Err(Locked));
    assert_eq!(remotes.lookup(mac(1), at(2)), Some(host(3)));
    assert_eq!(remotes.apply(Change::DelStation(mac(1)), Origin::Static), Ok(()));
    assert_eq!(remotes.lookup(mac(1), at(2)), None);
    assert_eq!(
        remotes.apply(Change::DelFlood(host(1)), Origin::Pushed),
        Err(ChangeError::Overruled)
    );
    counts_are_right(&remotes);
}

/// Goal: only remotes that configuration or control plane name are known, and what was learned from
/// one ends with it.
#[test]
fn a_remote_is_known_while_something_names_it() {
    let mut remotes = learning(&[1]);
    assert_eq!(remotes.known(host(2)), None);
    let add = Change::AddStation { mac: mac(9), remote: host(2) };
    remotes.apply(add, Origin::Pushed).expect("room");
    let two = remotes.known(host(2)).expect("a station is behind it");
    assert_eq!(remotes.flood(), [host(1)], "it is not flooded");
    remotes.learn(mac(1), two, at(1)).expect("not locked");
    remotes.apply(Change::DelStation(mac(9)), Origin::Pushed).expect("it is there");
    assert_eq!((remotes.known(host(2)), remotes.lookup(mac(1), at(1))), (None, None));
    counts_are_right(&remotes);
    let one = remotes.known(host(1)).expect("flooded");
    remotes.learn(mac(1), one, at(1)).expect("not locked");
    remotes.apply(Change::DelFlood(host(1)), Origin::Static).expect("it is there");
    assert_eq!((remotes.flood().len(), remotes.stations(at(1)).count()), (0, 0));
    assert_eq!(remotes.apply(Change::DelFlood(host(1)), Origin::Static), Err(ChangeError::Unknown));
    counts_are_right(&remotes);
}

#[test]
fn nothing_is_learned_where_learning_is_off() {
    let mut remotes = Remotes::new(false, AGE, 7);
    remotes.apply(Change::AddFlood(host(1)), Origin::Pushed).expect("room");
    let one = remotes.known(host(1)).expect("it is known");
    assert_eq!(remotes.learn(mac(1), one, at(1)), Ok(()));
    assert_eq!((remotes.lookup(mac(1), at(1)), remotes.counters().learned), (None, 0));
}

/// Goal: frames cannot take the room of a control plane, and each bound refuses without a change.
#[test]
fn bounds_hold() {
    let mut remotes = learning(&[1]);
    let one = remotes.known(host(1)).expect("it is known");
    let most = STATIONS_MAX as u32;
    for number in 0..most {
        remotes.learn(mac(number), one, at(1)).expect("not locked");
    }
    let counters = remotes.counters();
    assert_eq!((counters.learned, counters.refused), (LEARNED_MAX as u64, most as u64 / 2));
    for number in 0..most / 2 {
        let add = Change::AddStation { mac: mac(most + number), remote: host(2) };
        remotes.apply(add, Origin::Pushed).expect("half of the table is left");
    }
    let more = Change::AddStation { mac: mac(5 * most), remote: host(3) };
    assert_eq!(remotes.apply(more, Origin::Static), Err(ChangeError::TooManyStations));
    assert_eq!(remotes.known(host(3)), None);
    counts_are_right(&remotes);
    for number in 0..REMOTES_MAX as u32 {
        let address = IpAddr::from((0x0a00_0000 + number).to_be_bytes());
        let added = remotes.apply(Change::AddFlood(address), Origin::Pushed);
        let expected = match number as usize {
            0..1022 => Ok(()),
            _ => Err(ChangeError::TooManyRemotes),
        };
        assert_eq!(added, expected, "{number}");
    }
    counts_are_right(&remotes);
}

#[test]
fn addresses_that_no_remote_has_are_refused() {
    let mut remotes = learning(&[]);
    for wrong in ["0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "ff02::1"] {
        let address: IpAddr = wrong.parse().expect("an address");
        let error = Err(ChangeError::NotUnicast(address));
        assert_eq!(remotes.apply(Change::AddFlood(address), Origin::Static), error);
    }
    for wrong in [MacAddr::BROADCAST, MacAddr::UNSPECIFIED] {
        let add = Change::AddStation { mac: wrong, remote: host(1) };
        assert_eq!(remotes.apply(add, Origin::Pushed), Err(ChangeError::NotStation(wrong)));
    }
    assert_eq!(remotes.remotes().count(), 0);
}

#[test]
fn addresses_of_stations_are_found() {
    let mut remotes = learning(&[1]);
    let address = IpAddr::from([10, 0, 2, 20]);
    let add = Change::AddAddress { address, mac: mac(1) };
    remotes.apply(add, Origin::Pushed).expect("room");
    assert_eq!(remotes.station_of(address), None, "the station is behind no remote");
    let station = Change::AddStation { mac: mac(1), remote: host(1) };
    remotes.apply(station, Origin::Pushed).expect("room");
    assert_eq!(remotes.station_of(address), Some(mac(1)));
    remotes.apply(Change::DelAddress(address), Origin::Pushed).expect("it is there");
    assert_eq!(remotes.station_of(address), None);
}
