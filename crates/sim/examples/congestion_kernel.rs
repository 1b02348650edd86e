//! Congestion controllers of the kernel of this machine and of this project's stack on one path, in
//! real time: `cargo run --release -p towpath-sim --example congestion_kernel -- SENDER KIND LOSS
//! RTT QUEUE FLOWS SECONDS [APART [SEGMENTS]]`.
//!
//! SENDER is `linux` or `towpath`, KIND the name of a controller, LOSS in percent, RTT in
//! milliseconds, QUEUE in percent of the bandwidth-delay product, APART the seconds between the
//! beginnings of flows. The path is that of `--example congestion`: links of the simulation, which
//! run by the clock here. At its end is the kernel of this machine in a network namespace, behind a
//! TAP device without offloads; at its beginning the kernel in another namespace, or a stack in
//! this process. Needs root. On a busy machine run it under `chrt -f 50`: delays of milliseconds
//! falsify the path.
//!
//! SEGMENTS is the most segments of which the kernel makes one packet (`gso_max_segs`), one by
//! default: then each frame leaves alone. A stack has no such bound, nor has a kernel with 65535.
//!
//! Prints `SENDER KIND LOSS RTT QUEUE FLOWS MBIT WAITED SHARE DROPPED`: Mbit/s of all flows, the
//! mean time that frames waited in the queue in milliseconds, the share of the fastest flow in
//! percent, and the part of the frames that the queue dropped in percent. With two flows, from 30
//! seconds on.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use std::{env, fs, thread};

use nix::sched::{CloneFlags, unshare};
use towpath_io::namespace::{Addresses, Interface};
use towpath_io::reactor::{Events, Interest, Reactor};
use towpath_io::tap::{Features, Tap};
use towpath_net::tcp::congestion::Kind;
use towpath_net::time::Instant;
use towpath_packet::sync::{AtomicU64, Ordering};
use towpath_packet::{Burst, Caps, Context, Device, Ledger, Memory, MemoryConfig};
use towpath_sim::contest::{self, Path};
use towpath_sim::host::Host;
use towpath_sim::link::{Frame, Link, received};
use towpath_sim::oracle;
use towpath_sim::scenario::{config, endpoint};
use towpath_sim::seed::Rng;

/// Bytes per second: 100 Mbit/s, and on long paths 20 Mbit/s.
const RATES: [u64; 2] = [12_500_000, 2_500_000];
/// Round trips of long paths are at least this many milliseconds.
const LONG: u64 = 100;
/// Bytes of a write and of a read.
const BLOCK: usize = 128 << 10;
/// When the flows begin.
const BEGIN: Duration = Duration::from_millis(500);
/// When the measurement of several flows begins, in seconds.
const SHARE_FROM: u64 = 30;
/// Limits of the kernel's buffers: more than these paths need.
const SYSCTLS: [(&str, &str); 3] = [
    ("tcp_wmem", "4096 16384 67108864"),
    ("tcp_rmem", "4096 131072 134217728"),
    ("tcp_no_metrics_save", "1"),
];

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [sender, kind, loss, rtt, queue, flows, seconds, more @ ..] = &arguments[..] else {
        return Err("expected SENDER KIND LOSS RTT QUEUE FLOWS SECONDS [APART [SEGMENTS]]".into());
    };
    let apart = Duration::from_secs(more.first().map_or(Ok(0), |text| text.parse())?);
    let segments: u16 = more.get(1).map_or(Ok(1), |text| text.parse())?;
    let milliseconds: u64 = rtt.parse()?;
    let path = Path {
        rate: RATES[usize::from(milliseconds >= LONG)],
        rtt: Duration::from_millis(milliseconds),
        queue: queue.parse()?,
        loss: (loss.parse::<f64>()? * 10_000.0) as u32,
    };
    let flows: usize = flows.parse()?;
    let kind = Kind::from_name(kind).ok_or("unknown controller")?;
    let read: Arc<Vec<AtomicU64>> = Arc::new((0..flows).map(|_| AtomicU64::new(0)).collect());
    let far = enter(1, segments, {
        let read = read.clone();
        move || receive(&read)
    })?;
    let near = match &sender[..] {
        "linux" => Near::Kernel(Box::new(enter(0, segments, move || send(kind, flows, apart))?)),
        "towpath" => Near::Stack(Box::new(stack()), kind, flows, apart),
        other => return Err(format!("unknown sender '{other}'").into()),
    };
    let from = BEGIN + Duration::from_secs(if flows > 1 { SHARE_FROM } else { 0 });
    let until = BEGIN + Duration::from_secs(seconds.parse()?);
    let (goodput, waited, dropped) = run(&path, near, far, &read, from, until)?;
    let total: f64 = goodput.iter().sum();
    let most = goodput.iter().copied().fold(0.0, f64::max);
    println!(
        "{sender} {} {loss} {rtt} {queue} {flows} {:.2} {waited:.2} {:.1} {dropped:.2}",
        kind.name(),
        total * 8.0 / 1e6,
        100.0 * most / total.max(1.0)
    );
    Ok(())
}

/// The kernel in a namespace, behind a TAP device.
struct Kernel {
    tap: Tap,
    memory: Memory,
    ledger: Ledger,
    burst: Burst,
}

/// The beginning of the path.
enum Near {
    Kernel(Box<Kernel>),
    Stack(Box<Host>, Kind, usize, Duration),
}

impl Kernel {
    fn new(mut tap: Tap) -> Result<Self, Failure> {
        tap.set_offload(Features::default())?;
        let config = MemoryConfig { packets: 512, small_frames: 512, large_frames: 64 };
        let (memory, ledger) = (Memory::new(config), Ledger::new());
        Ok(Self { tap, memory, ledger, burst: Burst::new() })
    }

    /// Passes the kernel's frames to `link`.
    fn read(&mut self, link: &mut Link, rng: &mut Rng, now: Instant) -> Result<(), Failure> {
        loop {
            let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now };
            self.tap.receive(&mut self.burst, &mut cx)?;
            if self.burst.is_empty() {
                return Ok(());
            }
            while let Some(packet) = self.burst.pop() {
                let frame = Frame { bytes: oracle::flatten(&packet), offload: *packet.offload() };
                link.offer(frame, now, rng);
            }
        }
    }

    /// Passes frames that have arrived to the kernel.
    fn write(&mut self, link: &mut Link, now: Instant) -> Result<(), Failure> {
        while let Some(frame) = link.arrive(now) {
            let Some(packet) = received(&frame.bytes, &mut self.memory) else { continue };
            let mut burst = Burst::new();
            let _ = burst.push(packet);
            let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now };
            self.tap.transmit(&mut burst, &mut cx)?;
        }
        Ok(())
    }
}

/// Runs the path. Returns bytes per second of each flow, the mean wait in milliseconds, and the
/// part that the queue dropped in percent.
fn run(
    path: &Path,
    mut near: Near,
    mut far: Kernel,
    read: &[AtomicU64],
    from: Duration,
    until: Duration,
) -> Result<(Vec<f64>, f64, f64), Failure> {
    let [mut there, mut back] = contest::links(path);
    let mut rng = Rng::new(1);
    let mut reactor = Reactor::new()?;
    reactor.add(&far.tap, 0, Interest::READ, false)?;
    if let Near::Kernel(kernel) = &near {
        reactor.add(&kernel.tap, 1, Interest::READ, false)?;
    }
    let mut events = Events::new();
    let start = clock();
    let mut before = None;
    loop {
        let elapsed = start.elapsed();
        let now = Instant::START + elapsed;
        let totals = || read.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect::<Vec<_>>();
        if before.is_none() && elapsed >= from {
            before = Some((totals(), there.counters()));
        }
        if elapsed >= until {
            let (bytes, counters) = before.unwrap_or_default();
            let seconds = (until - from).as_secs_f64();
            let rate = |(after, before): (&u64, &u64)| (after - before) as f64 / seconds;
            let goodput = totals().iter().zip(&bytes).map(rate).collect();
            let after = there.counters();
            let frames = (after.offered - counters.offered).max(1) as f64;
            let waited = (after.waited_us - counters.waited_us) as f64 / frames / 1e3;
            let dropped = (after.queue_full - counters.queue_full) as f64 / frames * 100.0;
            return Ok((goodput, waited, dropped));
        }
        let mut deadline = None;
        match &mut near {
            Near::Kernel(kernel) => {
                kernel.read(&mut there, &mut rng, now)?;
                kernel.write(&mut back, now)?;
            }
            Near::Stack(host, kind, flows, apart) => {
                let begun = host.flows.len();
                // The far side listens by then.
                if begun < *flows && elapsed > BEGIN + *apart * begun as u32 {
                    contest::begin(host, begun, *kind, now);
                }
                let mut busy = true;
                while busy {
                    busy = host.receive(&mut back, now);
                    host.on_deadline(now);
                    busy |= host.act(&mut rng, now);
                    busy |= host.transmit(&mut there, &mut rng, now);
                }
                deadline = host.deadline(now);
            }
        }
        far.read(&mut back, &mut rng, now)?;
        far.write(&mut there, now)?;
        let next = [deadline, there.deadline(), back.deadline()].into_iter().flatten().min();
        let wait = next.map_or(Duration::from_millis(10), |at| {
            at.since(Instant::START + start.elapsed()).min(Duration::from_millis(10))
        });
        reactor.wait(Some(wait), &mut events)?;
    }
}

/// Starts a thread in a new namespace with one end of the path, which then runs `work`.
fn enter(
    index: usize,
    segments: u16,
    work: impl FnOnce() + Send + 'static,
) -> Result<Kernel, Failure> {
    let (give, take): (Sender<Result<Tap, String>>, Receiver<_>) = channel();
    thread::spawn(move || {
        let made = namespace(index, segments).map_err(|error| error.to_string());
        let works = made.is_ok();
        let _ = give.send(made);
        if works {
            work();
        }
    });
    Kernel::new(take.recv()??)
}

fn namespace(index: usize, segments: u16) -> Result<Tap, Failure> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    let tap = Tap::create("tap0")?;
    let [address, gateway] = [index, 1 - index].map(|index| endpoint(index, false, 0).ip());
    let interface = Interface {
        name: "tap0".into(),
        mtu: 1500,
        tx_queue_len: 1000,
        mac: [2, 0, 0, 0, 0, index as u8 + 1],
        ipv4: Some(Addresses { address, prefix_len: 24, gateway }),
        ipv6: None,
        further: Vec::new(),
        routes: Vec::new(),
    };
    interface.configure()?;
    for (name, value) in SYSCTLS {
        fs::write(format!("/proc/sys/net/ipv4/{name}"), value)?;
    }
    let segments = segments.to_string();
    let ip = ["link", "set", "tap0", "gso_max_segs", &segments];
    Command::new("ip").args(ip).stdout(Stdio::null()).status()?;
    Ok(tap)
}

/// Receives all flows.
fn receive(read: &Arc<Vec<AtomicU64>>) {
    for index in 0..read.len() {
        let Ok(listener) = TcpListener::bind(far_end(index)) else { return };
        let read = read.clone();
        thread::spawn(move || {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut block = vec![0; BLOCK];
            while let Ok(count) = stream.read(&mut block)
                && count > 0
            {
                read[index].fetch_add(count as u64, Ordering::Relaxed);
            }
        });
    }
    thread::park();
}

/// Sends all flows, which begin `apart`.
fn send(kind: Kind, flows: usize, apart: Duration) {
    for index in 0..flows {
        // The far side listens by then.
        thread::sleep(if index == 0 { BEGIN } else { apart });
        thread::spawn(move || {
            let Ok(mut stream) = TcpStream::connect(far_end(index)) else { return };
            if let Err(error) = rustix::net::sockopt::set_tcp_congestion(&stream, kind.name()) {
                eprintln!("the kernel has no {}: {error}", kind.name());
                return;
            }
            let block = vec![0; BLOCK];
            while stream.write_all(&block).is_ok() {}
        });
    }
    thread::park();
}

fn far_end(index: usize) -> SocketAddr {
    let end: IpAddr = endpoint(1, false, 0).ip();
    SocketAddr::new(end, 80 + index as u16)
}

fn stack() -> Host {
    let memory = MemoryConfig { packets: 32_768, small_frames: 65_536, large_frames: 2048 };
    Host::new(config(0, contest::settings()), Caps::plain(1500), memory)
}

fn clock() -> std::time::Instant {
    #[expect(clippy::disallowed_methods, reason = "the kernel runs in real time")]
    std::time::Instant::now()
}
