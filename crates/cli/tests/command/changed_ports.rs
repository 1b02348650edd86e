//! Ports of the host that are published and unpublished while `towpath attach` or `run` serves.
//!
//! The host is a network namespace of the test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::control;
use super::pasta::{Bench, at, listen, talk, within};
use super::stats::assert_fails;
use super::support::*;

/// A namespace that `towpath attach` serves.
struct Attached {
    bench: Bench,
    running: Guard,
}

impl Attached {
    fn new(name: &str, options: &[&str]) -> Self {
        let bench = Bench::new(name);
        let pid = bench.pid();
        let mut command = on_host(&bench, TOWPATH);
        command.args(["attach", "--quiet"]).args(options).arg(&pid);
        command.stdin(Stdio::null());
        let running = Guard(command.spawn().unwrap());
        let attached = Self { bench, running };
        wait_for("the control socket", || attached.socket().exists());
        attached
    }

    fn pid(&self) -> String {
        self.running.0.id().to_string()
    }

    fn socket(&self) -> PathBuf {
        self.bench.folder.sockets().join(format!("{}.control", self.pid()))
    }

    /// Runs `towpath` with arguments.
    fn towpath(&self, arguments: &[&str]) -> Output {
        output(on_host(&self.bench, TOWPATH).args(arguments))
    }

    /// Runs `towpath publish ACTION PID` with arguments.
    fn publish(&self, action: &str, arguments: &[&str]) -> Output {
        self.towpath(&[&["publish", action, &self.pid()], arguments].concat())
    }

    /// Runs `towpath publish ACTION PID` with arguments, which succeeds.
    fn done(&self, action: &str, arguments: &[&str]) {
        let output = self.publish(action, arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", errors(&output));
    }

    /// Returns the published ports as they are listed, without the process number.
    fn listed(&self) -> Vec<String> {
        let listed = self.towpath(&["ls", "published", "--pid", &self.pid()]);
        assert_eq!(listed.status.code(), Some(0), "{}", errors(&listed));
        let number = format!("{:>8} ", self.pid());
        let line = |line: &str| line.strip_prefix(&number).expect("a number").to_owned();
        text(&listed).lines().map(line).collect()
    }

    /// True if no socket on the host is bound to this port.
    fn is_free(&self, port: u16) -> bool {
        within(&self.bench.host, || {
            TcpListener::bind(("0.0.0.0", port)).is_ok()
                && TcpListener::bind(("::1", port)).is_ok()
                && UdpSocket::bind(("0.0.0.0", port)).is_ok()
        })
    }

    /// Sends a transaction; returns status and JSON of the answer.
    fn post(&self, body: &Value) -> (u16, Value) {
        control::post(&self.socket(), &body.to_string())
    }
}

/// Returns a command on the host of this bench.
pub(super) fn on_host(bench: &Bench, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", bench.host.pid().as_raw_pid()));
    command.arg(program).env("XDG_RUNTIME_DIR", &bench.folder.0);
    command
}

/// A datagram from a client on the host reaches the server inside, and its answer the client.
fn ask(server: &Guard, at: SocketAddr, client: &Guard, to: SocketAddr) {
    let server = within(server, || once_free(|| UdpSocket::bind(at)));
    let client = within(client, || UdpSocket::bind("0.0.0.0:0").unwrap());
    server.set_nonblocking(true).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut buffer = [0; 8];
    wait_for("an answer over UDP", || {
        client.send_to(b"question", to).unwrap();
        if let Ok((_, peer)) = server.recv_from(&mut buffer) {
            server.send_to(b"answer", peer).unwrap();
        }
        client.recv(&mut buffer).is_ok_and(|len| &buffer[..len] == b"answer")
    });
}

/// Goal: ports are added and removed while `attach` serves, with one worker and with several. Open
/// connections continue, and removed ports are free at once.
#[test]
fn ports_come_and_go_while_attach_serves() {
    skip_if!(no_root());
    for workers in ["1", "3"] {
        let options = ["-t", "8080:80", "--workers", workers];
        let attached = Attached::new(&format!("ports-{workers}"), &options);
        let Bench { host, inside, .. } = &attached.bench;
        assert_eq!(attached.listed(), ["tcp 8080 program:80"]);
        attached.done("add", &["-t", "9000-9009:90-99", "-t", "127.0.0.1/7000", "-u", "9000:90"]);
        assert_eq!(
            attached.listed(),
            [
                "tcp 8080 program:80",
                "tcp 9000-9009 program:90-99",
                "tcp 127.0.0.1/7000 program:7000",
                "udp 9000 program:90",
            ]
        );
        for _ in 0..4 {
            talk(inside, at("0.0.0.0:93"), host, at("127.0.0.1:9003"));
            talk(inside, at("[::]:80"), host, at("[::1]:8080"));
        }
        talk(inside, at("0.0.0.0:7000"), host, at("127.0.0.1:7000"));
        ask(inside, at("0.0.0.0:90"), host, at("127.0.0.1:9000"));

        let listener = listen(inside, at("0.0.0.0:94"));
        let mut client = within(host, || TcpStream::connect("127.0.0.1:9004").unwrap());
        let (mut server, _) = listener.accept().unwrap();
        attached.done("del", &["-t", "9000-9009:90-99", "-u", "9000"]);
        assert!((9000..=9009).all(|port| attached.is_free(port)));
        assert_eq!(attached.listed(), ["tcp 8080 program:80", "tcp 127.0.0.1/7000 program:7000"]);
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        let mut buffer = [0; 4];
        client.write_all(b"over").unwrap();
        server.read_exact(&mut buffer).unwrap();
        server.write_all(b"back").unwrap();
        client.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"back");

        // Without ports, all are unpublished.
        attached.done("del", &[]);
        assert_eq!(attached.listed(), [""; 0]);
        assert!(attached.is_free(8080) && attached.is_free(7000));
        attached.done("add", &["-t", "8080:81"]);
        talk(inside, at("0.0.0.0:81"), host, at("127.0.0.1:8080"));
    }
}

/// Goal: of several ports all are published or none; the error names the port that is not free.
#[test]
fn all_ports_are_published_or_none() {
    skip_if!(no_root());
    let attached = Attached::new("all-or-none", &["-t", "8080:80"]);
    let Bench { host, inside, .. } = &attached.bench;
    let taken = within(host, || TcpListener::bind("0.0.0.0:9050").unwrap());
    let failed = attached.publish("add", &["-u", "5300", "-t", "9000-9099"]);
    assert_fails(&failed, "TCP port 0.0.0.0:9050 is in use on the host; stop the program");
    assert!([5300, 9000, 9049, 9051, 9099].into_iter().all(|port| attached.is_free(port)));
    assert_eq!(attached.listed(), ["tcp 8080 program:80"]);
    drop(taken);

    let again = attached.publish("add", &["-t", "8079-8081:79-81"]);
    assert_fails(&again, "TCP 8080 is already published");
    assert!(attached.is_free(8079) && attached.is_free(8081));
    attached.done("add", &["--if-absent", "-t", "8079-8081:79-81"]);
    talk(inside, at("0.0.0.0:81"), host, at("127.0.0.1:8081"));
    // It leads elsewhere, so it is not the same.
    let other = attached.publish("add", &["--if-absent", "-t", "8081:82"]);
    assert_fails(&other, "TCP 8081 is already published");
    let before = attached.listed();
    let unknown = attached.publish("del", &["-t", "8080,8082"]);
    assert_fails(&unknown, "TCP 8082 is not published");
    assert_eq!(attached.listed(), before);

    // One request redirects a port, which is never closed; a failure undoes that.
    let publish = |tcp: &str| json!({ "publish": "program", "tcp": tcp });
    let unpublish = json!({ "unpublish": "program", "tcp": "8080" });
    let operations = [unpublish.clone(), publish("8080:88"), publish("8079")];
    let (status, answer) = attached.post(&json!({ "operations": operations }));
    assert_eq!((status, &answer["operation"]), (409, &2.into()), "{answer}");
    talk(inside, at("0.0.0.0:80"), host, at("127.0.0.1:8080"));
    let (status, answer) = attached.post(&json!({ "operations": operations[..2] }));
    assert_eq!((status, &answer["applied"]), (200, &2.into()), "{answer}");
    talk(inside, at("0.0.0.0:88"), host, at("127.0.0.1:8080"));
}

/// Goal: a TCP port on all addresses has one socket for both IP versions, whose IPv4 clients the
/// program sees as such. A port that is in use by one IP version is named with its address. A host
/// that has IPv6 disabled publishes as well.
#[test]
fn a_port_on_all_addresses_has_one_socket() {
    skip_if!(no_root());
    let attached = Attached::new("dual", &["-t", "8080:80"]);
    let Bench { host, inside, .. } = &attached.bench;
    let sockets = |file: &str| {
        let table = within(host, || std::fs::read_to_string(file).unwrap());
        table.lines().filter(|line| line.contains(":1F90 ") && line.contains(" 0A ")).count()
    };
    assert_eq!(sockets("/proc/thread-self/net/tcp"), 0);
    assert_eq!(sockets("/proc/thread-self/net/tcp6"), 1);
    assert_eq!(talk(inside, at("0.0.0.0:80"), host, at("192.0.2.1:8080")), at("192.0.2.1:0").ip());
    let seen = talk(inside, at("[::]:80"), host, at("[2001:db8::1]:8080"));
    assert_eq!(seen, at("[2001:db8::1]:0").ip());
    // Each has its own port: a program that another test starts keeps a copy until its exec(2).
    for taken in ["[::]:9000", "[::1]:9001", "0.0.0.0:9002", "127.0.0.1:9003"] {
        let address = at(taken);
        let _taken = within(host, || {
            use rustix::net::{AddressFamily, SocketFlags, SocketType};
            use rustix::net::{bind, listen, socket_with, sockopt};
            let family = match address {
                SocketAddr::V4(_) => AddressFamily::INET,
                SocketAddr::V6(_) => AddressFamily::INET6,
            };
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(family, SocketType::STREAM, flags, None).unwrap();
            if address.is_ipv6() {
                sockopt::set_ipv6_v6only(&socket, true).unwrap();
            }
            bind(&socket, &address).unwrap();
            listen(&socket, 1).unwrap();
            socket
        });
        let port = address.port();
        let failed = attached.publish("add", &["-t", &port.to_string()]);
        let all = if address.is_ipv6() { "[::]" } else { "0.0.0.0" };
        assert_fails(&failed, &format!("TCP port {all}:{port} is in use on the host"));
    }
    let disable = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6";
    assert!(output(on_host(&attached.bench, "sh").args(["-c", disable])).status.success());
    attached.done("add", &["-t", "9004:90"]);
    talk(inside, at("0.0.0.0:90"), host, at("127.0.0.1:9004"));
}

/// Goal: a range for which there are not enough descriptors is rejected as a whole, before a port
/// is bound, at the start and later.
#[test]
fn a_range_beyond_the_descriptors_is_rejected() {
    skip_if!(no_root());
    let bench = Bench::new("descriptors");
    // A user's limit; a privileged towpath raises it.
    let script = "ulimit -n 2000; exec setpriv --bounding-set -sys_resource \"$0\" \"$@\"";
    let attach = |options: &[&str]| {
        let mut command = on_host(&bench, "sh");
        command.args(["-c", script, TOWPATH, "attach", "-q"]).args(options).arg(bench.pid());
        command.stdin(Stdio::null());
        command
    };
    let range = "2000-3999";
    let refused = output(&mut attach(&["-t", range]));
    let expected = "publishing needs 2000 sockets, more than half of the 2000 descriptors";
    assert_fails(&refused, expected);
    let mut command = attach(&["-4", "-u", "2000-2899"]);
    let attached = Attached { running: Guard(command.spawn().unwrap()), bench };
    wait_for("the control socket", || attached.socket().exists());
    let refused = attached.publish("add", &["-t", "2000-2200"]);
    assert_fails(&refused, "publishing needs 1101 sockets, more than half of the 2000");
    assert_eq!(attached.listed(), ["udp 2000-2899 program:2000-2899"]);
    attached.done("del", &["-u", "2000-2899"]);
    attached.done("add", &["-t", "2000-2899"]);
    attached.done("add", &["-t", "2000-2899", "--if-absent"]);
    assert_eq!(attached.listed(), ["tcp 2000-2899 program:2000-2899"]);
}

/// Goal: a port leads to another address inside, over TCP and UDP, from the host's loopback and
/// from elsewhere. It is listed with that address, and unpublished like others.
#[test]
fn a_port_leads_to_another_address_inside() {
    skip_if!(no_root());
    let options = ["-t", "0.0.0.0/5000:203.0.113.9/6000", "-t", "8080", "--join-published"];
    let attached = Attached::new("target", &options);
    let Bench { host, inside, .. } = &attached.bench;
    // An address that the interface has not, and a network behind the namespace.
    let script = "ip address add 203.0.113.9/32 dev lo; ip -6 address add 2001:db8:9::9/128 dev lo";
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", attached.bench.pid()));
    assert!(output(command.args(["sh", "-ec", script])).status.success());
    let client = talk(inside, at("203.0.113.9:6000"), host, at("192.0.2.1:5000"));
    assert_eq!(client, at("192.0.2.1:0").ip());
    talk(inside, at("203.0.113.9:6000"), host, at("127.0.0.1:5000"));
    attached.done("add", &["-u", "5000:203.0.113.9/6000", "-t", "5001:[2001:db8:9::9]"]);
    ask(inside, at("203.0.113.9:6000"), host, at("192.0.2.1:5000"));
    talk(inside, at("[2001:db8:9::9]:5001"), host, at("[2001:db8::1]:5001"));
    // A client of the other IP version comes from the gateway.
    talk(inside, at("[2001:db8:9::9]:5001"), host, at("192.0.2.1:5001"));
    assert_eq!(
        attached.listed(),
        [
            "tcp 0.0.0.0/5000 203.0.113.9:6000",
            "tcp 8080 program:8080",
            "tcp 5001 [2001:db8:9::9]:5001",
            "udp 5000 203.0.113.9:6000",
        ]
    );
    attached.done("add", &["--if-absent", "-t", "0.0.0.0/5000:203.0.113.9/6000"]);
    let other = attached.publish("add", &["--if-absent", "-t", "0.0.0.0/5000:6000"]);
    assert_fails(&other, "TCP 0.0.0.0/5000 is already published");
    attached.done("del", &["-t", "0.0.0.0/5000:203.0.113.9/6000", "-u", "5000"]);
    let unpublish = json!({ "unpublish": "2001:db8:9::9" });
    let (status, answer) = attached.post(&json!({ "operations": [unpublish] }));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(attached.listed(), ["tcp 8080 program:8080"]);
    assert!(attached.is_free(5000) && attached.is_free(5001));
    let wrong = attached.publish("add", &["-t", "5000:127.0.0.1/80"]);
    assert!(errors(&wrong).contains("'127.0.0.1' is not the unicast address of a network"));
    let mut disabled = on_host(&attached.bench, TOWPATH);
    let disabled = output(disabled.args(["run", "-4", "-t", "5000:[2001:db8::9]/80", "true"]));
    assert_eq!(disabled.status.code(), Some(2));
    let expected = "published ports cannot lead to 2001:db8::9: its IP version is disabled";
    assert!(errors(&disabled).contains(expected), "{}", errors(&disabled));
}

/// Goal: requests that cannot be fulfilled are rejected with a reason.
#[test]
fn mistakes_are_named() {
    skip_if!(no_root());
    let attached = Attached::new("mistakes", &[]);
    for (wrong, expected) in [
        (&["-t", "x"][..], "'x' is not a port"),
        (&["-t", "auto"], "'auto' is not supported"),
        (&["-t", "0"], "'0' is not a port"),
        (&[], "no ports are given"),
    ] {
        let output = attached.publish("add", wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(errors(&output).contains(expected), "{wrong:?}: {}", errors(&output));
    }
    let only = attached.publish("del", &["--if-absent", "-t", "80"]);
    assert_eq!(only.status.code(), Some(2));
    assert!(errors(&only).contains("--if-absent is for 'add' only"), "{}", errors(&only));
    let address = attached.publish("add", &["-t", "192.0.2.99/80:80"]);
    assert_fails(&address, "the host does not have this address");
    let interface = attached.publish("add", &["-t", "%none/8080"]);
    assert_fails(&interface, "no interface 'none'");
    let low = attached.publish("add", &["-t", "80"]);
    assert_fails(&low, "no permission to bind TCP port ");
    let missing = attached.towpath(&["publish", "add", "2147483647", "-t", "8080"]);
    assert_fails(&missing, "no `towpath run` or `towpath attach` has PID 2147483647");
    let guest = attached.towpath(&["publish", "add", "vm1", "--pid", &attached.pid(), "-t", "80"]);
    assert_fails(&guest, "serves one program and is not a network: only publish and unpublish of");
    let port = attached.post(&json!({ "operations": [{ "del": "program" }] }));
    assert_eq!(port.0, 409, "{}", port.1);
    let (status, answer) = attached.post(&json!({ "operations": 1 }));
    assert_eq!(status, 400, "{answer}");
    assert_eq!(attached.listed(), [""; 0]);
    let socket = attached.socket();
    let socket = socket.to_str().unwrap();
    let by_socket = ["publish", "add", "program", "--socket", socket, "-t", "8080"];
    assert_eq!(attached.towpath(&by_socket).status.code(), Some(0));
    assert_eq!(attached.listed(), ["tcp 8080 program:8080"]);
}

/// Goal: the ports of `run` change too, and low ports that it was started with come back.
#[test]
fn ports_come_and_go_while_run_serves() {
    skip_if!(no_root());
    let bench = Bench::new("ports-run");
    let mut command = on_host(&bench, TOWPATH);
    command.args(["run", "-t", "81", "-q", "--", "sleep", "1000"]).stdin(Stdio::null());
    let running = Guard(command.spawn().unwrap());
    init_and_command(&running, "sleep");
    let pid = running.0.id().to_string();
    let publish = |arguments: &[&str]| {
        let output = output(on_host(&bench, TOWPATH).arg("publish").args(arguments));
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", errors(&output));
    };
    publish(&["del", &pid]);
    assert!(within(&bench.host, || TcpListener::bind("0.0.0.0:81").is_ok()));
    publish(&["add", &pid, "-t", "81,8080"]);
    let listed = output(on_host(&bench, TOWPATH).args(["ls", "published", "--json"]));
    let ports: Vec<Value> =
        text(&listed).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<_> = ports.iter().map(|port| port["host-port"].to_string()).collect();
    assert_eq!(numbers, ["81", "8080"]);
    assert!(within(&bench.host, || TcpStream::connect("127.0.0.1:8080").is_ok()));
}

/// Goal: pesto changes the ports of a running pasta over its `--conf-path`, as podman and
/// rootlesskit ask. The socket is for its user alone, and goes with pasta.
#[test]
fn pesto_changes_the_ports_of_pasta() {
    skip_if!(no_root());
    let bench = Bench::new("pesto");
    let link = bench.folder.0.join("pesto");
    std::os::unix::fs::symlink(TOWPATH, &link).unwrap();
    let socket = bench.folder.0.join("pasta.sock");
    let path = socket.to_str().unwrap();
    // Left by a process that was killed.
    drop(UnixListener::bind(&socket).unwrap());
    let pid = bench.pid();
    let daemon = bench.begin(&["--config-net", "-q", "-t", "none", "-u", "none", "-c", path, &pid]);
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
    let pesto = |arguments: &[&str]| {
        let mut command = on_host(&bench, link.to_str().unwrap());
        // Commands find the socket without a folder of sockets.
        output(command.env_remove("XDG_RUNTIME_DIR").args(arguments).arg(path))
    };
    let done = |arguments: &[&str]| {
        let output = pesto(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", errors(&output));
        text(&output)
    };
    let Bench { host, inside, .. } = &bench;
    let podman = ["--add", "-t", "0.0.0.0/8080", "-t", "[::]/8080", "-u", "0.0.0.0/8080-8081"];
    done(&podman);
    done(&podman);
    talk(inside, at("0.0.0.0:8080"), host, at("127.0.0.1:8080"));
    talk(inside, at("[::]:8080"), host, at("[::1]:8080"));
    ask(inside, at("0.0.0.0:8081"), host, at("127.0.0.1:8081"));
    done(&["-A", "--tcp-ports=127.0.0.1/9000:80"]);
    talk(inside, at("0.0.0.0:80"), host, at("127.0.0.1:9000"));
    let listed = done(&[]);
    assert_eq!(listed.lines().count(), 4, "{listed}");
    done(&["-D", "--tcp-ports=127.0.0.1/9000:80"]);
    done(&["--delete", "-t", "0.0.0.0/8080", "-t", "[::]/8080", "-u", "0.0.0.0/8080-8081"]);
    assert_eq!(done(&[]), "");
    assert!(within(host, || TcpListener::bind("0.0.0.0:8080").is_ok()));

    let taken = within(host, || TcpListener::bind("0.0.0.0:8082").unwrap());
    let failed = pesto(&["--add", "-t", "0.0.0.0/8081-8083"]);
    assert_eq!(failed.status.code(), Some(1));
    let expected = "pesto: TCP port 0.0.0.0:8082 is in use on the host";
    assert!(errors(&failed).starts_with(expected), "{}", errors(&failed));
    assert_eq!(done(&[]), "");
    drop(taken);

    kill_process(daemon, Signal::TERM).unwrap();
    wait_for("the socket to go", || !socket.exists());
    let gone = pesto(&["--add", "-t", "8080"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(errors(&gone).starts_with("pesto: cannot connect to the control socket"));
}

/// Goal: a control socket never replaces another file or the socket of another process.
#[test]
fn a_control_socket_replaces_no_other_file() {
    skip_if!(no_root());
    let bench = Bench::new("control-path");
    let (file, used) = (bench.folder.0.join("file"), bench.folder.0.join("used"));
    std::fs::write(&file, "text").unwrap();
    let _listener = UnixListener::bind(&used).unwrap();
    let run = |path: &Path| {
        let mut command = on_host(&bench, TOWPATH);
        output(command.args(["run", "--control-socket"]).arg(path).args(["--", "true"]))
    };
    assert_fails(&run(&file), "option --control-socket: ");
    assert_fails(&run(&file), "the file exists and is not a socket");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
    assert_fails(&run(&used), "a process already listens on this socket");
    assert_fails(&run(&bench.folder.0.join("no/folder")), "does not exist");
    let fine = run(&bench.folder.0.join("fine"));
    assert_eq!(fine.status.code(), Some(0), "{}", errors(&fine));
    wait_for("the socket to go", || !bench.folder.0.join("fine").exists());
}
