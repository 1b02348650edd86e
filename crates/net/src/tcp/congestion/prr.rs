//! Proportional rate reduction (RFC 6937, with its slow-start bound): how much may be sent for each
//! ACK while the window is being reduced to its threshold.

/// Counters of one reduction, in segments.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prr {
    /// Delivered since it began (`prr_delivered`).
    delivered: u32,
    /// Sent since it began (`prr_out`).
    out: u32,
}

impl Prr {
    /// Counts `segments` that were sent.
    pub(super) fn note_sent(&mut self, segments: u32) {
        self.out += segments;
    }

    /// Segments that may be sent for an ACK that delivers `delivered` and leaves `in_flight`.
    /// `calm` means that it acknowledges data cumulatively and that nothing more was lost. `prior`
    /// is the window before the reduction (RFC 6937 §3).
    pub(super) fn allow(
        &mut self,
        (ssthresh, prior): (u32, u32),
        delivered: u32,
        calm: bool,
        in_flight: u32,
    ) -> u32 {
        self.delivered += delivered;
        let send = match ssthresh.checked_sub(in_flight) {
            None => {
                let product = u64::from(ssthresh) * u64::from(self.delivered);
                let share = product.div_ceil(u64::from(prior.max(1)));
                u32::try_from(share).unwrap_or(u32::MAX).saturating_sub(self.out)
            }
            Some(room) => {
                let owed = self.delivered.saturating_sub(self.out).max(delivered);
                // Slow start while retransmissions are acknowledged and nothing more is lost.
                (owed + u32::from(calm)).min(room)
            }
        };
        // The first retransmission goes out when recovery begins.
        send.max(u32::from(self.out == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6937 §4: half of the segments that are delivered are sent.
    #[test]
    fn a_halved_window_sends_every_second_time() {
        let (mut prr, mut sent) = (Prr::default(), 0);
        for acked in 1..=8 {
            let send = prr.allow((10, 20), 1, false, 19 - acked + sent);
            prr.note_sent(send);
            sent += send;
        }
        assert_eq!(sent, 4);
    }

    /// RFC 6937 §3, PRR-SSRB: once too much was lost, one more than was delivered is sent.
    #[test]
    fn slow_start_after_heavy_loss() {
        let mut prr = Prr::default();
        assert_eq!(prr.allow((10, 20), 1, true, 2), 2);
        prr.note_sent(2);
        assert_eq!(prr.allow((10, 20), 1, false, 4), 1);
        assert_eq!(prr.allow((10, 20), 3, true, 9), 1, "up to the threshold");
    }
}
