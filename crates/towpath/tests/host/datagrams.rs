//! Datagrams that lend their buffers.

use super::*;
use towpath::host::{ReceivedPiece, SendTo};

/// Creates two hosts with connected sockets.
fn sockets(one: &Config) -> (Host, Host, UdpSocket, UdpSocket) {
    let (a, b) = Host::pair(one, &config(2)).expect("two hosts");
    let own = "10.0.0.1:7";
    let socket = UdpSocket::bind(&a, own).expect("bound");
    let peer = UdpSocket::bind(&b, address()).expect("bound");
    socket.connect(address()).expect("connected");
    peer.connect(own).expect("connected");
    for socket in [&socket, &peer] {
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    }
    (a, b, socket, peer)
}

fn receive(peer: &UdpSocket) -> Vec<u8> {
    let mut into = vec![0; 70_000];
    let count = peer.recv(&mut into).expect("receives");
    into.truncate(count);
    into
}

/// Goal: buffers of all sizes and kinds are sent as datagrams without a copy, and come back like
/// those of streams.
#[test]
fn datagrams_are_lent_and_come_back() {
    let (a, b, socket, peer) = sockets(&config(1));
    let mut sends = Completions::new();
    for len in [0, 1, 1472, 1473, 20_000, 65_507] {
        sends.push(socket.send_zc(pattern(len, len)).expect("sends"));
        assert_same(&receive(&peer), &pattern(len, len));
        let returned = sends.wait_next().expect("is there");
        assert!(returned.buffer == pattern(len, len) && !returned.copied);
    }
    let chain = Chain(vec![pattern(10, 1), Vec::new(), pattern(3000, 2)]);
    let sending = socket.send_zc_to(chain.clone(), address()).expect("sends");
    assert_eq!(sending.accepted(), 3010);
    assert_same(&receive(&peer), &[&chain.0[0][..], &chain.0[2]].concat());
    assert!(sending.returned_within(PATIENCE).expect("back").buffer == chain);
    let cut = SendTo { segment_size: Some(1000), ..SendTo::default() };
    let sending = socket.send_zc_with(pattern(5500, 3), &cut).expect("sends");
    let received: Vec<usize> = (0..6).map(|_| receive(&peer).len()).collect();
    assert_eq!(received, [1000, 1000, 1000, 1000, 1000, 500]);
    assert!(!sending.returned_within(PATIENCE).expect("back").copied);
    let from = a.ledger().copied();
    assert_eq!(from, 0, "by the sender");
    drop((socket, peer));
    assert_all_back(&[&a, &b]);
}

/// Goal: calls that fail lend nothing and hand the buffer back. Tried: too long, too many parts,
/// segments larger than the MTU, no destination, port zero, an exhausted budget.
#[test]
fn what_cannot_be_sent_is_handed_back() {
    let limits = Config { lent_by_socket: 100_000, ..config(1) };
    let (a, b, socket, peer) = sockets(&limits);
    let long = socket.send_zc(pattern(65_508, 1)).expect_err("too long");
    assert_eq!(long.error.raw_os_error(), Some(libc::EMSGSIZE));
    assert!(long.buffer == pattern(65_508, 1));
    let parts = Chain((0..18).map(|seed| pattern(2, seed)).collect());
    let many = socket.send_zc(parts.clone()).expect_err("too many parts");
    assert_eq!(many.error.raw_os_error(), Some(libc::EMSGSIZE));
    assert!(many.buffer == parts);
    let cut = SendTo { segment_size: Some(1473), ..SendTo::default() };
    let wide = socket.send_zc_with(vec![1; 3000], &cut).expect_err("no such segments");
    assert_eq!((wide.error.raw_os_error(), wide.buffer.len()), (Some(libc::EMSGSIZE), 3000));
    let other = UdpSocket::bind(&a, "10.0.0.1:0").expect("bound");
    let nowhere = other.send_zc(vec![1; 3000]).expect_err("no destination");
    assert_eq!(nowhere.error.raw_os_error(), Some(libc::EDESTADDRREQ));
    let none = "10.0.0.2:0".parse().expect("an address");
    let none = other.send_zc_to(nowhere.buffer, none).expect_err("no such port");
    assert_eq!((none.error.kind(), none.buffer.len()), (ErrorKind::InvalidInput, 3000));
    assert_eq!(a.lent(), 0);
    socket.set_nonblocking(true).expect("a mode");
    let first = socket.send_zc(vec![2; 60_000]).expect("there is room");
    let full = socket.send_zc(vec![3; 60_000]).expect_err("no room");
    assert_eq!((full.error.kind(), full.buffer), (ErrorKind::WouldBlock, vec![3; 60_000]));
    assert_eq!(receive(&peer), [2; 60_000]);
    assert!(first.returned_within(PATIENCE).is_ok());
    socket.set_nonblocking(false).expect("a mode");
    let second = socket.send_zc(vec![4; 60_000]).expect("waits, if it has to");
    assert_eq!(receive(&peer), [4; 60_000]);
    assert!(second.returned_within(PATIENCE).is_ok());
    drop((socket, other, peer));
    assert_all_back(&[&a, &b]);
}

/// Goal: a peer that does not read cannot keep a buffer past its term or a recall, nor past the
/// default term; it still reads the bytes that were sent.
#[test]
fn unread_datagrams_are_returned() {
    let (a, b, socket, peer) = sockets(&config(1));
    let term = Some(Duration::from_millis(20));
    let own = SendTo { term, ..SendTo::default() };
    let termed = socket.send_zc_with(pattern(9000, 1), &own).expect("sends");
    let plain = socket.send_zc(pattern(9000, 2)).expect("sends");
    socket.set_term(term);
    assert_eq!(socket.term(), term);
    let by_socket = socket.send_zc(pattern(9000, 3)).expect("sends");
    for (sending, seed) in [(termed, 1), (by_socket, 3), (plain, 2)] {
        if seed == 2 {
            assert!(!sending.is_returned());
            sending.recall();
        }
        let mut returned = sending.returned_within(PATIENCE).expect("back");
        assert!(returned.copied && returned.buffer == pattern(9000, seed));
        returned.buffer.fill(0xff);
    }
    (1..=3).for_each(|seed| assert_same(&receive(&peer), &pattern(9000, seed)));
    drop((socket, peer));
    assert_all_back(&[&a, &b]);

    let (a, b, socket, peer) = sockets(&Config { default_term: term, ..config(1) });
    let sending = socket.send_zc(pattern(500, 4)).expect("sends");
    assert!(sending.returned_within(PATIENCE).expect("back").copied);
    assert_same(&receive(&peer), &pattern(500, 4));
    drop((socket, peer));
    assert_all_back(&[&a, &b]);
}

/// Returns the bytes of a datagram received without a copy.
fn shown(pieces: &[ReceivedPiece]) -> Vec<u8> {
    pieces.iter().flat_map(|piece| piece.bytes().expect("private").to_vec()).collect()
}

/// Goal: a datagram is received in the sender's memory, in one or several pieces, and the memory
/// goes back when the pieces are dropped. A copied datagram arrives in frames.
#[test]
fn datagrams_are_received_where_they_are() {
    let (a, b, socket, peer) = sockets(&config(1));
    let mut pieces = Vec::new();
    for len in [0, 1, 1472, 9000] {
        let buffer = pattern(len, 1);
        let from = buffer.as_ptr() as usize;
        let sending = socket.send_zc(buffer).expect("sends");
        let reported = peer.recv_lent(&mut pieces).expect("receives");
        assert_eq!(
            (reported.len, reported.copied, reported.from),
            (len, len, socket.local_addr().unwrap())
        );
        assert_same(&shown(&pieces), &pattern(len, 1));
        let first = pieces
            .first()
            .and_then(ReceivedPiece::bytes)
            .map_or(from, |view| view.as_ptr() as usize);
        assert_eq!(first, from, "{len}: it lies elsewhere");
        assert_eq!(sending.is_returned(), len == 0, "{len} bytes");
        pieces.clear();
        let returned = sending.returned_within(PATIENCE).expect("back");
        assert!(returned.buffer == pattern(len, 1) && !returned.copied);
    }
    let cut = SendTo { segment_size: Some(1000), ..SendTo::default() };
    let sending = socket.send_zc_with(pattern(3000, 2), &cut).expect("sends");
    let lens = [0; 3].map(|_| peer.recv_lent(&mut pieces).expect("receives").len);
    assert_eq!(lens, [1000, 1000, 1000]);
    assert_same(&shown(&pieces), &pattern(3000, 2));
    assert!(!sending.is_returned());
    drop(peer);
    assert_same(&shown(&pieces), &pattern(3000, 2));
    pieces.clear();
    assert!(!sending.returned_within(PATIENCE).expect("back").copied);
    assert_eq!((a.ledger().copied(), b.ledger().copied()), (0, 0));
    drop(socket);
    assert_all_back(&[&a, &b]);
}

/// Goal: kept pieces count against the receive buffer and finally make calls fail. Nothing is lost:
/// the datagram can still be copied, and be received once pieces were dropped. Also tried:
/// receiving without a datagram, non-blocking and with a timeout.
#[test]
fn a_reader_that_keeps_datagrams_has_room_for_fewer() {
    let (a, b, socket, peer) = sockets(&config(1));
    let mut pieces = Vec::new();
    peer.set_nonblocking(true).expect("a mode");
    let silence = peer.recv_lent(&mut pieces).expect_err("nothing was sent");
    assert_eq!((silence.kind(), pieces.len()), (ErrorKind::WouldBlock, 0));
    peer.set_nonblocking(false).expect("a mode");
    peer.set_options(|options| options.receive_buffer = Some(40_000)).expect("an option");
    // Each keeps a loan of its own length.
    socket.send(&pattern(15_000, 1)).expect("sends");
    socket.send(&pattern(15_000, 2)).expect("sends");
    assert_eq!(peer.recv_lent(&mut pieces).expect("room").len, 15_000);
    assert_eq!(peer.recv_lent(&mut pieces).expect("room").len, 15_000);
    socket.send(&pattern(15_000, 3)).expect("sends");
    let full = peer.recv_lent(&mut pieces).expect_err("much is kept");
    assert_eq!((full.raw_os_error(), pieces.len()), (Some(libc::ENOBUFS), 2));
    assert_eq!(receive(&peer), pattern(15_000, 3));
    socket.send(&pattern(15_000, 4)).expect("sends");
    assert!(peer.recv_lent(&mut pieces).is_err());
    assert_same(&shown(&pieces), &[pattern(15_000, 1), pattern(15_000, 2)].concat());
    pieces.clear();
    assert_eq!(peer.recv_lent(&mut pieces).expect("room again").len, 15_000);
    assert_same(&shown(&pieces), &pattern(15_000, 4));
    pieces.clear();
    peer.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
    assert_eq!(peer.recv_lent(&mut pieces).expect_err("no data").kind(), ErrorKind::WouldBlock);
    drop((socket, peer));
    assert_all_back(&[&a, &b]);
}

/// Goal: a socket that copies hands buffers back at once, including those with many parts; a socket
/// in `Auto` mode copies small ones and lends large ones; errors are the same in all modes.
#[test]
fn datagrams_are_copied_or_lent_as_the_socket_says() {
    let (a, b, socket, peer) = sockets(&config(1));
    assert_eq!(socket.send_mode(), SendMode::Lend);
    socket.set_send_mode(SendMode::Copy);
    let parts = Chain((0..100).map(|seed| pattern(seed % 3 * 40, seed)).collect());
    let sending = socket.send_zc(parts.clone()).expect("sends");
    assert!(sending.is_returned() && sending.accepted() == 99 * 40);
    assert_eq!(a.lent(), 0);
    assert_same(&receive(&peer), &parts.0.concat());
    let returned = sending.returned();
    assert!(returned.buffer == parts && returned.copied);
    let empty = socket.send_zc(Vec::new()).expect("sends").returned();
    assert!(!empty.copied && receive(&peer).is_empty());
    for mode in [SendMode::Copy, SendMode::Lend, SendMode::Auto] {
        socket.set_send_mode(mode);
        assert_eq!(socket.send_mode(), mode);
        let long = socket.send_zc(pattern(65_508, 1)).expect_err("too long");
        assert_eq!(long.error.raw_os_error(), Some(libc::EMSGSIZE));
        assert!(long.buffer == pattern(65_508, 1));
        for seed in 0..40 {
            for (size, lends) in [(1000, mode == SendMode::Lend), (60_000, mode != SendMode::Copy)]
            {
                let sending = socket.send_zc(pattern(size, seed)).expect("sends");
                let mut pieces = Vec::new();
                assert_eq!(peer.recv_lent(&mut pieces).expect("receives").len, size);
                assert_same(&shown(&pieces), &pattern(size, seed));
                assert_eq!(sending.is_returned(), !lends, "{mode:?} {size}");
                drop(pieces);
                let returned = sending.returned_within(PATIENCE).expect("back");
                assert!(returned.buffer == pattern(size, seed) && returned.copied != lends);
            }
        }
    }
    drop((socket, peer));
    assert_all_back(&[&a, &b]);
}

/// Goal: a buffer of many datagrams is one send in every mode. Each datagram arrives whole and in
/// order, each buffer of a chain as one, and the buffer comes back once; if the peer does not read,
/// after a recall.
#[test]
fn a_buffer_goes_as_many_datagrams() {
    let (a, b, socket, peer) = sockets(&config(1));
    peer.set_options(|options| options.receive_buffer = Some(16 << 20)).expect("an option");
    socket.set_options(|options| options.datagram.segment_size = 1000).expect("an option");
    let long = pattern(200_300, 5);
    let chain = Chain((0..200).map(|seed| pattern(1000, seed)).collect());
    for mode in [SendMode::Copy, SendMode::Lend, SendMode::Auto] {
        socket.set_send_mode(mode);
        let sending = socket.send_zc((long.clone(), Vec::new())).expect("sends");
        assert_eq!((sending.accepted(), sending.is_returned()), (200_300, mode == SendMode::Copy));
        for part in long.chunks(1000) {
            assert_same(&receive(&peer), part);
        }
        let returned = sending.returned_within(PATIENCE).expect("back");
        assert!(returned.buffer.0 == long && returned.copied == (mode == SendMode::Copy));
        let sending = socket.send_zc(chain.clone()).expect("sends");
        for part in &chain.0 {
            assert_same(&receive(&peer), part);
        }
        assert!(sending.returned_within(PATIENCE).expect("back").buffer == chain);
        let unread = socket.send_zc(long.clone()).expect("sends");
        unread.recall();
        assert!(unread.returned_within(PATIENCE).expect("back").buffer == long);
        for part in long.chunks(1000) {
            assert_same(&receive(&peer), part);
        }
    }
    drop((socket, peer));
    assert_all_back(&[&a, &b]);
}

/// Goal: however much is out, datagrams arrive in the order of their calls and with the options of
/// their calls, lent or copied, to one peer or another, cut or whole; and calls that cannot be sent
/// fail. Tried with more out than a call hands on itself: too long, segments larger than the MTU,
/// no such port.
#[test]
fn datagrams_keep_their_order_when_much_is_out() {
    let (a, b, socket, peer) = sockets(&config(1));
    peer.set_options(|options| options.receive_buffer = Some(16 << 20)).expect("an option");
    let other = UdpSocket::bind(&b, "10.0.0.2:81").expect("bound");
    other.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let (mut sends, mut pieces, mut kept) = (Completions::new(), Vec::new(), Vec::new());
    // Resolves the peer's link-layer address: the queue of packets that wait for one is bounded.
    socket.send(&[]).expect("sends");
    assert!(receive(&peer).is_empty());
    for round in 0..10 {
        let mut expected = Vec::new();
        for seed in 0..12 {
            let buffer = pattern(20_000 + seed, seed + round);
            sends.push(socket.send_zc(buffer.clone()).expect("sends"));
            expected.push(buffer);
        }
        let refused = [
            socket.send_zc(pattern(65_508, 1)).expect_err("too long"),
            socket.send_zc_to(pattern(9, 2), "10.0.0.2:0".parse().unwrap()).expect_err("nowhere"),
        ];
        let kinds = refused.map(|refused| refused.error.raw_os_error());
        assert_eq!(kinds, [Some(libc::EMSGSIZE), Some(libc::EINVAL)]);
        let to = "10.0.0.2:81".parse().expect("an address");
        sends.push(socket.send_zc_to(pattern(30_000, round), to).expect("sends"));
        sends.push(socket.send_zc_to(pattern(30_000, round), to).expect("sends"));
        expected.push(pattern(40_000, round));
        socket.send(&expected[12]).expect("sends");
        let cut = SendTo { segment_size: Some(1000), ..SendTo::default() };
        for seed in [3, 4] {
            let buffer = pattern(5000, seed);
            sends.push(socket.send_zc_with(buffer.clone(), &cut).expect("sends"));
            expected.extend(buffer.chunks(1000).map(<[u8]>::to_vec));
        }
        sends.push(socket.send_zc(pattern(50_000, round)).expect("sends"));
        expected.push(pattern(50_000, round));
        for buffer in expected {
            peer.recv_lent(&mut pieces).expect("receives");
            assert_same(&shown(&pieces), &buffer);
            // Much stays out until the end of the round.
            kept.append(&mut pieces);
        }
        kept.clear();
        for _ in 0..2 {
            let mut into = vec![0; 40_000];
            assert_eq!(other.recv(&mut into).expect("receives"), 30_000);
            assert_same(&into[..30_000], &pattern(30_000, round));
        }
        while let Some(returned) = sends.wait_next() {
            assert!(!returned.copied);
        }
    }
    drop((socket, peer, other));
    assert_all_back(&[&a, &b]);
}

/// Goal: some call reports a peer that no longer exists, and all buffers come back, including
/// queued ones.
#[test]
fn a_refusal_is_reported_to_a_queueing_sender() {
    let (a, b, socket, peer) = sockets(&config(1));
    let mut sends = Completions::new();
    sends.push(socket.send_zc(pattern(30_000, 0)).expect("sends"));
    assert_same(&receive(&peer), &pattern(30_000, 0));
    drop(peer);
    let refused = (0..100_000).find_map(|seed| match socket.send_zc(pattern(30_000, seed)) {
        Ok(sending) => {
            sends.push(sending);
            None
        }
        Err(refused) => Some(refused),
    });
    let refused = refused.expect("sooner or later");
    assert_eq!(refused.error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(refused.buffer.len(), 30_000);
    while let Some(returned) = sends.wait_next() {
        assert_eq!(returned.buffer.len(), 30_000);
    }
    drop(socket);
    assert_all_back(&[&a, &b]);
}
