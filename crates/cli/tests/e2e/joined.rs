//! Ports of the program's loopback that lead to the host's and bypass the stack.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use rustix::process::Signal;

use super::support::{
    Checker, Family, Host, PATIENCE, Pattern, Process, Server, Stats, TOWPATH, Test, Towpath,
    assert_rests, command, descriptors, digest_of, echo, http, inside, program_of, reset_on_drop,
    retry,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = vec![Test::new("joined_attached", &["nsenter"], attached)];
    for family in Family::BOTH {
        type Body = fn(&mut Host, Family);
        let bodies: [(&str, &'static [&'static str], Body); 8] = [
            ("fetch_and_upload", &["curl"], fetch_and_upload),
            ("half_close", &[], half_close),
            ("refused", &[], refused),
            ("server_resets", &[], server_resets),
            ("client_resets", &[], client_resets),
            ("connections_200_at_once", &[], all_at_once),
            ("no_descriptor_left", &[], no_descriptor_left),
            ("program_ends_first", &[], program_ends_first),
        ];
        for (name, programs, body) in bodies {
            let name = format!("joined_{name}_{}", family.name());
            tests.push(Test::new(name, programs, move |host| body(host, family)));
        }
    }
    tests
}

/// The port inside that leads to a server.
const INSIDE: u16 = 4000;

/// Returns the address of `INSIDE` on the program's loopback, and the option that leads it to
/// `port`.
fn leading_to(port: u16, family: Family) -> (String, [String; 2]) {
    let address = SocketAddr::new(family.loopback(), INSIDE).to_string();
    (address, ["-T".to_owned(), format!("{INSIDE}:{port}")])
}

/// Asserts the joined connections and bytes, and that the stack saw nothing of them.
fn assert_joined(stats: &Stats, connections: u64, out: u64, r#in: u64, extra: u64) {
    assert_eq!((stats.out, stats.r#in), (0, 0), "nothing passed the stack");
    assert_eq!(stats.number("joined", "in"), connections);
    let [came_out, came_in] = stats.joined_bytes();
    assert!((out..=out + extra).contains(&came_out), "{came_out} of {out} bytes out");
    assert!((r#in..=r#in + extra).contains(&came_in), "{came_in} of {in} bytes in", r#in = r#in);
}

const BYTES: u64 = 64 << 20;

/// Goal: data that a program fetches from, and sends to, a server on the host's loopback arrives
/// unchanged, and the stack sees nothing of it.
/// Method: curl inside at 127.0.0.1 or ::1; SHA-256.
fn fetch_and_upload(host: &mut Host, family: Family) {
    let server = Server::start(family.loopback(), http);
    let (address, option) = leading_to(server.port(), family);
    let file = host.file("data");
    Pattern::new(BYTES).write_to(std::fs::File::create(&file).expect("a file")).expect("written");
    let base = format!("http://{address}");
    let curl = "curl -sS --noproxy '*' -m 120";
    let file = file.to_str().expect("text");
    let script = format!("{curl} {base}/{BYTES} | sha256sum; {curl} -T {file} {base}/");
    let output = Towpath::new(option).run(["sh", "-c", script.as_str()]);
    let stats = Stats::of(&output);
    let text = output.success();
    let digest = digest_of(BYTES);
    assert!(text.starts_with(&digest) && text.ends_with(&digest), "{text}");
    assert_joined(&stats, 2, BYTES, BYTES, 2048);
}

/// Goal: after the program's FIN the other direction still works, to its own end.
fn half_close(_: &mut Host, family: Family) {
    let server = Server::start(family.loopback(), |mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all)?;
        stream.write_all(&all)
    });
    let (address, option) = leading_to(server.port(), family);
    let output = Towpath::new(option).run(inside("half-close", &[&address, "5000001"]));
    let stats = Stats::of(&output);
    assert_eq!(output.success(), "read 5000001\n");
    assert_joined(&stats, 1, 5_000_001, 5_000_001, 0);
}

/// Goal: a connection that the host refuses is reset and counted.
fn refused(_: &mut Host, family: Family) {
    let (address, option) = leading_to(9, family);
    let output = Towpath::new(option).run(inside("await-reset", &[&address]));
    let stats = Stats::of(&output);
    // The reset may arrive before the program has sent anything.
    let text = &output.stdout;
    let is_reported = output.stderr.contains("reset") || output.stderr.contains("Broken pipe");
    assert!(text.starts_with("ConnectionReset after 0 ") || is_reported, "{text}{}", output.stderr);
    assert_eq!(stats.number("joined", "refused"), 1);
}

/// Goal: a reset in the middle of a stream arrives as a reset.
fn server_resets(_: &mut Host, family: Family) {
    let server = Server::start(family.loopback(), |mut stream| {
        stream.read_exact(&mut [0; 5])?;
        Pattern::new(1 << 20).write_to(&mut stream)?;
        reset_on_drop(&stream);
        Ok(())
    });
    let (address, option) = leading_to(server.port(), family);
    let text = Towpath::new(option).run(inside("await-reset", &[&address])).success();
    assert!(text.starts_with("ConnectionReset after "), "{text}");
}

/// Goal: a program's reset arrives at the server as a reset.
fn client_resets(_: &mut Host, family: Family) {
    let (sender, ends) = mpsc::channel();
    let server = Server::start(family.loopback(), move |mut stream: TcpStream| {
        let end = io::copy(&mut io::repeat(1), &mut stream);
        // A write may report the reset as a broken pipe; the socket keeps the error itself.
        let kind = stream.take_error()?.or(end.err()).map(|error| error.kind());
        let _ = sender.send(kind);
        Ok(())
    });
    let (address, option) = leading_to(server.port(), family);
    let text = Towpath::new(option).run(inside("reset", &[&address])).success();
    assert_eq!(text, "reset\n");
    let end = ends.recv_timeout(PATIENCE).expect("the server sees an end");
    let is_broken = matches!(end, Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe));
    assert!(is_broken, "{end:?}");
}

/// Descriptors that may be kept for the next flow: eight pipes, and those of the start.
const KEPT: usize = 2 * 8 + 4;

/// Goal: 200 connections are open at the same time, and each is released when it ends.
/// Method: a program opens them all, then asks over each; /proc has towpath's descriptors.
fn all_at_once(host: &mut Host, family: Family) {
    let server = Server::start(family.loopback(), echo);
    let (address, option) = leading_to(server.port(), family);
    let mut towpath = Towpath::new(option).start_held(inside("hold", &[&address, "200"]));
    program_of(towpath.pid());
    let at_start = descriptors(towpath.pid()) + KEPT;
    towpath.wait_for_text("answered 200");
    retry("sockets to be closed", || host.sockets().is_empty().then_some(()));
    retry("descriptors to be closed", || (descriptors(towpath.pid()) <= at_start).then_some(()));
    towpath.release();
    let output = towpath.finish();
    let stats = Stats::of(&output);
    assert!(output.success().starts_with("held 200\n"));
    assert_eq!(stats.number("joined", "now"), 0);
    assert_joined(&stats, 200, 1600, 1600, 0);
}

/// Goal: with no descriptor left, connections wait, none is lost, and nothing spins.
/// Method: towpath may have 64 descriptors, and a program makes 56 connections, then asks over one
/// after another and closes it. The program has the same limit, and what its caller left open.
fn no_descriptor_left(_: &mut Host, family: Family) {
    let server = Server::start(family.loopback(), echo);
    let (address, option) = leading_to(server.port(), family);
    let few = ["prlimit", "--nofile=64:64"];
    let mut towpath =
        Towpath::new(option).by(few).start_held(inside("ask-in-turn", &[&address, "56"]));
    towpath.wait_for_text("answered 56");
    assert_rests(towpath.pid(), Duration::from_secs(1), 2);
    towpath.release();
    let output = towpath.finish();
    let stats = Stats::of(&output);
    output.success();
    assert!(stats.dropped("no_descriptor") > 0);
    assert_joined(&stats, 56, 56 * 8, 56 * 8, 0);
}

/// Goal: data that a program sent before its end arrives, including its FIN, although the server
/// reads it only afterwards.
/// Method: as many bytes as the kernel's own buffers hold; the server reads when towpath has ended.
fn program_ends_first(_: &mut Host, family: Family) {
    const BYTES: u64 = 200_001;
    let (sender, results) = mpsc::channel();
    let (ended, may_read) = mpsc::channel::<()>();
    let may_read = Mutex::new(may_read);
    let server = Server::start(family.loopback(), move |stream| {
        let _ = may_read.lock().expect("no panic").recv_timeout(PATIENCE);
        let _ = sender.send(Checker::new(Pattern::new(BYTES)).read_all(&stream));
        Ok(())
    });
    let (address, option) = leading_to(server.port(), family);
    let output = Towpath::new(option).run(inside("send", &[&address, &BYTES.to_string()]));
    let stats = Stats::of(&output);
    output.success();
    ended.send(()).expect("a reader");
    assert_eq!(results.recv_timeout(PATIENCE).expect("an end"), Ok(BYTES));
    assert_joined(&stats, 1, BYTES, 0, 0);
}

/// Goal: an existing namespace is served too; a port in use inside is reported as an error, and
/// leaves nothing behind.
/// Method: an echo server in a new namespace, and `attach`.
fn attached(_: &mut Host) {
    let server = Server::start(Family::V4.loopback(), pattern);
    let echo = inside("echo-server", &[&INSIDE.to_string()]);
    let mut other = command("unshare", ["--net"]);
    other.args(echo);
    let mut other = Process::start(other);
    other.wait_for_text("listening");
    let pid = other.pid().to_string();
    let attach = |spec: String| command(TOWPATH, ["attach", "-T", &spec, &pid]);

    let refused = Process::start(attach(INSIDE.to_string())).finish();
    assert_eq!(refused.status.code(), Some(125), "{}", refused.stderr);
    let reported = "option --host-tcp-ports: TCP port 127.0.0.1:4000: in use inside";
    assert!(refused.stderr.contains(reported), "{}", refused.stderr);

    let mut towpath = Process::start(attach(format!("{}:{}", INSIDE + 1, server.port())));
    let net = format!("--net=/proc/{pid}/ns/net");
    retry("the port inside to be served", || {
        assert_eq!(towpath.poll(), None, "{}", towpath.stderr());
        let mut program = command("nsenter", [&net]);
        program.args(inside("download", &[&format!("127.0.0.1:{}", INSIDE + 1), "1000001"]));
        let output = Process::start(program).finish();
        (output.stdout == "read 1000001\n").then_some(())
    });
    towpath.signal(Signal::TERM);
    towpath.finish().success();
    other.signal(Signal::TERM);
    other.finish();
}

/// Sends a pattern.
fn pattern(stream: TcpStream) -> io::Result<()> {
    Pattern::new(1_000_001).write_to(stream)
}
