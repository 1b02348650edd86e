//! towpath's sockets: between two hosts in this process, and over a TAP device to the kernel.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};

use anyhow::{Context, ensure};
use towpath::host::{self, Completions, Config, Host, SendMode, TcpStream, UdpSocket};
use towpath_net::socket::Options;

use super::Mode;
use super::cases::{Point, Protocol};
use super::datagrams::{self, DATAGRAM_BYTES, joined};
use super::kernel::{read_all, receive_all};
use super::workload::{Cost, Sender, Setting};
use crate::lab::{self, Network};

/// Sends from one host of this process to another, which receives the bytes without a copy.
pub(super) fn in_process(point: &Point, mode: Mode, setting: &Setting<'_>) -> anyhow::Result<Cost> {
    let config = |address: Ipv4Addr| Config::with_address(address, PREFIX_LEN);
    let (sender, receiver) = Host::pair(&config(SENDER), &config(RECEIVER))?;
    let to = SocketAddr::from((RECEIVER, PORT));
    if point.protocol == Protocol::Udp {
        let socket = UdpSocket::bind(&receiver, to).context("the receiver cannot bind")?;
        let thread = thread::spawn(move || take_datagrams(&socket));
        return measure_datagrams(&sender, to, thread, point, mode, setting);
    }
    let listener = host::TcpListener::bind(&receiver, to).context("the receiver cannot bind")?;
    let thread = thread::spawn(move || take_all(&listener));
    let stream = TcpStream::connect(&sender, to).context("cannot connect")?;
    let (cost, sent) = measure(stream, point, mode, setting);
    let received = joined(thread)??;
    ensure!(received == sent, "{sent} bytes were sent, {received} received");
    cost
}

/// A host on a TAP device of another network, in which the kernel receives.
pub(super) struct OverTap<'a> {
    network: &'a Network,
    host: Host,
}

impl<'a> OverTap<'a> {
    pub(super) fn new(network: &'a Network) -> anyhow::Result<Self> {
        lab::prepare_program(network)?;
        let host = network.inside(|| {
            let config = Config::with_address(TAP_SENDER, PREFIX_LEN);
            Host::on_tap_named(&config, TAP).context("cannot create a host on a TAP device")
        })?;
        lab::join_by_tap(network, TAP, TAP_RECEIVER, PREFIX_LEN)?;
        Ok(Self { network, host })
    }

    pub(super) fn measure(
        &self,
        point: &Point,
        mode: Mode,
        setting: &Setting<'_>,
    ) -> anyhow::Result<Cost> {
        if point.protocol == Protocol::Udp {
            let socket = self.inside(std::net::UdpSocket::bind)?;
            let to = socket.local_addr().context("the receiver has no address")?;
            let thread = thread::spawn(move || receive_all(&socket));
            return measure_datagrams(&self.host, to, thread, point, mode, setting);
        }
        let listener = self.inside(TcpListener::bind)?;
        let to = listener.local_addr().context("the receiver has no address")?;
        let thread = thread::spawn(move || read_all(&listener));
        let stream = TcpStream::connect(&self.host, to).context("cannot connect")?;
        let (cost, sent) = measure(stream, point, mode, setting);
        let received = joined(thread)??;
        ensure!(received == sent, "{sent} bytes were sent, {received} received");
        cost
    }

    /// Makes a kernel socket in the network.
    fn inside<T: Send>(
        &self,
        bind: impl FnOnce(SocketAddr) -> std::io::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let address = SocketAddr::new(IpAddr::V4(TAP_RECEIVER), 0);
        self.network.inside(|| bind(address).context("the receiver cannot bind"))
    }
}

/// Measures the cost. Also returns how many bytes were sent. Closes the connection.
fn measure(
    stream: TcpStream,
    point: &Point,
    mode: Mode,
    setting: &Setting<'_>,
) -> (anyhow::Result<Cost>, u64) {
    stream.set_send_mode(mode.into());
    let mut walk = setting.memory.walk(point.buffers, point.size);
    let copies = setting.copies(mode);
    let mut sender = HostSender { stream, copies, lent: Completions::new(), sent: 0 };
    let cost = setting.cost(&mut sender, &mut walk);
    (cost, sender.sent)
}

impl From<Mode> for SendMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Lend => SendMode::Lend,
            Mode::Copy => SendMode::Copy,
            Mode::Auto => SendMode::Auto,
        }
    }
}

struct HostSender {
    stream: TcpStream,
    /// Whether to send with calls that always copy, regardless of the socket's mode.
    copies: bool,
    lent: Completions<&'static [u8]>,
    sent: u64,
}

impl Sender for HostSender {
    fn send(&mut self, buffer: &'static [u8]) -> anyhow::Result<()> {
        self.sent += buffer.len() as u64;
        if self.copies {
            return self.stream.write_all(buffer).context("cannot send");
        }
        self.lent.push(self.stream.send_zc(buffer).context("cannot send")?);
        look(&mut self.lent);
        Ok(())
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        while self.lent.wait_next().is_some() {}
        Ok(())
    }
}

/// Sends datagrams from `host` to a receiver, and ends the receiver.
fn measure_datagrams(
    host: &Host,
    to: SocketAddr,
    receiver: JoinHandle<anyhow::Result<u64>>,
    point: &Point,
    mode: Mode,
    setting: &Setting<'_>,
) -> anyhow::Result<Cost> {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let socket = UdpSocket::bind(host, any).context("cannot bind")?;
    socket.connect(to).context("cannot connect")?;
    let segment = |options: &mut Options| options.datagram.segment_size = DATAGRAM_BYTES;
    socket.set_options(segment).context("cannot set the size of segments")?;
    let mut walk = setting.memory.walk(point.buffers, point.size);
    socket.set_send_mode(mode.into());
    let copies = setting.copies(mode);
    let mut sender = DatagramSender { socket, copies, lent: Completions::new(), sent: 0 };
    let cost = setting.cost(&mut sender, &mut walk);
    let received = datagrams::end_receiver(receiver, || sender.socket.send(&[]))?;
    let cost = cost?;
    setting.arrivals.add(point.carrier, sender.sent, received)?;
    Ok(cost)
}

struct DatagramSender {
    socket: UdpSocket,
    /// Whether to send with calls that always copy, regardless of the socket's mode.
    copies: bool,
    lent: Completions<&'static [u8]>,
    sent: u64,
}

impl Sender for DatagramSender {
    fn send(&mut self, buffer: &'static [u8]) -> anyhow::Result<()> {
        self.sent += buffer.len() as u64;
        if self.copies {
            for part in datagrams::calls(buffer) {
                self.socket.send(part).context("cannot send")?;
            }
            return Ok(());
        }
        self.lent.push(self.socket.send_zc(buffer).context("cannot send")?);
        look(&mut self.lent);
        Ok(())
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        while self.lent.wait_next().is_some() {}
        Ok(())
    }
}

/// Collects returned buffers, if many are lent.
fn look(lent: &mut Completions<&'static [u8]>) {
    if lent.len() >= OUT_UNTIL_LOOK {
        while lent.try_next().is_some() {}
    }
}

/// Receives one connection's data to its end. Returns the number of bytes.
fn take_all(listener: &host::TcpListener) -> anyhow::Result<u64> {
    let (stream, _) = listener.accept().context("cannot accept")?;
    let (mut pieces, mut received) = (Vec::new(), 0);
    loop {
        match stream.recv_lent(usize::MAX, &mut pieces).context("cannot receive")? {
            0 => return Ok(received),
            count => received += count as u64,
        }
        pieces.clear();
    }
}

/// Receives until an empty datagram arrives. Returns the number of bytes.
fn take_datagrams(socket: &UdpSocket) -> anyhow::Result<u64> {
    let (mut pieces, mut received) = (Vec::new(), 0);
    loop {
        match socket.recv_lent(&mut pieces).context("cannot receive")?.len {
            0 => return Ok(received),
            count => received += count as u64,
        }
        pieces.clear();
    }
}

const PREFIX_LEN: u8 = 24;
const PORT: u16 = 80;
const SENDER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);
const TAP: &str = "bench0";
const TAP_SENDER: Ipv4Addr = Ipv4Addr::new(10, 7, 1, 1);
const TAP_RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 7, 1, 2);
/// Number of loans after which returns are collected.
const OUT_UNTIL_LOOK: usize = 32;
