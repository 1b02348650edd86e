//! What a forwarder does itself, what it leaves to the owner, and that the owner then does the same
//! as without it.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use towpath_packet::{Burst, Checksum, Gso, Offload, Packet, Tunnel};

use super::harness::*;
use super::offload::ALONE;
use crate::counters::PortDrop;
use crate::gso::testing::{Spec, Tunnelled, bytes_of, pattern, received};
use crate::switch::*;
use crate::time::Duration;
use crate::wire::arp;

fn plain(to: MacAddr, from: u8) -> Vec<u8> {
    frame(to, mac(from), &[], &pattern(50))
}

/// Sends packets through a forwarder; returns what it leaves to the owner.
fn forward(
    t: &mut Harness,
    forwarder: &mut Forwarder,
    from: usize,
    packets: impl IntoIterator<Item = Packet>,
    rest_is_pending: bool,
) -> Burst {
    let (mut burst, mut rest) = (Burst::new(), Burst::new());
    packets.into_iter().for_each(|packet| burst.push(packet).expect("room"));
    let count = burst.len();
    let Harness { memory, ledger, now, out, ports, .. } = t;
    let mut cx = Context { memory, ledger, now: *now };
    let bytes: usize = burst.iter().map(Packet::len).sum();
    let taken =
        forwarder.forward(ports[from], &mut burst, &mut cx, out, &mut rest, rest_is_pending);
    assert_eq!((taken, burst.len()), (bytes as u64, 0));
    assert!(rest.len() <= count);
    assert!(rest.iter().all(|packet| packet.ingress() == Some(ports[from].index() as u16)));
    rest
}

/// Packets handed out, with their offload fields, by port.
fn taken(t: &mut Harness) -> Vec<(usize, Vec<u8>, Offload)> {
    let packets = core::mem::take(&mut t.out.packets).into_iter();
    let all = packets.flat_map(|(port, list)| list.into_iter().map(move |packet| (port, packet)));
    all.map(|(port, packet)| (port, bytes_of(&packet), *packet.offload())).collect()
}

/// All counters of the ports, of the switch and of forwarders together.
fn all_counters(t: &Harness, forwarders: &[&Forwarder]) -> Vec<String> {
    let of_port = |&id: &PortId| {
        let mut sum = t.switch.counters_of(id).expect("a port").clone();
        let theirs = forwarders.iter().filter_map(|forwarder| forwarder.counters_of(id));
        theirs.for_each(|counters| sum.add(counters));
        format!("{sum:?}")
    };
    t.ports.iter().map(of_port).collect()
}

/// A packet of every kind that the switch treats differently, from station 1 to `to`, with a tag
/// of VLAN 5.
fn kinds(t: &mut Harness, to: MacAddr) -> Vec<Packet> {
    let tag = Some(0x6005);
    let with = |mut packet: Packet, mut offload: Offload, shift: i16| {
        offload.shift(shift);
        packet.set_offload(offload);
        packet
    };
    let short = frame(to, mac(1), &[0x6005], &pattern(50));
    let mut inline = t.memory.packet().expect("free");
    inline.fill_inline(short.len(), |place| place.copy_from_slice(&short));
    let spec = Spec::plain(false, true, pattern(4000));
    let segments = readdressed(&spec.partial_frame(), to, mac(1), tag);
    let one = Spec::plain(true, false, pattern(900));
    let partial = Offload { checksum: one.partial(), gso: None };
    let one = readdressed(&one.partial_frame(), to, mac(1), tag);
    let tunnel = Tunnelled::vxlan(true, Spec::plain(false, true, pattern(5000)));
    let in_tunnel = readdressed(&tunnel.super_frame(), to, mac(1), tag);
    // Linux counts the tag only in the checksum's offset.
    let mut claims = tunnel.offload(1000);
    claims.shift(4);
    claims.gso = tunnel.offload(1000).gso;
    let verified = Offload { checksum: Checksum::Unnecessary, gso: None };
    let wrong = Offload { checksum: Checksum::None, ..spec.offload(1000) };
    let memory = &mut t.memory;
    alloc::vec![
        received(memory, &short, &[33]),
        inline,
        with(received(memory, &segments, &[]), spec.offload(1000), 4),
        with(received(memory, &one, &[60]), partial, 4),
        with(received(memory, &in_tunnel, &[70]), claims, 0),
        with(received(memory, &short, &[]), verified, 0),
        with(received(memory, &segments, &[]), wrong, 4),
        received(memory, &short[..17], &[]),
    ]
}

fn tagged_ports() -> [PortConfig; 3] {
    let plain = PortConfig { vlans: access(5), caps: ALONE, ..port() };
    [in_vlans(trunk(None, &[5])), in_vlans(trunk(None, &[5])), plain]
}

/// Goal: every kind of packet gets the same treatment by the owner alone, by the owner after a
/// forwarder, and by a forwarder alone: the same bytes, offload fields and counters.
#[test]
fn a_packet_may_be_judged_twice() {
    for to in [1, 2] {
        for index in 0..8 {
            // Station 2 is unknown at first, then known at port `to`.
            let run = |is_known: bool, through: bool| {
                let mut t = Harness::new(tagged_ports());
                let vid = vid(5);
                t.switch.add_station(mac(1), vid, t.ports[0], t.now).expect("room");
                if is_known {
                    t.switch.add_station(mac(2), vid, t.ports[to], t.now).expect("room");
                }
                let packet = kinds(&mut t, mac(2)).swap_remove(index);
                let mut forwarder = t.switch.forwarder();
                let mut burst = Burst::new();
                burst.push(packet).expect("room");
                if through {
                    let packet = burst.pop();
                    burst = forward(&mut t, &mut forwarder, 0, packet, false);
                    let is_malformed = index == 7;
                    assert_eq!(
                        burst.len(),
                        usize::from(!is_known && !is_malformed),
                        "kind {index}"
                    );
                }
                let Harness { switch, memory, ledger, now, out, ports, .. } = &mut t;
                let mut cx = Context { memory, ledger, now: *now };
                switch.forward(ports[0], &mut burst, &mut cx, out);
                (taken(&mut t), all_counters(&t, &[&forwarder]))
            };
            for is_known in [false, true] {
                let alone = run(is_known, false);
                assert_eq!(run(is_known, true), alone, "kind {index}, known: {is_known}");
                assert_eq!(alone.0.is_empty(), index >= 6, "kind {index}");
            }
        }
    }
}

/// The tunnel's offsets of a packet.
fn tunnel_of(offload: &Offload) -> Option<Tunnel> {
    offload.gso.and_then(|gso: Gso| gso.tunnel)
}

/// Goal: a packet that the forwarder leaves to the owner is not changed: its claims and its bytes
/// are those that it arrived with.
#[test]
fn a_packet_for_the_owner_is_unchanged() {
    let mut t = Harness::new(tagged_ports());
    let mut forwarder = t.switch.forwarder();
    let packets = kinds(&mut t, mac(2));
    let before: Vec<_> =
        packets[..7].iter().map(|packet| (packet.len(), *packet.offload())).collect();
    assert!(before.iter().any(|(_, offload)| tunnel_of(offload).is_some()));
    let rest = forward(&mut t, &mut forwarder, 0, packets, false);
    let after: Vec<_> = rest.iter().map(|packet| (packet.len(), *packet.offload())).collect();
    assert_eq!(after, before);
    drop((rest, forwarder));
    t.end();
}

/// Goal: a forwarder passes packets between known stations on, and counts them; packets that need
/// more than reading are left to the owner and not counted.
#[test]
fn what_needs_the_owner_is_left() {
    let mut t = Harness::new([port(), port(), port()]);
    let mut forwarder = t.switch.forwarder();
    for station in 1..=2 {
        t.leaves_by(usize::from(station) - 1, &plain(BROADCAST, station));
    }
    t.switch.add_station(mac(3), vid(1), t.ports[2], t.now).expect("room");
    let group = MacAddr([1, 0, 0x5e, 0, 0, 1]);
    let cases = [
        (0, plain(mac(2), 1), true),
        (0, plain(mac(3), 1), true),
        (2, plain(mac(1), 3), true),
        (0, plain(mac(1), 1), true), // Same port: dropped there.
        (0, plain(mac(9), 1), false),
        (0, plain(mac(2), 9), false),
        (0, plain(mac(1), 2), false), // It has moved.
        (1, plain(mac(1), 3), false), // It belongs to another port.
        (0, plain(BROADCAST, 1), false),
        (0, plain(group, 1), false),
        (0, plain(mac(2), 1)[..13].to_vec(), true), // Malformed: dropped.
    ];
    for (from, bytes, is_done) in cases {
        let before = all_counters(&t, &[&forwarder]);
        let packet = t.packet(&bytes, true);
        let rest = forward(&mut t, &mut forwarder, from, [packet], false);
        assert_eq!(rest.is_empty(), is_done, "{bytes:?}");
        assert_eq!(all_counters(&t, &[&forwarder]) == before, !is_done, "{bytes:?}");
    }
    let [first, second, third] = [0, 1, 2].map(|port| {
        let counters = forwarder.take_counters(t.ports[port]).expect("a port");
        (counters.packets_in, counters.packets_out, counters.drops().count())
    });
    assert_eq!((first, second, third), ((4, 1, 2), (0, 1, 0), (1, 1, 0)));
    assert_eq!(forwarder.counters_of(t.ports[0]).expect("a port").packets_in, 0);
    drop(forwarder);
    t.end();
}

/// Goal: whether an address may be claimed is a question for the owner; the packets of such a port
/// that claim none are not.
#[test]
fn claims_are_left_to_the_owner() {
    let mut t = Harness::new([PortConfig { respects_owners: true, ..port() }, port()]);
    for station in [1, 2] {
        t.leaves_by(usize::from(station) - 1, &plain(BROADCAST, station));
    }
    let mut forwarder = t.switch.forwarder();
    let arp = |sender_ip: [u8; 4]| {
        let packet = arp::Packet {
            operation: arp::Operation::Reply,
            sender_mac: mac(1),
            sender_ip: Ipv4Addr::from(sender_ip),
            target_mac: mac(2),
            target_ip: Ipv4Addr::new(10, 10, 10, 2),
        };
        let mut body = alloc::vec![0; arp::LEN];
        packet.emit(&mut body);
        [&mac(2).0[..], &mac(1).0, &[8, 6], &body].concat()
    };
    let ip = readdressed(&Spec::plain(false, false, pattern(40)).frame(), mac(2), mac(1), None);
    let ipv6 = readdressed(&Spec::plain(true, true, pattern(40)).frame(), mac(2), mac(1), None);
    let cases = [(ip, true), (ipv6, true), (arp([10, 0, 0, 9]), false), (arp([0; 4]), true)];
    for (bytes, is_done) in cases {
        let packet = received(&mut t.memory, &bytes, &[33]);
        let mut rest = forward(&mut t, &mut forwarder, 0, [packet], false);
        assert_eq!(rest.is_empty(), is_done, "{bytes:?}");
        let is_pulled = |packet: &Packet| packet.payload_len() != bytes.len();
        assert!(!rest.iter().any(is_pulled), "it is as it was received");
        t.frames();
        // The owner decides, and is asked for the right address.
        t.out.owners.insert(IpAddr::from([10, 0, 0, 9]), t.ports[1]);
        if !is_done {
            t.send_burst(0, &mut rest);
            assert_eq!(t.counters(0).dropped(PortDrop::AddressSpoofed), 1);
        }
    }
    drop(forwarder);
    t.end();
}

/// Goal: while packets for a destination are under way through the owner, later ones follow them;
/// those for another destination do not wait.
#[test]
fn packets_follow_those_left_to_the_owner() {
    let mut t = Harness::new([port(), port()]);
    t.leaves_by(0, &plain(BROADCAST, 1));
    t.leaves_by(1, &plain(BROADCAST, 2));
    let mut forwarder = t.switch.forwarder();
    let bits = |station| fdb::Key::new(mac(station), vid(1)).bit();
    assert_ne!(bits(2), bits(3), "the test needs stations with different bits");
    let mut send = |t: &mut Harness, to: u8, is_pending| {
        let packet = t.packet(&plain(mac(to), 1), true);
        let rest = forward(t, &mut forwarder, 0, [packet], is_pending);
        rest.is_empty()
    };
    assert!(!send(&mut t, 3, false), "unknown");
    t.leaves_by(1, &plain(BROADCAST, 3));
    assert!(!send(&mut t, 3, true), "known now, but it must not overtake");
    assert!(send(&mut t, 2, true), "another destination");
    assert!(send(&mut t, 3, false), "the owner has forwarded the others");
    t.frames();
    // Also within a burst: a packet whose sender is unknown, then one whose sender is known.
    let frames = [plain(mac(3), 9), plain(mac(3), 1), plain(mac(2), 1)];
    let packets = frames.map(|frame| t.packet(&frame, true));
    let rest = forward(&mut t, &mut forwarder, 0, packets, false);
    assert_eq!((rest.len(), t.frames()[&1].len()), (2, 1));
    drop((rest, forwarder));
    t.end();
}

/// Goal: a station whose packets all pass a forwarder stays known; a silent one does not, and
/// neither does one behind another port.
#[test]
fn a_forwarder_refreshes_stations() {
    let mut t = Harness::new([port(), port()]);
    t.leaves_by(0, &plain(BROADCAST, 1));
    t.leaves_by(1, &plain(BROADCAST, 2));
    let mut forwarder = t.switch.forwarder();
    let half = Duration::from_secs(AGE.as_secs() / 2);
    t.now += half;
    let packet = t.packet(&plain(mac(2), 1), true);
    assert!(forward(&mut t, &mut forwarder, 0, [packet], false).is_empty());
    // At another port, this is no sign of life.
    let packet = t.packet(&plain(mac(1), 2), true);
    assert!(!forward(&mut t, &mut forwarder, 0, [packet], false).is_empty());
    t.now += half;
    t.switch.expire(t.now);
    let known: Vec<_> = t.switch.stations(t.now).map(|station| station.mac).collect();
    assert_eq!(known, [mac(1)]);
    let packet = t.packet(&plain(mac(2), 1), true);
    assert!(!forward(&mut t, &mut forwarder, 0, [packet], false).is_empty(), "2 is unknown");
    assert_eq!(t.switch.next_deadline(), Some(t.now + half));
    drop(forwarder);
    t.end();
}

/// Goal: a forwarder follows changes of ports when it is refreshed, and leaves packets for and from
/// ports that it does not know to the owner.
#[test]
fn a_forwarder_follows_changes_of_ports() {
    let mut t = Harness::new([port(), port()]);
    for station in [1, 2] {
        let at = t.ports[usize::from(station) - 1];
        t.switch.add_station(mac(station), vid(1), at, t.now).expect("room");
    }
    let mut forwarder = t.switch.forwarder();
    let before = t.switch.generation();
    assert_eq!(forwarder.refresh(), before);
    let id = t.switch.add_port(port()).expect("room");
    t.ports.push(id);
    t.switch.add_station(mac(3), vid(1), id, t.now).expect("room");
    let send = |t: &mut Harness, forwarder: &mut Forwarder, from: usize, to: u8| {
        let packet = t.packet(&plain(mac(to), from as u8 + 1), true);
        let is_done = forward(t, forwarder, from, [packet], false).is_empty();
        (is_done, t.frames().into_keys().collect::<Vec<_>>())
    };
    assert_eq!(send(&mut t, &mut forwarder, 0, 3), (false, Vec::new()));
    assert_eq!(send(&mut t, &mut forwarder, 2, 1), (false, Vec::new()));
    assert_eq!(forwarder.refresh(), before + 1);
    assert_eq!(send(&mut t, &mut forwarder, 0, 3), (true, alloc::vec![2]));
    assert_eq!(send(&mut t, &mut forwarder, 2, 1), (true, alloc::vec![0]));
    let isolated = PortConfig { role: Role::Isolated, ..port() };
    t.switch.set_port(id, isolated.clone()).expect("room");
    assert_eq!(send(&mut t, &mut forwarder, 0, 3), (true, alloc::vec![2]), "not refreshed yet");
    forwarder.refresh();
    assert_eq!(forwarder.config_of(id), Some(&isolated));
    assert_eq!(send(&mut t, &mut forwarder, 0, 3), (true, Vec::new()));
    let counters = forwarder.counters_of(t.ports[0]).expect("a port");
    assert_eq!(counters.dropped(PortDrop::Isolated), 1);
    // A change of capabilities is one, the same capabilities are none.
    let generation = t.switch.generation();
    t.switch.set_caps(id, ALONE).expect("a port");
    t.switch.set_caps(id, ALONE).expect("a port");
    assert_eq!(t.switch.generation(), generation + 1);
    assert_eq!(forwarder.refresh(), generation + 1);
    t.switch.remove_port(id).expect("a port");
    forwarder.refresh();
    assert_eq!(send(&mut t, &mut forwarder, 2, 1), (false, Vec::new()));
    assert!(forwarder.counters_of(id).is_none());
    drop(forwarder);
    t.end();
}

/// Goal: the number of a removed port is not given to another while a forwarder, or a packet that
/// it left to the owner, may still mean the removed one. Without forwarders it is free at once.
#[test]
fn a_number_waits_for_forwarders() {
    let mut t = Harness::new([port(), port()]);
    let (first, second) = (t.ports[0], t.ports[1]);
    t.switch.remove_port(first).expect("a port");
    assert_eq!(t.switch.add_port(port()), Ok(first));
    let mut forwarders = [t.switch.forwarder(), t.switch.forwarder()];
    t.switch.remove_port(first).expect("a port");
    let removed = t.switch.generation();
    assert!(t.switch.oldest_generation() < removed);
    t.switch.release_numbers(t.switch.oldest_generation());
    let third = t.switch.add_port(port()).expect("room");
    assert!(![first, second].contains(&third));
    forwarders[0].refresh();
    t.switch.release_numbers(t.switch.oldest_generation());
    let fourth = t.switch.add_port(port()).expect("room");
    assert!(![first, second, third].contains(&fourth));
    forwarders[1].refresh();
    assert!(t.switch.oldest_generation() >= removed);
    let fifth = t.switch.add_port(port()).expect("room");
    assert_ne!(fifth, first, "not released yet");
    t.switch.release_numbers(t.switch.oldest_generation());
    assert_eq!(t.switch.add_port(port()), Ok(first));
    drop(forwarders);
    assert_eq!(t.switch.oldest_generation(), t.switch.generation());
    t.end();
}

/// Goal: a forwarder stops when there is no room for what it leaves to the owner, and loses
/// nothing.
#[test]
fn a_forwarder_stops_without_room() {
    let mut t = Harness::new([port(), port()]);
    let mut forwarder = t.switch.forwarder();
    let (mut burst, mut rest) = (Burst::new(), Burst::limited(2));
    for _ in 0..5 {
        burst.push(t.packet(&plain(mac(2), 1), true)).expect("room");
    }
    let Harness { memory, ledger, now, out, ports, .. } = &mut t;
    let mut cx = Context { memory, ledger, now: *now };
    let bytes = forwarder.forward(ports[0], &mut burst, &mut cx, out, &mut rest, false);
    assert_eq!((rest.len(), burst.len(), bytes), (2, 3, 2 * 64));
    drop((burst, rest, forwarder));
    t.end();
}
