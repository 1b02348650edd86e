//! `towpath run --native`: listeners of published ports.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};

use super::super::support::{
    Host, OUTSIDE_V4, Output, PATIENCE, Process, THIS_V4, Test, Towpath, retry, run,
};
use super::{asked, end_flow, name_of, native_flow, paths, program};

pub(super) fn tests() -> Vec<Test> {
    type Body = fn(&mut Host);
    let tests: [(&str, Body); 9] = [
        ("serves", serves),
        ("children_serve", children_serve),
        ("serves_anew", serves_anew),
        ("serves_itself", serves_itself),
        ("served_by_the_interface", served_by_the_interface),
        ("served_flow_ends", served_flow_ends),
        ("unpublished", unpublished),
        ("swap_listener", swap_listener),
        ("listens_much", listens_much),
    ];
    let test = |(name, body)| Test::new(format!("native_{name}"), &["gcc"], body);
    tests.into_iter().map(test).collect()
}

/// The port of the host that leads to 80 of the program.
const PORT: u16 = 8080;

/// Starts the test program as a server of `count` connections at all its addresses, in a network
/// with these options.
fn started(host: &Host, options: &[&str], mode: &str, count: usize) -> Process {
    let words = [mode, "0.0.0.0", "80", &count.to_string()].map(OsString::from);
    let words = std::iter::once(program(host).into()).chain(words);
    let options = ["--native", "-t", "8080:80"].iter().chain(options);
    let towpath = Towpath::new(options.copied()).found_by(host);
    Process::start_held(towpath.command(words))
}

fn serving(host: &Host, mode: &str, count: usize) -> Process {
    let mut towpath = started(host, &["--join-loopback"], mode, count);
    towpath.wait_for_text("listening");
    towpath
}

fn open(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((address.parse::<IpAddr>().expect("an address"), PORT))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn ask(mut stream: &TcpStream) -> io::Result<()> {
    stream.write_all(b"question")?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer)?;
    assert_eq!(&answer, b"question");
    Ok(())
}

/// Asks, and closes both sides in order.
fn asks(address: &str) -> io::Result<()> {
    let mut stream = open(address)?;
    ask(&stream)?;
    stream.shutdown(Shutdown::Write)?;
    assert_eq!(stream.read(&mut [0])?, 0);
    Ok(())
}

/// Returns the lines by which the program describes a connection.
fn seen(peer: &str, own: &str) -> String {
    format!("peer {peer}\nown {own}\n")
}

/// Asserts that nothing took the interface.
fn assert_native(output: &Output) {
    assert!(output.status.success(), "{output:?}");
    assert_eq!(paths(output).1, 0, "{}", output.stderr);
    assert!(
        output.stderr.contains("payload           0 bytes out, 0 bytes in"),
        "{}",
        output.stderr
    );
}

/// Goal: clients on the host's loopback and on another machine reach the program natively, and it
/// sees the addresses that it would see on the interface.
fn serves(host: &mut Host) {
    host.outside();
    let towpath = serving(host, "serve", 3);
    asks("127.0.0.1").expect("an answer");
    host.outside().run(|| asks(THIS_V4)).expect("an answer");
    let pid = towpath.pid().to_string();
    // The kernel reports their ends a moment later.
    retry("both connections to be counted", || {
        let stats = asked(host, &["stats", "--json", &pid]).success();
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("an object");
        let native = &stats["native"];
        let counted = ["listeners", "begun", "flows", "bytes_out"];
        let counted = counted.map(|name| native[name].as_u64());
        (counted == [Some(1), Some(2), Some(0), Some(16)]).then_some(())
    });
    asks("127.0.0.1").expect("an answer");
    let output = towpath.finish();
    let (near, far) = (seen("127.0.0.1", "127.0.0.1"), seen(OUTSIDE_V4, "10.0.2.15"));
    let expected = ["listening\n", &near, &far, &near].concat();
    assert_eq!(output.stdout, expected, "{output:?}");
    assert_native(&output);
}

/// Goal: children serve with a listener that their parent has closed.
fn children_serve(host: &mut Host) {
    let towpath = serving(host, "serve_by_children", 3);
    let threads = (0..3).map(|_| std::thread::spawn(|| asks("127.0.0.1")));
    for thread in threads.collect::<Vec<_>>() {
        thread.join().expect("no panic").expect("an answer");
    }
    assert_native(&towpath.finish());
}

/// Goal: when the program has closed its listener, connections are refused or reset, and it can
/// listen again.
fn serves_anew(host: &mut Host) {
    let towpath = serving(host, "serve_anew", 3);
    for turn in 1..=3 {
        // After the first, the program may not listen yet.
        retry("the program to serve", || asks("127.0.0.1").ok());
        if turn < 3 {
            retry("the program to listen again", || {
                (towpath.stdout().matches("listening").count() > turn).then_some(())
            });
        }
    }
    let output = towpath.finish();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout.matches("peer 127.0.0.1\nown 127.0.0.1\n").count(), 3, "{output:?}");
}

/// Goal: the program's own processes reach its listener by its loopback and its address, and a
/// second socket cannot listen there.
fn serves_itself(host: &mut Host) {
    let output = serving(host, "serve_itself", 0).finish();
    assert_native(&output);
    // Each of the two connections has both ends inside.
    assert!((2..=4).contains(&paths(&output).0), "{}", output.stderr);
}

/// Goal: a listener that cannot be replaced, or may not, serves over the interface.
/// Method: an epoll set watches it before; an address is published that is not the loopback's; the
/// program is to see the host's loopback as the gateway.
fn served_by_the_interface(host: &mut Host) {
    host.outside();
    let own = format!("{THIS_V4}/8080:80");
    let native: &[&str] = &["--native"];
    let cases: [(&str, Vec<&str>); 3] = [
        ("serve_watched", vec!["--join-loopback", "-t", "8080:80"]),
        ("serve", vec!["--join-loopback", "-t", &own]),
        ("serve", vec!["-t", "8080:80"]),
    ];
    for (mode, options) in cases {
        let words = [mode, "0.0.0.0", "80", "1"].map(OsString::from);
        let words = std::iter::once(program(host).into()).chain(words);
        let options = native.iter().chain(&options).copied();
        let mut towpath = Process::start(Towpath::new(options).command(words));
        towpath.wait_for_text("listening");
        host.outside().run(|| asks(THIS_V4)).expect("an answer");
        let output = towpath.finish();
        assert!(output.stdout.contains(&seen(OUTSIDE_V4, "10.0.2.15")), "{output:?}");
        assert_eq!(paths(&output).0, 0, "{}", output.stderr);
        assert!(output.stderr.contains("payload           8 bytes out, 8 bytes in"), "{output:?}");
    }
}

/// Goal: an accepted connection is listed while it is open, and can be ended.
fn served_flow_ends(host: &mut Host) {
    let towpath = serving(host, "serve", 1);
    let mut stream = open("127.0.0.1").expect("a connection");
    ask(&stream).expect("an answer");
    let pid = towpath.pid().to_string();
    let flow = native_flow(host, &pid);
    assert_eq!(flow["begun-by"], "host", "{flow}");
    assert_eq!((&flow["bytes-out"], &flow["bytes-in"]), (&8.into(), &8.into()), "{flow}");
    end_flow(host, &pid, name_of(&flow));
    let error = stream.read(&mut [0]).expect_err("a reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_native(&towpath.finish());
}

/// Goal: a port that is unpublished is closed at once, although the program has the listener, and
/// a connection that is open goes on.
fn unpublished(host: &mut Host) {
    let towpath = serving(host, "serve", 1);
    let pid = towpath.pid().to_string();
    let stream = open("127.0.0.1").expect("a connection");
    ask(&stream).expect("an answer");
    asked(host, &["publish", "del", &pid, "-t", "8080"]).success();
    retry("the listener to stop", || {
        let refused = open("127.0.0.1").map_err(|error| error.kind());
        (refused.err() == Some(io::ErrorKind::ConnectionRefused)).then_some(())
    });
    ask(&stream).expect("an answer");
    drop(stream);
    assert_native(&towpath.finish());
}

/// Goal: a program that changes what the descriptor means during the calls listens at no other port
/// of the host than the published one.
fn swap_listener(host: &mut Host) {
    let words = ["swap_listener", "0.0.0.0", "80", "10000"].map(OsString::from);
    let words = std::iter::once(program(host).into()).chain(words);
    let options = ["--native", "--join-loopback", "-t", "8080:80"];
    let mut towpath = Process::start_held(Towpath::new(options).command(words));
    towpath.wait_for_text("swapped");
    let listeners = run("ss", ["-Hltn"]);
    assert!(listeners.lines().all(|line| line.contains(":8080 ")), "{listeners}");
    towpath.release();
    let output = towpath.finish();
    assert!(output.status.success(), "{output:?}");
}

/// Goal: thousands of calls that are interrupted, and cut short by execve and by the end of their
/// processes, leave the port in order.
fn listens_much(host: &mut Host) {
    let mut towpath = started(host, &["--join-loopback"], "listen_much", 50);
    towpath.wait_for_text("listening");
    retry("the program to serve", || asks("127.0.0.1").ok());
    let output = towpath.finish();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.contains(&seen("127.0.0.1", "127.0.0.1")), "{output:?}");
}
