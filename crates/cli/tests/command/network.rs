//! `towpath up` with a file, with static and restored leases, and with guests that lie.
//!
//! Guests are at stream sockets, so the tests need no privilege, and no packet leaves the machine.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use towpath_gateway::services::wire::dhcpv4::{MessageType, option};

use super::guest::{Guest, arp, arp_frame, datagram, is_arp, udp_frame};
use super::guest6::{is_advertisement, is_router_announced};
use super::stats::{Folder, assert_fails};
use super::support::*;

pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
pub(super) const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd74, 0x6f77, 0x7061, 0x7468, 0, 0, 0, 2);
/// Default limit of broadcasts per second of a guest.
const BROADCASTS_PER_SECOND: u64 = 10_000;
/// Ports of the network that tests make.
const PORTS: [&str; 3] = ["a", "b", "c"];

/// A `towpath up` with stream ports `a`, `b` and `c`.
pub(super) struct Network {
    pub(super) folder: Folder,
    running: Option<Guard>,
}

impl Network {
    /// Starts a network with a file and other arguments; `DIR` in either is the folder of the test.
    pub(super) fn start(name: &str, file: &str, arguments: &[&str]) -> Self {
        let mut network = Self { folder: Folder::new(name), running: None };
        let ports = PORTS.map(|name| format!("[[port]]\nname = '{name}'\nstream = 'DIR/{name}'\n"));
        fs::write(network.path("net.toml"), network.here(&(file.to_owned() + &ports.concat())))
            .unwrap();
        network.up(arguments);
        network
    }

    fn up(&mut self, arguments: &[&str]) {
        let arguments: Vec<_> = arguments.iter().map(|argument| self.here(argument)).collect();
        let file = self.path("net.toml");
        let mut command = towpath(["up", file.to_str().unwrap()]);
        command.args(arguments).env("XDG_RUNTIME_DIR", &self.folder.0);
        let running = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        self.running = Some(Guard(running.unwrap()));
        wait_for("the control socket", || UnixStream::connect(self.control()).is_ok());
    }

    /// Sends a signal and waits for the end; returns the messages.
    pub(super) fn end(&mut self, signal: Signal) -> String {
        let running = self.running.take().unwrap();
        running.signal(signal);
        errors(&finish(running))
    }

    fn here(&self, text: &str) -> String {
        text.replace("DIR", self.folder.0.to_str().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    pub(super) fn control(&self) -> PathBuf {
        let pid = self.running.as_ref().unwrap().0.id();
        self.folder.sockets().join(format!("{pid}.control"))
    }

    pub(super) fn guest(&self, name: &str, last: u8) -> Guest {
        Guest::connect(&self.path(name), last)
    }

    /// Runs `towpath` with arguments, as the network's user.
    pub(super) fn towpath(&self, arguments: &[&str]) -> Output {
        output(towpath(arguments.iter().copied()).env("XDG_RUNTIME_DIR", &self.folder.0))
    }

    pub(super) fn done(&self, arguments: &[&str]) -> String {
        let output = self.towpath(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", errors(&output));
        text(&output)
    }

    pub(super) fn stats(&self) -> Value {
        let pid = self.running.as_ref().unwrap().0.id().to_string();
        serde_json::from_str(&self.done(&["stats", "--json", &pid])).unwrap()
    }

    /// Returns the packets that a port has dropped for a reason.
    pub(super) fn dropped(&self, port: &str, reason: &str) -> u64 {
        // Absent until it occurs.
        self.stats()["ports"][port]["dropped"][reason].as_u64().unwrap_or(0)
    }
}

pub(super) fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 2, last)
}

/// Goal: the network has the settings of its file, options override them, and guests are configured
/// accordingly.
#[test]
fn a_network_from_a_file() {
    let file = "mtu = 1400\nqueue-len = 77\ndomain = 'lab.example'\nipv6 = false\n\
                [ipv4]\nsubnet = '10.0.2.0/24'\ngateway = '10.0.2.1'\n\
                pool = '10.0.2.50-10.0.2.50'\n\
                [dhcp]\nlease-time = '20m'\nsearch = ['example']\ndns = ['192.0.2.53']\n\
                [[port]]\nname = 'd'\nstream = 'DIR/d'\nqueue-len = 9\nvlan = 5\n\
                [[lease]]\nport = 'b'\nipv4 = '10.0.2.20'\nname = 'base'\n";
    let options = ["--lease", "mac=02:00:00:00:00:03,ipv4=10.0.2.30", "--mtu", "1300"];
    let network = Network::start("file", file, &options);
    let ports: Vec<Value> = network
        .done(&["ls", "--json"])
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let settings: Vec<_> =
        ports.iter().map(|port| (port["name"].as_str().unwrap(), &port["queue-len"])).collect();
    assert_eq!(settings[0], ("d", &9.into()));
    assert_eq!(settings[1], ("a", &77.into()));
    assert_eq!(ports[0]["vlan"], 5);

    let mut a = network.guest("a", 1);
    let wanted = [(option::PARAMETER_LIST, &[1, 3, 6, 15, 26, 51, 119][..])];
    let ack = a.lease(&wanted).unwrap();
    assert_eq!(ack.your_address, address(50));
    let options = &ack.options;
    assert_eq!(options.address(option::ROUTERS), Some(address(1)));
    assert_eq!(options.address(option::DNS_SERVERS), Some([192, 0, 2, 53].into()));
    assert_eq!(
        (options.u16(option::MTU), options.u32(option::LEASE_TIME)),
        (Some(1300), Some(1200))
    );
    assert_eq!(options.get(option::DOMAIN_NAME), Some(&b"lab.example"[..]));
    assert!(options.get(option::SEARCH_LIST).is_some_and(|list| list.len() > 10));
    assert_eq!(network.guest("b", 2).lease(&wanted).unwrap().your_address, address(20));
    assert_eq!(network.guest("c", 3).lease(&wanted).unwrap().your_address, address(30));
    let leases = network.done(&["ls", "leases"]);
    assert!(leases.contains(" b               base static\n"), "{leases}");
    assert_eq!(leases.lines().count(), 3, "{leases}");
}

/// Goal: `--check` finds mistakes in file and options together, and makes nothing.
#[test]
fn mistakes_are_found_before_anything_is_made() {
    let folder = Folder::new("check");
    let path = folder.0.join("net.toml");
    let check = |text: &str, options: &[&str]| {
        fs::write(&path, text).unwrap();
        let mut command = towpath(["up", "--check"]);
        output(command.arg(&path).args(options).current_dir(&folder.0))
    };
    let port = "[[port]]\nname = 'a'\nstream = '/nowhere/a'\n";
    for (text, options, expected) in [
        ("mtuu = 1", &[][..], "net.toml:1:1: unknown key 'mtuu'; did you mean 'mtu'?"),
        ("mtu = ", &[], "net.toml:1:7: "),
        ("mtu = 100", &[], "net.toml:1:1: 'mtu': expected a number from 576 to 65520, got 100"),
        ("colour = 1", &[], "unknown key 'colour'; expected mtu, busy-poll, domain"),
        ("[port]\nname = 'a'", &[], "expected a list of tables, each under [[port]]"),
        ("[ipv4]\ngateway = '10.0.3.1'", &[], "10.0.3.1 cannot be the address of the gateway"),
        ("[ipv4]\ndns = '10.0.2.2'", &[], "10.0.2.2 cannot be the address of the gateway"),
        ("[ipv4]\npool = '10.0.2.9-10.0.2.8'", &[], "10.0.2.9-10.0.2.8 is not a range of"),
        ("[ipv6]\npool = 'fd00::1-fd00::2'", &[], "fd00::1-fd00::2 is not a range of"),
        ("[dhcp]\nlease-time = '1s'", &[], "a lease time of 1 s is out of range; expected 120 s"),
        ("[dhcp]\nleases-per-port = 0", &[], "net.toml:2:1: 'leases-per-port': expected a number"),
        ("[dhcp]\nsearch = ['a','b','c','d','e','f','g','h','i']", &[], "10 search domains are"),
        (port, &["--stream", "a=b"], "option --stream a: port 'a' already exists"),
        ("[[port]]\nname = 'a b'\ntap = true", &[], "net.toml:1:1: 'a b' is not a valid port name"),
        ("[[port]]\nname = 'a'\ntap = true\nqueue-len = 0", &[], "net.toml:4:1: 'queue-len': "),
        ("[[lease]]\nport = 'a'\nipv4 = '10.0.2.2'", &[], "net.toml:1:1: 10.0.2.2 is reserved"),
        ("dhcp = false", &["--lease", "port=a,name=x"], "DHCP is disabled"),
        ("", &["--lease", "port=a,nam=x"], "did you mean 'name'?"),
        ("", &["--pool", "10.0.2.9"], "FIRST-LAST"),
        ("", &["--busy-poll", "1001"], "expected a number of microseconds from 0 to 1000"),
        ("", &["--busy-poll", "x"], "a number of microseconds"),
        ("ipv4 = false", &["--pool", "10.0.2.8-10.0.2.9"], "is not a range of addresses"),
        ("ipv4 = false\nipv6 = false", &[], "IPv4 and IPv6 are both disabled; enable at least one"),
    ] {
        let output = check(text, options);
        assert_eq!(output.status.code(), Some(2), "{text}: {}", errors(&output));
        assert!(errors(&output).contains(expected), "{text}: {}", errors(&output));
    }
    let right = check(port, &["--stream", "b=/nowhere/b"]);
    assert_eq!((right.status.code(), &*errors(&right)), (Some(0), ""));
    fs::remove_file(&path).unwrap();
    let none = output(towpath(["up", "--check"]).arg(&path));
    assert_eq!(none.status.code(), Some(2), "{}", errors(&none));
    assert!(errors(&none).contains("cannot read"), "{}", errors(&none));
    let binary = check("", &[]);
    assert_eq!(binary.status.code(), Some(0), "an empty file is valid");
    fs::write(&path, [0xff, 0xfe]).unwrap();
    assert_eq!(output(towpath(["up", "--check"]).arg(&path)).status.code(), Some(2));
    // Errors found only when the network starts also name the place in the file.
    fs::write(&path, port).unwrap();
    let tried = output(towpath(["up"]).arg(&path).env("XDG_RUNTIME_DIR", &folder.0));
    assert_eq!(tried.status.code(), Some(125));
    assert!(errors(&tried).contains("net.toml:1:1: "), "{}", errors(&tried));
}

/// Goal: a network file with a secret that other users may read is served, with a notice. Without a
/// secret or without other users there is none.
#[test]
fn secrets_that_other_users_may_read_are_reported() {
    let folder = Folder::new("secret");
    let path = folder.0.join("net.toml");
    let vxlan = "[vxlan]\nvni = 100\nlocal = '127.0.0.1'\n";
    let evpn = "[evpn]\nas = 65001\nrouter-id = '192.0.2.11'\nneighbors = ['192.0.2.1']\n";
    let secret = format!("{vxlan}{evpn}password = 'hush'\n");
    let plain = format!("{vxlan}{evpn}");
    let notice = |text: &str, mode, arguments: &[&str]| {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let output = output(towpath(arguments.iter().copied()).arg(&path));
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        errors(&output)
    };
    let check = ["up", "--check"];
    let policy = ["policy", "check"];
    let policy_text = format!("{secret}[egress]\ndefault = 'deny'\n");
    for said in [notice(&secret, 0o644, &check), notice(&policy_text, 0o644, &policy)] {
        let shown = path.display();
        let expected = format!(
            "towpath: {shown} has a secret, and other users may read or change it (mode 644); run: \
             chmod o= {shown}, or put the secret into a password-file or key-file\n"
        );
        assert_eq!(said, expected);
    }
    assert_eq!(notice(&secret, 0o640, &check), "");
    assert_eq!(notice(&plain, 0o644, &check), "");
    assert_eq!(notice(&secret, 0o644, &["up", "--quiet", "--check"]), "");
}

/// Goal: static leases are added and removed while the network runs, and a failed transaction
/// leaves no trace of its leases.
#[test]
fn leases_change_while_the_network_runs() {
    let network = Network::start("lease", "", &[]);
    let mut a = network.guest("a", 1);
    let had = a.lease(&[(option::HOST_NAME, b"vm1")]).unwrap().your_address;
    network.done(&["lease", "add", "port=b,ipv4=10.0.2.20,name=web"]);
    let not_taken = || {
        network.done(&["ls", "leases"]).matches(" b               web static, not taken\n").count()
    };
    assert_eq!(not_taken(), 1);
    assert_eq!(network.guest("b", 2).lease(&[]).unwrap().your_address, address(20));
    assert_eq!(not_taken(), 0);
    let taken = format!("port=c,ipv4={had}");
    assert_fails(&network.towpath(&["lease", "add", &taken]), "is leased to 02:00:00:00:00:01");
    // The guest that has it keeps it for good.
    network.done(&["lease", "add", &format!("mac=02:00:00:00:00:01,ipv4={had}")]);
    assert_eq!(a.lease(&[]).unwrap().your_address, had);
    assert!(network.done(&["ls", "leases"]).lines().all(|line| line.ends_with(" static")));

    assert_fails(&network.towpath(&["lease", "del", "port=c"]), "port c has no static lease");
    for wrong in [&["lease", "add", "port=c"][..], &["lease", "add", "x"], &["lease", "del", ""]] {
        assert!(matches!(network.towpath(wrong).status.code(), Some(2 | 125)), "{wrong:?}");
    }
    network.done(&["lease", "del", "port=b"]);
    let mut c = network.guest("c", 3);
    let wanted = [(option::REQUESTED_ADDRESS, &address(20).octets()[..])];
    assert_eq!(c.lease(&wanted).unwrap().your_address, address(20), "free for any guest");
}

/// Goal: guests with static leases by port and by DUID get their addresses by DHCP for IPv6, have
/// their names, and are listed; another guest gets an address of the pool.
#[test]
fn static_leases_of_ipv6() {
    let at = |last: u128| Ipv6Addr::from(u128::from(GATEWAY_V6) - 2 + last);
    let file = format!(
        "[[lease]]\nport = 'a'\nipv6 = '{}'\nname = 'web'\n\
         [[lease]]\nduid = '00030001020000000002'\nipv6 = '{}'\n",
        at(0x20),
        at(0x30)
    );
    let network = Network::start("lease6", &file, &[]);
    let duid = |last: u8| [0, 3, 0, 1, 2, 0, 0, 0, 0, last];
    let (mut a, mut b, mut c) =
        (network.guest("a", 1), network.guest("b", 2), network.guest("c", 3));
    assert_eq!(a.lease6(&duid(9)), Some(at(0x20)));
    assert_eq!(b.lease6(&duid(2)), Some(at(0x30)));
    let of_pool = c.lease6(&duid(3)).unwrap();
    assert!((at(0x1000)..=at(0x1fff)).contains(&of_pool), "{of_pool}");
    let leases = network.done(&["ls", "leases"]);
    assert!(leases.contains(" a               web static\n"), "{leases}");
    assert_eq!(leases.matches(" static\n").count(), 2, "{leases}");
    assert_eq!(leases.lines().count(), 3, "{leases}");
}

/// Goal: guests get their addresses again after a restart or a crash. A damaged file is set aside;
/// one that cannot be written is reported and does not stop the network.
#[test]
fn leases_outlive_a_restart() {
    let options = ["--lease-file", "DIR/leases", "-v"];
    let mut network = Network::start("restart", "", &options);
    let first = network.guest("a", 1).lease(&[(option::HOST_NAME, b"vm1")]).unwrap().your_address;
    // The hash of the second guest leads to the same address, and it asks for that; but the address
    // is still leased.
    let wanted = [(option::REQUESTED_ADDRESS, &first.octets()[..])];
    network.end(Signal::TERM);
    let file = fs::read_to_string(network.path("leases")).unwrap();
    assert!(file.contains(&format!(" {first} 02:00:00:00:00:01 vm1 mac a\n")), "{file}");
    network.up(&options);
    assert_ne!(network.guest("b", 2).lease(&wanted).unwrap().your_address, first, "still lent");
    let mut again = network.guest("a", 1);
    again.ask(MessageType::Request, &wanted);
    let answer = again.answer(PATIENCE).unwrap();
    assert_eq!(MessageType::of(&answer.options), Some(MessageType::Ack));
    assert_eq!(answer.your_address, first);
    // Before it was killed, it has written what is older than a moment.
    let has_two =
        || fs::read_to_string(network.path("leases")).is_ok_and(|f| f.lines().count() == 2);
    wait_for("both leases to be written", has_two);
    network.end(Signal::KILL);
    let damaged = fs::read_to_string(network.path("leases")).unwrap() + "\u{1b}[2J nonsense\n";
    fs::write(network.path("leases"), &damaged).unwrap();
    network.up(&options);
    let leases = network.done(&["ls", "leases"]);
    assert_eq!(leases.lines().count(), 2, "{leases}");
    let said = network.end(Signal::TERM);
    assert!(said.contains("1 lines that are not leases"), "{said}");
    assert_eq!(fs::read_to_string(network.path("leases.damaged")).unwrap(), damaged);

    // A folder in its place cannot be read.
    fs::remove_file(network.path("leases")).unwrap();
    fs::create_dir(network.path("leases")).unwrap();
    network.up(&options);
    assert!(network.guest("a", 1).lease(&[]).is_some());
    let said = network.end(Signal::TERM);
    assert!(
        said.contains("cannot use ") && said.contains("leases will not survive a restart"),
        "{said}"
    );

    // Nothing can be written there: root may write anywhere except to a full device.
    network.up(&["--lease-file", "DIR/none/leases"]);
    assert!(network.guest("a", 1).lease(&[]).is_some());
    let said = network.end(Signal::TERM);
    assert!(said.contains("cannot write leases to"), "{said}");
}

/// Goal: one network at a time uses a lease file. Another network is refused and makes nothing. It
/// may use the file when the first has ended, however that ended.
#[test]
fn a_lease_file_is_not_shared() {
    let options = ["--lease-file", "DIR/leases"];
    let mut network = Network::start("lock", "", &options);
    let socket = network.here("x=DIR/x");
    let other = ["up", "--stream", &socket, "--lease-file", &network.here("DIR/leases")];
    assert_fails(&network.towpath(&other), "(--lease-file): another network uses this file");
    assert!(!network.path("x").exists());
    assert!(network.guest("a", 1).lease(&[]).is_some());
    network.end(Signal::KILL);
    network.up(&options);
    assert!(network.guest("a", 1).lease(&[]).is_some());
    network.end(Signal::TERM);
    assert_eq!(fs::read_to_string(network.path("leases")).unwrap().lines().count(), 1);
}

/// Goal: a full disk is reported once, and guests get addresses nevertheless. When there is room,
/// leases are written again.
#[test]
fn a_full_disk_is_reported_and_survived() {
    skip_if!(no_root());
    let folder = Folder::new("disk");
    let script = "set -e; mount -t tmpfs -o size=64k none DIR; dd if=/dev/zero of=DIR/fill bs=4k \
                  count=16 2>/dev/null; exec TOWPATH up --stream a=DIR.sock \
                  --lease-file DIR/leases";
    fs::create_dir(folder.0.join("disk")).unwrap();
    let disk = folder.0.join("disk");
    let script = script.replace("DIR", disk.to_str().unwrap()).replace("TOWPATH", TOWPATH);
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    command.env("XDG_RUNTIME_DIR", &folder.0).stderr(Stdio::piped());
    let mut running = Guard(command.spawn().unwrap());
    let mut said = BufReader::new(running.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut a = Guest::connect(&folder.0.join("disk.sock"), 1);
    assert!(a.lease(&[]).is_some());
    // The network itself has no files any more; its broker has them.
    let broker = children(running.pid().as_raw_pid())[0];
    let inside = PathBuf::from(format!("/proc/{broker}/root"));
    let inside = inside.join(disk.strip_prefix("/").unwrap());
    let first = said.next().expect("the full disk is reported");
    assert!(first.contains("cannot write leases"), "{first}");
    assert!(!inside.join("leases").exists());
    fs::remove_file(inside.join("fill")).unwrap();
    a.mac[5] = 2;
    assert!(a.lease(&[]).is_some());
    wait_for("the leases", || {
        fs::read_to_string(inside.join("leases")).is_ok_and(|text| text.lines().count() == 2)
    });
    running.signal(Signal::TERM);
    let rest: Vec<String> = said.collect();
    assert!(rest.len() == 1 && rest[0].contains("again"), "{rest:?}");
}

/// DHCP starvation: a guest that invents stations takes only its own share; another guest is served
/// meanwhile and afterwards.
#[test]
fn a_guest_cannot_take_all_addresses() {
    let file = "[ipv4]\npool = '10.0.2.100-10.0.2.119'\n[dhcp]\nleases-per-port = 8\n";
    let network = Network::start("starve", file, &[]);
    let (mut a, mut b) = (network.guest("a", 0), network.guest("b", 2));
    for round in 0..4 {
        for last in 0..200 {
            a.mac = [2, 0, 0, 1, round, last];
            a.ask(MessageType::Discover, &[(option::RAPID_COMMIT, &[])]);
        }
        b.mac[5] = 10 + round;
        let answer = b.lease(&[]);
        assert!(answer.is_some(), "round {round}");
    }
    let listed = network.done(&["ls", "leases"]);
    let of = |port: &str| listed.lines().filter(|line| line.contains(port)).count();
    assert!((1..=8).contains(&of(" a  ")), "{listed}");
    assert_eq!(of(" b  "), 4, "{listed}");
}

/// MAC spoofing: no guest can send from the gateway's address. A guest with a list of stations can
/// only send from those. A guest that borrows another's station address does not get its lease.
#[test]
fn a_guest_cannot_be_another() {
    let network = Network::start("spoof", "", &[]);
    let (mut a, mut b, mut c) =
        (network.guest("a", 1), network.guest("b", 2), network.guest("c", 3));
    let (at_a, at_c) = (a.lease(&[]).unwrap().your_address, c.lease(&[]).unwrap().your_address);
    let at_b = b.lease(&[]).unwrap().your_address;
    let gateway = c.resolve(at_c, GATEWAY);
    a.send(&arp_frame(c.mac, gateway, &arp(2, gateway, GATEWAY, c.mac, at_c)));
    a.send(&udp_frame((c.mac, (at_c, 9)), (gateway, (GATEWAY, 9)), b"lie"));
    wait_for("frames as the gateway to be dropped", || {
        ["mac_locked", "address_spoofed"].map(|reason| network.dropped("a", reason)) == [1, 1]
    });
    assert!(c.hears_no(|frame| frame[6..12] == gateway && datagram(frame, 9).is_some()));
    assert_eq!(c.resolve(at_c, GATEWAY), gateway);
    // Frames to the gateway go to the gateway, and not to the attacker.
    b.send(&udp_frame((gateway, (GATEWAY, 9)), (b.mac, (at_b, 9)), b"for the gateway"));
    assert!(a.hears_no(|frame| datagram(frame, 9).is_some()));
    // As another guest, by DHCP: the lease stays with its guest.
    let real = a.mac;
    a.mac = b.mac;
    a.ask(MessageType::Discover, &[(option::RAPID_COMMIT, &[])]);
    assert_eq!(a.answer(Duration::from_millis(500)).map(|answer| answer.your_address), None);
    a.mac = real;
    // A guest with a list of stations can only send from those.
    network.done(&["port", "set", "a", "macs", "02:00:00:00:00:01"]);
    a.send(&udp_frame((c.mac, (at_c, 9)), (b.mac, (at_b, 9)), b"lie"));
    wait_for("frames as b to be dropped", || network.dropped("a", "mac_spoofed") == 1);
    assert!(c.hears_no(|frame| datagram(frame, 9).is_some()));
    assert_eq!(b.lease(&[]).unwrap().your_address, at_b);
    assert_eq!(a.lease(&[]).unwrap().your_address, at_a);
}

/// ARP spoofing: a guest with a list of addresses cannot answer for others, neither a guest's nor
/// the gateway's.
#[test]
fn a_guest_cannot_answer_for_another() {
    let network = Network::start("arp", "", &[]);
    let (mut a, mut b, mut c) =
        (network.guest("a", 1), network.guest("b", 2), network.guest("c", 3));
    let (at_a, at_b) = (a.lease(&[]).unwrap().your_address, b.lease(&[]).unwrap().your_address);
    let at_c = c.lease(&[]).unwrap().your_address;
    assert_eq!(c.resolve(at_c, GATEWAY), b.resolve(at_b, GATEWAY));
    network.done(&["port", "set", "a", "addresses", &format!("{at_a},fe80::/10")]);
    for target in [at_b, GATEWAY] {
        a.send(&arp_frame(c.mac, a.mac, &arp(2, a.mac, target, c.mac, at_c)));
        a.send(&arp_frame([0xff; 6], a.mac, &arp(1, a.mac, target, [0; 6], target)));
    }
    a.send(&udp_frame((c.mac, (at_c, 9)), (a.mac, (at_b, 9)), b"lie"));
    wait_for("lies to be dropped", || network.dropped("a", "address_spoofed") == 5);
    let true_one = a.mac;
    assert!(c.hears_no(|frame| frame[6..12] == true_one));
    // Frames with the guest's own addresses pass: by ARP, by datagrams, by DHCP.
    a.send(&arp_frame(c.mac, a.mac, &arp(2, a.mac, at_a, c.mac, at_c)));
    c.expect("its own address", |frame| is_arp(frame) && frame[28..32] == at_a.octets());
    a.send(&udp_frame((c.mac, (at_c, 9)), (a.mac, (at_a, 9)), b"true"));
    c.expect("datagram", |frame| datagram(frame, 9).is_some_and(|(_, text)| text == b"true"));
    assert_eq!(a.lease(&[]).unwrap().your_address, at_a);
}

/// A guest can act as a router or a DHCP server only if its port allows that.
#[test]
fn only_routers_are_accepted_as_routers() {
    let network = Network::start("router", "", &[]);
    let (mut a, mut b) = (network.guest("a", 1), network.guest("b", 2));
    let from_a = {
        let mac = a.mac;
        move |frame: &[u8]| frame[6..12] == mac
    };
    let to_client = (b.mac, (Ipv4Addr::BROADCAST, 68));
    let offer = udp_frame(to_client, (a.mac, (address(250), 67)), b"an offer");
    a.send(&offer);
    a.announce_router();
    wait_for("lies to be dropped", || network.dropped("a", "router_refused") == 2);
    assert!(b.hears_no(from_a));
    network.done(&["port", "set", "a", "router", "yes"]);
    a.send(&offer);
    b.expect("an offer", |frame| from_a(frame) && datagram(frame, 68).is_some());
    a.announce_router();
    b.expect("a router", |frame| from_a(frame) && is_router_announced(frame));
}

/// Spoofing of ARP and neighbour discovery by a guest without configured addresses: it cannot claim
/// an address of the gateway or of another guest's lease, and may use a free one.
#[test]
fn what_is_lent_is_claimed_by_its_guest_alone() {
    let network = Network::start("owners", "", &[]);
    let (mut a, mut b, mut c) =
        (network.guest("a", 1), network.guest("b", 2), network.guest("c", 3));
    let (at_a, at_b) = (a.lease(&[]).unwrap().your_address, b.lease(&[]).unwrap().your_address);
    let at_c = c.lease(&[]).unwrap().your_address;
    let at_b6 = b.lease6(&[0, 3, 0, 1, 2, 0, 0, 0, 0, 2]).unwrap();
    assert_eq!(c.resolve(at_c, GATEWAY), b.resolve(at_b, GATEWAY));
    let to_c = (c.mac, Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 3));
    for target in [at_b, GATEWAY] {
        a.send(&arp_frame(c.mac, a.mac, &arp(2, a.mac, target, c.mac, at_c)));
        a.send(&arp_frame([0xff; 6], a.mac, &arp(1, a.mac, target, [0; 6], target)));
    }
    for target in [at_b6, GATEWAY_V6] {
        a.advertise(target, to_c);
    }
    wait_for("lies to be dropped", || network.dropped("a", "address_spoofed") == 6);
    let liar = a.mac;
    assert!(c.hears_no(|frame| frame[6..12] == liar));
    let free = address(250);
    for target in [at_a, free] {
        a.send(&arp_frame(c.mac, a.mac, &arp(2, a.mac, target, c.mac, at_c)));
        c.expect("the owner's answer", |frame| is_arp(frame) && frame[28..32] == target.octets());
    }
    b.advertise(at_b6, to_c);
    c.expect("the owner's answer", |frame| is_advertisement(frame, at_b6));
    // The address is free once its port is gone.
    network.done(&["port", "del", "b"]);
    a.send(&arp_frame(c.mac, a.mac, &arp(2, a.mac, at_b, c.mac, at_c)));
    c.expect("the new owner", |frame| is_arp(frame) && frame[28..32] == at_b.octets());
    assert_eq!(network.dropped("a", "address_spoofed"), 6);
}

/// A broadcast storm: one guest's flood is bounded and counted, and two others communicate
/// meanwhile and afterwards. On a slow machine the storm is within the limit for part of the time.
#[test]
fn a_storm_does_not_drown_others() {
    let network = Network::start("storm", "", &[]);
    let (mut a, mut b, mut c) =
        (network.guest("a", 1), network.guest("b", 2), network.guest("c", 3));
    let (at_b, at_c) = (b.lease(&[]).unwrap().your_address, c.lease(&[]).unwrap().your_address);
    assert_eq!(b.resolve(at_b, GATEWAY), c.resolve(at_c, GATEWAY));
    let storm = arp_frame([0xff; 6], a.mac, &arp(1, a.mac, address(99), [0; 6], address(98)));
    let begun = now();
    for round in 0..20_u8 {
        (0..1000).for_each(|_| a.send(&storm));
        b.send(&udp_frame((c.mac, (at_c, 9)), (b.mac, (at_b, 9)), &[round]));
        let frame = c.expect("datagram in the storm", |frame| datagram(frame, 9).is_some());
        assert_eq!(datagram(&frame, 9).unwrap().1, [round]);
    }
    let figures = network.stats();
    let bound = BROADCASTS_PER_SECOND * (begun.elapsed().as_millis() as u64 + 1000) / 1000;
    let a = &figures["ports"]["a"];
    assert_eq!(a["packets_in"].as_u64().unwrap() / 1000, 20, "{a}");
    let to_c = figures["ports"]["c"]["packets_out"].as_u64().unwrap();
    assert!(to_c < bound + 100, "{bound} broadcasts at most: {figures}");
    let dropped = ["a", "c"].map(|port| {
        let reasons = figures["ports"][port]["dropped"].as_object().unwrap();
        reasons.values().filter_map(Value::as_u64).sum::<u64>()
    });
    assert!(dropped[0] + dropped[1] + to_c >= 20_000, "lost and not counted: {figures}");
    // Answers that find its queue full of the storm are lost, too.
    assert!(b.hears_no(|_| false));
    assert!(b.lease(&[]).is_some(), "the gateway is served as well");
}
