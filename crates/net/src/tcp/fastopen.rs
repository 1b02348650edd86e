//! Fast Open (RFC 7413): settings, the cookies of a server, and the state of a connection.
//!
//! A cookie is SipHash-2-4 of both addresses under a key of the server, as on Linux. So servers
//! behind one address that share a key accept each other's cookies.

use super::connection::{Connection, Segment};
use super::state::{Events, State};
use crate::wire::tcp::FastOpenCookie;
use core::hash::Hasher;
use core::net::IpAddr;
use siphasher::sip::SipHasher24;
use towpath_packet::Packet;

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

/// The Fast Open part of a first SYN.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientSyn {
    /// Cookie, or the request for one.
    pub(super) option: Option<FastOpenCookie>,
    /// Bytes of data that the SYN may carry.
    pub(super) room: u32,
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

/// Fast Open state of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FastOpen {
    /// We are the server, and the peer's SYN opened the connection.
    pub(super) accepted: bool,
    /// Cookie that our SYN-ACK carries.
    pub(super) given: Option<FastOpenCookie>,
    /// We are the client, and our first SYN is not sent yet.
    pub(super) client: Option<ClientSyn>,
    /// Our SYN had the option.
    pub(super) asked: bool,
    /// It was the experimental option.
    pub(super) experimental: bool,
    /// Bytes of data that went with our SYN.
    pub(super) sent: u32,
    /// The peer's SYN carried data that was accepted, or the peer accepted all data in ours.
    pub(super) syn_data: bool,
    /// Why Fast Open failed for the client, as Linux's number (`tcpi_fastopen_client_fail`).
    pub(super) fail: u8,
    /// What the answer to our SYN revealed.
    pub(super) outcome: Option<FastOpenOutcome>,
    /// The path was broken before, and this connection tests whether it still is.
    pub(super) retried: bool,
    /// What the connection learned about its path.
    pub(super) path: Option<FastOpenPath>,
}

impl Connection {
    /// Takes the data of the peer's SYN, up to the window that was offered.
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

    /// Makes the first SYN ask for a cookie or carry one, and carry up to `room` bytes of the data
    /// that the owner queues before it is sent.
    pub fn set_fast_open(&mut self, option: Option<FastOpenCookie>, room: u32) {
        let asks = option.is_some_and(|cookie| cookie.len == 0);
        self.fast_open.fail = if asks { FAIL_NO_COOKIE } else { 0 };
        self.fast_open.client = Some(ClientSyn { option, room });
        self.fast_open.experimental = option.is_some_and(|cookie| cookie.experimental);
    }

    /// Bytes of data that the first SYN may carry.
    pub fn syn_room(&self) -> usize {
        self.fast_open.client.as_ref().map_or(0, |client| client.room as usize)
    }

    /// Processes the answer to a SYN with Fast Open. Returns true if the SYN's data must be
    /// retransmitted.
    pub(super) fn fast_open_answered(&mut self, answer: &Segment, sent_again: bool) -> bool {
        let fast = &mut self.fast_open;
        if !fast.asked && fast.sent == 0 {
            return false;
        }
        let unacknowledged = !self.send.board.is_empty();
        // A cookie that was not requested is not kept.
        let cookie = answer.options.fast_open.filter(|cookie| fast.asked && cookie.len > 0);
        let given = answer.options.fast_open.is_some() && fast.asked;
        let mut outcome =
            FastOpenOutcome { mss: self.peer_mss, cookie, ..FastOpenOutcome::default() };
        if fast.asked && sent_again {
            outcome.syn_lost = !given && unacknowledged;
        } else if fast.asked && !given && fast.sent == 0 {
            outcome.no_cookie = 1 + u8::from(fast.experimental);
        }
        fast.outcome = Some(outcome);
        fast.syn_data = fast.sent > 0 && !unacknowledged;
        if fast.syn_data {
            // As on Linux, the SYN and its data count as one segment.
            self.recovery.delivered = self.recovery.delivered.wrapping_sub(1);
        }
        unacknowledged
    }

    /// Makes this connection a test of whether Fast Open works again after a pause.
    pub(crate) fn retry_fast_open(&mut self) {
        self.fast_open.retried = true;
    }

    /// Suspects the path after the third consecutive timeout, or the last one, during the handshake
    /// or after it (RFC 7413 §7.3.1).
    pub(super) fn fast_open_timed_out(&mut self, expired: bool) {
        let fast = &self.fast_open;
        let used = fast.asked || fast.sent > 0 || fast.syn_data;
        let timeouts = self.timers.unanswered;
        if used && (timeouts == 2 || (timeouts < 2 && expired)) {
            self.blame_fast_open();
        }
    }

    /// Suspects the path if a reset with a wrong number arrives before any data: a middlebox may
    /// send it.
    pub(super) fn fast_open_reset_ahead(&mut self) {
        let quiet = self.counters.data_segs_in == 0 && self.state == State::Established;
        if self.fast_open.asked && quiet {
            self.blame_fast_open();
        }
    }

    /// Called before the connection ends. A FIN out of order, and no data at all, suggest that the
    /// path dropped the data.
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

    /// Returns what the answer to our SYN revealed, once.
    pub(crate) fn take_fast_open_outcome(&mut self) -> Option<FastOpenOutcome> {
        self.fast_open.outcome.take()
    }

    /// Returns what was learned about the path, once.
    pub(crate) fn take_fast_open_path(&mut self) -> Option<FastOpenPath> {
        self.fast_open.path.take()
    }

    /// True if data in the SYN was accepted; for the client, all of it.
    pub fn had_syn_data(&self) -> bool {
        self.fast_open.syn_data
    }

    /// True if data may be sent: the handshake is over, or Fast Open need not wait for it.
    pub(super) fn may_send(&self) -> bool {
        self.state.can_send() || (self.state == State::SynReceived && self.fast_open.accepted)
    }
}

/// There was no cookie yet (`TFO_COOKIE_UNAVAILABLE`).
const FAIL_NO_COOKIE: u8 = 1;
/// The peer did not accept the data (`TFO_DATA_NOT_ACKED`).
pub(super) const FAIL_NOT_TAKEN: u8 = 2;
/// The SYN was lost (`TFO_SYN_RETRANSMITTED`).
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
