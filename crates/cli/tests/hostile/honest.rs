//! The honest flow: 64 MiB each way, with every byte checked.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::host::{HOST, HOST6};
use crate::random::Random;

/// Port of the honest server.
pub(super) const PORT: u16 = 7000;
/// Bytes each way.
const BYTES: usize = 64 << 20;
/// Longest pause of a flow, and a generous limit for a whole transfer.
const PATIENCE: Duration = Duration::from_secs(120);
/// Period of the pattern in bytes: prime, so that no misplaced block looks right.
const PERIOD: usize = 1_048_573;
const CHUNK: usize = 64 << 10;

/// The bytes that both sides send.
struct Pattern(Vec<u8>);

impl Pattern {
    fn new() -> Self {
        let mut bytes = Random::new(7).bytes(PERIOD);
        bytes.extend_from_within(..CHUNK);
        Self(bytes)
    }

    fn at(&self, place: usize, len: usize) -> &[u8] {
        let start = place % PERIOD;
        &self.0[start..start + len]
    }

    fn send(&self, mut to: impl Write, bytes: usize) -> io::Result<()> {
        let mut place = 0;
        while place < bytes {
            let len = CHUNK.min(bytes - place);
            to.write_all(self.at(place, len))?;
            place += len;
        }
        Ok(())
    }

    /// Reads to the end; returns how many bytes arrived.
    fn receive(&self, mut from: impl Read) -> io::Result<usize> {
        let mut buffer = vec![0; CHUNK];
        let mut place = 0;
        loop {
            let count = from.read(&mut buffer)?;
            if count == 0 {
                return Ok(place);
            }
            assert!(buffer[..count] == *self.at(place, count), "wrong bytes at {place}");
            place += count;
        }
    }
}

/// Serves each connection: the client names a number of bytes, which then go both ways at once.
pub(super) fn serve(listener: TcpListener) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else { return };
        thread::spawn(move || serve_one(stream));
    }
}

fn serve_one(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    let bytes = u64::from_be_bytes(bytes) as usize;
    let pattern = Pattern::new();
    let reader = stream.try_clone()?;
    let received = thread::scope(|scope| {
        let received = scope.spawn(|| pattern.receive(reader).unwrap_or(0));
        pattern.send(&stream, bytes)?;
        io::Result::Ok(received.join().unwrap_or(0))
    })?;
    // Finally, the number of bytes that arrived correctly.
    stream.write_all(&(received as u64).to_be_bytes())
}

/// Moves `bytes` each way over a connection and checks them on both sides.
pub(super) fn exchange(connect: impl Fn() -> io::Result<TcpStream>, bytes: usize) {
    let mut stream = connect().expect("an honest connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("timeout");
    stream.write_all(&(bytes as u64).to_be_bytes()).expect("the request");
    let pattern = Pattern::new();
    thread::scope(|scope| {
        let mut reader = stream.try_clone().expect("a second handle");
        let pattern = &pattern;
        scope.spawn(move || {
            let received = pattern.receive((&reader).take(bytes as u64)).expect("honest bytes");
            assert_eq!(received, bytes, "bytes are missing");
            let mut verdict = [0; 8];
            reader.read_exact(&mut verdict).expect("the server's verdict");
            assert_eq!(u64::from_be_bytes(verdict) as usize, bytes, "the server missed bytes");
        });
        pattern.send(&stream, bytes).expect("honest bytes are taken");
        stream.shutdown(Shutdown::Write).expect("shutdown");
    });
}

/// Receives endlessly from the honest server, and counts and checks the bytes.
pub(super) fn download(connect: impl Fn() -> io::Result<TcpStream>, moved: &AtomicU64) {
    let mut stream = connect().expect("an honest connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.write_all(&u64::MAX.to_be_bytes()).expect("the request");
    let counted = Counted { stream, moved };
    Pattern::new().receive(counted).expect("honest bytes");
}

/// A stream whose bytes are counted.
struct Counted<'a> {
    stream: TcpStream,
    moved: &'a AtomicU64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        // Relaxed: a counter.
        self.moved.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Does the honest work: both directions over IPv4, then over IPv6; returns how long it took.
pub(super) fn transfer() -> Duration {
    let started = Instant::now();
    for host in [IpAddr::from(HOST), HOST6.into()] {
        let connect = || TcpStream::connect_timeout(&(host, PORT).into(), PATIENCE);
        exchange(connect, BYTES / 2);
    }
    let took = started.elapsed();
    assert!(took < PATIENCE, "the honest flow took {took:?}");
    took
}

/// Repeats the honest work until `over`, at least once; returns the average time of one. A transfer
/// unfinished at the end does not count, unless it was the only one.
pub(super) fn transfers(over: &AtomicBool) -> Duration {
    let (mut count, mut sum) = (0, Duration::ZERO);
    loop {
        let took = transfer();
        // Relaxed: nothing else depends on the flag.
        let is_over = over.load(Ordering::Relaxed);
        if count == 0 || !is_over {
            count += 1;
            sum += took;
        }
        if is_over {
            return sum / count;
        }
    }
}
