//! Addresses that rules are for, addresses inside addresses, and addresses that are closed unless a
//! rule opens them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network of IPv4 or IPv6 addresses, or one address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Net {
    address: IpAddr,
    prefix_len: u8,
}

impl Net {
    const fn v4(address: [u8; 4], prefix_len: u8) -> Self {
        let [a, b, c, d] = address;
        Self { address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix_len }
    }

    const fn v6(first: [u16; 3], prefix_len: u8) -> Self {
        let [a, b, c] = first;
        Self { address: IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0)), prefix_len }
    }

    /// Returns its first address.
    pub(super) fn first(&self) -> IpAddr {
        self.address
    }

    /// Returns the number of bits that all its addresses share.
    pub(super) fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// Returns true if this is one address.
    pub(super) fn is_host(&self) -> bool {
        self.prefix_len == if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// Returns true if `address` is in this network, as it is written.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(net), IpAddr::V4(v4)) => {
                let differing = net.to_bits() ^ v4.to_bits();
                differing.checked_shr(32 - u32::from(self.prefix_len)).unwrap_or(0) == 0
            }
            (IpAddr::V6(net), IpAddr::V6(v6)) => {
                let differing = net.to_bits() ^ v6.to_bits();
                differing.checked_shr(128 - u32::from(self.prefix_len)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Net {
    type Err = NetError;

    fn from_str(text: &str) -> Result<Self, NetError> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetError::Address)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix_len = match len {
            // `u8::from_str` takes a sign.
            Some(len) if !len.bytes().all(|c| c.is_ascii_digit()) => {
                return Err(NetError::Len(most));
            }
            Some(len) => len.parse().ok().filter(|l| *l <= most).ok_or(NetError::Len(most))?,
            None => most,
        };
        let net = Self { address: first_of(address, prefix_len), prefix_len };
        if net.address != address {
            return Err(NetError::Host(net));
        }
        Ok(net)
    }
}

/// Returns the first address of the network that `address` is in.
fn first_of(address: IpAddr, prefix_len: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix_len)).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = if self.address.is_ipv4() { 32 } else { 128 };
        match self.prefix_len {
            len if len == most => write!(f, "{}", self.address),
            len => write!(f, "{}/{len}", self.address),
        }
    }
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// It does not begin with an address.
    #[error(
        "expected an address such as 192.0.2.1 or 2001:db8::1, or a network such as 10.3.0.0/16"
    )]
    Address,
    /// The length of the prefix is out of range.
    #[error("the length of the prefix must be a number from 0 to {0}")]
    Len(u8),
    /// Bits behind the prefix are set.
    #[error("bits behind the prefix are set; write {0} for the whole network")]
    Host(Net),
}

/// Returns all forms of an address: itself, and IPv4 addresses that are inside it and to which a
/// host or a translator may send instead.
///
/// Inside: IPv4-mapped and IPv4-compatible addresses (RFC 4291 §2.5.5), NAT64's well-known prefix
/// and its prefix for local use (RFC 6052 §2.1, RFC 8215), 6to4 (RFC 3056 §2), the server and the
/// client of Teredo (RFC 4380 §4), ISATAP (RFC 5214 §6.1).
pub fn forms(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let mut inside = [None; 2];
    if let IpAddr::V6(v6) = address {
        let bits = v6.to_bits();
        let at = |shift: u32| Some(Ipv4Addr::from_bits((bits >> shift) as u32));
        match v6.segments() {
            [0, 0, 0, 0, 0, 0 | 0xffff, ..] if bits > 1 => inside[0] = at(0),
            [0x64, 0xff9b, 0, 0, 0, 0, ..] => inside[0] = at(0),
            // The translator's operator chooses the length of the prefix: 96 and 48 bits are used.
            [0x64, 0xff9b, 1, ..] => {
                let [_, _, _, high, low, ..] = v6.segments();
                let bits = u32::from(high) << 16 | u32::from(low & 0xff) << 8;
                let [.., last, _, _] = v6.segments();
                let behind_96 = at(0).filter(|v4| !v4.is_unspecified());
                inside = [behind_96, Some(Ipv4Addr::from_bits(bits | u32::from(last >> 8)))];
            }
            [0x2002, ..] => inside[0] = at(80),
            [0x2001, 0, ..] => inside = [at(64), at(0).map(|client| !client)],
            [.., 0 | 0x200, 0x5efe, _, _] => inside[0] = at(0),
            _ => {}
        }
    }
    std::iter::once(address).chain(inside.into_iter().flatten().map(IpAddr::V4))
}

/// Why an address is closed unless a rule opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// The host that towpath runs on.
    Host,
    /// Loopback addresses, and addresses that stand for them.
    Loopback,
    /// Services of clouds for their machines, with credentials.
    Metadata,
    /// Addresses of a link.
    LinkLocal,
    /// Networks of an organisation.
    Private,
    /// Networks between providers and their customers.
    CarrierNat,
    /// Groups, and broadcasts.
    Multicast,
    /// Addresses for special uses, which no host outside has.
    Reserved,
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "an address of this host",
            Self::Loopback => "a loopback address",
            Self::Metadata => "a metadata service of a cloud",
            Self::LinkLocal => "a link-local address",
            Self::Private => "a private address",
            Self::CarrierNat => "an address of carrier-grade NAT",
            Self::Multicast => "a multicast or broadcast address",
            Self::Reserved => "a reserved address",
        })
    }
}

/// The floors, from the IANA registries of special-purpose addresses (RFC 6890). The first that
/// contains an address counts. Metadata services that are not link-local are named one by one.
const FLOORS: &[(Net, Floor)] = &[
    (Net::v4([169, 254, 169, 254], 32), Floor::Metadata),
    (Net::v4([169, 254, 170, 2], 32), Floor::Metadata),
    (Net::v4([168, 63, 129, 16], 32), Floor::Metadata),
    (Net::v4([100, 100, 100, 200], 32), Floor::Metadata),
    (Net::v4([192, 0, 0, 192], 32), Floor::Metadata),
    (Net::v6([0xfd00, 0xec2, 0], 32), Floor::Metadata),
    (Net::v6([0xfd20, 0xce, 0], 32), Floor::Metadata),
    (Net::v4([127, 0, 0, 0], 8), Floor::Loopback),
    (Net { address: IpAddr::V6(Ipv6Addr::LOCALHOST), prefix_len: 128 }, Floor::Loopback),
    // A connection to the unspecified address leads to the host itself.
    (Net::v4([0, 0, 0, 0], 8), Floor::Loopback),
    (Net { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), prefix_len: 128 }, Floor::Loopback),
    (Net::v4([169, 254, 0, 0], 16), Floor::LinkLocal),
    (Net::v6([0xfe80, 0, 0], 10), Floor::LinkLocal),
    (Net::v4([10, 0, 0, 0], 8), Floor::Private),
    (Net::v4([172, 16, 0, 0], 12), Floor::Private),
    (Net::v4([192, 168, 0, 0], 16), Floor::Private),
    (Net::v6([0xfc00, 0, 0], 7), Floor::Private),
    (Net::v6([0xfec0, 0, 0], 10), Floor::Private),
    (Net::v4([100, 64, 0, 0], 10), Floor::CarrierNat),
    (Net::v4([224, 0, 0, 0], 4), Floor::Multicast),
    (Net::v4([255, 255, 255, 255], 32), Floor::Multicast),
    (Net::v6([0xff00, 0, 0], 8), Floor::Multicast),
    (Net::v4([192, 0, 0, 0], 24), Floor::Reserved),
    (Net::v4([198, 18, 0, 0], 15), Floor::Reserved),
    (Net::v4([240, 0, 0, 0], 4), Floor::Reserved),
    (Net::v6([0x100, 0, 0], 64), Floor::Reserved),
];

/// Returns the floor that closes an address, in any of its [forms].
pub fn floor_of(address: IpAddr) -> Option<Floor> {
    forms(address)
        .find_map(|form| FLOORS.iter().find(|(net, _)| net.contains(form)).map(|(_, floor)| *floor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn networks_contain_their_addresses() {
        for (net, inside, outside) in [
            ("10.3.0.0/16", "10.3.255.255", "10.4.0.0"),
            ("192.0.2.1", "192.0.2.1", "192.0.2.0"),
            ("0.0.0.0/0", "255.255.255.255", "::"),
            ("::/0", "ffff::1", "1.2.3.4"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
        ] {
            let parsed: Net = net.parse().unwrap();
            assert_eq!(parsed.to_string(), net);
            assert!(parsed.contains(ip(inside)) && !parsed.contains(ip(outside)), "{net}");
        }
    }

    /// Bad input: no address, lengths out of range, signs, spaces, bits behind the prefix.
    #[test]
    fn other_texts_are_refused() {
        for (text, error) in [
            ("", NetError::Address),
            ("10.3/16", NetError::Address),
            ("10.3.0.256", NetError::Address),
            ("fe80::1%eth0", NetError::Address),
            (" 10.0.0.0/8", NetError::Address),
            ("10.0.0.0/33", NetError::Len(32)),
            ("10.0.0.0/", NetError::Len(32)),
            ("10.0.0.0/+8", NetError::Len(32)),
            ("::/129", NetError::Len(128)),
            ("::/256", NetError::Len(128)),
            ("10.3.1.0/16", NetError::Host("10.3.0.0/16".parse().unwrap())),
        ] {
            assert_eq!(text.parse::<Net>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn addresses_inside_addresses_are_found() {
        for (address, inside) in [
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("::10.0.0.1", "10.0.0.1"),
            ("64:ff9b::10.0.0.1", "10.0.0.1"),
            ("64:ff9b:1:0:0:0:10.0.0.1", "10.0.0.1"),
            // RFC 6052 §2.2: with 48 bits of prefix, the octet of bits 64 to 71 is zero.
            ("64:ff9b:1:a00:0:100::", "10.0.0.1"),
            ("2002:a00:1::5", "10.0.0.1"),
            ("2001:0:a00:1::", "10.0.0.1"),
            ("2001:0:4136:e378:8000:63bf:f5ff:fffe", "10.0.0.1"),
            ("2001:db8::5efe:10.0.0.1", "10.0.0.1"),
            ("2001:db8::200:5efe:10.0.0.1", "10.0.0.1"),
        ] {
            assert!(forms(ip(address)).any(|form| form == ip(inside)), "{address}");
            assert_eq!(floor_of(ip(address)), Some(Floor::Private), "{address}");
        }
        assert_eq!(forms(ip("2001:db8::1")).count(), 1);
        assert_eq!(forms(ip("192.0.2.1")).count(), 1);
    }

    #[test]
    fn special_addresses_have_a_floor() {
        for (address, floor) in [
            ("127.0.0.1", Some(Floor::Loopback)),
            ("127.255.255.254", Some(Floor::Loopback)),
            ("0.0.0.0", Some(Floor::Loopback)),
            ("::", Some(Floor::Loopback)),
            ("::1", Some(Floor::Loopback)),
            ("::ffff:127.0.0.1", Some(Floor::Loopback)),
            ("169.254.169.254", Some(Floor::Metadata)),
            ("::ffff:169.254.169.254", Some(Floor::Metadata)),
            ("64:ff9b::a9fe:a9fe", Some(Floor::Metadata)),
            ("fd00:ec2::254", Some(Floor::Metadata)),
            ("168.63.129.16", Some(Floor::Metadata)),
            ("100.100.100.200", Some(Floor::Metadata)),
            ("169.254.1.1", Some(Floor::LinkLocal)),
            ("fe80::1", Some(Floor::LinkLocal)),
            ("febf::1", Some(Floor::LinkLocal)),
            ("10.255.0.1", Some(Floor::Private)),
            ("172.31.0.1", Some(Floor::Private)),
            ("192.168.7.7", Some(Floor::Private)),
            ("fd12::1", Some(Floor::Private)),
            ("100.127.0.1", Some(Floor::CarrierNat)),
            ("239.255.255.250", Some(Floor::Multicast)),
            ("255.255.255.255", Some(Floor::Multicast)),
            ("ff02::fb", Some(Floor::Multicast)),
            ("198.19.0.1", Some(Floor::Reserved)),
            ("250.0.0.1", Some(Floor::Reserved)),
            ("172.32.0.1", None),
            ("100.128.0.1", None),
            ("192.0.2.1", None),
            ("2001:db8::1", None),
            ("64:ff9b::192.0.2.1", None),
        ] {
            assert_eq!(floor_of(ip(address)), floor, "{address}");
        }
    }
}
