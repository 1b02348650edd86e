//! The copies of segments alone: the most that sharing can gain.
//!
//! Copies super-packets from uncached memory, as segments, into uncached buffers of a guest:
//! directly, or through a buffer that stays in the cache, as `--orphan` does. There is no ring,
//! header or switch.

use std::time::Duration;

use anyhow::Context as _;
use towpath_io::vhost_user::driver::GuestRam;

use super::guest::BUFFER_BYTES;
use super::workload::{MTU_BUFFER, SEGMENT, SUPER_PAYLOAD};
use crate::ping_pong::Stopwatch;

/// Payload that is copied, and the memory that receives it.
pub(super) struct Copies {
    from: Vec<u8>,
    to: GuestRam,
    /// Buffer that a super-packet is first copied to, if it is copied twice.
    frame: Vec<u8>,
}

impl Copies {
    pub(super) fn new() -> anyhow::Result<Self> {
        let to = GuestRam::new(0, &[BUFFER_BYTES]).context("no memory for a guest")?;
        let copies =
            Self { from: vec![1; BUFFER_BYTES as usize], to, frame: vec![1; SUPER_PAYLOAD] };
        (0..BUFFER_BYTES / PAGE)
            .try_for_each(|page| copies.to.memory().write(page * PAGE, &[0; PAGE as usize]))
            .context("no page of the guest's memory")?;
        Ok(copies)
    }

    /// Gbit/s of payload during `span`; with `twice`, through the frame.
    pub(super) fn rate(&mut self, twice: bool, span: Duration) -> anyhow::Result<f64> {
        let (started, mut bytes, mut to) = (Stopwatch::start(), 0, 0);
        let mut packets = self.from.chunks_exact(SUPER_PAYLOAD).cycle();
        while started.elapsed() < span {
            let mut packet = packets.next().context("no payload")?;
            if twice {
                self.frame.copy_from_slice(packet);
                packet = &self.frame;
            }
            for segment in packet.chunks_exact(SEGMENT) {
                self.to.memory().write(to, segment).context("no buffer of the guest")?;
                to += u64::from(MTU_BUFFER);
                if to + u64::from(MTU_BUFFER) > BUFFER_BYTES {
                    to = 0;
                }
            }
            bytes += packet.len();
        }
        Ok(bytes as f64 * 8.0 / 1e9 / started.elapsed().as_secs_f64())
    }
}

const PAGE: u64 = 4096;
