//! Bulk data over few sockets, by operations and by blocking calls.
//!
//! The program is one end of all connections. With operations it is one thread with an event queue.
//! For each socket it has [`SENDS`] buffers to send or [`RECEIVES`] buffers to receive into; a
//! kernel socket has one receive buffer. With blocking calls it needs a thread for each socket. The
//! other end is the same for both: a thread with an event queue, which lends the data it sends and
//! receives without a copy. Bytes are counted, not checked.
//!
//! On kernel sockets `plain epoll` is one thread with non-blocking calls, which moves as much as it
//! can on a socket before it goes to the next.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Barrier, LazyLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use rustix::time::{ClockId, clock_gettime};
use towpath::events::{Choice, Completion, Config, EventKind, EventQueue, Stream, Token};
use towpath::host::{self, Host};
use towpath_io::reactor::{Events, Interest, Reactor};

use super::Group;
use super::http::can_serve;
use super::serve::{CLIENT, PORT, SERVER};
use crate::cases::{Better, Case, Selection};
use crate::ping_pong::Stopwatch;

/// A direction with a number of sockets.
#[derive(Debug)]
struct Point {
    is_kernel: bool,
    way: Way,
    sockets: usize,
    /// Speed, processor time of the program's threads, and of all threads.
    cases: [Case; 3],
}

/// The program's direction, and with operations the kind of receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Send,
    /// Sends with `SEND_ZC` on kernel sockets. Blocking calls are measured without this.
    SendLent,
    Receive,
    /// Receives without copying. Blocking calls are measured without this.
    ReceiveLent,
}

impl Way {
    fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendLent)
    }
}

const STACK: [&str; 2] = ["operations", "calls"];
const KERNEL: [&str; 4] = ["io_uring", "epoll", "plain epoll", "calls"];

/// Bytes of a measurement, and of a short one.
const BYTES: u64 = 1 << 30;
const BYTES_SHORT: u64 = 16 << 20;
/// Most bytes of a buffer, for operations and for calls. Four posted buffers hold the data that a
/// connection has in flight. With smaller ones, the program's thread would mostly handle
/// completions.
const BUFFER_BYTES_MAX: usize = 1 << 20;
/// Most bytes of one buffer of each socket, together. More would not be in a cache when the
/// completion is reported.
const BUFFERS_BYTES: usize = 4 << 20;
/// Send buffers of a socket: enough that the stream does not wait for a single one to return, and
/// that several return together.
const SENDS: usize = 8;
/// Receive buffers posted to a socket.
const RECEIVES: usize = 4;
const SOCKETS: [usize; 2] = [1, 10];
/// Longer than any transfer takes.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    points().iter().flat_map(|point| &point.cases)
}

fn points() -> &'static [Point] {
    static POINTS: LazyLock<Vec<Point>> = LazyLock::new(|| {
        let ways = [
            (false, Way::Receive),
            (false, Way::ReceiveLent),
            (false, Way::Send),
            (true, Way::Receive),
            (true, Way::Send),
            (true, Way::SendLent),
        ];
        let of = |(is_kernel, way)| SOCKETS.map(|sockets| Point::new(is_kernel, way, sockets));
        ways.into_iter().flat_map(of).collect()
    });
    &POINTS
}

/// The groups with selected cases that can be measured.
pub(super) fn groups(selection: &Selection) -> Vec<Group<'static>> {
    let mut kernel = KERNEL.to_vec();
    let needs_kernel = |point: &Point| point.cases.iter().any(|case| selection.has(case));
    if points().iter().filter(|point| point.is_kernel).any(needs_kernel) {
        kernel.retain(|system| can_serve(system));
    }
    let group = |point: &'static Point| Group {
        cases: point.cases.iter().collect(),
        systems: if point.is_kernel { kernel.clone() } else { STACK.into() },
        measure: Box::new(move |system, span| point.measure(system, span)),
    };
    let groups = points().iter().map(group);
    groups.filter(|group| group.is_selected(selection)).collect()
}

impl Point {
    fn new(is_kernel: bool, way: Way, sockets: usize) -> Self {
        let carrier = if is_kernel { "kernel_" } else { "" };
        let way_name = match way {
            Way::Send => "send",
            Way::SendLent => "send_lent",
            Way::Receive => "receive",
            Way::ReceiveLent => "receive_lent",
        };
        let name = format!("{carrier}{way_name}_1GiB_{sockets}");
        let case =
            |suffix, unit, better| Case { name: (name.clone() + suffix).into(), unit, better };
        let cases = [
            case("", "MiB/s", Better::High),
            case("_cpu_thread", "ms/GiB", Better::Low),
            case("_cpu_all", "ms/GiB", Better::Low),
        ];
        Self { is_kernel, way, sockets, cases }
    }

    fn measure(&self, system: &str, span: Duration) -> anyhow::Result<Vec<f64>> {
        let bytes = if span >= Duration::from_secs(1) { BYTES } else { BYTES_SHORT };
        let count = bytes / self.sockets as u64;
        let choice = match system {
            "operations" => Some(Choice::Best),
            "io_uring" => Some(Choice::IoUring),
            "epoll" => Some(Choice::Epoll),
            _ => None,
        };
        let is_polled = system == "plain epoll";
        if self.is_kernel {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?;
            let to = listener.local_addr().context("cannot listen")?;
            let pair = || {
                let near = TcpStream::connect(to).context("cannot connect")?;
                Ok((near, listener.accept().context("cannot accept")?.0))
            };
            let pairs = (0..self.sockets).map(|_| pair()).collect::<anyhow::Result<_>>()?;
            return self.between(pairs, choice, is_polled, count);
        }
        let config = |address| host::Config::with_address(address, 24);
        let (near, far) = Host::pair(&config(CLIENT), &config(SERVER))?;
        let to = SocketAddr::from((SERVER, PORT));
        let listener = host::TcpListener::bind(&far, to).context("cannot listen")?;
        let pair = || {
            let near = host::TcpStream::connect(&near, to).context("cannot connect")?;
            Ok((near, listener.accept().context("cannot accept")?.0))
        };
        let pairs = (0..self.sockets).map(|_| pair()).collect::<anyhow::Result<_>>()?;
        self.between(pairs, choice, is_polled, count)
    }

    /// Moves `count` bytes over each connection; `None` for calls, which block unless `is_polled`.
    fn between<S>(
        &self,
        pairs: Vec<(S, S)>,
        choice: Option<Choice>,
        is_polled: bool,
        count: u64,
    ) -> anyhow::Result<Vec<f64>>
    where
        S: Into<Stream> + Read + Write + Send,
    {
        let (near, far): (Vec<S>, Vec<S>) = pairs.into_iter().unzip();
        let far: Vec<Stream> = far.into_iter().map(Into::into).collect();
        let (sends, is_kernel, way) = (self.way.is_send(), self.is_kernel, self.way);
        let bytes = buffer_bytes(self.sockets);
        let threads = if choice.is_some() || is_polled { 1 } else { near.len() };
        let start = Barrier::new(threads + 2);
        thread::scope(|scope| {
            let start = &start;
            let other = scope.spawn(move || {
                // Kernel sockets lend nothing, and the choice of the back end does not matter here.
                let way = match (sends, is_kernel) {
                    (false, _) => Way::Send,
                    (true, true) => Way::Receive,
                    (true, false) => Way::ReceiveLent,
                };
                let work = Work::new(Choice::Epoll, way, far, count);
                start.wait();
                work?.run()
            });
            let own: Vec<_> = match choice {
                Some(choice) => vec![scope.spawn(move || {
                    let streams = near.into_iter().map(Into::into).collect();
                    timed(start, Work::new(choice, way, streams, count), Work::run)
                })],
                None if is_polled => vec![scope.spawn(move || {
                    let streams: Vec<Stream> = near.into_iter().map(Into::into).collect();
                    timed(start, Ok(streams), |streams| by_epoll(&streams, sends, (count, bytes)))
                })],
                None => {
                    let by_calls = |stream| {
                        move || {
                            timed(start, Ok(stream), |stream| {
                                by_calls(stream, sends, (count, bytes))
                            })
                        }
                    };
                    near.into_iter().map(|stream| scope.spawn(by_calls(stream))).collect()
                }
            };
            let before = cpu(ClockId::ProcessCPUTime);
            start.wait();
            let watch = Stopwatch::start();
            let join = |thread: thread::ScopedJoinHandle<'_, anyhow::Result<Duration>>| {
                thread.join().map_err(|_| anyhow!("a thread failed"))?
            };
            let used = own.into_iter().map(join).collect::<Vec<_>>();
            other.join().map_err(|_| anyhow!("the other end failed"))??;
            let (taken, all) = (watch.elapsed(), cpu(ClockId::ProcessCPUTime) - before);
            let used = used.into_iter().sum::<anyhow::Result<Duration>>()?;
            let gib = (count * self.sockets as u64) as f64 / (1_u64 << 30) as f64;
            let per_gib = |time: Duration| time.as_secs_f64() * 1e3 / gib;
            Ok(vec![gib * 1024.0 / taken.as_secs_f64(), per_gib(used), per_gib(all)])
        })
    }
}

/// Bytes of a buffer for this many sockets: a power of two.
fn buffer_bytes(sockets: usize) -> usize {
    (1 << (BUFFERS_BYTES / sockets).ilog2()).min(BUFFER_BYTES_MAX)
}

/// Waits until all threads are ready, runs the work, and returns this thread's processor time for
/// it.
fn timed<W>(
    start: &Barrier,
    work: anyhow::Result<W>,
    run: impl FnOnce(W) -> anyhow::Result<()>,
) -> anyhow::Result<Duration> {
    start.wait();
    let before = cpu(ClockId::ThreadCPUTime);
    run(work?)?;
    Ok(cpu(ClockId::ThreadCPUTime) - before)
}

/// Moves `left` bytes by blocking calls, with a buffer of `bytes` bytes.
fn by_calls(
    mut stream: impl Read + Write,
    sends: bool,
    (mut left, bytes): (u64, usize),
) -> anyhow::Result<()> {
    let mut buffer = vec![0x5a; bytes];
    while left > 0 {
        let room = left.min(bytes as u64) as usize;
        let moved = match sends {
            true => stream.write(&buffer[..room]),
            false => stream.read(&mut buffer[..room]),
        };
        match moved {
            Ok(0) => anyhow::bail!("the other end closed {left} bytes too early"),
            Ok(moved) => left -= moved as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("cannot move bytes"),
        }
    }
    Ok(())
}

/// Moves `left` bytes on each of the kernel's sockets by non-blocking calls, with a buffer of
/// `bytes` bytes for each.
fn by_epoll(streams: &[Stream], sends: bool, (left, bytes): (u64, usize)) -> anyhow::Result<()> {
    let (mut reactor, mut events) = (Reactor::new()?, Box::<Events>::default());
    for (number, stream) in streams.iter().enumerate() {
        let socket = stream.as_kernel().context("it is not the kernel's")?;
        reactor.add(socket, number as u64, Interest::BOTH, true)?;
    }
    let mut each = vec![(left, vec![0x5a; bytes]); streams.len()];
    while each.iter().any(|(left, _)| *left > 0) {
        reactor.wait(Some(PATIENCE), &mut events)?;
        ensure!(!events.is_empty(), "no more data moves");
        for number in events.iter().map(|event| event.token as usize) {
            let (stream, (left, buffer)) = (&streams[number], &mut each[number]);
            while *left > 0 {
                let room = (*left).min(bytes as u64) as usize;
                let moved = match sends {
                    true => stream.try_send(&buffer[..room]),
                    false => stream.try_receive(&mut buffer[..room]),
                };
                match moved {
                    Ok(0) => bail!("the other end closed {left} bytes too early"),
                    Ok(moved) => *left -= moved as u64,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error).context("cannot move bytes"),
                }
            }
        }
    }
    Ok(())
}

/// Moves bytes by operations, on all sockets in one thread.
struct Work {
    queue: EventQueue,
    way: Way,
    sockets: Vec<Socket>,
    /// Bytes of a buffer.
    bytes: usize,
}

struct Socket {
    stream: Stream,
    /// Bytes not yet assigned to a send operation, or not yet received.
    left: u64,
    buffers: Vec<Vec<u8>>,
    /// A send that was not accepted yet. The next one waits for it.
    sending: Option<Token>,
    /// Operations in flight.
    posted: usize,
}

impl Socket {
    /// Whether bytes remain to move, or sent buffers have not returned yet.
    fn is_under_way(&self, way: Way) -> bool {
        self.left > 0 || (way.is_send() && self.posted > 0)
    }
}

impl Work {
    fn new(choice: Choice, way: Way, streams: Vec<Stream>, left: u64) -> anyhow::Result<Self> {
        let queue = EventQueue::with(&Config { back_end: choice, ..Config::default() })?;
        let posted = |stream: &Stream| match way {
            Way::Send | Way::SendLent => SENDS,
            Way::Receive if stream.as_host().is_some() => RECEIVES,
            // With several concurrent receives, the order of their data is not specified.
            Way::Receive => 1,
            Way::ReceiveLent => 0,
        };
        let bytes = buffer_bytes(streams.len());
        let socket = |stream| Socket {
            buffers: vec![vec![0x5a; bytes]; posted(&stream)],
            stream,
            left,
            sending: None,
            posted: 0,
        };
        Ok(Self { queue, way, sockets: streams.into_iter().map(socket).collect(), bytes })
    }

    fn run(mut self) -> anyhow::Result<()> {
        for index in 0..self.sockets.len() {
            self.go_on(index)?;
        }
        let (mut events, mut under_way) = (Vec::new(), self.sockets.len());
        while under_way > 0 {
            events.clear();
            self.queue.wait(&mut events, Some(self.queue.now() + PATIENCE))?;
            ensure!(!events.is_empty(), "no more data moves");
            for event in &events {
                let index = event.data as usize;
                let was_under_way = self.sockets[index].is_under_way(self.way);
                self.on_event(index, event.token, event.kind)?;
                self.go_on(index)?;
                let is_over = was_under_way && !self.sockets[index].is_under_way(self.way);
                under_way -= usize::from(is_over);
            }
        }
        Ok(())
    }

    /// Handles an event of an operation.
    fn on_event(&mut self, index: usize, token: Token, kind: EventKind) -> anyhow::Result<()> {
        let (socket, full) = (&mut self.sockets[index], self.bytes);
        match (self.way, kind) {
            (Way::Send | Way::SendLent, EventKind::Accepted { bytes }) => {
                ensure!(bytes == full || socket.left == 0, "{bytes} bytes were accepted");
                socket.sending = None;
                return Ok(());
            }
            (Way::ReceiveLent, _) => {
                let Some(Completion::Pieces(pieces)) = self.queue.take(token) else {
                    bail!("the operation did not complete");
                };
                let pieces = pieces?;
                let count: usize = pieces.iter().map(|piece| piece.len()).sum();
                ensure!(count > 0, "the other end closed {} bytes too early", socket.left);
                socket.left -= count as u64;
            }
            (way, _) => {
                let (result, buffer) = match self.queue.take(token) {
                    Some(Completion::Bytes(done)) => (done.result, done.buffer),
                    Some(Completion::Sent(done)) => {
                        let buffer = done.buffer.downcast();
                        (done.result, buffer.map_err(|_| anyhow!("a wrong buffer came back"))?)
                    }
                    _ => bail!("the operation did not complete"),
                };
                let count = result.context("cannot move bytes")?;
                socket.buffers.push(buffer);
                if way == Way::Receive && socket.left > 0 {
                    ensure!(count > 0, "the other end closed {} bytes too early", socket.left);
                    socket.left -= count as u64;
                }
            }
        }
        socket.posted -= 1;
        Ok(())
    }

    /// Starts all operations that can start.
    fn go_on(&mut self, index: usize) -> anyhow::Result<()> {
        let Self { queue, way, sockets, bytes } = self;
        let Socket { stream, left, buffers, sending, posted } = &mut sockets[index];
        if *left == 0 || sending.is_some() || (*way == Way::ReceiveLent && *posted > 0) {
            return Ok(());
        }
        let (data, room) = (index as u64, (*left).min(*bytes as u64) as usize);
        match way {
            Way::ReceiveLent => {
                queue.receive_lent(&*stream, room, None, data)?;
                *posted += 1;
            }
            Way::Send | Way::SendLent => {
                let Some(mut buffer) = buffers.pop() else { return Ok(()) };
                buffer.truncate(room);
                *sending = Some(match way {
                    Way::SendLent => queue.send_zerocopy(&*stream, buffer, None, data)?,
                    _ => queue.send(&*stream, buffer, None, data)?,
                });
                *left -= room as u64;
                *posted += 1;
            }
            Way::Receive => {
                while let Some(buffer) = buffers.pop() {
                    queue.receive_all(&*stream, buffer, None, data)?;
                    *posted += 1;
                }
            }
        }
        Ok(())
    }
}

/// Processor time so far.
pub(super) fn cpu(of: ClockId) -> Duration {
    let time = clock_gettime(of);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
