//! Link-layer addresses (IEEE 802 §8: EUI-48).

use core::fmt;
use core::str::FromStr;

/// A 48-bit link-layer address, in transmission order.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All stations on the link.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// All zeros, which no station has: the unknown target of an ARP request.
    pub const UNSPECIFIED: Self = Self([0; 6]);

    /// True for the broadcast address.
    #[inline]
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }

    /// True if the group bit is set: a multicast address or the broadcast address.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & GROUP_BIT != 0
    }

    /// True for the address of one station: neither multicast nor all zeros. Only such an address
    /// may be a source or be learned.
    #[inline]
    pub fn is_unicast(self) -> bool {
        !self.is_multicast() && self != Self::UNSPECIFIED
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddr {
    type Err = InvalidMacAddr;

    /// Parses six pairs of hexadecimal digits separated by colons.
    fn from_str(text: &str) -> Result<Self, InvalidMacAddr> {
        let mut octets = [0; 6];
        let mut pairs = text.split(':');
        for octet in &mut octets {
            let pair = pairs.next().ok_or(InvalidMacAddr)?;
            // `from_str_radix` alone accepts "+1" and "001".
            if pair.len() != 2 || !pair.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(InvalidMacAddr);
            }
            *octet = u8::from_str_radix(pair, 16).map_err(|_| InvalidMacAddr)?;
        }
        if pairs.next().is_some() { Err(InvalidMacAddr) } else { Ok(Self(octets)) }
    }
}

/// Error of a text that is not a link-layer address such as `02:00:00:00:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidMacAddr;

impl fmt::Display for InvalidMacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a MAC address such as 02:00:00:00:00:01")
    }
}

impl core::error::Error for InvalidMacAddr {}

/// Set in the first octet of a group address (IEEE 802 §8.2.2).
const GROUP_BIT: u8 = 0x01;
