//! Super-packets that a guest's device segments while it copies them, compared with super-packets
//! that are segmented into packets first: the driver finds the same in its buffers.
//!
//! Both go through real queues to a scripted driver. These are random, from seeds: protocols,
//! options, tags, flags, sizes, the layout of payload in pieces, layout and features of the ring,
//! its size, buffers, and how many of them are available at a time.

use std::collections::VecDeque;
use std::num::NonZeroU16;

use towpath_io::vhost_user::driver::{DriverQueue, GuestRam};
use towpath_io::vhost_user::virtq::{ReceiveQueue, Segment, feature};
use towpath_net::gso::{self, Checksums};
use towpath_net::wire::headers::Headers;
use towpath_packet::time::Instant;
use towpath_packet::{
    Burst, Checksum, Context, Gso, GsoKind, Ledger, Memory, MemoryConfig, Offload, Packet, Site,
};

const SEEDS: u64 = 200;
const RAM: u64 = 1 << 20;
/// Address of the first buffer.
const BUFFERS: u64 = 64 << 10;
const BUFFER_STRIDE: u64 = 16 << 10;
const BUFFER_COUNT: u64 = 48;

/// A random number generator with a seed: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from `low` to below `high`.
    fn within(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low) as u64) as usize
    }

    fn flip(&mut self) -> bool {
        self.next().is_multiple_of(2)
    }
}

/// A super-packet, or a packet whose payload fits one segment.
struct Whole {
    headers: Vec<u8>,
    located: Headers,
    kind: GsoKind,
    payload: Vec<u8>,
    /// The ends of its pieces.
    ends: Vec<usize>,
    size: u16,
}

impl Whole {
    fn random(random: &mut Random) -> Self {
        let (is_v4, is_tcp) = (random.flip(), random.flip());
        let mut headers: Vec<u8> = (0..12).map(|at| 2 * at).collect();
        if random.flip() {
            headers.extend([0x81, 0, 0x20, random.next() as u8]);
        }
        headers.extend(if is_v4 { [8, 0] } else { [0x86, 0xdd] });
        let ip_at = headers.len();
        let protocol = if is_tcp { 6 } else { 17 };
        if is_v4 {
            let options = 4 * random.within(0, 3);
            let ident = random.next().to_be_bytes();
            let first = 0x45 + (options / 4) as u8;
            headers.extend([first, 0x01, 0xde, 0xad, ident[0], ident[1], 0x40, 0, 64, protocol]);
            headers.extend([0xbe, 0xef, 10, 0, 0, random.next() as u8, 10, 0, 0, 2]);
            headers.extend(vec![1; options]);
        } else {
            headers.extend([0x60, 1, 2, 3, 0xde, 0xad, protocol, 64]);
            headers.extend((0..32).map(|_| random.next() as u8));
        }
        if is_tcp {
            let options = 4 * random.within(0, 6);
            headers.extend((0..12).map(|_| random.next() as u8));
            // Any of CWR, ECE, ACK, PSH and FIN.
            let flags = random.next() as u8 & 0b1101_1001;
            headers.extend([(((20 + options) / 4) << 4) as u8, flags, 1, 2, 3, 4, 0, 0]);
            headers.extend(vec![1; options]);
        } else {
            headers.extend([1, 2, 3, 4, 0, 0, 0, 0]);
        }
        let size = random.within(100, 3000) as u16;
        let most = usize::from(size) * 120;
        let bytes = random.within(1, most.min(65_535 - (headers.len() - ip_at)));
        let payload = (0..bytes).map(|at| (at % 251) as u8).collect();
        let mut ends: Vec<usize> =
            (0..random.within(0, 6)).map(|_| random.within(0, bytes)).collect();
        ends.push(bytes);
        ends.sort_unstable();
        let kind = match (is_tcp, is_v4) {
            (true, true) => GsoKind::Tcp4,
            (true, false) => GsoKind::Tcp6,
            (false, _) => GsoKind::Udp,
        };
        let located = Headers::read(&headers, ip_at).expect("whole headers");
        Self { headers, located, kind, payload, ends, size }
    }

    fn packet(&self, memory: &mut Memory) -> Packet {
        let mut packet = memory.packet().expect("enough packets");
        let mut from = 0;
        for &end in &self.ends {
            for part in self.payload[from..end].chunks(16 << 10) {
                let mut frame = memory.large.take().expect("enough frames");
                let count = part.len().min(frame.len());
                assert_eq!(count, part.len());
                frame[..count].copy_from_slice(part);
                packet.push_piece(frame.freeze(count)).expect("few pieces");
            }
            from = end;
        }
        packet.push_header_of(&self.headers);
        let Headers { transport_at, .. } = self.located;
        let offset = if self.kind == GsoKind::Udp { 6 } else { 16 };
        let size = NonZeroU16::new(self.size).expect("not zero");
        packet.set_offload(Offload {
            checksum: Checksum::Partial { start: transport_at as u16, offset },
            gso: Some(Gso { kind: self.kind, size, ecn: false, tunnel: None }),
        });
        packet
    }
}

/// A driver with few buffers, and the device that fills them.
struct Bench {
    ram: GuestRam,
    driver: DriverQueue,
    device: ReceiveQueue,
    free: VecDeque<u64>,
    buffer: usize,
    ledger: Ledger,
}

impl Bench {
    fn new(random: &mut Random) -> Self {
        let bit = |random: &mut Random, bit| if random.flip() { bit } else { 0 };
        let features = feature::VERSION_1
            | feature::GUEST_CSUM
            | bit(random, feature::PACKED)
            | bit(random, feature::EVENT_INDEX)
            | bit(random, feature::INDIRECT)
            | bit(random, feature::MRG_RXBUF);
        // Two regions, so that one buffer lies in both.
        let ram = GuestRam::new(0, &[RAM / 2 - 4096, RAM / 2 + 4096]).expect("memory");
        let size = 1 << random.within(3, 7);
        let driver = DriverQueue::new(&ram, 0, size, features).expect("the queue fits");
        assert!(driver.end() <= BUFFERS);
        let map = ram.map().expect("mapped");
        let device = ReceiveQueue::start(driver.config(), &map).expect("proper");
        let is_merged = features & feature::MRG_RXBUF != 0;
        let buffer = if is_merged { random.within(600, 4096) } else { 4096 };
        let free = (0..BUFFER_COUNT).collect();
        Self { ram, driver, device, free, buffer, ledger: Ledger::new() }
    }

    /// Offers some buffers, each of one descriptor or two.
    fn offer(&mut self, random: &mut Random) {
        for _ in 0..random.within(1, 20) {
            let Some(token) = self.free.pop_front() else { break };
            let (address, bytes) = (BUFFERS + token * BUFFER_STRIDE, self.buffer as u32);
            let cut = random.within(1, self.buffer) as u32;
            let segments = [(address, cut), (address + u64::from(cut), bytes - cut)]
                .map(|(address, bytes)| Segment { address, bytes });
            let is_added = if random.flip() {
                self.driver.add(&[], &segments, token)
            } else {
                self.driver.add(&[], &[Segment { address, bytes }], token)
            };
            if !is_added {
                self.free.push_front(token);
                break;
            }
        }
        self.driver.publish();
    }

    /// Returns the frames, with virtio-net headers, that the driver finds for these packets.
    fn pass(
        &mut self,
        mut packets: VecDeque<Packet>,
        memory: &mut Memory,
        random: &mut Random,
    ) -> Vec<Vec<u8>> {
        let (mut frames, mut left, mut burst) = (Vec::new(), 0, Burst::new());
        // Each turn passes a frame or offers buffers.
        for _ in 0..100_000 {
            while !burst.is_full()
                && let Some(packet) = packets.pop_front()
            {
                burst.push(packet).expect("room");
            }
            if burst.is_empty() {
                return frames;
            }
            self.offer(random);
            let cx = &mut Context { memory, ledger: &self.ledger, now: Instant::START };
            self.device.deliver(&mut burst, cx).expect("the ring is good");
            while let Some((token, written)) = self.driver.used() {
                let mut bytes = vec![0; written as usize];
                let address = BUFFERS + token * BUFFER_STRIDE;
                self.ram.memory().read(address, &mut bytes).expect("in memory");
                self.free.push_back(token);
                if left == 0 {
                    left = usize::from(u16::from_le_bytes([bytes[10], bytes[11]]));
                    frames.push(Vec::new());
                }
                frames.last_mut().expect("begun").extend(bytes);
                left -= 1;
            }
        }
        panic!("packets do not pass");
    }
}

fn memory() -> Memory {
    Memory::new(MemoryConfig { packets: 1024, small_frames: 16, large_frames: 64 })
}

/// Segments a super-packet into packets, as for a port whose device does not segment.
fn cut(packet: Packet, headers: &Headers, memory: &mut Memory) -> VecDeque<Packet> {
    let mut parts = VecDeque::new();
    let out = &mut |part, _: &mut _| parts.push_back(part);
    let ledger = Ledger::new();
    gso::segment(packet, memory, &ledger, headers, Checksums::LeavePartial, out)
        .expect("a proper super-packet");
    parts
}

/// Goal: both ways yield the same frames, count the same, copy each byte once, and return all
/// memory.
#[test]
fn a_device_cuts_as_segmentation_does() {
    let mut parts = 0;
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let wholes: Vec<Whole> =
            (0..random.within(1, 4)).map(|_| Whole::random(&mut random)).collect();
        let mut memory = memory();
        let state = random.0;
        let [expected, found] = [false, true].map(|by_device| {
            let mut random = Random(state);
            let mut bench = Bench::new(&mut random);
            let (mut frames, mut counted) = (Vec::new(), [0; 2]);
            for whole in &wholes {
                let mut packet = whole.packet(&mut memory);
                let packets = if by_device {
                    assert!(gso::leave_to_device(&mut packet, &whole.located).expect("proper"));
                    counted[0] += packet.frames();
                    counted[1] += packet.frame_bytes();
                    VecDeque::from([packet])
                } else {
                    let packets = cut(packet, &whole.located, &mut memory);
                    counted[0] += packets.len();
                    counted[1] += packets.iter().map(Packet::len).sum::<usize>();
                    packets
                };
                frames.extend(bench.pass(packets, &mut memory, &mut random));
            }
            let counters = *bench.device.counters();
            assert_eq!(counters.packets, counted[0] as u64, "seed {seed}");
            assert_eq!(counters.bytes, counted[1] as u64, "seed {seed}");
            let payload: usize = wholes.iter().map(|whole| whole.payload.len()).sum();
            assert_eq!(bench.ledger.copied_at(Site::Guest), payload as u64, "seed {seed}");
            frames
        });
        assert_eq!(expected.len(), found.len(), "frames, seed {seed}");
        for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
            assert!(expected == found, "frame {number}, seed {seed}");
        }
        parts += found.len();
        assert_eq!(memory.large.out_count(), 0, "seed {seed}");
    }
    assert!(parts > 10 * SEEDS as usize, "too few super-packets were segmented");
}

/// Goal: the rest of a super-packet is a super-packet of the remaining parts, when a device stops
/// in the middle of it or when a capture sees it on its way.
#[test]
fn what_is_left_of_a_cut_packet_is_a_super_packet() {
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let whole = Whole::random(&mut random);
        let mut memory = memory();
        let expected = {
            let packet = whole.packet(&mut memory);
            cut(packet, &whole.located, &mut memory)
        };
        let mut packet = whole.packet(&mut memory);
        assert!(gso::leave_to_device(&mut packet, &whole.located).expect("proper"));
        assert_eq!(packet.frames(), expected.len());
        // In two steps, if enough parts are gone.
        let gone = random.within(0, expected.len());
        for count in [gone / 2, gone - gone / 2] {
            if count > 0 {
                packet.drop_parts(count);
            }
        }
        let mut shared = packet.share(&mut memory.packets).expect("enough packets");
        shared.join_parts();
        assert!(shared.segmentation().is_none() && packet.frames() == expected.len() - gone);
        let found = cut(shared, &whole.located, &mut memory);
        let bytes = |packet: &Packet| {
            let mut bytes = packet.headers().to_vec();
            for piece in packet.pieces() {
                bytes.extend_from_slice(&piece.view().expect("frames of a pool"));
            }
            (bytes, *packet.offload())
        };
        for (expected, found) in expected.iter().skip(gone).zip(&found) {
            assert!(bytes(expected) == bytes(found), "seed {seed}, {gone} gone");
        }
        assert_eq!(found.len(), expected.len() - gone, "seed {seed}");
    }
}

/// Bad input: a super-packet with wrong claims remains unchanged, and is not segmented.
#[test]
fn lies_about_super_packets_are_found_before_a_device_cuts() {
    let mut random = Random(1);
    for _ in 0..SEEDS {
        let whole = Whole::random(&mut random);
        let mut memory = memory();
        let mut packet = whole.packet(&mut memory);
        let mut offload = *packet.offload();
        offload.checksum = Checksum::Partial { start: 1, offset: 1 };
        packet.set_offload(offload);
        assert!(gso::leave_to_device(&mut packet, &whole.located).is_err());
        assert!(packet.segmentation().is_none() && *packet.offload() == offload);
        assert!(packet.headers() == whole.headers);
    }
}
