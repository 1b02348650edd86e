//! curl under a policy: two names at one address, false hosts, and proxies.

use super::{assert_recorded, assert_refused, run_script, start_resolver, text};
use crate::support::{Host, OUTSIDE_V4, Process, Test};
use serde_json::json;

pub(super) fn tests() -> Vec<Test> {
    let programs = &["nsenter", "nginx", "curl", "openssl", "dnsmasq"];
    vec![Test::new("policy_curl", programs, curl)]
}

/// Tries each way. What gets through prints the host that the server has understood, and the
/// protocol.
const SCRIPT: &str = r#"
attempt() {
    printf '%s:\n' "$1"
    shift
    curl -sS --cacert cert.pem --max-time 100 "$@"
    case $? in
    0) ;;
    6) echo refused ;;
    7 | 35 | 52 | 55 | 56) echo denied ;;
    *) echo failed ;;
    esac
}
index=https://index.example/ files=https://files.example/ plain=http://index.example/
proxy='--proxy index.example:80'
attempt 'second name' --http2 $index $files
attempt 'second name at that address' --http2 --resolve files.example:443:$1 $index $files
attempt 'second name without TLS' --resolve files.example:80:$1 $plain http://files.example/
attempt 'host of another' -H 'Host: files.example' $plain
attempt 'tunnel' $proxy $files
attempt 'tunnel with another host' $proxy --proxy-header 'Host: index.example' $files
attempt 'proxy' $proxy http://files.example/
export ALL_PROXY=http://$1:3128
attempt 'proxy of the environment' $index
attempt 'without the proxy' --noproxy '*' $index
attempt 'second name without the proxy' --noproxy '*' $files
unset ALL_PROXY
attempt 'fronting' --http2 $index --next --cacert cert.pem --http2 -H 'Host: files.example' $index
attempt 'later request' $plain --next -H 'Host: files.example' $plain
"#;

const RESULTS: &str = "\
second name:
index.example HTTP/2.0
refused
second name at that address:
index.example HTTP/2.0
denied
second name without TLS:
index.example HTTP/1.1
denied
host of another:
denied
tunnel:
denied
tunnel with another host:
denied
proxy:
denied
proxy of the environment:
denied
without the proxy:
index.example HTTP/2.0
second name without the proxy:
refused
fronting:
index.example HTTP/2.0
files.example HTTP/2.0
later request:
index.example HTTP/1.1
files.example HTTP/1.1
";

/// Goal: a name that no rule allows is not reached over the address, the certificate, the proxy or
/// the HTTP/2 connection of one that a rule allows; whatever the settings of proxies are. The last
/// two attempts show what a policy cannot do: later requests of a connection that is allowed.
fn curl(host: &mut Host) {
    let _resolver = start_resolver(host);
    let [certificate, key] = super::make_certificate(host);
    let folder = host.file("");
    let folder = text(&folder);
    let config = format!(
        "daemon off;\nuser root;\npid {folder}/nginx.pid;\nerror_log stderr notice;\nevents {{}}\n\
         http {{ access_log off; client_body_temp_path {folder}/t; proxy_temp_path {folder}/t;\n\
         fastcgi_temp_path {folder}/t; uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t;\n\
         server {{ listen {OUTSIDE_V4}:80; listen {OUTSIDE_V4}:443 ssl http2;\n\
         ssl_certificate {certificate}; ssl_certificate_key {key};\n\
         location / {{ return 200 \"$host $server_protocol\\n\"; }} }} }}\n"
    );
    let config = host.write("nginx.conf", config);
    let mut nginx = Process::start(host.outside().command("nginx", ["-c", text(&config)]));
    nginx.wait_for_text("start worker process");
    let policy = "[egress]\n[[egress.rule]]\nid = 'index'\naction = 'allow'\n\
                  to = 'index.example'\nports = ['tcp/80', 'tcp/443']\n";
    let policy = host.write("policy.toml", policy);
    let options = ["--egress", text(&policy)];
    let (output, records) = run_script(host, options, SCRIPT, &[OUTSIDE_V4]);
    assert_eq!(output.stdout, RESULTS, "{}", output.stderr);
    assert_refused(&records, "files.example");
    let other = "the name in its greeting has another address";
    for port in [80, 443] {
        assert_recorded(
            &records,
            &json!({
                "verdict": "deny", "rule": "default", "reason": other, "names": ["index.example"],
                "greeting": "files.example", "address": OUTSIDE_V4, "port": port,
            }),
        );
    }
    for (reason, port) in [("its greeting names no host", 80), ("no rule allows it", 3128)] {
        assert_recorded(&records, &json!({"verdict": "deny", "reason": reason, "port": port}));
    }
}
