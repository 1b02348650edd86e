//! Two hosts in one process: sockets, sends that lend, and the return of buffers. The link between
//! them needs no privileges.

mod datagrams;
mod each;
mod files;
mod options;
mod raw;
mod sniffers;
mod terms;

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use towpath::host::{
    Chain, Completions, Config, DropReason, Host, LentStats, SendMode, TcpListener, TcpStream,
    UdpSocket,
};

/// More than any step takes, so that a hanging test ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// Without the default term, which a slow machine may exceed.
fn config(last: u8) -> Config {
    Config { default_term: None, ..Config::with_address([10, 0, 0, last], 24) }
}

fn pair() -> (Host, Host) {
    Host::pair(&config(1), &config(2)).expect("two hosts")
}

fn address() -> SocketAddr {
    "10.0.0.2:80".parse().expect("an address")
}

/// Creates two hosts with a connection.
fn connection() -> (Host, Host, TcpStream, TcpStream) {
    connected(pair())
}

fn connected((a, b): (Host, Host)) -> (Host, Host, TcpStream, TcpStream) {
    let listener = TcpListener::bind(&b, address()).expect("listens");
    let stream = TcpStream::connect(&a, address()).expect("connects");
    let (peer, remote) = listener.accept().expect("accepted");
    assert_eq!(remote, stream.local_addr().expect("open"));
    for stream in [&stream, &peer] {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    }
    (a, b, stream, peer)
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + seed * 7) as u8).collect()
}

/// Reports where bytes differ.
fn assert_same(received: &[u8], expected: &[u8]) {
    let differ = received.iter().zip(expected).position(|(one, other)| one != other);
    assert_eq!((received.len(), differ), (expected.len(), None));
}

/// Waits until nothing is in use.
fn assert_all_back(hosts: &[&Host]) {
    for _ in 0..20_000 {
        if hosts.iter().all(|host| host.in_use() == 0 && host.lent() == 0) {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
    let left: Vec<_> = hosts.iter().map(|host| (host.in_use(), host.lent())).collect();
    panic!("in use and lent: {left:?}");
}

/// Goal: slices written by one call go out together: a small head does not leave alone, which would
/// make the rest wait for its ACK. Large slices are accepted up to a bound, in order.
#[test]
fn slices_of_one_call_go_out_together() {
    let (a, b, mut stream, mut peer) = connection();
    let (head, body, large) = (pattern(9, 1), pattern(100, 2), pattern(100_000, 3));
    let slices = [&head[..], &[], &body].map(IoSlice::new);
    assert_eq!(stream.write_vectored(&slices).expect("writes"), 109);
    let mut received = vec![0; 109];
    peer.read_exact(&mut received).expect("receives");
    assert_same(&received, &[&head[..], &body].concat());
    assert_eq!(peer.info().expect("a connection").data_segs_in, 1);
    let all = [&body[..], &large, &head].concat();
    let mut written = 0;
    while written < all.len() {
        let skipped = written.min(body.len());
        let middle = (written - skipped).min(large.len());
        let rest = written - skipped - middle;
        let slices = [&body[skipped..], &large[middle..], &head[rest..]].map(IoSlice::new);
        let count = stream.write_vectored(&slices).expect("writes");
        assert!((1..=all.len() - written).contains(&count));
        written += count;
    }
    let mut received = vec![0; all.len()];
    peer.read_exact(&mut received).expect("receives");
    assert_same(&received, &all);
    assert_eq!(stream.write_vectored(&[]).expect("nothing"), 0);
    drop((stream, peer));
    assert_all_back(&[&a, &b]);
}

#[test]
fn bytes_go_both_ways_and_end() {
    let (a, b, stream, mut peer) = connection();
    let sent = pattern(3 << 20, 1);
    let expected = sent.clone();
    let writer = thread::spawn(move || {
        (&stream).write_all(&sent).expect("sends");
        stream.shutdown(Shutdown::Write).expect("shuts down");
        let mut answer = Vec::new();
        (&stream).read_to_end(&mut answer).expect("an answer");
        let late = (&stream).write(b"late").expect_err("shut down");
        assert_eq!(late.kind(), ErrorKind::BrokenPipe);
        answer
    });
    let mut received = Vec::new();
    peer.read_to_end(&mut received).expect("receives");
    assert_same(&received, &expected);
    peer.write_all(b"answer").expect("sends");
    drop(peer);
    assert_eq!(writer.join().expect("no panic"), b"answer");
    assert!(a.finish(PATIENCE) && b.finish(PATIENCE));
    assert_all_back(&[&a, &b]);
}

/// Goal: a lent buffer is not copied on its way to a peer in the process, nor by the peer, and
/// comes back when the peer has released it.
#[test]
fn a_lent_buffer_is_received_where_it_is() {
    let (a, b, stream, peer) = connection();
    // Kept pieces take room of the receive buffer.
    peer.set_options(|options| options.receive_buffer = Some(8 << 20)).expect("an option");
    let buffer = pattern(1 << 20, 2);
    let (address, expected) = (buffer.as_ptr() as usize, buffer.clone());
    let sending = stream.send_zc(buffer).expect("sends");
    assert_eq!(sending.accepted(), expected.len());
    let (mut pieces, mut received) = (Vec::new(), 0);
    while received < expected.len() {
        let from = pieces.len();
        let count = peer.recv_lent(usize::MAX, &mut pieces).expect("receives");
        for piece in &pieces[from..] {
            assert_eq!(piece.piece().pin().address() as usize, address + received);
            assert!(*piece.bytes().expect("private") == expected[received..received + piece.len()]);
            received += piece.len();
        }
        assert!(count > 0);
    }
    let sending = sending.returned_within(Duration::from_millis(50)).expect_err("pieces are held");
    drop(pieces);
    let returned = sending.returned_within(PATIENCE).expect("all let go");
    assert_eq!(returned.buffer.as_ptr() as usize, address);
    assert!(returned.buffer == expected && !returned.copied);
    drop((stream, peer));
    assert_all_back(&[&a, &b]);
}

#[test]
fn all_kinds_of_buffers_are_sent_and_come_back() {
    let (_a, _b, stream, mut peer) = connection();
    static FIXED: [u8; 5000] = [9; 5000];
    let shared: Arc<[u8]> = pattern(70_000, 3).into();
    let boxed = pattern(10, 4).into_boxed_slice();
    let chain = Chain(vec![pattern(3, 5), Vec::new(), pattern(200_000, 6)]);
    let expected = [&FIXED[..], &shared, &boxed, &chain.0[0], &chain.0[2], &shared].concat();
    let fixed = stream.send_zc(&FIXED[..]).expect("sends");
    let first = stream.send_zc(shared.clone()).expect("sends");
    let second = stream.send_zc((boxed.clone(), chain.clone())).expect("sends");
    let third = stream.send_zc(shared.clone()).expect("sends");
    let nothing = stream.send_zc(Vec::new()).expect("sends nothing");
    let mut received = vec![0; expected.len()];
    peer.read_exact(&mut received).expect("receives");
    assert!(received == expected);
    assert_eq!(fixed.returned().buffer, &FIXED[..]);
    assert!(first.returned().buffer == shared && third.returned().buffer == shared);
    assert!(second.returned().buffer == (boxed, chain));
    assert!(nothing.returned().buffer.is_empty());
    assert_eq!(Arc::strong_count(&shared), 1);
}

/// Goal: the host's own buffers are lent like any others, and reused.
#[test]
fn a_buffer_of_the_host_is_lent_and_used_again() {
    let (a, _b, stream, mut peer) = connection();
    let mut buffer = a.buffer(40_000);
    buffer.copy_from_slice(&pattern(40_000, 1));
    let memory = buffer.as_ptr();
    let sending = stream.send_zc(buffer).expect("sends");
    let mut received = vec![0; 40_000];
    peer.read_exact(&mut received).expect("receives");
    assert_same(&received, &pattern(40_000, 1));
    let returned = sending.returned_within(PATIENCE).expect("back");
    assert!(!returned.copied);
    drop(returned);
    assert_eq!(a.buffer(50_000).as_ptr(), memory);
}

/// Goal: streams and datagrams lend over IPv6 as they do over IPv4.
#[test]
fn buffers_are_lent_over_ipv6() {
    let (a, b) = raw::hosts();
    let to = SocketAddr::new(raw::at(true, 2), 80);
    let listener = TcpListener::bind(&b, to).expect("listens");
    let stream = TcpStream::connect(&a, to).expect("connects");
    let (mut peer, _) = listener.accept().expect("accepted");
    let sending = stream.send_zc(pattern(300_000, 1)).expect("sends");
    let mut received = vec![0; 300_000];
    peer.read_exact(&mut received).expect("receives");
    assert_same(&received, &pattern(300_000, 1));
    let returned = sending.returned_within(PATIENCE).expect("back");
    assert!(returned.buffer == received && !returned.copied);

    let from = SocketAddr::new(raw::at(true, 1), 7);
    let socket = UdpSocket::bind(&a, from).expect("bound");
    let reader = UdpSocket::bind(&b, to).expect("bound");
    reader.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    for len in [1, 1452, 1453, 65_507] {
        let sending = socket.send_zc_to(pattern(len, len), to).expect("sends");
        assert_eq!(reader.recv_from(&mut received).expect("receives"), (len, from));
        assert_same(&received[..len], &pattern(len, len));
        assert!(!sending.returned_within(PATIENCE).expect("back").copied);
    }
    assert_eq!(a.ledger().copied(), 0, "by the sender");
    drop((stream, peer, listener, socket, reader));
    assert_all_back(&[&a, &b]);
}

#[test]
fn datagrams_go_both_ways() {
    let (a, b) = pair();
    let one = UdpSocket::bind(&a, "10.0.0.1:0").expect("bound");
    let other = UdpSocket::bind(&b, address()).expect("bound");
    for socket in [&one, &other] {
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    }
    let own = one.local_addr().expect("bound");
    assert_eq!(one.send_to(b"question", address()).expect("sent"), 8);
    let mut into = [0; 100];
    assert_eq!(other.peek_from(&mut into[..4]).expect("received"), (4, own));
    assert_eq!(other.recv_from(&mut into).expect("received"), (8, own));
    assert_eq!(&into[..8], b"question");
    other.connect(own).expect("connected");
    one.connect(address()).expect("connected");
    assert_eq!(one.peer_addr().expect("connected"), address());
    let long = pattern(20_000, 1);
    assert_eq!(other.send(&long).expect("sent in fragments"), 20_000);
    let mut received = vec![0; 20_000];
    assert_eq!(one.recv(&mut received).expect("received"), 20_000);
    assert_same(&received, &long);
    one.set_nonblocking(true).expect("a mode");
    assert_eq!(one.recv(&mut into).expect_err("no data").kind(), ErrorKind::WouldBlock);
    drop(other);
    one.set_nonblocking(false).expect("a mode");
    one.send(b"anybody?").expect("sent");
    assert_eq!(one.recv(&mut into).expect_err("no peer").kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn copying_brings_the_buffer_back_at_once() {
    let (a, _b, stream, mut peer) = connection();
    stream.set_send_mode(SendMode::Copy);
    let buffer = pattern(100_000, 7);
    let sending = stream.send_zc(buffer.clone()).expect("sends");
    assert!(sending.is_returned() && sending.accepted() == buffer.len());
    assert_eq!(a.lent(), 0);
    let returned = sending.try_returned().expect("back");
    assert!(returned.copied && returned.buffer == buffer);
    let mut received = vec![0; buffer.len()];
    peer.read_exact(&mut received).expect("receives");
    assert!(received == buffer);
}

#[test]
fn the_automatic_mode_copies_what_is_small_and_lends_what_is_large() {
    let (a, _b, stream, mut peer) = connection();
    stream.set_send_mode(SendMode::Auto);
    assert_eq!(stream.send_mode(), SendMode::Auto);
    let mut received = vec![0; 1 << 20];
    // Too few calls for a trial of the other way.
    for (size, copied) in [(1000, true), (1 << 20, false)] {
        for seed in 0..40 {
            let buffer = pattern(size, seed);
            let sending = stream.send_zc(buffer.clone()).expect("sends");
            assert_eq!(a.lent() == 0, copied, "{size}");
            peer.read_exact(&mut received[..size]).expect("receives");
            assert!(received[..size] == buffer);
            let returned = sending.returned();
            assert!(returned.copied == copied && returned.buffer == buffer);
        }
    }
}

/// Goal: a chain of many buffers, some of them empty, is sent and comes back, lent or copied.
#[test]
fn a_chain_of_ten_thousand_buffers_is_sent() {
    let (a, b, stream, mut peer) = connection();
    let chain = Chain((0..10_000).map(|seed| pattern(seed % 7 * 100, seed)).collect::<Vec<_>>());
    let expected = chain.0.concat();
    let reader = thread::spawn(move || {
        let mut received = Vec::new();
        peer.read_to_end(&mut received).expect("receives");
        received
    });
    for mode in [SendMode::Lend, SendMode::Copy] {
        stream.set_send_mode(mode);
        let returned = stream.send_zc(chain.clone()).expect("sends").returned();
        // In a packet with too many parts for one more, two parts are copied on the way.
        assert!(returned.buffer == chain && (returned.copied || mode == SendMode::Lend));
    }
    drop(stream);
    assert_same(&reader.join().expect("no panic"), &[&expected[..], &expected].concat());
    assert_all_back(&[&a, &b]);
}

/// Regression: a call that had copied a part lent the whole buffer when the mode changed.
#[test]
fn a_call_that_waits_keeps_its_mode() {
    let (_a, _b, stream, mut peer) = connection();
    stream.set_send_mode(SendMode::Copy);
    let buffer = pattern(32 << 20, 3);
    let (other, sent) = (stream.try_clone().expect("a handle"), buffer.clone());
    let writer = thread::spawn(move || other.send_zc(sent).expect("sends").returned());
    let mut received = vec![0; 1];
    peer.read_exact(&mut received).expect("receives");
    stream.set_send_mode(SendMode::Lend);
    let mut rest = vec![0; buffer.len() - 1];
    peer.read_exact(&mut rest).expect("receives");
    received.append(&mut rest);
    assert!(received == buffer && writer.join().expect("sent").copied);
    drop(stream);
    assert_eq!(peer.read(&mut received).expect("the end"), 0, "nothing is sent twice");
}

/// Goal: sends wait instead of failing, and a non-blocking call loses nothing.
#[test]
fn a_send_waits_for_its_budget_and_hands_the_buffer_back_if_it_must_not() {
    let limits = Config { lent_by_socket: 300_000, ..config(1) };
    let (a, b) = Host::pair(&limits, &config(2)).expect("two hosts");
    let listener = TcpListener::bind(&b, address()).expect("listens");
    let stream = TcpStream::connect(&a, address()).expect("connects");
    let (mut peer, _) = listener.accept().expect("accepted");
    let mut sends = Completions::new();
    stream.set_nonblocking(true).expect("a mode");
    let refused = loop {
        match stream.send_zc(pattern(100_000, sends.len())) {
            Ok(sending) => sends.push(sending),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.error.kind(), ErrorKind::WouldBlock);
    assert!(refused.buffer == pattern(100_000, sends.len()) && sends.len() == 2);
    assert_eq!(a.lent(), 2 * (100_000 + towpath::host::LENT_OVERHEAD));
    stream.set_nonblocking(false).expect("a mode");
    let writer = thread::spawn(move || {
        for seed in 2..30 {
            sends.push(stream.send_zc(pattern(100_000, seed)).expect("waits"));
        }
        let mut seed = 0;
        while let Some(returned) = sends.wait_next() {
            assert!(returned.buffer == pattern(100_000, seed), "in the order of the sends");
            seed += 1;
        }
        seed
    });
    let mut received = vec![0; 100_000];
    for seed in 0..30 {
        peer.read_exact(&mut received).expect("receives");
        assert!(received == pattern(100_000, seed));
    }
    assert_eq!(writer.join().expect("no panic"), 30);
    drop(peer);
    assert_all_back(&[&a, &b]);
}

/// Goal: users of one host do not use each other's budget.
#[test]
fn a_group_has_a_budget_of_its_own() {
    let (a, b) = pair();
    let listener = TcpListener::bind(&b, address()).expect("listens");
    let small = a.group(10_000);
    let one = TcpStream::connect(&small, address()).expect("connects");
    let two = TcpStream::connect(&small, address()).expect("connects");
    let other = TcpStream::connect(&a, address()).expect("connects");
    let peers: Vec<_> = (0..3).map(|_| listener.accept().expect("accepted")).collect();
    two.set_nonblocking(true).expect("a mode");
    let first = one.send_zc(vec![1; 8000]).expect("sends");
    let refused = two.send_zc(vec![1; 8000]).expect_err("shares the budget");
    assert_eq!(refused.error.kind(), ErrorKind::WouldBlock);
    other.send_zc(vec![1; 8000]).map(drop).expect("does not share it");
    let mut pieces = Vec::new();
    for (peer, _) in &peers[..1] {
        peer.recv_lent(usize::MAX, &mut pieces).expect("receives");
    }
    drop(pieces);
    first.returned();
    two.send_zc(refused.buffer).map(drop).expect("there is room");
}

/// Goal: closing loses neither bytes nor buffers.
#[test]
fn what_was_sent_before_the_close_arrives_and_comes_back() {
    let (a, b, stream, mut peer) = connection();
    let mut sends = Completions::new();
    for seed in 0..40 {
        sends.push(stream.send_zc(pattern(500_000, seed)).expect("sends"));
    }
    drop(stream);
    let mut received = Vec::new();
    peer.read_to_end(&mut received).expect("receives");
    assert_eq!(received.len(), 40 * 500_000);
    for seed in 0..40 {
        let returned = sends.wait_next().expect("is there").buffer;
        assert!(returned == pattern(500_000, seed));
        assert!(received[seed * 500_000..][..500_000] == returned);
    }
    drop(peer);
    assert!(a.finish(PATIENCE) && b.finish(PATIENCE));
    assert_all_back(&[&a, &b]);
}

/// Goal: bytes held back by a closed window when their sender closes all arrive, and quickly, once
/// the peer reads. Method: the peer reads nothing until the window has been probed for a while.
#[test]
fn what_was_sent_to_a_shut_window_before_the_close_arrives() {
    let (a, b, stream, mut peer) = connection();
    let mut sends = Completions::new();
    let sizes = [20_000, 30_000_000, 500_000];
    for (seed, size) in sizes.into_iter().enumerate() {
        sends.push(stream.send_zc(pattern(size, seed)).expect("sends"));
    }
    thread::sleep(Duration::from_millis(300));
    drop(stream);
    thread::sleep(Duration::from_millis(1500));
    let mut received = Vec::new();
    peer.read_to_end(&mut received).expect("receives");
    assert_eq!(received.len(), sizes.iter().sum::<usize>());
    let mut rest = &received[..];
    while let Some(returned) = sends.wait_next() {
        assert!(!returned.copied);
        assert_same(&rest[..returned.buffer.len()], &returned.buffer);
        rest = &rest[returned.buffer.len()..];
    }
    assert!(rest.is_empty());
    drop(peer);
    assert!(a.finish(PATIENCE) && b.finish(PATIENCE));
    assert_all_back(&[&a, &b]);
}

/// Goal: a buffer in more parts than there are loans arrives even after its socket was closed.
#[test]
fn what_needs_more_loans_than_there_are_arrives_after_the_close() {
    let (a, b, stream, mut peer) = connection();
    let mut sends = Completions::new();
    for seed in 0..70 {
        let chain = Chain((0..1000).map(|at| pattern(50, seed + at)).collect());
        sends.push(stream.send_zc(chain).expect("sends"));
    }
    drop(stream);
    let mut received = Vec::new();
    peer.read_to_end(&mut received).expect("receives");
    let mut expected = Vec::new();
    while let Some(returned) = sends.wait_next() {
        expected.append(&mut returned.buffer.0.concat());
    }
    assert_same(&received, &expected);
    drop(peer);
    assert!(a.finish(PATIENCE) && b.finish(PATIENCE));
    assert_all_back(&[&a, &b]);
}

/// Goal: buffers come back from a connection that is reset, and from a host that ends.
#[test]
fn buffers_come_back_whatever_ends() {
    let (a, b, stream, peer) = connection();
    let early = stream.send_zc(vec![1; 50_000_000]).expect("sends");
    let mut byte = [0];
    (&peer).read_exact(&mut byte).expect("receives");
    // Unread data makes the peer reset.
    drop(peer);
    assert_eq!(early.returned_within(PATIENCE).expect("back").buffer.len(), 50_000_000);
    let refused = loop {
        match stream.send_zc(vec![2; 1000]) {
            Ok(sending) => assert_eq!(sending.returned().buffer.len(), 1000),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.buffer, vec![2; 1000]);
    assert!(matches!(refused.error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
    drop(stream);
    assert_all_back(&[&a, &b]);

    let (a, b, stream, peer) = connection();
    let unread = stream.send_zc(vec![1; 50_000_000]).expect("sends");
    drop((stream, a));
    drop((peer, b));
    assert_eq!(unread.returned_within(PATIENCE).expect("back").buffer.len(), 50_000_000);
}

#[test]
fn a_buffer_is_freed_later_without_a_waiter() {
    let (a, b, stream, mut peer) = connection();
    let shared: Arc<[u8]> = pattern(900_000, 1).into();
    drop(stream.send_zc(shared.clone()).expect("sends"));
    assert!(Arc::strong_count(&shared) > 1, "in flight");
    let mut received = vec![0; shared.len()];
    peer.read_exact(&mut received).expect("receives");
    assert!(received == *shared);
    drop((stream, peer));
    assert_all_back(&[&a, &b]);
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
fn errors_are_those_of_the_standard_library() {
    let (a, b) = pair();
    let refused = TcpStream::connect(&a, address()).expect_err("no listener");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let nobody = "10.0.0.99:1".parse().expect("an address");
    let timeout = Duration::from_millis(30);
    let late = TcpStream::connect_timeout(&a, nobody, timeout).expect_err("no such host");
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    let listener = TcpListener::bind(&b, address()).expect("listens");
    let taken = TcpListener::bind(&b, address()).expect_err("taken");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    listener.set_nonblocking(true).expect("a mode");
    assert_eq!(listener.accept().expect_err("no peer").kind(), ErrorKind::WouldBlock);
    let foreign = TcpListener::bind(&b, "10.0.0.7:80");
    assert_eq!(foreign.expect_err("not ours").kind(), ErrorKind::AddrNotAvailable);
    let stream = TcpStream::connect(&a, address()).expect("connects");
    stream.set_read_timeout(Some(timeout)).expect("a timeout");
    assert_eq!((&stream).read(&mut [0]).expect_err("no data").kind(), ErrorKind::WouldBlock);
    let zero = stream.set_read_timeout(Some(Duration::ZERO)).expect_err("as std");
    assert_eq!(zero.kind(), ErrorKind::InvalidInput);
    let unread: io::Result<_> = stream.peek(&mut [0]);
    assert_eq!(unread.expect_err("no data").kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused() {
    let long = Config::with_address([10, 0, 0, 1], 33);
    let small = Config { mtu: 500, ..config(1) };
    let none = Config { memory: 0, ..config(1) };
    for (wrong, why) in [(long, "prefix"), (small, "MTU"), (none, "memory")] {
        let error = Host::pair(&config(2), &wrong).expect_err("refused").to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// Goal: packets for a host that is gone are dropped and counted, and lent memory comes back at the
/// latest when its own host ends.
#[test]
fn packets_for_a_host_that_is_gone_are_counted() {
    let (a, b, stream, peer) = connection();
    let gone = |host: &Host| {
        let of =
            |(reason, count): (DropReason, u64)| (reason == DropReason::LinkGone).then_some(count);
        host.drops().into_iter().find_map(of).unwrap_or(0)
    };
    assert_eq!((gone(&a), gone(&b)), (0, 0));
    assert_eq!(a.lent_stats(), LentStats::default());
    drop((peer, b));
    let sending = stream.send_zc(pattern(100_000, 1)).expect("it is open");
    for _ in 0..50_000 {
        if gone(&a) > 0 {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    assert!(gone(&a) > 0, "{:?}", a.drops());
    drop(stream);
    let stats = a.lent_stats();
    assert!(stats.bytes <= 100_000 && stats.terms_fired == 0, "{stats:?}");
    drop(a);
    assert_eq!(sending.returned().buffer.len(), 100_000, "a host that ends gives everything back");
}
