//! Watches kick descriptors in the device's reactor.

use super::super::control::ControlError;
use super::super::session::Session;
use super::{TOKEN_KICK, VhostUser};
use crate::reactor::Interest;
use std::sync::Arc;

impl VhostUser {
    /// Makes the reactor watch exactly the kick descriptors of running rings.
    pub(super) fn watch_kicks(&mut self, session: &Session) -> Result<(), ControlError> {
        let running = session.running();
        let mut result = Ok(());
        for (ring, watched) in (0..).zip(&mut self.kicks) {
            let wanted = session.kick(ring).filter(|_| running.contains(ring));
            let is_same = match (&*watched, wanted) {
                (Some(watched), Some(wanted)) => Arc::ptr_eq(watched, wanted),
                (None, None) => true,
                _ => false,
            };
            if is_same {
                continue;
            }
            if let Some(old) = watched.take() {
                // Cannot fail: the descriptor was added and is still open.
                let _ = self.reactor.remove(&*old);
            }
            let Some(wanted) = wanted else { continue };
            let token = TOKEN_KICK + u64::from(ring);
            match self.reactor.add(&**wanted, token, Interest::READ, true) {
                Ok(()) => *watched = Some(wanted.clone()),
                Err(_) => result = Err(ControlError::Kick(ring)),
            }
        }
        result
    }

    pub(super) fn unwatch_kicks(&mut self) {
        for kick in self.kicks.iter_mut().filter_map(Option::take) {
            // Cannot fail: the descriptor was added and is still open.
            let _ = self.reactor.remove(&*kick);
        }
    }
}
