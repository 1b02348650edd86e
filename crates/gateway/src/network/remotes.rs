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
mod tests;
