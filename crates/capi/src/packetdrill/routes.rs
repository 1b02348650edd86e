//! The `ip route` commands of scripts: a file to which a command of that name appends its
//! arguments, one line each.

use std::net::IpAddr;
use std::time::Duration;
use towpath::layers::net::stack::{Route, RouteMetrics};
use towpath::layers::net::tcp::congestion::Kind;

/// The routes that remain after all lines. Destinations that are not numeric are ignored.
pub(super) fn read(text: &str) -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let verb = words.next().unwrap_or_default();
        let kinds = ["unicast", "local", "broadcast", "multicast", "anycast"];
        let mut words = words.skip_while(|word| kinds.contains(word));
        if verb == "flush" {
            routes.clear();
        }
        for (destination, prefix_len) in words.next().map(destinations).unwrap_or_default() {
            routes
                .retain(|known| (known.destination, known.prefix_len) != (destination, prefix_len));
            if verb != "del" && verb != "delete" {
                let metrics = metrics(words.clone());
                routes.push(Route { destination, prefix_len, metrics });
            }
        }
    }
    routes
}

/// A destination with its prefix length. `default` is one destination of each family.
fn destinations(word: &str) -> Vec<(IpAddr, u8)> {
    if word == "default" {
        return vec![(IpAddr::from([0; 4]), 0), (IpAddr::from([0u16; 8]), 0)];
    }
    let (address, prefix) = word.split_once('/').map_or((word, None), |(a, b)| (a, Some(b)));
    let Ok(address) = address.parse::<IpAddr>() else { return Vec::new() };
    let whole = if address.is_ipv4() { 32 } else { 128 };
    match prefix.map_or(Ok(whole), str::parse) {
        Ok(prefix) if prefix <= whole => vec![(address, prefix)],
        _ => Vec::new(),
    }
}

/// Parses pairs of words, with an optional `lock` between the two.
fn metrics<'a>(mut words: impl Iterator<Item = &'a str>) -> RouteMetrics {
    let mut metrics = RouteMetrics::default();
    while let Some(name) = words.next() {
        let mut value = words.next().unwrap_or_default();
        let locked = value == "lock";
        if locked {
            value = words.next().unwrap_or_default();
        }
        let number = value.parse::<u32>().ok();
        match name {
            "mtu" => {
                metrics.mtu = number;
                metrics.mtu_locked = locked;
            }
            "advmss" => metrics.advmss = number,
            "initcwnd" => metrics.initcwnd = number.filter(|number| *number > 0),
            "initrwnd" => metrics.initrwnd = number.filter(|number| *number > 0),
            "rto_min" => metrics.rto_min = time(value),
            "quickack" => metrics.quickack = number.unwrap_or(0) != 0,
            "congctl" => metrics.congestion = Kind::from_name(value),
            "features" => metrics.ecn |= value == "ecn",
            _ => {}
        }
    }
    metrics
}

/// Parses a time in milliseconds, or with a unit.
fn time(word: &str) -> Option<Duration> {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    let micros = match &word[digits.len()..] {
        "" | "ms" | "msec" | "msecs" => number.checked_mul(1000)?,
        "us" | "usec" | "usecs" => number,
        "s" | "sec" | "secs" => number.checked_mul(1_000_000)?,
        _ => return None,
    };
    Some(Duration::from_micros(micros)).filter(|time| !time.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts() {
        let text = "change 192.0.2.1 via 192.168.0.2 dev tun0 advmss 600 mtu lock 640 initcwnd 11
            add 2001:db8::/32 dev tun0 rto_min 5ms quickack 1 congctl lock reno features ecn
            change 192.0.2.1 dev tun0 mtu 1500
            add 192.0.2.2 initrwnd 20
            del 192.0.2.2 dev tun0";
        let routes = read(text);
        let [v6, v4] = routes[..] else { panic!("two are left") };
        let mtu = RouteMetrics { mtu: Some(1500), ..RouteMetrics::default() };
        assert_eq!((v4.prefix_len, v4.metrics), (32, mtu));
        assert_eq!((v6.prefix_len, v6.metrics.rto_min), (32, Some(Duration::from_millis(5))));
    }

    #[test]
    fn metrics_of_all_kinds() {
        let line = "replace default via 10.0.0.1 dev tun0 advmss 600 mtu lock 640 initcwnd 11 \
            initrwnd 3 rto_min 2s quickack 1 congctl reno features ecn";
        let expected = RouteMetrics {
            mtu: Some(640),
            mtu_locked: true,
            advmss: Some(600),
            initcwnd: Some(11),
            initrwnd: Some(3),
            rto_min: Some(Duration::from_secs(2)),
            quickack: true,
            congestion: Some(Kind::Reno),
            ecn: true,
        };
        let routes = read(line);
        assert_eq!(routes.len(), 2, "one for each family");
        assert!(routes.iter().all(|route| route.prefix_len == 0 && route.metrics == expected));
    }

    #[test]
    fn what_makes_no_sense_is_passed_over() {
        for line in ["", "change", "add somewhere mtu 3", "add 1.2.3.4/33 mtu 3", "add 1.2.3.4/x"] {
            assert_eq!(read(line), [], "{line}");
        }
        let routes =
            read("add 1.2.3.4 mtu lock advmss x rto_min 5parsec congctl bbr initcwnd 0 mtu");
        assert_eq!(routes.len(), 1);
        let metrics = routes[0].metrics;
        assert_eq!((metrics.mtu, metrics.rto_min, metrics.initcwnd), (None, None, None));
    }
}
