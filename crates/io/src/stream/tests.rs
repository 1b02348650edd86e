//! Frames over socket pairs. Bad input tried: lengths beyond any frame, runts, empty frames, frames
//! in parts of one byte, a connection that ends inside a frame.

use super::*;
use crate::reactor::{Events, Interest, Reactor};
use crate::vhost_user::driver::{DriverQueue, GuestRam};
use crate::vhost_user::virtq::{Segment, TransmitQueue};
use proptest::prelude::*;
use std::io::{ErrorKind, Read as _, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use towpath_packet::MemoryConfig;
use towpath_packet::time::Instant;

/// Rounds of a test that moves a few bytes at a time.
const ROUNDS: usize = 10_000;

/// A connection and its peer, which does not block either.
struct Rig {
    stream: Stream,
    guest: UnixStream,
    memory: Memory,
    ledger: Ledger,
    /// Calls that returned because memory was short.
    paused: u64,
}

/// A context without deadlines.
fn cx<'a>(memory: &'a mut Memory, ledger: &'a Ledger) -> Context<'a> {
    Context { memory, ledger, now: Instant::START }
}

impl Rig {
    fn new() -> Self {
        Self::with(MemoryConfig { packets: 256, small_frames: 256, large_frames: 128 })
    }

    fn with(config: MemoryConfig) -> Self {
        let (ours, guest) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        guest.set_nonblocking(true).unwrap();
        let stream = Stream::new(ours.into(), 1500);
        let (memory, ledger) = (Memory::new(config), Ledger::new());
        Self { stream, guest, memory, ledger, paused: 0 }
    }

    fn receive(&mut self) -> Result<Vec<Vec<u8>>, StreamError> {
        let mut burst = Burst::new();
        let result = self.stream.receive(&mut burst, &mut cx(&mut self.memory, &self.ledger));
        self.paused += u64::from(result == Ok(Input::NoMemory));
        let frames = std::iter::from_fn(|| burst.pop()).map(|packet| bytes_of(&packet)).collect();
        result.map(|_| frames)
    }

    fn transmit(&mut self, burst: &mut Burst) -> Result<(), StreamError> {
        self.stream.transmit(burst, &mut cx(&mut self.memory, &self.ledger))
    }

    /// A packet of private headers and payload in pieces of `piece_bytes`.
    fn packet(&mut self, frame: &[u8], piece_bytes: usize) -> Packet {
        let mut packet = self.memory.packet().unwrap();
        let (headers, payload) = frame.split_at(ETHERNET_BYTES);
        for part in payload.chunks(piece_bytes) {
            let mut memory = self.memory.large.take().unwrap();
            memory[..part.len()].copy_from_slice(part);
            packet.push_piece(memory.freeze(part.len())).unwrap();
        }
        packet.push_header(headers.len()).copy_from_slice(headers);
        packet
    }

    /// Writes as many bytes as fit.
    fn write(&mut self, bytes: &[u8]) -> usize {
        match self.guest.write(bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => panic!("{error}"),
        }
    }

    /// Reads at most `bytes_max` of the available bytes.
    fn read(&mut self, bytes_max: usize) -> Vec<u8> {
        let mut bytes = vec![0; bytes_max];
        match self.guest.read(&mut bytes) {
            Ok(count) => bytes.truncate(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => bytes.clear(),
            Err(error) => panic!("{error}"),
        }
        bytes
    }

    fn assert_all_back(&mut self) {
        self.stream.rest();
        let Memory { packets, small, large } = &self.memory;
        assert_eq!((packets.out_count(), small.out_count(), large.out_count()), (0, 0, 0));
    }
}

fn bytes_of(packet: &Packet) -> Vec<u8> {
    let mut bytes = packet.wire_headers().to_vec();
    for piece in packet.pieces() {
        bytes.extend_from_slice(piece.bytes().unwrap());
    }
    bytes
}

fn frame(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251 + seed) as u8).collect()
}

fn framed(frames: &[Vec<u8>]) -> Vec<u8> {
    let one = |frame: &Vec<u8>| [&(frame.len() as u32).to_be_bytes(), &frame[..]].concat();
    frames.iter().flat_map(one).collect()
}

#[test]
fn frames_of_one_write_arrive_one_by_one_and_uncopied() {
    let mut rig = Rig::new();
    let frames = [frame(60, 1), frame(1514, 2), frame(14, 3), frame(FRAME_BYTES_MAX, 4)];
    rig.guest.write_all(&framed(&frames)).unwrap();
    assert!(rig.receive().unwrap() == frames);
    assert_eq!(rig.receive().unwrap(), [[0; 0]; 0]);
    let received = rig.stream.counters().received;
    assert_eq!((received.packets, received.bytes), (4, (60 + 1514 + 14 + FRAME_BYTES_MAX) as u64));
    assert_eq!(rig.ledger.copied(), 0);
    rig.assert_all_back();
}

#[test]
fn a_frame_in_bits_is_put_together() {
    let mut rig = Rig::new();
    let frames = [frame(1514, 5), frame(3000, 6)];
    let mut received = Vec::new();
    for byte in framed(&frames) {
        assert_eq!(rig.write(&[byte]), 1);
        received.append(&mut rig.receive().unwrap());
    }
    assert!(received == frames);
    assert!(rig.ledger.copied_at(Site::Squeeze) > 0);
    assert_eq!(rig.ledger.copied(), rig.ledger.copied_at(Site::Squeeze));
    rig.assert_all_back();
}

#[test]
fn memory_that_is_short_delays_frames_and_loses_none() {
    // As many large frames as an incomplete frame may have pieces, and one to copy them into.
    let config = MemoryConfig { packets: 2, small_frames: 2, large_frames: UNREAD_MAX + 1 };
    let mut rig = Rig::with(config);
    let frames: Vec<_> = (0..20).map(|seed| frame(9000, seed)).collect();
    let bytes = framed(&frames);
    let (mut at, mut received) = (0, Vec::new());
    for round in 0..ROUNDS {
        let count = if round % 50 == 0 { 40_000 } else { 77 };
        at += rig.write(&bytes[at..(at + count).min(bytes.len())]);
        received.append(&mut rig.receive().unwrap());
        if received.len() == frames.len() {
            break;
        }
    }
    assert!(received == frames);
    let paused = rig.stream.counters().receive_paused;
    assert!(paused > 0 && rig.paused == paused, "reported each time");
    rig.assert_all_back();
}

#[test]
fn runts_are_dropped_and_counted() {
    let mut rig = Rig::new();
    let frames = [frame(0, 0), frame(13, 1), frame(14, 2), frame(1, 3)];
    rig.guest.write_all(&framed(&frames)).unwrap();
    assert_eq!(rig.receive().unwrap(), [frame(14, 2)]);
    assert_eq!(rig.stream.counters().receive_short, 3);
    rig.assert_all_back();
}

#[test]
fn what_is_no_stream_of_frames_ends_the_connection() {
    let mut rig = Rig::new();
    let length = FRAME_BYTES_MAX as u32 + 1;
    rig.guest.write_all(&length.to_be_bytes()).unwrap();
    assert_eq!(rig.receive(), Err(StreamError::FrameTooLong(length)));
    let mut rig = Rig::new();
    rig.guest.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    assert_eq!(rig.receive(), Err(StreamError::FrameTooLong(u32::from_be_bytes(*b"GET "))));
}

#[test]
fn the_end_of_the_connection_is_reported_both_ways() {
    let mut rig = Rig::new();
    let whole = frame(60, 1);
    rig.guest.write_all(&framed(&[whole.clone(), frame(60, 2)])[..100]).unwrap();
    rig.guest.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rig.receive().unwrap(), [whole]);
    assert_eq!(rig.receive(), Err(StreamError::Closed));

    let mut rig = Rig::new();
    let packet = rig.packet(&frame(60, 1), 100);
    rig.guest = UnixStream::pair().unwrap().0;
    let mut burst = Burst::new();
    burst.push(packet).unwrap();
    assert_eq!(rig.transmit(&mut burst), Err(StreamError::Closed));
}

#[test]
fn packets_leave_in_few_writes() {
    let mut rig = Rig::new();
    let frames: Vec<_> = (0..8).map(|seed| frame(1514, seed)).collect();
    let mut burst = Burst::new();
    for frame in &frames {
        burst.push(rig.packet(frame, 16_000)).unwrap();
    }
    rig.transmit(&mut burst).unwrap();
    assert!(burst.is_empty() && !rig.stream.has_unsent());
    assert_eq!(rig.read(100_000), framed(&frames));
    let sent = rig.stream.counters().transmitted;
    assert_eq!((sent.packets, sent.bytes, sent.calls), (8, 8 * 1514, 1));
    assert_eq!(rig.ledger.copied(), 0);
    rig.assert_all_back();
}

/// Goal: a guest that truncates its memory file loses its own packets; others arrive, and the
/// connection continues.
#[test]
fn a_packet_whose_memory_was_cut_is_dropped_alone() {
    const BUFFER: u64 = 0x1_0000;
    let mut rig = Rig::new();
    let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let other = file.try_clone().unwrap();
    let ram = GuestRam::in_file(file, 0, &[0x2_0000]).unwrap();
    let mut driver = DriverQueue::new(&ram, 0, 16, 0).unwrap();
    let mut queue = TransmitQueue::start(driver.config(), &ram.map().unwrap(), None).unwrap();
    assert!(driver.add(&[Segment { address: BUFFER, bytes: 12 + 1000 }], &[], 0));
    driver.publish();
    let mut burst = Burst::new();
    queue.take(&mut burst, &mut cx(&mut rig.memory, &rig.ledger)).unwrap();
    let cut = burst.pop().expect("a packet");
    rustix::fs::ftruncate(&other, BUFFER).unwrap();
    let frames = [frame(700, 1), frame(800, 2)];
    let packets = [rig.packet(&frames[0], 1000), cut, rig.packet(&frames[1], 1000)];
    packets.into_iter().for_each(|packet| burst.push(packet).unwrap());
    rig.transmit(&mut burst).unwrap();
    assert_eq!(rig.read(10_000), framed(&frames));
    assert_eq!(rig.stream.counters().transmit_cut, 1);
}

#[test]
fn a_socket_that_is_full_is_gone_on_with_where_it_stopped() {
    let mut rig = Rig::new();
    rustix::net::sockopt::set_socket_send_buffer_size(&rig.stream, 4096).unwrap();
    let frames: Vec<_> = (0..6).map(|seed| frame(30_000 + seed, seed)).collect();
    let mut waiting = Burst::new();
    for frame in &frames {
        waiting.push(rig.packet(frame, 2000)).unwrap();
    }
    let (mut bytes, mut had_unsent) = (Vec::new(), false);
    for _ in 0..ROUNDS {
        rig.transmit(&mut waiting).unwrap();
        had_unsent |= rig.stream.has_unsent();
        bytes.append(&mut rig.read(999));
        if bytes.len() == framed(&frames).len() {
            break;
        }
    }
    assert!(bytes == framed(&frames));
    assert!(had_unsent && rig.stream.counters().transmit_full > 0);
    assert!(!rig.stream.has_unsent() && waiting.is_empty());
    rig.assert_all_back();
}

/// Goal: the rest of the last packet is written when there is room, without another packet. Method:
/// only the port's turns, and only if its file says that there is something to do.
#[test]
fn a_port_writes_the_rest_of_its_last_packet() {
    let (ours, mut guest) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    guest.set_nonblocking(true).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&ours, 4096).unwrap();
    let mut port = StreamPort::from_socket(ours.into(), 1500).unwrap();
    let mut rig = Rig::new();
    let frame = frame(60_000, 1);
    let mut burst = Burst::new();
    burst.push(rig.packet(&frame, 8000)).unwrap();
    let cx = &mut cx(&mut rig.memory, &rig.ledger);
    port.transmit(&mut burst, cx).unwrap();
    assert!(burst.is_empty(), "the port has taken it");
    let expected = framed(&[frame]);
    let (mut bytes, mut part): (Vec<u8>, _) = (Vec::new(), [0; 999]);
    for _ in 0..ROUNDS {
        match guest.read(&mut part) {
            Ok(count) => bytes.extend(&part[..count]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        if is_readable(&port) {
            port.turn(true, cx).unwrap();
        }
        if bytes.len() == expected.len() {
            break;
        }
    }
    assert!(bytes == expected);
    assert!(!is_readable(&port), "it asks for no more room");
}

fn is_readable(port: &StreamPort) -> bool {
    let (mut events, mut reactor) = (Events::new(), Reactor::new().unwrap());
    reactor.add(port, 0, Interest::READ, false).unwrap();
    reactor.wait(Some(Duration::ZERO), &mut events).unwrap();
    !events.is_empty()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..<_>::default() })]

    /// Goal: the same frames arrive, however the writes split the stream.
    #[test]
    fn frames_arrive_however_they_are_cut(
        lengths in prop::collection::vec(14..9000usize, 1..20),
        cuts in prop::collection::vec(1..4000usize, 1..40),
    ) {
        let mut rig = Rig::new();
        let frames: Vec<_> = lengths.iter().map(|&length| frame(length, length)).collect();
        let bytes = framed(&frames);
        let (mut at, mut received) = (0, Vec::new());
        for &cut in cuts.iter().cycle().take(ROUNDS) {
            at += rig.write(&bytes[at..(at + cut).min(bytes.len())]);
            received.append(&mut rig.receive().unwrap());
            if received.len() == frames.len() {
                break;
            }
        }
        prop_assert!(received == frames);
        rig.assert_all_back();
    }
}

/// Goal: guests connect one after the other, and each is served.
#[test]
fn a_port_serves_one_guest_after_the_other() {
    let path = std::env::temp_dir().join(format!("towpath-stream-{}", std::process::id()));
    let mut port = StreamPort::listen(&path, 1500).unwrap();
    let config = MemoryConfig { packets: 16, small_frames: 16, large_frames: 16 };
    let (mut memory, ledger) = (Memory::new(config), Ledger::new());
    let mut burst = Burst::new();
    let mut packet = memory.packet().unwrap();
    packet.push_header(60);
    burst.push(packet).unwrap();
    port.transmit(&mut burst, &mut cx(&mut memory, &ledger)).unwrap();
    assert_eq!((burst.len(), port.sessions()), (0, (0, 1)), "no guest is connected");

    let mut guests = [(); 2].map(|()| UnixStream::connect(&path).unwrap());
    for (count, guest) in (1..).zip(&mut guests) {
        port.turn(true, &mut cx(&mut memory, &ledger)).unwrap();
        assert!(port.is_connected());
        let sent = frame(100, count);
        guest.write_all(&framed(std::slice::from_ref(&sent))).unwrap();
        port.receive(&mut burst, &mut cx(&mut memory, &ledger)).unwrap();
        assert_eq!(bytes_of(&burst.pop().unwrap()), sent);
        let mut packet = memory.packet().unwrap();
        packet.push_header(sent.len()).copy_from_slice(&sent);
        burst.push(packet).unwrap();
        port.transmit(&mut burst, &mut cx(&mut memory, &ledger)).unwrap();
        let mut back = vec![0; 4 + sent.len()];
        guest.read_exact(&mut back).unwrap();
        assert_eq!(back, framed(std::slice::from_ref(&sent)));
        guest.shutdown(std::net::Shutdown::Both).unwrap();
        port.receive(&mut burst, &mut cx(&mut memory, &ledger)).unwrap();
        assert_eq!(port.take_end(), Some(StreamError::Closed));
        assert_eq!(port.counters().received.packets, count as u64);
    }
    assert!(!port.is_connected());
    drop(port);
    assert!(!path.exists());
}

/// Goal: a port with a given connection serves it, and after its end waits for no other.
#[test]
fn a_port_serves_a_given_connection() {
    let (ours, mut guest) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut port = StreamPort::from_socket(ours.into(), 1500).unwrap();
    let config = MemoryConfig { packets: 16, small_frames: 16, large_frames: 16 };
    let (mut memory, ledger) = (Memory::new(config), Ledger::new());
    let mut burst = Burst::new();
    assert!(port.is_connected());
    let frame = [7; 60];
    guest.write_all(&[&60_u32.to_be_bytes()[..], &frame].concat()).unwrap();
    port.turn(true, &mut cx(&mut memory, &ledger)).unwrap();
    port.receive(&mut burst, &mut cx(&mut memory, &ledger)).unwrap();
    assert_eq!(burst.pop().map(|packet| bytes_of(&packet)), Some(frame.to_vec()));
    drop(guest);
    port.receive(&mut burst, &mut cx(&mut memory, &ledger)).unwrap();
    assert_eq!(port.take_end(), Some(StreamError::Closed));
    port.turn(true, &mut cx(&mut memory, &ledger)).unwrap();
    assert_eq!((port.is_connected(), port.sessions().0), (false, 1));
}
