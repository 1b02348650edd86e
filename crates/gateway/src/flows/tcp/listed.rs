//! What reports show of TCP flows. Nothing here runs per packet.

use super::{Flow, Phase, TcpFlows};
use crate::flows::list::{Described, Visited};
use crate::flows::queued::LentNow;
use towpath_net::stack::Stack;
use towpath_net::tcp::State;
use towpath_net::time::Instant;

impl TcpFlows {
    /// Returns what all flows have lent.
    pub(in crate::flows) fn lent(&self, stack: &Stack, now: Instant) -> LentNow {
        let mut lent = LentNow::default();
        for flow in self.flows.iter().flatten() {
            if let Some(connection) = stack.tcp(flow.handle) {
                lent.add(&flow.out, connection.received_len(), now);
                lent.add(&flow.into, connection.unacknowledged(), now);
            }
        }
        lent
    }

    pub(in crate::flows) fn table_len(&self) -> usize {
        self.flows.len()
    }

    /// Returns the bytes that a flow has moved. This reads only the flow itself.
    pub(in crate::flows) fn visited(&self, index: u32) -> Option<Visited> {
        let flow = self.at(index)?;
        Some(Visited {
            generation: flow.handle.key().generation,
            begun: flow.begun,
            bytes_out: flow.passed,
            bytes_in: flow.into.total(),
        })
    }

    pub(in crate::flows) fn describe(
        &self,
        index: u32,
        stack: &Stack,
        now: Instant,
    ) -> Option<Described> {
        let flow = self.at(index)?;
        let connection = stack.tcp(flow.handle)?;
        Some(Described {
            program: connection.remote(),
            peer: Some(connection.local()),
            is_inbound: flow.is_inbound,
            state: match flow.phase {
                Phase::HostConnecting { .. } | Phase::ProgramConnecting => "connecting",
                Phase::Open if flow.over => "draining",
                Phase::Open => name(connection.state()),
            },
            tcp: Some(Box::new(connection.info(now))),
        })
    }

    fn at(&self, index: u32) -> Option<&Flow> {
        self.flows.get(index as usize)?.as_deref()
    }
}

/// Returns the name of a state (RFC 9293 §3.3.2) as reports have it.
fn name(state: State) -> &'static str {
    match state {
        State::SynSent => "syn-sent",
        State::SynReceived => "syn-recv",
        State::Established => "established",
        State::FinWait1 => "fin-wait-1",
        State::FinWait2 => "fin-wait-2",
        State::CloseWait => "close-wait",
        State::Closing => "closing",
        State::LastAck => "last-ack",
        State::TimeWait => "time-wait",
        State::Closed => "closed",
    }
}
