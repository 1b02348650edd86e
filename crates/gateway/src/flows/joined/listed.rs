//! What reports show of joined flows.

use super::JoinedFlows;
use crate::flows::list::{Described, Visited};

impl JoinedFlows {
    pub(in crate::flows) fn table_len(&self) -> usize {
        self.flows.places_len()
    }

    /// Returns the bytes that a flow has moved.
    pub(in crate::flows) fn visited(&self, index: u32) -> Option<Visited> {
        let (slot, flow) = self.flows.at(index)?;
        Some(flow.tally.visited(slot.generation))
    }

    pub(in crate::flows) fn describe(&self, index: u32) -> Option<Described> {
        let (_, flow) = self.flows.at(index)?;
        let [program, peer] = flow.ends;
        Some(Described {
            program,
            peer: Some(peer),
            is_inbound: flow.is_published,
            state: match (flow.connecting, flow.out.is_closed() || flow.into.is_closed()) {
                (Some(_), _) => "connecting",
                (None, true) => "half-closed",
                (None, false) => "open",
            },
            tcp: None,
        })
    }
}
