//! Failed connects, and every way that connections end: both sides see what they would see without
//! a gateway.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::inside::STOP;
use super::support::{
    Checker, Family, Host, NONE, PATIENCE, Pattern, Server, Stats, Test, Towpath, at_each_mtu,
    inside, note, now, program_of, reset_on_drop, resident_kib,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for family in Family::BOTH {
        type Body = fn(&mut Host, Family);
        let bodies: [(&str, Body); 10] = [
            ("refused", refused),
            ("unreachable", unreachable),
            ("connect_times_out", connect_times_out),
            ("connecting_is_not_waited_for", connecting_is_not_waited_for),
            ("server_resets", server_resets),
            ("client_resets", client_resets),
            ("half_close", half_close),
            ("server_closes_first", server_closes_first),
            ("host_stops_reading", host_stops_reading),
            ("program_stops_reading", program_stops_reading),
        ];
        for (name, body) in bodies {
            let make = || {
                Test::new(format!("{name}_{}", family.name()), &[], move |host| {
                    body(host, family);
                })
            };
            let waits = name == "connect_times_out" || name.ends_with("stops_reading");
            let one = name == "host_stops_reading" && family == Family::V4;
            if waits {
                tests.push(make().slow_unless(one));
            } else {
                tests.extend(at_each_mtu(family, make));
            }
        }
    }
    tests
}

fn at_gateway(family: Family, server: &Server) -> String {
    SocketAddr::new(family.gateway(), server.port()).to_string()
}

/// Returns result and milliseconds that a role printed for `address`.
fn outcome(text: &str, address: &str) -> (String, u64) {
    let line = text.lines().find_map(|line| line.strip_prefix(address)?.strip_prefix(' '));
    let line = line.unwrap_or_else(|| panic!("no {address} in {text}"));
    let (kind, took) = line.split_once(' ').expect("two words");
    (kind.into(), took.parse().expect("a number"))
}

/// An error that comes from the host is reported within this time; one that comes from a timeout
/// takes longer.
const REPORT_MS_MAX: u64 = 20_000;

/// Goal: the program sees at once that the host refuses, over TCP and UDP.
/// Method: closed ports on the host's loopback and on another machine.
fn refused(host: &mut Host, family: Family) {
    host.outside();
    for address in [family.gateway(), family.outside()] {
        let address = SocketAddr::new(address, 9).to_string();
        for role in ["connect", "udp-refused"] {
            let text = Towpath::with_loopback(NONE).run(inside(role, &[&address])).success();
            let (kind, took) = outcome(&text, &address);
            assert_eq!(kind, "ConnectionRefused", "{role} {address}");
            assert!(took < REPORT_MS_MAX, "{role} {address}: {took} ms");
        }
    }
}

/// Goal: the program learns that a host or a network cannot be reached.
/// Method: destinations with an `unreachable` route, without a route, and on the link without an
/// answer.
fn unreachable(host: &mut Host, family: Family) {
    host.outside();
    let quiet = ["net/ipv4/neigh/out0/retrans_time_ms", "net/ipv6/neigh/out0/retrans_time_ms"];
    quiet.iter().for_each(|name| assert!(host.set(name, "100")));
    let at = |address| SocketAddr::new(address, 80).to_string();
    let cases = [
        (at(family.unreachable()), "HostUnreachable"),
        (at(family.unrouted()), "NetworkUnreachable"),
        (at(family.nobody()), "HostUnreachable"),
    ];
    for (address, expected) in &cases {
        for role in ["connect", "udp-refused"] {
            let text = Towpath::new(NONE).run(inside(role, &[address])).success();
            let (kind, took) = outcome(&text, address);
            assert_eq!(kind, *expected, "{role} {address}");
            assert!(took < REPORT_MS_MAX, "{role} {address}: {took} ms");
        }
    }
}

/// Goal: a connection to a host that does not answer fails when the host's own attempt does.
/// Method: a destination that drops everything; the host tries only twice.
fn connect_times_out(host: &mut Host, family: Family) {
    host.outside();
    assert!(host.set("net/ipv4/tcp_syn_retries", "1"));
    let address = SocketAddr::new(family.blackhole(), 80).to_string();
    let text = Towpath::new(NONE).run(inside("connect", &[&address])).success();
    let (kind, took) = outcome(&text, &address);
    assert!(matches!(kind.as_str(), "TimedOut" | "HostUnreachable"), "{kind}");
    assert!((1000..30_000).contains(&took), "{took} ms");
}

/// Less than the time that towpath waits for an ended program's data to be delivered.
const UNDELIVERED_WAIT: Duration = Duration::from_secs(4);

/// Goal: when the program ends, towpath does not wait for a connection that is still being made:
/// nothing was sent on it.
/// Method: the program is killed while it connects to a destination that drops everything.
fn connecting_is_not_waited_for(host: &mut Host, family: Family) {
    host.outside();
    let address = SocketAddr::new(family.blackhole(), 80).to_string();
    let script = "timeout -s KILL 0.5 \"$@\"; echo over";
    let mut command = vec!["sh".into(), "-c".into(), script.into(), "sh".into()];
    command.extend(inside("connect", &[&address]));
    let mut towpath = Towpath::new(NONE).start(command);
    towpath.wait_for_text("over\n");
    let over = now();
    towpath.finish().success();
    let waited = over.elapsed();
    assert!(waited < UNDELIVERED_WAIT, "{waited:?} after the program's end");
}

/// Goal: a reset in the middle of a stream arrives as a reset.
/// Method: the server sends for a while, then resets.
fn server_resets(_: &mut Host, family: Family) {
    let server = Server::start(family.loopback(), |mut stream| {
        stream.read_exact(&mut [0; 5])?;
        Pattern::new(1 << 20).write_to(&mut stream)?;
        reset_on_drop(&stream);
        Ok(())
    });
    let address = at_gateway(family, &server);
    let text = Towpath::with_loopback(NONE).run(inside("await-reset", &[&address])).success();
    assert!(text.starts_with("ConnectionReset after "), "{text}");
}

/// Goal: a program's reset arrives at the server as a reset.
/// Method: the server sends endlessly; the program reads a little and resets.
fn client_resets(_: &mut Host, family: Family) {
    let (sender, ends) = mpsc::channel();
    let server = Server::start(family.loopback(), move |mut stream: TcpStream| {
        let end = io::copy(&mut io::repeat(1), &mut stream);
        // A write may report the reset as a broken pipe; the socket keeps the error itself.
        let kind = stream.take_error()?.or(end.err()).map(|error| error.kind());
        let _ = sender.send(kind);
        Ok(())
    });
    let address = at_gateway(family, &server);
    let text = Towpath::with_loopback(NONE).run(inside("reset", &[&address])).success();
    assert_eq!(text, "reset\n");
    let end = ends.recv_timeout(PATIENCE).expect("the server sees an end");
    assert_eq!(end, Some(io::ErrorKind::ConnectionReset));
}

/// Goal: after the program's FIN the other direction still works, to its own end.
/// Method: the server collects everything up to the FIN, and only then sends it back.
fn half_close(_: &mut Host, family: Family) {
    let server = Server::start(family.loopback(), |mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all)?;
        stream.write_all(&all)
    });
    let address = at_gateway(family, &server);
    let role = inside("half-close", &[&address, "5000001"]);
    let output = Towpath::with_loopback(NONE).run(role);
    let stats = Stats::of(&output);
    assert_eq!(output.success(), "read 5000001\n");
    stats.assert_carried(5_000_001, 5_000_001, 0);
}

/// Goal: after the server's FIN the program can still send, to its own end.
/// Method: the server sends and closes its half; the program answers only after that.
fn server_closes_first(_: &mut Host, family: Family) {
    let (sender, results) = mpsc::channel();
    let server = Server::start(family.loopback(), move |stream| {
        Pattern::new(5_000_001).write_to(&stream)?;
        stream.shutdown(Shutdown::Write)?;
        let _ = sender.send(Checker::new(Pattern::new(5_000_001)).read_all(&stream));
        Ok(())
    });
    let address = at_gateway(family, &server);
    let role = inside("peer-first", &[&address, "5000001"]);
    assert_eq!(Towpath::with_loopback(NONE).run(role).success(), "read 5000001\n");
    let result = results.recv_timeout(PATIENCE).expect("an end");
    assert_eq!(result, Ok(5_000_001));
}

const STOPPED_BYTES: u64 = 64 << 20;
/// Memory of towpath above which a test fails.
const RESIDENT_KIB_MAX: u64 = 64 << 10;

/// Returns the largest memory of `pid` while a reader stops. It ends before the reader continues,
/// after which the process may end at any time.
fn watch_memory(pid: i32) -> u64 {
    let (begun, mut largest) = (now(), 0);
    while begun.elapsed() < STOP * 4 / 5 {
        thread::sleep(Duration::from_millis(200));
        largest = resident_kib(pid).max(largest);
    }
    largest
}

/// Goal: a server that stops reading stops the program, and towpath's memory does not grow;
/// afterwards everything arrives.
/// Method: the server reads nothing for ten seconds while the program sends 64 MiB.
fn host_stops_reading(_: &mut Host, family: Family) {
    let (sender, results) = mpsc::channel();
    let server = Server::start(family.loopback(), move |stream| {
        thread::sleep(STOP);
        let _ = sender.send(Checker::new(Pattern::new(STOPPED_BYTES)).read_all(&stream));
        Ok(())
    });
    let address = at_gateway(family, &server);
    let role = inside("upload", &[&address, &STOPPED_BYTES.to_string()]);
    let towpath = Towpath::with_loopback(NONE).start(role);
    program_of(towpath.pid());
    let resident = watch_memory(towpath.pid());
    let output = towpath.finish();
    let stats = Stats::of(&output);
    assert_eq!(output.success(), format!("sent {STOPPED_BYTES}\n"));
    let result = results.recv_timeout(PATIENCE).expect("an end");
    assert_eq!(result, Ok(STOPPED_BYTES));
    stats.assert_carried(STOPPED_BYTES, 0, 0);
    note("stopped reader", &format!("{resident} KiB resident"));
    assert!(resident < RESIDENT_KIB_MAX, "{resident} KiB resident");
}

/// Goal: a program that stops reading stops the server, and towpath's memory does not grow;
/// afterwards everything arrives.
/// Method: the program reads nothing for ten seconds while the server sends 64 MiB.
fn program_stops_reading(_: &mut Host, family: Family) {
    let server =
        Server::start(family.loopback(), |stream| Pattern::new(STOPPED_BYTES).write_to(&stream));
    let address = at_gateway(family, &server);
    let role = inside("slow-reader", &[&address, &STOPPED_BYTES.to_string()]);
    let towpath = Towpath::with_loopback(NONE).start(role);
    program_of(towpath.pid());
    let resident = watch_memory(towpath.pid());
    let output = towpath.finish();
    let stats = Stats::of(&output);
    assert_eq!(output.success(), format!("read {STOPPED_BYTES}\n"));
    stats.assert_carried(0, STOPPED_BYTES, 0);
    note("stopped reader", &format!("{resident} KiB resident"));
    assert!(resident < RESIDENT_KIB_MAX, "{resident} KiB resident");
}
