//! Datagrams of the program, which sends them in one call, and of the peer, which sends each in its
//! own call. The next batch is sent when the last one has arrived completely, so that none is lost.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::Context as _;
use towpath_io::reactor::{Interest, Reactor};
use towpath_net::socket::{Error, SendTo};
use towpath_net::stack::Context;
use towpath_net::time::Instant;

use super::{Program, reported};

/// Bytes of the datagrams in flight at a time. Each fills a packet at an MTU of 1500.
pub(super) const BATCH_BYTES: usize = 40 * DATAGRAM_BYTES;
const DATAGRAM_BYTES: usize = 1472;

/// The host's end.
pub(super) struct Peer {
    socket: UdpSocket,
    /// Source address of the program's datagrams, once one has arrived.
    program: Option<SocketAddr>,
}

impl Peer {
    pub(super) fn new(ready: &Reactor) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot bind")?;
        socket.set_nonblocking(true)?;
        ready.add(&socket, 0, Interest::READ, false)?;
        Ok(Self { socket, program: None })
    }

    pub(super) fn port(&self) -> anyhow::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }
}

impl Program {
    /// Lets the peer receive, and then the program send.
    pub(super) fn datagrams_go_out(&mut self, now: Instant) -> anyhow::Result<()> {
        self.carried += self.peer_receives_datagrams()?;
        if self.begun == self.carried && self.begun < self.total {
            let len = (self.total - self.begun).min(BATCH_BYTES as u64) as usize;
            self.begun += self.program_sends_datagrams(len, now)?;
        }
        Ok(())
    }

    /// Lets the program receive, and then the peer send. The program first sends a datagram, so
    /// that the peer learns its address.
    pub(super) fn datagrams_come_in(&mut self, now: Instant) -> anyhow::Result<()> {
        self.peer_receives_datagrams()?;
        self.program_receives_datagrams()?;
        let Some(peer) = &self.datagrams else { return Ok(()) };
        let Some(program) = peer.program else {
            if !self.is_greeted {
                self.is_greeted = true;
                self.program_sends_datagrams(1, now)?;
            }
            return Ok(());
        };
        if self.begun == self.carried {
            let last = self.total.min(self.begun + BATCH_BYTES as u64);
            while self.begun < last {
                let len = (last - self.begun).min(DATAGRAM_BYTES as u64) as usize;
                self.calls += 1;
                self.begun += peer.socket.send_to(&self.buffer[..len], program)? as u64;
            }
        }
        Ok(())
    }

    fn program_sends_datagrams(&mut self, len: usize, now: Instant) -> anyhow::Result<u64> {
        let Self { sockets, memory, ledger, stream, buffer, to, .. } = self;
        let segment_size = Some(DATAGRAM_BYTES as u16);
        let send = SendTo { to: Some(*to), segment_size, ..SendTo::default() };
        let mut cx = Context { memory, ledger, now };
        let sent = sockets.send_datagram(*stream, &[&buffer[..len]], &send, &mut cx);
        Ok(sent.map_err(reported)? as u64)
    }

    fn program_receives_datagrams(&mut self) -> anyhow::Result<()> {
        let Self { sockets, ledger, stream, buffer, .. } = self;
        loop {
            match sockets.receive_datagram(*stream, &mut [&mut buffer[..]], false, ledger) {
                Ok(received) => self.carried += received.len as u64,
                Err(Error::WouldBlock) => return Ok(()),
                Err(error) => return Err(reported(error)),
            }
        }
    }

    /// Receives all available datagrams and returns their bytes.
    fn peer_receives_datagrams(&mut self) -> anyhow::Result<u64> {
        let Some(peer) = &mut self.datagrams else { return Ok(0) };
        let mut bytes = 0;
        loop {
            self.calls += 1;
            match peer.socket.recv_from(&mut self.buffer) {
                Ok((count, from)) => {
                    peer.program = Some(from);
                    bytes += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(bytes),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
