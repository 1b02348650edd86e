//! What a device offers to each front end: features of virtio and of the protocol.

use super::super::message::REGIONS_MAX;
use super::super::virtq;

/// Features of virtio and vhost-user that matter here; the others are those of the rings.
pub mod feature {
    /// The configuration space has an MTU.
    pub const MTU: u64 = 1 << 3;
    /// The configuration space has an Ethernet address.
    pub const MAC: u64 = 1 << 5;
    /// The configuration space has a link status.
    pub const STATUS: u64 = 1 << 16;
    /// There is a control queue, which the front end serves.
    pub const CONTROL_QUEUE: u64 = 1 << 17;
    /// There may be several pairs of queues.
    pub const MULTI_QUEUE: u64 = 1 << 22;
    /// Writes to guest memory are logged (vhost).
    pub const LOG_ALL: u64 = 1 << 26;
    /// Protocol features are negotiated (vhost-user).
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// The device conforms to virtio 1.
    pub const VERSION_1: u64 = 1 << 32;
    /// Rings have the packed layout.
    pub const RING_PACKED: u64 = 1 << 34;
}

/// Features of the vhost-user protocol.
pub mod protocol {
    /// The front end can ask for the number of rings.
    pub const MULTI_QUEUE: u64 = 1 << 0;
    /// The dirty log is shared memory.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// The back end announces a migrated guest to the network.
    pub const RARP: u64 = 1 << 2;
    /// Requests can ask for an acknowledgement.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The front end sets the MTU.
    pub const MTU: u64 = 1 << 4;
    /// The back end reports changes on a channel of its own.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The back end has the configuration space.
    pub const CONFIG: u64 = 1 << 9;
    /// The in-flight region survives a crash of the back end.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// The device can be reset.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Memory regions are added and removed one by one.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// The back end has the virtio status field.
    pub const STATUS: u64 = 1 << 16;

    /// The protocol features that are always offered.
    pub const ALWAYS: u64 = MULTI_QUEUE
        | LOG_SHMFD
        | RARP
        | REPLY_ACK
        | MTU
        | INFLIGHT_SHMFD
        | RESET_DEVICE
        | CONFIGURE_MEM_SLOTS
        | STATUS;
}

/// What a device offers to each front end.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Features of the rings; those of the configuration space and the protocol are added.
    pub features: u64,
    /// Pairs of queues; each is two rings.
    pub pairs: u16,
    /// Most memory regions at a time.
    pub memory_slots: u64,
    /// Largest MTU, which is also the one reported to the guest unless the front end sets another.
    pub mtu: u16,
    /// The guest's Ethernet address, if the device chooses it. Then the device also has the
    /// configuration space. QEMU's network devices have their own, and warn if one is offered.
    pub mac: Option<[u8; 6]>,
}

impl Default for Offer {
    /// All features of the rings, one pair of queues, an MTU of 1500.
    fn default() -> Self {
        let memory_slots = REGIONS_MAX as u64;
        Self { features: virtq::FEATURES, pairs: 1, memory_slots, mtu: 1500, mac: None }
    }
}

impl Offer {
    /// All offered features.
    pub fn features(&self) -> u64 {
        let mut features = self.features | feature::VERSION_1 | feature::PROTOCOL_FEATURES;
        features |= feature::LOG_ALL | feature::MTU | feature::STATUS;
        if self.pairs > 1 {
            // virtio 1.2 §5.1.3.1: several queues require a control queue.
            features |= feature::MULTI_QUEUE | feature::CONTROL_QUEUE;
        }
        if self.mac.is_some() {
            features |= feature::MAC;
        }
        features
    }

    /// All offered protocol features.
    pub fn protocol_features(&self) -> u64 {
        // Changes of the configuration space are all that a back end of this kind reports.
        let has_config = self.mac.is_some();
        let config = if has_config { protocol::CONFIG | protocol::BACKEND_REQ } else { 0 };
        protocol::ALWAYS | config
    }
}
