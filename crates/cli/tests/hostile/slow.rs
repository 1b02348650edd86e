//! Readers that never read, beside an honest flow: data for them stays with its sender, and the
//! honest flow, new connections and names are served as before. Then they read, and every byte
//! arrives.
//!
//! # Method
//!
//! A *source* sends and a *sink* receives. Each is this executable in another role, controlled by
//! lines on its standard input ([`source`], [`sink`]). One of them is inside: a program of `towpath
//! run`, or a guest of `towpath up`. The sink opens many connections and reads none. The kernel's
//! buffers are small, so the rest of each answer would have to wait in towpath.
//!
//! The speed of the honest flow is compared with that of a flow through another towpath of the same
//! kind that has no slow readers ([`Reference`]). One is measured right after the other. Both need
//! the same processes, so a machine that is busy with other things slows down both alike.
//!
//! `TOWPATH_SLOW_FLOWS=N` sets N connections instead of [`FLOWS`], and tries each case with more
//! sizes of memory and numbers of workers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rustix::net::{AddressFamily, SocketType, sockopt};
use towpath_io::reactor::{Events, Interest, Reactor};

use crate::roles::{self, Process, Up, allow_files, guest, ip};
use crate::sys;

/// First argument of this executable in a role of these tests.
pub(super) const ROLE: &str = "--slow";
/// Names of the tests.
pub(super) const NAMES: [&str; 3] =
    ["slow_readers_of_published_ports", "slow_downloads_of_a_program", "slow_downloads_of_a_guest"];

const TOWPATH: &str = env!("CARGO_BIN_EXE_towpath");
/// Connections that are not read.
const FLOWS: usize = 400;
/// Bytes sent on each of them: several times as many as the kernel's buffers keep.
const ANSWER: usize = 512 << 10;
/// Least, initial and greatest size of the kernel's buffers on the host's side. With larger ones,
/// the flows would take all memory that the system has for TCP, which then slows down all
/// connections.
const BUFFERS: &str = "4096 32768 49152";
/// Most connections that the source has yet to accept.
const BACKLOG: i32 = 4096;
/// Buffer size of source and sink for connections that are not read.
const BUFFER: usize = 16 << 10;
/// Bytes of an honest transfer.
const HONEST: usize = 64 << 20;
/// Ports of the source: for connections that are not read, and for honest ones.
pub(super) const FLOOD_PORT: u16 = 8088;
const HONEST_PORT: u16 = 8089;
/// Address of the host and of its resolver.
const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Measurements of an honest flow before it counts as too slow: the machine may stall.
const TRIES: u32 = 6;
/// Time until the next try: what else the machine does may slow one of two processes for a second.
const BETWEEN_TRIES: Duration = Duration::from_millis(700);
/// How long it may take until the kernel's buffers of unread connections are full: a time for all,
/// plus one for each. Until then these connections move bytes, and have their parts of the thread.
const SETTLING: Duration = Duration::from_secs(2);
const SETTLING_OF_EACH: Duration = Duration::from_millis(2);
/// How long towpath is watched without traffic, and how much of a processor it may use then, in
/// percent.
const REST: Duration = Duration::from_millis(500);
const REST_SHARE_MAX: u128 = 10;
/// Least speed of the honest flow, in percent of its speed without slow readers.
pub(super) const SPEED_MIN: u128 = 70;
/// Longest time for a connection or a name.
pub(super) const ANSWER_MAX: Duration = Duration::from_millis(100);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// Which side is inside, and of which command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Published,
    Downloads,
    Guest,
}

/// Runs one of [`NAMES`].
pub(super) fn run(name: &str) -> Result<(), Failed> {
    let kind = match NAMES.iter().position(|known| *known == name) {
        Some(0) => Kind::Published,
        Some(1) => Kind::Downloads,
        _ => Kind::Guest,
    };
    let wanted = std::env::var("TOWPATH_SLOW_FLOWS").ok().and_then(|count| count.parse().ok());
    let flows = wanted.unwrap_or(FLOWS);
    allow_files();
    set_up_host()?;
    let sizes: &[&str] = if wanted.is_some() { &["16M", "64M", "256M"] } else { &["64M"] };
    for memory in sizes {
        let workers: &[&str] = if wanted.is_some() { &["1", "2"] } else { &["1"] };
        for &workers in workers {
            // Each worker takes at least 16 MiB.
            if workers != "1" && (kind == Kind::Guest || *memory == "16M") {
                continue;
            }
            println!("--- {name}: {flows} flows, {memory}, {workers} workers");
            case(kind, flows, memory, workers)?;
        }
    }
    Ok(())
}

fn case(kind: Kind, flows: usize, memory: &str, workers: &str) -> Result<(), Failed> {
    let reference = Reference::start(kind, memory, workers)?;
    let mut scene = Scene::start(kind, memory, workers)?;
    let begun = Instant::now();
    scene.sink.ask(&format!("flood {flows}"), "flooded")?;
    println!("    {flows} connections in {:?}", begun.elapsed());
    // Until the source has filled the kernel's buffers.
    thread::sleep(SETTLING + SETTLING_OF_EACH * flows as u32);
    rests(scene.towpath())?;
    let mut speeds = Vec::new();
    loop {
        let (alone, now) = (reference.measure()?, measure(scene.honest())?);
        let speed = alone.as_micros() * 100 / now.as_micros().max(1);
        println!("    honest flow: {now:?}, without slow readers {alone:?}: {speed} %");
        speeds.push(speed);
        if speed >= SPEED_MIN {
            break;
        }
        assert!(speeds.len() < TRIES as usize, "the honest flow is too slow: {speeds:?} %");
        thread::sleep(BETWEEN_TRIES);
    }
    quick(scene.honest(), "connect")?;
    // Names are resolved by the side inside.
    quick(if kind == Kind::Published { &mut scene.source } else { scene.honest() }, "resolve")?;
    let begun = Instant::now();
    let drained = scene.sink.ask("drain", "drained")?;
    println!("    all bytes arrived within {:?}", begun.elapsed());
    assert_eq!(drained, flows as u64, "all that was sent arrives");
    measure(scene.honest())?;
    Ok(())
}

/// The processes of a case, in the network of the thread that started them. They end in the order
/// of the fields.
struct Scene {
    /// Opens the connections that are not read.
    sink: Process,
    /// The guest of the honest flow, if it is not the sink itself.
    other: Option<Process>,
    source: Process,
    /// The network of guests.
    up: Option<Up>,
    kind: Kind,
}

impl Scene {
    fn start(kind: Kind, memory: &str, workers: &str) -> Result<Self, Failed> {
        let host = HOST.to_string();
        let run = |role: &str| -> Result<Command, Failed> {
            let mut command = Command::new(TOWPATH);
            command.args(["run", "-q", "--memory", memory, "--workers", workers, "--dns", &host]);
            if kind == Kind::Published {
                command.args(["-t", &format!("{FLOOD_PORT},{HONEST_PORT}")]);
            }
            command.arg("--").arg(std::env::current_exe()?).args([ROLE, role, &host]);
            Ok(command)
        };
        let outside = |role: &str| -> Result<Command, Failed> {
            let mut command = Command::new(std::env::current_exe()?);
            command.args([ROLE, role, &host]);
            Ok(command)
        };
        let mut up = None;
        let mut source = match kind {
            Kind::Published => Process::start(run("source")?)?,
            _ => Process::start(outside("source")?)?,
        };
        source.expect("ready")?;
        let (mut sink, mut other) = match kind {
            Kind::Published => (Process::start(outside("sink")?)?, None),
            Kind::Downloads => (Process::start(run("sink")?)?, None),
            Kind::Guest => {
                let mut command = Command::new(TOWPATH);
                command.args(["up", "--memory", memory, "--dns", &host, "-v"]);
                command.args(["--tap", "slow0", "--tap", "honest0"]);
                command.env("XDG_RUNTIME_DIR", std::env::temp_dir());
                up = Some(Up::start(command)?);
                let sink = guest(outside("guest")?, "slow0", "10.0.2.20")?;
                (sink, Some(guest(outside("guest")?, "honest0", "10.0.2.21")?))
            }
        };
        sink.expect("ready")?;
        if let Some(other) = &mut other {
            other.expect("ready")?;
        }
        Ok(Self { sink, other, source, up, kind })
    }

    /// Returns the process at the end of honest flows.
    fn honest(&mut self) -> &mut Process {
        self.other.as_mut().unwrap_or(&mut self.sink)
    }

    /// Returns the first process of towpath.
    fn towpath(&self) -> u32 {
        match (&self.up, self.kind) {
            (Some(up), _) => up.0.id(),
            (None, Kind::Published) => self.source.child.id(),
            (None, _) => self.sink.child.id(),
        }
    }
}

/// A scene without slow readers, in a host of its own. A thread keeps it, as a network belongs to
/// the thread that entered it.
struct Reference {
    requests: Option<Sender<()>>,
    times: Receiver<Result<Duration, String>>,
    thread: Option<JoinHandle<()>>,
}

impl Reference {
    fn start(kind: Kind, memory: &str, workers: &str) -> Result<Self, Failed> {
        let (requests, asked) = channel();
        let (answers, times) = channel();
        let [memory, workers] = [memory, workers].map(String::from);
        let thread = thread::spawn(move || {
            let scene = set_up_host().and_then(|()| Scene::start(kind, &memory, &workers));
            match scene {
                Ok(mut scene) => asked.iter().for_each(|()| {
                    let time = measure(scene.honest()).map_err(|error| format!("{error:?}"));
                    // Without a receiver, the test is over.
                    let _ = answers.send(time);
                }),
                Err(error) => drop(answers.send(Err(format!("{error:?}")))),
            }
        });
        let reference = Self { requests: Some(requests), times, thread: Some(thread) };
        // The first transfer, when everything is new, takes longer.
        reference.measure()?;
        Ok(reference)
    }

    fn measure(&self) -> Result<Duration, Failed> {
        // If the thread has ended, it has said why.
        let _ = self.requests.as_ref().map(|requests| requests.send(()));
        Ok(self.times.recv()??)
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Fails unless the processes of towpath, of which `first` is the first, rest for a while: unread
/// bytes must cost nothing. The speed of a flow cannot show a thread that spins, as that slows down
/// the reference as well.
fn rests(first: u32) -> Result<(), Failed> {
    let mut shares = Vec::new();
    for _ in 0..TRIES {
        let (begun, before) = (Instant::now(), cpu_time(first));
        thread::sleep(REST);
        let used = cpu_time(first).saturating_sub(before);
        shares.push(used.as_micros() * 100 / begun.elapsed().as_micros());
        if shares.last().is_some_and(|share| *share <= REST_SHARE_MAX) {
            println!("    without news: {shares:?} % of a processor");
            return Ok(());
        }
    }
    Err(format!("towpath does not rest: {shares:?} % of a processor").into())
}

/// Returns the processor time of the processes of towpath, from this one on.
fn cpu_time(pid: u32) -> Duration {
    let of =
        |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let stat = of("stat");
    // The 12th and 13th field after the name, in ticks.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let ticks = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
    let own = match stat.contains("(towpath)") {
        true => Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second() as u32,
        false => Duration::ZERO,
    };
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.map(|thread| {
        let path = thread.path().join("children");
        std::fs::read_to_string(path).unwrap_or_default()
    });
    children.fold(own, |all, children| {
        let pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        all + pids.map(cpu_time).sum::<Duration>()
    })
}

/// Measures an honest transfer.
fn measure(sink: &mut Process) -> Result<Duration, Failed> {
    Ok(Duration::from_micros(sink.ask("honest", "honest")?))
}

/// Requests an action that must be quick, repeatedly if it is not.
fn quick(process: &mut Process, what: &str) -> Result<(), Failed> {
    let mut times = Vec::new();
    for _ in 0..TRIES {
        times.push(Duration::from_micros(process.ask(what, what)?));
        println!("    {what}: {:?}", times.last());
        if times.last().is_some_and(|time| *time <= ANSWER_MAX) {
            return Ok(());
        }
    }
    Err(format!("{what} takes too long: {times:?}").into())
}

/// Moves this thread into a host of its own, with small buffers and a resolver.
fn set_up_host() -> Result<(), Failed> {
    sys::enter_network()?;
    for command in ["link set lo up", "addr add 192.0.2.1/32 dev lo"] {
        ip(command)?;
    }
    set_small_buffers()?;
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "1024 65535")?;
    answer_names(UdpSocket::bind((HOST, 53))?);
    Ok(())
}

/// Makes the buffers of sockets in this thread's network small.
pub(super) fn set_small_buffers() -> io::Result<()> {
    for name in ["tcp_rmem", "tcp_wmem"] {
        std::fs::write(format!("/proc/sys/net/ipv4/{name}"), BUFFERS)?;
    }
    Ok(())
}

/// Answers all queries for names.
pub(super) fn answer_names(resolver: UdpSocket) {
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((count, from)) = resolver.recv_from(&mut buffer) {
            // Sets the flag of a response.
            buffer[2] |= 0x80;
            let _ = resolver.send_to(&buffer[..count], from);
        }
    });
}

/// The main function of a role.
pub(super) fn main(role: &str, host: &str) {
    allow_files();
    let host: Ipv4Addr = host.parse().expect("an address");
    match role {
        "source" => source(),
        "sink" => sink(host),
        _ => {
            roles::become_guest();
            sink(host);
        }
    }
}

/// Sends on all connections.
fn source() {
    let any = Ipv4Addr::UNSPECIFIED;
    let honest = TcpListener::bind((any, HONEST_PORT)).expect("a free port");
    let flood = TcpListener::bind((any, FLOOD_PORT)).expect("a free port");
    // Accepted connections inherit it. With larger buffers the system's memory for TCP runs out,
    // and the kernel resets some of them.
    sockopt::set_socket_send_buffer_size(&flood, BUFFER).expect("a setting");
    // A shorter backlog overflows: the kernel then answers with SYN cookies, and drops the ACKs of
    // some handshakes silently.
    rustix::net::listen(&flood, BACKLOG).expect("it listens");
    thread::spawn(move || {
        for stream in honest.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let block = vec![0x5a; 64 << 10];
                let mut stream = stream;
                for _ in 0..HONEST / block.len() {
                    if stream.write_all(&block).is_err() {
                        return;
                    }
                }
            });
        }
    });
    thread::spawn(move || send_to_all(flood));
    println!("ready");
    for line in io::stdin().lines().map_while(Result::ok) {
        assert_eq!(line, "resolve");
        println!("resolve {}", resolve_anew().as_micros());
    }
}

/// Sends [`ANSWER`] bytes on each connection, as far as it takes them. It keeps each until its peer
/// has closed it: the kernel gives up a closed one whose data the peer does not take for two
/// minutes (`tcp_orphan_retries`), as with thousands of readers on a busy machine.
pub(super) fn send_to_all(listener: TcpListener) {
    listener.set_nonblocking(true).expect("a setting");
    let answer: Vec<u8> = (0..ANSWER).map(byte_at).collect();
    let mut streams: Vec<Option<(TcpStream, usize)>> = Vec::new();
    let (mut reactor, mut events) = (Reactor::new().expect("a set of files"), Events::new());
    reactor.add(&listener, u64::MAX, Interest::READ, false).expect("it is watched");
    loop {
        reactor.wait(None, &mut events).expect("files are waited for");
        for event in events.iter() {
            let Some(entry) = streams.get_mut(event.token as usize) else {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).expect("a setting");
                    let token = streams.len() as u64;
                    reactor.add(&stream, token, Interest::WRITE, false).expect("it is watched");
                    streams.push(Some((stream, 0)));
                }
                continue;
            };
            while let Some((stream, sent)) = entry {
                match stream.write(&answer[*sent..]) {
                    // All is sent, so the event is the peer's end.
                    Ok(0) | Err(_) if *sent == ANSWER => *entry = None,
                    Ok(count) if *sent + count < ANSWER => *sent += count,
                    Ok(_) => {
                        *sent = ANSWER;
                        let _ = stream.shutdown(Shutdown::Write);
                        let _ = reactor.modify(&*stream, event.token, Interest::READ, false);
                        break;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(_) => *entry = None,
                }
            }
        }
    }
}

fn byte_at(place: usize) -> u8 {
    (place / 251) as u8
}

/// Connects, and reads or not.
fn sink(host: Ipv4Addr) {
    let mut slow = Vec::new();
    println!("ready");
    for line in io::stdin().lines().map_while(Result::ok) {
        let begun = Instant::now();
        let (word, number) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "flood" => {
                let count = number.parse().expect("a number");
                slow.extend((0..count).map(|_| connect_to_wait(host)));
                println!("flooded");
            }
            "honest" => {
                let mut bytes = 0;
                let mut stream = connect(host, HONEST_PORT);
                let mut buffer = vec![0; 256 << 10];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    bytes += count;
                }
                assert_eq!(bytes, HONEST);
                println!("honest {}", begun.elapsed().as_micros());
            }
            "connect" => {
                let longest = (0..20).map(|_| {
                    let begun = Instant::now();
                    connect(host, HONEST_PORT).read_exact(&mut [0]).expect("a byte");
                    begun.elapsed()
                });
                println!("connect {}", longest.max().unwrap_or_default().as_micros());
            }
            "resolve" => println!("resolve {}", resolve_anew().as_micros()),
            "drain" => {
                println!("drained {}", read_all(std::mem::take(&mut slow)));
            }
            other => panic!("{other:?} is no command"),
        }
    }
}

fn connect(host: Ipv4Addr, port: u16) -> TcpStream {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((host, port)), PATIENCE);
    let stream = stream.expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a setting");
    stream
}

/// Makes a connection that is not read: the kernel keeps little of the data.
fn connect_to_wait(host: Ipv4Addr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
    let socket = socket.expect("a socket");
    sockopt::set_socket_recv_buffer_size(&socket, BUFFER).expect("a setting");
    let address = SocketAddr::from((host, FLOOD_PORT));
    rustix::net::connect(&socket, &address).expect("a connection");
    socket.into()
}

/// Reads all streams to the end, in any order; returns how many delivered all bytes correctly.
fn read_all(streams: Vec<TcpStream>) -> usize {
    let (mut reactor, mut events) = (Reactor::new().expect("a set of files"), Events::new());
    for (token, stream) in streams.iter().enumerate() {
        stream.set_nonblocking(true).expect("a setting");
        reactor.add(stream, token as u64, Interest::READ, false).expect("it is watched");
    }
    let (mut whole, mut left) = (0, streams.len());
    let mut streams: Vec<Option<(TcpStream, usize)>> =
        streams.into_iter().map(|stream| Some((stream, 0))).collect();
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        reactor.wait(Some(PATIENCE), &mut events).expect("files are waited for");
        assert!(!events.is_empty(), "{left} bring nothing for {PATIENCE:?}");
        for event in events.iter() {
            let entry = &mut streams[event.token as usize];
            let Some((stream, place)) = entry else { continue };
            match stream.read(&mut buffer) {
                Ok(count @ 1..) if (0..count).all(|at| buffer[at] == byte_at(*place + at)) => {
                    *place += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                end => {
                    whole += usize::from(matches!(end, Ok(0)) && *place == ANSWER);
                    *entry = None;
                    left -= 1;
                }
            }
        }
    }
    whole
}

/// Resolves a name through towpath, over a new socket.
fn resolve_anew() -> Duration {
    resolve(&UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket"))
}

/// Resolves a name through towpath, over an existing socket.
pub(super) fn resolve(socket: &UdpSocket) -> Duration {
    let begun = Instant::now();
    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a setting");
    // A query for example.org, type A.
    let question = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01";
    socket.send_to(question, ("10.0.2.3", 53)).expect("it is sent");
    let answer = socket.recv(&mut [0; 512]);
    if answer.is_ok() { begun.elapsed() } else { PATIENCE }
}
