//! Bytes of a program, through a TAP device and the gateway to sockets of the host or in the other
//! direction, over one connection or several. The program's sockets are kernel sockets, in a
//! network of their own. They, the gateway and the host's peers run in one thread, as in
//! [`gateway`](super::gateway), so that little depends on scheduling.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use towpath_gateway::config::{Config, Ipv4Config};
use towpath_gateway::report::Report;
use towpath_gateway::worker::{Inside, Worker};
use towpath_io::netlink::Netlink;
use towpath_io::reactor::{Interest, Reactor};
use towpath_io::tap::{Features, Tap, TapError};
use towpath_packet::{Burst, Caps, Context, Input};

use super::gateway::{CHUNK, UNPACED, new_event, tell};
use crate::lab::Network;

/// Which side sends, and over how many connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Way {
    pub(super) program_sends: bool,
    pub(super) flows: usize,
}

/// Carries `count` blocks of [`CHUNK`] bytes. Returns the system calls of program and peers. No
/// other thread may run yet.
pub(super) fn carry(way: Way, count: u32) -> anyhow::Result<u64> {
    let new = || Network::new().context("network namespaces need root; run it with sudo");
    let (host, program) = (new()?, new()?);
    host.inside(|| {
        prepare()?;
        carry_to_here(way, count, &program)
    })
}

fn carry_to_here(way: Way, count: u32, program: &Network) -> anyhow::Result<u64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?;
    let gateway = Ipv4Config::default().gateway;
    let config = Config {
        host_loopback: vec![gateway.into()],
        ipv6: None,
        resolvers: Some(Vec::new()),
        ..Config::default()
    };
    let to = SocketAddr::new(gateway.into(), listener.local_addr()?.port());
    let (tap, streams) = program.inside(|| {
        prepare()?;
        let tap = interface(&config)?;
        let streams = (0..way.flows).map(|_| begin(to)).collect::<anyhow::Result<_>>()?;
        Ok((tap, streams))
    })?;
    let total = u64::from(count) * CHUNK as u64;
    let device = Device { tap, ends: Ends::new(way, streams, listener, total)?, failure: None };
    let done = device.ends.done.try_clone().context("cannot duplicate a file descriptor")?;
    let mut worker = Worker::serving(&config, device, Arc::default())?;
    worker.run_until(&[done.as_fd()])?;
    let Device { ends, failure, .. } = worker.inside_mut();
    if let Some(failure) = failure.take() {
        return Err(failure);
    }
    ensure!(ends.carried == total, "{} of {total} bytes arrived", ends.carried);
    Ok(ends.calls)
}

/// Prepares the network of this thread so that the amount of data in flight does not depend on
/// timing: sends are not paced, packets have the same size on slow paths, and buffers do not grow.
fn prepare() -> anyhow::Result<()> {
    Netlink::open()?.loopback_up()?;
    let buffers = format!("4096 {BUFFER_BYTES} {BUFFER_BYTES}");
    let settings = [
        ("tcp_rmem", &*buffers),
        ("tcp_wmem", &*buffers),
        ("tcp_congestion_control", UNPACED),
        ("tcp_min_tso_segs", "45"),
    ];
    for (name, value) in settings {
        let path = format!("/proc/sys/net/ipv4/{name}");
        fs::write(&path, value).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}

/// The program's interface, configured as `towpath run` does.
fn interface(config: &Config) -> anyhow::Result<Tap> {
    let name = &config.interface;
    let mut tap = Tap::create(name).with_context(|| format!("cannot create interface {name}"))?;
    tap.set_offload(Features::ALL)?;
    tap.set_mtu(config.mtu);
    config.interface().configure().with_context(|| format!("cannot configure interface {name}"))?;
    Ok(tap)
}

/// Starts a connection of the program without waiting for the answer.
fn begin(to: SocketAddr) -> anyhow::Result<TcpStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(errno) => Err(errno).context("cannot connect"),
    }
}

/// Size of a socket buffer, half of which is for payload.
const BUFFER_BYTES: usize = 16 * CHUNK;

/// Both ends of all connections.
struct Ends {
    way: Way,
    program: Vec<TcpStream>,
    peers: Vec<TcpStream>,
    listener: TcpListener,
    buffer: Vec<u8>,
    total: u64,
    /// Bytes given to the senders' sockets.
    begun: u64,
    /// Bytes that the receivers got.
    carried: u64,
    /// System calls that are not the gateway's.
    calls: u64,
    /// Readable while an end may continue.
    ready: Reactor,
    /// Readable when everything has arrived, or nothing more will.
    done: OwnedFd,
}

impl Ends {
    fn new(
        way: Way,
        program: Vec<TcpStream>,
        listener: TcpListener,
        total: u64,
    ) -> anyhow::Result<Self> {
        let ready = Reactor::new()?;
        listener.set_nonblocking(true)?;
        ready.add(&listener, 0, Interest::READ, false)?;
        for stream in &program {
            ready.add(stream, 0, interest(way.program_sends), false)?;
        }
        Ok(Self {
            way,
            program,
            peers: Vec::new(),
            listener,
            buffer: vec![0x5a; CHUNK],
            total,
            begun: 0,
            carried: 0,
            calls: 0,
            ready,
            done: new_event()?,
        })
    }

    /// Lets each end do all the work it can.
    fn go_on(&mut self) -> anyhow::Result<()> {
        self.accept()?;
        let Self { program, peers, buffer, total, begun, carried, calls, ready, .. } = self;
        let (senders, receivers) =
            if self.way.program_sends { (program, peers) } else { (peers, program) };
        for mut sender in &*senders {
            while *begun < *total {
                let left = (*total - *begun).min(CHUNK as u64) as usize;
                *calls += 1;
                let Some(sent) = unless_blocked(sender.write(&buffer[..left]))? else { break };
                *begun += sent as u64;
            }
            if *begun == *total {
                // It is always writable. Removing it fails if it was removed before.
                *calls += 1;
                drop(ready.remove(sender));
            }
        }
        for mut receiver in &*receivers {
            loop {
                *calls += 1;
                let Some(got) = unless_blocked(receiver.read(buffer))? else { break };
                ensure!(got > 0, "a connection ended");
                *carried += got as u64;
            }
        }
        if carried == total {
            tell(&self.done);
        }
        Ok(())
    }

    fn accept(&mut self) -> anyhow::Result<()> {
        while self.peers.len() < self.way.flows {
            self.calls += 1;
            let Some((peer, _)) = unless_blocked(self.listener.accept())? else { break };
            self.calls += 2;
            peer.set_nonblocking(true)?;
            self.ready.add(&peer, 0, interest(!self.way.program_sends), false)?;
            self.peers.push(peer);
        }
        Ok(())
    }
}

fn interest(sends: bool) -> Interest {
    if sends { Interest::WRITE } else { Interest::READ }
}

fn unless_blocked<T>(result: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// The TAP device, whose bell includes the events of both ends.
struct Device {
    tap: Tap,
    ends: Ends,
    failure: Option<anyhow::Error>,
}

impl Inside for Device {
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ends.ready.as_fd())
    }

    fn clear_bell(&mut self) {
        if let Err(failure) = self.ends.go_on() {
            self.failure = Some(failure);
            tell(&self.ends.done);
        }
    }

    fn add_to(&self, report: &mut Report) {
        self.tap.add_to(report);
    }
}

impl towpath_packet::Device for Device {
    type Error = TapError;

    fn caps(&self) -> Caps {
        self.tap.caps()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.tap.file()
    }

    fn looks_by_call(&self) -> bool {
        self.tap.looks_by_call()
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, TapError> {
        self.tap.receive(burst, cx)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), TapError> {
        self.tap.transmit(burst, cx)
    }

    fn rest(&mut self) {
        self.tap.rest();
    }
}
