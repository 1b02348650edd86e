//! The port of the gateway: a queue instead of a device.

use towpath_io::pcapng::Direction;
use towpath_net::switch::vlan::Vid;
use towpath_net::switch::{self, PORTS_MAX, PortId, Role, StormRates, Switch};
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;
use towpath_packet::{Caps, Packet};

use super::GATEWAY_QUEUE_LEN;
use super::config::PortError;
use super::crew::Crew;
use super::port::{Port, Returned};
use super::queue::Queue;
use crate::capture::Mirrors;

/// Largest super-packet that the gateway takes: an Ethernet header and the largest IP packet.
const GATEWAY_GSO_BYTES_MAX: u32 = 14 + 65_535;

/// The gateway's port, with the queue of packets that wait for the gateway.
pub(super) struct GatewayPort {
    pub(super) id: PortId,
    pub(super) queue: Queue,
    /// Packets dropped because there was no memory for their headers.
    pub(super) no_memory: u64,
    pub(super) mirrors: Mirrors,
    /// Packets of other workers' ports that found no room.
    pub(super) returned: Returned,
}

impl GatewayPort {
    /// Drops the waiting packets of a port that is gone: its number may soon be another port's.
    pub(super) fn forget(&mut self, port: PortId) {
        self.queue.retain(|packet| packet.ingress() != Some(port.index() as u16));
    }

    /// Returns how many packets of each port wait for the gateway, by the numbers of the ports.
    pub(super) fn waiting_of_ports(&self) -> [usize; PORTS_MAX] {
        let mut counts = [0; PORTS_MAX];
        for port in self.queue.iter().filter_map(Packet::ingress) {
            counts[usize::from(port)] += 1;
        }
        counts
    }

    /// Returns the number of packets that wait for the gateway, if there is one.
    pub(super) fn waiting(gateway: &Option<Self>) -> usize {
        gateway.as_ref().map_or(0, |gateway| gateway.queue.len())
    }

    /// Returns the next packet for the gateway.
    pub(super) fn take(
        &mut self,
        ports: &mut [Option<Port>],
        crew: Option<&Crew>,
    ) -> Option<Packet> {
        let Some(packet) = self.queue.pop() else {
            // The queue is empty. Resets the counts, so that no port stays unread if a counted
            // packet was lost.
            ports.iter_mut().flatten().for_each(|port| port.share.all_taken());
            return None;
        };
        self.mirrors.see(Direction::Outbound, std::iter::once(&packet));
        if let Some(from) = packet.ingress().map(usize::from) {
            match (ports.get_mut(from), crew) {
                (Some(Some(port)), _) => port.share.taken(),
                (_, Some(crew)) => crew.finish(from, 1),
                (_, None) => {}
            }
        }
        Some(packet)
    }

    pub(super) fn new(switch: &mut Switch, mac: MacAddr, mtu: u16) -> Result<Self, PortError> {
        let caps = Caps {
            mtu,
            checksum: true,
            tso4: true,
            tso6: true,
            uso: true,
            tunnel: false,
            gso_bytes_max: GATEWAY_GSO_BYTES_MAX,
            segments: false,
        };
        // The gateway makes its checksums itself, and every port may talk to it.
        let config = switch::PortConfig {
            role: Role::Uplink,
            is_trusted: true,
            storm: StormRates::NONE,
            ..switch::PortConfig::new(caps)
        };
        let queue = Queue::new(GATEWAY_QUEUE_LEN)?;
        let id = switch.add_port(config)?;
        // No guest can send from the gateway's address.
        switch.add_station(mac, Vid::DEFAULT, id, Instant::START)?;
        let (mirrors, returned) = (Mirrors::default(), Returned::default());
        Ok(Self { id, queue, no_memory: 0, mirrors, returned })
    }
}
