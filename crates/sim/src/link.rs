//! One direction of a link: frames come out later, damaged, or not at all.
//!
//! A *wire* carries frames up to its MTU: before a packet enters, super-packets are segmented and
//! partial checksums completed, as by a network card, and [`oracle::check_frame`] checks every
//! frame. So a checksum covers every bit error. A *TAP* carries packets unchanged: whole
//! super-packets, offload fields in a virtio-net header, and no bit errors, because packets without
//! a checksum could not detect them.
//!
//! A link carries bytes ([`Frame`]), as a cable does, or live packets ([`Live`]), whose pieces keep
//! their loans until the packet is lost or received: the lender has its memory back no earlier. A
//! live packet that arrives with other bytes than it was sent with is a [problem](Link::problem).
//! Its bytes belong to a lender, so the link does not damage them.
//!
//! Faults are drawn in the same order for each frame: queue, loss, burst loss, corruption,
//! duplication, delay. Counters account for every frame: `offered + duplicated = delivered +
//! lost()` when the link is empty.

use crate::oracle;
use crate::seed::{Ppm, Rng};
use crate::trace;
use std::collections::BTreeMap;
use towpath_net::fragment::into_received;
use towpath_net::gso::{self, Checksums, SegmentError};
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::ethernet;
use towpath_net::wire::headers::Headers;
use towpath_packet::{Ledger, Memory, Offload, Packet, PacketPool, VirtioHeader};

/// What a link carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Ethernet: whole frames, complete checksums.
    Wire,
    /// A virtual device: packets with offload fields.
    Tap,
}

/// Properties of one direction.
#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    /// The kind of the link.
    pub medium: Medium,
    /// Largest IP packet of a wire.
    pub mtu: u16,
    /// One-way delay.
    pub delay: Duration,
    /// Largest additional delay; keeps the order.
    pub jitter: Duration,
    /// Bytes per second; `None` for no limit.
    pub rate: Option<u64>,
    /// Bytes that may pass at once after a pause (the depth of a token bucket).
    pub burst_bytes: u64,
    /// Bytes that can wait in the queue; further frames are dropped.
    pub queue_bytes: u64,
    /// Frames that are lost independently.
    pub loss: Ppm,
    /// Probability that a series of losses begins.
    pub burst_begin: Ppm,
    /// Frames in the longest series: fewer than a connection tries in a row.
    pub burst_max: u32,
    /// Frames that are duplicated.
    pub duplicate: Ppm,
    /// Frames that are overtaken.
    pub reorder: Ppm,
    /// Longest time for which these are held.
    pub reorder_by: Duration,
    /// Frames with a damaged byte.
    pub corrupt: Ppm,
}

impl LinkConfig {
    /// A link without faults.
    pub fn clean(medium: Medium, mtu: u16, delay: Duration) -> Self {
        Self {
            medium,
            mtu,
            delay,
            jitter: Duration::ZERO,
            rate: None,
            burst_bytes: 0,
            queue_bytes: u64::MAX,
            loss: 0,
            burst_begin: 0,
            burst_max: 1,
            duplicate: 0,
            reorder: 0,
            reorder_by: Duration::ZERO,
            corrupt: 0,
        }
    }
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets that a host sent.
    pub packets: u64,
    /// Frames made of these packets.
    pub offered: u64,
    /// Super-packets among these frames.
    pub super_packets: u64,
    /// Copies made by duplication.
    pub duplicated: u64,
    /// Frames dropped at random, singly or in series.
    pub dropped: u64,
    /// Frames dropped because the queue was full.
    pub queue_full: u64,
    /// Microseconds that all frames together waited in the queue.
    pub waited_us: u64,
    /// Frames above the MTU of the wire.
    pub too_large: u64,
    /// Frames that were damaged and delivered.
    pub corrupted: u64,
    /// Frames that were delivered.
    pub delivered: u64,
}

impl LinkCounters {
    /// Frames that were not delivered.
    pub fn lost(&self) -> u64 {
        self.dropped + self.queue_full + self.too_large
    }
}

/// What a link carries.
pub trait Freight: Sized {
    /// Loads a packet that fits the medium.
    fn load(packet: Packet, medium: Medium) -> Self;

    /// All bytes as they were sent.
    fn bytes(&self) -> &[u8];

    /// Offload fields; empty on a wire.
    fn offload(&self) -> &Offload;

    /// Another one like it. `None` without memory.
    fn duplicate(&self, packets: &mut PacketPool) -> Option<Self>;

    /// Damages one byte.
    fn damage(&mut self, rng: &mut Rng);

    /// Checks that the bytes are those that were sent.
    fn check(&self) -> Result<(), String>;

    /// The packet as a device receives it. `None` without memory.
    fn unload(self, memory: &mut Memory) -> Option<Packet>;
}

/// The bytes of a packet in flight.
#[derive(Clone, Debug)]
pub struct Frame {
    /// All its bytes.
    pub bytes: Vec<u8>,
    /// Offload fields; empty on a wire.
    pub offload: Offload,
}

impl Freight for Frame {
    fn load(packet: Packet, medium: Medium) -> Self {
        let offload = match medium {
            Medium::Wire => Offload::default(),
            // Passes the fields through a real device's header.
            Medium::Tap => VirtioHeader::encode(packet.offload(), packet.headers().len())
                .decode()
                .expect("a stack makes valid headers"),
        };
        Self { bytes: oracle::flatten(&packet), offload }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn offload(&self) -> &Offload {
        &self.offload
    }

    fn duplicate(&self, _packets: &mut PacketPool) -> Option<Self> {
        Some(self.clone())
    }

    fn damage(&mut self, rng: &mut Rng) {
        corrupt(&mut self.bytes, rng);
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    fn unload(self, memory: &mut Memory) -> Option<Packet> {
        let mut packet = received(&self.bytes, memory)?;
        packet.set_offload(self.offload);
        Some(packet)
    }
}

/// A packet in flight, with its pieces.
#[derive(Debug)]
pub struct Live {
    packet: Packet,
    /// Its bytes when it was sent.
    sent: Vec<u8>,
}

impl Live {
    /// The packet.
    pub fn packet(&self) -> &Packet {
        &self.packet
    }

    /// Takes the packet off the link as it is.
    pub fn into_packet(self) -> Packet {
        self.packet
    }
}

impl Freight for Live {
    fn load(packet: Packet, _medium: Medium) -> Self {
        let sent = oracle::flatten(&packet);
        Self { packet, sent }
    }

    fn bytes(&self) -> &[u8] {
        &self.sent
    }

    fn offload(&self) -> &Offload {
        self.packet.offload()
    }

    fn duplicate(&self, packets: &mut PacketPool) -> Option<Self> {
        Some(Self { packet: self.packet.share(packets)?, sent: self.sent.clone() })
    }

    fn damage(&mut self, _rng: &mut Rng) {
        unreachable!("the bytes of a live packet belong to a lender");
    }

    fn check(&self) -> Result<(), String> {
        let now = oracle::flatten(&self.packet);
        match now.iter().zip(&self.sent).position(|(now, sent)| now != sent) {
            Some(at) => Err(format!("byte {at} of {} changed in flight", now.len())),
            None => Ok(()),
        }
    }

    fn unload(self, memory: &mut Memory) -> Option<Packet> {
        into_received(self.packet, memory).ok()
    }
}

/// One direction of a link.
pub struct Link<F = Frame> {
    /// Properties, which may be changed at any time.
    pub config: LinkConfig,
    /// Drops all frames.
    pub cut: bool,
    counters: LinkCounters,
    flying: BTreeMap<(Instant, u64), F>,
    number: u64,
    busy_until: Instant,
    last_arrival: Instant,
    /// Losses left in the current series.
    burst_left: u64,
    problem: Option<String>,
    trace: bool,
}

impl<F: Freight> Link<F> {
    /// Makes an empty link.
    pub fn new(config: LinkConfig) -> Self {
        assert!(config.medium == Medium::Wire || config.corrupt == 0, "see the module text");
        Self {
            config,
            cut: false,
            counters: LinkCounters::default(),
            flying: BTreeMap::new(),
            number: 0,
            busy_until: Instant::START,
            last_arrival: Instant::START,
            burst_left: 0,
            problem: None,
            trace: trace::enabled(),
        }
    }

    /// The counters.
    pub fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// The first error of a frame on the wire, or of a live packet that changed.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// The frames in flight.
    pub fn flying(&self) -> impl Iterator<Item = &F> {
        self.flying.values()
    }

    /// Number of frames in flight.
    pub fn in_flight(&self) -> usize {
        self.flying.len()
    }

    /// Sends a packet of a host whose memory is `memory`.
    pub fn send(
        &mut self,
        packet: Packet,
        now: Instant,
        rng: &mut Rng,
        memory: &mut Memory,
        ledger: &Ledger,
    ) {
        self.counters.packets += 1;
        let mut packets = Vec::new();
        match self.config.medium {
            Medium::Tap => packets.push(packet),
            Medium::Wire => {
                let mut out = |packet| packets.push(packet);
                if let Err(error) = cut(packet, memory, ledger, &mut out) {
                    self.problem.get_or_insert_with(|| format!("a card cannot cut it: {error:?}"));
                }
            }
        }
        for packet in packets {
            let frame = F::load(packet, self.config.medium);
            self.judge(frame.bytes());
            self.offer_with(frame, now, rng, |frame| frame.duplicate(&mut memory.packets));
        }
    }

    /// Checks a frame of a host, if it fits the wire.
    fn judge(&mut self, bytes: &[u8]) {
        let mtu = self.config.mtu.into();
        if self.config.medium == Medium::Wire
            && !self.is_too_large(bytes)
            && let Err(problem) = oracle::check_frame(bytes, mtu)
        {
            self.problem.get_or_insert(problem);
        }
    }

    fn is_too_large(&self, bytes: &[u8]) -> bool {
        self.config.medium == Medium::Wire && bytes.len() > usize::from(self.config.mtu) + 14
    }

    fn offer_with(
        &mut self,
        frame: F,
        now: Instant,
        rng: &mut Rng,
        duplicate: impl FnOnce(&F) -> Option<F>,
    ) {
        self.counters.offered += 1;
        let lost = self.counters.lost();
        let text = self.trace.then(|| trace::line(frame.bytes()));
        self.take(frame, now, rng, duplicate);
        if let Some(text) = text {
            let fate = if self.counters.lost() > lost { "lost" } else { "sent" };
            println!("{now:?} {fate} {text}");
        }
    }

    fn take(
        &mut self,
        frame: F,
        now: Instant,
        rng: &mut Rng,
        duplicate: impl FnOnce(&F) -> Option<F>,
    ) {
        self.counters.super_packets += u64::from(frame.offload().gso.is_some());
        let config = self.config;
        if self.is_too_large(frame.bytes()) {
            self.counters.too_large += 1;
            return;
        }
        let Some(sent) = self.queue(frame.bytes().len() as u64, now) else {
            self.counters.queue_full += 1;
            return;
        };
        self.counters.waited_us += sent.since(now).as_micros() as u64;
        if self.is_lost(rng) {
            self.counters.dropped += 1;
            return;
        }
        let mut frame = frame;
        if rng.chance(config.corrupt) && !is_arp(frame.bytes()) {
            self.counters.corrupted += 1;
            frame.damage(rng);
        }
        if rng.chance(config.duplicate)
            && let Some(duplicate) = duplicate(&frame)
        {
            self.counters.duplicated += 1;
            let later = self.arrival(sent, rng);
            self.fly(duplicate, later);
        }
        let arrival = self.arrival(sent, rng);
        self.fly(frame, arrival);
    }

    /// When the last bit has left. `None` if the queue is full.
    fn queue(&mut self, bytes: u64, now: Instant) -> Option<Instant> {
        let Some(rate) = self.config.rate else { return Some(now) };
        let time = |bytes: u64| Duration::from_micros(bytes * 1_000_000 / rate);
        let burst = time(self.config.burst_bytes);
        let waiting = self.busy_until.since(now + burst).as_micros() as u64 * rate / 1_000_000;
        if waiting + bytes > self.config.queue_bytes {
            return None;
        }
        self.busy_until = self.busy_until.max(now) + time(bytes);
        Some(now + self.busy_until.since(now + burst))
    }

    fn is_lost(&mut self, rng: &mut Rng) -> bool {
        if self.cut {
            return true;
        }
        if self.burst_left == 0 && rng.chance(self.config.burst_begin) {
            self.burst_left = rng.between(1, self.config.burst_max.into());
        }
        if self.burst_left > 0 {
            self.burst_left -= 1;
            return true;
        }
        rng.chance(self.config.loss)
    }

    fn arrival(&mut self, sent: Instant, rng: &mut Rng) -> Instant {
        let arrival = sent + self.config.delay + rng.duration(self.config.jitter);
        if rng.chance(self.config.reorder) {
            return arrival + rng.duration(self.config.reorder_by);
        }
        self.last_arrival = self.last_arrival.max(arrival);
        self.last_arrival
    }

    fn fly(&mut self, frame: F, arrival: Instant) {
        self.flying.insert((arrival, self.number), frame);
        self.number += 1;
    }

    /// When the next frame arrives.
    pub fn deadline(&self) -> Option<Instant> {
        self.flying.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next frame that has arrived by `now`.
    pub fn arrive(&mut self, now: Instant) -> Option<F> {
        let entry = self.flying.first_entry()?;
        if entry.key().0 > now {
            return None;
        }
        let frame = entry.remove();
        self.counters.delivered += 1;
        if let Err(problem) = frame.check() {
            self.problem.get_or_insert(problem);
        }
        Some(frame)
    }
}

impl Link {
    /// Sends a frame unchanged, even one that no stack would send.
    pub fn inject(&mut self, frame: Frame, now: Instant) {
        self.counters.offered += 1;
        self.fly(frame, now + self.config.delay);
    }

    /// Sends a frame of a switch, which another link may have damaged.
    pub fn offer(&mut self, frame: Frame, now: Instant, rng: &mut Rng) {
        self.offer_with(frame, now, rng, |frame| Some(frame.clone()));
    }
}

/// Segments a packet and completes its checksum. One without whole IP and transport headers, such
/// as ARP, is passed on as it is.
pub(crate) fn cut(
    packet: Packet,
    memory: &mut Memory,
    ledger: &Ledger,
    out: &mut impl FnMut(Packet),
) -> Result<(), SegmentError> {
    let Some(headers) = Headers::read(packet.headers(), ethernet::HEADER_LEN) else {
        out(packet);
        return Ok(());
    };
    let out = &mut |segment, _: &mut _| out(segment);
    let cut = gso::segment(packet, memory, ledger, &headers, Checksums::Complete, out);
    cut.map(|_| ()).map_err(|(error, _)| error)
}

/// Stores a frame as a device does: in a small frame first, then in large ones. `None` without
/// memory.
pub fn received(bytes: &[u8], memory: &mut Memory) -> Option<Packet> {
    let mut packet = memory.packet()?;
    let mut rest = bytes;
    let mut pool = &mut memory.small;
    while !rest.is_empty() {
        let mut frame = pool.take()?;
        let count = rest.len().min(frame.len());
        frame[..count].copy_from_slice(&rest[..count]);
        packet.push_piece(frame.freeze(count)).expect("a frame has few pieces");
        rest = &rest[count..];
        pool = &mut memory.large;
    }
    Some(packet)
}

/// True for ARP, which has no checksum. A real wire has a frame checksum, which is not simulated.
fn is_arp(bytes: &[u8]) -> bool {
    bytes[12..14] == [0x08, 0x06]
}

/// Damages one byte behind the Ethernet header, which no checksum covers. The Internet checksum
/// detects every error within one byte, but not every error of two distant bits.
fn corrupt(bytes: &mut [u8], rng: &mut Rng) {
    let at = 14 + rng.below((bytes.len() - 14) as u64) as usize;
    bytes[at] ^= rng.between(1, 255) as u8;
}
