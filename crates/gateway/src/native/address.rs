//! Socket addresses in the program's memory.

use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use towpath_io::native::caller::Caller;

/// An address that a program passes to connect(2) for an internet socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// An internet address.
    Of(SocketAddr),
    /// None: the socket is to be freed from its peer.
    Unspecified,
    /// One that the kernel refuses with this error.
    Invalid(Errno),
}

impl Address {
    /// Copies an address of `len` bytes from the caller.
    ///
    /// # Errors
    /// EFAULT.
    pub(super) fn read(caller: &Caller, at: u64, len: u32) -> Result<Self, Errno> {
        let mut bytes = [0; V6_BYTES];
        let bytes = &mut bytes[..V6_BYTES.min(len as usize)];
        caller.read(at, bytes)?;
        Ok(Self::parse(bytes))
    }

    /// Reads the first bytes of a `struct sockaddr`.
    fn parse(bytes: &[u8]) -> Self {
        let Some(family) = bytes.first_chunk() else { return Self::Invalid(Errno::INVAL) };
        let address = match u16::from_ne_bytes(*family).into() {
            AF_UNSPEC => return Self::Unspecified,
            AF_INET => v4(bytes),
            AF_INET6 => v6(bytes),
            _ => return Self::Invalid(Errno::AFNOSUPPORT),
        };
        address.map_or(Self::Invalid(Errno::INVAL), Self::Of)
    }
}

/// Reads a `struct sockaddr_in`. The kernel requires the padding, too.
fn v4(bytes: &[u8]) -> Option<SocketAddr> {
    let bytes: &[u8; V4_BYTES] = bytes.first_chunk()?;
    let [_, _, high, low, a, b, c, d, ..] = *bytes;
    Some(SocketAddr::from(([a, b, c, d], u16::from_be_bytes([high, low]))))
}

/// Reads a `struct sockaddr_in6`. The scope may be missing (`SIN6_LEN_RFC2133`).
fn v6(bytes: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    let flow = u32::from_be_bytes(*bytes.get(4..)?.first_chunk()?);
    let ip: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
    let scope = bytes.get(24..)?.first_chunk().map_or(0, |scope| u32::from_ne_bytes(*scope));
    Some(SocketAddrV6::new(ip.into(), port, flow, scope).into())
}

/// Returns the IPv4 address that an address mapped to IPv6 stands for.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns `address` for a socket of the family of `like`: IPv4 addresses are mapped to IPv6 if
/// need be.
pub(super) fn like(address: SocketAddr, like: SocketAddr) -> SocketAddr {
    match (address.ip(), like) {
        (IpAddr::V4(v4), SocketAddr::V6(_)) => {
            SocketAddr::new(v4.to_ipv6_mapped().into(), address.port())
        }
        _ => address,
    }
}

/// Writes an address where a caller of getsockname(2) wants it, as far as there is room, and its
/// length.
///
/// # Errors
/// EFAULT, and EINVAL for a negative room.
pub(super) fn write(
    caller: &Caller,
    at: u64,
    len_at: u64,
    address: SocketAddr,
) -> Result<(), Errno> {
    let mut room = [0; 4];
    caller.read(len_at, &mut room)?;
    let room = usize::try_from(i32::from_ne_bytes(room)).map_err(|_| Errno::INVAL)?;
    let bytes = bytes(address);
    let written = &bytes[..room.min(bytes.len())];
    if !written.is_empty() {
        caller.write(at, written)?;
    }
    caller.write(len_at, &(bytes.len() as u32).to_ne_bytes())
}

/// Returns `struct sockaddr_in` or `sockaddr_in6`.
fn bytes(address: SocketAddr) -> Vec<u8> {
    let family = if address.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut bytes = (family as u16).to_ne_bytes().to_vec();
    bytes.extend(address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => {
            bytes.extend(v4.ip().octets());
            bytes.resize(V4_BYTES, 0);
        }
        SocketAddr::V6(v6) => {
            bytes.extend([0; 4]);
            bytes.extend(v6.ip().octets());
            bytes.resize(V6_BYTES, 0);
        }
    }
    bytes
}

/// Numbers of the families on Linux.
const AF_UNSPEC: i32 = 0;
const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;
/// Lengths of the two structures.
const V4_BYTES: usize = 16;
const V6_BYTES: usize = 28;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    #[test]
    fn addresses_are_read_as_written() {
        for (text, least) in
            [("192.0.2.1:80", 16), ("[2001:db8::1]:443", 24), ("[::ffff:192.0.2.1]:1", 24)]
        {
            let address: SocketAddr = text.parse().unwrap();
            let bytes = bytes(address);
            for len in least..=bytes.len() {
                assert_eq!(Address::parse(&bytes[..len]), Address::Of(address));
            }
            for len in 0..least {
                assert_eq!(Address::parse(&bytes[..len]), Address::Invalid(Errno::INVAL), "{len}");
            }
        }
        let mut scoped = bytes((Ipv6Addr::LOCALHOST, 1).into());
        scoped[24..].copy_from_slice(&2_u32.to_ne_bytes());
        let expected = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 1, 0, 2);
        assert_eq!(Address::parse(&scoped), Address::Of(expected.into()));
        let unix = [1_u16.to_ne_bytes(), *b"/x"].concat();
        assert_eq!(Address::parse(&unix), Address::Invalid(Errno::AFNOSUPPORT));
        assert_eq!(Address::parse(&[0, 0]), Address::Unspecified);
    }

    #[test]
    fn mapped_addresses() {
        let plain: SocketAddr = "192.0.2.1:80".parse().unwrap();
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:80".parse().unwrap();
        assert_eq!((canonical(mapped), canonical(plain)), (plain, plain));
        assert_eq!((like(plain, mapped), like(plain, plain)), (mapped, plain));
    }
}
