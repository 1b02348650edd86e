//! `towpath capture` while a vhost-user guest sends to another at full rate: the contents of the
//! file, the cost for the guests, and their traffic when the capture cannot continue.
//!
//! The sender lends its memory, and the receiver's memory is written: each byte of payload is
//! copied once.

use std::fs;
use std::ops::Range;
use std::process::{Command, Stdio};

use serde_json::Value;
use towpath_io::vhost_user::driver::{DriverQueue, FrontEnd, GuestRam, RECEIVE, TRANSMIT};
use towpath_io::vhost_user::virtq::{Segment, feature};
use towpath_net::checksum::Sum;

use super::capture::{Capture, counts, packets};
use super::stats::assert_fails;
use super::support::*;
use super::vhost::Network;

/// Packets that are sent together. They are a fraction of the ring, which would otherwise recall
/// its memory early, and of what a capture may hold.
const ROUND: u64 = 32;
/// Rounds that a capture may need on a busy machine.
const ROUNDS_MAX: u64 = 60;
const QUEUE_SIZE: u16 = 256;

/// TCP payload of a packet: the most whole segments that fit one IP packet.
const PAYLOAD: usize = 44 * 1460;
const VIRTIO: usize = 12;
const HEADERS: usize = 14 + 20 + 20;
const FRAME: usize = HEADERS + PAYLOAD;
/// Size of a packet's buffer.
const BUFFER: u64 = 66_048;
const _: () = assert!(BUFFER as usize >= VIRTIO + FRAME);
const BUFFERS: u64 = 1 << 20;

const SENDER: u64 = feature::CSUM | feature::HOST_TSO4;
const RECEIVER: u64 = feature::GUEST_CSUM | feature::GUEST_TSO4;

/// Returns the virtio-net header and the frame of a packet, which is an unsegmented TCP packet.
fn packet(number: u64) -> Vec<u8> {
    let mut bytes = vec![1, 1, HEADERS as u8, 0];
    bytes.extend(1460_u16.to_le_bytes());
    // The device completes the checksum: where it begins, and where it goes.
    bytes.extend([34, 0, 16, 0, 0, 0]);
    bytes.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    let ip_bytes = (40 + PAYLOAD) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(ip_bytes.to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    let checksum = sum(&[&ip]).finish();
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let tcp_bytes = (20 + PAYLOAD) as u16;
    let pseudo = sum(&[&ip[12..], &[0, 6], &tcp_bytes.to_be_bytes()]).fold();
    bytes.extend(ip);
    bytes.extend([0x80, 0, 0x14, 0x51, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff]);
    bytes.extend(pseudo.to_be_bytes());
    bytes.extend([0; 2]);
    bytes.extend(number.to_le_bytes());
    bytes.extend((8..PAYLOAD).map(|at| (at as u64 * 7 + (at as u64 >> 8) + number) as u8));
    bytes
}

/// Returns the number in a frame, and checks that the frame is otherwise as sent.
fn number_of(frame: &[u8]) -> u64 {
    assert_eq!(frame.len(), FRAME);
    let number = u64::from_le_bytes(frame[HEADERS..HEADERS + 8].try_into().unwrap());
    assert!(packet(number)[VIRTIO..] == *frame, "packet {number} has other bytes");
    number
}

fn sum(parts: &[&[u8]]) -> Sum {
    let mut sum = Sum::default();
    parts.iter().for_each(|part| sum.add(part));
    sum
}

struct Guest {
    ram: GuestRam,
    queues: [DriverQueue; 2],
    front_end: FrontEnd,
}

impl Guest {
    fn connect(network: &Network, port: &str, features: u64) -> Self {
        let ram = GuestRam::new(0, &[BUFFERS + ROUND * BUFFER.next_multiple_of(4096)]).unwrap();
        let queue = |at| DriverQueue::new(&ram, at, QUEUE_SIZE, features).unwrap();
        let receive = queue(0);
        let transmit = queue(receive.end());
        assert!(transmit.end() <= BUFFERS);
        let queues = [&receive, &transmit];
        let front_end = FrontEnd::connect(&network.path(port), &ram, features, queues).unwrap();
        Self { ram, queues: [receive, transmit], front_end }
    }

    fn send(&mut self, index: u64, bytes: &[u8]) {
        let address = BUFFERS + index * BUFFER;
        self.ram.memory().write(address, bytes).unwrap();
        let segment = Segment { address, bytes: bytes.len() as u32 };
        assert!(self.queues[TRANSMIT].add(&[segment], &[], index), "the ring has room");
        if self.queues[TRANSMIT].publish() {
            self.front_end.kick(TRANSMIT);
        }
    }

    /// Returns true if the device has returned all buffers that it sent.
    fn has_all_back(&mut self) -> bool {
        while self.queues[TRANSMIT].used().is_some() {}
        self.queues[TRANSMIT].out_count() == 0
    }

    fn offer(&mut self, index: u64) {
        let segment = Segment { address: BUFFERS + index * BUFFER, bytes: BUFFER as u32 };
        assert!(self.queues[RECEIVE].add(&[], &[segment], index), "the ring has room");
        if self.queues[RECEIVE].publish() {
            self.front_end.kick(RECEIVE);
        }
    }

    /// Returns the next frame, if there is one.
    fn receive(&mut self) -> Option<Vec<u8>> {
        let (index, bytes) = self.queues[RECEIVE].used()?;
        let mut content = vec![0; bytes as usize];
        self.ram.memory().read(BUFFERS + index * BUFFER, &mut content).unwrap();
        self.offer(index);
        Some(content.split_off(VIRTIO))
    }
}

/// A guest that sends and one that receives.
struct Transfer {
    network: Network,
    from: Guest,
    to: Guest,
    sent: u64,
}

/// Bytes of payload that were copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Copied {
    /// Into guests' memory.
    to_guests: u64,
    recalled: u64,
    elsewhere: u64,
    /// Packets that the sender lent, and those of them that were recalled.
    lent: (u64, u64),
}

impl Transfer {
    fn start(name: &str) -> Self {
        let network = Network::start(name);
        let mut from = Guest::connect(&network, "one", SENDER);
        let mut to = Guest::connect(&network, "two", RECEIVER);
        (0..ROUND).for_each(|index| to.offer(index));
        from.offer(0);
        // A frame from the receiver, so that the switch learns its port.
        let mut hello = [vec![0; VIRTIO], vec![0xff; 6], vec![2, 0, 0, 0, 0, 2]].concat();
        hello.extend([0x88, 0xb5]);
        hello.resize(VIRTIO + 60, 0);
        to.send(0, &hello);
        wait_for("the first frame", || from.receive().is_some());
        wait_for("its memory", || to.has_all_back());
        Self { network, from, to, sent: 0 }
    }

    /// Sends packets, and waits until all have arrived in order with their bytes, and their memory
    /// is free again.
    fn round(&mut self) -> Range<u64> {
        let numbers = self.sent..self.sent + ROUND;
        for (index, number) in numbers.clone().enumerate() {
            self.from.send(index as u64, &packet(number));
        }
        wait_for("the packets", || {
            while let Some(frame) = self.to.receive() {
                assert_eq!(number_of(&frame), self.sent, "none is lost or overtaken");
                self.sent += 1;
            }
            self.sent == numbers.end
        });
        wait_for("the memory", || self.from.has_all_back());
        numbers
    }

    fn copied(&self) -> Copied {
        let pid = self.network.running.pid().as_raw_pid().to_string();
        let mut command = towpath(["stats", &pid, "--json"]);
        let reported = output(command.env("XDG_RUNTIME_DIR", &self.network.folder.0));
        assert_eq!(reported.status.code(), Some(0), "{}", errors(&reported));
        let object: Value = serde_json::from_str(&text(&reported)).unwrap();
        let of = |site: &str| object["copied"][site].as_u64().unwrap();
        let sites = object["copied"].as_object().unwrap();
        let all: u64 = sites.values().map(|bytes| bytes.as_u64().unwrap()).sum();
        let (to_guests, recalled) = (of("guest"), of("recall"));
        let of_sender = |what: &str| object["ports"]["one"]["lent"][what].as_u64().unwrap();
        let lent = (of_sender("packets"), of_sender("recalled"));
        Copied { to_guests, recalled, elsewhere: all - to_guests - recalled, lent }
    }
}

/// Goal: a capture of a bulk transfer has the packets that were sent, whole and in order, or counts
/// them as dropped. It costs no copy: as without it, each byte is copied once, into the receiver's
/// memory.
///
/// Method: on a busy machine the term of lent memory may end before it is written, which causes a
/// recall. So the test sends rounds until some had no recall, one of which must be in the file as a
/// whole.
#[test]
fn a_bulk_transfer_is_captured_where_it_lies() {
    let mut transfer = Transfer::start("capture-bulk");
    let before = transfer.copied();
    transfer.round();
    let without = transfer.copied();
    let per_round = without.to_guests - before.to_guests;
    let payload = ROUND * PAYLOAD as u64;
    // The first bytes of a packet may count as headers and not as payload.
    assert!((payload - ROUND * 192..=ROUND * FRAME as u64).contains(&per_round), "{per_round}");

    let path = transfer.network.folder.0.join("bulk");
    let capture = Capture::start(&transfer.network.folder, &["one", "-w", "bulk"], Stdio::null());
    let mut last = transfer.copied();
    let (mut clean, mut rounds) = (Vec::new(), 0);
    while clean.len() < 3 && rounds < ROUNDS_MAX {
        let bytes_before = fs::metadata(&path).unwrap().len();
        let numbers = transfer.round();
        rounds += 1;
        let bytes = fs::metadata(&path).unwrap().len() - bytes_before;
        let copied = transfer.copied();
        assert_eq!(copied.to_guests - last.to_guests, per_round, "as without the capture");
        assert!(copied.recalled - last.recalled <= ROUND * FRAME as u64, "once at most");
        if copied.recalled == last.recalled && bytes >= payload {
            clean.push(numbers);
        }
        last = copied;
    }
    assert_eq!(last.elsewhere, without.elsewhere);
    let [captured, accepted, dropped] = capture.end();
    assert_eq!((accepted, captured + dropped), (rounds * ROUND, rounds * ROUND));
    let packets = packets(&fs::read(&path).unwrap());
    assert!(packets.iter().all(|(flags, _)| *flags == 1), "from the port");
    let numbers: Vec<u64> = packets.iter().map(|(_, frame)| number_of(frame)).collect();
    assert_eq!(numbers.len() as u64, captured);
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order");
    let is_captured =
        |round: &Range<u64>| round.clone().all(|number| numbers.binary_search(&number).is_ok());
    assert!(
        clean.iter().any(is_captured),
        "{rounds} rounds, {dropped} dropped, none without a copy"
    );
    transfer.network.finish();
}

/// Goal: a bulk transfer continues while its capture is not read. Guests get their memory back at
/// the end of its term, and missing packets are counted.
#[test]
fn guests_go_on_while_their_capture_is_unread() {
    let mut transfer = Transfer::start("capture-bulk-stalled");
    let mut capture = Capture::start(&transfer.network.folder, &["two", "-w", "-"], Stdio::piped());
    let stdout = capture.running.0.stdout.take().unwrap();
    let before = transfer.copied();
    const ROUNDS: u64 = 12;
    for _ in 0..ROUNDS {
        transfer.round();
    }
    capture.running.signal(rustix::process::Signal::INT);
    let output = finish(capture.running);
    let reported = errors(&output);
    let [captured, accepted, dropped] = counts(&reported);
    assert_eq!((accepted, captured + dropped), (ROUNDS * ROUND, ROUNDS * ROUND), "{reported}");
    // A pipe has room for one or two.
    assert!(captured <= 2, "{reported}");
    drop(stdout);
    transfer.round();
    let copied = transfer.copied();
    assert!(copied.recalled > before.recalled, "a recall returned the memory");
    assert!(copied.lent.1 > before.lent.1, "{copied:?}");
    assert!(copied.lent.0 > before.lent.0, "{copied:?}");
    assert_eq!(copied.elsewhere, before.elsewhere);
    transfer.network.finish();
}

/// Goal: when the file system fills up during a capture, the capture ends and reports the reason
/// and the number of packets in the file, which are whole; the transfer continues.
#[test]
fn a_file_system_that_fills_up_ends_a_capture_only() {
    skip_if!(no_root());
    let mut transfer = Transfer::start("capture-bulk-full");
    let before = transfer.copied();
    let folder = &transfer.network.folder;
    fs::create_dir(folder.0.join("disk")).unwrap();
    let script = "mount -t tmpfs -o size=1m none disk || exit 99; \"$0\" capture one -w disk/file; \
                  code=$?; cp disk/file kept; exit $code";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, TOWPATH]);
    let capture = Capture::start_as(command, folder, Stdio::null());
    transfer.round();
    transfer.round();
    let output = finish(capture.running);
    assert_fails(&output, "the capture ended early: No space left on device");
    let [captured, accepted, dropped] = counts(&errors(&output));
    assert!(captured > 0 && captured * (FRAME as u64) < 1 << 20, "{captured}");
    assert_eq!(captured + dropped, accepted);

    let file = fs::read(transfer.network.folder.0.join("kept")).unwrap();
    let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut numbers) = (0, Vec::new());
    while at + 8 <= file.len() && at + word(at + 4) <= file.len() {
        if word(at) == 6 {
            numbers.push(number_of(&file[at + 28..][..word(at + 20)]));
        }
        at += word(at + 4);
    }
    assert_eq!(numbers, (0..captured).collect::<Vec<_>>());
    transfer.round();
    assert_eq!(transfer.copied().elsewhere, before.elsewhere);
    transfer.network.finish();
}
