//! towpath in place of pasta, as container engines start it.
//!
//! Each test has a network namespace that stands for the host, with an interface and a default
//! route, and another one inside. Nothing outside of them is reached.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Command, Output, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::attach::{NamedNamespace, addresses};
use super::stats::Folder;
use super::support::*;

/// What podman always gives, besides ports.
const PODMAN: [&str; 14] = [
    "--config-net",
    "--dns-forward",
    "169.254.1.1",
    "-u",
    "none",
    "-T",
    "none",
    "-U",
    "none",
    "--no-map-gw",
    "--quiet",
    "--map-guest-addr",
    "169.254.1.2",
    "--no-ra",
];

/// Two namespaces: one that stands for the host, and one that is served.
pub(super) struct Bench {
    pub(super) host: Guard,
    pub(super) inside: Guard,
    pub(super) folder: Folder,
}

impl Bench {
    pub(super) fn new(name: &str) -> Self {
        let ours = network_namespace(std::process::id().try_into().unwrap());
        let script = "set -e; ip link set lo up; ip link add d0 type veth peer name d1; \
                      ip link set d1 up; ip link set d0 up; ip address add 192.0.2.1/24 dev d0; \
                      ip -6 address add 2001:db8::1/64 dev d0 nodad; \
                      ip route add default via 192.0.2.2; \
                      ip -6 route add default via 2001:db8::2; exec sleep 1000";
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", script]).stdin(Stdio::null());
        let host = Guard(command.spawn().unwrap());
        let pid = host.pid().as_raw_pid();
        let name_of = |pid: i32| fs::read_to_string(format!("/proc/{pid}/comm"));
        wait_for("the host", || name_of(pid).is_ok_and(|name| name == "sleep\n"));
        let namespace = network_namespace(pid);
        assert_ne!(namespace, ours);
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{pid}/ns/net"));
        command.args(["unshare", "--net", "sleep", "1000"]).stdin(Stdio::null());
        let inside = Guard(command.spawn().unwrap());
        let within = inside.pid().as_raw_pid();
        wait_for("the namespace inside", || {
            let of_inside = network_namespace(within);
            of_inside.is_some() && of_inside != namespace && of_inside != ours
        });
        Self { host, inside, folder: Folder::new(&format!("pasta-{name}")) }
    }

    pub(super) fn pid(&self) -> String {
        self.inside.pid().as_raw_pid().to_string()
    }

    /// Returns the command `pasta` with arguments, on the host.
    fn pasta(&self, arguments: &[&str]) -> Command {
        self.named("pasta", arguments)
    }

    /// Returns the command by this name, with arguments, on the host.
    pub(super) fn named(&self, name: &str, arguments: &[&str]) -> Command {
        let link = self.folder.0.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(TOWPATH, &link).unwrap();
        }
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.host.pid().as_raw_pid()));
        command.arg(link).args(arguments);
        command
    }

    /// Starts `pasta` in the background; returns its PID.
    pub(super) fn begin(&self, arguments: &[&str]) -> Pid {
        let file = self.folder.0.join("pid");
        let mut all = vec!["--pid", file.to_str().unwrap()];
        all.extend(arguments);
        let output = output(&mut self.pasta(&all));
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        assert_eq!((text(&output).as_str(), errors(&output).as_str()), ("", ""));
        let pid = fs::read_to_string(&file).unwrap();
        Pid::from_raw(pid.trim_end().parse().unwrap()).unwrap()
    }

    pub(super) fn shown(&self) -> String {
        addresses(&format!("/proc/{}/ns/net", self.pid()))
    }

    pub(super) fn routes(&self) -> String {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.pid()));
        text(&output(command.args(["ip", "route"])))
    }
}

/// Runs `act` on a thread in the network namespace of a process.
pub(super) fn within<R: Send>(process: &Guard, act: impl FnOnce() -> R + Send) -> R {
    let file = fs::File::open(format!("/proc/{}/ns/net", process.pid().as_raw_pid())).unwrap();
    thread::scope(|scope| {
        let thread = scope.spawn(move || {
            use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

/// Listens in the network namespace of a process.
pub(super) fn listen(process: &Guard, at: SocketAddr) -> TcpListener {
    within(process, || once_free(|| TcpListener::bind(at)))
}

/// A listener in one namespace answers a client in another; returns the client's address as the
/// listener sees it.
pub(super) fn talk(server: &Guard, at: SocketAddr, client: &Guard, to: SocketAddr) -> IpAddr {
    let listener = listen(server, at);
    let mut asking = within(client, || TcpStream::connect_timeout(&to, PATIENCE).unwrap());
    let (mut answering, peer) = listener.accept().unwrap();
    asking.set_read_timeout(Some(PATIENCE)).unwrap();
    answering.write_all(b"hello").unwrap();
    drop(answering);
    let mut reported = String::new();
    asking.read_to_string(&mut reported).unwrap();
    assert_eq!(reported, "hello");
    peer.ip()
}

pub(super) fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub(super) fn is_gone(pid: Pid) -> bool {
    test_kill_process(pid).is_err() || state(pid.as_raw_pid()) == Some('Z')
}

/// Goal: as podman starts it, it returns when everything works: the host's addresses are inside,
/// ports are bound on all of the host's addresses, and the host is reached at its own address. It
/// ends with the process whose namespace it serves.
#[test]
fn a_container_is_served_as_podman_asks() {
    skip_if!(no_root());
    let bench = Bench::new("podman");
    let pid = bench.pid();
    let mut arguments = PODMAN.to_vec();
    arguments.extend(["-t", "8080-8080:80-80", "-t", "::1/8081-8081:81-81", &pid]);
    let daemon = bench.begin(&arguments);
    let shown = bench.shown();
    assert!(shown.contains("d0    inet 192.0.2.1/24"), "{shown}");
    assert!(shown.contains("d0    inet6 2001:db8::1/64"), "{shown}");
    assert!(bench.routes().contains("default via 192.0.2.2 dev d0"), "{}", bench.routes());
    let Bench { host, inside, .. } = &bench;
    let gateway: IpAddr = [192, 0, 2, 2].into();
    assert_eq!(talk(inside, at("0.0.0.0:80"), host, at("127.0.0.1:8080")), gateway);
    assert_eq!(talk(inside, at("0.0.0.0:80"), host, at("192.0.2.1:8080")), gateway);
    talk(inside, at("[::]:81"), host, at("[::1]:8081"));
    talk(host, at("192.0.2.1:9000"), inside, at("169.254.1.2:9000"));
    let refused = within(host, || TcpStream::connect("127.0.0.1:8081").is_err());
    assert!(refused, "bound to ::1 alone");
    assert!(!is_gone(daemon));
    // It has a session of its own, and no terminal or pipe of its caller.
    let files = fs::read_dir(format!("/proc/{}/fd", daemon.as_raw_pid())).unwrap();
    let standard = files.flatten().filter(|file| file.file_name().len() == 1);
    let standard = standard.filter(|file| file.file_name().as_encoded_bytes()[0] <= b'2');
    for file in standard {
        assert_eq!(fs::read_link(file.path()).unwrap().to_str(), Some("/dev/null"));
    }
    inside.signal(Signal::TERM);
    let Bench { host: _host, inside, folder: _folder } = bench;
    drop(inside);
    wait_for("the end with the process", || is_gone(daemon));
}

/// Goal: the gateway's address leads to the host's loopback, or that of `--map-host-loopback` does.
#[test]
fn the_gateway_is_mapped_on_request() {
    skip_if!(no_root());
    let bench = Bench::new("gateway");
    let pid = bench.pid();
    let daemon = bench.begin(&["--config-net", "-q", &pid]);
    let Bench { host, inside, .. } = &bench;
    talk(host, at("127.0.0.1:9000"), inside, at("192.0.2.2:9000"));
    kill_process(daemon, Signal::TERM).unwrap();
    wait_for("the end", || is_gone(daemon));
    wait_for("the interface to go", || !bench.shown().contains("d0"));
    let daemon = bench.begin(&["--config-net", "-q", "--map-host-loopback", "10.1.2.3", &pid]);
    talk(host, at("127.0.0.1:9000"), inside, at("10.1.2.3:9000"));
    kill_process(daemon, Signal::TERM).unwrap();
    wait_for("the end", || is_gone(daemon));
}

/// Goal: addresses, names and sizes that are given take the place of the host's.
#[test]
fn addresses_can_be_given() {
    skip_if!(no_root());
    let bench = Bench::new("given");
    let pid = bench.pid();
    let arguments = [
        "-a",
        "10.9.8.2",
        "-n",
        "24",
        "-g",
        "10.9.8.1",
        "-I",
        "tap7",
        "-m",
        "1280",
        "--ns-mac-addr",
        "9a:dd:31:ea:92:98",
        "-4",
        "-q",
        "--config-net",
        &pid,
    ];
    bench.begin(&arguments);
    let shown = bench.shown();
    assert!(shown.contains("tap7    inet 10.9.8.2/24"), "{shown}");
    assert!(!shown.contains("2001:db8"), "{shown}");
    assert!(bench.routes().contains("default via 10.9.8.1 dev tap7"));
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{pid}/ns/net"));
    let link = text(&output(command.args(["ip", "link", "show", "tap7"])));
    assert!(link.contains("mtu 1280") && link.contains("9a:dd:31:ea:92:98"), "{link}");
}

/// Goal: a failure is reported by the process that was started: exit code 1, the reason, and
/// nothing left behind.
#[test]
fn failures_are_the_callers_to_see() {
    skip_if!(no_root());
    let bench = Bench::new("failure");
    let pid = bench.pid();
    let taken = within(&bench.host, || TcpListener::bind("[::]:8080").unwrap());
    let output = |arguments: &[&str]| -> Output { output(&mut bench.pasta(arguments)) };
    let refused = output(&["--config-net", "-q", "-t", "8080:80", &pid]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(errors(&refused).starts_with("pasta: TCP port "), "{}", errors(&refused));
    drop(taken);
    wait_for("the interface to go", || !bench.shown().contains("d0"));
    let missing = bench.folder.0.join("missing").display().to_string();
    let cases: &[(&[&str], &str)] = &[
        (&["--nonsense", &pid], "pasta: unrecognized option '--nonsense'\n"),
        (&["--map-guest-address", "1", &pid], "pasta: unrecognized option '--map-guest-address'\n"),
        (&["--config", "-t", "x", &pid], "pasta: option --tcp-ports: port specification 'x'"),
        (&["-T", "all", &pid], "pasta: option --host-tcp-ports: port specification 'all'"),
        (&["-U", "all", &pid], "pasta: option --host-udp-ports: port specification 'all'"),
        (&["-m", "99999", &pid], "pasta: invalid value '99999' for '--mtu <BYTES>'"),
        (&["--ns-mac-addr", "1", &pid], "pasta: invalid value '1' for '--mac <MAC>'"),
        (&["-I", "a/b", &pid], "pasta: 'a/b' is not a valid name for a network interface"),
        (&["-i", "none", &pid], "pasta: option --copy-host: no interface of this name"),
        (&["-i", "lo", "-6", &pid], "pasta: option --copy-host: interface 'lo' has no address"),
        (&["-P", "/no/such/file", &pid], "pasta: option --pid-file: cannot open /no/such/file"),
        (&["-l", "/no/such/file", &pid], "pasta: option --log-file: cannot open /no/such/file"),
        (&["--netns", &missing], "pasta: option --netns: cannot open the namespace "),
        (&["--netns", "/no/such"], "pasta: cannot watch the network namespace /no/such"),
        (
            &["--netns", "/dev/null"],
            "pasta: option --netns: /dev/null is not a network namespace\n",
        ),
        (
            &["--userns", "/proc/self/ns/net", &pid],
            "pasta: option --userns: /proc/self/ns/net is a network namespace; expected a user \
             namespace\n",
        ),
        (&["--userns", "/x", "true"], "pasta: option --userns is not supported with a command"),
        (&["2147483647"], "pasta: there is no process with PID 2147483647\n"),
        (&["--no-tcp", &pid], "pasta: option --no-tcp is not supported; "),
        (&["-q", "-d", &pid], "pasta: the argument '--quiet' cannot be used with '--verbose'"),
    ];
    for (arguments, expected) in cases {
        let output = output(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", errors(&output));
        assert!(errors(&output).starts_with(expected), "{arguments:?}: {}", errors(&output));
    }
    assert!(!bench.shown().contains("d0"), "{}", bench.shown());
}

/// Goal: messages go to the file once the network is ready, and `--foreground` keeps the process in
/// the foreground.
#[test]
fn messages_go_to_a_file() {
    skip_if!(no_root());
    let bench = Bench::new("log");
    let (pid, log) = (bench.pid(), bench.folder.0.join("log"));
    let log_file = log.to_str().unwrap();
    fs::write(&log, "before\n").unwrap();
    let number = bench.folder.0.join("pid");
    let arguments = ["-f", "-d", "-l", log_file, "-P", number.to_str().unwrap(), &pid];
    let mut command = bench.pasta(&arguments);
    let running = Guard(command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let read = || fs::read_to_string(&log).unwrap();
    wait_for("a message", || read().contains("confinement: "));
    assert!(read().starts_with("before\npasta: "), "{}", read());
    let own = fs::read_to_string(&number).unwrap();
    assert_eq!(own, format!("{}\n", running.pid().as_raw_pid()));
    running.signal(Signal::TERM);
    let ended = finish(running);
    assert_eq!(ended.status.code(), Some(0));
    assert!(!errors(&ended).contains("confinement: "), "{}", errors(&ended));
}

/// Goal: a bound namespace is served until its file is removed, with `--no-netns-quit` beyond that.
#[test]
fn a_bound_namespace_is_served_until_its_file_goes() {
    skip_if!(no_root());
    for stays in [false, true] {
        let bench = Bench::new(if stays { "stays" } else { "path" });
        let named = NamedNamespace::new(if stays { "pasta-stays" } else { "pasta-path" });
        let file = named.file();
        let mut arguments = vec!["-q", "--config-net", "--netns", &file];
        arguments.extend(stays.then_some("--no-netns-quit"));
        let daemon = bench.begin(&arguments);
        assert!(addresses(&file).contains("192.0.2.1/24"));
        assert!(output(Command::new("umount").arg(&file)).status.success());
        fs::remove_file(&file).unwrap();
        if stays {
            thread::sleep(std::time::Duration::from_millis(50));
            assert!(!is_gone(daemon));
            kill_process(daemon, Signal::TERM).unwrap();
        }
        wait_for("the end", || is_gone(daemon));
    }
}

/// Goal: as Nix starts it, it serves namespaces that are its standard input and output, although it
/// releases these streams.
#[test]
fn namespaces_on_standard_streams_are_served() {
    skip_if!(no_root());
    let bench = Bench::new("streams");
    let namespace = format!("/proc/{}/ns/net", bench.pid());
    let (file, user) = (bench.folder.0.join("pid"), format!("/proc/{}/ns/user", bench.pid()));
    let mut command = bench.pasta(&[
        "--quiet",
        "--config-net",
        "--gateway",
        "169.254.1.1",
        "--address",
        "169.254.1.2",
        "--netmask",
        "16",
        "--ns-ifname",
        "eth0",
        "--netns",
        "/proc/self/fd/0",
        "--userns",
        "/proc/self/fd/1",
        "--pid",
        file.to_str().unwrap(),
    ]);
    command.stdin(fs::File::open(&namespace).unwrap());
    command.stdout(fs::File::open(&user).unwrap()).stderr(Stdio::piped());
    let started = finish(Guard(command.spawn().unwrap()));
    assert_eq!(started.status.code(), Some(0), "{}", errors(&started));
    assert!(bench.shown().contains("eth0    inet 169.254.1.2/16"), "{}", bench.shown());
    let daemon = fs::read_to_string(&file).unwrap();
    let daemon = Pid::from_raw(daemon.trim_end().parse().unwrap()).unwrap();
    kill_process(daemon, Signal::TERM).unwrap();
    wait_for("the end", || is_gone(daemon));
}

/// Goal: rootlesskit 2 makes and configures the interface itself, and keeps pasta in the
/// foreground.
#[test]
fn an_interface_of_the_caller_is_served() {
    skip_if!(no_root());
    let bench = Bench::new("existing");
    let pid = bench.pid();
    let script = "ip tuntap add name tap0 mode tap; ip link set tap0 up; \
                  ip address add 10.0.2.100/24 dev tap0; ip route add default via 10.0.2.2";
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{pid}/ns/net")).args(["sh", "-ec", script]);
    assert!(output(&mut command).status.success());
    let arguments = [
        "--foreground",
        "--stderr",
        "--ns-ifname=tap0",
        "--mtu=65520",
        "--no-dhcp",
        "--no-ra",
        "--address=10.0.2.100",
        "--netmask=24",
        "--gateway=10.0.2.2",
        "--dns-forward=10.0.2.3",
        "--ipv4-only",
        "--tcp-ports=8080:80",
        "--udp-ports=none",
        &pid,
    ];
    let mut command = bench.pasta(&arguments);
    let running = Guard(command.stdin(Stdio::null()).spawn().unwrap());
    let Bench { host, inside, .. } = &bench;
    let is_bound = || within(host, || TcpListener::bind("127.0.0.1:8080").is_err());
    wait_for("the port", is_bound);
    talk(inside, at("10.0.2.100:80"), host, at("127.0.0.1:8080"));
    talk(host, at("127.0.0.1:9000"), inside, at("10.0.2.2:9000"));
    running.signal(Signal::TERM);
    assert_eq!(finish(running).status.code(), Some(0));
    assert!(bench.shown().contains("10.0.2.100/24"), "the interface is the caller's");
}

/// Goal: without options for ports, those on which programs inside listen are published while they
/// do; with `--host-lo-to-ns-lo`, connections from the host's loopback reach the loopback inside.
#[test]
fn ports_of_programs_are_followed() {
    skip_if!(no_root());
    let bench = Bench::new("auto");
    let pid = bench.pid();
    let daemon = bench.begin(&["--config-net", "-q", "-4", "--host-lo-to-ns-lo", &pid]);
    let Bench { host, inside, .. } = &bench;
    let connect = || within(host, || TcpStream::connect("127.0.0.1:7000"));
    assert!(connect().is_err());
    for address in ["127.0.0.1:7000", "0.0.0.0:7000"] {
        let listener = listen(inside, at(address));
        wait_for("the port on the host", || connect().is_ok());
        let (_, peer) = listener.accept().unwrap();
        assert!(peer.ip().is_loopback(), "{peer}");
        drop(listener);
        wait_for("the port to go", || connect().is_err());
    }
    let questions = within(inside, || UdpSocket::bind("0.0.0.0:7001").unwrap());
    questions.set_read_timeout(Some(PATIENCE)).unwrap();
    let client = within(host, || UdpSocket::bind("127.0.0.1:0").unwrap());
    client.connect("127.0.0.1:7001").unwrap();
    client.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
    questions.set_nonblocking(true).unwrap();
    wait_for("the UDP port on the host", || {
        // Refused until the port is there.
        let _ = client.send(b"question");
        let asked = questions.recv_from(&mut [0; 8]);
        asked.is_ok_and(|(_, peer)| questions.send_to(b"answer", peer).is_ok())
    });
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0; 8];
    assert_eq!((client.recv(&mut answer).unwrap(), &answer[..6]), (6, &b"answer"[..]));
    kill_process(daemon, Signal::TERM).unwrap();
    wait_for("the end", || is_gone(daemon));
}

/// Goal: a command runs in a network with the host's addresses, and its status is returned.
#[test]
fn a_command_is_run() {
    skip_if!(no_root());
    let bench = Bench::new("command");
    let output = output(&mut bench.pasta(&["-q", "sh", "-c", "ip -o address show d0; exit 7"]));
    assert_eq!(output.status.code(), Some(7), "{}", errors(&output));
    assert!(text(&output).contains("inet 192.0.2.1/24"), "{}", text(&output));
}

/// Goal: the equivalent command line is shown; other names are refused as usage errors of towpath.
#[test]
fn other_names_and_explanations() {
    let explained =
        output(&mut towpath(["as", "--explain", "pasta", "-4", "-t", "80", "-u", "none", "123"]));
    let expected = "towpath attach --copy-host --mtu=65520 --ipv4-only --map-gateway --daemon \
                    --tcp-ports=80 123\n";
    assert_eq!((text(&explained).as_str(), explained.status.code()), (expected, Some(0)));
    let version = output(&mut towpath(["as", "pasta", "--version"]));
    assert!(text(&version).starts_with("pasta (towpath "), "{}", text(&version));
    let help = output(&mut towpath(["as", "/usr/bin/pasta.avx2", "--help"]));
    assert!(text(&help).contains("--config-net"), "{}", text(&help));
    let other = output(&mut towpath(["as", "ls"]));
    assert_eq!(other.status.code(), Some(2));
    assert!(errors(&other).contains("'ls' is not a program that towpath can act as"));
    assert_eq!(output(&mut towpath(["as"])).status.code(), Some(2));
}
