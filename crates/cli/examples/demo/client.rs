//! The HTTP client, which runs inside. It reports on standard output, in lines `at BYTES`, `time
//! MICROSECONDS` and `sha256 HASH`.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::Result;
use crate::data::{self, BLOCK, Source};
use crate::server::read_head;

/// Interval of progress reports.
const INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn run(method: &str, server: &str, bytes: &str) -> Result<()> {
    let bytes = bytes.parse()?;
    let stream = TcpStream::connect(server).map_err(|error| format!("{server}: {error}"))?;
    match method {
        "GET" => get(stream, bytes),
        _ => put(stream, bytes),
    }
}

fn get(mut stream: TcpStream, bytes: usize) -> Result<()> {
    let mut room = data::room(bytes);
    let mut clock = Clock::start();
    stream.write_all(b"GET /data HTTP/1.1\r\nHost: demo\r\n\r\n")?;
    let mut from = BufReader::with_capacity(BLOCK, stream);
    let (answer, length) = read_head(&mut from)?;
    if !answer.starts_with("HTTP/1.1 200 ") || length != Some(bytes) {
        return Err(format!("the server answered {answer}").into());
    }
    let mut at = 0;
    while at < bytes {
        match from.read(&mut room[at..])? {
            0 => return Err(format!("the server closed after {at} bytes").into()),
            count => at += count,
        }
        clock.report(at)?;
    }
    clock.end()?;
    say(&format!("sha256 {}", data::sha256(|to| to.write_all(&room))?))
}

fn put(mut stream: TcpStream, bytes: usize) -> Result<()> {
    let mut source = Source::new(bytes);
    let mut clock = Clock::start();
    write!(stream, "PUT /data HTTP/1.1\r\nHost: demo\r\nContent-Length: {bytes}\r\n\r\n")?;
    let mut at = 0;
    loop {
        match source.next() {
            [] => break,
            block => {
                stream.write_all(block)?;
                at += block.len();
            }
        }
        clock.report(at)?;
    }
    // The answer comes when the last byte has arrived.
    let (answer, _) = read_head(&mut BufReader::new(stream))?;
    clock.end()?;
    if !answer.starts_with("HTTP/1.1 204 ") {
        return Err(format!("the server answered {answer}").into());
    }
    say(&format!("sha256 {}", Source::new(bytes).sha256()?))
}

/// When the transfer began, and when progress was last reported.
struct Clock {
    start: Instant,
    reported: Instant,
}

#[allow(clippy::disallowed_methods, reason = "a demonstration measures time")]
impl Clock {
    fn start() -> Self {
        let start = Instant::now();
        Self { start, reported: start }
    }

    fn report(&mut self, at: usize) -> Result<()> {
        if self.reported.elapsed() >= INTERVAL {
            self.reported = Instant::now();
            say(&format!("at {at}"))?;
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        say(&format!("time {}", self.start.elapsed().as_micros()))
    }
}

fn say(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{line}")?;
    stdout.flush()?;
    Ok(())
}
