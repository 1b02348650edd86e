//! Datagrams: larger than the MTU, and many in one call.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc;
use std::thread;

use super::inside::{ALL_CAME, WORD_BYTES, receive_numbered, send_numbered};
use super::support::{Family, Host, PATIENCE, Stats, Test, Towpath, inside};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for family in Family::BOTH {
        for mtu in [576, 1280, 1500, 9000, 65520] {
            if mtu >= 1280 || family == Family::V4 {
                let name = format!("udp_sizes_{}_{mtu}", family.name());
                tests.push(Test::new(name, &[], move |host| sizes(host, family, mtu)));
            }
        }
        let name = family.name();
        tests.push(Test::new(format!("udp_super_packets_out_{name}"), &[], move |host| {
            super_packets_out(host, family);
        }));
        tests.push(Test::new(format!("udp_super_packets_in_{name}"), &[], move |host| {
            super_packets_in(host, family);
        }));
    }
    tests
}

fn bound(family: Family) -> UdpSocket {
    let socket = UdpSocket::bind((family.loopback(), 0)).expect("bind");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    socket
}

fn at_gateway(family: Family, socket: &UdpSocket) -> String {
    let port = socket.local_addr().expect("an address").port();
    SocketAddr::new(family.gateway(), port).to_string()
}

/// Goal: datagrams of every size pass in both directions, as fragments where necessary.
/// Method: an echo server on the host's loopback, sizes around the limits up to the largest.
fn sizes(_: &mut Host, family: Family, mtu: u64) {
    let socket = bound(family);
    let address = at_gateway(family, &socket);
    let fits = mtu - if family == Family::V4 { 28 } else { 48 };
    let largest = if family == Family::V4 { 65_507 } else { 65_527 };
    let mut sizes = vec![0, 1, fits - 1, fits, fits + 1, 2 * fits, 20_000, 60_000, largest];
    sizes.retain(|size| *size <= largest);
    let count = sizes.len();
    let server = thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        for _ in 0..count {
            let (len, peer) = socket.recv_from(&mut buffer)?;
            socket.send_to(&buffer[..len], peer)?;
        }
        Ok::<(), std::io::Error>(())
    });
    let texts: Vec<String> = sizes.iter().map(u64::to_string).collect();
    let mut arguments = vec![address.as_str()];
    arguments.extend(texts.iter().map(String::as_str));
    let role = inside("udp-echo", &arguments);
    let output = Towpath::with_loopback(["-m", &mtu.to_string()]).run(role);
    let stats = Stats::of(&output);
    assert_eq!(output.success(), format!("answered {count}\n"));
    server.join().expect("no panic").expect("all came");
    let sum: u64 = sizes.iter().sum();
    stats.assert_bytes(sum, sum, 0);
    // Only small fragments that wait for others are copied, to release large frames.
    let copied = if mtu > 2048 { 0 } else { stats.copied("squeeze") };
    assert_eq!(stats.copied_in_all(), copied);
}

/// Returns true if the device still took UDP super-packets at the end. On a busy machine its
/// self-test may have timed out, which is reported with the feature's name.
fn segments_datagrams(stderr: &str) -> bool {
    stderr.lines().any(|line| line.starts_with("offload ") && line.contains(" uso"))
}

const COUNT: u64 = 2000;
/// Returns the largest size that passes without fragments.
fn size(family: Family) -> u64 {
    match family {
        Family::V4 => 1472,
        Family::V6 => 1452,
    }
}
const TOGETHER: u64 = 40;
/// Bytes of the receiver's confirmations.
const WORDS_BYTES: u64 = WORD_BYTES * (COUNT / TOGETHER - 1);

/// Goal: datagrams that a program sends in one call with `UDP_SEGMENT` cross as one super-packet,
/// and arrive as single datagrams.
/// Method: numbered datagrams; their count and content, and the count of super-packets.
fn super_packets_out(_: &mut Host, family: Family) {
    let size = size(family);
    let socket = bound(family);
    let address = at_gateway(family, &socket);
    let (sender, results) = mpsc::channel();
    thread::spawn(move || {
        let received = receive_numbered(&socket, size, COUNT, TOGETHER)
            .and_then(|peer| Ok(socket.send_to(ALL_CAME, peer)?));
        let _ = sender.send(received.map(drop).map_err(|error| error.to_string()));
    });
    let (bytes, count, together) = (size.to_string(), COUNT.to_string(), TOGETHER.to_string());
    let role = inside("udp-send", &[&address, &bytes, &count, &together]);
    let output = Towpath::with_loopback(["-v"]).run(role);
    let stats = Stats::of(&output);
    let reported = output.stderr.clone();
    output.success();
    let result = results.recv_timeout(PATIENCE).expect("a result");
    assert_eq!(result, Ok(()));
    stats.assert_carried(size * COUNT, WORDS_BYTES + ALL_CAME.len() as u64, 0);
    if segments_datagrams(&reported) {
        let super_packets = stats.number("from the program", "super-packets");
        assert!(super_packets >= COUNT / TOGETHER, "{super_packets} super-packets");
    }
}

/// Goal: datagrams that the host sends in one call with `UDP_SEGMENT` reach the program as single
/// datagrams.
/// Method: numbered datagrams, after a greeting; their count and content, and the count of
/// super-packets.
fn super_packets_in(_: &mut Host, family: Family) {
    let size = size(family);
    let socket = bound(family);
    let address = at_gateway(family, &socket);
    let sender = thread::spawn(move || {
        let (_, peer) = socket.recv_from(&mut [0; 16]).expect("a greeting");
        socket.connect(peer).expect("connect");
        send_numbered(&socket, size, COUNT, TOGETHER).map_err(|error| error.to_string())
    });
    let (bytes, count, together) = (size.to_string(), COUNT.to_string(), TOGETHER.to_string());
    let role = inside("udp-receive", &[&address, &bytes, &count, &together]);
    let output = Towpath::with_loopback(["-v"]).run(role);
    let stats = Stats::of(&output);
    let reported = output.stderr.clone();
    assert_eq!(output.success(), format!("received {COUNT}\n"));
    assert_eq!(sender.join().expect("no panic"), Ok(()));
    stats.assert_carried(WORDS_BYTES, size * COUNT, b"greeting".len() as u64);
    if segments_datagrams(&reported) {
        assert!(stats.number("to the program", "super-packets") > 0);
    }
}
