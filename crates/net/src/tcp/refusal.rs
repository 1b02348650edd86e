//! What follows when the device takes nothing: data stays unsent and is tried again soon, as Linux
//! does when its queueing discipline drops a packet. All else counts as sent, and is lost.

use super::congestion::CaState;
use super::connection::Connection;
use super::output::{Kind, Plan};
use crate::time::{Duration, Instant};

/// Time to the next attempt (Linux's TCP_RESOURCE_PROBE_INTERVAL).
const TRY_AGAIN: Duration = Duration::from_millis(500);

impl Connection {
    /// Sees to what follows if the device drops `plan`; true if it must not be built.
    pub(super) fn is_refused(&mut self, plan: &Plan, now: Instant) -> bool {
        match plan.kind {
            Kind::New if core::mem::take(&mut self.send.partial_allowed) => {
                // The device's fault: the time between probes does not grow by it.
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
