//! `towpath up` while it runs: its ports are listed and changed, by the command and over HTTP.
//!
//! Ports are stream sockets, so the tests need no privilege, and no packet leaves the machine.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Signal, getrlimit, prlimit};
use serde_json::{Value, json};

use super::stats::{Folder, assert_fails};
use super::support::*;

/// A network with ports `a` and `b`, isolated from this user's other networks.
pub(super) struct Network {
    pub(super) folder: Folder,
    pub(super) running: Guard,
}

impl Network {
    pub(super) fn start(name: &str) -> Self {
        let folder = Folder::new(name);
        let (a, b) = (folder.0.join("a.sock"), folder.0.join("b.sock"));
        let mut command = towpath(["up", "--no-gateway", "--quiet"]);
        command.arg("--stream").arg(format!("a={}", a.display()));
        command.arg("--stream").arg(format!("b={}", b.display()));
        command.env("XDG_RUNTIME_DIR", &folder.0).stdin(Stdio::null());
        Self::serving(folder, Guard(command.spawn().unwrap()))
    }

    /// Waits until a network that has been started answers.
    pub(super) fn serving(folder: Folder, running: Guard) -> Self {
        let network = Self { folder, running };
        wait_for("the control socket", || UnixStream::connect(network.socket()).is_ok());
        // It has its name before all descriptors are open; its answer shows that they are.
        network.ports();
        network
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.sockets().join(format!("{}.control", self.running.0.id()))
    }

    /// Runs `towpath` with arguments, as the network's user.
    pub(super) fn towpath(&self, arguments: &[&str]) -> Output {
        let mut command = towpath(arguments.iter().copied());
        output(command.env("XDG_RUNTIME_DIR", &self.folder.0).current_dir(&self.folder.0))
    }

    pub(super) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends these bytes and returns the answer, up to the end of the connection.
    pub(super) fn raw(&self, request: &[u8]) -> String {
        raw(&self.socket(), request)
    }

    fn get(&self, path: &str) -> String {
        self.raw(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
    }

    fn post(&self, body: &str) -> (u16, Value) {
        post(&self.socket(), body)
    }

    pub(super) fn ports(&self) -> Vec<Value> {
        let answer = self.get("/v1/ports");
        assert_eq!(status(&answer), 200, "{answer}");
        let object: Value = serde_json::from_str(body_of(&answer)).unwrap();
        object["ports"].as_array().unwrap().clone()
    }

    fn names(&self) -> Vec<String> {
        self.ports().iter().map(|port| port["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// Sends these bytes and returns the answer, up to the end of the connection.
fn raw(socket: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may close before it has read everything.
    let _ = stream.write_all(request);
    read_all(stream)
}

/// Returns status and JSON of the answer to a transaction.
pub(super) fn post(socket: &Path, body: &str) -> (u16, Value) {
    let len = body.len();
    let head = format!("POST /v1/transaction HTTP/1.1\r\nContent-Length: {len}\r\n\r\n");
    let answer = raw(socket, format!("{head}{body}").as_bytes());
    (status(&answer), serde_json::from_str(body_of(&answer)).unwrap())
}

/// Reads until the peer closes; it may do that before it has read everything.
fn read_all(mut stream: UnixStream) -> String {
    let mut answer = Vec::new();
    let end = stream.read_to_end(&mut answer);
    if answer.is_empty() {
        println!("no byte came: {end:?}");
    }
    String::from_utf8(answer).unwrap()
}

pub(super) fn status(answer: &str) -> u16 {
    let word = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

fn body_of(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("an end of the headers").1
}

pub(super) fn assert_done(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", errors(output));
}

/// Sends a broadcast frame as a guest at a stream socket does.
pub(super) fn send_frame(guest: &mut UnixStream) {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame.resize(60, 7);
    guest.write_all(&60_u32.to_be_bytes()).unwrap();
    guest.write_all(&frame).unwrap();
}

/// Goal: a port with a TAP device of its sender needs the device, and a transaction that lacks it
/// changes nothing.
#[test]
fn a_device_that_does_not_come_is_missed() {
    let network = Network::start("passed");
    let add = r#"{"operations": [{"del": "a"}, {"add": "c", "tap-fd": true}]}"#;
    let (status, answer) = network.post(add);
    assert_eq!((status, &answer["operation"]), (409, &1.into()), "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("no TAP device came with"), "{answer}");

    let stream = network.connect();
    let len = add.len();
    let text = format!("POST /v1/transaction HTTP/1.1\r\nContent-Length: {len}\r\n\r\n{add}");
    let file = fs::File::open("/dev/null").unwrap();
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let slices = [IoSlice::new(text.as_bytes())];
    sendmsg(&stream, &slices, &mut control, SendFlags::empty()).unwrap();
    let answer = read_all(stream);
    assert!(answer.contains("is no TAP device with IFF_TAP"), "{answer}");
    assert_eq!(network.names(), ["a", "b"]);
}

/// Goal: what guests learn about a network without services is its MTU.
#[test]
fn a_network_describes_itself() {
    let network = Network::start("described");
    let described =
        || -> Value { serde_json::from_str(body_of(&network.get("/v1/network"))).unwrap() };
    let mut expected = json!({
        "mtu": 1500, "vtep": null, "gso-max-size": null, "ipv4": null, "ipv6": null,
    });
    assert_eq!(described(), expected);
    let tunnel = "100:local=127.0.0.1,remote=127.0.0.2";
    assert_done(&network.towpath(&["port", "add", "vxlan100", "--vxlan", tunnel]));
    expected["vtep"] = "127.0.0.1".into();
    // 43 segments of 1,448 bytes, and what the kernel counts for headers.
    expected["gso-max-size"] = (43 * 1448 + 321).into();
    assert_eq!(described(), expected);
}

#[test]
fn ports_come_change_and_go_while_the_network_runs() {
    let network = Network::start("ports");
    assert_eq!(network.names(), ["a", "b"]);
    let settings =
        ["port", "add", "c", "--stream", "c.sock", "queue-len", "77", "trunk", "10-12,20"];
    assert_done(&network.towpath(&settings));
    assert_done(&network.towpath(&["port", "set", "a", "isolated", "yes", "queue-len", "64"]));
    assert_done(&network.towpath(&["port", "set", "b", "vlan", "5"]));
    let ports = network.ports();
    assert_eq!((&ports[0]["isolated"], &ports[0]["queue-len"]), (&true.into(), &64.into()));
    assert_eq!((&ports[1]["vlan"], &ports[1]["queue-len"]), (&5.into(), &1000.into()));
    assert_eq!((&ports[2]["trunk"], &ports[2]["queue-len"]), (&"10-12,20".into(), &77.into()));
    assert_eq!(ports[2]["at"], network.folder.0.join("c.sock").to_str().unwrap());
    // The rings of several ports get another length, or none does.
    let lens = || network.ports().iter().map(|port| port["queue-len"].clone()).collect::<Vec<_>>();
    assert_done(&network.towpath(&["port", "set", "a,b", "queue-len", "32"]));
    assert_eq!(lens(), [32, 32, 77]);
    let failed = network.towpath(&["port", "set", "a,b,nobody", "queue-len", "16"]);
    assert_fails(&failed, "there is no port 'nobody'; the network has the ports a, b, c");
    assert_eq!(lens(), [32, 32, 77]);

    let listed = network.towpath(&["ls"]);
    assert_done(&listed);
    assert_eq!(text(&listed).lines().count(), 3, "{}", text(&listed));
    assert!(text(&listed).contains("trunk 10-12,20"), "{}", text(&listed));
    // A new port is served at once.
    let guest = UnixStream::connect(network.folder.0.join("c.sock")).unwrap();
    wait_for("the guest to be seen", || network.ports()[2]["connected"] == true);
    drop(guest);

    assert_done(&network.towpath(&["port", "del", "c"]));
    assert_eq!(network.names(), ["a", "b"]);
    assert!(!network.folder.0.join("c.sock").exists(), "the socket goes with its port");

    network.running.signal(Signal::TERM);
    let socket = network.socket();
    wait_for("the control socket to go", || !socket.exists());
}

#[test]
fn figures_tell_what_passed() {
    let network = Network::start("figures");
    let mut a = UnixStream::connect(network.folder.0.join("a.sock")).unwrap();
    let mut b = UnixStream::connect(network.folder.0.join("b.sock")).unwrap();
    b.set_read_timeout(Some(PATIENCE)).unwrap();
    wait_for("both guests", || network.ports().iter().all(|port| port["connected"] == true));
    send_frame(&mut a);
    b.read_exact(&mut [0; 64]).unwrap();

    let pid = network.running.0.id().to_string();
    let reported = network.towpath(&["stats", "--json", &pid]);
    assert_done(&reported);
    let figures: Value = serde_json::from_str(&text(&reported)).unwrap();
    assert_eq!(figures["pid"].to_string(), pid);
    assert_eq!(figures["stations"], 1);
    assert_eq!(figures["ports"]["a"]["packets_in"], 1);
    assert_eq!(figures["ports"]["b"]["bytes_out"], 60);
    let table = text(&network.towpath(&["stats", &pid]));
    assert!(table.contains("ports.a.packets_in"), "{table}");
    let all = text(&network.towpath(&["stats"]));
    assert!(all.contains("up --no-gateway"), "{all}");

    let metrics = network.get("/metrics");
    assert!(metrics.contains("Content-Type: application/openmetrics-text; version=1.0.0"));
    let line = "towpath_port_packets_total{port=\"a\",attachment=\"stream\",direction=\"in\"} 1\n";
    assert!(metrics.contains(line), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    let mut families: Vec<_> = metrics.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let count = families.len();
    families.sort_unstable();
    families.dedup();
    assert_eq!((families.len(), count), (24, 24), "each family once: {metrics}");
}

/// Goal: `--watch` shows the traffic of each interval. It exits with 0 when its output is closed,
/// when the instance ends, and on SIGINT.
#[test]
fn figures_can_be_watched() {
    let network = Network::start("watch");
    let mut a = UnixStream::connect(network.folder.0.join("a.sock")).unwrap();
    wait_for("a guest", || network.ports()[0]["connected"] == true);
    let watch = |arguments: &[&str]| {
        let mut command = towpath(["stats", "--watch"]);
        command.args(arguments).env("XDG_RUNTIME_DIR", &network.folder.0);
        Guard(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    let mut json = watch(&["--json"]);
    let mut lines = BufReader::new(json.0.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["ports"]["a"]["packets_in"], 0.0);
    send_frame(&mut a);
    let reported =
        (0..PATIENCE.as_secs()).map(|_| next()).find(|rates| rates["all"]["bytes_in"] != 0.0);
    let rates = reported.expect("the frame is reported");
    let seconds = rates["seconds"].as_f64().unwrap();
    let bytes = rates["ports"]["a"]["bytes_in"].as_f64().unwrap() * seconds;
    assert!((bytes - 60.0).abs() < 6.0, "{rates}");
    // The output is closed.
    drop(lines);
    assert_eq!(finish(json).status.code(), Some(0));

    let mut table = watch(&[]);
    let mut first = String::new();
    BufReader::new(table.0.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with("pid "), "not a terminal, so no control sequences: {first:?}");
    table.signal(Signal::INT);
    assert_eq!(finish(table).status.code(), Some(0));

    let mut last = watch(&[]);
    BufReader::new(last.0.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    network.running.signal(Signal::TERM);
    let last = finish(last);
    assert_eq!(
        (last.status.code(), &*errors(&last)),
        (Some(0), "towpath: the instance has ended\n")
    );
    let none = network.towpath(&["stats", "--watch=2"]);
    assert_fails(&none, "no towpath is running");
    assert_eq!(network.towpath(&["stats", "--watch=0"]).status.code(), Some(2));
}

/// Goal: a transaction whose last operation fails leaves no trace, not even at a port that it
/// removes: the port's guest stays connected and receives frames.
#[test]
fn a_transaction_that_fails_changes_nothing() {
    let network = Network::start("rollback");
    let mut a = UnixStream::connect(network.folder.0.join("a.sock")).unwrap();
    let mut b = UnixStream::connect(network.folder.0.join("b.sock")).unwrap();
    b.set_read_timeout(Some(PATIENCE)).unwrap();
    wait_for("both guests", || network.ports().iter().all(|port| port["connected"] == true));
    let before = network.ports();
    let c = network.folder.0.join("c.sock");
    let d = network.folder.0.join("d.sock");
    let mut operations = json!([
        { "set": "a", "queue-len": 5, "isolated": true, "trunk": "all", "native": 3 },
        { "del": "b" },
        { "add": "b", "stream": c },
        { "add": "d", "stream": d, "vlan": 9 },
        { "set": "b", "vlan": 7 },
        { "del": "d" },
        { "set": "no-such", "vlan": 7 },
    ]);
    let (status, answer) = network.post(&json!({ "operations": operations }).to_string());
    assert_eq!((status, &answer["operation"]), (409, &6.into()), "{answer}");
    let error = answer["error"].as_str().expect("a text");
    assert!(
        error.starts_with("operation 7: there is no port 'no-such'; the network has "),
        "{error}"
    );
    assert_eq!(network.ports(), before);
    assert!(!c.exists() && !d.exists(), "sockets of ports that were not added");
    send_frame(&mut a);
    b.read_exact(&mut [0; 64]).unwrap();

    // Without the operation that fails.
    operations.as_array_mut().unwrap().pop();
    let (status, answer) = network.post(&json!({ "operations": operations }).to_string());
    assert_eq!((status, &answer["applied"]), (200, &6.into()), "{answer}");
    assert_eq!(network.names(), ["a", "b"]);
    assert_eq!(network.ports()[0]["native"], 3);
    let ports = network.ports();
    let new = ports.iter().find(|port| port["name"] == "b").unwrap();
    assert_eq!((&new["vlan"], new["at"].as_str()), (&7.into(), c.to_str()));
    assert_eq!(b.read(&mut [0; 64]).unwrap(), 0, "the removed port's guest is disconnected");
}

#[test]
fn nonsense_is_refused_without_harm() {
    let network = Network::start("refused");
    let before = network.ports();
    let mut huge = b"GET /v1/ports HTTP/1.1\r\nX: ".to_vec();
    huge.resize(1 << 20, b'y');
    for (request, expected) in [
        (&b"\x00\x01\x02 no HTTP\r\n\r\n"[..], 400),
        (&huge[..], 431),
        (b"GET /nowhere HTTP/1.1\r\n\r\n", 404),
        (b"DELETE /v1/ports HTTP/1.1\r\n\r\n", 405),
        (b"POST /v1/transaction HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST /v1/transaction HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST /v1/transaction HTTP/1.1\r\n\r\n", 400),
    ] {
        assert_eq!(status(&network.raw(request)), expected);
    }
    let deep = "[".repeat(60_000);
    let many = json!({ "operations": vec![json!({ "del": "a" }); 129] }).to_string();
    for body in ["{", "[]", "{\"operations\": 1}", "{\"operations\": [], \"x\": 1}", &deep, &many] {
        let (status, answer) = network.post(body);
        assert_eq!(status, 400, "{answer}");
    }
    for (operation, code, expected) in [
        (json!({ "add": "a", "stream": "/nowhere/x" }), 409, "port 'a' already exists"),
        (json!({ "add": "../x", "stream": "/nowhere/x" }), 409, "'../x' is not a valid port name"),
        (json!({ "add": "x", "stream": "/nowhere/x" }), 409, "/nowhere/x: the directory of the"),
        (
            json!({ "add": "x", "stream": network.folder.0.join("a.sock") }),
            409,
            "a.sock: a process",
        ),
        (json!({ "set": "a", "queue-len": 0 }), 400, "expected a number from 1 to 1048576, got 0"),
        (json!({ "set": "a", "queue-len": u32::MAX }), 400, "from 1 to 1048576, got 4294967295"),
        (json!({ "dell": "a" }), 400, "operation 1: expected one of add, del, set, add-lease"),
        (json!(3), 400, "operation 1: expected an object, got 3"),
    ] {
        let (status, answer) = network.post(&json!({ "operations": [operation] }).to_string());
        assert_eq!(status, code, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(expected), "{answer}");
    }
    assert_eq!(network.ports(), before);
}

#[test]
fn sockets_of_a_killed_network_are_removed() {
    let network = Network::start("killed");
    network.running.signal(Signal::KILL);
    let socket = network.socket();
    wait_for("its end", || UnixStream::connect(&socket).is_err());
    wait_for("its broker to remove the socket", || !socket.exists());
    // As if broker and network were both killed.
    drop(UnixListener::bind(&socket).unwrap());
    assert_done(&network.towpath(&["stats"]));
    assert!(!socket.exists());
    assert_done(&network.towpath(&["ls"]));
}

#[test]
fn wrong_usage_is_distinguished_from_failures() {
    let network = Network::start("usage");
    for wrong in [
        &["port", "set", "a"][..],
        &["port", "set", "a", "vlan"],
        &["port", "set", "a", "vlan", "4095"],
        &["port", "set", "a", "isolated", "perhaps"],
        &["port", "set", "a", "colour", "3"],
        &["port", "add", "x"],
        &["port", "add", "x", "--tap", "--stream", "y"],
        &["port", "del", "a", "vlan", "3"],
        &["port", "lose", "a"],
    ] {
        let output = network.towpath(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", errors(&output));
    }
    assert_fails(&network.towpath(&["port", "del", "x"]), "there is no port 'x'; the network has");
    assert_fails(&network.towpath(&["ls", "--socket", "/nowhere"]), "control socket /nowhere");
    let nobody = "no towpath of this user has PID 1;";
    assert_fails(&network.towpath(&["ls", "--pid", "1"]), nobody);
    // A second network with the same folder: one has to be chosen.
    let at = format!("other={}", network.folder.0.join("other.sock").display());
    let mut command = towpath(["up", "--no-gateway", "--stream", &at]);
    let quiet = command.env("XDG_RUNTIME_DIR", &network.folder.0).stdin(Stdio::null());
    let other = Guard(quiet.stderr(Stdio::null()).spawn().unwrap());
    wait_for("the other network", || {
        errors(&network.towpath(&["port", "del", "x"])).contains("several networks are running")
    });
    let which = network.towpath(&["port", "del", "x"]);
    assert_fails(&which, &format!("{}", other.0.id()));
    assert_fails(&which, "; choose one with --pid");
    assert_fails(&network.towpath(&["stats", "--watch"]), "give the PID of one");
    other.signal(Signal::TERM);
    drop(other);
    let folder = Folder::new("usage-none");
    let none = output(towpath(["port", "del", "a"]).env("XDG_RUNTIME_DIR", &folder.0));
    assert_fails(&none, "no network is running; start one with `towpath up`");
}

/// Goal: clients that send half of a request, however many, delay no other, and are disconnected.
#[test]
fn silence_is_waited_for_without_blocking() {
    let network = Network::start("silence");
    let mut silent: Vec<UnixStream> = (0..60).map(|_| network.connect()).collect();
    for stream in &mut silent {
        // Some are already disconnected.
        let _ = stream.write_all(b"POST /v1/transaction HTTP/1.1\r\nContent-Len");
    }
    // No connection was waited for to its end.
    let kept = silent.last_mut().unwrap();
    kept.set_nonblocking(true).unwrap();
    for _ in 0..5 {
        assert_done(&network.towpath(&["stats"]));
        assert_eq!(network.names(), ["a", "b"]);
    }
    assert_eq!(kept.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    kept.set_nonblocking(false).unwrap();
    for stream in silent {
        assert_eq!(read_all(stream), "");
    }
}

/// Goal: the network answers requests once it says that it serves.
#[test]
fn it_can_be_asked_once_it_serves() {
    let folder = Folder::new("serves");
    let mut command = towpath(["up", "--no-gateway", "-v", "--stream"]);
    command.arg(format!("a={}", folder.0.join("a.sock").display()));
    command.env("XDG_RUNTIME_DIR", &folder.0).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut running = Guard(command.spawn().unwrap());
    let said = BufReader::new(running.0.stderr.take().unwrap());
    assert!(said.lines().map_while(Result::ok).any(|line| line.contains("serving 1 ports")));
    let network = Network { folder, running };
    assert!(network.socket().exists());
    assert_eq!(network.names(), ["a"]);
}

/// Goal: after descriptors ran out, requests are answered again once there are some.
#[test]
fn without_descriptors_it_is_tried_again() {
    let network = Network::start("descriptors");
    let pid = Some(network.running.pid());
    let all = getrlimit(rustix::process::Resource::Nofile);
    let open = fs::read_dir(format!("/proc/{}/fd", network.running.0.id())).unwrap().count();
    let few = rustix::process::Rlimit { current: Some(open as u64 - 1), maximum: all.maximum };
    prlimit(pid, rustix::process::Resource::Nofile, few).unwrap();
    let waiting: Vec<OwnedFd> = (0..4).map(|_| network.connect().into()).collect();
    let more = rustix::process::Rlimit { current: all.current, maximum: all.maximum };
    std::thread::sleep(Duration::from_millis(100));
    prlimit(pid, rustix::process::Resource::Nofile, more).unwrap();
    assert_eq!(network.names(), ["a", "b"]);
    drop(waiting);
}
