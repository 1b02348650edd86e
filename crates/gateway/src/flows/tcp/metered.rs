//! TCP flows under the bounds of bytes of a policy.
//!
//! A bandwidth delays: the flow stands in a line of `bandwidth`, and its source is not read. A
//! quota ends the flow at the next byte that does not fit, with a reset on both sides.

use super::Flow;
use super::gate::Stand;
use crate::egress::meter::{Direction, Grant};
use crate::flows::{Gateway, Io};
use std::io;
use towpath_net::stack::TcpHandle;
use towpath_net::tcp::Connection;
use towpath_net::time::Instant;

impl Flow {
    /// Returns how many bytes the flow may move now. Without bounds this costs a branch or two.
    #[inline]
    pub(super) fn grant(&self, way: Direction, now: Instant) -> Grant {
        match &self.gate {
            Some(gate) if !gate.admission.meters().is_none() => gate.grant(way, now),
            _ => Grant::Bytes(usize::MAX),
        }
    }

    /// Counts bytes that were moved.
    #[inline]
    pub(super) fn has_moved(&mut self, way: Direction, bytes: usize, now: Instant) {
        if let Some(gate) = &mut self.gate
            && !gate.admission.meters().is_none()
        {
            gate.has_moved(way, bytes, now);
        }
    }

    /// Sends the first `most` of the received bytes, or those before a marked one among them.
    #[cold]
    pub(super) fn send_first(&mut self, connection: &Connection, most: usize) -> io::Result<usize> {
        if connection.urgent_mark().is_some_and(|mark| mark <= most) {
            return self.send_received(connection);
        }
        let (mut left, mut whole) = (most, 0);
        for piece in connection.received() {
            if piece.len() > left {
                break;
            }
            left -= piece.len();
            whole += 1;
        }
        let cut = connection.received().nth(whole).filter(|_| left > 0);
        let cut = cut.map(|piece| piece.slice(0, left));
        self.send(connection.received().take(whole).chain(&cut))
    }

    /// Returns the most bytes that the flow should receive of the program ahead of its bandwidth.
    pub(super) fn window(&self) -> usize {
        self.gate.as_ref().map_or(usize::MAX, |gate| gate.admission.meters().window())
    }

    /// The flow is in no line any more, as it has left their worker. Returns true if it was in line
    /// to send to the host.
    pub(super) fn forget_lines(&mut self) -> bool {
        let Some(gate) = &mut self.gate else { return false };
        let stands = std::mem::replace(&mut gate.stands, [Stand::Free; 2]);
        stands[Direction::Out as usize] != Stand::Free
    }
}

impl Gateway {
    /// A bound stops a direction of a flow: it waits in line, or the flow ends.
    #[cold]
    pub(super) fn stop(
        &mut self,
        handle: TcpHandle,
        way: Direction,
        grant: Grant,
        io: &mut Io<'_>,
    ) {
        let Some(gate) = self.tcp.get_mut(handle).and_then(|flow| flow.gate.as_mut()) else {
            return;
        };
        match grant {
            Grant::Bytes(_) => {}
            Grant::Wait => {
                let stand = std::mem::replace(&mut gate.stands[way as usize], Stand::Waits);
                if stand != Stand::Waits
                    && let Some(slowest) = gate.admission.meters().slowest(way)
                {
                    self.lines.stand(slowest, way, handle);
                }
            }
            Grant::Over => {
                gate.admission.exhaust(0);
                self.abort(handle, io);
            }
        }
    }

    /// The turn of a direction of a flow has come.
    pub(in crate::flows) fn resume_stream(
        &mut self,
        handle: TcpHandle,
        way: Direction,
        io: &mut Io<'_>,
    ) {
        let Some(gate) = self.tcp.get_mut(handle).and_then(|flow| flow.gate.as_mut()) else {
            return;
        };
        gate.stands[way as usize] = Stand::Resumed;
        match way {
            Direction::Out => self.move_out(handle, io),
            Direction::In => self.tcp.queue(handle),
        }
    }
}
