//! VXLAN ports: the device that carries frames to other hosts in UDP datagrams (RFC 7348).
//!
//! # Theory of operation
//!
//! One socket receives, at the port of all remotes. Others send, and a flow always uses the same
//! one: their ports stand for the hash of the inner flow, by which routers and network cards spread
//! flows (RFC 7348 §4.3).
//!
//! **Sending.** The switch hands over frames of one segment each, with complete checksums. A *run*
//! is a stretch of a burst with the same stations and flow, whose frames have one length but for a
//! shorter last one. It leaves in one call, with a VXLAN header in front of each frame; the kernel
//! reads headers and payload where they are. A frame for several stations, or for one that no table
//! knows, is sent to each remote of the flood list.
//!
//! **Receiving.** A read yields up to 64 datagrams that the kernel has coalesced. They are cut
//! ([`decapsulate`]), their senders are looked up and stations learned, and segments of one flow
//! are joined to super-packets again. What does not fit the caller's burst waits here, and nothing
//! is read meanwhile.
//!
//! **Too big.** A frame larger than the path to its remote is dropped, and its sender gets an ICMP
//! error ([`answers`]). The kernel knows the MTU of each path; it is asked when a path is first
//! used, when a send fails, and every [`PATH_AGE`].
//!
//! Invariants: each frame taken from a burst was sent or counted as a drop, and so was each
//! datagram read. No call blocks. What allocates is changes of the table, and the first packet to a
//! remote. One thread at a time.
//!
//! Limits: those of the table ([`Remotes`]), [`SENDERS`], [`ANSWERS_MAX`], [`READS_MAX`].

mod counters;

pub use counters::VxlanCounters;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use towpath_io::random::secret;
use towpath_io::receive::ReceiveBuffer;
use towpath_io::socket::{Datagram, Part, SEND_PARTS_MAX, Sent, UdpSocket, path_mtu};
use towpath_net::gro::Coalescer;
use towpath_net::switch::AGE;
use towpath_net::time::{Duration, Instant};
use towpath_net::vxlan::answers::{self, Answer};
use towpath_net::vxlan::decapsulate::{HANDLES_MAX, decapsulate};
use towpath_net::vxlan::remotes::{Change, ChangeError, Origin, RemoteId, Remotes};
use towpath_net::vxlan::{self, HEADER_LEN, Vni};
use towpath_net::wire::MacAddr;
use towpath_packet::burst::BURST_MAX;
use towpath_packet::{Burst, Caps, Context, Device, Input, Packet};

use super::config::PortError;
use super::tunnel::{MTU_DEFAULT, VxlanSettings};

/// Sockets that send: as many source ports.
const SENDERS: usize = 16;
/// Answers that wait for the next read.
const ANSWERS_MAX: usize = 16;
/// Reads of one call.
const READS_MAX: usize = 16;
/// How long the MTU of a path is believed.
const PATH_AGE: Duration = Duration::from_secs(60);

/// Datagrams that one call sends: `UDP_MAX_SEGMENTS` of kernels before 6.9.
const RUN_MAX: usize = 64;
/// Bytes of the datagrams that one call sends: those of the largest one.
const RUN_BYTES_MAX: usize = 65_535 - 40 - 8;
/// Parts of a frame besides its pieces: VXLAN header and private headers.
const HEADER_PARTS: usize = 2;
/// What the kernel keeps for the receiving socket, as far as it is allowed.
const RECEIVE_BYTES: usize = 8 << 20;
/// Bytes of an Ethernet header, which the MTU does not count.
const ETHERNET_BYTES: usize = 14;

/// The device of a VXLAN port; see the module documentation.
pub(super) struct Vxlan {
    vni: Vni,
    /// Largest IP packet of the network.
    mtu: u16,
    port: u16,
    /// Where tunnels end, with port 0.
    local: SocketAddr,
    socket: UdpSocket,
    senders: Vec<UdpSocket>,
    remotes: Remotes,
    /// The sender of the last datagram, if it is known.
    last: Option<(IpAddr, RemoteId)>,
    paths: HashMap<IpAddr, Path>,
    buffer: ReceiveBuffer,
    coalescer: Box<Coalescer<()>>,
    /// Received packets that the next burst gets.
    received: VecDeque<Packet>,
    answers: VecDeque<Answer>,
    header: [u8; HEADER_LEN],
    counters: VxlanCounters,
}

/// The path to a remote.
#[derive(Clone, Copy)]
struct Path {
    mtu: u16,
    known_since: Instant,
}

/// Frames at the front of a burst that are sent together.
struct Run {
    count: usize,
    /// Bytes of each frame but the last.
    len: usize,
    /// Bytes of all frames.
    bytes: usize,
}

/// Result of an attempt to send a run.
enum Outcome {
    /// It was sent or dropped.
    Done,
    /// The socket is full, and nothing was sent.
    Full,
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
        let [seed, _] = secret()?;
        let mut remotes = Remotes::new(settings.is_learning, AGE, seed);
        for &remote in &settings.remotes {
            remotes.apply(Change::AddFlood(remote), Origin::Static)?;
        }
        Ok(Self {
            vni: settings.vni,
            mtu,
            port: settings.port,
            local: settings.end(0),
            socket,
            senders: senders.map_err(|error| at(0, error))?,
            remotes,
            last: None,
            paths: HashMap::new(),
            buffer: ReceiveBuffer::new(),
            coalescer: Box::new(Coalescer::new(seed)),
            received: VecDeque::with_capacity(2 * BURST_MAX),
            answers: VecDeque::with_capacity(ANSWERS_MAX),
            header: vxlan::header(settings.vni),
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

    /// The frames at the front of a burst that can be sent in one call.
    fn run(burst: &Burst) -> Option<Run> {
        let first = burst.first()?;
        let (len, flow) = (first.len(), flow(first));
        let mut run = Run { count: 0, len, bytes: 0 };
        let (mut parts, mut bytes) = (0, 0);
        for packet in burst.iter().take(RUN_MAX) {
            parts += HEADER_PARTS + packet.piece_count();
            bytes += HEADER_LEN + packet.len();
            let fits = run.count == 0 || parts <= SEND_PARTS_MAX && bytes <= RUN_BYTES_MAX;
            if !fits || packet.len() > len || self::flow(packet) != flow {
                break;
            }
            run.count += 1;
            run.bytes += packet.len();
            if packet.len() < len {
                break;
            }
        }
        Some(run)
    }

    /// Sends the run at the front of a burst to a remote, or drops it.
    fn send(&mut self, burst: &Burst, run: &Run, to: IpAddr, now: Instant) -> Outcome {
        if self.is_too_big(burst, run, to, now) {
            return Outcome::Done;
        }
        let socket = &self.senders[socket_of(burst)];
        let to = SocketAddr::new(to, self.port);
        let gso_size = u16::try_from(HEADER_LEN + run.len).ok().and_then(NonZeroU16::new);
        let parts = burst.iter().take(run.count).flat_map(|packet| frame(&self.header, packet));
        self.counters.sends += 1;
        let failed = match socket.send_parts(to, parts, gso_size.filter(|_| run.count > 1)) {
            Ok(Sent::Whole) => {
                self.counters.sent += run.count as u64;
                self.counters.sent_bytes += run.bytes as u64;
                return Outcome::Done;
            }
            Ok(Sent::NotSegmentable) => return self.send_singly(burst, run, to, now),
            Err(error) => error,
        };
        if is_full(&failed) {
            return Outcome::Full;
        }
        self.refuse(burst, run, to.ip(), &failed, now);
        Outcome::Done
    }

    /// Sends each frame of a run by itself. What the socket has no room for is dropped.
    fn send_singly(&mut self, burst: &Burst, run: &Run, to: SocketAddr, now: Instant) -> Outcome {
        // The path may have become narrower, which the kernel does not tell about a run.
        self.paths.remove(&to.ip());
        if self.is_too_big(burst, run, to.ip(), now) {
            return Outcome::Done;
        }
        let socket = socket_of(burst);
        for (index, packet) in burst.iter().take(run.count).enumerate() {
            self.counters.sends += 1;
            match self.senders[socket].send_parts(to, frame(&self.header, packet), None) {
                Ok(_) => {
                    self.counters.sent += 1;
                    self.counters.sent_bytes += packet.len() as u64;
                }
                Err(error) if is_full(&error) && index == 0 => return Outcome::Full,
                Err(error) if is_full(&error) => self.counters.flood_full += 1,
                Err(_) => self.counters.unreachable += 1,
            }
        }
        Outcome::Done
    }

    /// True if the frames of a run do not fit the path to a remote. They are counted as dropped
    /// then, and the sender gets an ICMP error.
    fn is_too_big(&mut self, burst: &Burst, run: &Run, to: IpAddr, now: Instant) -> bool {
        let mtu = self.mtu_to(to, now);
        if run.len <= usize::from(mtu) + ETHERNET_BYTES {
            return false;
        }
        self.counters.too_large += run.count as u64;
        let answer = burst.first().and_then(|packet| answers::too_big(packet.headers(), mtu));
        if let Some(answer) = answer
            && self.answer(answer)
        {
            self.counters.too_big += 1;
        }
        true
    }

    /// Drops a run that the kernel has refused.
    fn refuse(&mut self, burst: &Burst, run: &Run, to: IpAddr, why: &io::Error, now: Instant) {
        if why.raw_os_error() != Some(Errno::MSGSIZE.raw_os_error()) {
            self.counters.unreachable += run.count as u64;
            return;
        }
        self.paths.remove(&to);
        if !self.is_too_big(burst, run, to, now) {
            self.counters.too_large += run.count as u64;
        }
    }

    /// The largest IP packet that reaches a remote in one datagram.
    fn mtu_to(&mut self, to: IpAddr, now: Instant) -> u16 {
        let known = self.paths.get(&to).filter(|path| now < path.known_since + PATH_AGE);
        if let Some(path) = known {
            return path.mtu;
        }
        let of_path = path_mtu(self.local, SocketAddr::new(to, self.port));
        let of_path = of_path.map_or(MTU_DEFAULT, |mtu| u16::try_from(mtu).unwrap_or(u16::MAX));
        let mtu = of_path.saturating_sub(vxlan::overhead(&to));
        if self.paths.len() >= vxlan::remotes::REMOTES_MAX {
            self.paths.clear();
        }
        self.paths.insert(to, Path { mtu, known_since: now });
        mtu
    }

    /// Keeps an answer for the next read; false if there are too many.
    fn answer(&mut self, answer: Answer) -> bool {
        let has_room = self.answers.len() < ANSWERS_MAX;
        if has_room {
            self.answers.push_back(answer);
        }
        has_room
    }

    /// Sends the first frame of a burst to each remote of the flood list.
    fn flood(&mut self, burst: &Burst, now: Instant) {
        let Some(packet) = burst.first() else { return };
        let remotes = &self.remotes;
        let known = answers::resolve(packet.headers(), |address| remotes.station_of(address));
        if let Some(answer) = known
            && self.answer(answer)
        {
            self.counters.resolved += 1;
            return;
        }
        if self.remotes.flood().is_empty() {
            self.counters.no_remote += 1;
        }
        let run = Run { count: 1, len: packet.len(), bytes: packet.len() };
        for index in 0..self.remotes.flood().len() {
            let to = self.remotes.flood()[index];
            if matches!(self.send(burst, &run, to, now), Outcome::Full) {
                self.counters.flood_full += 1;
            }
        }
    }

    /// Reads once. False if there was nothing, or no memory.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<Read, PortError> {
        // Each datagram gets a handle: none is lost for lack of them.
        if cx.memory.packets.free_count() < HANDLES_MAX {
            return Ok(Read::NoMemory);
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
        self.take(datagram, cx);
        Ok(Read::Some)
    }

    /// Takes the frames out of what was read.
    fn take(&mut self, datagram: Datagram, cx: &mut Context<'_>) {
        let Self { remotes, last, counters, coalescer, received, vni, mtu, .. } = self;
        let address = datagram.from.ip();
        let remote = match last {
            Some((known, remote)) if *known == address => *remote,
            _ => match remotes.known(address) {
                Some(remote) => last.insert((address, remote)).1,
                None => {
                    let size = datagram.gro_size.map_or(datagram.len, |size| size.get().into());
                    counters.unknown_remote += datagram.len.div_ceil(size.max(1)) as u64;
                    return;
                }
            },
        };
        let (ledger, now) = (cx.ledger, cx.now);
        let mut sender = None;
        let pieces = datagram.pieces.into_iter();
        decapsulate(pieces, datagram.gro_size, (*vni, *mtu), cx.memory, &mut |frame, _| {
            let (packet, headers) = match frame {
                Ok(frame) => frame,
                Err(reason) => return counters.refuse(reason),
            };
            let source = source_of(&packet);
            // A group address is no station's: the switch drops the frame.
            if source.is_unicast() && sender != Some(source) {
                if remotes.learn(source, remote, now).is_err() {
                    counters.mac_locked += 1;
                    return;
                }
                sender = Some(source);
            }
            counters.received += 1;
            counters.received_bytes += packet.len() as u64;
            let mut keep = |packet, ()| received.push_back(packet);
            match headers {
                Some(headers) => coalescer.receive(packet, &headers, (), ledger, &mut keep),
                None => keep(packet, ()),
            }
        });
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
    /// here.
    fn caps(&self) -> Caps {
        Caps::plain(u16::MAX)
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
        !(self.answers.is_empty() && self.received.is_empty())
    }

    fn arm(&mut self) -> bool {
        self.poll()
    }

    fn looks_by_call(&self) -> bool {
        true
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, PortError> {
        while !burst.is_full()
            && let Some(answer) = self.answers.front()
        {
            let Some(mut packet) = cx.memory.packet() else { return Ok(Input::NoMemory) };
            let bytes = answer.bytes();
            packet.fill_inline(bytes.len(), |memory| memory.copy_from_slice(bytes));
            burst.push(packet).expect("the burst has room");
            self.answers.pop_front();
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
        burst.prefetch();
        while let Some(run) = Self::run(burst) {
            let first = burst.first().expect("a run has a frame");
            let mut count = run.count;
            match self.remotes.lookup(destination_of(first), cx.now) {
                Some(remote) => {
                    if matches!(self.send(burst, &run, remote, cx.now), Outcome::Full) {
                        break;
                    }
                }
                None => {
                    self.flood(burst, cx.now);
                    count = 1;
                }
            }
            for _ in 0..count {
                burst.pop();
            }
        }
        Ok(())
    }

    fn rest(&mut self) {
        self.buffer.clear();
    }
}

/// The parts of a datagram with this frame.
fn frame<'a>(header: &'a [u8], packet: &'a Packet) -> impl Iterator<Item = Part<'a>> {
    let headers = [Part::Bytes(header), Part::Bytes(packet.wire_headers())];
    headers.into_iter().chain(packet.pieces().map(Part::Piece))
}

/// True if a socket has no room now.
fn is_full(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::WouldBlock, io::ErrorKind::OutOfMemory];
    kinds.contains(&error.kind()) || error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error())
}

/// The bytes that identify a packet's flow: link-layer addresses, and of IP the addresses and
/// ports where they are at their usual offset. Frames of one run have the same.
fn flow(packet: &Packet) -> (&[u8], &[u8]) {
    let headers = packet.headers();
    let range = match headers.get(12..15) {
        // RFC 791 §3.1: without options the ports follow the addresses.
        Some([0x08, 0x00, 0x45]) => 26..38,
        Some([0x08, 0x00, _]) => 26..34,
        // RFC 8200 §3.
        Some([0x86, 0xdd, _]) => 22..58,
        _ => 12..14,
    };
    let stations = headers.get(..12).unwrap_or(headers);
    (stations, headers.get(range).unwrap_or_default())
}

/// The number of the socket that sends the first packet of a burst.
fn socket_of(burst: &Burst) -> usize {
    let Some(packet) = burst.first() else { return 0 };
    let (stations, ends) = flow(packet);
    // FNV-1a: the input is short, and a sender gains nothing from collisions.
    let hash = stations
        .iter()
        .chain(ends)
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    (hash >> 16) as usize % SENDERS
}

fn destination_of(packet: &Packet) -> MacAddr {
    packet.headers().first_chunk().map_or(MacAddr::BROADCAST, |address| MacAddr(*address))
}

fn source_of(packet: &Packet) -> MacAddr {
    let source = packet.headers().get(6..).and_then(|bytes| bytes.first_chunk());
    source.map_or(MacAddr::UNSPECIFIED, |address| MacAddr(*address))
}

#[cfg(test)]
mod tests {
    use towpath_packet::{Memory, MemoryConfig};

    use super::*;

    /// A frame of `len` bytes from a station to another, of the flow with this port.
    fn push(burst: &mut Burst, memory: &mut Memory, (station, port, len): (u8, u8, usize)) {
        let mut frame = [0; 128];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, station, 2, 0, 0, 0, 0, 1]);
        frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        frame[37] = port;
        let mut packet = memory.packet().expect("free");
        packet.fill_inline(len, |bytes| bytes.copy_from_slice(&frame[..len]));
        burst.push(packet).expect("room");
    }

    /// Goal: frames leave in one call only if they have one receiver, one flow, and one length but
    /// for the last.
    #[test]
    fn runs_are_of_one_flow_and_length() {
        let mut memory =
            Memory::new(MemoryConfig { packets: 128, small_frames: 1, large_frames: 1 });
        for (frames, count) in [
            (&[][..], None),
            (&[(1, 1, 100)], Some(1)),
            (&[(1, 1, 100), (1, 1, 100), (1, 1, 90), (1, 1, 90)], Some(3)),
            (&[(1, 1, 90), (1, 1, 100)], Some(1)),
            (&[(1, 1, 100), (1, 1, 100), (2, 1, 100)], Some(2)),
            (&[(1, 1, 100), (1, 2, 100)], Some(1)),
            (&[(1, 1, 100); BURST_MAX], Some(RUN_MAX)),
        ] {
            let mut burst = Burst::new();
            frames.iter().for_each(|frame| push(&mut burst, &mut memory, *frame));
            let run = Vxlan::run(&burst);
            assert_eq!(run.as_ref().map(|run| run.count), count, "{frames:?}");
            let bytes: usize = frames.iter().take(count.unwrap_or(0)).map(|(_, _, len)| len).sum();
            assert_eq!(run.map_or(0, |run| run.bytes), bytes);
        }
    }
}
