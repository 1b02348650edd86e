//! The remotes of VXLAN ports: changes, lists, and the interface for a control plane such as BGP
//! EVPN.
//!
//! # Theory of operation
//!
//! A [`ControlPlane`] is one end of two channels, which any one thread may use. Its changes are
//! carried out between two turns of the first worker, which has all tunnels. In the other direction
//! it gets an event for each local station in the VLAN of a VXLAN port that was found, has changed
//! or has gone. The network compares what the switch knows with what it has reported, when
//! something has changed and at most every [`PAUSE`]; the data path does nothing for it. What does
//! not fit the channel is reported later, as it is then.
//!
//! Limits: [`CHANGES_MAX`] and [`EVENTS_MAX`] wait; [`CHANGES_PER_TURN`].

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use towpath_io::doorbell::EventDoorbell;
use towpath_net::switch::vlan::Vid;
use towpath_net::switch::{PortId, PortVlans, Switch};
use towpath_net::time::Instant;
use towpath_net::vxlan::remotes::{Change, ChangeError, Origin, Remote, Station};
use towpath_net::wire::MacAddr;
use towpath_packet::ring::Doorbell;

use super::member::Member;
use super::ports::Ports;
use super::vxlan::Vxlan;
use super::{Network, PortError};
use crate::services::Services;

/// Changes that may wait: the routes of a large cluster at once.
pub const CHANGES_MAX: usize = 65_536;
/// Events that may wait.
pub const EVENTS_MAX: usize = 4096;
/// Changes carried out in one turn, which packets wait for.
const CHANGES_PER_TURN: usize = 1024;
/// Least time between two comparisons: they walk the address table.
const PAUSE: Duration = Duration::from_millis(50);

/// The end of a control plane. One thread at a time.
#[derive(Debug)]
pub struct ControlPlane {
    changes: SyncSender<(String, Change)>,
    events: Receiver<ControlEvent>,
    /// Rung for the network, and by it.
    network: EventDoorbell,
    own: EventDoorbell,
}

/// What is reported to a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// A local station was found, came back from a remote, or its addresses have changed.
    Found {
        /// The VXLAN port in whose VLAN it is.
        port: String,
        /// Its link-layer address.
        mac: MacAddr,
        /// Its leased IP addresses.
        addresses: Vec<IpAddr>,
        /// It has a static lease.
        is_fixed: bool,
    },
    /// A station is no longer a local one: it has aged, its port is gone, or it is behind a remote.
    Gone {
        /// The VXLAN port.
        port: String,
        /// Its link-layer address.
        mac: MacAddr,
    },
    /// A change was not carried out.
    Refused {
        /// The port that was named.
        port: String,
        /// The change.
        change: Change,
        /// The reason; `None` if there is no such VXLAN port.
        error: Option<ChangeError>,
    },
}

/// The network takes no more changes now, or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CHANGES_MAX} changes of remotes wait already, or the network has ended")
    }
}

impl std::error::Error for Busy {}

impl ControlPlane {
    /// Asks for a change of origin [`Origin::Pushed`] at the VXLAN port of this name. Changes are
    /// carried out in order.
    ///
    /// # Errors
    /// [`Busy`]; the change is not carried out.
    pub fn change(&self, port: &str, change: Change) -> Result<(), Busy> {
        self.changes.try_send((port.to_owned(), change)).map_err(|_| Busy)?;
        self.network.ring();
        Ok(())
    }

    /// Takes the oldest event.
    pub fn next_event(&self) -> Option<ControlEvent> {
        self.events.try_recv().ok().or_else(|| {
            // An event that comes after the doorbell was cleared rings it again.
            self.own.clear();
            self.events.try_recv().ok()
        })
    }
}

impl AsFd for ControlPlane {
    /// The file that is readable while there may be events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

/// The remotes of one port, for reports.
#[derive(Clone, Debug)]
pub struct PortRemotes {
    /// Its name.
    pub port: String,
    /// The remotes, in the order of their addresses.
    pub remotes: Vec<Remote>,
    /// The stations, in the order of their link-layer addresses.
    pub stations: Vec<Station>,
}

/// The network's end.
pub(super) struct Subscriber {
    changes: Receiver<(String, Change)>,
    events: SyncSender<ControlEvent>,
    bell: EventDoorbell,
    own: EventDoorbell,
    /// Local stations that were reported, by the number of the VXLAN port.
    reported: HashMap<(usize, MacAddr), Local>,
    /// What was compared last.
    compared: Option<Versions>,
    /// When the next comparison may be.
    next: Instant,
    /// A comparison, or events, had to be put off.
    is_behind: bool,
}

/// What is reported of a local station.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Local {
    addresses: Vec<IpAddr>,
    is_fixed: bool,
}

/// Numbers that change with the stations and their addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Versions {
    stations: u64,
    leases: (u64, u64),
    ports: u64,
}

impl Network {
    /// Changes the remotes of a VXLAN port, by configuration.
    ///
    /// # Errors
    /// [`PortError`]; nothing was changed.
    pub fn change_remotes(&mut self, name: &str, change: Change) -> Result<(), PortError> {
        self.change_remotes_for(name, change, Origin::Static)
    }

    /// Changes the remotes of a VXLAN port.
    pub(super) fn change_remotes_for(
        &mut self,
        name: &str,
        change: Change,
        origin: Origin,
    ) -> Result<(), PortError> {
        let port = self.tunnel_mut(name)?;
        Ok(port.change(change, origin)?)
    }

    /// Returns the changes that undo one by configuration.
    pub(super) fn undo_of_remotes(
        &mut self,
        name: &str,
        change: Change,
    ) -> Result<Vec<(Change, Origin)>, PortError> {
        Ok(self.tunnel_mut(name)?.remotes().undo_of(change, Origin::Static))
    }

    /// Returns the remotes of all VXLAN ports. Walks their tables.
    pub fn remotes(&self, now: Instant) -> Vec<PortRemotes> {
        let members = self.members.iter().flatten();
        let tunnels = members.filter_map(|member| {
            let remotes = self.ports.get(member.id.index())?.tunnel()?.remotes();
            let mut all: Vec<_> = remotes.remotes().collect();
            all.sort_unstable_by_key(|remote| remote.address);
            let mut stations: Vec<_> = remotes.stations(now).collect();
            stations.sort_unstable_by_key(|station| station.mac);
            Some(PortRemotes { port: member.name.clone(), remotes: all, stations })
        });
        tunnels.collect()
    }

    /// Connects a control plane. The first events are all local stations.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if there is one, or the error of a system call.
    pub fn control_plane(&mut self) -> io::Result<ControlPlane> {
        if self.subscriber.is_some() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the network has a control plane already",
            ));
        }
        let [bell, own] = [EventDoorbell::new()?, EventDoorbell::new()?];
        self.ports.watch_control(&bell)?;
        let (to_network, changes) = sync_channel(CHANGES_MAX);
        let (events, from_network) = sync_channel(EVENTS_MAX);
        self.subscriber = Some(Subscriber {
            changes,
            events,
            bell: bell.clone(),
            own: own.clone(),
            reported: HashMap::new(),
            compared: None,
            next: Instant::START,
            is_behind: true,
        });
        Ok(ControlPlane { changes: to_network, events: from_network, network: bell, own })
    }

    /// Carries out what the control plane asks for, and reports what is new.
    pub(super) fn serve_control(&mut self, is_rung: bool, now: Instant) {
        let Some(mut subscriber) = self.subscriber.take() else { return };
        if is_rung && !self.carry_out(&mut subscriber) {
            self.ports.unwatch(&subscriber.bell);
            return;
        }
        let Self { switch, members, ports, services, .. } = &*self;
        subscriber.tell(switch, members, ports, services.as_ref(), now);
        self.subscriber = Some(subscriber);
    }

    /// Carries out changes. False if the control plane has ended.
    fn carry_out(&mut self, subscriber: &mut Subscriber) -> bool {
        subscriber.bell.clear();
        for _ in 0..CHANGES_PER_TURN {
            let (port, change) = match subscriber.changes.try_recv() {
                Ok(asked) => asked,
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            };
            let error = match self.change_remotes_for(&port, change, Origin::Pushed) {
                Ok(()) => continue,
                Err(PortError::Remote(error)) => Some(error),
                Err(_) => None,
            };
            // A control plane that reads nothing gets no report.
            let _ = subscriber.events.try_send(ControlEvent::Refused { port, change, error });
            subscriber.own.ring();
        }
        subscriber.bell.ring();
        true
    }

    fn tunnel_mut(&mut self, name: &str) -> Result<&mut Vxlan, PortError> {
        let index = self.find(name)?;
        let tunnel = self.ports.get_mut(index).and_then(|port| port.tunnel_mut());
        tunnel.ok_or_else(|| PortError::NoRemotes(name.to_owned()))
    }
}

impl Subscriber {
    /// When something has to be reported that was put off.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.is_behind.then_some(self.next)
    }

    /// Tells the control plane what has changed since the last time.
    fn tell(
        &mut self,
        switch: &Switch,
        members: &[Option<Member>],
        ports: &Ports,
        services: Option<&Services>,
        now: Instant,
    ) {
        let counters = services.map(Services::counters).unwrap_or_default();
        let versions = Versions {
            stations: switch.station_changes(),
            leases: (counters.acks, counters.releases + counters.declines),
            ports: switch.generation(),
        };
        self.is_behind |= self.compared != Some(versions);
        if !self.is_behind || now < self.next {
            return;
        }
        (self.compared, self.next, self.is_behind) = (Some(versions), now + PAUSE, false);
        let local = local_stations(switch, members, ports, services, now);
        let name = |index: usize| {
            let member = members.get(index).and_then(Option::as_ref);
            member.map_or_else(String::new, |member| member.name.clone())
        };
        let mut events = Vec::new();
        for (&(index, mac), station) in &local {
            if self.reported.get(&(index, mac)) != Some(station) {
                let Local { addresses, is_fixed } = station.clone();
                let found = ControlEvent::Found { port: name(index), mac, addresses, is_fixed };
                events.push(((index, mac), found));
            }
        }
        for &(index, mac) in self.reported.keys().filter(|key| !local.contains_key(key)) {
            events.push(((index, mac), ControlEvent::Gone { port: name(index), mac }));
        }
        for (key, event) in events {
            if self.events.try_send(event).is_err() {
                self.is_behind = true;
                break;
            }
            match local.get(&key) {
                Some(station) => drop(self.reported.insert(key, station.clone())),
                None => drop(self.reported.remove(&key)),
            }
            self.own.ring();
        }
    }
}

/// Returns the stations that are local in the VLAN of a VXLAN port, by the number of the port.
fn local_stations(
    switch: &Switch,
    members: &[Option<Member>],
    ports: &Ports,
    services: Option<&Services>,
    now: Instant,
) -> HashMap<(usize, MacAddr), Local> {
    let is_tunnel = |id: PortId| ports.get(id.index()).is_some_and(|port| port.tunnel().is_some());
    let tunnels: Vec<(usize, Vid)> = members
        .iter()
        .flatten()
        .filter(|member| is_tunnel(member.id))
        .filter_map(|member| match member.settings.vlans {
            PortVlans::Access(vid) => Some((member.id.index(), vid)),
            PortVlans::Trunk { .. } => None,
        })
        .collect();
    let mut found = HashMap::new();
    for station in switch.stations(now) {
        // The gateway has a number that no member has: each host has one of its own.
        let is_guest = members.get(station.port.index()).is_some_and(Option::is_some);
        if is_guest && !is_tunnel(station.port) {
            for (index, _) in tunnels.iter().filter(|(_, vid)| *vid == station.vid) {
                found.insert((*index, station.mac), Local::default());
            }
        }
    }
    // Leases are of the gateway's VLAN.
    let in_default = tunnels.iter().filter(|(_, vid)| *vid == Vid::DEFAULT);
    for lent in services.map(|services| services.lent(now)).unwrap_or_default() {
        for (index, _) in in_default.clone() {
            if let Some(local) = found.get_mut(&(*index, lent.mac)) {
                local.addresses.push(lent.address);
                local.is_fixed |= lent.is_static;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Ipv4Addr;
    use std::os::unix::net::UnixStream;

    use towpath_io::endpoint::Connection;
    use towpath_net::vxlan::Vni;
    use towpath_packet::{Burst, Context, Device, Ledger, Memory, MemoryConfig};

    use super::*;
    use crate::network::{Attachment, NetworkConfig, PortSettings, VxlanSettings};

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);

    struct Rig {
        network: Network,
        memory: Memory,
        ledger: Ledger,
        now: Instant,
        guest: UnixStream,
    }

    impl Rig {
        /// A network with a guest, and a tunnel at a port that the system chooses.
        fn new() -> Self {
            let mut network = Network::new(NetworkConfig {
                mtu: 1500,
                gateway: None,
                gateway_addresses: Vec::new(),
                orphan: false,
                busy_poll: Duration::ZERO,
                seed: 1,
            })
            .expect("a network");
            let vni = Vni::new(100).expect("24 bits");
            let local = Some(Ipv4Addr::LOCALHOST.into());
            let tunnel = VxlanSettings { local, port: 0, ..VxlanSettings::new(vni) };
            let settings = PortSettings::default;
            network.add_port("v", Attachment::Vxlan(tunnel), settings()).expect("added");
            let (near, guest) = UnixStream::pair().expect("a pair of sockets");
            let connection = Connection::new(near.into()).expect("a connected socket");
            network.add_port("a", Attachment::StreamFd(connection), settings()).expect("added");
            let sizes = MemoryConfig { packets: 256, small_frames: 64, large_frames: 32 };
            let (memory, ledger) = (Memory::new(sizes), Ledger::new());
            Self { network, memory, ledger, now: Instant::START, guest }
        }

        /// Runs a turn some time after the last one.
        fn turn(&mut self) {
            self.now += PAUSE;
            let Self { network, memory, ledger, now, .. } = self;
            let mut cx = Context { memory, ledger, now: *now };
            network.turn(true, &mut cx).expect("turned");
            network.receive(&mut Burst::new(), &mut cx).expect("received");
            network.turn(true, &mut cx).expect("turned");
        }

        fn send_broadcast(&mut self) {
            let mut frame = [&60_u32.to_be_bytes()[..], &[0xff; 6], &MAC.0, &[0x88, 0xb5]].concat();
            frame.resize(64, 0);
            self.guest.write_all(&frame).expect("room");
        }
    }

    fn remote(number: u8) -> IpAddr {
        [192, 0, 2, number].into()
    }

    fn found() -> ControlEvent {
        ControlEvent::Found { port: "v".into(), mac: MAC, addresses: Vec::new(), is_fixed: false }
    }

    /// Goal: local stations are reported to a control plane, those before its time included, and
    /// their end.
    #[test]
    fn a_control_plane_learns_of_local_stations() {
        let mut rig = Rig::new();
        rig.send_broadcast();
        rig.turn();
        let control = rig.network.control_plane().expect("the first one");
        let second = rig.network.control_plane().expect_err("one is enough");
        assert_eq!(second.kind(), io::ErrorKind::AlreadyExists);
        rig.turn();
        assert_eq!(control.next_event(), Some(found()));
        rig.turn();
        assert_eq!(control.next_event(), None);
        rig.network.remove_port("a").expect("it is there");
        rig.turn();
        assert_eq!(control.next_event(), Some(ControlEvent::Gone { port: "v".into(), mac: MAC }));
        drop(control);
        rig.network.subscriber.as_ref().expect("not noticed yet").bell.ring();
        rig.turn();
        assert!(rig.network.control_plane().is_ok(), "the place is free again");
    }

    /// Goal: the changes of a control plane are carried out in order and yield to the
    /// configuration, and those that are refused are reported.
    #[test]
    fn a_control_plane_changes_remotes() {
        let mut rig = Rig::new();
        let control = rig.network.control_plane().expect("the first one");
        let add = |number| Change::AddStation { mac: MAC, remote: remote(number) };
        rig.network.change_remotes("v", Change::AddFlood(remote(1))).expect("room");
        control.change("v", add(2)).expect("room");
        control.change("v", add(3)).expect("room");
        control.change("v", Change::DelFlood(remote(1))).expect("room");
        control.change("a", add(3)).expect("room");
        rig.turn();
        let overruled = Some(ChangeError::Overruled);
        for (port, change, error) in
            [("v", Change::DelFlood(remote(1)), overruled), ("a", add(3), None)]
        {
            let port = port.to_owned();
            let refused = ControlEvent::Refused { port, change, error };
            assert_eq!(control.next_event(), Some(refused));
        }
        let all = rig.network.remotes(rig.now);
        let station = Station { mac: MAC, remote: remote(3), origin: Origin::Pushed };
        assert_eq!(all[0].stations, [station]);
        let named: Vec<_> = all[0].remotes.iter().map(|remote| remote.address).collect();
        assert_eq!(named, [remote(1), remote(3)]);
    }

    /// Goal: the changes that undo a change restore what was configured and pushed.
    #[test]
    fn changes_are_undone() {
        let mut rig = Rig::new();
        let network = &mut rig.network;
        let shown = |network: &Network| format!("{:?}", network.remotes(Instant::START));
        let station = |number| Change::AddStation { mac: MAC, remote: remote(number) };
        network.change_remotes("v", Change::AddFlood(remote(1))).expect("room");
        network.change_remotes_for("v", station(2), Origin::Pushed).expect("room");
        let before = shown(network);
        for change in [
            Change::AddFlood(remote(1)),
            Change::AddFlood(remote(9)),
            Change::DelFlood(remote(1)),
            station(3),
            Change::DelStation(MAC),
            Change::AddAddress { address: remote(100), mac: MAC },
        ] {
            let undo = network.undo_of_remotes("v", change).expect("a tunnel");
            network.change_remotes("v", change).expect("possible");
            for (change, origin) in undo {
                let _ = network.change_remotes_for("v", change, origin);
            }
            assert_eq!(shown(network), before, "{change:?}");
        }
    }
}
