//! DNS: queries to the DNS address are relayed to the host's resolvers.

use std::net::UdpSocket;
use std::path::Path;

use super::support::{Family, Host, NONE, Process, Test, Towpath, at_each_mtu, command};

pub(crate) fn tests() -> Vec<Test> {
    let programs: &[&str] = &["dig", "dnsmasq"];
    let mut tests = vec![
        Test::new("dns_next_resolver_after_refusal", programs, |host| {
            next_resolver(host, false);
        }),
        Test::new("dns_next_resolver_after_silence", programs, |host| {
            next_resolver(host, true);
        }),
        Test::new("dns_without_resolver", &["dig"], without_resolver),
        Test::new("dns_resolv_conf_changes", programs, resolv_conf_changes),
        Test::new("dns_by_the_system", programs, by_the_system),
    ];
    for family in Family::BOTH {
        tests.extend(at_each_mtu(family, || {
            let name = format!("dns_named_{}", family.name());
            Test::new(name, programs, move |host| named(host, family))
        }));
    }
    tests
}

/// Starts a resolver that knows a few names, one of them with a very long answer.
fn start_dnsmasq(host: &Host, listen: &str, answer: &str) -> Process {
    let long: Vec<String> =
        (0..14).map(|number| format!("txt-record=long.example,{number:0>200}\n")).collect();
    let config = format!(
        "port=53\nbind-interfaces\nlisten-address={listen}\nno-resolv\nno-hosts\n\
         edns-packet-max=4096\npid-file=\nlog-facility=-\nlog-queries\n\
         host-record=name.example,{answer},2001:db8::77\n{}",
        long.concat()
    );
    let file = host.write(&format!("dnsmasq-{listen}.conf"), config);
    let file = format!("--conf-file={}", file.to_str().expect("text"));
    let mut dnsmasq = Process::start(command("dnsmasq", ["--no-daemon", &file]));
    dnsmasq.wait_for_text("started");
    dnsmasq
}

/// Returns a command that starts another with a file as the host's resolv.conf.
fn with_resolv_conf(file: &Path) -> [String; 6] {
    let file = file.to_str().expect("text");
    let script = format!("mount --bind {file} /etc/resolv.conf && exec \"$@\"");
    ["unshare", "--mount", "sh", "-c", &script, "sh"].map(String::from)
}

/// Goal: short and long answers arrive over UDP and TCP; a long one in fragments where EDNS allows
/// it, else by TCP after a truncated one.
/// Method: dig queries dnsmasq on the host's loopback, named by `--dns`.
fn named(host: &mut Host, family: Family) {
    let resolver = family.loopback().to_string();
    let _dnsmasq = start_dnsmasq(host, &resolver, "192.0.2.77");
    let server = format!("@{}", family.dns());
    let dig = format!("dig {server} +tries=2 +timeout=20");
    let script = format!(
        "{dig} +short name.example A; {dig} +short name.example AAAA; \
         {dig} +tcp +short name.example A; {dig} +notcp name.missing A | grep -o 'status: [A-Z]*'; \
         {dig} +bufsize=4096 +ignore long.example TXT | grep -E 'flags:|MSG SIZE|TCP|UDP'; \
         {dig} +bufsize=512 long.example TXT | grep -E 'MSG SIZE|Truncated'; \
         {dig} +tcp long.example TXT | grep 'MSG SIZE'"
    );
    let text = Towpath::new(["--dns", &resolver]).run(["sh", "-c", &script]).success();
    let start = "192.0.2.77\n2001:db8::77\n192.0.2.77\nstatus: REFUSED\n";
    assert!(text.starts_with(start), "{text}");
    assert!(!text.contains(" tc"), "the long answer is truncated:\n{text}");
    let sizes: Vec<&str> = text.lines().filter(|line| line.contains("MSG SIZE")).collect();
    assert_eq!(sizes.len(), 3, "{text}");
    assert!(sizes.iter().all(|size| *size == sizes[0]), "{text}");
    assert!(sizes[0].contains(" rcvd: 3"), "about 3,000 bytes: {text}");
    assert!(text.contains("Truncated, retrying in TCP mode"), "{text}");
}

/// Goal: a query that the first resolver does not answer is answered by the next one.
/// Method: the first one's port is closed, or open without answers.
fn next_resolver(host: &mut Host, silent: bool) {
    let first = "127.0.0.9";
    let _silent = silent.then(|| UdpSocket::bind((first, 53)).expect("bind"));
    let _dnsmasq = start_dnsmasq(host, "127.0.0.1", "192.0.2.77");
    let server = format!("@{}", Family::V4.dns());
    let dig = format!("dig {server} +short +tries=15 +timeout=1");
    let script = format!("{dig} name.example A; {dig} name.example A; {dig} +tcp name.example A");
    let options = ["--dns", first, "--dns", "127.0.0.1"];
    let output = Towpath::new(options).run(["sh", "-c", &script]);
    let answers = output.stdout.lines().filter(|line| *line == "192.0.2.77").count();
    assert_eq!(answers, 3, "{output:?}");
}

/// Goal: without a resolver, queries fail at once.
/// Method: a resolv.conf without one, and a named resolver whose port is closed.
fn without_resolver(host: &mut Host) {
    let file = host.write("resolv.conf", "# nothing\n");
    let server = format!("@{}", Family::V4.dns());
    for options in [&[][..], &["--dns", "127.0.0.9"]] {
        let towpath = Towpath::new(options.iter().copied()).by(with_resolv_conf(&file));
        let dig = ["dig", &server, "+tries=1", "+timeout=30", "name.example"];
        let output = towpath.run(dig);
        assert!(!output.status.success());
        let text = output.stdout;
        assert!(text.contains("connection refused"), "{text}\n{}", output.stderr);
    }
}

/// Goal: a change of the host's resolv.conf takes effect while the program runs.
/// Method: two resolvers with different answers; the file is rewritten between two queries.
fn resolv_conf_changes(host: &mut Host) {
    let file = host.write("resolv.conf", "nameserver 127.0.0.1\n");
    let _one = start_dnsmasq(host, "127.0.0.1", "192.0.2.71");
    let _two = start_dnsmasq(host, "127.0.0.2", "192.0.2.72");
    let dig = format!("dig @{} +short +tries=2 +timeout=20 name.example A", Family::V4.dns());
    let tcp = dig.replace("+short", "+short +tcp");
    let script = format!("{dig}; {tcp}; read line; sleep 1.1; {dig}; {tcp}");
    let towpath = Towpath::new(NONE).by(with_resolv_conf(&file));
    let mut towpath = Process::start_held(towpath.command(["sh", "-c", &script]));
    towpath.wait_for_text("192.0.2.71\n192.0.2.71\n");
    host.write("resolv.conf", "nameserver 127.0.0.2\n");
    towpath.release();
    let text = towpath.finish().success();
    assert_eq!(text, "192.0.2.71\n192.0.2.71\n192.0.2.72\n192.0.2.72\n");
}

/// Goal: an unmodified program resolves names.
/// Method: getent, with the resolv.conf that it sees inside.
fn by_the_system(host: &mut Host) {
    let file = host.write("resolv.conf", "nameserver 127.0.0.1\n");
    let _dnsmasq = start_dnsmasq(host, "127.0.0.1", "192.0.2.77");
    for options in [&[][..], &["-6"]] {
        let towpath = Towpath::new(options.iter().copied()).by(with_resolv_conf(&file));
        let text = towpath.run(["getent", "ahosts", "name.example"]).success();
        assert!(text.contains("192.0.2.77 ") || options == ["-6"], "{text}");
        assert!(text.contains("2001:db8::77 "), "{text}");
    }
}
