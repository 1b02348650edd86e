//! Proportional rate reduction (RFC 6937): during a reduction, each ACK sets the window to the
//! segments in flight plus those that may be sent now.

/// State of one reduction; names in parentheses are those of RFC 6937 §3.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prr {
    /// Segments delivered since the reduction began (prr_delivered).
    delivered: u32,
    /// Segments sent since then (prr_out).
    out: u32,
}

impl Prr {
    /// Counts `segments` that were sent.
    pub(super) fn sent(&mut self, segments: u32) {
        self.out += segments;
    }

    /// Returns how many segments may be sent after an ACK that delivered `delivered`. `prior` is
    /// the window before the reduction (RecoverFS). Slow start (PRR-SSRB) goes on only while the
    /// ACKs `progress`: retransmissions are acknowledged and nothing more is lost.
    pub(super) fn on_ack(
        &mut self,
        delivered: u32,
        (in_flight, ssthresh, prior): (u32, u32, u32),
        progress: bool,
    ) -> u32 {
        self.delivered += delivered;
        let send = match ssthresh.checked_sub(in_flight) {
            None => {
                let share = u64::from(ssthresh) * u64::from(self.delivered);
                let share = share.div_ceil(prior.max(1).into());
                u32::try_from(share).unwrap_or(u32::MAX).saturating_sub(self.out)
            }
            Some(room) => {
                let owed = self.delivered.saturating_sub(self.out).max(delivered);
                (owed + u32::from(progress)).min(room)
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
        let mut prr = Prr::default();
        let mut sent = 0;
        for acked in 0..8 {
            let send = prr.on_ack(1, (19 - acked - 1 + sent, 10, 20), false);
            prr.sent(send);
            sent += send;
        }
        assert_eq!(sent, 4);
    }

    /// §3, PRR-SSRB: once too much was lost, one more than was delivered is sent.
    #[test]
    fn slow_start_after_heavy_loss() {
        let mut prr = Prr::default();
        assert_eq!(prr.on_ack(1, (2, 10, 20), true), 2);
        prr.sent(2);
        assert_eq!(prr.on_ack(1, (4, 10, 20), false), 1);
        assert_eq!(prr.on_ack(3, (9, 10, 20), true), 1, "up to the threshold");
    }
}
