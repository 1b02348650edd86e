//! What a device does for a packet, or has done: checksums and segmentation.
//!
//! The fields are those of the virtio-net header (virtio 1.2 §5.1.6), which TAP devices use too.
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

/// Why a virtio-net header was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VirtioHeaderError {
    /// A segmentation type that is unknown or was not negotiated.
    UnknownGso,
    /// A segment size of 0 or 0xffff.
    BadGsoSize,
}

impl core::fmt::Display for VirtioHeaderError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            VirtioHeaderError::UnknownGso => "unknown segmentation type in virtio-net header",
            VirtioHeaderError::BadGsoSize => "impossible segment size in virtio-net header",
        })
    }
}

impl core::error::Error for VirtioHeaderError {}

const FLAG_NEEDS_CSUM: u8 = 1;
const FLAG_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// The 12-byte virtio-net header in front of each frame, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VirtioHeader(pub [u8; VirtioHeader::LEN]);

impl VirtioHeader {
    /// Bytes of the header with the `num_buffers` field.
    pub const LEN: usize = 12;

    /// The header for a packet with these fields, whose headers take `header_len` bytes.
    pub fn encode(offload: &Offload, header_len: usize) -> Self {
        let mut bytes = [0; Self::LEN];
        match offload.checksum {
            Checksum::None => {}
            Checksum::Unnecessary => bytes[0] = FLAG_DATA_VALID,
            Checksum::Partial { start, offset } => {
                bytes[0] = FLAG_NEEDS_CSUM;
                bytes[6..8].copy_from_slice(&start.to_le_bytes());
                bytes[8..10].copy_from_slice(&offset.to_le_bytes());
            }
        }
        if let Some(gso) = offload.gso {
            bytes[1] = match gso.kind {
                GsoKind::Tcp4 => GSO_TCPV4,
                GsoKind::Tcp6 => GSO_TCPV6,
                GsoKind::Udp => GSO_UDP_L4,
            };
            if gso.ecn {
                bytes[1] |= GSO_ECN;
            }
            let header_len = u16::try_from(header_len).unwrap_or(u16::MAX);
            bytes[2..4].copy_from_slice(&header_len.to_le_bytes());
            bytes[4..6].copy_from_slice(&gso.size.get().to_le_bytes());
        }
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
        Ok(Offload { checksum, gso: Some(Gso { kind, size, ecn }) })
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
