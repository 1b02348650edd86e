//! Router advertisements (RFC 4861 §6.2): when one is due, and its contents.

use std::time::Duration;

use towpath_net::time::Instant;

use super::config::{Config, Ipv6};
use super::wire::advertisement::{
    DNS_SERVERS_MAX, PrefixInformation, RouterAdvertisement, search_list_option,
};

/// Greatest interval between unsolicited advertisements (RFC 4861 §6.2.1 MaxRtrAdvInterval).
const ADVERTISE_INTERVAL_MAX: Duration = Duration::from_secs(600);
/// Least interval between them (MinRtrAdvInterval: a third).
const ADVERTISE_INTERVAL_MIN: Duration = Duration::from_secs(200);
/// Greatest interval of the first ones (RFC 4861 §10 MAX_INITIAL_RTR_ADVERT_INTERVAL).
const INITIAL_INTERVAL: Duration = Duration::from_secs(16);
/// Number of first ones (MAX_INITIAL_RTR_ADVERTISEMENTS).
const INITIAL_COUNT: u8 = 3;
/// Lifetime of advertised values: three intervals (RFC 4861 §6.2.1, RFC 8106 §5.1).
const LIFETIME: Duration = Duration::from_secs(3 * ADVERTISE_INTERVAL_MAX.as_secs());
/// Valid lifetime of addresses; the next constant is the preferred one. A guest that receives no
/// further advertisements continues for a day.
const PREFIX_VALID: Duration = Duration::from_secs(24 * 3600);
const PREFIX_PREFERRED: Duration = Duration::from_secs(4 * 3600);
/// Hop limit for packets of guests.
const HOP_LIMIT: u8 = 64;

/// When the next advertisement is due.
pub(super) struct Schedule {
    next_at: Instant,
    initial_left: u8,
    seed: u64,
}

impl Schedule {
    /// Makes a schedule whose first advertisement is due at once.
    pub(super) fn new(seed: u64) -> Self {
        Self { next_at: Instant::START, initial_left: INITIAL_COUNT, seed }
    }

    pub(super) fn next_at(&self) -> Instant {
        self.next_at
    }

    /// An advertisement is sent now: the next is due after a random time (RFC 4861 §6.2.4).
    pub(super) fn sent(&mut self, now: Instant) {
        let (min, max) = (ADVERTISE_INTERVAL_MIN, ADVERTISE_INTERVAL_MAX);
        let mut interval = min + Duration::from_millis(self.random((max - min).as_millis() as u64));
        if self.initial_left > 0 {
            self.initial_left -= 1;
            interval = interval.min(INITIAL_INTERVAL);
        }
        self.next_at = now + interval;
    }

    /// Returns a number below `bound` (splitmix64). It keeps routers from advertising in step, and
    /// needs no secrecy.
    fn random(&mut self, bound: u64) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}

/// Returns the message, with a zero checksum. The last one has zero lifetimes (RFC 4861 §6.2.5).
pub(super) fn advertisement(config: &Config, ipv6: &Ipv6, is_last: bool) -> Vec<u8> {
    let seconds = |time: Duration| if is_last { 0 } else { time.as_secs() as u32 };
    let mut advertisement = RouterAdvertisement {
        hop_limit: HOP_LIMIT,
        managed: ipv6.pool.is_some() && !config.disabled.dhcpv6,
        other: !config.disabled.dhcpv6,
        router_lifetime_s: seconds(LIFETIME) as u16,
        source_link_layer: Some(config.mac),
        mtu: Some(config.mtu.into()),
        prefix_count: 1,
        dns_lifetime_s: seconds(LIFETIME),
        ..RouterAdvertisement::default()
    };
    advertisement.prefix[0] = PrefixInformation {
        prefix: ipv6.prefix(),
        prefix_len: ipv6.prefix_len,
        on_link: true,
        // RFC 4862 §5.5.3 d: with a prefix of another length no address can be formed.
        autonomous: ipv6.autonomous && ipv6.prefix_len == 64,
        valid_lifetime_s: seconds(PREFIX_VALID),
        preferred_lifetime_s: seconds(PREFIX_PREFERRED),
    };
    for (place, server) in advertisement.dns_server.iter_mut().zip(&ipv6.dns) {
        *place = *server;
    }
    advertisement.dns_server_count = ipv6.dns.len().min(DNS_SERVERS_MAX) as u8;
    let mut bytes = advertisement.emit();
    bytes.extend(search_list_option(&config.search, seconds(LIFETIME)));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4861 §6.2.4: three soon, then intervals between a third of the maximum and the maximum.
    #[test]
    fn intervals_of_rfc_4861() {
        let mut schedule = Schedule::new(1);
        let mut now = schedule.next_at();
        let mut intervals = Vec::new();
        for _ in 0..50 {
            schedule.sent(now);
            intervals.push(schedule.next_at().since(now));
            now = schedule.next_at();
        }
        assert!(intervals[..3].iter().all(|i| *i == INITIAL_INTERVAL), "{intervals:?}");
        let range = ADVERTISE_INTERVAL_MIN..=ADVERTISE_INTERVAL_MAX;
        assert!(intervals[3..].iter().all(|i| range.contains(i)), "{intervals:?}");
        assert!(intervals[4..].iter().any(|i| *i != intervals[3]), "jitter");
    }
}
