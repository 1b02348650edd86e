//! Encoding of rtnetlink requests and decoding of acknowledgements.
//!
//! Layouts are those of linux/netlink.h, linux/rtnetlink.h, linux/if_link.h and linux/if_addr.h.
//! Numbers are in the machine's byte order; each attribute starts at a multiple of four bytes.

use std::net::IpAddr;

use rustix::io::Errno;

use super::Route;

pub(super) const IFLA_ADDRESS: u16 = 1;
pub(super) const IFLA_IFNAME: u16 = 3;
pub(super) const IFLA_MTU: u16 = 4;
pub(super) const IFLA_TXQLEN: u16 = 13;
pub(super) const IFLA_AF_SPEC: u16 = 26;
pub(super) const IFLA_NET_NS_FD: u16 = 28;
pub(super) const IFLA_GSO_MAX_SIZE: u16 = 41;
pub(super) const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
pub(super) const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
pub(super) const IFA_ADDRESS: u16 = 1;
pub(super) const IFA_LOCAL: u16 = 2;
pub(super) const IFA_BROADCAST: u16 = 4;
pub(super) const RTA_DST: u16 = 1;
pub(super) const RTA_OIF: u16 = 4;
pub(super) const RTA_GATEWAY: u16 = 5;
pub(super) const RTA_PRIORITY: u16 = 6;
pub(super) const AF_INET6: u16 = 10;
/// The families, as single bytes.
pub(super) const AF_INET: u8 = 2;
pub(super) const AF_INET6_BYTE: u8 = 10;

/// A request under construction. [`Request::finish`] fills in its header.
pub(super) struct Request {
    bytes: Vec<u8>,
    kind: u16,
    flags: u16,
}

impl Request {
    /// Starts a change of the link `index` (`struct ifinfomsg`).
    pub(super) fn link(index: u32, up: bool) -> Self {
        let mut request = Self::new(RTM_NEWLINK, 0);
        request.bytes.extend([AF_UNSPEC, 0, 0, 0]); // family, padding, device type
        request.bytes.extend(index.to_ne_bytes());
        let flags = if up { IFF_UP } else { 0 };
        request.bytes.extend(flags.to_ne_bytes());
        request.bytes.extend(flags.to_ne_bytes()); // which flags to change
        request
    }

    /// Starts the addition of an address to the link `index` (`struct ifaddrmsg`).
    pub(super) fn address(index: u32, address: &IpAddr, prefix_len: u8) -> Self {
        let mut request = Self::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL);
        let link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let scope = if link_local { RT_SCOPE_LINK } else { RT_SCOPE_UNIVERSE };
        request.bytes.extend([family(address), prefix_len, IFA_F_NODAD, scope]);
        request.bytes.extend(index.to_ne_bytes());
        request
    }

    /// Starts a list of all links (`struct ifinfomsg`).
    pub(super) fn dump_links() -> Self {
        let mut request = Self::new(RTM_GETLINK, NLM_F_DUMP);
        request.bytes.extend([0; IFINFOMSG_LEN]);
        request
    }

    /// Starts a list of the routes of one family (`struct rtmsg`).
    pub(super) fn dump_routes(is_ipv4: bool) -> Self {
        let mut request = Self::new(RTM_GETROUTE, NLM_F_DUMP);
        request.bytes.extend([if is_ipv4 { AF_INET } else { AF_INET6_BYTE }]);
        request.bytes.extend([0; 11]);
        request
    }

    /// Starts a list of the addresses of one family (`struct ifaddrmsg`).
    pub(super) fn dump_addresses(is_ipv4: bool) -> Self {
        let mut request = Self::new(RTM_GETADDR, NLM_F_DUMP);
        request.bytes.extend([if is_ipv4 { AF_INET } else { AF_INET6_BYTE }]);
        request.bytes.extend([0; 7]);
        request
    }

    /// Starts the addition of a route (`struct rtmsg`). With `on_link`, its gateway need not be in
    /// a network of the link.
    pub(super) fn route(route: &Route, on_link: bool) -> Self {
        let mut request = Self::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL);
        let (source_len, tos) = (0, 0);
        let scope = if route.gateway.is_some() { RT_SCOPE_UNIVERSE } else { RT_SCOPE_LINK };
        request.bytes.extend([family(&route.destination), route.prefix_len, source_len, tos]);
        request.bytes.extend([RT_TABLE_MAIN, RTPROT_STATIC, scope, RTN_UNICAST]);
        let flags = if on_link { RTNH_F_ONLINK } else { 0 };
        request.bytes.extend(flags.to_ne_bytes());
        request
    }

    /// Appends an attribute.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nested(kind, |request| request.bytes.extend(value));
    }

    /// Appends an attribute that consists of the attributes that `fill` appends.
    pub(super) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend([0; ATTRIBUTE_HEADER_LEN]);
        fill(self);
        let length = u16::try_from(self.bytes.len() - start).expect("requests are short");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Returns the finished message (`struct nlmsghdr` and its payload).
    pub(super) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).expect("requests are short");
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[4..6].copy_from_slice(&self.kind.to_ne_bytes());
        let flags = NLM_F_REQUEST | NLM_F_ACK | self.flags;
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }

    fn new(kind: u16, flags: u16) -> Self {
        Self { bytes: vec![0; HEADER_LEN], kind, flags }
    }
}

/// The kernel's reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The kernel carried the request out.
    Done,
    /// The kernel refused the request, perhaps with an explanation.
    Refused { errno: Errno, text: Option<String> },
    /// Not a reply to this request.
    Other,
}

impl Reply {
    /// Parses the acknowledgement of request `sequence` from a received message.
    pub(super) fn parse(bytes: &[u8], sequence: u32) -> Self {
        Self::parse_ack(bytes, sequence).unwrap_or(Reply::Other)
    }

    fn parse_ack(bytes: &[u8], sequence: u32) -> Option<Self> {
        let length = usize::try_from(read_u32(bytes, 0)?).ok()?;
        let message = bytes.get(..length)?;
        let (kind, flags) = (read_u16(message, 4)?, read_u16(message, 6)?);
        if kind != NLMSG_ERROR || read_u32(message, 8)? != sequence {
            return None;
        }
        let error = read_u32(message, HEADER_LEN)?.cast_signed();
        if error == 0 {
            return Some(Reply::Done);
        }
        let number = error.checked_neg().filter(|number| ERRNO_RANGE.contains(number))?;
        let errno = Errno::from_raw_os_error(number);
        let text = if flags & NLM_F_ACK_TLVS == 0 { None } else { ack_text(message, flags) };
        Some(Reply::Refused { errno, text })
    }
}

/// Returns the text from the attributes after the error and the (possibly capped) request.
fn ack_text(message: &[u8], flags: u16) -> Option<String> {
    let request = HEADER_LEN + 4;
    let request_len = match flags & NLM_F_CAPPED {
        0 => usize::try_from(read_u32(message, request)?).ok()?,
        _ => HEADER_LEN,
    };
    let mut rest = message.get(request.checked_add(request_len.checked_next_multiple_of(4)?)?..)?;
    while !rest.is_empty() {
        let (length, kind) = (usize::from(read_u16(rest, 0)?), read_u16(rest, 2)?);
        let value = rest.get(ATTRIBUTE_HEADER_LEN..length)?;
        if kind == NLMSGERR_ATTR_MSG {
            let text = value.split(|&byte| byte == 0).next()?;
            return Some(String::from_utf8_lossy(text).into_owned());
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    None
}

/// Returns the attributes of a message, up to the first that does not parse.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(read_u16(bytes, 0)?), read_u16(bytes, 2)?);
        let value = bytes.get(ATTRIBUTE_HEADER_LEN..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(super) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn family(address: &IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => AF_INET,
        IpAddr::V6(_) => AF_INET6_BYTE,
    }
}

/// The kernel's range of error numbers (`MAX_ERRNO`).
pub(super) const ERRNO_RANGE: std::ops::Range<i32> = 1..4096;
pub(super) const HEADER_LEN: usize = 16;
/// Bytes of `struct ifinfomsg`.
pub(super) const IFINFOMSG_LEN: usize = 16;
const ATTRIBUTE_HEADER_LEN: usize = 4;
const AF_UNSPEC: u8 = 0;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
pub(super) const NLMSG_ERROR: u16 = 2;
const NLMSGERR_ATTR_MSG: u16 = 1;
pub(super) const IFF_UP: u32 = 1;
/// `RTNH_F_ONLINK`: the next hop is on the link, whatever its prefixes say.
const RTNH_F_ONLINK: u32 = 4;
const IFA_F_NODAD: u8 = 0x02;
pub(super) const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
pub(super) const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
pub(super) const RTN_UNICAST: u8 = 1;

/// Returns an attribute, padded.
#[cfg(test)]
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap();
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
