//! The host of a test: a network namespace with servers, traps and a view of what leaves it.
//!
//! `HOST` is on one end of a pair of interfaces. Packets to elsewhere leave by it, and are seen on
//! the other end, where nothing answers.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::honest;
use crate::sys::{self, PacketSocket, Sees};

/// The host's addresses on its network.
pub(super) const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(super) const HOST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// Addresses that do not answer.
pub(super) const NOBODY: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
pub(super) const NOBODY6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xb, 0, 0, 0, 0, 1);
/// Port of the traps: nothing from inside may arrive here.
pub(super) const TRAP: u16 = 7666;
/// Port where datagrams of [`WELCOME`] are counted.
pub(super) const WELCOMING: u16 = 7001;
/// Port where connections are accepted and kept, and not read.
pub(super) const SINK: u16 = 7002;
/// Port where bytes are echoed.
pub(super) const ECHO: u16 = 7007;
/// A port on which no socket listens.
pub(super) const CLOSED: u16 = 7999;
/// Part of data that must not reach the host.
pub(super) const HOSTILE: &[u8; 8] = b"HOSTILE!";
/// A datagram that must reach the host.
pub(super) const WELCOME: &[u8; 8] = b"WELCOME!";

/// Packets in flight to the traps arrive within this time, unless the machine is very busy. Then a
/// fault may be missed once, but none is reported falsely.
pub(super) const SETTLING: Duration = Duration::from_millis(150);
/// How long to wait for packets that must arrive.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections that the sink keeps; it closes the oldest first.
const SINK_MAX: usize = 512;
const TICK: Duration = Duration::from_millis(50);

/// The servers and traps of a host, which end with it.
pub(super) struct Host {
    watch: Arc<Watch>,
    /// [`dropped_by_kernel`] at the start.
    dropped_before: u64,
}

/// State that a host's threads share.
#[derive(Default)]
struct Watch {
    over: AtomicBool,
    trapped: Mutex<Vec<String>>,
    welcomed: AtomicU64,
}

impl Watch {
    fn is_over(&self) -> bool {
        // Relaxed: nothing else depends on the flag.
        self.over.load(Ordering::Relaxed)
    }

    fn trapped(&self, what: String) {
        self.trapped.lock().expect("no thread panics with the lock").push(what);
    }
}

impl Host {
    /// Moves this thread into a new host and starts its servers.
    pub(super) fn new() -> io::Result<Self> {
        sys::enter_network()?;
        for command in SETUP {
            let words: Vec<&str> = command.split(' ').collect();
            let output = Command::new("ip").args(&words).output()?;
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "ip {command}: {error}");
        }
        let host = Self { watch: Arc::default(), dropped_before: dropped_by_kernel() };
        for address in [IpAddr::from(HOST), HOST6.into()] {
            let listener = TcpListener::bind((address, honest::PORT))?;
            thread::spawn(move || honest::serve(listener));
            sink(TcpListener::bind((address, SINK))?);
            echo(TcpListener::bind((address, ECHO))?);
            host.trap(address)?;
            host.welcome(UdpSocket::bind((address, WELCOMING))?)?;
        }
        host.trap(Ipv4Addr::LOCALHOST.into())?;
        host.trap(Ipv6Addr::LOCALHOST.into())?;
        host.look_outside()?;
        Ok(host)
    }

    /// Returns what arrived although it must not.
    pub(super) fn trapped(&self) -> Vec<String> {
        self.watch.trapped.lock().expect("no thread panics with the lock").clone()
    }

    /// Waits for `expected` welcome datagrams; returns how many arrived. Datagrams for which a
    /// socket had no room, because its reader was late, count as arrived. So do packets that the
    /// kernel dropped meanwhile, up to a tenth of `expected`: other tests fill its queues. Call it
    /// on the host's thread.
    pub(super) fn welcomed(&self, expected: u64) -> u64 {
        let started = Instant::now();
        loop {
            let dropped = (dropped_by_kernel() - self.dropped_before).min(expected / 10);
            // Relaxed: a counter that is polled until it is large enough.
            let arrived = self.watch.welcomed.load(Ordering::Relaxed);
            let arrived = arrived + without_room(WELCOMING) + dropped;
            if arrived >= expected || started.elapsed() > PATIENCE {
                return arrived;
            }
            thread::sleep(TICK);
        }
    }

    /// Opens sockets that accept anything and report it.
    fn trap(&self, address: IpAddr) -> io::Result<()> {
        let udp = UdpSocket::bind((address, TRAP))?;
        let tcp = TcpListener::bind((address, TRAP))?;
        udp.set_read_timeout(Some(TICK))?;
        let watch = self.watch.clone();
        thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !watch.is_over() {
                if let Ok((count, from)) = udp.recv_from(&mut buffer) {
                    watch.trapped(format!("{count} bytes of UDP from {from} at {address}"));
                }
            }
        });
        tcp.set_nonblocking(true)?;
        let watch = self.watch.clone();
        thread::spawn(move || {
            while !watch.is_over() {
                match tcp.accept() {
                    Ok((_, from)) => watch.trapped(format!("TCP from {from} at {address}")),
                    Err(_) => thread::sleep(TICK),
                }
            }
        });
        Ok(())
    }

    fn welcome(&self, socket: UdpSocket) -> io::Result<()> {
        socket.set_read_timeout(Some(TICK))?;
        let watch = self.watch.clone();
        thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !watch.is_over() {
                let Ok(count) = socket.recv(&mut buffer) else { continue };
                if buffer[..count].starts_with(WELCOME) {
                    // Relaxed: a counter.
                    watch.welcomed.fetch_add(1, Ordering::Relaxed);
                } else {
                    watch.trapped(format!("{count} hostile bytes where datagrams are welcome"));
                }
            }
        });
        Ok(())
    }

    /// Checks frames that leave the host: none is hostile, and all have the host's own address.
    fn look_outside(&self) -> io::Result<()> {
        let socket = PacketSocket::open("outside", Sees::Everything)?;
        let watch = self.watch.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; 2048];
            while !watch.is_over() {
                let Some(frame) = socket.receive(&mut buffer, TICK) else { continue };
                let hostile = frame.windows(HOSTILE.len()).any(|bytes| bytes == HOSTILE);
                if hostile || !has_own_source(frame) {
                    let head = &frame[..frame.len().min(80)];
                    watch.trapped(format!("a frame left the host: {head:02x?}"));
                }
            }
        });
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Relaxed: the threads check it periodically.
        self.watch.over.store(true, Ordering::Relaxed);
    }
}

/// Returns true if the frame comes from an address of the host, or is its own neighbour or
/// multicast listener discovery.
fn has_own_source(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        Some([8, 0]) => frame.get(26..30) == Some(&HOST.octets()),
        Some([0x86, 0xdd]) => {
            let source = frame.get(22..38);
            let link_local = frame.get(22) == Some(&0xfe) || source == Some(&[0; 16]);
            link_local || source == Some(&HOST6.octets())
        }
        _ => true,
    }
}

/// Returns the datagrams for which the sockets at `port` had no room, from the last column of the
/// kernel's tables.
fn without_room(port: u16) -> u64 {
    let at = format!(":{port:04X}");
    let count = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        if words.nth(1)?.ends_with(&at) { words.last()?.parse::<u64>().ok() } else { None }
    };
    let tables = ["udp", "udp6"].map(|name| format!("/proc/thread-self/net/{name}"));
    let texts = tables.map(|path| std::fs::read_to_string(path).unwrap_or_default());
    texts.iter().flat_map(|text| text.lines()).filter_map(count).sum()
}

/// Returns the packets that the kernel dropped because a processor's queue of received packets was
/// full (`netdev_max_backlog`), from the second column of its table. All namespaces share these
/// queues.
fn dropped_by_kernel() -> u64 {
    let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let dropped = |line: &str| u64::from_str_radix(line.split(' ').nth(1)?, 16).ok();
    text.lines().filter_map(dropped).sum()
}

fn sink(listener: TcpListener) {
    thread::spawn(move || {
        let mut kept = std::collections::VecDeque::new();
        for stream in listener.incoming() {
            if kept.len() == SINK_MAX {
                kept.pop_front();
            }
            kept.extend(stream);
        }
    });
}

fn echo(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    if io::Write::write_all(&mut stream, &buffer[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// Arguments of the `ip` commands that set up the host.
const SETUP: &[&str] = &[
    "link set lo up",
    "link add host0 type veth peer name outside",
    "addr add 192.0.2.1/24 dev host0",
    "addr add 2001:db8::1/64 dev host0 nodad",
    "link set host0 arp off up",
    "link set outside up",
    "route add default dev host0",
    "-6 route add default dev host0",
];
