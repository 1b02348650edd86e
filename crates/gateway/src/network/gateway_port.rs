//! The port behind which the gateway is: a ring instead of a device.

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

/// Largest super-packet that the gateway takes: Ethernet and the largest IP packet.
const GATEWAY_GSO_BYTES_MAX: u32 = 14 + 65_535;

/// The gateway's port: what the switch has for it, and what of that waits.
pub(super) struct GatewayPort {
    pub(super) id: PortId,
    pub(super) to_gateway: Producer<Packet>,
    pub(super) from_switch: Consumer<Packet>,
    /// Packets dropped because there was no memory to take their headers in.
    pub(super) no_memory: u64,
    pub(super) mirrors: Mirrors,
}

impl GatewayPort {
    /// Drops what waits of a port that is gone: its number may be another's soon.
    pub(super) fn forget(&mut self, port: PortId) {
        let mut waiting = Burst::new();
        for _ in 0..self.to_gateway.control().len() {
            let Some(packet) = self.from_switch.pop() else { break };
            if packet.ingress() == Some(port.index() as u16) {
                continue;
            }
            waiting.push(packet).expect("it was empty");
            // It has the room that the packet had.
            let _ = self.to_gateway.enqueue(&mut waiting);
        }
    }

    /// Packets that wait for the gateway, if there is one.
    pub(super) fn waiting(gateway: &Option<Self>) -> usize {
        gateway.as_ref().map_or(0, |gateway| gateway.to_gateway.control().len())
    }

    /// The next packet for the gateway.
    pub(super) fn take(&mut self, ports: &mut [Option<Port>]) -> Option<Packet> {
        let Some(packet) = self.from_switch.pop() else {
            // Whatever has come of those that were counted, no port is left unread for ever.
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
            cuts: false,
        };
        // Its checksums are made here, and everybody may talk to it.
        let config = switch::PortConfig {
            role: Role::Uplink,
            is_trusted: true,
            storm: StormRates::NONE,
            ..switch::PortConfig::new(caps)
        };
        let (to_gateway, from_switch) = ring::single(GATEWAY_QUEUE_LEN, Silent)?;
        let id = switch.add_port(config)?;
        // No guest is heard as the gateway.
        switch.add_station(mac, Vid::DEFAULT, id, Instant::START)?;
        let mirrors = Mirrors::default();
        Ok(Self { id, to_gateway, from_switch, no_memory: 0, mirrors })
    }
}
