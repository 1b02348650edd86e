//! Addresses and routes that the kernel has in the current network namespace.
//!
//! A dump is many messages in several datagrams, ended by a message of its own. Messages that do
//! not parse are skipped. Limit: `DUMP_DATAGRAMS_MAX`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags, recv, sendto};

use super::message::{
    self, IFA_ADDRESS, IFA_LOCAL, RTA_DST, RTA_GATEWAY, RTA_OIF, RTA_PRIORITY, Request, attributes,
    read_u16, read_u32,
};
use super::{Netlink, NetlinkError, Route};

/// A default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultRoute {
    /// Index of its link.
    pub link: u32,
    /// The next hop; `None` if all destinations are on the link.
    pub gateway: Option<IpAddr>,
    /// The source address that it prefers.
    pub source: Option<IpAddr>,
    /// Its metric: the route with the least is used.
    pub metric: u32,
}

/// An address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    /// Index of the link.
    pub link: u32,
    /// The address.
    pub address: IpAddr,
    /// Bits of the network's prefix.
    pub prefix_len: u8,
    /// It is valid everywhere, not on one link or host only.
    pub is_global: bool,
    /// It should not be the source of new flows: it is deprecated, tentative, or temporary.
    pub is_passing: bool,
}

impl Netlink {
    /// Returns the default routes of one family in the main table; none if the kernel lacks IPv6.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn default_routes(&mut self, is_ipv4: bool) -> Result<Vec<DefaultRoute>, NetlinkError> {
        let mut routes = Vec::new();
        let done = self.dump("list routes", Request::dump_routes(is_ipv4), |body| {
            routes.extend(parse_default_route(body).filter(|_| is_of_family(body, is_ipv4)));
        });
        unless_missing(done, is_ipv4)?;
        Ok(routes)
    }

    /// Returns up to `most` routes of one family through the link `index` in the main table, and
    /// how many more there are. Default routes, and those that the kernel has made for addresses,
    /// do not count.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn routes(
        &mut self,
        index: u32,
        is_ipv4: bool,
        most: usize,
    ) -> Result<(Vec<Route>, usize), NetlinkError> {
        let (mut routes, mut more) = (Vec::new(), 0);
        let done = self.dump("list routes", Request::dump_routes(is_ipv4), |body| {
            let parsed = parse_route(body).filter(|parsed| parsed.link == index);
            match parsed.filter(|parsed| !parsed.is_kernels && is_of_family(body, is_ipv4)) {
                Some(Parsed { route, .. }) if route.prefix_len == 0 => {}
                Some(Parsed { route, .. }) if routes.len() < most => routes.push(route),
                Some(_) => more += 1,
                None => {}
            }
        });
        unless_missing(done, is_ipv4)?;
        Ok((routes, more))
    }

    /// Returns the addresses of one family; none if the kernel lacks IPv6.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn addresses(&mut self, is_ipv4: bool) -> Result<Vec<LinkAddress>, NetlinkError> {
        let mut addresses = Vec::new();
        let done = self.dump("list addresses", Request::dump_addresses(is_ipv4), |body| {
            addresses.extend(parse_address(body).filter(|_| is_of_family(body, is_ipv4)));
        });
        unless_missing(done, is_ipv4)?;
        Ok(addresses)
    }

    /// Returns the name of the link with this index.
    ///
    /// # Errors
    /// ENODEV if there is no such link.
    pub fn link_name(&mut self, index: u32) -> Result<String, NetlinkError> {
        let name = rustix::net::netdevice::index_to_name_inlined(&self.socket, index);
        match name {
            Ok(name) => Ok(name.as_str().to_owned()),
            Err(errno) => Err(NetlinkError::Refused { what: "find link", errno, text: None }),
        }
    }

    /// Passes the body of each message of a dump to `see`.
    pub(super) fn dump(
        &mut self,
        what: &'static str,
        request: Request,
        mut see: impl FnMut(&[u8]),
    ) -> Result<(), NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.finish(self.sequence);
        sendto(&self.socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        for _ in 0..DUMP_DATAGRAMS_MAX {
            let (length, _) = rustix::io::retry_on_intr(|| {
                recv(&self.socket, &mut buffer[..], RecvFlags::empty())
            })?;
            match parse_datagram(&buffer[..length], self.sequence, &mut see) {
                End::NotYet => {}
                End::Done => return Ok(()),
                End::Refused(errno) => {
                    return Err(NetlinkError::Refused { what, errno, text: None });
                }
            }
        }
        Err(NetlinkError::Answer { what })
    }
}

/// True if a message is about this family. A kernel without IPv6 lists other families instead.
fn is_of_family(body: &[u8], is_ipv4: bool) -> bool {
    let wanted = if is_ipv4 { message::AF_INET } else { message::AF_INET6_BYTE };
    body.first() == Some(&wanted)
}

/// Ignores the refusal of a kernel without IPv6.
fn unless_missing(done: Result<(), NetlinkError>, is_ipv4: bool) -> Result<(), NetlinkError> {
    match done {
        Err(NetlinkError::Refused { errno: Errno::AFNOSUPPORT | Errno::OPNOTSUPP, .. })
            if !is_ipv4 =>
        {
            Ok(())
        }
        other => other,
    }
}

/// How far a dump is.
#[derive(Debug, PartialEq, Eq)]
enum End {
    NotYet,
    Done,
    Refused(Errno),
}

/// Passes the bodies of a datagram's messages to `see`.
fn parse_datagram(mut bytes: &[u8], sequence: u32, see: &mut impl FnMut(&[u8])) -> End {
    while let Some(length) = read_u32(bytes, 0).and_then(|length| usize::try_from(length).ok()) {
        let Some(message) = bytes.get(..length).filter(|_| length >= message::HEADER_LEN) else {
            break;
        };
        let body = &message[message::HEADER_LEN..];
        let is_ours = read_u32(message, 8) == Some(sequence);
        match read_u16(message, 4) {
            Some(NLMSG_DONE) if is_ours => return End::Done,
            Some(message::NLMSG_ERROR) if is_ours => {
                let number = read_u32(body, 0).map_or(0, u32::cast_signed).wrapping_neg();
                let is_errno = message::ERRNO_RANGE.contains(&number);
                let errno = if is_errno { Errno::from_raw_os_error(number) } else { Errno::PROTO };
                return End::Refused(errno);
            }
            Some(_) if is_ours => see(body),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    End::NotYet
}

/// Parses a datagram of a list, whose messages may be routes or addresses.
pub(super) fn parse(bytes: &[u8], sequence: u32) {
    parse_datagram(bytes, sequence, &mut |body: &[u8]| {
        if let Some(found) = parse_address(body) {
            assert!(found.address.is_ipv4() == is_of_family(body, true));
        }
        if let Some(Parsed { route, link, .. }) = parse_route(body) {
            let is_ipv4 = route.destination.is_ipv4();
            assert!(link != 0 && is_ipv4 == is_of_family(body, true));
            assert!(route.prefix_len <= if is_ipv4 { 32 } else { 128 });
        }
    });
}

/// A route of a list.
struct Parsed {
    route: Route,
    /// Index of its link.
    link: u32,
    /// The source address that it prefers.
    source: Option<IpAddr>,
    /// The kernel has made it, for an address.
    is_kernels: bool,
}

/// Parses a default route of the main table.
fn parse_default_route(body: &[u8]) -> Option<DefaultRoute> {
    let Parsed { route, link, source, .. } = parse_route(body)?;
    let Route { prefix_len, gateway, metric, .. } = route;
    (prefix_len == 0).then_some(DefaultRoute { link, gateway, source, metric })
}

/// Parses `struct rtmsg` and its attributes; `None` for all but unicast routes of the main table.
fn parse_route(body: &[u8]) -> Option<Parsed> {
    let [family, prefix_len, source_len, _, table, protocol, _, kind] = *body.first_chunk()?;
    let is_wanted =
        source_len == 0 && table == message::RT_TABLE_MAIN && kind == message::RTN_UNICAST;
    let (destination, bits): (IpAddr, _) = match family {
        message::AF_INET => (Ipv4Addr::UNSPECIFIED.into(), 32),
        message::AF_INET6_BYTE => (Ipv6Addr::UNSPECIFIED.into(), 128),
        _ => return None,
    };
    if !is_wanted || prefix_len > bits {
        return None;
    }
    let mut route = Route { destination, prefix_len, gateway: None, metric: 0 };
    let (mut link, mut source) = (0, None);
    for (kind, value) in attributes(body.get(RTMSG_LEN..)?) {
        match kind {
            RTA_DST => route.destination = address(family, value)?,
            RTA_OIF => link = read_u32(value, 0)?,
            RTA_GATEWAY => route.gateway = address(family, value),
            RTA_PREFSRC => source = address(family, value),
            RTA_PRIORITY => route.metric = read_u32(value, 0)?,
            // The first of several next hops (`struct rtnexthop`).
            RTA_MULTIPATH => {
                link = read_u32(value, 4)?;
                let length = usize::from(read_u16(value, 0)?);
                let hop = attributes(value.get(RTNEXTHOP_LEN..length)?);
                let gateway = hop.into_iter().find(|(kind, _)| *kind == RTA_GATEWAY);
                route.gateway = gateway.and_then(|(_, value)| address(family, value));
            }
            _ => {}
        }
    }
    (link != 0).then_some(Parsed { route, link, source, is_kernels: protocol == RTPROT_KERNEL })
}

/// Parses `struct ifaddrmsg` and its attributes.
fn parse_address(body: &[u8]) -> Option<LinkAddress> {
    let [family, prefix_len, low_flags, scope] = *body.first_chunk()?;
    let link = read_u32(body, 4)?;
    let (mut local, mut other, mut flags) = (None, None, u32::from(low_flags));
    for (kind, value) in attributes(body.get(IFADDRMSG_LEN..)?) {
        match kind {
            IFA_LOCAL => local = address(family, value),
            IFA_ADDRESS => other = address(family, value),
            IFA_FLAGS => flags = read_u32(value, 0)?,
            _ => {}
        }
    }
    let address = local.or(other)?;
    // For IPv4, the flag of temporary addresses means a further address of a network.
    let temporary = if family == message::AF_INET { 0 } else { IFA_F_TEMPORARY };
    let passing = IFA_F_DADFAILED | IFA_F_DEPRECATED | IFA_F_TENTATIVE | temporary;
    Some(LinkAddress {
        link,
        address,
        prefix_len,
        is_global: scope == message::RT_SCOPE_UNIVERSE,
        is_passing: flags & passing != 0,
    })
}

fn address(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        message::AF_INET => Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into()),
        message::AF_INET6_BYTE => Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into()),
        _ => None,
    }
}

/// Largest datagram of a dump: the kernel makes them of up to 32 KiB.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;
/// Most datagrams of a dump: some million routes.
const DUMP_DATAGRAMS_MAX: usize = 1 << 14;
const NLMSG_DONE: u16 = 3;
const RTMSG_LEN: usize = 12;
const RTNEXTHOP_LEN: usize = 8;
const IFADDRMSG_LEN: usize = 8;
const RTPROT_KERNEL: u8 = 2;
const RTA_PREFSRC: u16 = 7;
const RTA_MULTIPATH: u16 = 9;
const IFA_FLAGS: u16 = 8;
const IFA_F_TEMPORARY: u32 = 0x01;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::attribute;

    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(16 + body.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(2u16.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    fn route(destination_len: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![2, destination_len, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0];
        body.extend(attributes.concat());
        body
    }

    #[test]
    fn default_routes_are_found() {
        let gateway = attribute(5, &[192, 0, 2, 1]);
        let link = attribute(4, &3u32.to_ne_bytes());
        let metric = attribute(6, &100u32.to_ne_bytes());
        let body = route(0, &[gateway.clone(), link.clone(), metric]);
        let gateway_ip = Some(IpAddr::from([192, 0, 2, 1]));
        let wanted = DefaultRoute { link: 3, gateway: gateway_ip, source: None, metric: 100 };
        assert_eq!(parse_default_route(&body), Some(wanted));
        assert_eq!(parse_default_route(&route(24, &[gateway.clone(), link])), None);
        assert_eq!(parse_default_route(&route(0, &[])), None, "no link");
        let mut hop = [u16::to_ne_bytes(16), [0, 0]].concat();
        hop.extend(7u32.to_ne_bytes());
        hop.extend(gateway);
        let several = parse_default_route(&route(0, &[attribute(9, &hop)])).unwrap();
        assert_eq!((several.link, several.gateway), (7, gateway_ip));
        for end in 0..body.len() {
            let _ = parse_default_route(&body[..end]);
        }
    }

    #[test]
    fn routes_are_found() {
        let link = attribute(4, &3u32.to_ne_bytes());
        let destination = attribute(1, &[198, 51, 100, 0]);
        let mut body =
            route(24, &[destination.clone(), attribute(5, &[192, 0, 2, 9]), link.clone()]);
        let wanted = Route {
            destination: [198, 51, 100, 0].into(),
            prefix_len: 24,
            gateway: Some([192, 0, 2, 9].into()),
            metric: 0,
        };
        let found = parse_route(&body).unwrap();
        assert_eq!((found.route, found.link, found.is_kernels), (wanted, 3, false));
        assert_eq!(parse_default_route(&body), None);
        body[5] = 2;
        assert!(parse_route(&body).unwrap().is_kernels);
        let metric = attribute(6, &50u32.to_ne_bytes());
        let on_link =
            parse_route(&route(24, &[destination.clone(), link.clone(), metric])).unwrap();
        assert_eq!(on_link.route, Route { gateway: None, metric: 50, ..wanted });
        assert!(parse_route(&route(33, &[destination, link.clone()])).is_none(), "too long");
        assert!(parse_route(&route(24, &[attribute(1, &[198]), link])).is_none(), "too short");
        for end in 0..body.len() {
            let _ = parse_route(&body[..end]);
        }
    }

    #[test]
    fn addresses_are_found() {
        let mut body = vec![2, 24, 0x80, 0];
        body.extend(3u32.to_ne_bytes());
        body.extend(attribute(1, &[192, 0, 2, 99]));
        body.extend(attribute(2, &[192, 0, 2, 7]));
        let found = parse_address(&body).unwrap();
        assert_eq!(found.address, IpAddr::from([192, 0, 2, 7]), "not the peer's");
        assert_eq!((found.link, found.prefix_len), (3, 24));
        assert!(found.is_global && !found.is_passing);
        let mut further = body.clone();
        further.extend(attribute(8, &0x81u32.to_ne_bytes()));
        assert!(!parse_address(&further).unwrap().is_passing, "secondary, not temporary");
        body.extend(attribute(8, &0x40u32.to_ne_bytes()));
        assert!(parse_address(&body).unwrap().is_passing);
        let mut temporary = vec![10, 64, 0x01, 0, 3, 0, 0, 0];
        temporary.extend(attribute(1, &Ipv6Addr::LOCALHOST.octets()));
        assert!(parse_address(&temporary).unwrap().is_passing);
        for end in 0..body.len() {
            let _ = parse_address(&body[..end]);
        }
    }

    #[test]
    fn only_a_missing_family_is_no_error() {
        let refused = |errno| Err(NetlinkError::Refused { what: "list", errno, text: None });
        assert!(unless_missing(refused(Errno::AFNOSUPPORT), false).is_ok());
        assert!(unless_missing(refused(Errno::OPNOTSUPP), false).is_ok());
        assert!(unless_missing(refused(Errno::AFNOSUPPORT), true).is_err());
        assert!(unless_missing(refused(Errno::PERM), false).is_err());
        assert!(unless_missing(Err(Errno::NOBUFS.into()), false).is_err());
        assert!(is_of_family(&[2, 0], true) && is_of_family(&[10, 0], false));
        assert!(!is_of_family(&[2, 0], false) && !is_of_family(&[], true));
    }

    #[test]
    fn a_dump_ends_with_its_own_message() {
        let mut bodies = Vec::new();
        let mut see = |body: &[u8]| bodies.push(body.to_vec());
        let mut bytes = message(24, 5, &[1, 2, 3]);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(message(24, 4, &[9]));
        assert_eq!(parse_datagram(&bytes, 5, &mut see), End::NotYet);
        assert_eq!(parse_datagram(&message(3, 4, &[0; 4]), 5, &mut see), End::NotYet);
        assert_eq!(parse_datagram(&message(3, 5, &[0; 4]), 5, &mut see), End::Done);
        let refused = message(2, 5, &(-1i32).to_ne_bytes());
        assert_eq!(parse_datagram(&refused, 5, &mut see), End::Refused(Errno::PERM));
        for length in [0u32, 15, u32::MAX] {
            let bytes = [&length.to_ne_bytes()[..], &[0; 40]].concat();
            assert_eq!(parse_datagram(&bytes, 0, &mut see), End::NotYet);
        }
        assert_eq!(bodies, [[1, 2, 3]]);
    }

    /// Goal: the kernel's own answers are understood. Every namespace has a loopback link, whose
    /// addresses need not be there.
    #[test]
    fn the_kernel_answers() {
        let mut netlink = Netlink::open().unwrap();
        for is_ipv4 in [true, false] {
            netlink.default_routes(is_ipv4).unwrap();
            let addresses = netlink.addresses(is_ipv4).unwrap();
            assert!(addresses.iter().all(|found| found.address.is_ipv4() == is_ipv4));
        }
        assert_eq!(netlink.link_name(1).unwrap(), "lo");
    }
}
