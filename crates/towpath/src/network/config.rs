//! What a network is made of, in plain values.

use std::fmt;
use std::io;
use std::path::PathBuf;

use towpath_io::endpoint::EndpointError;
use towpath_io::stream::StreamPortError;
use towpath_io::tap::TapError;
use towpath_io::vhost_user::VhostUserError;
use towpath_net::switch::vlan::Vid;
use towpath_net::switch::{self, PortVlans, Role};
use towpath_packet::ring::CapacityError;

/// Longest name of a port: that of a network interface, so that one fits the other.
pub const NAME_BYTES_MAX: usize = 15;
/// Packets that may wait for a port, unless told otherwise: as many as Linux lets wait for a TAP.
pub const QUEUE_LEN: usize = 1000;

/// How a network behaves.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// Largest IP packet that guests are told of and sent.
    pub mtu: u16,
    /// There is a gateway.
    pub gateway: bool,
    /// Payload in guests' memory is copied out at the switch: what sharing it is measured against.
    pub orphan: bool,
    /// Chance, for places in the address table.
    pub seed: u64,
}

/// What is at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// A virtual machine whose monitor connects to a socket at this path and speaks vhost-user.
    VhostUser(PathBuf),
    /// A virtual machine whose monitor connects to a socket at this path and sends frames.
    Stream(PathBuf),
    /// A TAP device with this name in the network namespace of this process.
    Tap(String),
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VhostUser(path) => write!(f, "vhost-user {}", path.display()),
            Self::Stream(path) => write!(f, "stream {}", path.display()),
            Self::Tap(name) => write!(f, "tap {name}"),
        }
    }
}

/// How a port is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// Packets that may wait for the port.
    pub queue_len: usize,
    /// Its VLANs.
    pub vlans: PortVlans,
    /// Whom it may talk to.
    pub role: Role,
    /// Pairs of queues that a virtual machine is offered.
    pub pairs: u16,
}

impl Default for PortSettings {
    fn default() -> Self {
        Self {
            queue_len: QUEUE_LEN,
            vlans: PortVlans::Access(Vid::DEFAULT),
            role: Role::default(),
            pairs: 1,
        }
    }
}

/// Why a port was not attached or changed. Nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// A name that is none.
    #[error(
        "'{0}' is no name for a port; it has 1 to {NAME_BYTES_MAX} letters, digits, '-', '_', '.'"
    )]
    Name(String),
    /// The name is taken.
    #[error("there is a port '{0}' already")]
    Exists(String),
    /// There is no such port.
    #[error("there is no port '{0}'")]
    Unknown(String),
    /// The ring has an impossible length.
    #[error("queue length: {0}")]
    QueueLen(#[from] CapacityError),
    /// Not with this switch.
    #[error(transparent)]
    Switch(#[from] switch::PortError),
    /// The TAP device.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The socket of a virtual machine.
    #[error(transparent)]
    VhostUser(#[from] VhostUserError),
    /// The socket of a virtual machine.
    #[error(transparent)]
    Stream(#[from] StreamPortError),
    /// The socket of a virtual machine.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Anything else.
    #[error(transparent)]
    Os(#[from] io::Error),
}

pub(super) fn check_name(name: &str) -> Result<(), PortError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_dots = name.bytes().all(|byte| byte == b'.');
    if name.len() > NAME_BYTES_MAX || is_dots || !name.bytes().all(is_allowed) {
        return Err(PortError::Name(name.to_owned()));
    }
    Ok(())
}
