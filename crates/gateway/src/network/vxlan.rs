//! VXLAN ports: the device that carries frames to other hosts in UDP datagrams (RFC 7348).
//!
//! # Theory of operation
//!
//! One socket receives, at the port of all remotes. Others send, and a flow always uses the same
//! one: their ports stand for the hash of the inner flow, by which routers and network cards spread
//! flows (RFC 7348 §4.3).
//!
//! **Sending.** The switch leaves segmentation and checksums to the port, which sends the segments
//! of a super-packet in one call, and other frames of one flow as well ([`Outgoing`]). The kernel
//! reads headers and payload where they are. A frame for several stations, or for one that no table
//! knows, is sent to each remote of the flood list.
//!
//! **Receiving.** A read yields up to 64 datagrams that the kernel has coalesced, and frames are
//! taken out of them ([`Incoming`]).
//!
//! **Too big.** A frame larger than the path to its remote is dropped, and its sender gets an ICMP
//! error. The kernel knows the MTU of each path; it is asked when a path is first used, when a send
//! fails, and now and then.
//!
//! Invariants: each frame taken from a burst was sent or counted as a drop, and so was each
//! datagram read. No call blocks. What allocates is changes of the table, and the first packet to a
//! remote. One thread at a time.
//!
//! Limits: those of the table ([`Remotes`]), [`SENDERS`], [`outgoing::ANSWERS_MAX`],
//! [`incoming::READS_MAX`].

mod counters;
mod ends;
mod incoming;
mod outgoing;

pub use counters::VxlanCounters;
pub(super) use ends::Ends;
pub(crate) use outgoing::super_packet_max;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use towpath_io::random::secret;
use towpath_io::socket::UdpSocket;
use towpath_net::switch::AGE;
use towpath_net::time::Instant;
use towpath_net::vxlan::remotes::{Change, ChangeError, Origin, Remotes};
use towpath_packet::{Burst, Caps, Context, Device, Input};

use super::config::PortError;
use super::tunnel::VxlanSettings;
use incoming::Incoming;
use outgoing::{Outgoing, SENDERS, Sockets};

/// What the kernel keeps for the receiving socket, as far as it is allowed.
const RECEIVE_BYTES: usize = 8 << 20;

/// The device of a VXLAN port; see the module documentation.
pub(super) struct Vxlan {
    /// Where tunnels end, with port 0.
    local: SocketAddr,
    incoming: Incoming,
    outgoing: Outgoing<Sockets>,
    remotes: Remotes,
    counters: VxlanCounters,
}

impl Vxlan {
    /// Opens the sockets of a port. Ports of the same network share `ends`.
    pub(super) fn open(
        settings: &VxlanSettings,
        mtu: u16,
        ends: &mut Ends,
    ) -> Result<Self, PortError> {
        settings.check()?;
        let at = |port, error| PortError::VxlanSocket { at: settings.end(port), error };
        let socket = ends.open(settings.end(settings.port), settings.vni)?;
        let prepared = socket.set_tunnel(RECEIVE_BYTES);
        prepared.map_err(|error| at(settings.port, error))?;
        let sender = |_| {
            let sender = UdpSocket::bind(settings.end(0), None)?;
            sender.set_tunnel(0)?;
            Ok(sender)
        };
        let senders = (0..SENDERS).map(sender).collect::<Result<_, _>>();
        let senders = senders.map_err(|error| at(0, error))?;
        let sockets = Sockets { senders, local: settings.end(0) };
        let [seed, _] = secret()?;
        let mut remotes = Remotes::new(settings.is_learning, AGE, seed);
        for &remote in &settings.remotes {
            remotes.apply(Change::AddFlood(remote), Origin::Static)?;
        }
        Ok(Self {
            local: settings.end(0),
            incoming: Incoming::new(socket, (settings.vni, mtu), seed),
            outgoing: Outgoing::new(sockets, settings.vni, settings.port),
            remotes,
            counters: VxlanCounters::default(),
        })
    }

    pub(super) fn remotes(&self) -> &Remotes {
        &self.remotes
    }

    /// Changes the table of remotes for `origin`.
    pub(super) fn change(&mut self, change: Change, origin: Origin) -> Result<(), ChangeError> {
        if let Change::AddFlood(remote) | Change::AddStation { remote, .. } = change
            && remote.is_ipv4() != self.local.is_ipv4()
        {
            return Err(ChangeError::OtherVersion(remote));
        }
        self.incoming.forget_sender();
        self.remotes.apply(change, origin)
    }

    pub(super) fn counters(&self) -> VxlanCounters {
        VxlanCounters { stations: self.remotes.counters(), ..self.counters }
    }
}

impl AsFd for Vxlan {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.incoming.as_fd()
    }
}

impl Device for Vxlan {
    type Error = PortError;

    /// Takes frames of any length: those that do not fit the path to their remote are answered
    /// here. Cuts super-packets itself, and completes checksums.
    fn caps(&self) -> Caps {
        Caps { checksum: true, segments: true, ..Caps::plain(u16::MAX) }
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.incoming.as_fd())
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.remotes.next_deadline()
    }

    fn turn(&mut self, _: bool, cx: &mut Context<'_>) -> Result<(), PortError> {
        self.remotes.expire(cx.now);
        Ok(())
    }

    fn poll(&mut self) -> bool {
        !(self.outgoing.answers.is_empty() && self.incoming.is_empty())
    }

    fn arm(&mut self) -> bool {
        self.poll()
    }

    fn looks_by_call(&self) -> bool {
        true
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, PortError> {
        while !burst.is_full()
            && let Some(answer) = self.outgoing.answers.front()
        {
            let Some(mut packet) = cx.memory.packet() else { return Ok(Input::NoMemory) };
            let bytes = answer.bytes();
            packet.fill_inline(bytes.len(), |memory| memory.copy_from_slice(bytes));
            burst.push(packet).expect("the burst has room");
            self.outgoing.answers.pop_front();
        }
        let Self { incoming, remotes, counters, .. } = self;
        incoming.receive(burst, remotes, counters, cx)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), PortError> {
        let Self { outgoing, remotes, counters, .. } = self;
        outgoing.transmit(burst, remotes, counters, cx);
        Ok(())
    }

    fn rest(&mut self) {
        self.incoming.rest();
    }
}
