//! QUIC under a policy: the client and the server of aioquic.

use super::{assert_recorded, run_script, start_resolver};
use crate::support::{Host, OUTSIDE_V4, Process, Test, command};
use serde_json::json;

pub(super) fn tests() -> Vec<Test> {
    let programs = &["nsenter", "python3", "openssl", "dnsmasq"];
    vec![Test::new("policy_aioquic", programs, aioquic).unless(why_no_aioquic)]
}

/// Debian has no package of aioquic, so most machines have none.
fn why_no_aioquic() -> Option<String> {
    let asked = command("python3", ["-c", "import aioquic"]).output();
    let is_there = asked.is_ok_and(|output| output.status.success());
    (!is_there).then(|| "python3 has no module aioquic".into())
}

/// Everything that is tried, and what becomes of it.
const RESULTS: &str = "\
name that was not asked for: No route to host
name: version 1
version 2: version 2
change of version: version 2
retry: version 1
long hello: version 1
long hello of version 2: version 2
long hello and retry: version 1
other name: No route to host
other name, version 2: No route to host
other name in a long hello: No route to host
no name: No route to host
other port: No route to host
";

/// Goal: a client gets through to the server whose name a rule allows, in both versions, and also
/// if its hello needs several packets, the server asks for another one or changes the version. With
/// another name for the same address it is denied at once.
fn aioquic(host: &mut Host) {
    let _resolver = start_resolver(host);
    let [certificate, key] = super::make_certificate(host);
    let program = host.write("server.py", include_str!("quic_server.py"));
    let words = [super::text(&program), OUTSIDE_V4, &certificate, &key];
    let mut server = Process::start(host.outside().command("python3", words));
    server.wait_for_text("ready");
    host.write("client.py", include_str!("quic_client.py"));
    let policy = "[egress]\n[[egress.rule]]\nid = 'quic'\naction = 'allow'\n\
                  to = 'index.example'\nports = ['udp/443', 'udp/8443']\n";
    let policy = host.write("policy.toml", policy);
    let options = ["--egress", super::text(&policy)];
    let script = format!("python3 client.py {OUTSIDE_V4} {certificate}");
    let (output, records) = run_script(host, options, &script, &[]);
    assert_eq!(output.stdout, RESULTS, "{}", output.stderr);
    for port in [443, 8443] {
        assert_recorded(
            &records,
            &json!({
                "verdict": "allow", "rule": "quic", "names": ["index.example"],
                "greeting": "index.example", "transport": "udp", "port": port,
            }),
        );
    }
    let other = "the name in its greeting has another address";
    assert_recorded(
        &records,
        &json!({"verdict": "deny", "reason": other, "greeting": "other.example", "port": 443}),
    );
    let unnamed = "its greeting names no host";
    assert_recorded(&records, &json!({"verdict": "deny", "reason": unnamed, "port": 443}));
}
