//! `towpath up` with VXLAN ports: two hosts, each a namespace, joined by a veth pair. The other one
//! runs towpath, or the kernel's own VXLAN device.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;

use rustix::process::Signal;

use super::support::{Family, Host, Namespace, Test, batch, retry, run};
use super::uplinks::{Machine, Network, remove};

/// Bytes of a transfer.
const TRANSFER: u64 = 16 << 20;
/// Port on which a machine listens.
const PORT: u16 = 7;

pub(crate) fn tests() -> Vec<Test> {
    let mut all = Vec::new();
    for outer in Family::BOTH {
        let named = |name: &str| format!("tunnels_{name}_{}", outer.name());
        let programs: &[&str] = &["nsenter"];
        all.push(
            Test::new(named("of_two"), programs, move |host| of_two(host, outer)).needs_root(),
        );
        all.push(
            Test::new(named("and_the_kernel"), programs, move |host| kernel(host, outer))
                .needs_root()
                .unless(no_kernel_device),
        );
    }
    all.push(
        Test::new("tunnels_of_two_networks", &["nsenter"], two_networks)
            .needs_root()
            .unless(no_kernel_device),
    );
    all.push(Test::new("tunnels_of_narrow_paths", &["nsenter"], narrow).needs_root());
    all.push(Test::new("tunnels_refuse_strangers", &["nsenter"], strangers).needs_root());
    all.push(Test::new("tunnels_limit_super_packets", &[], super_packets).needs_root());
    all.push(Test::new("tunnels_have_no_loops", &["nsenter"], no_loops).needs_root());
    all
}

/// Why the kernel's VXLAN device cannot be used here.
fn no_kernel_device() -> Option<String> {
    let add = ["link", "add", "type", "vxlan", "id", "1", "remote", "192.0.2.1", "dstport", "1"];
    let added = Namespace::new().run(|| Command::new("ip").args(add).output());
    match added {
        Ok(output) if output.status.success() => None,
        _ => Some("this kernel makes no VXLAN devices".into()),
    }
}

/// Another host, at the far end of the interface `under`.
struct Other {
    namespace: Namespace,
}

/// Address of a host, by its number.
fn of_host(outer: Family, number: u8) -> IpAddr {
    let text = match outer {
        Family::V4 => format!("10.9.0.{number}"),
        Family::V6 => format!("fd09::{number}"),
    };
    text.parse().expect("an address")
}

impl Drop for Other {
    fn drop(&mut self) {
        remove(&["under"]);
    }
}

impl Other {
    /// Joins this host, which is number 1, with a new one, which is number 2.
    fn new() -> Self {
        let namespace = Namespace::new();
        let holder = namespace.holder().to_string();
        let peer = ["type", "veth", "peer", "name", "under", "netns", &holder];
        run("ip", [&["link", "add", "under"][..], &peer].concat());
        let configure = |number: u8| {
            batch(&format!(
                "link set lo up\nlink set under up\naddress add 10.9.0.{number}/24 dev under\n\
                 address add fd09::{number}/64 dev under nodad\n"
            ));
        };
        configure(1);
        namespace.run(|| configure(2));
        Self { namespace }
    }
}

/// Options of a tunnel from one host to another, without a gateway.
fn tunnel(outer: Family, local: u8, remote: u8) -> Vec<String> {
    let (local, remote) = (of_host(outer, local), of_host(outer, remote));
    vec![format!("--vxlan=100:local={local},remote={remote}"), "--no-gateway".to_owned()]
}

/// Makes what a machine sends fit the tunnel, as DHCP would.
fn fit(machine: &Machine, mtu: u16) {
    machine.namespace.run(|| run("ip", ["link", "set", "eth0", "mtu", &mtu.to_string()]));
}

/// Goal: one machine reaches the other, and every byte of an echoed transfer arrives intact. A busy
/// system may drop packets between namespaces, so a lost ping is repeated.
fn exchange(from: &Machine, to: &Machine, family: Family) {
    let address = to.address(family);
    let text = address.to_string();
    let ping = ["-c", "1", "-W", "1", "-q", &text];
    let is_answered = || Command::new("ping").args(ping).output().expect("ping").status.success();
    retry("an answer", || from.namespace.run(is_answered).then_some(()));
    let mut server = to.start("echo-server", &[&PORT.to_string()]);
    server.wait_for_text("listening");
    let address = SocketAddr::new(address, PORT).to_string();
    let read = from.start("half-close", &[&address, &TRANSFER.to_string()]).finish().success();
    assert_eq!(read, format!("read {TRANSFER}\n"));
    server.signal(Signal::KILL);
    server.finish();
}

/// The counter of a tunnel, or the number of its drops for a reason.
fn count(network: &Network<'_>, port: &str, key: &str) -> u64 {
    let counters = network.port(port);
    let found = [&counters["vxlan"][key], &counters["dropped"][key], &counters[key]];
    found.into_iter().find_map(|value| value.as_u64()).unwrap_or(0)
}

/// Goal: machines on two hosts reach each other over either IP version, every byte arrives intact,
/// and runs of frames share their system calls in both directions. Super-packets of TAP devices are
/// such that each leaves in one call.
fn of_two(host: &mut Host, outer: Family) {
    let other = Other::new();
    let near = Network::start_in(host, None, &tunnel(outer, 1, 2), "tap20");
    let far = Network::start_in(host, Some(&other.namespace), &tunnel(outer, 2, 1), "tap21");
    let a = Machine::with("tap20", 20);
    let b = other.namespace.run(|| Machine::with("tap21", 21));
    // A call takes 44 segments of 1,398 bytes, or 45 of 1,378; and the kernel takes off 321.
    let (mtu, limit) = if outer == Family::V4 { (1450, 61_833) } else { (1430, 62_331) };
    for machine in [&a, &b] {
        fit(machine, mtu);
        let shown = machine.namespace.run(|| run("ip", ["-details", "link", "show", "eth0"]));
        assert!(shown.contains(&format!("gso_max_size {limit} ")), "{shown}");
    }
    for family in Family::BOTH {
        exchange(&a, &b, family);
        exchange(&b, &a, family);
    }
    for network in [&near, &far] {
        let counters = network.port("vxlan100");
        println!("{counters}");
        let [sent, sends] = ["sent", "sends"].map(|key| count(network, "vxlan100", key));
        assert!(sent > 2 * sends, "{sent} frames in {sends} calls");
        let [received, reads] = ["received", "reads"].map(|key| count(network, "vxlan100", key));
        assert!(received > 2 * reads, "{received} frames in {reads} reads");
        let large = count(network, "vxlan100", "super_packets_in");
        assert!(large > 50, "segments are joined again: {large}");
    }
    let remotes = near.run(&["ls", "remotes"]);
    let remote = of_host(outer, 2).to_string();
    assert!(remotes.contains(&remote) && remotes.contains("learned"), "{remotes}");
    near.end();
    far.end();
}

/// Goal: TAP devices are limited when the first tunnel comes, and those that are added later, also
/// by a confined network; not before.
fn super_packets(host: &mut Host) {
    let options = ["--no-gateway", "--mtu", "1450"].map(str::to_owned);
    let network = Network::start_of(host, &options, "tap20");
    let add = |port: &str, attachment: &[&str]| {
        network.run(&[&["port", "add", port], attachment].concat());
    };
    let is_limited = |tap: &str| {
        let shown = run("ip", ["-details", "link", "show", tap]);
        shown.contains("gso_max_size 61833 ")
    };
    add("tap21", &["--tap"]);
    assert!(!is_limited("tap20") && !is_limited("tap21"));
    add("vxlan100", &["--vxlan", "100:local=127.0.0.1,remote=127.0.0.2"]);
    add("tap22", &["--tap"]);
    for tap in ["tap20", "tap21", "tap22"] {
        assert!(is_limited(tap), "{tap}");
    }
    network.end();
}

/// Makes a machine whose interface is a VXLAN device of the other host's kernel.
fn behind_kernel(other: &Other, outer: Family, vni: &str, number: u8) -> Machine {
    let [local, remote] = [2, 1].map(|number| of_host(outer, number).to_string());
    let machine = Machine { namespace: Namespace::new(), number };
    let holder = machine.namespace.holder().to_string();
    other.namespace.run(|| {
        let add = ["link", "add", "eth0", "type", "vxlan", "id", vni, "dstport", "4789"];
        run("ip", [&add[..], &["local", &local, "remote", &remote]].concat());
        // Its tunnel stays in the namespace where it was made.
        run("ip", ["link", "set", "eth0", "netns", &holder]);
    });
    machine.configure();
    machine
}

/// Goal: a machine here and one behind the kernel's VXLAN device of another host reach each other,
/// and every byte arrives intact. Over veth the kernel passes tunnelled super-packets whole, and
/// packets with partial checksums.
fn kernel(host: &mut Host, outer: Family) {
    let other = Other::new();
    let near = Network::start_in(host, None, &tunnel(outer, 1, 2), "tap20");
    let a = Machine::with("tap20", 20);
    let mtu = if outer == Family::V4 { 1450 } else { 1430 };
    fit(&a, mtu);
    let b = behind_kernel(&other, outer, "100", 21);
    for family in Family::BOTH {
        exchange(&a, &b, family);
        exchange(&b, &a, family);
    }
    println!("{}", near.port("vxlan100"));
    near.end();
}

/// Goal: two networks share an address and UDP port, as they do at the kernel's devices on the
/// other host. What is of neither counts once. One of them comes and goes under traffic of the
/// other, which goes on.
fn two_networks(host: &mut Host) {
    let other = Other::new();
    let near = Network::start_in(host, None, &tunnel(Family::V4, 1, 2), "tap20");
    let [local, remote] = [1, 2].map(|number| of_host(Family::V4, number));
    let second = format!("200:local={local},remote={remote}");
    let add = ["port", "add", "vxlan200", "--vxlan", &second, "vlan", "20"];
    near.run(&add);
    near.run(&["port", "add", "tap22", "--tap", "vlan", "20"]);
    let [a, c] = [("tap20", 20), ("tap22", 22)].map(|(tap, number)| Machine::with(tap, number));
    fit(&a, 1450);
    fit(&c, 1450);
    let [b, d] = [("100", 21), ("200", 23)]
        .map(|(vni, number)| behind_kernel(&other, Family::V4, vni, number));
    exchange(&a, &b, Family::V4);
    exchange(&c, &d, Family::V4);
    let strays = || ["vxlan100", "vxlan200"].map(|port| count(&near, port, "vxlan_wrong_vni"));
    assert_eq!(strays(), [0, 0]);
    // A busy system may drop a datagram between namespaces.
    let third = [&[8, 0, 0, 0, 0, 1, 44, 0], &[0; 60][..]].concat();
    retry("a datagram of no network", || {
        other.namespace.run(|| {
            let socket = UdpSocket::bind((remote, 0)).expect("a socket");
            socket.send_to(&third, (local, 4789)).expect("sent");
        });
        (strays()[0] > 0).then_some(())
    });
    assert_eq!(strays()[1], 0, "one port counts it");

    let mut server = b.start("echo-server", &[&PORT.to_string()]);
    server.wait_for_text("listening");
    let address = SocketAddr::new(b.address(Family::V4), PORT).to_string();
    let transfer = a.start("half-close", &[&address, &(4 * TRANSFER).to_string()]);
    for _ in 0..5 {
        near.run(&["port", "del", "vxlan200"]);
        near.run(&add);
    }
    assert_eq!(transfer.finish().success(), format!("read {}\n", 4 * TRANSFER));
    server.signal(Signal::KILL);
    server.finish();
    // The first network goes, and the second one stays.
    near.run(&["port", "del", "vxlan100"]);
    exchange(&d, &c, Family::V4);
    near.end();
}

/// Goal: machines whose MTU is too large for the tunnel get ICMP errors, and so do those behind a
/// path that becomes narrower: transfers succeed with both IP versions.
fn narrow(host: &mut Host) {
    let other = Other::new();
    let near = Network::start_in(host, None, &tunnel(Family::V4, 1, 2), "tap20");
    let far = Network::start_in(host, Some(&other.namespace), &tunnel(Family::V4, 2, 1), "tap21");
    let a = Machine::with("tap20", 20);
    let b = other.namespace.run(|| Machine::with("tap21", 21));
    for family in Family::BOTH {
        exchange(&a, &b, family);
    }
    assert!(count(&near, "vxlan100", "too_big") > 0, "they got ICMP errors");
    let ping = ["-c", "1", "-W", "1", "-M", "do", "-s", "1472", "10.0.2.21"];
    retry("the MTU", || {
        let output = a.namespace.run(|| Command::new("ping").args(ping).output().expect("ping"));
        let [out, error] = [output.stdout, output.stderr].map(String::from_utf8);
        let says = |text: Result<String, _>| text.is_ok_and(|text| text.contains("1450"));
        (says(out) || says(error)).then_some(())
    });
    let narrow = || drop(run("ip", ["link", "set", "under", "mtu", "1400"]));
    narrow();
    other.namespace.run(narrow);
    for family in Family::BOTH {
        exchange(&a, &b, family);
    }
    near.end();
    far.end();
}

/// Goal: datagrams that are no frames of the network are dropped, each with its reason, and a
/// stranger cannot inject a frame.
fn strangers(host: &mut Host) {
    let other = Other::new();
    let near = Network::start_in(host, None, &tunnel(Family::V4, 1, 2), "tap20");
    let a = Machine::with("tap20", 20);
    other.namespace.run(|| run("ip", ["address", "add", "10.9.0.3/24", "dev", "under"]));
    let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5], &[0; 46]].concat();
    let datagram = |flags: u8, vni: u8| [&[flags, 0, 0, 0, 0, 0, vni, 0], &frame[..]].concat();
    let send = |from: u8, bytes: &[u8]| {
        other.namespace.run(|| {
            let socket = UdpSocket::bind((of_host(Family::V4, from), 0)).expect("a socket");
            let to = SocketAddr::new(of_host(Family::V4, 1), 4789);
            socket.send_to(bytes, to).expect("sent");
        });
    };
    // A busy system may drop a datagram between namespaces.
    let until = |what: &str, from: u8, bytes: &[u8]| {
        let before = count(&near, "vxlan100", what);
        retry(what, || {
            send(from, bytes);
            (count(&near, "vxlan100", what) > before).then_some(())
        });
    };
    for (from, bytes, reason) in [
        (3, datagram(8, 100), "vxlan_unknown_remote"),
        (2, datagram(8, 101), "vxlan_wrong_vni"),
        (2, datagram(0, 100), "vxlan_bad_header"),
        (2, datagram(8, 100)[..21].to_vec(), "vxlan_short"),
    ] {
        until(reason, from, &bytes);
    }
    assert_eq!(count(&near, "vxlan100", "packets_in"), 0);
    // RFC 7348 §5: reserved bits are ignored.
    until("packets_in", 2, &datagram(0xff, 100));
    // A remote that is added may send, until it is removed.
    near.run(&["remote", "add", "vxlan100", "10.9.0.3"]);
    until("packets_in", 3, &datagram(8, 100));
    let station = ["--mac", "02:00:00:00:00:09"];
    near.run(&[&["remote", "add", "vxlan100", "10.9.0.2"][..], &station].concat());
    until("vxlan_mac_locked", 3, &datagram(8, 100));
    near.run(&["remote", "del", "vxlan100", "10.9.0.3"]);
    until("vxlan_unknown_remote", 3, &datagram(8, 100));
    // What the machine resolves is answered here.
    let with_address = [&station[..], &["--address", "10.0.2.99"]].concat();
    near.run(&[&["remote", "add", "vxlan100", "10.9.0.2"][..], &with_address].concat());
    retry("an answer", || {
        a.namespace.run(|| {
            let _ = Command::new("ping").args(["-c", "1", "-W", "1", "10.0.2.99"]).output();
            run("ip", ["neighbor", "show", "10.0.2.99"]).contains(station[1]).then_some(())
        })
    });
    assert!(count(&near, "vxlan100", "resolved") > 0);
    // Ports come and go while it is confined.
    near.run(&["port", "add", "vxlan200", "--vxlan", "200:remote=10.9.0.2,port=4790"]);
    near.run(&["port", "del", "vxlan200"]);
    near.end();
}

/// Goal: split horizon. A broadcast that comes through one tunnel does not leave by another one of
/// the same VLAN.
fn no_loops(host: &mut Host) {
    let other = Other::new();
    let mut ports = tunnel(Family::V4, 1, 2);
    ports.push("--vxlan=200:remote=10.9.0.2,port=4790".to_owned());
    let near = Network::start_of(host, &ports, "tap20");
    let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5], &[0; 46]].concat();
    let datagram = [&[8, 0, 0, 0, 0, 0, 100, 0], &frame[..]].concat();
    retry("the frame", || {
        other.namespace.run(|| {
            let socket = UdpSocket::bind(("10.9.0.2", 0)).expect("a socket");
            socket.send_to(&datagram, ("10.9.0.1", 4789)).expect("sent");
        });
        (count(&near, "tap20", "packets_out") > 0).then_some(())
    });
    assert_eq!(count(&near, "vxlan200", "sent"), 0);
    near.end();
}
