//! Large transfers over TCP by curl and nginx, with checksums, at every MTU.

use super::support::{
    Family, Host, Server, Stats, Test, Towpath, digest_of, http, is_long, mtus, url_host,
};

const MIB: u64 = 1 << 20;

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for family in Family::BOTH {
        for mtu in mtus(family) {
            let name = format!("{}_{mtu}", family.name());
            let quick = mtu == 1500;
            tests.push(
                Test::new(format!("curl_down_{name}"), &["curl"], move |host| {
                    down(host, family, mtu, 64 * MIB);
                })
                .slow_unless(quick),
            );
            tests.push(
                Test::new(format!("curl_up_{name}"), &["curl"], move |host| {
                    up(host, family, mtu, 64 * MIB);
                })
                .slow_unless(quick),
            );
        }
    }
    tests.push(
        Test::new("lend_to_host", &["curl"], |host| lend_to_host(host, 64 * MIB)).needs_root(),
    );
    if !is_long() {
        return tests;
    }
    tests.push(
        Test::new("curl_down_gib", &["curl"], |host| down(host, Family::V4, 1500, 1024 * MIB))
            .limit(720)
            .slow_unless(false),
    );
    tests.push(
        Test::new("curl_up_gib", &["curl"], |host| up(host, Family::V4, 1500, 1024 * MIB))
            .limit(720)
            .slow_unless(false),
    );
    tests
}

/// Goal: data that a program fetches arrives unchanged, with every byte carried once and none
/// copied.
/// Method: curl fetches from a server on the host's loopback; SHA-256 and `--stats`.
fn down(_: &mut Host, family: Family, mtu: u16, bytes: u64) {
    let server = Server::start(family.loopback(), http);
    let url = format!("http://{}:{}/{bytes}", url_host(family.gateway()), server.port());
    let script = format!("curl -sS --noproxy '*' -m 600 {url} | sha256sum");
    let output =
        Towpath::with_loopback(["-m", &mtu.to_string()]).run(["sh", "-c", script.as_str()]);
    let stats = Stats::of(&output);
    assert!(output.success().starts_with(&digest_of(bytes)));
    stats.assert_carried(0, bytes, 1024);
}

/// Goal: data that a program sends arrives unchanged, with every byte carried once and none copied.
/// Method: curl sends to a server on the host's loopback, which answers with the SHA-256.
fn up(host: &mut Host, family: Family, mtu: u16, bytes: u64) {
    let server = Server::start(family.loopback(), http);
    let file = host.file("data");
    let sink = std::fs::File::create(&file).expect("a file");
    super::support::Pattern::new(bytes).write_to(sink).expect("written");
    let url = format!("http://{}:{}/", url_host(family.gateway()), server.port());
    let file = file.to_str().expect("text");
    let curl = ["curl", "-sS", "--noproxy", "*", "-m", "600", "-T", file, url.as_str()];
    let output = Towpath::with_loopback(["-m", &mtu.to_string()]).run(curl);
    let stats = Stats::of(&output);
    assert_eq!(output.success(), digest_of(bytes));
    stats.assert_carried(bytes, 0, 1024);
}

/// Goal: data that is lent to the host's kernel reaches another machine unchanged.
/// Method: curl sends to a server behind a veth pair, which answers with the SHA-256; the counters
/// show that most of it was lent.
fn lend_to_host(host: &mut Host, bytes: u64) {
    let family = Family::V4;
    let server = host.outside().run(|| Server::start(family.outside(), http));
    let file = host.file("data");
    let sink = std::fs::File::create(&file).expect("a file");
    super::support::Pattern::new(bytes).write_to(sink).expect("written");
    let url = format!("http://{}:{}/", url_host(family.outside()), server.port());
    let file = file.to_str().expect("text");
    let curl = ["curl", "-sS", "--noproxy", "*", "-m", "600", "-T", file, url.as_str()];
    let output = Towpath::new(["--lend-to-host", "always"]).run(curl);
    let stats = Stats::of(&output);
    assert_eq!(output.success(), digest_of(bytes));
    stats.assert_carried(bytes, 0, 1024);
    assert!(stats.number("lent to the host", "bytes") > bytes / 2, "{stats:?}");
}
