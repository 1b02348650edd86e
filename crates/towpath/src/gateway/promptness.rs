//! Whether hosts on this machine answer so soon that ACKs may wait for their answers.
//!
//! Each connection that ends tells whether it was answered in time. One that was not ends the
//! waiting for a while, unless many before it were: on a busy machine anybody is late now and then,
//! but a program that waits for an ACK to send the rest of its request would be held up each time.

use std::time::Duration;
use towpath_net::time::Instant;

/// How long ACKs of requests, and of the program's FIN, wait for the answer of a host on this
/// machine: beyond the kernel's next tick, as a timer before it costs as much as the ACK.
pub(super) const ANSWER_WAIT: Duration = Duration::from_millis(10);
/// How long no answers are expected after one that came too late: who is held up each time loses a
/// hundredth of his time at most.
const ANSWERS_PAUSE: Duration = Duration::from_secs(1);
/// Connections in a row, answered in time, after which the next may be late.
const PROMPT_MIN: u8 = 16;

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct Promptness {
    in_a_row: u8,
    paused_until: Option<Instant>,
}

impl Promptness {
    /// True if a new connection may expect answers.
    pub(super) fn expects(&mut self, now: Instant) -> bool {
        self.paused_until.take_if(|until| *until <= now);
        self.paused_until.is_none()
    }

    /// A connection that expected answers has ended.
    pub(super) fn ended(&mut self, in_time: bool, now: Instant) {
        if in_time {
            self.in_a_row = (self.in_a_row + 1).min(PROMPT_MIN);
            return;
        }
        if self.in_a_row < PROMPT_MIN {
            self.paused_until = Some(now + ANSWERS_PAUSE);
        }
        self.in_a_row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_answers_end_the_waiting_for_a_while() {
        let (mut promptness, now) = (Promptness::default(), Instant::from_micros(7));
        assert!(promptness.expects(now));
        promptness.ended(false, now);
        assert!(!promptness.expects(now));
        let later = now + ANSWERS_PAUSE;
        let before = now + (ANSWERS_PAUSE - Duration::from_micros(1));
        assert!(!promptness.expects(before));
        assert!(promptness.expects(later));
    }

    #[test]
    fn one_of_many_may_be_late() {
        let (mut promptness, now) = (Promptness::default(), Instant::from_micros(7));
        (0..u32::from(PROMPT_MIN)).for_each(|_| promptness.ended(true, now));
        promptness.ended(false, now);
        assert!(promptness.expects(now));
        (1..u32::from(PROMPT_MIN)).for_each(|_| promptness.ended(true, now));
        promptness.ended(false, now);
        assert!(!promptness.expects(now), "too soon after the last");
    }
}
