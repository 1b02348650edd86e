//! `towpath up` with BGP EVPN: hosts around a route reflector, which is FRR or GoBGP. One host is
//! the kernel's VXLAN device with FRR.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use super::support::{Family, Host, Namespace, Process, Test, batch, command, retry, run};
use super::uplinks::{Machine, Network};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("evpn_with_frr", &["nsenter", "vtysh", "bridge"], with_frr)
            .needs_root()
            .unless(no_frr),
        Test::new("evpn_with_gobgp", &["nsenter", "gobgpd"], with_gobgp).needs_root(),
        Test::new("evpn_without_a_reflector", &["nsenter"], without_a_reflector).needs_root(),
        Test::new("evpn_moves_a_lease", &["nsenter", "gobgpd", "busybox"], moves_a_lease)
            .needs_root(),
        Test::new(
            "evpn_survives_loss",
            &["nsenter", "gobgpd", "busybox", "ethtool", "nft"],
            survives_loss,
        )
        .needs_root(),
    ]
}

/// FRR's daemons are not in the path.
const FRR: &str = "/usr/lib/frr";

fn no_frr() -> Option<String> {
    let missing =
        ["bgpd", "zebra"].into_iter().find(|name| !PathBuf::from(FRR).join(name).exists());
    missing.map(|name| format!("{FRR}/{name} is not installed"))
}

/// The key of sessions with FRR, as FRR's configurations below have it.
const PASSWORD: &str = "password = \"secret\"";

/// A reflector for all hosts of 192.0.2.0/24.
const FRR_REFLECTOR: &str = "\
router bgp 65001
 bgp router-id 192.0.2.1
 no bgp default ipv4-unicast
 neighbor HOSTS peer-group
 neighbor HOSTS remote-as 65001
 neighbor HOSTS password secret
 bgp listen range 192.0.2.0/24 peer-group HOSTS
 address-family l2vpn evpn
  neighbor HOSTS activate
  neighbor HOSTS route-reflector-client
 exit-address-family
";

/// A host whose VXLAN devices belong to the kernel.
const FRR_HOST: &str = "\
router bgp 65001
 bgp router-id 192.0.2.13
 no bgp default ipv4-unicast
 neighbor 192.0.2.1 remote-as 65001
 neighbor 192.0.2.1 timers connect 1
 neighbor 192.0.2.1 password secret
 address-family l2vpn evpn
  neighbor 192.0.2.1 activate
  advertise-all-vni
 exit-address-family
";

/// The same reflector. It offers graceful restart, so that hosts keep routes while it is away.
const GOBGP_REFLECTOR: &str = "\
[global.config]
  as = 65001
  router-id = \"192.0.2.1\"
[[peer-groups]]
  [peer-groups.config]
    peer-group-name = \"hosts\"
    peer-as = 65001
  [peer-groups.graceful-restart.config]
    enabled = true
    restart-time = 120
  [peer-groups.route-reflector.config]
    route-reflector-client = true
    route-reflector-cluster-id = \"192.0.2.1\"
  [[peer-groups.afi-safis]]
    [peer-groups.afi-safis.config]
      afi-safi-name = \"l2vpn-evpn\"
[[dynamic-neighbors]]
  [dynamic-neighbors.config]
    prefix = \"192.0.2.0/24\"
    peer-group = \"hosts\"
";

const LOSS: &str = "\
table netdev loss {
  chain eth0 {
    type filter hook ingress device \"eth0\" priority 0
    numgen inc mod 100 0 counter drop
  }
}
";

/// A switch between hosts, with a reflector at 192.0.2.1.
pub(super) struct Lab<'a> {
    host: &'a Host,
    fabric: Namespace,
}

impl<'a> Lab<'a> {
    pub(super) fn new(host: &'a Host) -> Self {
        let fabric = Namespace::new();
        fabric.run(|| {
            batch(
                "link set lo up\nlink add fabric type bridge\nlink set fabric up\n\
                 address add 192.0.2.1/24 dev fabric\n",
            );
        });
        Self { host, fabric }
    }

    /// Adds a host with the address 192.0.2.NUMBER.
    pub(super) fn join(&self, number: u8) -> Namespace {
        let there = Namespace::new();
        let holder = there.holder();
        self.fabric.run(|| {
            batch(&format!(
                "link add v{number} type veth peer name eth0 netns {holder}\n\
                 link set v{number} master fabric\nlink set v{number} up\n"
            ));
        });
        there.run(|| {
            batch(&format!(
                "link set lo up\nlink set eth0 up\naddress add 192.0.2.{number}/24 dev eth0\n"
            ));
        });
        there
    }

    /// Starts towpath with a tunnel and EVPN on a host, with `more` settings of EVPN.
    fn towpath(&self, there: &Namespace, number: u8, more: &str) -> Network<'a> {
        self.towpath_with("gateway = false", there, number, more)
    }

    /// The same with other settings of the network.
    fn towpath_with(
        &self,
        settings: &str,
        there: &Namespace,
        number: u8,
        more: &str,
    ) -> Network<'a> {
        self.start(settings, there, number, &format!("neighbors = [\"192.0.2.1\"]\n{more}"))
    }

    /// Starts towpath on a host whose neighbour is another host, without a reflector.
    pub(super) fn beside(
        &self,
        settings: &str,
        (there, number, other): (&Namespace, u8, u8),
        more: &str,
    ) -> Network<'a> {
        let evpn = format!(
            "neighbors = [\"192.0.2.{other}\"]\nlisten = \"192.0.2.{number}:1790\"\nport = 1790\n\
             {more}"
        );
        self.start(settings, there, number, &evpn)
    }

    /// The control socket of the towpath of a host.
    pub(super) fn control(&self, number: u8) -> String {
        self.host.file(&format!("net{number}.control")).to_str().expect("plain text").to_owned()
    }

    /// Starts towpath with these settings of its network and of EVPN.
    fn start(&self, settings: &str, there: &Namespace, number: u8, evpn: &str) -> Network<'a> {
        let text = format!(
            "{settings}\n\
             [vxlan]\nvni = 100\nlocal = \"192.0.2.{number}\"\nlearn = false\n\
             [evpn]\nas = 65001\nrouter-id = \"192.0.2.{number}\"\n{evpn}\n"
        );
        let file = self.host.write(&format!("net{number}.toml"), text);
        let file = file.to_str().expect("plain text").to_owned();
        let arguments = [file, format!("--control-socket={}", self.control(number))];
        Network::start_in(self.host, Some(there), &arguments, &format!("tap{number}"))
    }

    /// Drops every hundredth packet that a host gets. Its kernel sends datagrams one by one, so
    /// that a packet is one of them.
    fn lose(&self, there: &Namespace) {
        let rules = self.host.write("loss.nft", LOSS);
        there.run(|| {
            run(
                "ethtool",
                ["-K", "eth0", "gso", "off", "tso", "off", "tx-udp-segmentation", "off"],
            );
            run("nft", ["-f", rules.to_str().expect("plain text")]);
        });
    }

    /// How many packets were dropped.
    fn lost(there: &Namespace) -> u64 {
        let rules = there.run(|| run("nft", ["list", "chain", "netdev", "loss", "eth0"]));
        let count = rules.split_once("packets ").and_then(|(_, rest)| rest.split(' ').next());
        count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{rules}"))
    }

    /// A folder for the sockets of FRR's daemons, one of which runs as a user of its own.
    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.host.file(name);
        fs::create_dir_all(&folder).expect("a folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("its owner");
        folder
    }

    fn frr_reflector(&self) -> Process {
        let reflector = bgpd(&self.folder("reflector"), FRR_REFLECTOR, &["-Z"]);
        start_in(&self.fabric, &reflector)
    }

    fn gobgp_reflector(&self) -> Process {
        let file = self.host.write("gobgpd.conf", GOBGP_REFLECTOR);
        let file = file.to_str().expect("plain text");
        start_in(&self.fabric, &["gobgpd", "-f", file, "--api-hosts", "127.0.0.1:50051"])
    }
}

/// The command of FRR's BGP daemon. It stays root (-S).
fn bgpd(folder: &std::path::Path, configuration: &str, more: &[&str]) -> Vec<String> {
    fs::write(folder.join("bgpd.conf"), configuration).expect("a file");
    let path = |name: &str| folder.join(name).to_str().expect("plain text").to_owned();
    let own = ["-f", &path("bgpd.conf"), "-i", &path("bgpd.pid"), "--vty_socket", &path("")];
    let program = format!("{FRR}/bgpd");
    let words = [&program[..], "-S", "-A", "127.0.0.1"].into_iter().chain(own);
    words.chain(more.iter().copied()).map(str::to_owned).collect()
}

fn start_in<W: AsRef<str>>(there: &Namespace, words: &[W]) -> Process {
    let namespace = format!("--net=/proc/{}/ns/net", there.holder());
    let words = words.iter().map(|word| word.as_ref().to_owned());
    Process::start(command("nsenter", [namespace].into_iter().chain(words)))
}

/// Kills a daemon, so that it sends nothing to its neighbours before it ends.
fn kill(daemon: Process) {
    daemon.signal(Signal::KILL);
    daemon.finish();
}

/// Waits until a machine answers another one.
fn reaches(from: &Machine, to: &Machine, family: Family) {
    gets_answers(from, to.address(family));
}

/// A machine that asks for its address.
fn client(there: &Namespace, device: &str) -> Machine {
    let machine = Machine { namespace: Namespace::new(), number: 0 };
    plug(&machine, there, device);
    machine
}

/// Gives a machine the device of a port.
fn plug(machine: &Machine, there: &Namespace, device: &str) {
    let holder = machine.namespace.holder().to_string();
    there.run(|| run("ip", ["link", "set", device, "name", "eth0", "netns", &holder]));
    machine.namespace.run(|| batch("link set lo up\nlink set eth0 up\n"));
}

/// Asks for an address, takes it, and returns it.
fn lease(machine: &Machine) -> IpAddr {
    let ask = ["udhcpc", "-i", "eth0", "-f", "-n", "-q", "-t", "60", "-T", "1", "-s", "/bin/true"];
    let output = machine.namespace.run(|| command("busybox", ask).output().expect("busybox"));
    let shown = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let rest = shown.split_once("lease of ").map(|(_, rest)| rest);
    let address = rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    let address: IpAddr = address.unwrap_or_else(|| panic!("{shown}"));
    machine.namespace.run(|| batch(&format!("address replace {address}/24 dev eth0\n")));
    address
}

/// Waits until a machine gets answers from an address.
fn gets_answers(from: &Machine, address: IpAddr) {
    let address = address.to_string();
    retry(&format!("an answer of {address}"), || {
        let ping = ["-c", "1", "-W", "2", "-q", &address];
        let output = from.namespace.run(|| command("ping", ping).output().expect("ping"));
        output.status.success().then_some(())
    });
}

/// Sends something over a connection, and gets it back.
fn converse(stream: &mut TcpStream, what: &[u8]) {
    stream.write_all(what).expect("the connection takes it");
    let mut answer = vec![0; what.len()];
    stream.read_exact(&mut answer).expect("an echo");
    assert_eq!(answer, what);
}

/// The MAC address of a machine.
fn mac_of(machine: &Machine) -> String {
    let link = machine.namespace.run(|| run("ip", ["-o", "link", "show", "eth0"]));
    let mut words = link.split_whitespace().skip_while(|word| *word != "link/ether");
    words.nth(1).expect("an Ethernet device").to_owned()
}

pub(super) fn wait_for(network: &Network<'_>, what: &str, texts: &[&str]) {
    retry(&format!("{texts:?} in ls {what}"), || {
        let shown = network.run(&["ls", what]);
        texts.iter().all(|text| shown.contains(text)).then_some(())
    });
}

/// Kernel's VXLAN device on a host with FRR.
struct KernelHost {
    there: Namespace,
    folder: PathBuf,
    daemons: [Process; 2],
}

impl KernelHost {
    /// Starts it, with a machine behind its bridge.
    fn start(lab: &Lab<'_>) -> (Self, Machine) {
        let there = lab.join(13);
        let machine = Self::network(&there, 100, 13);
        let folder = lab.folder("kernel");
        let path = |name: &str| folder.join(name).to_str().expect("plain text").to_owned();
        let zebra = format!("{FRR}/zebra");
        let (zserv, pid, own) = (path("zserv"), path("zebra.pid"), path(""));
        let words = [&zebra[..], "-A", "127.0.0.1", "-z", &zserv, "-i", &pid, "--vty_socket", &own];
        let zebra = start_in(&there, &words);
        retry("zebra", || folder.join("zserv").exists().then_some(()));
        let bgpd = start_in(&there, &bgpd(&folder, FRR_HOST, &["-z", &zserv]));
        (Self { there, folder, daemons: [zebra, bgpd] }, machine)
    }

    /// Adds a network, with a machine behind its bridge.
    fn network(there: &Namespace, vni: u32, number: u8) -> Machine {
        let machine = Machine { namespace: Namespace::new(), number };
        let holder = machine.namespace.holder();
        there.run(|| {
            batch(&format!(
                "link add br{vni} type bridge\nlink set br{vni} up\n\
                 link add vx{vni} type vxlan id {vni} dstport 4789 local 192.0.2.13 nolearning\n\
                 link set vx{vni} master br{vni}\n\
                 link set vx{vni} type bridge_slave learning off\nlink set vx{vni} up\n\
                 link add guest{vni} type veth peer name eth0 netns {holder}\n\
                 link set guest{vni} master br{vni}\nlink set guest{vni} up\n"
            ));
        });
        machine.configure();
        machine
    }

    /// What FRR's shell answers.
    fn ask(&self, question: &str) -> String {
        let folder = self.folder.to_str().expect("plain text");
        run("vtysh", ["--vty_socket", folder, "-c", question])
    }

    /// Waits until the kernel forwards to these.
    fn wait_for(&self, texts: &[&str]) {
        retry(&format!("{texts:?} in the kernel's table"), || {
            let shown = self.there.run(|| run("bridge", ["fdb", "show", "dev", "vx100"]));
            texts.iter().all(|text| shown.contains(text)).then_some(())
        });
    }

    fn end(self) {
        self.daemons.into_iter().for_each(kill);
    }
}

/// Goal: towpath and the kernel's device with FRR are one network around FRR as reflector. FRR
/// accepts towpath's routes; a restart of the reflector interrupts nothing between towpaths; a
/// machine that moves is found; all hosts have a second network at the same UDP port; a host that
/// ends is forgotten.
fn with_frr(host: &mut Host) {
    let lab = Lab::new(host);
    let mut reflector = lab.frr_reflector();
    let [first, second] = [11, 12].map(|number| lab.join(number));
    let (kernel, c) = KernelHost::start(&lab);
    let [near, far] =
        [(&first, 11), (&second, 12)].map(|(there, number)| lab.towpath(there, number, PASSWORD));
    let a = first.run(|| Machine::with("tap11", 11));
    let b = second.run(|| Machine::with("tap12", 12));
    wait_for(&near, "remotes", &["192.0.2.12", "192.0.2.13"]);
    wait_for(&far, "remotes", &["192.0.2.11", "192.0.2.13"]);
    kernel.wait_for(&["dst 192.0.2.11", "dst 192.0.2.12"]);
    for (from, to) in [(&a, &b), (&b, &c), (&c, &a)] {
        for family in Family::BOTH {
            reaches(from, to, family);
        }
    }
    let [mac_a, mac_b, mac_c] = [&a, &b, &c].map(mac_of);
    wait_for(&near, "evpn", &[&format!("station {mac_c} VNI 100 at 192.0.2.13")]);
    wait_for(&near, "evpn", &[&format!("station {mac_b} VNI 100 at 192.0.2.12")]);
    kernel.wait_for(&[&mac_a, &mac_b]);
    let routes = kernel.ask("show bgp l2vpn evpn");
    for route in ["[3]:[0]:[32]:[192.0.2.11]", &format!("*>i[2]:[0]:[48]:[{mac_a}]")] {
        assert!(routes.contains(route), "{route} in\n{routes}");
    }

    kill(reflector);
    wait_for(&near, "evpn", &["4 routes, 4 stale"]);
    reaches(&a, &b, Family::V4);
    reflector = lab.frr_reflector();
    wait_for(&near, "evpn", &["Established", "4 routes, 0 stale"]);
    wait_for(&far, "evpn", &["Established", "4 routes, 0 stale"]);

    b.namespace.run(|| run("ip", ["link", "set", "eth0", "down"]));
    near.run(&["port", "add", "tap14", "--tap"]);
    let moved = first.run(|| {
        run("ip", ["link", "set", "tap14", "address", &mac_b]);
        Machine::with("tap14", 12)
    });
    for family in Family::BOTH {
        reaches(&moved, &a, family);
    }
    wait_for(&far, "evpn", &[&format!("station {mac_b} VNI 100 at 192.0.2.11, 1 moves")]);

    let d = KernelHost::network(&kernel.there, 200, 23);
    let [e, f] =
        [(&near, &first, 11, 24), (&far, &second, 12, 25)].map(|(network, there, at, number)| {
            let (settings, tap) =
                (format!("200:local=192.0.2.{at},learn=no"), format!("tap{number}"));
            network.run(&["port", "add", "vxlan200", "--vxlan", &settings, "vlan", "20"]);
            network.run(&["port", "add", &tap, "--tap", "vlan", "20"]);
            there.run(|| Machine::with(&tap, number))
        });
    for (from, to) in [(&d, &e), (&e, &f), (&f, &d), (&moved, &a), (&a, &c)] {
        reaches(from, to, Family::V4);
    }
    wait_for(&near, "evpn", &[&format!("station {} VNI 200 at 192.0.2.13", mac_of(&d))]);

    far.end();
    retry("the remote to go", || {
        (!near.run(&["ls", "remotes"]).contains("192.0.2.12")).then_some(())
    });
    near.end();
    kernel.end();
    kill(reflector);
}

/// Goal: the same around GoBGP.
fn with_gobgp(host: &mut Host) {
    let lab = Lab::new(host);
    let reflector = lab.gobgp_reflector();
    let [first, second] = [11, 12].map(|number| lab.join(number));
    let [near, far] =
        [(&first, 11), (&second, 12)].map(|(there, number)| lab.towpath(there, number, ""));
    let a = first.run(|| Machine::with("tap11", 11));
    let b = second.run(|| Machine::with("tap12", 12));
    wait_for(&near, "remotes", &["192.0.2.12"]);
    wait_for(&far, "remotes", &["192.0.2.11"]);
    for family in Family::BOTH {
        reaches(&a, &b, family);
        reaches(&b, &a, family);
    }
    wait_for(&near, "evpn", &[&format!("station {} VNI 100 at 192.0.2.12", mac_of(&b))]);
    kill(reflector);
    wait_for(&near, "evpn", &["2 routes, 2 stale"]);
    reaches(&a, &b, Family::V4);
    let reflector = lab.gobgp_reflector();
    wait_for(&near, "evpn", &["Established", "2 routes, 0 stale"]);
    far.end();
    retry("the remote to go", || {
        (!near.run(&["ls", "remotes"]).contains("192.0.2.12")).then_some(())
    });
    near.end();
    kill(reflector);
}

/// Goal: hosts without a reflector are each other's neighbours: they connect to each other at once,
/// with a password, and one connection stays. Another host is not let in, and counted.
fn without_a_reflector(host: &mut Host) {
    let lab = Lab::new(host);
    let [first, second] = [11, 12].map(|number| lab.join(number));
    let [near, far] = [(&first, 11, 12), (&second, 12, 11)]
        .map(|host| lab.beside("gateway = false", host, PASSWORD));
    let a = first.run(|| Machine::with("tap11", 11));
    let b = second.run(|| Machine::with("tap12", 12));
    wait_for(&near, "evpn", &["neighbor 192.0.2.12 Established"]);
    wait_for(&far, "evpn", &["neighbor 192.0.2.11 Established"]);
    for family in Family::BOTH {
        reaches(&a, &b, family);
    }
    wait_for(&near, "evpn", &[&format!("station {} VNI 100 at 192.0.2.12", mac_of(&b))]);
    let stranger = lab.fabric.run(|| TcpStream::connect(("192.0.2.11", 1790)));
    let mut stranger = stranger.expect("a connection");
    stranger.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
    let mut bytes = [0; 1];
    // A reset, or the end.
    assert!(!matches!(stranger.read(&mut bytes), Ok(1)), "it is told nothing");
    wait_for(&near, "evpn", &["counter refused 1", "neighbor 192.0.2.12 Established"]);
    far.end();
    wait_for(&near, "evpn", &["0 routes"]);
    near.end();
    a_neighbour_is_back(&lab, [first, second]);
}

/// Goal: a host that crashes with its kernel, and is back, gets a session with a passive neighbour,
/// to which the old connection seems to be alive. Method: without a hold time, nothing else ends
/// that; the host's namespace goes without a word to the neighbour, as its link has gone before.
fn a_neighbour_is_back(lab: &Lab<'_>, [first, second]: [Namespace; 2]) {
    const FOREVER: &str = "hold-time = 0\npassword = \"secret\"";
    let passive = format!("passive = true\n{FOREVER}");
    let near = lab.beside("gateway = false", (&first, 11, 12), &passive);
    let far = lab.beside("gateway = false", (&second, 12, 11), FOREVER);
    wait_for(&near, "evpn", &["neighbor 192.0.2.12 Established", "1 routes, 0 stale"]);
    lab.fabric.run(|| batch("link del v12\n"));
    far.kill();
    drop(second);
    wait_for(&near, "evpn", &["neighbor 192.0.2.12 Established", "1 routes, 0 stale"]);
    let second = lab.join(12);
    let far = lab.beside("gateway = false", (&second, 12, 11), FOREVER);
    for (network, other) in [(&near, 12), (&far, 11)] {
        let session = format!("neighbor 192.0.2.{other} Established");
        wait_for(network, "evpn", &[&session, "1 routes, 0 stale", "counter refused 0"]);
    }
    far.end();
    near.end();
}

/// Bytes of a transfer, which is some 6,000 packets each way.
const TRANSFER: u64 = 8 << 20;

/// Sends bytes to a machine that sends them back.
fn transfers(from: &Machine, to: IpAddr) {
    let address = SocketAddr::new(to, PORT).to_string();
    let read = from.start("half-close", &[&address, &TRANSFER.to_string()]).finish().success();
    assert_eq!(read, format!("read {TRANSFER}\n"));
}

/// Goal: hosts that lose every hundredth packet of BGP and of the tunnel find each other, lease
/// addresses, follow a machine that moves, and every byte between machines arrives.
fn survives_loss(host: &mut Host) {
    let lab = Lab::new(host);
    let reflector = lab.gobgp_reflector();
    let [first, second] = [11, 12].map(|number| lab.join(number));
    lab.lose(&first);
    lab.lose(&second);
    let [near, far] = [(&first, 11), (&second, 12)]
        .map(|(there, number)| lab.towpath_with("", there, number, ""));
    let [a, b] = [(&first, "tap11"), (&second, "tap12")].map(|(there, tap)| client(there, tap));
    let [of_a, of_b] = [&a, &b].map(lease);
    assert_ne!(of_a, of_b);
    gets_answers(&a, of_b);
    let mut server = b.start("echo-server", &[&PORT.to_string()]);
    server.wait_for_text("listening");
    transfers(&a, of_b);

    let mac = move_to(&first, &near, &b, of_b);
    gets_answers(&b, of_a);
    wait_for(&far, "evpn", &[&format!("station {mac} VNI 100 at 192.0.2.11 {of_b}, 1 moves")]);
    assert_eq!(lease(&b), of_b);
    far.run(&["port", "add", "tap13", "--tap"]);
    let c = client(&second, "tap13");
    assert!(![of_a, of_b].contains(&lease(&c)));
    gets_answers(&c, of_b);
    transfers(&c, of_b);

    for there in [&first, &second] {
        let lost = Lab::lost(there);
        assert!(lost > 20, "{lost} packets were lost");
    }
    server.signal(Signal::KILL);
    server.finish();
    near.end();
    far.end();
    kill(reflector);
}

/// Gives a machine the device of a new port of another host, with its link-layer address, as a
/// virtual machine has that is migrated. Returns this address.
fn move_to(there: &Namespace, network: &Network<'_>, machine: &Machine, address: IpAddr) -> String {
    let mac = mac_of(machine);
    machine.namespace.run(|| {
        batch("link set eth0 down\naddress flush dev eth0\nlink set eth0 name old\n");
    });
    network.run(&["port", "add", "tap14", "--tap"]);
    there.run(|| run("ip", ["link", "set", "tap14", "address", &mac]));
    plug(machine, there, "tap14");
    machine.namespace.run(|| batch(&format!("address add {address}/24 dev eth0\n")));
    mac
}

/// Port on which a machine echoes.
const PORT: u16 = 7;

/// Goal: two hosts that share a range lease no address twice. A machine that moves to the other
/// host keeps its address and its connections: the old host lets it go, the new one leases it the
/// same address.
fn moves_a_lease(host: &mut Host) {
    let lab = Lab::new(host);
    let reflector = lab.gobgp_reflector();
    let [first, second] = [11, 12].map(|number| lab.join(number));
    let [near, far] = [(&first, 11), (&second, 12)]
        .map(|(there, number)| lab.towpath_with("", there, number, ""));
    far.run(&["port", "add", "tap13", "--tap"]);
    let a = client(&first, "tap11");
    let [b, c] = ["tap12", "tap13"].map(|device| client(&second, device));
    let mut leased = [&a, &b, &c].map(lease).to_vec();
    let (of_a, of_b) = (leased[0], leased[1]);
    gets_answers(&a, of_b);

    let mut server = b.start("echo-server", &[&PORT.to_string()]);
    server.wait_for_text("listening");
    let mut stream = a.namespace.run(|| TcpStream::connect((of_b, PORT))).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
    converse(&mut stream, b"before");
    let mac = move_to(&first, &near, &b, of_b);
    gets_answers(&b, of_a);
    converse(&mut stream, b"after");
    // Its address is known to be with it before it has asked.
    wait_for(&far, "evpn", &[&format!("station {mac} VNI 100 at 192.0.2.11 {of_b}, 1 moves")]);
    gets_answers(&c, of_b);
    assert_eq!(lease(&b), of_b);
    converse(&mut stream, b"afterwards");

    for (network, there, device) in [(&near, &first, "tap15"), (&far, &second, "tap16")] {
        network.run(&["port", "add", device, "--tap"]);
        leased.push(lease(&client(there, device)));
    }
    let mut distinct = leased.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), leased.len(), "{leased:?}");
    server.signal(Signal::KILL);
    server.finish();
    near.end();
    far.end();
    kill(reflector);
}
