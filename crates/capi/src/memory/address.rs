//! Socket addresses of C as bytes: `struct sockaddr_in` and `struct sockaddr_in6`.

use crate::errno::{Errno, Outcome};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use towpath::layers::net::socket::Family;

/// Bytes of `struct sockaddr_in`.
const V4_LEN: usize = size_of::<libc::sockaddr_in>();
/// Bytes of `struct sockaddr_in6`.
const V6_LEN: usize = size_of::<libc::sockaddr_in6>();
/// Bytes of it without the scope, which are enough in Linux (RFC 2133).
const V6_LEN_LEAST: usize = 24;

/// An address that a program passed.
pub(crate) enum Given {
    /// An address.
    Address(SocketAddr),
    /// `AF_UNSPEC`.
    Unspecified,
}

/// An address that is returned to a program.
pub(crate) enum Name {
    /// An IPv4 or IPv6 address.
    Internet(SocketAddr),
    /// A `struct sockaddr_ll`, and how many of its bytes are returned.
    Link([u8; size_of::<libc::sockaddr_ll>()], usize),
}

impl From<SocketAddr> for Name {
    fn from(address: SocketAddr) -> Self {
        Name::Internet(address)
    }
}

/// The family at the beginning of an address.
pub(crate) fn family(bytes: &[u8]) -> Outcome<i32> {
    let family = bytes.first_chunk::<2>().ok_or(Errno::INVAL)?;
    Ok(i32::from(u16::from_ne_bytes(*family)))
}

/// Parses an address for a socket of the family `own`.
pub(crate) fn parse(bytes: &[u8], own: Family) -> Outcome<Given> {
    let given = family(bytes)?;
    if given == libc::AF_UNSPEC {
        return Ok(Given::Unspecified);
    }
    let wanted =
        if own == Family::V4 { (libc::AF_INET, V4_LEN) } else { (libc::AF_INET6, V6_LEN_LEAST) };
    if bytes.len() < wanted.1 {
        return Err(Errno::INVAL);
    }
    if given != wanted.0 {
        return Err(Errno(libc::EAFNOSUPPORT));
    }
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    Ok(Given::Address(match own {
        Family::V4 => {
            let address: [u8; 4] = bytes[4..8].try_into().map_err(|_| Errno::INVAL)?;
            (Ipv4Addr::from(address), port).into()
        }
        Family::V6 => {
            let address: [u8; 16] = bytes[8..24].try_into().map_err(|_| Errno::INVAL)?;
            (Ipv6Addr::from(address), port).into()
        }
    }))
}

/// Parses the destination of a datagram from a socket of the family `own`, as Linux does. `None`
/// for `AF_UNSPEC` on an IPv6 socket.
pub(crate) fn parse_destination(bytes: &[u8], own: Family) -> Outcome<Option<SocketAddr>> {
    let given = family(bytes)?;
    let v4 = || -> Outcome<(Ipv4Addr, u16)> {
        let bytes = bytes.first_chunk::<V4_LEN>().ok_or(Errno::INVAL)?;
        let address = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
        Ok((address, u16::from_be_bytes([bytes[2], bytes[3]])))
    };
    match own {
        Family::V4 => {
            let (address, port) = v4()?;
            let known = [libc::AF_INET, libc::AF_UNSPEC].contains(&given);
            if !known {
                return Err(Errno(libc::EAFNOSUPPORT));
            }
            Ok(Some((address, port).into()))
        }
        Family::V6 => match given {
            libc::AF_UNSPEC => Ok(None),
            libc::AF_INET => {
                let (address, port) = v4()?;
                Ok(Some((address.to_ipv6_mapped(), port).into()))
            }
            libc::AF_INET6 => match parse(bytes, own)? {
                Given::Address(address) => Ok(Some(address)),
                Given::Unspecified => Ok(None),
            },
            _ => Err(Errno::INVAL),
        },
    }
}

/// Parses the destination of a packet from a raw IPv6 socket, as Linux does.
pub(crate) fn parse_raw(bytes: &[u8]) -> Outcome<Option<SocketAddr>> {
    if bytes.len() < V6_LEN_LEAST {
        return Err(Errno::INVAL);
    }
    match parse(bytes, Family::V6)? {
        Given::Address(address) => Ok(Some(address)),
        Given::Unspecified => Ok(None),
    }
}

/// Encodes an address for C.
pub(crate) fn write(address: Name) -> Vec<u8> {
    match address {
        Name::Link(bytes, len) => bytes[..len].to_vec(),
        Name::Internet(SocketAddr::V4(v4)) => {
            let mut bytes = vec![0; V4_LEN];
            bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes[2..4].copy_from_slice(&v4.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            bytes
        }
        Name::Internet(SocketAddr::V6(v6)) => {
            let mut bytes = vec![0; V6_LEN];
            bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            bytes[2..4].copy_from_slice(&v6.port().to_be_bytes());
            bytes[8..24].copy_from_slice(&SocketAddrV6::ip(&v6).octets());
            bytes
        }
    }
}
