//! The hostile side: a front end that writes anything into all memory that it shares, at any time.
//!
//! Most of what it writes in each step is what a driver could have written, so that it gets past
//! the first checks; the rest is random. It writes to rings, tables, buffers, the in-flight region
//! and the dirty log, stops and starts its rings, truncates its memory file and connects again.
//!
//! Tests of a network use it, too: there a packet needs a link-layer header to go anywhere.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use towpath_io::vhost_user::driver::{DriverQueue, GuestRam};
use towpath_io::vhost_user::session::{feature, protocol};
use towpath_io::vhost_user::shared::Mapping;
use towpath_io::vhost_user::virtq::{Segment, feature as ring_feature, inflight::region_bytes};

pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const REGION: u64 = 0x8_0000;
pub(crate) const BUFFERS: u64 = BASE + 0x4_0000;
pub(crate) const SIZE: u16 = 16;
/// Bytes of all buffers.
pub(crate) const BUFFERS_BYTES: u64 = 0x2_0000;
const LOG_BYTES: u64 = (BASE + 2 * REGION) / 4096 / 8;

/// Pseudo-random numbers from a seed: splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `times` calls, on average.
    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// One session of the hostile front end.
pub(crate) struct Hostile {
    socket: UnixStream,
    file: OwnedFd,
    ram: GuestRam,
    /// The receive queue and the transmit queue.
    queues: [DriverQueue; 2],
    features: u64,
    inflight: OwnedFd,
    /// The in-flight region and the dirty log.
    areas: [Mapping; 2],
    /// Position of the next descriptor of each packed ring, and its wrap counter.
    next: [(u16, bool); 2],
    events: [OwnedFd; 3],
    /// Buffers begin at multiples of this.
    step: u64,
}

impl Hostile {
    /// Connects. The buffers begin with copies of `content`, which may be empty, one after the
    /// other, and buffers that it offers begin where copies do.
    pub(crate) fn connect(path: &Path, random: &mut Random, content: &[u8]) -> Self {
        let pick = |random: &mut Random, bit| if random.one_in(2) { bit } else { 0 };
        let features = [
            ring_feature::PACKED,
            ring_feature::EVENT_INDEX,
            ring_feature::INDIRECT,
            ring_feature::MRG_RXBUF,
            ring_feature::CSUM | ring_feature::HOST_TSO4 | ring_feature::HOST_TSO6,
            ring_feature::GUEST_CSUM | ring_feature::GUEST_TSO4 | ring_feature::GUEST_TSO6,
        ];
        let features = features.into_iter().map(|bit| pick(random, bit)).sum();
        let memory = |bytes| {
            let file = memfd_create("hostile", MemfdFlags::CLOEXEC).expect("memory");
            ftruncate(&file, bytes).expect("it grows");
            file
        };
        let file = memory(0);
        let ram = file.try_clone().expect("a descriptor");
        let ram = GuestRam::in_file(ram, BASE, &[REGION, REGION]).expect("memory");
        let step = content.len().max(1) as u64;
        let copies = content.repeat((BUFFERS_BYTES / step) as usize);
        ram.memory().write(BUFFERS, &copies).expect("in memory");
        let queue = |at| DriverQueue::new(&ram, BASE + at, SIZE, features).expect("it fits");
        let queues = [queue(0), queue(0x2_0000)];
        let bytes = 2 * region_bytes(features & ring_feature::PACKED != 0, SIZE) as u64;
        let (inflight, log) = (memory(bytes), memory(LOG_BYTES));
        let areas = [Mapping::new(&inflight, 0, bytes), Mapping::new(&log, 0, LOG_BYTES)];
        let areas = areas.map(|area| area.expect("memory"));
        let events = [(); 3].map(|()| eventfd(0, EventfdFlags::NONBLOCK).expect("an event"));
        let socket = UnixStream::connect(path).expect("a device");
        socket.set_nonblocking(true).expect("a socket");
        let next = [(0, true); 2];
        let mut hostile =
            Self { socket, file, ram, queues, features, inflight, areas, next, events, step };
        hostile.introduce(&log, random);
        hostile
    }

    /// Sends the setup messages and starts both rings.
    fn introduce(&mut self, log: &OwnedFd, random: &mut Random) {
        let features = self.features | feature::VERSION_1 | feature::PROTOCOL_FEATURES;
        self.tell(16, &[protocol::ALWAYS], &[]);
        self.tell(2, &[features | feature::LOG_ALL], &[]);
        for layout in self.ram.layouts() {
            let place = [layout.guest_address, layout.bytes, layout.user_address];
            let region = [&[0], &place[..], &[layout.file_offset]].concat();
            self.tell(37, &region, &[self.file.as_fd()]);
        }
        if random.one_in(2) {
            self.tell(6, &[LOG_BYTES, 0], &[log.as_fd()]);
        }
        if random.one_in(2) {
            let queues = 2 | u64::from(SIZE) << 16;
            let area = [self.areas[0].bytes() as u64, 0, queues];
            let bytes = area.map(u64::to_ne_bytes).concat();
            // The message ends after the lower half of the last number.
            self.send(32, &bytes[..20], &[self.inflight.as_fd()]);
        }
        // Buffers that an ordinary driver would offer.
        for (ring, queue) in self.queues.iter_mut().enumerate() {
            for token in 0..4 {
                let address = BUFFERS + 0x800 * (token + 8 * ring as u64);
                let part = |at: u64| Segment { address: address + 0x400 * at, bytes: 0x400 };
                let parts = [part(0), part(1)];
                let none = &[][..];
                let (readable, writable) =
                    if ring == 0 { (none, &parts[..]) } else { (&parts[..], none) };
                assert!(queue.add(readable, writable, token));
            }
            queue.publish();
        }
        (0..2).for_each(|ring| self.start(ring, random));
    }

    fn start(&mut self, ring: usize, random: &mut Random) {
        let config = self.queues[ring].config();
        let index = ring as u64;
        let pair = |value: u32| index | u64::from(value) << 32;
        self.tell(8, &[pair(SIZE.into())], &[]);
        let base = if random.one_in(8) { random.next() as u32 } else { config.base };
        self.tell(10, &[pair(base)], &[]);
        let addresses = [config.descriptors, config.device, config.driver, 0];
        let is_logged = pair(random.below(2) as u32);
        self.tell(9, &[&[is_logged], &addresses[..]].concat(), &[]);
        for (code, event) in (12..).zip(&self.events) {
            self.tell(code, &[index], &[event.as_fd()]);
        }
        self.tell(18, &[pair(1)], &[]);
        self.next[ring] = (base as u16 & 0x7fff & (SIZE - 1), base & 0x8000 != 0);
    }

    /// Scribbles until the session ends, until `is_over`, or for a random number of steps. Returns
    /// the number of steps.
    pub(crate) fn run(mut self, random: &mut Random, is_over: impl Fn() -> bool) -> u64 {
        let steps = 200 + random.below(600);
        for step in 1..=steps {
            (0..12).for_each(|_| self.scribble(random));
            // Gives the device time to process what was offered.
            std::thread::sleep(Duration::from_micros(20));
            if random.one_in(3) {
                // A broken ring stays stopped until it is started again.
                let ring = random.below(2) as usize;
                self.tell(11, &[ring as u64], &[]);
                self.start(ring, random);
            }
            if self.is_gone() || is_over() {
                return step;
            }
        }
        if random.one_in(3) {
            ftruncate(&self.file, random.below(3) * REGION / 2).expect("it is not sealed");
            (0..200).for_each(|_| self.scribble(random));
        }
        steps
    }

    /// Makes one random write.
    fn scribble(&mut self, random: &mut Random) {
        let ring = random.below(2) as usize;
        // Mostly what a driver writes, because otherwise a ring would be broken all the time.
        let what = if random.one_in(4) { random.below(16) } else { 0 };
        match what {
            0..6 if self.features & ring_feature::PACKED != 0 => self.offer_packed(ring, random),
            0..6 => self.offer_split(ring, random),
            6 | 7 => {
                // A frame after a virtio-net header that is zero or random.
                let address = BUFFERS + random.below(BUFFERS_BYTES);
                let kind = [0, random.next()][random.below(2) as usize];
                self.write(address, &[kind, random.next(), random.next()]);
            }
            8 => {
                let place = self.descriptors(ring) + 16 * random.below(SIZE.into());
                self.write(place, &self.descriptor(ring, random));
            }
            9 => self.write((BASE + random.below(0x4_0000)) & !1, &[random.next()]),
            10 => {
                // Flags, indices and event fields of the rings.
                let config = self.queues[ring].config();
                let area = [config.driver, config.device][random.below(2) as usize];
                let place = self.guest(area) + 2 * random.below(24);
                let word = [random.next() as u16, random.below(20) as u16, 1, 2];
                let word = word[random.below(4) as usize].to_le_bytes();
                let _ = self.ram.memory().write(place, &word);
            }
            11..14 => {
                let area = &self.areas[0];
                let at = 2 * random.below(area.bytes() as u64 / 2) as usize;
                let word = [random.next() as u16, random.below(20) as u16, 0, 1];
                area.stretch(at, 2).write(&word[random.below(4) as usize].to_le_bytes());
            }
            14 => {
                let at = random.below(LOG_BYTES) as usize;
                self.areas[1].stretch(at, 1).write(&[random.next() as u8]);
            }
            _ => drop(rustix::io::write(&self.events[0], &1_u64.to_ne_bytes())),
        }
    }

    /// Makes another chain of a split ring available, mostly if there is room.
    fn offer_split(&mut self, ring: usize, random: &mut Random) {
        let config = self.queues[ring].config();
        let available = self.guest(config.driver);
        let (index, used) = (self.read(available + 2), self.read(self.guest(config.device) + 2));
        if index.wrapping_sub(used) >= SIZE && !random.one_in(500) {
            return;
        }
        let head = random.below(SIZE.into());
        self.write(self.descriptors(ring) + 16 * head, &self.descriptor(ring, random));
        let entry = available + 4 + 2 * u64::from(index % SIZE);
        let _ = self.ram.memory().write(entry, &(head as u16).to_le_bytes());
        let _ = self.ram.memory().write(available + 2, &index.wrapping_add(1).to_le_bytes());
    }

    /// Makes another descriptor of a packed ring available, mostly if there is room.
    fn offer_packed(&mut self, ring: usize, random: &mut Random) {
        let (index, wrap) = self.next[ring];
        let place = self.descriptors(ring) + 16 * u64::from(index);
        let flags = self.read(place + 14);
        if (flags >> 7 & 1) != flags >> 15 && !random.one_in(500) {
            return;
        }
        self.next[ring] = if index + 1 == SIZE { (0, !wrap) } else { (index + 1, wrap) };
        let flags = if wrap { 1 << 7 } else { 1 << 15 };
        let [address, rest] = self.descriptor(ring, random);
        self.write(place, &[address, rest | flags << 48]);
    }

    /// Returns the two words of a descriptor, which is valid most of the time.
    fn descriptor(&self, ring: usize, random: &mut Random) -> [u64; 2] {
        let address = match random.below(200) {
            0 => random.next(),
            // Across the end of a region.
            1 => BASE + REGION - random.below(0x1000),
            2 => BASE + 2 * REGION - random.below(0x1000),
            _ => BUFFERS + random.below(BUFFERS_BYTES / self.step) * self.step,
        };
        // Most have usual lengths.
        let bytes = match random.below(200) {
            0 => random.next() as u32,
            1..4 => 0x1_0000,
            4..10 => 16 * random.below(8) as u32,
            10..100 => 80,
            _ => 1526,
        };
        let (write, next, indirect) = (2, 1, 4);
        let mut flags = if ring == 0 { write } else { 0 };
        let table = if random.one_in(32) { indirect } else { 0 };
        flags |= if random.one_in(16) { next } else { table };
        let number = random.below(u64::from(SIZE)) + u64::from(random.one_in(100));
        let is_packed = self.features & ring_feature::PACKED != 0;
        let (low, high) = if is_packed { (number, flags) } else { (flags, number) };
        [address, u64::from(bytes) | low << 32 | high << 48]
    }

    fn descriptors(&self, ring: usize) -> u64 {
        self.guest(self.queues[ring].config().descriptors)
    }

    /// Translates an address of the front end to one of the guest.
    fn guest(&self, user: u64) -> u64 {
        let layout = self.ram.layouts()[0];
        user - layout.user_address + layout.guest_address
    }

    fn read(&self, address: u64) -> u16 {
        let mut bytes = [0; 2];
        let _ = self.ram.memory().read(address, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    fn write(&self, address: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let _ = self.ram.memory().write(address, &bytes);
    }

    fn tell(&self, code: u32, words: &[u64], files: &[BorrowedFd<'_>]) {
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.send(code, &payload, files);
    }

    /// Sends a request with an acknowledgement. It is lost if the session is over.
    fn send(&self, code: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        const NEED_REPLY: u32 = 8;
        let header = [code, 1 | NEED_REPLY, payload.len() as u32].map(u32::to_ne_bytes);
        let bytes = [header.as_flattened(), payload].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)), "there is room for one");
        }
        let _ = sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    /// Discards replies. True if the device has closed the connection.
    fn is_gone(&mut self) -> bool {
        let mut bytes = [0; 1024];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
    }
}
