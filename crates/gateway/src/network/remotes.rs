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

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use towpath_io::doorbell::EventDoorbell;
use towpath_net::switch::vlan::Vid;
use towpath_net::switch::{PortVlans, Switch};
use towpath_net::time::{Instant, earliest};
use towpath_net::vxlan::Vni;
use towpath_net::vxlan::remotes::{Change, ChangeError, Origin, Remote, Station};
use towpath_net::wire::MacAddr;
use towpath_packet::ring::Doorbell;

use super::member::Member;
use super::ports::Ports;
use super::vxlan::Vxlan;
use super::{Attachment, Network, PortError};
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
    orders: SyncSender<Order>,
    events: Receiver<ControlEvent>,
    /// Rung for the network, and by it.
    network: EventDoorbell,
    own: EventDoorbell,
}

/// What a control plane asks for.
enum Order {
    /// A change of origin [`Origin::Pushed`] at the VXLAN port of this name.
    Change(String, Change),
    /// All other hosts are known.
    Settle,
}

/// What is reported to a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// There is a VXLAN port.
    Tunnel {
        /// Its name.
        port: String,
        /// Its network.
        vni: Vni,
        /// The address of this host that it ends at, if that is one.
        local: Option<IpAddr>,
    },
    /// A VXLAN port is gone, and its stations with it.
    TunnelGone {
        /// Its name.
        port: String,
    },
    /// A local station was found, came back from a remote, or its addresses have changed.
    Found {
        /// The VXLAN port in whose VLAN it is.
        port: String,
        /// Its link-layer address.
        mac: MacAddr,
        /// IP addresses that it has leased, or is configured with by a static lease.
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
        self.order(Order::Change(port.to_owned(), change))
    }

    /// Says that all other hosts are known that can be: from now on the services give addresses to
    /// new clients.
    ///
    /// # Errors
    /// [`Busy`]; try again.
    pub fn settle(&self) -> Result<(), Busy> {
        self.order(Order::Settle)
    }

    fn order(&self, order: Order) -> Result<(), Busy> {
        self.orders.try_send(order).map_err(|_| Busy)?;
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
    orders: Receiver<Order>,
    events: SyncSender<ControlEvent>,
    bell: EventDoorbell,
    own: EventDoorbell,
    /// VXLAN ports that were reported, by their numbers.
    tunnels: HashMap<usize, Tunnel>,
    /// Local stations that were reported, by the number of the VXLAN port.
    reported: HashMap<(usize, MacAddr), Local>,
    /// What was compared last.
    compared: Option<Versions>,
    /// When the next comparison may be.
    next: Instant,
    /// When the next lease of a local station ends.
    lease_ends: Option<Instant>,
    /// A comparison, or events, had to be put off.
    is_behind: bool,
}

/// What is reported of a VXLAN port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tunnel {
    port: String,
    vni: Vni,
    local: Option<IpAddr>,
    /// Its VLAN; none for a trunk, which has no one network behind it.
    vid: Option<Vid>,
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
    static_leases: (usize, usize),
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

    /// Connects a control plane. The first events are all VXLAN ports and local stations.
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
        let (to_network, orders) = sync_channel(CHANGES_MAX);
        let (events, from_network) = sync_channel(EVENTS_MAX);
        self.subscriber = Some(Subscriber {
            orders,
            events,
            bell: bell.clone(),
            own: own.clone(),
            tunnels: HashMap::new(),
            reported: HashMap::new(),
            compared: None,
            next: Instant::START,
            lease_ends: None,
            is_behind: true,
        });
        Ok(ControlPlane { orders: to_network, events: from_network, network: bell, own })
    }

    /// Carries out what the control plane asks for, and reports what is new.
    pub(super) fn serve_control(&mut self, is_rung: bool, now: Instant) {
        let Some(mut subscriber) = self.subscriber.take() else { return };
        if is_rung && !self.carry_out(&mut subscriber, now) {
            self.ports.unwatch(&subscriber.bell);
            return;
        }
        let Self { switch, members, ports, services, .. } = &*self;
        subscriber.tell(switch, members, ports, services.as_ref(), now);
        self.subscriber = Some(subscriber);
    }

    /// Carries out orders. False if the control plane has ended.
    fn carry_out(&mut self, subscriber: &mut Subscriber, now: Instant) -> bool {
        subscriber.bell.clear();
        let mut moved = HashSet::new();
        let mut outcome = None;
        for _ in 0..CHANGES_PER_TURN {
            match subscriber.orders.try_recv() {
                Ok(Order::Change(port, change)) => {
                    self.carry_out_change(subscriber, port, change, &mut moved, now);
                }
                Ok(Order::Settle) => self.services.iter_mut().for_each(Services::settle),
                Err(error) => {
                    outcome = Some(error);
                    break;
                }
            }
        }
        self.let_go(subscriber, &moved, now);
        match outcome {
            None => subscriber.bell.ring(),
            Some(TryRecvError::Empty) => {}
            Some(TryRecvError::Disconnected) => return false,
        }
        true
    }

    /// Carries out a change, and notes stations that are elsewhere now.
    fn carry_out_change(
        &mut self,
        subscriber: &Subscriber,
        port: String,
        change: Change,
        moved: &mut HashSet<(usize, MacAddr)>,
        now: Instant,
    ) {
        if let Ok(index) = self.find(&port) {
            match change {
                Change::AddStation { mac, .. } => drop(moved.insert((index, mac))),
                Change::DelStation(mac) => drop(moved.remove(&(index, mac))),
                _ => {}
            }
            let is_here = |mac| subscriber.reported.contains_key(&(index, mac));
            let services = self.services.as_mut().filter(|_| subscriber.is_in_default(index));
            let conflict = services.and_then(|services| services.hear(change, is_here, now));
            let member = conflict.and_then(|of| self.members.get(of.port as usize)?.as_ref());
            if let (Some(member), Some(conflict), Some(tell)) = (member, conflict, &mut self.tell) {
                tell(&member.name, &conflict);
            }
        }
        let error = match self.change_remotes_for(&port, change, Origin::Pushed) {
            Ok(()) => return,
            Err(PortError::Remote(error)) => Some(error),
            Err(_) => None,
        };
        // A control plane that reads nothing gets no report.
        let _ = subscriber.events.try_send(ControlEvent::Refused { port, change, error });
        subscriber.own.ring();
    }

    /// Lets local stations go that are elsewhere now.
    fn let_go(&mut self, subscriber: &Subscriber, moved: &HashSet<(usize, MacAddr)>, now: Instant) {
        for key @ (index, mac) in moved {
            let vid = subscriber.tunnels.get(index).and_then(|tunnel| tunnel.vid);
            if let Some(vid) = vid.filter(|_| subscriber.reported.contains_key(key)) {
                self.switch.remove_station(*mac, vid);
            }
        }
        let Some(services) = &mut self.services else { return };
        let of_default = moved.iter().filter(|(index, _)| subscriber.is_in_default(*index));
        let moved: HashSet<MacAddr> = of_default.map(|(_, mac)| *mac).collect();
        if moved.is_empty() {
            return;
        }
        let leased: HashSet<MacAddr> = services.leased_here(&moved, now).into_iter().collect();
        // A station that was heard after the last report has not moved: the control plane does not
        // know of it yet.
        let is_unreported =
            |mac: &MacAddr| !subscriber.reported.keys().any(|(_, reported)| reported == mac);
        let heard: HashSet<MacAddr> = match leased.iter().any(is_unreported) {
            true => self.switch.stations(now).map(|station| station.mac).collect(),
            false => HashSet::new(),
        };
        let gone = leased.into_iter().filter(|mac| !(is_unreported(mac) && heard.contains(mac)));
        let gone: HashSet<MacAddr> = gone.collect();
        if !gone.is_empty() {
            services.moved_away(&gone);
        }
    }

    fn tunnel_mut(&mut self, name: &str) -> Result<&mut Vxlan, PortError> {
        let index = self.find(name)?;
        let tunnel = self.ports.get_mut(index).and_then(|port| port.tunnel_mut());
        tunnel.ok_or_else(|| PortError::NoRemotes(name.to_owned()))
    }
}

impl Subscriber {
    /// When something has to be reported that was put off, or a lease ends.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let lease_ends = self.lease_ends.map(|end| end.max(self.next));
        earliest([self.is_behind.then_some(self.next), lease_ends])
    }

    /// True if the VXLAN port is in the VLAN that the gateway and its services are in.
    fn is_in_default(&self, index: usize) -> bool {
        self.tunnels.get(&index).is_some_and(|tunnel| tunnel.vid == Some(Vid::DEFAULT))
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
        let ends = counters.releases + counters.declines + counters.moved_away;
        let versions = Versions {
            stations: switch.station_changes(),
            leases: (counters.acks, ends),
            static_leases: services.map(Services::static_changes).unwrap_or_default(),
            ports: switch.generation(),
        };
        self.is_behind |= self.compared != Some(versions);
        self.is_behind |= self.lease_ends.is_some_and(|end| end <= now);
        if !self.is_behind || now < self.next {
            return;
        }
        (self.compared, self.next, self.is_behind) = (Some(versions), now + PAUSE, false);
        if !self.tell_tunnels(members, ports) {
            self.is_behind = true;
            return;
        }
        let local = self.local_stations(switch, members, services, now);
        let mut events = Vec::new();
        for (&(index, mac), station) in &local {
            if self.reported.get(&(index, mac)) != Some(station) {
                let port = self.tunnels[&index].port.clone();
                let Local { addresses, is_fixed } = station.clone();
                let found = ControlEvent::Found { port, mac, addresses, is_fixed };
                events.push(((index, mac), found));
            }
        }
        for &(index, mac) in self.reported.keys().filter(|key| !local.contains_key(key)) {
            let port = self.tunnels[&index].port.clone();
            events.push(((index, mac), ControlEvent::Gone { port, mac }));
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

    /// Tells which VXLAN ports there are. False if there was no room for all events.
    fn tell_tunnels(&mut self, members: &[Option<Member>], ports: &Ports) -> bool {
        let is_open = |member: &&Member| {
            ports.get(member.id.index()).is_some_and(|port| port.tunnel().is_some())
        };
        let tunnel = |member: &Member| match &member.attachment {
            Attachment::Vxlan(settings) => Some((
                member.id.index(),
                Tunnel {
                    port: member.name.clone(),
                    vni: settings.vni,
                    local: settings.local,
                    vid: match member.settings.vlans {
                        PortVlans::Access(vid) => Some(vid),
                        PortVlans::Trunk { .. } => None,
                    },
                },
            )),
            _ => None,
        };
        let open = members.iter().flatten().filter(is_open).filter_map(tunnel);
        let now: HashMap<usize, Tunnel> = open.collect();
        let is_same =
            |a: &Tunnel, b: &Tunnel| (&a.port, a.vni, a.local) == (&b.port, b.vni, b.local);
        let is_gone = |(index, tunnel): &(&usize, &Tunnel)| {
            !now.get(index).is_some_and(|now| is_same(now, tunnel))
        };
        let gone: Vec<usize> =
            self.tunnels.iter().filter(is_gone).map(|(index, _)| *index).collect();
        for index in gone {
            let port = self.tunnels[&index].port.clone();
            if self.events.try_send(ControlEvent::TunnelGone { port }).is_err() {
                return false;
            }
            self.tunnels.remove(&index);
            self.reported.retain(|(of, _), _| *of != index);
            self.own.ring();
        }
        for (index, tunnel) in now {
            if !self.tunnels.contains_key(&index) {
                let (port, vni, local) = (tunnel.port.clone(), tunnel.vni, tunnel.local);
                if self.events.try_send(ControlEvent::Tunnel { port, vni, local }).is_err() {
                    return false;
                }
                self.own.ring();
            }
            self.tunnels.insert(index, tunnel);
        }
        true
    }

    /// Returns the stations that are local in the VLAN of a VXLAN port, by the number of the port.
    fn local_stations(
        &mut self,
        switch: &Switch,
        members: &[Option<Member>],
        services: Option<&Services>,
        now: Instant,
    ) -> HashMap<(usize, MacAddr), Local> {
        let mut found = HashMap::new();
        for station in switch.stations(now) {
            // The gateway has a number that no member has: each host has one of its own.
            let member = members.get(station.port.index()).and_then(Option::as_ref);
            if member.is_some_and(|member| !member.attachment.is_tunnel()) {
                let in_vlan = self.tunnels.iter().filter(|(_, of)| of.vid == Some(station.vid));
                for (index, _) in in_vlan {
                    found.insert((*index, station.mac), Local::default());
                }
            }
        }
        self.lease_ends = None;
        let Some(services) = services else { return found };
        // Leases are of the gateway's VLAN.
        let indices = self.tunnels.keys().filter(|index| self.is_in_default(**index));
        let in_default: Vec<usize> = indices.copied().collect();
        for lent in services.lent(now) {
            for index in &in_default {
                let key = (*index, lent.mac);
                if lent.port.is_some() && self.reported.contains_key(&key) {
                    found.entry(key).or_default();
                }
                if let Some(local) = found.get_mut(&key) {
                    local.addresses.push(lent.address);
                    local.is_fixed |= lent.is_static;
                    self.lease_ends = earliest([self.lease_ends, Some(now + lent.left)]);
                }
            }
        }
        for (mac, lease, is_held) in services.configured() {
            for index in &in_default {
                let key = (*index, mac);
                if is_held && self.reported.contains_key(&key) {
                    found.entry(key).or_default();
                }
                if let Some(local) = found.get_mut(&key) {
                    // It may ask for them, too.
                    local.addresses.retain(|leased| lease.addresses().all(|own| own != *leased));
                    local.addresses.extend(lease.addresses());
                    local.is_fixed = true;
                }
            }
        }
        for ((_, mac), local) in found.iter_mut().filter(|((of, _), _)| in_default.contains(of)) {
            local.addresses.extend(services.brought(*mac, now));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Ipv4Addr;
    use std::os::unix::net::UnixStream;

    use towpath_packet::{Burst, Context, Device, Ledger, Memory, MemoryConfig};

    use super::*;
    use crate::config::Config;
    use crate::network::{PortSettings, VxlanSettings, services_config, testing};
    use crate::services::{Guest, StaticLease};

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);
    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 20));

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
            let mut network = testing::network();
            let vni = Vni::new(100).expect("24 bits");
            let local = Some(Ipv4Addr::LOCALHOST.into());
            let tunnel = VxlanSettings { local, port: 0, ..VxlanSettings::new(vni) };
            let settings = PortSettings::default();
            network.add_port("v", Attachment::Vxlan(tunnel), settings).expect("added");
            let guest = testing::add_guest(&mut network, "a");
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

        /// Lets the guest have a lease that began before the start, for 1000 seconds.
        fn lease(&mut self) {
            let domain = "lan".parse().expect("a name");
            let mut services = Services::new(services_config(&Config::default(), &domain, 1));
            services.name_port(self.network.find("a").expect("a port") as u32, "a");
            let text = format!("1000 {ADDRESS} {MAC} - mac a\n");
            assert_eq!(services.restore(&text, self.now, Duration::ZERO).taken, 1);
            self.network.set_services(services);
        }

        /// The port that the lease holds the guest at.
        fn home(&self) -> Option<u32> {
            self.network.services().expect("they are set").port_of(MAC, self.now)
        }

        fn send_broadcast(&mut self) {
            self.guest.write_all(&testing::broadcast(MAC, 0)).expect("room");
        }
    }

    fn remote(number: u8) -> IpAddr {
        [192, 0, 2, number].into()
    }

    fn tunnel(port: &str) -> ControlEvent {
        let vni = Vni::new(100).expect("24 bits");
        ControlEvent::Tunnel { port: port.into(), vni, local: Some(Ipv4Addr::LOCALHOST.into()) }
    }

    fn found(addresses: &[IpAddr]) -> ControlEvent {
        let (port, addresses) = ("v".into(), addresses.to_vec());
        ControlEvent::Found { port, mac: MAC, addresses, is_fixed: false }
    }

    fn gone() -> ControlEvent {
        ControlEvent::Gone { port: "v".into(), mac: MAC }
    }

    /// What the control plane has not seen yet.
    fn events(control: &ControlPlane) -> Vec<ControlEvent> {
        std::iter::from_fn(|| control.next_event()).collect()
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
        assert_eq!(events(&control), [tunnel("v"), found(&[])]);
        rig.turn();
        assert_eq!(events(&control), []);
        rig.network.remove_port("a").expect("it is there");
        rig.turn();
        assert_eq!(events(&control), [gone()]);
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

    /// Goal: tunnels that come and go are reported, with the stations behind them.
    #[test]
    fn a_control_plane_learns_of_tunnels() {
        let mut rig = Rig::new();
        rig.send_broadcast();
        rig.turn();
        let control = rig.network.control_plane().expect("the first one");
        rig.turn();
        events(&control);
        rig.network.remove_port("v").expect("it is there");
        rig.turn();
        assert_eq!(events(&control), [ControlEvent::TunnelGone { port: "v".into() }]);
        let local = Some(Ipv4Addr::LOCALHOST.into());
        let settings =
            VxlanSettings { local, port: 0, ..VxlanSettings::new(Vni::new(100).expect("24 bits")) };
        let attachment = Attachment::Vxlan(settings);
        rig.network.add_port("v", attachment, PortSettings::default()).expect("added");
        rig.turn();
        assert_eq!(events(&control), [tunnel("v"), found(&[])]);
    }

    /// Goal: a guest with a lease is local until the lease ends, also if it is silent, but a lease
    /// alone, which may be from before the start, makes no station local.
    #[test]
    fn a_lease_keeps_a_station() {
        let mut rig = Rig::new();
        rig.lease();
        let control = rig.network.control_plane().expect("the first one");
        rig.turn();
        assert_eq!(events(&control), [tunnel("v")]);
        rig.send_broadcast();
        rig.turn();
        rig.turn();
        assert_eq!(events(&control), [found(&[ADDRESS])]);
        rig.now += Duration::from_secs(500);
        rig.turn();
        assert_eq!(rig.network.switch.stations(rig.now).count(), 0, "it has aged");
        assert_eq!(events(&control), []);
        assert!(rig.network.next_deadline().is_some(), "when the lease ends");
        rig.now += Duration::from_secs(500);
        rig.turn();
        assert_eq!(events(&control), [gone()]);
    }

    /// Goal: a guest that is configured with the address of its static lease is announced with it
    /// from its first frame on, also when it is silent, until it is at another host.
    #[test]
    fn a_configured_station_is_announced_with_its_address() {
        let mut rig = Rig::new();
        rig.lease();
        rig.now += Duration::from_secs(1000);
        let control = rig.network.control_plane().expect("the first one");
        rig.turn();
        let IpAddr::V4(ipv4) = ADDRESS else { panic!("IPv4") };
        let guest = Guest::Port("a".into());
        let lease =
            StaticLease { ipv4: Some(ipv4), station: Some(MAC), ..StaticLease::of(guest.clone()) };
        let services = rig.network.services.as_mut().expect("they are set");
        services.add_static_lease(lease, rig.now).expect("it is free");
        rig.turn();
        assert_eq!(events(&control), [tunnel("v")]);
        rig.send_broadcast();
        rig.turn();
        rig.turn();
        let fixed = || {
            let addresses = vec![ADDRESS];
            ControlEvent::Found { port: "v".into(), mac: MAC, addresses, is_fixed: true }
        };
        assert_eq!(events(&control), [fixed()]);
        rig.now += Duration::from_secs(500);
        rig.turn();
        assert_eq!(rig.network.switch.stations(rig.now).count(), 0, "it has aged");
        assert_eq!(events(&control), []);
        control.change("v", Change::AddStation { mac: MAC, remote: remote(2) }).expect("room");
        rig.turn();
        rig.turn();
        assert_eq!(events(&control), [gone()]);
        rig.send_broadcast();
        rig.turn();
        rig.turn();
        assert_eq!(events(&control), [fixed()]);
        let services = rig.network.services.as_mut().expect("they are set");
        services.remove_static_lease(&guest).expect("it is there");
        rig.turn();
        assert_eq!(events(&control), [found(&[])]);
    }

    /// Goal: a guest that has moved to another host is not held here, neither by the switch nor by
    /// its lease; if it sends again, it is back with its address.
    #[test]
    fn a_station_that_moved_is_let_go() {
        let mut rig = Rig::new();
        rig.lease();
        let control = rig.network.control_plane().expect("the first one");
        rig.send_broadcast();
        rig.turn();
        rig.turn();
        assert_eq!(events(&control), [tunnel("v"), found(&[ADDRESS])]);
        assert!(rig.home().is_some());
        control.change("v", Change::AddStation { mac: MAC, remote: remote(2) }).expect("room");
        rig.turn();
        rig.turn();
        assert_eq!(events(&control), [gone()]);
        assert_eq!((rig.home(), rig.network.switch.stations(rig.now).count()), (None, 0));
        rig.send_broadcast();
        rig.turn();
        rig.turn();
        assert_eq!(events(&control), [found(&[ADDRESS])]);
    }

    /// Goal: a lease from before the start does not hold a guest that is at another host by now;
    /// one that was heard but not reported yet stays.
    #[test]
    fn a_lease_from_before_the_start_holds_nothing() {
        for is_heard in [false, true] {
            let mut rig = Rig::new();
            rig.lease();
            let control = rig.network.control_plane().expect("the first one");
            rig.turn();
            if is_heard {
                rig.send_broadcast();
                let mut cx = Context { memory: &mut rig.memory, ledger: &rig.ledger, now: rig.now };
                rig.network.turn(true, &mut cx).expect("turned");
                rig.network.receive(&mut Burst::new(), &mut cx).expect("received");
            }
            control.change("v", Change::AddStation { mac: MAC, remote: remote(2) }).expect("room");
            rig.turn();
            assert_eq!(rig.home().is_some(), is_heard);
        }
    }

    /// Goal: an address that a guest brings along from another host is its own here, too, as soon
    /// as it sends, and still when the other host has withdrawn it.
    #[test]
    fn a_station_brings_its_address() {
        let mut rig = Rig::new();
        let domain = "lan".parse().expect("a name");
        rig.network.set_services(Services::new(services_config(&Config::default(), &domain, 1)));
        let control = rig.network.control_plane().expect("the first one");
        rig.turn();
        control.change("v", Change::AddStation { mac: MAC, remote: remote(2) }).expect("room");
        let added = Change::AddAddress { address: ADDRESS, mac: MAC };
        control.change("v", added).expect("room");
        rig.turn();
        assert_eq!(events(&control), [tunnel("v")]);
        rig.send_broadcast();
        rig.turn();
        rig.turn();
        assert_eq!(events(&control), [found(&[ADDRESS])]);
        control.change("v", Change::DelStation(MAC)).expect("room");
        control.change("v", Change::DelAddress(ADDRESS)).expect("room");
        rig.turn();
        rig.turn();
        assert_eq!(events(&control), [], "nothing has changed");
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
