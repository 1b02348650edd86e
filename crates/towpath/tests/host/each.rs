//! Calls with several buffers, each of which comes back on its own.

use super::{
    PATIENCE, address, assert_all_back, assert_same, config, connected, connection, pattern,
};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;
use towpath::host::{Chain, Config, Host, LENT_OVERHEAD, SendMode, TcpListener, TcpStream};

fn buffers(count: usize, len: usize) -> Chain<Vec<u8>> {
    Chain((0..count).map(|seed| pattern(len, seed)).collect())
}

/// Waits until a host has this much lent: budgets get their share after the buffer is back.
fn assert_lent(host: &Host, bytes: usize) {
    for _ in 0..20_000 {
        if host.lent() == bytes {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
    panic!("lent: {}, expected: {bytes}", host.lent());
}

/// Goal: each buffer comes back when the peer has dropped its bytes, while the peer keeps those of
/// the next ones, and gives its part of the budgets back; empty buffers come back, too.
#[test]
fn each_buffer_comes_back_alone() {
    const LEN: usize = 32 << 10;
    const COUNT: usize = 16;
    let (a, b, stream, peer) = connection();
    peer.set_options(|options| options.receive_buffer = Some(8 << 20)).expect("an option");
    let mut chain = buffers(COUNT, LEN);
    chain.0.push(Vec::new());
    let mut sends = stream.send_zc_each(chain).expect("sends");
    assert_eq!(sends.len(), COUNT + 1);
    let mut pieces = Vec::new();
    let mut received = 0;
    while received < COUNT * LEN {
        received += peer.recv_lent(COUNT * LEN - received, &mut pieces).expect("receives");
    }
    // The empty buffer has no loan: it is back although it is the last one.
    assert_lent(&a, COUNT * (LEN + LENT_OVERHEAD));
    let mut pieces = pieces.into_iter();
    for seed in 0..COUNT {
        assert!(sends.try_next().is_none(), "the peer holds buffer {seed}");
        let mut bytes = Vec::new();
        while bytes.len() < LEN {
            bytes.extend_from_slice(&pieces.next().expect("a piece").bytes().expect("a view"));
        }
        assert_same(&bytes, &pattern(LEN, seed));
        let returned = sends.wait_next().expect("a send");
        assert!(!returned.copied && returned.buffer == pattern(LEN, seed));
        assert_lent(&a, (COUNT - 1 - seed) * (LEN + LENT_OVERHEAD));
    }
    assert!(sends.try_next().is_some_and(|returned| returned.buffer.is_empty()));
    assert!(sends.is_empty());
    drop((stream, peer));
    assert_all_back(&[&a, &b]);
}

/// Goal: a chain that exceeds the budget waits until nothing is lent, and is handed back by a call
/// that must not wait; the first buffers make room for the next call.
#[test]
fn a_chain_is_charged_as_a_whole_and_gives_back_in_parts() {
    const LEN: usize = 64 << 10;
    let small = Config { lent_by_socket: 4 * (LEN + LENT_OVERHEAD), ..config(1) };
    let hosts = Host::pair(&small, &config(2)).expect("two hosts");
    let (a, b, stream, mut peer) = connected(hosts);
    let mut received = vec![0; LEN];
    let mut sends = stream.send_zc_each(buffers(8, LEN)).expect("larger than the budget, alone");
    stream.set_nonblocking(true).expect("an option");
    let error = stream.send_zc_each(buffers(1, LEN)).expect_err("no room");
    assert_eq!((error.error.kind(), error.buffer.0.len()), (ErrorKind::WouldBlock, 1));
    for seed in 0..5 {
        peer.read_exact(&mut received).expect("receives");
        assert_same(&received, &pattern(LEN, seed));
        assert!(sends.wait_next().is_some_and(|returned| !returned.copied));
    }
    assert_lent(&a, 3 * (LEN + LENT_OVERHEAD));
    let mut later = stream.send_zc_each(error.buffer).expect("there is room");
    for seed in [5, 6, 7, 0] {
        peer.read_exact(&mut received).expect("receives");
        assert_same(&received, &pattern(LEN, seed));
    }
    assert!(later.wait_next().is_some());
    drop((stream, peer, sends));
    assert_all_back(&[&a, &b]);
}

/// Goal: when buffers are copied, all are back at once; a call that must not wait reports how much
/// of each was accepted.
#[test]
fn copies_are_back_at_once() {
    const LEN: usize = 100_000;
    let (a, b, stream, mut peer) = connection();
    stream.set_send_mode(SendMode::Copy);
    stream.set_nonblocking(true).expect("an option");
    let mut sends = stream.send_zc_each(buffers(50, LEN)).expect("sends");
    assert_eq!((sends.len(), a.lent()), (50, 0));
    let returned: Vec<_> = std::iter::from_fn(|| sends.try_next()).collect();
    assert_eq!(returned.len(), 50);
    assert!(returned[0].copied && !returned[49].copied, "more than there was room for");
    stream.set_nonblocking(false).expect("an option");
    let first = returned.iter().filter(|returned| returned.copied).count();
    stream.shutdown(Shutdown::Write).expect("shuts down");
    let mut received = Vec::new();
    peer.read_to_end(&mut received).expect("receives");
    assert!(((first - 1) * LEN..=first * LEN).contains(&received.len()) && first > 1);
    let sent: Vec<u8> = returned.into_iter().flat_map(|returned| returned.buffer).collect();
    assert_same(&received, &sent[..received.len()]);
    drop((stream, peer));
    assert_all_back(&[&a, &b]);
}

/// Goal: a chain without buffers has nothing to return; a failed call hands the chain back; and a
/// reset in the middle returns everything.
#[test]
fn every_end_returns_every_buffer() {
    let (a, b, stream, peer) = connection();
    let sends = stream.send_zc_each(Chain(Vec::<Vec<u8>>::new())).expect("nothing");
    assert!(sends.is_empty());
    let sends = stream.send_zc_each(buffers(100, 64 << 10)).expect("sends");
    // The peer has unread bytes, so its end is a reset.
    (&peer).read_exact(&mut [0; 9]).expect("receives");
    drop(peer);
    let mut sends = sends;
    assert_eq!(std::iter::from_fn(|| sends.wait_next()).count(), 100);
    let error = stream.send_zc_each(buffers(3, 9)).expect_err("reset");
    assert_eq!(error.buffer, buffers(3, 9));
    // A recall, and a close of the socket, do not lose a byte.
    let listener = TcpListener::bind(&b, (address().ip(), 81)).expect("listens");
    let stream = TcpStream::connect(&a, (address().ip(), 81)).expect("connects");
    let (mut peer, _) = listener.accept().expect("accepted");
    peer.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    (&stream).write_all(b"before").expect("sends");
    let mut sends = stream.send_zc_each(buffers(20, 64 << 10)).expect("sends");
    sends.recall();
    for seed in 0..20 {
        let mut returned = sends.wait_next().expect("a send");
        assert!(returned.buffer == pattern(64 << 10, seed));
        returned.buffer.fill(0xee);
    }
    let mut last = stream.send_zc_each(buffers(2, 9)).expect("sends");
    drop(stream);
    let mut received = Vec::new();
    peer.read_to_end(&mut received).expect("receives");
    let sent = [b"before".to_vec(), buffers(20, 64 << 10).0.concat(), buffers(2, 9).0.concat()];
    assert_same(&received, &sent.concat());
    drop(peer);
    assert!(last.wait_next().is_some() && last.wait_next().is_some());
    assert_all_back(&[&a, &b]);
}
