//! Hosts and reflectors on links with a delay, in simulated time.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::super::*;
use crate::message::{Attributes, Update};
use crate::session::Link::Opened;

/// Delay of a link, and step of the simulation while bytes are under way.
const DELAY: Duration = Duration::from_millis(1);
/// Step while none are.
const QUIET: Duration = Duration::from_millis(50);

/// How large a world is.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) hosts: usize,
    pub(super) stations: usize,
    pub(super) reflectors: usize,
}

pub(super) struct World {
    now: Instant,
    hosts: Vec<Host>,
    reflectors: Vec<Option<Reflector>>,
    /// Stations that a host has lost.
    pub(super) losses: usize,
}

struct Host {
    speaker: Speaker,
    is_dead: bool,
    /// What the data plane has.
    remotes: HashMap<MacAddr, IpAddr>,
    here: Vec<MacAddr>,
    /// Sent and received.
    bytes: usize,
    /// One for each reflector.
    links: Vec<Link>,
}

/// Bytes under way, each piece with the time of its arrival.
#[derive(Default)]
struct Link {
    up: VecDeque<(Instant, Vec<u8>)>,
    down: VecDeque<(Instant, Vec<u8>)>,
    is_open: bool,
    /// Nothing passes.
    is_cut: bool,
}

/// A route reflector (RFC 4456) that resends each route to all other clients.
struct Reflector {
    clients: Vec<Client>,
    routes: BTreeMap<RouteKey, (usize, Attributes, u32)>,
}

struct Client {
    session: Session,
    /// Routes to send; `None` if withdrawn.
    pending: BTreeSet<RouteKey>,
    owes_end: bool,
}

pub(super) fn vtep(host: usize) -> IpAddr {
    IpAddr::from([192, 0, 2, 10 + host as u8])
}

pub(super) fn mac(host: usize, number: usize) -> MacAddr {
    let [.., high, low] = (number as u32).to_be_bytes();
    MacAddr([2, 0, 0, host as u8, high, low])
}

/// Memory of the process.
pub(super) fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("?").to_owned()
}

fn settings(host: u8, hold_seconds: u16) -> Settings {
    Settings {
        as_number: 65001,
        router_id: Ipv4Addr::new(192, 0, 2, host),
        hold_seconds,
        is_passive: false,
    }
}

impl World {
    pub(super) fn new(size: Size) -> Self {
        let now = Instant::START;
        let vni = Vni::new(100).unwrap();
        let hosts = (0..size.hosts).map(|host| {
            let settings = settings(10 + host as u8, 9);
            let config = Config { settings, vtep: vtep(host), neighbors: size.reflectors };
            let mut speaker = Speaker::new(config, now);
            assert!(speaker.add_network(vni, now));
            let here: Vec<MacAddr> =
                (0..size.stations / size.hosts).map(|number| mac(host, number)).collect();
            for mac in &here {
                speaker.learn(vni, *mac, &[], false, now).unwrap();
            }
            let links = (0..size.reflectors).map(|_| Link::default()).collect();
            Host { speaker, is_dead: false, remotes: HashMap::new(), here, bytes: 0, links }
        });
        let hosts: Vec<Host> = hosts.collect();
        let reflectors = (0..size.reflectors).map(|_| Some(Reflector::new(size.hosts, now)));
        Self { now, hosts, reflectors: reflectors.collect(), losses: 0 }
    }

    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// Runs until all hosts know all stations from living sessions, at most 30 seconds, and returns
    /// the time it took.
    pub(super) fn converge(&mut self) -> Duration {
        let start = self.now;
        let has_stale = |host: &Host| host.speaker.neighbor(0).stale > 0;
        while !self.all_know_all() || self.hosts.iter().any(has_stale) {
            self.run(Duration::from_millis(50));
            assert!(self.now.since(start) < Duration::from_secs(30), "no convergence");
        }
        self.now.since(start)
    }

    pub(super) fn kill_reflector(&mut self, reflector: usize) {
        self.reflectors[reflector] = None;
        for host in &mut self.hosts {
            host.links[reflector] = Link::default();
            host.speaker.closed(reflector, Opened, self.now);
        }
    }

    pub(super) fn start_reflector(&mut self, reflector: usize) {
        self.reflectors[reflector] = Some(Reflector::new(self.hosts.len(), self.now));
    }

    /// The host disappears: it sends nothing more, and its connection does not end.
    pub(super) fn kill_host(&mut self, host: usize) {
        self.hosts[host].is_dead = true;
    }

    /// Nothing passes between a host and a reflector, and neither notices.
    pub(super) fn cut(&mut self, host: usize, reflector: usize) {
        let link = &mut self.hosts[host].links[reflector];
        *link = Link { is_open: link.is_open, is_cut: true, ..Link::default() };
    }

    pub(super) fn mend(&mut self, host: usize, reflector: usize) {
        self.hosts[host].links[reflector].is_cut = false;
    }

    /// The connection between a host and a reflector ends, and both see that.
    pub(super) fn disconnect(&mut self, host: usize, reflector: usize) {
        self.hosts[host].links[reflector] = Link::default();
        self.hosts[host].speaker.closed(reflector, Opened, self.now);
        if let Some(reflector) = &mut self.reflectors[reflector] {
            reflector.clients[host].session.closed(self.now);
            reflector.handle_events(host);
        }
    }

    pub(super) fn learn(&mut self, host: usize, mac: MacAddr) {
        self.try_learn(host, mac).unwrap();
    }

    /// A station sends something at a host.
    pub(super) fn try_learn(&mut self, host: usize, mac: MacAddr) -> Result<(), LearnError> {
        let vni = Vni::new(100).unwrap();
        self.hosts[host].speaker.learn(vni, mac, &[], false, self.now)
    }

    pub(super) fn counters(&self, host: usize) -> Counters {
        self.hosts[host].speaker.counters()
    }

    /// Checks that each station is at one of the living hosts, that all others send there, and that
    /// no data plane has another station.
    pub(super) fn check_agreement(&self) {
        let living: Vec<_> = self.hosts.iter().enumerate().filter(|(_, of)| !of.is_dead).collect();
        let mut places: BTreeMap<MacAddr, IpAddr> = BTreeMap::new();
        for (index, host) in &living {
            for station in host.speaker.stations().filter(|station| station.vtep.is_none()) {
                let before = places.insert(station.mac, vtep(*index));
                assert_eq!(before, None, "{} is also at host {index}", station.mac);
            }
        }
        for (index, host) in &living {
            let others = places.iter().filter(|(_, place)| **place != vtep(*index));
            let expected: HashMap<MacAddr, IpAddr> = others.map(|(mac, at)| (*mac, *at)).collect();
            assert_eq!(host.remotes, expected, "host {index}");
        }
    }

    pub(super) fn forget(&mut self, host: usize, number: usize) {
        let mac = mac(host, number);
        self.hosts[host].speaker.forget(Vni::new(100).unwrap(), mac, self.now);
        self.hosts[host].here.retain(|here| *here != mac);
    }

    /// The network's port is gone, and with it what its data plane had.
    pub(super) fn remove_network(&mut self, host: usize) {
        self.hosts[host].speaker.remove_network(Vni::new(100).unwrap());
        self.hosts[host].remotes.clear();
    }

    pub(super) fn add_network(&mut self, host: usize) {
        assert!(self.hosts[host].speaker.add_network(Vni::new(100).unwrap(), self.now));
    }

    pub(super) fn knows(&self, host: usize, mac: MacAddr) -> bool {
        self.place(host, mac).is_some()
    }

    pub(super) fn place(&self, host: usize, mac: MacAddr) -> Option<IpAddr> {
        self.hosts[host].remotes.get(&mac).copied()
    }

    pub(super) fn check_all_know_all(&self) {
        assert!(self.all_know_all());
    }

    /// UPDATE messages that all hosts sent and received, and bytes of all messages.
    pub(super) fn traffic(&self) -> (usize, usize) {
        let of = |host: &Host| {
            let messages = host.speaker.neighbor(0).messages;
            (messages.updates_received + messages.updates_sent) as usize
        };
        let messages: usize = self.hosts.iter().map(of).sum();
        let bytes: usize = self.hosts.iter().map(|host| host.bytes).sum();
        (messages, bytes)
    }

    fn all_know_all(&self) -> bool {
        self.hosts.iter().enumerate().filter(|(_, host)| !host.is_dead).all(|(index, host)| {
            let others = self.hosts.iter().enumerate().filter(|(other, _)| *other != index);
            let mut count = 0;
            let knows = others.map(|(other, of)| (vtep(other), of)).all(|(vtep, of)| {
                count += of.here.len();
                of.here.iter().all(|mac| host.remotes.get(mac) == Some(&vtep))
            });
            knows && count == host.remotes.len()
        })
    }

    fn step(&mut self) {
        let links = self.hosts.iter().flat_map(|host| &host.links);
        let is_quiet = links.map(|link| link.up.len() + link.down.len()).sum::<usize>() == 0;
        self.now += if is_quiet { QUIET } else { DELAY };
        let now = self.now;
        for (index, host) in self.hosts.iter_mut().enumerate().filter(|(_, host)| !host.is_dead) {
            host.step(index, &mut self.reflectors, now);
            for (_, change) in host.speaker.take_changes() {
                match change {
                    Change::AddStation { mac, remote } => {
                        host.remotes.insert(mac, remote);
                    }
                    Change::DelStation(mac) => {
                        host.remotes.remove(&mac);
                        self.losses += 1;
                    }
                    _ => {}
                }
            }
        }
        for (index, reflector) in self.reflectors.iter_mut().enumerate() {
            let Some(reflector) = reflector else { continue };
            for (client, host) in self.hosts.iter_mut().enumerate() {
                reflector.step(client, &mut host.links[index], now);
            }
        }
    }
}

impl Host {
    fn step(&mut self, index: usize, reflectors: &mut [Option<Reflector>], now: Instant) {
        self.speaker.tick(now);
        for (neighbor, reflector) in reflectors.iter_mut().enumerate() {
            let link = &mut self.links[neighbor];
            if self.speaker.wants_connection(neighbor, Opened) && !link.is_open {
                match reflector {
                    Some(reflector) if !link.is_cut => {
                        *link = Link { is_open: true, ..Link::default() };
                        reflector.accept(index, now);
                        self.speaker.connected(neighbor, now);
                    }
                    _ => self.speaker.closed(neighbor, Opened, now),
                }
            }
            while let Some((_, bytes)) = link.down.pop_front_if(|(at, _)| *at <= now) {
                self.bytes += bytes.len();
                self.speaker.receive(neighbor, Opened, &bytes, now);
            }
            let bytes = self.speaker.output(neighbor, Opened, now).to_vec();
            if !bytes.is_empty() {
                self.bytes += bytes.len();
                self.speaker.sent(neighbor, Opened, bytes.len(), now);
                if !link.is_cut {
                    link.up.push_back((now + DELAY, bytes));
                }
            }
            if !self.speaker.is_connected(neighbor, Opened) {
                link.is_open = false;
            }
        }
    }
}

impl Reflector {
    fn new(clients: usize, now: Instant) -> Self {
        let client = |_| Client {
            session: Session::new(settings(1, 90), now),
            pending: BTreeSet::new(),
            owes_end: false,
        };
        Self { clients: (0..clients).map(client).collect(), routes: BTreeMap::new() }
    }

    fn accept(&mut self, client: usize, now: Instant) {
        // A new connection replaces one that the reflector still has.
        self.clients[client].session.closed(now);
        self.handle_events(client);
        let client = &mut self.clients[client];
        client.session = Session::new(settings(1, 90), now);
        client.session.tick(now);
        client.session.connected(now);
        client.session.introduce_as_reflector();
    }

    fn step(&mut self, index: usize, link: &mut Link, now: Instant) {
        while let Some((_, bytes)) = link.up.pop_front_if(|(at, _)| *at <= now) {
            self.clients[index].session.receive(&bytes, now);
        }
        self.clients[index].session.tick(now);
        self.handle_events(index);
        self.write(index, now);
        let session = &mut self.clients[index].session;
        let bytes = session.output().to_vec();
        if !bytes.is_empty() {
            session.sent(bytes.len(), now);
            if !link.is_cut {
                link.down.push_back((now + DELAY, bytes));
            }
        }
    }

    fn handle_events(&mut self, index: usize) {
        while let Some(event) = self.clients[index].session.next_event() {
            match event {
                Event::Established => {
                    let others = self.routes.iter().filter(|(_, (from, ..))| *from != index);
                    self.clients[index].pending = others.map(|(key, _)| *key).collect();
                    self.clients[index].owes_end = true;
                }
                Event::Update(update) => self.update(index, update),
                Event::Refresh => {
                    let others = self.routes.iter().filter(|(_, (from, ..))| *from != index);
                    self.clients[index].pending.extend(others.map(|(key, _)| *key));
                }
                Event::Down(_) => {
                    let of = self.routes.iter().filter(|(_, (from, ..))| *from == index);
                    let withdrawn = of.map(|(key, _)| *key).collect();
                    self.update(index, Update { withdrawn, ..Update::default() });
                }
            }
        }
    }

    fn update(&mut self, from: usize, update: Update) {
        let mut touched = update.withdrawn.clone();
        for key in &update.withdrawn {
            self.routes.remove(key);
        }
        for (key, vni) in update.announced {
            let attributes = update.attributes.clone().unwrap();
            self.routes.insert(key, (from, attributes, vni));
            touched.push(key);
        }
        for (index, client) in self.clients.iter_mut().enumerate() {
            if index != from && client.session.state() == State::Established {
                client.pending.extend(&touched);
            }
        }
    }

    fn write(&mut self, index: usize, now: Instant) {
        let client = &mut self.clients[index];
        if client.session.state() != State::Established {
            return;
        }
        while let Some(first) = client.pending.first().copied() {
            let attributes = self.routes.get(&first).map(|(_, attributes, _)| attributes);
            let mut batch = Vec::new();
            while let Some(key) = client.pending.first().copied()
                && batch.len() < ROUTES_PER_UPDATE
                && self.routes.get(&key).map(|(_, attributes, _)| attributes) == attributes
            {
                batch.push((key, self.routes.get(&key).map_or(0, |(.., vni)| *vni)));
                client.pending.pop_first();
            }
            client.session.send_update(now, |out| match attributes {
                Some(attributes) => message::announce(attributes, &batch, out),
                None => {
                    let keys: Vec<_> = batch.iter().map(|(key, _)| *key).collect();
                    message::withdraw(&keys, out);
                }
            });
        }
        if std::mem::take(&mut client.owes_end) {
            client.session.send_update(now, |out| message::withdraw(&[], out));
        }
    }
}
