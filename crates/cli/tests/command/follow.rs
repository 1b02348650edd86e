//! Changes of the host while towpath serves: its addresses, its default route, its resolvers.
//!
//! The host is a network namespace of the test, with a mount namespace of its own where files are
//! mounted. Nothing outside of them changes.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, connect, getsockname, socket};
use rustix::process::{Pid, Signal, kill_process};

use super::pasta::{Bench, at, is_gone, listen, talk, within};
use super::stats::Folder;
use super::support::*;

/// Runs a script in the network namespace of a process.
fn change(process: &Guard, script: &str) {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", process.pid().as_raw_pid()));
    let done = output(command.args(["sh", "-ec", script]));
    assert!(done.status.success(), "{}", errors(&done));
}

/// Starts `towpath` with arguments on the host.
fn begin(host: &Guard, arguments: &[&str]) -> Guard {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", host.pid().as_raw_pid()));
    command.arg(TOWPATH).args(arguments);
    Guard(command.stdin(Stdio::null()).spawn().unwrap())
}

/// Waits until connections from inside to `mapped` reach the host at `address`, several in a row:
/// each of several workers serves some.
fn wait_for_mapping(host: &Guard, inside: &Guard, mapped: &str, address: &str) {
    let listener = within(host, || TcpListener::bind((address, 9000)).unwrap());
    listener.set_nonblocking(true).unwrap();
    let to = SocketAddr::new(mapped.parse().unwrap(), 9000);
    let mut in_a_row = 0;
    wait_for(address, || {
        let connected = within(inside, || TcpStream::connect_timeout(&to, PATIENCE));
        match (connected, listener.accept()) {
            (Ok(_), Ok((accepted, _))) => {
                assert_eq!(accepted.local_addr().unwrap().ip().to_string(), address);
                in_a_row += 1;
            }
            // Another address may be mapped still. A repeated SYN may come after the change.
            (Err(_), _) => in_a_row = 0,
            (connected, accepted) => panic!("{connected:?}, {accepted:?}"),
        }
        in_a_row == 8
    });
}

/// Goal: the mapped address leads to the host's address of the moment: it follows the default route
/// to another interface, survives the loss of the route, and is refused while there is none.
/// Addresses inside stay, and so does what is open. Several workers follow as well.
#[test]
fn the_hosts_address_is_followed() {
    skip_if!(no_root());
    for workers in ["1", "2"] {
        let bench = Bench::new(&format!("follow-{workers}"));
        let Bench { host, inside, .. } = &bench;
        let mapped = ["--map-host", "169.254.1.2", "--map-host", "fd00::2"];
        let pid = bench.pid();
        let options = ["attach", "--copy-host", "-q", "--workers", workers];
        let towpath = begin(host, &[&options[..], &mapped, &[&pid]].concat());
        wait_for("the interface", || bench.shown().contains("192.0.2.1/24"));
        let shown = bench.shown();
        wait_for_mapping(host, inside, "169.254.1.2", "192.0.2.1");
        wait_for_mapping(host, inside, "fd00::2", "2001:db8::1");
        // Another interface, as of a VPN or another network.
        let other = "ip link add w0 type veth peer name w1; ip link set w1 up; ip link set w0 up; \
                     ip address add 198.51.100.1/24 dev w0; \
                     ip -6 address add 2001:db8:1::1/64 dev w0 nodad; \
                     ip route replace default via 198.51.100.2; \
                     ip -6 route replace default via 2001:db8:1::2";
        change(host, other);
        wait_for_mapping(host, inside, "169.254.1.2", "198.51.100.1");
        wait_for_mapping(host, inside, "fd00::2", "2001:db8:1::1");
        assert_eq!(bench.shown(), shown, "addresses inside stay");
        // Without a default route the address stays, as long as it exists.
        change(host, "ip route del default; ip address add 198.51.100.9/24 dev w0");
        thread::sleep(Duration::from_millis(300));
        wait_for_mapping(host, inside, "169.254.1.2", "198.51.100.1");
        change(host, "ip address del 198.51.100.1/24 dev w0; ip address flush dev d0");
        let to = at("169.254.1.2:9000");
        let listener = listen(host, at("0.0.0.0:9000"));
        wait_for("the refusal", || within(inside, || TcpStream::connect(to)).is_err());
        drop(listener);
        // More changes at once than the kernel keeps end with the last one.
        change(
            host,
            "for i in $(seq 8); do for j in $(seq 250); do echo address add 10.0.$i.$j/32 dev d0; \
             done; done | ip -batch -; ip address flush dev d0; \
             ip address add 203.0.113.1/24 dev d0; ip route add default via 203.0.113.2",
        );
        // Any address of the interface may be the first.
        let host_address = within(host, || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect("203.0.113.2:9").unwrap();
            socket.local_addr().unwrap().ip()
        });
        assert_eq!(host_address, IpAddr::from([203, 0, 113, 1]));
        let listener = listen(host, at("0.0.0.0:9000"));
        wait_for("an address again", || within(inside, || TcpStream::connect(to)).is_ok());
        drop(listener);
        assert_eq!(bench.shown(), shown, "addresses inside stay");
        towpath.signal(Signal::TERM);
        assert_eq!(finish(towpath).status.code(), Some(0));
    }
}

/// Goal: `run` starts on a host without a route, says so, and has the address once there is one.
#[test]
fn an_address_that_comes_later_is_used() {
    skip_if!(no_root());
    let bench = Bench::new("follow-later");
    let host = &bench.host;
    change(host, "ip route del default");
    let folder = Folder::new("follow-later-log");
    let log = folder.0.join("log");
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", host.pid().as_raw_pid()));
    command.args([TOWPATH, "run", "-4", "--map-host", "10.0.2.9", "sleep", "1000"]);
    command.stdin(Stdio::null()).stderr(fs::File::create(&log).unwrap());
    let towpath = Guard(command.spawn().unwrap());
    let (_, program) = init_and_command(&towpath, "sleep");
    let told = fs::read_to_string(&log).unwrap();
    let expected = "option --map-host 10.0.2.9: the host has no default route for this IP version; \
                    until it has one, connections to 10.0.2.9 are refused\n";
    assert!(told.contains(expected), "{told}");
    let namespace = format!("/proc/{program}/ns/net");
    let connect = || {
        let script = "exec 3<>/dev/tcp/10.0.2.9/9000";
        let mut command = Command::new("nsenter");
        command.args([&format!("--net={namespace}"), "bash", "-c", script]);
        output(&mut command).status.success()
    };
    let listener = within(host, || TcpListener::bind("192.0.2.1:9000").unwrap());
    assert!(!connect());
    change(host, "ip route add default via 192.0.2.2");
    wait_for("the address", connect);
    drop(listener);
    towpath.signal(Signal::TERM);
    finish(towpath);
}

/// A host with a mount namespace of its own, where a file is mounted over resolv.conf.
struct Resolving {
    bench: Bench,
    file: std::path::PathBuf,
    mounts: Guard,
}

impl Resolving {
    fn new(name: &str) -> Self {
        let bench = Bench::new(name);
        let file = bench.folder.0.join("resolv.conf");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", bench.host.pid().as_raw_pid()));
        let script = "mount --bind \"$0\" /etc/resolv.conf && exec sleep 1000";
        command.args(["unshare", "--mount", "--propagation", "private", "sh", "-c", script]);
        fs::write(&file, "nameserver 192.0.2.1\n").unwrap();
        let mounts = Guard(command.arg(&file).stdin(Stdio::null()).spawn().unwrap());
        let name = format!("/proc/{}/comm", mounts.pid().as_raw_pid());
        wait_for("the mount", || fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n"));
        Self { bench, file, mounts }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.mounts.pid().as_raw_pid();
        command.args([format!("--net=/proc/{pid}/ns/net"), format!("--mount=/proc/{pid}/ns/mnt")]);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    fn mount(&self, file: &Path) {
        let file = file.to_str().unwrap();
        let mounted = output(&mut self.command(&["mount", "--bind", file, "/etc/resolv.conf"]));
        assert!(mounted.status.success(), "{}", errors(&mounted));
    }
}

/// Goal: the next DNS question goes to the resolver that the host's file names now: it is
/// rewritten, replaced, or another file is mounted over it. Long-lived sockets change over, too.
#[test]
fn the_next_question_goes_to_the_new_resolver() {
    skip_if!(no_root());
    let host = Resolving::new("follow-dns");
    let pid = host.bench.pid();
    change(&host.bench.host, "ip address add 192.0.2.3/24 dev d0; ip link set lo up");
    let mut command = host.command(&[TOWPATH, "attach", "-4", "-q", &pid]);
    let towpath = Guard(command.spawn().unwrap());
    wait_for("the interface", || host.bench.shown().contains("10.0.2.15/24"));
    let [one, other] = ["192.0.2.1:53", "192.0.2.3:53"]
        .map(|at| within(&host.bench.host, || UdpSocket::bind(at).unwrap()));
    for resolver in [&one, &other] {
        resolver.set_nonblocking(true).unwrap();
    }
    let client = within(&host.bench.inside, || UdpSocket::bind("0.0.0.0:0").unwrap());
    // As rarely as a resolver asks again: each question is the first after the change.
    let asked = |expected: &UdpSocket, unexpected: &UdpSocket, how: &str| {
        thread::sleep(Duration::from_millis(100));
        client.send_to(how.as_bytes(), "10.0.2.3:53").unwrap();
        let mut bytes = [0; 64];
        let mut got = None;
        wait_for("the question", || {
            got = expected.recv(&mut bytes).ok();
            assert!(unexpected.recv(&mut [0; 64]).is_err(), "{how}");
            got.is_some()
        });
        assert_eq!(&bytes[..got.unwrap()], how.as_bytes());
    };
    asked(&one, &other, "as it was");
    // DNS over TLS goes to the first resolver, too; other ports are refused.
    let tls = within(&host.bench.host, || TcpListener::bind("192.0.2.1:853").unwrap());
    within(&host.bench.inside, || TcpStream::connect("10.0.2.3:853").unwrap());
    tls.accept().unwrap();
    assert!(within(&host.bench.inside, || TcpStream::connect("10.0.2.3:854")).is_err());
    fs::write(&host.file, "nameserver 192.0.2.3\n").unwrap();
    asked(&other, &one, "rewritten");
    let second = host.bench.folder.0.join("second");
    fs::write(&second, "nameserver 192.0.2.1\n").unwrap();
    host.mount(&second);
    asked(&one, &other, "mounted over");
    fs::write(&second, "#".repeat(70_000) + "\nnameserver 192.0.2.3\n").unwrap();
    asked(&one, &other, "too large");
    fs::write(&second, "nameserver 192.0.2.3\n").unwrap();
    asked(&other, &one, "usable again");
    towpath.signal(Signal::TERM);
    finish(towpath);
}

/// Goal: as pasta, in the background, a new lease of the host's address is followed.
#[test]
fn a_new_lease_is_followed_as_pasta() {
    skip_if!(no_root());
    let bench = Bench::new("follow-pasta");
    let Bench { host, inside, .. } = &bench;
    let pid = bench.pid();
    change(host, "ip -6 route del default");
    let arguments = ["--config-net", "-q", "--map-guest-addr", "169.254.1.2", "--no-map-gw"];
    let daemon: Pid = bench.begin(&[&arguments[..], &["-t", "none", "-u", "none", &pid]].concat());
    wait_for_mapping(host, inside, "169.254.1.2", "192.0.2.1");
    change(
        host,
        "ip address del 192.0.2.1/24 dev d0; ip address add 192.0.2.77/24 dev d0; \
         ip route replace default via 192.0.2.2",
    );
    wait_for_mapping(host, inside, "169.254.1.2", "192.0.2.77");
    kill_process(daemon, Signal::TERM).unwrap();
    wait_for("the end", || is_gone(daemon));
}

/// Goal: several addresses of the host are copied, without temporary ones, and each of them works
/// outward; published ports lead to the first one.
#[test]
fn several_addresses_are_copied() {
    skip_if!(no_root());
    let bench = Bench::new("several");
    let Bench { host, inside, .. } = &bench;
    let more = "ip address add 192.0.2.5/24 dev d0; ip address add 203.0.113.9/32 dev d0; \
                ip -6 address add 2001:db8::5/64 dev d0 nodad; \
                ip -6 address add 2001:db8::6/64 dev d0 nodad preferred_lft 0";
    change(host, more);
    let pid = bench.pid();
    let common = ["attach", "--copy-host", "--map-host", "169.254.1.2", "--map-host", "fd00::2"];
    let arguments = [&common[..], &["-q", "-t", "7000", &pid]].concat();
    let towpath = begin(host, &arguments);
    wait_for("the interface", || bench.shown().contains("2001:db8::5/64"));
    let shown = bench.shown();
    for address in ["192.0.2.1/24", "192.0.2.5/24", "203.0.113.9/32", "2001:db8::1/64"] {
        assert!(shown.contains(address), "{shown}");
    }
    assert!(!shown.contains("2001:db8::6"), "{shown}");
    let cases = [
        ("192.0.2.5", "169.254.1.2", "192.0.2.1"),
        ("203.0.113.9", "169.254.1.2", "192.0.2.1"),
        // Of equal IPv6 addresses, the kernel uses the newest.
        ("2001:db8::5", "fd00::2", "::"),
    ];
    for (from, to, server) in cases {
        let socket_at = |text: &str, port| SocketAddr::new(text.parse().unwrap(), port);
        let (from, to, server) = (socket_at(from, 0), socket_at(to, 9000), socket_at(server, 9000));
        let listener = listen(host, server);
        let family = if from.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        within(inside, || {
            let client = socket(family, SocketType::STREAM, None).unwrap();
            bind(&client, &from).unwrap();
            connect(&client, &to).unwrap();
            getsockname(&client).unwrap();
        });
        listener.accept().unwrap();
        let answering = within(host, || once_free(|| UdpSocket::bind(server)));
        let asking = within(inside, || UdpSocket::bind(from).unwrap());
        for socket in [&answering, &asking] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        asking.send_to(b"question", to).unwrap();
        let (_, peer) = answering.recv_from(&mut [0; 16]).unwrap();
        answering.send_to(b"answer", peer).unwrap();
        let (_, peer) = asking.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(peer, to);
    }
    let listener = within(inside, || TcpListener::bind("192.0.2.1:7000").unwrap());
    within(host, || TcpStream::connect("127.0.0.1:7000").unwrap());
    listener.accept().unwrap();
    towpath.signal(Signal::TERM);
    finish(towpath);
}

/// Goal: the other routes of the host's interface exist inside, and their networks are reached; not
/// those of other interfaces. With `--single-route` there are default routes only, and with
/// `--gateway` in that IP version. Too many are left out with a message.
#[test]
fn routes_are_copied() {
    skip_if!(no_root());
    let bench = Bench::new("routes");
    let Bench { host, inside, .. } = &bench;
    let pid = bench.pid();
    change(
        host,
        "ip route add 198.51.100.0/24 via 192.0.2.77 metric 50; ip route add 10.7.0.0/16 dev d0; \
         ip route add 10.8.0.0/16 via 10.7.0.1; ip route add 10.9.0.0/16 dev lo; \
         ip route add unreachable 10.10.0.0/16; \
         ip -6 route add 2001:db8:7::/48 via 2001:db8::77; \
         ip -6 route add 2001:db8:8::/48 via fe80::77 dev d0; \
         ip address add 198.51.100.1/32 dev lo; ip address add 10.7.0.9/32 dev lo; \
         ip -6 address add 2001:db8:7::1/128 dev lo; ip -6 address add 2001:db8:8::1/128 dev lo",
    );
    let socket = bench.folder.0.join("control");
    let socket = socket.to_str().unwrap();
    let run = |arguments: &[&str]| {
        let log = fs::File::create(bench.folder.0.join("log")).unwrap();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", host.pid().as_raw_pid()));
        command.args([TOWPATH, "attach", "--control-socket", socket]).args(arguments).arg(&pid);
        let running = Guard(command.stdin(Stdio::null()).stderr(log).spawn().unwrap());
        // It answers when the interface is configured.
        let ask = ["ls", "published", "--socket", socket];
        wait_for("towpath", || output(&mut towpath(ask)).status.success());
        let mut routes = Command::new("nsenter");
        routes.arg(format!("--net=/proc/{pid}/ns/net"));
        let routes = text(&output(routes.args(["sh", "-c", "ip route; ip -6 route"])));
        (running, routes)
    };
    let end = |running: Guard| {
        running.signal(Signal::TERM);
        finish(running);
        wait_for("the interface to go", || !bench.shown().contains("inet 192.0.2."));
        fs::read_to_string(bench.folder.0.join("log")).unwrap()
    };
    let (running, routes) = run(&["--copy-host"]);
    for expected in [
        "198.51.100.0/24 via 192.0.2.77 dev d0 proto static metric 50 \n",
        "10.7.0.0/16 dev d0 proto static scope link \n",
        "10.8.0.0/16 via 10.7.0.1 dev d0 proto static \n",
        "2001:db8:7::/48 via 2001:db8::77 dev d0 ",
        "2001:db8:8::/48 via 2001:db8::2 dev d0 ",
    ] {
        assert!(routes.contains(expected), "{expected}: {routes}");
    }
    assert!(!routes.contains("10.9.0.0") && !routes.contains("10.10.0.0"), "{routes}");
    let servers = ["198.51.100.1:9000", "10.7.0.9:9000", "[2001:db8:7::1]:9", "[2001:db8:8::1]:9"];
    for server in servers {
        talk(host, at(server), inside, at(server));
    }
    end(running);
    let is_extra = |line: &str| !line.starts_with("default ") && line.contains(" via ");
    let (running, routes) = run(&["--copy-host", "--single-route"]);
    assert!(!routes.lines().any(is_extra), "{routes}");
    end(running);
    let (running, routes) = run(&["--copy-host", "--gateway", "192.0.2.9"]);
    assert_eq!(routes.lines().filter(|line| is_extra(line)).count(), 2, "{routes}");
    end(running);
    change(host, "for i in $(seq 0 255); do ip route add 10.20.$i.0/24 dev d0; done");
    let (running, routes) = run(&["--copy-host"]);
    assert!(routes.lines().count() < 256 + 16, "{routes}");
    let log = end(running);
    assert!(log.contains("the host's interface has too many routes; 5 are not copied"), "{log}");
}

/// Goal: `--single-address` copies one; `--address` may be repeated, and takes the place of the
/// host's addresses; too many are left out with a message, or refused if they are given.
#[test]
fn addresses_are_chosen() {
    skip_if!(no_root());
    let bench = Bench::new("chosen");
    let host = &bench.host;
    let pid = bench.pid();
    change(host, "for i in $(seq 20 39); do ip address add 192.0.2.$i/24 dev d0; done");
    let run = |arguments: &[&str]| {
        let log = fs::File::create(bench.folder.0.join("log")).unwrap();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", host.pid().as_raw_pid()));
        command.args([TOWPATH, "attach", "-4"]).args(arguments).arg(&pid);
        let towpath = Guard(command.stdin(Stdio::null()).stderr(log).spawn().unwrap());
        wait_for("the interface", || bench.shown().contains("inet 192.0.2."));
        // Addresses are added one by one.
        thread::sleep(Duration::from_millis(50));
        let shown = bench.shown();
        towpath.signal(Signal::TERM);
        finish(towpath);
        wait_for("the interface to go", || !bench.shown().contains("inet 192.0.2."));
        let count = shown.matches("inet 192.0.2.").count();
        (count, shown, fs::read_to_string(bench.folder.0.join("log")).unwrap())
    };
    let (count, _, log) = run(&["--copy-host"]);
    assert_eq!(count, 17);
    assert!(log.contains("the host's interface has too many addresses; 4 are not copied"), "{log}");
    let (count, shown, _) = run(&["--copy-host", "--single-address"]);
    assert!(count == 1 && shown.contains("192.0.2.1/24"), "{shown}");
    let (count, shown, _) =
        run(&["--copy-host", "--address", "192.0.2.30", "--address", "192.0.2.7/28"]);
    assert!(count == 2 && shown.contains("192.0.2.30/24"), "{shown}");
    assert!(shown.contains("192.0.2.7/28"), "{shown}");
    let (count, ..) =
        run(&["--address=192.0.2.7", "--address=192.0.2.8/32", "--gateway", "192.0.2.2"]);
    assert_eq!(count, 2);
    let cases: &[(&[&str], &str)] = &[
        (&["--single-address"], "--copy-host"),
        (&["--single-route"], "--copy-host"),
        (
            &["--address=10.1.0.2", "--address=10.1.0.2", "--gateway=10.1.0.1"],
            "10.1.0.2 cannot be a further address of the program: the program has it already",
        ),
        (
            &["--address=10.1.0.2", "--address=10.1.0.1", "--gateway=10.1.0.1"],
            "10.1.0.1 cannot be a further address of the program: it is the gateway's",
        ),
    ];
    for (arguments, expected) in cases {
        let refused = output(towpath(["run"]).args(*arguments).arg("true"));
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(errors(&refused).contains(expected), "{}", errors(&refused));
    }
}
