//! A device that accepts no packets. Data stays unsent and is retried soon, as Linux does when its
//! queueing discipline drops a packet. All other packets count as sent and are lost.

use super::congestion::CaState;
use super::connection::Connection;
use super::output::{Kind, Plan};
use crate::time::{Duration, Instant};

/// Time to the next attempt, as on Linux.
const TRY_AGAIN: Duration = Duration::from_millis(500);

impl Connection {
    /// Handles a device that would drop `plan`. Returns true if the packet must not be built.
    pub(super) fn is_refused(&mut self, plan: &Plan, now: Instant) -> bool {
        match plan.kind {
            Kind::New if core::mem::take(&mut self.send.partial_allowed) => {
                // The device dropped the probe, not the network: the probe interval does not back
                // off.
                self.timers.probe_backoff = self.timers.probe_backoff.saturating_sub(1);
                let wait = self.within_user_timeout(TRY_AGAIN, self.timers.probing_since, now);
                self.timers.arm_persist(now + wait);
            }
            Kind::New | Kind::MtuProbe => {
                self.send.loss_probe = None;
                self.arm_probe(now);
            }
            Kind::Again => {
                if self.recovery.state == CaState::Loss && plan.seq == self.send.una {
                    self.timers.arm_retransmit(now + TRY_AGAIN);
                }
            }
            Kind::Tail => {
                self.send.loss_probe = None;
                self.rearm_rto_from_head(now);
            }
            _ => return false,
        }
        true
    }
}
