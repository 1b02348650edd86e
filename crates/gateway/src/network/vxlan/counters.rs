//! Counters of a VXLAN port. Plain numbers: one thread writes, reports copy.

use towpath_net::vxlan::decapsulate::Refused;
use towpath_net::vxlan::remotes::Counters;

/// Counters of a VXLAN port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VxlanCounters {
    /// Reads that returned datagrams, coalesced ones once.
    pub reads: u64,
    /// Frames received for the network.
    pub received: u64,
    /// Bytes of these frames.
    pub received_bytes: u64,
    /// Calls that sent.
    pub sends: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Bytes of the frames in them.
    pub sent_bytes: u64,
    /// Requests for link-layer addresses that were answered here.
    pub resolved: u64,
    /// Packets too big for the path that were answered with ICMP.
    pub too_big: u64,
    /// Reads put off because memory was short. Nothing was lost.
    pub paused: u64,
    /// Stations learned from remotes.
    pub stations: Counters,
    /// Received: the sender is no known remote.
    pub unknown_remote: u64,
    /// Received: too short for the headers.
    pub short: u64,
    /// Received: without a valid network identifier.
    pub bad_header: u64,
    /// Received: of another network.
    pub wrong_vni: u64,
    /// Received: longer than the memory for it.
    pub truncated: u64,
    /// Received: from a station that is configured behind another remote.
    pub mac_locked: u64,
    /// Received: no memory for the packet.
    pub no_memory: u64,
    /// To send: a checksum is to be completed where none can be.
    pub checksum_misplaced: u64,
    /// To send: for several stations or an unknown one, and the flood list is empty.
    pub no_remote: u64,
    /// To send: larger than the path to the remote takes.
    pub too_large: u64,
    /// To send: the remote cannot be reached, as the kernel said.
    pub unreachable: u64,
    /// To send: a copy of a flooded frame for which the socket had no room.
    pub flood_full: u64,
}

impl VxlanCounters {
    /// The drops, by reason.
    pub fn drops(&self) -> [(&'static str, u64); 12] {
        [
            ("vxlan_unknown_remote", self.unknown_remote),
            ("vxlan_short", self.short),
            ("vxlan_bad_header", self.bad_header),
            ("vxlan_wrong_vni", self.wrong_vni),
            ("vxlan_truncated", self.truncated),
            ("vxlan_mac_locked", self.mac_locked),
            ("vxlan_no_memory", self.no_memory),
            ("vxlan_checksum_misplaced", self.checksum_misplaced),
            ("vxlan_no_remote", self.no_remote),
            ("vxlan_too_large", self.too_large),
            ("vxlan_unreachable", self.unreachable),
            ("vxlan_flood_full", self.flood_full),
        ]
    }

    /// Frames dropped, in both directions.
    pub fn dropped(&self) -> u64 {
        self.drops().iter().map(|(_, count)| count).sum()
    }

    pub(super) fn refuse(&mut self, reason: Refused) {
        match reason {
            Refused::Short => self.short += 1,
            Refused::BadHeader => self.bad_header += 1,
            Refused::WrongVni => self.wrong_vni += 1,
            Refused::NoMemory => self.no_memory += 1,
        }
    }
}
