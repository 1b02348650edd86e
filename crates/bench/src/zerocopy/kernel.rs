//! Kernel sockets, from this network over a veth pair into another.
//!
//! A veth pair delivers packets to a receiver on the same machine, and for that the kernel copies
//! lent memory after all; the results report how often. A real device would not copy.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;

use anyhow::{Context, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use towpath_io::socket::zerocopy::{enable_lending, segment_datagrams, send_lent, take_return};

use super::Mode;
use super::cases::{Point, Protocol};
use super::datagrams::{self, DATAGRAM_BYTES, MTU, joined};
use super::workload::{Cost, Sender, Setting};
use crate::lab::{self, Network};

/// Two networks, joined by a veth pair; one of them is that of this process.
pub(super) struct Kernel<'a> {
    network: &'a Network,
    /// Calls that lent, over all measurements.
    lent: Cell<Calls>,
}

/// Calls whose memory has returned.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    all: u64,
    /// The calls among them whose bytes the kernel copied after all.
    copied: u64,
}

impl<'a> Kernel<'a> {
    /// Prepares both networks. Also returns the congestion control algorithm in use.
    pub(super) fn new(network: &'a Network) -> anyhow::Result<(Self, String)> {
        let algorithm = lab::prepare()?;
        lab::prepare_program(network)?;
        lab::join_by_veth(network, SUBNET, MTU)?;
        Ok((Self { network, lent: Cell::default() }, algorithm))
    }

    pub(super) fn measure(
        &self,
        point: &Point,
        mode: Mode,
        setting: &Setting<'_>,
    ) -> anyhow::Result<Cost> {
        let mut walk = setting.memory.walk(point.buffers, point.size);
        let lends = mode == Mode::Lend;
        match point.protocol {
            Protocol::Tcp => {
                let listener = self.inside(TcpListener::bind)?;
                let to = listener.local_addr().context("the receiver has no address")?;
                let receiver = thread::spawn(move || read_all(&listener));
                let stream = TcpStream::connect(to).context("cannot connect")?;
                let lending = lends.then(|| Lending::on(stream.as_fd())).transpose()?;
                let mut sender = TcpSender { stream, lending, sent: 0 };
                let cost = setting.cost(&mut sender, &mut walk);
                self.count(sender.lending.as_ref());
                let sent = sender.sent;
                drop(sender);
                let received = joined(receiver)??;
                let cost = cost?;
                ensure!(received == sent, "{sent} bytes were sent, {received} received");
                Ok(cost)
            }
            Protocol::Udp => {
                let socket = self.inside(UdpSocket::bind)?;
                let to = socket.local_addr().context("the receiver has no address")?;
                let receiver = thread::spawn(move || receive_all(&socket));
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("cannot bind")?;
                socket.connect(to).context("cannot connect")?;
                segment_datagrams(socket.as_fd(), DATAGRAM_BYTES).context("UDP_SEGMENT")?;
                let lending = lends.then(|| Lending::on(socket.as_fd())).transpose()?;
                let mut sender = UdpSender { socket, lending, sent: 0 };
                let cost = setting.cost(&mut sender, &mut walk);
                self.count(sender.lending.as_ref());
                let received = datagrams::end_receiver(receiver, || sender.socket.send(&[]))?;
                let cost = cost?;
                setting.arrivals.add(point.carrier, sender.sent, received)?;
                Ok(cost)
            }
        }
    }

    /// Percentage of the lending calls that were copied after all.
    pub(super) fn copied_percent(&self) -> Option<f64> {
        let Calls { all, copied } = self.lent.get();
        (all > 0).then(|| copied as f64 / all as f64 * 100.0)
    }

    fn count(&self, lending: Option<&Lending>) {
        let (lent, more) =
            (self.lent.get(), lending.map_or(Calls::default(), |lending| lending.back));
        self.lent.set(Calls { all: lent.all + more.all, copied: lent.copied + more.copied });
    }

    /// Makes a socket in the other network.
    fn inside<T: Send>(
        &self,
        bind: impl FnOnce(SocketAddr) -> std::io::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let address = SocketAddr::new(RECEIVER, 0);
        self.network.inside(|| bind(address).context("the receiver cannot bind"))
    }
}

/// The calls that lend, and their returns.
struct Lending {
    /// Calls whose memory has not returned yet.
    out: u32,
    back: Calls,
}

impl Lending {
    fn on(socket: BorrowedFd<'_>) -> anyhow::Result<Self> {
        enable_lending(socket).context("SO_ZEROCOPY")?;
        Ok(Self { out: 0, back: Calls::default() })
    }

    fn send(&mut self, socket: BorrowedFd<'_>, mut buffer: &'static [u8]) -> anyhow::Result<()> {
        while !buffer.is_empty() {
            match send_lent(socket, buffer) {
                Ok(sent) => {
                    self.out += 1;
                    buffer = &buffer[sent..];
                }
                // ENOBUFS: returns have to be read, or have to arrive, first.
                Err(error) if error.raw_os_error() == Some(ENOBUFS) => self.wait(socket)?,
                Err(error) => return Err(error).context("cannot send"),
            }
        }
        if self.out >= OUT_UNTIL_LOOK {
            self.take(socket)?;
        }
        Ok(())
    }

    /// Takes all available returns.
    fn take(&mut self, socket: BorrowedFd<'_>) -> anyhow::Result<bool> {
        let mut any = false;
        while let Some(returned) = take_return(socket).context("cannot read completions")? {
            let left = self.out.checked_sub(returned.calls());
            self.out = left.context("more calls completed than were made")?;
            self.back.all += u64::from(returned.calls());
            if returned.copied {
                self.back.copied += u64::from(returned.calls());
            }
            any = true;
        }
        Ok(any)
    }

    /// Takes returns, and waits for them if there are none yet.
    fn wait(&mut self, socket: BorrowedFd<'_>) -> anyhow::Result<()> {
        if self.take(socket)? {
            return Ok(());
        }
        // poll reports the error queue regardless of the requested events.
        let mut waiting = [PollFd::new(&socket, PollFlags::empty())];
        let ready = poll(&mut waiting, Some(&RETURN_WAIT)).context("cannot wait")?;
        ensure!(ready > 0, "{} calls did not complete", self.out);
        Ok(())
    }

    fn settle(&mut self, socket: BorrowedFd<'_>) -> anyhow::Result<()> {
        while self.out > 0 {
            self.wait(socket)?;
        }
        Ok(())
    }
}

struct TcpSender {
    stream: TcpStream,
    /// `None` to copy.
    lending: Option<Lending>,
    sent: u64,
}

impl Sender for TcpSender {
    fn send(&mut self, buffer: &'static [u8]) -> anyhow::Result<()> {
        self.sent += buffer.len() as u64;
        match &mut self.lending {
            Some(lending) => lending.send(self.stream.as_fd(), buffer),
            None => self.stream.write_all(buffer).context("cannot send"),
        }
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        let socket = self.stream.as_fd();
        self.lending.as_mut().map_or(Ok(()), |lending| lending.settle(socket))
    }
}

struct UdpSender {
    socket: UdpSocket,
    /// `None` to copy.
    lending: Option<Lending>,
    sent: u64,
}

impl Sender for UdpSender {
    fn send(&mut self, buffer: &'static [u8]) -> anyhow::Result<()> {
        self.sent += buffer.len() as u64;
        for part in datagrams::calls(buffer) {
            match &mut self.lending {
                Some(lending) => lending.send(self.socket.as_fd(), part)?,
                None => _ = self.socket.send(part).context("cannot send")?,
            }
        }
        Ok(())
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        let socket = self.socket.as_fd();
        self.lending.as_mut().map_or(Ok(()), |lending| lending.settle(socket))
    }
}

/// Reads one connection to its end. Returns the number of bytes.
pub(super) fn read_all(listener: &TcpListener) -> anyhow::Result<u64> {
    let (mut stream, _) = listener.accept().context("cannot accept")?;
    let mut buffer = vec![0; READ_BYTES];
    let mut received = 0;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(received),
            Ok(read) => received += read as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("cannot receive"),
        }
    }
}

/// Receives until an empty datagram arrives. Returns the number of bytes.
pub(super) fn receive_all(socket: &UdpSocket) -> anyhow::Result<u64> {
    let mut buffer = vec![0; READ_BYTES];
    let mut received = 0;
    loop {
        match socket.recv(&mut buffer).context("cannot receive")? {
            0 => return Ok(received),
            count => received += count as u64,
        }
    }
}

/// Subnet of the veth pair's addresses.
const SUBNET: u8 = 0;
const RECEIVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 8, SUBNET, 2));
const READ_BYTES: usize = 256 << 10;
/// Number of loans after which returns are collected; the kernel's limit is about 170.
const OUT_UNTIL_LOOK: u32 = 32;
const RETURN_WAIT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
const ENOBUFS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();
