//! Which network a route belongs to: route targets (RFC 4364 §4.3.1, RFC 8365 §5.1.2.1).

use towpath_net::vxlan::Vni;

use super::Table;
use crate::message::{Attributes, Route, RouteKey};

impl Table {
    /// The route target of a network: the autonomous system and the VNI, of which other speakers,
    /// too, use only the low 16 bits of the former. RFC 8365 §5.1.2.1 has the encapsulation in the
    /// first bits of the VNI; [`import`](Self::import) accepts both.
    pub(super) fn target(&self, vni: Vni) -> [u8; 8] {
        let [_, _, a, b] = self.as_number.to_be_bytes();
        let [_, c, d, e] = vni.number().to_be_bytes();
        [0, 2, a, b, 0, c, d, e]
    }

    /// The network that a route belongs to, if it is one of this host.
    pub(super) fn import(
        &mut self,
        key: &RouteKey,
        vni: u32,
        attributes: &Attributes,
    ) -> Option<Vni> {
        // RFC 4456 §8: a reflector has sent this host's own route back.
        if attributes.originator == Some(self.router_id) || attributes.next_hop == self.vtep {
            self.counters.own += 1;
            return None;
        }
        let [_, _, a, b] = self.as_number.to_be_bytes();
        let network = attributes.targets.iter().find_map(|target| match *target {
            // The first byte of the VNI is zero, or says that the rest is a VNI (RFC 8365
            // §5.1.2.1).
            [0, 2, c, d, 0 | 0x10, e, f, g] if [c, d] == [a, b] => {
                let vni = Vni::new(u32::from_be_bytes([0, e, f, g]))?;
                self.networks.contains_key(&vni).then_some(vni)
            }
            _ => None,
        });
        let Some(network) = network else {
            self.counters.foreign += 1;
            return None;
        };
        let (is_usable, vni) = match key.route {
            Route::Station(mac, _) => (mac.is_unicast(), vni),
            Route::Flood(_) => (attributes.replicates, attributes.flood_vni),
        };
        // The data plane has one VNI for both directions. A station in this host's autonomous
        // system has no path of others.
        let is_usable = is_usable
            && attributes.is_vxlan
            && vni == network.number()
            && !attributes.has_as_path
            && self.vtep.is_ipv4() == attributes.next_hop.is_ipv4();
        if !is_usable {
            self.counters.unusable += 1;
        }
        is_usable.then_some(network)
    }
}
