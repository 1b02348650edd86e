//! TCP flows that move from one worker to another.

use super::{Flow, Phase};
use crate::flows::{Gateway, Io, Token};
use crate::owners::{Buckets, of_connection};
use towpath_io::reactor::Interest;
use towpath_net::stack::{MovedTcp, TcpHandle};
use towpath_net::tcp::Connection;

/// A connection between two workers. One that waits for its turn, or closes by itself, has no flow.
pub(in crate::flows) struct MovedConnection {
    connection: MovedTcp,
    flow: Option<Box<Flow>>,
}

impl MovedConnection {
    pub(in crate::flows) fn has_flow(&self) -> bool {
        self.flow.is_some()
    }
}

impl Gateway {
    /// Takes out the connections of these buckets.
    pub(in crate::flows) fn take_connections(
        &mut self,
        buckets: &Buckets,
        io: &mut Io<'_>,
    ) -> Vec<MovedConnection> {
        let taken = io
            .stack
            .tcp_take(|peer, program| buckets.contains(of_connection(peer, program.port())));
        let with_flow = taken.into_iter().map(|connection| {
            let flow = connection.former.and_then(|handle| self.tcp.remove(handle));
            if let Some(flow) = &flow {
                // It was added when the flow began; removing it cannot fail.
                let _ = io.reactor.remove(&flow.socket);
                self.lending.leaves(&flow.socket);
            }
            MovedConnection { connection, flow }
        });
        with_flow.collect()
    }

    /// Continues a connection.
    pub(in crate::flows) fn put_connection(&mut self, moved: MovedConnection, io: &mut Io<'_>) {
        let handle = io.stack.tcp_put(moved.connection, io.now);
        match (handle, moved.flow) {
            (Some(handle), Some(flow)) => self.put_flow(handle, flow, io),
            (Some(handle), None) => {
                let waits = |connection: &Connection| {
                    connection.is_owned() && connection.state().is_opening()
                };
                if io.stack.tcp(handle).is_some_and(waits) {
                    self.connection_waits(handle, io);
                }
            }
            (None, Some(flow)) => {
                self.lending.comes(&flow.socket);
                self.reset(flow.socket, io);
            }
            (None, None) => {}
        }
    }

    fn put_flow(&mut self, handle: TcpHandle, mut flow: Box<Flow>, io: &mut Io<'_>) {
        let token = Token::Tcp(handle.key()).encode();
        let interest = if flow.watches_room { Interest::BOTH } else { Interest::READ };
        let watched = io.reactor.add(&flow.socket, token, interest.and_urgent(), true);
        self.lending.comes(&flow.socket);
        flow.handle = handle;
        flow.queued = false;
        (flow.brief, flow.moment) = (0, None);
        let phase = flow.phase;
        let waited = flow.forget_lines() || flow.dialogue.is_some();
        self.tcp.kept += flow.kept.len();
        self.tcp.insert(flow);
        if watched.is_err() {
            self.counters.no_descriptor += 1;
            return self.abort(handle, io);
        }
        if phase == Phase::Open {
            // Bytes that wait for the host, and for room, are the share of this worker now.
            self.hold_off_or_resume(handle, 0, io);
            self.note_awaited(handle, io);
            self.tcp.queue(handle);
            if waited {
                self.move_out(handle, io);
            }
        }
    }
}
