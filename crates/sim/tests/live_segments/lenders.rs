//! Lenders of super-packets, which overwrite their memory as soon as they have it back.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use towpath_io::vhost_user::driver::{DriverQueue, GuestRam};
use towpath_io::vhost_user::virtq::{Segment, TransmitQueue, feature};
use towpath_net::time::Instant;
use towpath_packet::{Burst, Context, Ledger, Lender, Loans, Packet, Piece, VirtioHeader};
use towpath_sim::seed::Rng;

use crate::frame::Frame;

/// Names a loan: the number of a frame, and of a range of its bytes.
pub(crate) type Token = (u32, u32);

/// What returned memory is overwritten with.
const RETURNED: u8 = 0xa5;

/// The most ranges of a frame: with the frame for headers, fewer pieces than a packet has.
const RANGES_MAX: u64 = 6;

/// Who lends.
pub(crate) trait Source {
    /// A packet of lent memory, and the ranges of the frame that its loans cover. `None` if no
    /// memory is free.
    fn send(
        &mut self,
        frame: &Frame,
        rng: &mut Rng,
        cx: &mut Context<'_>,
    ) -> Option<(Packet, Vec<Range<usize>>)>;

    /// Takes back what has returned. Returns when to call again at the latest.
    fn turn(&mut self, now: Instant, ledger: &Ledger) -> Option<Instant>;

    /// Loans that are out.
    fn out(&self) -> BTreeSet<Token>;

    /// Loans made and loans returned.
    fn counts(&self) -> [u64; 2];

    /// How many loans ended early, because what was still held of them was copied. `None` if loans
    /// never do.
    fn recalled(&self) -> Option<u64>;
}

/// A program that lends buffers, each range of a frame by itself.
pub(crate) struct Program {
    loans: Loans,
    books: Arc<Books>,
    lent: u64,
}

/// The buffers of a program.
#[derive(Default)]
pub(crate) struct Books {
    out: Mutex<BTreeMap<Token, Arc<Vec<u8>>>>,
    /// What is back stays allocated: bytes that are read too late are [`RETURNED`].
    back: Mutex<Vec<Vec<u8>>>,
}

impl Lender for Books {
    fn returned(&self, token: u64, copied: bool) {
        assert!(!copied, "nothing had to be copied");
        let token = ((token >> 32) as u32, token as u32);
        let memory = self.out.lock().expect("no panic").remove(&token);
        let memory = memory.unwrap_or_else(|| panic!("the loan {token:?} is returned twice"));
        let mut bytes = Arc::into_inner(memory).expect("the loan has let go of it");
        bytes.fill(RETURNED);
        self.back.lock().expect("no panic").push(bytes);
    }
}

impl Program {
    pub(crate) fn new() -> Self {
        Self { loans: Loans::new(16_384), books: Arc::default(), lent: 0 }
    }

    fn lend(&mut self, token: Token, bytes: &[u8], rng: &mut Rng) -> Piece {
        let memory = Arc::new(bytes.to_vec());
        let range = (0, bytes.len() as u32);
        self.books.out.lock().expect("no panic").insert(token, memory.clone());
        self.lent += 1;
        let (lender, token) = (self.books.clone(), u64::from(token.0) << 32 | u64::from(token.1));
        let lent = match rng.below(3) {
            0 => self.loans.lend_shared(&memory, range, lender, token),
            1 => self.loans.lend_recallable(&memory, range, lender, token),
            _ => self.loans.lend_as_foreign(&memory, range, lender, token),
        };
        lent.expect("a free descriptor")
    }
}

impl Source for Program {
    fn send(
        &mut self,
        frame: &Frame,
        rng: &mut Rng,
        cx: &mut Context<'_>,
    ) -> Option<(Packet, Vec<Range<usize>>)> {
        let mut packet = cx.memory.packet()?;
        // Headers are lent with the first payload, or are in a frame of their own.
        let mut from = 0;
        if rng.chance(500_000) {
            let mut own = cx.memory.small.take()?;
            from = frame.header_len;
            own[..from].copy_from_slice(&frame.bytes[..from]);
            packet.push_piece(own.freeze(from)).expect("the first");
        }
        // Each range has payload.
        let payload = frame.header_len + 1..frame.bytes.len();
        let mut borders = BTreeSet::from([frame.bytes.len()]);
        for _ in 1..rng.between(1, RANGES_MAX) {
            if !payload.is_empty() {
                borders.insert(rng.between(payload.start as u64, payload.end as u64) as usize);
            }
        }
        let mut ranges = Vec::new();
        for (index, to) in (0..).zip(borders) {
            let piece = self.lend((frame.number, index), &frame.bytes[from..to], rng);
            packet.push_piece(piece).expect("few ranges");
            ranges.push(from..to);
            from = to;
        }
        packet.set_offload(frame.offload);
        Some((packet, ranges))
    }

    fn turn(&mut self, _now: Instant, _ledger: &Ledger) -> Option<Instant> {
        None
    }

    fn out(&self) -> BTreeSet<Token> {
        self.books.out.lock().expect("no panic").keys().copied().collect()
    }

    fn counts(&self) -> [u64; 2] {
        assert_eq!(self.loans.out_count(), self.out().len());
        [self.lent, self.books.back.lock().expect("no panic").len() as u64]
    }

    fn recalled(&self) -> Option<u64> {
        None
    }
}

/// A virtual machine that lends its memory through a queue. Each frame is one chain.
pub(crate) struct Guest {
    ram: GuestRam,
    driver: DriverQueue,
    device: TransmitQueue,
    /// Buffers that are free, by number.
    free: Vec<u64>,
    /// The frame in each other buffer, and its length with the virtio-net header.
    out: BTreeMap<u64, (u32, usize)>,
    counts: [u64; 2],
}

/// Chains of a queue, and buffers of a machine: so few that the machine waits for them.
const QUEUE_SIZE: u16 = 64;
const BUFFERS: u64 = 24;
/// Distance of the buffers, and where the first one is.
const BUFFER_BYTES: u64 = 0x2_0000;
const FIRST_BUFFER: u64 = 0x10_0000;

impl Guest {
    pub(crate) fn new(packed: bool) -> Self {
        let offloads = feature::CSUM | feature::HOST_TSO4 | feature::HOST_TSO6;
        let layout = if packed { feature::PACKED } else { 0 };
        let features = feature::INDIRECT | offloads | layout;
        let bytes = FIRST_BUFFER + BUFFERS * BUFFER_BYTES;
        let ram = GuestRam::new(0, &[bytes]).expect("memory");
        let driver = DriverQueue::new(&ram, 0, QUEUE_SIZE, features).expect("it fits");
        let device = TransmitQueue::start(driver.config(), &ram.map().expect("memory"), None);
        let device = device.expect("a proper queue");
        let free = (0..BUFFERS).collect();
        Self { ram, driver, device, free, out: BTreeMap::new(), counts: [0; 2] }
    }

    fn address(buffer: u64) -> u64 {
        FIRST_BUFFER + buffer * BUFFER_BYTES
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        self.ram.memory().write(address, bytes).expect("within the memory");
    }
}

impl Source for Guest {
    fn send(
        &mut self,
        frame: &Frame,
        rng: &mut Rng,
        cx: &mut Context<'_>,
    ) -> Option<(Packet, Vec<Range<usize>>)> {
        let buffer = self.free.pop()?;
        let address = Self::address(buffer);
        let virtio = VirtioHeader::encode(&frame.offload, frame.header_len).0;
        self.write(address, &virtio);
        self.write(address + virtio.len() as u64, &frame.bytes);
        let all = virtio.len() + frame.bytes.len();
        let border = rng.between(virtio.len() as u64 + 1, all as u64 - 1);
        let first = Segment { address, bytes: border as u32 };
        let second = Segment { address: address + border, bytes: (all as u64 - border) as u32 };
        assert!(self.driver.add(&[first, second], &[], buffer), "a chain is free");
        self.driver.publish();
        self.out.insert(buffer, (frame.number, all));
        let mut burst = Burst::new();
        self.device.take(&mut burst, cx).expect("a proper chain");
        self.counts[0] += 1;
        let all_bytes = 0..frame.bytes.len();
        Some((burst.pop().expect("enough memory"), vec![all_bytes]))
    }

    fn turn(&mut self, now: Instant, ledger: &Ledger) -> Option<Instant> {
        let next = self.device.turn(now, ledger);
        while let Some((buffer, _)) = self.driver.used() {
            let (_, len) = self.out.remove(&buffer).expect("each chain is returned once");
            self.write(Self::address(buffer), &vec![RETURNED; len]);
            self.free.push(buffer);
            self.counts[1] += 1;
        }
        next
    }

    fn out(&self) -> BTreeSet<Token> {
        self.out.values().map(|&(number, _)| (number, 0)).collect()
    }

    fn counts(&self) -> [u64; 2] {
        self.counts
    }

    fn recalled(&self) -> Option<u64> {
        Some(self.device.counters().recalled)
    }
}
