//! Many flows that open, close, reset and stall for a while, and what is left after them.
//!
//! `TOWPATH_SOAK_SECONDS` is the time, by default [`SECONDS`]; `TOWPATH_SEED` is the seed, by
//! default 1.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use super::inside::soak::{BREAK, ECHO, FIRST, SLOW};
use super::support::{
    Family, Host, NONE, Pattern, Server, Stats, Test, Towpath, descriptors, inside, note, now,
    program_of, reset_on_drop, resident_kib, retry, wait_until_nothing_is_left,
};

/// Default duration.
const SECONDS: u64 = 20;
/// Concurrent flows.
const FLOWS: &str = "200";
/// Most memory of towpath.
const RESIDENT_KIB_MAX: u64 = 128 << 10;
/// Most memory of towpath when all flows have ended; it was 19 MiB after soaks of 20 s, and 23 MiB
/// after 200 s and 146,000 connections.
const REST_KIB_MAX: u64 = 32 << 10;
/// Descriptors that towpath may still open when CMD has just started.
const STARTING: usize = 4;
/// Packets and frames that each worker keeps ready for the next read of the device and of a socket.
const KEPT_READY: u64 = 16;
/// How long a flow may last beyond the soak's end.
const LAST_FLOW: u64 = 120;

pub(crate) fn tests() -> Vec<Test> {
    let seconds = from_environment("TOWPATH_SOAK_SECONDS", SECONDS);
    let seed = from_environment("TOWPATH_SEED", 1);
    let test = Test::new("soak", &[], move |host: &mut Host| soak(host, seconds, seed));
    vec![test.limit(seconds + 2 * LAST_FLOW).slow_unless(false)]
}

fn from_environment<T: FromStr>(name: &str, usual: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Goal: no flow gets stuck. When all have ended, no flow, frame or descriptor is left, and their
/// memory is given back.
/// Method: 200 threads inside, each with one seeded connection after another, half of them over
/// IPv6, to servers that echo, stop reading, close first or reset; each thread checks every byte
/// and has a time limit.
fn soak(host: &Host, seconds: u64, seed: u64) {
    println!("seed {seed}");
    let servers = Family::BOTH.map(|family| Server::start(family.loopback(), serve));
    let mut arguments = vec![FLOWS.to_owned(), seconds.to_string(), seed.to_string()];
    for (family, server) in Family::BOTH.iter().zip(&servers) {
        arguments.push(SocketAddr::new(family.gateway(), server.port()).to_string());
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut towpath =
        Towpath::with_loopback(NONE).found_by(host).start_held(inside("soak", &arguments));
    program_of(towpath.pid());
    let at_start = descriptors(towpath.pid()) + STARTING;
    let (begun, mut most) = (now(), 0);
    while !towpath.stdout().contains("soaked") && towpath.poll().is_none() {
        assert!(begun.elapsed().as_secs() < seconds + LAST_FLOW, "a flow is stuck");
        most = resident_kib(towpath.pid()).max(most);
        thread::sleep(Duration::from_millis(50));
    }
    note("soak", towpath.stdout().trim());
    assert!(most < RESIDENT_KIB_MAX, "{most} KiB resident");
    if towpath.poll().is_some() {
        panic!("a flow failed: {}", towpath.stderr());
    }
    wait_until_nothing_is_left(host, &towpath, at_start);
    let rest = retry("memory to be given back", || {
        let resident = resident_kib(towpath.pid());
        (resident < REST_KIB_MAX).then_some(resident)
    });
    note("soak", &format!("{most} KiB resident at most, {rest} in the end"));
    towpath.release();
    let output = towpath.finish();
    let stats = Stats::of(&output);
    output.success();
    assert_eq!(stats.number("flows", "now"), 0);
    for what in ["packets", "frames"] {
        let taken = stats.number("memory", what);
        assert!(taken <= KEPT_READY * stats.workers(), "{taken} {what} are left");
    }
    stats.assert_uncopied();
}

/// Serves a connection; the first byte selects how.
pub(crate) fn serve(mut stream: TcpStream) -> io::Result<()> {
    let mut how = [0; 9];
    stream.read_exact(&mut how)?;
    let [how, number @ ..] = how;
    let number = u64::from_be_bytes(number);
    match how {
        ECHO => echo(stream),
        SLOW => {
            thread::sleep(Duration::from_millis(number));
            echo(stream)
        }
        FIRST => {
            Pattern::new(number).write_to(&mut stream)?;
            stream.shutdown(Shutdown::Write)?;
            stream.read_to_end(&mut Vec::new()).map(drop)
        }
        BREAK => {
            stream.read_exact(&mut vec![0; number as usize])?;
            reset_on_drop(&stream);
            Ok(())
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Reads everything up to the end, and sends it back, so that neither side waits for the other.
fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    stream.write_all(&all)
}
