//! Packets that the kernel refuses, invalid packets, and how both are counted.

use std::num::NonZeroU16;

use towpath_io::tap::{FRAME_BYTES_MAX, Features, REFUSALS_MAX, Tap, TapError};
use towpath_packet::pool::SMALL_FRAME_BYTES;
use towpath_packet::{Burst, Checksum, Device, Gso, GsoKind, Memory, Offload};

use crate::network::{ONE, isolated};
use crate::support::{cx, memory, pattern, pieces, scripted};

/// Goal: packets that the kernel refuses are dropped and counted, and a feature is withdrawn after
/// several refusals in a row.
#[test]
fn refused_super_packets_withdraw_their_feature() {
    isolated(|| {
        let mut tap = ONE.tap(Features::ALL);
        let mut memory = memory(64, 64, 16);
        let size = NonZeroU16::new(1400).expect("not zero");
        // An ARP frame that claims to be a UDP super-packet.
        let offload = Offload {
            checksum: Checksum::Partial { start: 34, offset: 6 },
            gso: Some(Gso { kind: GsoKind::Udp, size, ecn: true, tunnel: None }),
        };
        let mut burst = Burst::new();
        for round in 0..REFUSALS_MAX {
            assert!(tap.caps().uso, "still there after {round}");
            let mut packet = memory.packet().expect("free");
            packet.push_piece(memory.small.take().expect("free").freeze(1999)).expect("room");
            packet.set_offload(offload);
            burst.push(packet).expect("room");
            tap.transmit(&mut burst, &mut cx(&mut memory)).expect("the device is fine");
            assert!(burst.is_empty());
        }
        assert_eq!(tap.counters().transmit_refused, u64::from(REFUSALS_MAX));
        assert_eq!(tap.withdrawn(), Features { uso: true, ..Features::NONE });
        let caps = tap.caps();
        assert!(!caps.uso && caps.tso4 && caps.tso6 && caps.checksum);
        tap.disable(Features { checksum: true, ..Features::NONE });
        assert_eq!(tap.caps(), towpath_packet::Caps::plain(1500));
        assert_eq!(tap.withdrawn(), Features::ALL);
    });
}

/// Goal: frames that are too short and a link that is down have their own counters.
#[test]
fn drops_have_reasons() {
    isolated(|| {
        let mut tap = Tap::create("tap0").expect("a TAP device");
        let mut memory = memory(64, 64, 16);
        let mut burst = Burst::new();
        for bytes in [0, 13, 60] {
            let mut packet = memory.packet().expect("free");
            packet.push_piece(memory.small.take().expect("free").freeze(bytes)).expect("room");
            burst.push(packet).expect("room");
        }
        tap.transmit(&mut burst, &mut cx(&mut memory)).expect("the device is fine");
        assert_eq!((tap.counters().transmit_refused, tap.counters().transmit_down), (2, 1));
        assert_eq!(tap.counters().transmit_dropped(), 3);
        assert_eq!(memory.packets.out_count(), 0);
    });
}

/// Goal: whatever a device delivers is accepted whole or dropped under its own reason, and drops
/// leak no frame.
#[test]
fn odd_frames_are_dropped_with_reasons() {
    let (mut tap, peer) = scripted();
    let mut memory = memory(8, 8, 8);
    let header = |gso_type, gso_size: u16| {
        let [low, high] = gso_size.to_le_bytes();
        [0, gso_type, 0, 0, low, high, 0, 0, 0, 0, 0, 0]
    };
    let mut give = |header: [u8; 12], bytes: usize| {
        let mut frame = Vec::from(header);
        frame.extend(pattern(bytes));
        rustix::io::write(&peer, &frame).expect("room");
        let mut burst = Burst::new();
        tap.receive(&mut burst, &mut cx(&mut memory)).expect("received");
        burst.pop().map(|packet| packet.len())
    };
    let plain = header(0, 0);
    for bytes in [14, 15, SMALL_FRAME_BYTES, SMALL_FRAME_BYTES + 1, FRAME_BYTES_MAX] {
        assert_eq!(give(plain, bytes), Some(bytes));
    }
    assert_eq!(give(header(1, 1400), 5000), Some(5000));
    assert_eq!((give(plain, 0), give(plain, 13)), (None, None));
    assert_eq!((give(plain, FRAME_BYTES_MAX + 1), give(plain, 100_000)), (None, None));
    let bad = [header(2, 1400), header(3, 1400), header(1, 0), header(5, u16::MAX)];
    assert_eq!(bad.map(|header| give(header, 100)), [None; 4]);
    rustix::io::write(&peer, &[0; 11]).expect("room");
    let mut burst = Burst::new();
    tap.receive(&mut burst, &mut cx(&mut memory)).expect("received");
    assert!(burst.is_empty());

    let counters = *tap.counters();
    assert_eq!((counters.received.packets, counters.received.super_packets), (6, 1));
    assert_eq!((counters.receive_short, counters.receive_long), (3, 2));
    assert_eq!((counters.receive_bad_header, counters.receive_dropped()), (4, 9));
    tap.rest();
    let Memory { packets, small, large } = &memory;
    assert_eq!((packets.out_count(), small.out_count(), large.out_count()), (0, 0, 0));
}

/// Goal: raw, peeked and pulled packets are the same on the wire; a full device leaves the rest of
/// the burst, in order.
#[test]
fn packets_are_written_whole_and_wait_when_full() {
    let (mut tap, peer) = scripted();
    let mut memory = memory(256, 256, 256);
    let frame = pattern(40_000);
    let mut burst = Burst::new();
    let mut sent = 0u64;
    while tap.counters().transmit_full == 0 {
        let mut packet = memory.packet().expect("free");
        let mut bytes = frame.clone();
        bytes[..8].copy_from_slice(&sent.to_be_bytes());
        for piece in pieces(&mut memory, &bytes) {
            packet.push_piece(piece).expect("room");
        }
        match sent % 3 {
            0 => {}
            1 => drop(packet.peek_headers()),
            _ => {
                packet.peek_headers();
                packet.pull(54);
            }
        }
        burst.push(packet).expect("room");
        sent += 1;
        tap.transmit(&mut burst, &mut cx(&mut memory)).expect("the device is fine");
    }
    assert_eq!(burst.len(), 1);
    let mut buffer = vec![0; 50_000];
    for expected in 0..sent {
        let bytes = rustix::io::read(&peer, &mut buffer[..]).expect("a packet");
        assert_eq!(bytes, 12 + frame.len());
        assert_eq!(buffer[..12], [0; 12]);
        assert_eq!(buffer[12..20], expected.to_be_bytes());
        assert!(buffer[20..bytes] == frame[8..]);
        tap.transmit(&mut burst, &mut cx(&mut memory)).expect("the device is fine");
    }
    assert_eq!(tap.counters().transmitted.packets, sent);
    assert_eq!((memory.packets.out_count(), memory.large.out_count()), (0, 0));
}

#[test]
fn errors_are_distinguished() {
    isolated(|| {
        let tap = Tap::create("tap0").expect("a TAP device");
        assert_eq!(tap.name(), Ok("tap0".to_owned()));
        assert_eq!(Tap::create("tap0").err(), Some(TapError::NameInUse));
        assert_eq!(Tap::create("lo").err(), Some(TapError::NameInUse));
        for name in ["", "sixteen-bytes-xx", "a/b"] {
            assert_eq!(Tap::create(name).err(), Some(TapError::NameInvalid), "{name:?}");
        }
    });
    isolated(|| {
        let mut tap = ONE.tap(Features::ALL);
        let output = std::process::Command::new("ip").args(["link", "delete", "tap0"]).output();
        if output.is_err() {
            println!("skipped: ip is not installed");
            return;
        }
        let (mut memory, mut burst) = (memory(8, 8, 8), Burst::new());
        assert_eq!(tap.receive(&mut burst, &mut cx(&mut memory)), Err(TapError::Gone));
        let mut packet = memory.packet().expect("free");
        packet.push_piece(memory.small.take().expect("free").freeze(60)).expect("room");
        burst.push(packet).expect("room");
        assert_eq!(tap.transmit(&mut burst, &mut cx(&mut memory)), Err(TapError::Gone));
        assert_eq!(burst.len(), 1, "the packet is still the caller's");
    });
}
