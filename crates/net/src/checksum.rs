//! The Internet checksum (RFC 1071) and its pseudo-headers (RFC 9293 §3.1, RFC 8200 §8.1).
//!
//! [`Sum`] is a running one's complement sum. The payload of a packet is in several pieces of any
//! length. So a `Sum` records whether an odd number of bytes has been added, and aligns the next
//! piece accordingly; callers need not care about alignment.
//!
//! The implementation uses two properties of the sum (RFC 1071 §2):
//!
//! - It does not depend on byte order, so words are added in native order and the 16-bit result is
//!   swapped once, at the end.
//! - It is arithmetic modulo 65,535, and 65,535 divides 2^64 - 1, so words of 64 bits can be added
//!   with end-around carry and folded to 16 bits at the end.
//!
//! Pure functions of their arguments; any thread may call them.

use core::net::IpAddr;

use crate::wire::Protocol;

/// A running one's complement sum over pieces of any length (RFC 1071).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Sum of the words in native byte order, modulo 2^64 - 1.
    words: u64,
    /// An odd number of bytes has been added: the next byte is the low half of a word.
    odd: bool,
}

impl Sum {
    /// The sum of no bytes.
    pub const fn new() -> Self {
        Self { words: 0, odd: false }
    }

    /// Adds the bytes that follow those added so far.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        self.add_words(sum_words(bytes));
        self.odd ^= !bytes.len().is_multiple_of(2);
    }

    /// Adds the two bytes of a field, in network byte order.
    #[inline]
    pub fn add_u16(&mut self, value: u16) {
        self.add_words(u64::from(value.to_be()));
    }

    /// Adds the four bytes of a field, in network byte order.
    #[inline]
    pub fn add_u32(&mut self, value: u32) {
        self.add_words(u64::from(value.to_be()));
    }

    /// Adds the bytes that `other` has summed, as if they followed those added so far. This allows
    /// sums of pieces to be reused.
    #[inline]
    pub fn add_sum(&mut self, other: Sum) {
        self.add_words(other.words);
        self.odd ^= other.odd;
    }

    /// The sum in 16 bits, not complemented: the value of a partial checksum field. Over bytes that
    /// include a correct checksum it is `0xffff`.
    #[inline]
    pub fn fold(self) -> u16 {
        u16::from_be(fold_words(self.words))
    }

    /// The checksum: the complement of [`Sum::fold`]. Over bytes that include a correct checksum it
    /// is zero. A UDP sender passes the value through [`udp_nonzero`].
    #[inline]
    pub fn finish(self) -> u16 {
        !self.fold()
    }

    /// Adds a sum of words that begins at the next byte.
    #[inline]
    fn add_words(&mut self, words: u64) {
        // RFC 1071 §2(B): at an odd offset every byte is in the other half of its word.
        let words = if self.odd { u64::from(fold_words(words).swap_bytes()) } else { words };
        self.words = add_carry(self.words, words);
    }
}

/// The sum over the pseudo-header of TCP, UDP and ICMPv6 (RFC 9293 §3.1, RFC 768, RFC 8200 §8.1).
/// `length` counts the transport header and its payload.
///
/// The two layouts differ, but their sums do not: IPv4's 16-bit length and IPv6's 32-bit length
/// contribute the same.
pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: Protocol, length: u32) -> Sum {
    debug_assert_eq!(source.is_ipv4(), destination.is_ipv4(), "addresses of one family");
    let mut sum = Sum::new();
    for address in [source, destination] {
        match address {
            IpAddr::V4(address) => sum.add_u32(address.to_bits()),
            IpAddr::V6(address) => sum.add(&address.octets()),
        }
    }
    sum.add_u16(u16::from(protocol.0));
    sum.add_u32(length);
    sum
}

/// The checksum in a UDP header: a computed zero is sent as all ones, because zero means no
/// checksum (RFC 768).
#[inline]
pub const fn udp_nonzero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// Sum of the words of `bytes` in native byte order, modulo 2^64 - 1. A last partial word is padded
/// with zeros.
///
/// The loop keeps two totals per lane, of the words and of their high halves, because both are
/// plain wrapping additions: the compiler turns it into three vector operations per 16 bytes on any
/// x86-64. The total of the low halves follows by subtraction. It is exact while it fits 64 bits,
/// that is for [`WORDS_MAX`] words.
#[inline]
fn sum_words(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    assert!(words.len() <= WORDS_MAX);
    let (mut whole, mut high) = (0u64, 0u64);
    for word in words {
        let word = u64::from_ne_bytes(*word);
        whole = whole.wrapping_add(word);
        high += word >> 32;
    }
    let low = whole.wrapping_sub(high << 32);
    // 2^32 is a power of 2^16, so the high halves count as much as the low ones (mod 65,535).
    add_carry(add_carry(low, high), sum_rest(rest))
}

/// [`sum_words`] of fewer than eight bytes.
#[inline]
fn sum_rest(bytes: &[u8]) -> u64 {
    debug_assert!(bytes.len() < 8);
    let (mut sum, mut rest) = (0, bytes);
    if let Some((word, tail)) = rest.split_first_chunk() {
        sum += u64::from(u32::from_ne_bytes(*word));
        rest = tail;
    }
    if let Some((word, tail)) = rest.split_first_chunk() {
        sum += u64::from(u16::from_ne_bytes(*word));
        rest = tail;
    }
    if let Some(&last) = rest.first() {
        sum += u64::from(u16::from_ne_bytes([last, 0]));
    }
    sum
}

/// `left + right` with end-around carry, which is addition modulo 2^64 - 1.
#[inline]
const fn add_carry(left: u64, right: u64) -> u64 {
    let (sum, carry) = left.overflowing_add(right);
    sum + carry as u64
}

/// `words` modulo 65,535; zero only if every byte that was added is zero.
#[inline]
const fn fold_words(words: u64) -> u16 {
    let sum = (words & 0xffff_ffff) + (words >> 32); // at most 33 bits
    let sum = (sum & 0xffff) + (sum >> 16); // at most 18 bits
    let sum = (sum & 0xffff) + (sum >> 16); // at most 17 bits
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// Maximum number of 64-bit words in one call: 2^31 (16 GiB), half of what the totals of 32-bit
/// halves can hold in 64 bits.
const WORDS_MAX: usize = 1 << 31;

const _: () = assert!((WORDS_MAX as u128) * (u32::MAX as u128) <= u64::MAX as u128);

#[cfg(test)]
mod tests;
