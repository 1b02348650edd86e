//! The handshake (RFC 9293 §3.5): SYNs sent and received, their options and retransmissions, and
//! what the two sides agree on.
//!
//! A [`Handshake`] decides; the connection acts on its decisions. [`Handshake::on_segment`] follows
//! RFC 9293 §3.10.7.3 (SYN-SENT). An incoming connection begins with its answer *held* until the
//! owner accepts it, or as a *request* for a listener, whose owner learns of it once the peer
//! acknowledges the answer.
//!
//! *Deferred requests* (`TCP_DEFER_ACCEPT`): until a set number of SYN-ACK timeouts is over, an ACK
//! without data does not complete the handshake. The peer considers the connection open, so the
//! SYN-ACK is not retransmitted before the last of these timeouts. Then it is sent once more, and
//! the peer's reply completes the handshake. Without a reply the request continues like any other.

mod fast_open;

use super::ecn::{self, EcnUse};
use super::rtt::RTO_INITIAL;
use super::segment::Segment;
use super::seq::Seq;
use super::settings::Settings;
use super::state::State;
use super::timestamps::Timestamps;
use crate::time::{Duration, Instant};
use crate::wire::tcp::{Flags, Options};
pub(super) use fast_open::FastOpen;

/// Largest number of doublings of the first timeout that a SYN waits for.
const SYN_DOUBLINGS_MAX: u8 = 16;

/// Delay before the SYN is sent again after an ACK that does not match it: our reset may have ended
/// an old connection of the peer.
pub(super) const SYN_AGAIN: Duration = Duration::from_millis(2);

/// How an incoming connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// There is no need to answer, or the owner has decided to.
    Free,
    /// The owner has not decided yet how to answer the SYN.
    Held,
    /// The stack answered for a listener. The owner does not know of the connection yet.
    Request,
}

/// What both sides agreed on in their SYNs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Agreed {
    /// Both sides understand SACK (RFC 2018 §2).
    pub(super) sack: bool,
    /// Both sides scale their windows; scale of the peer's (RFC 7323 §2.2).
    pub(super) scale: Option<u8>,
}

/// A handshake that waits for data.
#[derive(Clone, Copy, Debug, Default)]
struct Deferral {
    /// SYN-ACK timeouts during which an ACK without data does not count.
    timeouts: u8,
    /// An ACK without data arrived during them.
    acked: bool,
    /// Timeouts after which the SYN-ACK was not retransmitted.
    silent: u8,
}

/// What to do with a segment in SYN-SENT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Nothing.
    Ignore,
    /// It belongs to another connection: answer with a reset.
    Wrong {
        /// The acknowledged number is not ours, and this is the first sign of it: the SYN is sent
        /// again soon.
        again: bool,
    },
    /// The peer refuses the connection.
    Refused,
    /// The peer answers our SYN.
    Answered,
    /// The peer has sent a SYN of its own: simultaneous open.
    Simultaneous,
}

/// What to do after a timeout of our SYN or SYN-ACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeout {
    /// The handshake has failed.
    pub(super) expired: bool,
    /// It is the first one, and the series counts from this time.
    pub(super) first: bool,
    pub(super) since: Instant,
    /// The timeout doubles (RFC 6298 §5.5).
    pub(super) backs_off: bool,
}

/// State of the handshake, and what is known from it later.
pub(super) struct Handshake {
    /// When the connection was created.
    opened_at: Instant,
    /// The peer opened the connection.
    passive: bool,
    answer: Answer,
    /// Our SYN or SYN-ACK is to be sent.
    due: bool,
    sent_at: Instant,
    /// Consecutive timeouts.
    timeouts: u8,
    deferral: Deferral,
    agreed: Agreed,
    /// Our SYN asks for ECN.
    asks_ecn: bool,
    /// The owner will write once the connection is open.
    write_pending: bool,
    fast_open: FastOpen,
}

impl Handshake {
    fn new(passive: bool, answer: Answer, asks_ecn: bool, now: Instant) -> Self {
        Self {
            opened_at: now,
            passive,
            answer,
            due: answer != Answer::Held,
            sent_at: now,
            timeouts: 0,
            deferral: Deferral::default(),
            agreed: Agreed::default(),
            asks_ecn,
            write_pending: false,
            fast_open: FastOpen::default(),
        }
    }

    /// We open a connection: a SYN is due.
    pub(super) fn active(settings: &Settings, now: Instant) -> Self {
        Self::new(false, Answer::Free, settings.ecn == EcnUse::Request, now)
    }

    /// A SYN arrived, and its answer is held.
    pub(super) fn held(now: Instant) -> Self {
        Self::new(true, Answer::Held, false, now)
    }

    /// A SYN arrived for a listener: a SYN-ACK is due.
    pub(super) fn request(now: Instant) -> Self {
        Self::new(true, Answer::Request, false, now)
    }

    /// Releases a held answer.
    pub(super) fn accept(&mut self) {
        if self.is_held() {
            self.answer = Answer::Free;
            self.due = true;
        }
    }

    /// Notes that the owner learns of a request. Returns true if it did not know of it.
    pub(super) fn report(&mut self) -> bool {
        core::mem::replace(&mut self.answer, Answer::Free) == Answer::Request
    }

    /// Takes the peer's SYN: what both sides agree on.
    pub(super) fn take_syn(&mut self, syn: &Segment, settings: &Settings) -> Agreed {
        self.agreed.sack = settings.sack && syn.options.sack_permitted;
        self.agreed.scale = syn.options.window_scale.filter(|_| settings.window_scaling);
        self.agreed
    }

    /// Processes a segment in SYN-SENT (RFC 9293 §3.10.7.3); our SYN occupies the numbers from
    /// `iss` to `nxt`.
    pub(super) fn on_segment(
        &self,
        segment: &Segment,
        (iss, nxt): (Seq, Seq),
        timestamps: &Timestamps,
        settings: &Settings,
        now: Instant,
    ) -> Reply {
        let (ack, reset) = (segment.has(Flags::ACK), segment.has(Flags::RST));
        // First, the ACK bit.
        let acks_syn = segment.ack().after(iss) && segment.ack().at_or_before(nxt);
        let echoes = !settings.timestamps || self.echoes_our_time(segment, timestamps, now);
        if ack && !(acks_syn && echoes) {
            let again = !acks_syn && self.timeouts == 0;
            return Reply::Wrong { again };
        }
        // Second, the RST bit.
        if reset {
            return if ack { Reply::Refused } else { Reply::Ignore };
        }
        // Fourth, the SYN bit.
        match (segment.has(Flags::SYN), ack) {
            (false, _) => Reply::Ignore,
            (true, true) => Reply::Answered,
            (true, false) => Reply::Simultaneous,
        }
    }

    /// True unless the echoed timestamp cannot have been sent since our first SYN. Such an echo
    /// belongs to another connection (RFC 7323 §5.3).
    fn echoes_our_time(&self, segment: &Segment, ours: &Timestamps, now: Instant) -> bool {
        match segment.options.timestamps {
            Some((_, echo)) if echo != 0 => {
                Seq(echo).at_or_after(Seq(ours.value(self.opened_at)))
                    && Seq(echo).at_or_before(Seq(ours.value(now)))
            }
            _ => true,
        }
    }

    /// Flags of our SYN or, in SYN-RECEIVED, of our SYN-ACK, and how many of the `queued` bytes go
    /// with it. `ecn` if both sides agreed on ECN.
    pub(super) fn next_syn(&self, state: State, ecn: bool, queued: u32) -> (Flags, u32) {
        if state == State::SynReceived {
            let ecn = if ecn { Flags::ECE } else { Flags::NONE };
            return (Flags::SYN | Flags::ACK | ecn, 0);
        }
        let ecn = if self.asks_ecn { Flags::ECE | Flags::CWR } else { Flags::NONE };
        (Flags::SYN | ecn, self.fast_open.room().min(queued))
    }

    /// Options of our SYN. A SYN that opens offers all options, a SYN-ACK only those that were
    /// offered. `mss` and `scale` are ours.
    pub(super) fn options(
        &mut self,
        state: State,
        settings: &Settings,
        (mss, scale): (u32, u8),
        timestamps: &Timestamps,
        now: Instant,
    ) -> Options {
        let offer = state == State::SynSent;
        let has = |offered: bool, agreed: bool| if offer { offered } else { agreed };
        let scales = has(settings.window_scaling, self.agreed.scale.is_some());
        let stamps = has(settings.timestamps, timestamps.enabled());
        let mut options = Options {
            mss: u16::try_from(mss).ok(),
            sack_permitted: has(settings.sack, self.agreed.sack),
            window_scale: scales.then_some(scale),
            timestamps: stamps.then(|| timestamps.option(now)),
            ..Options::default()
        };
        self.fast_open.add_option(offer, &mut options);
        options
    }

    /// Notes that our SYN was sent with `len` bytes of data. Returns true if it is the first one
    /// and has data.
    pub(super) fn syn_sent(&mut self, len: u32, now: Instant) -> bool {
        self.due = false;
        self.sent_at = now;
        self.fast_open.syn_sent(len)
    }

    /// Makes our SYN due.
    pub(super) fn owe_syn(&mut self) {
        self.due = true;
    }

    /// Cancels our SYN: it was sent already.
    pub(super) fn cancel_syn(&mut self) {
        self.due = false;
    }

    /// Ends the handshake: the connection is over.
    pub(super) fn end(&mut self) {
        self.due = false;
        if self.is_held() {
            self.answer = Answer::Free;
        }
    }

    /// Handles a timeout of our SYN or SYN-ACK.
    pub(super) fn on_timeout(
        &mut self,
        state: State,
        settings: &Settings,
        now: Instant,
    ) -> Timeout {
        let active = state == State::SynSent;
        let (expired, again) = if active {
            // The limit is the time that these doublings take, however many SYNs are sent in it.
            let retries = settings.syn_count.unwrap_or(settings.syn_retries);
            let doublings = retries.min(SYN_DOUBLINGS_MAX);
            let limit = RTO_INITIAL.saturating_mul((2 << doublings) - 1);
            (now.since(self.opened_at) >= limit, true)
        } else {
            let more = u8::from(self.fast_open.is_accepted());
            let most = settings.synack_retries.saturating_add(more);
            self.answer_timed_out(settings.syn_count.unwrap_or(most))
        };
        if active {
            self.fast_open.on_timeout(self.timeouts, expired);
        }
        let child = active || self.fast_open.is_accepted();
        let first = self.timeouts == 0;
        if !expired {
            self.timeouts += 1;
            self.due = again;
            // RFC 3168 §6.1.1.1: a middlebox may drop SYNs that ask for ECN.
            self.asks_ecn &= !settings.ecn_fallback;
        }
        Timeout {
            expired,
            first,
            since: if child { now } else { self.opened_at },
            backs_off: !active || self.timeouts > settings.syn_linear_timeouts,
        }
    }

    /// Counts a timeout of the SYN-ACK, which is retransmitted at most `most` times. Returns
    /// whether the request is over, and whether the SYN-ACK is sent again.
    fn answer_timed_out(&mut self, most: u8) -> (bool, bool) {
        let Deferral { timeouts, acked, .. } = self.deferral;
        let count = self.timeouts;
        if timeouts == 0 || !self.is_request() {
            return (count >= most, true);
        }
        let over = count >= most && (!acked || count >= timeouts);
        let again = !acked || count >= timeouts - 1;
        self.deferral.silent += u8::from(!over && !again);
        (over, again)
    }

    /// Ends the series of timeouts: the peer has acknowledged our SYN.
    pub(super) fn done(&mut self) {
        self.timeouts = 0;
    }

    /// Notes that it is unknown when our SYN-ACK was sent: no round trip is measured.
    pub(super) fn forget_time(&mut self) {
        self.timeouts = 1;
    }

    /// True if the peer's SYN asks for ECN, and `setting` allows it.
    pub(super) fn grants_ecn(syn: &Segment, setting: EcnUse) -> bool {
        setting != EcnUse::Off && ecn::asks(syn)
    }

    /// True if the peer's SYN-ACK agrees to ECN, which our SYN asked for.
    pub(super) fn agrees_ecn(&self, answer: &Segment) -> bool {
        self.asks_ecn && ecn::agrees(answer)
    }

    /// Defers a request for `timeouts` timeouts of its SYN-ACK. On an active open, a value above
    /// zero delays the third segment of the handshake.
    pub(super) fn defer(&mut self, timeouts: u8) {
        self.deferral.timeouts = timeouts;
    }

    /// True if the segment, which has no data and the numbers `expected`, arrives before the
    /// deferral is over.
    pub(super) fn defers(&self, segment: &Segment, expected: (Seq, Seq)) -> bool {
        self.timeouts < self.deferral.timeouts
            && self.is_request()
            && segment.has(Flags::ACK)
            && !segment.has(Flags::RST | Flags::SYN)
            && (segment.ack(), segment.end()) == expected
    }

    /// Notes that the peer acknowledged the SYN-ACK during the deferral.
    pub(super) fn note_deferred(&mut self) {
        self.deferral.acked = true;
    }

    /// Notes that the owner waits to write: the third segment of the handshake waits briefly for
    /// its data.
    pub(super) fn set_write_pending(&mut self, pending: bool) {
        self.write_pending = pending;
    }

    /// Returns true, once, if the third segment of the handshake waits for data.
    pub(super) fn delays_third_segment(&mut self) -> bool {
        core::mem::take(&mut self.write_pending) || self.deferral.timeouts > 0
    }

    /// Round trip of our SYN; `None` if it was retransmitted (Karn's rule).
    pub(super) fn round_trip(&self, now: Instant) -> Option<Duration> {
        (!self.was_resent()).then(|| now.since(self.sent_at))
    }

    /// True if our SYN or SYN-ACK was retransmitted.
    pub(super) fn was_resent(&self) -> bool {
        self.timeouts > self.deferral.silent
    }

    /// True if our SYN or SYN-ACK is to be sent.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// True if the owner has not decided yet how to answer a SYN.
    pub(super) fn is_held(&self) -> bool {
        self.answer == Answer::Held
    }

    /// True while the peer has not acknowledged a listener's answer to its SYN.
    pub(super) fn is_request(&self) -> bool {
        self.answer == Answer::Request
    }

    /// True if the peer opened the connection.
    pub(super) fn is_passive(&self) -> bool {
        self.passive
    }

    /// Consecutive timeouts.
    pub(super) fn timeouts(&self) -> u8 {
        self.timeouts
    }

    /// What both sides agreed on.
    pub(super) fn agreed(&self) -> Agreed {
        self.agreed
    }

    /// Fast Open.
    pub(super) fn fast_open(&self) -> &FastOpen {
        &self.fast_open
    }

    /// Fast Open, to change its state.
    pub(super) fn fast_open_mut(&mut self) -> &mut FastOpen {
        &mut self.fast_open
    }
}
