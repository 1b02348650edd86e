//! What a device does for a packet, or has done: checksums and segmentation.
//!
//! The fields are those of the virtio-net header (virtio 1.2 §5.1.6; for tunnels virtio 1.4), which
//! TAP devices use too.
//! Offsets count from the start of the Ethernet frame. They are claims: whoever parses the packet
//! checks them against its real headers before acting on them.

use core::num::NonZeroU16;

/// State of the transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checksum {
    /// Nothing known: complete on transmit, to be verified on receive.
    #[default]
    None,
    /// Verified by the device or made by a sender that is trusted with it.
    Unnecessary,
    /// The field holds the sum of the pseudo header only; the sum from `start` to the end of the
    /// packet is still to be stored at `start + offset`.
    Partial {
        /// Where summing begins, from the start of the frame.
        start: u16,
        /// Where the sum goes, from `start`.
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
    /// UDP over either: each segment is a datagram.
    Udp,
}

/// A super-packet: to be cut into segments of `size` payload bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Protocols.
    pub kind: GsoKind,
    /// Payload bytes per segment; the last may have fewer.
    pub size: NonZeroU16,
    /// TCP's CWR flag is set and belongs to the first segment only.
    pub ecn: bool,
    /// The headers around it, if what is to be cut is the packet in a UDP tunnel.
    pub tunnel: Option<Tunnel>,
}

/// The headers of a UDP tunnel, such as VXLAN or Geneve, around a super-packet: each segment has
/// them. The kind of the super-packet and the place of the partial checksum, which is never
/// missing, are those of the inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Where the outer UDP header begins, from the start of the frame.
    pub transport_at: u16,
    /// Where the inner IP header begins, from the start of the frame. What lies in front of it and
    /// behind the UDP header is copied as it is.
    pub network_at: u16,
    /// The outer IP header is IPv6's.
    pub is_ipv6: bool,
    /// The outer UDP checksum is partial, and to be completed in each segment. If not, the field
    /// stays as it is: zero, or right for all of them.
    pub checksum: bool,
}

/// Offload fields of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Offload {
    /// Transport checksum.
    pub checksum: Checksum,
    /// Segmentation; `None` for a packet that is one segment.
    pub gso: Option<Gso>,
}

const _: () = assert!(size_of::<Offload>() <= 16);

impl Offload {
    /// Moves all offsets along with what they point to: by so many bytes to the back, or to the
    /// front if negative.
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

/// Why a virtio-net header was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VirtioHeaderError {
    /// A segmentation type that is unknown or was not negotiated.
    UnknownGso,
    /// A segment size of 0 or 0xffff.
    BadGsoSize,
    /// A tunnel over both versions of IP, or around no super-packet, or without a partial checksum.
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

/// The 12-byte virtio-net header in front of each frame, little endian. It has no place for
/// [`Gso::tunnel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VirtioHeader(pub [u8; VirtioHeader::LEN]);

impl VirtioHeader {
    /// Bytes of the header with the `num_buffers` field.
    pub const LEN: usize = crate::foreign::VIRTIO_HEADER_BYTES;

    /// The header for a packet with these fields, whose headers take `header_len` bytes.
    pub fn encode(offload: &Offload, header_len: usize) -> Self {
        Self::encode_merged(offload, header_len, 0)
    }

    /// The same for a packet in so many merged buffers. It is put together in registers and stored
    /// as a word and half a word, as it is read when it is [copied](crate::foreign::copy).
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

    /// The fields that a sender claims. `hdr_len` is a hint that nobody may trust: ignored.
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

/// The virtio-net header where super-packets in tunnels were agreed upon (virtio 1.4; Linux's
/// `virtio_net_hdr_v1_hash_tunnel`): [`VirtioHeader`], 8 bytes for a hash of the flow, and the
/// tunnel's offsets.
///
/// Which of the two bits for tunnels is set says the version of the outer IP header, as on Linux.
/// virtio 1.4 §5.1.6.2 names the inner one where it says what a driver sets, and the outer where it
/// says what that means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VirtioTunnelHeader(pub [u8; VirtioTunnelHeader::LEN]);

impl VirtioTunnelHeader {
    /// Bytes of the header.
    pub const LEN: usize = VirtioHeader::LEN + 8 + 4;

    const TRANSPORT_AT: usize = Self::LEN - 4;
    const NETWORK_AT: usize = Self::LEN - 2;

    /// As [`VirtioHeader::encode`].
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

    /// As [`VirtioHeader::decode`].
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

    /// The first bytes: all of the header where tunnels were not agreed upon.
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
        /// Whatever decodes, encodes to something that decodes to the same.
        #[test]
        fn decode_and_encode_agree(bytes: [u8; 12]) {
            if let Ok(offload) = VirtioHeader(bytes).decode() {
                prop_assert_eq!(VirtioHeader::encode(&offload, 54).decode(), Ok(offload));
            }
        }

        /// The same with tunnels; a header without one is read as the shorter one is.
        #[test]
        fn decode_and_encode_agree_about_tunnels(mut bytes: [u8; 24], is_super: bool) {
            if is_super {
                // What is likely to decode.
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

    /// TCP over IPv4 in Geneve over IPv4, as Linux has it.
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

    /// Tried: both versions of IP, no super-packet, no partial checksum, a checksum that is partial
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

    /// Measured on a TAP: an outgoing UDP datagram with its checksum left to the device.
    #[test]
    fn a_known_header_decodes() {
        let bytes = [1, 0, 0, 0, 0, 0, 0x22, 0, 6, 0, 0, 0];
        let offload = VirtioHeader(bytes).decode().expect("valid");
        assert_eq!(offload.checksum, Checksum::Partial { start: 34, offset: 6 });
        assert_eq!(offload.gso, None);
    }
}
