//! A device that accepts no packets. Data stays unsent and is retried soon
//! (`user_timeout/user-timeout-probe.pkt`). All other packets count as sent and are lost.

use super::{Sender, Turn};
use crate::tcp::congestion::CaState;
use crate::tcp::plan::{Kind, Plan};
use crate::time::Duration;

/// Time to the next attempt.
const TRY_AGAIN: Duration = Duration::from_millis(500);

impl Sender {
    /// Handles a device that would drop `plan`. Returns true if the packet must not be built.
    pub(in crate::tcp) fn is_refused(&mut self, plan: &Plan, turn: Turn<'_>) -> bool {
        match plan.kind {
            Kind::New if core::mem::take(&mut self.small.partial) => {
                // The device dropped the probe, not the network: the probe interval does not back
                // off.
                self.persist.not_sent();
                self.arm_persist_after(TRY_AGAIN, turn);
            }
            Kind::New | Kind::MtuProbe => {
                self.recovery.cancel_probe();
                self.arm_persist(turn);
            }
            Kind::Again => {
                if self.recovery.state() == CaState::Loss && plan.seq == self.una {
                    self.arm_retransmit(turn.now + TRY_AGAIN);
                }
            }
            Kind::Tail => {
                self.recovery.cancel_probe();
                self.restart_timer_from_head(turn.now);
            }
            _ => return false,
        }
        true
    }
}
