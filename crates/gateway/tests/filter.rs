//! Filter expressions compared with tcpdump: the same verdicts on the same frames.
//!
//! Frames vary in all fields that expressions check, and are long enough for every load, so that
//! the order of tests does not matter. Without tcpdump the test reports that it was skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use towpath_gateway::capture::compile_filter;
use towpath_io::filter::TERMS_MAX;
use towpath_net::bpf::{Instruction, Program};

/// Bytes of each frame: headers with all options, and payload.
const FRAME_BYTES: usize = 120;
const FRAMES: usize = 4000;

const EXPRESSIONS: &[&str] = &[
    "",
    "ip",
    "ip6",
    "arp",
    "rarp",
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "host 10.0.0.1",
    "src host 10.0.0.1",
    "dst 10.0.0.2",
    "ip host 10.0.0.1",
    "arp src host 10.0.0.1",
    "rarp host 10.0.0.2",
    "host fd00::1",
    "ip6 dst host fd00::2",
    "net 10.0.0.0/30",
    "src net 10.0.0.0/31",
    "net 0.0.0.0/0",
    "arp net 10.0.0.0/30",
    "net fd00::/127",
    "dst net fd00::/20",
    "src net fd00::2/128",
    "ether host 02:00:00:00:00:01",
    "ether src 02:00:00:00:00:02",
    "ether dst host 02:00:00:00:00:01",
    "port 80",
    "src port 80",
    "tcp port 80",
    "udp dst port 53",
    "less 100",
    "greater 110",
    "not tcp",
    "! (ip or arp)",
    "tcp port 80 and host 10.0.0.1",
    "arp or tcp and port 80",
    "arp or (tcp and port 80)",
    "tcp && not (src port 80 || dst port 53) || icmp6",
    "vlan",
    "vlan 5",
    "vlan and tcp",
    "vlan 6 and host 10.0.0.1",
    "ip or vlan and ip",
    "udp and not vlan 5",
    "vlan and vlan 5 and port 53",
    "(src host 10.0.0.1 and src port 80) or (dst host 10.0.0.1 and dst port 80)",
];

/// A repeatable sequence of numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}

fn frame(numbers: &mut Numbers) -> Vec<u8> {
    let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 9, 1]];
    let v4 = [[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 9], [192, 0, 2, 1]];
    let mut v6 = [[0; 16]; 4];
    for (address, last) in v6.iter_mut().zip([1, 2, 3, 1]) {
        (address[0], address[1], address[15]) = (0xfd, 0, last);
    }
    v6[3][1] = 0x12;
    let ports = [80_u16, 53, 443];
    let protocols = [6, 17, 132, 1, 58, 44, 99];
    let mut frame = Vec::new();
    frame.extend(numbers.of(&macs));
    frame.extend(numbers.of(&macs));
    for _ in 0..numbers.of(&[0, 0, 0, 1, 2]) {
        frame.extend(numbers.of(&[0x8100_u16, 0x88a8, 0x9100]).to_be_bytes());
        frame.extend(numbers.of(&[0x0005_u16, 0xa006, 0x0fff]).to_be_bytes());
    }
    let ethertype = numbers.of(&[0x0800_u16, 0x0800, 0x86dd, 0x86dd, 0x0806, 0x8035, 0x88b5]);
    frame.extend(ethertype.to_be_bytes());
    match ethertype {
        0x0800 => {
            let words = 5 + numbers.below(11) as u8;
            let fragment = numbers.of(&[0_u16, 0, 0x4000, 0x2000, 0x2010, 0x0010]);
            frame.extend([0x40 | words, 0, 0, 100, 0, 0]);
            frame.extend(fragment.to_be_bytes());
            frame.extend([64, numbers.of(&protocols), 0, 0]);
            frame.extend(numbers.of(&v4));
            frame.extend(numbers.of(&v4));
            frame.resize(frame.len() + usize::from(words - 5) * 4, 1);
        }
        0x86dd => {
            frame.extend([0x60, 0, 0, 0, 0, 60, numbers.of(&protocols), 64]);
            frame.extend(numbers.of(&v6));
            frame.extend(numbers.of(&v6));
            if numbers.below(3) == 0 {
                frame.extend([numbers.of(&protocols), 0, 0, 0, 0, 0, 0, 0]);
            }
        }
        _ => {
            frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
            frame.extend(numbers.of(&macs));
            frame.extend(numbers.of(&v4));
            frame.extend(numbers.of(&macs));
            frame.extend(numbers.of(&v4));
        }
    }
    frame.extend(numbers.of(&ports).to_be_bytes());
    frame.extend(numbers.of(&ports).to_be_bytes());
    frame.resize(FRAME_BYTES, 0);
    frame
}

/// Lengths on the wire that the capture file states.
fn len(index: usize) -> u32 {
    FRAME_BYTES as u32 + (index % 3) as u32 * 40 - 30 * u32::from(index.is_multiple_of(5))
}

/// A capture file of the frames; the timestamp of each is its number.
fn file(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    let words = [0xa1b2_c3d4_u32, 2 | 4 << 16, 0, 0, 65_535, 1];
    file.extend(words.into_iter().flat_map(u32::to_ne_bytes));
    for (index, frame) in frames.iter().enumerate() {
        let words = [index as u32, 0, frame.len() as u32, len(index)];
        file.extend(words.into_iter().flat_map(u32::to_ne_bytes));
        file.extend(frame);
    }
    file
}

/// Numbers of the frames in a capture file.
fn numbers_in(file: &[u8]) -> Vec<usize> {
    let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
    let mut numbers = Vec::new();
    let mut at = 24;
    while at < file.len() {
        numbers.push(word(at) as usize);
        at += 16 + word(at + 8) as usize;
    }
    numbers
}

/// Output of tcpdump; `None` if it is not installed.
fn tcpdump(arguments: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let mut command = Command::new("tcpdump");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    // tcpdump may exit before it has read all input.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let mut written = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut written).unwrap();
    let mut reported = String::new();
    child.stderr.take().unwrap().read_to_string(&mut reported).unwrap();
    assert!(child.wait().unwrap().success(), "tcpdump {arguments:?}: {reported}");
    writer.join().unwrap();
    Some(written)
}

/// Goal: an accepted expression means the same as in tcpdump. Method: all frames through both, then
/// tcpdump's own optimised program through our machine.
#[test]
fn expressions_mean_what_they_mean_to_tcpdump() {
    if Command::new("tcpdump").arg("--version").output().is_err() {
        println!("skipped: tcpdump is not installed");
        return;
    }
    let mut numbers = Numbers(7);
    let frames: Vec<_> = (0..FRAMES).map(|_| frame(&mut numbers)).collect();
    let file = file(&frames);
    for &expression in EXPRESSIONS {
        let wanted = tcpdump(&["-r", "-", "-w", "-", expression], &file).unwrap();
        let wanted = numbers_in(&wanted);
        let passed = |program: &Program| -> Vec<usize> {
            let passes = |&at: &usize| program.accepts(&frames[at], len(at));
            (0..FRAMES).filter(passes).collect()
        };
        let ours = passed(&compile_filter(expression).unwrap());
        assert!(ours == wanted, "'{expression}': {} frames, not {}", ours.len(), wanted.len());
        let is_some = expression.is_empty() || !wanted.is_empty() && wanted.len() < FRAMES;
        assert!(is_some, "'{expression}' accepts all frames or none");

        let code = tcpdump(&["-ddd", "-y", "EN10MB", expression], &[]).unwrap();
        let code = String::from_utf8(code).unwrap();
        let theirs = Program::new(code.lines().skip(1).map(instruction).collect()).unwrap();
        assert!(passed(&theirs) == wanted, "tcpdump's program for '{expression}'");
    }
}

fn instruction(line: &str) -> Instruction {
    let words: Vec<u32> = line.split(' ').map(|word| word.parse().unwrap()).collect();
    let [code, jt, jf, k] = words[..] else { panic!("no instruction: {line}") };
    Instruction { code: code as u16, jt: jt as u8, jf: jf as u8, k }
}

/// Goal: targets beyond the reach of a conditional jump are reached, from both sides.
#[test]
fn jumps_reach_far() {
    let frame = {
        let mut frame = [0; 60];
        frame[12..14].copy_from_slice(&[0x08, 0x06]);
        frame
    };
    let alternatives: Vec<String> = (1..TERMS_MAX - 1).map(|n| format!("port {n}")).collect();
    let alternatives = alternatives.join(" or ");
    let accepts = |text: &str| compile_filter(text).expect("it fits").accepts(&frame, 60);
    assert!(accepts(&format!("arp or ({alternatives})")));
    assert!(accepts(&format!("({alternatives}) or arp")));
    assert!(!accepts(&format!("ip6 and ({alternatives})")));
    assert!(accepts(&format!("arp and not ({alternatives})")));
}

#[test]
fn nothing_asked_for_is_everything() {
    for text in ["", "  ", "greater 0", "not less 0 and greater 0"] {
        assert!(compile_filter(text).expect("an expression").accepts(&[], 1), "{text}");
    }
}
