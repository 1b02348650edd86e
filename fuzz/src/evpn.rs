//! Target: what a BGP neighbour sends.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use towpath_evpn::message::{self, MESSAGE_BYTES_MAX};
use towpath_evpn::session::{Link, Settings};
use towpath_evpn::{Config, Speaker};
use towpath_net::time::{Duration, Instant};
use towpath_net::vxlan::Vni;
use towpath_net::vxlan::remotes::Change;
use towpath_net::wire::MacAddr;

/// Feeds a stream of messages to a speaker, or the same with headers that fit. The data plane's
/// changes must be consistent, and what the speaker answers must be valid messages.
///
/// The first byte says how: bit 0, the messages have no headers but a type and a length of two
/// bytes; bit 1, the stream arrives in pieces of seven bytes; bit 7, the neighbour has connected,
/// too, says the same on both connections, connects once more, and says it again. Its other bits
/// are seconds between messages.
pub fn run(data: &[u8]) {
    let Some((how, data)) = data.split_first() else { return };
    let mut world = World::new();
    let pause = Duration::from_secs(u64::from(how >> 2 & 31));
    let has_connected = how & 0x80 != 0;
    let mut links = vec![Link::Opened];
    if has_connected {
        links.extend(world.speaker.accept(0, world.now));
        assert_eq!(links.len(), 2, "it has none of this kind");
    }
    let stream = if how & 1 == 0 { data.to_vec() } else { framed(data) };
    let size = if how & 2 == 0 { MESSAGE_BYTES_MAX } else { 7 };
    for piece in stream.chunks(size) {
        for link in &links {
            world.receive(*link, piece);
        }
        world.now += pause;
    }
    if let Some(again) = has_connected.then(|| world.speaker.accept(0, world.now)).flatten() {
        for piece in stream.chunks(size) {
            world.receive(again, piece);
            world.now += pause;
        }
    }
    let settle = Duration::from_secs(4096);
    world.now += settle;
    world.turn();
    for link in Link::ALL {
        world.speaker.closed(0, link, world.now);
    }
    world.now += settle;
    world.turn();
    assert!(world.stations.is_empty(), "stations of a neighbour that is gone");
    assert!(world.flood.is_empty(), "remotes of a neighbour that is gone");
}

/// Adds headers to messages, each of which is its type, two bytes of length, and its body.
fn framed(mut data: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    while let [kind, high, low, rest @ ..] = data {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let len = len.min(MESSAGE_BYTES_MAX - 19);
        stream.extend([0xff; 16]);
        stream.extend((19 + len as u16).to_be_bytes());
        stream.push(*kind);
        stream.extend(&rest[..len]);
        data = &rest[len..];
    }
    stream
}

struct World {
    speaker: Speaker,
    now: Instant,
    stations: HashMap<(Vni, MacAddr), IpAddr>,
    flood: HashSet<(Vni, IpAddr)>,
}

impl World {
    fn new() -> Self {
        let now = Instant::START;
        let router_id = Ipv4Addr::new(192, 0, 2, 99);
        let settings = Settings { as_number: 65001, router_id, hold_seconds: 9, is_passive: false };
        let config = Config { settings, vtep: router_id.into(), neighbors: 1 };
        let mut speaker = Speaker::new(config, now);
        let vni = Vni::new(100).expect("it has few bits");
        assert!(speaker.add_network(vni, now));
        let mac = MacAddr([0x8a, 0xf7, 0xe6, 0xb0, 0xea, 0x83]);
        speaker.learn(vni, mac, &[], false, now).expect("it is a station");
        speaker.tick(now);
        speaker.connected(0, now);
        Self { speaker, now, stations: HashMap::new(), flood: HashSet::new() }
    }

    fn receive(&mut self, link: Link, bytes: &[u8]) {
        self.speaker.receive(0, link, bytes, self.now);
        self.turn();
    }

    fn turn(&mut self) {
        self.speaker.tick(self.now);
        for link in Link::ALL {
            let output = self.speaker.output(0, link, self.now).to_vec();
            let mut rest = &output[..];
            while !rest.is_empty() {
                let len = message::length(rest).expect("its header is valid").expect("it is whole");
                message::parse(&rest[..len], true).expect("it is valid");
                rest = &rest[len..];
            }
            self.speaker.sent(0, link, output.len(), self.now);
        }
        for (vni, change) in self.speaker.take_changes() {
            match change {
                Change::AddStation { mac, remote } => {
                    assert_ne!(self.stations.insert((vni, mac), remote), Some(remote));
                }
                Change::DelStation(mac) => assert!(self.stations.remove(&(vni, mac)).is_some()),
                Change::AddFlood(remote) => assert!(self.flood.insert((vni, remote))),
                Change::DelFlood(remote) => assert!(self.flood.remove(&(vni, remote))),
                Change::AddAddress { .. } | Change::DelAddress(_) => {}
            }
        }
    }
}
