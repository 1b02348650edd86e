//! The clock of a world: it jumps from deadline to deadline and never goes back.

use towpath_net::time::Instant;

/// Virtual time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    now: Instant,
}

impl Clock {
    /// The current time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Jumps to `next`. Stays in place if that is in the past: a missed deadline is due at once.
    pub fn jump(&mut self, next: Instant) {
        self.now = self.now.max(next);
    }
}
