//! The policy for flows to the outside: what gets out, what does not, and which error the program
//! gets.

use std::ffi::OsString;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::native;
use super::support::{
    Host, OUTSIDE_V4, OUTSIDE_V6, Output, Process, Server, THIS_V4, TOWPATH, Test, Towpath,
    command, echo, retry,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("egress_attempts", &["python3", "dnsmasq"], |host| drop(attempts(host, &[]))),
        Test::new("egress_attempts_native", &["python3", "dnsmasq"], attempts_native)
            .unless(native::unsupported),
        Test::new("egress_replaced", &["python3", "dnsmasq"], replaced),
        Test::new("egress_options", &["python3", "dnsmasq"], options),
        Test::new("egress_bounded", &["python3", "dnsmasq"], bounded),
        Test::new("egress_delayed", &["python3"], delayed),
        Test::new("egress_quota", &["python3"], quota),
        Test::new("egress_audit", &["python3"], audited),
        Test::new("egress_refused_at_start", &[], refused_at_start),
        Test::new(
            "egress_clients",
            &["nsenter", "nginx", "curl", "git", "openssl", "dnsmasq"],
            clients,
        ),
        Test::new("egress_learned", &["python3", "dnsmasq"], learned),
    ]
}

/// Everything that is tried, and what becomes of it.
const RESULTS: &str = "\
direct address: prohibited
name that no rule has: refused, blocked
name of a resolver: refused, blocked
long name: refused, blocked
name with other characters: refused, blocked
name below a name: refused, blocked
reverse name: refused, blocked
rebinding: refused, blocked
text: code 0, 0 records
service: code 0, 1 records
name: code 0, 1 records
address of a name: passed
hello and more: passed
hello in records: passed
hello in segments: passed
name of another host: reset
name that was not asked for: reset
no name: reset
hidden name: reset
second hello: reset
other protocol: reset
request: passed
request in segments: passed
host of another: reset
two hosts: reset
no host: reset
target of another: reset
tunnel: reset
HTTP/2: reset
other port: prohibited
alias: code 0, 2 records
address of an alias: passed
target of an alias: reset
name without greeting: code 0, 1 records
address without greeting: passed
network: passed
network of the host: prohibited
mapped address: prohibited
translated address: prohibited
IPv6: prohibited
metadata: silence
private address: prohibited
loopback of the host: prohibited
other resolver: prohibited
other resolver by TCP: prohibited
no question by TCP: reset
questions by TCP: 0 5 5 0
resolver by TLS: prohibited
datagrams: prohibited
datagrams to another port: prohibited
name for QUIC: code 0, 1 records
QUIC: passed
addresses of a long answer: 100
echo: prohibited
";

const POLICY: &str = r#"
[egress]
default = "deny"

[[egress.rule]]
id = "web"
action = "allow"
to = ["a.example", "*.b.example", "example.com"]
ports = ["tcp/443", "tcp/80", "udp/443"]

[[egress.rule]]
id = "git"
action = "allow"
to = "git.example"
ports = "tcp/22"
check = "dns"

[[egress.rule]]
id = "database"
action = "allow"
to = "192.0.2.0/24"
ports = "tcp/5432"
"#;

/// A record for a service: HTTP/2, an address, and a key for hidden names.
const SERVICE: &str = "00010000010003026832000400047f00000100050008000668696464656e";

/// Servers outside that echo, on the ports that are tried.
struct Outside {
    _servers: Vec<Server>,
    _datagrams: Datagrams,
    _resolver: Process,
}

/// Echoes datagrams until dropped.
struct Datagrams {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Datagrams {
    fn start(socket: UdpSocket) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = stopped.clone();
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        let thread = thread::spawn(move || {
            let mut buffer = [0; 2048];
            // Relaxed: the thread only ends a little later.
            while !stop.load(Ordering::Relaxed) {
                if let Ok((count, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(&buffer[..count], from);
                }
            }
        });
        Self { stopped, thread: Some(thread) }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Outside {
    fn start(host: &mut Host) -> Self {
        Self::start_without(host, &[])
    }

    /// Starts those on other ports.
    fn start_without(host: &mut Host, ports: &[u16]) -> Self {
        let address: IpAddr = OUTSIDE_V4.parse().expect("an address");
        let (servers, datagrams) = host.outside().run(|| {
            let start = |port| Server::start_at((address, port).into(), echo);
            let all = [22, 53, 80, 443, 5432, 8080].into_iter();
            let servers = all.filter(|port| !ports.contains(port)).map(start);
            (servers.collect(), UdpSocket::bind((address, 443)).expect("bind"))
        });
        let record = |last| format!("host-record=many.b.example,192.0.2.{last}\n");
        let many: String = (101..=200).map(record).collect();
        let config = format!(
            "port=53\nbind-interfaces\nlisten-address=127.0.0.1\nno-resolv\nno-hosts\npid-file=\n\
             log-facility=-\nlocal-ttl=0\nhost-record=a.example,{OUTSIDE_V4}\n\
             host-record=git.example,{OUTSIDE_V4}\nhost-record=evil.example,{OUTSIDE_V4}\n\
             host-record=example.com,{OUTSIDE_V4}\nhost-record=rebind.b.example,10.9.9.9\n\
             cname=alias.b.example,evil.example\ntxt-record=a.example,secret\n\
             dns-rr=a.example,65,{SERVICE}\n{many}"
        );
        let file = host.write("dnsmasq.conf", config);
        let file = format!("--conf-file={}", file.to_str().expect("text"));
        let mut resolver = Process::start(command("dnsmasq", ["--no-daemon", &file]));
        resolver.wait_for_text("started");
        Self { _servers: servers, _datagrams: Datagrams::start(datagrams), _resolver: resolver }
    }
}

fn program(host: &Host) -> PathBuf {
    host.write("program.py", include_str!("egress/program.py"))
}

/// Goal: what a policy does not allow does not get out, whatever the program tries, and the program
/// learns it at once. What it allows does. Each flow is in the audit.
/// Method: a program tries some fifty ways; see `egress/program.py`.
fn attempts(host: &mut Host, others: &[&str]) -> Output {
    let _outside = Outside::start(host);
    let _own = Server::start_at(format!("{THIS_V4}:5432").parse().expect("an address"), echo);
    let policy = host.write("policy.toml", POLICY);
    let audit = host.file("audit.jsonl");
    let program = program(host);
    let options: Vec<OsString> = [
        "--dns".into(),
        "127.0.0.1".into(),
        "--map-host-loopback".into(),
        "10.0.2.2".into(),
        "--egress".into(),
        policy.into(),
        "--audit".into(),
        audit.clone().into(),
    ]
    .into();
    let options = options.into_iter().chain(others.iter().map(OsString::from));
    let words = [OUTSIDE_V4, OUTSIDE_V6, THIS_V4, QUIC].map(OsString::from);
    let python = ["python3".into(), program.into()].into_iter().chain(words);
    let output = Towpath::new(options).run(python);
    assert_eq!(output.stdout, RESULTS, "{}", output.stderr);
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(audit).expect("the audit");
    let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
    assert!(text.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{text}");
    assert_eq!(count(r#""verdict":"allow""#), 11, "{text}");
    assert_eq!(count(r#""verdict":"end","rule":"web""#), 8, "{text}");
    assert_eq!(count(r#""rule":"git","transport":"tcp","address":"192.0.2.2""#), 2, "{text}");
    assert_eq!(count("its greeting names no host"), 7, "{text}");
    assert_eq!(count("its greeting hides the name of the host"), 1, "{text}");
    assert_eq!(count("the name in its greeting has another address"), 6, "{text}");
    assert_eq!(count("a metadata service of a cloud"), 0, "no rule allows it anyway: {text}");
    assert_eq!(count(r#""reason":"it leads to an address of this host"#), 1, "{text}");
    assert!(output.stderr.contains("egress rule       web: 9 allowed"), "{}", output.stderr);
    output
}

/// Goal: all attempts end the same way with native sockets, which some connections get.
fn attempts_native(host: &mut Host) {
    let output = attempts(host, &["--native"]);
    let audit = std::fs::read_to_string(host.file("audit.jsonl")).expect("the audit");
    let native = audit.lines().filter(|line| line.contains(r#""path":"native""#));
    let allowed = native.filter(|line| line.contains(r#""verdict":"allow""#));
    let by_rule = |rule: &str| {
        let rule = format!(r#""rule":"{rule}""#);
        allowed.clone().filter(|line| line.contains(&rule)).count()
    };
    // Those by address, and by a name without a greeting.
    assert_eq!(["web", "git", "database"].map(by_rule), [0, 1, 1], "{audit}");
    assert!(output.stderr.contains("not native        policy "), "{}", output.stderr);
}

/// Goal: another policy applies at once, however long it is: open flows that it denies end, the
/// others continue.
fn replaced(host: &mut Host) {
    let _outside = Outside::start(host);
    let policy = host.write("policy.toml", POLICY);
    let rule = |number| {
        format!(
            "\n[[egress.rule]]\naction = 'allow'\nto = ['host-{number}.example', '::{number}']\n"
        )
    };
    let without_git = POLICY.replace("git.example", "other.example");
    let without_git = without_git + &(0..1500).map(rule).collect::<String>();
    let second = host.write("second.toml", without_git);
    let wrong = host.write("wrong.toml", "[egress]\ndefault = 'x'\n");
    let script = "import socket, sys\n\
                  socket.gethostbyname('git.example')\n\
                  to = [(sys.argv[1], port) for port in (22, 5432)]\n\
                  streams = [socket.create_connection(one, 30) for one in to]\n\
                  for stream in streams: stream.sendall(b'x'); stream.recv(1)\n\
                  print('ready', flush=True)\n\
                  sys.stdin.read()\n\
                  def tell(stream):\n    \
                  try: stream.sendall(b'y'); return stream.recv(1)\n    \
                  except OSError as error: return type(error).__name__\n\
                  print(*map(tell, streams), flush=True)\n";
    let script = host.write("script.py", script);
    let options: Vec<OsString> =
        ["--dns".into(), "127.0.0.1".into(), "--egress".into(), policy.into()].into();
    let towpath = Towpath::new(options).found_by(host);
    let words: [OsString; 3] = ["python3".into(), script.into(), OUTSIDE_V4.into()];
    let mut process = Process::start_held(towpath.command(words));
    process.wait_for_text("ready");
    let pid = process.pid().to_string();
    let set = |file: &PathBuf| {
        let file = file.to_str().expect("text");
        let mut set = command(TOWPATH, ["policy", "set", &pid, file]);
        set.env("XDG_RUNTIME_DIR", host.file(""));
        Process::start(set).finish()
    };
    let refused = set(&wrong);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("wrong.toml:2:1: 'default'"), "{refused:?}");
    set(&second).success();
    process.release();
    let output = process.finish();
    assert!(output.stdout.contains("ConnectionResetError b'y'"), "{output:?}");
    assert!(output.stderr.contains("policy 2"), "{output:?}");
}

/// Goal: `--allow` and `--deny` are rules, of which those that deny come first.
fn options(host: &mut Host) {
    let _outside = Outside::start(host);
    let script = "import socket, sys\n\
                  def get(name):\n    \
                  try:\n        \
                  with socket.create_connection((name, 80), 30) as stream:\n            \
                  request = f'GET / HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n'.encode()\n            \
                  stream.sendall(request); return stream.recv(4)\n    \
                  except OSError as error: return type(error).__name__\n\
                  print(*map(get, sys.argv[1:]))\n";
    let script = host.write("script.py", script);
    let names = ["a.example", "alias.b.example", "git.example", "evil.example"];
    let run = |given: &[&str]| {
        let options = ["--dns", "127.0.0.1"].iter().chain(given).copied();
        let words = ["python3".into(), script.clone().into_os_string()];
        let words = words.into_iter().chain(names.map(OsString::from));
        Towpath::new(options).run(words).success()
    };
    let all = "b'GET ' b'GET ' b'GET ' b'GET '\n";
    assert_eq!(run(&["--allow", "*:80"]), all);
    assert_eq!(run(&["--allow", "*:443"]).matches("OSError").count(), 4);
    let some = run(&["--allow", "*.b.example", "--allow", "a.example:80", "--deny", "a.example"]);
    assert_eq!(some, "gaierror b'GET ' gaierror gaierror\n");
    let most = run(&["--deny", "evil.example"]);
    assert_eq!(most, "b'GET ' b'GET ' b'GET ' gaierror\n");
}

/// Goal: a rule bounds the flows of a guest, those that end make room, and the audit has the bytes
/// of each flow, also of one that is open when the program ends.
fn bounded(host: &mut Host) {
    let _outside = Outside::start(host);
    let policy = format!(
        "[egress]\nnew-flows = 1000\n[[egress.rule]]\nid = 'few'\naction = 'allow'\n\
         to = '{OUTSIDE_V4}'\nports = ['tcp/5432', 'udp/443']\nflows = 3\n"
    );
    let policy = host.write("policy.toml", policy);
    let audit = host.file("audit.jsonl");
    let script = "import os, socket, sys, time\n\
                  def begin():\n    \
                  try: return socket.create_connection((sys.argv[1], 5432), 30)\n    \
                  except OSError as error: print(os.strerror(error.errno))\n\
                  datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                  for _ in range(3):\n    \
                  datagrams.sendto(b'abcd', (sys.argv[1], 443)); datagrams.recv(9)\n\
                  first, second = begin(), begin()\n\
                  begin()\n\
                  first.sendall(b'hello'); assert first.recv(5, socket.MSG_WAITALL) == b'hello'\n\
                  first.shutdown(socket.SHUT_WR); assert not first.recv(1)\n\
                  for _ in range(1000):\n    \
                  third = begin()\n    \
                  if third: break\n    \
                  time.sleep(0.01)\n\
                  print('again' if third else 'never')\n";
    let script = host.write("script.py", script);
    let options: [OsString; 4] =
        ["--egress".into(), policy.into(), "--audit".into(), audit.clone().into()];
    let words: [OsString; 3] = ["python3".into(), script.into(), OUTSIDE_V4.into()];
    let output = Towpath::new(options).run(words);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.starts_with("No route to host\n"), "{output:?}");
    assert!(output.stdout.ends_with("again\n"), "{output:?}");
    let text = std::fs::read_to_string(audit).expect("the audit");
    let ends: Vec<_> = text.lines().filter(|line| line.contains(r#""verdict":"end""#)).collect();
    assert_eq!(ends.len(), 4, "{text}");
    let has = |parts: [&str; 2]| ends.iter().any(|end| parts.iter().all(|part| end.contains(part)));
    assert!(has([r#""transport":"udp""#, r#""bytes_out":12,"bytes_in":12"#]), "{text}");
    assert!(has([r#""transport":"tcp""#, r#""bytes_out":5,"bytes_in":5"#]), "{text}");
    assert!(text.contains(r#""reason":"the guest has too many flows at once""#), "{text}");
}

/// Sends a megabyte to a server that echoes it, and prints how much of it came back whole; tries
/// another connection afterwards.
const ECHOED: &str = "import os, socket, sys, threading\n\
                      data, received = os.urandom(1 << 20), b''\n\
                      stream = socket.create_connection((sys.argv[1], 5432), 60)\n\
                      def send():\n    \
                      try: stream.sendall(data); stream.shutdown(socket.SHUT_WR)\n    \
                      except OSError: pass\n\
                      sender = threading.Thread(target=send)\n\
                      sender.start()\n\
                      try:\n    \
                      while part := stream.recv(1 << 16): received += part\n\
                      except OSError: pass\n\
                      sender.join()\n\
                      print(len(received), data.startswith(received))\n\
                      try: socket.create_connection((sys.argv[1], 5432)); print('again')\n\
                      except OSError as error: print(os.strerror(error.errno))\n";

/// Runs [`ECHOED`] with a rule that has these bounds; returns what it prints, what towpath reports,
/// and the audit.
fn echoed(host: &mut Host, bounds: &str, others: &[&str]) -> (String, String, String) {
    let address: IpAddr = OUTSIDE_V4.parse().expect("an address");
    let _server = host.outside().run(|| Server::start_at((address, 5432).into(), echo));
    let policy = format!(
        "[egress]\n[[egress.rule]]\nid = 'echo'\naction = 'allow'\nto = '{OUTSIDE_V4}'\n{bounds}\n"
    );
    let policy = host.write("policy.toml", policy);
    let (audit, script) = (host.file("audit.jsonl"), host.write("script.py", ECHOED));
    let options: [OsString; 4] =
        ["--egress".into(), policy.into(), "--audit".into(), audit.clone().into()];
    let options = options.into_iter().chain(others.iter().map(OsString::from));
    let words: [OsString; 3] = ["python3".into(), script.into(), OUTSIDE_V4.into()];
    let output = Towpath::new(options).run(words);
    assert!(output.status.success(), "{output:?}");
    let audit = std::fs::read_to_string(audit).expect("the audit");
    (output.stdout, output.stderr, audit)
}

/// Goal: a bandwidth delays a stream and loses nothing of it, each way, also with several workers.
/// Method: the kernel's TCP on both sides, and what towpath reports; no time is measured.
fn delayed(host: &mut Host) {
    for workers in ["1", "2"] {
        let bounds = "bandwidth-out = '64Mbit'\nbandwidth-in = '64Mbit'";
        let (printed, reported, _) = echoed(host, bounds, &["--workers", workers]);
        assert_eq!(printed, "1048576 True\nagain\n", "{reported}");
        let bound = reported.lines().find_map(|line| line.strip_prefix("egress bound      echo: "));
        let delayed = bound.and_then(|line| line.split_once(" bytes delayed, 0 datagrams dropped"));
        let delayed = delayed.and_then(|(bytes, _)| bytes.parse::<u64>().ok());
        // The buckets hold 160,000 bytes each, and earn more meanwhile.
        assert!(delayed.is_some_and(|bytes| bytes > 0), "{reported}");
    }
}

/// Goal: no more bytes pass than a quota has, both ways together; then the connection is reset, the
/// audit says why, and no other begins.
fn quota(host: &mut Host) {
    let (printed, reported, audit) = echoed(host, "quota = 300000", &[]);
    let (received, then) = printed.split_once(" True\n").expect("whole as far as it came");
    let received: u64 = received.parse().expect("a number");
    // What comes back was sent before, and both count.
    assert!(received <= 150_000, "{received}");
    assert_eq!(then, "No route to host\n", "{reported}");
    let reason = r#""reason":"the quota of bytes is used up""#;
    let end = audit.lines().find(|line| line.contains(r#""verdict":"end""#)).expect("an end");
    assert!(end.contains(reason) && !end.contains(r#""bytes_out":0,"#), "{audit}");
    let denied = audit.lines().filter(|line| line.contains(r#""verdict":"deny""#));
    assert!(denied.clone().all(|line| line.contains(reason)) && denied.count() > 0, "{audit}");
    assert!(reported.contains("flows beyond the quota"), "{reported}");
}

/// Goal: a full audit is rotated, and one that was moved is opened again, by a confined process; no
/// record is missing.
fn audited(host: &mut Host) {
    let id = "a".repeat(64);
    let policy = format!("[egress]\n[[egress.rule]]\nid = '{id}'\naction = 'deny'\n");
    let policy = host.write("policy.toml", policy);
    // Each record has more than 160 bytes, so the first 450 fill a file. No timeouts: the kernel
    // can lose the error of a connect that does not wait, and report it as made.
    let script = "import socket, sys\n\
                  def denied():\n    \
                  try: socket.create_connection((sys.argv[1], 5432))\n    \
                  except OSError: return 1\n\
                  print('ready', sum(denied() for _ in range(450)), flush=True)\n\
                  sys.stdin.read()\n\
                  print(denied(), flush=True)\n";
    let script = host.write("script.py", script);
    let audit = host.file("audit.jsonl");
    let options: Vec<OsString> = ["--egress".into(), policy.into(), "--audit".into()]
        .into_iter()
        .chain([audit.clone().into(), "--audit-size".into(), "64K".into()])
        .collect();
    let towpath = Towpath::new(options).found_by(host);
    let words: [OsString; 3] = ["python3".into(), script.into(), OUTSIDE_V4.into()];
    let mut process = Process::start_held(towpath.command(words));
    process.wait_for_text("ready 450");
    let rotated = host.file("audit.jsonl.1");
    let lines =
        |path: &PathBuf| std::fs::read_to_string(path).map_or(0, |text| text.lines().count());
    // The thread that writes may be behind.
    retry("all lines of the audit", || (lines(&rotated) + lines(&audit) >= 450).then_some(()));
    let moved = host.file("moved.jsonl");
    std::fs::rename(&audit, &moved).expect("the audit");
    let pid = process.pid().to_string();
    let mut reopen = command(TOWPATH, ["policy", "reopen", &pid]);
    reopen.env("XDG_RUNTIME_DIR", host.file(""));
    Process::start(reopen).finish().success();
    process.release();
    let output = process.finish();
    assert!(output.status.success(), "{output:?}");
    let [first, second, last] = [rotated, moved, audit].map(|path| {
        let text = std::fs::read_to_string(&path);
        text.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    });
    assert!(first.len() <= 64 << 10 && !last.is_empty(), "{} {last}", first.len());
    let all = [first, second, last].concat();
    assert!(all.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{all}");
    let denied = all.lines().filter(|line| line.contains(r#""verdict":"deny""#)).count();
    // A connection may have been denied more than once, if its error got lost.
    let reported = output.stderr.lines().find_map(|line| line.split_once(": 0 allowed, "));
    let reported = reported.and_then(|(_, rest)| rest.strip_suffix(" denied"));
    assert_eq!(reported, Some(denied.to_string().as_str()), "{}", output.stderr);
    assert!(denied >= 451 && !all.contains(r#""verdict":"lost""#), "{denied}");
}

/// Goal: a policy that is not valid starts nothing, and the message says what is wrong and where.
fn refused_at_start(host: &mut Host) {
    let wrong = host.write("wrong.toml", "[egress]\n[[egress.rule]]\naction = 'permit'\n");
    let wrong = wrong.to_str().expect("text");
    for (options, expected) in [
        (&["--egress", wrong][..], "wrong.toml:3:1: 'action': 'permit': expected allow or deny"),
        (&["--egress", "/nowhere"], "cannot read /nowhere"),
        (&["--allow", "a b"], "option --allow 'a b'"),
        (&["--allow", "a", "--egress", wrong], "cannot be used with"),
        (&["--audit", "/tmp/x"], "option --audit: there is no policy"),
        (&["--allow", "a", "--audit", "/nowhere/x"], "cannot open /nowhere/x for writing"),
    ] {
        let output = Towpath::new(options.iter().copied()).run(["echo", "started"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stderr.contains(expected), "{output:?}");
        assert!(!output.stdout.contains("started"), "{output:?}");
    }
}

/// Goal: real clients work where a rule allows their host, and fail at once where none does.
/// Method: curl, with HTTP/1.1 and HTTP/2, and git get files from nginx, over TLS.
fn clients(host: &mut Host) {
    let _outside = Outside::start_without(host, &[443, 80]);
    let folder = host.file("");
    let folder = folder.to_str().expect("text");
    let prepare = format!(
        "cd {folder} && mkdir site && echo hello > site/index.html && \
         openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
           -subj /CN=a.example -addext subjectAltName=DNS:a.example,DNS:evil.example \
           -keyout key.pem -out cert.pem 2>/dev/null && \
         git init -q work && cp site/index.html work && git -C work add . && \
         git -C work -c user.name=a -c user.email=a@b commit -qm one && \
         git clone -q --bare work site/repo.git && \
         git --git-dir site/repo.git update-server-info && chmod -R a+rX {folder}"
    );
    Process::start(command("sh", ["-c", &prepare])).finish().success();
    let config = format!(
        "daemon off;\nuser root;\npid {folder}/nginx.pid;\nerror_log stderr;\nevents {{}}\n\
         http {{ access_log off; client_body_temp_path {folder}/t; proxy_temp_path {folder}/t;\n\
         fastcgi_temp_path {folder}/t; uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t;\n\
         server {{ listen {OUTSIDE_V4}:443 ssl http2; ssl_certificate {folder}/cert.pem;\n\
         ssl_certificate_key {folder}/key.pem; root {folder}/site; }} }}\n"
    );
    let config = host.write("nginx.conf", config);
    let config = config.to_str().expect("text").to_owned();
    let _nginx = Process::start(host.outside().command("nginx", ["-c", &config]));
    let get = "curl -sS --cacert cert.pem --retry 20 --retry-connrefused --retry-delay 1";
    let script = format!(
        "cd {folder}; {get} --http1.1 https://a.example/; {get} --http2 https://a.example/; \
         GIT_SSL_CAINFO=cert.pem git clone -q https://a.example/repo.git copy && \
         cat copy/index.html; \
         curl -sS --cacert cert.pem --connect-to a.example:443:{OUTSIDE_V4}:443 \
           https://a.example/; \
         curl -sS --cacert cert.pem --connect-to evil.example:443:{OUTSIDE_V4}:443 \
           https://evil.example/; \
         curl -sS --cacert cert.pem -H 'Host: a.example' https://{OUTSIDE_V4}/"
    );
    let options = ["--dns", "127.0.0.1", "--allow", "a.example:443"];
    let output = Towpath::new(options).run(["sh", "-c", &script]);
    assert_eq!(output.stdout, "hello\n".repeat(4), "{}", output.stderr);
    assert_eq!(output.stderr.matches("curl: (35)").count(), 2, "{}", output.stderr);
}

/// Goal: the policy that `--learn` writes allows what was done, and nothing else.
fn learned(host: &mut Host) {
    let _outside = Outside::start(host);
    let script = "import socket, sys\n\
                  def get(name, port):\n    \
                  try:\n        \
                  with socket.create_connection((name, port), 30) as stream:\n            \
                  request = f'GET / HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n'.encode()\n            \
                  stream.sendall(request); return stream.recv(4)\n    \
                  except OSError as error: return type(error).__name__\n\
                  for word in sys.argv[1:]: print(get(*word.split(':')))\n";
    let script = host.write("script.py", script);
    let policy = host.file("learned.toml");
    let policy = policy.to_str().expect("text");
    let run = |option: &str, words: &[&str]| {
        let options = ["--dns", "127.0.0.1", option, policy];
        let python = ["python3".into(), script.clone().into_os_string()];
        let words = words.iter().map(OsString::from);
        Towpath::new(options).run(python.into_iter().chain(words)).success()
    };
    let done = ["a.example:80", "git.example:22", "192.0.2.2:5432"];
    let got = "b'GET '\n".repeat(3);
    assert_eq!(run("--learn", &done), got);
    assert_eq!(run("--egress", &done), got);
    let others = ["a.example:443", "evil.example:80", "192.0.2.2:8080"];
    assert!(!run("--egress", &others).contains("GET"));
}

/// A client's first packet for example.com: that of RFC 9001, appendix A.2.
const QUIC: &str = include_str!("egress/quic.hex");
