//! Sniffers: the frames lent to them, their filters, and the return of the lent memory.

use super::*;
use towpath::host::{FrameKind, ReceivedPiece, Sniffer, bpf};

/// Ethernet, IPv4, UDP.
const HEADERS: usize = 14 + 20 + 8;

struct Pair {
    a: Host,
    b: Host,
    socket: UdpSocket,
    peer: UdpSocket,
}

impl Pair {
    fn new() -> Self {
        let (a, b) = pair();
        let own = "10.0.0.1:7";
        let socket = UdpSocket::bind(&a, own).expect("bound");
        let peer = UdpSocket::bind(&b, address()).expect("bound");
        socket.connect(address()).expect("connected");
        peer.connect(own).expect("connected");
        peer.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { a, b, socket, peer }
    }

    fn sniffer(host: &Host, filter: &str) -> Sniffer {
        let program = bpf::compile(filter).expect("an expression");
        let sniffer = host.sniffer(Some(program)).expect("a sniffer");
        sniffer.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        sniffer
    }

    fn receive(&self) -> Vec<u8> {
        let mut into = vec![0; 70_000];
        let count = self.peer.recv(&mut into).expect("receives");
        into.truncate(count);
        into
    }

    fn end(self) {
        let Self { a, b, socket, peer } = self;
        drop((socket, peer));
        assert_all_back(&[&a, &b]);
    }
}

/// A frame that was lent.
struct Frame {
    kind: FrameKind,
    headers: Vec<u8>,
    pieces: Vec<ReceivedPiece>,
}

impl Frame {
    fn next(sniffer: &Sniffer) -> Self {
        let (mut headers, mut pieces) = (Vec::new(), Vec::new());
        let reported = sniffer.recv_lent(&mut headers, &mut pieces).expect("a frame");
        assert_eq!(
            reported.len,
            headers.len() + pieces.iter().map(ReceivedPiece::len).sum::<usize>()
        );
        Self { kind: reported.link.expect("it is reported").kind, headers, pieces }
    }

    fn payload(&self) -> Vec<u8> {
        let shown = self.pieces.iter().map(|piece| piece.bytes().expect("private").to_vec());
        shown.collect::<Vec<_>>().concat()
    }
}

fn is_silent(sniffer: &Sniffer) -> bool {
    let (mut headers, mut pieces) = (vec![1], Vec::new());
    sniffer.set_nonblocking(true).expect("a mode");
    let silence = sniffer.recv_lent(&mut headers, &mut pieces).err().map(|error| error.kind());
    sniffer.set_nonblocking(false).expect("a mode");
    silence == Some(ErrorKind::WouldBlock) && headers == [1] && pieces.is_empty()
}

/// Goal: at either host a sniffer gets the sender's own memory without a copy, and the lender gets
/// it back when the last holder has released it.
#[test]
fn frames_are_lent_where_they_lie() {
    let pair = Pair::new();
    let sniffers = [(&pair.a, FrameKind::Outgoing), (&pair.b, FrameKind::Host)];
    let sniffers = sniffers.map(|(host, kind)| (Pair::sniffer(host, "udp"), kind));
    // The second length makes three large fragments: short ones would be packed, that is, copied.
    for len in [1000, 4432] {
        let buffer = pattern(len, 1);
        let from = buffer.as_ptr() as usize;
        let sending = pair.socket.send_zc(buffer).expect("sends");
        let mut received = Vec::new();
        pair.peer.recv_lent(&mut received).expect("receives");
        drop(received);
        for (sniffer, kind) in &sniffers {
            // In as many fragments as the MTU requires, if the link does not carry it whole.
            let mut at = 0;
            while at < len {
                let frame = Frame::next(sniffer);
                assert_eq!(frame.kind, *kind);
                assert_eq!(frame.headers[12..14], [8, 0]);
                // Headers of a received frame are a piece of their own, except the Ethernet header.
                for piece in &frame.pieces {
                    let is_next = piece.piece().pin().address() as usize == from + at;
                    assert!(is_next || piece.len() <= HEADERS - 14, "a copy");
                    at += if is_next { piece.len() } else { 0 };
                }
                assert!(!sending.is_returned(), "it is looked at");
            }
        }
        let returned = sending.returned_within(PATIENCE).expect("back");
        assert!(returned.buffer == pattern(len, 1) && !returned.copied);
    }
    assert_eq!((pair.a.ledger().copied(), pair.b.ledger().copied()), (0, 0));
    drop(sniffers);
    pair.end();
}

/// Goal: a sniffer gets only frames that pass the filter, and as much of them as the filter
/// returns. Rejected frames hold no memory, and the socket still receives them.
#[test]
fn filters_decide_what_comes_and_how_much() {
    let pair = Pair::new();
    let large = Pair::sniffer(&pair.b, "udp dst port 80 and greater 500");
    let arp = Pair::sniffer(&pair.b, "arp and host 192.0.2.9");
    // Returns 50 for each frame.
    let cut = vec![bpf::Instruction { code: 0x06, jt: 0, jf: 0, k: 50 }];
    let cut = bpf::Program::new(cut).expect("a program");
    let cut = pair.b.sniffer(Some(cut)).expect("a sniffer");
    cut.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    for (seed, len) in [(1, 100), (2, 1000), (3, 200)] {
        let sending = pair.socket.send_zc(pattern(len, seed)).expect("sends");
        assert_same(&pair.receive(), &pattern(len, seed));
        if seed == 2 {
            let frame = Frame::next(&large);
            let bytes = [frame.headers.clone(), frame.payload()].concat();
            assert_same(&bytes[HEADERS..], &pattern(1000, 2));
        }
        // Address resolution is also captured.
        let frame = loop {
            let frame = Frame::next(&cut);
            if frame.headers[12..14] == [8, 0] {
                break frame;
            }
        };
        let bytes = [frame.headers.clone(), frame.payload()].concat();
        assert_eq!((bytes.len(), &bytes[HEADERS..]), (50, &pattern(8, seed)[..]));
        drop(frame);
        assert!(!sending.returned_within(PATIENCE).expect("back").copied);
    }
    assert!(is_silent(&large) && is_silent(&arp));
    assert_eq!(large.take_statistics().expect("a socket"), (1, 0));
    assert_eq!(arp.take_statistics().expect("a socket"), (0, 0));
    arp.set_filter(None).expect("a socket");
    pair.socket.send(b"all").expect("sends");
    assert_eq!(pair.receive(), b"all");
    assert_eq!(Frame::next(&arp).kind, FrameKind::Host);
    drop((large, arp, cut));
    pair.end();
}

/// Goal: kept frames hold the sender's memory until its term and no longer, and show the bytes that
/// were sent; memory of unread frames goes back, too.
#[test]
fn a_term_ends_what_a_sniffer_keeps() {
    let pair = Pair::new();
    let sniffer = Pair::sniffer(&pair.b, "udp");
    let term = Some(Duration::from_millis(20));
    pair.socket.set_term(term);
    let kept = pair.socket.send_zc(pattern(1200, 1)).expect("sends");
    let frame = Frame::next(&sniffer);
    let waiting = pair.socket.send_zc(pattern(1300, 2)).expect("sends");
    for (sending, len, seed) in [(kept, 1200, 1), (waiting, 1300, 2)] {
        let mut returned = sending.returned_within(PATIENCE).expect("back though it is kept");
        assert!(returned.copied && returned.buffer == pattern(len, seed));
        returned.buffer.fill(0xff);
    }
    for (frame, len, seed) in [(frame, 1200, 1), (Frame::next(&sniffer), 1300, 2)] {
        let bytes = [frame.headers.clone(), frame.payload()].concat();
        assert_same(&bytes[HEADERS..], &pattern(len, seed));
        assert_same(&pair.receive(), &pattern(len, seed));
    }
    drop(sniffer);
    pair.end();
}

/// Goal: a sniffer that is not read loses frames and counts them; the traffic loses none.
#[test]
fn an_unread_sniffer_slows_no_traffic() {
    let pair = Pair::new();
    let sniffer = Pair::sniffer(&pair.b, "udp");
    sniffer.set_receive_buffer(20_000).expect("an option");
    let count = 100;
    for seed in 0..count {
        pair.socket.send(&pattern(1000, seed)).expect("sends");
        assert_same(&pair.receive(), &pattern(1000, seed));
    }
    let (wanted, lost) = sniffer.take_statistics().expect("a socket");
    assert!(lost > 0 && lost < wanted, "{lost} of {wanted}");
    assert_eq!(wanted as usize, count);
    let mut frames = 0;
    let (mut headers, mut pieces) = (Vec::new(), Vec::new());
    sniffer.set_nonblocking(true).expect("a mode");
    // Kept frames count as well, so few fit.
    while sniffer.recv_lent(&mut headers, &mut pieces).is_ok() {
        frames += 1;
        assert!(frames <= wanted, "too many frames");
        pieces.drain(..pieces.len() - 1);
    }
    assert_eq!(frames, wanted - lost);
    // Frames may be kept after the sniffer is dropped.
    drop(sniffer);
    pieces.clear();
    pair.end();
}
