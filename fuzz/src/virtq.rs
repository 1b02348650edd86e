//! Target: a guest's memory as a driver could write it, and the device side of a queue in it.
//!
//! The input is a list of steps: writes of bytes anywhere into rings, tables, headers and the
//! inflight area, with calls of the device in between. Short frames are inline or not. For all
//! steps, nothing panics, the device stops (nothing reads lent memory), and every loan and packet
//! is returned.

use crate::input::Input;
use std::sync::Arc;
use std::time::Duration;
use towpath_io::vhost_user::driver::{DriverQueue, GuestRam};
use towpath_io::vhost_user::shared::{Area, Mapping};
use towpath_io::vhost_user::virtq::inflight::region_bytes;
use towpath_io::vhost_user::virtq::{QueueConfig, ReceiveQueue, Stop, TransmitQueue, feature};
use towpath_packet::packet::PEEK_BYTES;
use towpath_packet::time::Instant;
use towpath_packet::{Burst, Context, Ledger, Memory, MemoryConfig, Packet};

/// Two regions of this size each, from guest address zero; the queue is at the start.
const REGION: u64 = 0x8000;
/// Most steps of one input.
const STEPS_MAX: usize = 200;

/// Features by the bits of the first byte: split or packed, and features that change how chains are
/// read.
fn features(bits: u8) -> u64 {
    let all = [
        feature::PACKED,
        feature::EVENT_INDEX,
        feature::INDIRECT,
        feature::MRG_RXBUF,
        feature::CSUM | feature::GUEST_CSUM,
        feature::HOST_TSO4 | feature::HOST_USO,
    ];
    let chosen = all.iter().enumerate().filter(|(index, _)| bits & 1 << index != 0);
    chosen.fold(0, |features, (_, feature)| features | feature)
}

struct World {
    ram: GuestRam,
    driver: DriverQueue,
    region: Option<Arc<Mapping>>,
    is_inline: bool,
    transmit: Option<TransmitQueue>,
    receive: Option<ReceiveQueue>,
    memory: Memory,
    ledger: Ledger,
    held: Vec<Packet>,
    now: Instant,
}

/// Runs steps on a queue. See the module documentation.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.u8();
    let features = features(kind);
    let ram = GuestRam::new(0, &[REGION, REGION]).expect("memory files can be made");
    let driver = DriverQueue::new(&ram, 0, 8, features).expect("it fits");
    let region = (kind & 0x40 != 0).then(|| region(features & feature::PACKED != 0));
    let config = MemoryConfig { packets: 16, small_frames: 8, large_frames: 8 };
    let mut world = World {
        ram,
        driver,
        region,
        is_inline: kind & 0x80 != 0,
        transmit: None,
        receive: None,
        memory: Memory::new(config),
        ledger: Ledger::new(),
        held: Vec::new(),
        now: Instant::START + Duration::from_secs(1),
    };
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.end();
}

fn region(packed: bool) -> Arc<Mapping> {
    let bytes = region_bytes(packed, 8) as u64;
    let ram = GuestRam::new(0, &[bytes.next_multiple_of(4096)]).expect("memory files can be made");
    Arc::new(Mapping::new(ram.file(), 0, bytes).expect("it is there"))
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 10 {
            0 => {
                let at = u64::from(input.u16());
                let bytes = input.counted();
                // Writes beyond the end of the memory have no effect.
                let _ = self.ram.memory().write(at, bytes);
            }
            1 => {
                let (at, bytes) = (usize::from(input.u16()), input.counted());
                if let Some(region) = &self.region
                    && at < region.bytes()
                {
                    let count = bytes.len().min(region.bytes() - at);
                    region.stretch(at, count).write(&bytes[..count]);
                }
            }
            2 => self.start(input.u32()),
            3 => self.take(),
            4 => self.held.clear(),
            5 => {
                self.now += Duration::from_millis(u64::from(input.u8()));
                if let Some(transmit) = &mut self.transmit {
                    transmit.turn(self.now, &self.ledger);
                    transmit.enable_kicks();
                }
            }
            6 => self.give(usize::from(input.u16())),
            7 => {
                if let Some(transmit) = &mut self.transmit {
                    // A broken ring stays broken.
                    let _ = transmit.discard();
                }
            }
            8 => {
                if let Some(receive) = &mut self.receive {
                    receive.enable_kicks();
                }
            }
            // A process that ends without stopping the queue.
            _ => self.transmit = None,
        }
    }

    fn config(&self, base: u32) -> QueueConfig {
        let whole = |region: &Arc<Mapping>| Area::new(region.clone(), 0, region.bytes(), 8);
        let inflight = self.region.as_ref().and_then(whole);
        QueueConfig { base, inflight, ..self.driver.config() }
    }

    fn start(&mut self, base: u32) {
        let guest = self.ram.map().expect("mapped before");
        self.transmit = TransmitQueue::start(self.config(base), &guest, None).ok();
        if self.is_inline {
            self.transmit.iter_mut().for_each(TransmitQueue::set_inline);
        }
        let receive = QueueConfig { inflight: None, ..self.config(base) };
        self.receive = ReceiveQueue::start(receive, &guest).ok();
    }

    fn take(&mut self) {
        let Some(transmit) = &mut self.transmit else { return };
        let mut burst = Burst::new();
        let cx = &mut Context { memory: &mut self.memory, ledger: &self.ledger, now: self.now };
        let result = transmit.take(&mut burst, cx);
        assert_eq!(result.err(), transmit.broken());
        while let Some(mut packet) = burst.pop() {
            let is_inline = packet.is_inline();
            assert!(!is_inline || self.is_inline && packet.piece_count() == 0);
            let headers = if is_inline { packet.headers() } else { packet.peek_headers() };
            assert!(headers.len() >= 14, "no packet without an Ethernet header");
            self.held.push(packet);
        }
    }

    fn give(&mut self, bytes: usize) {
        let Some(receive) = &mut self.receive else { return };
        let Some(mut packet) = self.memory.packet() else { return };
        if self.is_inline && bytes <= PEEK_BYTES {
            packet.fill_inline(bytes, |frame| frame.fill(1));
        } else {
            let Some(frame) = self.memory.large.take() else { return };
            let bytes = bytes.min(frame.len());
            packet.push_piece(frame.freeze(bytes)).expect("an empty packet has room");
        }
        let mut burst = Burst::new();
        burst.push(packet).expect("an empty burst has room");
        let cx = &mut Context { memory: &mut self.memory, ledger: &self.ledger, now: self.now };
        let result = receive.deliver(&mut burst, cx);
        assert_eq!(result.err(), receive.broken());
    }

    fn end(mut self) {
        if let Some(transmit) = &mut self.transmit {
            let stopped = transmit.stop(&self.ledger);
            assert!(matches!(stopped, Stop::Done(_)), "nothing reads lent memory");
            assert_eq!(transmit.lent_count(), 0);
        }
        // Packets that are still held outlive the queue.
        self.transmit = None;
        self.held.clear();
        assert_eq!(self.memory.packets.out_count(), 0);
    }
}
