//! The end of an instance: what was sent is on its way, and is given some time to arrive.
//!
//! The kernel goes on sending what a program wrote before it closed its sockets and exited. A stack
//! in a process ends with it, so that something has to wait: the program, by [`Instance::finish`],
//! or the last call ([`Instance::close_and_wait`]), which therefore takes up to a bounded time.

use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::wire::Wire;
use std::thread;
use std::time::Duration;

/// How often a wait looks. Closed connections have nobody who is told of their end.
const FINISH_INTERVAL: Duration = Duration::from_millis(2);

impl Instance {
    /// Waits until the peers have acknowledged all that was written, also on closed sockets, or
    /// have given up, and all packets have left: for `timeout` at most, or as long as it takes.
    ///
    /// # Errors
    /// `ETIMEDOUT` if something is left.
    pub fn finish(&self, timeout: Option<Duration>) -> Outcome<()> {
        let mut left = timeout;
        while self.lock().is_sending() {
            if left == Some(Duration::ZERO) {
                return Err(Errno(libc::ETIMEDOUT));
            }
            let pause = left.map_or(FINISH_INTERVAL, |left| FINISH_INTERVAL.min(left));
            left = left.map(|left| left - pause);
            thread::sleep(pause);
        }
        Ok(())
    }

    /// Closes all sockets, as the end of a program does, and waits for what they have sent as long
    /// as was configured. An instance without a device has nobody to move its packets then.
    pub(crate) fn close_and_wait(&self) {
        if !self.is_attached() || self.linger.is_zero() {
            return;
        }
        self.call(|state| {
            let now = state.now();
            for id in state.files.take_sockets() {
                // Each of them is there: it was in the table.
                let _ = state.engine.protocols.close(id, now);
            }
        });
        // What is left after that is lost.
        let _ = self.finish(Some(self.linger));
    }
}

impl State {
    /// Connections with something that no peer has acknowledged, and bytes of that.
    pub(crate) fn sending(&self) -> (usize, usize) {
        self.engine.protocols.stack().tcp_sending()
    }

    /// True if something is left that may still arrive.
    fn is_sending(&self) -> bool {
        let sending = self.sending().0;
        let waits = self.wire.as_ref().is_some_and(Wire::has_packets);
        !self.engine.is_gone() && (sending > 0 || self.engine.has_unsent() || waits)
    }
}
