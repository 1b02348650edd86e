//! The end of an instance, which gives unsent data time to arrive.
//!
//! The kernel continues to send what a program wrote before it closed its sockets and exited. A
//! stack in a process ends with the process. So either the program waits, with
//! [`Instance::finish`], or the last call waits ([`Instance::close_and_wait`]), for a bounded time.

use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::wire::Wire;
use std::thread;
use std::time::Duration;

/// Interval of checks during a wait. Nothing is notified when a closed connection ends.
const FINISH_INTERVAL: Duration = Duration::from_millis(2);

impl Instance {
    /// Waits until the peers have acknowledged all data, also of closed sockets, or the connections
    /// have failed, and all packets have left. `timeout` is the longest wait; `None` is no limit.
    ///
    /// # Errors
    /// `ETIMEDOUT` if data is left.
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

    /// Closes all sockets, as the exit of a program does, and waits for their unsent data, at most
    /// as long as configured. Does nothing without a device, because nothing could move the
    /// packets.
    pub fn close_and_wait(&self) {
        if !self.is_attached() || self.linger.is_zero() {
            return;
        }
        self.call(|state| {
            let now = state.now();
            for id in state.files.take_sockets() {
                // It exists, because it was in the table.
                let _ = state.engine.protocols.close(id, now);
            }
        });
        // Data that is left then is lost.
        let _ = self.finish(Some(self.linger));
    }
}

impl State {
    /// Connections with unacknowledged data or an unacknowledged FIN, and the number of these
    /// bytes.
    pub(crate) fn sending(&self) -> (usize, usize) {
        self.engine.protocols.stack().tcp_sending()
    }

    /// True if there is data that may still arrive.
    fn is_sending(&self) -> bool {
        let sending = self.sending().0;
        let waits = self.wire.as_ref().is_some_and(Wire::has_packets);
        !self.engine.is_gone() && (sending > 0 || self.engine.has_unsent() || waits)
    }
}
