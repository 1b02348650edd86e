//! The switch's view of a network: the devices of the ports, the gateway's queue, and the owners of
//! addresses.

use std::net::IpAddr;

use towpath_net::switch::vlan::Vid;
use towpath_net::switch::{Egress, PortId, Switch};
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Context};

use super::NetworkConfig;
use super::gateway_port::GatewayPort;
use super::links::Links;
use super::member::Member;
use super::port::Port;
use crate::services::Services;

/// Where packets leave the switch, and the owners of addresses.
pub(super) struct Outputs<'a> {
    pub(super) ports: &'a mut [Option<Port>],
    pub(super) members: &'a [Option<Member>],
    pub(super) gateway: &'a mut Option<GatewayPort>,
    pub(super) services: &'a Option<Services>,
    pub(super) config: &'a NetworkConfig,
    pub(super) now: Instant,
    /// Memory is short: no port with `QUEUE_LEN_SHORT` waiting packets may get more of them.
    pub(super) is_short: bool,
    /// The way to ports of other workers, if there are any.
    pub(super) links: Option<&'a Links>,
}

impl Outputs<'_> {
    /// Forwards a burst that port `from` received. Returns its bytes.
    pub(super) fn forward(
        &mut self,
        switch: &mut Switch,
        from: PortId,
        burst: &mut Burst,
        cx: &mut Context<'_>,
    ) -> u64 {
        switch.forward(from, burst, cx, self)
    }

    fn id_of(&self, port: u32) -> Option<PortId> {
        Some(self.members.get(port as usize)?.as_ref()?.id)
    }
}

impl Egress for Outputs<'_> {
    fn transmit(&mut self, id: PortId, burst: &mut Burst, cx: &mut Context<'_>) {
        // The switch drops and counts the packets left in the burst.
        match self.gateway {
            Some(gateway) if gateway.id == id => gateway.queue.append(burst, usize::MAX),
            _ => {
                if let Some(port) = self.ports.get_mut(id.index()).and_then(Option::as_mut) {
                    port.transmit(burst, self.is_short, cx);
                } else if let Some(links) = self.links {
                    links.deliver(id, burst);
                }
            }
        }
    }

    /// Returns the owner of an address: the gateway owns its own addresses, and a guest its leased
    /// ones. Both hold in the gateway's VLAN only; other VLANs have addresses of their own.
    fn owner(&self, vid: Vid, address: IpAddr) -> Option<PortId> {
        let gateway = self.gateway.as_ref().filter(|_| vid == Vid::DEFAULT)?;
        if self.config.gateway_addresses.contains(&address) {
            return Some(gateway.id);
        }
        let port = self.services.as_ref()?.holder(address, self.now)?;
        self.id_of(port)
    }

    /// Returns the port of a station that has a lease: the port of the lease.
    fn home(&self, vid: Vid, station: MacAddr) -> Option<PortId> {
        let services = self.services.as_ref().filter(|_| vid == Vid::DEFAULT)?;
        self.id_of(services.port_of(station, self.now)?)
    }
}
