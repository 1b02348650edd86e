//! Hosts around reflectors, in simulated time.

mod pair;
mod world;

use super::*;
use crate::message::{self, Message, Open, Restart};
use crate::session::Link::{Accepted, AcceptedAgain, Opened};
use pair::Pair;
use world::{Size, World, mac};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn all_hosts_learn_all_stations() {
    let mut world = World::new(Size { hosts: 4, stations: 100, reflectors: 1 });
    world.run(seconds(2));
    world.check_all_know_all();
}

/// Goal: routes stay while the reflector is away, and what changed meanwhile is right afterwards.
#[test]
fn a_reflector_restarts() {
    let mut world = World::new(Size { hosts: 4, stations: 100, reflectors: 1 });
    world.run(seconds(2));
    world.kill_reflector(0);
    world.forget(1, 0);
    world.run(seconds(3));
    assert!(world.knows(0, mac(1, 0)), "the route is stale");
    world.start_reflector(0);
    world.run(seconds(20));
    assert!(!world.knows(0, mac(1, 0)), "the stale route is gone");
    assert_eq!(world.losses, 3, "each of the other hosts has lost one station");
    world.check_all_know_all();
}

/// A reflector that does not come back is forgotten with its routes.
#[test]
fn a_reflector_stays_away() {
    let mut world = World::new(Size { hosts: 2, stations: 4, reflectors: 1 });
    world.run(seconds(2));
    world.kill_reflector(0);
    world.run(seconds(119));
    assert!(world.knows(0, mac(1, 0)));
    world.run(seconds(2));
    assert!(!world.knows(0, mac(1, 0)));
}

#[test]
fn with_two_reflectors_one_may_fail() {
    let mut world = World::new(Size { hosts: 3, stations: 30, reflectors: 2 });
    world.run(seconds(2));
    world.kill_reflector(0);
    world.run(seconds(200));
    assert_eq!(world.losses, 0);
    world.check_all_know_all();
}

/// A host that is gone is forgotten within the hold time.
#[test]
fn a_host_dies() {
    let mut world = World::new(Size { hosts: 3, stations: 30, reflectors: 1 });
    world.run(seconds(2));
    world.kill_host(1);
    world.run(seconds(10));
    assert!(!world.knows(0, mac(1, 0)) && !world.knows(2, mac(1, 0)));
    assert!(world.knows(0, mac(2, 0)));
}

/// A station moves to and fro between hosts; each host knows where it is in the end.
#[test]
fn stations_move() {
    let mut world = World::new(Size { hosts: 4, stations: 8, reflectors: 1 });
    world.run(seconds(2));
    for to in [2, 3, 0] {
        world.learn(to, mac(1, 0));
        world.run(seconds(1));
    }
    for host in 1..4 {
        assert_eq!(world.place(host, mac(1, 0)), Some(world::vtep(0)), "host {host}");
    }
    assert_eq!(world.place(0, mac(1, 0)), None, "it is here");
}

/// Goal: after a link that fails again and again, all know all, and each time costs one exchange of
/// routes.
#[test]
fn a_link_flaps() {
    let mut world = World::new(Size { hosts: 4, stations: 400, reflectors: 1 });
    world.run(seconds(2));
    let before = world.traffic().0;
    const FLAPS: usize = 10;
    for flap in 0..FLAPS {
        world.disconnect(1, 0);
        // From before the next attempt to connect to long after it.
        world.run(RETRY * 3 / 4 + Duration::from_millis(150) * flap as u32);
    }
    world.run(seconds(20));
    world.check_all_know_all();
    world.check_agreement();
    // Host 1 sends its 100 stations and the route for flooding in three messages with the mark of
    // the end, which three others get, and may cut; it gets theirs. The others also get the
    // withdrawals.
    let of_flap = (world.traffic().0 - before) / FLAPS;
    assert!(of_flap <= 3 + 3 * 2 * 3 + 3 * 3, "{of_flap}");
}

/// Goal: two halves of a network that have lost each other agree again afterwards, also on stations
/// that were in both halves meanwhile, and nothing stale is left.
#[test]
fn a_partition_heals() {
    let mut world = World::new(Size { hosts: 4, stations: 40, reflectors: 2 });
    world.run(seconds(2));
    for (host, reflector) in [(0, 1), (1, 1), (2, 0), (3, 0)] {
        world.cut(host, reflector);
    }
    world.run(seconds(10));
    assert!(world.knows(0, mac(2, 0)), "the routes of a reflector that may restart are stale");
    world.run(seconds(190));
    assert!(!world.knows(0, mac(2, 0)) && !world.knows(3, mac(1, 0)));
    assert!(world.knows(0, mac(1, 0)) && world.knows(3, mac(2, 0)));
    // A station of host 0 starts again at host 2, another moves twice within a half, one ends, and
    // one is new in both halves.
    let twin = mac(9, 9);
    world.learn(2, mac(0, 0));
    world.learn(1, mac(0, 1));
    world.learn(1, twin);
    world.learn(3, twin);
    world.run(seconds(1));
    world.learn(0, mac(0, 1));
    world.forget(3, 3);
    world.run(seconds(1));
    for (host, reflector) in [(0, 1), (1, 1), (2, 0), (3, 0)] {
        world.mend(host, reflector);
    }
    let before = world.traffic().0;
    world.run(seconds(30));
    world.check_agreement();
    assert_eq!(world.place(3, mac(0, 0)), Some(world::vtep(2)), "it was there last");
    assert_eq!(world.place(0, twin), Some(world::vtep(1)), "the lower VTEP");
    // It is at host 3, which hears it again.
    world.learn(3, twin);
    world.run(seconds(1));
    world.check_agreement();
    assert_eq!(world.place(0, twin), Some(world::vtep(3)));
    let settled = world.traffic().0;
    world.run(seconds(60));
    assert_eq!(world.traffic().0, settled, "nothing goes round");
    assert!(settled - before < 100, "{}", settled - before);
}

/// RFC 7432 §15.1. Goal: two machines with one address stop to cause messages, and the address
/// moves again when one of them is gone.
#[test]
fn a_flapping_station_is_frozen_and_recovers() {
    let mut world = World::new(Size { hosts: 3, stations: 3, reflectors: 1 });
    world.run(seconds(2));
    let twin = mac(0, 0);
    let mut refused = 0;
    for _ in 0..10 {
        for host in [1, 0] {
            refused += usize::from(world.try_learn(host, twin).is_err());
            world.run(Duration::from_millis(500));
        }
    }
    assert!(refused > 0 && world.counters(0).duplicates + world.counters(1).duplicates > 0);
    let frozen = world.traffic().0;
    for _ in 0..60 {
        let _ = world.try_learn(1, twin);
        world.run(seconds(1));
    }
    assert_eq!(world.traffic().0, frozen, "no move, no message");
    // One is gone; the other sends when its time is over.
    world.run(crate::table::DUPLICATE_TIME);
    world.learn(1, twin);
    world.run(seconds(1));
    world.check_agreement();
    assert_eq!(world.place(2, twin), Some(world::vtep(1)));
}

/// Goal: a reflector and a host fail at the same time, with another reflector there: the stations
/// of the host are forgotten within the hold time of the other reflector, and those of no other.
#[test]
fn a_reflector_and_a_host_fail_together() {
    let mut world = World::new(Size { hosts: 4, stations: 40, reflectors: 2 });
    world.run(seconds(2));
    world.kill_reflector(0);
    world.kill_host(3);
    world.run(seconds(10));
    world.start_reflector(0);
    // The reflector that is back does not know them, and the stale routes of before end.
    world.run(seconds(5) + SETTLE);
    world.check_agreement();
    assert_eq!(world.losses, 3 * 10);
}

/// Goal: a network that is removed is withdrawn everywhere; added again, it is complete.
#[test]
fn a_network_comes_and_goes() {
    let mut world = World::new(Size { hosts: 2, stations: 4, reflectors: 1 });
    world.run(seconds(2));
    world.remove_network(0);
    world.run(seconds(1));
    assert!(!world.knows(1, mac(0, 0)));
    world.add_network(0);
    world.learn(0, mac(0, 0));
    world.learn(0, mac(0, 1));
    world.run(seconds(1));
    world.check_all_know_all();
}

/// Goal: the figures of docs/theory/evpn.md. Method: prints them; the bounds are those that follow
/// from the protocol. With `TOWPATH_LONG` it is 16 hosts and 20,000 stations.
#[test]
fn a_reflector_restarts_in_a_large_network() {
    let is_long = std::env::var_os("TOWPATH_LONG").is_some();
    let (hosts, stations) = if is_long { (16, 20_000) } else { (8, 800) };
    let mut world = World::new(Size { hosts, stations, reflectors: 1 });
    let start = world.converge();
    let (messages, bytes) = world.traffic();
    println!("{hosts} hosts, {stations} stations: converged after {start:?}");
    println!("per host: {} updates, {} bytes", messages / hosts, bytes / hosts);
    println!("all hosts and the reflector in one process: {}", world::memory());
    // Each host sends its stations in full messages and gets those of all others. One message is
    // for flooding, and one for the end in each direction. The reflector may cut batches of
    // several hosts where they arrive.
    let of_one = (stations / hosts).div_ceil(ROUTES_PER_UPDATE) + 1;
    assert!(messages <= hosts * (hosts * (of_one + 1) + 2), "{messages}");
    world.kill_reflector(0);
    world.run(seconds(1));
    world.start_reflector(0);
    let again = world.converge();
    let all = world.traffic().0;
    println!("after a restart: {again:?}, {} updates per host", (all - messages) / hosts);
    assert_eq!(world.losses, 0);
    world.learn(1, mac(0, 0));
    world.run(seconds(1));
    let of_move = world.traffic().0 - all;
    println!("a move: {of_move} updates");
    // The new place tells the reflector, which tells all others. The old place withdraws, which
    // the reflector passes on, too.
    assert_eq!(of_move, 2 * hosts);
}

/// Goal: two hosts that connect to each other have one session over one connection in the end,
/// whichever message arrives first; and another one after it has ended, or after a host has
/// crashed. Then it is there before the hold time is over if that host had opened the connection.
#[test]
fn two_connections_become_one() {
    let mut opened_by = [0; 2];
    for seed in 0..400 {
        let ids = if seed % 2 == 0 { [1, 2] } else { [2, 1] };
        let mut pair = Pair::new(ids, false, seed);
        pair.run(40);
        let links = pair.check();
        opened_by[usize::from(links[0].is_accepted())] += 1;
        // The host ends its session, as after an error; both connect again.
        pair.speakers[0].receive(0, links[0], &[0; 19], pair.now);
        assert!(Link::ALL.iter().all(|link| !pair.speakers[0].is_connected(0, *link)), "{seed}");
        pair.run(40);
        let links = pair.check();
        pair.crash(0);
        pair.run(if links[0] == Opened { 4 } else { 40 });
        pair.check();
    }
    assert!(opened_by.iter().all(|count| *count > 50), "each way occurs: {opened_by:?}");
}

/// Goal: a passive host opens nothing, and has a session that its neighbour opened, also after one
/// of them has crashed: if that is the neighbour, before the hold time is over.
#[test]
fn a_passive_host_waits() {
    for seed in 0..20 {
        let mut pair = Pair::new([1, 2], true, seed);
        pair.run(20);
        assert_eq!(pair.check(), [Accepted, Opened]);
        pair.crash(1);
        pair.run(4);
        assert_eq!(pair.check(), [AcceptedAgain, Opened]);
        pair.crash(0);
        pair.run(20);
        assert_eq!(pair.check(), [Accepted, Opened]);
        let mut alone = Pair::new([1, 2], true, seed);
        alone.speakers[0].tick(alone.now);
        assert_eq!(alone.speakers[0].state(0), State::Active);
        assert!(!alone.speakers[0].wants_connection(0, Opened));
    }
}

/// What a speaker sends on a connection, message by message.
fn sent(speaker: &mut Speaker, link: Link, now: Instant) -> Vec<Message> {
    let bytes = speaker.output(0, link, now).to_vec();
    speaker.sent(0, link, bytes.len(), now);
    let (mut rest, mut all) = (&bytes[..], Vec::new());
    while let Some(len) = message::length(rest).unwrap() {
        all.push(message::parse(&rest[..len], true).unwrap());
        rest = &rest[len..];
    }
    all
}

/// Says something to a speaker as its neighbour.
fn say(speaker: &mut Speaker, link: Link, open: &Open, is_confirmed: bool, now: Instant) {
    let mut bytes = Vec::new();
    message::open(open, &mut bytes);
    if is_confirmed {
        message::keepalive(&mut bytes);
    }
    speaker.receive(0, link, &bytes, now);
}

/// A neighbour that offers to restart within that many seconds, or does not speak of it.
fn neighbor(restart: Option<u16>) -> Open {
    Open {
        as_number: 65001,
        hold_seconds: 9,
        router_id: Ipv4Addr::new(192, 0, 2, 1),
        speaks_evpn: true,
        has_wide_as: true,
        refreshes: true,
        restart: restart.map(|seconds| Restart { seconds, covers_notifications: true }),
    }
}

/// Messages with all routes of a speaker.
fn routes_of(speaker: &Speaker) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (route, mobility) in speaker.table.own() {
        let attributes = speaker.table.attributes(route, *mobility);
        let routes = [(speaker.table.key(route), route.vni.number())];
        message::announce(&attributes, &routes, &mut bytes);
    }
    bytes
}

/// A passive host.
fn passive() -> Speaker {
    let mut speaker = pair::speaker(0, 2, true, Instant::START);
    speaker.tick(Instant::START);
    speaker
}

/// Goal: while there is a session, another connection of the neighbour ends, with the reason, and
/// nothing happens to the session. One on which the neighbour says nothing gives way to a next one.
/// A neighbour that does not restart gracefully is refused while it has a session.
#[test]
fn a_session_outlives_other_connections() {
    let (mut first, now) = (passive(), Instant::START);
    assert_eq!(first.accept(0, now), Some(Accepted));
    say(&mut first, Accepted, &neighbor(None), true, now);
    assert_eq!(first.accept(0, now), None, "the neighbour has opened one already");
    assert_eq!((first.counters().refused, first.state(0)), (1, State::Established));

    // This host has opened the connection, so it takes one more, and decides by its OPEN.
    let mut pair = Pair::new([1, 2], true, 7);
    pair.run(20);
    assert_eq!(pair.check(), [Accepted, Opened]);
    let (now, [_, second]) = (pair.now, &mut pair.speakers);
    assert_eq!(second.accept(0, now), Some(Accepted));
    assert_eq!(second.accept(0, now), Some(Accepted));
    say(second, Accepted, &neighbor(Some(0)), true, now);
    let last = sent(second, Accepted, now).pop().unwrap();
    let Message::Notification(notification) = last else { panic!("{last:?}") };
    assert_eq!((notification.code, notification.subcode), (6, 7));
    assert!(!second.wants_connection(0, Accepted));
    second.closed(0, Accepted, now);
    pair.run(20);
    pair.check();
    assert_eq!(pair.speakers[1].messages(0).established, 1);
}

/// RFC 4724 §4.2. Goal: a neighbour that has crashed and is back gets a session while the old one
/// seems to be alive, if it restarts gracefully and once it has introduced itself. The old
/// connection ends without a word, and the routes stay, if the neighbour has said for how long.
#[test]
fn a_neighbour_that_is_back_takes_the_place_of_its_session() {
    let other = routes_of(&pair::speaker(1, 1, false, Instant::START));
    for (seconds, kept) in [(120, 2), (0, 0)] {
        let (mut speaker, mut now) = (passive(), Instant::START);
        let open = neighbor(Some(seconds));
        assert_eq!(speaker.accept(0, now), Some(Accepted));
        say(&mut speaker, Accepted, &open, true, now);
        speaker.receive(0, Accepted, &other, now);
        sent(&mut speaker, Accepted, now);
        for (before, link) in [(Accepted, AcceptedAgain), (AcceptedAgain, Accepted)] {
            // Connections that bring no OPEN, or not a valid one, as of a stranger.
            assert_eq!(speaker.accept(0, now), Some(link));
            assert_eq!(speaker.accept(0, now), Some(link));
            say(&mut speaker, link, &Open { as_number: 65002, ..open }, true, now);
            let Some(Message::Notification(wrong)) = sent(&mut speaker, link, now).pop() else {
                panic!("no notification")
            };
            assert_eq!((wrong.code, wrong.subcode), (2, 2));
            assert!(!speaker.wants_connection(0, link) && speaker.wants_connection(0, before));
            let report = speaker.neighbor(0);
            assert_eq!((report.state, report.routes, report.stale), (State::Established, 2, 0));

            assert_eq!(speaker.accept(0, now), Some(link));
            say(&mut speaker, link, &open, false, now);
            let report = speaker.neighbor(0);
            assert_eq!(
                (report.state, report.routes, report.stale),
                (State::OpenConfirm, kept, kept)
            );
            assert_eq!(report.reason.as_deref(), Some("the neighbour has connected again"));
            assert!(!speaker.wants_connection(0, before) && speaker.wants_connection(0, link));
            assert_eq!(sent(&mut speaker, before, now), []);
            let mut rest = Vec::new();
            message::keepalive(&mut rest);
            rest.extend(&other);
            message::withdraw(&[], &mut rest);
            speaker.receive(0, link, &rest, now);
            let fresh = sent(&mut speaker, link, now);
            assert!(fresh.iter().any(|sent| matches!(sent, Message::Update(_))), "{fresh:?}");
            now += SETTLE;
            speaker.receive(0, link, &rest[..19], now);
            speaker.tick(now);
            let report = speaker.neighbor(0);
            assert_eq!((report.state, report.routes, report.stale), (State::Established, 2, 0));
        }
        assert_eq!((speaker.messages(0).established, speaker.counters().refused), (3, 0));
    }
}

/// Goal: a neighbour that is back gets a session, whatever had been said on its first connection,
/// and if that ends before the neighbour says anything on the second one.
#[test]
fn a_neighbour_may_be_back_at_any_time() {
    let now = Instant::START;
    for (has_said, is_confirmed, ends) in
        [(false, false, false), (true, false, false), (true, false, true), (true, true, true)]
    {
        let (mut speaker, open) = (passive(), neighbor(Some(120)));
        assert_eq!(speaker.accept(0, now), Some(Accepted));
        if has_said {
            say(&mut speaker, Accepted, &open, is_confirmed, now);
        }
        let again = speaker.accept(0, now).expect("it is taken");
        assert_eq!(again, if has_said { AcceptedAgain } else { Accepted });
        if ends {
            speaker.closed(0, Accepted, now);
        }
        say(&mut speaker, again, &open, true, now);
        assert_eq!(speaker.state(0), State::Established, "{has_said} {is_confirmed} {ends}");
        let wanted = Link::ALL.map(|link| speaker.wants_connection(0, link));
        assert_eq!(wanted, Link::ALL.map(|link| link == again));
    }
}

/// Goal: a neighbour that connects and does not fit gets the reason, as one that this host connects
/// to does.
#[test]
fn connected_neighbours_must_fit() {
    let [own, other] = [1, 2].map(|last| Ipv4Addr::new(192, 0, 2, last));
    let unspecified = Ipv4Addr::UNSPECIFIED;
    for (as_number, router_id, subcode) in
        [(65002, other, 2), (65001, own, 3), (65001, unspecified, 3)]
    {
        let mut pair = Pair::new([1, 2], true, 7);
        let (now, speaker) = (pair.now, &mut pair.speakers[0]);
        speaker.tick(now);
        assert_eq!(speaker.accept(0, now), Some(Accepted));
        let &[Message::Open(mut open)] = &sent(speaker, Accepted, now)[..] else {
            panic!("no open")
        };
        (open.as_number, open.router_id) = (as_number, router_id);
        let mut bytes = Vec::new();
        message::open(&open, &mut bytes);
        speaker.receive(0, Accepted, &bytes, now);
        let last = sent(speaker, Accepted, now).pop().unwrap();
        let Message::Notification(notification) = last else { panic!("{last:?}") };
        assert_eq!((notification.code, notification.subcode), (2, subcode));
        assert!(!speaker.wants_connection(0, Accepted));
        assert_eq!(speaker.state(0), State::Active, "it waits for another one");
    }
}
