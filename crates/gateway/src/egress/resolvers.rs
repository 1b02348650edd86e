//! Resolvers outside: a program that asks them gets addresses that the policy does not know.
//!
//! DNS and DNS over TLS or QUIC have ports of their own. DNS over HTTPS looks like any other HTTPS,
//! so its public services are listed here by name and by address. The list cannot be complete: a
//! policy that allows everything else allows unknown ones.

use crate::egress::name::Name;
use crate::egress::rule::{FlowTo, HTTPS, Transport};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Ports of DNS, and of DNS over TLS and QUIC (RFC 7858, RFC 9250).
const DNS: u16 = 53;
const DNS_OVER_TLS: u16 = 853;

/// Names of public services of DNS over HTTPS.
const NAMES: &[&str] = &[
    "chrome.cloudflare-dns.com",
    "cloudflare-dns.com",
    "dns.adguard-dns.com",
    "dns.cloudflare.com",
    "dns.google",
    "dns.google.com",
    "dns.mullvad.net",
    "dns.nextdns.io",
    "dns.opendns.com",
    "dns.quad9.net",
    "dns10.quad9.net",
    "dns11.quad9.net",
    "dns64.dns.google",
    "dns9.quad9.net",
    "doh.cleanbrowsing.org",
    "doh.dns.sb",
    "doh.familyshield.opendns.com",
    "doh.opendns.com",
    "doh.xfinity.com",
    "firefox.dns.nextdns.io",
    "mozilla.cloudflare-dns.com",
    "one.one.one.one",
    "security.cloudflare-dns.com",
];

/// Addresses of public services of DNS over HTTPS.
const V4: &[Ipv4Addr] = &[
    Ipv4Addr::new(1, 0, 0, 1),
    Ipv4Addr::new(1, 1, 1, 1),
    Ipv4Addr::new(8, 8, 4, 4),
    Ipv4Addr::new(8, 8, 8, 8),
    Ipv4Addr::new(9, 9, 9, 9),
    Ipv4Addr::new(94, 140, 14, 14),
    Ipv4Addr::new(149, 112, 112, 112),
    Ipv4Addr::new(208, 67, 220, 220),
    Ipv4Addr::new(208, 67, 222, 222),
];
const V6: &[Ipv6Addr] = &[
    Ipv6Addr::new(0x2001, 0x4860, 0x4860, 0, 0, 0, 0, 0x8844),
    Ipv6Addr::new(0x2001, 0x4860, 0x4860, 0, 0, 0, 0, 0x8888),
    Ipv6Addr::new(0x2606, 0x4700, 0x4700, 0, 0, 0, 0, 0x1001),
    Ipv6Addr::new(0x2606, 0x4700, 0x4700, 0, 0, 0, 0, 0x1111),
    Ipv6Addr::new(0x2620, 0xfe, 0, 0, 0, 0, 0, 0xfe),
];

/// Returns true if the name is one of a public resolver.
pub(super) fn is_resolver_name(name: &Name) -> bool {
    NAMES.contains(&name.as_str())
}

/// Returns true if the flow leads to a resolver, as far as that can be seen.
pub(super) fn is_resolver(flow: FlowTo, name: Option<&Name>) -> bool {
    let is_known = match flow.address.to_canonical() {
        IpAddr::V4(v4) => V4.contains(&v4),
        IpAddr::V6(v6) => V6.contains(&v6),
    };
    match (flow.transport, flow.port) {
        (Transport::Icmp, _) => false,
        (_, DNS | DNS_OVER_TLS) => true,
        (_, HTTPS) => is_known || name.is_some_and(is_resolver_name),
        _ => false,
    }
}
