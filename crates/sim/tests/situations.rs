//! Situations that rarely occur at random: each is set up explicitly and must end correctly.

use std::net::SocketAddr;
use towpath_net::stack::{Config, Limits};
use towpath_net::tcp::{ConnectionError, Settings};
use towpath_net::time::{Duration, Instant};
use towpath_packet::{Caps, MemoryConfig};
use towpath_sim::flow::{Ending, Plan};
use towpath_sim::host::Host;
use towpath_sim::link::{Link, LinkConfig, Medium};
use towpath_sim::scenario::{able, config, endpoint};
use towpath_sim::world::World;

const DELAY: Duration = Duration::from_millis(5);

fn memory() -> MemoryConfig {
    MemoryConfig { packets: 4096, small_frames: 8192, large_frames: 1024 }
}

fn world_with(make: impl Fn(usize) -> Config, caps: Caps, medium: Medium) -> World {
    let hosts = [0, 1].map(|index| Host::new(make(index), caps, memory()));
    let link = || Link::new(LinkConfig::clean(medium, caps.mtu, DELAY));
    World::new(1, hosts, [link(), link()])
}

/// Plain devices on a wire.
fn world(tcp: Settings) -> World {
    world_with(|index| config(index, tcp), Caps::plain(1500), Medium::Wire)
}

fn seconds(seconds: u64) -> Instant {
    Instant::START + Duration::from_secs(seconds)
}

fn writes(bytes: u64) -> Plan {
    Plan { write: bytes, ..Plan::default() }
}

/// Host 0 connects to host 1 over IPv4 or IPv6.
fn connect(world: &mut World, v6: bool, plans: [Plan; 2]) -> [SocketAddr; 2] {
    let (local, remote) = (endpoint(0, v6, 1000), endpoint(1, v6, 80));
    world.hosts[1].listen(remote, plans[1]);
    let now = world.now();
    world.hosts[0].connect(local, remote, plans[0], now).expect("free");
    [local, remote]
}

#[track_caller]
fn assert_sound(world: &World) {
    let mut problems = world.problems();
    problems.extend(world.leaks());
    assert!(problems.is_empty(), "{problems:#?}\n{}", world.report());
}

#[track_caller]
fn assert_done(world: &World, host: usize, written: u64, read: u64) {
    let flow = &world.hosts[host].flows[0];
    let state = (flow.written, flow.read, flow.closed);
    assert_eq!(state, (written, read, Some(None)), "{}", world.report());
}

/// Goal: bulk data passes without copies, retransmissions or unnecessary packets, at the speed of
/// the link. Method: 10 MB in each direction at once, with every kind of device.
#[test]
fn ten_megabytes_each_way() {
    const BYTES: u64 = 10_000_000;
    for v6 in [false, true] {
        for (caps, medium) in [
            (able(1500), Medium::Tap),
            (able(1500), Medium::Wire),
            (Caps::plain(1500), Medium::Wire),
            (able(65_520), Medium::Tap),
        ] {
            let mut world = world_with(|index| config(index, Settings::default()), caps, medium);
            for link in &mut world.links {
                link.config.rate = Some(125_000_000);
            }
            connect(&mut world, v6, [writes(BYTES); 2]);
            world.run_while(seconds(60), |world| {
                world.hosts.iter().any(|host| host.flows.iter().any(|flow| !flow.is_done()))
                    || world.hosts[1].flows.is_empty()
                    || world.links.iter().any(|link| link.in_flight() > 0)
            });
            assert_sound(&world);
            for host in 0..2 {
                assert_done(&world, host, BYTES, BYTES);
                let counters = world.hosts[host].stack.counters();
                assert_eq!((counters.retransmitted, world.hosts[host].ledger.copied()), (0, 0));
                // 80 ms of data, and the growth of the window at a round-trip time of 10 ms.
                assert!(world.now() < Instant::from_micros(600_000), "{}", world.report());
            }
        }
    }
}

/// RFC 9293 §3.5 figure 7, §3.6 figure 13: both sides connect and close simultaneously.
#[test]
fn simultaneous_open_and_close() {
    for v6 in [false, true] {
        for sack in [false, true] {
            let mut world = world(Settings { sack, timestamps: sack, ..Settings::default() });
            let ends = [endpoint(0, v6, 1000), endpoint(1, v6, 1000)];
            // Both have the address of the neighbour, so the SYNs cross.
            for host in 0..2 {
                let peer = config(1 - host, Settings::default());
                let address = ends[1 - host].ip();
                world.hosts[host].stack.set_neighbor(address, peer.mac);
                let (local, remote) = (ends[host], ends[1 - host]);
                let connected = world.hosts[host].connect(local, remote, writes(5000), seconds(0));
                connected.expect("free");
            }
            world.run(seconds(10));
            assert_sound(&world);
            for host in 0..2 {
                assert_done(&world, host, 5000, 5000);
                assert_eq!(world.hosts[host].stack.tcp_counts().0, 0);
            }
        }
    }
}

/// A port without a listener: the connection is refused at once.
#[test]
fn listener_absent() {
    for v6 in [false, true] {
        let mut world = world(Settings::default());
        let (local, remote) = (endpoint(0, v6, 1000), endpoint(1, v6, 81));
        world.hosts[0].connect(local, remote, writes(10), seconds(0)).expect("free");
        world.run(seconds(1));
        let closed = world.hosts[0].flows[0].closed;
        assert_eq!(closed, Some(Some(ConnectionError::Refused)));
        assert_sound(&world);
    }
}

/// The peer's host does not exist: the connection fails when its address is not resolved, and the
/// waiting packets are dropped.
#[test]
fn host_absent() {
    for v6 in [false, true] {
        let mut world = world(Settings { syn_retries: 3, ..Settings::default() });
        world.links.iter_mut().for_each(|link| link.cut = true);
        let (local, remote) = (endpoint(0, v6, 1000), endpoint(1, v6, 81));
        world.hosts[0].connect(local, remote, writes(10), seconds(0)).expect("free");
        world.run(seconds(4));
        let closed = world.hosts[0].flows[0].closed;
        assert_eq!(closed, Some(Some(ConnectionError::Unreachable)));
        assert_sound(&world);
    }
}

/// RFC 9293 §3.8.3: the peer vanishes during a transfer. The sender gives up after its retries, a
/// silent receiver after its keepalive probes, both in bounded time.
#[test]
fn peer_vanishes() {
    let settings = Settings {
        retries2: 8,
        keepalive_idle: Duration::from_secs(60),
        keepalive_interval: Duration::from_secs(10),
        ..Settings::default()
    };
    for v6 in [false, true] {
        let mut world = world(settings);
        for link in &mut world.links {
            link.config.rate = Some(1_000_000);
        }
        let idle = Plan { ending: Ending::Stay, keepalive: true, ..Plan::default() };
        connect(&mut world, v6, [writes(10_000_000), idle]);
        world.run(seconds(2));
        world.links.iter_mut().for_each(|link| link.cut = true);
        world.run(seconds(400));
        for host in &world.hosts {
            let closed = host.flows[0].closed;
            assert_eq!(closed, Some(Some(ConnectionError::TimedOut)), "{}", world.report());
        }
        assert_sound(&world);
    }
}

/// A link is cut for a while and restored: the connection continues.
#[test]
fn outage() {
    for v6 in [false, true] {
        let mut world = world(Settings::default());
        for link in &mut world.links {
            link.config.rate = Some(1_000_000);
        }
        connect(&mut world, v6, [writes(5_000_000), writes(10)]);
        world.run(seconds(2));
        world.links[0].cut = true;
        world.run(seconds(32));
        world.links[0].cut = false;
        world.run(seconds(100));
        assert_done(&world, 0, 5_000_000, 10);
        assert_done(&world, 1, 10, 5_000_000);
        assert_sound(&world);
    }
}

/// RFC 9293 §3.8.6.1: a window is closed for hours, and the update that opens it is lost.
#[test]
fn window_shut_for_hours() {
    for v6 in [false, true] {
        let mut world = world(Settings { retries2: 10, ..Settings::default() });
        let reader = Plan { read_after: Duration::from_secs(10_000), ..Plan::default() };
        connect(&mut world, v6, [writes(8_000_000), reader]);
        world.run(seconds(9_999));
        let written = world.hosts[0].flows[0].written;
        assert!(written < 8_000_000, "backpressure");
        assert!(world.hosts[1].flows[0].read == 0);
        let probes = world.links[0].counters().packets;
        assert!(probes < 1000, "{probes} packets for a shut window");
        world.links[1].cut = true;
        world.run(seconds(10_001));
        world.links[1].cut = false;
        world.run(seconds(10_400));
        assert_done(&world, 0, 8_000_000, 0);
        assert_done(&world, 1, 0, 8_000_000);
        assert_sound(&world);
    }
}

/// Buffers smaller than a segment, and of a few bytes: slow, but working.
#[test]
fn tiny_windows() {
    for bytes in [100, 600, 1460, 3000] {
        let settings = Settings {
            receive_buffer: 2 * bytes,
            receive_buffer_fixed: true,
            send_buffer: 100_000,
            send_buffer_max: 100_000,
            ..Settings::default()
        };
        let mut world = world(settings);
        connect(&mut world, false, [writes(20_000), writes(20_000)]);
        world.run(seconds(600));
        assert_done(&world, 0, 20_000, 20_000);
        assert_done(&world, 1, 20_000, 20_000);
        assert_sound(&world);
    }
}

/// RFC 826, RFC 4861: neighbours are found although many queries are lost. If all of them are, the
/// connection attempt ends, as on Linux.
#[test]
fn neighbours_are_found_in_spite_of_loss() {
    let mut failed = 0;
    for v6 in [false, true] {
        for seed in 0..10 {
            let mut world = world(Settings { syn_retries: 12, ..Settings::default() });
            world.rng = towpath_sim::seed::Rng::new(seed);
            world.links.iter_mut().for_each(|link| link.config.loss = 400_000);
            connect(&mut world, v6, [writes(100), writes(100)]);
            world.run(seconds(3600));
            if world.hosts[0].flows[0].closed == Some(Some(ConnectionError::Unreachable)) {
                failed += 1;
                continue;
            }
            assert_done(&world, 0, 100, 100);
            assert_done(&world, 1, 100, 100);
            assert_sound(&world);
        }
    }
    // Three queries fail with a probability of (1 - 0.6 * 0.6)^3, which is a quarter.
    assert!((1..10).contains(&failed), "{failed} of 20");
}

/// A connection outlives the entry of its neighbour: no data is lost while the neighbour is queried
/// again.
#[test]
fn neighbours_are_asked_again_without_a_pause() {
    for v6 in [false, true] {
        // Windows are small enough that neighbours' answers do not wait behind them for too long.
        let (receive_buffer, receive_buffer_max) = (256 << 10, 256 << 10);
        let settings = Settings { receive_buffer, receive_buffer_max, ..Settings::default() };
        let mut world = world(settings);
        for link in &mut world.links {
            link.config.rate = Some(100_000);
            link.config.queue_bytes = 10_000_000;
        }
        connect(&mut world, v6, [writes(20_000_000), writes(0)]);
        world.run(seconds(300));
        assert_done(&world, 0, 20_000_000, 0);
        for host in &world.hosts {
            assert_eq!(host.stack.counters().drops().count(), 0, "{}", world.report());
        }
        assert_sound(&world);
    }
}

/// The MTU shrinks and grows during a connection.
#[test]
fn mtu_changes() {
    for v6 in [false, true] {
        for medium in [Medium::Wire, Medium::Tap] {
            let caps = |mtu| if medium == Medium::Tap { able(mtu) } else { Caps::plain(mtu) };
            let make = |index| config(index, Settings::default());
            let mut world = world_with(make, caps(9000), medium);
            for link in &mut world.links {
                link.config.rate = Some(1_000_000);
            }
            connect(&mut world, v6, [writes(5_000_000), writes(5_000_000)]);
            for (at, mtu) in [(1, 1500), (2, 1280), (3, 9000)] {
                world.run(seconds(at));
                for (host, link) in world.hosts.iter_mut().zip(&mut world.links) {
                    link.config.mtu = mtu;
                    host.stack.set_caps(caps(mtu));
                }
            }
            world.run(seconds(60));
            assert_done(&world, 0, 5_000_000, 5_000_000);
            assert_done(&world, 1, 5_000_000, 5_000_000);
            assert_sound(&world);
        }
    }
}

/// RFC 9293 §3.6.1, RFC 6191: repeated use of the same endpoints, with a server that closes first.
#[test]
fn endpoints_are_used_again() {
    for v6 in [false, true] {
        for timestamps in [false, true] {
            let mut world = world(Settings { timestamps, ..Settings::default() });
            let (local, remote) = (endpoint(0, v6, 1000), endpoint(1, v6, 80));
            world.hosts[1].listen(remote, writes(50_000));
            for round in 0..20 {
                let now = world.now();
                let plan = Plan { ending: Ending::CloseAfterPeer, ..writes(50_000) };
                world.hosts[0].connect(local, remote, plan, now).expect("free again");
                world.run(now + Duration::from_secs(2));
                for host in &world.hosts {
                    let flow = &host.flows[round];
                    let state = (flow.written, flow.read, flow.closed);
                    assert_eq!(state, (50_000, 50_000, Some(None)), "{}", world.report());
                }
            }
            assert_eq!(world.hosts[1].stack.tcp_counts(), (0, 1));
            assert_sound(&world);
        }
    }
}

/// Many connections at once, more than the limit of half-open ones.
#[test]
fn a_crowd() {
    let limits = Limits { half_open: 50, ..Limits::default() };
    let make = |index| Config { limits, ..config(index, Settings::default()) };
    let mut world = world_with(make, able(1500), Medium::Tap);
    let remote = endpoint(1, false, 80);
    world.hosts[1].listen(remote, writes(2000));
    for port in 0..300 {
        let local = endpoint(0, false, 10_000 + port);
        let plan = writes(1000);
        world.hosts[0].connect(local, remote, plan, seconds(0)).expect("free");
    }
    world.run(seconds(120));
    // Connections evicted for others were reset when their ACK arrived; the others succeeded.
    let done = |host: usize, written, read| {
        let flows = world.hosts[host].flows.iter();
        flows.filter(|f| (f.written, f.read, f.closed) == (written, read, Some(None))).count()
    };
    assert!(done(0, 1000, 2000) >= 50, "{} got through", done(0, 1000, 2000));
    assert_eq!(done(0, 1000, 2000), done(1, 2000, 1000));
    assert!(world.hosts.iter().all(|host| host.flows.iter().all(|flow| flow.is_done())));
    assert_sound(&world);
}

/// A host with very little memory: slow, never stuck, and all memory comes back.
#[test]
fn memory_runs_short() {
    for v6 in [false, true] {
        let small = MemoryConfig { packets: 24, small_frames: 40, large_frames: 8 };
        let hosts = [memory(), small].map(|memory| {
            let index = usize::from(memory == small);
            Host::new(config(index, Settings::default()), able(1500), memory)
        });
        let link = || Link::new(LinkConfig::clean(Medium::Wire, 1500, DELAY));
        let mut world = World::new(1, hosts, [link(), link()]);
        for port in 0..4 {
            let (local, remote) = (endpoint(0, v6, 1000 + port), endpoint(1, v6, 80 + port));
            world.hosts[1].listen(remote, Plan { pause: 500_000, pause_max: DELAY, ..writes(0) });
            world.hosts[0].connect(local, remote, writes(300_000), seconds(0)).expect("free");
        }
        world.run(seconds(900));
        for flow in &world.hosts[1].flows {
            assert_eq!((flow.read, flow.closed), (300_000, Some(None)), "{}", world.report());
        }
        assert_sound(&world);
    }
}

/// Resets during a transfer, from either side, leave nothing behind.
#[test]
fn aborts() {
    for v6 in [false, true] {
        for aborter in 0..2 {
            let mut plans = [writes(1_000_000); 2];
            plans[aborter] = Plan { ending: Ending::Abort, ..writes(70_000) };
            let mut world = world(Settings::default());
            connect(&mut world, v6, plans);
            world.run(seconds(60));
            let closed = |host: usize| world.hosts[host].flows[0].closed;
            assert_eq!(closed(aborter), Some(Some(ConnectionError::Aborted)));
            assert_eq!(closed(1 - aborter), Some(Some(ConnectionError::Reset)));
            assert_sound(&world);
        }
    }
}

/// Owners release at once: written data still arrives, or the peer learns of the reset.
#[test]
fn early_leavers() {
    for v6 in [false, true] {
        let mut world = world(Settings::default());
        let leaver = Plan { release_early: true, ..writes(100_000) };
        let reader = Plan { ending: Ending::CloseAfterPeer, ..writes(0) };
        connect(&mut world, v6, [leaver, reader]);
        world.run(seconds(200));
        assert_eq!(world.hosts[1].flows[0].read, 100_000);
        assert_eq!(world.hosts[1].flows[0].closed, Some(None));
        assert_eq!(world.hosts[0].stack.tcp_counts(), (0, 0));
        assert_sound(&world);
    }
}

/// Goal: data that a closed window holds back on a released connection is sent as fast, once the
/// window opens, as with an owner; with losses, too.
#[test]
fn a_shut_window_opens_for_leavers_too() {
    const BYTES: u64 = 30_000_000;
    const READ_AFTER: u64 = 2;
    let until_read = |v6, loss, release_early| {
        let settings =
            Settings { send_buffer: 64 << 20, send_buffer_max: 64 << 20, ..Settings::default() };
        let mut world = world(settings);
        for link in &mut world.links {
            link.config.rate = Some(125_000_000);
            link.config.loss = loss;
        }
        let sender = Plan { release_early, ..writes(BYTES) };
        let read_after = Duration::from_secs(READ_AFTER);
        let reader = Plan { read_after, ending: Ending::CloseAfterPeer, ..writes(0) };
        connect(&mut world, v6, [sender, reader]);
        world.run(seconds(1));
        assert_eq!(world.hosts[0].flows[0].is_done(), release_early, "left before the reading");
        world.run_while(seconds(300), |world| {
            world.hosts[1].flows.first().is_none_or(|flow| !flow.is_done())
        });
        assert_done(&world, 1, 0, BYTES);
        assert_sound(&world);
        world.now().since(seconds(READ_AFTER))
    };
    for v6 in [false, true] {
        for loss in [0, 1000] {
            let (owned, left) = (until_read(v6, loss, false), until_read(v6, loss, true));
            assert!(left <= owned * 5 / 4, "{loss} ppm lost: {left:?}, with an owner {owned:?}");
        }
    }
}
