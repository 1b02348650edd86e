//! Fast Open (RFC 7413): what is allowed, and the cookies that a server gives.
//!
//! A cookie is SipHash-2-4 of both addresses under a key of the server's, as Linux makes it, so
//! that servers behind one address that share a key take each other's cookies.

use super::connection::{Connection, Segment};
use super::state::{Events, State};
use crate::wire::tcp::FastOpenCookie;
use core::hash::Hasher;
use core::net::IpAddr;
use siphasher::sip::SipHasher24;
use towpath_packet::Packet;

/// Bit of `Settings::fastopen`: connections may use it.
pub const CLIENT: u32 = 0x1;
/// Bit of `Settings::fastopen`: listeners may use it.
pub const SERVER: u32 = 0x2;
/// Bit of `Settings::fastopen`: connections send data with their SYN without a cookie.
pub const CLIENT_NO_COOKIE: u32 = 0x4;
/// Bit of `Settings::fastopen`: listeners take data with a SYN without a cookie.
pub const SERVER_NO_COOKIE: u32 = 0x200;
/// Bit of `Settings::fastopen`: every listener uses it, with its backlog for a queue.
pub const SERVER_ALL: u32 = 0x400;

/// Bytes of a key.
pub const KEY_LEN: usize = 16;

/// The key of a server's cookies, and the one before it, whose cookies are still taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpenKeys {
    /// Makes and checks cookies.
    pub primary: [u8; KEY_LEN],
    /// Checks cookies too.
    pub backup: Option<[u8; KEY_LEN]>,
}

/// What a server thinks of a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieCheck {
    /// Made with the primary key.
    Good,
    /// Made with the backup key: taken, and answered with a new one.
    Old,
    /// Somebody else's.
    Bad,
}

impl FastOpenKeys {
    /// The cookie for `client` when it connects to `server`.
    pub fn cookie(&self, client: IpAddr, server: IpAddr) -> FastOpenCookie {
        cookie(&self.primary, client, server)
    }

    /// Checks a cookie that came from `client`.
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

/// The Fast Open part of a first SYN.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientSyn {
    /// Cookie, or the request for one.
    pub(super) option: Option<FastOpenCookie>,
    /// Bytes of data that may go with it.
    pub(super) room: u32,
}

/// What an answer to a SYN with Fast Open taught about the peer: for the cache of such things.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpenNews {
    /// The largest segment that it takes; 0 if it named none.
    pub mss: u16,
    /// The cookie that it gave.
    pub cookie: Option<FastOpenCookie>,
    /// It seems that the SYN was lost for its data.
    pub syn_lost: bool,
    /// It gave no cookie to a request in the option of today (1) or the experimental one (2).
    pub no_cookie: u8,
}

/// What a connection found out about its path and Fast Open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastOpenPath {
    /// Something on the path seems to break such connections.
    Broken,
    /// It does no longer: data arrived on a connection that was to find out.
    Mended,
}

/// What a connection knows of its own Fast Open.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FastOpen {
    /// We are the server, and the peer's SYN opened the connection for us.
    pub(super) accepted: bool,
    /// The cookie that goes out with our answer to the SYN.
    pub(super) given: Option<FastOpenCookie>,
    /// We are the client, and our first SYN has yet to go.
    pub(super) client: Option<ClientSyn>,
    /// Our SYN had the option.
    pub(super) asked: bool,
    /// It was the experimental one.
    pub(super) experimental: bool,
    /// Bytes that went with our SYN.
    pub(super) sent: u32,
    /// Data came with the peer's SYN, or the peer took all of what went with ours.
    pub(super) syn_data: bool,
    /// What became of it for the client, by Linux's numbers (`tcp_fastopen_client_fail`).
    pub(super) fail: u8,
    /// What the answer taught.
    pub(super) news: Option<FastOpenNews>,
    /// The path was broken before, and this connection is to find out whether it still is.
    pub(super) retried: bool,
    /// What it found out about its path.
    pub(super) path: Option<FastOpenPath>,
}

impl Connection {
    /// Takes the data, and the FIN, of the peer's SYN.
    pub(super) fn take_syn_data(&mut self, syn: &Segment, payload: &mut Packet) {
        let room = self.receive.initial_window;
        payload.truncate(room.min(syn.len) as usize);
        let taken = payload.payload_len() as u32;
        if taken > 0 {
            self.receive.nxt += taken;
            self.receive.advertised = self.receive.nxt;
            self.receive.tuning.charge.queue(taken, self.arriving_headers());
            for piece in payload.take_pieces() {
                self.receive.queue.push(piece);
            }
            self.counters.bytes_received += u64::from(taken);
            self.counters.data_segs_in += u32::from(self.passive);
            self.note(Events::READABLE);
        }
        self.fast_open.syn_data |= self.passive && taken > 0;
    }

    /// Lets the first SYN ask for a cookie or carry one, and `room` bytes of what the owner gives
    /// before it goes.
    pub fn set_fast_open(&mut self, option: Option<FastOpenCookie>, room: u32) {
        let asks = option.is_some_and(|cookie| cookie.len == 0);
        self.fast_open.fail = if asks { FAIL_NO_COOKIE } else { 0 };
        self.fast_open.client = Some(ClientSyn { option, room });
        self.fast_open.experimental = option.is_some_and(|cookie| cookie.experimental);
    }

    /// Bytes of data that the first SYN takes along.
    pub fn syn_room(&self) -> usize {
        self.fast_open.client.as_ref().map_or(0, |client| client.room as usize)
    }

    /// Learns from the answer to a SYN with Fast Open. True if data that went with it has to go
    /// again.
    pub(super) fn fast_open_answered(&mut self, answer: &Segment, sent_again: bool) -> bool {
        let fast = &mut self.fast_open;
        if !fast.asked && fast.sent == 0 {
            return false;
        }
        let unacknowledged = !self.send.board.is_empty();
        // A cookie that nobody asked for is not kept.
        let cookie = answer.options.fast_open.filter(|cookie| fast.asked && cookie.len > 0);
        let given = answer.options.fast_open.is_some() && fast.asked;
        let mut news = FastOpenNews { mss: self.peer_mss, cookie, ..FastOpenNews::default() };
        if fast.asked && sent_again {
            news.syn_lost = !given && unacknowledged;
        } else if fast.asked && !given && fast.sent == 0 {
            news.no_cookie = 1 + u8::from(fast.experimental);
        }
        fast.news = Some(news);
        fast.syn_data = fast.sent > 0 && !unacknowledged;
        if fast.syn_data {
            // The SYN and its data count as one segment, as in Linux.
            self.recovery.delivered = self.recovery.delivered.wrapping_sub(1);
        }
        unacknowledged
    }

    /// Such connections were not tried for a while: this one tells if they work again.
    pub(crate) fn retry_fast_open(&mut self) {
        self.fast_open.retried = true;
    }

    /// RFC 7413 §7.3.1: the third timeout in a row, during the handshake or after it, or the last
    /// one (Linux's tcp_fastopen_active_detect_blackhole).
    pub(super) fn fast_open_timed_out(&mut self, expired: bool) {
        let fast = &self.fast_open;
        let used = fast.asked || fast.sent > 0 || fast.syn_data;
        let timeouts = self.timers.unanswered;
        if used && (timeouts == 2 || (timeouts < 2 && expired)) {
            self.blame_fast_open();
        }
    }

    /// A reset with a wrong number before any data arrived may be somebody's on the way.
    pub(super) fn fast_open_reset_ahead(&mut self) {
        let quiet = self.counters.data_segs_in == 0 && self.state == State::Established;
        if self.fast_open.asked && quiet {
            self.blame_fast_open();
        }
    }

    /// The connection is about to end: a FIN ahead of its turn and no data at all tell that the
    /// path took it (Linux's tcp_fastopen_active_disable_ofo_check).
    pub(super) fn fast_open_ends(&mut self) {
        if !self.fast_open.asked || self.state == State::Closed {
            return;
        }
        let receive = &self.receive;
        if self.counters.data_segs_in > 0 {
            if self.fast_open.retried {
                self.fast_open.path = Some(FastOpenPath::Mended);
            }
        } else if receive.fin_ahead.is_some() && !receive.fin && receive.waiting.is_empty() {
            self.blame_fast_open();
        }
    }

    fn blame_fast_open(&mut self) {
        if self.settings.fastopen_blackhole_timeout_sec > 0 {
            self.fast_open.path = Some(FastOpenPath::Broken);
        }
    }

    /// What the answer to our SYN taught, once.
    pub(crate) fn take_fast_open_news(&mut self) -> Option<FastOpenNews> {
        self.fast_open.news.take()
    }

    /// What was found out about the path, once.
    pub(crate) fn take_fast_open_path(&mut self) -> Option<FastOpenPath> {
        self.fast_open.path.take()
    }

    /// Data, or all of it on the client's side, went with the SYN and was taken.
    pub fn had_syn_data(&self) -> bool {
        self.fast_open.syn_data
    }

    /// Data may be sent: the handshake is over, or Fast Open lets it go before.
    pub(super) fn may_send(&self) -> bool {
        self.state.can_send() || (self.state == State::SynReceived && self.fast_open.accepted)
    }
}

/// There was no cookie yet (Linux's TFO_COOKIE_UNAVAILABLE).
const FAIL_NO_COOKIE: u8 = 1;
/// The peer did not take the data (Linux's TFO_DATA_NOT_ACKED).
pub(super) const FAIL_NOT_TAKEN: u8 = 2;
/// The SYN was lost (Linux's TFO_SYN_RETRANSMITTED).
pub(super) const FAIL_SYN_LOST: u8 = 3;

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

    /// Values that Linux gives for these keys and addresses.
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
