//! The receiving half of a VXLAN port.
//!
//! # Theory of operation
//!
//! A read yields up to 64 datagrams that the kernel has coalesced. They are cut
//! ([`decapsulate()`]), their senders are looked up and stations learned, and segments of one flow
//! are joined to super-packets again. What does not fit the caller's burst waits here, and nothing
//! is read meanwhile.
//!
//! After a long run, the next reads have the kernel put headers and payload apart
//! ([`decapsulate_heads`]): a super-packet made of a read is then as long as one can be. For that
//! the lengths must be known before. While long runs differ, the port looks at each before it reads
//! it. Once several in a row were alike, it reads the next without a look, as if it were like them
//! ([`Forecast`]). Segments in such a read that follow the one before are joined to it before they
//! are packets ([`TakeFrames::extend`]).
//!
//! Invariant: each datagram that was read is a frame, or counted as a drop.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, BorrowedFd};

use towpath_io::receive::ReceiveBuffer;
use towpath_io::socket::{Datagram, HEADS_MAX, HeadSplit, HeadsReceived, SharedSocket};
use towpath_net::gro::Coalescer;
use towpath_net::time::Instant;
use towpath_net::vxlan::Vni;
use towpath_net::vxlan::decapsulate::{
    self, DATAGRAMS_MAX, HANDLES_MAX, Opened, TakeFrames, decapsulate, decapsulate_heads,
};
use towpath_net::vxlan::remotes::{RemoteId, Remotes};
use towpath_net::wire::MacAddr;
use towpath_packet::burst::BURST_MAX;
use towpath_packet::packet::PEEK_BYTES;
use towpath_packet::pool::LARGE_FRAMES_PER_PACKET;
use towpath_packet::{Burst, Context, Input, Ledger, Memory, Packet};

use super::VxlanCounters;
use crate::network::config::PortError;

/// Reads of one call.
pub(super) const READS_MAX: usize = 16;

/// The receiving half of a port; see the module documentation.
pub(super) struct Incoming {
    socket: SharedSocket,
    /// Identifier of the network, and its largest IP packet.
    network: (Vni, u16),
    /// The sender of the last datagram, if it is known.
    last: Option<(IpAddr, RemoteId)>,
    buffer: ReceiveBuffer,
    /// Heads of the datagrams of one read.
    heads: Box<[u8]>,
    forecast: Forecast,
    coalescer: Box<Coalescer<()>>,
    /// Received packets that the next burst gets.
    received: VecDeque<Packet>,
}

impl Incoming {
    /// Receives by this socket for a network, whose largest IP packet is given, too.
    pub(super) fn new(socket: SharedSocket, network: (Vni, u16), seed: u64) -> Self {
        Self {
            socket,
            network,
            last: None,
            buffer: ReceiveBuffer::new(),
            heads: vec![0; HEADS_MAX * PEEK_BYTES].into(),
            forecast: Forecast::default(),
            coalescer: Box::new(Coalescer::new(seed)),
            received: VecDeque::with_capacity(2 * BURST_MAX),
        }
    }

    /// The table of remotes has changed.
    pub(super) fn forget_sender(&mut self) {
        self.last = None;
    }

    /// True if nothing waits for the next burst.
    pub(super) fn is_empty(&self) -> bool {
        self.received.is_empty()
    }

    /// Returns what is kept ready for reads.
    pub(super) fn rest(&mut self) {
        self.buffer.clear();
    }

    /// Adds received frames to a burst.
    pub(super) fn receive(
        &mut self,
        burst: &mut Burst,
        remotes: &mut Remotes,
        counters: &mut VxlanCounters,
        cx: &mut Context<'_>,
    ) -> Result<Input, PortError> {
        let mut input = Input::Done;
        for _ in 0..READS_MAX {
            // Of what is held, nothing waits longer than for the next call.
            if self.received.len() + self.coalescer.held_count() >= burst.room() {
                break;
            }
            match self.read(remotes, counters, cx)? {
                Read::Some => {}
                Read::Nothing => break,
                Read::NoMemory => {
                    counters.paused += 1;
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

    /// Reads once.
    fn read(
        &mut self,
        remotes: &mut Remotes,
        counters: &mut VxlanCounters,
        cx: &mut Context<'_>,
    ) -> Result<Read, PortError> {
        // Each datagram gets a handle: none is lost for lack of them.
        if cx.memory.packets.free_count() < HANDLES_MAX {
            return Ok(Read::NoMemory);
        }
        if self.forecast.expects_run() && has_frames(cx.memory) {
            let split = match self.forecast.split() {
                Some(split) => Some(split),
                None => match self.look()? {
                    Look::Run(split) => Some(split),
                    Look::Other => None,
                    Look::Empty => return Ok(Read::Nothing),
                },
            };
            if let Some(split) = split {
                return self.read_heads(&split, remotes, counters, cx);
            }
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
        counters.reads += 1;
        if datagram.truncated {
            counters.truncated += 1;
            return Ok(Read::Some);
        }
        let size = datagram.gro_size.map_or(datagram.len, |size| size.get().into());
        let count = datagram.len.div_ceil(size.max(1));
        let Some(mut taker) = self.taker(datagram.from.ip(), count, (remotes, counters), cx) else {
            return Ok(Read::Some);
        };
        let (pieces, network) = (datagram.pieces.into_iter(), taker.network);
        let each = &mut |frame, memory: &mut Memory| taker.take(frame, memory);
        let head = decapsulate(pieces, datagram.gro_size, network, cx.memory, each);
        self.forecast.note(count, datagram.gro_size, head);
        Ok(Read::Some)
    }

    /// Looks at what waits.
    fn look(&mut self) -> Result<Look, PortError> {
        let mut start = [0; PEEK_BYTES];
        let (len, size) = match self.socket.peek(&mut start) {
            Ok(Some((len, Some(size)))) => (len, size),
            Ok(_) => return Ok(Look::Other),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Look::Empty),
            Err(error) => return Err(error.into()),
        };
        let head = decapsulate::head_of(&start[..len.min(PEEK_BYTES)], len, size);
        Ok(head.map_or(Look::Other, |head| Look::Run(HeadSplit { head, size })))
    }

    /// Reads with the heads of datagrams apart. They are expected to be as long as these strides.
    fn read_heads(
        &mut self,
        split: &HeadSplit,
        remotes: &mut Remotes,
        counters: &mut VxlanCounters,
        cx: &mut Context<'_>,
    ) -> Result<Read, PortError> {
        let read =
            self.socket.receive_heads(&mut self.buffer, cx.memory, &mut self.heads, split)?;
        let read = match read {
            HeadsReceived::Some(read) => read,
            HeadsReceived::NoMemory => return Ok(Read::NoMemory),
            HeadsReceived::Empty => return Ok(Read::Nothing),
            HeadsReceived::Error => return Ok(Read::Some),
        };
        counters.reads += 1;
        if read.truncated {
            counters.truncated += 1;
            return Ok(Read::Some);
        }
        let count = read.gro_size.map_or(1, |size| read.len.div_ceil(size.get().into()));
        let heads = std::mem::take(&mut self.heads);
        if let Some(mut taker) = self.taker(read.from.ip(), count, (remotes, counters), cx) {
            let bytes = &heads[..split.in_heads(read.len)];
            let of_read = decapsulate::Heads { bytes, head: split.head, size: split.size };
            let (pieces, network) = (read.pieces.into_iter(), taker.network);
            let (size, memory) = (read.gro_size, (&mut *cx.memory, cx.ledger));
            let head = decapsulate_heads(&of_read, pieces, size, network, memory, &mut taker);
            self.forecast.note(count, read.gro_size, head);
        }
        self.heads = heads;
        Ok(Read::Some)
    }

    /// What takes the frames of a read of `count` datagrams from this address. `None` if it is no
    /// known remote: they are counted as dropped.
    fn taker<'a>(
        &'a mut self,
        from: IpAddr,
        count: usize,
        (remotes, counters): (&'a mut Remotes, &'a mut VxlanCounters),
        cx: &Context<'a>,
    ) -> Option<Taker<'a>> {
        let Self { last, coalescer, received, network, .. } = self;
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
        let (network, now, ledger) = (*network, cx.now, cx.ledger);
        let (sender, may_extend) = (None, false);
        Some(Taker {
            remote,
            now,
            network,
            sender,
            may_extend,
            remotes,
            counters,
            coalescer,
            received,
            ledger,
        })
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

impl AsFd for Incoming {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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
    /// The last frame went to the coalescer, so it was allowed.
    may_extend: bool,
    remotes: &'a mut Remotes,
    counters: &'a mut VxlanCounters,
    coalescer: &'a mut Coalescer<()>,
    received: &'a mut VecDeque<Packet>,
    ledger: &'a Ledger,
}

impl TakeFrames for Taker<'_> {
    /// Learns where the sender of a frame is, and joins the frame to others of its flow.
    fn take(&mut self, frame: Opened, _: &mut Memory) {
        self.may_extend = false;
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
            Some(headers) => {
                self.coalescer.receive(packet, &headers, (), self.ledger, &mut keep);
                self.may_extend = true;
            }
            None => keep(packet, ()),
        }
    }

    /// Joins frames to the one before, from the same sender to the same station.
    fn extend<'a>(
        &mut self,
        headers: impl Iterator<Item = &'a [u8]> + Clone,
        size: usize,
        payload: &mut Packet,
    ) -> usize {
        if !self.may_extend {
            return 0;
        }
        let (len, before) = (headers.clone().next().map_or(0, <[u8]>::len), payload.payload_len());
        let Self { coalescer, received, ledger, .. } = self;
        let mut keep = |packet, ()| received.push_back(packet);
        let count = coalescer.extend(headers, size, payload, ledger, &mut keep);
        self.counters.received += count as u64;
        // Those that were joined have headers of one length.
        self.counters.received_bytes += (count * len + before - payload.payload_len()) as u64;
        count
    }
}

/// Result of a read.
#[derive(PartialEq, Eq)]
enum Read {
    Some,
    Nothing,
    NoMemory,
}

/// What waits in the socket.
enum Look {
    /// A run, for which a read that is split so is right.
    Run(HeadSplit),
    /// Something else.
    Other,
    Empty,
}

/// What the next read is expected to find, from what the last ones found.
#[derive(Default)]
struct Forecast {
    /// Reads, if they find no long run, until none is expected.
    patience: u8,
    /// How the last long run would have been split.
    split: Option<HeadSplit>,
    /// Long runs in a row that would be split so.
    alike: u8,
}

impl Forecast {
    /// True if there was a long run a short while ago.
    fn expects_run(&self) -> bool {
        self.patience > 0
    }

    /// How to split the next run, if the last ones were alike.
    fn split(&self) -> Option<HeadSplit> {
        self.split.filter(|_| self.alike >= ALIKE_MIN)
    }

    /// Notes a read of `count` datagrams of this size, whose heads are to be read apart if `head`
    /// says so.
    fn note(&mut self, count: usize, size: Option<NonZeroU16>, head: Option<usize>) {
        if count < RUN_LONG {
            self.patience = self.patience.saturating_sub(1);
            return;
        }
        let split = head.zip(size).map(|(head, size)| HeadSplit { head, size });
        let is_alike = split.is_some() && split == self.split;
        self.alike = if is_alike { self.alike.saturating_add(1) } else { 0 };
        (self.patience, self.split) = (PATIENCE, split);
    }
}

/// True if no datagram of a read with heads apart is lost for lack of frames, whatever arrives.
fn has_frames(memory: &mut Memory) -> bool {
    // Those of the read itself, and those of a copy.
    let (small, large) = (1 + DATAGRAMS_MAX, 2 * LARGE_FRAMES_PER_PACKET);
    memory.small.free_count() >= small && memory.large.free_count() >= large
}

/// Datagrams of a long run.
const RUN_LONG: usize = 8;
/// Other reads after a long run until none is expected.
const PATIENCE: u8 = 8;
/// Long runs in a row that were like the one before, after which the next is expected to be, too.
const ALIKE_MIN: u8 = 4;

fn source_of(packet: &Packet) -> MacAddr {
    let source = packet.headers().get(6..).and_then(|bytes| bytes.first_chunk());
    source.map_or(MacAddr::UNSPECIFIED, |address| MacAddr(*address))
}

#[cfg(test)]
mod tests;
