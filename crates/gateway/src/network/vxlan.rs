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
//! **Receiving.** A read yields up to 64 datagrams that the kernel has coalesced. They are cut
//! ([`decapsulate()`]), their senders are looked up and stations learned, and segments of one flow
//! are joined to super-packets again. After a long run, the port looks at the next one before it
//! reads, and has the kernel put headers and payload apart: a super-packet made of it is then as
//! long as one can be. What does not fit the caller's burst waits here, and nothing is read
//! meanwhile.
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
//! [`READS_MAX`].

mod counters;
mod outgoing;

pub use counters::VxlanCounters;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use towpath_io::random::secret;
use towpath_io::receive::ReceiveBuffer;
use towpath_io::socket::{Datagram, HEADS_MAX, Heads, HeadsReceived, UdpSocket};
use towpath_net::gro::Coalescer;
use towpath_net::switch::AGE;
use towpath_net::time::Instant;
use towpath_net::vxlan::Vni;
use towpath_net::vxlan::decapsulate::{self, HANDLES_MAX, Refused, decapsulate, decapsulate_heads};
use towpath_net::vxlan::remotes::{Change, ChangeError, Origin, RemoteId, Remotes};
use towpath_net::wire::MacAddr;
use towpath_net::wire::headers::Headers;
use towpath_packet::burst::BURST_MAX;
use towpath_packet::packet::PEEK_BYTES;
use towpath_packet::{Burst, Caps, Context, Device, Input, Ledger, Packet};

use super::config::PortError;
use super::tunnel::VxlanSettings;
use outgoing::{Outgoing, SENDERS, Sockets};

/// Reads of one call.
const READS_MAX: usize = 16;
/// Datagrams of a read after which a next one is expected to have as many, and the number of other
/// reads after which no longer.
const RUN_LONG: usize = 8;
const LOOKS: u8 = 8;
/// What the kernel keeps for the receiving socket, as far as it is allowed.
const RECEIVE_BYTES: usize = 8 << 20;

/// The device of a VXLAN port; see the module documentation.
pub(super) struct Vxlan {
    vni: Vni,
    /// Largest IP packet of the network.
    mtu: u16,
    /// Where tunnels end, with port 0.
    local: SocketAddr,
    socket: UdpSocket,
    outgoing: Outgoing<Sockets>,
    remotes: Remotes,
    /// The sender of the last datagram, if it is known.
    last: Option<(IpAddr, RemoteId)>,
    buffer: ReceiveBuffer,
    /// Heads of the datagrams of one read.
    heads: Box<[u8]>,
    /// Reads that are preceded by a look, because there was a long run a short while ago.
    looks: u8,
    coalescer: Box<Coalescer<()>>,
    /// Received packets that the next burst gets.
    received: VecDeque<Packet>,
    counters: VxlanCounters,
}

impl Vxlan {
    /// Opens the sockets of a port.
    pub(super) fn open(settings: &VxlanSettings, mtu: u16) -> Result<Self, PortError> {
        settings.check()?;
        let at = |port, error| PortError::VxlanSocket { at: settings.end(port), error };
        let open = |port| {
            let socket = UdpSocket::bind(settings.end(port), None);
            socket.and_then(|socket| {
                socket.set_tunnel(if port == 0 { 0 } else { RECEIVE_BYTES })?;
                Ok(socket)
            })
        };
        let socket = open(settings.port).map_err(|error| at(settings.port, error))?;
        let senders = (0..SENDERS).map(|_| open(0)).collect::<Result<_, _>>();
        let senders = senders.map_err(|error| at(0, error))?;
        let sockets = Sockets { senders, local: settings.end(0) };
        let [seed, _] = secret()?;
        let mut remotes = Remotes::new(settings.is_learning, AGE, seed);
        for &remote in &settings.remotes {
            remotes.apply(Change::AddFlood(remote), Origin::Static)?;
        }
        Ok(Self {
            vni: settings.vni,
            mtu,
            local: settings.end(0),
            socket,
            outgoing: Outgoing::new(sockets, settings.vni, settings.port),
            remotes,
            last: None,
            buffer: ReceiveBuffer::new(),
            heads: vec![0; HEADS_MAX * PEEK_BYTES].into(),
            looks: 0,
            coalescer: Box::new(Coalescer::new(seed)),
            received: VecDeque::with_capacity(2 * BURST_MAX),
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
        self.last = None;
        self.remotes.apply(change, origin)
    }

    pub(super) fn counters(&self) -> VxlanCounters {
        VxlanCounters { stations: self.remotes.counters(), ..self.counters }
    }

    /// Reads once. False if there was nothing, or no memory.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<Read, PortError> {
        // Each datagram gets a handle: none is lost for lack of them.
        if cx.memory.packets.free_count() < HANDLES_MAX {
            return Ok(Read::NoMemory);
        }
        if self.looks > 0
            && let Some(read) = self.read_heads(cx)?
        {
            return Ok(read);
        }
        let mut datagram = None;
        let give = |one: Datagram| datagram = Some(one);
        let outcome = self.socket.receive(&mut self.buffer, cx.memory, (1, usize::MAX), give)?;
        let Some(datagram) = datagram else {
            return Ok(match (outcome.no_memory, outcome.drained) {
                (true, _) => Read::NoMemory,
                (_, true) => Read::Nothing,
                // An error of an earlier datagram.
                _ => Read::Some,
            });
        };
        self.counters.reads += 1;
        if datagram.truncated {
            self.counters.truncated += 1;
            return Ok(Read::Some);
        }
        let size = datagram.gro_size.map_or(datagram.len, |size| size.get().into());
        let count = datagram.len.div_ceil(size.max(1));
        self.looks = if count >= RUN_LONG { LOOKS } else { self.looks.saturating_sub(1) };
        let Some(mut taker) = self.taker(datagram.from.ip(), count, cx) else {
            return Ok(Read::Some);
        };
        let (ledger, network) = (cx.ledger, taker.network);
        let pieces = datagram.pieces.into_iter();
        decapsulate(pieces, datagram.gro_size, network, cx.memory, &mut |frame, _| {
            taker.take(frame, ledger);
        });
        Ok(Read::Some)
    }

    /// Looks at what waits, and if that is a long run of datagrams that are mostly payload, reads
    /// them with their heads apart. `None` if they are something else.
    fn read_heads(&mut self, cx: &mut Context<'_>) -> Result<Option<Read>, PortError> {
        let mut start = [0; PEEK_BYTES];
        let (len, size) = match self.socket.peek(&mut start) {
            Ok(Some((len, Some(size)))) => (len, size),
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Some(Read::Nothing));
            }
            Err(error) => return Err(error.into()),
        };
        let Some(head) = decapsulate::head_of(&start[..len.min(PEEK_BYTES)], len, size) else {
            return Ok(None);
        };
        let run = Heads { head, size, len };
        let read = self.socket.receive_heads(&mut self.buffer, cx.memory, &mut self.heads, &run)?;
        let (from, pieces) = match read {
            HeadsReceived::Run(from, pieces) => (from, pieces),
            HeadsReceived::NoMemory => return Ok(Some(Read::NoMemory)),
            HeadsReceived::Nothing => return Ok(Some(Read::Some)),
            HeadsReceived::Other => {
                self.counters.truncated += 1;
                return Ok(Some(Read::Some));
            }
        };
        self.counters.reads += 1;
        let heads = std::mem::take(&mut self.heads);
        if let Some(mut taker) = self.taker(from.ip(), run.count(), cx) {
            let stretch = usize::from(size.get()) - head;
            let heads = decapsulate::Heads { bytes: &heads[..run.bytes()], head, stretch };
            let (ledger, network) = (cx.ledger, taker.network);
            let (pieces, memory) = (pieces.into_iter(), (&mut *cx.memory, ledger));
            decapsulate_heads(&heads, pieces, run.payload(), network, memory, &mut |frame, _| {
                taker.take(frame, ledger);
            });
        }
        self.heads = heads;
        Ok(Some(Read::Some))
    }

    /// What takes the frames of a read of `count` datagrams from this address. `None` if it is no
    /// known remote: they are counted as dropped.
    fn taker(&mut self, from: IpAddr, count: usize, cx: &Context<'_>) -> Option<Taker<'_>> {
        let Self { remotes, last, counters, coalescer, received, vni, mtu, .. } = self;
        let remote = match last {
            Some((known, remote)) if *known == from => *remote,
            _ => match remotes.known(from) {
                Some(remote) => last.insert((from, remote)).1,
                None => {
                    counters.unknown_remote += count as u64;
                    return None;
                }
            },
        };
        let network = (*vni, *mtu);
        let now = cx.now;
        Some(Taker { remote, now, network, sender: None, remotes, counters, coalescer, received })
    }

    /// Moves what was received to a burst.
    fn hand_over(&mut self, burst: &mut Burst) {
        while !burst.is_full()
            && let Some(packet) = self.received.pop_front()
        {
            burst.push(packet).expect("the burst has room");
        }
    }
}

/// Takes the frames of one read.
struct Taker<'a> {
    remote: RemoteId,
    now: Instant,
    /// Its identifier and MTU.
    network: (Vni, u16),
    /// The station that sent the last frame.
    sender: Option<MacAddr>,
    remotes: &'a mut Remotes,
    counters: &'a mut VxlanCounters,
    coalescer: &'a mut Coalescer<()>,
    received: &'a mut VecDeque<Packet>,
}

impl Taker<'_> {
    /// Learns where the sender of a frame is, and joins the frame to others of its flow.
    fn take(&mut self, frame: Result<(Packet, Option<Headers>), Refused>, ledger: &Ledger) {
        let (packet, headers) = match frame {
            Ok(frame) => frame,
            Err(reason) => return self.counters.refuse(reason),
        };
        let source = source_of(&packet);
        // A group address is no station's: the switch drops the frame.
        if source.is_unicast() && self.sender != Some(source) {
            if self.remotes.learn(source, self.remote, self.now).is_err() {
                self.counters.mac_locked += 1;
                return;
            }
            self.sender = Some(source);
        }
        self.counters.received += 1;
        self.counters.received_bytes += packet.len() as u64;
        let mut keep = |packet, ()| self.received.push_back(packet);
        match headers {
            Some(headers) => self.coalescer.receive(packet, &headers, (), ledger, &mut keep),
            None => keep(packet, ()),
        }
    }
}

/// Result of a read.
#[derive(PartialEq, Eq)]
enum Read {
    Some,
    Nothing,
    NoMemory,
}

impl AsFd for Vxlan {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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
        Some(self.socket.as_fd())
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.remotes.next_deadline()
    }

    fn turn(&mut self, _: bool, cx: &mut Context<'_>) -> Result<(), PortError> {
        self.remotes.expire(cx.now);
        Ok(())
    }

    fn poll(&mut self) -> bool {
        !(self.outgoing.answers.is_empty() && self.received.is_empty())
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
        let mut input = Input::Done;
        for _ in 0..READS_MAX {
            // Of what is held, nothing waits longer than for the next call.
            if self.received.len() + self.coalescer.held_count() >= burst.room() {
                break;
            }
            match self.read(cx)? {
                Read::Some => {}
                Read::Nothing => break,
                Read::NoMemory => {
                    self.counters.paused += 1;
                    input = Input::NoMemory;
                    break;
                }
            }
        }
        let Self { coalescer, received, .. } = self;
        coalescer.flush(&mut |packet, ()| received.push_back(packet));
        self.hand_over(burst);
        Ok(input)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), PortError> {
        let Self { outgoing, remotes, counters, .. } = self;
        outgoing.transmit(burst, remotes, counters, cx);
        Ok(())
    }

    fn rest(&mut self) {
        self.buffer.clear();
    }
}

fn source_of(packet: &Packet) -> MacAddr {
    let source = packet.headers().get(6..).and_then(|bytes| bytes.first_chunk());
    source.map_or(MacAddr::UNSPECIFIED, |address| MacAddr(*address))
}
