//! What mirrors share, what they may keep, and that memory returns while the capture is not read.

use super::*;
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::Read;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use towpath_packet::{Ledger, Lender, Loans, Memory, MemoryConfig, Recall, Site, Watch};

/// So much frame memory that [`HELD_BYTES_MAX`] is the bound.
const MUCH: usize = 1 << 30;
/// Longest wait for another thread.
const PATIENCE: Duration = Duration::from_secs(60);

fn memory() -> Memory {
    Memory::new(MemoryConfig { packets: 64, small_frames: 64, large_frames: 32 })
}

fn bell() -> EventDoorbell {
    EventDoorbell::new().expect("a descriptor")
}

fn mirrored(settings: CaptureSettings, frame_bytes: usize) -> (Mirrors, Sniffer) {
    let mut mirrors = Mirrors::default();
    let sniffer = mirrors.add(settings, frame_bytes, Some(bell())).expect("a capture");
    (mirrors, sniffer)
}

/// Returns a frame with an EtherType, in one small or large frame of the pool.
fn frame(memory: &mut Memory, ethertype: u16, len: usize) -> Packet {
    let is_small = len <= memory.small.frame_bytes();
    let pool = if is_small { &mut memory.small } else { &mut memory.large };
    let mut bytes = pool.take().expect("free");
    for (at, byte) in bytes[..len].iter_mut().enumerate() {
        *byte = at as u8;
    }
    bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
    let mut packet = memory.packet().expect("free");
    packet.push_piece(bytes.freeze(len)).expect("room");
    packet
}

fn see(mirrors: &mut Mirrors, packets: &[Packet]) {
    mirrors.see(Direction::Inbound, packets.iter());
}

#[test]
fn packets_are_shared_and_come_back() {
    let mut memory = memory();
    let (mut mirrors, mut sniffer) = mirrored(CaptureSettings::default(), MUCH);
    assert!(sniffer.next().is_none() && sniffer.may_sleep());
    let packets = [frame(&mut memory, 0x0800, 1000), frame(&mut memory, 0x0806, 9000)];
    see(&mut mirrors, &packets);
    let first = sniffer.wait().expect("shared");
    assert_eq!((first.bytes, first.direction), (1000, Direction::Inbound));
    let piece = first.packet.pieces().next().expect("one");
    assert!(piece.same_loan(packets[0].pieces().next().expect("one")), "no byte was copied");
    assert_eq!(sniffer.held_bytes(), 2048 + 16_384);
    drop(packets);
    assert_eq!((memory.small.out_count(), memory.large.out_count()), (1, 1));
    drop((first, sniffer.next().expect("the other")));
    assert_eq!((memory.small.out_count(), memory.large.out_count()), (0, 0));
    assert_eq!(sniffer.held_bytes(), 0);
    let statistics = Statistics { seen: 2, accepted: 2, dropped: 0 };
    assert_eq!(sniffer.statistics(), statistics);
    drop(mirrors);
    assert!(sniffer.wait().is_none(), "the port has gone");
}

#[test]
fn only_what_the_filter_accepts_is_shared() {
    let mut memory = memory();
    let filter = Some(compile_filter("arp or greater 1500").expect("an expression"));
    let settings = CaptureSettings { filter, ..CaptureSettings::default() };
    let (mut mirrors, mut sniffer) = mirrored(settings, MUCH);
    let mut pulled = frame(&mut memory, 0x0806, 60);
    pulled.peek_headers();
    // As the switch leaves it: part of the filtered bytes is behind the private headers.
    pulled.pull(13);
    let packets = [frame(&mut memory, 0x0800, 60), pulled, frame(&mut memory, 0x0800, 1600)];
    see(&mut mirrors, &packets);
    let lengths: Vec<_> = std::iter::from_fn(|| sniffer.next()).map(|one| one.bytes).collect();
    assert_eq!(lengths, [60, 1600]);
    assert_eq!(sniffer.statistics(), Statistics { seen: 3, accepted: 2, dropped: 0 });
    assert_eq!(packets[0].headers().len(), 0, "looking changes nothing");
}

#[test]
fn short_snap_lengths_keep_no_memory() {
    let mut memory = memory();
    for (snap_bytes, held) in [(1, 0), (192, 0), (193, 16_384), (5000, 16_384)] {
        let settings = CaptureSettings { snap_bytes, ..CaptureSettings::default() };
        let (mut mirrors, mut sniffer) = mirrored(settings, MUCH);
        see(&mut mirrors, &[frame(&mut memory, 0x0800, 9000)]);
        assert_eq!(sniffer.held_bytes(), held, "{snap_bytes}");
        let one = sniffer.next().expect("shared");
        assert_eq!((one.packet.len(), one.bytes), (snap_bytes, 9000));
    }
}

/// Goal: a reader that does not read keeps a bounded part of the frames, whatever is sent. The
/// capture drops and counts the rest. Segments that share a loan count it once.
#[test]
fn what_is_kept_is_bounded() {
    let mut memory = memory();
    let frames = memory.capacity_bytes();
    let (mut mirrors, mut sniffer) = mirrored(CaptureSettings::default(), frames);
    let most = frames / HELD_SHARE;
    for _ in 0..60 {
        see(&mut mirrors, &[frame(&mut memory, 0x0800, 60)]);
        if memory.small.free_count() == 0 {
            break;
        }
        see(&mut mirrors, &[frame(&mut memory, 0x0800, 9000)]);
    }
    assert!(sniffer.held_bytes() <= most as u64 && sniffer.statistics().dropped > 50);
    let held = memory.small.out_count() * 2048 + memory.large.out_count() * 16_384;
    assert_eq!(held as u64, sniffer.held_bytes());
    sniffer.discard();
    assert_eq!((memory.small.out_count(), memory.large.out_count()), (0, 0));
    let statistics = sniffer.statistics();
    assert_eq!(statistics.dropped, statistics.accepted);

    let whole = frame(&mut memory, 0x0800, 9000);
    let segments: Vec<Packet> = (0..6)
        .map(|index| {
            let mut segment = memory.packet().expect("free");
            let piece = whole.pieces().next().expect("one").slice(1500 * index, 1500);
            segment.push_piece(piece).expect("room");
            segment
        })
        .collect();
    see(&mut mirrors, &segments);
    assert_eq!(sniffer.held_bytes(), 16_384);
    drop((whole, segments));
    for left in (0..6).rev() {
        drop(sniffer.next().expect("a segment"));
        let held = memory.large.out_count() as u64 * 16_384;
        assert_eq!((sniffer.held_bytes(), held > 0), (held, left > 0), "{left} segments are left");
    }
}

/// Goal: the sum of held bytes is right for consecutive packets that share loans in every way, some
/// of which are not accepted, and some of which find no room. The sum is zero at the end.
#[test]
fn chains_of_loans_are_counted_once() {
    let mut memory = memory();
    let filter = Some(compile_filter("greater 1000").expect("an expression"));
    let settings = CaptureSettings { filter, ..CaptureSettings::default() };
    // Room for three frames.
    let (mut mirrors, mut sniffer) = mirrored(settings, 3 * 16_384 * HELD_SHARE);
    let frames: Vec<Packet> = (0..4).map(|_| frame(&mut memory, 0x0800, 9000)).collect();
    let mut cut = |parts: &[(usize, u32)]| {
        let mut packet = memory.packet().expect("free");
        for (frame, bytes) in parts {
            let piece = frames[*frame].pieces().next().expect("one").slice(0, *bytes as usize);
            packet.push_piece(piece).expect("room");
        }
        packet
    };
    let packets = [
        cut(&[(0, 1400)]),
        cut(&[(0, 700), (1, 700)]),
        cut(&[(1, 60)]),
        cut(&[(1, 700), (1, 700), (2, 700)]),
        cut(&[(2, 1400)]),
        cut(&[(3, 1400)]),
        cut(&[(2, 1400)]),
    ];
    see(&mut mirrors, &packets);
    assert_eq!(sniffer.held_bytes(), 3 * 16_384);
    let statistics = Statistics { seen: 7, accepted: 6, dropped: 1 };
    assert_eq!(sniffer.statistics(), statistics);
    // Frames that packets in the ring still hold.
    for held in [3, 2, 1, 1, 0] {
        drop(sniffer.next().expect("kept"));
        assert_eq!(sniffer.held_bytes(), held * 16_384);
    }
    assert!(sniffer.next().is_none());
}

#[test]
fn a_full_ring_drops() {
    let mut memory = memory();
    let settings = CaptureSettings { snap_bytes: 60, ..CaptureSettings::default() };
    let (mut mirrors, mut sniffer) = mirrored(settings, MUCH);
    let one = [frame(&mut memory, 0x0800, 60)];
    for _ in 0..RING_LEN + 10 {
        see(&mut mirrors, &one);
    }
    assert_eq!(sniffer.statistics().dropped, 10);
    assert_eq!(std::iter::from_fn(|| sniffer.next()).count(), RING_LEN);
    see(&mut mirrors, &one);
    assert!(sniffer.next().is_some());
}

#[test]
fn the_port_learns_that_its_reader_is_gone() {
    let mut memory = memory();
    let ended = bell();
    let mut mirrors = Mirrors::default();
    let sniffer =
        mirrors.add(CaptureSettings::default(), MUCH, Some(ended.clone())).expect("a capture");
    see(&mut mirrors, &[frame(&mut memory, 0x0800, 60)]);
    assert_eq!(memory.small.out_count(), 1);
    drop(sniffer);
    assert_eq!(memory.small.out_count(), 0, "packets on the way are dropped");
    ended.wait();
    mirrors.reap();
    assert_eq!(mirrors.len(), 0);
}

/// Reports when memory is back with its lender.
struct ReturnCount(std::sync::Mutex<mpsc::Sender<bool>>);

impl Lender for ReturnCount {
    fn returned(&self, _: u64, copied: bool) {
        // The receiver may have stopped waiting.
        let _ = self.0.lock().expect("no panic").send(copied);
    }
}

/// Returns a packet of lent memory, like a guest's, and the right to recall it.
fn lent(
    memory: &mut Memory,
    loans: &mut Loans,
    bytes: &[u8],
) -> (Packet, Watch, mpsc::Receiver<bool>) {
    let (returned, came_back) = mpsc::channel();
    let lender = Arc::new(ReturnCount(std::sync::Mutex::new(returned)));
    let range = (0, bytes.len() as u32);
    let shared: Arc<Vec<u8>> = Arc::new(bytes.to_vec());
    let piece = loans.lend_as_foreign(&shared, range, lender, 0);
    let mut piece = piece.expect("a descriptor");
    let watch = piece.watch().expect("one holder");
    let mut packet = memory.packet().expect("free");
    packet.push_piece(piece).expect("room");
    (packet, watch, came_back)
}

/// Goal: a guest's packets are captured into a pipe that is not read. A recall returns their memory
/// at once, even in the middle of a write, and the bytes that are read later are the bytes sent.
#[test]
fn lent_memory_is_returned_while_unread() {
    let (mut memory, mut loans, ledger) = (memory(), Loans::new(8), Ledger::new());
    let (mut mirrors, sniffer) = mirrored(CaptureSettings::default(), MUCH);
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let (asked, asks) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).expect("a small pipe");
    let recorder = Recorder::new(sniffer, writer, "vm1", None, None).expect("a file");
    let recording = thread::spawn(move || recorder.run(asked.as_fd()));

    let bytes: Vec<u8> = (0..40_000_u32).map(|at| (at * 7) as u8).collect();
    let (packet, mut first, first_heard) = lent(&mut memory, &mut loans, &bytes);
    see(&mut mirrors, &[packet]);
    let (packet, mut second, second_heard) = lent(&mut memory, &mut loans, &bytes);
    see(&mut mirrors, &[packet]);
    for (watch, came_back) in [(&mut first, first_heard), (&mut second, second_heard)] {
        let mut tries = 0;
        // The write call pins it for a moment.
        while watch.recall(&ledger) == Recall::Busy {
            tries += 1;
            assert!(tries < 100_000, "the memory does not come back");
            thread::sleep(Duration::from_micros(100));
        }
        assert_eq!(came_back.recv_timeout(PATIENCE), Ok(true));
    }
    assert_eq!(
        ledger.copied_at(Site::Recall),
        2 * bytes.len() as u64,
        "copied once, by the recall"
    );

    let reading = thread::spawn(move || {
        let mut file = Vec::new();
        File::from(reader).read_to_end(&mut file).map(|_| file)
    });
    drop(mirrors);
    let summary = recording.join().expect("no panic");
    assert!(summary.error.is_none(), "{:?}", summary.error);
    let file = reading.join().expect("no panic").expect("readable");
    // On a slow machine the pipe may have been full for long enough to lose the second packet.
    let found = file.windows(bytes.len()).filter(|window| *window == bytes).count() as u64;
    assert!(found >= 1 && summary.written == found, "{summary:?}");
    assert_eq!(summary.statistics.dropped, 2 - found);
    drop((first, second, asks));
    assert_eq!(loans.out_count(), 0);
}

/// Goal: a full disk ends the capture and reports the reason. Nothing else ends.
#[test]
fn a_full_disk_ends_the_capture() {
    let mut memory = memory();
    let full = || File::options().write(true).open("/dev/full").expect("there");
    let (_mirrors, sniffer) = mirrored(CaptureSettings::default(), MUCH);
    let refused = Recorder::new(sniffer, full().into(), "vm1", None, None);
    assert_eq!(refused.err().and_then(|error| error.raw_os_error()), Some(28));

    let (mut mirrors, sniffer) = mirrored(CaptureSettings::default(), MUCH);
    let (file, asked) = (pipe_with(PipeFlags::CLOEXEC), pipe_with(PipeFlags::CLOEXEC));
    let ((reader, writer), (asked, _asks)) = (file.expect("a pipe"), asked.expect("a pipe"));
    let recorder = Recorder::new(sniffer, writer, "vm1", None, None).expect("a file");
    drop(reader);
    see(&mut mirrors, &[frame(&mut memory, 0x0800, 60)]);
    let summary = recorder.run(asked.as_fd());
    assert_eq!(summary.error.and_then(|error| error.raw_os_error()), Some(32));
    assert_eq!((summary.written, summary.statistics.dropped), (0, 1));
    assert_eq!(memory.small.out_count(), 0);
}

/// Goal: a recording ends after its number of packets, and a requested end loses nothing that
/// passed.
#[test]
fn recordings_end_on_request() {
    let mut memory = memory();
    let (asked, asks) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    drop(asks);
    for (count_max, written) in [(Some(2), 2), (None, 5)] {
        let (mut mirrors, sniffer) = mirrored(CaptureSettings::default(), MUCH);
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let recorder = Recorder::new(sniffer, writer, "vm1", None, count_max).expect("a file");
        for _ in 0..5 {
            see(&mut mirrors, &[frame(&mut memory, 0x0800, 60)]);
        }
        let summary = recorder.run(asked.as_fd());
        assert_eq!((summary.written, summary.error.is_none()), (written, true));
        assert_eq!(summary.statistics.dropped, 5 - written);
        mirrors.reap();
        assert_eq!((mirrors.len(), memory.small.out_count()), (0, 0));
        drop(reader);
    }
}
