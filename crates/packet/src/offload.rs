//! Work on a packet that a device does or has done: checksums and segmentation.
//!
//! The fields are those of the virtio-net header (virtio 1.2 §5.1.6; for tunnels virtio 1.4), which
//! TAP devices use, too. Offsets count from the start of the Ethernet frame. The fields are claims:
//! a caller that parses the packet checks them against the real headers before it relies on them.

use core::num::NonZeroU16;

/// State of the transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checksum {
    /// Nothing known: complete on transmit, still to be verified on receive.
    #[default]
    None,
    /// Verified by the device, or computed by a trusted sender.
    Unnecessary,
    /// The checksum field holds only the sum of the pseudo-header. The sum from `start` to the end
    /// of the packet still has to be stored at `start + offset`.
    Partial {
        /// Start of the summed bytes, from the start of the frame.
        start: u16,
        /// Offset of the checksum field, from `start`.
        offset: u16,
    },
}

/// Kind of a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4 or IPv6: each segment is a datagram.
    Udp,
}

/// A super-packet, to be segmented into packets with `size` payload bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Protocols.
    pub kind: GsoKind,
    /// Payload bytes per segment; the last segment may have fewer.
    pub size: NonZeroU16,
    /// TCP's CWR flag is set; it belongs to the first segment only.
    pub ecn: bool,
    /// The tunnel headers, if the super-packet is the inner packet of a UDP tunnel.
    pub tunnel: Option<Tunnel>,
}

/// The headers of a UDP tunnel, such as VXLAN or Geneve, around a super-packet. Each segment gets
/// them. The kind of the super-packet and the partial checksum, which is mandatory, are those of
/// the inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Start of the outer UDP header, from the start of the frame.
    pub transport_at: u16,
    /// Start of the inner IP header, from the start of the frame. The bytes between the outer UDP
    /// header and this are copied unchanged.
    pub network_at: u16,
    /// The outer IP header is IPv6.
    pub is_ipv6: bool,
    /// The outer UDP checksum is partial and has to be completed in each segment. Otherwise the
    /// field stays unchanged: it is zero, or correct for all segments.
    pub checksum: bool,
}

/// Offload fields of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Offload {
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// Segmentation. `None` for a packet that is one segment.
    pub gso: Option<Gso>,
}

const _: () = assert!(size_of::<Offload>() <= 16);

impl Offload {
    /// Moves all offsets by `by` bytes, together with the headers: towards the end of the frame, or
    /// towards its start if negative.
    pub fn shift(&mut self, by: i16) {
        if let Checksum::Partial { start, .. } = &mut self.checksum {
            *start = start.saturating_add_signed(by);
        }
        if let Some(Gso { tunnel: Some(tunnel), .. }) = &mut self.gso {
            tunnel.transport_at = tunnel.transport_at.saturating_add_signed(by);
            tunnel.network_at = tunnel.network_at.saturating_add_signed(by);
        }
    }
}

/// Why a virtio-net header was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VirtioHeaderError {
    /// The segmentation type is unknown or was not negotiated.
    UnknownGso,
    /// The segment size is 0 or 0xffff.
    BadGsoSize,
    /// The tunnel is marked as both IPv4 and IPv6, is not around a super-packet, or has no partial
    /// checksum.
    BadTunnel,
}

impl core::fmt::Display for VirtioHeaderError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            VirtioHeaderError::UnknownGso => "unknown segmentation type in virtio-net header",
            VirtioHeaderError::BadGsoSize => "impossible segment size in virtio-net header",
            VirtioHeaderError::BadTunnel => "impossible tunnel in virtio-net header",
        })
    }
}

impl core::error::Error for VirtioHeaderError {}

const FLAG_NEEDS_CSUM: u8 = 1;
const FLAG_DATA_VALID: u8 = 2;
const FLAG_TUNNEL_CSUM: u8 = 8;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_TUNNEL_IPV4: u8 = 0x20;
const GSO_TUNNEL_IPV6: u8 = 0x40;
const GSO_TUNNEL: u8 = GSO_TUNNEL_IPV4 | GSO_TUNNEL_IPV6;
const GSO_ECN: u8 = 0x80;

/// The 12-byte virtio-net header in front of each frame, little-endian. It cannot represent
/// [`Gso::tunnel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VirtioHeader(pub [u8; VirtioHeader::LEN]);

impl VirtioHeader {
    /// Bytes of the header with the `num_buffers` field.
    pub const LEN: usize = crate::foreign::VIRTIO_HEADER_BYTES;

    /// Encodes these fields for a packet whose headers take `header_len` bytes.
    pub fn encode(offload: &Offload, header_len: usize) -> Self {
        Self::encode_merged(offload, header_len, 0)
    }

    /// Encodes these fields for a packet in `buffers` merged receive buffers. The header is
    /// composed in registers and stored as a 64-bit and a 32-bit word, the sizes in which a
    /// [copy](crate::foreign::copy) reads it.
    #[inline]
    pub fn encode_merged(offload: &Offload, header_len: usize, buffers: u16) -> Self {
        let (flags, start, offset) = match offload.checksum {
            Checksum::None => (0, 0, 0),
            Checksum::Unnecessary => (FLAG_DATA_VALID, 0, 0),
            Checksum::Partial { start, offset } => (FLAG_NEEDS_CSUM, start, offset),
        };
        let mut first = u64::from(flags) | u64::from(start) << 48;
        if let Some(gso) = offload.gso {
            let kind = match gso.kind {
                GsoKind::Tcp4 => GSO_TCPV4,
                GsoKind::Tcp6 => GSO_TCPV6,
                GsoKind::Udp => GSO_UDP_L4,
            };
            let kind = if gso.ecn { kind | GSO_ECN } else { kind };
            let header_len = u16::try_from(header_len).unwrap_or(u16::MAX);
            first |= u64::from(kind) << 8
                | u64::from(header_len) << 16
                | u64::from(gso.size.get()) << 32;
        }
        let second = u32::from(offset) | u32::from(buffers) << 16;
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        Self(bytes)
    }

    /// Decodes the fields that a sender claims. Ignores `hdr_len`, a hint that must not be trusted.
    pub fn decode(&self) -> Result<Offload, VirtioHeaderError> {
        let word = |at: usize| u16::from_le_bytes([self.0[at], self.0[at + 1]]);
        let checksum = if self.0[0] & FLAG_NEEDS_CSUM != 0 {
            Checksum::Partial { start: word(6), offset: word(8) }
        } else if self.0[0] & FLAG_DATA_VALID != 0 {
            Checksum::Unnecessary
        } else {
            Checksum::None
        };
        let kind = match self.0[1] & !GSO_ECN {
            GSO_NONE => return Ok(Offload { checksum, gso: None }),
            GSO_TCPV4 => GsoKind::Tcp4,
            GSO_TCPV6 => GsoKind::Tcp6,
            GSO_UDP_L4 => GsoKind::Udp,
            _ => return Err(VirtioHeaderError::UnknownGso),
        };
        let size = match word(4) {
            0 | u16::MAX => return Err(VirtioHeaderError::BadGsoSize),
            size => NonZeroU16::new(size).ok_or(VirtioHeaderError::BadGsoSize)?,
        };
        let ecn = self.0[1] & GSO_ECN != 0;
        Ok(Offload { checksum, gso: Some(Gso { kind, size, ecn, tunnel: None }) })
    }
}

/// The virtio-net header if super-packets in tunnels were negotiated (virtio 1.4): a
/// [`VirtioHeader`], 8 bytes for a hash of the flow, and the offsets of the tunnel.
///
/// Of the two tunnel bits, the one that is set names the version of the outer IP header, as on
/// Linux. virtio 1.4 §5.1.6.2 is inconsistent: it names the inner version where it says what a
/// driver sets, and the outer version where it says what the bit means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VirtioTunnelHeader(pub [u8; VirtioTunnelHeader::LEN]);

impl VirtioTunnelHeader {
    /// Bytes of the header.
    pub const LEN: usize = VirtioHeader::LEN + 8 + 4;

    const TRANSPORT_AT: usize = Self::LEN - 4;
    const NETWORK_AT: usize = Self::LEN - 2;

    /// Encodes these fields for a packet whose headers take `header_len` bytes.
    pub fn encode(offload: &Offload, header_len: usize) -> Self {
        let mut bytes = [0; Self::LEN];
        bytes[..VirtioHeader::LEN].copy_from_slice(&VirtioHeader::encode(offload, header_len).0);
        if let Some(tunnel) = offload.gso.and_then(|gso| gso.tunnel) {
            bytes[0] |= if tunnel.checksum { FLAG_TUNNEL_CSUM } else { 0 };
            bytes[1] |= if tunnel.is_ipv6 { GSO_TUNNEL_IPV6 } else { GSO_TUNNEL_IPV4 };
            bytes[Self::TRANSPORT_AT..][..2].copy_from_slice(&tunnel.transport_at.to_le_bytes());
            bytes[Self::NETWORK_AT..][..2].copy_from_slice(&tunnel.network_at.to_le_bytes());
        }
        Self(bytes)
    }

    /// Decodes the fields that a sender claims, including the tunnel.
    pub fn decode(&self) -> Result<Offload, VirtioHeaderError> {
        let mut plain = self.plain();
        plain.0[1] &= !GSO_TUNNEL;
        let mut offload = plain.decode()?;
        let is_ipv6 = match self.0[1] & GSO_TUNNEL {
            0 => return Ok(offload),
            GSO_TUNNEL_IPV4 => false,
            GSO_TUNNEL_IPV6 => true,
            _ => return Err(VirtioHeaderError::BadTunnel),
        };
        let has_checksum = self.0[0] & (FLAG_NEEDS_CSUM | FLAG_DATA_VALID) == FLAG_NEEDS_CSUM;
        let (true, Some(gso)) = (has_checksum, &mut offload.gso) else {
            return Err(VirtioHeaderError::BadTunnel);
        };
        let word = |at: usize| u16::from_le_bytes([self.0[at], self.0[at + 1]]);
        gso.tunnel = Some(Tunnel {
            transport_at: word(Self::TRANSPORT_AT),
            network_at: word(Self::NETWORK_AT),
            is_ipv6,
            checksum: self.0[0] & FLAG_TUNNEL_CSUM != 0,
        });
        Ok(offload)
    }

    /// The first bytes: the complete header if tunnels were not negotiated.
    pub fn plain(&self) -> VirtioHeader {
        let mut bytes = [0; VirtioHeader::LEN];
        bytes.copy_from_slice(&self.0[..VirtioHeader::LEN]);
        VirtioHeader(bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Goal: every header that decodes is encoded to a header that decodes to the same fields.
        #[test]
        fn decode_and_encode_agree(bytes: [u8; 12]) {
            if let Ok(offload) = VirtioHeader(bytes).decode() {
                prop_assert_eq!(VirtioHeader::encode(&offload, 54).decode(), Ok(offload));
            }
        }

        /// Goal: encoding and decoding agree for tunnels, too; a header without a tunnel is decoded
        /// like the shorter one.
        #[test]
        fn decode_and_encode_agree_about_tunnels(mut bytes: [u8; 24], is_super: bool) {
            if is_super {
                // Makes it likely that the header decodes.
                bytes[0] = bytes[0] & FLAG_TUNNEL_CSUM | FLAG_NEEDS_CSUM;
                bytes[1] = GSO_UDP_L4 | bytes[1] & GSO_TUNNEL;
            }
            let header = VirtioTunnelHeader(bytes);
            if let Ok(offload) = header.decode() {
                prop_assert_eq!(VirtioTunnelHeader::encode(&offload, 54).decode(), Ok(offload));
            }
            if bytes[1] & GSO_TUNNEL == 0 {
                prop_assert_eq!(header.decode(), header.plain().decode());
            } else {
                prop_assert!(header.plain().decode().is_err());
            }
        }
    }

    /// TCP over IPv4 in Geneve over IPv4, as encoded by Linux.
    #[test]
    fn a_known_tunnel_decodes() {
        let mut bytes = [0; 24];
        bytes[..12].copy_from_slice(&[1, 0x21, 104, 0, 0xe8, 3, 84, 0, 16, 0, 0, 0]);
        bytes[20..].copy_from_slice(&[34, 0, 62, 0]);
        let tunnel = Tunnel { transport_at: 34, network_at: 62, is_ipv6: false, checksum: false };
        let size = NonZeroU16::new(1000).expect("not 0");
        let gso = Gso { kind: GsoKind::Tcp4, size, ecn: false, tunnel: Some(tunnel) };
        let mut offload =
            Offload { checksum: Checksum::Partial { start: 84, offset: 16 }, gso: Some(gso) };
        assert_eq!(VirtioTunnelHeader(bytes).decode(), Ok(offload));
        assert_eq!(VirtioTunnelHeader::encode(&offload, 104).0, bytes);
        offload.shift(4);
        bytes[0] |= FLAG_TUNNEL_CSUM;
        (bytes[1], bytes[6], bytes[20], bytes[22]) = (0x41, 88, 38, 66);
        let moved = VirtioTunnelHeader(bytes).decode().expect("valid");
        let gso = moved.gso.expect("a super-packet");
        let tunnel = Tunnel { is_ipv6: false, checksum: false, ..gso.tunnel.expect("in a tunnel") };
        assert_eq!(Offload { gso: Some(Gso { tunnel: Some(tunnel), ..gso }), ..moved }, offload);
    }

    /// Cases: both versions of IP, no super-packet, no partial checksum, a checksum that is partial
    /// and verified, UDP that is cut into fragments.
    #[test]
    fn impossible_tunnels_are_refused() {
        let decode = |flags, kind| {
            let mut bytes = [0; 24];
            (bytes[0], bytes[1], bytes[4]) = (flags, kind, 8);
            VirtioTunnelHeader(bytes).decode()
        };
        assert!(decode(1, 0x21).is_ok() && decode(9, 0x44).is_ok());
        for (flags, kind) in [(1, 0x61), (1, 0x20), (0, 0x21), (3, 0x21), (2, 0x45), (8, 0x21)] {
            assert_eq!(decode(flags, kind), Err(VirtioHeaderError::BadTunnel), "{flags} {kind}");
        }
        assert_eq!(decode(1, 0x23), Err(VirtioHeaderError::UnknownGso));
    }

    #[test]
    fn impossible_headers_are_refused() {
        let mut bytes = [0u8; 12];
        bytes[1] = 3;
        bytes[4] = 8;
        assert_eq!(VirtioHeader(bytes).decode(), Err(VirtioHeaderError::UnknownGso));
        bytes[1] = GSO_TCPV4;
        bytes[4] = 0;
        assert_eq!(VirtioHeader(bytes).decode(), Err(VirtioHeaderError::BadGsoSize));
        bytes[4..6].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(VirtioHeader(bytes).decode(), Err(VirtioHeaderError::BadGsoSize));
    }

    /// Observed on a TAP device: an outgoing UDP datagram whose checksum is left to the device.
    #[test]
    fn a_known_header_decodes() {
        let bytes = [1, 0, 0, 0, 0, 0, 0x22, 0, 6, 0, 0, 0];
        let offload = VirtioHeader(bytes).decode().expect("valid");
        assert_eq!(offload.checksum, Checksum::Partial { start: 34, offset: 6 });
        assert_eq!(offload.gso, None);
    }
}
