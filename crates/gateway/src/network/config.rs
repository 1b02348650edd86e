//! The configuration of a network, in plain values.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::services::wire::domain::DomainName;
use towpath_io::endpoint::{Connection, EndpointError};
use towpath_io::stream::StreamPortError;
use towpath_io::tap::TapError;
use towpath_io::uplink::{UplinkError, XdpSettings};
use towpath_io::vhost_user::VhostUserError;
use towpath_net::switch::vlan::Vid;
use towpath_net::switch::{
    self, ADDRESSES_MAX, ADDRESSES_PER_PORT, Guard, PortVlans, Role, StormRates,
};
use towpath_net::vxlan::Vni;
use towpath_net::vxlan::remotes::ChangeError;
use towpath_net::wire::MacAddr;
use towpath_packet::ring::CAPACITY_MAX;

use super::pace::Bandwidth;
use super::tunnel::{InvalidVxlan, VxlanSettings};
use crate::capture::CAPTURES_MAX;
use crate::config::Config;
use crate::egress::policy::Policy;
use crate::services;

/// Most ports of a network, without the gateway's: each has its share of the switch's address
/// table.
pub const NETWORK_PORTS_MAX: usize = (ADDRESSES_MAX / ADDRESSES_PER_PORT) as usize - 1;
const _: () = assert!(NETWORK_PORTS_MAX < switch::PORTS_MAX, "the gateway needs a port too");
/// Longest name of a port: that of a network interface, so that each is valid as the other.
pub const NAME_BYTES_MAX: usize = 15;
/// Default for packets that may wait for a port: as many as Linux queues for a TAP device.
pub const QUEUE_LEN: usize = 1000;
/// Most packets that may wait for a port: as many as a ring can hold.
pub const QUEUE_LEN_MAX: usize = CAPACITY_MAX;

/// Default time to busy-poll guests' rings: several times as long as a wakeup takes.
pub const BUSY_POLL: Duration = Duration::from_micros(50);
/// Longest time to busy-poll: others that wait for the processor may notice it.
pub const BUSY_POLL_MAX: Duration = Duration::from_millis(1);

/// A tunnel's share of the address table: the stations of many other hosts.
const ADDRESSES_PER_TUNNEL: u32 = 2048;

/// Offset in an IPv4 network of the first address that is leased: after that of `towpath run`.
const LEASED_FROM: u32 = 16;
/// Offsets in an IPv6 network of the first and last address that are leased.
const LEASED_V6: (u128, u128) = (0x1000, 0x1fff);

/// Settings of a whole network.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// Largest IP packet, which is advertised to guests.
    pub mtu: u16,
    /// Link-layer address of the gateway, if there is one; guests cannot use it.
    pub gateway: Option<MacAddr>,
    /// IP addresses of the gateway, which guests cannot use.
    pub gateway_addresses: Vec<IpAddr>,
    /// Payload in guests' memory is copied at the switch. For measurements of what sharing it
    /// gains.
    pub orphan: bool,
    /// How long to busy-poll guests' rings before the worker sleeps, where that pays.
    pub busy_poll: Duration,
    /// Random seed for places in the address table.
    pub seed: u64,
}

/// The device of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// A virtual machine whose monitor connects to a socket at this path and speaks vhost-user.
    VhostUser(PathBuf),
    /// A virtual machine whose monitor listens at this path and speaks vhost-user. The port
    /// connects to it whenever it is there.
    VhostUserClient(PathBuf),
    /// A virtual machine whose monitor connects to a socket at this path and sends frames.
    Stream(PathBuf),
    /// A virtual machine whose monitor speaks vhost-user on this connection, and no other one.
    VhostUserFd(Connection),
    /// A virtual machine whose monitor sends frames on this connection, and no other one.
    StreamFd(Connection),
    /// A TAP device with this name in the network namespace of this process.
    Tap(String),
    /// A TAP device that another process made, perhaps in another network namespace.
    TapFd(PassedTap),
    /// The interface with this name in the network namespace of this process, through a packet
    /// socket.
    Packet(String),
    /// A queue of an interface in the network namespace of this process, through an AF_XDP socket.
    Xdp(XdpSettings),
    /// Other hosts, through UDP datagrams (VXLAN).
    Vxlan(VxlanSettings),
}

impl Attachment {
    /// True for an interface of the host: other networks are behind it.
    pub(crate) fn is_uplink(&self) -> bool {
        matches!(self, Self::Packet(_) | Self::Xdp(_))
    }

    /// True for a way to other hosts, which share the network.
    pub(crate) fn is_tunnel(&self) -> bool {
        matches!(self, Self::Vxlan(_))
    }

    /// Returns the port's share of the switch's address table.
    pub(super) fn addresses_max(&self) -> u32 {
        if self.is_tunnel() { ADDRESSES_PER_TUNNEL } else { ADDRESSES_PER_PORT }
    }
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VhostUser(path) => write!(f, "vhost-user {}", path.display()),
            Self::VhostUserClient(path) => write!(f, "vhost-user-client {}", path.display()),
            Self::Stream(path) => write!(f, "stream {}", path.display()),
            Self::VhostUserFd(_) => f.write_str("vhost-user-fd"),
            Self::StreamFd(_) => f.write_str("stream-fd"),
            Self::Tap(name) => write!(f, "tap {name}"),
            Self::TapFd(_) => f.write_str("tap-fd"),
            Self::Packet(interface) => write!(f, "packet {interface}"),
            Self::Xdp(settings) => write!(f, "xdp {settings}"),
            Self::Vxlan(settings) => write!(f, "vxlan {settings}"),
        }
    }
}

/// The descriptor of a TAP device that another process made and attached with `IFF_TAP | IFF_NO_PI
/// | IFF_VNET_HDR`. It comes after the text that asks for the port. Clones share it, and the first
/// one to take it has it.
#[derive(Clone, Debug, Default)]
pub struct PassedTap(Arc<Mutex<Option<OwnedFd>>>);

impl PassedTap {
    /// Passes the descriptor.
    pub fn pass(&self, file: OwnedFd) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    }

    /// Returns the descriptor, once; `None` if none was passed.
    pub fn take(&self) -> Option<OwnedFd> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl PartialEq for PassedTap {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PassedTap {}

/// Settings of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// Packets that may wait for each queue of the port.
    pub queue_len: usize,
    /// Its VLANs.
    pub vlans: PortVlans,
    /// Which ports it may reach.
    pub role: Role,
    /// Which addresses its station may use.
    pub guard: Guard,
    /// Its station may be a router and run a DHCP server.
    pub is_router: bool,
    /// Packets per second that its station may send to more than one station.
    pub storm: StormRates,
    /// Queue pairs that a virtual machine is offered.
    pub pairs: u16,
    /// Largest IP packet to its station; `None`: that of the network. An uplink has none of its
    /// own.
    pub mtu: Option<u16>,
    /// Its link is up.
    pub is_up: bool,
    /// Which hosts outside its station may reach, if the policy of the network is not for it.
    pub egress: Option<Arc<Policy>>,
    /// Bound of all frames from its station.
    pub bandwidth_out: Option<Bandwidth>,
    /// Bound of all frames to its station.
    pub bandwidth_in: Option<Bandwidth>,
}

impl PortSettings {
    /// Returns these defaults for a port with this device: uplinks and tunnels are not isolated,
    /// because they are what isolated ports reach.
    pub fn for_device(mut self, attachment: &Attachment) -> Self {
        if attachment.is_uplink() || attachment.is_tunnel() {
            self.role = Role::Station;
        }
        self
    }
}

impl Default for PortSettings {
    fn default() -> Self {
        Self {
            queue_len: QUEUE_LEN,
            vlans: PortVlans::Access(Vid::DEFAULT),
            role: Role::default(),
            guard: Guard::default(),
            is_router: false,
            storm: StormRates::default(),
            pairs: 1,
            mtu: None,
            is_up: true,
            egress: None,
            bandwidth_out: None,
            bandwidth_in: None,
        }
    }
}

/// Why a port was not attached or changed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The name is not valid.
    #[error(
        "'{0}' is not a valid port name; expected 1 to {NAME_BYTES_MAX} letters, digits, '-', \
         '_' and '.'"
    )]
    Name(String),
    /// The name is taken.
    #[error("port '{0}' already exists")]
    Exists(String),
    /// There are [`NETWORK_PORTS_MAX`] ports already.
    #[error(
        "the network already has {NETWORK_PORTS_MAX} ports, the maximum; remove a port, or start \
         another network"
    )]
    TooMany,
    /// There is no such port.
    #[error("there is no port '{name}'; the network has {}", listed(known))]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names of the existing ports.
        known: Vec<String>,
    },
    /// The connection was taken by another port before.
    #[error("another port had this connection; give each port one of its own")]
    Connection,
    /// No TAP device came with the request.
    #[error(
        "no TAP device came with the request; send its descriptor (SCM_RIGHTS), one with each \
         request, or let towpath make the device (tap)"
    )]
    NoTap,
    /// The descriptor that came with the request is another one.
    #[error(
        "the descriptor that came with the request is no TAP device with IFF_TAP, IFF_NO_PI and \
         IFF_VNET_HDR; attach it to its interface with these flags"
    )]
    NotTap,
    /// The MTU of an uplink was to be set.
    #[error(
        "the MTU of an interface of the host cannot be set here; leave out mtu, and set the \
         interface's own with `ip link set dev IFACE mtu N`"
    )]
    UplinkMtu,
    /// Nothing carries out the policy of a port.
    #[error(
        "the network was started without a policy, so its ports cannot have one; start it with \
         --egress, --allow or --deny, or with a policy of a port in its file"
    )]
    NoEgress,
    /// The MTU of a VXLAN port was to be set.
    #[error(
        "the MTU of a VXLAN port is that of the path to each remote; leave out mtu, and set that \
         of the network"
    )]
    TunnelMtu,
    /// The settings of a VXLAN port are wrong.
    #[error(transparent)]
    Vxlan(#[from] InvalidVxlan),
    /// A socket of a VXLAN port could not be opened.
    #[error(
        "cannot open a UDP socket at {at} for VXLAN: {error}; if another program has the address, \
         choose another one or another UDP port (local=, port=)"
    )]
    VxlanSocket {
        /// The local address and port.
        at: SocketAddr,
        /// The error.
        error: io::Error,
    },
    /// The network has a VXLAN port at this address and UDP port.
    #[error("VNI {vni} at {at} has a VXLAN port already; remove it, or choose another VNI")]
    VxlanTaken {
        /// The VXLAN network.
        vni: Vni,
        /// The local address and port.
        at: SocketAddr,
    },
    /// A remote of a VXLAN port, or a station behind one, could not be changed.
    #[error(transparent)]
    Remote(#[from] ChangeError),
    /// The port has no remotes.
    #[error("port '{0}' is no VXLAN port, so it has no remotes")]
    NoRemotes(String),
    /// A queue cannot have this length.
    #[error("a queue of {0} packets is out of range; expected 1 to {QUEUE_LEN_MAX}")]
    QueueLen(usize),
    /// There is not enough memory for a queue of this length.
    #[error("not enough memory for a queue of {0} packets; set a shorter queue-len")]
    NoMemory(usize),
    /// The switch rejected the port.
    #[error(transparent)]
    Switch(#[from] switch::PortError),
    /// The TAP device failed.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// An interface of the host could not be opened or used.
    #[error(transparent)]
    Uplink(#[from] UplinkError),
    /// The vhost-user socket of a virtual machine failed.
    #[error(transparent)]
    VhostUser(#[from] VhostUserError),
    /// The stream socket of a virtual machine failed.
    #[error(transparent)]
    Stream(#[from] StreamPortError),
    /// The endpoint of a virtual machine's socket is not usable.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Another system call failed.
    #[error(transparent)]
    Os(#[from] io::Error),
}

/// Why a port is not captured. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// There is no such port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// There are [`CAPTURES_MAX`] captures already.
    #[error("{CAPTURES_MAX} captures are running, the maximum; end one first")]
    TooMany,
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] io::Error),
}

/// Returns the first names as text, and how many more there are.
fn listed(names: &[String]) -> String {
    const NAMES_MAX: usize = 16;
    match names.split_at_checked(NAMES_MAX) {
        None if names.is_empty() => "no ports".to_owned(),
        None | Some((_, [])) => format!("the ports {}", names.join(", ")),
        Some((first, rest)) => format!("the ports {} and {} more", first.join(", "), rest.len()),
    }
}

/// Returns the configuration of the services for guests of the gateway that `config` describes:
/// addresses from the sixteenth of the network on, and names in `domain`, where the gateway is
/// `gateway`. On a shared link the only address is that of the program.
pub fn services_config(config: &Config, domain: &DomainName, seed: u64) -> services::Config {
    let ipv4 = config.ipv4.map(|v4| {
        let mut ipv4 = services::Ipv4 {
            gateway: v4.gateway,
            network: if config.is_link_shared { v4.address } else { v4.gateway },
            prefix_len: v4.prefix_len,
            dns: v4.dns.into_iter().collect(),
            pool: v4.gateway..=v4.gateway,
        };
        let network = u32::from(ipv4.network) & u32::from(ipv4.netmask());
        ipv4.pool = if config.is_link_shared {
            v4.address..=v4.address
        } else {
            (network + LEASED_FROM).into()..=(u32::from(ipv4.broadcast()) - 1).into()
        };
        ipv4
    });
    let ipv6 = config.ipv6.map(|v6| {
        let mut ipv6 = services::Ipv6 {
            gateway: v6.gateway,
            network: if config.is_link_shared { v6.address } else { v6.gateway },
            prefix_len: v6.prefix_len,
            dns: v6.dns.into_iter().collect(),
            autonomous: v6.prefix_len == 64,
            pool: None,
        };
        let prefix = u128::from(ipv6.prefix());
        let pool = (prefix + LEASED_V6.0).into()..=(prefix + LEASED_V6.1).into();
        let pool = if config.is_link_shared { v6.address..=v6.address } else { pool };
        ipv6.pool = ipv6.contains(*pool.end()).then_some(pool);
        ipv6
    });
    let gateway: DomainName = "gateway".parse().expect("a name");
    let addresses = ipv4.iter().map(|v4| v4.gateway.into());
    let addresses = addresses.chain(ipv6.iter().map(|v6| v6.gateway.into()));
    services::Config {
        mac: MacAddr(config.gateway_mac),
        mtu: config.mtu,
        domain: Some(domain.clone()),
        search: vec![domain.clone()],
        hosts: addresses.map(|address| (gateway.clone(), address)).collect(),
        ipv4,
        ipv6,
        lease_time: services::LEASE_TIME_DEFAULT,
        leases_per_port_max: services::LEASES_PER_PORT_DEFAULT,
        disabled: services::Disabled::default(),
        seed,
    }
}

/// Returns the addresses of the gateway that `config` describes, and of DNS.
pub fn gateway_addresses(config: &Config) -> Vec<IpAddr> {
    let own = config.ipv6.map(|_| services::link_local(MacAddr(config.gateway_mac)).into());
    config.own_addresses().map(|(address, _)| address).chain(own).collect()
}

/// Checks the name and the settings of a port before it is made.
///
/// # Errors
/// [`PortError`].
pub fn check_port(
    name: &str,
    attachment: &Attachment,
    settings: &PortSettings,
) -> Result<(), PortError> {
    check_name(name)?;
    check_mtu(attachment, settings)?;
    if let Attachment::Vxlan(settings) = attachment {
        settings.check()?;
    }
    check_queue_len(settings.queue_len)
}

/// Checks that a port with this device may have the MTU of its settings.
///
/// # Errors
/// [`PortError::UplinkMtu`], [`PortError::TunnelMtu`].
pub(super) fn check_mtu(attachment: &Attachment, settings: &PortSettings) -> Result<(), PortError> {
    match settings.mtu {
        Some(_) if attachment.is_uplink() => Err(PortError::UplinkMtu),
        Some(_) if attachment.is_tunnel() => Err(PortError::TunnelMtu),
        _ => Ok(()),
    }
}

/// Checks the length of a queue.
///
/// # Errors
/// [`PortError::QueueLen`].
pub(super) fn check_queue_len(len_max: usize) -> Result<(), PortError> {
    match len_max {
        1..=QUEUE_LEN_MAX => Ok(()),
        _ => Err(PortError::QueueLen(len_max)),
    }
}

pub(super) fn check_name(name: &str) -> Result<(), PortError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_dots = name.bytes().all(|byte| byte == b'.');
    if name.len() > NAME_BYTES_MAX || is_dots || !name.bytes().all(is_allowed) {
        return Err(PortError::Name(name.to_owned()));
    }
    Ok(())
}
