//! SYN cookies (RFC 4987 §3.6): the state of a request travels in the numbers of the SYN-ACK.
//!
//! The initial sequence number carries a minute counter and the peer's segment size, under a keyed
//! hash of the endpoints and the peer's number. If both sides use timestamps, the lowest bits of
//! ours carry window scale, SACK and ECN; without timestamps the connection does without these.
//! No state is kept, so none can be exhausted. In return the exact segment size is lost, and the
//! SYN-ACK is not retransmitted.

use super::ecn::codepoint;
use super::segment::Segment;
use super::seq::Seq;
use super::settings::Settings;
use crate::time::{Duration, Instant};
use crate::wire::tcp::{Flags, Header, Options};
use core::hash::{Hash, Hasher};
use core::net::SocketAddr;
use siphasher::sip::SipHasher24;

/// How long after its last cookie a listener still checks ACKs for cookies.
pub const LIFETIME: Duration = Duration::from_secs(60 * MINUTES_MAX as u64);

/// Keys of one stack's cookies.
#[derive(Clone, Copy)]
pub struct SynCookies {
    keys: [u64; 2],
}

/// What a cookie is bound to: both endpoints and the peer's initial sequence number.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// The peer's initial sequence number.
    pub irs: u32,
}

impl SynCookies {
    /// Creates cookies under these keys.
    pub fn new(keys: [u64; 2]) -> Self {
        Self { keys }
    }

    /// Initial sequence number of a SYN-ACK at `now`. `mss` is the MSS option of the peer, if it
    /// sent one.
    pub fn number(&self, bound: &Bound, mss: Option<u16>, now: Instant) -> u32 {
        let table = sizes(bound.remote);
        let mss = mss.unwrap_or(table[0]);
        let index = table.iter().rposition(|&size| size <= mss).unwrap_or(0);
        let minute = minute(now);
        let data = self.hash(bound, Some(minute)).wrapping_add(index as u32) & DATA_MASK;
        self.base(bound).wrapping_add(minute << DATA_BITS).wrapping_add(data)
    }

    /// Returns the peer's segment size if `number` is a cookie of the last two minutes.
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

    /// Value that all cookies between these endpoints add to.
    fn base(&self, bound: &Bound) -> u32 {
        self.hash(bound, None).wrapping_add(bound.irs)
    }

    fn hash(&self, bound: &Bound, given: Option<u32>) -> u32 {
        let mut hasher = SipHasher24::new_with_keys(self.keys[0], self.keys[1]);
        // The peer's number is hashed too. Linux only adds it, so that a neighbouring number is
        // valid there.
        (bound.local, bound.remote, given.map(|minute| (minute, bound.irs))).hash(&mut hasher);
        hasher.finish() as u32
    }
}

/// The peer's SYN without the options that a cookie cannot carry.
pub(super) fn reduced(syn: &Segment, settings: &Settings) -> Segment {
    let mut syn = *syn;
    if syn.options.timestamps.is_none() || !settings.timestamps {
        syn.options = Options { mss: syn.options.mss, ..Options::default() };
        syn.header.flags.remove(Flags::ECE | Flags::CWR);
    }
    syn
}

/// How far the timestamp of the SYN-ACK is from the clock, so that it carries what both sides
/// agreed on: window scale, SACK and ECN.
pub(super) fn shift(scale: Option<u8>, sack: bool, ecn: bool, now: Instant) -> u32 {
    let clock = now.millis() as u32;
    let scale = scale.map_or(NO_SCALE, u32::from);
    let (sack, ecn) = (if sack { BIT_SACK } else { 0 }, if ecn { BIT_ECN } else { 0 });
    // Never later than now: the peer's echo from the future would be rejected.
    let mut stamp = clock & !BITS | scale | sack | ecn;
    if Seq(stamp).after(Seq(clock)) {
        stamp = stamp.wrapping_sub(BITS + 1);
    }
    stamp.wrapping_sub(clock)
}

/// Rebuilds the peer's SYN from the ACK of its SYN-ACK; `offset` is that of our timestamps.
pub(super) fn rebuilt(ack: &Segment, mss: u16, offset: u32) -> Segment {
    let mut options = Options { mss: Some(mss), ..Options::default() };
    let mut flags = Flags::SYN;
    if let Some((value, echo)) = ack.options.timestamps {
        let bits = echo.wrapping_sub(offset);
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
    Segment { header, options, len: 0, ecn: codepoint::NOT_ECT }
}

fn minute(now: Instant) -> u32 {
    (now.millis() / 60_000) as u32
}

fn sizes(remote: SocketAddr) -> &'static [u16; 4] {
    if remote.is_ipv4() { &SIZES_V4 } else { &SIZES_V6 }
}

/// Segment sizes that a cookie can carry over IPv4: the usual ones.
const SIZES_V4: [u16; 4] = [536, 1300, 1440, 1460];
/// Segment sizes that a cookie can carry over IPv6: the usual ones.
const SIZES_V6: [u16; 4] = [1220, 1420, 1440, 8940];

/// Minutes for which a cookie is valid, the current one included.
const MINUTES_MAX: u32 = 2;
/// Bits of a cookie below the counter.
const DATA_BITS: u32 = 24;
const DATA_MASK: u32 = (1 << DATA_BITS) - 1;

/// Bits of a timestamp that carry options.
const BITS: u32 = 0x3f;
/// Both sides understand SACK.
const BIT_SACK: u32 = 0x10;
/// Both sides understand ECN.
const BIT_ECN: u32 = 0x20;
/// Value in place of a scale: windows are not scaled. Also the mask of the scale.
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

    /// RFC 4987 §3.6: a cookie returns the largest size of the table that is not above the peer's.
    /// It is valid only for its own endpoints and number, and at most until the end of the next
    /// minute.
    #[test]
    fn a_cookie_is_valid_for_its_client_only() {
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

    /// Forged numbers pass no more often than by chance: 8 of 2^32 are valid at any time.
    #[test]
    fn forged_cookies_fail() {
        let cookies = SynCookies::new([1, 2]);
        let forged = (0..1_000_000u32).map(|n| n.wrapping_mul(0x9e37_79b9));
        let good = forged.filter(|n| cookies.check(&bound(7), *n, at(200)).is_some());
        assert!(good.count() <= 1);
    }
}
