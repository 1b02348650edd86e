//! The path to a far host, as programs inside discover it: hop limits, ICMP errors of routers and
//! path MTUs pass the gateway in both directions.

use super::support::{FAR_MTU, Family, Far, Host, NONE, Test, Towpath};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for family in Family::BOTH {
        type Body = fn(&mut Host, Family);
        let bodies: [(&str, &'static [&'static str], Body); 5] = [
            ("trace_udp", &["traceroute"], |host, family| trace(host, family, &["-q", "2"])),
            ("trace_icmp", &["traceroute"], |host, family| trace(host, family, &["-q", "2", "-I"])),
            ("trace_one_port", &["traceroute"], one_port),
            ("trace_ping_too_large", &["ping"], too_large),
            ("trace_ping_forbidden", &["ping"], forbidden),
        ];
        for (name, programs, body) in bodies {
            let name = format!("{name}_{}", family.name());
            tests.push(Test::new(name, programs, move |host| body(host, family)));
        }
    }
    tests
}

/// Runs `traceroute` inside; returns the first address of each hop.
fn hops(family: Family, options: &[&str], to: &str) -> Vec<String> {
    let trace = ["traceroute", family.option(), "-n", "-m", "5", "-w", "10"];
    let command: Vec<&str> = trace.iter().chain(options).chain(&[to]).copied().collect();
    let text = Towpath::new(NONE).run(command).success();
    let lines = text.lines().skip(1);
    lines.map(|line| line.split_whitespace().nth(1).unwrap_or_default().into()).collect()
}

/// Goal: a program sees the gateway, the routers and the destination, each by its own address.
/// Method: one router between this host and the destination.
fn trace(host: &mut Host, family: Family, options: &[&str]) {
    let _far = Far::new(host);
    let to = family.far().to_string();
    let expected = [family.gateway(), family.outside(), family.far()].map(|hop| hop.to_string());
    assert_eq!(hops(family, options, &to), expected);
}

/// Goal: the hop limit applies to each datagram by itself.
/// Method: all probes come from one port of the program, one after another, so that they leave by
/// one socket of the host.
fn one_port(host: &mut Host, family: Family) {
    let _far = Far::new(host);
    let to = family.far().to_string();
    let expected = [family.outside(), family.far()].map(|hop| hop.to_string());
    assert_eq!(hops(family, &["-f", "2", "-N", "1", "-q", "1", "--sport=40000"], &to), expected);
}

/// Goal: a request that must not be fragmented is not, and the program learns the MTU. One that may
/// be fragmented passes in fragments.
fn too_large(host: &mut Host, family: Family) {
    let _far = Far::new(host);
    let (to, size) = (family.far().to_string(), (FAR_MTU + 50).to_string());
    let ping = |how| {
        let ping = ["ping", family.option(), "-n", "-c", "3", "-i", "0.3", "-W", "5"];
        let command: Vec<&str> = ping.into_iter().chain(["-M", how, "-s", &size, &to]).collect();
        Towpath::new(NONE).run(command)
    };
    let reported = ping("do");
    let text = format!("{}{}", reported.stdout, reported.stderr).to_lowercase();
    assert!(text.contains("0 received"), "{text}");
    assert!(text.contains(&format!("mtu = {FAR_MTU}")) || text.contains(&format!("mtu={FAR_MTU}")));
    assert!(text.contains(&format!("from {}", family.outside())), "{text}");
    if family == Family::V4 {
        let text = ping("dont").success();
        assert!(text.contains("3 received"), "{text}");
    }
}

/// Goal: a ping reports why it is refused, whatever the reason.
/// Method: a router that forbids it.
fn forbidden(host: &mut Host, family: Family) {
    let _far = Far::new(host);
    let ping = ["ping", family.option(), "-n", "-c", "1", "-W", "10"];
    let to = family.forbidden().to_string();
    let text = Towpath::new(NONE).run(ping.into_iter().chain([&*to])).stdout;
    let refused = ["Packet filtered", "Administratively prohibited"];
    assert!(refused.iter().any(|why| text.contains(why)), "{text}");
    assert!(text.contains(&format!("From {}", family.outside())), "{text}");
}
