//! The server name in QUIC's Initial packets (RFC 9000, RFC 9001 §5, RFC 9369).
//!
//! Initial packets are encrypted with keys that follow from the destination
//! connection ID of the client's first one. They carry the client's hello of TLS in CRYPTO frames,
//! in any order, over several packets and datagrams. A server ignores a packet that does not
//! decrypt; so does this reader, and its caller passes none on.
//!
//! One port of a client may begin several connections, and a server may ask for a second hello. So
//! each Initial packet of a conversation is read, not only the first ones. All other packets are
//! left alone: their first byte tells.

use crate::egress::greeting::{GREETING_MAX, Greeting, tls};
use aes_gcm::aes::Aes128;
use aes_gcm::aes::cipher::{BlockCipherEncrypt, KeyInit as _};
use aes_gcm::{AeadInOut, Aes128Gcm};
use hkdf::Hkdf;
use sha2::Sha256;

/// Versions (RFC 9000 §15, RFC 9369 §3.1).
const VERSION_1: u32 = 1;
const VERSION_2: u32 = 0x6b33_43cf;
/// In the first byte: a long header; the bit that is always set; type and lengths.
const LONG_HEADER: u8 = 0x80;
const FIXED_BIT: u8 = 0x40;
/// Longest connection ID (RFC 9000 §17.2).
const CONNECTION_ID_MAX: usize = 20;
const TAG_LEN: usize = 16;
/// Bytes of a sample for header protection, and their distance from the packet number.
const SAMPLE_LEN: usize = 16;
const SAMPLE_AFTER: usize = 4;
/// Connections that one port of a client begins towards one server before more are refused.
const CONNECTIONS_MAX: usize = 8;
/// Hellos of one connection: the first, and one that the server asks for.
const HELLOS_MAX: usize = 2;

/// Types of frames in Initial packets (RFC 9000 §12.4).
const PADDING: u64 = 0;
const PING: u64 = 1;
const ACK: u64 = 2;
const ACK_WITH_ECN: u64 = 3;
const CRYPTO: u64 = 6;
const CONNECTION_CLOSE: u64 = 0x1c;

/// What one port of a client has said to one server.
#[derive(Default)]
pub struct Conversation {
    connections: Vec<Connection>,
    /// Whole hellos that were not returned yet.
    hellos: Vec<Greeting>,
}

/// What a datagram says.
#[derive(Debug, PartialEq, Eq)]
pub enum Reading {
    /// Nothing that would have to be read.
    Clear,
    /// A part of a hello: it must wait for the rest.
    Partial,
    /// Whole hellos, in their order.
    Greetings(Vec<Greeting>),
    /// It is not understood, or contradicts what was said before.
    Invalid,
}

/// A connection that the client begins.
struct Connection {
    /// Where its first packet leads: the keys of each version follow from it.
    destination: Vec<u8>,
    version: u32,
    keys: Keys,
    /// Greatest number of its packets so far.
    largest: u64,
    stream: Stream,
}

/// The bytes of CRYPTO frames.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    /// Which of them have arrived.
    arrived: Vec<bool>,
    /// Where the next message begins.
    read: usize,
    hellos: usize,
}

/// Keys of a client's Initial packets.
struct Keys {
    packet: Aes128Gcm,
    iv: [u8; 12],
    header: Aes128,
}

/// An Initial packet within a datagram.
struct Initial<'a> {
    version: u32,
    destination: &'a [u8],
    /// From the first byte to the end of the payload.
    bytes: &'a [u8],
    /// Where the packet number begins.
    number_at: usize,
}

/// Returns true if a datagram begins with a packet that [`Conversation::read`] has to read.
pub fn has_long_header(first: u8) -> bool {
    first & LONG_HEADER != 0
}

impl Conversation {
    /// Returns how many bytes it keeps.
    pub fn memory(&self) -> usize {
        let streams = self.connections.iter().map(|connection| &connection.stream);
        // A byte, and whether it has arrived.
        streams.map(|stream| stream.bytes.len() * 2 + size_of::<Connection>()).sum()
    }

    /// Reads a datagram of the client.
    pub fn read(&mut self, datagram: &[u8]) -> Reading {
        let (mut is_partial, mut count) = (false, 0);
        let mut rest = datagram;
        while let Some(first) = rest.first().filter(|first| has_long_header(**first)) {
            if first & FIXED_BIT == 0 {
                return Reading::Invalid;
            }
            let Some((initial, after)) = packet(rest) else { return Reading::Invalid };
            rest = after;
            let Some(initial) = initial else { continue };
            count += 1;
            let Some((stream, frames)) = self.open(&initial) else { return Reading::Invalid };
            let Some(read) = stream.take(&frames) else { return Reading::Invalid };
            is_partial |= stream.is_partial();
            // Also if the rest is invalid: the same packets could come again without it.
            self.hellos.extend(read);
        }
        match (count, is_partial) {
            (0, _) => Reading::Clear,
            (_, true) => Reading::Partial,
            (_, false) if self.hellos.is_empty() => Reading::Clear,
            (_, false) => Reading::Greetings(std::mem::take(&mut self.hellos)),
        }
    }

    /// Decrypts a packet; returns the stream of its connection, and its frames.
    fn open(&mut self, initial: &Initial<'_>) -> Option<(&mut Stream, Vec<u8>)> {
        let known = self.connections.iter_mut().enumerate();
        let mut found = None;
        for (at, connection) in known {
            if let Some(frames) = connection.open(initial) {
                found = Some((at, frames));
                break;
            }
        }
        if found.is_none() && self.connections.len() < CONNECTIONS_MAX {
            let Initial { version, destination, .. } = *initial;
            let keys = Keys::of(version, destination)?;
            let (largest, frames) = keys.open(initial, 0)?;
            let (destination, stream) = (destination.to_vec(), Stream::default());
            self.connections.push(Connection { destination, version, keys, largest, stream });
            found = Some((self.connections.len() - 1, frames));
        }
        let (at, frames) = found?;
        Some((&mut self.connections[at].stream, frames))
    }
}

impl Connection {
    /// Decrypts a packet of this connection, whose version the server may have changed: its
    /// numbers and its stream go on, under other keys (RFC 9369 §4.1).
    fn open(&mut self, initial: &Initial<'_>) -> Option<Vec<u8>> {
        let changed = match initial.version == self.version {
            true => None,
            false => Some(Keys::of(initial.version, &self.destination)?),
        };
        let keys = changed.as_ref().unwrap_or(&self.keys);
        let (number, frames) = keys.open(initial, self.largest)?;
        self.largest = self.largest.max(number);
        self.version = initial.version;
        if let Some(keys) = changed {
            self.keys = keys;
        }
        Some(frames)
    }
}

impl Stream {
    /// Takes the CRYPTO frames of a packet; returns the hellos that are whole now, or `None` if the
    /// frames are invalid.
    fn take(&mut self, frames: &[u8]) -> Option<Vec<Greeting>> {
        let mut parser = tls::Parser(frames);
        while !parser.is_empty() {
            match varint(&mut parser)? {
                PADDING | PING => {}
                kind @ (ACK | ACK_WITH_ECN) => skip_ack(&mut parser, kind)?,
                CRYPTO => {
                    let (offset, len) = (varint(&mut parser)?, varint(&mut parser)?);
                    let data = parser.take(usize::try_from(len).ok()?)?;
                    self.put(usize::try_from(offset).ok()?, data)?;
                }
                CONNECTION_CLOSE => {
                    let (_error, _frame) = (varint(&mut parser)?, varint(&mut parser)?);
                    let len = varint(&mut parser)?;
                    parser.take(usize::try_from(len).ok()?)?;
                }
                _ => return None,
            }
        }
        let mut hellos = Vec::new();
        while let Some(hello) = self.next_hello()? {
            self.hellos += 1;
            if self.hellos > HELLOS_MAX {
                return None;
            }
            hellos.push(hello);
        }
        Some(hellos)
    }

    /// Puts bytes in their place; `None` if they are too far, or differ from those there.
    fn put(&mut self, offset: usize, data: &[u8]) -> Option<()> {
        let end = offset.checked_add(data.len()).filter(|end| *end <= GREETING_MAX)?;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
            self.arrived.resize(end, false);
        }
        for (at, byte) in (offset..end).zip(data) {
            if self.arrived[at] && self.bytes[at] != *byte {
                return None;
            }
            (self.bytes[at], self.arrived[at]) = (*byte, true);
        }
        Some(())
    }

    /// Returns the next whole hello, if there is one; `None` for another message.
    fn next_hello(&mut self) -> Option<Option<Greeting>> {
        let missing = self.arrived[self.read..].iter().position(|arrived| !arrived);
        let arrived = &self.bytes[self.read..missing.map_or(self.bytes.len(), |at| self.read + at)];
        let mut parser = tls::Parser(arrived);
        let Some(header) = parser.number(4) else { return Some(None) };
        let (kind, len) = ((header >> 24) as u8, header & 0xff_ffff);
        if kind != tls::CLIENT_HELLO || len > GREETING_MAX {
            return None;
        }
        let Some(body) = parser.take(len) else { return Some(None) };
        let greeting = tls::name_of(body);
        self.read += 4 + len;
        Some(Some(greeting))
    }

    /// Returns true if a message is not whole.
    fn is_partial(&self) -> bool {
        self.bytes.len() > self.read
    }
}

impl Keys {
    /// Derives the keys of a client whose first packet has this destination (RFC 9001 §5.2).
    fn of(version: u32, destination: &[u8]) -> Option<Self> {
        let (salt, prefix): ([u8; 20], &str) = match version {
            VERSION_1 => (SALT_1, "quic"),
            VERSION_2 => (SALT_2, "quicv2"),
            _ => return None,
        };
        let (_, initial) = Hkdf::<Sha256>::extract(Some(&salt), destination);
        let client: [u8; 32] = expand(&initial, "client in")?;
        let client = Hkdf::<Sha256>::from_prk(&client).ok()?;
        let packet: [u8; 16] = expand(&client, &format!("{prefix} key"))?;
        let header: [u8; 16] = expand(&client, &format!("{prefix} hp"))?;
        Some(Self {
            packet: Aes128Gcm::new(&packet.into()),
            iv: expand(&client, &format!("{prefix} iv"))?,
            header: Aes128::new(&header.into()),
        })
    }

    /// Removes the protection of a packet (RFC 9001 §5.3, §5.4); returns its number and its frames.
    fn open(&self, initial: &Initial<'_>, largest: u64) -> Option<(u64, Vec<u8>)> {
        let Initial { bytes, number_at, .. } = *initial;
        let sample_at = number_at + SAMPLE_AFTER;
        let sample = bytes.get(sample_at..sample_at + SAMPLE_LEN)?;
        let mut mask = [0; SAMPLE_LEN];
        mask.copy_from_slice(sample);
        let mut mask = mask.into();
        self.header.encrypt_block(&mut mask);
        let mut header = bytes.get(..number_at + 4)?.to_vec();
        header[0] ^= mask[0] & 0x0f;
        let number_len = usize::from(header[0] & 3) + 1;
        header.truncate(number_at + number_len);
        let mut number = 0;
        for (byte, mask) in header[number_at..].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
            number = number << 8 | u64::from(*byte);
        }
        let number = whole_number(number, number_len, largest);
        let mut nonce = self.iv;
        for (byte, part) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= part;
        }
        let mut frames = bytes.get(header.len()..)?.to_vec();
        self.packet.decrypt_in_place(&nonce.into(), &header, &mut frames).ok()?;
        Some((number, frames))
    }
}

/// Salts of the initial secrets (RFC 9001 §5.2, RFC 9369 §3.3.1).
const SALT_1: [u8; 20] = [
    0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad,
    0xcc, 0xbb, 0x7f, 0x0a,
];
const SALT_2: [u8; 20] = [
    0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26, 0x9d, 0xcb,
    0xf9, 0xbd, 0x2e, 0xd9,
];

/// HKDF-Expand-Label without a context (RFC 8446 §7.1).
fn expand<const LEN: usize>(secret: &Hkdf<Sha256>, label: &str) -> Option<[u8; LEN]> {
    let label = format!("tls13 {label}");
    let len = (LEN as u16).to_be_bytes();
    let info = [&len[..], &[label.len() as u8], label.as_bytes(), &[0]];
    let mut key = [0; LEN];
    secret.expand_multi_info(&info, &mut key).ok()?;
    Some(key)
}

/// Restores a packet number (RFC 9000 appendix A.3).
fn whole_number(truncated: u64, len: usize, largest: u64) -> u64 {
    let window = 1 << (len * 8);
    let expected = largest + 1;
    let candidate = expected & !(window - 1) | truncated;
    if candidate + window / 2 <= expected && candidate < (1 << 62) - window {
        candidate + window
    } else if candidate > expected + window / 2 && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

/// Takes the packet at the beginning of `bytes`, which has a long header; returns it if it is an
/// Initial packet, and what follows it.
fn packet(bytes: &[u8]) -> Option<(Option<Initial<'_>>, &[u8])> {
    let mut parser = tls::Parser(bytes);
    let first = parser.number(1)? as u8;
    let version = parser.number(4)? as u32;
    let destination = parser.vector(1)?.0;
    let source = parser.vector(1)?.0;
    if destination.len() > CONNECTION_ID_MAX || source.len() > CONNECTION_ID_MAX {
        return None;
    }
    // Types: Initial, 0-RTT and Handshake, which have a length; clients send no others.
    let (initial, others) = match version {
        VERSION_1 => (0, [1, 2]),
        VERSION_2 => (1, [2, 3]),
        _ => return None,
    };
    let kind = first >> 4 & 3;
    let is_initial = kind == initial;
    if is_initial {
        let len = varint(&mut parser)?;
        parser.take(usize::try_from(len).ok()?)?;
    } else if !others.contains(&kind) {
        return None;
    }
    let len = usize::try_from(varint(&mut parser)?).ok()?;
    let number_at = bytes.len() - parser.0.len();
    parser.take(len.max(TAG_LEN))?;
    let bytes = &bytes[..number_at + len];
    Some((is_initial.then_some(Initial { version, destination, bytes, number_at }), parser.0))
}

/// Takes a number of variable length (RFC 9000 §16).
fn varint(parser: &mut tls::Parser<'_>) -> Option<u64> {
    let first = *parser.0.first()?;
    let number = parser.number(1 << (first >> 6))? as u64;
    let bits = (8 << (first >> 6)) - 2;
    Some(number & ((1 << bits) - 1))
}

/// Skips an ACK frame (RFC 9000 §19.3).
fn skip_ack(parser: &mut tls::Parser<'_>, kind: u64) -> Option<()> {
    let (_largest, _delay) = (varint(parser)?, varint(parser)?);
    let ranges = varint(parser)?;
    let _first = varint(parser)?;
    let counts = if kind == ACK_WITH_ECN { 3 } else { 0 };
    // Each takes a byte at least, so the frame's end bounds the loop.
    for _ in 0..ranges.checked_mul(2)?.checked_add(counts)? {
        varint(parser)?;
    }
    Some(())
}

#[cfg(test)]
pub(crate) mod tests;
