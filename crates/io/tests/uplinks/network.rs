//! A veth pair, and frames to send over it.

use std::num::NonZeroU16;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{UnshareFlags, unshare_unsafe};
use towpath_io::uplink::{Problem, Uplink, UplinkError};
use towpath_packet::pool::LARGE_FRAME_BYTES;
use towpath_packet::{
    Burst, Checksum, Context, Device, Gso, GsoKind, Ledger, Memory, MemoryConfig, Offload, Packet,
    time,
};

/// Longest time that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(20);
/// Destination of the tests' frames: the namespace's own stack sends others.
const TO: [u8; 6] = [0x02, 0, 0, 0, 0, 2];
/// Payload bytes of each segment of a super-packet.
pub(crate) const SEGMENT: u16 = 1400;

/// Runs `body` on a thread in a namespace of its own with the interfaces `near` and `far`, the ends
/// of a pair.
pub(crate) fn with_pair(body: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let run = || {
            // SAFETY: the call is safe unless it unshares descriptors; this one unshares only the
            // network namespace.
            if let Err(errno) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
                println!("skipped: no network namespace: {errno}");
                return;
            }
            // Otherwise the namespace's own stack sends neighbour discovery. Without IPv6 there is
            // nothing to disable.
            let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            let pair = ["link", "add", "near", "type", "veth", "peer", "name", "far"];
            if !ip(&pair)
                || !ip(&["link", "set", "near", "up"])
                || !ip(&["link", "set", "far", "up"])
            {
                println!("skipped: this kernel has no veth interfaces");
                return;
            }
            await_up();
            body();
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Waits until frames pass in both directions: the kernel activates queues after it has noticed
/// that both ends are up.
pub(crate) fn await_up() {
    let end = now() + PATIENCE;
    for name in ["near", "far"] {
        let is_up = || {
            let shown = Command::new("ip").args(["-o", "link", "show", name]).output();
            String::from_utf8_lossy(&shown.expect("ip").stdout).contains("state UP")
        };
        while !is_up() {
            assert!(now() < end, "{name} is not up");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Runs `ip`; returns true for success.
pub(crate) fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).status().is_ok_and(|status| status.success())
}

/// Returns the uplink, or `None` with a message if the system forbids it.
pub(crate) fn permitted(opened: Result<Uplink, UplinkError>) -> Option<Uplink> {
    match opened {
        Ok(uplink) => Some(uplink),
        Err(error) => match error.problem {
            Problem::SocketForbidden
            | Problem::ProgramForbidden
            | Problem::Unsupported
            | Problem::NoLinks => {
                println!("skipped: {error}");
                None
            }
            _ => panic!("{error}"),
        },
    }
}

/// Memory and a ledger.
pub(crate) struct Side {
    pub(crate) memory: Memory,
    pub(crate) ledger: Ledger,
}

impl Side {
    pub(crate) fn new(packets: usize, small_frames: usize, large_frames: usize) -> Self {
        let config = MemoryConfig { packets, small_frames, large_frames };
        Self { memory: Memory::new(config), ledger: Ledger::new() }
    }

    pub(crate) fn cx(&mut self) -> Context<'_> {
        self.cx_at(time::Instant::START)
    }

    pub(crate) fn cx_at(&mut self, now: time::Instant) -> Context<'_> {
        Context { memory: &mut self.memory, ledger: &self.ledger, now }
    }

    /// Makes a packet of a frame.
    pub(crate) fn packet(&mut self, (bytes, offload): &(Vec<u8>, Offload)) -> Packet {
        let mut packet = self.memory.packet().expect("a handle");
        for part in bytes.chunks(LARGE_FRAME_BYTES) {
            let pool = match part.len() > self.memory.small.frame_bytes() {
                true => &mut self.memory.large,
                false => &mut self.memory.small,
            };
            let mut frame = pool.take().expect("a frame");
            frame[..part.len()].copy_from_slice(part);
            packet.push_piece(frame.freeze(part.len())).expect("room");
        }
        packet.set_offload(*offload);
        packet
    }

    /// Receives until `count` of the tests' frames have arrived.
    pub(crate) fn receive(&mut self, uplink: &mut Uplink, count: usize) -> Vec<Packet> {
        let (mut all, mut burst) = (Vec::with_capacity(count), Burst::new());
        let end = now() + PATIENCE;
        while all.len() < count {
            assert!(now() < end, "{} of {count} arrived: {:?}", all.len(), uplink.counters());
            uplink.receive(&mut burst, &mut self.cx()).expect("received");
            while let Some(packet) = burst.pop() {
                let mut first = [0; 192];
                packet.copy_first(&mut first);
                if first[..6] == TO {
                    all.push(packet);
                }
            }
        }
        all
    }

    /// Sends all packets of `burst`.
    pub(crate) fn send(&mut self, uplink: &mut Uplink, burst: &mut Burst) {
        let end = now() + PATIENCE;
        while !burst.is_empty() {
            assert!(now() < end, "{:?}", uplink.counters());
            uplink.transmit(burst, &mut self.cx()).expect("sent");
        }
    }
}

/// Returns the bytes of a packet.
pub(crate) fn bytes_of(packet: &Packet) -> Vec<u8> {
    let mut bytes = vec![0; packet.len()];
    let copied = packet.copy_to(&mut bytes, &Ledger::new());
    assert_eq!(copied, bytes.len());
    bytes
}

/// Returns a TCP packet with `payload` bytes that depend on `seed`, perhaps in a VLAN, as a
/// super-packet if it has more than one segment. Its checksum is partial.
pub(crate) fn frame(seed: u8, payload: usize, vlan: Option<u16>) -> (Vec<u8>, Offload) {
    let mut bytes = [TO, [0x02, 0, 0, 0, 0, 1]].concat();
    if let Some(vlan) = vlan {
        bytes.extend([0x81, 0]);
        bytes.extend(vlan.to_be_bytes());
    }
    bytes.extend([8, 0]);
    let ip_at = bytes.len();
    let total = u16::try_from(20 + 20 + payload).expect("a length of IPv4");
    bytes.extend([0x45, 0]);
    bytes.extend(total.to_be_bytes());
    bytes.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    // Ports, sequence numbers, 5 words of header, ACK, window, checksum, urgent pointer.
    bytes.extend([0x10, 0, 0x20, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend((0..payload).map(|at| (at as u8).wrapping_mul(7).wrapping_add(seed)));
    let start = u16::try_from(ip_at + 20).expect("short headers");
    let gso = (payload > SEGMENT.into()).then(|| Gso {
        kind: GsoKind::Tcp4,
        size: NonZeroU16::new(SEGMENT).expect("not zero"),
        ecn: false,
        tunnel: None,
    });
    (bytes, Offload { checksum: Checksum::Partial { start, offset: 16 }, gso })
}

pub(crate) fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "tests bound how long they wait")]
    Instant::now()
}
