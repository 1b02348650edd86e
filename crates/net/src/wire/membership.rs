//! Group membership messages: IGMP (RFC 1112, RFC 2236, RFC 3376) and multicast listener discovery
//! (RFC 2710, RFC 3810), as hosts send and receive them.
//!
//! RFC 3810 transfers IGMPv3 to IPv6, so both protocols have the same layouts except for the size
//! of an address and of the response code. [`Version`] names IGMP's versions; MLD version 1 counts
//! as [`Version::V2`] and MLD version 2 as [`Version::V3`].
//!
//! Hosts report groups without source filters: records have no sources. The checksum of IGMP covers
//! the message, that of MLD a pseudo-header too; the caller verifies and computes both.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::field::{read, read_u16, write, write_u16};
use super::{MacAddr, ParseError, Protocol, ipv4, ipv6};

/// Protocol version of a querier, and so of the answers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// IGMPv1 (RFC 1112 appendix I).
    V1,
    /// IGMPv2 (RFC 2236) or MLDv1 (RFC 2710).
    V2,
    /// IGMPv3 (RFC 3376) or MLDv2 (RFC 3810).
    V3,
}

/// A router asks which groups have members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Query {
    /// Version of the querier.
    pub version: Version,
    /// The group; `None` in a general query.
    pub group: Option<IpAddr>,
    /// Longest delay of the answer in milliseconds.
    pub response_max_ms: u32,
    /// The querier's robustness variable; zero if the message has none.
    pub robustness: u8,
    /// Seconds between general queries; zero if the message does not say.
    pub interval_s: u32,
}

/// A received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Received {
    /// A query.
    Query(Query),
    /// Another host reports this group, in version 1 or 2.
    Report(IpAddr),
    /// Any other type.
    Other,
}

impl Received {
    /// Reads the message of `len` bytes that starts with `bytes`: IGMP if `v4` is set, else MLD.
    /// The first [`QUERY_LEN_MAX`] bytes suffice. The checksum is not verified.
    ///
    /// # Errors
    /// A truncated message, a query of a length that no version has or that claims more sources
    /// than it has room for, and a group that is not multicast.
    pub fn parse(bytes: &[u8], len: usize, v4: bool) -> Result<Self, ParseError> {
        let kind = *bytes.first().ok_or(ParseError::Truncated)?;
        let kinds = Kinds::of(v4);
        let is_query = kind == kinds.query;
        if !is_query && kind != kinds.report_v2 && !(v4 && kind == IGMP_REPORT_V1) {
            return Ok(Self::Other);
        }
        let (fixed, address) = (kinds.fixed_len, kinds.address_len);
        if bytes.len() < fixed || len < fixed {
            return Err(ParseError::Truncated);
        }
        let at = fixed - address;
        let group: IpAddr = match v4 {
            true => Ipv4Addr::from(read::<4>(bytes, at)).into(),
            false => Ipv6Addr::from(read::<16>(bytes, at)).into(),
        };
        let general = is_query && group.is_unspecified();
        if !general && !group.is_multicast() {
            return Err(ParseError::BadAddress);
        }
        if !is_query {
            return Ok(Self::Report(group));
        }
        let group = Some(group).filter(|_| !general);
        let code = if v4 { bytes[at::IGMP_CODE].into() } else { read_u16(bytes, at::MLD_CODE) };
        if len == fixed {
            // RFC 3376 §7.1: a zero code is that of IGMPv1, whose response time is fixed.
            let (version, response_max_ms) = match (v4, code) {
                (true, 0) => (Version::V1, RESPONSE_MAX_V1_MS),
                (true, code) => (Version::V2, u32::from(code) * IGMP_UNIT_MS),
                (false, code) => (Version::V2, code.into()),
            };
            let (robustness, interval_s) = (0, 0);
            return Ok(Self::Query(Query {
                version,
                group,
                response_max_ms,
                robustness,
                interval_s,
            }));
        }
        if len < fixed + V3_EXTRA_LEN || bytes.len() < fixed + V3_EXTRA_LEN {
            return Err(ParseError::BadLength);
        }
        let sources = usize::from(read_u16(bytes, fixed + at::SOURCES));
        if len < fixed + V3_EXTRA_LEN + sources * address {
            return Err(ParseError::BadLength);
        }
        let response_max_ms = match v4 {
            true => floating(code.into(), CODE_BITS_8) * IGMP_UNIT_MS,
            false => floating(code.into(), CODE_BITS_16),
        };
        Ok(Self::Query(Query {
            version: Version::V3,
            group,
            response_max_ms,
            robustness: bytes[fixed] & ROBUSTNESS,
            interval_s: floating(bytes[fixed + 1].into(), CODE_BITS_8),
        }))
    }
}

/// Kind of a group record (RFC 3376 §4.2.12, RFC 3810 §5.2.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// The host is a member: an answer to a query.
    IsExclude = 2,
    /// The host has left the group.
    ToInclude = 3,
    /// The host has joined the group.
    ToExclude = 4,
}

/// A message that a host sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Report<'a> {
    /// Version 3: several groups of one family.
    Records(&'a [(RecordKind, IpAddr)]),
    /// Version 1 or 2: the host is a member of the group.
    Member(Version, IpAddr),
    /// Version 2: the host has left the group.
    Leave(IpAddr),
}

impl Report<'_> {
    /// Destination of the message; `None` if it has no record.
    pub fn destination(&self) -> Option<IpAddr> {
        let to_routers = |group: IpAddr, v4: Ipv4Addr, v6| match group {
            IpAddr::V4(_) => IpAddr::V4(v4),
            IpAddr::V6(_) => IpAddr::V6(v6),
        };
        match *self {
            Self::Records(records) => {
                Some(to_routers(records.first()?.1, V3_ROUTERS_V4, V3_ROUTERS_V6))
            }
            Self::Member(_, group) => Some(group),
            Self::Leave(group) => Some(to_routers(group, ALL_ROUTERS_V4, ALL_ROUTERS_V6)),
        }
    }

    /// Writes the message at the start of `bytes`, whose checksum is zero, and returns its length.
    /// `bytes` must have room for [`REPORT_LEN_MAX`], and there may be at most [`RECORDS_MAX`]
    /// records.
    pub fn emit(&self, bytes: &mut [u8]) -> usize {
        let v4 = self.destination().is_none_or(|to| to.is_ipv4());
        let kinds = Kinds::of(v4);
        let (kind, group) = match *self {
            Self::Records(records) => {
                bytes[..HEADER_LEN].fill(0);
                bytes[0] = kinds.report_v3;
                write_u16(bytes, at::RECORDS, records.len() as u16);
                let mut len = HEADER_LEN;
                for &(kind, group) in records {
                    write(bytes, len, &[kind as u8, 0, 0, 0]);
                    len += RECORD_HEADER_LEN + emit_address(group, bytes, len + RECORD_HEADER_LEN);
                }
                return len;
            }
            Self::Member(Version::V1, group) if v4 => (IGMP_REPORT_V1, group),
            Self::Member(_, group) => (kinds.report_v2, group),
            Self::Leave(group) => (kinds.leave, group),
        };
        bytes[..kinds.fixed_len].fill(0);
        bytes[0] = kind;
        emit_address(group, bytes, kinds.fixed_len - kinds.address_len);
        kinds.fixed_len
    }
}

fn emit_address(address: IpAddr, bytes: &mut [u8], at: usize) -> usize {
    match address {
        IpAddr::V4(v4) => write(bytes, at, &v4.octets()),
        IpAddr::V6(v6) => write(bytes, at, &v6.octets()),
    }
    if address.is_ipv4() { 4 } else { 16 }
}

/// Link-layer address of a group (RFC 1112 §6.4, RFC 2464 §7).
pub fn group_mac(group: IpAddr) -> MacAddr {
    match group {
        IpAddr::V4(v4) => {
            let [_, b, c, d] = v4.octets();
            MacAddr([0x01, 0, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(v6) => {
            let [.., a, b, c, d] = v6.octets();
            MacAddr([0x33, 0x33, a, b, c, d])
        }
    }
}

/// True if `group` is one whose members report it: neither all systems of the link, of which every
/// host is a member, nor a group of a scope within the host (RFC 3376 §6, RFC 3810 §6).
pub fn is_reported(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(v4) => v4.is_multicast() && v4 != ALL_SYSTEMS,
        IpAddr::V6(v6) => v6.is_multicast() && v6 != ALL_NODES && scope(v6) >= LINK_SCOPE,
    }
}

/// Scope of an IPv6 multicast address (RFC 4291 §2.7).
pub fn scope(group: Ipv6Addr) -> u8 {
    group.octets()[1] & 0x0f
}

/// True if an IP header has a router alert: in the options of IPv4 (RFC 2113), or for MLD in the
/// hop-by-hop header of IPv6 (RFC 2711). `ip` are the bytes before the message, whose validity has
/// been checked.
pub fn has_router_alert(ip: &[u8]) -> bool {
    let v4 = ip.first().is_some_and(|first| first >> 4 == 4);
    let mut options = if v4 {
        ip.get(ipv4::HEADER_LEN..).unwrap_or_default()
    } else {
        let extensions = ip.get(ipv6::HEADER_LEN..).unwrap_or_default();
        match extensions {
            [_, len, ..] if ip[at::NEXT_HEADER] == Protocol::HOP_BY_HOP.0 => {
                extensions.get(2..(usize::from(*len) + 1) * 8).unwrap_or_default()
            }
            _ => &[],
        }
    };
    let (alert, pad) = if v4 { (&ROUTER_ALERT_V4[..], 1) } else { (&ROUTER_ALERT_V6[2..6], 0) };
    while let [kind, rest @ ..] = options {
        if options.starts_with(alert) {
            return true;
        }
        let len = match rest.first() {
            _ if *kind == pad => 1,
            // The end of the options of IPv4.
            _ if *kind == 0 => return false,
            Some(len) if v4 => usize::from(*len).max(1),
            Some(len) => usize::from(*len) + 2,
            None => return false,
        };
        options = options.get(len..).unwrap_or_default();
    }
    false
}

/// Message types of a protocol, and lengths.
struct Kinds {
    query: u8,
    report_v2: u8,
    leave: u8,
    report_v3: u8,
    /// Bytes of messages of versions 1 and 2, and of the part of queries that all versions share.
    fixed_len: usize,
    address_len: usize,
}

impl Kinds {
    const fn of(v4: bool) -> Self {
        if v4 {
            let (query, report_v2, leave, report_v3) = (0x11, 0x16, 0x17, 0x22);
            Self { query, report_v2, leave, report_v3, fixed_len: 8, address_len: 4 }
        } else {
            let (query, report_v2, leave, report_v3) = (MLD_QUERY, MLD_REPORT, 132, 143);
            Self { query, report_v2, leave, report_v3, fixed_len: 24, address_len: 16 }
        }
    }
}

/// A value of a floating-point code with three bits of exponent (RFC 3376 §4.1.1, §4.1.7, RFC 3810
/// §5.1.3).
fn floating(code: u32, mantissa_bits: u32) -> u32 {
    if code >> (mantissa_bits + 3) == 0 {
        return code;
    }
    let mantissa = code & ((1 << mantissa_bits) - 1) | 1 << mantissa_bits;
    mantissa << ((code >> mantissa_bits & 7) + 3)
}

/// ICMPv6 type of a query (RFC 3810 §5.1).
pub const MLD_QUERY: u8 = 130;
/// ICMPv6 type of a version 1 report (RFC 2710 §3).
pub const MLD_REPORT: u8 = 131;
/// Bytes of a query without sources, in the longest form.
pub const QUERY_LEN_MAX: usize = 28;
/// Maximum number of records in one report: over IPv6 it fits the minimum MTU with all headers.
pub const RECORDS_MAX: usize = 60;
/// Length of the longest report.
pub const REPORT_LEN_MAX: usize = HEADER_LEN + RECORDS_MAX * (RECORD_HEADER_LEN + 16);
/// Offset of the checksum in all messages.
pub const CHECKSUM_OFFSET: usize = 2;
/// All systems on the link (RFC 1112 §4).
pub const ALL_SYSTEMS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
/// All nodes on the link (RFC 4291 §2.7.1).
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Router alert option of IPv4 (RFC 2113).
pub const ROUTER_ALERT_V4: [u8; 4] = [0x94, 4, 0, 0];
/// Hop-by-hop header with a router alert for MLD (RFC 2711) and padding; ICMPv6 follows.
pub const ROUTER_ALERT_V6: [u8; 8] = [Protocol::ICMPV6.0, 0, 5, 2, 0, 0, 1, 0];
/// Link-local scope (RFC 4291 §2.7).
pub const LINK_SCOPE: u8 = 2;

/// All routers on the link over IPv4 (RFC 2236 §9).
const ALL_ROUTERS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// All routers on the link over IPv6 (RFC 2710 §5, RFC 4291 §2.7.1).
pub const ALL_ROUTERS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// All routers of version 3 (RFC 3376 §4.2.14, RFC 3810 §5.2.14).
const V3_ROUTERS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
const V3_ROUTERS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// IGMP type of a version 1 report (RFC 1112 appendix I).
const IGMP_REPORT_V1: u8 = 0x12;
/// Response time of version 1 in milliseconds (RFC 2236 §4).
const RESPONSE_MAX_V1_MS: u32 = 10_000;
/// Milliseconds of a unit of IGMP's response code.
const IGMP_UNIT_MS: u32 = 100;
/// Mantissa bits of 8-bit and of 16-bit codes.
const CODE_BITS_8: u32 = 4;
const CODE_BITS_16: u32 = 12;
/// Bits of the robustness variable in a version 3 query.
const ROBUSTNESS: u8 = 7;
/// Bytes of a version 3 query behind the group: flags, interval, number of sources.
const V3_EXTRA_LEN: usize = 4;
/// Bytes of a version 3 report before its records.
const HEADER_LEN: usize = 8;
/// Bytes of a record before its group.
const RECORD_HEADER_LEN: usize = 4;

/// Field offsets.
mod at {
    pub(super) const IGMP_CODE: usize = 1;
    pub(super) const MLD_CODE: usize = 4;
    pub(super) const RECORDS: usize = 6;
    /// In an IPv6 header.
    pub(super) const NEXT_HEADER: usize = 6;
    /// From the end of the group.
    pub(super) const SOURCES: usize = 2;
}

#[cfg(test)]
mod tests;
