//! What a network knows about a port, whichever thread moves its packets.

use towpath_net::switch::{self, PortCounters, PortId, Role};
use towpath_packet::Caps;

use super::config::{Attachment, PortSettings};
use super::report::{PortReport, PortState};
use crate::egress::enforcer::Enforcer;
use crate::services::Services;

/// A port of a network: its name, its settings and its place at the switch. The thread that moves
/// its packets has its [`Port`](super::port::Port).
pub(super) struct Member {
    pub(super) name: String,
    pub(super) id: PortId,
    /// The number of the worker that moves its packets, from 0.
    pub(super) worker: usize,
    pub(super) attachment: Attachment,
    pub(super) settings: PortSettings,
    /// The current transaction has removed it.
    pub(super) is_leaving: bool,
}

impl Member {
    /// Tells the services what they have to know about it.
    pub(super) fn introduce(&self, services: &mut Services) {
        let number = self.id.index() as u32;
        services.name_port(number, &self.name);
        services.set_port_mtu(number, self.settings.mtu);
    }

    /// Tells what carries out policies which one is for it.
    pub(super) fn restrict(&self, egress: &Enforcer) {
        let policy = self.settings.egress.clone();
        egress.set_port_policy(self.id.index() as u16, &self.name, policy);
    }

    pub(super) fn report(&self, state: PortState, counters: PortCounters) -> PortReport {
        let PortState { caps, is_connected, failure, waiting, device } = state;
        PortReport {
            name: self.name.clone(),
            worker: self.worker,
            attachment: self.attachment.clone(),
            settings: self.settings.clone(),
            caps,
            is_connected,
            failure,
            waiting,
            counters,
            device,
        }
    }
}

/// Returns the configuration for the switch of a port whose device takes this.
pub(super) fn switch_config(
    attachment: &Attachment,
    settings: &PortSettings,
    caps: Caps,
) -> switch::PortConfig {
    switch::PortConfig {
        is_up: settings.is_up,
        vlans: settings.vlans.clone(),
        role: match settings.role {
            Role::Station if attachment.is_uplink() => Role::Uplink,
            Role::Station if attachment.is_tunnel() => Role::Tunnel,
            role => role,
        },
        guard: settings.guard.clone(),
        respects_owners: true,
        is_router: settings.is_router,
        storm: settings.storm,
        addresses_max: attachment.addresses_max(),
        ..switch::PortConfig::new(caps)
    }
}
