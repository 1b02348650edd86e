//! What a host is told when it is made.

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

/// What a host is told when it is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// Our addresses, with the lengths of their links' prefixes.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Next hops for what is not on the link.
    pub gateways: Vec<IpAddr>,
    /// Link-layer address; one is made up without.
    pub mac: Option<[u8; 6]>,
    /// Largest IP packet of the link.
    pub mtu: u16,
    /// Bytes of packet memory; a quarter more for what is copied to be sent.
    pub memory: usize,
    /// Settings of TCP.
    pub tcp: Settings,
    /// Bytes that one socket lends at a time, at most; see [`super::LENT_OVERHEAD`].
    pub lent_by_socket: usize,
    /// The same for all sockets together.
    pub lent_by_all: usize,
    /// Bytes of files that are kept in memory to be sent
    /// ([`EventQueue::send_file`](crate::events::EventQueue::send_file)), at most. What is being
    /// sent counts, too.
    pub file_cache: usize,
    /// How long a receiver in this process keeps lent memory that the peer has acknowledged, or
    /// that was sent as a datagram: after one to two of these it is copied and goes back. `None`
    /// for as long as it likes.
    pub default_term: Option<Duration>,
    /// Finds the addresses of names: the system's resolver, unless told otherwise.
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
    /// With one address and the length of its link's prefix.
    pub fn with_address(address: impl Into<IpAddr>, prefix_len: u8) -> Self {
        Self { addresses: vec![(address.into(), prefix_len)], ..Self::default() }
    }

    /// Refuses what no stack can be made with.
    ///
    /// # Errors
    /// [`StartError`] says which value is wrong.
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

    /// What the stack is told. `secret` is one that nobody can know.
    pub fn stack(&self, secret: [u64; 2]) -> stack::Config {
        // Locally administered, and one host's alone (IEEE 802, bits 1 and 0 of the first byte).
        let [_, a, b, c, d, e, ..] = secret[0].to_ne_bytes();
        let address = |&(address, prefix_len): &(IpAddr, u8)| Address { address, prefix_len };
        stack::Config {
            mac: MacAddr(self.mac.unwrap_or([2, a, b, c, d, e])),
            addresses: self.addresses.iter().map(address).collect(),
            next_hops: self.gateways.clone(),
            transparent: false,
            secret,
            tcp: self.tcp,
            limits: stack::Limits::default(),
        }
    }
}

/// Why there is no host.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// An address has more prefix bits than bits.
    PrefixLength {
        /// The address.
        address: IpAddr,
        /// Bits of its prefix.
        len: u8,
    },
    /// The MTU is below what hosts must take.
    Mtu {
        /// What was asked for.
        mtu: u16,
        /// The least.
        min: u16,
    },
    /// Packet memory out of bounds.
    Memory(usize),
    /// The device cannot be used.
    Tap(TapError),
    /// The system has no thread or no descriptor left.
    Io(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrefixLength { address, len } => {
                write!(f, "{address}/{len}: the prefix is longer than the address")
            }
            Self::Mtu { mtu, min } => write!(f, "an MTU of {mtu} is too small: at least {min}"),
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
            Self::Tap(error) => Some(error),
            Self::Io(error) => Some(error),
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

/// Bytes of packet memory unless told otherwise.
const MEMORY_DEFAULT: usize = 64 << 20;
/// Least packet memory: a few super-packets each way.
const MEMORY_MIN: usize = 1 << 20;
/// Most packet memory.
const MEMORY_MAX: usize = 4 << 30;
/// Least MTU: a packet that every host of IPv4 takes (RFC 791 §3.1).
const MTU_MIN: u16 = 576;
/// The same with an address of IPv6 (RFC 8200 §5).
const MTU_IPV6_MIN: u16 = 1280;
/// Bytes lent by one socket: several windows of 4 MiB.
const LENT_BY_SOCKET_DEFAULT: usize = 64 << 20;
/// Bytes lent by all sockets: those of four.
const LENT_BY_ALL_DEFAULT: usize = 256 << 20;
/// Bytes of files in memory: as many as one socket may lend.
const FILE_CACHE_DEFAULT: usize = LENT_BY_SOCKET_DEFAULT;
