//! A neighbour of the speaker: its TCP connections, which the speaker's thread owns.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::SendFlags;
use towpath_evpn::Speaker;
use towpath_evpn::session::{Link, State};
use towpath_io::socket::{Signature, TcpSocket};
use towpath_net::time::Instant;

/// Reads of one neighbour before the others have their turn.
pub(super) const READS: usize = 4;

/// A neighbour and its connections.
pub(super) struct Peer {
    pub(super) to: SocketAddr,
    signature: Option<Signature>,
    /// By who opened them ([`Link`]).
    pub(super) wires: [Option<Wire>; Link::ALL.len()],
    /// The state that was reported last, and how many sessions there had been.
    reported: (State, u64),
}

/// A connection.
pub(super) struct Wire {
    pub(super) socket: TcpSocket,
    /// It is established.
    pub(super) is_open: bool,
    /// The socket took less than there was.
    pub(super) is_full: bool,
}

impl Peer {
    pub(super) fn new(to: SocketAddr, signature: Option<Signature>) -> Self {
        let wires = [const { None }; Link::ALL.len()];
        Self { to, signature, wires, reported: (State::Idle, 0) }
    }

    /// Returns false if TCP-AO is to sign the sessions and does not sign this accepted connection.
    pub(super) fn has_signed(&self, socket: &TcpSocket) -> bool {
        !matches!(self.signature, Some(Signature::Ao(_))) || socket.requires_ao()
    }

    /// Connects, reads if there is a buffer to read into, and writes.
    pub(super) fn turn(
        &mut self,
        index: usize,
        speaker: &mut Speaker,
        mut buffer: Option<&mut [u8]>,
        now: Instant,
    ) {
        self.connect(index, speaker, now);
        for link in Link::ALL {
            if let Some(buffer) = &mut buffer {
                self.read(index, link, speaker, buffer, now);
            }
            self.write(index, link, speaker, now);
        }
        // What happens on one connection may end the other one, which says why.
        for link in Link::ALL {
            if !speaker.wants_connection(index, link) {
                self.write(index, link, speaker, now);
                self.wires[link as usize] = None;
            }
        }
    }

    /// Opens a connection, or sees whether it has become established.
    fn connect(&mut self, index: usize, speaker: &mut Speaker, now: Instant) {
        let wire = &mut self.wires[Link::Opened as usize];
        if speaker.wants_connection(index, Link::Opened) && wire.is_none() {
            let connection = match &self.signature {
                Some(signature) => TcpSocket::connect_signed(self.to, signature),
                None => TcpSocket::connect(self.to),
            };
            match connection {
                Ok((socket, _)) => *wire = Some(Wire { socket, is_open: false, is_full: false }),
                Err(_) => speaker.closed(index, Link::Opened, now),
            }
        }
        if let Some(wire) = wire
            && !wire.is_open
        {
            if wire.socket.take_error().is_some() {
                speaker.closed(index, Link::Opened, now);
            } else if rustix::net::getpeername(wire.socket.as_fd()).is_ok() {
                wire.is_open = true;
                speaker.connected(index, now);
            }
        }
    }

    fn read(
        &self,
        index: usize,
        link: Link,
        speaker: &mut Speaker,
        buffer: &mut [u8],
        now: Instant,
    ) {
        let Some(wire) = self.wires[link as usize].as_ref().filter(|wire| wire.is_open) else {
            return;
        };
        for _ in 0..READS {
            match rustix::io::read(&wire.socket, &mut *buffer) {
                Ok(len) if len > 0 => speaker.receive(index, link, &buffer[..len], now),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok(_) | Err(_) => {
                    speaker.closed(index, link, now);
                    return;
                }
            }
        }
    }

    pub(super) fn write(&mut self, index: usize, link: Link, speaker: &mut Speaker, now: Instant) {
        let Some(wire) = self.wires[link as usize].as_mut().filter(|wire| wire.is_open) else {
            return;
        };
        wire.is_full = false;
        loop {
            let output = speaker.output(index, link, now);
            if output.is_empty() {
                return;
            }
            match rustix::net::send(&wire.socket, output, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
            {
                Ok(len) => speaker.sent(index, link, len, now),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    wire.is_full = true;
                    return;
                }
                Err(_) => {
                    speaker.closed(index, link, now);
                    return;
                }
            }
        }
    }

    /// What the user should know about the neighbour since the last time.
    pub(super) fn news(&mut self, index: usize, speaker: &Speaker) -> Option<String> {
        let now = (speaker.state(index), speaker.messages(index).established);
        let before = std::mem::replace(&mut self.reported, now);
        let [was_up, is_up] = [before, now].map(|(state, _)| state == State::Established);
        let because = |news: &str| match speaker.reason(index) {
            Some(reason) => format!("{news}: {reason}"),
            None => news.to_owned(),
        };
        match (was_up, is_up) {
            (false, true) => Some("session established".into()),
            (true, false) => Some(because("session ended")),
            (true, true) if before != now => Some(because("session established again")),
            _ => None,
        }
    }
}
