//! What the next read is prepared for, and that all that arrives is taken, prepared for or not.

use std::net::SocketAddr;

use towpath_io::socket::{Part, SharedPort, UdpSocket};
use towpath_net::time::Duration;
use towpath_net::vxlan::remotes::{Change, Origin};
use towpath_net::vxlan::{HEADER_LEN, header};
use towpath_packet::MemoryConfig;

use super::*;

fn size(bytes: u16) -> NonZeroU16 {
    NonZeroU16::new(bytes).expect("bytes")
}

/// Goal: reads are prepared for runs that were alike several times in a row, and no longer after
/// one that differs, or many that are short.
#[test]
fn runs_are_forecast_while_they_are_alike() {
    let mut forecast = Forecast::default();
    assert!(!forecast.expects_run());
    for number in 0..=ALIKE_MIN {
        assert_eq!(forecast.split(), None, "after {number} runs");
        forecast.note(RUN_LONG, Some(size(1462)), Some(74));
        assert!(forecast.expects_run());
    }
    let split = HeadSplit { head: 74, size: size(1462) };
    assert_eq!(forecast.split(), Some(split));
    for _ in 1..PATIENCE {
        forecast.note(1, None, None);
    }
    assert!(forecast.expects_run() && forecast.split() == Some(split));
    forecast.note(1, None, None);
    assert!(!forecast.expects_run());
    for (bytes, head) in [(1400, Some(74)), (1462, Some(62)), (1462, None)] {
        let mut forecast = Forecast { patience: 1, split: Some(split), alike: ALIKE_MIN };
        forecast.note(RUN_LONG, Some(size(bytes)), head);
        assert!(forecast.expects_run() && forecast.split().is_none(), "{bytes}, {head:?}");
    }
}

/// Datagrams with TCP packets, `options` bytes of options in each, whose checksums are wrong: none
/// are joined. All have `len` bytes but the last.
fn run(len: usize, options: usize, count: usize, last: usize) -> Vec<Vec<u8>> {
    let vni = Vni::new(100).expect("24 bits");
    let lens = std::iter::repeat_n(len, count - 1).chain([last]);
    let datagram = |(number, len): (usize, usize)| {
        let mut frame = vec![0; 54 + options];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
        let ip_len = u16::try_from(len - HEADER_LEN - 14).expect("16 bits");
        frame[16..18].copy_from_slice(&ip_len.to_be_bytes());
        frame[23] = 6;
        frame[46] = ((20 + options) << 2) as u8;
        frame[50] = 0xff;
        frame.resize(len - HEADER_LEN, number as u8);
        [&header(vni)[..], &frame].concat()
    };
    lens.enumerate().map(datagram).collect()
}

/// Goal: whatever runs follow each other, all frames arrive as they were sent, and other networks'
/// are counted. Method: runs over loopback; a busy system may drop some, so they are sent again.
#[test]
fn all_runs_arrive_whether_forecast_or_not() {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let vni = Vni::new(100).expect("24 bits");
    let from = UdpSocket::bind(loopback, None).expect("a socket");
    let socket = SharedPort::new(loopback).open(vni.number()).expect("a socket");
    let (to, sender) = (socket.local().expect("bound"), from.local().expect("bound").ip());
    socket.set_tunnel(1 << 20).expect("options");
    let mut incoming = Incoming::new(socket, (vni, 1450), 1);
    let mut remotes = Remotes::new(true, Duration::from_secs(300), 1);
    remotes.apply(Change::AddFlood(sender), Origin::Static).expect("room");
    let mut counters = VxlanCounters::default();
    let config = MemoryConfig { packets: 512, small_frames: 256, large_frames: 64 };
    let (mut memory, ledger) = (Memory::new(config), Ledger::new());
    let alike = || run(1462, 12, 40, 1462);
    let mut stranger = run(1462, 12, 10, 1462);
    stranger[3][6] = 77;
    let mut runs = vec![run(1462, 12, 1, 1462)];
    for other in [
        run(1462, 12, 44, 74),
        run(1462, 12, 1, 74),
        run(1400, 12, 40, 1300),
        run(1462, 0, 40, 100),
        run(1462, 12, 1, 9000),
        run(74, 12, 60, 74),
        stranger,
    ] {
        runs.extend((0..7).map(|_| alike()));
        runs.extend([other, alike()]);
    }
    for (number, run) in runs.iter().enumerate() {
        let is_ours = |one: &&Vec<u8>| one[6] == 100;
        let wanted: Vec<_> = run.iter().filter(is_ours).map(|one| &one[HEADER_LEN..]).collect();
        let mut took = || {
            let parts = run.iter().map(|one| Part::Bytes(one));
            let gso_size = size(run[0].len() as u16);
            from.send_parts(to, parts, Some(gso_size)).expect("sent");
            let mut frames = Vec::new();
            let mut burst = Burst::new();
            loop {
                let cx = &mut Context { memory: &mut memory, ledger: &ledger, now: Instant::START };
                incoming.receive(&mut burst, &mut remotes, &mut counters, cx).expect("received");
                if burst.is_empty() {
                    return frames == wanted;
                }
                while let Some(packet) = burst.pop() {
                    let mut frame = vec![0; packet.len()];
                    packet.copy_to(&mut frame, &Ledger::new());
                    frames.push(frame);
                }
            }
        };
        assert!((0..1000).any(|_| took()), "run {number}");
    }
    assert!(counters.wrong_vni > 0);
    assert_eq!(counters.dropped(), counters.wrong_vni);
    incoming.rest();
    let held = [memory.packets.out_count(), memory.small.out_count(), memory.large.out_count()];
    assert_eq!(held, [0; 3]);
}
