//! Echo requests: to the gateway, and through the host to another machine.

use super::support::{Family, Host, NONE, Stats, Test, Towpath, at_each_mtu};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for family in Family::BOTH {
        type Body = fn(&mut Host, Family);
        let bodies: [(&str, Body); 4] = [
            ("ping_gateway", gateway),
            ("ping_outside", outside),
            ("ping_large", large),
            ("ping_unreachable", unreachable),
        ];
        for (name, body) in bodies {
            tests.extend(at_each_mtu(family, || {
                let name = format!("{name}_{}", family.name());
                Test::new(name, &["ping"], move |host| body(host, family))
            }));
        }
    }
    tests
}

/// Pings one address several times.
fn ping(family: Family, options: &[&str], address: &str) -> Pinged {
    let ping = ["ping", family.option(), "-n", "-c", "3", "-i", "0.2", "-W", "30"];
    let command: Vec<&str> = ping.iter().chain(options).chain(&[address]).copied().collect();
    Pinged(Towpath::new(NONE).run(command))
}

/// The result of a ping.
struct Pinged(super::support::Output);

impl Pinged {
    /// Asserts that each request is answered once, with its own content.
    fn assert_all(self) -> Stats {
        let super::support::Output { stdout: text, stderr, .. } = &self.0;
        let all = "3 packets transmitted, 3 received, 0% packet loss";
        assert!(text.contains(all), "{text}\n{stderr}");
        assert!(!text.contains("DUP") && !text.contains("wrong"), "{text}");
        Stats::of(&self.0)
    }
}

/// Goal: the gateway and the DNS address answer by themselves.
fn gateway(_: &mut Host, family: Family) {
    for address in [family.gateway(), family.dns()] {
        ping(family, &[], &address.to_string()).assert_all();
    }
}

/// Goal: another machine answers through the host.
fn outside(host: &mut Host, family: Family) {
    host.outside();
    let stats = ping(family, &[], &family.outside().to_string()).assert_all();
    assert_eq!(stats.number("flows", "requests"), 3);
}

/// Goal: requests larger than the MTU pass, in fragments on both sides.
/// Method: sizes of 4,000 and 20,000 bytes, with a pattern that ping compares. A reply takes much
/// of ping's receive buffer, so each request waits for the reply before. The first request of each
/// size may fail and teach the MTU of the path, where the one inside is larger.
fn large(host: &mut Host, family: Family) {
    host.outside();
    for size in ["4000", "20000"] {
        for address in [family.gateway(), family.outside()] {
            let options = format!("-n -c 1 -W 30 -s {size} -p 0123456789abcdef");
            let one = format!("ping {} {options} {address}", family.option());
            let script = format!("{one} >/dev/null; {}", [&*one; 3].join(" && "));
            let text = Towpath::new(NONE).run(["sh", "-c", &script]).success();
            let whole = text.matches("1 packets transmitted, 1 received, 0% packet loss").count();
            assert!(whole == 3 && !text.contains("wrong"), "{text}");
        }
    }
}

/// Goal: the program learns that a host cannot be reached.
/// Method: destinations with an `unreachable` route, without a route, and on the link without an
/// answer.
fn unreachable(host: &mut Host, family: Family) {
    host.outside();
    let version = if family == Family::V4 { "ipv4" } else { "ipv6" };
    assert!(host.set(&format!("net/{version}/neigh/out0/retrans_time_ms"), "100"));
    for address in [family.unreachable(), family.unrouted(), family.nobody()] {
        let output = ping(family, &["-W", "10"], &address.to_string()).0;
        let text = output.stdout.to_lowercase();
        assert!(text.contains("unreachable") || text.contains("no route"), "{text}");
    }
}
