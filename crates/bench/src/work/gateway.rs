//! Bytes of a program, through the gateway to a host socket or in the other direction; or requests
//! and responses of one byte, in sequence, over one connection, several connections in turn or a
//! new one each; or datagrams. The program is a stack of towpath in place of a TAP device. The
//! program, the gateway and the host's peer run in one thread, so that nothing depends on
//! scheduling. The peer is reached through the host's loopback. Work that needs a real device is in
//! [`tap`](super::tap). System calls of program and peer are counted here, so that those of the
//! gateway can be distinguished.

mod datagrams;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail, ensure};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::net::sockopt::{set_socket_send_buffer_size, set_tcp_congestion};
use towpath_gateway::config::{Config, Ipv4Config};
use towpath_gateway::flows::JoinedListener;
use towpath_gateway::report::Report;
use towpath_gateway::worker::{Inside, Worker};
use towpath_io::reactor::{Interest, Reactor};
use towpath_io::socket;
use towpath_net::fragment::into_received;
use towpath_net::socket::{Error, Family, SendFlags, SocketId, Sockets};
use towpath_net::stack::{self, Address, Limits, Stack};
use towpath_net::tcp::Settings;
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Caps, Context, Device, Input, Ledger, Memory, MemoryConfig};

use towpath_gateway::flows::allow_many_files;

/// Which side sends, and what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// The program sends.
    Out,
    /// The host sends.
    In,
    /// The program sends over a joined port of its loopback, past the stack.
    Joined,
    /// Both sides send a byte at a time, over one persistent connection.
    Requests,
    /// Both sides send a byte at a time, over this many connections in turn.
    RequestsOf(u32),
    /// Both sides send a byte over a new connection, which the program closes first.
    Connections,
    /// The program sends datagrams.
    DatagramsOut,
    /// The host sends datagrams.
    DatagramsIn,
}

impl Way {
    /// Bytes of one unit of work.
    fn unit(self) -> u64 {
        match self {
            Self::Out | Self::In | Self::Joined => CHUNK as u64,
            Self::Requests | Self::RequestsOf(_) | Self::Connections => 1,
            Self::DatagramsOut | Self::DatagramsIn => datagrams::BATCH_BYTES as u64,
        }
    }

    fn is_of_datagrams(self) -> bool {
        matches!(self, Self::DatagramsOut | Self::DatagramsIn)
    }
}

/// The result of carrying.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carried {
    /// Fewest packets of a connection towards the program.
    #[cfg_attr(not(test), expect(dead_code, reason = "only a test asks"))]
    pub(super) packets_min: Option<u32>,
    /// System calls of the program and of the peer.
    pub(super) own_calls: u64,
}

/// Carries `count` blocks of [`CHUNK`] bytes or batches of datagrams, or makes `count` connections.
pub(super) fn carry(way: Way, count: u32) -> anyhow::Result<Carried> {
    // Each connection uses two descriptors.
    allow_many_files();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?;
    // Sends are not paced: with pacing, timing would decide which data arrives together.
    set_tcp_congestion(&listener, UNPACED).context("cannot set the peer's congestion control")?;
    set_socket_send_buffer_size(&listener, 2 * CHUNK)
        .context("cannot set the size of the send buffer")?;
    let config = Config {
        host_loopback: vec![Ipv4Config::default().gateway.into()],
        ipv6: None,
        resolvers: Some(Vec::new()),
        ..Config::default()
    };
    let host_port = listener.local_addr()?.port();
    let mut program = Program::new(&config, way, count, listener)?;
    let done = program.done.try_clone().context("cannot duplicate a file descriptor")?;
    let mut joined = Vec::new();
    if way == Way::Joined {
        let socket = socket::TcpListener::bind((Ipv4Addr::LOCALHOST, 0).into(), None)?;
        program.connect_past_stack(socket.local()?)?;
        joined.push(JoinedListener { socket, host_port });
    }
    let mut worker = Worker::serving(&config, program, Arc::default())?;
    worker.join(joined)?;
    worker.run_until(&[done.as_fd()])?;
    let side = worker.inside();
    ensure!(side.carried == side.total, "{} of {} bytes arrived", side.carried, side.total);
    Ok(Carried { packets_min: side.fewest, own_calls: side.calls })
}

/// The inside of the gateway, and the peer outside.
struct Program {
    sockets: Sockets,
    stream: SocketId,
    memory: Memory,
    ledger: Ledger,
    sent: Burst,
    way: Way,
    listener: TcpListener,
    peer: Option<TcpStream>,
    /// Other open connections; the next one to use is first.
    open: VecDeque<(SocketId, TcpStream)>,
    /// The peer of datagrams.
    datagrams: Option<datagrams::Peer>,
    /// Whether the peer of datagrams was sent a first one.
    is_greeted: bool,
    /// The program's own kernel socket.
    past_stack: Option<TcpStream>,
    buffer: Vec<u8>,
    total: u64,
    /// Bytes given to the sender's socket.
    begun: u64,
    /// Bytes that the receiver got.
    carried: u64,
    /// Destination of connections.
    to: SocketAddr,
    /// Packets towards the program since the last connection began.
    packets: u32,
    fewest: Option<u32>,
    /// System calls that are not the gateway's.
    calls: u64,
    /// Readable while there is work: `news` is readable, or the peer can continue.
    ready: Reactor,
    news: OwnedFd,
    /// Readable when everything has arrived.
    done: OwnedFd,
}

impl Program {
    fn new(config: &Config, way: Way, count: u32, listener: TcpListener) -> anyhow::Result<Self> {
        let (ready, news) = (Reactor::new()?, new_event()?);
        ready.add(&news, 0, Interest::READ, false)?;
        listener.set_nonblocking(true)?;
        ready.add(&listener, 0, Interest::READ, false)?;
        let net = config.ipv4.context("IPv4 is disabled")?;
        let mut sockets = Sockets::new(stack_of(config, &net));
        let mut to = SocketAddr::new(net.gateway.into(), listener.local_addr()?.port());
        let mut datagrams = None;
        let stream = if way.is_of_datagrams() {
            let peer = datagrams::Peer::new(&ready)?;
            to.set_port(peer.port()?);
            datagrams = Some(peer);
            sockets.datagram(Family::V4)
        } else {
            sockets.stream(Family::V4)
        };
        let stream = stream.map_err(reported)?;
        if datagrams.is_none() && way != Way::Joined {
            match sockets.connect(stream, to, Instant::START) {
                Ok(()) | Err(Error::InProgress) => {}
                Err(error) => return Err(reported(error)),
            }
        }
        tell(&news);
        Ok(Self {
            sockets,
            stream,
            memory: Memory::new(MemoryConfig::within(MEMORY_BYTES)),
            ledger: Ledger::new(),
            sent: Burst::new(),
            way,
            listener,
            peer: None,
            open: VecDeque::new(),
            datagrams,
            is_greeted: false,
            past_stack: None,
            buffer: vec![0x5a; CHUNK],
            total: u64::from(count) * way.unit(),
            begun: 0,
            carried: 0,
            to,
            packets: 0,
            fewest: None,
            calls: 0,
            ready,
            news,
            done: new_event()?,
        })
    }

    /// Connects to a socket that listens on the program's loopback.
    fn connect_past_stack(&mut self, to: SocketAddr) -> anyhow::Result<()> {
        let stream = TcpStream::connect(to).context("cannot connect")?;
        set_tcp_congestion(&stream, UNPACED)
            .context("cannot set the program's congestion control")?;
        stream.set_nonblocking(true)?;
        self.ready.add(&stream, 0, Interest::WRITE, false)?;
        self.past_stack = Some(stream);
        Ok(())
    }

    /// Lets program and peer do all the work they can.
    fn go_on(&mut self, now: Instant) -> anyhow::Result<()> {
        if self.peer.is_none() && self.datagrams.is_none() {
            self.accept()?;
        }
        match self.way {
            Way::Out => {
                self.program_sends(now)?;
                self.peer_receives()?;
            }
            Way::In => {
                self.socket_sends()?;
                self.program_receives(now)?;
            }
            Way::Joined => {
                self.socket_sends()?;
                self.peer_receives()?;
            }
            Way::Requests => {
                self.peer_echoes()?;
                while self.program_asks(now)? {}
            }
            Way::RequestsOf(flows) => {
                self.peer_echoes()?;
                while self.program_asks_next(flows as usize, now)? {}
            }
            Way::Connections => {
                self.peer_echoes()?;
                self.program_connects(now)?;
            }
            Way::DatagramsOut => self.datagrams_go_out(now)?,
            Way::DatagramsIn => self.datagrams_come_in(now)?,
        }
        if self.carried >= self.total {
            tell(&self.done);
        }
        Ok(())
    }

    fn accept(&mut self) -> anyhow::Result<()> {
        self.calls += 1;
        if let Ok((peer, _)) = self.listener.accept() {
            // Counts its close, too.
            self.calls += 3;
            peer.set_nonblocking(true)?;
            self.watch_peer(&peer)?;
            self.peer = Some(peer);
        }
        Ok(())
    }

    fn program_sends(&mut self, now: Instant) -> anyhow::Result<()> {
        while self.begun < self.total {
            let left = (self.total - self.begun).min(CHUNK as u64) as usize;
            let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now };
            let bytes = &self.buffer[..left];
            match self.sockets.send(self.stream, &[bytes], SendFlags::default(), &mut cx) {
                Ok(count) => self.begun += count as u64,
                Err(Error::WouldBlock | Error::InProgress) => break,
                Err(error) => return Err(reported(error)),
            }
        }
        Ok(())
    }

    fn program_receives(&mut self, now: Instant) -> anyhow::Result<()> {
        loop {
            match self.sockets.discard(self.stream, usize::MAX, now) {
                Ok(0) | Err(Error::WouldBlock | Error::InProgress) => return Ok(()),
                Ok(count) => self.carried += count as u64,
                Err(error) => return Err(reported(error)),
            }
        }
    }

    /// Sends a byte if the last one was answered, and receives the answer; true if it has arrived.
    fn program_asks(&mut self, now: Instant) -> anyhow::Result<bool> {
        if self.carried == self.total {
            return Ok(false);
        }
        if self.begun == self.carried {
            let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now };
            match self.sockets.send(self.stream, &[b"?"], SendFlags::default(), &mut cx) {
                Ok(count) => self.begun += count as u64,
                Err(Error::WouldBlock | Error::InProgress) => {}
                Err(error) => return Err(reported(error)),
            }
        }
        match self.sockets.discard(self.stream, usize::MAX, now) {
            Ok(0) => bail!("the connection ended without an answer"),
            Ok(count) => self.carried += count as u64,
            Err(Error::WouldBlock | Error::InProgress | Error::NotConnected) => return Ok(false),
            Err(error) => return Err(reported(error)),
        }
        Ok(true)
    }

    /// Exchanges a byte, and continues with the next of `flows` connections: a new one, or the
    /// oldest.
    fn program_asks_next(&mut self, flows: usize, now: Instant) -> anyhow::Result<bool> {
        if !self.program_asks(now)? {
            return Ok(false);
        }
        let peer = self.peer.take().context("no peer has answered")?;
        self.open.push_back((self.stream, peer));
        if self.open.len() < flows {
            self.begin_connection(now)?;
        } else if let Some((stream, peer)) = self.open.pop_front() {
            (self.stream, self.peer) = (stream, Some(peer));
        }
        Ok(true)
    }

    /// Exchanges a byte, closes the connection and opens the next.
    fn program_connects(&mut self, now: Instant) -> anyhow::Result<()> {
        if !self.program_asks(now)? {
            return Ok(());
        }
        self.sockets.close(self.stream, now).map_err(reported)?;
        // The FIN of the previous connection and its ACK count for the next one.
        if self.carried > 1 {
            self.fewest = Some(self.fewest.map_or(self.packets, |least| least.min(self.packets)));
        }
        self.packets = 0;
        if self.carried < self.total { self.begin_connection(now) } else { Ok(()) }
    }

    fn begin_connection(&mut self, now: Instant) -> anyhow::Result<()> {
        self.stream = self.sockets.stream(Family::V4).map_err(reported)?;
        match self.sockets.connect(self.stream, self.to, now) {
            Ok(()) | Err(Error::InProgress) => Ok(()),
            Err(error) => Err(reported(error)),
        }
    }

    /// Echoes received bytes, and closes after the program.
    fn peer_echoes(&mut self) -> anyhow::Result<()> {
        let Some(mut peer) = self.peer.as_ref() else { return Ok(()) };
        self.calls += 1;
        match peer.read(&mut self.buffer[..1]) {
            Ok(0) => self.peer = None,
            Ok(_) => {
                self.calls += 1;
                peer.write_all(&self.buffer[..1])?;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Sends from the peer, or from the program past the stack.
    fn socket_sends(&mut self) -> anyhow::Result<()> {
        let sender = if self.way == Way::Joined { &self.past_stack } else { &self.peer };
        let Some(mut sender) = sender.as_ref() else { return Ok(()) };
        while self.begun < self.total {
            let left = (self.total - self.begun).min(CHUNK as u64) as usize;
            self.calls += 1;
            match sender.write(&self.buffer[..left]) {
                Ok(count) => self.begun += count as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        // It is always writable, and nothing is left to write. Removing it fails if it was removed
        // before.
        drop(self.ready.remove(sender));
        Ok(())
    }

    fn peer_receives(&mut self) -> anyhow::Result<()> {
        let Some(mut peer) = self.peer.as_ref() else { return Ok(()) };
        loop {
            self.calls += 1;
            match peer.read(&mut self.buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => self.carried += count as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn watch_peer(&self, peer: &TcpStream) -> anyhow::Result<()> {
        let interest = if self.way == Way::In { Interest::WRITE } else { Interest::READ };
        Ok(self.ready.add(peer, 0, interest, false)?)
    }
}

impl Inside for Program {
    fn add_to(&self, _: &mut Report) {}
}

impl Device for Program {
    type Error = std::io::Error;

    fn caps(&self) -> Caps {
        able()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.as_fd())
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.sockets.stack().next_deadline()
    }

    fn turn(&mut self, _: bool, cx: &mut Context<'_>) -> std::io::Result<()> {
        // Cleared before the state is checked.
        self.calls += 1;
        let _ = rustix::io::read(&self.news, &mut [0; 8]);
        let now = cx.now;
        if self.next_deadline().is_some_and(|at| at <= now) {
            let Self { sockets, memory, ledger, .. } = self;
            sockets.on_deadline(&mut Context { memory, ledger, now });
        }
        self.go_on(now).map_err(std::io::Error::other)
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> std::io::Result<Input> {
        let Self { sockets, memory, ledger, sent, .. } = self;
        while !burst.is_full() {
            if sent.is_empty() {
                sockets.output(sent, &mut Context { memory, ledger, now: cx.now });
            }
            let Some(packet) = sent.pop() else { break };
            let packet = into_received(packet, memory).map_err(|_| short_of_memory())?;
            let has_room = burst.push(packet).is_ok();
            debug_assert!(has_room, "it was not full");
        }
        if burst.is_full() {
            self.calls += 1;
            tell(&self.news);
        }
        Ok(Input::Done)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> std::io::Result<()> {
        let Self { sockets, memory, ledger, .. } = self;
        let mut arrived = Burst::new();
        while let Some(packet) = burst.pop() {
            self.packets += 1;
            let packet = into_received(packet, memory).map_err(|_| short_of_memory())?;
            arrived.push(packet).map_err(|_| short_of_memory())?;
        }
        sockets.input(&mut arrived, &mut Context { memory, ledger, now: cx.now });
        while sockets.next_wake().is_some() {}
        self.calls += 1;
        tell(&self.news);
        Ok(())
    }
}

fn stack_of(config: &Config, net: &Ipv4Config) -> Stack {
    let gateway = IpAddr::V4(net.gateway);
    let own = stack::Config {
        mac: MacAddr(config.program_mac),
        addresses: vec![Address { address: net.address.into(), prefix_len: net.prefix_len }],
        next_hops: vec![gateway],
        transparent: false,
        secret: [1, 2],
        tcp: Settings::default(),
        limits: Limits::default(),
    };
    let mut stack = Stack::new(own, able());
    stack.set_neighbor(gateway, MacAddr(config.gateway_mac));
    stack
}

/// A device with all capabilities.
fn able() -> Caps {
    Caps { checksum: true, tso4: true, uso: true, gso_bytes_max: 65_535 + 14, ..Caps::plain(1500) }
}

pub(super) fn new_event() -> rustix::io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

pub(super) fn tell(event: &OwnedFd) {
    // Fails only if the counter is full: then the event is signalled already.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

fn short_of_memory() -> std::io::Error {
    ErrorKind::OutOfMemory.into()
}

fn reported(error: Error) -> anyhow::Error {
    anyhow!("the stack returned {error:?}")
}

/// A congestion control that every kernel has and that does not pace.
pub(super) const UNPACED: &str = "reno";
/// Bytes of a call.
pub(super) const CHUNK: usize = 64 << 10;
const MEMORY_BYTES: usize = 32 << 20;
