//! Settings of a host.

use crate::host::resolver::Resolver;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use towpath_io::tap::TapError;
use towpath_net::socket::DEFAULT_TERM;
use towpath_net::stack::{self, Address};
use towpath_net::tcp::Settings;
use towpath_net::wire::MacAddr;

/// Settings of a host.
#[derive(Clone, Debug)]
pub struct Config {
    /// The host's addresses, each with the length of its link's prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Next hops for destinations that are not on the link.
    pub gateways: Vec<IpAddr>,
    /// Link-layer address; a random one if `None`.
    pub mac: Option<[u8; 6]>,
    /// MTU: the largest IP packet of the link.
    pub mtu: u16,
    /// Bytes of packet memory. A quarter of this is added for data that is copied to be sent.
    pub memory: usize,
    /// On a device, the host probes for other stations with its addresses (RFC 5227, RFC 4862), and
    /// announces them. It uses its addresses meanwhile, and stops using one that another station
    /// has ([`Host::address_conflicts`](super::Host::address_conflicts)).
    pub detect_duplicates: bool,
    /// TCP settings.
    pub tcp: Settings,
    /// Most bytes that one socket lends at a time, counting [`super::LENT_OVERHEAD`] for each send.
    pub lent_by_socket: usize,
    /// Most bytes that all sockets together lend at a time, counted in the same way.
    pub lent_by_all: usize,
    /// Most bytes of files that are kept in memory for
    /// [`EventQueue::send_file`](crate::events::EventQueue::send_file), including those being sent.
    pub file_cache: usize,
    /// How long a receiver in this process may keep lent memory that the peer has acknowledged, or
    /// that was sent as a datagram. After one to two times this value the memory is copied and goes
    /// back. `None` means without limit.
    pub default_term: Option<Duration>,
    /// Finds the addresses of names; the system's resolver by default.
    pub resolver: Resolver,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            gateways: Vec::new(),
            mac: None,
            mtu: 1500,
            memory: MEMORY_DEFAULT,
            detect_duplicates: true,
            tcp: Settings::default(),
            lent_by_socket: LENT_BY_SOCKET_DEFAULT,
            lent_by_all: LENT_BY_ALL_DEFAULT,
            file_cache: FILE_CACHE_DEFAULT,
            default_term: Some(DEFAULT_TERM),
            resolver: Resolver::default(),
        }
    }
}

impl Config {
    /// Returns the default settings with one address and the length of its link's prefix.
    pub fn with_address(address: impl Into<IpAddr>, prefix_len: u8) -> Self {
        Self { addresses: vec![(address.into(), prefix_len)], ..Self::default() }
    }

    /// Checks that a stack can be created with these settings.
    ///
    /// # Errors
    /// The [`StartError`] names the wrong value.
    pub fn check(&self) -> Result<(), StartError> {
        for &(address, len) in &self.addresses {
            let len_max = if address.is_ipv4() { 32 } else { 128 };
            if len > len_max {
                return Err(StartError::PrefixLength { address, len });
            }
        }
        let v6 = self.addresses.iter().any(|(address, _)| address.is_ipv6());
        let mtu_min = if v6 { MTU_IPV6_MIN } else { MTU_MIN };
        if self.mtu < mtu_min {
            return Err(StartError::Mtu { mtu: self.mtu, min: mtu_min });
        }
        if !(MEMORY_MIN..=MEMORY_MAX).contains(&self.memory) {
            return Err(StartError::Memory(self.memory));
        }
        Ok(())
    }

    /// Returns the stack's settings. `secret` must be unpredictable.
    pub fn stack(&self, secret: [u64; 2]) -> stack::Config {
        let address = |&(address, prefix_len): &(IpAddr, u8)| Address { address, prefix_len };
        stack::Config {
            mac: self.mac.map_or_else(|| stack::Config::station_address(secret), MacAddr),
            addresses: self.addresses.iter().map(address).collect(),
            next_hops: self.gateways.clone(),
            transparent: false,
            secret,
            tcp: self.tcp,
            limits: stack::Limits::default(),
        }
    }
}

/// Why a host could not be started.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A prefix is longer than its address.
    PrefixLength {
        /// The address.
        address: IpAddr,
        /// Length of the prefix in bits.
        len: u8,
    },
    /// The MTU is below the minimum of its IP version.
    Mtu {
        /// The configured MTU.
        mtu: u16,
        /// The smallest allowed MTU.
        min: u16,
    },
    /// The size of packet memory is out of range.
    Memory(usize),
    /// The TAP device cannot be used.
    Tap(TapError),
    /// The system has no thread or descriptor left.
    Io(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrefixLength { address, len } => {
                write!(f, "{address}/{len}: the prefix is longer than the address")
            }
            Self::Mtu { mtu, min } => write!(f, "MTU {mtu} is too small; expected at least {min}"),
            Self::Memory(value) => write!(
                f,
                "{value} bytes of memory: between {MEMORY_MIN} and {MEMORY_MAX} are \
                 possible"
            ),
            Self::Tap(error) => write!(f, "the TAP device: {error}"),
            Self::Io(error) => write!(f, "starting: {error}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The message has the error itself.
            Self::Tap(error) => error.source(),
            Self::Io(error) => error.source(),
            _ => None,
        }
    }
}

impl From<TapError> for StartError {
    fn from(error: TapError) -> Self {
        Self::Tap(error)
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rustix::io::Errno> for StartError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl From<StartError> for io::Error {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Io(error) => error,
            StartError::Tap(_) => Self::other(error),
            _ => Self::new(io::ErrorKind::InvalidInput, error),
        }
    }
}

/// Bytes of packet memory by default.
const MEMORY_DEFAULT: usize = 64 << 20;
/// Smallest packet memory: a few super-packets in each direction.
const MEMORY_MIN: usize = 1 << 20;
/// Largest packet memory.
const MEMORY_MAX: usize = 4 << 30;
/// Smallest MTU: every IPv4 host accepts packets of this size (RFC 791 §3.1).
const MTU_MIN: u16 = 576;
/// Smallest MTU of a link with an IPv6 address (RFC 8200 §5).
const MTU_IPV6_MIN: u16 = 1280;
/// Bytes that one socket lends by default: several windows of 4 MiB.
const LENT_BY_SOCKET_DEFAULT: usize = 64 << 20;
/// Bytes that all sockets lend by default: as many as four sockets.
const LENT_BY_ALL_DEFAULT: usize = 256 << 20;
/// Bytes of files in memory by default: as many as one socket lends.
const FILE_CACHE_DEFAULT: usize = LENT_BY_SOCKET_DEFAULT;
