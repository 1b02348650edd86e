//! Two speakers that connect to each other, in simulated time.

use std::collections::VecDeque;

use super::super::*;
use crate::session::Link::{Accepted, Opened};

/// Two hosts. A connection has the number of the host that opened it.
pub(super) struct Pair {
    pub(super) now: Instant,
    pub(super) speakers: [Speaker; 2],
    /// Whether a host has its end of a connection.
    pub(super) sockets: [[bool; 2]; 2],
    /// What is on its way to a host on a connection; `None` is the end.
    pipes: [[VecDeque<Option<Vec<u8>>>; 2]; 2],
    seed: u64,
}

impl Pair {
    /// Hosts with these BGP identifiers, of which the first may be passive.
    pub(super) fn new(ids: [u8; 2], is_passive: bool, seed: u64) -> Self {
        let now = Instant::START;
        let vni = Vni::new(100).unwrap();
        let speaker = |host: usize| {
            let settings = Settings {
                as_number: 65001,
                router_id: Ipv4Addr::new(192, 0, 2, ids[host]),
                hold_seconds: 9,
                is_passive: is_passive && host == 0,
            };
            let vtep = IpAddr::from([192, 0, 2, 10 + host as u8]);
            let mut speaker = Speaker::new(Config { settings, vtep, neighbors: 1 }, now);
            assert!(speaker.add_network(vni, now));
            speaker.learn(vni, MacAddr([2, 0, 0, 0, 0, host as u8]), &[], false, now).unwrap();
            speaker
        };
        let speakers = [speaker(0), speaker(1)];
        Self { now, speakers, sockets: Default::default(), pipes: Default::default(), seed }
    }

    /// A number below `end`.
    fn random(&mut self, end: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) as usize % end
    }

    fn link(host: usize, connection: usize) -> Link {
        if host == connection { Opened } else { Accepted }
    }

    /// Runs for a time: in each second, steps of either host in random order.
    pub(super) fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            for speaker in &mut self.speakers {
                speaker.tick(self.now);
            }
            for _ in 0..60 {
                let (host, connection) = (self.random(2), self.random(2));
                match self.random(2) {
                    0 => self.send(host, connection),
                    _ => self.deliver(host, connection),
                }
            }
            self.now += Duration::from_secs(1);
        }
    }

    /// Opens a connection, sends on it, or closes it.
    fn send(&mut self, host: usize, connection: usize) {
        let (link, other, now) = (Self::link(host, connection), 1 - host, self.now);
        let wants = self.speakers[host].wants_connection(0, link);
        if link == Opened && wants && !self.sockets[host][connection] {
            if !self.speakers[other].accept(0, now) {
                self.speakers[host].closed(0, Opened, now);
                return;
            }
            self.sockets.iter_mut().for_each(|of| of[connection] = true);
            self.pipes.iter_mut().for_each(|of| of[connection].clear());
            self.speakers[host].connected(0, now);
        }
        if !self.sockets[host][connection] {
            return;
        }
        let speaker = &mut self.speakers[host];
        let bytes = speaker.output(0, link, now).to_vec();
        if !bytes.is_empty() {
            speaker.sent(0, link, bytes.len(), now);
            self.pipes[other][connection].push_back(Some(bytes));
        }
        if !self.speakers[host].wants_connection(0, link) {
            self.sockets[host][connection] = false;
            self.pipes[other][connection].push_back(None);
        }
    }

    /// Hands a host what has arrived, in any pieces.
    fn deliver(&mut self, host: usize, connection: usize) {
        let Some(next) = self.pipes[host][connection].pop_front() else { return };
        if !self.sockets[host][connection] {
            return;
        }
        let (link, now) = (Self::link(host, connection), self.now);
        let Some(mut bytes) = next else {
            self.speakers[host].closed(0, link, now);
            self.sockets[host][connection] = false;
            return;
        };
        let rest = bytes.split_off(self.random(bytes.len() + 1));
        if !rest.is_empty() {
            self.pipes[host][connection].push_front(Some(rest));
        }
        self.speakers[host].receive(0, link, &bytes, now);
    }

    /// Asserts that both have one session over one connection, with all routes.
    pub(super) fn check(&mut self) {
        for host in 0..2 {
            let report = self.speakers[host].neighbor(0);
            assert_eq!((report.state, report.routes), (State::Established, 2), "host {host}");
        }
        let [first, second] = self.sockets;
        assert_eq!(first, second, "ends of connections");
        assert_eq!(first.iter().filter(|is_open| **is_open).count(), 1, "{first:?}");
    }
}
