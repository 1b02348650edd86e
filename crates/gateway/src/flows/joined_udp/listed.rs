//! What reports show of joined UDP flows. Nothing here runs per packet.

use super::JoinedUdp;
use crate::flows::list::{Described, Visited};

impl JoinedUdp {
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
        Some(Described {
            program: flow.program,
            peer: Some(flow.host),
            is_inbound: false,
            state: "loopback",
            tcp: None,
        })
    }
}
