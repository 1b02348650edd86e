//! TCP header and options (RFC 9293 §3.1, §3.2).
//!
//! Options are parsed and built as in Linux, because other stacks have been tuned to Linux and test
//! scripts compare bytes. A malformed option ends parsing and keeps the options before it. A known
//! option with a wrong length is skipped. Built options have Linux's order and padding, so that
//! every option is aligned for a receiver's fast path.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

use super::ParseError;
use super::field::{header, header_mut, read_u16, read_u32, write, write_u16, write_u32};

/// A TCP header without its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// SEG.SEQ: sequence number of the first byte, or of the SYN.
    pub sequence: u32,
    /// SEG.ACK: next sequence number that the sender expects, if [`Flags::ACK`] is set.
    pub acknowledgment: u32,
    /// Control bits.
    pub flags: Flags,
    /// SEG.WND as on the wire, not scaled.
    pub window: u16,
    /// Checksum as on the wire.
    pub checksum: u16,
    /// SEG.UP: urgent pointer, if [`Flags::URG`] is set.
    pub urgent: u16,
    /// Bytes of the header with options.
    pub header_len: u8,
}

/// Header length with options (the data offset), from the start of `bytes`. `None` if fewer than
/// [`HEADER_LEN`] bytes are given, or the data offset is smaller than [`HEADER_LEN`].
#[inline]
pub(crate) fn header_len(bytes: &[u8]) -> Option<usize> {
    let fixed: &[u8; HEADER_LEN] = bytes.first_chunk()?;
    let len = usize::from(fixed[at::DATA_OFFSET] >> 4) * 4;
    (len >= HEADER_LEN).then_some(len)
}

impl Header {
    /// Reads the header and its options at the start of `bytes`. The checksum is not verified.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, Options), ParseError> {
        let fixed: &[u8; HEADER_LEN] = header(bytes)?;
        let header_len = header_len(fixed).ok_or(ParseError::BadLength)?;
        let all = bytes.get(..header_len).ok_or(ParseError::Truncated)?;
        let flags = Flags(fixed[at::FLAGS]);
        let parsed = Self {
            source_port: read_u16(fixed, at::SOURCE_PORT),
            destination_port: read_u16(fixed, at::DESTINATION_PORT),
            sequence: read_u32(fixed, at::SEQUENCE),
            acknowledgment: read_u32(fixed, at::ACKNOWLEDGMENT),
            flags,
            window: read_u16(fixed, at::WINDOW),
            checksum: read_u16(fixed, at::CHECKSUM),
            urgent: read_u16(fixed, at::URGENT),
            header_len: header_len as u8,
        };
        Ok((parsed, Options::parse(&all[HEADER_LEN..], flags.contains(Flags::SYN))))
    }

    /// Writes header and options at the start of `bytes`, which must be at least [`HEADER_LEN`] +
    /// [`Options::emitted_len`] long, and returns that length. The data offset is computed from the
    /// options, not from `header_len`; the checksum is written as given.
    #[inline]
    pub fn emit(&self, options: &Options, bytes: &mut [u8]) -> usize {
        let options_len = options.emit(self.flags.contains(Flags::SYN), &mut bytes[HEADER_LEN..]);
        let header_len = HEADER_LEN + options_len;
        let bytes: &mut [u8; HEADER_LEN] = header_mut(bytes);
        write_u16(bytes, at::SOURCE_PORT, self.source_port);
        write_u16(bytes, at::DESTINATION_PORT, self.destination_port);
        write_u32(bytes, at::SEQUENCE, self.sequence);
        write_u32(bytes, at::ACKNOWLEDGMENT, self.acknowledgment);
        bytes[at::DATA_OFFSET] = ((header_len / 4) << 4) as u8;
        bytes[at::FLAGS] = self.flags.0;
        write_u16(bytes, at::WINDOW, self.window);
        write_u16(bytes, at::CHECKSUM, self.checksum);
        write_u16(bytes, at::URGENT, self.urgent);
        header_len
    }
}

/// The control bits of a segment.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No control bit.
    pub const NONE: Self = Self(0);
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push: deliver the data to the user now.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment field is valid.
    pub const ACK: Self = Self(0x10);
    /// The urgent field is valid.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168 §6.1).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168 §6.1).
    pub const CWR: Self = Self(0x80);

    /// True if all bits of `other` are set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if any bit of `other` is set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Sets all bits of `other`.
    #[inline]
    pub const fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Clears all bits of `other`.
    #[inline]
    pub const fn remove(&mut self, other: Self) {
        self.0 &= !other.0;
    }
}

impl BitOr for Flags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.insert(other);
    }
}

impl fmt::Display for Flags {
    /// Writes names separated by bars, such as `SYN|ACK`; `-` for none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (index, name) in FLAG_NAMES.iter().enumerate() {
            if self.0 & 1 << index != 0 {
                write!(f, "{separator}{name}")?;
                separator = "|";
            }
        }
        if separator.is_empty() { f.write_str("-") } else { Ok(()) }
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The options of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// Maximum segment size that the sender accepts (RFC 9293 §3.2); only on SYN, never zero when
    /// parsed.
    pub mss: Option<u16>,
    /// Window shift of the sender (RFC 7323 §2); only on SYN, at most [`WINDOW_SCALE_MAX`].
    pub window_scale: Option<u8>,
    /// The sender supports SACK (RFC 2018 §2); only on SYN.
    pub sack_permitted: bool,
    /// Left and right edges of blocks received out of order (RFC 2018 §3); see
    /// [`Options::sack_blocks`].
    pub sack: [(u32, u32); SACK_BLOCKS_MAX],
    /// Number of valid entries of `sack`.
    pub sack_count: u8,
    /// TSval and TSecr (RFC 7323 §3).
    pub timestamps: Option<(u32, u32)>,
    /// Fast Open cookie or the request for one (RFC 7413 §4.1.1); only on SYN.
    pub fast_open: Option<FastOpenCookie>,
    /// A signature was present (RFC 2385). Signatures are not supported and never written.
    pub md5: bool,
}

impl Options {
    /// Parses the options of a segment. `syn` says whether its SYN bit is set; options for a SYN
    /// are ignored elsewhere. There is no error: a malformed option ends parsing, and the options
    /// before it are kept (`tests/scripts/options_of_wrong_length.pkt`).
    #[inline]
    pub fn parse(bytes: &[u8], syn: bool) -> Self {
        // Fast path for nearly every segment of a connection: NOP, NOP, timestamps and nothing
        // else.
        if !syn
            && let Ok(bytes) = <&[u8; TIMESTAMPS_ALIGNED_LEN]>::try_from(bytes)
            && read_u32(bytes, 0) == TIMESTAMPS_ALIGNED
        {
            let timestamps = Some((read_u32(bytes, 4), read_u32(bytes, 8)));
            return Self { timestamps, ..Self::default() };
        }
        Self::parse_any(bytes, syn)
    }

    /// Received SACK blocks, or SACK blocks to send.
    #[inline]
    pub fn sack_blocks(&self) -> &[(u32, u32)] {
        &self.sack[..usize::from(self.sack_count).min(SACK_BLOCKS_MAX)]
    }

    /// Length of the options in a header, padding included: a multiple of 4, at most
    /// [`OPTIONS_LEN_MAX`]. `syn` is as in [`Options::parse`].
    #[inline]
    pub fn emitted_len(&self, syn: bool) -> usize {
        let timestamps = if self.timestamps.is_some() { TIMESTAMPS_ALIGNED_LEN } else { 0 };
        if !syn {
            return timestamps + sack_len(self.emitted_sack_blocks().len());
        }
        let mss = if self.mss.is_some() { usize::from(MSS_LEN) } else { 0 };
        let sack_permitted = if self.sack_permitted && timestamps == 0 { 4 } else { 0 };
        let window_scale = if self.window_scale.is_some() { 4 } else { 0 };
        let fast_open = match &self.fast_open {
            Some(cookie) => (cookie.head_len() + cookie.as_bytes().len()).next_multiple_of(4),
            None => 0,
        };
        mss + timestamps + sack_permitted + window_scale + fast_open
    }

    /// General case of [`Options::parse`].
    fn parse_any(mut bytes: &[u8], syn: bool) -> Self {
        let mut options = Self::default();
        while let Some((&kind, rest)) = bytes.split_first() {
            match kind {
                KIND_END => break,
                KIND_NOP => bytes = rest,
                _ => {
                    // The length includes the kind and length bytes.
                    let Some(&len) = rest.first() else { break };
                    let Some(value) = bytes.get(2..usize::from(len)) else { break };
                    options.read(kind, value, syn);
                    bytes = &bytes[usize::from(len)..];
                }
            }
        }
        options
    }

    /// Stores one option; an option of unknown kind or wrong length is ignored.
    fn read(&mut self, kind: u8, value: &[u8], syn: bool) {
        match (kind, value) {
            (KIND_MSS, &[high, low]) if syn => {
                let mss = u16::from_be_bytes([high, low]);
                // An MSS of zero counts as absent (`tests/scripts/mss_of_zero.pkt`).
                if mss != 0 {
                    self.mss = Some(mss);
                }
            }
            // RFC 7323 §2.3: a larger shift is reduced to the maximum.
            (KIND_WINDOW_SCALE, &[shift]) if syn => {
                self.window_scale = Some(shift.min(WINDOW_SCALE_MAX));
            }
            (KIND_SACK_PERMITTED, []) if syn => self.sack_permitted = true,
            (KIND_SACK, [_, ..]) => {
                let (blocks, []) = value.as_chunks::<SACK_BLOCK_LEN>() else { return };
                self.sack_count = blocks.len().min(SACK_BLOCKS_MAX) as u8;
                self.sack = [(0, 0); SACK_BLOCKS_MAX];
                for (edges, block) in self.sack.iter_mut().zip(blocks) {
                    *edges = (read_u32(block, 0), read_u32(block, 4));
                }
            }
            (KIND_TIMESTAMPS, [_, _, _, _, _, _, _, _]) => {
                self.timestamps = Some((read_u32(value, 0), read_u32(value, 4)));
            }
            (KIND_FAST_OPEN, _) if syn => self.read_cookie(value, false),
            (KIND_EXPERIMENT, &[high, low, ref value @ ..])
                if syn && u16::from_be_bytes([high, low]) == FAST_OPEN_MAGIC =>
            {
                self.read_cookie(value, true);
            }
            (KIND_MD5, _) => self.md5 = true,
            _ => {}
        }
    }

    /// Stores a cookie (RFC 7413 §4.1.1: even lengths). An invalid even length clears an earlier
    /// cookie, and an odd length is ignored.
    fn read_cookie(&mut self, value: &[u8], experimental: bool) {
        if value.len().is_multiple_of(2) {
            self.fast_open =
                FastOpenCookie::new(value).map(|cookie| cookie.in_option(experimental));
        }
    }

    /// Writes the options in Linux's order and alignment and returns their length.
    #[inline]
    fn emit(&self, syn: bool, bytes: &mut [u8]) -> usize {
        let options_len = self.emitted_len(syn);
        let mut writer = Writer { bytes: &mut bytes[..options_len] };
        if syn {
            self.emit_syn(&mut writer);
        } else {
            if let Some((value, echo)) = self.timestamps {
                writer.words(&[TIMESTAMPS_ALIGNED, value, echo]);
            }
            let blocks = self.emitted_sack_blocks();
            if !blocks.is_empty() {
                let len = (2 + blocks.len() * SACK_BLOCK_LEN) as u8;
                writer.put(&[KIND_NOP, KIND_NOP, KIND_SACK, len]);
            }
            for &(left, right) in blocks {
                writer.words(&[left, right]);
            }
        }
        debug_assert!(writer.bytes.is_empty(), "emitted_len and emit agree");
        options_len
    }

    /// [`Options::emit`] for a SYN.
    fn emit_syn(&self, writer: &mut Writer<'_>) {
        if let Some(mss) = self.mss {
            writer.put(&[KIND_MSS, MSS_LEN]);
            writer.put(&mss.to_be_bytes());
        }
        match (self.timestamps, self.sack_permitted) {
            (Some((value, echo)), true) => {
                // SACK permitted replaces the two NOPs before the timestamps.
                writer.put(&[KIND_SACK_PERMITTED, 2, KIND_TIMESTAMPS, TIMESTAMPS_LEN]);
                writer.words(&[value, echo]);
            }
            (Some((value, echo)), false) => writer.words(&[TIMESTAMPS_ALIGNED, value, echo]),
            (None, true) => writer.put(&[KIND_NOP, KIND_NOP, KIND_SACK_PERMITTED, 2]),
            (None, false) => {}
        }
        if let Some(shift) = self.window_scale {
            writer.put(&[KIND_NOP, KIND_WINDOW_SCALE, 3, shift]);
        }
        if let Some(cookie) = &self.fast_open {
            let len = (cookie.head_len() + cookie.as_bytes().len()) as u8;
            if cookie.experimental {
                writer.put(&[KIND_EXPERIMENT, len]);
                writer.put(&FAST_OPEN_MAGIC.to_be_bytes());
            } else {
                writer.put(&[KIND_FAST_OPEN, len]);
            }
            writer.put(cookie.as_bytes());
            writer.bytes.fill(KIND_NOP);
            writer.bytes = &mut [];
        }
    }

    /// SACK blocks that fit beside the timestamps.
    #[inline]
    fn emitted_sack_blocks(&self) -> &[(u32, u32)] {
        let blocks = self.sack_blocks();
        let room = if self.timestamps.is_some() { SACK_BLOCKS_MAX - 1 } else { SACK_BLOCKS_MAX };
        &blocks[..blocks.len().min(room)]
    }
}

/// A Fast Open cookie, or a request for one if it is empty (RFC 7413 §4.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FastOpenCookie {
    /// Uses the experimental option, kind 254 with a magic number.
    pub experimental: bool,
    /// Length of the cookie: zero, or an even number from 4 to 16.
    pub len: u8,
    /// The cookie, padded with zeros.
    pub bytes: [u8; FAST_OPEN_COOKIE_LEN_MAX],
}

impl FastOpenCookie {
    /// Request for a cookie.
    pub const REQUEST: Self =
        Self { experimental: false, len: 0, bytes: [0; FAST_OPEN_COOKIE_LEN_MAX] };

    /// A cookie of these bytes; `None` if the length is invalid.
    pub fn new(cookie: &[u8]) -> Option<Self> {
        let len = cookie.len();
        let valid = len == 0
            || (FAST_OPEN_COOKIE_LEN_MIN..=FAST_OPEN_COOKIE_LEN_MAX).contains(&len)
                && len.is_multiple_of(2);
        if !valid {
            return None;
        }
        let mut bytes = [0; FAST_OPEN_COOKIE_LEN_MAX];
        write(&mut bytes, 0, cookie);
        Some(Self { experimental: false, len: len as u8, bytes })
    }

    /// Returns the cookie for the experimental or the standard option.
    pub fn in_option(self, experimental: bool) -> Self {
        Self { experimental, ..self }
    }

    /// Bytes of the option before the cookie.
    const fn head_len(&self) -> usize {
        if self.experimental { 4 } else { 2 }
    }

    /// Bytes of the cookie.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(FAST_OPEN_COOKIE_LEN_MAX)]
    }
}

/// Remaining space for options.
struct Writer<'a> {
    bytes: &'a mut [u8],
}

impl Writer<'_> {
    /// Writes `field` and advances.
    #[inline]
    fn put(&mut self, field: &[u8]) {
        let (place, rest) = core::mem::take(&mut self.bytes).split_at_mut(field.len());
        place.copy_from_slice(field);
        self.bytes = rest;
    }

    /// Writes 32-bit words in network byte order.
    #[inline]
    fn words(&mut self, words: &[u32]) {
        for word in words {
            self.put(&word.to_be_bytes());
        }
    }
}

/// Bytes of `count` SACK blocks with their two NOPs.
#[inline]
const fn sack_len(count: usize) -> usize {
    if count == 0 { 0 } else { 4 + count * SACK_BLOCK_LEN }
}

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// Bytes of the longest header: 15 words of 4.
pub const HEADER_LEN_MAX: usize = 15 * 4;

/// Maximum bytes of options.
pub const OPTIONS_LEN_MAX: usize = HEADER_LEN_MAX - HEADER_LEN;

/// Offset of the checksum in the header: `csum_offset` of checksum offload.
pub const CHECKSUM_OFFSET: usize = at::CHECKSUM;

/// Maximum number of SACK blocks in one segment: 4 + 4 * 8 bytes of [`OPTIONS_LEN_MAX`]; one less
/// with timestamps.
pub const SACK_BLOCKS_MAX: usize = 4;

/// Maximum window shift (RFC 7323 §2.3).
pub const WINDOW_SCALE_MAX: u8 = 14;

/// Bytes of the shortest Fast Open cookie (RFC 7413 §4.1.1).
pub const FAST_OPEN_COOKIE_LEN_MIN: usize = 4;

/// Bytes of the longest Fast Open cookie (RFC 7413 §4.1.1).
pub const FAST_OPEN_COOKIE_LEN_MAX: usize = 16;

const KIND_END: u8 = 0;
const KIND_NOP: u8 = 1;
const KIND_MSS: u8 = 2;
const KIND_WINDOW_SCALE: u8 = 3;
const KIND_SACK_PERMITTED: u8 = 4;
const KIND_SACK: u8 = 5;
const KIND_TIMESTAMPS: u8 = 8;
const KIND_MD5: u8 = 19;
const KIND_FAST_OPEN: u8 = 34;
/// Kind shared by experiments, which begin with an identifier (RFC 6994).
const KIND_EXPERIMENT: u8 = 254;
/// Experiment identifier of Fast Open.
const FAST_OPEN_MAGIC: u16 = 0xf989;

const MSS_LEN: u8 = 4;
const TIMESTAMPS_LEN: u8 = 10;
const SACK_BLOCK_LEN: usize = 8;

/// NOP, NOP, kind and length before the two values of aligned timestamps (RFC 7323, appendix A).
const TIMESTAMPS_ALIGNED: u32 =
    u32::from_be_bytes([KIND_NOP, KIND_NOP, KIND_TIMESTAMPS, TIMESTAMPS_LEN]);
const TIMESTAMPS_ALIGNED_LEN: usize = 2 + TIMESTAMPS_LEN as usize;

// Linux's longest layouts fit a header: on a SYN, MSS, timestamps with SACK permitted, window scale
// and cookie; otherwise timestamps and one SACK block less, or all SACK blocks.
const _: () =
    assert!(4 + TIMESTAMPS_ALIGNED_LEN + 4 + 4 + FAST_OPEN_COOKIE_LEN_MAX <= OPTIONS_LEN_MAX);
const _: () = assert!(TIMESTAMPS_ALIGNED_LEN + sack_len(SACK_BLOCKS_MAX - 1) <= OPTIONS_LEN_MAX);
const _: () = assert!(sack_len(SACK_BLOCKS_MAX) <= OPTIONS_LEN_MAX);

/// Names of the control bits, from the lowest bit.
const FLAG_NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];

/// Offsets of the fields.
pub(crate) mod at {
    pub(crate) const SOURCE_PORT: usize = 0;
    pub(crate) const DESTINATION_PORT: usize = 2;
    pub(crate) const SEQUENCE: usize = 4;
    pub(crate) const ACKNOWLEDGMENT: usize = 8;
    pub(crate) const DATA_OFFSET: usize = 12;
    pub(crate) const FLAGS: usize = 13;
    pub(crate) const WINDOW: usize = 14;
    pub(crate) const CHECKSUM: usize = 16;
    pub(crate) const URGENT: usize = 18;
}

#[cfg(test)]
mod tests;
