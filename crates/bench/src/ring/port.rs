//! A port: one or two threads queue packets, and another writes them to a TAP device or to a guest.

use std::net::Ipv4Addr;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use towpath_io::tap::Tap;
use towpath_io::vhost_user::virtq::feature;
use towpath_packet::ring::BusyPoll;
use towpath_packet::sync::{AtomicBool, Ordering};
use towpath_packet::time::Instant;
use towpath_packet::{Burst, Context, Device, Ledger, Memory, MemoryConfig, Packet, PacketPool};

use super::drive::{BURST, Idle, Setting};
use super::queues::{CAPACITY, Drain, Ends, Fill, Kind};
use crate::lab::{self, Network};
use crate::ping_pong::Stopwatch;
use crate::work::guests::Receiver;

/// Nothing is received.
const NO_MEMORY: MemoryConfig = MemoryConfig { packets: 0, small_frames: 0, large_frames: 0 };

/// Destination of the packets.
pub(super) enum Port {
    Tap(Box<Tap>, Box<Memory>, Box<Ledger>),
    Guest(Box<Receiver>, Box<Memory>, Box<Ledger>),
}

impl Port {
    pub(super) fn tap(network: &Network) -> anyhow::Result<Self> {
        lab::prepare_program(network)?;
        let tap = network.inside(|| Tap::create(NAME).context("no TAP device"))?;
        lab::join_by_tap(network, NAME, ADDRESS, PREFIX_LEN)?;
        Ok(Self::Tap(Box::new(tap), Box::new(Memory::new(NO_MEMORY)), Box::default()))
    }

    /// A guest's port. The writing thread also acts as the guest.
    pub(super) fn guest() -> anyhow::Result<Self> {
        let receiver = Receiver::new(feature::VERSION_1, BUFFER_BYTES)?;
        Ok(Self::Guest(Box::new(receiver), Box::new(Memory::new(NO_MEMORY)), Box::default()))
    }

    fn transmit(&mut self, burst: &mut Burst) -> anyhow::Result<()> {
        match self {
            Self::Tap(tap, memory, ledger) => {
                let cx = &mut Context { memory, ledger, now: Instant::START };
                tap.transmit(burst, cx).context("cannot write to the TAP device")
            }
            Self::Guest(receiver, memory, ledger) => {
                let cx = &mut Context { memory, ledger, now: Instant::START };
                receiver.transmit(burst, cx)?;
                receiver.take()
            }
        }
    }

    /// Packets that were written.
    fn packets(&self) -> u64 {
        match self {
            Self::Tap(tap, ..) => tap.counters().transmitted.packets,
            Self::Guest(receiver, ..) => receiver.packets(),
        }
    }

    /// Millions of packets per second from `producers` producers. This thread writes the packets.
    pub(super) fn mpps(
        &mut self,
        kind: Kind,
        producers: usize,
        setting: &Setting,
    ) -> anyhow::Result<f64> {
        let Ends { fills, mut drain } = kind.of_packets(producers)?;
        setting.pin(1)?;
        let stop = AtomicBool::new(false);
        let begin = Barrier::new(producers + 1);
        let before = self.packets();
        let elapsed = thread::scope(|scope| {
            let (stop, begin) = (&stop, &begin);
            let threads: Vec<_> = fills
                .into_iter()
                .enumerate()
                .map(|(index, mut fill)| {
                    scope.spawn(move || {
                        let pinned = setting.pin(setting.number_of_producer(index));
                        begin.wait();
                        produce(fill.as_mut(), stop);
                        pinned
                    })
                })
                .collect();
            begin.wait();
            let elapsed = self.write(drain.as_mut(), setting.span);
            // Relaxed: no other memory depends on it.
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().ok().context("a producer panicked")??;
            }
            elapsed
        })?;
        let sent = self.packets() - before;
        ensure!(sent > 0, "no packet was written");
        Ok(sent as f64 / elapsed.as_secs_f64() / 1e6)
    }

    /// Writes packets for `span`, and longer until at least one has arrived; returns the elapsed
    /// time. On a busy machine, producers may not run before `span` has passed.
    fn write(&mut self, drain: &mut dyn Drain<Packet>, span: Duration) -> anyhow::Result<Duration> {
        let (before, started) = (self.packets(), Stopwatch::start());
        let (mut places, mut burst) = ([const { None }; BURST], Burst::new());
        let mut poll = BusyPoll::new(POLLS);
        loop {
            let elapsed = started.elapsed();
            if elapsed >= span && (self.packets() > before || elapsed >= PATIENCE) {
                return Ok(elapsed);
            }
            if burst.is_empty() && drain.drain(&mut places) == 0 {
                if !poll.again() {
                    drain.sleep();
                }
                continue;
            }
            poll.found();
            for packet in places.iter_mut().filter_map(Option::take) {
                let has_room = burst.push(packet).is_ok();
                ensure!(has_room, "a burst holds what was taken at once");
            }
            self.transmit(&mut burst)?;
        }
    }
}

/// Makes packets and queues them; drops packets for which there is no room.
fn produce(fill: &mut dyn Fill<Packet>, stop: &AtomicBool) {
    let mut pool = PacketPool::new(PACKETS);
    let mut idle = Idle::default();
    // Relaxed: no other memory depends on it.
    while !stop.load(Ordering::Relaxed) {
        let mut items = [const { None }; BURST];
        let mut made = 0;
        for item in &mut items {
            let Some(mut packet) = pool.take() else { break };
            packet.push_header(FRAME.len()).copy_from_slice(&FRAME);
            *item = Some(packet);
            made += 1;
        }
        match made {
            0 => idle.wait(),
            made => {
                idle = Idle::default();
                fill.fill(&mut items[..made]);
            }
        }
    }
}

/// The smallest frame, broadcast, with an EtherType for experiments that nothing listens to.
const FRAME: [u8; 60] = {
    let mut frame = [0; 60];
    let header = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    let mut at = 0;
    while at < header.len() {
        frame[at] = header[at];
        at += 1;
    }
    frame
};
/// Twice a queue's capacity, so that the pool never runs out.
const PACKETS: usize = 2 * CAPACITY;
/// Times that the writing thread looks again before it sleeps: some microseconds.
const POLLS: u32 = 100;
/// Size of a guest's receive buffer, for an MTU of 1500.
const BUFFER_BYTES: u32 = 1526;
/// Longest wait for the first packet.
const PATIENCE: Duration = Duration::from_secs(10);
const NAME: &str = "bench0";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 7, 2, 1);
const PREFIX_LEN: u8 = 24;
