//! `towpath up` with real virtual machines that reach each other and, through the gateway, the
//! host's loopback.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::machine::Machine;

/// Bytes of a transfer between machines, and between a machine and the host.
const TRANSFER: usize = 16 << 20;
/// Longest report in bytes.
const REPORT_BYTES_MAX: u64 = 64 << 10;

/// Most checks until figures are as expected; far more than needed.
const LOOKS_MAX: u32 = 100;
/// Interval of the checks. Each check is an event for the network, which releases frames that it
/// keeps ready for reading after a second without an event.
const STEP: Duration = Duration::from_millis(1500);

/// A running `towpath up`, ended when dropped.
pub(crate) struct Up {
    process: Child,
    arguments: Vec<OsString>,
    directory: PathBuf,
}

impl Up {
    /// Starts one with a port for each of `ports`, an option and a name; returns when it serves.
    pub(crate) fn start(name: &str, ports: &[(&str, &str)]) -> Self {
        Self::start_with(name, &[], ports)
    }

    pub(crate) fn start_with(name: &str, options: &[&str], ports: &[(&str, &str)]) -> Self {
        let directory = directory(name);
        let fixed = ["up", "--stats", "-v", "--map-host-loopback", "10.0.2.2"];
        let mut arguments: Vec<OsString> = fixed.iter().chain(options).map(Into::into).collect();
        for (option, name) in ports {
            arguments.push(option.into());
            arguments.push(format!("{name}={}", directory.join(name).display()).into());
        }
        let process = serve(&arguments, &directory);
        Self { process, arguments, directory }
    }

    /// Starts one with a file, in which `DIR` is its directory.
    fn from_file(name: &str, text: &str) -> Self {
        let directory = directory(name);
        let file = directory.join("net.toml");
        let text = text.replace("DIR", directory.to_str().expect("text"));
        std::fs::write(&file, text).expect("a file among temporary ones");
        let arguments = vec!["up".into(), "--stats".into(), "-v".into(), file.clone().into()];
        let process = serve(&arguments, &directory);
        std::fs::remove_file(file).expect("ours");
        Self { process, arguments, directory }
    }

    /// Kills it, which leaves its sockets behind, and starts it again.
    pub(crate) fn crash(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("ours");
        self.process = serve(&self.arguments, &self.directory);
    }

    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Runs a command on it; returns the output. Fails if the command does.
    pub(crate) fn ask(&self, arguments: &[&str]) -> String {
        let output = command(&self.directory).args(arguments).output().expect("towpath starts");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Returns the worker of a port.
    pub(crate) fn worker_of(&self, port: &str) -> u64 {
        let listed = self.ask(&["ls", "--json"]);
        let mut ports = listed.lines().map(|line| serde_json::from_str(line).expect("an object"));
        let found = ports.find(|found: &Value| found["name"] == port).expect("it is there");
        found["worker"].as_u64().expect("a number")
    }

    /// Returns when no packet, frame or byte of a guest is in use any more.
    pub(crate) fn wait_for_rest(&self) {
        self.wait_for_figures("rest", |figures| {
            let taken = &figures["taken"];
            taken["packets"] == 0 && taken["frames"] == 0 && figures["lent"]["bytes"] == 0
        });
    }

    /// Returns when bytes of guests are lent.
    pub(crate) fn wait_for_loans(&self) {
        self.wait_for_figures("loans", |figures| figures["lent"]["bytes"] != 0);
    }

    fn wait_for_figures(&self, what: &str, done: impl Fn(&Value) -> bool) {
        let pid = self.process.id().to_string();
        let mut figures = Value::Null;
        for _ in 0..LOOKS_MAX {
            let reported = self.ask(&["stats", "--json", &pid]);
            figures = serde_json::from_str(&reported).expect("an object");
            if done(&figures) {
                return;
            }
            std::thread::sleep(STEP);
        }
        panic!("no {what}: {figures}");
    }

    /// Ends it; returns its report.
    pub(crate) fn finish(mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
        let mut report = String::new();
        let said = self.process.stderr.take().expect("piped");
        said.take(REPORT_BYTES_MAX).read_to_string(&mut report).expect("text");
        assert!(self.process.wait().expect("ours").success(), "{report}");
        std::fs::remove_dir_all(self.directory.join("towpath")).expect("it had a control socket");
        let left = std::fs::read_dir(&self.directory).expect("ours").count();
        assert_eq!(left, 0, "sockets are left");
        report
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("towpath-up-{name}-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("a directory among temporary files");
    directory
}

/// Returns the command under test, with its control sockets below `directory`.
fn command(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.env("XDG_RUNTIME_DIR", directory);
    command
}

/// Starts the command; returns when it serves.
fn serve(arguments: &[OsString], directory: &Path) -> Child {
    let process = command(directory).args(arguments).stderr(Stdio::piped()).spawn();
    let mut process = process.expect("the command under test");
    let mut first = String::new();
    let said = process.stderr.as_mut().expect("piped");
    BufReader::with_capacity(1, said).read_line(&mut first).expect("it says that it serves");
    assert!(first.contains("serving"), "{first}");
    process
}

pub(crate) fn two_by_vhost_user() {
    let up = Up::start("vhost", &[("--vhost-user", "one"), ("--vhost-user", "two")]);
    let mut one = Machine::boot(&up.socket("one"), 1, ",mac=02:00:00:00:00:01");
    // This card takes no super-packets: packets of the other machine are segmented for it.
    let small = ",mac=02:00:00:00:00:02,guest_tso4=off,guest_tso6=off,guest_ufo=off,mrg_rxbuf=off";
    let mut two = Machine::boot(&up.socket("two"), 1, small);
    talk(&mut one, &mut two);
    reach_host(&mut one);
    one.power_off();
    two.power_off();
    let report = up.finish();
    assert!(number(&report, "port              two ", "cut") > 100, "{report}");
    // To the guests payload is copied, once; from them hardly any is.
    assert!(copied(&report, "guest") as usize > TRANSFER, "{report}");
    assert_eq!(copied(&report, "orphan"), 0, "{report}");
}

pub(crate) fn by_stream_and_vhost_user() {
    let up = Up::start("stream", &[("--vhost-user", "one"), ("--stream", "two")]);
    let mut one = Machine::boot(&up.socket("one"), 1, ",mac=02:00:00:00:00:01,packed=on");
    let mut two = Machine::boot_stream(&up.socket("two"), ",mac=02:00:00:00:00:02");
    talk(&mut one, &mut two);
    reach_host(&mut two);
    one.power_off();
    two.power_off();
    let report = up.finish();
    assert!(number(&report, "port              two ", "cut") > 100, "{report}");
}

/// Two queue pairs in each machine, and a processor for each sender.
pub(crate) fn several_queues() {
    let ports = [("--vhost-user", "one"), ("--vhost-user", "two")];
    let up = Up::start_with("queues", &["--queue-pairs", "2"], &ports);
    let mut one = Machine::boot(&up.socket("one"), 2, ",mq=on,mac=02:00:00:00:00:01");
    let mut two = Machine::boot(&up.socket("two"), 2, ",mq=on,packed=on,mac=02:00:00:00:00:02");
    for machine in [&mut one, &mut two] {
        let queues = machine.run("ls /sys/class/net/eth0/queues | wc -l");
        assert_eq!(queues, ["4"], "queues to send and to receive");
    }
    talk(&mut one, &mut two);
    two.start("nc -ll -p 9 -e md5sum &");
    two.run("while ! netstat -ltn | grep -q :9; do sleep 0.1; done");
    one.run("for at in 1 2; do taskset $at nc two 9 < /tmp/data > /tmp/sum$at & done; wait");
    let sums = one.run("md5sum < /tmp/data; cat /tmp/sum1 /tmp/sum2");
    assert!(sums.len() == 3 && sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
    one.power_off();
    two.power_off();
    up.finish();
}

/// A machine on a network with a file: it has its address, its name and the MTU, and published
/// ports lead to it.
pub(crate) fn from_a_file() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of the loopback");
    let port = free.local_addr().expect("bound").port();
    drop(free);
    let text = format!(
        "mtu = 1400\ndomain = 'lab.internal'\n\
         [[port]]\nname = 'one'\nvhost-user = 'DIR/one'\nqueue-len = 512\n\
         [[lease]]\nport = 'one'\nipv4 = '10.0.2.77'\nname = 'web'\n\
         [[publish]]\nguest = 'web'\ntcp = ['127.0.0.1/{port}:7']\n"
    );
    let up = Up::from_file("file", &text);
    let mut one = Machine::boot(&up.socket("one"), 1, ",mac=02:00:00:00:00:01");
    lease(&mut one, "other");
    one.run("ip addr show eth0 | grep -q 'inet 10.0.2.77/24 '");
    one.run("ping -c 3 -i 0.1 -W 60 web.lab.internal | grep -q '(10.0.2.77)'");
    // According to router advertisements.
    one.run("until grep -q 1400 /proc/sys/net/ipv6/conf/eth0/mtu; do sleep 0.1; done");
    one.start("nc -ll -p 7 -e cat &");
    one.run("while ! netstat -ltn | grep -q :7; do sleep 0.1; done");
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it is published");
    stream.write_all(b"question").expect("the machine reads");
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).expect("the machine answers");
    assert_eq!(&answer, b"question");
    drop(stream);
    assert!(up.ask(&["ls", "leases"]).contains(" one             web static\n"));
    one.power_off();
    up.finish();
}

/// Both answer to ping, and data of one arrives at the other.
fn talk(one: &mut Machine, two: &mut Machine) {
    lease(one, "one");
    lease(two, "two");
    one.run("ping -c 3 -i 0.1 -W 60 two | grep -q ' 3 packets received'");
    two.run("ping -c 3 -i 0.1 -W 60 gateway | grep -q ' 3 packets received'");
    // Its standard input stays open: at its end it would close the connection.
    two.start("tail -f /dev/null | nc -l -p 7 | md5sum > /tmp/sum &");
    two.run("while ! netstat -ltn | grep -q :7; do sleep 0.1; done");
    let make = format!("dd if=/dev/urandom of=/tmp/data bs=64k count={}", TRANSFER >> 16);
    one.run(&format!("{make} 2> /dev/null"));
    one.run("nc two.towpath.internal 7 < /tmp/data");
    let sent = one.run("md5sum < /tmp/data");
    let received = two.run("while [ ! -s /tmp/sum ]; do sleep 0.1; done; cat /tmp/sum");
    assert_eq!(sent, received);
}

/// Makes a machine request a lease with a name, and configure itself accordingly.
pub(crate) fn lease(machine: &mut Machine, name: &str) {
    let script = [
        "#!/bin/sh",
        "[ $1 = bound ] || exit 0",
        "ip addr add $ip/$mask dev $interface",
        "ip route add default via $router",
        "echo search $domain > /etc/resolv.conf",
        "echo nameserver $dns >> /etc/resolv.conf",
    ];
    for line in script {
        machine.run(&format!("echo '{line}' >> /tmp/bound"));
    }
    machine.run("mkdir -p /etc && chmod +x /tmp/bound && ip link set eth0 up");
    machine.run(&format!("udhcpc -i eth0 -n -q -t 60 -T 1 -s /tmp/bound -x hostname:{name}"));
}

/// Makes a machine download from a server on the host's loopback and send the data back.
pub(crate) fn reach_host(machine: &mut Machine) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of the loopback");
    let port = listener.local_addr().expect("bound").port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the machine connects");
        let data: Vec<u8> = (0..TRANSFER).map(|at| (at * 31 + at / 253) as u8).collect();
        stream.write_all(&data).expect("the machine reads");
        stream.shutdown(std::net::Shutdown::Write).expect("open");
        let (mut stream, _) = listener.accept().expect("the machine connects again");
        let mut back = Vec::new();
        stream.read_to_end(&mut back).expect("the machine sends");
        assert!(back == data, "{} bytes came back changed", back.len());
    });
    machine.run(&format!("nc 10.0.2.2 {port} > /tmp/got < /dev/null"));
    machine.run(&format!("nc 10.0.2.2 {port} < /tmp/got"));
    server.join().expect("what came back is what was sent");
}

/// Returns the number before `word` in the lines after the one that begins with `start`.
pub(crate) fn number(report: &str, start: &str, word: &str) -> u64 {
    let at = report.find(start).unwrap_or_else(|| panic!("no {start} in:\n{report}"));
    let rest = &report[at..];
    let words: Vec<&str> = rest.split([' ', ',', '\n']).filter(|word| !word.is_empty()).collect();
    let at = words.iter().position(|candidate| *candidate == word).expect("a word");
    words[at - 1].parse().expect("a number")
}

/// Returns the bytes copied at `site`.
fn copied(report: &str, site: &str) -> u64 {
    let start = format!("copied            {site} ");
    match report.lines().find_map(|line| line.strip_prefix(&start)) {
        Some(rest) => rest.split(' ').next().and_then(|text| text.parse().ok()).expect("a number"),
        None => 0,
    }
}
