//! The port of the gateway: a ring instead of a device.

use towpath_io::pcapng::Direction;
use towpath_net::switch::vlan::Vid;
use towpath_net::switch::{self, PortId, Role, StormRates, Switch};
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;
use towpath_packet::ring::{self, Consumer, Producer, Silent};
use towpath_packet::{Burst, Caps, Packet};

use super::GATEWAY_QUEUE_LEN;
use super::config::PortError;
use super::port::Port;
use crate::capture::Mirrors;

/// Largest super-packet that the gateway takes: an Ethernet header and the largest IP packet.
const GATEWAY_GSO_BYTES_MAX: u32 = 14 + 65_535;

/// The gateway's port, with the ring of packets that wait for the gateway.
pub(super) struct GatewayPort {
    pub(super) id: PortId,
    pub(super) to_gateway: Producer<Packet>,
    pub(super) from_switch: Consumer<Packet>,
    /// Packets dropped because there was no memory for their headers.
    pub(super) no_memory: u64,
    pub(super) mirrors: Mirrors,
}

impl GatewayPort {
    /// Drops the waiting packets of a port that is gone: its number may soon be another port's.
    pub(super) fn forget(&mut self, port: PortId) {
        let mut waiting = Burst::new();
        for _ in 0..self.to_gateway.control().len() {
            let Some(packet) = self.from_switch.pop() else { break };
            if packet.ingress() == Some(port.index() as u16) {
                continue;
            }
            waiting.push(packet).expect("it was empty");
            // The packet has just left this room.
            let _ = self.to_gateway.enqueue(&mut waiting);
        }
    }

    /// Returns the number of packets that wait for the gateway, if there is one.
    pub(super) fn waiting(gateway: &Option<Self>) -> usize {
        gateway.as_ref().map_or(0, |gateway| gateway.to_gateway.control().len())
    }

    /// Returns the next packet for the gateway.
    pub(super) fn take(&mut self, ports: &mut [Option<Port>]) -> Option<Packet> {
        let Some(packet) = self.from_switch.pop() else {
            // The ring is empty. Resets the counts, so that no port stays unread if a counted
            // packet was lost.
            ports.iter_mut().flatten().for_each(|port| port.share.all_taken());
            return None;
        };
        self.mirrors.see(Direction::Outbound, std::iter::once(&packet));
        let from = packet.ingress().map(usize::from);
        if let Some(Some(port)) = from.and_then(|from| ports.get_mut(from)) {
            port.share.taken();
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
        let (to_gateway, from_switch) = ring::single(GATEWAY_QUEUE_LEN, Silent)?;
        let id = switch.add_port(config)?;
        // No guest can send from the gateway's address.
        switch.add_station(mac, Vid::DEFAULT, id, Instant::START)?;
        let mirrors = Mirrors::default();
        Ok(Self { id, to_gateway, from_switch, no_memory: 0, mirrors })
    }
}
