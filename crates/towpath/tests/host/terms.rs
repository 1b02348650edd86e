//! Terms and recalls: lent buffers come back even if the peer does not read, and readers see the
//! original bytes.

use super::*;

/// Enough bytes that the peer's buffer, the connection's and the queue each hold some.
const MUCH: usize = 24 << 20;

/// Overwrites a returned buffer, which a reader of its memory would notice.
fn spoil(sending: towpath::host::Sending<Vec<u8>>, expected: &[u8]) {
    let mut returned = sending.returned_within(PATIENCE).expect("back without a reader");
    assert!(returned.copied);
    assert_same(&returned.buffer, expected);
    returned.buffer.fill(0xff);
}

fn assert_arrives(peer: &mut TcpStream, expected: &[u8]) {
    let mut received = vec![0; expected.len()];
    peer.read_exact(&mut received).expect("receives");
    assert_same(&received, expected);
}

/// Goal: a peer that does not read cannot keep a buffer past its term, wherever the bytes wait. The
/// bytes arrive unchanged, and their copy is charged until then. The call's term takes precedence
/// over the socket's.
#[test]
fn a_term_ends_what_a_stalled_peer_keeps() {
    let (a, b, stream, mut peer) = connection();
    stream.set_term(Some(Duration::from_millis(30)));
    assert_eq!(stream.term(), Some(Duration::from_millis(30)));
    let expected = pattern(MUCH, 1);
    let first = stream.send_zc(expected.clone()).expect("sends");
    let second = stream.send_zc_for(vec![7; 1000], PATIENCE * 1000).expect("sends");
    spoil(first, &expected);
    assert!(a.lent() > MUCH / 4, "unreceived bytes wait as a copy");
    assert!(!second.is_returned());
    assert_arrives(&mut peer, &expected);
    assert_arrives(&mut peer, &[7; 1000]);
    assert!(!second.returned().copied);
    drop((stream, peer));
    assert!(a.finish(PATIENCE) && b.finish(PATIENCE));
    assert_all_back(&[&a, &b]);
}

/// Goal: memory that comes back early does not let a program accumulate copies: it waits.
#[test]
fn copies_take_the_place_of_what_came_back() {
    let limits = Config { lent_by_socket: 2 * MUCH, ..config(1) };
    let pair = Host::pair(&limits, &config(2)).expect("two hosts");
    let (a, b, stream, mut peer) = connected(pair);
    let term = Duration::ZERO;
    let mut sent = 0;
    stream.set_write_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    // Each comes back before the next is sent, and still sending stops at some point.
    while let Ok(sending) = stream.send_zc_for(pattern(MUCH, sent), term) {
        spoil(sending, &pattern(MUCH, sent));
        sent += 1;
        assert!(sent < 10, "it never blocks");
    }
    assert!(sent >= 2);
    for seed in 0..sent {
        assert_arrives(&mut peer, &pattern(MUCH, seed));
    }
    drop((stream, peer));
    assert_all_back(&[&a, &b]);
}

/// Goal: acknowledged memory comes back, whether the peer never reads or keeps received pieces; a
/// view of the bytes holds the memory as long as the view exists.
#[test]
fn a_reader_keeps_what_is_acknowledged_for_the_default_term() {
    let short = Some(Duration::from_millis(20));
    let one = Config { default_term: short, ..config(1) };
    let pair = Host::pair(&one, &config(2)).expect("two hosts");
    let (a, b, stream, mut peer) = connected(pair);
    let (unread, kept) = (pattern(50_000, 1), pattern(8_000, 2));
    let mut pieces = Vec::new();
    let mut looked_in_time = || {
        pieces.clear();
        let sending = stream.send_zc(kept.clone()).expect("sends");
        while pieces.iter().map(towpath::host::ReceivedPiece::len).sum::<usize>() < kept.len() {
            peer.recv_lent(kept.len(), &mut pieces).expect("receives");
        }
        let views =
            || -> Vec<_> { pieces.iter().map(|piece| piece.bytes().expect("private")).collect() };
        let read = |views: &[towpath::host::View<'_>]| -> Vec<u8> {
            views.iter().flat_map(|view| view.to_vec()).collect()
        };
        let seen = views();
        let sending = sending.returned_within(Duration::from_millis(100));
        assert_same(&read(&seen), &kept);
        drop(seen);
        let in_time = sending.map_err(|sending| spoil(sending, &kept)).is_err();
        assert_same(&read(&views()), &kept);
        in_time
    };
    // On a busy machine a view may be taken too late, after the end of the term.
    assert!((0..100).any(|_| looked_in_time()), "a view holds its memory");
    spoil(stream.send_zc(unread.clone()).expect("sends"), &unread);
    assert_arrives(&mut peer, &unread);
    drop((stream, peer, pieces));
    assert_all_back(&[&a, &b]);
}

/// Goal: a recall returns memory wherever it waits, closes and loses nothing, and is a no-op for
/// memory that is back.
#[test]
fn a_recall_returns_unread_memory() {
    let (a, b, stream, mut peer) = connection();
    let read = stream.send_zc(vec![1; 1000]).expect("sends");
    assert_arrives(&mut peer, &[1; 1000]);
    let read = read.returned_within(PATIENCE).map(|returned| returned.copied).expect("back");
    assert!(!read);
    let expected = pattern(MUCH, 3);
    let sending = stream.send_zc(expected.clone()).expect("sends");
    sending.recall();
    sending.recall();
    spoil(sending, &expected);
    let mut sends = Completions::new();
    for seed in 0..4 {
        sends.push(stream.send_zc(pattern(MUCH / 8, seed)).expect("sends"));
    }
    sends.recall();
    let mut seed = 0;
    while let Some(mut returned) = sends.wait_next() {
        assert!(returned.copied && returned.buffer == pattern(MUCH / 8, seed));
        returned.buffer.fill(0xff);
        seed += 1;
    }
    let last = stream.send_zc(pattern(100, 9)).expect("nothing is closed");
    assert_arrives(&mut peer, &expected);
    (0..4).for_each(|seed| assert_arrives(&mut peer, &pattern(MUCH / 8, seed)));
    assert_arrives(&mut peer, &pattern(100, 9));
    while !last.is_returned() {
        thread::yield_now();
    }
    last.recall();
    assert!(!last.returned().copied, "it was back before");
    drop((stream, peer));
    assert_all_back(&[&a, &b]);
}

/// Goal: a recall also reaches sends of a socket that was closed, or whose host has ended.
#[test]
fn a_recall_reaches_closed_sockets() {
    let (a, b, stream, mut peer) = connection();
    let (first, second) = (pattern(MUCH, 1), pattern(MUCH, 2));
    let one = stream.send_zc(first.clone()).expect("sends");
    let two = stream.send_zc_for(second.clone(), Duration::from_millis(200)).expect("sends");
    drop(stream);
    one.recall();
    spoil(one, &first);
    spoil(two, &second);
    let mut received = Vec::new();
    peer.read_to_end(&mut received).expect("receives");
    assert_same(&received, &[first, second].concat());
    drop(peer);
    assert!(a.finish(PATIENCE) && b.finish(PATIENCE));
    assert_all_back(&[&a, &b]);

    let (a, b, stream, peer) = connection();
    let sending = stream.send_zc(vec![1; MUCH]).expect("sends");
    drop((stream, a));
    // No host is left to copy what the peer holds.
    sending.recall();
    drop((peer, b));
    assert_eq!(sending.returned_within(PATIENCE).expect("back").buffer.len(), MUCH);
}
