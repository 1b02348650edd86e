//! Two speakers that connect to each other, in simulated time.

use std::collections::VecDeque;

use super::super::*;
use crate::session::Link::Opened;

/// Two hosts.
pub(super) struct Pair {
    pub(super) now: Instant,
    pub(super) speakers: [Speaker; 2],
    ids: [u8; 2],
    is_passive: bool,
    connections: Vec<Connection>,
    seed: u64,
}

/// A connection of which at least one host has its end.
#[derive(Default)]
struct Connection {
    /// Which one it is for each host; `None` once the host has closed its end.
    ends: [Option<Link>; 2],
    /// What is on its way to a host; `None` is the end.
    pipes: [VecDeque<Option<Vec<u8>>>; 2],
}

impl Pair {
    /// Hosts with these BGP identifiers, of which the first may be passive.
    pub(super) fn new(ids: [u8; 2], is_passive: bool, seed: u64) -> Self {
        let now = Instant::START;
        let speakers = [0, 1].map(|host| speaker(host, ids[host], is_passive && host == 0, now));
        Self { now, speakers, ids, is_passive, connections: Vec::new(), seed }
    }

    /// Lets a host start again after a crash. Its neighbour does not hear of that: what comes for
    /// connections of before is lost.
    pub(super) fn crash(&mut self, host: usize) {
        let is_passive = self.is_passive && host == 0;
        self.speakers[host] = speaker(host, self.ids[host], is_passive, self.now);
        for connection in &mut self.connections {
            connection.ends[host] = None;
            connection.pipes.iter_mut().for_each(VecDeque::clear);
        }
    }

    /// A number below `end`.
    fn random(&mut self, end: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) as usize % end
    }

    /// Runs for a time: in each second, steps of either host in random order.
    pub(super) fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            for speaker in &mut self.speakers {
                speaker.tick(self.now);
            }
            for _ in 0..60 {
                let host = self.random(2);
                self.open(host);
                let Some(last) = self.connections.len().checked_sub(1) else { continue };
                let connection = self.random(last + 1);
                match self.random(2) {
                    0 => self.send(host, connection),
                    _ => self.deliver(host, connection),
                }
                self.connections.retain(|one| one.ends != [None; 2]);
            }
            self.now += Duration::from_secs(1);
        }
    }

    /// Opens a connection, if the host wants one.
    fn open(&mut self, host: usize) {
        let (other, now) = (1 - host, self.now);
        let has_one = self.connections.iter().any(|one| one.ends[host] == Some(Opened));
        if has_one || !self.speakers[host].wants_connection(0, Opened) {
            return;
        }
        let Some(link) = self.speakers[other].accept(0, now) else {
            self.speakers[host].closed(0, Opened, now);
            return;
        };
        // The one in whose place it is.
        let before = self.connections.iter_mut().find(|one| one.ends[other] == Some(link));
        if let Some(before) = before {
            before.ends[other] = None;
            before.pipes[host].push_back(None);
        }
        let mut connection = Connection::default();
        (connection.ends[host], connection.ends[other]) = (Some(Opened), Some(link));
        self.connections.push(connection);
        self.speakers[host].connected(0, now);
    }

    /// Sends on a connection, or closes it.
    fn send(&mut self, host: usize, connection: usize) {
        let now = self.now;
        let Connection { ends, pipes } = &mut self.connections[connection];
        let Some(link) = ends[host] else { return };
        let speaker = &mut self.speakers[host];
        let bytes = speaker.output(0, link, now).to_vec();
        if !bytes.is_empty() {
            speaker.sent(0, link, bytes.len(), now);
            pipes[1 - host].push_back(Some(bytes));
        }
        if !speaker.wants_connection(0, link) {
            ends[host] = None;
            pipes[1 - host].push_back(None);
        }
    }

    /// Hands a host what has arrived, in any pieces.
    fn deliver(&mut self, host: usize, connection: usize) {
        let part = self.random(usize::MAX);
        let Connection { ends, pipes } = &mut self.connections[connection];
        let Some(next) = pipes[host].pop_front() else { return };
        let Some(link) = ends[host] else { return };
        let Some(mut bytes) = next else {
            self.speakers[host].closed(0, link, self.now);
            ends[host] = None;
            return;
        };
        let rest = bytes.split_off(part % (bytes.len() + 1));
        if !rest.is_empty() {
            pipes[host].push_front(Some(rest));
        }
        self.speakers[host].receive(0, link, &bytes, self.now);
    }

    /// Asserts that both have one session over one connection, with all routes. Returns which one
    /// that is for each host.
    pub(super) fn check(&mut self) -> [Link; 2] {
        for host in 0..2 {
            let report = self.speakers[host].neighbor(0);
            assert_eq!((report.state, report.routes), (State::Established, 2), "host {host}");
        }
        let ends: Vec<_> = self.connections.iter().map(|one| one.ends).collect();
        match ends[..] {
            [[Some(first), Some(second)]] => [first, second],
            _ => panic!("ends of connections: {ends:?}"),
        }
    }
}

/// A speaker with a station.
pub(super) fn speaker(host: usize, id: u8, is_passive: bool, now: Instant) -> Speaker {
    let settings = Settings {
        as_number: 65001,
        router_id: Ipv4Addr::new(192, 0, 2, id),
        hold_seconds: 9,
        is_passive,
    };
    let vtep = IpAddr::from([192, 0, 2, 10 + host as u8]);
    let mut speaker = Speaker::new(Config { settings, vtep, neighbors: 1 }, now);
    let vni = Vni::new(100).unwrap();
    assert!(speaker.add_network(vni, now));
    speaker.learn(vni, MacAddr([2, 0, 0, 0, 0, host as u8]), &[], false, now).unwrap();
    speaker
}
