//! Bounds how fast the frames of a port move: a token bucket for each direction.
//!
//! # Theory of operation
//!
//! A token is a byte of a frame; a super-packet has the bytes of all its frames. A packet moves if
//! there is any token, so that the largest one moves sometime. What it takes beyond the tokens that
//! are there is earned before the next one moves. So in any time a port moves no more than the
//! burst, what the rate allows in that time, and one super-packet.
//!
//! From the guest, nothing is dropped: the port is not read while there are no tokens, and its file
//! is not watched. To the guest, packets wait in the port's queue, for [`WAIT_MILLIS`] at most;
//! those that would wait longer are refused, which the switch counts as `queue_full`.
//!
//! One thread moves the packets of a port, so nothing is shared. A port without bounds pays a
//! branch for each burst, a bounded one a sum over the burst.

use std::fmt;

use towpath_net::time::Instant;
use towpath_packet::Burst;
use towpath_packet::burst::BURST_MAX;
use towpath_packet::tokens::Tokens;

/// Largest super-packet with its headers, in bytes.
const SUPER_PACKET: u64 = 64 << 10;
/// Time whose bytes a bucket holds by default. Longer, the rate would be exceeded for longer after
/// a pause; shorter, the rate would not be reached while the thread does something else.
const BURST_MILLIS: u64 = 20;
/// Most time for which packets wait for a guest. Senders see a drop then, before they wait long.
const WAIT_MILLIS: u64 = 50;
/// Bytes that may wait for a guest in any case, at low rates: two super-packets.
const WAITING_MIN: u64 = 2 * SUPER_PACKET;
/// Divisor of the rate: the tokens of a millisecond let a pause end, so there are at most a
/// thousand in a second.
const PAUSES_PER_SECOND: u64 = 1000;

/// A bound of the frames of a port in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// Bits per second, from 8 to 1,000,000,000,000.
    pub bits: u64,
    /// Bytes that move at once after a pause, at least one.
    pub burst: u64,
}

impl Bandwidth {
    /// Returns a bound with the default burst: 20 ms of it, or a super-packet if that is more.
    pub fn new(bits: u64) -> Self {
        Self { bits, burst: (bits / 8 * BURST_MILLIS / 1000).max(SUPER_PACKET) }
    }
}

/// In the form of the settings of ports: `BITSbit/BYTES`.
impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}bit/{}", self.bits, self.burst)
    }
}

/// The bucket of one direction of a port.
pub(super) struct Pace {
    bandwidth: Bandwidth,
    tokens: Tokens,
    /// Tokens that end a pause.
    resume: u64,
    /// Bytes that may wait.
    waiting_max: u64,
}

impl Pace {
    fn new(bandwidth: Bandwidth) -> Self {
        let Bandwidth { bits, burst } = bandwidth;
        let bytes = (bits / 8).max(1);
        Self {
            bandwidth,
            tokens: Tokens::new(bytes, burst),
            resume: (bytes / PAUSES_PER_SECOND).clamp(1, burst.div_ceil(2)),
            waiting_max: (bytes * WAIT_MILLIS / 1000).max(WAITING_MIN),
        }
    }

    /// Follows the settings of a port. A bucket whose bound stays the same keeps its tokens.
    pub(super) fn follow(pace: &mut Option<Self>, bandwidth: Option<Bandwidth>) {
        if pace.as_ref().map(|pace| pace.bandwidth) != bandwidth {
            *pace = bandwidth.map(Self::new);
        }
    }

    /// Returns how many packets may be read now, of whatever size; 0 while there are no tokens.
    pub(super) fn packets(&self, now: Instant) -> usize {
        match self.tokens.left(now) {
            0 => 0,
            left => (left / SUPER_PACKET).clamp(1, BURST_MAX as u64) as usize,
        }
    }

    /// Returns how many bytes may move now.
    pub(super) fn left(&self, now: Instant) -> u64 {
        self.tokens.left(now)
    }

    /// Returns how many bytes may move or begin to wait now, as `waiting` bytes wait already.
    pub(super) fn room(&self, waiting: u64, now: Instant) -> u64 {
        (self.waiting_max + self.left(now)).saturating_sub(waiting)
    }

    /// Counts bytes that have moved.
    pub(super) fn take(&self, bytes: u64, now: Instant) {
        self.tokens.take(bytes, now);
    }

    /// Returns when a pause ends.
    pub(super) fn resumes_at(&self) -> Instant {
        self.tokens.ready_at(self.resume)
    }
}

/// Returns the bytes of the frames of these packets.
pub(super) fn bytes(burst: &Burst) -> u64 {
    burst.iter().map(|packet| packet.frame_bytes() as u64).sum()
}

/// Calls `pass` with the packets at the front of `burst` that have `bytes`; the last of them may
/// have more than is left. What `pass` leaves stays in front of the others.
pub(super) fn pass_front<T>(
    burst: &mut Burst,
    mut bytes: u64,
    pass: impl FnOnce(&mut Burst) -> T,
) -> T {
    let mut front = Burst::new();
    while bytes > 0
        && let Some(packet) = burst.pop()
    {
        bytes = bytes.saturating_sub(packet.frame_bytes() as u64);
        front.push(packet).expect("it has room for a burst");
    }
    let result = pass(&mut front);
    while let Some(packet) = burst.pop() {
        front.push(packet).expect("it came from this burst");
    }
    std::mem::swap(burst, &mut front);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::{Memory, MemoryConfig};

    fn at(millis: u64) -> Instant {
        Instant::from_micros(millis * 1000)
    }

    /// Goal: a bucket moves its rate in the long run, in pieces of any size, and a pause ends when
    /// it says.
    #[test]
    fn a_rate_is_kept() {
        for (bits, size) in
            [(8, 1), (1_000_000, 1514), (10_000_000, 65_549), (10_000_000_000, 1514)]
        {
            let pace = Pace::new(Bandwidth::new(bits));
            let (mut now, mut moved) = (at(1), 0);
            let end = at(1) + std::time::Duration::from_secs(100_000_000 / bits.min(100_000_000));
            while now < end && moved < 4 * bits {
                while pace.packets(now) > 0 {
                    pace.take(size, now);
                    moved += size;
                }
                let resumed = pace.resumes_at();
                assert!(resumed > now, "{bits}: it pauses");
                assert!(pace.left(resumed) >= 1, "{bits}: the pause ends");
                now = resumed;
            }
            let fair =
                pace.bandwidth.burst as f64 + now.since(at(1)).as_secs_f64() * (bits as f64 / 8.0);
            let (least, most) = (fair - fair / 100.0 - size as f64, fair + size as f64 + 1.0);
            assert!((least..=most).contains(&(moved as f64)), "{bits}: {moved} of {fair}");
        }
    }

    #[test]
    fn bursts() {
        assert_eq!(Bandwidth::new(1_000_000).burst, SUPER_PACKET);
        assert_eq!(Bandwidth::new(1_000_000_000).burst, 2_500_000);
        assert_eq!(Bandwidth { bits: 8000, burst: 1 }.to_string(), "8000bit/1");
        // The smallest bucket, and the largest bound.
        for bandwidth in [Bandwidth { bits: 8, burst: 1 }, Bandwidth::new(1_000_000_000_000)] {
            assert!(Pace::new(bandwidth).packets(at(0)) > 0);
        }
        assert_eq!(Pace::new(Bandwidth::new(1_000_000_000_000)).packets(at(0)), BURST_MAX);
    }

    /// Goal: what does not pass stays in order, whether `pass` leaves something or not.
    #[test]
    fn the_front_of_a_burst_passes() {
        let mut memory =
            Memory::new(MemoryConfig { packets: 64, small_frames: 0, large_frames: 0 });
        for (bytes, taken, left) in
            [(0, 0, 0..64), (1, 1, 1..64), (u64::MAX, 64, 64..64), (u64::MAX, 3, 3..64)]
        {
            let mut burst = Burst::new();
            for number in 0..64 {
                let mut packet = memory.packet().expect("free");
                packet.set_ingress(Some(number));
                packet.push_header(60);
                burst.push(packet).expect("room");
            }
            let offered = pass_front(&mut burst, bytes, |front| {
                let offered = front.len();
                (0..taken).for_each(|_| drop(front.pop()));
                offered
            });
            assert!(offered >= taken, "{offered}");
            assert!(burst.iter().map(|packet| packet.ingress().unwrap()).eq(left), "{bytes}");
        }
    }
}
