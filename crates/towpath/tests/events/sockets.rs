//! Sockets of towpath hosts, and buffers that come back.

use super::{Case, now, one, queue, ready, wait};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Instant;
use towpath::events::{Choice, EventKind, EventQueue, Interest, Source, Stream, Token, Trigger};
use towpath::host::{Config as HostConfig, Host, SendMode, TcpListener, TcpStream, UdpSocket};

pub(super) const CASES: &[Case] = &[
    ("connections_to_accept_are_reported", accept),
    ("a_stream_is_readable_by_level", level),
    ("a_stream_is_readable_by_edge", edge),
    ("a_stream_is_writable_when_there_is_room", writable),
    ("the_end_of_a_stream_is_reported", end),
    ("a_reset_is_reported_as_an_error", reset),
    ("datagrams_are_reported", datagrams),
    ("room_to_lend_is_reported_by_edge", lending),
    ("a_buffer_that_is_back_is_reported", returned),
    ("a_socket_stays_until_it_is_removed", kept),
    ("bytes_through_many_streams", many),
];

fn config(last: u8) -> HostConfig {
    HostConfig { default_term: None, ..HostConfig::with_address([10, 0, 0, last], 24) }
}

pub(super) fn address() -> SocketAddr {
    "10.0.0.2:80".parse().unwrap()
}

pub(super) fn hosts() -> (Host, Host) {
    Host::pair(&config(1), &config(2)).unwrap()
}

pub(super) fn connection((a, b): &(Host, Host)) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(b, address()).unwrap();
    let stream = TcpStream::connect(a, address()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    for stream in [&stream, &peer] {
        stream.set_nonblocking(true).unwrap();
    }
    (stream, peer)
}

fn add(queue: &mut EventQueue, stream: &TcpStream, interest: Interest, trigger: Trigger) -> Token {
    queue.add(Source::stream(stream, interest, trigger), 0).unwrap()
}

fn accept(choice: Choice) {
    let (mut queue, (a, b)) = (queue(choice), hosts());
    let listener = TcpListener::bind(&b, address()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let token = queue.add(Source::listener(&listener, Trigger::Level), 4).unwrap();
    assert_eq!(now(&mut queue), []);
    for _ in 0..3 {
        let _stream = TcpStream::connect(&a, address()).unwrap();
        assert!(ready(&mut queue, token).readable);
        assert!(ready(&mut queue, token).readable, "still ready, so reported again");
        listener.accept().unwrap();
        assert_eq!(now(&mut queue), []);
    }
}

/// Goal: a connection that the peer has reset reports every condition, on either stack.
fn reset(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, peer) = connection(&hosts);
    let (stream, peer) = (Stream::from(stream), Stream::from(peer));
    let (of_kernel, its_peer) = super::kernel_streams::tcp();
    let of_kernel = (Stream::from(of_kernel), Stream::from(its_peer));
    for (stream, peer) in [(stream, peer), of_kernel] {
        let source = Source::stream(&stream, Interest::READ, Trigger::Level);
        let token = queue.add(source, 0).unwrap();
        assert_eq!(now(&mut queue), []);
        assert_eq!(stream.try_send(b"unread").unwrap(), 6);
        let there = Source::stream(&peer, Interest::READ, Trigger::OneShot);
        let there = queue.add(there, 0).unwrap();
        assert!(ready(&mut queue, there).readable);
        queue.remove(there).unwrap();
        drop(peer);
        let found = ready(&mut queue, token);
        assert!(found.error && found.hangup && found.readable && found.peer_closed, "{found:?}");
        queue.remove(token).unwrap();
    }
}

fn level(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, mut peer) = connection(&hosts);
    let token = add(&mut queue, &stream, Interest::READ, Trigger::Level);
    assert_eq!(now(&mut queue), []);
    peer.write_all(b"hello").unwrap();
    for _ in 0..2 {
        let found = ready(&mut queue, token);
        assert!(found.readable && !found.writable && !found.peer_closed);
    }
    assert_eq!((&stream).read(&mut [0; 9]).unwrap(), 5);
    assert_eq!(now(&mut queue), []);
}

fn edge(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, mut peer) = connection(&hosts);
    let token = add(&mut queue, &stream, Interest::READ, Trigger::Edge);
    for _ in 0..3 {
        assert_eq!(now(&mut queue), []);
        peer.write_all(b"hello").unwrap();
        assert!(ready(&mut queue, token).readable);
    }
    queue.modify(token, Interest::READ, Trigger::OneShot).unwrap();
    assert!(ready(&mut queue, token).readable, "ready, so reported");
    peer.write_all(b"hello").unwrap();
    assert_eq!(now(&mut queue), []);
    queue.modify(token, Interest::BOTH, Trigger::OneShot).unwrap();
    let found = ready(&mut queue, token);
    assert!(found.readable && found.writable);
}

fn writable(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, mut peer) = connection(&hosts);
    let token = add(&mut queue, &stream, Interest::WRITE, Trigger::Level);
    let (mut sent, bytes) = (0, vec![7; 64 << 10]);
    // Until queue, stack and peer have no room left.
    let mut idle = 0;
    while idle < 3 {
        match (&stream).write(&bytes) {
            Ok(count) => (sent, idle) = (sent + count, 0),
            Err(_) => {
                let mut events = Vec::new();
                let soon = Instant::now() + std::time::Duration::from_millis(20);
                let found = queue.wait(&mut events, Some(soon)).unwrap();
                idle = if found == 0 { idle + 1 } else { 0 };
            }
        }
    }
    let mut received = 0;
    let mut buffer = vec![0; 64 << 10];
    let reader = queue.add(Source::stream(&peer, Interest::READ, Trigger::Level), 1);
    let reader = reader.unwrap();
    while received < sent {
        for event in wait(&mut queue) {
            if event.token == reader {
                received += peer.read(&mut buffer).unwrap();
            }
        }
    }
    queue.remove(reader).unwrap();
    assert!(ready(&mut queue, token).writable);
}

fn end(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, peer) = connection(&hosts);
    let token = add(&mut queue, &stream, Interest::READ, Trigger::Edge);
    assert_eq!(now(&mut queue), []);
    peer.shutdown(Shutdown::Write).unwrap();
    let found = ready(&mut queue, token);
    assert!(found.readable && found.peer_closed && !found.hangup, "{found:?}");
    stream.shutdown(Shutdown::Write).unwrap();
    let mut found = ready(&mut queue, token);
    while !found.hangup {
        found = ready(&mut queue, token);
    }
}

fn datagrams(choice: Choice) {
    let (mut queue, (a, b)) = (queue(choice), hosts());
    let to: SocketAddr = "10.0.0.2:53".parse().unwrap();
    let socket = UdpSocket::bind(&b, to).unwrap();
    let sender = UdpSocket::bind(&a, "10.0.0.1:0").unwrap();
    let source = Source::datagram(&socket, Interest::READ, Trigger::Level);
    let token = queue.add(source, 0).unwrap();
    assert_eq!(now(&mut queue), []);
    // A link within the process loses nothing.
    sender.send_to(b"one", to).unwrap();
    assert!(ready(&mut queue, token).readable);
    assert_eq!(socket.recv_from(&mut [0; 9]).unwrap().0, 3);
    assert_eq!(now(&mut queue), []);
    queue.modify(token, Interest::WRITE, Trigger::OneShot).unwrap();
    assert!(ready(&mut queue, token).writable);
}

/// Goal: a send that found no room to lend is reported as writable when there is some. Bad input:
/// edge-triggered sockets that are writable all the time, while another one has lent all that the
/// host may lend, so that nothing else raises them.
fn lending(choice: Choice) {
    let small = |last| HostConfig { lent_by_all: 4096, ..config(last) };
    let hosts = Host::pair(&small(1), &small(2)).unwrap();
    let mut queue = queue(choice);
    let (stream, _peer) = connection(&hosts);
    let (other, mut peer) = connection(&hosts);
    for stream in [&stream, &other] {
        stream.set_send_mode(SendMode::Lend);
    }
    let token = add(&mut queue, &stream, Interest::WRITE, Trigger::Edge);
    assert!(ready(&mut queue, token).writable);
    let sending = other.send_zc(vec![5; 3000]).unwrap();
    assert_eq!(stream.send_zc(vec![6; 3000]).unwrap_err().buffer.len(), 3000);
    now(&mut queue);
    peer.set_nonblocking(false).unwrap();
    peer.read_exact(&mut [0; 3000]).unwrap();
    assert!(ready(&mut queue, token).writable);
    sending.returned();
    queue.remove(token).unwrap();

    let to: SocketAddr = "10.0.0.2:53".parse().unwrap();
    let receiver = UdpSocket::bind(&hosts.1, to).unwrap();
    let [socket, other] = [0; 2].map(|_| {
        let socket = UdpSocket::bind(&hosts.0, "10.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.set_send_mode(SendMode::Lend);
        socket
    });
    let source = Source::datagram(&socket, Interest::WRITE, Trigger::Edge);
    let token = queue.add(source, 0).unwrap();
    assert!(ready(&mut queue, token).writable);
    let sending = other.send_zc_to(vec![5; 1200], to).unwrap();
    let refused = socket.send_zc_to(vec![6; 3000], to).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::WouldBlock);
    now(&mut queue);
    assert_eq!(receiver.recv_from(&mut [0; 3000]).unwrap().0, 1200);
    assert!(ready(&mut queue, token).writable);
    sending.returned();
}

fn returned(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, mut peer) = connection(&hosts);
    let sending = stream.send_zc(vec![3; 100_000]).unwrap();
    let token = queue.add(Source::sending(&sending), 6).unwrap();
    assert_eq!(now(&mut queue), [], "the peer has not read");
    peer.set_nonblocking(false).unwrap();
    peer.read_exact(&mut vec![0; 100_000]).unwrap();
    let event = one(&mut queue);
    assert_eq!((event.token, event.data), (token, 6));
    assert_eq!(event.kind, EventKind::Returned { copied: false });
    assert!(queue.is_empty() && sending.is_returned());
    // A buffer that is back when it is added, and one that was recalled.
    queue.add(Source::sending(&sending), 7).unwrap();
    assert_eq!(one(&mut queue).data, 7);
    assert_eq!(sending.returned().buffer.len(), 100_000);
    let sending = stream.send_zc(vec![3; 100_000]).unwrap();
    queue.add(Source::sending(&sending), 8).unwrap();
    sending.recall();
    let event = one(&mut queue);
    assert_eq!((event.data, event.kind), (8, EventKind::Returned { copied: true }));
}

/// Goal: a socket that its owner has dropped closes when it is removed.
fn kept(choice: Choice) {
    let (mut queue, hosts) = (queue(choice), hosts());
    let (stream, peer) = connection(&hosts);
    let token = add(&mut queue, &stream, Interest::READ, Trigger::Level);
    let other = add(&mut queue, &peer, Interest::READ, Trigger::Level);
    drop(stream);
    assert_eq!(now(&mut queue), []);
    queue.remove(token).unwrap();
    let found = ready(&mut queue, other);
    assert!(found.peer_closed);
}

/// Goal: an echo server and its clients on one queue pass all bytes, even if the hosts have too
/// little memory for all bytes in flight: a socket that found no room is reported when there is
/// some.
fn many(choice: Choice) {
    const CLIENTS: usize = 100;
    const BYTES: usize = 200_000;
    let (mut queue, (a, b)) = (queue(choice), hosts());
    let listener = TcpListener::bind(&b, address()).unwrap();
    let (mut streams, mut left) = (Vec::new(), 0);
    for _ in 0..CLIENTS {
        let client = TcpStream::connect(&a, address()).unwrap();
        let (server, _) = listener.accept().unwrap();
        for stream in [client, server] {
            stream.set_nonblocking(true).unwrap();
            let source = Source::stream(&stream, Interest::BOTH, Trigger::Edge);
            queue.add(source, streams.len() as u64).unwrap();
            // To write, and read.
            streams.push((stream, Vec::new(), 0));
        }
        left += 1;
    }
    for (index, (_, pending, _)) in streams.iter_mut().enumerate() {
        if index % 2 == 0 {
            *pending = (0..BYTES).map(|at| (at * 7 + index) as u8).collect();
        }
    }
    let mut buffer = vec![0; 50_000];
    while left > 0 {
        for event in wait(&mut queue) {
            let index = event.data as usize;
            let (stream, pending, read) = &mut streams[index];
            while let Ok(count) = stream.read(&mut buffer) {
                assert_ne!(count, 0);
                if index % 2 == 1 {
                    pending.extend_from_slice(&buffer[..count]);
                    *read += count;
                    continue;
                }
                for byte in &buffer[..count] {
                    assert_eq!(*byte, (*read * 7 + index) as u8);
                    *read += 1;
                }
                left -= usize::from(*read == BYTES);
            }
            while !pending.is_empty() {
                let Ok(count) = stream.write(pending) else { break };
                pending.drain(..count);
            }
        }
    }
    assert!(streams.iter().all(|(_, pending, read)| pending.is_empty() && *read == BYTES));
}
