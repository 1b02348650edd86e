//! Sockets before they are connected, names, and options.

use crate::{PATIENCE, address, config, pair};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;
use towpath::host::{Config, Host, Linger, Resolver, TcpListener, TcpSocket, TcpStream, UdpSocket};

/// Goal: a socket has its options and its local address before it connects or listens; errors are
/// reported and leave nothing behind.
#[test]
fn sockets_are_set_before_they_connect() {
    let (a, b) = pair();
    assert_eq!(b.addresses(), [(address().ip(), 24)]);
    let server = TcpSocket::v4(&b).expect("a socket");
    server.set_options(|options| options.nodelay = true).expect("set");
    server.bind(address()).expect("bound");
    let listener = server.listen(1).expect("listens");
    assert_eq!(listener.local_addr().expect("an address"), address());

    let own: SocketAddr = ([10, 0, 0, 1], 40_000).into();
    let client = TcpSocket::v4(&a).expect("a socket");
    client.bind(own).expect("bound");
    client.set_options(|options| options.linger = Linger::Reset).expect("set");
    assert_eq!(client.local_addr().expect("an address"), own);
    let stream = client.connect_timeout(address(), PATIENCE).expect("connects");
    assert_eq!(stream.linger().expect("set"), Some(Duration::ZERO));
    let (mut peer, from) = listener.accept().expect("accepted");
    assert_eq!((from, peer.nodelay().expect("set")), (own, true));

    // The address is in use, and the socket that wanted it is gone.
    let other = TcpSocket::v4(&b).expect("a socket");
    assert_eq!(other.bind(address()).expect_err("in use").kind(), ErrorKind::AddrInUse);
    drop(other);
    let wrong = TcpSocket::v4(&b).expect("a socket").bind(([10, 0, 0, 9], 1).into());
    assert_eq!(wrong.expect_err("not ours").kind(), ErrorKind::AddrNotAvailable);
    let v6 = TcpSocket::v6(&b).expect("a socket").connect(address());
    assert!(v6.is_err(), "an address of the other family");

    // Dropping the stream resets it: the peer gets an error, not the end of the stream.
    peer.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    drop(stream);
    assert_eq!(peer.read(&mut [0]).expect_err("reset").kind(), ErrorKind::ConnectionReset);
}

/// Goal: packets of both protocols have the hop limit that was set.
#[test]
fn the_hop_limit_is_that_of_packets() {
    let (a, b) = pair();
    let sniffer = towpath::host::PacketSocket::new(
        &b,
        towpath::host::EtherType::IPV4,
        towpath::host::FramePart::Payload,
    );
    let sniffer = sniffer.expect("a packet socket");
    sniffer.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let listener = TcpListener::bind(&b, address()).expect("listens");
    let mut stream = TcpStream::connect(&a, address()).expect("connects");
    let socket = UdpSocket::bind(&a, "0.0.0.0:0").expect("bound");
    assert_eq!((stream.ttl().expect("one"), socket.ttl().expect("one")), (64, 64));
    stream.set_ttl(9).expect("set");
    socket.set_ttl(5).expect("set");
    assert_eq!((stream.ttl().expect("one"), socket.ttl().expect("one")), (9, 5));
    stream.write_all(b"towpath").expect("sent");
    socket.send_to(b"towpath", address()).expect("sent");
    // For each protocol, the hop limit of the packet with the payload.
    let (mut seen, mut packet) = ([None; 2], [0; 2000]);
    while seen != [Some(9), Some(5)] {
        let len = sniffer.recv_from(&mut packet).expect("they come").copied;
        if packet[..len].ends_with(b"towpath") {
            match packet[9] {
                6 => seen[0] = Some(packet[8]),
                17 => seen[1] = Some(packet[8]),
                _ => {}
            }
        }
    }
    drop(listener);
}

/// Goal: the host's resolver resolves names, and addresses are tried until one works.
#[test]
fn names_are_resolved_by_the_host() {
    let resolver = Resolver::new(|name, port| match name {
        "server.test" => Ok(vec![([10, 0, 0, 2], port + 1).into(), ([10, 0, 0, 2], port).into()]),
        _ => Ok(Vec::new()),
    });
    let (a, b) = Host::pair(&Config { resolver, ..config(1) }, &config(2)).expect("two hosts");
    let listener = TcpListener::bind(&b, ("10.0.0.2", 80)).expect("listens");
    let stream = TcpStream::connect(&a, ("server.test", 80)).expect("connects");
    assert_eq!(stream.peer_addr().expect("a peer"), listener.local_addr().expect("an address"));
    let refused = TcpStream::connect(&a, "server.test:90").expect_err("no listener");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let unknown = TcpStream::connect(&a, "other.test:80").expect_err("unknown");
    assert!(unknown.to_string().contains("other.test"), "{unknown}");
}
