//! The driver's receive queue: packets are copied into the buffers that it offers.
//!
//! The one copy of payload on the way into a guest, counted at [`Site::Guest`]: two guests share no
//! memory. A packet takes one chain, or several where the driver agreed to merged buffers; if there
//! are not enough, it waits. Used entries of a burst become visible together.
//!
//! Follows virtio 1.2 §5.1.6.3 and §5.1.6.4. One thread at a time; nothing blocks or allocates.

use super::chain::{Cursor, Descriptor, Segment};
use super::{Broken, CHAIN_MAX, Head, Position, Queue, QueueConfig, StartError, Stop, feature};
use crate::tap::wire_headers;
use crate::vhost_user::memory::GuestMemory;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use towpath_packet::{Burst, Caps, Checksum, GsoKind, Ledger, Offload, Packet, Site, VirtioHeader};

/// Where the number of merged buffers is in the header.
const BUFFER_COUNT_AT: usize = 10;

/// What happened to packets on their way into the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounters {
    /// Packets put into the guest's buffers.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Bursts that did not fit: the driver offered too few buffers.
    pub full: u64,
    /// Packets dropped because no chain of the driver, or all of them together, can hold them.
    pub too_small: u64,
    /// Packets dropped because the driver did not agree to what their offload fields ask for.
    pub refused: u64,
}

/// A chain taken for the packet at hand.
struct Buffer {
    head: Head,
    bytes: usize,
    /// Its descriptors: up to here.
    descriptors_to: usize,
}

/// See the module text.
pub struct ReceiveQueue {
    queue: Queue,
    features: u64,
    counters: ReceiveCounters,
    /// The end of what the driver offered, if that is not enough for the packet that waits.
    end: Option<Position>,
    buffers: Vec<Buffer>,
    segments: Vec<Segment>,
    descriptors: Vec<Descriptor>,
}

enum Filled {
    Whole,
    Dropped,
    /// Nothing was taken.
    Full,
}

impl ReceiveQueue {
    /// Starts the queue in a guest's memory.
    pub fn start(config: QueueConfig, memory: &GuestMemory) -> Result<Self, StartError> {
        let (features, size) = (config.features, usize::from(config.size));
        Ok(Self {
            queue: Queue::start(config, memory)?,
            features,
            counters: ReceiveCounters::default(),
            end: None,
            buffers: Vec::with_capacity(size),
            segments: Vec::with_capacity(2 * CHAIN_MAX),
            descriptors: Vec::with_capacity(2 * CHAIN_MAX),
        })
    }

    /// What the guest takes: for [`Device::caps`](towpath_packet::Device::caps).
    pub fn caps(features: u64, mtu: u16) -> Caps {
        let has = |bits: u64| features & bits == bits;
        let checksum = has(feature::GUEST_CSUM);
        let (tso4, tso6) = (has(feature::GUEST_TSO4), has(feature::GUEST_TSO6));
        let uso = has(feature::GUEST_USO4 | feature::GUEST_USO6);
        let gso_bytes_max = if tso4 || tso6 || uso { crate::tap::GSO_BYTES_MAX } else { 0 };
        // §5.1.3.1: super-packets need checksums, which the driver agrees to first.
        Caps {
            mtu,
            checksum,
            tso4: checksum && tso4,
            tso6: checksum && tso6,
            uso: checksum && uso,
            gso_bytes_max,
        }
    }

    /// Puts packets from the front of `burst` into the guest's buffers until it is empty or the
    /// buffers are used up; what is left stays in `burst`. The driver need not kick until
    /// [`ReceiveQueue::enable_kicks`].
    ///
    /// # Errors
    /// The ring is broken: the packets stay.
    pub fn transmit(&mut self, burst: &mut Burst, ledger: &Ledger) -> Result<(), Broken> {
        self.queue.disable_kicks();
        while let Some(packet) = burst.first() {
            let (bytes, payload) = (packet.len(), packet.payload_len());
            match self.fill(packet) {
                Ok(Filled::Whole) => {
                    self.counters.packets += 1;
                    self.counters.bytes += bytes as u64;
                    ledger.count(Site::Guest, payload);
                }
                Ok(Filled::Dropped) => {}
                Ok(Filled::Full) => {
                    self.counters.full += 1;
                    break;
                }
                Err(broken) => {
                    self.queue.publish();
                    return Err(broken);
                }
            }
            drop(burst.pop());
        }
        self.queue.publish();
        Ok(())
    }

    /// Asks for a kick when the driver offers more buffers; true if it did meanwhile. Buffers that
    /// were too few for the packet that waits do not count.
    pub fn enable_kicks(&mut self) -> bool {
        let start = self.queue.position();
        self.queue.seek(self.end.unwrap_or(start));
        let has_more = self.queue.enable_kicks();
        self.queue.seek(start);
        has_more
    }

    /// Changes the descriptor that tells the driver.
    pub fn set_call(&mut self, call: Option<Arc<OwnedFd>>) {
        self.queue.set_call(call);
    }

    /// Stops: nothing is ever held between calls, so that this is done at once.
    pub fn stop(&mut self, _ledger: &Ledger) -> Stop {
        self.queue.publish();
        Stop::Done(self.queue.base())
    }

    /// Counters since the start.
    pub fn counters(&self) -> &ReceiveCounters {
        &self.counters
    }

    /// What broke the ring.
    pub fn broken(&self) -> Option<Broken> {
        self.queue.broken()
    }

    /// Puts one packet into as many chains as it needs.
    fn fill(&mut self, packet: &Packet) -> Result<Filled, Broken> {
        if !self.takes(packet.offload()) {
            self.counters.refused += 1;
            return Ok(Filled::Dropped);
        }
        let needed = VirtioHeader::LEN + packet.len();
        let start = self.queue.position();
        let filled = self.gather(needed)?;
        self.end = None;
        match filled {
            Filled::Whole => self.write(packet, needed),
            Filled::Full => {
                self.end = Some(self.queue.position());
                self.queue.seek(start);
            }
            Filled::Dropped => {
                self.queue.seek(start);
                self.counters.too_small += 1;
            }
        }
        Ok(filled)
    }

    /// Takes chains until they have room for `needed` bytes.
    fn gather(&mut self, needed: usize) -> Result<Filled, Broken> {
        let mergeable = self.features & feature::MRG_RXBUF != 0;
        self.buffers.clear();
        self.segments.clear();
        self.descriptors.clear();
        let mut room = 0;
        while self.queue.take()? {
            let chain = self.queue.chain();
            if !chain.readable().is_empty() || chain.writable().is_empty() {
                return Err(self.queue.break_for(Broken::Direction));
            }
            let bytes = chain.writable_bytes();
            self.segments.extend_from_slice(chain.writable());
            self.descriptors.extend_from_slice(&chain.descriptors);
            let (head, descriptors_to) = (chain.head, self.descriptors.len());
            self.buffers.push(Buffer { head, bytes, descriptors_to });
            room += bytes;
            if room >= needed {
                return Ok(Filled::Whole);
            }
            let is_all = self.buffers.len() == usize::from(self.queue.size());
            if !mergeable || is_all || self.segments.len() >= CHAIN_MAX {
                return Ok(Filled::Dropped);
            }
        }
        Ok(Filled::Full)
    }

    /// Fills the chains that were taken, and gives them back.
    fn write(&mut self, packet: &Packet, needed: usize) {
        let headers = wire_headers(packet);
        let mut offload = *packet.offload();
        if let (Some(gso), 0) = (&mut offload.gso, self.features & feature::GUEST_ECN) {
            // The mark in the TCP header stays; only this hint is not for this driver.
            gso.ecn = false;
        }
        if offload.checksum == Checksum::Unnecessary && !self.has(feature::GUEST_CSUM) {
            offload.checksum = Checksum::None;
        }
        let mut header = VirtioHeader::encode(&offload, headers.len());
        let count = self.buffers.len() as u16;
        header.0[BUFFER_COUNT_AT..].copy_from_slice(&count.to_le_bytes());
        let mut cursor = Cursor::new(self.queue.memory(), &self.segments);
        let mut written = cursor.write(&header.0) + cursor.write(headers);
        for piece in packet.pieces() {
            written += cursor.write_piece(piece, 0);
        }
        assert_eq!(written, needed, "the chains have room for the packet");
        let (mut left, mut from) = (needed, 0);
        for buffer in &self.buffers {
            let descriptors = &self.descriptors[from..buffer.descriptors_to];
            let head = self.queue.hold_earlier(buffer.head, descriptors);
            let bytes = left.min(buffer.bytes);
            self.queue.complete(head, bytes as u32);
            (left, from) = (left - bytes, buffer.descriptors_to);
        }
    }

    /// True if the driver agreed to get packets with these fields.
    fn takes(&self, offload: &Offload) -> bool {
        let checksum = match offload.checksum {
            Checksum::Partial { .. } => self.has(feature::GUEST_CSUM),
            Checksum::None | Checksum::Unnecessary => true,
        };
        let gso = offload.gso.is_none_or(|gso| {
            self.has(match gso.kind {
                GsoKind::Tcp4 => feature::GUEST_TSO4,
                GsoKind::Tcp6 => feature::GUEST_TSO6,
                GsoKind::Udp => feature::GUEST_USO4 | feature::GUEST_USO6,
            })
        });
        checksum && gso
    }

    fn has(&self, bits: u64) -> bool {
        self.features & bits == bits
    }
}
