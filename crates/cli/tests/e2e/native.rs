//! `towpath run --native`: what is replaced, what is not, and that a hostile program gains nothing.

mod listening;
mod policed;

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use super::support::{
    Family, Host, Output, Pattern, Process, Server, Stats, THIS_V4, THIS_V6, TOWPATH, Test,
    Towpath, command, digest_of, echo, http, inside, retry, url_host,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for mode in ["names", "nonblocking", "options", "refused"] {
        let body = move |host: &mut Host| is_native(host, mode);
        tests.push(Test::new(format!("native_{mode}"), &["gcc"], body));
    }
    for mode in ["epoll_before", "dup_before"] {
        let body = move |host: &mut Host| is_not_native(host, mode);
        tests.push(Test::new(format!("native_{mode}"), &["gcc"], body));
    }
    for family in Family::BOTH {
        let name = format!("native_curl_{}", family.name());
        tests.push(Test::new(name, &["curl"], move |host| curl(host, family)));
        let name = format!("native_iperf_{}", family.name());
        tests.push(Test::new(name, &["iperf3"], move |host| iperf(host, family)));
    }
    tests.push(Test::new("native_listeners", &["gcc"], listeners));
    tests.push(Test::new("native_loopback", &["gcc"], mapped_loopback));
    tests.push(Test::new("native_refused_connections", &["gcc"], refused_connections));
    tests.push(Test::new("native_rewrite", &["gcc"], rewritten));
    tests.push(Test::new("native_swap", &["gcc"], swapped));
    tests.push(Test::new("native_closing", &["gcc"], closing));
    tests.push(Test::new("native_interrupted", &["gcc"], interrupted));
    tests.push(Test::new("native_many", &["gcc"], many).slow_unless(false));
    tests.push(Test::new("native_go", &["go"], go).slow_unless(false));
    tests.push(Test::new("native_python", &["python3"], python));
    tests.push(Test::new("native_supervisor_ends", &["gcc"], supervisor_ends));
    tests.push(Test::new("native_counters", &[], counters));
    tests.push(Test::new("native_ended", &["gcc"], ended));
    tests.push(Test::new("native_hidden", &["gcc"], hidden));
    tests.extend(listening::tests());
    tests.extend(policed::tests());
    tests.into_iter().map(|test| test.unless(unsupported)).collect()
}

/// Returns why this machine has no native sockets, if it has none.
pub(super) fn unsupported() -> Option<String> {
    let output = command(TOWPATH, ["run", "-q", "--native", "--", "true"]).output();
    let text = String::from_utf8_lossy(&output.expect("a program").stderr).into_owned();
    text.lines().find(|line| line.contains("option --native")).map(str::to_owned)
}

/// Returns the static test program.
fn program(host: &Host) -> PathBuf {
    built(host, "program", include_str!("native/program.c"))
}

/// Builds a static program in C.
fn built(host: &Host, name: &str, source: &str) -> PathBuf {
    host.write("check.h", include_str!("native/check.h"));
    let source = host.write(&format!("{name}.c"), source);
    let program = host.file(name);
    let words = ["-O2", "-static", "-pthread", "-o"].map(OsString::from);
    let paths = [program.clone().into(), source.into()];
    Process::start(command("gcc", words.into_iter().chain(paths))).finish().success();
    program
}

/// Starts an echo server at the host's own address, outside of its loopback.
fn outside(host: &mut Host) -> Server {
    host.outside();
    Server::start(address(THIS_V4), echo)
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn play(host: &Host, mode: &str, to: &str, port: u16, count: usize) -> Output {
    let program = program(host);
    let words = [mode, to, &port.to_string(), &count.to_string()].map(OsString::from);
    Towpath::new(["--native"]).run(std::iter::once(program.into()).chain(words))
}

/// Returns the native connections, and those that took the interface.
fn paths(output: &Output) -> (u64, u64) {
    let stats = Stats::of(output);
    (stats.number("native", "in"), stats.number("flows", "out"))
}

/// Goal: a static program's connection is native, and looks to it as on the interface.
fn is_native(host: &mut Host, mode: &str) {
    let server = outside(host);
    let output = play(host, mode, THIS_V4, server.port(), 1);
    assert!(output.status.success(), "{output:?}");
    let (native, interface) = paths(&output);
    assert!(native > 0 && interface == 0, "{}", output.stderr);
    if mode == "names" {
        assert_eq!(output.stdout, format!("peer {THIS_V4}\nown 10.0.2.15\n"));
    }
}

/// Goal: a socket that the program could reach in another way keeps to the interface, and works.
fn is_not_native(host: &mut Host, mode: &str) {
    let server = outside(host);
    let output = play(host, mode, THIS_V4, server.port(), 1);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(paths(&output), (0, 1), "{}", output.stderr);
    assert!(output.stderr.contains("not native        other_ways 1\n"), "{}", output.stderr);
}

/// Goal: listeners inside work, of TCP and of Unix sockets.
fn listeners(host: &mut Host) {
    let output = play(host, "listeners", THIS_V4, 1, 1);
    assert!(output.status.success(), "{output:?}");
}

/// Goal: the host's loopback is native under the address that stands for it, whose name the program
/// sees, and is not reached otherwise.
fn mapped_loopback(host: &mut Host) {
    let server = Server::start(address("127.0.0.1"), echo);
    let program = program(host);
    let port = server.port().to_string();
    let words = |to: &str| {
        let words = ["names", to, &port].map(OsString::from);
        std::iter::once(OsString::from(&program)).chain(words).collect::<Vec<_>>()
    };
    let output = Towpath::with_loopback(["--native"]).run(words("10.0.2.2"));
    assert_eq!(output.stdout, "peer 10.0.2.2\nown 10.0.2.15\n", "{output:?}");
    assert_eq!(paths(&output), (1, 0), "{}", output.stderr);
    for to in ["10.0.2.2", "127.0.0.1", "0.0.0.0"] {
        let output = Towpath::new(["--native"]).run(words(to));
        assert!(!output.status.success(), "{to}: {output:?}");
        assert!(output.stderr.contains("Connection refused"), "{to}: {}", output.stderr);
    }
}

/// Goal: a port without a listener is refused, to blocking and non-blocking programs.
fn refused_connections(host: &mut Host) {
    let port = outside(host).port();
    let at = format!("{THIS_V4}:{port}");
    let output = Towpath::new(["--native"]).run(inside("connect", &[&at]));
    assert!(output.stdout.starts_with(&format!("{at} ConnectionRefused ")), "{output:?}");
    let output = play(host, "names", THIS_V4, port, 1);
    assert!(output.stderr.contains("Connection refused"), "{output:?}");
    assert!(output.stderr.contains(" 1 refused;"), "{output:?}");
}

/// A listener on the host's loopback that must not be reached. It counts who comes.
struct Forbidden {
    came: Arc<AtomicUsize>,
    listener: Arc<TcpListener>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Forbidden {
    /// Listens on the same port as the server that may be reached.
    fn at(port: u16) -> Self {
        let listener = Arc::new(TcpListener::bind(("127.0.0.1", port)).expect("a port"));
        let came = Arc::new(AtomicUsize::new(0));
        let (accepting, counting) = (listener.clone(), came.clone());
        let thread = thread::spawn(move || {
            while accepting.accept().is_ok() {
                // Relaxed: read after the thread has ended.
                counting.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { came, listener, thread: Some(thread) }
    }

    /// Returns how many connections came.
    fn finish(mut self) -> usize {
        rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).expect("a listener");
        self.thread.take().expect("a thread").join().expect("no panic");
        // Relaxed: the thread that wrote has ended.
        self.came.load(Ordering::Relaxed)
    }
}

/// Goal: a program that changes the address during the call reaches the address that was decided,
/// and never one that is forbidden.
/// Method: a thread rewrites the address, with one of the host's loopback among others.
fn rewritten(host: &mut Host) {
    let server = outside(host);
    let forbidden = Forbidden::at(server.port());
    let output = play(host, "rewrite", THIS_V4, server.port(), 2000);
    assert!(output.status.success(), "{output:?}");
    let connected = output.stdout.strip_prefix("connected ").map(|count| count.trim().parse());
    assert!(matches!(connected, Some(Ok(1..))), "{output:?}");
    assert_eq!(forbidden.finish(), 0);
}

/// Goal: a program that changes what the descriptor means during the call, and so frees a native
/// socket from its peer, reaches no other with it and cannot listen.
fn swapped(host: &mut Host) {
    let server = outside(host);
    let forbidden = Forbidden::at(server.port());
    let output = play(host, "swap", THIS_V4, server.port(), 20_000);
    assert_eq!(output.stdout, "swapped\n", "{output:?}");
    assert_eq!(forbidden.finish(), 0);
}

/// Goal: descriptors that are closed or replaced during the call stall no other call.
fn closing(host: &mut Host) {
    let server = outside(host);
    let output = play(host, "closing", THIS_V4, server.port(), 2000);
    assert!(output.status.success(), "{output:?}");
}

/// Goal: calls that wait can be interrupted, and processes that wait can be executed anew and
/// killed; others connect meanwhile.
fn interrupted(host: &mut Host) {
    let server = outside(host);
    let output = play(host, "interrupted", THIS_V4, server.port(), 20);
    assert!(output.status.success(), "{output:?}");
}

/// Goal: ten thousand connections leave nothing behind, and all are counted.
fn many(host: &mut Host) {
    const COUNT: usize = 10_000;
    let server = outside(host);
    let output = play(host, "many", THIS_V4, server.port(), COUNT);
    assert_eq!(output.stdout, format!("made {COUNT}\n"), "{output:?}");
    assert_eq!(paths(&output), (COUNT as u64, 0), "{}", output.stderr);
}

/// Goal: curl downloads and uploads; the bytes bypass the stack and are counted.
fn curl(host: &mut Host, family: Family) {
    const BYTES: u64 = 3_000_000;
    host.outside();
    let at = address(if family == Family::V4 { THIS_V4 } else { THIS_V6 });
    let server = Server::start(at, http);
    let url = format!("http://{}:{}", url_host(at), server.port());
    let file = host.write("file", Pattern::new(BYTES).bytes());
    let script =
        format!("curl -sf {url}/{BYTES} | sha256sum && curl -sf -T {} {url}/up", file.display());
    let output = Towpath::new(["--native"]).run(["sh", "-c", &script]);
    let digest = digest_of(BYTES);
    assert_eq!(output.stdout, format!("{digest}  -\n{digest}"), "{output:?}");
    assert_eq!(paths(&output), (2, 0), "{}", output.stderr);
    let stats = Stats::of(&output);
    stats.assert_bytes(0, 0, 0);
    let [out, into] = native_bytes(&output);
    let expected = BYTES..BYTES + 2000;
    assert!(expected.contains(&out) && expected.contains(&into), "{}", output.stderr);
}

/// Returns the native bytes, out and in.
fn native_bytes(output: &Output) -> [u64; 2] {
    let line = output.stderr.lines().find(|line| line.starts_with("native "));
    let words: Vec<&str> = line.expect("a line").split_ascii_whitespace().collect();
    let before = |word| words.windows(3).find(|three| three[1..] == ["bytes", word]);
    ["out,", "in"].map(|word| before(word).and_then(|three| three[0].parse().ok()).expect(word))
}

/// Goal: iperf3 works in both directions at once.
fn iperf(host: &mut Host, family: Family) {
    host.outside();
    let at = if family == Family::V4 { THIS_V4 } else { THIS_V6 };
    let server = ["-s", "-1", "--forceflush", "-p", "5201", "-B", at];
    let mut server = Process::start(command("iperf3", server));
    server.wait_for_text("Server listening");
    let client = ["iperf3", "-t", "1", "-p", "5201", "--bidir", "-c", at];
    let output = Towpath::new(["--native"]).run(client);
    assert!(output.status.success(), "{output:?}");
    server.finish().success();
    assert_eq!(paths(&output), (3, 0), "{}", output.stderr);
}

/// Goal: a Go program, which has many threads and a poller of its own, connects natively.
fn go(host: &mut Host) {
    const COUNT: usize = 200;
    let server = outside(host);
    let source = host.write("main.go", include_str!("native/main.go"));
    let program = host.file("go-program");
    let words = ["build", "-o"].map(OsString::from);
    let mut build = command("go", words.into_iter().chain([program.clone().into(), source.into()]));
    build.env("GOCACHE", host.file("cache")).env("HOME", host.file("")).env("GO111MODULE", "off");
    build.env("CGO_ENABLED", "0");
    Process::start(build).finish().success();
    let at = format!("{THIS_V4}:{}", server.port());
    let command = [program.into(), OsString::from(at), COUNT.to_string().into()];
    let output = Towpath::new(["--native"]).run(command);
    assert_eq!(output.stdout, format!("echoed {COUNT}\n"), "{output:?}");
    assert_eq!(paths(&output), (COUNT as u64, 0), "{}", output.stderr);
}

/// Goal: Python's event loop and its blocking sockets connect natively.
fn python(host: &mut Host) {
    let server = outside(host);
    let script = "\
import asyncio, socket, sys
at = (sys.argv[1], int(sys.argv[2]))
with socket.create_connection(at) as plain:
    plain.sendall(b'one')
    print(plain.recv(3), plain.getpeername() == at, plain.getsockname()[0])
async def ask():
    reader, writer = await asyncio.open_connection(*at)
    writer.write(b'two')
    print(await reader.readexactly(3), writer.get_extra_info('peername') == at)
    writer.close()
asyncio.run(ask())
";
    let port = server.port().to_string();
    let output = Towpath::new(["--native"]).run(["python3", "-c", script, THIS_V4, &port]);
    let expected = "b'one' True 10.0.2.15\nb'two' True\n";
    assert_eq!(output.stdout, expected, "{output:?}");
    assert_eq!(paths(&output), (2, 0), "{}", output.stderr);
}

/// Goal: if the supervisor is killed, calls fail, none hangs, and the user learns of it.
fn supervisor_ends(host: &mut Host) {
    let server = outside(host);
    let program = program(host);
    let script = "echo ready; read line; \"$@\"; echo code $?";
    let words = ["names", THIS_V4, &server.port().to_string()].map(OsString::from);
    let shell = ["sh", "-c", script, "sh"].map(OsString::from);
    let all = shell.into_iter().chain([program.into()]).chain(words);
    let mut towpath = Process::start_held(Towpath::new(["--native"]).command(all));
    // Before, process 1 has the listener as well.
    towpath.wait_for_text("ready");
    let supervisor = retry("the supervisor to start", || supervisor_of(towpath.pid()));
    let pid = rustix::process::Pid::from_raw(supervisor).expect("a number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("a process");
    towpath.wait_for_text("the process that --native needs has ended");
    towpath.release();
    let output = towpath.finish();
    assert!(output.stdout.contains("code 1\n"), "{output:?}");
    assert!(output.stderr.contains("Function not implemented"), "{output:?}");
}

/// Returns the process that has the listener of the program's calls.
fn supervisor_of(towpath: i32) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{towpath}/task/{towpath}/children"));
    let children = children.ok()?;
    children.split_ascii_whitespace().find_map(|child| {
        let files = std::fs::read_dir(format!("/proc/{child}/fd")).ok()?;
        let mut links = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
        let is_listener = |link: PathBuf| link.to_string_lossy().contains("seccomp notify");
        links.any(is_listener).then(|| child.parse().ok())?
    })
}

/// Goal: an open native connection is counted and listed while it is open.
fn counters(host: &mut Host) {
    host.outside();
    let server = Server::start(address(THIS_V4), |mut stream| {
        io::Write::write_all(&mut stream, &[7; 5000])?;
        echo(stream)
    });
    let at = format!("{THIS_V4}:{}", server.port());
    let script = "exec 3<>/dev/tcp/${0%:*}/${0#*:}; echo hello >&3; head -c 5006 <&3 | wc -c; \
                  read line; true";
    let towpath = Towpath::new(["--native"]).found_by(host);
    let mut towpath = Process::start_held(towpath.command(["bash", "-c", script, &at]));
    towpath.wait_for_text("5006");
    let ask = |words: &[&str]| asked(host, words).success();
    let pid = towpath.pid().to_string();
    let stats: serde_json::Value =
        serde_json::from_str(&ask(&["stats", "--json", &pid])).expect("an object");
    let native = &stats["native"];
    assert_eq!(native["flows"], 1, "{stats}");
    assert_eq!((&native["bytes_out"], &native["bytes_in"]), (&6.into(), &5006.into()), "{stats}");
    let flows = ask(&["top", "--once", "--json", &pid]);
    assert!(flows.contains("\"native\"") && flows.contains(&at), "{flows}");
    towpath.release();
    let output = towpath.finish();
    assert!(output.status.success(), "{output:?}");
}

/// Runs towpath for an instance that is found by this host.
fn asked(host: &Host, words: &[&str]) -> Output {
    let mut asking = command(TOWPATH, words);
    asking.env("XDG_RUNTIME_DIR", host.file(""));
    Process::start(asking).finish()
}

/// Starts the test program, and waits until it has written `text`.
fn begun(host: &Host, mode: &str, port: u16, text: &str) -> Process {
    let words = [mode, THIS_V4, &port.to_string()].map(OsString::from);
    let words = std::iter::once(program(host).into()).chain(words);
    let towpath = Towpath::new(["--native"]).found_by(host);
    let mut towpath = Process::start_held(towpath.command(words));
    towpath.wait_for_text(text);
    towpath
}

/// Returns the only open flow, which is native.
fn native_flow(host: &Host, pid: &str) -> serde_json::Value {
    // A busy machine answers late.
    let listed = retry("a list of flows", || {
        let output = asked(host, &["flows", "--json", pid]);
        output.status.success().then_some(output.stdout)
    });
    let flow: serde_json::Value = serde_json::from_str(&listed).expect("one flow");
    assert_eq!(flow["path"], "native", "{flow}");
    flow
}

fn name_of(flow: &serde_json::Value) -> &str {
    flow["name"].as_str().expect("a name")
}

/// What a busy machine makes towpath say: the flow ends nevertheless.
const LATE: &str = "no answer yet; it may end later";

/// Ends a flow.
fn end_flow(host: &Host, pid: &str, name: &str) {
    let output = asked(host, &["flows", "--end", name, pid]);
    assert!(output.status.success() || output.stderr.contains(LATE), "{output:?}");
}

/// Asks for the end of a flow that is refused for a reason.
fn end_refused(host: &Host, pid: &str, name: &str, why: &str) {
    retry("an answer in time", || {
        let output = asked(host, &["flows", "--end", name, pid]);
        assert!(!output.status.success(), "{output:?}");
        let is_late = output.stderr.contains(LATE);
        assert!(is_late || output.stderr.contains(why), "{output:?}");
        (!is_late).then_some(())
    });
}

/// Goal: a native flow is ended by its name while several processes have its socket: the program
/// and the server see it, the program can do nothing with the socket, and connects anew.
fn ended(host: &mut Host) {
    host.outside();
    let (ends, end) = mpsc::channel();
    let server = Server::start(address(THIS_V4), move |stream| {
        let echoed = echo(stream);
        // The test may be over.
        let _ = ends.send(echoed.err().map(|error| error.kind()));
        Ok(())
    });
    let towpath = begun(host, "ended", server.port(), "open");
    let pid = towpath.pid().to_string();
    let flow = native_flow(host, &pid);
    let name = name_of(&flow);
    let listed = retry("a table of flows", || {
        let output = asked(host, &["flows", &pid]);
        output.status.success().then_some(output.stdout)
    });
    let line = listed.lines().find(|line| line.starts_with(name)).expect("a line");
    assert_eq!(line.split_ascii_whitespace().nth(1), Some("native"), "{listed}");
    end_refused(host, &pid, "9/native/77.1", "it is over already");
    end_flow(host, &pid, name);
    let output = towpath.finish();
    assert_eq!(output.stdout, "open\nanew\n", "{output:?}");
    let ends = [end.recv(), end.recv()];
    assert!(ends.contains(&Ok(Some(io::ErrorKind::ConnectionReset))), "{ends:?}");
    assert!(
        output.stderr.contains("native ended      1 on request or by a new policy\n"),
        "{}",
        output.stderr
    );
    assert_eq!(paths(&output), (2, 0), "{}", output.stderr);
}

/// Goal: a flow whose socket no process has open is not ended, and that is reported.
fn hidden(host: &mut Host) {
    let server = outside(host);
    let mut towpath = begun(host, "hidden", server.port(), "hidden");
    let pid = towpath.pid().to_string();
    let flow = native_flow(host, &pid);
    end_refused(host, &pid, name_of(&flow), "no process has its socket open now");
    towpath.release();
    let output = towpath.finish();
    assert!(output.status.success(), "{output:?}");
}
