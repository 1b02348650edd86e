//! Datagrams that lend.

use super::*;
use towpath::host::SendTo;

/// Two hosts with a socket each, connected with each other.
fn sockets(one: &Config) -> (Host, Host, UdpSocket, UdpSocket) {
    let (a, b) = Host::pair(one, &config(2)).expect("two hosts");
    let own = "10.0.0.1:7".parse().expect("an address");
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

/// Goal: buffers of all sizes and kinds go as datagrams without a copy, and come back in the same
/// way as those of streams.
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
/// segments larger than the MTU, no destination, port zero, a full budget.
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
    let other = UdpSocket::bind(&a, "10.0.0.1:0".parse().expect("an address")).expect("bound");
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

/// Goal: a peer that does not read keeps neither what has a term, nor what is recalled, nor, with
/// the default term, anything; it reads the bytes that were sent.
#[test]
fn datagrams_come_back_though_nobody_reads() {
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
