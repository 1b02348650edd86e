//! Connections of the host's loopback to published ports, which bypass the stack.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::support::{
    Checker, Family, Host, PATIENCE, Pattern, Process, Stats, TOWPATH, Test, Towpath, assert_rests,
    command, descriptors, inside, now, reset_on_drop, retry,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("join_published_attached", &["nsenter"], attached),
        Test::new("join_published_opener_killed", &[], opener_killed),
    ];
    for family in Family::BOTH {
        type Body = fn(&mut Host, Family);
        let bodies: [(&str, Body); 7] = [
            ("both_ways", both_ways),
            ("who_asks", who_asks),
            ("refused", refused),
            ("server_resets", server_resets),
            ("client_resets", client_resets),
            ("connections_200_at_once", all_at_once),
            ("no_descriptor_left", no_descriptor_left),
        ];
        for (name, body) in bodies {
            let name = format!("join_published_{name}_{}", family.name());
            tests.push(Test::new(name, &[], move |host| body(host, family)));
        }
    }
    tests
}

/// Port of the host; `INSIDE` is that of the program.
const PORT: u16 = 2002;
const INSIDE: u16 = 3002;
/// Descriptors of sockets that wait inside for use, and of pipes that may be kept; see limits.md.
const KEPT: usize = 32 + 2 * 8;

/// Starts a towpath with a program that listens at `INSIDE`.
fn serving(options: &[&str], role: &str) -> Process {
    serving_by(Towpath::new(joining(options)), role)
}

fn joining<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&["--join-published", "-t", "2002:3002"], options].concat()
}

fn serving_by(towpath: Towpath, role: &str) -> Process {
    let mut towpath = towpath.start(inside(role, &[&INSIDE.to_string()]));
    towpath.wait_for_text("listening");
    towpath
}

fn open(family: Family) -> TcpStream {
    try_open(family.loopback()).expect("a published port")
}

fn try_open(address: IpAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::new(address, PORT), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn ask(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"question")?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer)?;
    assert_eq!(&answer, b"question");
    Ok(())
}

/// Ends the program; returns the counters.
fn stats_of(towpath: Process) -> Stats {
    towpath.signal(Signal::TERM);
    Stats::of(&towpath.finish())
}

/// Goal: large streams pass whole in both directions at once, the client closes its half first, and
/// the stack sees nothing of it.
/// Method: an echo server inside; with one worker and with two.
fn both_ways(_: &mut Host, family: Family) {
    const BYTES: u64 = (64 << 20) + 1;
    for workers in ["1", "2"] {
        let towpath = serving(&["--workers", workers], "echo-server");
        let stream = open(family);
        let reading = stream.try_clone().expect("a copy");
        let reader = thread::spawn(move || Checker::new(Pattern::new(BYTES)).read_all(reading));
        Pattern::new(BYTES).write_to(&stream).expect("sent");
        stream.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!(reader.join().expect("no panic"), Ok(BYTES));
        let stats = stats_of(towpath);
        assert_eq!((stats.out, stats.r#in), (0, 0), "nothing passed the stack");
        assert_eq!(stats.number("joined", "in"), 1);
        assert_eq!(stats.joined_bytes(), [BYTES, BYTES]);
    }
}

/// Goal: the program sees its own address for clients on the host's loopback. For other clients,
/// which go through the stack, it sees the same address as without joining.
fn who_asks(host: &mut Host, family: Family) {
    host.outside();
    let mut towpath = serving(&[], "echo-server");
    ask(&mut open(family)).expect("an answer");
    let own = match family {
        Family::V4 => "10.0.2.15",
        Family::V6 => "fd74:6f77:7061:7468::15",
    };
    towpath.wait_for_text(&format!("from {own}\n"));
    let asked = host.outside().run(|| try_open(family.host()).and_then(|mut s| ask(&mut s)));
    asked.expect("an answer");
    towpath.wait_for_text(&format!("from {}\n", family.outside()));
    let stats = stats_of(towpath);
    assert_eq!(stats.number("joined", "in"), 1);
    assert_eq!(stats.joined_bytes(), [8, 8]);
    assert_eq!((stats.out, stats.r#in), (8, 8));
}

/// Goal: a port that the program refuses is reset, and a service on its loopback only is refused,
/// as without joining.
/// Method: a closed port, then services at 127.0.0.1 and ::1.
fn refused(_: &mut Host, family: Family) {
    let only_loopback = SocketAddr::new(family.loopback(), INSIDE).to_string();
    for role in [inside("echo-server", &["3003"]), inside("echo-server-at", &[&only_loopback])] {
        let mut towpath = Towpath::new(joining(&[])).start(role);
        towpath.wait_for_text("listening");
        // The reset may arrive before connecting has returned.
        let asked = try_open(family.loopback()).and_then(|mut stream| ask(&mut stream));
        let error = asked.expect_err("refused").kind();
        assert!(matches!(error, io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe));
        let stats = stats_of(towpath);
        assert_eq!(stats.number("joined", "refused"), 1);
        assert_eq!((stats.out, stats.r#in), (0, 0), "nothing passed the stack");
    }
}

/// Goal: the program's reset in the middle of a stream arrives as a reset.
fn server_resets(_: &mut Host, family: Family) {
    let towpath = serving(&[], "reset-server");
    let mut stream = open(family);
    stream.write_all(b"reset").expect("sent");
    let end = io::copy(&mut stream, &mut io::sink()).expect_err("no end but a reset");
    assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(stats_of(towpath).number("joined", "in"), 1);
}

/// Goal: a client's reset arrives at the program as a reset.
fn client_resets(_: &mut Host, family: Family) {
    let mut towpath = serving(&[], "reset-server");
    let mut stream = open(family);
    stream.write_all(b"never").expect("sent");
    stream.read_exact(&mut [0; 100_000]).expect("a start");
    reset_on_drop(&stream);
    drop(stream);
    towpath.wait_for_text("ended by ConnectionReset\n");
    assert_eq!(stats_of(towpath).number("joined", "in"), 1);
}

/// Goal: each connection of a burst is served, joined or by the stack, and everything is released.
fn all_at_once(host: &mut Host, family: Family) {
    let towpath = serving(&[], "echo-server");
    let at_start = descriptors(towpath.pid()) + KEPT;
    let mut streams: Vec<TcpStream> = (0..200).map(|_| open(family)).collect();
    streams.iter_mut().for_each(|stream| ask(stream).expect("an answer"));
    drop(streams);
    retry("sockets to be closed", || host.sockets().is_empty().then_some(()));
    retry("descriptors to be closed", || (descriptors(towpath.pid()) <= at_start).then_some(()));
    let stats = stats_of(towpath);
    let joined = stats.number("joined", "in");
    assert!(joined >= 8, "the first sockets are there at the start: {joined}");
    assert_eq!(joined + stats.number("flows", "in"), 200);
    assert_eq!(stats.number("joined", "now"), 0);
    assert_eq!(stats.joined_bytes(), [8 * joined, 8 * joined]);
}

/// Goal: with no descriptor left nothing spins, and connections are served when others have ended.
/// Method: towpath may have 64 descriptors, and gets 100 connections.
fn no_descriptor_left(_: &mut Host, family: Family) {
    let few = ["prlimit", "--nofile=64:64"];
    let towpath = serving_by(Towpath::new(joining(&[])).by(few), "echo-server");
    let mut streams: Vec<TcpStream> = (0..100).map(|_| open(family)).collect();
    let rest = streams.split_off(90);
    ask(&mut streams[0]).expect("an answer");
    assert_rests(towpath.pid(), Duration::from_secs(1), 2);
    drop(streams);
    rest.into_iter().for_each(|mut stream| ask(&mut stream).expect("a late answer"));
    ask(&mut open(family)).expect("an answer");
    let stats = stats_of(towpath);
    assert!(stats.dropped("no_descriptor") > 0);
}

/// Goal: without the socket opener inside, the stack serves, and nothing spins.
/// Method: the opener is the child of process 1 that exists before the program; it is killed.
fn opener_killed(_: &mut Host) {
    let towpath = serving(&[], "echo-server");
    let children = |pid: i32| -> Vec<i32> {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let text = std::fs::read_to_string(path).expect("/proc");
        text.split_ascii_whitespace().map(|pid| pid.parse().expect("a number")).collect()
    };
    let opener = children(children(towpath.pid())[0])[0];
    kill_process(Pid::from_raw(opener).expect("a number"), Signal::KILL).expect("killed");
    let begun = now();
    // Sockets that were opened before are closed once towpath has noticed.
    while begun.elapsed() < PATIENCE {
        ask(&mut open(Family::V4)).expect("an answer");
        if towpath.stdout().contains(&format!("from {}\n", Family::V4.gateway())) {
            break;
        }
    }
    assert_rests(towpath.pid(), Duration::from_secs(1), 2);
    assert!(stats_of(towpath).number("flows", "in") > 0, "none by the stack");
}

/// Goal: an existing namespace is served too, by a process that ends with towpath.
/// Method: an echo server in a new namespace, and `attach`.
fn attached(host: &mut Host) {
    let mut other = command("unshare", ["--net"]);
    other.args(inside("echo-server", &[&INSIDE.to_string()]));
    let mut other = Process::start(other);
    other.wait_for_text("listening");
    let pid = other.pid().to_string();
    let options = ["attach", "--stats", "--join-published", "-t", "2002:3002", &pid];
    let mut towpath = Process::start(command(TOWPATH, options));
    retry("the port to be published", || {
        assert_eq!(towpath.poll(), None, "{}", towpath.stderr());
        try_open(Family::V4.loopback()).ok().map(drop)
    });
    ask(&mut open(Family::V4)).expect("an answer");
    ask(&mut open(Family::V6)).expect("an answer");
    retry("sockets to be closed", || host.sockets().is_empty().then_some(()));
    let stats = stats_of(towpath);
    assert_eq!(stats.joined_bytes(), [16, 16]);
    assert_eq!((stats.out, stats.r#in), (0, 0), "nothing passed the stack");
    other.signal(Signal::TERM);
    other.finish();
}
