//! The clock of a world: jumps from deadline to deadline, never back.

use towpath_net::time::Instant;

/// Virtual time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    now: Instant,
}

impl Clock {
    /// Now.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Jumps to `next`; stays where it is if that is past, as a deadline that was missed is due
    /// at once.
    pub fn jump(&mut self, next: Instant) {
        self.now = self.now.max(next);
    }
}
