//! The text form of leases, which keeps them across restarts. Each line is one lease: its end in
//! seconds since 1970, address, link-layer address, name, client and port. `-` stands for no name
//! and no port; the port may be missing.
//!
//! Leases of static guests are left out, as the configuration has them. The text is untrusted
//! input: lines that are not valid are skipped and counted.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use towpath_net::time::Instant;

use super::leases::{Client, Lease, Leases, State};
use super::static_leases::StaticLeases;

/// Longest client identifier that is read: DHCP's own bound is 255 bytes.
const CLIENT_BYTES_MAX: usize = 255;
/// Words of a line before the port.
const WORDS: usize = 5;

/// The result of parsing a line.
pub(super) enum Line<'a> {
    /// A lease of this address, and the name of its port.
    Lease(IpAddr, Lease, Option<&'a str>),
    /// A lease that has expired.
    Over,
    /// Not a lease.
    Unusable,
}

/// Returns the bound leases as text. `now` corresponds to the time `wall` since 1970.
pub(super) fn write(
    leases: &Leases,
    ports: &StaticLeases,
    now: Instant,
    wall: Duration,
    text: &mut String,
) {
    let mut bound: Vec<_> = leases.bound(now).collect();
    bound.sort_unstable_by_key(|(address, _)| *address);
    for (address, lease) in bound {
        let client = match &lease.client {
            Client::Static(_) => continue,
            Client::Mac(_) => "mac".into(),
            Client::Identifier(id) => {
                id.iter().fold(String::from("id:"), |text, byte| text + &format!("{byte:02x}"))
            }
        };
        let until = (wall + lease.until.since(now)).as_secs();
        let name = lease.name.as_ref().map_or("-", |name| name.as_str());
        let mac = lease.mac;
        let port = lease.port.and_then(|port| ports.port_name(port)).unwrap_or("-");
        writeln!(text, "{until} {address} {mac} {name} {client} {port}").expect("a string grows");
    }
}

/// Parses a line, at `now`.
pub(super) fn read(line: &str, now: Instant, wall: Duration) -> Line<'_> {
    match parse(line, now, wall) {
        Some((_, lease, _)) if lease.until <= now => Line::Over,
        Some((address, lease, port)) => Line::Lease(address, lease, port),
        None => Line::Unusable,
    }
}

fn parse(line: &str, now: Instant, wall: Duration) -> Option<(IpAddr, Lease, Option<&str>)> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (words, port) = match words[..] {
        [ref words @ .., port] if words.len() == WORDS => (words, Some(port)),
        ref words => (words, None),
    };
    let [until, address, mac, name, client] = words[..] else { return None };
    let left = Duration::from_secs(until.parse().ok()?).saturating_sub(wall);
    let mac = mac.parse().ok()?;
    let name = if name == "-" { None } else { Some(name.parse().ok()?) };
    let client = match client.strip_prefix("id:") {
        None if client == "mac" => Client::Mac(mac),
        None => return None,
        Some(hex) => Client::Identifier(bytes(hex)?.into()),
    };
    let lease = Lease { client, mac, port: None, state: State::Bound, until: now + left, name };
    Some((address.parse().ok()?, lease, port.filter(|port| *port != "-")))
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let (pairs, []) = hex.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() > CLIENT_BYTES_MAX || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect()
}
