//! Lending what a flow sends to the host's kernel; `lent` has the bounds and the trials.

use super::{Flow, Gateway};
use crate::flows::GatewayCounters;
use crate::flows::lent::{Call, Lending, LentToHost, Terms};
use rustix::io::Errno;
use std::io;
use towpath_net::stack::TcpHandle;
use towpath_net::tcp::Connection;
use towpath_net::time::Instant;
use towpath_packet::Memory;

impl Flow {
    /// Sends received data of the program to the host: lends it to the kernel if that pays, or else
    /// has it copied.
    #[inline]
    pub(super) fn pass_on(
        &mut self,
        connection: &Connection,
        lending: (&mut Lending, &mut GatewayCounters),
        memory: &mut Memory,
        now: Instant,
    ) -> io::Result<usize> {
        let (lending, counters) = lending;
        if lending.is_on()
            && self.terms != Terms::Never
            && self.lends(connection, lending, counters, memory, now)
        {
            return self.lend(connection, lending, &mut counters.lent);
        }
        self.send_received(connection)
    }

    /// Returns true if the next call should lend.
    #[inline(never)]
    fn lends(
        &mut self,
        connection: &Connection,
        lending: &mut Lending,
        counters: &GatewayCounters,
        memory: &mut Memory,
        now: Instant,
    ) -> bool {
        // A marked byte goes alone.
        if connection.urgent_mark().is_some() {
            return false;
        }
        let Some(call) = Call::of(connection.received()) else { return false };
        if self.terms == Terms::Unknown {
            self.terms = lending.terms(&self.socket, now);
        }
        self.terms != Terms::Never
            // Trials count what could be lent, whether or not it is.
            && lending.wants(call, counters, now)
            && self.terms != Terms::Later
            && lending.has_room(call, self.socket.lent_held(), memory)
    }

    /// Lends what one call takes; has it copied if the kernel refuses.
    #[inline(never)]
    fn lend(
        &mut self,
        connection: &Connection,
        lending: &mut Lending,
        counters: &mut LentToHost,
    ) -> io::Result<usize> {
        self.sends();
        let before = self.socket.lent_held();
        match self.socket.send_lent(connection.received()) {
            Ok(count) => {
                lending.lent(count, self.socket.lent_held() - before, counters);
                if self.terms == Terms::Once {
                    self.terms = Terms::Later;
                }
                Ok(count)
            }
            Err(error) => match Errno::from_io_error(&error) {
                // Too much is lent: by this socket, which soon gets some of it back, or by this
                // user.
                Some(Errno::NOBUFS) => {
                    counters.refused += 1;
                    self.terms = if before > 0 { Terms::Later } else { Terms::Never };
                    self.send_received(connection)
                }
                // This kind of socket does not lend.
                Some(Errno::OPNOTSUPP | Errno::NOPROTOOPT) => {
                    counters.refused += 1;
                    self.terms = Terms::Never;
                    self.send_received(connection)
                }
                _ => Err(error),
            },
        }
    }

    /// Takes back what the kernel has returned; returns true if something came back.
    pub(super) fn takes_returns(
        &mut self,
        lending: &mut Lending,
        counters: &mut LentToHost,
        now: Instant,
    ) -> bool {
        let returns = lending.take_returns(&mut self.socket, counters);
        if returns.calls == 0 {
            return false;
        }
        self.terms = lending.terms_after(returns, self.terms, &self.socket, now);
        true
    }
}

impl Gateway {
    /// The host of this flow is this machine.
    pub(super) fn limit_lending(&mut self, handle: TcpHandle) {
        if let Some(flow) = self.tcp.get_mut(handle) {
            flow.terms = self.lending.terms_of_near();
        }
    }
}
