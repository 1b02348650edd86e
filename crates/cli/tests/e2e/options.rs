//! Options of `towpath run`, also as an ordinary user.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use super::support::{
    Checker, Family, Host, NONE, Pattern, Process, Server, Stats, TOWPATH, Test, Towpath, command,
    digest_of, http, inside, now, retry, run, url_host,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("subnets", &["curl"], subnets),
        Test::new("pcap_unread", &["mkfifo"], pcap_unread),
        Test::new("pcap_file_full", &["unshare"], pcap_file_full).needs_root(),
        Test::new("ordinary_user", &["curl", "setpriv"], ordinary_user).needs_root(),
    ];
    for family in Family::BOTH {
        let name = family.name();
        tests.push(Test::new(format!("one_family_{name}"), &["ip"], move |host| {
            one_family(host, family);
        }));
        tests.push(Test::new(format!("outside_{name}"), &["curl"], move |host| {
            outside(host, family);
        }));
        tests.push(Test::new(format!("pcap_{name}"), &["curl", "tshark"], move |host| {
            pcap(host, family);
        }));
    }
    tests
}

const BYTES: u64 = 1 << 20;

fn fetch(url: &str) -> [String; 3] {
    let script = format!("curl -sS --noproxy '*' -m 120 {url} | sha256sum");
    ["sh".into(), "-c".into(), script]
}

/// Goal: another machine is reached through the host, at its own address.
fn outside(host: &mut Host, family: Family) {
    let server = host.outside().run(|| Server::start(family.outside(), http));
    let url = format!("http://{}:{}/{BYTES}", url_host(family.outside()), server.port());
    let output = Towpath::new(NONE).run(fetch(&url));
    let stats = Stats::of(&output);
    assert!(output.stdout.starts_with(&digest_of(BYTES)), "{output:?}");
    output.success();
    stats.assert_carried(0, BYTES, 1024);
}

/// Goal: with `-4` or `-6` the other family is disabled, and the selected one works.
fn one_family(host: &mut Host, family: Family) {
    let other = Family::BOTH[usize::from(family == Family::V4)];
    let servers = Family::BOTH
        .map(|family| host.outside().run(|| Server::start(family.outside(), |_| Ok(()))));
    let [v4, v6] = [0, 1]
        .map(|at| SocketAddr::new(Family::BOTH[at].outside(), servers[at].port()).to_string());
    let role = inside("connect", &[&v4, &v6]);
    let text = Towpath::new([family.option()]).run(role).success();
    let (this, that) = if family == Family::V4 { (v4, v6) } else { (v6, v4) };
    assert!(text.contains(&format!("{this} connected")), "{text}");
    assert!(text.contains(&format!("{that} NetworkUnreachable")), "{text}");
    let addresses = ["ip", other.option(), "-o", "address", "show", "dev", "tap0"];
    let text = Towpath::new([family.option()]).run(addresses).success();
    assert!(!text.contains("scope global"), "{text}");
}

/// Goal: the program's networks can be chosen.
/// Method: other networks, whose gateways lead to the host's loopback.
fn subnets(_: &mut Host) {
    let cases = [
        (Family::V4, "--subnet", "172.20.4.0/22", "172.20.4.2", "172.20.4.15/22"),
        (Family::V6, "--subnet6", "fd00:1:2:3::/64", "fd00:1:2:3::2", "fd00:1:2:3::15/64"),
    ];
    for (family, option, network, gateway, program) in cases {
        let server = Server::start(family.loopback(), http);
        let host = url_host(gateway.parse().expect("an address"));
        let [sh, c, script] = fetch(&format!("http://{host}:{}/{BYTES}", server.port()));
        let script = format!("{script}; ip -o address show dev tap0; cat /etc/resolv.conf");
        let options = [option, network, "--map-host-loopback", gateway];
        let text = Towpath::new(options).run([sh, c, script]).success();
        assert!(text.starts_with(&digest_of(BYTES)), "{text}");
        assert!(text.contains(program), "{text}");
        assert!(text.contains("nameserver 172.20.4.3\n") || family == Family::V6, "{text}");
    }
}

/// Goal: another program reads a capture without complaint, the capture has the whole conversation,
/// and it costs no copy.
/// Method: curl; tshark's view of the capture.
fn pcap(host: &mut Host, family: Family) {
    let server = Server::start(family.loopback(), http);
    let file = host.file("capture.pcapng");
    let file = file.to_str().expect("text");
    let port = server.port();
    let url = format!("http://{}:{port}/{BYTES}", url_host(family.gateway()));
    let output = Towpath::with_loopback(["--pcap", file]).run(fetch(&url));
    let stats = Stats::of(&output);
    assert!(output.success().starts_with(&digest_of(BYTES)));
    stats.assert_carried(0, BYTES, 1024);
    let ip = if family == Family::V4 { "ip" } else { "ipv6" };
    let tshark = |filter: &str, fields: &[&str]| {
        let mut all = vec!["-n", "-r", file, "-Y", filter, "-T", "fields"];
        fields.iter().for_each(|field| all.extend(["-e", field]));
        let output = Process::start(command("tshark", all)).finish();
        assert!(!output.stderr.contains("damaged"), "{}", output.stderr);
        output.success()
    };
    let (source, destination) = (format!("{ip}.src"), format!("{ip}.dst"));
    let syn = tshark("tcp.flags.syn == 1 && tcp.flags.ack == 0", &[&source, &destination]);
    assert_eq!(syn, format!("{}\t{}\n", family.program(), family.gateway()));
    let lengths = tshark(&format!("tcp.srcport == {port}"), &["tcp.len"]);
    let sum: u64 = lengths.lines().map(|line| line.parse::<u64>().expect("a number")).sum();
    assert!((BYTES..BYTES + 1024).contains(&sum), "{sum} bytes captured");
    assert_eq!(tshark("_ws.malformed", &["frame.number"]), "");
}

/// Bytes that pass a blocked capture: many times what a pipe and the frames that wait for it hold.
const UNCAPTURED_BYTES: u64 = 64 << 20;
/// Less than the time that an unread capture gets at the end.
const AT_ONCE: Duration = Duration::from_secs(4);

/// Goal: an unread capture delays neither the network nor, for long, the end; SIGTERM ends it at
/// once. Missing packets are reported.
/// Method: a FIFO that is open for reading and not read.
fn pcap_unread(host: &mut Host) {
    let server = Server::start(Family::V4.loopback(), |stream| {
        Checker::new(Pattern::new(UNCAPTURED_BYTES)).read_all(stream).map_err(io::Error::other)?;
        Ok(())
    });
    let address = SocketAddr::new(Family::V4.gateway(), server.port()).to_string();
    let bytes = UNCAPTURED_BYTES.to_string();
    let fifo = host.file("capture");
    run("mkfifo", [&fifo]);
    let path = fifo.to_str().expect("text");
    let unread = File::options().read(true).write(true).open(&fifo).expect("a FIFO");
    for is_asked in [false, true] {
        let role = inside("upload", &[&address, &bytes]);
        let mut towpath = Towpath::with_loopback(["--pcap", path]).start(role);
        towpath.wait_for_text(&format!("sent {bytes}\n"));
        let sent = now();
        if is_asked {
            let of_program = format!("/proc/{}/task/{0}/children", towpath.pid());
            retry("the program to end", || {
                // Its broker is left.
                let children = fs::read_to_string(&of_program).unwrap_or_default();
                (children.split_ascii_whitespace().count() <= 1).then_some(())
            });
            towpath.signal(Signal::TERM);
        }
        let output = towpath.finish();
        assert!(!is_asked || sent.elapsed() < AT_ONCE, "{:?}", sent.elapsed());
        let stats = Stats::of(&output);
        assert!(output.stderr.contains(&format!("towpath: capture {path}")), "{}", output.stderr);
        // Whether the pipe was full within a record, or after one.
        let reports = ["accepts no more data", "packets are missing"];
        let is_reported = reports.iter().any(|report| output.stderr.contains(report));
        assert!(is_reported, "{}", output.stderr);
        output.success();
        assert!(stats.number("captured ", "missed") > 100, "{stats:?}");
        stats.assert_carried(UNCAPTURED_BYTES, 0, 0);
    }
    drop(unread);
}

/// Goal: a full file system ends a capture with one message, and nothing else; the file is valid up
/// to its last record.
/// Method: a small tmpfs.
fn pcap_file_full(host: &mut Host) {
    let server = Server::start(Family::V4.loopback(), http);
    let port = server.port();
    let [sh, c, script] = fetch(&format!("http://10.0.2.2:{port}/{BYTES}"));
    let (folder, copy) = (host.file("full"), host.file("copy.pcapng"));
    fs::create_dir(&folder).expect("a folder");
    let file = folder.join("capture.pcapng");
    let mount = "mount -t tmpfs -o size=128k none \"$1\" && cd / || exit 99; \
                 from=$2 to=$3; shift 3; \
                 \"$@\"; code=$?; cp \"$from\" \"$to\"; exit $code";
    let by = ["unshare", "--mount", "sh", "-c", mount, "sh"].map(OsString::from);
    let by = by.into_iter().chain([folder.into(), file.clone().into(), copy.clone().into()]);
    let options = [OsString::from("--pcap"), file.clone().into()];
    let output = Towpath::with_loopback(options).by(by).run([sh, c, script]);
    let reported: Vec<&str> =
        output.stderr.lines().filter(|line| line.contains("No space left on device")).collect();
    assert_eq!(reported.len(), 2, "as it happens and in the figures: {}", output.stderr);
    assert!(
        reported[0].starts_with(&format!("towpath: capture {} ended after ", file.display())),
        "{reported:?}"
    );
    let stats = Stats::of(&output);
    assert!(output.success().starts_with(&digest_of(BYTES)));
    let missed = stats.number("captured ", "missed");
    assert!(missed > 0, "{stats:?}");
    // Each block has its length at both of its ends.
    let bytes = fs::read(copy).expect("the capture");
    let word = |at: usize| {
        let word = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        word.map(u32::from_ne_bytes)
    };
    let (mut at, mut packets) = (0, 0);
    while at < bytes.len() {
        let len = word(at + 4).expect("a whole block") as usize;
        assert_eq!(word(at + len - 4), Some(len as u32), "a whole block at {at}");
        packets += u64::from(word(at) == Some(6));
        at += len;
    }
    assert_eq!(stats.number("captured ", "packets"), packets);
}

/// Goal: no privilege is needed where users may make user namespaces.
/// Method: user 1000, with a device node in a private /dev/net that all may open.
fn ordinary_user(host: &mut Host) {
    // The build folder may be closed to other users.
    let copy = host.file("towpath");
    std::fs::copy(TOWPATH, &copy).expect("a copy");
    run("chmod", ["755", host.file("").to_str().expect("text")]);
    for family in Family::BOTH {
        let server = Server::start(family.loopback(), http);
        let url = format!("http://{}:{}/{BYTES}", url_host(family.gateway()), server.port());
        let [sh, c, script] = fetch(&url);
        let output = as_user(&copy, &[&sh, &c, &format!("id -u; {script}")]);
        let text = output.stdout;
        assert!(text.starts_with("1000\n"), "{text}\n{}", output.stderr);
        assert!(text.contains(&digest_of(BYTES)), "{text}\n{}", output.stderr);
    }
}

fn as_user(towpath: &Path, program: &[&str]) -> super::support::Output {
    let script = "mount -t tmpfs -o mode=0755 none /dev/net && \
                  mknod -m 0666 /dev/net/tun c 10 200 && exec setpriv --reuid 1000 --regid 1000 \
                  --clear-groups -- \"$@\"";
    let towpath = towpath.to_str().expect("text");
    let start = ["--mount", "sh", "-c", script, "sh", towpath, "run"];
    let map = ["--map-host-loopback", "10.0.2.2", "--map-host-loopback", "fd74:6f77:7061:7468::2"];
    let all = start.iter().chain(&map).chain(&["--"]).chain(program).copied();
    Process::start(command("unshare", all)).finish()
}
