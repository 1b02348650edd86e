//! towpath in place of passt, as launchers of virtual machines start it.
//!
//! Each test has a network namespace that stands for the host, with an interface and a default
//! route. Nothing outside of it is reached. The machine is the test itself, which sends frames.

use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use towpath_gateway::services::wire::dhcpv4::option;

use super::guest::{Guest, is_syn};
use super::stats::Folder;
use super::support::*;

const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// A namespace that stands for the host, and a folder for sockets and files.
struct Bench {
    host: Guard,
    folder: Folder,
}

impl Bench {
    fn new(name: &str) -> Self {
        let ours = network_namespace(std::process::id().try_into().unwrap());
        let script = "set -e; ip link set lo up; ip link add d0 type veth peer name d1; \
                      ip link set d1 up; ip link set d0 up; ip address add 192.0.2.1/24 dev d0; \
                      ip route add default via 192.0.2.2; exec sleep 1000";
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", script]).stdin(Stdio::null());
        let host = Guard(command.spawn().unwrap());
        let pid = host.pid().as_raw_pid();
        let name_of = |pid: i32| fs::read_to_string(format!("/proc/{pid}/comm"));
        wait_for("the host", || name_of(pid).is_ok_and(|name| name == "sleep\n"));
        assert_ne!(network_namespace(pid), ours);
        Self { host, folder: Folder::new(&format!("passt-{name}")) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    /// Returns `program` on the host.
    fn on_host(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.host.pid().as_raw_pid()));
        command.arg(program);
        command
    }

    /// Returns the command `passt` with arguments, on the host.
    fn passt(&self, arguments: &[&str]) -> Command {
        let link = self.path("passt");
        if !link.exists() {
            std::os::unix::fs::symlink(TOWPATH, &link).unwrap();
        }
        let mut command = self.on_host(link);
        command.args(arguments);
        command
    }

    /// Starts `passt` in the background, with a socket; returns its PID and the output.
    fn begin(&self, arguments: &[&str]) -> (Pid, Output) {
        let (file, socket) = (self.path("pid"), self.path("socket"));
        let mut command = self.passt(arguments);
        command.arg("--pid").arg(&file).arg("--socket").arg(&socket);
        let output = output(&mut command);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let pid = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        (Pid::from_raw(pid).unwrap(), output)
    }

    /// Runs `passt` to its end with an error; returns what it says.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = output(&mut self.passt(arguments));
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        errors(&output)
    }

    /// Starts a client of a port of the host.
    fn connect(&self, port: u16) -> Guard {
        let mut command = self.on_host("bash");
        command.args(["-c", &format!("exec 3<>/dev/tcp/{HOST}/{port}; cat <&3")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Guard(command.spawn().unwrap())
    }
}

fn runs(pid: Pid) -> bool {
    test_kill_process(pid).is_ok()
}

fn wait_for_end(pid: Pid) {
    wait_for("the end of passt", || !runs(pid));
}

/// Goal: a machine gets the host's address, router and MTU by DHCP, is reached at a published port
/// of the host, and its end is the end of passt, with nothing left.
#[test]
fn a_machine_gets_the_hosts_address_and_is_reached() {
    let bench = Bench::new("machine");
    let (pid, output) = bench.begin(&["--one-off", "-m", "1400", "-H", "web", "-t", "7080:80"]);
    let block =
        format!("DHCP:\n    assign: {HOST}\n    mask: 255.255.255.0\n    router: {ROUTER}\n");
    assert!(errors(&output).starts_with(&block), "{output:?}");
    let mut guest = Guest::connect(&bench.path("socket"), 1);
    let lease = guest.lease(&[]).expect("a lease");
    assert_eq!(lease.your_address, HOST);
    let address = |code| lease.options.address(code);
    assert_eq!(address(option::SUBNET_MASK), Some([255, 255, 255, 0].into()));
    assert_eq!(address(option::ROUTERS), Some(ROUTER));
    assert_eq!(address(option::DNS_SERVERS), Some([169, 254, 1, 1].into()));
    assert_eq!(lease.options.u16(option::MTU), Some(1400));
    assert_eq!(lease.options.get(option::HOST_NAME), Some(&b"web"[..]));
    // Another client of the same machine gets the same address.
    guest.mac[5] += 1;
    assert_eq!(guest.lease(&[]).expect("a lease").your_address, HOST);
    // Other stations of the host's network are reached through the gateway, the machine is not.
    let gateway = guest.resolve(HOST, ROUTER);
    assert_eq!(guest.resolve(HOST, [192, 0, 2, 77].into()), gateway);
    let _client = bench.connect(7080);
    let syn = guest.receive_at(HOST, PATIENCE, |frame| is_syn(frame, 80)).expect("a SYN");
    assert_eq!(syn[26..30], ROUTER.octets(), "the host's own address stands for the machine");
    assert!(runs(pid));
    drop(guest);
    wait_for_end(pid);
    assert!(!bench.path("socket").exists());
}

/// Goal: a second instance at a path in use is refused, and does not end the first.
#[test]
fn a_socket_in_use_is_not_taken() {
    let bench = Bench::new("twice");
    let (pid, _) = bench.begin(&["--one-off", "-q"]);
    let socket = bench.path("socket");
    let told = bench.refused(&["-s", socket.to_str().unwrap()]);
    assert!(told.starts_with("passt: ") && told.contains("already listens"), "{told}");
    let mut guest = Guest::connect(&socket, 1);
    assert!(guest.lease(&[]).is_some(), "the first one serves");
    kill_process(pid, Signal::KILL).unwrap();
    drop(guest);
    wait_for_end(pid);
    // A dead process leaves its socket behind, which the next one replaces.
    let _stale = UnixListener::bind(bench.path("stale")).map(drop);
    let stale = bench.path("stale");
    let mut command = bench.passt(&["-f", "-q", "-s", stale.to_str().unwrap()]);
    let next = Guard(command.spawn().unwrap());
    wait_for("the socket", || UnixStream::connect(&stale).is_ok());
    drop(next);
}

/// Goal: a connected socket that a launcher hands over is served, and its end is that of passt.
#[test]
fn an_inherited_connection_is_served() {
    let bench = Bench::new("fd");
    for mode in [&["-q"][..], &["-q", "--vhost-user"]] {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        let file = bench.path("pid");
        let mut command = bench.passt(mode);
        command.arg("--pid").arg(&file).args(["--fd", &theirs.as_raw_fd().to_string()]);
        let output = with_inherited(&mut command, &theirs);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(errors(&output), "");
        drop(theirs);
        let pid = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        let pid = Pid::from_raw(pid).unwrap();
        if mode.len() == 1 {
            let mut guest = Guest::over(UnixStream::from(ours), 1);
            assert_eq!(guest.lease(&[]).expect("a lease").your_address, HOST);
            assert!(runs(pid));
        } else {
            drop(ours);
        }
        wait_for_end(pid);
    }
}

/// Runs a command that inherits `socket`.
fn with_inherited(command: &mut Command, socket: &OwnedFd) -> Output {
    fcntl_setfd(socket, FdFlags::empty()).unwrap();
    let output = output(command);
    fcntl_setfd(socket, FdFlags::CLOEXEC).unwrap();
    output
}

/// Goal: given addresses and parts of DHCP that are off do what they say.
#[test]
fn addresses_and_parts_of_dhcp() {
    let bench = Bench::new("given");
    let given = ["-q", "-a", "10.9.8.7", "-n", "16", "-g", "10.9.0.1", "--no-dhcp-dns"];
    let (pid, _) = bench.begin(&[&given[..], &["--no-dhcp-search", "-M", "2:0:0:0:0:9"]].concat());
    let mut guest = Guest::connect(&bench.path("socket"), 1);
    let lease = guest.lease(&[]).expect("a lease");
    assert_eq!(lease.your_address, Ipv4Addr::new(10, 9, 8, 7));
    assert_eq!(lease.options.address(option::SUBNET_MASK), Some([255, 255, 0, 0].into()));
    assert_eq!(lease.options.address(option::ROUTERS), Some([10, 9, 0, 1].into()));
    assert_eq!(lease.options.get(option::DNS_SERVERS), None);
    assert_eq!(lease.options.get(option::SEARCH_LIST), None);
    assert_eq!(lease.options.get(option::CLASSLESS_ROUTES), None);
    let own = lease.your_address;
    assert_eq!(guest.resolve(own, [10, 9, 0, 1].into()), [2, 0, 0, 0, 0, 9]);
    kill_process(pid, Signal::TERM).unwrap();
    wait_for_end(pid);
    // A router outside of the machine's network needs a route of its own.
    let (pid, _) = bench.begin(&["-q", "-a", "10.9.8.7", "-n", "32", "-g", "10.1.1.1"]);
    let mut guest = Guest::connect(&bench.path("socket"), 2);
    let lease = guest.lease(&[]).expect("a lease");
    assert_eq!(lease.options.address(option::SUBNET_MASK), Some([255; 4].into()));
    let routes = [32, 10, 1, 1, 1, 0, 0, 0, 0, 0, 10, 1, 1, 1];
    assert_eq!(lease.options.get(option::CLASSLESS_ROUTES), Some(&routes[..]));
    kill_process(pid, Signal::TERM).unwrap();
    wait_for_end(pid);
    let (pid, _) = bench.begin(&["-q", "--no-dhcp"]);
    let mut guest = Guest::connect(&bench.path("socket"), 3);
    guest.ask(towpath_gateway::services::wire::dhcpv4::MessageType::Discover, &[]);
    assert!(guest.answer(std::time::Duration::from_millis(300)).is_none());
    assert_ne!(guest.resolve(HOST, ROUTER), [0; 6], "the network works without DHCP");
    kill_process(pid, Signal::TERM).unwrap();
    wait_for_end(pid);
}

/// Goal: mistakes end with code 1 and a line that says what is wrong.
#[test]
fn mistakes_are_refused() {
    let bench = Bench::new("wrong");
    let told = |arguments: &[&str]| bench.refused(arguments);
    assert_eq!(told(&["--nonsense"]), "passt: unrecognized option '--nonsense'\n");
    assert!(told(&["-m", "70000"]).contains("'70000'"));
    assert!(told(&["-m", "x"]).contains("'x'"));
    assert!(told(&["-D", "x"]).contains("'x'"));
    assert!(told(&["-g", "x"]).contains("'x'"));
    assert!(told(&["-M", "x"]).contains("'x'"));
    assert!(told(&["-t", "80:x"]).contains("'x' is not a port"));
    assert!(told(&["-u", "auto"]).contains("'auto' is not supported"));
    assert!(told(&["-i", "nonsense0"]).contains("no interface of this name"));
    assert!(told(&["-S", "-x-"]).contains("'-x-'"));
    assert!(told(&["-H", "a b"]).contains("a b"));
    assert!(told(&["-a", HOST.to_string().as_str(), "-g", "127.0.0.1"]).contains("127.0.0.1"));
    let missing = bench.path("missing/socket");
    assert!(told(&["-s", missing.to_str().unwrap()]).contains("does not exist"));
    let long = format!("/tmp/{}", "x".repeat(120));
    assert!(told(&["-s", &long]).contains("1 to 108 bytes"));
    let file = bench.path("file");
    fs::write(&file, "").unwrap();
    assert!(told(&["-s", file.to_str().unwrap()]).contains("not a socket"));
    assert!(told(&["-P", missing.to_str().unwrap()]).contains("--pid-file"));
    assert!(told(&["-l", missing.to_str().unwrap()]).contains("--log-file"));
    assert!(told(&["--fd", "77"]).contains("file descriptor 77 is not open"));
    assert!(told(&["--fd", "2"]).contains("expected a number from 3"));
    let plain = OwnedFd::from(fs::File::open(&file).unwrap());
    let listening = OwnedFd::from(UnixListener::bind(bench.path("listening")).unwrap());
    for (descriptor, problem) in [(plain, "is not a socket"), (listening, "is not connected")] {
        let mut command = bench.passt(&["--fd", &descriptor.as_raw_fd().to_string()]);
        let output = with_inherited(&mut command, &descriptor);
        assert_eq!(output.status.code(), Some(1));
        assert!(errors(&output).contains(problem), "{output:?}");
    }
}

/// Goal: towpath's own command refuses what does not fit together.
#[test]
fn options_of_up_that_do_not_fit() {
    let refused = |arguments: &[&str]| {
        let output = output(&mut towpath(arguments.iter().copied()));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        errors(&output)
    };
    let none = refused(&["up", "--check", "--address", "10.9.8.7", "--gateway", "10.9.8.1"]);
    assert!(none.contains("exactly one port") && none.contains("it has 0"), "{none}");
    let given = ["--address", "10.9.8.7", "--gateway", "10.9.8.1"];
    let one = [&["up", "--check", "--stream", "a=/tmp/a"][..], &given].concat();
    let two = refused(&[&one[..], &["--stream", "b=/tmp/b"]].concat());
    assert!(two.contains("it has 2"), "{two}");
    assert!(refused(&[&one[..], &["--no-gateway"]].concat()).contains("needs the gateway"));
    let alone = refused(&["up", "--check", "--stream", "a=/tmp/a", "--print-addresses"]);
    assert!(alone.contains("needs --copy-host or --address"), "{alone}");
    assert!(refused(&["up", "--stream-fd", "a=2"]).contains("descriptor from 3 on"));
    let fine = output(&mut towpath(one.iter().copied()));
    assert_eq!(fine.status.code(), Some(0), "{fine:?}");
}
