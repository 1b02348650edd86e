//! Host sockets over the loopback, both families.

use super::*;
use crate::reactor::{Events, Interest, Reactor};
use crate::receive::{FRAMES_MAX, Pieces, ReceiveBuffer};
use rustix::net::sockopt;
use std::net::Ipv4Addr;
use std::num::NonZeroU16;
use std::time::Duration;
use towpath_packet::{Memory, MemoryConfig};

const LOOPBACK: &str = "127.0.0.1:0";
/// Most receive rounds of a test.
const ROUNDS: usize = 2000;

/// Both loopback addresses, or the one that this machine has.
fn loopbacks() -> Vec<&'static str> {
    let v6 = "[::1]:0";
    if UdpSocket::bind(address(v6), None).is_ok() {
        return vec![LOOPBACK, v6];
    }
    println!("skipped for IPv6: no loopback address");
    vec![LOOPBACK]
}

struct Rig {
    memory: Memory,
    buffer: ReceiveBuffer,
}

impl Rig {
    fn new() -> Self {
        let config = MemoryConfig { packets: 1, small_frames: 64, large_frames: 32 };
        Self { memory: Memory::new(config), buffer: ReceiveBuffer::new() }
    }

    fn pieces(&mut self, bytes: &[u8], size: usize) -> Vec<Piece> {
        let mut piece = |part: &[u8]| {
            let small = part.len() <= self.memory.small.frame_bytes();
            let pool = if small { &mut self.memory.small } else { &mut self.memory.large };
            let mut frame = pool.take().expect("free");
            frame[..part.len()].copy_from_slice(part);
            frame.freeze(part.len())
        };
        bytes.chunks(size).map(&mut piece).collect()
    }

    /// Goal shared by all tests: no frame is lost.
    fn finish(mut self) {
        self.buffer.clear();
        assert_eq!((self.memory.small.out_count(), self.memory.large.out_count()), (0, 0));
    }
}

/// Waits until `fd` is ready for `interest` or has an error.
fn ready(fd: impl AsFd, interest: Interest) {
    let mut reactor = Reactor::new().expect("epoll");
    reactor.add(fd, 0, interest, false).expect("add");
    let mut events = Events::new();
    reactor.wait(Some(Duration::from_secs(30)), &mut events).expect("wait");
    assert_eq!(events.len(), 1, "nothing happened in time");
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|index| ((index + seed).wrapping_mul(0x9e37_79b1) >> 24) as u8).collect()
}

/// A connected pair over loopback.
fn connected(text: &str) -> (TcpSocket, TcpSocket) {
    let listener = TcpListener::bind(address(text), None).expect("bound");
    let to = listener.local().expect("bound");
    let (client, at_once) = TcpSocket::connect(to).expect("connecting");
    ready(&listener, Interest::READ);
    let (server, peer) = listener.accept().expect("a connection");
    if !at_once {
        ready(&client, Interest::WRITE);
    }
    assert!(client.take_error().is_none());
    assert_eq!(peer, client.local().expect("bound"));
    assert_eq!(client.peer().expect("connected"), to);
    assert_eq!(server.peer().expect("connected"), peer);
    (client, server)
}

fn would_block<T: std::fmt::Debug>(result: io::Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn receive_all(
    rig: &mut Rig,
    from: &TcpSocket,
    into: &mut Vec<u8>,
    max: usize,
) -> Option<Received> {
    let bytes = &mut *into;
    let take = |piece: Piece| bytes.extend_from_slice(piece.bytes().expect("private"));
    match from.receive(&mut rig.buffer, &mut rig.memory, max, take) {
        Ok(received) => Some(received),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => panic!("{error}"),
    }
}

/// Goal: every byte arrives once and in order, however sends and receives split the stream. Method:
/// 4 MiB in pieces of a prime length, more per call than the socket accepts, echoed by the peer.
#[test]
fn tcp_carries_pieces_both_ways() {
    for text in loopbacks() {
        let mut rig = Rig::new();
        let (client, server) = connected(text);
        client.set_nodelay(true).expect("a TCP socket");
        // A buffer size that is set does not grow: what is sent before the peer reads cannot all
        // fit.
        sockopt::set_socket_send_buffer_size(&client, 64 << 10).expect("a socket");
        let sent = pattern(4 << 20, 1);
        let (mut at, mut echoed, mut back) = (0, Vec::new(), Vec::new());
        let (mut echo_at, mut partial) = (0, false);
        for round in 0..ROUNDS * 100 {
            if at < sent.len() {
                let end = sent.len().min(at + 300_000);
                let pieces = rig.pieces(&sent[at..end], 12_007);
                match client.send(pieces.iter()) {
                    Ok(count) => {
                        partial |= count < end - at;
                        at += count;
                    }
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
            // The receiver starts late, so that the sender finds a full socket.
            if round < 40 {
                continue;
            }
            receive_all(&mut rig, &server, &mut echoed, 100_000);
            let pieces = rig.pieces(&echoed[echo_at..echoed.len().min(echo_at + 50_000)], 999);
            echo_at += server.send(pieces.iter()).unwrap_or(0);
            receive_all(&mut rig, &client, &mut back, 7777);
            if back.len() == sent.len() {
                break;
            }
        }
        assert!(back == sent, "{} of {} bytes came back intact", back.len(), sent.len());
        assert!(partial, "at least one send was partial");
        rig.finish();
    }
}

/// Goal: a single piece, which is sent by a different system call, arrives in order with others,
/// and is sent in part or refused like them. Method: single pieces of various sizes until the
/// socket is full.
#[test]
fn tcp_sends_a_piece_alone() {
    let mut rig = Rig::new();
    let (client, server) = connected(LOOPBACK);
    sockopt::set_socket_send_buffer_size(&client, 16 << 10).expect("a socket");
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    let mut is_full = false;
    for round in 0..ROUNDS {
        let bytes = pattern(1 + round * 7 % 12_000, round);
        let pieces = rig.pieces(&bytes, bytes.len());
        match client.send(pieces.iter()) {
            Ok(count) => sent.extend_from_slice(&bytes[..count]),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                is_full = true;
                break;
            }
        }
    }
    assert!(is_full, "it does not wait");
    for _ in 0..ROUNDS {
        receive_all(&mut rig, &server, &mut received, 100_000);
        if received.len() == sent.len() {
            break;
        }
    }
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
    rig.finish();
}

/// Goal: `drained` is true exactly when fewer bytes arrived than were requested.
#[test]
fn tcp_receive_is_bounded_and_reports_when_drained() {
    let mut rig = Rig::new();
    let (client, server) = connected(LOOPBACK);
    let pieces = rig.pieces(&pattern(5000, 2), 2500);
    assert_eq!(client.send(pieces.iter()).expect("room"), 5000);
    assert_eq!(client.send([].iter()).expect("nothing to do"), 0);
    drop(pieces);
    ready(&server, Interest::READ);
    let mut bytes = Vec::new();
    let expected = [(3000, Some((3000, false))), (3000, Some((2000, true))), (3000, None)];
    for (max, outcome) in expected {
        let got = receive_all(&mut rig, &server, &mut bytes, max).map(|received| match received {
            Received::Bytes { count, drained } => (count, drained),
            other => panic!("{other:?}"),
        });
        assert_eq!(got, outcome);
    }
    assert_eq!(bytes, pattern(5000, 2));
    rig.finish();
}

#[test]
fn tcp_without_memory_loses_nothing() {
    let mut rig = Rig::new();
    let (client, server) = connected(LOOPBACK);
    let pieces = rig.pieces(b"still here", 100);
    client.send(pieces.iter()).expect("room");
    ready(&server, Interest::READ);
    let config = MemoryConfig { packets: 1, small_frames: 0, large_frames: 0 };
    let mut none = Memory::new(config);
    let got = server.receive(&mut ReceiveBuffer::new(), &mut none, 100, drop);
    assert_eq!(got.expect("no error"), Received::NoMemory);
    let mut bytes = Vec::new();
    receive_all(&mut rig, &server, &mut bytes, 100);
    assert_eq!(bytes, b"still here");
    drop(pieces);
    rig.finish();
}

/// Goal: FIN, half-close and RST are distinguished exactly.
#[test]
fn ends_of_tcp_are_distinguished() {
    for text in loopbacks() {
        let mut rig = Rig::new();
        let (client, server) = connected(text);
        let mut bytes = Vec::new();
        client.shutdown_write().expect("connected");
        ready(&server, Interest::READ);
        let end = receive_all(&mut rig, &server, &mut bytes, 100);
        assert_eq!(end, Some(Received::Closed));
        // The other direction continues.
        let pieces = rig.pieces(b"half", 4);
        server.send(pieces.iter()).expect("room");
        ready(&client, Interest::READ);
        receive_all(&mut rig, &client, &mut bytes, 100);
        assert_eq!(bytes, b"half");

        server.reset();
        ready(&client, Interest::READ);
        let error = client.receive(&mut rig.buffer, &mut rig.memory, 100, drop);
        assert_eq!(error.expect_err("reset").raw_os_error(), Some(libc::ECONNRESET));
        let error = client.send(pieces.iter()).expect_err("reset");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        drop(pieces);
        rig.finish();
    }
}

#[test]
fn tcp_refusal_is_reported_by_take_error() {
    let listener = TcpListener::bind(address(LOOPBACK), Some("lo")).expect("bound");
    let to = listener.local().expect("bound");
    assert!(would_block(listener.accept()));
    drop(listener);
    let refused = match TcpSocket::connect(to) {
        Err(error) => Some(error),
        Ok((socket, at_once)) => {
            assert!(!at_once);
            ready(&socket, Interest::WRITE);
            socket.take_error()
        }
    };
    let refused = refused.map(|error| error.kind());
    assert_eq!(refused, Some(io::ErrorKind::ConnectionRefused));
    let missing = TcpListener::bind(address(LOOPBACK), Some("no-such-link"));
    assert_eq!(missing.expect_err("no link").raw_os_error(), Some(libc::ENODEV));
}

/// Goal: one listener for each family can share a port.
#[test]
fn both_families_share_a_port() {
    let Ok(v6) = TcpListener::bind(address("[::]:0"), None) else {
        println!("skipped: no IPv6");
        return;
    };
    let port = v6.local().expect("bound").port();
    let v4 = TcpListener::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), None);
    assert!(v4.is_ok());
}

/// Goal: a super-packet sent in one call arrives whole, coalesced or not.
#[test]
fn udp_segments_and_coalesces() {
    for text in loopbacks() {
        let mut rig = Rig::new();
        let receiver = UdpSocket::bind(address(text), Some("lo")).expect("bound");
        let to = receiver.local().expect("bound");
        let sender = UdpSocket::connect(to).expect("connected");
        let payload = pattern(1400 * 40 + 7, 3);
        let pieces = rig.pieces(&payload, 16_000);
        let size = NonZeroU16::new(1400);
        assert_eq!(sender.send_to(None, pieces.iter(), size).expect("room"), Sent::Whole);
        let (mut bytes, mut sizes) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            if bytes.len() == payload.len() {
                break;
            }
            ready(&receiver, Interest::READ);
            let give = |datagram: Datagram| {
                assert_eq!(datagram.from, sender.local().expect("bound"));
                assert_eq!(datagram.len, datagram.pieces.bytes());
                assert!(!datagram.truncated);
                assert_eq!(datagram.tos, Some(0));
                sizes.push(datagram.gro_size.map(NonZeroU16::get));
                datagram
                    .pieces
                    .iter()
                    .for_each(|piece| bytes.extend_from_slice(piece.bytes().expect("private")));
            };
            let got = receiver.receive(&mut rig.buffer, &mut rig.memory, (64, usize::MAX), give);
            assert!(got.expect("received").drained);
        }
        assert!(bytes == payload);
        assert_eq!(sizes, [Some(1400)], "loopback keeps super-packets whole");
        drop(pieces);
        rig.finish();
    }
}

/// Goal: consecutive datagrams are joined as the kernel would, and no others. Bad input: another
/// sender or traffic class, a longer one, one after a shorter one, an empty one, more than fit.
#[test]
fn udp_joins_what_belongs_together() {
    let mut rig = Rig::new();
    let payload = pattern(FRAMES_MAX * 1000 + 2000, 5);
    let mut at = 0;
    let mut next = |len: usize| {
        let mut datagram = Datagram {
            from: address("127.0.0.1:7"),
            pieces: Pieces::default(),
            len,
            gro_size: None,
            truncated: false,
            tos: Some(0),
            to: None,
        };
        let pieces = rig.pieces(&payload[at..at + len], 1000);
        pieces.into_iter().for_each(|piece| datagram.pieces.push(piece));
        at += len;
        datagram
    };
    let mut first = next(1000);
    for count in 2..FRAMES_MAX {
        assert!(first.join(&mut next(1000)));
        assert_eq!((first.len, first.gro_size), (count * 1000, NonZeroU16::new(1000)));
    }
    let mut other = next(900);
    let changes: [fn(&mut Datagram); 6] = [
        |datagram| datagram.from = address("127.0.0.1:8"),
        |datagram| datagram.tos = Some(4),
        |datagram| datagram.truncated = true,
        |datagram| datagram.gro_size = NonZeroU16::new(450),
        |datagram| datagram.len = 1001,
        |datagram| datagram.len = 0,
    ];
    for change in changes {
        let before = (other.from, other.tos, other.truncated, other.gro_size, other.len);
        change(&mut other);
        assert!(!first.join(&mut other), "{other:?}");
        (other.from, other.tos, other.truncated, other.gro_size, other.len) = before;
    }
    assert!(first.join(&mut other), "the last may be shorter");
    assert!(!first.join(&mut next(900)), "none is joined to a shorter one");
    let bytes: Vec<u8> =
        first.pieces.iter().flat_map(|piece| piece.bytes().expect("private").to_vec()).collect();
    assert!(bytes == payload[..first.len]);
    let mut full = next(100);
    while full.pieces.len() < FRAMES_MAX {
        let mut one = next(10);
        one.len = 100;
        assert!(full.join(&mut one));
    }
    assert!(!full.join(&mut next(10)), "there is no room");
    drop((first, full, other));
    rig.finish();
}

#[test]
fn udp_that_cannot_be_segmented_says_so() {
    let mut rig = Rig::new();
    let receiver = UdpSocket::bind(address(LOOPBACK), None).expect("bound");
    let to = receiver.local().expect("bound");
    let sender = UdpSocket::bind(address(LOOPBACK), None).expect("bound");
    // More segments than any kernel accepts.
    let pieces = rig.pieces(&[1; 2000], 2000);
    let got = sender.send_to(Some(to), pieces.iter(), NonZeroU16::new(1));
    assert_eq!(got.expect("reported, not an error"), Sent::NotSegmentable);
    // A payload of one segment is not a super-packet, whatever its segment size is.
    let got = sender.send_to(Some(to), pieces.iter(), NonZeroU16::new(2000));
    assert_eq!(got.expect("room"), Sent::Whole);
    drop(pieces);
    rig.finish();
}

/// Goal: when frames are short, a datagram that does not fit waits, and one that fits is received.
#[test]
fn udp_without_memory_waits() {
    let mut rig = Rig::new();
    let receiver = UdpSocket::bind(address(LOOPBACK), None).expect("bound");
    let sender = UdpSocket::connect(receiver.local().expect("bound")).expect("connected");
    for bytes in [1000, 5000] {
        let pieces = rig.pieces(&pattern(bytes, 4), 5000);
        sender.send_to(None, pieces.iter(), None).expect("room");
    }
    ready(&receiver, Interest::READ);
    let config = MemoryConfig { packets: 1, small_frames: 1, large_frames: 0 };
    let mut tight = Memory::new(config);
    let mut buffer = ReceiveBuffer::new();
    let mut lens = Vec::new();
    for _ in 0..2 {
        let give = |datagram: Datagram| lens.push(datagram.len);
        let got =
            receiver.receive(&mut buffer, &mut tight, (8, usize::MAX), give).expect("received");
        assert!(got.no_memory && !got.drained);
    }
    let give = |datagram: Datagram| lens.push(datagram.len);
    let got = receiver
        .receive(&mut rig.buffer, &mut rig.memory, (8, usize::MAX), give)
        .expect("received");
    assert_eq!((got.count, got.drained), (1, true));
    assert_eq!(lens, [1000, 5000]);
    rig.finish();
}

/// Goal: an ICMP error reaches the caller through the error queue and disturbs neither the next
/// send nor the next receive.
#[test]
fn udp_port_unreachable_surfaces() {
    for text in loopbacks() {
        let mut rig = Rig::new();
        let gone = UdpSocket::bind(address(text), None).expect("bound");
        let to = gone.local().expect("bound");
        drop(gone);
        let sender = UdpSocket::connect(to).expect("connected");
        assert!(sender.take_error_event().is_none());
        let pieces = rig.pieces(b"anybody?", 8);
        sender.send_to(None, pieces.iter(), None).expect("sent");
        ready(&sender, Interest::NONE);
        sender.send_to(None, pieces.iter(), None).expect("an old error is not the new one's");
        let got = sender
            .receive(&mut rig.buffer, &mut rig.memory, (8, usize::MAX), drop)
            .expect("no error");
        assert_eq!((got.count, got.drained), (0, true));
        for _ in 0..2 {
            let event = sender.take_error_event().expect("one per datagram");
            assert_eq!(event.kind, ErrorKind::PortUnreachable);
            assert_eq!(event.to, Some(to));
            assert_eq!(event.offender, Some(to.ip()));
        }
        assert!(sender.take_error_event().is_none());
        drop(pieces);
        rig.finish();
    }
}

/// Goal: one socket listens at all addresses of both IP versions, its peers have their own
/// addresses, and a port that is in use by one IP version is refused.
#[test]
fn one_listener_serves_both_ip_versions() {
    let Ok(listener) = TcpListener::bind_all(0, None) else {
        println!("skipped: this machine has no IPv6");
        return;
    };
    let port = listener.local().expect("bound").port();
    for text in loopbacks() {
        let to = SocketAddr::new(address(text).ip(), port);
        let client = std::net::TcpStream::connect(to).expect("connected");
        ready(&listener, Interest::READ);
        let (socket, peer) = listener.accept().expect("it waits");
        assert_eq!(peer, client.local_addr().expect("it has one"));
        assert_eq!(socket.peer().expect("connected"), peer);
        assert_eq!(socket.local().expect("connected"), to);
    }
    let in_use = |result: io::Result<TcpListener>| {
        result.expect_err("in use").kind() == io::ErrorKind::AddrInUse
    };
    for text in ["0.0.0.0:0", "[::]:0"] {
        assert!(in_use(TcpListener::bind(SocketAddr::new(address(text).ip(), port), None)));
        let only = TcpListener::bind(address(text), None).expect("bound");
        let port = only.local().expect("bound").port();
        assert!(in_use(TcpListener::bind_all(port, None)), "{text}");
    }
}

#[test]
fn a_too_large_datagram_is_reported_with_the_mtu() {
    let mut rig = Rig::new();
    let receiver = UdpSocket::bind(address(LOOPBACK), None).expect("bound");
    let sender = UdpSocket::connect(receiver.local().expect("bound")).expect("connected");
    let pieces = rig.pieces(&vec![0; 65_600], 16_000);
    let error = sender.send_to(None, pieces.iter(), None).expect_err("too big");
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    drop(pieces);
    rig.finish();
}

/// Goal: echo works with the kind of socket that this machine permits.
#[test]
fn ping_answers() {
    for text in loopbacks() {
        let host = address(text).ip();
        let mut rig = Rig::new();
        let socket = match PingSocket::connect(host, 0xbeef) {
            Ok(socket) => socket,
            Err(PingError::NotPermitted) => {
                println!("skipped: {}", PingError::NotPermitted);
                return;
            }
            Err(error) => panic!("{error}"),
        };
        // A second socket with another identifier must not receive these replies.
        let other = PingSocket::connect(host, 0xcafe).expect("as the first");
        let payload = pattern(3001, 5);
        let pieces = rig.pieces(&payload, 501);
        socket.send(7, pieces.iter()).expect("sent");
        ready(&socket, Interest::READ);
        let echo = socket.receive(&mut rig.buffer, &mut rig.memory).expect("received");
        let echo = echo.expect("memory");
        assert_eq!((echo.ident, echo.sequence, echo.len), (0xbeef, 7, 3001));
        let back: Vec<u8> =
            echo.pieces.iter().flat_map(|piece| piece.bytes().expect("private")).copied().collect();
        assert_eq!(back, payload);
        let silence = other.receive(&mut rig.buffer, &mut rig.memory);
        assert!(would_block(silence), "{:?} socket", other.kind());
        drop((pieces, echo));
        rig.finish();
    }
}

/// Goal: a connection whose segments are signed is established if both sides have the key, and not
/// without one.
#[test]
fn connections_with_a_key() {
    for signature in signatures() {
        match signature.try_out() {
            Ok(()) => {}
            Err(error @ (SignatureError::NoMd5 | SignatureError::NoAo)) => {
                println!("skipped: {error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        for text in loopbacks() {
            let at = address(text);
            let listener = TcpListener::bind_signed(at, [(&at.ip(), &signature)]).expect("bound");
            let to = listener.local().expect("bound");
            let (_unsigned, is_established) = TcpSocket::connect(to).expect("connecting");
            assert!(!is_established);
            assert!(would_block(listener.accept()), "it is not heard");
            let (socket, _) = TcpSocket::connect_signed(to, &signature).expect("connecting");
            ready(&socket, Interest::WRITE);
            assert!(socket.take_error().is_none());
            let (accepted, _) = listener.accept().expect("it is established");
            assert_eq!(accepted.requires_ao(), matches!(signature, Signature::Ao(_)));
        }
    }
}

/// Goal: on a kernel without TCP-AO, nothing connects or listens without a signature instead.
#[test]
fn connections_without_the_signature_of_the_kernel() {
    let [_, signature] = signatures();
    if !matches!(signature.try_out(), Err(SignatureError::NoAo)) {
        println!("skipped: this kernel has TCP-AO");
        return;
    }
    let at = address("127.0.0.1:0");
    let listener = TcpListener::bind(at, None).expect("bound");
    let to = listener.local().expect("bound");
    let error = TcpSocket::connect_signed(to, &signature).expect_err("no option");
    assert_eq!(error.raw_os_error(), Some(Errno::NOPROTOOPT.raw_os_error()));
    let error = TcpListener::bind_signed(at, [(&at.ip(), &signature)]).expect_err("no option");
    assert_eq!(error.raw_os_error(), Some(Errno::NOPROTOOPT.raw_os_error()));
}

/// One with TCP MD5 and one with TCP-AO.
fn signatures() -> [Signature; 2] {
    let secret = Secret::new("secret").expect("short");
    let key = |id, algorithm| AoKey { send_id: id, recv_id: id, algorithm, secret: secret.clone() };
    let keys = (0..).zip(AoAlgorithm::ALL).map(|(id, algorithm)| key(id, algorithm)).collect();
    [Signature::Md5(secret.clone()), Signature::Ao(KeyChain::new(keys).expect("they differ"))]
}
