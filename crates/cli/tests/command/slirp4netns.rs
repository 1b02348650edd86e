//! towpath in place of slirp4netns, as container engines start it.
//!
//! Each test has a network namespace that stands for the host, and another one inside, as the tests
//! of pasta have. Nothing outside of them is reached.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Signal, test_kill_process};

use super::attach::{NamedNamespace, addresses};
use super::pasta::{Bench, at, talk, within};
use super::support::*;

/// A running slirp4netns. Its exit descriptor is a pipe that closes with the child's input.
struct Running(Guard);

/// Returns a command that has its input as descriptor 3, and its output as descriptor 4.
fn with_descriptors(command: &Command) -> Command {
    let script = "exec 3<&0 0</dev/null 4>&1 1>&2; exec \"$@\"";
    let mut wrapped = Command::new("sh");
    wrapped.args(["-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
    wrapped
}

/// Starts a command that reports readiness by descriptor 4, and waits for that.
fn begin(command: &Command) -> Running {
    let mut command = with_descriptors(command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Guard(command.spawn().unwrap());
    let mut told = [0; 1];
    let ready = child.0.stdout.as_mut().unwrap().read(&mut told).unwrap();
    if ready == 0 {
        panic!("not ready: {}", errors(&finish(child)));
    }
    assert_eq!(&told, b"1");
    Running(child)
}

impl Bench {
    fn slirp4netns(&self, arguments: &[&str]) -> Command {
        self.named("slirp4netns", arguments)
    }

    /// Runs a script in the namespace inside.
    fn script(&self, script: &str) {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.pid())).args(["sh", "-ec", script]);
        let done = output(&mut command);
        assert!(done.status.success(), "{}", errors(&done));
    }
}

impl Running {
    /// Ends it by its exit descriptor.
    fn end(mut self) -> Output {
        drop(self.0.0.stdin.take());
        finish(self.0)
    }
}

/// Sends a request on a new connection; returns the answer.
pub(super) fn ask(path: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns a request that publishes a TCP port.
fn add(host: &str, host_port: u16, guest_port: u16) -> String {
    format!(
        "{{\"execute\":\"add_hostfwd\",\"arguments\":{{\"proto\":\"tcp\",\"host_addr\":\"{host}\",\
         \"host_port\":{host_port},\"guest_addr\":\"10.0.2.100\",\"guest_port\":{guest_port}}}}}"
    )
}

fn remove(id: u64) -> String {
    format!("{{\"execute\":\"remove_hostfwd\",\"arguments\":{{\"id\":{id}}}}}")
}

const LIST: &str = "{\"execute\":\"list_hostfwd\"}";

/// Goal: as podman starts it, the interface is configured and ports are published by requests. It
/// ends with its caller, and leaves nothing behind.
#[test]
fn a_container_is_served_as_podman_asks() {
    skip_if!(no_root());
    let bench = Bench::new("slirp-podman");
    let (pid, socket) = (bench.pid(), bench.folder.0.join("api"));
    let path = socket.to_str().unwrap();
    let netns = format!("/proc/{pid}/ns/net");
    let arguments = [
        "--disable-host-loopback",
        "--mtu=65520",
        "--enable-sandbox",
        "--enable-seccomp",
        "--enable-ipv6",
        "-c",
        "-e",
        "3",
        "-r",
        "4",
        "--api-socket",
        path,
        "--netns-type=path",
        &netns,
        "tap0",
    ];
    let running = begin(&bench.slirp4netns(&arguments));
    let shown = bench.shown();
    assert!(shown.contains("tap0    inet 10.0.2.100/24"), "{shown}");
    assert!(shown.contains("tap0    inet6 fd00::64/64"), "{shown}");
    assert!(bench.routes().contains("default via 10.0.2.2 dev tap0"), "{}", bench.routes());
    let Bench { host, inside, .. } = &bench;
    talk(host, at("192.0.2.1:9000"), inside, at("192.0.2.1:9000"));
    let listener = within(host, || TcpListener::bind("127.0.0.1:9001").unwrap());
    assert!(within(inside, || TcpStream::connect("10.0.2.2:9001").is_err()), "loopback is off");
    drop(listener);
    assert_eq!(ask(&socket, LIST), "{\"entries\":[]}");
    assert_eq!(ask(&socket, &add("0.0.0.0", 8080, 80)), "{\"return\":{\"id\":1}}");
    assert_eq!(ask(&socket, &add("127.0.0.1", 8081, 81)), "{\"return\":{\"id\":2}}");
    talk(inside, at("0.0.0.0:80"), host, at("127.0.0.1:8080"));
    talk(inside, at("0.0.0.0:80"), host, at("192.0.2.1:8080"));
    talk(inside, at("0.0.0.0:81"), host, at("127.0.0.1:8081"));
    assert!(within(host, || TcpStream::connect("192.0.2.1:8081").is_err()), "bound elsewhere");
    assert_eq!(ask(&socket, &remove(1)), "{\"return\":{}}");
    assert!(within(host, || TcpListener::bind("0.0.0.0:8080").is_ok()), "the port is free");
    assert_eq!(
        ask(&socket, LIST),
        "{\"entries\":[{\"id\":2,\"proto\":\"tcp\",\"host_addr\":\"127.0.0.1\",\
         \"host_port\":8081,\"guest_addr\":\"10.0.2.100\",\"guest_port\":81}]}"
    );
    // A confined process binds such a port through its broker.
    assert_eq!(ask(&socket, &add("127.0.0.1", 82, 82)), "{\"return\":{\"id\":3}}");
    talk(inside, at("0.0.0.0:82"), host, at("127.0.0.1:82"));
    let ended = running.end();
    assert_eq!(ended.status.code(), Some(0), "{}", errors(&ended));
    assert!(!socket.exists(), "the socket is left");
    assert!(!bench.shown().contains("tap0"), "the interface is left");
    assert!(within(host, || TcpListener::bind("0.0.0.0:8081").is_ok()), "the port is free");
}

/// Goal: wrong requests are refused with the words of slirp4netns, and disturb nothing; nor do
/// clients that send nothing.
#[test]
fn wrong_requests() {
    skip_if!(no_root());
    let bench = Bench::new("slirp-requests");
    let (pid, socket) = (bench.pid(), bench.folder.0.join("api"));
    let arguments = ["-cr4", "-e3", "-a", socket.to_str().unwrap(), &pid, "tap0"];
    let running = begin(&bench.slirp4netns(&arguments));
    let silent: Vec<_> = (0..20).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let long = format!("{{\"execute\":\"{}", "x".repeat(8192));
    for (request, expected) in [
        ("{", "cannot parse JSON"),
        ("", "cannot parse JSON"),
        ("nonsense", "cannot parse JSON"),
        ("[]", "json_object() failed"),
        ("{}", "no execute found"),
        ("{\"execute\":\"x\"}", "unknown execute"),
        (&remove(7), "remove_hostfwd: bad arguments.id"),
        (&add("x", 8080, 80), "add_hostfwd: bad arguments.host_addr"),
        (&add("0.0.0.0", 0, 80), "add_hostfwd: bad arguments.host_port"),
    ] {
        let answer = ask(&socket, request);
        let expected = format!("{{\"error\":{{\"desc\":\"bad request: {expected}\"}}}}");
        assert_eq!(answer, expected, "{request}");
    }
    // The rest of a request that is too long is not read, so the connection may be reset.
    let mut stream = UnixStream::connect(&socket).unwrap();
    let _ = stream.write_all(long.as_bytes());
    let mut answer = vec![0; 64];
    let count = stream.read(&mut answer).unwrap_or_default();
    let answer = String::from_utf8_lossy(&answer[..count]);
    assert!(answer.contains("too large message"), "{answer}");
    // Without shutting down the connection, a complete request is answered, too.
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(LIST.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "{\"entries\":[]}");
    let taken = within(&bench.host, || TcpListener::bind("0.0.0.0:8080").unwrap());
    let answer = ask(&socket, &add("0.0.0.0", 8080, 80));
    let expected = "{\"error\":{\"desc\":\"bad request: add_hostfwd: slirp_add_hostfwd failed: TCP \
                    port 0.0.0.0:8080 is in use on the host;";
    assert!(answer.starts_with(expected), "{answer}");
    let answer = ask(&socket, &add("192.0.2.99", 8081, 80));
    assert!(answer.contains("the host does not have this address"), "{answer}");
    drop(taken);
    assert_eq!(ask(&socket, &add("0.0.0.0", 8080, 80)), "{\"return\":{\"id\":1}}");
    let answer = ask(&socket, &add("0.0.0.0", 8080, 80));
    assert!(answer.contains("slirp_add_hostfwd failed: "), "it is published: {answer}");
    talk(&bench.inside, at("0.0.0.0:80"), &bench.host, at("127.0.0.1:8080"));
    drop(silent);
    assert_eq!(running.end().status.code(), Some(0));
}

/// Goal: ports of an instance with several workers, and those that `towpath publish` closes, are
/// answered for as well.
#[test]
fn ports_that_others_change() {
    skip_if!(no_root());
    let bench = Bench::new("slirp-others");
    let (pid, socket) = (bench.pid(), bench.folder.0.join("api"));
    let folder = bench.folder.0.join("run");
    fs::create_dir(&folder).unwrap();
    let arguments = [
        "attach",
        "--workers=2",
        "--address=10.0.2.100/24",
        "--gateway=10.0.2.2",
        "--port-socket",
        socket.to_str().unwrap(),
        "--ready-fd=4",
        "--exit-fd=3",
        &pid,
    ];
    let mut command = Command::new("env");
    let inner = bench.named("towpath", &arguments);
    command.arg(format!("XDG_RUNTIME_DIR={}", folder.display()));
    command.arg(inner.get_program()).args(inner.get_args());
    let running = begin(&command);
    let Bench { host, inside, .. } = &bench;
    assert_eq!(ask(&socket, &add("127.0.0.1", 8080, 80)), "{\"return\":{\"id\":1}}");
    assert_eq!(ask(&socket, &add("127.0.0.1", 8081, 81)), "{\"return\":{\"id\":2}}");
    talk(inside, at("0.0.0.0:80"), host, at("127.0.0.1:8080"));
    let other = |arguments: &[&str]| {
        let mut command = towpath(arguments.iter().copied());
        let done = output(command.env("XDG_RUNTIME_DIR", &folder));
        assert_eq!(done.status.code(), Some(0), "{}", errors(&done));
        text(&done)
    };
    let number = running.0.pid().as_raw_pid().to_string();
    let listed = other(&["ls", "published", "--pid", &number]);
    assert!(listed.contains("8080") && listed.contains("8081"), "{listed}");
    other(&["publish", "del", &number, "-t", "127.0.0.1/8080:80"]);
    assert!(within(host, || TcpListener::bind("127.0.0.1:8080").is_ok()), "the port is free");
    assert_eq!(ask(&socket, &remove(1)), "{\"return\":{}}");
    assert_eq!(ask(&socket, &remove(2)), "{\"return\":{}}");
    assert_eq!(running.end().status.code(), Some(0));
}

/// Goal: the network can be chosen, the gateway leads to the host's loopback, and DNS is not
/// relayed on request.
#[test]
fn networks_can_be_chosen() {
    skip_if!(no_root());
    let bench = Bench::new("slirp-cidr");
    let pid = bench.pid();
    let arguments = [
        "-c6",
        "--cidr=10.77.0.0/24",
        "--mtu=1400",
        "--macaddress=9a:dd:31:ea:92:98",
        "--disable-dns",
        "-r4",
        "-e3",
        &pid,
        "tap7",
    ];
    let running = begin(&bench.slirp4netns(&arguments));
    assert!(bench.shown().contains("tap7    inet 10.77.0.100/24"), "{}", bench.shown());
    assert!(bench.routes().contains("default via 10.77.0.2 dev tap7"), "{}", bench.routes());
    let Bench { host, inside, .. } = &bench;
    talk(host, at("127.0.0.1:9000"), inside, at("10.77.0.2:9000"));
    talk(host, at("[::1]:9000"), inside, at("[fd00::2]:9000"));
    bench.script("ip link show tap7 | grep -q 'mtu 1400'; ip link show tap7 | grep -q 9a:dd:31");
    let answers = within(inside, || {
        TcpStream::connect_timeout(&at("10.77.0.3:53"), Duration::from_millis(100))
    });
    assert!(answers.is_err(), "no DNS");
    assert_eq!(running.end().status.code(), Some(0));
}

/// Goal: rootlesskit creates the interface, waits for slirp4netns and then configures IPv4. Only
/// IPv6 is configured by then, and the interface stays.
#[test]
fn an_interface_of_the_caller_is_served() {
    skip_if!(no_root());
    for is_up in [true, false] {
        let bench = Bench::new(if is_up { "slirp-up" } else { "slirp-down" });
        let pid = bench.pid();
        bench.script("ip tuntap add name tap0 mode tap");
        if is_up {
            bench.script("ip link set tap0 up");
        }
        let arguments = ["--mtu", "65520", "-r", "4", "-e", "3", "--enable-ipv6", &pid, "tap0"];
        let running = begin(&bench.slirp4netns(&arguments));
        let shown = bench.shown();
        assert!(!shown.contains("tap0    inet "), "{shown}");
        assert!(shown.contains("tap0    inet6 fd00::64/64"), "{shown}");
        bench.script(
            "ip link set tap0 up; ip link set tap0 mtu 65520; \
             ip address add 10.0.2.100/24 dev tap0; ip route add default via 10.0.2.2",
        );
        let Bench { host, inside, .. } = &bench;
        talk(host, at("127.0.0.1:9000"), inside, at("10.0.2.2:9000"));
        talk(host, at("[2001:db8::1]:9000"), inside, at("[2001:db8::1]:9000"));
        assert_eq!(running.end().status.code(), Some(0));
        assert!(bench.shown().contains("10.0.2.100/24"), "the interface is the caller's");
        // Another one can serve it.
        let running = begin(&bench.slirp4netns(&arguments));
        talk(host, at("127.0.0.1:9000"), inside, at("10.0.2.2:9000"));
        assert_eq!(running.end().status.code(), Some(0));
    }
}

/// Goal: an interface that the caller configures has tested offloads, whether it is up or not, and
/// whether the caller waits or not. Nothing is added to it for that, and what it sends is not lost.
#[test]
fn offloads_of_the_callers_interface() {
    skip_if!(no_root());
    for (is_up, waits) in [(true, true), (false, true), (true, false), (false, false)] {
        let bench = Bench::new(&format!("slirp-offload-{is_up}-{waits}"));
        let pid = bench.pid();
        bench.script("ip tuntap add name tap0 mode tap");
        if is_up {
            bench.script("ip link set tap0 up");
        }
        let mut arguments = vec!["attach", "--no-config", "-v", "--exit-fd", "3", &pid];
        arguments.extend(waits.then_some("--ready-fd=4"));
        let mut command = with_descriptors(&bench.named("towpath", &arguments));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Its exit descriptor is closed from the start.
        let mut child = Guard(command.spawn().unwrap());
        drop(child.0.stdin.take());
        let ended = finish(child);
        assert_eq!(ended.status.code(), Some(0), "{}", errors(&ended));
        let told = String::from_utf8_lossy(&ended.stderr);
        assert!(told.contains("offload: checksum") && told.contains("(tested)"), "{told}");
        assert!(!told.contains("; off: "), "{told}");
    }
}

/// Goal: it ends when its namespace goes, when its caller is killed, and when it is killed itself.
/// Each time nothing is left.
#[test]
fn it_ends_with_its_namespace_and_its_caller() {
    skip_if!(no_root());
    let bench = Bench::new("slirp-path");
    let named = NamedNamespace::new("slirp-path");
    let file = named.file();
    let socket = bench.folder.0.join("api");
    let path = socket.to_str().unwrap();
    let arguments = ["-cr4", "-a", path, "--netns-type=path", &file, "tap0"];
    let running = begin(&bench.slirp4netns(&arguments));
    assert!(addresses(&file).contains("10.0.2.100/24"));
    assert!(output(Command::new("umount").arg(&file)).status.success());
    fs::remove_file(&file).unwrap();
    assert_eq!(finish(running.0).status.code(), Some(0));
    assert!(!socket.exists(), "the socket is left");

    let pid = bench.pid();
    let arguments = ["-cr4", "-a", path, &pid, "tap0"];
    let running = begin(&bench.slirp4netns(&arguments));
    running.0.signal(Signal::KILL);
    drop(running);
    wait_for("the interface to go", || !bench.shown().contains("tap0"));
    wait_for("the socket to go", || !socket.exists());

    let command = bench.slirp4netns(&arguments);
    let mut caller = Command::new("sh");
    let script = "setpriv --pdeathsig KILL \"$@\" & wait";
    caller.args(["-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
    let running = begin(&caller);
    let serving = children(running.0.pid().as_raw_pid())[0];
    running.0.signal(Signal::KILL);
    drop(running);
    let serving = rustix::process::Pid::from_raw(serving).unwrap();
    wait_for("the end", || test_kill_process(serving).is_err());
    wait_for("the interface to go", || !bench.shown().contains("tap0"));
    wait_for("the socket to go", || !socket.exists());

    // A socket that is left over is replaced.
    drop(UnixListener::bind(&socket).unwrap());
    let running = begin(&bench.slirp4netns(&arguments));
    assert_eq!(ask(&socket, LIST), "{\"entries\":[]}");
    let Bench { host: _host, inside, folder: _folder } = bench;
    drop(inside);
    assert_eq!(finish(running.0).status.code(), Some(0), "its process ended");
}

/// Goal: a failure is reported with exit code 1 and its reason, and nothing is left behind.
#[test]
fn failures() {
    skip_if!(no_root());
    let bench = Bench::new("slirp-failures");
    let pid = bench.pid();
    let used = bench.folder.0.join("used");
    let _listener = UnixListener::bind(&used).unwrap();
    let file = bench.folder.0.join("file");
    fs::write(&file, "").unwrap();
    let (used, file) = (used.to_str().unwrap(), file.to_str().unwrap());
    let long = bench.folder.0.join("x".repeat(108));
    let long = long.to_str().unwrap();
    let lines: &[(&[&str], &str)] = &[
        (&["-c", "-r", "9", &pid, "tap0"], "option --ready-fd: file descriptor 9 must be open"),
        (&["-c", "-e", "9", &pid, "tap0"], "option --exit-fd: file descriptor 9 must be open"),
        (&["-c", "-e", "5", &pid, "tap0"], "option --exit-fd: file descriptor 5 must be a pipe"),
        (&["-c", "-r", "x", &pid, "tap0"], "invalid value 'x' for '--ready-fd <N>'"),
        (&["-c", "-e", "1", &pid, "tap0"], "invalid value '1' for '--exit-fd <N>'"),
        (&["-c", "-m", "100", &pid, "tap0"], "invalid value '100' for '--mtu <BYTES>'"),
        (&["-c", "--macaddress=1", &pid, "tap0"], "invalid value '1' for '--mac <MAC>'"),
        (
            &["-c", "--cidr=127.0.0.0/24", &pid, "tap0"],
            "127.0.0.2 cannot be the address of the gateway",
        ),
        (&["-c", &pid, "a/b"], "'a/b' is not a valid name for a network interface"),
        (&["-c", "-a", used, &pid, "tap0"], "option --port-socket: "),
        (&["-c", "-a", file, &pid, "tap0"], "option --port-socket: "),
        (&["-c", "-a", long, &pid, "tap0"], "option --port-socket: "),
        (&["-c", "-a", "/no/such/folder/x", &pid, "tap0"], "option --port-socket: /no/such/"),
        (&["-c", "-a", "", &pid, "tap0"], "a value is required for '--port-socket <PATH>'"),
        (
            &["-c", "--userns-path=/no/such", &pid, "tap0"],
            "option --userns: cannot open the namespace /no/such: No such file",
        ),
        (
            &["-c", "--userns-path=/dev/null", &pid, "tap0"],
            "option --userns: /dev/null is not a user namespace",
        ),
        (&["-c", "2147483647", "tap0"], "there is no process with PID 2147483647"),
        (&["-c", "--netns-type=path", "/no/such", "tap0"], "cannot watch the network namespace"),
        (
            &["-c", "--netns-type=path", "/dev/null", "tap0"],
            "option --netns: /dev/null is not a network namespace",
        ),
        (&["--nonsense", &pid, "tap0"], "unrecognized option '--nonsense'\n"),
        (&["--target-type=bess", "/x"], "option --target-type bess is not supported; "),
    ];
    for (arguments, expected) in lines {
        let inner = bench.slirp4netns(arguments);
        let mut command = Command::new("sh");
        let script = "exec 5<\"$0\"; exec \"$@\"";
        command.args(["-c", script, file]).arg(inner.get_program()).args(inner.get_args());
        let output = output(&mut command);
        let told = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
        let start = format!("slirp4netns: {expected}");
        assert!(told.starts_with(&start), "{arguments:?}: {told}");
    }
    assert!(fs::exists(used).unwrap() && fs::exists(file).unwrap(), "they are not its own");
    assert!(!bench.shown().contains("tap0"), "{}", bench.shown());
}

#[test]
fn explanations() {
    let explained = output(&mut towpath(["as", "--explain", "slirp4netns", "-c", "123", "tap0"]));
    let expected = "towpath attach --address=10.0.2.100/24 --gateway=10.0.2.2 \
                    --dns-forward=10.0.2.3 --ipv4-only --map-gateway --ifname=tap0 123\n";
    assert_eq!((text(&explained).as_str(), explained.status.code()), (expected, Some(0)));
    let version = output(&mut towpath(["as", "slirp4netns", "-v"]));
    assert!(text(&version).starts_with("slirp4netns (towpath "), "{}", text(&version));
}
