//! Joined flows over this machine's loopback. Programs and servers are threads; the joined flows
//! run on the test's own thread.

use super::*;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener as HostListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use towpath_io::reactor::Events;
use towpath_io::socket::PIPE_BYTES;

/// Longest wait for anything; it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long nothing may happen before the test checks whether it is done.
const STEP: Duration = Duration::from_millis(10);
/// Far more bytes than both sockets and a pipe hold.
const MANY: usize = 48 << 20;

/// The joined flows, with a port inside that leads to a server of the host.
struct Rig {
    reactor: Reactor,
    joined: JoinedFlows,
    counters: GatewayCounters,
    now: Instant,
    inside: SocketAddr,
}

impl Rig {
    /// Makes a rig with a port inside that leads to `host_port`.
    fn leading_to(host_port: u16, inside: &str, flows_max: usize) -> Self {
        let reactor = Reactor::new().unwrap();
        let socket = TcpListener::bind(inside.parse().unwrap(), None).unwrap();
        let inside = socket.local().unwrap();
        let mut joined = JoinedFlows::new(flows_max, false);
        joined.listen(JoinedListener { socket, host_port }, &reactor).unwrap();
        let counters = GatewayCounters::default();
        Self { reactor, joined, counters, now: Instant::START, inside }
    }

    /// Makes a rig, and a server that serves each of its connections on a thread.
    fn serving(
        flows_max: usize,
        connections: usize,
        serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static,
    ) -> (Self, JoinHandle<()>) {
        let host = HostListener::bind("127.0.0.1:0").unwrap();
        let rig = Self::leading_to(host.local_addr().unwrap().port(), "127.0.0.1:0", flows_max);
        let server = thread::spawn(move || {
            let serving = (0..connections).map(|_| {
                let (stream, _) = host.accept().unwrap();
                patient(&stream);
                let serve = serve.clone();
                thread::spawn(move || serve(stream))
            });
            serving.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        });
        (rig, server)
    }

    /// Runs a program inside, on a thread of its own.
    fn program<T: Send + 'static>(
        &self,
        act: impl FnOnce(TcpStream) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let inside = self.inside;
        thread::spawn(move || {
            let stream = TcpStream::connect(inside).unwrap();
            patient(&stream);
            act(stream)
        })
    }

    fn with<R>(&mut self, act: impl FnOnce(&mut JoinedFlows, &mut Around<'_>) -> R) -> R {
        let Self { reactor, joined, counters, now, .. } = self;
        act(joined, &mut Around { reactor, counters, now: *now })
    }

    /// Runs one turn of the worker, which moves no more than its share.
    fn turn(&mut self) {
        let (before, was_paused) = (self.counters, self.joined.paused_until.is_some());
        let timeout = if self.joined.has_work() { Duration::ZERO } else { STEP };
        let mut events = Events::new();
        self.reactor.wait(Some(timeout), &mut events).unwrap();
        for event in events.iter() {
            self.with(|joined, cx| match Token::decode(event.token) {
                Some(Token::Joined(slot, end)) => joined.ready(slot, end, event.ready, cx),
                Some(Token::JoinedListener(slot)) => joined.connections_wait(slot),
                token => panic!("{token:?}"),
            });
        }
        self.with(|joined, cx| joined.go_on(cx));
        let most = BYTES_PER_TURN + PIPE_BYTES as u64;
        let moved_out = self.counters.joined_bytes_out - before.joined_bytes_out;
        let moved_in = self.counters.joined_bytes_in - before.joined_bytes_in;
        assert!(was_paused || moved_out < most && moved_in < most, "{moved_out} {moved_in}");
    }

    /// Runs turns until `is_so` returns true.
    fn run_until(&mut self, mut is_so: impl FnMut(&Self) -> bool) {
        let mut rests = 0;
        while !is_so(self) {
            let before = self.counters;
            self.turn();
            let moved = |counters: &GatewayCounters| {
                counters.joined + counters.joined_bytes_in + counters.joined_bytes_out
            };
            rests += u32::from(moved(&self.counters) == moved(&before));
            assert!(STEP * rests < PATIENCE, "nothing happens: {:?}", self.counters);
        }
    }

    /// Runs turns until all threads are done and no flow is left; returns the threads' results.
    fn finish<T, const N: usize>(&mut self, threads: [JoinHandle<T>; N]) -> [T; N] {
        self.run_until(|_| threads.iter().all(JoinHandle::is_finished));
        self.run_until(|rig| rig.joined.len() == 0);
        assert!(self.joined.all_passed_on() && !self.joined.has_work());
        assert!(self.joined.is_listening && self.joined.held_back.is_none());
        threads.map(|thread| thread.join().unwrap())
    }
}

fn patient(stream: &TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
}

fn reset(stream: TcpStream) {
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}

/// Returns the byte for a place and seed: loss, repetition and reordering all show.
fn byte_at(place: usize, seed: usize) -> u8 {
    ((place + seed).wrapping_mul(0x9e37_79b9) >> 16) as u8
}

fn send(mut stream: &TcpStream, len: usize, seed: usize) {
    let mut buffer = vec![0; 100_003];
    let mut sent = 0;
    while sent < len {
        let count = buffer.len().min(len - sent);
        (0..count).for_each(|at| buffer[at] = byte_at(sent + at, seed));
        stream.write_all(&buffer[..count]).unwrap();
        sent += count;
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Reads to the end and checks each byte; returns how many arrived.
fn expect(mut stream: &TcpStream, seed: usize) -> usize {
    let mut buffer = vec![0; 77_777];
    let mut came = 0;
    loop {
        let count = stream.read(&mut buffer).unwrap();
        if count == 0 {
            return came;
        }
        let wrong = (0..count).find(|at| buffer[*at] != byte_at(came + at, seed));
        assert_eq!(wrong.map(|at| came + at), None, "a byte of stream {seed}");
        came += count;
    }
}

/// Returns a port that both loopback addresses refuse: it is bound, and no socket listens.
fn refusing_port() -> (u16, [OwnedFd; 2]) {
    let bound = |address: SocketAddr| {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &address).map(|()| socket)
    };
    for _ in 0..100 {
        let v4 = bound("127.0.0.1:0".parse().unwrap()).unwrap();
        let address: SocketAddr = rustix::net::getsockname(&v4).unwrap().try_into().unwrap();
        if let Ok(v6) = bound(loopback(false, address.port())) {
            return (address.port(), [v4, v6]);
        }
    }
    panic!("no port is free in both families");
}

fn has_ipv6() -> bool {
    let is_there = HostListener::bind("[::1]:0").is_ok();
    if !is_there {
        println!("skipped: no IPv6 loopback address");
    }
    is_there
}

/// Goal: both streams of each of several concurrent flows arrive whole, and are counted.
#[test]
fn whole_streams_pass_both_ways_at_once() {
    let (mut rig, server) = Rig::serving(8, 3, |stream| {
        let reading = stream.try_clone().unwrap();
        let reader = thread::spawn(move || expect(&reading, 1));
        send(&stream, MANY, 2);
        assert_eq!(reader.join().unwrap(), MANY);
    });
    let programs = [(); 3].map(|()| {
        rig.program(|stream| {
            let reading = stream.try_clone().unwrap();
            let reader = thread::spawn(move || expect(&reading, 2));
            send(&stream, MANY, 1);
            reader.join().unwrap()
        })
    });
    assert_eq!(rig.finish(programs), [MANY; 3]);
    server.join().unwrap();
    let GatewayCounters { joined, joined_bytes_out, joined_bytes_in, .. } = rig.counters;
    assert_eq!((joined, joined_bytes_out, joined_bytes_in), (3, 3 * MANY as u64, 3 * MANY as u64));
}

/// Goal: each direction ends by itself, whichever ends first.
#[test]
fn a_fin_passes_after_the_last_byte_and_the_other_way_stays_open() {
    for program_first in [true, false] {
        let (mut rig, server) = Rig::serving(8, 1, move |stream| {
            if program_first {
                assert_eq!(expect(&stream, 3), MANY);
                send(&stream, 5, 4);
            } else {
                send(&stream, MANY, 4);
                assert_eq!(expect(&stream, 3), 5);
            }
        });
        let program = rig.program(move |stream| {
            if program_first {
                send(&stream, MANY, 3);
                expect(&stream, 4)
            } else {
                let count = expect(&stream, 4);
                send(&stream, 5, 3);
                count
            }
        });
        let expected = if program_first { 5 } else { MANY };
        assert_eq!(rig.finish([program]), [expected]);
        server.join().unwrap();
    }
}

/// Goal: a reader that stops also stops its sender, holds at most one pipe and delays no other
/// flow. The bytes that it left are still there when it continues.
#[test]
fn a_slow_reader_holds_up_its_own_flow_only() {
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let may_go_on = std::sync::Arc::new(std::sync::Mutex::new(may_go_on));
    let (mut rig, server) = Rig::serving(8, 2, move |mut stream| {
        let mut first = [0];
        stream.read_exact(&mut first).unwrap();
        if first == [byte_at(0, 5)] {
            may_go_on.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            let mut came = 1;
            let mut buffer = vec![0; 65_000];
            while let count @ 1.. = stream.read(&mut buffer).unwrap() {
                assert!((0..count).all(|at| buffer[at] == byte_at(came + at, 5)));
                came += count;
            }
            assert_eq!(came, MANY);
        } else {
            stream.write_all(&first).unwrap();
        }
    });
    let slow = rig.program(|stream| send(&stream, MANY, 5));
    rig.run_until(|rig| rig.joined.flows.iter().any(|(_, flow)| flow.out.held() > 0));
    let quick = rig.program(|mut stream| {
        let first = [byte_at(0, 5) ^ 1];
        stream.write_all(&first).unwrap();
        let mut came = [0];
        stream.read_exact(&mut came).unwrap();
        assert_eq!(first, came);
    });
    rig.run_until(|_| quick.is_finished());
    assert!(rig.counters.joined_bytes_out < MANY as u64 && rig.joined.len() >= 1);
    let held: Vec<_> = rig.joined.flows.iter().map(|(_, flow)| flow.out.held()).collect();
    assert!(held.iter().all(|held| *held <= PIPE_BYTES), "{held:?}");
    go_on.send(()).unwrap();
    rig.finish([slow, quick]);
    server.join().unwrap();
    assert_eq!(rig.counters.joined_bytes_out, MANY as u64 + 1);
}

/// Returns the error that a program or a server gets from the other side's reset.
fn end_of(mut stream: TcpStream) -> ErrorKind {
    let mut buffer = vec![0; 65_000];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return ErrorKind::UnexpectedEof,
            Ok(_) => {}
            Err(error) => return error.kind(),
        }
    }
}

/// Goal: a reset on one side resets the other, whatever was in progress, and leaves nothing.
/// Method: each side resets at once, in the middle of a stream from it, in the middle of a stream
/// to it that it does not read, and after its own FIN.
#[test]
fn a_reset_on_one_side_is_one_on_the_other() {
    fn resets(step: usize, mut stream: TcpStream) -> ErrorKind {
        match step {
            0 => {}
            1 => stream.write_all(&vec![7; 3 << 20]).unwrap(),
            2 => stream.read_exact(&mut [0; 9]).unwrap(),
            _ => {
                stream.shutdown(Shutdown::Write).unwrap();
                stream.read_exact(&mut [0; 9]).unwrap();
            }
        }
        reset(stream);
        ErrorKind::ConnectionReset
    }
    fn is_reset(step: usize, mut stream: TcpStream) -> ErrorKind {
        if step >= 2 {
            // Whichever call comes first reports it.
            let mut reported = Ok(());
            while reported.is_ok() {
                reported = stream.write_all(&[7; 65_000]);
            }
            let kind = reported.unwrap_err().kind();
            return if kind == ErrorKind::BrokenPipe { ErrorKind::ConnectionReset } else { kind };
        }
        end_of(stream)
    }
    for (program_resets, step) in (0..4).flat_map(|step| [(true, step), (false, step)]) {
        let (reported, hears) = std::sync::mpsc::channel();
        let (mut rig, server) = Rig::serving(8, 1, move |stream| {
            let end = if program_resets { is_reset(step, stream) } else { resets(step, stream) };
            reported.send(end).unwrap();
        });
        let program =
            rig.program(
                move |stream| {
                    if program_resets { resets(step, stream) } else { is_reset(step, stream) }
                },
            );
        rig.run_until(|_| server.is_finished());
        let [at_program] = rig.finish([program]);
        server.join().unwrap();
        let both = [at_program, hears.recv().unwrap()];
        assert_eq!(both, [ErrorKind::ConnectionReset; 2], "{program_resets} {step}");
    }
}

/// Goal: a close without a reset while bytes are in flight to the closed side becomes a reset when
/// they arrive.
#[test]
fn bytes_for_a_closed_receiver_cause_a_reset() {
    let (mut rig, server) = Rig::serving(8, 1, |stream| {
        let mut buffer = vec![7; 65_000];
        let gone = std::iter::repeat_with(|| (&stream).write(&buffer)).find_map(Result::err);
        let kind = gone.unwrap().kind();
        buffer.clear();
        assert!(matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{kind}");
    });
    let program = rig.program(|mut stream| stream.read_exact(&mut [0; 9]).unwrap());
    rig.run_until(|_| server.is_finished());
    rig.finish([program]);
    server.join().unwrap();
}

#[test]
fn what_the_host_refuses_is_reset() {
    let (port, _taken) = refusing_port();
    let mut rig = Rig::leading_to(port, "127.0.0.1:0", 8);
    let programs = [(); 3].map(|()| rig.program(end_of));
    assert_eq!(rig.finish(programs), [ErrorKind::ConnectionReset; 3]);
    assert_eq!((rig.counters.joined, rig.counters.joined_refused), (3, 3));
    assert_eq!(rig.counters.no_descriptor, 0);
}

/// Goal: a service on one of the host's loopback addresses is reached from both of the program's.
#[test]
fn the_other_address_of_the_host_is_tried() {
    if !has_ipv6() {
        return;
    }
    for (inside, served, refused) in [("[::1]:0", 0, 1), ("127.0.0.1:0", 1, 0)] {
        let (port, taken) = refusing_port();
        let _refused = &taken[refused];
        rustix::net::listen(&taken[served], 8).unwrap();
        let mut rig = Rig::leading_to(port, inside, 8);
        let host = HostListener::from(taken[served].try_clone().unwrap());
        let server = thread::spawn(move || expect(&host.accept().unwrap().0, 6));
        let program = rig.program(|stream| send(&stream, 1000, 6));
        rig.run_until(|_| server.is_finished());
        rig.finish([program]);
        assert_eq!(server.join().unwrap(), 1000);
        assert_eq!((rig.counters.joined, rig.counters.joined_refused), (1, 0));
    }
}

/// Goal: at the maximum number of flows the next connection waits, and is served when a flow ends.
#[test]
fn connections_beyond_the_limit_wait() {
    let (mut rig, server) = Rig::serving(2, 5, |mut stream| {
        let mut byte = [0];
        while stream.read(&mut byte).unwrap() == 1 {
            stream.write_all(&byte).unwrap();
        }
    });
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let may_go_on = std::sync::Arc::new(std::sync::Mutex::new(may_go_on));
    let programs = [(); 5].map(|()| {
        let may_go_on = may_go_on.clone();
        rig.program(move |mut stream| {
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0]).unwrap();
            may_go_on.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        })
    });
    rig.run_until(|rig| rig.counters.joined_bytes_in == 2);
    (0..3).for_each(|_| rig.turn());
    assert_eq!((rig.joined.len(), rig.counters.joined), (2, 2));
    assert!(!rig.joined.is_listening && !rig.joined.all_passed_on());
    (0..5).for_each(|_| go_on.send(()).unwrap());
    rig.finish(programs);
    server.join().unwrap();
    assert_eq!(rig.counters.joined, 5);
}

/// Goal: while no descriptor is left, no connection is accepted and flows without a pipe wait.
/// Afterwards nothing is missing, including a connection that was already accepted.
#[test]
fn a_pause_loses_nothing() {
    let (mut rig, server) = Rig::serving(8, 2, |stream| {
        assert_eq!(expect(&stream, 7), 3000);
    });
    let programs = [(); 2].map(|()| rig.program(|stream| send(&stream, 3000, 7)));
    rig.with(|joined, cx| joined.pause(cx));
    (0..3).for_each(|_| rig.turn());
    assert_eq!((rig.joined.len(), rig.counters.joined), (0, 0));
    // As after a connect that found no descriptor.
    let (_, listening) = rig.joined.listeners.iter().next().unwrap();
    let accepted = (0..PATIENCE.as_millis() / STEP.as_millis()).find_map(|_| {
        thread::sleep(STEP);
        listening.listener.socket.accept().ok()
    });
    let (inside, _) = accepted.unwrap();
    let host_port = listening.listener.host_port;
    let attempt =
        Attempt { program: loopback(true, 1), host_port, is_ipv4: true, is_second: false };
    rig.joined.held_back = Some(Newcomer { inside, attempt });
    assert!(!rig.joined.all_passed_on());
    rig.now = rig.joined.deadline().unwrap();
    rig.with(|joined, cx| joined.resume(cx));
    assert_eq!(rig.joined.deadline(), None);
    rig.finish(programs);
    server.join().unwrap();
}
