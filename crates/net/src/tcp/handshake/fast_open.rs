//! Fast Open (RFC 7413) in the handshake of one connection.
//!
//! A client that has no answer to its SYN with data, or whose connection stays without data, takes
//! the path for one that drops Fast Open (§7.3.1).

use crate::tcp::fastopen::{FastOpenOutcome, FastOpenPath};
use crate::tcp::segment::Segment;
use crate::wire::tcp::{FastOpenCookie, OPTIONS_LEN_MAX, Options};

/// There was no cookie yet (`TFO_COOKIE_UNAVAILABLE`).
const FAIL_NO_COOKIE: u8 = 1;
/// The peer did not accept the data (`TFO_DATA_NOT_ACKED`).
const FAIL_NOT_TAKEN: u8 = 2;
/// The SYN was lost (`TFO_SYN_RETRANSMITTED`).
const FAIL_SYN_LOST: u8 = 3;
/// Consecutive timeouts after which the path is suspected.
const TIMEOUTS_SUSPECT: u8 = 2;

/// The Fast Open part of a first SYN.
#[derive(Clone, Copy, Debug)]
struct ClientSyn {
    /// Cookie, or the request for one.
    option: Option<FastOpenCookie>,
    /// Bytes of data that the SYN may carry.
    room: u32,
}

/// Fast Open state of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp) struct FastOpen {
    /// We are the server, and the peer's SYN opened the connection.
    accepted: bool,
    /// Cookie that our SYN-ACK carries.
    given: Option<FastOpenCookie>,
    /// We are the client, and our first SYN is not sent yet.
    client: Option<ClientSyn>,
    /// Our SYN had the option.
    asked: bool,
    /// It was the experimental option.
    experimental: bool,
    /// Bytes of data that went with our SYN.
    sent: u32,
    /// The peer's SYN carried data that was accepted, or the peer accepted all data in ours.
    syn_data: bool,
    /// Why Fast Open failed for the client (`tcpi_fastopen_client_fail`).
    fail: u8,
    /// What the answer to our SYN revealed.
    outcome: Option<FastOpenOutcome>,
    /// The path was broken before, and this connection tests whether it still is.
    retried: bool,
    /// What the connection learned about its path.
    path: Option<FastOpenPath>,
}

impl FastOpen {
    /// Notes that the peer's SYN opened the connection.
    pub(in crate::tcp) fn accept(&mut self) {
        self.accepted = true;
    }

    /// Notes that `taken` bytes of the peer's SYN were accepted.
    pub(in crate::tcp) fn take_data(&mut self, taken: u32) {
        self.syn_data |= taken > 0;
    }

    /// Adds this cookie to the answer to the SYN.
    pub(in crate::tcp) fn give(&mut self, cookie: FastOpenCookie) {
        self.given = Some(cookie);
    }

    /// Makes the first SYN ask for a cookie or carry one, and carry up to `room` bytes of data.
    pub(in crate::tcp) fn ask(&mut self, option: Option<FastOpenCookie>, room: u32) {
        let asks = option.is_some_and(|cookie| cookie.len == 0);
        self.fail = if asks { FAIL_NO_COOKIE } else { 0 };
        self.client = Some(ClientSyn { option, room });
        self.experimental = option.is_some_and(|cookie| cookie.experimental);
    }

    /// Makes this connection a test of whether Fast Open works again.
    pub(in crate::tcp) fn retry(&mut self) {
        self.retried = true;
    }

    /// Bytes of data that our next SYN may carry: only the first one carries data.
    pub(in crate::tcp) fn room(&self) -> u32 {
        self.client.as_ref().map_or(0, |client| client.room)
    }

    /// Adds the option to our SYN, or to our SYN-ACK if we do not `offer`.
    pub(super) fn add_option(&mut self, offer: bool, options: &mut Options) {
        if !offer {
            options.fast_open = self.given.take();
            return;
        }
        let Some(ClientSyn { option: Some(cookie), .. }) = self.client else { return };
        options.fast_open = Some(cookie);
        if options.emitted_len(true) > OPTIONS_LEN_MAX {
            options.fast_open = None;
        }
        self.asked |= options.fast_open.is_some();
    }

    /// Notes that our SYN was sent with `len` bytes of data. Returns true if it is the first one
    /// and has data.
    pub(super) fn syn_sent(&mut self, len: u32) -> bool {
        let with_data = self.client.take().is_some() && len > 0;
        if with_data {
            self.sent = len;
        }
        with_data
    }

    /// Processes the answer to our SYN, which leaves data of the SYN `unacknowledged`. `again`
    /// means that the SYN was retransmitted. Returns true if the data must be retransmitted.
    pub(in crate::tcp) fn on_answer(
        &mut self,
        answer: &Segment,
        mss: u16,
        again: bool,
        unacknowledged: bool,
    ) -> bool {
        if !self.is_used() {
            return false;
        }
        // A cookie that was not requested is not kept.
        let option = answer.options.fast_open.filter(|_| self.asked);
        let cookie = option.filter(|cookie| cookie.len > 0);
        let mut outcome = FastOpenOutcome { mss, cookie, ..FastOpenOutcome::default() };
        if self.asked && again {
            outcome.syn_lost = option.is_none() && unacknowledged;
        } else if self.asked && option.is_none() && self.sent == 0 {
            outcome.no_cookie = 1 + u8::from(self.experimental);
        }
        self.outcome = Some(outcome);
        self.syn_data = self.sent > 0 && !unacknowledged;
        if unacknowledged {
            self.fail = if again { FAIL_SYN_LOST } else { FAIL_NOT_TAKEN };
        }
        unacknowledged
    }

    /// Suspects the path after the third of consecutive timeouts, or the last one if `expired`,
    /// during the handshake or after it. `timeouts` were before this one.
    pub(in crate::tcp) fn on_timeout(&mut self, timeouts: u8, expired: bool) {
        let suspect = timeouts == TIMEOUTS_SUSPECT || (timeouts < TIMEOUTS_SUSPECT && expired);
        if (self.is_used() || self.syn_data) && suspect {
            self.path = Some(FastOpenPath::Broken);
        }
    }

    /// Suspects the path if a reset with a wrong number arrives before any data: a middlebox may
    /// send it.
    pub(in crate::tcp) fn on_wrong_reset(&mut self) {
        if self.asked {
            self.path = Some(FastOpenPath::Broken);
        }
    }

    /// Called before the connection ends; it received `data` or not. A FIN out of order, and no
    /// data at all, suggest that the path dropped the data: `lone_fin`.
    pub(in crate::tcp) fn on_end(&mut self, data: bool, lone_fin: bool) {
        self.path = match data {
            true if self.asked && self.retried => Some(FastOpenPath::Mended),
            false if self.asked && lone_fin => Some(FastOpenPath::Broken),
            _ => self.path,
        };
    }

    /// Returns what the answer to our SYN revealed, once.
    pub(in crate::tcp) fn take_outcome(&mut self) -> Option<FastOpenOutcome> {
        self.outcome.take()
    }

    /// Returns what was learned about the path, once; not that it is broken unless `believed`.
    pub(in crate::tcp) fn take_path(&mut self, believed: bool) -> Option<FastOpenPath> {
        self.path.take().filter(|path| believed || *path != FastOpenPath::Broken)
    }

    /// True if our SYN had the option or data.
    pub(in crate::tcp) fn is_used(&self) -> bool {
        self.asked || self.sent > 0
    }

    /// True if our SYN carried data.
    pub(in crate::tcp) fn has_sent_data(&self) -> bool {
        self.sent > 0
    }

    /// True if the peer's SYN opened the connection.
    pub(in crate::tcp) fn is_accepted(&self) -> bool {
        self.accepted
    }

    /// True if data in the SYN was accepted; for the client, all of it.
    pub(in crate::tcp) fn had_data(&self) -> bool {
        self.syn_data
    }

    /// Why Fast Open failed for the client.
    pub(in crate::tcp) fn fail(&self) -> u8 {
        self.fail
    }
}
