//! `towpath up` with interfaces of the host as ports, through packet and AF_XDP sockets. Each
//! interface is one end of a veth pair; a namespace with the other end is a machine.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::support::{
    Family, Host, Namespace, Process, TOWPATH, Test, batch, command, inside, retry, run,
};

pub(crate) fn tests() -> Vec<Test> {
    let between = |name: &str, near: &'static str, far: &'static str| {
        Test::new(name, &["nsenter", "ethtool"], move |host| transfers(host, near, far))
            .needs_root()
    };
    vec![
        between("uplinks_packet", "--packet=a=up0", "--packet=b=up1"),
        between("uplinks_packet_and_tap", "--packet=a=up0", "--tap=up1"),
        between("uplinks_xdp_generic", "--xdp=a=up0,mode=generic", "--xdp=b=up1,mode=generic"),
        between("uplinks_xdp_native", "--xdp=a=up0,mode=native", "--xdp=b=up1,mode=native"),
        between("uplinks_packet_and_xdp", "--packet=a=up0", "--xdp=b=up1"),
        Test::new("uplinks_vlans", &["nsenter"], vlans).needs_root(),
        Test::new("uplinks_of_isolated_machines", &[], isolated).needs_root(),
        Test::new("uplinks_come_and_go", &[], come_and_go).needs_root(),
        Test::new("uplinks_leave_nothing", &[], leave_nothing).needs_root(),
        Test::new("uplinks_explain", &[], explain).needs_root(),
        Test::new("network_of_two_workers", &["nsenter"], of_two_workers).needs_root(),
    ]
}

/// Bytes of a transfer.
const TRANSFER: u64 = 16 << 20;
/// Port on which a machine listens.
const PORT: u16 = 7;

/// A namespace with an interface.
pub(super) struct Machine {
    pub(super) namespace: Namespace,
    pub(super) number: u8,
}

impl Machine {
    /// Makes a machine at the far end of the new interface `near`.
    fn behind(near: &str, number: u8) -> Self {
        let machine = Self { namespace: Namespace::new(), number };
        let holder = machine.namespace.holder().to_string();
        let peer = ["type", "veth", "peer", "name", "eth0", "netns", &holder];
        run("ip", [&["link", "add", near][..], &peer].concat());
        run("ip", ["link", "set", near, "up"]);
        machine.configure();
        machine
    }

    /// Makes a machine that has the TAP device of a port.
    pub(super) fn with(device: &str, number: u8) -> Self {
        let machine = Self { namespace: Namespace::new(), number };
        run(
            "ip",
            [
                "link",
                "set",
                device,
                "name",
                "eth0",
                "netns",
                &machine.namespace.holder().to_string(),
            ],
        );
        machine.configure();
        machine
    }

    pub(super) fn configure(&self) {
        let (v4, v6) = (self.address(Family::V4), self.address(Family::V6));
        self.namespace.run(|| {
            batch(&format!(
                "link set lo up\naddress add {v4}/24 dev eth0\nlink set eth0 up\n\
                 address add {v6}/64 dev eth0 nodad\n"
            ));
        });
    }

    /// Makes its kernel complete checksums and segment packets, which an AF_XDP socket at the other
    /// end cannot do.
    fn without_offloads(&self) {
        self.namespace.run(|| run("ethtool", ["-K", "eth0", "tx", "off"]));
    }

    pub(super) fn address(&self, family: Family) -> IpAddr {
        let number = self.number;
        let text = match family {
            Family::V4 => format!("10.0.2.{number}"),
            Family::V6 => format!("fd74:6f77:7061:7468::{number}"),
        };
        text.parse().expect("an address")
    }

    /// Starts one of the tests' own programs.
    pub(super) fn start(&self, role: &str, arguments: &[&str]) -> Process {
        let namespace = format!("--net=/proc/{}/ns/net", self.namespace.holder());
        let role = inside(role, arguments);
        Process::start(command("nsenter", [namespace.into()].into_iter().chain(role)))
    }

    fn ping(&self, address: impl ToString) {
        let ping = ["-c", "3", "-i", "0.1", "-W", "60", "-q", &address.to_string()];
        let ping = self.namespace.run(|| run("ping", ping));
        assert!(ping.contains(" 3 received"), "{ping}");
    }
}

/// A running network.
pub(super) struct Network<'a> {
    process: Process,
    host: &'a Host,
}

impl<'a> Network<'a> {
    fn start(host: &'a Host, ports: &[&str]) -> Self {
        let mut network = Self { process: Process::start(up(host, ports)), host };
        let count = ports.iter().filter(|port| port.contains('=')).count();
        network.process.wait_for_text(&format!("serving {count} ports"));
        network
    }

    /// Starts a network with further arguments and a TAP device, perhaps in another namespace.
    pub(super) fn start_in(
        host: &'a Host,
        namespace: Option<&Namespace>,
        arguments: &[String],
        tap: &str,
    ) -> Self {
        let tap = format!("--tap={tap}");
        let arguments = arguments.iter().map(String::as_str).chain([tap.as_str()]);
        let own = up(host, &arguments.collect::<Vec<_>>());
        let command = match namespace {
            None => own,
            Some(namespace) => {
                let mut there = Command::new("nsenter");
                there.arg(format!("--net=/proc/{}/ns/net", namespace.holder()));
                there.arg(own.get_program()).args(own.get_args());
                there.env("XDG_RUNTIME_DIR", host.file(""));
                there
            }
        };
        let mut network = Self { process: Process::start(command), host };
        network.process.wait_for_text("serving 2 ports");
        network
    }

    /// Starts a network with these ports and a TAP device.
    pub(super) fn start_of(host: &'a Host, ports: &[String], tap: &str) -> Self {
        let tap = format!("--tap={tap}");
        let ports: Vec<&str> = ports.iter().map(String::as_str).chain([tap.as_str()]).collect();
        Self::start(host, &ports)
    }

    /// Runs another command of towpath about this network.
    pub(super) fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(TOWPATH);
        let pid = self.process.pid().to_string();
        command.args(arguments).args(["--pid", &pid]).env("XDG_RUNTIME_DIR", self.host.file(""));
        Process::start(command).finish().success()
    }

    /// Waits until `ls` shows `text`.
    fn wait_for(&self, text: &str) {
        retry(text, || self.run(&["ls"]).contains(text).then_some(()));
    }

    /// Returns the counters of a port.
    pub(super) fn port(&self, name: &str) -> Value {
        let mut command = Command::new(TOWPATH);
        command.args(["stats", "--json", &self.process.pid().to_string()]);
        command.env("XDG_RUNTIME_DIR", self.host.file(""));
        let stats = Process::start(command).finish().success();
        let stats: Value = serde_json::from_str(&stats).expect("JSON");
        stats["ports"][name].clone()
    }

    pub(super) fn end(self) {
        self.process.signal(Signal::INT);
        self.process.finish().success();
    }

    /// Ends it as a crash does.
    pub(super) fn kill(self) {
        self.process.signal(Signal::KILL);
        self.process.finish();
    }
}

fn up(host: &Host, ports: &[&str]) -> Command {
    let mut up = Command::new(TOWPATH);
    up.env("XDG_RUNTIME_DIR", host.file("")).args(["up", "-v"]).args(ports);
    up
}

/// Removes interfaces of the host that exist.
pub(super) fn remove(interfaces: &[&str]) {
    for interface in interfaces {
        let _ = Command::new("ip").args(["link", "del", interface]).output();
    }
}

fn exchange(from: &Machine, to: &Machine, family: Family) {
    let address = to.address(family);
    from.ping(address);
    let mut server = to.start("echo-server", &[&PORT.to_string()]);
    server.wait_for_text("listening");
    let address = SocketAddr::new(address, PORT).to_string();
    let read = from.start("half-close", &[&address, &TRANSFER.to_string()]).finish().success();
    assert_eq!(read, format!("read {TRANSFER}\n"));
    server.signal(Signal::KILL);
    server.finish();
}

/// Goal: machines behind two ports reach each other, and every byte arrives intact. Super-packets
/// cross packet sockets whole. Method: ping and echoed transfers in each direction with IPv4 and
/// IPv6, then the counters of the ports.
fn transfers(host: &mut Host, near: &'static str, far: &'static str) {
    let is_tap = far.starts_with("--tap");
    let a = Machine::behind("up0", 20);
    let b = (!is_tap).then(|| Machine::behind("up1", 21));
    let network = Network::start(host, &[near, far]);
    let b = b.unwrap_or_else(|| Machine::with("up1", 21));
    for (machine, port) in [(&a, near), (&b, far)] {
        if port.starts_with("--xdp") {
            machine.without_offloads();
        }
    }
    for family in Family::BOTH {
        exchange(&a, &b, family);
        exchange(&b, &a, family);
    }
    let ls = network.run(&["ls"]);
    for port in [near, far].into_iter().filter(|port| port.starts_with("--xdp")) {
        let shown = port.trim_start_matches("--xdp=").split_once('=').expect("NAME=SETTINGS").1;
        assert!(ls.contains(shown.split(',').next().expect("an interface")), "{ls}");
    }
    let counters = network.port("a");
    let count = |key: &str| counters[key].as_u64().expect("a number");
    println!("a: {counters}");
    assert!(count("bytes_in") > 4 * TRANSFER && count("bytes_out") > 4 * TRANSFER);
    match near.starts_with("--packet") {
        true => assert!(count("super_packets_in") > 50, "super-packets arrive whole"),
        false => assert_eq!(count("super_packets_in"), 0),
    }
    network.end();
    remove(&["up0", "up1"]);
}

/// Goal: machines at ports of one worker and of two reach each other and the gateway, every byte
/// arrives intact, and the network ends while data is under way.
fn of_two_workers(host: &mut Host) {
    let ports = ["--workers", "2", "--tap=tap20", "--tap=tap21", "--tap=tap22"];
    let network = Network::start(host, &ports);
    let [a, b, c] = [20, 21, 22].map(|number| Machine::with(&format!("tap{number}"), number));
    let workers = ["tap20", "tap21", "tap22"].map(|name| network.port(name)["worker"].clone());
    assert_eq!(workers, [1, 0, 1], "the gateway counts as a port of the first");
    assert!(network.run(&["ls"]).contains(" worker 1 tap tap20"));
    for family in Family::BOTH {
        for (from, to) in [(&a, &b), (&b, &a), (&a, &c)] {
            exchange(from, to, family);
        }
    }
    for machine in [&a, &b, &c] {
        machine.ping("10.0.2.2");
        machine.ping("fd74:6f77:7061:7468::2");
    }
    for name in ["tap20", "tap21", "tap22"] {
        let counters = network.port(name);
        let count = |key: &str| counters[key].as_u64().expect("a number");
        assert!(count("bytes_in") > 2 * TRANSFER && count("bytes_out") > 2 * TRANSFER);
    }
    network.run(&["port", "del", "tap22"]);
    let mut server = b.start("echo-server", &[&PORT.to_string()]);
    server.wait_for_text("listening");
    let address = SocketAddr::new(b.address(Family::V4), PORT).to_string();
    let sending = a.start("half-close", &[&address, &(TRANSFER << 10).to_string()]);
    let before = network.port("tap20")["bytes_in"].as_u64();
    retry("data", || (network.port("tap20")["bytes_in"].as_u64() > before).then_some(()));
    network.end();
    for process in [server, sending] {
        process.signal(Signal::KILL);
        process.finish();
    }
}

/// Goal: VLAN tags cross both kinds of uplink in both directions, although the kernel takes them
/// out of the frames of a packet socket. Super-packets with a tag stay whole there. Method: two
/// networks, joined by a trunk over a veth pair; a machine at an access port of each.
fn vlans(host: &mut Host) {
    for kind in ["--packet", "--xdp"] {
        let there = Namespace::new();
        let peer = ["type", "veth", "peer", "name", "up1", "netns", &there.holder().to_string()];
        run("ip", [&["link", "add", "up0"][..], &peer].concat());
        run("ip", ["link", "set", "up0", "up"]);
        there.run(|| run("ip", ["link", "set", "up1", "up"]));
        let ports = |uplink: &str| [format!("{kind}=trunk={uplink}"), "--no-gateway".to_owned()];
        let near = Network::start_in(host, None, &ports("up0"), "tap20");
        let far = Network::start_in(host, Some(&there), &ports("up1"), "tap21");
        for (network, tap) in [(&near, "tap20"), (&far, "tap21")] {
            network.run(&["port", "set", "trunk", "trunk", "10"]);
            network.run(&["port", "set", tap, "vlan", "10"]);
        }
        let (a, b) = (Machine::with("tap20", 20), there.run(|| Machine::with("tap21", 21)));
        for family in Family::BOTH {
            exchange(&a, &b, family);
        }
        let large = |network: &Network<'_>| {
            let counters = network.port("trunk");
            counters["super_packets_in"].as_u64().expect("a number")
        };
        if kind == "--packet" {
            assert!(large(&near) > 50 && large(&far) > 50, "{} {}", large(&near), large(&far));
        }
        // Without the tag there is no way.
        near.run(&["port", "set", "trunk", "vlan", "10"]);
        let reaches = a.namespace.run(|| {
            let ping = ["-c", "1", "-W", "1", "-q", "10.0.2.21"];
            Command::new("ping").args(ping).output().expect("ping").status.success()
        });
        assert!(!reaches, "the tag is missing");
        near.end();
        far.end();
        remove(&["up0"]);
    }
}

/// Goal: machines that are isolated from each other reach the interface.
fn isolated(host: &mut Host) {
    let lan = Machine::behind("up0", 20);
    let ports = ["--isolate", "--no-gateway", "--packet=lan=up0", "--tap=tap21", "--tap=tap22"];
    let network = Network::start(host, &ports);
    let (a, b) = (Machine::with("tap21", 21), Machine::with("tap22", 22));
    for machine in [&a, &b] {
        machine.ping(lan.address(Family::V4));
        lan.ping(machine.address(Family::V6));
    }
    let reaches = a.namespace.run(|| {
        let ping = ["-c", "1", "-W", "1", "-q", "10.0.2.22"];
        Command::new("ping").args(ping).output().expect("ping").status.success()
    });
    assert!(!reaches, "they are isolated");
    network.end();
    remove(&["up0"]);
}

/// Goal: a port survives that its interface is down, and reports when it was deleted; the others
/// go on.
fn come_and_go(host: &mut Host) {
    for kind in ["--packet", "--xdp"] {
        let machines = [("up0", 20), ("up1", 21), ("up2", 22)];
        let [a, b, c] = machines.map(|(near, number)| Machine::behind(near, number));
        let ports = ["a=up0", "b=up1", "c=up2"].map(|port| format!("{kind}={port}"));
        let network = Network::start(host, &ports.each_ref().map(String::as_str));
        a.ping(b.address(Family::V4));
        run("ip", ["link", "set", "up1", "down"]);
        network.wait_for("disconnected");
        a.ping(c.address(Family::V4));
        run("ip", ["link", "set", "up1", "up"]);
        retry("the port to be up again", || {
            (!network.run(&["ls"]).contains("disconnected")).then_some(())
        });
        a.ping(b.address(Family::V4));
        run("ip", ["link", "del", "up1"]);
        network.wait_for("deleted or moved to another network namespace");
        a.ping(c.address(Family::V4));
        // The kernel may keep the queue of an AF_XDP socket for a moment.
        let again = format!("{kind}=up0");
        network.run(&["port", "del", "a"]);
        network.run(&["port", "add", "a", &again]);
        a.ping(c.address(Family::V4));
        network.end();
        drop((a, b, c));
        remove(&["up0", "up2"]);
    }
}

/// Goal: a network that is killed leaves no XDP program, and no promiscuous interface.
fn leave_nothing(host: &mut Host) {
    for mode in ["generic", "native"] {
        let _machine = Machine::behind("up0", 20);
        let network = Network::start(host, &[&format!("--xdp=a=up0,mode={mode}")]);
        let link = || run("ip", ["-d", "link", "show", "up0"]);
        assert!(link().contains("prog/xdp"), "{}", link());
        network.process.signal(Signal::KILL);
        network.process.finish();
        retry("the XDP program to go", || (!link().contains("xdp")).then_some(()));
        remove(&["up0"]);
    }
    let _machine = Machine::behind("up0", 20);
    let network = Network::start(host, &["--packet=a=up0"]);
    let link = || run("ip", ["-d", "link", "show", "up0"]);
    assert!(link().contains("promiscuity 1"), "{}", link());
    network.process.signal(Signal::KILL);
    network.process.finish();
    retry("promiscuous mode to end", || link().contains("promiscuity 0").then_some(()));
    remove(&["up0"]);
}

/// Goal: each way to fail is explained, with what to do.
fn explain(host: &mut Host) {
    let fails = |ports: &[&str], text: &str| {
        let output = Process::start(up(host, ports)).finish();
        let stderr = output.stderr.clone();
        assert!(!output.status.success() && stderr.contains(text), "{ports:?}: {stderr}");
    };
    fails(&["--packet=a=none9"], "interface none9: there is no such interface");
    fails(&["--xdp=a=none9"], "interface none9: there is no such interface");
    fails(&["--packet=a=lo"], "interface lo: it has no Ethernet frames");
    fails(&["--xdp=a=up0,mode=driver"], "'driver' is not a mode of XDP");
    let _machine = Machine::behind("up0", 20);
    fails(&["--xdp=a=up0,queue=7"], "it has no queue 7");
    fails(&["--xdp=a=up0", "--xdp=b=up0"], "another AF_XDP socket uses queue 0");
    // A bridge has no native XDP.
    run("ip", ["link", "add", "up1", "type", "bridge"]);
    fails(&["--xdp=a=up1,mode=native"], "use mode=generic or mode=auto");
    run("ip", ["link", "set", "up1", "mtu", "9000"]);
    fails(&["--xdp=a=up1"], "its MTU is 9000, and an XDP port takes at most 3822");
    let network = Network::start(host, &["--packet=a=up0"]);
    let mut add = Command::new(TOWPATH);
    add.args(["port", "add", "b", "--packet=up1"]).env("XDG_RUNTIME_DIR", host.file(""));
    let refused = Process::start(add).finish();
    assert!(refused.stderr.contains("opens only interfaces that it was started with"));
    network.end();
    let mut weak = Command::new("setpriv");
    weak.args(["--bounding-set=-net_raw", "--inh-caps=-net_raw", TOWPATH, "up", "--packet=a=up0"]);
    weak.env("XDG_RUNTIME_DIR", host.file(""));
    let output = Process::start(weak).finish();
    assert!(output.stderr.contains("needs CAP_NET_RAW"), "{}", output.stderr);
    let mut weak = Command::new("setpriv");
    weak.args(["--bounding-set=-bpf,-sys_admin", TOWPATH, "up", "--xdp=a=up0"]);
    weak.env("XDG_RUNTIME_DIR", host.file(""));
    let output = Process::start(weak).finish();
    assert!(output.stderr.contains("CAP_BPF"), "{}", output.stderr);
    remove(&["up0", "up1"]);
}
