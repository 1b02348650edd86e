//! Encodes and decodes socket addresses and control messages in the kernel's layout.
//!
//! Every read is bounds-checked: a message that is too short is ignored.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU8;

/// Bytes of the larger socket address, `sockaddr_in6`.
pub(super) const ADDRESS_BYTES: usize = 28;
/// Bytes of `sockaddr_in`.
const ADDRESS_V4_BYTES: usize = 16;

/// Bytes for the control messages of one receive. The largest is `sock_extended_err` with an IPv6
/// address: 16 + 16 + 28. Others are a traffic class and a segment size, 24 each, and the
/// destination address of a datagram, 40.
pub(super) const CONTROL_BYTES: usize = 192;

/// `in_pktinfo`: interface, local address, destination address of the header.
const PKTINFO_V4_BYTES: usize = 12;
/// `in6_pktinfo`: address, interface.
const PKTINFO_V6_BYTES: usize = 20;
/// Bytes for the control messages of one send: a segment size, a source address and a hop limit,
/// each padded.
const CONTROL_TO_SEND_BYTES: usize = 3 * HEADER_BYTES + 8 + PKTINFO_V6_BYTES + 4 + 8;

/// Header of a control message: length (one machine word), level, type.
const HEADER_BYTES: usize = size_of::<usize>() + 8;
const _: () = assert!(HEADER_BYTES == size_of::<libc::cmsghdr>());

/// Memory for control messages, aligned as the kernel requires.
#[repr(align(8))]
pub(super) struct Control(pub(super) [u8; CONTROL_BYTES]);

impl Control {
    pub(super) fn new() -> Self {
        Self([0; CONTROL_BYTES])
    }
}

/// A socket address in the kernel's layout.
pub(super) struct AddressBytes {
    bytes: [u8; ADDRESS_BYTES],
    len: usize,
}

impl AddressBytes {
    /// Encodes `address`; `None` gives no bytes.
    pub(super) fn encode(address: Option<SocketAddr>) -> Self {
        let mut bytes = [0; ADDRESS_BYTES];
        let len = match address {
            None => 0,
            Some(SocketAddr::V4(address)) => {
                bytes[0..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
                bytes[4..8].copy_from_slice(&address.ip().octets());
                ADDRESS_V4_BYTES
            }
            Some(SocketAddr::V6(address)) => {
                bytes[0..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
                bytes[4..8].copy_from_slice(&address.flowinfo().to_ne_bytes());
                bytes[8..24].copy_from_slice(&address.ip().octets());
                bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
                ADDRESS_BYTES
            }
        };
        Self { bytes, len }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Decodes a socket address; `None` for other families and for too few bytes.
pub(super) fn decode_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(array(bytes, 0)?));
    let port = u16::from_be_bytes(array(bytes, 2)?);
    match family {
        libc::AF_INET => {
            let ip = Ipv4Addr::from(array::<4>(bytes, 4)?);
            Some(SocketAddr::new(IpAddr::V4(ip), port))
        }
        libc::AF_INET6 => {
            let flow = u32::from_ne_bytes(array(bytes, 4)?);
            let ip = Ipv6Addr::from(array::<16>(bytes, 8)?);
            let scope = u32::from_ne_bytes(array(bytes, 24)?);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, port, flow, scope)))
        }
        _ => None,
    }
}

/// A received control message.
pub(super) struct ControlMessage<'a> {
    pub(super) level: i32,
    pub(super) kind: i32,
    pub(super) data: &'a [u8],
}

/// Iterates over the control messages in `bytes`, which `recvmsg` filled. Ends at the first
/// malformed message.
pub(super) fn control_messages(bytes: &[u8]) -> impl Iterator<Item = ControlMessage<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let len = usize::from_ne_bytes(array(rest, 0)?);
        let level = i32::from_ne_bytes(array(rest, size_of::<usize>())?);
        let kind = i32::from_ne_bytes(array(rest, size_of::<usize>() + 4)?);
        let data = rest.get(HEADER_BYTES..len)?;
        rest = rest.get(align(len)..).unwrap_or(&[]);
        Some(ControlMessage { level, kind, data })
    })
}

/// Control messages to send.
#[repr(align(8))]
pub(super) struct ControlToSend {
    bytes: [u8; CONTROL_TO_SEND_BYTES],
    len: usize,
}

impl ControlToSend {
    pub(super) fn new() -> Self {
        Self { bytes: [0; CONTROL_TO_SEND_BYTES], len: 0 }
    }

    /// Adds a message. There is room for a segment size, a source address and a hop limit.
    pub(super) fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let (word, len) = (size_of::<usize>(), HEADER_BYTES + data.len());
        let bytes = &mut self.bytes[self.len..self.len + align(len)];
        bytes[..word].copy_from_slice(&len.to_ne_bytes());
        bytes[word..word + 4].copy_from_slice(&level.to_ne_bytes());
        bytes[word + 4..word + 8].copy_from_slice(&kind.to_ne_bytes());
        bytes[HEADER_BYTES..len].copy_from_slice(data);
        self.len += align(len);
    }

    /// Adds the source address for a datagram (`in_pktinfo`, `in6_pktinfo`).
    pub(super) fn push_source(&mut self, source: IpAddr) {
        match source {
            IpAddr::V4(source) => {
                let mut info = [0; PKTINFO_V4_BYTES];
                info[4..8].copy_from_slice(&source.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            IpAddr::V6(source) => {
                let mut info = [0; PKTINFO_V6_BYTES];
                info[..16].copy_from_slice(&source.octets());
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    /// Adds the hop limit for a datagram.
    pub(super) fn push_hops(&mut self, is_v6: bool, hops: NonZeroU8) {
        let (level, kind) = if is_v6 {
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)
        } else {
            (libc::IPPROTO_IP, libc::IP_TTL)
        };
        self.push(level, kind, &i32::from(hops.get()).to_ne_bytes());
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The local address at which a datagram arrived, if the message is an `in_pktinfo` or
/// `in6_pktinfo`. It is the address to answer from, also for a broadcast.
pub(super) fn destination(message: &ControlMessage<'_>) -> Option<IpAddr> {
    match (message.level, message.kind) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            Some(Ipv4Addr::from(array::<4>(message.data, 4)?).into())
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            Some(Ipv6Addr::from(array::<16>(message.data, 0)?).into())
        }
        _ => None,
    }
}

/// Copies `N` bytes from `at`; `None` if there are fewer.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn align(len: usize) -> usize {
    len.saturating_add(size_of::<usize>() - 1) & !(size_of::<usize>() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_encoding() {
        for text in ["192.0.2.7:65535", "[2001:db8::1]:53", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().expect("an address");
            let bytes = AddressBytes::encode(Some(address));
            assert_eq!(decode_address(bytes.as_bytes()), Some(address));
            assert_eq!(decode_address(&bytes.as_bytes()[..bytes.len - 9]), None);
        }
        assert!(AddressBytes::encode(None).as_bytes().is_empty());
        assert_eq!(decode_address(&[]), None);
    }

    #[test]
    fn a_source_is_read_as_the_destination() {
        for text in ["192.0.2.7", "2001:db8::1"] {
            let address: IpAddr = text.parse().expect("an address");
            let mut control = ControlToSend::new();
            control.push(libc::IPPROTO_UDP, 103, &1400u16.to_ne_bytes());
            control.push_source(address);
            let found: Vec<_> =
                control_messages(control.as_bytes()).map(|message| destination(&message)).collect();
            assert_eq!(found, [None, Some(address)]);
        }
    }

    #[test]
    fn control_messages_are_bounded() {
        let mut control = ControlToSend::new();
        control.push(17, 104, &1400u16.to_ne_bytes());
        control.push(0, 1, &7u16.to_ne_bytes());
        let mut bytes = Vec::from(control.as_bytes());
        let values: Vec<_> = control_messages(&bytes)
            .map(|message| (message.level, message.kind, message.data.len()))
            .collect();
        assert_eq!(values, [(17, 104, 2), (0, 1, 2)]);
        // A length beyond the end, and lengths shorter than the message's header.
        for len in [usize::MAX, 4096, HEADER_BYTES - 1, 0] {
            bytes[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(control_messages(&bytes).count(), 0);
        }
        assert_eq!(control_messages(&bytes[..5]).count(), 0);
    }
}
