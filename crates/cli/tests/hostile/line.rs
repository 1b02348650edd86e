//! The queue in front of a network's gateway: a guest that sends endlessly has few packets in it,
//! so that others are served next.
//!
//! # Method
//!
//! Turn by turn and without a clock: the test takes one packet at a time from a network with two
//! guests on stream sockets, while one guest has sent hundreds. Then the other sends one. This is
//! repeated once both guests count as users of the gateway.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use libtest_mimic::Failed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_gateway::network::{Attachment, Network, NetworkConfig, PortSettings};
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::MacAddr;
use towpath_packet::burst::BURST_MAX;
use towpath_packet::{Burst, Context, Device, Ledger, Memory, MemoryConfig};

use crate::frame::{self, GATEWAY_MAC};

/// Name of the test.
pub(super) const NAME: &str = "one_guest_does_not_fill_the_line_of_the_gateway";
/// Frames that one guest has sent before the other sends one.
const FRAMES: usize = 600;
/// Turns until then.
const TURNS: usize = 20;
/// Most packets ahead: those handed over at once, and a burst that was read before.
const AHEAD_MAX: usize = 2 * BURST_MAX;
/// Most packets ahead once both have used the gateway: twice a share of such packets (`SHARE`,
/// docs/limits.md).
const AHEAD_SHARED_MAX: usize = 2 * 18;
const MEMORY_BYTES: usize = 16 << 20;
/// Offset of the byte of a frame that identifies its sender; the next constants are the senders.
const SENDER: usize = 11;
const GREEDY: u8 = 1;
const MODEST: u8 = 2;

/// Goal: however much one guest has sent, the packet of another waits behind few of its packets
/// ([`AHEAD_MAX`], [`AHEAD_SHARED_MAX`]), and all of them arrive.
pub(super) fn run() -> Result<(), Failed> {
    let folder = std::env::temp_dir().join(format!("towpath-line-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let config = NetworkConfig {
        mtu: 1500,
        gateway: Some(MacAddr(GATEWAY_MAC)),
        gateway_addresses: Vec::new(),
        orphan: false,
        busy_poll: Duration::ZERO,
        seed: 1,
    };
    let ledger = Arc::new(Ledger::new());
    let mut network = Network::new(config)?;
    let mut memory = Memory::new(MemoryConfig::within(MEMORY_BYTES));
    let connect = |network: &mut Network, name: &str| -> Result<UnixStream, Failed> {
        let path = folder.join(name);
        network.add_port(name, Attachment::Stream(path.clone()), PortSettings::default())?;
        Ok(UnixStream::connect(path)?)
    };
    let mut greedy = connect(&mut network, "greedy")?;
    let mut modest = connect(&mut network, "modest")?;
    // Returns the senders of the next packets for the gateway, `most` at a time.
    let mut next = |most: usize| -> Result<Vec<u8>, Failed> {
        let file = network.file().expect("that of its ports");
        let soon = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let readable = poll(&mut [PollFd::from_borrowed_fd(file, PollFlags::IN)], Some(&soon))?;
        let mut cx = Context { memory: &mut memory, ledger: &ledger, now: Instant::START };
        network.turn(readable > 0, &mut cx)?;
        let mut burst = Burst::new();
        burst.limit(most);
        network.receive(&mut burst, &mut cx)?;
        Ok(burst.iter_mut().map(|packet| packet.peek_headers()[SENDER]).collect())
    };
    // Both connections are accepted.
    (0..TURNS).try_for_each(|_| next(1).map(drop))?;
    for ahead_max in [AHEAD_MAX, AHEAD_SHARED_MAX] {
        greedy.write_all(&frame_from(GREEDY).repeat(FRAMES))?;
        let mut taken = 0;
        for _ in 0..TURNS {
            taken += next(1)?.len();
        }
        assert!(taken > 0, "packets arrive");
        modest.write_all(&frame_from(MODEST))?;
        let (mut ahead, mut turns) = (0, 0);
        let mut rest = loop {
            turns += 1;
            assert!(turns < FRAMES, "the packet of the other guest arrives");
            let came = next(1)?;
            match came.first() {
                Some(&MODEST) => break FRAMES - taken - ahead,
                came => ahead += usize::from(came.is_some()),
            }
        };
        println!("--- {NAME}: {ahead} packets ahead, {taken} before");
        assert!(ahead <= ahead_max, "{ahead} packets are ahead");
        for _ in 0..FRAMES {
            rest -= next(BURST_MAX)?.len();
        }
        assert_eq!(rest, 0, "all packets of the first guest arrive");
    }
    drop((greedy, modest, network));
    Ok(std::fs::remove_dir_all(folder)?)
}

/// Returns a frame for the gateway, as it goes over a stream.
fn frame_from(sender: u8) -> Vec<u8> {
    let mut frame = frame::ethernet(frame::IPV4, &[0; 46]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, sender]);
    let len = (frame.len() as u32).to_be_bytes();
    [&len[..], &frame].concat()
}
