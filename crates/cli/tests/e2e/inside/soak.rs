//! A program with many flows of all kinds, for a limited time.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::Outcome;
use super::tcp::open;
use crate::support::{Checker, Pattern, now, reset_on_drop};

/// First byte of a request: echo everything at the end. The others: echo after some milliseconds,
/// send a number of bytes and close first, reset after a number of bytes.
pub(crate) const ECHO: u8 = b'e';
pub(crate) const SLOW: u8 = b's';
pub(crate) const FIRST: u8 = b'f';
pub(crate) const BREAK: u8 = b'b';

/// Most bytes of a connection in each direction.
const BYTES_MAX: u64 = 300_000;
/// Longest pause.
const PAUSE_MILLIS_MAX: u64 = 800;
/// Stack size of a thread, which needs little: buffers are on the heap.
const STACK_BYTES: usize = 256 << 10;

/// Pseudo-random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }
}

/// Runs `flows` threads, each with one connection after another until the time is over.
pub(crate) fn run(flows: u64, seconds: u64, seed: u64, addresses: &[&str]) -> Outcome {
    let until = now() + Duration::from_secs(seconds);
    let count = thread::scope(|scope| {
        let mut threads = Vec::new();
        for flow in 0..flows {
            let random = Random(seed.wrapping_mul(1_000_003) ^ flow << 32);
            let address = addresses[flow as usize % addresses.len()];
            let small = thread::Builder::new().stack_size(STACK_BYTES);
            threads.push(small.spawn_scoped(scope, move || {
                one_flow(random, address, until).map_err(|error| format!("flow {flow}: {error}"))
            })?);
        }
        let mut count = 0;
        for thread in threads {
            count += thread.join().expect("no panic")?;
        }
        Ok::<u64, Box<dyn std::error::Error>>(count)
    })?;
    println!("soaked {count} connections");
    Ok(())
}

fn one_flow(mut random: Random, address: &str, until: Instant) -> Result<u64, String> {
    let mut count = 0;
    while now() < until {
        let choice = random.below(8);
        let (bytes, pause) = (random.below(BYTES_MAX), random.below(PAUSE_MILLIS_MAX));
        one_connection(choice, bytes, Duration::from_millis(pause), address)
            .map_err(|error| format!("connection {count}, kind {choice}: {error}"))?;
        count += 1;
    }
    Ok(count)
}

fn one_connection(choice: u64, bytes: u64, pause: Duration, address: &str) -> Outcome {
    let mut stream = open(address)?;
    let mut ask = |how: u8, number: u64| {
        let mut request = vec![how];
        request.extend(number.to_be_bytes());
        stream.write_all(&request)
    };
    match choice {
        0..=2 => {
            ask(ECHO, 0)?;
            there_and_back(&mut stream, bytes, Duration::ZERO)
        }
        3 => {
            ask(SLOW, pause.as_millis() as u64)?;
            there_and_back(&mut stream, bytes, Duration::ZERO)
        }
        4 => {
            ask(ECHO, 0)?;
            there_and_back(&mut stream, bytes, pause)
        }
        5 => {
            ask(FIRST, bytes)?;
            thread::sleep(pause / 8);
            Checker::new(Pattern::new(bytes)).read_all(&mut stream)?;
            Ok(())
        }
        6 => {
            ask(ECHO, 0)?;
            Pattern::new(bytes).write_to(&mut stream)?;
            reset_on_drop(&stream);
            Ok(())
        }
        _ => {
            ask(BREAK, bytes / 2)?;
            until_reset(&mut stream, bytes)
        }
    }
}

/// Sends a pattern and closes that half, and expects all of it back after a pause.
fn there_and_back(stream: &mut TcpStream, bytes: u64, pause: Duration) -> Outcome {
    Pattern::new(bytes).write_to(&mut *stream)?;
    stream.shutdown(Shutdown::Write)?;
    thread::sleep(pause);
    Checker::new(Pattern::new(bytes)).read_all(stream)?;
    Ok(())
}

/// Expects the peer's reset, while it sends or while it waits for an answer.
fn until_reset(stream: &mut TcpStream, bytes: u64) -> Outcome {
    let sent = Pattern::new(bytes).write_to(&mut *stream);
    let end = sent.and_then(|()| stream.read(&mut [0]).map(|_| ()));
    match end.map_err(|error| error.kind()) {
        Err(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => Ok(()),
        other => Err(format!("no reset but {other:?}").into()),
    }
}
