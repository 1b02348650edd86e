//! BGP EVPN as the control plane of a network's VXLAN ports.
//!
//! # Theory of operation
//!
//! A thread owns the TCP connections of a [`Speaker`], which decides everything: the thread reads
//! and writes them, hands in local stations from the [`ControlPlane`], and passes on what the
//! speaker wants changed. It sleeps until a file is ready or the speaker has something to do.
//! Workers do nothing for it but to carry out changes.
//!
//! With [`EvpnSettings::listen`] neighbours may connect, too. Connections of others are closed and
//! counted. If there are several to a neighbour, the speaker says which one stays.
//!
//! Each VXLAN port takes part that ends at the address of this host that the others have, also one
//! that is added while this runs.
//!
//! [`SETTLE`] after the first session has begun, or [`ALONE`] after the start if none has, all
//! other hosts are known that can be, and the services give addresses to new clients.
//!
//! While changes wait for the network, no neighbour is read, so that TCP slows them down. A station
//! that the speaker refuses, as a duplicate or because another host has it as one that never
//! moves, is offered again every [`RETRY`].
//!
//! The speaker is behind a lock, for reports: only who asks for one waits.
//!
//! Limits: those of the speaker; [`peer::READS`] per neighbour and turn; [`ACCEPTS`] per turn.

mod peer;
mod settings;

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_evpn::session::{self, Link, Settings as SessionSettings, State};
use towpath_evpn::{Config, Counters, NeighborReport, Speaker, StationReport};
use towpath_io::doorbell::EventDoorbell;
use towpath_io::socket::TcpListener;
use towpath_net::switch::PortVlans;
use towpath_net::switch::vlan::Vid;
use towpath_net::time::{Instant, earliest};
use towpath_net::vxlan::Vni;
use towpath_net::vxlan::remotes::Change;
use towpath_net::wire::MacAddr;
use towpath_packet::ring::Doorbell;

use super::member::Member;
use super::remotes::{ControlEvent, ControlPlane};
use super::report::EvpnSummary;
use super::{Attachment, Network, VxlanSettings};

use peer::{Peer, Wire};
pub use settings::{EvpnError, EvpnSettings, vtep};

/// Connections accepted before neighbours have their turn.
const ACCEPTS: usize = 16;
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// Pause before a refused station is offered again, or connections are accepted again; and before a
/// busy network is asked again.
const RETRY: Duration = Duration::from_secs(10);
const BUSY: Duration = Duration::from_millis(10);

/// How long hosts that start together may take to know of each other, once one has a session:
/// two attempts to connect.
const SETTLE: Duration = Duration::from_secs(10);
const _: () = assert!(SETTLE.as_secs() >= 2 * session::RETRY.as_secs());
/// How long a host waits for its first session before it counts as alone: several attempts to
/// connect, and the start of a reflector.
const ALONE: Duration = Duration::from_secs(60);

/// Called for news of neighbours, with the neighbour's address, by the thread.
pub type TellEvpn = Box<dyn FnMut(IpAddr, &dyn Display) + Send>;

/// A running control plane. When this is dropped, it closes the sessions with its
/// neighbours and ends.
#[derive(Debug)]
pub struct Evpn {
    shared: Arc<Shared>,
    /// Dropped to end the thread.
    running: Option<SyncSender<()>>,
    bell: EventDoorbell,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    speaker: Mutex<Speaker>,
    neighbors: Vec<SocketAddr>,
    started: std::time::Instant,
}

/// What a control plane knows, for reports.
#[derive(Clone, Debug)]
pub struct EvpnReport {
    /// Neighbours, in the order of the settings, each with the time since its state changed.
    pub neighbors: Vec<(SocketAddr, NeighborReport, Duration)>,
    /// Stations here and elsewhere, in the order of networks and addresses.
    pub stations: Vec<StationReport>,
    /// What happened to routes.
    pub counters: Counters,
}

impl Evpn {
    /// Starts the thread. `vtep` is where the VXLAN ports end here.
    pub(super) fn start(
        settings: &EvpnSettings,
        vtep: IpAddr,
        control: ControlPlane,
        tell: TellEvpn,
    ) -> Result<Self, EvpnError> {
        for signature in settings.signatures.values() {
            signature.try_out().map_err(EvpnError::Signature)?;
        }
        let now = Instant::START;
        let config = Config {
            settings: SessionSettings {
                as_number: settings.as_number,
                router_id: settings.router_id,
                hold_seconds: settings.hold_seconds,
                is_passive: settings.is_passive,
            },
            vtep,
            neighbors: settings.neighbors.len(),
        };
        let address = |neighbor: &IpAddr| SocketAddr::new(*neighbor, settings.port);
        let shared = Arc::new(Shared {
            speaker: Mutex::new(Speaker::new(config, now)),
            neighbors: settings.neighbors.iter().map(address).collect(),
            started: moment(),
        });
        let peer = |to: &SocketAddr| Peer::new(*to, settings.signatures.get(&to.ip()).cloned());
        let (running, ends) = sync_channel(0);
        let bell = EventDoorbell::new().map_err(io::Error::from)?;
        let loops = Loop {
            shared: shared.clone(),
            peers: shared.neighbors.iter().map(peer).collect(),
            listener: settings.listen.map(|at| listen(at, settings)).transpose()?,
            accepts_at: None,
            control,
            vtep,
            tunnels: Vec::new(),
            ends,
            bell: bell.clone(),
            changes: VecDeque::new(),
            refused: HashMap::new(),
            retry_at: now,
            settles_at: Some(now + ALONE),
            tell,
        };
        let thread = thread::Builder::new().name("evpn".into()).spawn(move || loops.run())?;
        Ok(Self { shared, running: Some(running), bell, thread: Some(thread) })
    }

    /// What is known now. Waits until the thread has finished what it is doing: some milliseconds.
    pub fn report(&self) -> EvpnReport {
        let now = self.shared.now();
        let speaker = self.shared.speaker();
        let neighbors = self.shared.neighbors.iter().enumerate().map(|(index, address)| {
            let report = speaker.neighbor(index);
            let since = now.since(report.since);
            (*address, report, since)
        });
        let mut stations: Vec<_> = speaker.stations().collect();
        stations.sort_unstable_by_key(|station| (station.vni, station.mac));
        EvpnReport { neighbors: neighbors.collect(), stations, counters: speaker.counters() }
    }
}

impl Evpn {
    /// What is counted. Waits as [`Self::report`] does, and walks no routes.
    pub fn summary(&self) -> EvpnSummary {
        let speaker = self.shared.speaker();
        let session = |(index, address): (usize, &SocketAddr)| {
            (address.ip(), speaker.state(index), speaker.messages(index))
        };
        EvpnSummary {
            sessions: self.shared.neighbors.iter().enumerate().map(session).collect(),
            routes: speaker.route_counts(),
            counters: speaker.counters(),
        }
    }
}

impl Network {
    /// Lets BGP EVPN control the VXLAN ports, also those that come later. A thread calls `tell`.
    ///
    /// # Errors
    /// [`EvpnError`]; nothing was started.
    pub fn start_evpn(&mut self, settings: &EvpnSettings, tell: TellEvpn) -> Result<(), EvpnError> {
        settings.check()?;
        let members = self.members.iter().flatten();
        let tunnels: Vec<(&Member, &VxlanSettings)> = members
            .filter_map(|member| match &member.attachment {
                Attachment::Vxlan(settings) => Some((member, settings)),
                _ => None,
            })
            .collect();
        let vtep = vtep(tunnels.iter().map(|(_, settings)| *settings))?;
        let is_default = |(member, _): &(&Member, &VxlanSettings)| {
            matches!(member.settings.vlans, PortVlans::Access(Vid::DEFAULT))
        };
        let is_in_default = tunnels.iter().any(is_default);
        let control = self.control_plane()?;
        self.evpn = Some(Evpn::start(settings, vtep, control, tell)?);
        if let Some(services) = self.services.as_mut().filter(|_| is_in_default) {
            services.share(vtep, settings.shares_ipv4_pool, settings.shares_ipv6_pool);
        }
        Ok(())
    }

    /// Returns the control plane that [`start_evpn`](Self::start_evpn) made.
    pub fn evpn(&self) -> Option<&Evpn> {
        self.evpn.as_ref()
    }
}

impl Drop for Evpn {
    fn drop(&mut self) {
        self.running = None;
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn now(&self) -> Instant {
        Instant::START + self.started.elapsed()
    }

    fn speaker(&self) -> MutexGuard<'_, Speaker> {
        self.speaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the socket to which neighbours connect.
fn listen(at: SocketAddr, settings: &EvpnSettings) -> Result<TcpListener, EvpnError> {
    let listener = TcpListener::bind_signed(at, &settings.signatures);
    listener.map_err(|error| EvpnError::Listen { at, error })
}

#[expect(clippy::disallowed_methods, reason = "no worker drives this thread")]
fn moment() -> std::time::Instant {
    std::time::Instant::now()
}

/// What the thread has.
struct Loop {
    shared: Arc<Shared>,
    peers: Vec<Peer>,
    listener: Option<TcpListener>,
    /// Until then nothing is accepted, as descriptors or memory are short.
    accepts_at: Option<Instant>,
    control: ControlPlane,
    vtep: IpAddr,
    /// VXLAN ports that take part, and their networks.
    tunnels: Vec<(String, Vni)>,
    ends: Receiver<()>,
    bell: EventDoorbell,
    /// Changes that the network has yet to take.
    changes: VecDeque<(Vni, Change)>,
    /// Stations that the speaker refused, with their addresses and whether they are fixed.
    refused: HashMap<(Vni, MacAddr), (Vec<IpAddr>, bool)>,
    retry_at: Instant,
    /// When all other hosts are known; `None` once they are.
    settles_at: Option<Instant>,
    tell: TellEvpn,
}

impl Loop {
    fn run(mut self) {
        let mut buffer = vec![0; READ_BYTES];
        while self.ends.try_recv() != Err(TryRecvError::Disconnected) {
            let deadline = self.turn(&mut buffer);
            self.wait(deadline);
        }
        let (shared, now) = (self.shared.clone(), self.shared.now());
        let mut speaker = shared.speaker();
        speaker.shut_down(now);
        for (index, peer) in self.peers.iter_mut().enumerate() {
            for link in Link::ALL {
                peer.write(index, link, &mut speaker, now);
            }
        }
    }

    /// Does all that can be done now, and returns when something is due.
    fn turn(&mut self, buffer: &mut [u8]) -> Option<Instant> {
        let shared = self.shared.clone();
        let mut speaker = shared.speaker();
        let now = shared.now();
        self.take_events(&mut speaker, now);
        speaker.tick(now);
        self.accept(&mut speaker, now);
        let may_read = self.changes.is_empty();
        for (index, peer) in self.peers.iter_mut().enumerate() {
            peer.turn(index, &mut speaker, may_read.then_some(&mut *buffer), now);
            if let Some(news) = peer.news(index, &speaker) {
                (self.tell)(peer.to.ip(), &news);
            }
        }
        self.settle(&speaker, now);
        self.changes.extend(speaker.take_changes());
        while let Some((vni, change)) = self.changes.front() {
            let of = |(_, of): &&(String, Vni)| of == vni;
            let (port, _) = self.tunnels.iter().find(of).expect("networks come from them");
            if self.control.change(port, *change).is_err() {
                break;
            }
            self.changes.pop_front();
        }
        let busy = (!self.changes.is_empty()).then(|| now + BUSY);
        let retry = (!self.refused.is_empty()).then_some(self.retry_at);
        earliest([speaker.deadline(), busy, retry, self.settles_at, self.accepts_at])
    }

    /// Takes connections of neighbours, and closes those of others.
    fn accept(&mut self, speaker: &mut Speaker, now: Instant) {
        let Some(listener) = &self.listener else { return };
        if self.accepts_at.is_some_and(|at| at > now) {
            return;
        }
        self.accepts_at = None;
        for _ in 0..ACCEPTS {
            let (socket, from) = match listener.accept() {
                Ok(connection) => connection,
                // Connections that ended before they were accepted are no reason to stop.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.accepts_at = Some(now + RETRY);
                    return;
                }
            };
            match self.peers.iter().position(|peer| peer.to.ip() == from.ip()) {
                None => speaker.refuse(),
                Some(index) if !self.peers[index].has_signed(&socket) => speaker.refuse(),
                Some(index) => {
                    if let Some(link) = speaker.accept(index, now) {
                        let wire = Wire { socket, is_open: true, is_full: false };
                        self.peers[index].wires[link as usize] = Some(wire);
                    }
                }
            }
        }
    }

    /// Says when all other hosts are known.
    fn settle(&mut self, speaker: &Speaker, now: Instant) {
        let Some(at) = self.settles_at else { return };
        let is_up = |index: usize| speaker.state(index) == State::Established;
        let at = match (0..self.peers.len()).any(is_up) {
            true => at.min(now + SETTLE),
            false => at,
        };
        let is_settled = at <= now && self.control.settle().is_ok();
        self.settles_at = (!is_settled).then_some(at.max(now));
    }

    /// Hands in what is new about local stations.
    fn take_events(&mut self, speaker: &mut Speaker, now: Instant) {
        while let Some(event) = self.control.next_event() {
            match event {
                ControlEvent::Tunnel { port, vni, local } => {
                    if local == Some(self.vtep) && speaker.add_network(vni, now) {
                        self.tunnels.push((port, vni));
                    }
                }
                ControlEvent::TunnelGone { port } => {
                    let Some(vni) = self.vni(&port) else { continue };
                    self.tunnels.retain(|(name, _)| *name != port);
                    self.refused.retain(|(of, _), _| *of != vni);
                    // What was asked of the port is gone with it.
                    self.changes.retain(|(of, _)| *of != vni);
                    speaker.remove_network(vni);
                }
                ControlEvent::Found { port, mac, addresses, is_fixed } => {
                    let Some(vni) = self.vni(&port) else { continue };
                    self.offer(speaker, (vni, mac), (addresses, is_fixed), now);
                }
                ControlEvent::Gone { port, mac } => {
                    let Some(vni) = self.vni(&port) else { continue };
                    self.refused.remove(&(vni, mac));
                    speaker.forget(vni, mac, now);
                }
                // The configuration has precedence, or a table is full: its frames are flooded.
                ControlEvent::Refused { .. } => {}
            }
        }
        if self.retry_at <= now {
            self.retry_at = now + RETRY;
            for (key, station) in std::mem::take(&mut self.refused) {
                self.offer(speaker, key, station, now);
            }
        }
    }

    fn offer(
        &mut self,
        speaker: &mut Speaker,
        (vni, mac): (Vni, MacAddr),
        (addresses, is_fixed): (Vec<IpAddr>, bool),
        now: Instant,
    ) {
        if speaker.learn(vni, mac, &addresses, is_fixed, now).is_err() {
            self.refused.insert((vni, mac), (addresses, is_fixed));
        } else {
            self.refused.remove(&(vni, mac));
        }
    }

    fn vni(&self, port: &str) -> Option<Vni> {
        self.tunnels.iter().find(|(name, _)| name == port).map(|(_, vni)| *vni)
    }

    /// Sleeps until something is ready or due.
    fn wait(&self, deadline: Option<Instant>) {
        let of_bells = [self.bell.as_fd(), self.control.as_fd()];
        let mut files: Vec<PollFd<'_>> =
            of_bells.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let may_read = self.changes.is_empty();
        for wire in self.peers.iter().flat_map(|peer| peer.wires.iter().flatten()) {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, may_read && wire.is_open);
            flags.set(PollFlags::OUT, !wire.is_open || wire.is_full);
            files.push(PollFd::from_borrowed_fd(wire.socket.as_fd(), flags));
        }
        let listener = self.listener.iter().filter(|_| self.accepts_at.is_none());
        files
            .extend(listener.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)));
        let timeout = deadline.map(|at| {
            let pause = at.since(self.shared.now());
            Timespec {
                tv_sec: pause.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: pause.subsec_nanos().into(),
            }
        });
        // An interrupted wait is one more turn.
        let _ = poll(&mut files, timeout.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use towpath_io::socket::{AoAlgorithm, AoKey, KeyChain, Secret, Signature, SignatureError};

    use super::*;
    use crate::network::{PortSettings, testing};

    /// Goal: on a kernel without TCP-AO no session begins that was to be signed, and the error says
    /// what would do.
    #[test]
    fn sessions_that_the_kernel_cannot_sign() {
        let secret = Secret::new("hush").expect("short");
        let key = AoKey { send_id: 1, recv_id: 1, algorithm: AoAlgorithm::HmacSha1, secret };
        let signature = Signature::Ao(KeyChain::new(vec![key]).expect("one key"));
        if signature.try_out().is_ok() {
            println!("skipped: this kernel has TCP-AO");
            return;
        }
        let mut network = testing::network();
        let here = Ipv4Addr::LOCALHOST;
        let vni = Vni::new(100).expect("small");
        let tunnel = VxlanSettings { local: Some(here.into()), port: 0, ..VxlanSettings::new(vni) };
        let added = network.add_port("v", Attachment::Vxlan(tunnel), PortSettings::default());
        added.expect("a socket");
        let settings = EvpnSettings {
            neighbors: vec![here.into()],
            signatures: [(here.into(), signature)].into(),
            ..EvpnSettings::new(65001, here)
        };
        let error = network.start_evpn(&settings, Box::new(|_, _| {})).expect_err("no TCP-AO");
        assert!(matches!(error, EvpnError::Signature(SignatureError::NoAo)), "{error}");
        assert!(error.to_string().contains("CONFIG_TCP_AO; a password (TCP MD5)"), "{error}");
        // Otherwise who shows the cause as well says it twice.
        assert!(std::error::Error::source(&error).is_none());
        assert!(network.evpn().is_none());
    }
}
