//! Hosts around reflectors, in simulated time.

mod world;

use super::*;
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
