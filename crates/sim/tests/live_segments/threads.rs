//! Threads that read and drop segments in any order, while their lender goes on.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use towpath_net::time::{Duration, Instant};
use towpath_packet::{Context, Ledger, Memory, Piece, Site};
use towpath_sim::link::{Freight, Link, LinkConfig, Live, Medium};
use towpath_sim::seed::{self, Rng};

use crate::frame::{self, Frame};
use crate::lenders::{Program, Source};

const READERS: usize = 3;
/// Super-packets that are lent.
const FRAMES: u32 = 400;
/// The most segments on their way to a reader, and the most that a reader keeps.
const QUEUED_MAX: usize = 64;
const KEPT_MAX: usize = 200;

/// What a reader keeps: a segment, or only one of its pieces and the bytes that it had.
enum Kept {
    Segment(Live),
    Piece(Piece, Vec<u8>),
}

impl Kept {
    fn new(live: Live, rng: &mut Rng, ledger: &Ledger) -> Self {
        let pieces = live.packet().piece_count() as u64;
        if rng.chance(500_000) {
            return Self::Segment(live);
        }
        let mut pieces = live.packet().pieces().skip(rng.below(pieces) as usize);
        let piece = pieces.next().expect("a segment has payload").clone();
        let bytes = bytes_of(&piece, ledger);
        Self::Piece(piece, bytes)
    }

    fn check(&self, ledger: &Ledger) {
        match self {
            Self::Segment(live) => assert_eq!(live.check(), Ok(())),
            Self::Piece(piece, bytes) => assert!(bytes_of(piece, ledger) == *bytes, "it changed"),
        }
    }
}

fn bytes_of(piece: &Piece, ledger: &Ledger) -> Vec<u8> {
    let mut bytes = vec![0; piece.len()];
    ledger.copy(Site::SocketReceive, piece, &mut bytes);
    bytes
}

/// Reads segments, and drops them in another order.
fn read(segments: &Receiver<Live>, mut rng: Rng) {
    let (mut kept, ledger) = (Vec::new(), Ledger::new());
    for live in segments {
        frame::check(live.bytes());
        kept.push(Kept::new(live, &mut rng, &ledger));
        while kept.len() > KEPT_MAX || !kept.is_empty() && rng.chance(400_000) {
            let which = rng.below(kept.len() as u64) as usize;
            kept.swap_remove(which).check(&ledger);
        }
    }
    kept.iter().for_each(|kept| kept.check(&ledger));
}

/// Lends super-packets, and gives each of their segments to one of the readers.
fn send(readers: &[SyncSender<Live>], rng: &mut Rng) -> Program {
    let mut source = Program::new();
    let (mut memory, ledger, now) = (Memory::new(crate::MEMORY), Ledger::new(), Instant::START);
    let mut config = LinkConfig::clean(Medium::Wire, 1500, Duration::ZERO);
    (config.loss, config.duplicate) = (50_000, 50_000);
    let mut wire: Link<Live> = Link::new(config);
    for number in 0..FRAMES {
        let frame = Frame::draw(number, rng);
        let mut cx = Context { memory: &mut memory, ledger: &ledger, now };
        let (mut packet, _) = source.send(&frame, rng, &mut cx).expect("enough memory");
        packet.peek_headers();
        packet.pull(frame.header_len);
        wire.send(packet, now, rng, &mut memory, &ledger);
        while let Some(live) = wire.arrive(now) {
            readers[rng.below(READERS as u64) as usize].send(live).expect("it reads to the end");
        }
    }
    assert_eq!(wire.problem(), None);
    source
}

#[test]
fn segments_that_other_threads_drop_return_each_loan_once() {
    let seed = seed::from_environment().unwrap_or_else(seed::fresh);
    let mut rng = Rng::new(seed);
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..READERS).map(|_| sync_channel(QUEUED_MAX)).unzip();
    let source = thread::scope(|scope| {
        let threads: Vec<_> = receivers
            .into_iter()
            .map(|segments| {
                let rng = Rng::new(rng.draw());
                scope.spawn(move || read(&segments, rng))
            })
            .collect();
        let source = send(&senders, &mut rng);
        drop(senders);
        for thread in threads {
            thread.join().unwrap_or_else(|_| panic!("seed {seed:#x}"));
        }
        source
    });
    let [lent, returned] = source.counts();
    assert_eq!(lent, returned, "seed {seed:#x}");
}
