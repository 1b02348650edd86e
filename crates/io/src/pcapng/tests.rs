//! Capture files as other programs read them, and failing writes.

use super::*;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::process::Command;
use towpath_packet::{Memory, MemoryConfig, Piece};

fn memory() -> Memory {
    Memory::new(MemoryConfig { packets: 8, small_frames: 32, large_frames: 8 })
}

fn piece(memory: &mut Memory, bytes: &[u8]) -> Piece {
    let pool = if bytes.len() <= memory.small.frame_bytes() {
        &mut memory.small
    } else {
        &mut memory.large
    };
    let mut frame = pool.take().expect("free");
    frame[..bytes.len()].copy_from_slice(bytes);
    frame.freeze(bytes.len())
}

/// An Ethernet frame with an IPv4 UDP datagram to the discard port.
fn datagram(payload: usize) -> Vec<u8> {
    let mut frame = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x08, 0x00];
    let ip_bytes = (28 + payload) as u16;
    frame.extend([0x45, 0]);
    frame.extend(ip_bytes.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    frame.extend([0xc0, 0x00, 0, 9]);
    frame.extend((8 + payload as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend((0..payload).map(|index| index as u8));
    frame
}

fn raw_packet(memory: &mut Memory, parts: &[&[u8]]) -> Packet {
    let mut packet = memory.packet().expect("free");
    for part in parts {
        let piece = piece(memory, part);
        packet.push_piece(piece).expect("room");
    }
    packet
}

fn seen(direction: Direction, nanoseconds: u64, packet: &Packet) -> Seen<'_> {
    Seen { packet, bytes: packet.len(), direction, nanoseconds }
}

/// One block: type, body.
type Block = (u32, Vec<u8>);

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Reads blocks and checks that both of their lengths agree.
fn blocks(mut bytes: &[u8]) -> Vec<Block> {
    let mut blocks = Vec::new();
    while !bytes.is_empty() {
        let total = word(bytes, 4) as usize;
        assert!(total.is_multiple_of(4) && total >= 12 && total <= bytes.len());
        assert_eq!(word(bytes, total - 4) as usize, total);
        blocks.push((word(bytes, 0), bytes[8..total - 4].to_vec()));
        bytes = &bytes[total..];
    }
    blocks
}

fn contents(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("a file");
    file.read_to_end(&mut bytes).expect("readable");
    bytes
}

fn file() -> File {
    File::from(memfd_create("capture", MemfdFlags::CLOEXEC).expect("memory file"))
}

/// Goal: raw, peeked and pulled packets look alike in a capture, whatever their pieces.
#[test]
fn each_packet_state_is_captured_as_on_the_wire() {
    let mut memory = memory();
    let frame = datagram(3000);
    let mut writer = Writer::new(file(), "tap0", None).expect("header");
    let time = 1_700_000_000_123_456_789;

    let mut packet = raw_packet(&mut memory, &[&frame[..20], &frame[20..1000], &frame[1000..]]);
    writer.write_some(&seen(Direction::Inbound, time, &packet)).expect("written");
    packet.peek_headers();
    writer.write_some(&seen(Direction::Inbound, time, &packet)).expect("written");
    packet.pull(42);
    writer.write_some(&seen(Direction::Outbound, time, &packet)).expect("written");
    packet.pop_header(14);
    packet.push_header(14).copy_from_slice(&frame[..14]);
    writer.write_some(&seen(Direction::Outbound, time, &packet)).expect("written");
    assert_eq!(writer.packets(), 4);

    let bytes = contents(writer.into_inner());
    let blocks = blocks(&bytes);
    assert_eq!(blocks[0].0, SECTION_HEADER);
    assert_eq!(word(&blocks[0].1, 0), BYTE_ORDER_MAGIC);
    assert_eq!(blocks[1].0, INTERFACE_DESCRIPTION);
    assert_eq!(blocks.len(), 2 + 4);
    for (index, (kind, body)) in blocks[2..].iter().enumerate() {
        assert_eq!(*kind, ENHANCED_PACKET);
        let stamp = u64::from(word(body, 4)) << 32 | u64::from(word(body, 8));
        assert_eq!((word(body, 0), stamp), (0, time));
        assert_eq!((word(body, 12), word(body, 16)), (3042, 3042));
        assert!(body[20..20 + 3042] == frame[..], "packet {index} differs");
        let options = &body[20 + 3044..];
        let flags = if index < 2 { 1 } else { 2 };
        assert_eq!((options.len(), word(options, 4)), (12, flags));
    }
}

#[test]
fn a_snap_length_cuts_headers_and_pieces() {
    let mut memory = memory();
    let frame = datagram(2000);
    for snap in [0usize, 1, 13, 14, 41, 42, 43, 60, 61, 62, 63, 5000] {
        let mut packet = raw_packet(&mut memory, &[&frame[..60], &frame[60..]]);
        packet.peek_headers();
        packet.pull(42);
        let mut writer = Writer::new(file(), "tap0", Some(snap as u32)).expect("header");
        writer.write_some(&seen(Direction::Inbound, 0, &packet)).expect("written");
        let bytes = contents(writer.into_inner());
        let blocks = blocks(&bytes);
        let (_, body) = &blocks[2];
        let kept = snap.min(frame.len());
        assert_eq!((word(body, 12) as usize, word(body, 16) as usize), (kept, frame.len()));
        assert_eq!(body[20..20 + kept], frame[..kept]);
    }
}

/// Goal: an error leaves only whole blocks in a file, even if the file system accepted a part of
/// one. Method: a limit on the file size, in a child process.
#[test]
fn an_error_leaves_whole_blocks() {
    const CHILD: &str = "TOWPATH_FILE_LIMIT";
    const LIMIT: u64 = 10_000;
    let mut memory = memory();
    let packet = raw_packet(&mut memory, &[&datagram(1400)]);
    let full = File::options().write(true).open("/dev/full").expect("there");
    assert!(Writer::new(&full, "tap0", None).is_err());
    let Some(path) = std::env::var_os(CHILD) else {
        let path = std::env::temp_dir().join(format!("towpath-limit-{}", std::process::id()));
        let mut child = Command::new("prlimit");
        child.arg(format!("--fsize={LIMIT}")).args(["env", "--ignore-signal=XFSZ"]);
        child.arg(std::env::current_exe().expect("this program"));
        child.args(["--exact", "pcapng::tests::an_error_leaves_whole_blocks"]).env(CHILD, &path);
        match child.output() {
            Ok(output) => assert!(output.status.success(), "{output:?}"),
            Err(error) => eprintln!("skipped: prlimit: {error}"),
        }
        let _ = std::fs::remove_file(path);
        return;
    };
    let file = File::options().read(true).write(true).create_new(true).open(path).expect("new");
    let mut writer = Writer::new(file, "tap0", None).expect("header");
    let error = loop {
        match writer.write_some(&seen(Direction::Inbound, 0, &packet)) {
            Ok(is_whole) => assert!(is_whole),
            Err(error) => break error,
        }
    };
    assert_eq!(Errno::from_io_error(&error), Some(Errno::FBIG));
    assert!(!writer.is_within_block());
    let written = writer.packets();
    let bytes = contents(writer.into_inner());
    assert_eq!(blocks(&bytes).len() as u64, 2 + written);
    let of_packet = (bytes.len() as u64).checked_div(written).expect("some were written");
    assert!(bytes.len() as u64 + of_packet > LIMIT, "{} bytes", bytes.len());
}

/// Goal: a packet larger than a pipe is written in parts, its memory can return in between, and the
/// bytes are the same as without the pauses. Method: a reader that takes one page at a time.
#[test]
fn a_file_that_is_full_is_written_on_later() {
    let mut memory = memory();
    let frame = datagram(60_000);
    let packet = raw_packet(&mut memory, &frame.chunks(16 << 10).collect::<Vec<_>>());
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&writer, 8192).expect("a small pipe");
    let to = writable(writer).expect("a pipe");
    let mut writer = Writer::new(to, "tap0", None).expect("header");
    let (mut bytes, mut parts) = (Vec::new(), 0);
    let read = |bytes: &mut Vec<u8>| {
        let mut page = [0; 4096];
        let count = rustix::io::read(&reader, &mut page).expect("readable");
        bytes.extend_from_slice(&page[..count]);
    };
    while !writer.write_some(&seen(Direction::Inbound, 5, &packet)).expect("no error") {
        assert!(writer.is_within_block());
        parts += 1;
        read(&mut bytes);
    }
    let statistics = Statistics { seen: 9, accepted: 7, dropped: 6 };
    while !writer.end(&statistics, 1 << 40 | 7).expect("no error") {
        read(&mut bytes);
    }
    drop(writer);
    File::from(reader).read_to_end(&mut bytes).expect("readable");
    let blocks = blocks(&bytes);
    assert!(parts > 3 && blocks.len() == 4, "{parts} parts");
    assert!(blocks[2].1[20..20 + frame.len()] == frame[..]);
    let (kind, body) = &blocks[3];
    assert_eq!((*kind, word(body, 4), word(body, 8)), (INTERFACE_STATISTICS, 256, 7));
    let counts: Vec<_> = (0..4).map(|index| word(body, 16 + 12 * index)).collect();
    assert_eq!(counts, [9, 6, 7, 1]);
}

/// Goal: a pipe that is full at first receives the first blocks later.
#[test]
fn a_pipe_that_is_full_is_begun_later() {
    let mut memory = memory();
    let packet = raw_packet(&mut memory, &[&datagram(10)]);
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let size = rustix::pipe::fcntl_setpipe_size(&writer, 4096).expect("a small pipe");
    rustix::io::write(&writer, &vec![0; size]).expect("room");
    let to = writable(writer).expect("a pipe");
    let mut writer = Writer::new(to, "tap0", None).expect("later");
    let mut write = || writer.write_some(&seen(Direction::Inbound, 0, &packet)).expect("no error");
    assert!(!write());
    rustix::io::read(&reader, &mut vec![0; size]).expect("readable");
    assert!(write());
    drop(writer);
    let mut bytes = Vec::new();
    File::from(reader).read_to_end(&mut bytes).expect("readable");
    assert_eq!(blocks(&bytes).len(), 3);
}

/// Bad input tried: files that are neither on a disk nor pipes, and one that may not be written.
#[test]
fn what_cannot_be_written_to_is_refused() {
    let (socket, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
    assert!(writable(socket.into()).is_err());
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("one");
    assert!(writable(event).is_err());
    assert!(writable(File::open("/").expect("there").into()).is_err());
    let read_only = writable(File::open("/proc/self/status").expect("there").into());
    assert!(Writer::new(read_only.expect("a file"), "tap0", None).is_err());
}

/// Goal: other programs read the captures. Method: tshark, if it is installed, lists the packets.
#[test]
fn tshark_reads_it() {
    let path = std::env::temp_dir().join(format!("towpath-capture-{}.pcapng", std::process::id()));
    let file = File::create(&path).expect("a temporary file");
    let mut memory = memory();
    let mut writer = Writer::new(file, "tap0", None).expect("header");
    for payload in [0, 1, 2, 3, 1472] {
        let packet = raw_packet(&mut memory, &[&datagram(payload)]);
        writer
            .write_some(&seen(Direction::Outbound, 1_700_000_000_000_000_001, &packet))
            .expect("written");
    }
    drop(writer);
    let fields = ["frame.len", "frame.time_epoch", "frame.interface_name", "udp.dstport"];
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&path).args(["-T", "fields"]);
    fields.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let output = command.output();
    std::fs::remove_file(&path).expect("ours");
    let Ok(output) = output else {
        println!("skipped: tshark is not installed");
        return;
    };
    let text = String::from_utf8(output.stdout).expect("text");
    let expected: String = [42, 43, 44, 45, 1514]
        .iter()
        .map(|len| format!("{len}\t1700000000.000000001\ttap0\t9\n"))
        .collect();
    assert_eq!(text, expected);
}
