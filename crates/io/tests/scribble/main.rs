//! A hostile front end that writes anything into all memory that it shares, at any time, beside a
//! well-behaved one. The hostile one must harm only itself.
//!
//! One thread serves two ports, as a switch does. The hostile guest's packets go to itself and to
//! its neighbour. The neighbour's packets come back to the neighbour, which checks each byte. The
//! hostile side is one thread.
//!
//! `TOWPATH_SCRIBBLE_SECONDS` sets the duration, `TOWPATH_SEED` the seed. `cargo xtask scribble`
//! runs the test with the address sanitizer.
#![expect(clippy::disallowed_methods, reason = "the test watches the clock")]

mod hostile;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use towpath_io::vhost_user::driver::{DriverQueue, FrontEnd, GuestRam, RECEIVE, TRANSMIT};
use towpath_io::vhost_user::virtq::Segment;
use towpath_io::vhost_user::{Offer, VhostUser, sigbus};
use towpath_packet::{Burst, Context, Device, Ledger, Memory, MemoryConfig, time};

use hostile::{BASE, BUFFERS, Hostile, REGION, Random, SIZE};

/// Duration of the ordinary run.
const SECONDS: u64 = 4;
/// Longest time that the neighbour waits for a packet of its own.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of the neighbour's buffers.
const BUFFER: u64 = 0x1000;
const HEADER: usize = 12;
/// The start of each packet of the neighbour, by which it recognises them.
const MARK: &[u8; 14] = b"the neighbour!";

/// Counters of the hostile side.
#[derive(Debug)]
struct Served {
    sessions: u64,
    broken: u64,
    sent: u64,
    lent: u64,
    received: u64,
}

/// Goal: whatever a front end and its guest write to shared memory, and whenever they do, their
/// neighbour's packets come back unchanged, and no session ends but their own.
#[test]
fn whoever_scribbles_harms_itself_only() {
    let seconds = std::env::var("TOWPATH_SCRIBBLE_SECONDS").ok();
    let seconds = seconds.map_or(SECONDS, |text| text.parse().expect("a number of seconds"));
    let seed = std::env::var("TOWPATH_SEED").ok();
    let seed = seed.map_or(Some(1), |text| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    });
    let seed = seed.expect("a number");
    println!("TOWPATH_SEED={seed}");
    sigbus::guard().expect("SIGBUS can be handled");
    let folder = std::env::temp_dir().join(format!("towpath-scribble-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let paths = ["hostile", "neighbour"].map(|name| folder.join(name));
    let listen = |path: &PathBuf| VhostUser::listen(path, Offer::default());
    let devices = [0, 1].map(|index| listen(&paths[index]).expect("a device"));
    let is_over = AtomicBool::new(false);
    let end = Instant::now() + Duration::from_secs(seconds);
    let (served, exchanged) = std::thread::scope(|scope| {
        let served = scope.spawn(|| serve(devices, &is_over));
        let hostile = scope.spawn(|| {
            let mut random = Random(seed);
            while Instant::now() < end {
                let hostile = Hostile::connect(&paths[0], &mut random, &[]);
                hostile.run(&mut random, || Instant::now() >= end);
            }
        });
        let exchanged = scope.spawn(|| exchange(&paths[1], end)).join();
        let hostile = hostile.join();
        is_over.store(true, Ordering::Relaxed);
        hostile.expect("the hostile side does not panic");
        (served.join().expect("both ports run"), exchanged.expect("the neighbour runs"))
    });
    std::fs::remove_dir_all(&folder).expect("the folder is there");
    println!("{served:?}, and the neighbour got {exchanged} packets back");
    // The number of packets depends on the machine, so only its sign is checked.
    assert!(exchanged > 0 && served.sessions > 1, "{exchanged} packets, {served:?}");
    let Served { broken, sent, lent, received, .. } = served;
    assert!([broken, sent, lent, received].iter().all(|&count| count > 0), "{served:?}");
}

/// Serves both ports in turn.
fn serve(devices: [VhostUser; 2], is_over: &AtomicBool) -> Served {
    let [mut hostile, mut neighbour] = devices;
    let config = MemoryConfig { packets: 512, small_frames: 512, large_frames: 64 };
    let (mut memory, ledger) = (Memory::new(config), Ledger::new());
    let (mut received, mut noise) = (Burst::new(), Burst::new());
    let (mut back, mut own) = (Burst::new(), Burst::new());
    let (start, mut rounds) = (Instant::now(), 0_u64);
    while !is_over.load(Ordering::Relaxed) {
        rounds += 1;
        let now = time::Instant::START + start.elapsed();
        let cx = &mut Context { memory: &mut memory, ledger: &ledger, now };
        for device in [&mut hostile, &mut neighbour] {
            device.turn(true, cx).expect("a front end causes no error");
        }
        hostile.receive(&mut received, cx).expect("no error");
        while let Some(mut packet) = received.pop() {
            if rounds % 2 == 0 {
                packet.peek_headers();
            }
            let to = if (rounds / 2) % 2 == 0 { &mut back } else { &mut noise };
            // Packets that do not fit are lost.
            drop(to.push(packet));
        }
        hostile.transmit(&mut back, cx).expect("no error");
        back.clear();
        // The neighbour's own packets are not lost: waiting ones are sent before all others.
        if own.is_empty() {
            neighbour.receive(&mut own, cx).expect("no error");
        }
        neighbour.transmit(&mut own, cx).expect("no error");
        if own.is_empty() {
            neighbour.transmit(&mut noise, cx).expect("no error");
        }
        // Kept for some rounds, so that memory is lent while the hostile side writes to it.
        if rounds % 16 == 0 {
            noise.clear();
        }
        while hostile.take_event().or_else(|| neighbour.take_event()).is_some() {}
    }
    let (traffic, counters) = (hostile.traffic(), hostile.counters());
    assert_eq!(neighbour.counters().sessions, 1, "the neighbour stayed");
    Served {
        sessions: counters.sessions,
        broken: counters.broken,
        sent: traffic.sent.packets,
        lent: traffic.sent.lent,
        received: traffic.received.packets,
    }
}

/// The neighbour: sends packets and checks that they come back unchanged. Returns their number.
fn exchange(path: &Path, end: Instant) -> u64 {
    let ram = GuestRam::new(BASE, &[REGION]).expect("memory");
    let queue = |at| DriverQueue::new(&ram, BASE + at, SIZE, 0).expect("it fits");
    let (mut receive, mut transmit) = (queue(0), queue(0x2_0000));
    let front_end = FrontEnd::connect(path, &ram, 0, [&receive, &transmit]).expect("a device");
    let place = |token: u64| BUFFERS + BUFFER * token;
    for token in 0..SIZE.into() {
        let buffer = Segment { address: place(token), bytes: BUFFER as u32 };
        assert!(receive.add(&[], &[buffer], token));
    }
    receive.publish();
    front_end.kick(RECEIVE);
    let mut number = 0;
    while Instant::now() < end {
        let frame = frame(number);
        let address = place(SIZE.into());
        ram.memory().write(address, &[0; HEADER]).expect("in memory");
        ram.memory().write(address + HEADER as u64, &frame).expect("in memory");
        let bytes = (HEADER + frame.len()) as u32;
        assert!(transmit.add(&[Segment { address, bytes }], &[], number));
        transmit.publish();
        front_end.kick(TRANSMIT);
        let deadline = Instant::now() + PATIENCE;
        let mut is_back = false;
        while !is_back {
            assert!(Instant::now() < deadline, "packet {number} comes back");
            let Some((token, written)) = receive.used() else {
                std::thread::yield_now();
                continue;
            };
            let mut bytes = vec![0; written as usize];
            ram.memory().read(place(token), &mut bytes).expect("in memory");
            if bytes[HEADER..].starts_with(MARK) {
                assert!(bytes[HEADER..] == frame, "packet {number} is unchanged");
                is_back = true;
            }
            let buffer = Segment { address: place(token), bytes: BUFFER as u32 };
            assert!(receive.add(&[], &[buffer], token));
            receive.publish();
            front_end.kick(RECEIVE);
        }
        // The buffer is used again for the next packet.
        while transmit.used().is_none() {
            assert!(Instant::now() < deadline, "packet {number} is used");
            std::thread::yield_now();
        }
        number += 1;
    }
    number
}

/// A packet of the neighbour, of a length that is either copied or lent.
fn frame(number: u64) -> Vec<u8> {
    let bytes = 60 + (number * 97 % 1400) as usize;
    let mut frame: Vec<u8> = (0..bytes).map(|at| (number as usize * 31 + at * 7) as u8).collect();
    frame[..MARK.len()].copy_from_slice(MARK);
    frame
}
