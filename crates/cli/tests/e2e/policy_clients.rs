//! Real clients under a policy: git and package managers, as in `docs/policy.md`; aioquic and curl.
//!
//! Git and package managers get what they want from a site outside, first while the policy is
//! learned, then with that policy. With a narrower one they fail at once, and the audit says what
//! was denied, and why.

mod curl;
mod quic;

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::programs::sshd;
use super::support::{Host, OUTSIDE_V4, Output, Process, Test, Towpath, command, run};

pub(crate) fn tests() -> Vec<Test> {
    let https = &["nsenter", "python3", "openssl", "dnsmasq", "git"];
    let ssh = &["nsenter", "dnsmasq", "git", "ssh", "sshd", "ssh-keygen"];
    let git = [
        Test::new("policy_git_https", https, git_https),
        Test::new("policy_git_ssh", ssh, git_ssh).needs_root(),
    ];
    let managers = MANAGERS.iter().map(|manager| {
        let name = format!("policy_{}", manager.kind);
        Test::new(name, manager.programs, |host| get_package(host, manager))
    });
    let others = [quic::tests(), curl::tests()].into_iter().flatten();
    git.into_iter().chain(managers).chain(others).collect()
}

/// A package manager, and what it says of what is denied.
struct Manager {
    kind: &'static str,
    programs: &'static [&'static str],
    /// The file in the package.
    hello: &'static str,
    /// What it says of an address, and of a name.
    said: [&'static str; 2],
}

const MANAGERS: [Manager; 4] = [
    Manager {
        kind: "pip",
        programs: &["nsenter", "python3", "pip3", "openssl", "dnsmasq"],
        hello: "print('hello')\n",
        said: ["No route to host", "Temporary failure in name resolution"],
    },
    Manager {
        kind: "npm",
        programs: &["nsenter", "python3", "npm", "openssl", "dnsmasq"],
        hello: "console.log('hello')\n",
        said: ["EHOSTUNREACH", "EAI_AGAIN"],
    },
    Manager {
        kind: "cargo",
        programs: &["nsenter", "python3", "cargo", "openssl", "dnsmasq"],
        hello: "//! hello\n",
        said: ["Could not connect", "Could not resolve host"],
    },
    Manager {
        kind: "apt",
        programs: &["nsenter", "python3", "apt-get", "dpkg-deb", "openssl", "dnsmasq"],
        hello: "hello\n",
        said: ["No route to host", "Temporary failure resolving"],
    },
];

/// Goal: a package manager gets a package whose index and files are on two hosts; what no rule
/// allows is denied at once, and legibly.
fn get_package(host: &mut Host, manager: &Manager) {
    let (_resolver, _site) = (start_resolver(host), start_site(host));
    let program = host.write("packages.py", include_str!("policy_clients/packages.py"));
    run("python3", [text(&program), manager.kind, text(&host.file("root"))]);
    host.write("get.sh", include_str!("policy_clients/get.sh"));
    let script = format!("sh get.sh {} $1", manager.kind);
    let records = learn_and_repeat(host, &script, "index.example", manager.hello);
    for name in ["index.example", "files.example"] {
        assert_recorded(&records, &json!({"verdict": "allow", "greeting": name}));
    }
    let rule = "id = 'packages'\nto = 'index.example'\nports = 'tcp/443'";
    let records = run_denied(host, rule, &script, &["index.example"], manager.said, "");
    assert_recorded(
        &records,
        &json!({
            "verdict": "allow", "rule": "packages", "names": ["index.example"],
            "greeting": "index.example", "transport": "tcp", "address": OUTSIDE_V4, "port": 443,
        }),
    );
    assert_refused(&records, "files.example");
}

/// Goal: git clones and pushes over HTTPS where a rule allows the host.
fn git_https(host: &mut Host) {
    let (_resolver, site) = (start_resolver(host), start_site(host));
    make_repository(host);
    let said = ["Failed to connect", "Could not resolve host"];
    let script = clone_and_push("https://$1/git/repo.git");
    for records in clone_with_policies(host, &script, "ports = 'tcp/443'", said) {
        assert_recorded(
            &records,
            &json!({
                "verdict": "allow", "names": ["git.example"], "greeting": "git.example",
                "transport": "tcp", "port": 443,
            }),
        );
    }
    assert!(!site.stdout().contains("host other.example"), "{}", site.stdout());
}

/// Goal: git clones and pushes over SSH, whose greeting has no name, where a rule asks for none.
fn git_ssh(host: &mut Host) {
    let _resolver = start_resolver(host);
    let words = sshd(host, &format!("{OUTSIDE_V4}:22"));
    let [program, words @ ..] = words.each_ref().map(String::as_str);
    let mut server = Process::start(host.outside().command(program, words));
    server.wait_for_text("Server listening");
    make_repository(host);
    let ssh = "ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=no -o LogLevel=ERROR \
               -o UserKnownHostsFile=/dev/null -i $PWD/user_key";
    let script = clone_and_push("ssh://root@$1$PWD/root/repo.git");
    let script = format!("GIT_SSH_COMMAND=\"{ssh}\" && export GIT_SSH_COMMAND && {script}");
    let said = ["No route to host", "Could not resolve host"];
    for records in clone_with_policies(host, &script, "ports = 'tcp/22'\ncheck = 'dns'", said) {
        assert_recorded(
            &records,
            &json!({
                "verdict": "allow", "names": ["git.example"], "transport": "tcp", "port": 22,
            }),
        );
    }
}

/// Makes a repository `root/repo.git` with a file that says hello.
fn make_repository(host: &Host) {
    let script = "mkdir -p root && git init -q -b main work && echo hello >work/text && \
                  git -C work add . && \
                  git -C work -c user.name=a -c user.email=a@a.example commit -qm one && \
                  git clone -q --bare work root/repo.git";
    let [program, words @ ..] = &clean_shell(host, script, &[])[..] else { unreachable!() };
    run(text(program.as_ref()), words);
}

/// Returns a script that clones from `url` on the host `$1`, prints the file, and pushes a commit.
fn clone_and_push(url: &str) -> String {
    format!(
        "rm -rf copy && git clone -q {url} copy && cat copy/text && cd copy && \
         git -c user.name=a -c user.email=a@a.example commit -q --allow-empty -m more && \
         git push -q"
    )
}

/// Clones while the policy is learned and with that one; then with a rule for git.example, from
/// another name and from that one. Returns both audits.
fn clone_with_policies(host: &Host, script: &str, ports: &str, said: [&str; 2]) -> [Vec<Value>; 2] {
    let learned = learn_and_repeat(host, script, "git.example", "hello\n");
    let rule = format!("id = 'git'\nto = 'git.example'\n{ports}");
    let names = ["other.example", "git.example"];
    let records = run_denied(host, &rule, script, &names, said, "hello\n");
    assert_recorded(&records, &json!({"verdict": "allow", "rule": "git"}));
    assert_refused(&records, "other.example");
    [learned, records]
}

/// Runs a script while the policy is learned, and again with that policy. Each time it prints
/// `printed`.
fn learn_and_repeat(host: &Host, script: &str, word: &str, printed: &str) -> Vec<Value> {
    let learned = host.file("learned.toml");
    let (output, _) = run_script(host, ["--learn", text(&learned)], script, &[word]);
    assert_eq!(output.stdout, printed, "{}", output.stderr);
    let (output, records) = run_script(host, ["--egress", text(&learned)], script, &[word]);
    let policy = fs::read_to_string(learned).expect("the policy");
    assert_eq!(output.stdout, printed, "{}\n{policy}", output.stderr);
    let denied = records.iter().find(|record| record["verdict"] == "deny");
    assert!(denied.is_none(), "{denied:?}\n{policy}");
    records
}

/// Runs a script with a policy that has one rule: for the address of the outside, then for each of
/// `names`. It says that the address is prohibited and a name is refused, and prints `printed`.
fn run_denied(
    host: &Host,
    rule: &str,
    script: &str,
    names: &[&str],
    said: [&str; 2],
    printed: &str,
) -> Vec<Value> {
    let policy = format!("[egress]\n[[egress.rule]]\naction = 'allow'\n{rule}\n");
    let policy = host.write("policy.toml", policy);
    let prohibited = said[0];
    // Again: the kernel can lose the error of a connect that does not wait, and report it as made.
    let script = format!(
        "for again in 1 2 3 4 5; do\n({script}) 2>&1 | grep -F '{prohibited}' >&2 && break\ndone\n\
         shift\nfor name; do\nset -- $name\n({script})\ndone"
    );
    let words: Vec<&str> = [OUTSIDE_V4].into_iter().chain(names.iter().copied()).collect();
    let (output, records) = run_script(host, ["--egress", text(&policy)], &script, &words);
    assert_eq!(output.stdout, printed, "{}", output.stderr);
    for said in said {
        assert!(output.stderr.contains(said), "no {said} in {}", output.stderr);
    }
    assert_recorded(
        &records,
        &json!({
            "verdict": "deny", "rule": "default", "reason": "no rule allows it", "names": [],
            "transport": "tcp", "address": OUTSIDE_V4,
        }),
    );
    records
}

/// Asserts that the policy has refused a question for this name.
#[track_caller]
fn assert_refused(records: &[Value], name: &str) {
    assert_recorded(
        records,
        &json!({
            "verdict": "deny", "rule": "default", "reason": "no rule allows it", "names": [name],
            "transport": "dns",
        }),
    );
}

/// Asserts that one of the records has these fields.
#[track_caller]
fn assert_recorded(records: &[Value], expected: &Value) {
    let fields = expected.as_object().expect("fields");
    let has = |record: &Value| fields.iter().all(|(name, value)| record.get(name) == Some(value));
    assert!(records.iter().any(has), "no {expected} in {records:#?}");
}

/// Runs `script` with `words` and with these options for the policy; returns its output, and the
/// records of the audit.
fn run_script(
    host: &Host,
    options: [&str; 2],
    script: &str,
    words: &[&str],
) -> (Output, Vec<Value>) {
    let audit = host.file("audit.jsonl");
    let _ = fs::remove_file(&audit);
    let options = ["--dns", "127.0.0.1", "--audit", text(&audit)].into_iter().chain(options);
    let output = Towpath::new(options).run(clean_shell(host, script, words));
    let lines = fs::read_to_string(audit).expect("the audit");
    let records = lines.lines().map(|line| serde_json::from_str(line).expect("an object"));
    (output, records.collect())
}

/// Returns the command of a script in the test's folder, without the settings of the user that
/// programs find in the environment or at home.
fn clean_shell(host: &Host, script: &str, words: &[&str]) -> Vec<OsString> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    // Cargo may be the one of rustup.
    let rustup = std::env::var("RUSTUP_HOME").unwrap_or(variable("HOME") + "/.rustup");
    let at = |name| text(&host.file(name)).to_owned();
    let settings = [
        ("PATH", variable("PATH")),
        ("HOME", at("")),
        ("RUSTUP_HOME", rustup),
        ("RES_OPTIONS", "attempts:5".into()),
        ("PIP_CONFIG_FILE", "/dev/null".into()),
        ("GIT_CONFIG_NOSYSTEM", "1".into()),
        ("GIT_SSL_CAINFO", at("cert.pem")),
    ];
    let settings = settings.map(|(name, value)| format!("{name}={value}"));
    let script = format!("cd {}\n{script}", at(""));
    let shell = ["sh", "-c", &script, "sh"].map(str::to_owned);
    let env = ["env", "-i"].map(str::to_owned);
    let words = words.iter().map(|word| (*word).to_owned());
    env.into_iter().chain(settings).chain(shell).chain(words).map(OsString::from).collect()
}

/// Names of the machine outside. All have one address, and one certificate.
const NAMES: [&str; 4] = ["index.example", "files.example", "git.example", "other.example"];

/// Starts the resolver of the host, which knows [`NAMES`].
fn start_resolver(host: &Host) -> Process {
    let known = NAMES.map(|name| format!("host-record={name},{OUTSIDE_V4}\n")).concat();
    let config = format!(
        "port=53\nbind-interfaces\nlisten-address=127.0.0.1\nno-resolv\nno-hosts\npid-file=\n\
         log-facility=-\nlocal-ttl=0\n{known}"
    );
    let file = host.write("dnsmasq.conf", config);
    let mut resolver = Process::start(command("dnsmasq", ["--no-daemon", "-C", text(&file)]));
    resolver.wait_for_text("started");
    resolver
}

/// Starts a site that serves the folder `root` over TLS; see `policy_clients/site.py`.
fn start_site(host: &mut Host) -> Process {
    let [certificate, key] = make_certificate(host);
    let root = host.file("root");
    fs::create_dir_all(&root).expect("a folder");
    let program = host.write("site.py", include_str!("policy_clients/site.py"));
    let words = [text(&program), OUTSIDE_V4, &certificate, &key, text(&root)];
    let mut site = Process::start(host.outside().command("python3", words));
    site.wait_for_text("ready");
    site
}

/// Makes a certificate for [`NAMES`], which is its own authority, and its key; returns the files.
fn make_certificate(host: &Host) -> [String; 2] {
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| text(&host.file(name)).to_owned());
    let names = format!("subjectAltName={}", NAMES.map(|name| format!("DNS:{name}")).join(","));
    let kind = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=x";
    let files = ["-addext", &names, "-keyout", &key, "-out", &certificate];
    run("openssl", kind.split(' ').chain(files));
    [certificate, key]
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}
