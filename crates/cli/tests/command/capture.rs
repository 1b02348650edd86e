//! `towpath capture` of a network of stream sockets: the contents of the file, and that neither the
//! reader of the capture nor the client that requested it can slow or hold anything.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::control::{Network, assert_done, send_frame, status};
use super::stats::{Folder, assert_fails};
use super::support::*;

/// Length of a frame that [`send_frame`] sends.
const FRAME_BYTES: usize = 60;

/// Connects guests to both ports.
fn guests(network: &Network) -> (UnixStream, UnixStream) {
    let connect = |name: &str| UnixStream::connect(network.folder.0.join(name)).unwrap();
    let (a, b) = (connect("a.sock"), connect("b.sock"));
    b.set_read_timeout(Some(PATIENCE)).unwrap();
    a.set_write_timeout(Some(PATIENCE)).unwrap();
    wait_for("both guests", || network.ports().iter().all(|port| port["connected"] == true));
    (a, b)
}

/// Sends a few broadcasts from one guest to the other, within the rate limits of ports.
fn send(from: &mut UnixStream, to: &mut UnixStream, count: usize) {
    (0..count).for_each(|_| send_frame(from));
    to.read_exact(&mut vec![0; count * (4 + FRAME_BYTES)]).unwrap();
}

/// Sends frames to a station that the switch knows, a hundred at a time.
fn send_many(from: &mut UnixStream, to: &mut UnixStream, hundreds: usize) {
    let mut frame = 60_u32.to_be_bytes().to_vec();
    frame.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame.resize(4 + FRAME_BYTES, 7);
    for _ in 0..hundreds {
        from.write_all(&frame.repeat(100)).unwrap();
        to.read_exact(&mut vec![0; 100 * frame.len()]).unwrap();
    }
}

/// A running capture, and its messages so far.
pub(super) struct Capture {
    pub(super) running: Guard,
    reported: String,
}

impl Capture {
    /// Starts a capture of the network with this folder.
    pub(super) fn start(folder: &Folder, arguments: &[&str], stdout: Stdio) -> Self {
        let command = towpath(["capture"].into_iter().chain(arguments.iter().copied()));
        Self::start_as(command, folder, stdout)
    }

    /// Starts a capture with a command that executes `towpath capture` in the end.
    pub(super) fn start_as(mut command: Command, folder: &Folder, stdout: Stdio) -> Self {
        command.env("XDG_RUNTIME_DIR", &folder.0).current_dir(&folder.0);
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
        let mut capture =
            Self { running: Guard(command.spawn().unwrap()), reported: String::new() };
        while !capture.reported.contains("capturing on port") {
            let mut byte = [0];
            let stderr = capture.running.0.stderr.as_mut().unwrap();
            assert_eq!(stderr.read(&mut byte).unwrap(), 1, "{}", capture.reported);
            capture.reported.push(byte[0].into());
        }
        capture
    }

    /// Interrupts it and returns the reported numbers: packets captured, accepted, dropped.
    pub(super) fn end(self) -> [u64; 3] {
        self.running.signal(Signal::INT);
        let output = finish(self.running);
        assert_done(&output);
        counts(&errors(&output))
    }
}

pub(super) fn counts(reported: &str) -> [u64; 3] {
    ["packets captured", "packets passed", "packets dropped"].map(|what| {
        let line = reported
            .lines()
            .find(|line| line.contains(what))
            .unwrap_or_else(|| panic!("{reported}"));
        line.split(' ').nth(1).unwrap().parse().unwrap()
    })
}

/// Returns the packets of a capture file: direction flags and bytes. Asserts the format of
/// everything else.
pub(super) fn packets(bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut packets = Vec::new();
    let (mut at, mut statistics) = (0, 0);
    while at < bytes.len() {
        let (kind, len) = (word(at), word(at + 4) as usize);
        assert_eq!(word(at + len - 4) as usize, len, "a block is whole");
        match kind {
            6 => {
                assert_eq!(statistics, 0, "statistics come last");
                let captured = word(at + 20) as usize;
                let flags = word(at + 28 + captured.next_multiple_of(4) + 4);
                packets.push((flags, bytes[at + 28..][..captured].to_vec()));
            }
            5 => statistics += 1,
            _ => assert!(packets.is_empty(), "{kind}"),
        }
        at += len;
    }
    assert_eq!(statistics, 1);
    packets
}

#[test]
fn what_passes_a_port_is_in_the_file() {
    let network = Network::start("capture-file");
    let (mut a, mut b) = guests(&network);
    let of_b = Capture::start(&network.folder, &["b", "-w", "b.pcapng", "-s", "20"], Stdio::null());
    let arp = ["a", "-w", "arp.pcapng", "--filter", "arp"];
    let of_nothing = Capture::start(&network.folder, &arp, Stdio::null());
    let of_a = Capture::start(&network.folder, &["a", "-w", "a.pcapng"], Stdio::null());
    send(&mut a, &mut b, 300);
    send(&mut b, &mut a, 1);
    assert_eq!(of_a.end(), [301, 301, 0]);
    assert_eq!(of_b.end(), [301, 301, 0]);
    assert_eq!(of_nothing.end(), [0, 0, 0]);

    let file = |name: &str| fs::read(network.folder.0.join(name)).unwrap();
    let of_a = packets(&file("a.pcapng"));
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame.resize(FRAME_BYTES, 7);
    assert_eq!(of_a.len(), 301);
    assert!(of_a[..300].iter().all(|(flags, bytes)| *flags == 1 && *bytes == frame));
    assert_eq!(of_a[300], (2, frame.clone()), "handed to the port");
    let of_b = packets(&file("b.pcapng"));
    assert!(of_b[..300].iter().all(|(flags, bytes)| *flags == 2 && *bytes == frame[..20]));
    assert!(packets(&file("arp.pcapng")).is_empty());
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(network.folder.0.join("a.pcapng")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "only the user may read a capture");
}

/// Goal: a pipe is written while packets pass, and a packet count ends the capture.
#[test]
fn standard_output_is_read_meanwhile() {
    let network = Network::start("capture-live");
    let (mut a, mut b) = guests(&network);
    let arguments = ["a", "-w", "-", "-c", "3"];
    let mut capture = Capture::start(&network.folder, &arguments, Stdio::piped());
    let mut stdout = capture.running.0.stdout.take().unwrap();
    send(&mut a, &mut b, 1);
    let mut bytes = vec![0; 100];
    stdout.read_exact(&mut bytes).unwrap();
    send(&mut a, &mut b, 5);
    stdout.read_to_end(&mut bytes).unwrap();
    assert_eq!(packets(&bytes).len(), 3);
    let output = finish(capture.running);
    assert_done(&output);
    assert_eq!(counts(&errors(&output))[0], 3);
}

/// Goal: while the capture is not read, frames pass as before; missing packets are counted, and a
/// request for the end suffices.
#[test]
fn an_unread_capture_slows_nothing() {
    let network = Network::start("capture-stalled");
    let (mut a, mut b) = guests(&network);
    let mut from_b = 60_u32.to_be_bytes().to_vec();
    from_b.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    from_b.resize(4 + FRAME_BYTES, 7);
    b.write_all(&from_b).unwrap();
    a.set_read_timeout(Some(PATIENCE)).unwrap();
    a.read_exact(&mut [0; 4 + FRAME_BYTES]).unwrap();
    let mut capture = Capture::start(&network.folder, &["a", "-w", "-"], Stdio::piped());
    let stdout = capture.running.0.stdout.take().unwrap();
    send_many(&mut a, &mut b, 120);
    capture.running.signal(Signal::INT);
    let output = finish(capture.running);
    let reported = errors(&output);
    let [captured, accepted, dropped] = counts(&reported);
    assert_eq!((accepted, captured + dropped), (12_000, 12_000), "{reported}");
    assert!(dropped > 0, "{reported}");
    drop(stdout);
    send_many(&mut a, &mut b, 1);
}

/// Returns the number of capture threads, without the worker and the thread that closes descriptors
/// of front ends.
fn threads(network: &Network) -> usize {
    fs::read_dir(format!("/proc/{}/task", network.running.0.id())).unwrap().count() - 2
}

/// Goal: a killed command, a closed reader and a removed port leave nothing behind.
#[test]
fn captures_end_with_either_side() {
    let network = Network::start("capture-ends");
    let (mut a, mut b) = guests(&network);
    let open = || fs::read_dir(format!("/proc/{}/fd", network.running.0.id())).unwrap().count();
    // The doorbell of all captures stays.
    assert_eq!(Capture::start(&network.folder, &["a", "-w", "x"], Stdio::null()).end(), [0, 0, 0]);
    wait_for("the thread to end", || threads(&network) == 0);
    let before = open();
    let mut four: Vec<Capture> =
        (0..4).map(|_| Capture::start(&network.folder, &["a", "-w", "x"], Stdio::null())).collect();
    let fifth = network.towpath(&["capture", "b", "-w", "y"]);
    assert_fails(&fifth, "4 captures are running, the maximum");
    for capture in &four {
        capture.running.signal(Signal::KILL);
    }
    wait_for("the threads to end", || threads(&network) == 0);
    four.clear();
    // Their places are free again.
    let mut reader = Capture::start(&network.folder, &["a", "-w", "-"], Stdio::piped());
    drop(reader.running.0.stdout.take());
    send(&mut a, &mut b, 1);
    let output = finish(reader.running);
    assert_fails(&output, "the capture ended early: Broken pipe");

    let of_b = Capture::start(&network.folder, &["b", "-w", "b.pcapng"], Stdio::null());
    assert_done(&network.towpath(&["port", "del", "b"]));
    assert_done(&finish(of_b.running));
    assert!(packets(&fs::read(network.folder.0.join("b.pcapng")).unwrap()).is_empty());
    wait_for("the threads to end", || threads(&network) == 0);
    // One less: the port's own.
    wait_for("descriptors to be closed", || open() <= before);

    let of_network = Capture::start(&network.folder, &["a", "-w", "a.pcapng"], Stdio::null());
    send_frame(&mut a);
    wait_for("the frame", || network.ports()[0]["waiting"] == 0);
    network.running.signal(Signal::TERM);
    assert_done(&finish(of_network.running));
    packets(&fs::read(network.folder.0.join("a.pcapng")).unwrap());
}

/// Goal: a capture to a pipe that another user has made, as with `sudo -u USER towpath capture
/// ... | tcpdump ...`, is refused with what to do.
#[test]
fn a_pipe_of_another_user_is_refused() {
    skip_if!(no_root());
    let (copy, folder) = (PublicCopy::new("capture-pipe"), Folder::new("capture-pipe"));
    chown(&folder.0, Some(1000), Some(1000)).unwrap();
    let script = format!(
        "cd {}; run=\"$USER_RUN env XDG_RUNTIME_DIR=$PWD {}\"
         $run up -q --daemon --pid-file $PWD/pid --stream a=$PWD/a
         timeout 10 $run capture a -w - | cat; kill $(cat pid)",
        folder.0.display(),
        copy.path()
    );
    let output = output(&mut as_user(&script));
    let text = errors(&output);
    assert!(text.contains("a pipe that another user has made, run sh -c"), "{text}");
}

/// Bad input: invalid filters, flows, ports and files, a full disk, and requests without a file.
#[test]
fn what_cannot_be_captured_is_refused() {
    let network = Network::start("capture-refused");
    for (wrong, expected) in [
        (&["a"][..], "--write"),
        (
            &["a", "-w", "x", "--filter", "host example.org"],
            "at character 6: expected an IP address",
        ),
        (
            &["a", "-w", "x", "--filter", "arp) or (arp"],
            "at character 4: expected 'and', 'or' or the end",
        ),
        (&["a", "-w", "x", "--flow", "10.0.0.1:1"], "expected ADDR:PORT,ADDR:PORT"),
        (
            &["a", "-w", "x", "--flow", "10.0.0.1:1,[::1]:1"],
            "expected two IPv4 or two IPv6 addresses",
        ),
        (&["a", "-w", "x", "-c", "0"], "not in 1.."),
        (&["a", "-w", "x", "-s", "999999"], "not in 1.."),
    ] {
        let arguments: Vec<&str> = ["capture"].into_iter().chain(wrong.iter().copied()).collect();
        let output = network.towpath(&arguments);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", errors(&output));
        assert!(errors(&output).contains(expected), "{wrong:?}: {}", errors(&output));
        if let Some((_, usage)) = errors(&output).split_once("Usage: ") {
            assert!(usage.starts_with("towpath capture"), "{wrong:?}: {}", errors(&output));
        }
    }
    assert_fails(&network.towpath(&["capture", "c", "-w", "x"]), "there is no port 'c'");
    assert_fails(&network.towpath(&["capture", "gateway", "-w", "x"]), "there is no port");
    // An existing file is unchanged, and a missing one is not created.
    let (kept, new) = (network.folder.0.join("kept"), network.folder.0.join("new"));
    fs::write(&kept, "of yesterday").unwrap();
    for file in [&kept, &new] {
        let file = file.to_str().unwrap();
        assert_fails(&network.towpath(&["capture", "c", "-w", file]), "there is no port 'c'");
    }
    assert_eq!(fs::read_to_string(&kept).unwrap(), "of yesterday");
    assert!(!new.exists());
    assert_fails(&network.towpath(&["capture", "a", "-w", "/dev/full"]), "No space left");
    assert_fails(
        &network.towpath(&["capture", "a", "-w", "/no/such/x"]),
        "cannot open /no/such/x for writing",
    );

    let post = |body: &str| {
        let len = body.len();
        network.raw(
            format!("POST /v1/capture HTTP/1.1\r\nContent-Length: {len}\r\n\r\n{body}").as_bytes(),
        )
    };
    for (body, expected) in [
        ("{", "the body is not JSON"),
        ("[]", "expected an object"),
        ("{}", "'port': expected the name of a port"),
        ("{\"port\": \"a\"}", "the request has no file"),
        ("{\"port\": \"a\", \"filter\": \"no\"}", "filter 'no': at character 1"),
        ("{\"port\": \"a\", \"filter\": 1}", "'filter': expected a string"),
        ("{\"port\": \"a\", \"count\": 0}", "'count': expected a number from 1"),
        ("{\"port\": \"a\", \"speed\": 1}", "unknown key 'speed'; expected port, snaplen, count"),
    ] {
        let answer = post(body);
        assert_eq!(status(&answer), 400, "{answer}");
        assert!(answer.contains(expected), "{answer}");
    }
    assert_eq!(status(&network.raw(b"GET /v1/capture HTTP/1.1\r\n\r\n")), 405);
    assert_eq!(threads(&network), 0);
}

/// Goal: one flow is captured in both directions, and tcpdump reads the file while it is written.
#[test]
fn tcpdump_reads_a_flow() {
    if Command::new("tcpdump").arg("--version").output().is_err() {
        eprintln!("skipped: tcpdump is not installed");
        return;
    }
    let network = Network::start("capture-flow");
    let (mut a, mut b) = guests(&network);
    let flow = ["a", "-w", "flow", "--flow", "192.0.2.1:7,192.0.2.2:9", "-c", "2"];
    let capture = Capture::start(&network.folder, &flow, Stdio::null());
    let datagram = |from: [u8; 2], to: [u8; 2], port: u8| {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([192, 0, 2, from[0], 192, 0, 2, to[0], 0, from[1], 0, port, 0, 12, 0, 0]);
        frame.resize(FRAME_BYTES, 0);
        [&60_u32.to_be_bytes()[..], &frame].concat()
    };
    for (from, to, port) in [([1, 7], [2, 9], 8), ([1, 7], [2, 9], 9), ([2, 9], [1, 7], 7)] {
        a.write_all(&datagram(from, to, port)).unwrap();
        b.read_exact(&mut [0; 64]).unwrap();
    }
    assert_done(&finish(capture.running));
    let mut tcpdump = Command::new("tcpdump");
    tcpdump.args(["-n", "-t", "-q", "-r", "-"]);
    tcpdump.stdin(File::open(network.folder.0.join("flow")).unwrap());
    let read = tcpdump.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    let expected = "IP 192.0.2.1.7 > 192.0.2.2.9: UDP, length 4\n\
                    IP 192.0.2.2.9 > 192.0.2.1.7: UDP, length 4\n";
    assert_eq!(text(&read), expected, "{}", errors(&read));
}
