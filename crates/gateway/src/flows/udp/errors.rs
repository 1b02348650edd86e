//! Errors of datagrams on the host's side, and how they are reported to the program.

use super::{Gateway, Io, Realm};
use crate::flows::Slot;
use crate::flows::hops::report;
use std::io;
use std::net::SocketAddr;
use towpath_io::socket::SocketErrorEvent;
use towpath_net::stack::{Report, Unreachable};

/// ICMP errors read from one socket in a turn.
const ERRORS_PER_TURN: usize = 16;

impl Gateway {
    /// Translates ICMP errors that a host socket received into ICMP errors for the program.
    pub(super) fn read_errors(&mut self, slot: Slot, io: &mut Io<'_>) {
        for _ in 0..ERRORS_PER_TURN {
            let Some(flow) = self.udp.slots.get_mut(slot) else { return };
            let Some(error) = flow.socket.take_error_event() else { return };
            let (program, realm) = (flow.program, flow.realm);
            match realm {
                Realm::Dns(inside) => self.dns_failed(slot, inside, program, io),
                // A router behind the translated address is not on the program's path.
                Realm::Mapped(address) => {
                    let error = SocketErrorEvent { offender: None, ..error };
                    let inside = error.to.map(|to| SocketAddr::new(address, to.port()));
                    self.pass_error(&error, inside, program, io);
                }
                Realm::World => self.pass_error(&error, error.to, program, io),
                // No error is sent about a datagram to a group.
                Realm::Group(_) => {}
            }
        }
        // The remaining errors have their turn like datagrams: reading datagrams comes here again.
        self.udp.queue(slot);
    }

    fn pass_error(
        &mut self,
        error: &SocketErrorEvent,
        inside: Option<SocketAddr>,
        program: SocketAddr,
        io: &mut Io<'_>,
    ) {
        let Some(inside) = inside.filter(|inside| inside.is_ipv4() == program.is_ipv4()) else {
            return;
        };
        let Some(report) = report(error) else { return };
        let report = Report { data: error.quote.bytes(), ..report };
        let (stack, mut context) = io.stack_and_context();
        stack.report_udp(inside, program, &report, &mut context);
    }

    /// A resolver cannot be reached: the query goes to the next resolver. If none is left, or the
    /// query was not kept, an error goes back to the program.
    fn dns_failed(&mut self, slot: Slot, inside: SocketAddr, program: SocketAddr, io: &mut Io<'_>) {
        let Some(flow) = self.udp.slots.get_mut(slot) else { return };
        flow.dns.tried += 1;
        let (tried, question) = (flow.dns.tried, flow.dns.question.piece(io.memory));
        if let Some(resolver) = flow.dns.resolver {
            self.resolvers.failed(resolver);
        }
        // The failed resolver is no longer preferred: the next one is, in a round.
        let next = self.resolvers.after(0, io.now);
        let untried = tried < self.resolvers.current(io.now).len();
        if let (Some(to), Some(question)) = (next.filter(|_| untried), question)
            && self.use_resolver(slot, to, io).is_ok()
        {
            let Some(flow) = self.udp.slots.get_mut(slot) else { return };
            self.resolvers.asked(to, io.now);
            // If this fails too, the socket's error queue reports it.
            let _ = flow.socket.send_to(None, std::iter::once(&question), None);
            return;
        }
        let (stack, mut context) = io.stack_and_context();
        stack.udp_unreachable(inside, program, Unreachable::Port, &mut context);
    }

    /// A datagram could not be sent.
    pub(super) fn send_failed(
        &mut self,
        error: &io::Error,
        inside: SocketAddr,
        program: SocketAddr,
        io: &mut Io<'_>,
    ) {
        use rustix::io::Errno;
        let why = match Errno::from_io_error(error) {
            Some(Errno::NETUNREACH) => Unreachable::Network,
            Some(Errno::HOSTUNREACH) => Unreachable::Host,
            Some(Errno::ACCESS | Errno::PERM) => Unreachable::Prohibited,
            _ => return,
        };
        let (stack, mut context) = io.stack_and_context();
        stack.udp_unreachable(inside, program, why, &mut context);
    }
}
