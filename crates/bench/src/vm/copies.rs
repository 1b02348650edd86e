//! The copies of segments alone, with nothing around them: what sharing can gain at most.
//!
//! Super-packets from memory that no cache has, as segments into buffers of a guest that none has
//! either: at once, or by way of a buffer that stays in the cache, as `--orphan` does. No ring, no
//! header, no switch.

use std::time::Duration;

use anyhow::Context as _;
use towpath_io::vhost_user::driver::GuestRam;

use super::guest::BUFFER_BYTES;
use super::workload::{MTU_BUFFER, SEGMENT, SUPER_PAYLOAD};
use crate::ping_pong::Stopwatch;

/// Payload that is copied from, and memory that it is copied to.
pub(super) struct Copies {
    from: Vec<u8>,
    to: GuestRam,
    /// What a super-packet is copied to first, if it is.
    frame: Vec<u8>,
}

impl Copies {
    pub(super) fn new() -> anyhow::Result<Self> {
        let to = GuestRam::new(0, &[BUFFER_BYTES]).context("no memory for a guest")?;
        let copies =
            Self { from: vec![1; BUFFER_BYTES as usize], to, frame: vec![1; SUPER_PAYLOAD] };
        (0..BUFFER_BYTES / PAGE)
            .try_for_each(|page| copies.to.memory().write(page * PAGE, &[0; PAGE as usize]))
            .context("a page of the guest's memory")?;
        Ok(copies)
    }

    /// Gbit/s of payload, for a while; `twice` by way of the frame.
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
                self.to.memory().write(to, segment).context("a buffer of the guest")?;
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
