//! Bulk transfer over a clean path: packets stay large, and the owner keeps data flowing.

use super::script::{Script, plain};
use crate::tcp::Settings;
use crate::time::Duration;
extern crate std;
use std::collections::VecDeque;
use std::format;

/// Packets that are acknowledged, one after the other.
const PACKETS: u32 = 4000;

/// Sends to a peer that acknowledges each packet as it arrives. Returns the bytes sent once the
/// window was open, and how many of them were in packets of 32 KiB or more.
fn transfer(settings: Settings) -> (u32, u32) {
    let mut t = Script::open(settings, "S 0 win 65535 mss 1460 sackOK ws 10");
    let (mut all, mut large) = (0, 0);
    let mut path = VecDeque::new();
    t.supply();
    for _ in 0..PACKETS {
        path.extend(core::iter::from_fn(|| t.take_sent()));
        let Some((end, len)) = path.pop_front() else { break };
        if t.c.send.congestion().cwnd() >= 128 {
            all += len;
            large += if len >= 32 << 10 { len } else { 0 };
        }
        t.now += Duration::from_micros(30);
        t.recv(&format!(". 1 ack {end} win 65535"));
        t.supply();
        assert!(t.c.unacknowledged() > 0, "there is always room for more");
    }
    t.forget_sent();
    (all, large)
}

/// The gateway gets its speed from super-packets: with the window open, nine tenths of the bytes
/// are in packets of at least 32 KiB, whatever the pattern of ACKs.
#[test]
fn packets_of_a_bulk_transfer_are_large() {
    let settings =
        Settings { send_buffer_max: 768 << 10, window_scaling: true, sack: true, ..plain() };
    let (all, large) = transfer(settings);
    assert!(all > 50 << 20, "{all} bytes with the window open");
    assert!(large >= all / 10 * 9, "{large} of {all} bytes in large packets");
}
