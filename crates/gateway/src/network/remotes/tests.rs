//! Tests of control planes: the events that they get, and the changes that they ask for.

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
