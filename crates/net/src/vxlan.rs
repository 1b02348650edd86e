//! VXLAN (RFC 7348): the header in front of an Ethernet frame in a UDP datagram, the table of
//! remote tunnel end points ([`remotes`]), what is taken out of datagrams ([`decapsulate`]),
//! super-packets cut into datagrams ([`encapsulate`]), and what is answered in place of remote
//! stations ([`answers`]).
//!
//! ```text
//!  0 1 2 3 4 5 6 7 8 9 ...
//! +-+-+-+-+-+-+-+-+----------------+
//! |R|R|R|R|I|R|R|R|   reserved     |   I: the network identifier is valid
//! +-+-+-+-+-+-+-+-+----------------+
//! |   network identifier  |reserved|
//! +-----------------------+--------+
//! ```
//!
//! Reserved bits are sent as zero and ignored on receipt (RFC 7348 §5). A header whose I bit is not
//! set names no network, and its datagram is dropped.

pub mod answers;
pub mod decapsulate;
pub mod encapsulate;
pub mod remotes;

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// The UDP port that IANA has assigned.
pub const PORT: u16 = 4789;
/// Greatest network identifier.
pub const VNI_MAX: u32 = 0x00ff_ffff;

/// A VXLAN network identifier: 0 to [`VNI_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Vni(u32);

impl Vni {
    /// The identifier with this number; `None` if the number has more than 24 bits.
    pub const fn new(number: u32) -> Option<Self> {
        if number <= VNI_MAX { Some(Self(number)) } else { None }
    }

    /// The number.
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Vni {
    type Err = InvalidVni;

    fn from_str(text: &str) -> Result<Self, InvalidVni> {
        text.parse().ok().and_then(Self::new).ok_or(InvalidVni)
    }
}

/// Error of a text that is no network identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidVni;

impl fmt::Display for InvalidVni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected a VXLAN network identifier (VNI), a number from 0 to {VNI_MAX}")
    }
}

impl core::error::Error for InvalidVni {}

/// Why the beginning of a datagram is no VXLAN header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// It has fewer than [`HEADER_LEN`] bytes.
    Short,
    /// The I bit is not set.
    NoVni,
}

/// Reads the header at the beginning of `datagram`.
///
/// # Errors
/// [`Malformed`]; no bytes cause a panic.
pub fn parse(datagram: &[u8]) -> Result<Vni, Malformed> {
    let header: &[u8; HEADER_LEN] = datagram.first_chunk().ok_or(Malformed::Short)?;
    let [flags, _, _, _, high, middle, low, _] = *header;
    if flags & VALID_VNI == 0 {
        return Err(Malformed::NoVni);
    }
    Ok(Vni(u32::from_be_bytes([0, high, middle, low])))
}

/// Returns the header for a frame of this network.
pub const fn header(vni: Vni) -> [u8; HEADER_LEN] {
    let [_, high, middle, low] = vni.0.to_be_bytes();
    [VALID_VNI, 0, 0, 0, high, middle, low, 0]
}

/// Bytes that a frame's tunnel takes from the MTU of the path to `remote`: outer IP header without
/// options, UDP header, VXLAN header, and the frame's Ethernet header without a tag. 50 over IPv4
/// and 70 over IPv6.
pub const fn overhead(remote: &IpAddr) -> u16 {
    let ip = if remote.is_ipv4() { 20 } else { 40 };
    ip + 8 + HEADER_LEN as u16 + 14
}

/// The I bit of the first byte.
const VALID_VNI: u8 = 0x08;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    /// Goal: the header is that of RFC 7348 figure 1, and reserved bits change nothing.
    #[test]
    fn the_header_is_that_of_the_rfc() {
        let vni = Vni::new(0x12_3456).expect("24 bits");
        assert_eq!(header(vni), [0x08, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        assert_eq!(parse(&header(vni)), Ok(vni));
        let all_set = [0xff, 0xff, 0xff, 0xff, 0x12, 0x34, 0x56, 0xff, 1, 2];
        assert_eq!(parse(&all_set), Ok(vni), "reserved bits are ignored on receipt");
        assert_eq!(parse(&[0xf7, 0, 0, 0, 0x12, 0x34, 0x56, 0]), Err(Malformed::NoVni));
        for end in 0..HEADER_LEN {
            assert_eq!(parse(&header(vni)[..end]), Err(Malformed::Short));
        }
    }

    #[test]
    fn identifiers_have_24_bits() {
        assert_eq!("16777215".parse(), Ok(Vni(VNI_MAX)));
        for wrong in ["16777216", "-1", "", "a", "1,2"] {
            assert_eq!(wrong.parse::<Vni>(), Err(InvalidVni), "{wrong}");
        }
        assert!(InvalidVni.to_string().contains("0 to 16777215"));
    }

    #[test]
    fn the_overhead_is_that_of_the_headers() {
        assert_eq!(overhead(&IpAddr::from([192, 0, 2, 1])), 50);
        assert_eq!(overhead(&IpAddr::from([0x2001, 0, 0, 0, 0, 0, 0, 1])), 70);
    }
}
