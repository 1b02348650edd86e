//! `towpath top` on a terminal: tmux runs it, types, and returns what is on the screen.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::control::{Network, status};
use super::stats::{Folder, assert_fails};
use super::support::*;

/// Address of the host's loopback inside.
const HOST: &str = "10.0.2.2";

fn no_tmux() -> Option<&'static str> {
    let found = Command::new("tmux").arg("-V").stdout(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => no_tap(),
        _ => Some("tmux is missing"),
    }
}

fn top(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = towpath(["top"]);
    command.args(arguments).env("XDG_RUNTIME_DIR", folder);
    command
}

/// A terminal with a shell in which `top` runs.
struct Terminal<'a> {
    folder: &'a Folder,
    /// Name of the server's socket.
    name: &'static str,
}

impl<'a> Terminal<'a> {
    /// Starts a shell that runs `top` between two records of the terminal's settings.
    fn start(folder: &'a Folder, name: &'static str, environment: &str, arguments: &str) -> Self {
        let terminal = Self { folder, name };
        let at = folder.0.display();
        let script = format!(
            "set -m; clear; stty -a >{at}/before; echo shell-$$-pid >{at}/shell; \
             XDG_RUNTIME_DIR={at} {environment} {TOWPATH} top {arguments}; \
             echo \"ended with $?\"; stty -a >{at}/after; exec sleep 1000"
        );
        let started = terminal.tmux(&["new-session", "-d", "-x", "80", "-y", "24", &script]);
        assert!(started.status.success(), "{}", errors(&started));
        terminal
    }

    /// Runs a command of the tmux server that belongs to this test alone.
    fn tmux(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.folder.0.join(self.name)).args(["-f", "/dev/null"]);
        output(command.args(arguments).env("SHELL", "/bin/sh").env("LC_ALL", "C.UTF-8"))
    }

    fn keys(&self, keys: &[&str]) {
        let sent = self.tmux(&[&["send-keys"], keys].concat());
        assert!(sent.status.success(), "{}", errors(&sent));
    }

    fn resize(&self, width: &str, height: &str) {
        let done = self.tmux(&["resize-window", "-x", width, "-y", height]);
        assert!(done.status.success(), "{}", errors(&done));
    }

    fn screen(&self) -> String {
        text(&self.tmux(&["capture-pane", "-p"]))
    }

    /// Waits until the screen is as it should be; returns it.
    fn wait_for(&self, what: &str, is_right: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        let mut left = 2000;
        while !is_right(&screen) {
            assert!(left > 0, "waited too long for {what}; on the screen:\n{screen}");
            left -= 1;
            thread::sleep(std::time::Duration::from_millis(20));
            screen = self.screen();
        }
        screen
    }

    fn wait_for_text(&self, text: &str) -> String {
        self.wait_for(&format!("'{text}'"), |screen| screen.contains(text))
    }

    /// Asserts that `top` has ended with this code, and left the terminal as it was.
    fn assert_restored(&self, code: &str) -> String {
        let screen = self.wait_for_text(&format!("ended with {code}"));
        assert!(!screen.contains("towpath top  "), "the screen from before is back:\n{screen}");
        let settings =
            |name: &str| fs::read_to_string(self.folder.0.join(name)).unwrap_or_default();
        wait_for("the settings", || !settings("after").is_empty());
        // The first line has the size.
        let modes = |name: &str| settings(name).lines().skip(1).map(str::to_owned).collect();
        let (before, after): (Vec<String>, Vec<String>) = (modes("before"), modes("after"));
        assert_eq!(before, after);
        assert_eq!(text(&self.tmux(&["display", "-p", "#{cursor_flag} #{alternate_on}"])), "1 0\n");
        screen
    }

    /// Returns `top`, a child of the shell.
    fn process(&self) -> Pid {
        let shell = fs::read_to_string(self.folder.0.join("shell")).unwrap();
        let shell = shell.split('-').nth(1).unwrap().parse().unwrap();
        Pid::from_raw(wait_for_child(shell, "towpath")).unwrap()
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// Returns the port of a server on the host's loopback. It sends to a client in each hundredth of a
/// second as many KiB as the client's first byte is.
fn server() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || stream.map(serve));
        }
    });
    port
}

fn serve(mut stream: TcpStream) {
    let mut wanted = [0];
    if stream.read_exact(&mut wanted).is_ok() {
        let some = vec![0; 1024 * usize::from(wanted[0])];
        while stream.write_all(&some).is_ok() {
            thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Starts an instance whose program has a slow and a fast connection to the server.
fn start_busy(folder: &Folder, port: u16, options: &[&str]) -> Guard {
    let connection = |byte: &str| {
        format!("exec 3<>/dev/tcp/{HOST}/{port}; printf '{byte}' >&3; exec cat <&3 >/dev/null")
    };
    let script = format!("({}) & ({}) & wait", connection("\\001"), connection("\\100"));
    let mut command = towpath(["run", "-q", "-4", "--map-host-loopback", HOST]);
    command.args(options).args(["--", "bash", "-c", &script]);
    let running = Guard(command.env("XDG_RUNTIME_DIR", &folder.0).spawn().unwrap());
    init_and_command(&running, "bash");
    running
}

/// Returns the lines of flows on a screen.
fn flows(screen: &str) -> Vec<&str> {
    screen.lines().filter(|line| line.starts_with("tcp ")).collect()
}

fn once(folder: &Folder, arguments: &[&str]) -> Output {
    output(&mut top(&folder.0, &[&["--once"], arguments].concat()))
}

/// Goal: flows of a program are shown, sorted, filtered, paused and described, at each size, and
/// Ctrl-C leaves the terminal as it was.
#[test]
fn flows_on_a_terminal() {
    skip_if!(no_tmux());
    let folder = Folder::new("top");
    let port = server();
    let running = start_busy(&folder, port, &[]);
    let peer = format!("{HOST}:{port}");
    let terminal = Terminal::start(&folder, "tmux", "", "");
    let both_flows = |screen: &str| {
        let flows = flows(screen);
        flows.len() == 2
            && flows.iter().all(|line| line.contains("established"))
            && flows[0].contains('M')
            && flows[1].contains('k')
    };
    let screen = terminal.wait_for("both flows with rates", both_flows);
    assert!(screen.starts_with(&format!("towpath top  pid {}", running.pid())), "{screen}");
    assert!(screen.contains(&peer) && screen.contains("copies/byte 0.0000"), "{screen}");
    assert!(screen.contains("IN b/s*"), "sorted by the rate in: {screen}");
    let program = |line: &str| line.split_ascii_whitespace().nth(1).unwrap().to_owned();
    let (fast, slow) = (program(flows(&screen)[0]), program(flows(&screen)[1]));

    terminal.keys(&["r"]);
    terminal.wait_for("the slow one first", |screen| {
        flows(screen).first().is_some_and(|line| line.contains(&slow))
    });
    terminal.keys(&["r", ">"]);
    terminal.wait_for_text("OUT b/s*");
    terminal.keys(&["<"]);
    terminal.wait_for_text("IN b/s*");
    terminal.keys(&["/", fast.split(':').nth(1).unwrap(), "Enter"]);
    let screen = terminal.wait_for("one flow", |screen| flows(screen).len() == 1);
    assert!(flows(&screen)[0].contains(&fast) && screen.contains("[filter: "), "{screen}");
    terminal.keys(&["Escape"]);
    terminal.wait_for("both flows", both_flows);

    terminal.keys(&["p"]);
    let paused = terminal.wait_for_text("[paused]");
    thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(terminal.screen(), paused);
    terminal.keys(&["p"]);
    terminal.wait_for("it goes on", |screen| !screen.contains("[paused]") && screen != paused);

    terminal.keys(&["Enter"]);
    let details = terminal.wait_for_text("ssthresh");
    for name in
        ["cwnd", "rtt", "rttvar", "mss", "retransmitted", "window-peer", "bytes-in", "worker"]
    {
        assert!(details.contains(name), "{name}: {details}");
    }
    terminal.keys(&["Escape", "h"]);
    terminal.wait_for_text("reverse the order");
    terminal.keys(&["Escape"]);
    for (width, height) in [("40", "10"), ("7", "3"), ("1", "1"), ("200", "50"), ("80", "24")] {
        terminal.resize(width, height);
        // Two sizes are too small for a flow.
        if width.parse::<u32>().unwrap() >= 40 {
            terminal.wait_for(&format!("flows at {width}x{height}"), |screen| {
                flows(screen).len() == 2 && screen.lines().count() >= 10
            });
        }
    }
    terminal.keys(&["C-c"]);
    terminal.assert_restored("0");
}

/// Goal: an instance that ends is reported and its last figures stay; SIGTERM leaves the terminal
/// as it was, and so does a panic, whose report is on the screen.
#[test]
fn ends_of_instances_and_of_top() {
    skip_if!(no_tmux());
    let folder = Folder::new("top-ends");
    let port = server();
    let running = start_busy(&folder, port, &["--workers", "2"]);
    {
        let terminal = Terminal::start(&folder, "first", "", &running.pid().to_string());
        terminal.wait_for("the flows", |screen| flows(screen).len() == 2);
        kill_process(terminal.process(), Signal::TERM).unwrap();
        terminal.assert_restored("0");
    }
    if cfg!(debug_assertions) {
        fs::remove_file(folder.0.join("after")).unwrap();
        let terminal =
            Terminal::start(&folder, "second", "TOWPATH_TOP_PANIC=1 RUST_BACKTRACE=0", "");
        let screen = terminal.assert_restored("101");
        assert!(screen.contains("TOWPATH_TOP_PANIC is set"), "{screen}");
    }
    fs::remove_file(folder.0.join("after")).unwrap();
    let terminal = Terminal::start(&folder, "third", "", "");
    terminal.wait_for("the flows", |screen| flows(screen).len() == 2);
    running.signal(Signal::TERM);
    assert_eq!(finish(running).status.code(), Some(128 + 15));
    let screen = terminal.wait_for_text("the instance has ended");
    assert_eq!(flows(&screen).len(), 2, "{screen}");
    terminal.keys(&["i"]);
    terminal.wait_for_text("no towpath of this user is running");
    terminal.keys(&["q"]);
    terminal.assert_restored("0");
}

/// Goal: Ctrl-Z gives the terminal back until the shell continues the job, which then draws its
/// screen and takes keys again.
#[test]
fn ctrl_z_stops_it_and_fg_continues_it() {
    skip_if!(no_tmux());
    let folder = Folder::new("top-stopped");
    let _running = start_busy(&folder, server(), &[]);
    let terminal = Terminal::start(&folder, "tmux", "", "; echo it is stopped; read line; fg");
    terminal.wait_for("the flows", |screen| flows(screen).len() == 2);
    terminal.keys(&["C-z"]);
    let screen = terminal.wait_for_text("it is stopped");
    assert!(!screen.contains("towpath top  "), "{screen}");
    // The shell reads a line, as it can on a terminal that is back in its mode.
    terminal.keys(&["Enter"]);
    terminal.wait_for("the flows", |screen| flows(screen).len() == 2);
    terminal.keys(&["h"]);
    terminal.wait_for_text("reverse the order");
    terminal.keys(&["q"]);
    terminal.assert_restored("0");
}

/// Goal: of several instances, one is chosen from a list, and one that vanishes leaves the list.
#[test]
fn a_list_of_instances() {
    skip_if!(no_tmux());
    let Network { folder, running: network } = Network::start("top-list");
    let running = start_busy(&folder, server(), &[]);
    assert_fails(&once(&folder, &[]), "several instances are running, with PIDs ");
    let terminal = Terminal::start(&folder, "tmux", "", "");
    let screen = terminal.wait_for("both", |screen| {
        screen.contains(" up --no-gateway") && screen.contains("run -q -4")
    });
    assert!(screen.starts_with("towpath top  instances"), "{screen}");
    // The busy one comes first.
    terminal.wait_for("rates", |screen| {
        screen.lines().nth(2).is_some_and(|line| line.contains("run -q -4") && line.contains('M'))
    });
    terminal.keys(&["Enter"]);
    terminal.wait_for("its flows", |screen| flows(screen).len() == 2);
    terminal.keys(&["i"]);
    terminal.wait_for_text("towpath top  instances");
    running.signal(Signal::TERM);
    finish(running);
    terminal.wait_for("one to leave", |screen| {
        screen.contains(" up --no-gateway") && !screen.contains("run -q -4")
    });
    terminal.keys(&["Enter"]);
    let screen = terminal.wait_for("ports", |screen| {
        let is_port = |line: &str| line.starts_with("a  ") && line.contains("waiting");
        screen.lines().any(is_port)
    });
    assert!(screen.contains("PORT") && screen.contains("stations 0"), "{screen}");
    terminal.keys(&["Enter"]);
    terminal.wait_for_text("dropped.device");
    terminal.keys(&["Tab"]);
    terminal.wait_for_text("no flows");
    network.signal(Signal::TERM);
    assert_eq!(finish(network).status.code(), Some(0));
    terminal.wait_for_text("the instance has ended");
    terminal.keys(&["q"]);
    terminal.assert_restored("0");
}

/// Goal: one interval as text and as JSON, with flows of each kind, those of all workers together.
#[test]
fn one_interval_for_scripts() {
    skip_if!(no_tap());
    let folder = Folder::new("top-once");
    let port = server();
    let running = start_busy(&folder, port, &["--workers", "3"]);
    let pid = running.pid().to_string();
    let wanted = |flows: &[Value]| {
        let is_known = |flow: &&Value| flow["bytes-in"].as_u64().is_some_and(|bytes| bytes > 0);
        flows.iter().filter(is_known).count() == 2
    };
    let mut object = Value::Null;
    wait_for("both flows", || {
        let done = once(&folder, &[&pid, "--json"]);
        assert_eq!(done.status.code(), Some(0), "{}", errors(&done));
        object = serde_json::from_str(&text(&done)).unwrap();
        wanted(object["flow_list"].as_array().unwrap())
    });
    assert_eq!((&object["pid"].to_string(), &object["flows_open"]), (&pid, &2.into()));
    let mut rates = Vec::new();
    for flow in object["flow_list"].as_array().unwrap() {
        assert_eq!(flow["peer"], format!("{HOST}:{port}"));
        assert_eq!((&flow["protocol"], &flow["begun-by"]), (&"tcp".into(), &"program".into()));
        assert!(flow["worker"].as_u64().is_some_and(|worker| worker < 3), "{flow}");
        let info = &flow["tcp"];
        assert!(info["rtt-us"].as_u64().is_some_and(|rtt| rtt > 0), "{flow}");
        assert!(info["cwnd"].as_u64().is_some_and(|cwnd| cwnd > 0), "{flow}");
        rates.push(flow["rate-in"].as_f64().unwrap());
    }
    // The sums and the flows are asked for one after the other.
    let (sum, all) = (rates.iter().sum::<f64>(), object["bytes_in"].as_f64().unwrap());
    assert!(sum > 0.5 * all && sum < 2.0 * all, "{object}");
    assert!(object["dropped_by_reason"].is_object() && object["copies_per_byte"].is_f64());

    let reported = text(&once(&folder, &[]));
    assert!(reported.starts_with(&format!("pid {pid}  run -q -4")), "{reported}");
    assert_eq!(flows(&reported).len(), 2, "{reported}");
    let is_of_workers = |line: &str| line.starts_with("workers ") && line.ends_with(" of 3");
    assert!(
        reported.lines().any(is_of_workers) && reported.contains("PROTO  PROGRAM"),
        "{reported}"
    );
}

/// Goal: flows of UDP, and of connections past the stack, are listed with their bytes.
#[test]
fn flows_of_other_kinds() {
    skip_if!(no_tap());
    let folder = Folder::new("top-kinds");
    let port = server();
    let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    let udp = socket.local_addr().unwrap().port();
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf '\\001' >&3; exec 4<>/dev/udp/{HOST}/{udp}; \
         printf '12345' >&4; exec cat <&3 >/dev/null"
    );
    let mut command = towpath(["run", "-q", "-4", "--map-host-loopback", HOST]);
    command.args(["--host-tcp-ports", &port.to_string(), "--", "bash", "-c", &script]);
    let running = Guard(command.env("XDG_RUNTIME_DIR", &folder.0).spawn().unwrap());
    init_and_command(&running, "cat");
    let mut flows = Vec::new();
    let is_there =
        |flows: &[Value], protocol: &str| flows.iter().any(|flow| flow["protocol"] == protocol);
    wait_for("both flows", || {
        let done = once(&folder, &["--json"]);
        assert_eq!(done.status.code(), Some(0), "{}", errors(&done));
        let object: Value = serde_json::from_str(&text(&done)).unwrap();
        flows = object["flow_list"].as_array().unwrap().clone();
        is_there(&flows, "udp") && is_there(&flows, "joined")
    });
    let of = |protocol: &str| flows.iter().find(|flow| flow["protocol"] == protocol).unwrap();
    let (udp_flow, joined) = (of("udp"), of("joined"));
    assert_eq!(udp_flow["peer"], format!("{HOST}:{udp}"));
    assert_eq!((&udp_flow["state"], &udp_flow["bytes-out"]), (&"loopback".into(), &5.into()));
    assert!(udp_flow["program"].as_str().is_some_and(|from| from.starts_with("10.0.2.15:")));
    assert_eq!(joined["peer"], format!("127.0.0.1:{port}"));
    assert_eq!((&joined["state"], &joined["bytes-out"]), (&"open".into(), &1.into()));
    assert!(joined["program"].as_str().is_some_and(|from| from.starts_with("127.0.0.1:")));
    assert!(joined["bytes-in"].as_u64().is_some_and(|bytes| bytes > 0), "{joined}");
    assert_eq!((&joined["tcp"], &udp_flow["tcp"]), (&Value::Null, &Value::Null));
}

/// Goal: the flows of a network's gateway are listed as well, and requests that make no sense are
/// refused. Bad input: queries without sense, other methods.
#[test]
fn flows_on_the_control_socket() {
    let network = Network::start("top-http");
    let get = |target: &str| network.raw(format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes());
    let page = get("/v1/flows");
    assert_eq!(status(&page), 200);
    assert!(page.contains("\"flows\":[]") && page.contains("\"next\":null"), "{page}");
    for target in [
        "/v1/flows?worker=1",
        "/v1/flows?worker=-1",
        "/v1/flows?most=x",
        "/v1/flows?other=1",
        "/v1/flows?from=18446744073709551616",
    ] {
        assert_eq!(status(&get(target)), 400, "{target}");
    }
    for target in [
        "/v1/flows?from=18446744073709551615",
        "/v1/flows?most=18446744073709551615",
        "/v1/flows?from=4294967295&moved-min=18446744073709551615",
    ] {
        assert_eq!(status(&get(target)), 200, "{target}");
    }
    assert_eq!(status(&network.raw(b"POST /v1/flows HTTP/1.1\r\n\r\n")), 405);
    assert_eq!(status(&get("/v1/flowss")), 404);
}

/// Goal: what cannot be shown is an error that says what to do. Bad input: no terminal, no
/// instance, wrong options, an instance that answers nonsense.
#[test]
fn what_cannot_be_watched_is_an_error() {
    let network = Network::start("top-wrong");
    let folder = &network.folder;
    let piped = output(&mut top(&folder.0, &[]));
    assert_fails(&piped, "standard output is no terminal; `towpath top --once` writes");
    assert_eq!(text(&piped), "", "nothing is written to it");
    assert_fails(
        &output(&mut top(&folder.0, &["2147483647"])),
        "no towpath of this user has PID 2147483647",
    );
    let missing = ["--socket", "/no/such", "--once"];
    assert_fails(&output(&mut top(&folder.0, &missing)), "no towpath answers at /no/such");
    for wrong in [
        &["0"][..],
        &["--interval", "0"],
        &["--interval", "3601"],
        &["--interval", "x"],
        &["--json"],
        &["7", "--socket", "x"],
        &["--no-such"],
    ] {
        let refused = output(&mut top(&folder.0, wrong));
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}: {}", errors(&refused));
    }
    let empty = Folder::new("top-none");
    assert_fails(&once(&empty, &[]), "no towpath is running");

    let path = folder.0.join("nonsense");
    let listener = UnixListener::bind(&path).unwrap();
    let answering = thread::spawn(move || {
        // The first connection only checks whether a process listens; the last one asks again
        // whether it still does.
        drop(listener.accept().unwrap());
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n[[[").unwrap();
        drop(stream);
        drop(listener.accept().unwrap());
    });
    let nonsense = once(folder, &["--socket", path.to_str().unwrap()]);
    assert_fails(&nonsense, "is not a control socket of towpath");
    answering.join().unwrap();
}
