//! Packets of one flow use one queue.

use super::*;
use towpath_packet::{Memory, MemoryConfig};

/// The hash of a packet with these headers.
fn hash(headers: &[u8]) -> u32 {
    let config = MemoryConfig { packets: 1, small_frames: 1, large_frames: 1 };
    let mut packet = Memory::new(config).packet().unwrap();
    packet.push_header(headers.len()).copy_from_slice(headers);
    flow_hash(&packet)
}

/// Ethernet, IPv4 and ports, with the last byte of an address, a port and a byte outside the flow.
fn v4(host: u8, port: u8, other: u8) -> Vec<u8> {
    let mut frame = vec![0; 14 + 20 + 8];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    (frame[33], frame[37], frame[18]) = (host, port, other);
    frame
}

fn v6(host: u8, port: u8, other: u8) -> Vec<u8> {
    let mut frame = vec![0; 14 + 40 + 8];
    frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    (frame[53], frame[57], frame[17]) = (host, port, other);
    frame
}

#[test]
fn packets_of_a_flow_stay_together_and_others_need_not() {
    for frame in [v4, v6] {
        let flow = hash(&frame(1, 1, 1));
        assert_eq!(flow, hash(&frame(1, 1, 2)));
        assert_ne!(flow, hash(&frame(2, 1, 1)));
        assert_ne!(flow, hash(&frame(1, 2, 1)));
        // All queues are used: of 256 ports each of four queues gets a fair share.
        let mut counts = [0; 4];
        (0..=255).for_each(|port| counts[hash(&frame(1, port, 0)) as usize % 4] += 1);
        assert!(counts.iter().all(|count| (32..=96).contains(count)), "{counts:?}");
    }
}

/// With IP options the ports move, and the addresses alone decide. Short or unknown packets are one
/// flow.
#[test]
fn headers_that_are_not_as_usual() {
    let options = |port| {
        let mut frame = v4(1, port, 0);
        frame[14] = 0x46;
        hash(&frame)
    };
    assert_eq!(options(1), options(2));
    assert_eq!(hash(&[0; 60]), 0);
    assert_eq!(hash(&[]), 0);
    let basis = hash(&v4(1, 1, 1)[..30]);
    assert_eq!(basis, hash(&v4(2, 2, 2)[..30]), "cut short");
}
