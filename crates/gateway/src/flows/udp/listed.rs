//! What reports show of UDP flows. Nothing here runs per packet.

use super::{NOBODY, Realm, UdpFlows};
use crate::flows::list::{Described, Visited};

impl UdpFlows {
    pub(in crate::flows) fn table_len(&self) -> usize {
        self.slots.places_len()
    }

    /// Returns the bytes that a flow has moved.
    pub(in crate::flows) fn visited(&self, index: u32) -> Option<Visited> {
        let (slot, flow) = self.slots.at(index)?;
        Some(flow.tally.visited(slot.generation))
    }

    pub(in crate::flows) fn describe(&self, index: u32) -> Option<Described> {
        let (_, flow) = self.slots.at(index)?;
        let is_published = flow.published.is_some();
        Some(Described {
            program: flow.program,
            peer: match flow.realm {
                Realm::Dns(inside) | Realm::Group(inside) => Some(inside),
                Realm::World => flow.latest,
                // The program sees the host as another address.
                Realm::Mapped(inside) => flow.latest.map(|latest| (inside, latest.port()).into()),
            },
            is_inbound: is_published,
            state: match flow.realm {
                _ if is_published && flow.program == NOBODY => "no-guest",
                _ if is_published => "published",
                Realm::World => "mapped",
                Realm::Mapped(_) if flow.is_of_loopback() => "loopback",
                Realm::Mapped(_) => "host",
                Realm::Dns(_) => "dns",
                Realm::Group(_) => "multicast",
            },
            tcp: None,
        })
    }
}
