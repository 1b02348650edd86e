//! `towpath up` with TAP devices that are moved to other network namespaces, as for containers: the
//! kernels there are the guests.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::support::{
    Family, Host, Namespace, Pattern, Process, Server, TOWPATH, Test, batch, command, inside,
    retry, run,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("up_with_namespaces", &["nsenter"], namespaces),
        Test::new("up_with_changed_workers", &["nsenter"], changed_workers),
    ]
}

/// Bytes of a transfer.
const TRANSFER: u64 = 64 << 20;
/// Port on which a guest listens.
const PORT: u16 = 7;

/// A namespace at a port of the switch.
struct Guest {
    namespace: Namespace,
    device: &'static str,
    v4: &'static str,
}

impl Guest {
    /// Moves the device of a port into a new namespace; its IPv6 address comes by router
    /// advertisement.
    fn new(device: &'static str, v4: &'static str) -> Self {
        let namespace = Namespace::new();
        run("ip", ["link", "set", device, "netns", &namespace.holder().to_string()]);
        let there = format!(
            "link set lo up\naddress add {v4}/24 dev {device}\nlink set {device} up\n\
             route add default via 10.0.2.2\n"
        );
        namespace.run(|| batch(&there));
        Self { namespace, device, v4 }
    }

    /// Returns its address, once it has one that is not tentative.
    fn address(&self, family: Family) -> IpAddr {
        if family == Family::V4 {
            return self.v4.parse().expect("an address");
        }
        let shown = ["-6", "-o", "address", "show", "dev", self.device, "scope", "global"];
        self.namespace.run(|| {
            retry("an address by router advertisement", || {
                let addresses = run("ip", shown);
                let line = addresses.lines().find(|line| !line.contains("tentative"))?;
                line.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
            })
        })
    }

    /// Starts one of the tests' own programs in the namespace.
    fn start(&self, role: &str, arguments: &[&str]) -> Process {
        let namespace = format!("--net=/proc/{}/ns/net", self.namespace.holder());
        let role = inside(role, arguments);
        Process::start(command("nsenter", [namespace.into()].into_iter().chain(role)))
    }

    fn run(&self, role: &str, arguments: &[&str]) -> String {
        self.start(role, arguments).finish().success()
    }
}

/// Goal: namespaces that get the TAP devices of a network reach each other and, through the
/// gateway, the host. One that ends takes only its own port with it.
/// Method: addresses set by hand and by router advertisement; ping, echoed transfers in each
/// direction, a download from the host's loopback, all with IPv4 and IPv6; a link that goes down
/// and up; the end of a namespace.
fn namespaces(host: &mut Host) {
    let sockets = host.file("");
    let mut up = Command::new(TOWPATH);
    up.env("XDG_RUNTIME_DIR", &sockets);
    up.args(["up", "-v", "--tap", "blue0", "--tap", "red0", "--map-host-loopback", "10.0.2.2"]);
    up.args(["--map-host-loopback", "fd74:6f77:7061:7468::2"]);
    let mut towpath = Process::start(up);
    towpath.wait_for_text("serving 2 ports");
    let (blue, red) = (Guest::new("blue0", "10.0.2.20"), Guest::new("red0", "10.0.2.21"));
    let mut servers = Vec::new();
    for guest in [&blue, &red] {
        let mut server = guest.start("echo-server", &[&PORT.to_string()]);
        server.wait_for_text("listening");
        servers.push(server);
    }
    for family in Family::BOTH {
        for (from, to) in [(&blue, &red), (&red, &blue)] {
            exchange(from, to, family);
            fetch(from, family);
        }
    }
    link(&blue, &sockets);
    exchange(&red, &blue, Family::V4);
    for server in servers {
        server.signal(Signal::KILL);
        server.finish();
    }
    // The device ends with its namespace.
    drop(red);
    retry("the port to be reported as gone", || {
        let mut ls = Command::new(TOWPATH);
        ls.arg("ls").env("XDG_RUNTIME_DIR", &sockets);
        let ports = Process::start(ls).finish().success();
        ports.contains("the TAP interface was deleted").then_some(())
    });
    fetch(&blue, Family::V4);
    towpath.signal(Signal::INT);
    towpath.finish().success();
}

/// Goal: the number of workers changes while TCP flows pass between TAP devices and through the
/// gateway. All bytes arrive, and the switch drops no packet.
fn changed_workers(host: &mut Host) {
    const NUMBERS: [&str; 6] = ["2", "4", "1", "3", "8", "1"];
    let sockets = host.file("");
    let mut up = Command::new(TOWPATH);
    up.env("XDG_RUNTIME_DIR", &sockets);
    up.args(["up", "-v", "--tap", "green0", "--tap", "grey0", "--map-host-loopback", "10.0.2.2"]);
    let mut towpath = Process::start(up);
    towpath.wait_for_text("serving 2 ports");
    let (green, grey) = (Guest::new("green0", "10.0.2.22"), Guest::new("grey0", "10.0.2.23"));
    let mut server = grey.start("echo-server", &[&PORT.to_string()]);
    server.wait_for_text("listening");
    let source =
        Server::start(Family::V4.loopback(), |stream| Pattern::new(TRANSFER).write_to(&stream));
    let host_side = SocketAddr::new(Family::V4.gateway(), source.port()).to_string();
    let other = SocketAddr::new(grey.address(Family::V4), PORT).to_string();
    for _ in 0..4 {
        let echo = green.start("half-close", &[&other, &TRANSFER.to_string()]);
        let download = grey.start("download", &[&host_side, &TRANSFER.to_string()]);
        for count in NUMBERS {
            ask(&sockets, &["workers", "set", count]);
        }
        for transfer in [echo, download] {
            assert_eq!(transfer.finish().success(), format!("read {TRANSFER}\n"));
        }
    }
    let stats = ask(&sockets, &["stats", &towpath.pid().to_string()]);
    let full = stats.lines().find(|line| line.contains("queue_full") && !line.ends_with(" 0"));
    assert_eq!(full, None, "{stats}");
    server.signal(Signal::KILL);
    server.finish();
    towpath.signal(Signal::INT);
    towpath.finish().success();
}

/// Runs `towpath` with arguments.
fn ask(sockets: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(TOWPATH);
    command.args(arguments).env("XDG_RUNTIME_DIR", sockets);
    Process::start(command).finish().success()
}

/// The device of a port whose link is down has no carrier.
fn link(guest: &Guest, sockets: &Path) {
    for state in ["down", "up"] {
        let mut set = Command::new(TOWPATH);
        set.args(["port", "set", guest.device, "link", state]).env("XDG_RUNTIME_DIR", sockets);
        Process::start(set).finish().success();
        guest.namespace.run(|| {
            retry("the carrier to change", || {
                let shown = run("ip", ["link", "show", "dev", guest.device]);
                (shown.contains("NO-CARRIER") == (state == "down")).then_some(())
            })
        });
    }
}

fn exchange(from: &Guest, to: &Guest, family: Family) {
    let address = to.address(family);
    // Its own address must be ready, too.
    from.address(family);
    let ping = ["-c", "3", "-i", "0.1", "-W", "60", "-q", &address.to_string()];
    let ping = from.namespace.run(|| run("ping", ping));
    assert!(ping.contains(" 3 received"), "{ping}");
    let address = SocketAddr::new(address, PORT).to_string();
    let read = from.run("half-close", &[&address, &TRANSFER.to_string()]);
    assert_eq!(read, format!("read {TRANSFER}\n"));
}

/// Downloads from a server on the host's loopback.
fn fetch(guest: &Guest, family: Family) {
    let server =
        Server::start(family.loopback(), |stream| Pattern::new(TRANSFER).write_to(&stream));
    let address = SocketAddr::new(family.gateway(), server.port()).to_string();
    let read = guest.run("download", &[&address, &TRANSFER.to_string()]);
    assert_eq!(read, format!("read {TRANSFER}\n"));
}
