//! Fast Open (RFC 7413): settings, the cookies of a server, and what a connection learns.
//!
//! A cookie is SipHash-2-4 of both addresses under a key of the server. Linux's servers use the
//! same function (`fastopen/server/sockopt-fastopen-key.pkt`), so servers behind one address that
//! share a key accept each other's cookies.

use crate::wire::tcp::FastOpenCookie;
use core::hash::Hasher;
use core::net::IpAddr;
use siphasher::sip::SipHasher24;

/// Bit of `Settings::fastopen`: connections may use Fast Open.
pub const CLIENT: u32 = 0x1;
/// Bit of `Settings::fastopen`: listeners may use Fast Open.
pub const SERVER: u32 = 0x2;
/// Bit of `Settings::fastopen`: connections send data with their SYN without a cookie.
pub const CLIENT_NO_COOKIE: u32 = 0x4;
/// Bit of `Settings::fastopen`: listeners accept data in a SYN without a cookie.
pub const SERVER_NO_COOKIE: u32 = 0x200;
/// Bit of `Settings::fastopen`: every listener uses Fast Open, with its backlog as the queue
/// length.
pub const SERVER_ALL: u32 = 0x400;

/// Bytes of a key.
pub const KEY_LEN: usize = 16;

/// The current key of a server's cookies, and the previous one, whose cookies are still accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpenKeys {
    /// Creates and checks cookies.
    pub primary: [u8; KEY_LEN],
    /// Only checks cookies.
    pub backup: Option<[u8; KEY_LEN]>,
}

/// Result of checking a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieCheck {
    /// Made with the primary key.
    Good,
    /// Made with the backup key: accepted, and answered with a new cookie.
    Old,
    /// Made with neither key.
    Bad,
}

impl FastOpenKeys {
    /// The cookie for `client` when it connects to `server`.
    pub fn cookie(&self, client: IpAddr, server: IpAddr) -> FastOpenCookie {
        cookie(&self.primary, client, server)
    }

    /// Checks a cookie from `client`.
    pub fn check(&self, given: &FastOpenCookie, client: IpAddr, server: IpAddr) -> CookieCheck {
        if given.as_bytes() == self.cookie(client, server).as_bytes() {
            return CookieCheck::Good;
        }
        match &self.backup {
            Some(key) if given.as_bytes() == cookie(key, client, server).as_bytes() => {
                CookieCheck::Old
            }
            _ => CookieCheck::Bad,
        }
    }
}

/// What the answer to a SYN with Fast Open revealed about the peer, for the cache of peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpenOutcome {
    /// MSS option of the peer; 0 if it had none.
    pub mss: u16,
    /// Cookie from the peer.
    pub cookie: Option<FastOpenCookie>,
    /// The SYN was apparently lost because of its data.
    pub syn_lost: bool,
    /// The peer gave no cookie in reply to the standard option (1) or the experimental one (2);
    /// else 0.
    pub no_cookie: u8,
}

/// What a connection learned about Fast Open on its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastOpenPath {
    /// Something on the path seems to break connections with Fast Open.
    Broken,
    /// Fast Open works again: data arrived on a connection that tested it.
    Mended,
}

fn cookie(key: &[u8; KEY_LEN], client: IpAddr, server: IpAddr) -> FastOpenCookie {
    let (low, high) = key.split_at(KEY_LEN / 2);
    let word =
        |half: &[u8]| half.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
    let mut hasher = SipHasher24::new_with_keys(word(low), word(high));
    for address in [client, server] {
        match address {
            IpAddr::V4(address) => hasher.write(&address.octets()),
            IpAddr::V6(address) => hasher.write(&address.octets()),
        }
    }
    FastOpenCookie::new(&hasher.finish().to_le_bytes()).expect("8 is a length of cookies")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(words: [u32; 4]) -> FastOpenKeys {
        let mut primary = [0; KEY_LEN];
        for (bytes, word) in primary.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        FastOpenKeys { primary, backup: None }
    }

    fn hex(cookie: &FastOpenCookie) -> u64 {
        cookie.as_bytes().iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
    }

    /// Cookies that Linux creates for these keys and addresses.
    #[test]
    fn cookies_are_those_of_linux() {
        let at = |text: &str| text.parse::<IpAddr>().expect("an address");
        let key = keys([0xa1a1_a1a1, 0xb2b2_b2b2, 0xc3c3_c3c3, 0xd4d4_d4d4]);
        let v4 = key.cookie(at("192.0.2.1"), at("192.168.0.1"));
        assert_eq!(hex(&v4), 0x3021_b9d8_8901_7eeb);
        let v6 = key.cookie(at("fd3d:fa7b:d17d::1"), at("fd3d:0a0b:17d6::1"));
        assert_eq!(hex(&v6), 0xc1d1_e974_2a47_a9bc);
        let other = keys([0xa0bf_63f7, 0xed80_3d81, 0xcd64_1d30, 0xcebc_4a90]);
        assert_eq!(hex(&other.cookie(at("10.248.0.2"), at("192.168.0.2"))), 0x00ab_aaab_e8e9_54c2);
    }

    #[test]
    fn the_backup_key_only_checks() {
        let at = |last: u8| IpAddr::from([10, 0, 0, last]);
        let (old, new) = (keys([1, 2, 3, 4]), keys([5, 6, 7, 8]));
        let both = FastOpenKeys { backup: Some(old.primary), ..new };
        let (given_before, given_now) = (old.cookie(at(1), at(2)), both.cookie(at(1), at(2)));
        assert_eq!(both.check(&given_before, at(1), at(2)), CookieCheck::Old);
        assert_eq!(both.check(&given_now, at(1), at(2)), CookieCheck::Good);
        assert_eq!(both.check(&given_now, at(3), at(2)), CookieCheck::Bad);
        assert_eq!(new.check(&given_before, at(1), at(2)), CookieCheck::Bad);
    }
}
