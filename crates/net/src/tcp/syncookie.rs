//! SYN cookies (RFC 4987 §3.6): what a request would keep travels in the numbers of the answer.
//!
//! The initial sequence number carries a minute counter and the peer's segment size, under a keyed
//! hash of the endpoints and the peer's number. Where both sides use timestamps, the lowest bits of
//! ours carry window scale, SACK and ECN; without them the connection goes without these. Layout,
//! table and lifetime are Linux's. Nothing is kept, so nothing can be used up; what is lost is the
//! exact segment size, and the answer is not sent again.

use super::connection::{Connection, Opening, Segment};
use super::ecn::codepoint;
use super::seq::Seq;
use super::settings::Settings;
use crate::time::{Duration, Instant};
use crate::wire::tcp::{Flags, Header, Options};
use core::hash::{Hash, Hasher};
use core::net::SocketAddr;
use siphasher::sip::SipHasher24;

/// How long after a cookie the listener that gave it looks for cookies at all.
pub const LIFETIME: Duration = Duration::from_secs(60 * MINUTES_MAX as u64);

/// Keys of one stack's cookies.
#[derive(Clone, Copy)]
pub struct SynCookies {
    keys: [u64; 2],
}

/// The ends of a connection and its peer's initial number: what a cookie is bound to.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// The peer's initial sequence number.
    pub irs: u32,
}

impl SynCookies {
    /// Cookies under these keys.
    pub fn new(keys: [u64; 2]) -> Self {
        Self { keys }
    }

    /// Initial sequence number of an answer at `now` to a peer that takes segments of `mss` bytes,
    /// or named no size.
    pub fn number(&self, bound: &Bound, mss: Option<u16>, now: Instant) -> u32 {
        let table = sizes(bound.remote);
        let mss = mss.unwrap_or(table[0]);
        let index = table.iter().rposition(|&size| size <= mss).unwrap_or(0);
        let minute = minute(now);
        let data = self.hash(bound, Some(minute)).wrapping_add(index as u32) & DATA_MASK;
        self.base(bound).wrapping_add(minute << DATA_BITS).wrapping_add(data)
    }

    /// The peer's segment size if `number` is a cookie of the last two minutes.
    pub fn check(&self, bound: &Bound, number: u32, now: Instant) -> Option<u16> {
        let rest = number.wrapping_sub(self.base(bound));
        let age = minute(now).wrapping_sub(rest >> DATA_BITS) & (u32::MAX >> DATA_BITS);
        if age >= MINUTES_MAX {
            return None;
        }
        let given = minute(now).wrapping_sub(age);
        let index = rest.wrapping_sub(self.hash(bound, Some(given))) & DATA_MASK;
        sizes(bound.remote).get(index as usize).copied()
    }

    /// What every number between these ends begins at.
    fn base(&self, bound: &Bound) -> u32 {
        self.hash(bound, None).wrapping_add(bound.irs)
    }

    fn hash(&self, bound: &Bound, given: Option<u32>) -> u32 {
        let mut hasher = SipHasher24::new_with_keys(self.keys[0], self.keys[1]);
        // The peer's number too, which Linux only adds: a neighbouring one would be as good there.
        (bound.local, bound.remote, given.map(|minute| (minute, bound.irs))).hash(&mut hasher);
        hasher.finish() as u32
    }
}

/// The answer that carries a cookie, as a connection that is dropped once it has been sent. Its
/// timestamp carries what else was agreed on.
pub(crate) fn answering(
    opening: Opening,
    syn: &Segment,
    settings: &Settings,
    now: Instant,
) -> Connection {
    let mut syn = *syn;
    if syn.options.timestamps.is_none() || !settings.timestamps {
        syn.options = Options { mss: syn.options.mss, ..Options::default() };
        syn.header.flags.remove(Flags::ECE | Flags::CWR);
    }
    let mut answer = Connection::requested(opening, &syn, settings, now);
    let clock = now.millis() as u32;
    let scale = syn.options.window_scale.filter(|_| answer.scaled).map_or(NO_SCALE, u32::from);
    let sack = if answer.sack { BIT_SACK } else { 0 };
    let ecn = if answer.ecn.enabled { BIT_ECN } else { 0 };
    // Never later than now: an echo from the future would be refused.
    let mut stamp = clock & !BITS | scale | sack | ecn;
    if Seq(stamp).after(Seq(clock)) {
        stamp = stamp.wrapping_sub(BITS + 1);
    }
    answer.timestamps.offset = opening.timestamp_offset.wrapping_add(stamp.wrapping_sub(clock));
    answer
}

/// The request that would have been kept, from the ACK of its answer: not yet told of that ACK.
pub(crate) fn remembered(
    opening: Opening,
    ack: &Segment,
    mss: u16,
    settings: &Settings,
    now: Instant,
) -> Connection {
    let mut options = Options { mss: Some(mss), ..Options::default() };
    let mut flags = Flags::SYN;
    if let Some((value, echo)) = ack.options.timestamps {
        let bits = echo.wrapping_sub(opening.timestamp_offset);
        options.timestamps = Some((value, 0));
        options.sack_permitted = bits & BIT_SACK != 0;
        let scale = bits & NO_SCALE;
        options.window_scale = (scale != NO_SCALE).then_some(scale as u8);
        if bits & BIT_ECN != 0 {
            flags |= Flags::ECE | Flags::CWR;
        }
    }
    let sequence = ack.header.sequence.wrapping_sub(1);
    let header = Header { sequence, flags, ..ack.header };
    let syn = Segment { header, options, len: 0, ecn: codepoint::NOT_ECT };
    let mut connection = Connection::requested(opening, &syn, settings, now);
    connection.send.syn_due = false;
    connection.send.nxt = connection.send.iss + 1;
    connection.promise(connection.receive.initial_window);
    // When the answer went is not known: no round trip is measured.
    connection.timers.unanswered = 1;
    connection
}

fn minute(now: Instant) -> u32 {
    (now.millis() / 60_000) as u32
}

fn sizes(remote: SocketAddr) -> &'static [u16; 4] {
    if remote.is_ipv4() { &SIZES_V4 } else { &SIZES_V6 }
}

/// Segment sizes that a cookie can carry, for IPv4: the usual ones.
const SIZES_V4: [u16; 4] = [536, 1300, 1440, 1460];
/// The same for IPv6.
const SIZES_V6: [u16; 4] = [1220, 1420, 1440, 8940];

/// Minutes, the current one included, for which a cookie is good.
const MINUTES_MAX: u32 = 2;
/// Bits of a cookie below the counter.
const DATA_BITS: u32 = 24;
const DATA_MASK: u32 = (1 << DATA_BITS) - 1;

/// Bits of a timestamp that carry what was agreed on.
const BITS: u32 = 0x3f;
/// Both sides understand SACK.
const BIT_SACK: u32 = 0x10;
/// Both sides understand ECN.
const BIT_ECN: u32 = 0x20;
/// Instead of a scale: windows are not scaled. Also the mask of the scale.
const NO_SCALE: u32 = 0xf;

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{IpAddr, Ipv4Addr};

    fn bound(irs: u32) -> Bound {
        let at = |last, port| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)), port);
        Bound { local: at(1, 80), remote: at(2, 4000), irs }
    }

    fn at(seconds: u64) -> Instant {
        Instant::START + Duration::from_secs(seconds)
    }

    /// RFC 4987 §3.6: a cookie gives back the largest size of the table that is not too large, for
    /// its own endpoints and number, and no longer than until the end of the next minute.
    #[test]
    fn a_cookie_is_good_for_whom_it_was_given_to() {
        let cookies = SynCookies::new([1, 2]);
        let sizes = [(None, 536), (Some(48), 536), (Some(1459), 1440), (Some(9000), 1460)];
        for (mss, kept) in sizes {
            let number = cookies.number(&bound(7), mss, at(30));
            for seconds in [30, 59, 60, 119] {
                assert_eq!(cookies.check(&bound(7), number, at(seconds)), Some(kept));
            }
            assert_eq!(cookies.check(&bound(7), number, at(120)), None, "too old");
            assert_eq!(cookies.check(&bound(8), number, at(30)), None, "another number");
            let other = Bound { remote: bound(7).local, ..bound(7) };
            assert_eq!(cookies.check(&other, number, at(30)), None, "other ends");
            assert_eq!(SynCookies::new([1, 3]).check(&bound(7), number, at(30)), None);
        }
    }

    /// Forged numbers pass no more often than chance lets them: 8 of 2^32 are good at a time.
    #[test]
    fn forged_cookies_fail() {
        let cookies = SynCookies::new([1, 2]);
        let forged = (0..1_000_000u32).map(|n| n.wrapping_mul(0x9e37_79b9));
        let good = forged.filter(|n| cookies.check(&bound(7), *n, at(200)).is_some());
        assert!(good.count() <= 1);
    }
}
