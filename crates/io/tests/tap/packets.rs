//! Packets of all sizes, both ways, with and without features, with much and with little memory.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fd::AsFd;
use towpath_io::receive::ReceiveBuffer;
use towpath_io::socket::{Datagram, Sent, UdpSocket};
use towpath_io::tap::{FRAME_BYTES_MAX, Features};
use towpath_packet::pool::{LARGE_FRAME_BYTES, SMALL_FRAME_BYTES};
use towpath_packet::{Burst, Checksum, Device, Input, Offload, Piece};

use crate::network::{End, ONE, isolated, joined};
use crate::support::{
    PATIENCE, broadcast, broadcaster, cx, is_ready, memory, now, pattern, pieces, receive_datagram,
    retry,
};

/// Goal: TCP super-packets of 64 KiB cross two devices whole: as large as the kernel makes them, in
/// one small frame and several large ones, with every byte intact.
#[test]
fn tcp_super_packets_cross_two_devices() {
    const BYTES: usize = 256 << 20;
    for host in [End::v4(2), End::v6(2)] {
        let server = move || {
            let listener = TcpListener::bind((host, 5000)).expect("bound");
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            let expected = pattern(1 << 20);
            let mut buffer = vec![0; 1 << 20];
            let begin = now();
            for _ in 0..BYTES >> 20 {
                stream.read_exact(&mut buffer).expect("received");
                assert!(buffer == expected);
            }
            let rate = BYTES as f64 / begin.elapsed().as_secs_f64() / 1e9;
            println!("{host}: {rate:.2} GB/s through two devices");
            stream.write_all(b"done").expect("sent");
        };
        let client = move || {
            let mut stream = retry(|| TcpStream::connect((host, 5000)).ok());
            let payload = pattern(1 << 20);
            for _ in 0..BYTES >> 20 {
                stream.write_all(&payload).expect("sent");
            }
            let mut end = [0; 4];
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            stream.read_exact(&mut end).expect("received");
        };
        let Some(forwarded) = joined(Features::ALL, client, server) else { return };
        let counters = *forwarded.taps[0].counters();
        println!("{counters:?}");
        assert!(counters.received.super_packets > 1000);
        let longest = &forwarded.longest;
        assert!(longest.iter().sum::<usize>() > 60_000, "{longest:?}");
        assert_eq!(
            longest[..4],
            [SMALL_FRAME_BYTES, LARGE_FRAME_BYTES, LARGE_FRAME_BYTES, LARGE_FRAME_BYTES]
        );
        forwarded.finish();
    }
}

/// Goal: a UDP super-packet sent in one namespace arrives as a super-packet in the other.
///
/// The kernel may drop a datagram on its way, as its queue of received packets belongs to all
/// namespaces. The server then asks for another one.
#[test]
fn udp_super_packets_cross_two_devices() {
    const ARRIVALS: usize = 50;
    const ASKED_MAX: usize = ARRIVALS + 10;
    for (own, other) in [(End::v4(1), End::v4(2)), (End::v6(1), End::v6(2))] {
        let payload = pattern(1400 * 44);
        let size = NonZeroU16::new(1400);
        let (to_client, from_server) = mpsc::channel::<()>();
        let server = {
            let payload = payload.clone();
            move || {
                let mut memory = memory(1, 8, 32);
                let mut buffer = ReceiveBuffer::new();
                let socket = UdpSocket::bind(SocketAddr::new(other, 5001), None).expect("bound");
                let (mut asked, mut arrived) = (0, 0);
                while arrived < ARRIVALS {
                    assert!(asked < ASKED_MAX, "{arrived} of {asked} datagrams arrived");
                    to_client.send(()).expect("the client waits");
                    asked += 1;
                    if !is_ready(socket.as_fd(), Duration::from_secs(2)) {
                        continue;
                    }
                    let give = |datagram: Datagram| {
                        assert_eq!(datagram.from, SocketAddr::new(own, 5002));
                        assert_eq!(datagram.len, payload.len());
                        let pieces = datagram.pieces.iter();
                        let bytes = pieces.flat_map(|piece| piece.bytes().expect("private"));
                        assert!(bytes.eq(&payload));
                        arrived += 1;
                    };
                    socket
                        .receive(&mut buffer, &mut memory, (64, usize::MAX), give)
                        .expect("received");
                }
            }
        };
        let client = move || {
            let mut memory = memory(1, 1, 8);
            let socket = UdpSocket::bind(SocketAddr::new(own, 5002), None).expect("bound");
            let pieces = pieces(&mut memory, &payload);
            while from_server.recv_timeout(PATIENCE).is_ok() {
                let to = Some(SocketAddr::new(other, 5001));
                let sent = socket.send_to(to, pieces.iter(), size).expect("sent");
                assert_eq!(sent, Sent::Whole);
            }
        };
        let Some(forwarded) = joined(Features::ALL, client, server) else { return };
        assert!(forwarded.taps[0].counters().received.super_packets >= ARRIVALS as u64);
        assert!(forwarded.taps[1].counters().transmitted.super_packets >= ARRIVALS as u64);
        forwarded.finish();
    }
}

/// Goal: without features the kernel segments and computes checksums for us, and no packet larger
/// than the MTU arrives.
#[test]
fn without_features_packets_are_plain() {
    isolated(|| {
        let mut tap = ONE.tap(Features::NONE);
        assert_eq!(tap.caps(), towpath_packet::Caps::plain(1500));
        let mut memory = memory(64, 64, 16);
        let socket = broadcaster();
        broadcast(&socket, &[1; 1000]);
        let packet = receive_datagram(&mut tap, &mut memory).expect("a datagram");
        assert_eq!(*packet.offload(), Offload::default());
    });
}

/// Goal: a small packet takes one small frame and no large one.
#[test]
fn a_small_packet_takes_a_small_frame() {
    isolated(|| {
        let mut tap = ONE.tap(Features::ALL);
        let mut memory = memory(64, 64, 16);
        let socket = broadcaster();
        for _ in 0..10 {
            broadcast(&socket, &[1; 1400]);
            let packet = receive_datagram(&mut tap, &mut memory).expect("a datagram");
            assert_eq!((packet.piece_count(), packet.len()), (1, 1442));
            let held: usize = packet.pieces().map(Piece::held).sum();
            assert_eq!(held, SMALL_FRAME_BYTES);
            assert_eq!(packet.offload().checksum, Checksum::Partial { start: 34, offset: 6 });
        }
        // The read that found nothing keeps one small frame and four large ones for the next read.
        assert_eq!((memory.small.out_count(), memory.large.out_count()), (1, 4));
        tap.rest();
        assert_eq!((memory.small.out_count(), memory.large.out_count()), (0, 0));
    });
}

/// Goal: when frames are short, a packet is dropped and counted, never truncated, and smaller ones
/// still arrive. Without any memory, nothing is read and nothing is lost.
#[test]
fn short_memory_drops_whole_packets() {
    isolated(|| {
        let end = End { mtu: 65_520, ..ONE };
        let mut tap = end.tap(Features::ALL);
        let mut tight = memory(8, 8, 1);
        let socket = broadcaster();
        let fits = SMALL_FRAME_BYTES + LARGE_FRAME_BYTES - 42;
        let sizes = [100, fits, fits + 1, 60_000, 65_400, 101];
        let got: Vec<_> = sizes
            .iter()
            .map(|&size| {
                broadcast(&socket, &pattern(size));
                let packet = receive_datagram(&mut tap, &mut tight)?;
                let bytes: Vec<u8> = packet
                    .pieces()
                    .flat_map(|piece| piece.bytes().expect("private"))
                    .copied()
                    .collect();
                assert!(bytes[42..] == pattern(size));
                Some(size)
            })
            .collect();
        assert_eq!(got, [Some(100), Some(fits), None, None, None, Some(101)]);
        assert_eq!(tap.counters().receive_no_memory, 3);

        tap.rest();
        let mut none = memory(8, 0, 0);
        broadcast(&socket, &pattern(500));
        let before = *tap.counters();
        assert!(receive_datagram(&mut tap, &mut none).is_none());
        assert_eq!(tap.counters().receive_paused, before.receive_paused + 1);
        let reported = tap.receive(&mut Burst::new(), &mut cx(&mut none));
        assert_eq!(reported, Ok(Input::NoMemory));
        assert_eq!(tap.counters().received.calls, before.received.calls);
        let mut enough = memory(8, 8, 8);
        let packet = receive_datagram(&mut tap, &mut enough).expect("it waited");
        assert_eq!(packet.len(), 542);
    });
}

/// Goal: the largest IP packet arrives whole.
#[test]
fn the_largest_packet_fits() {
    isolated(|| {
        let end = End { mtu: 65_521, ..ONE };
        let mut tap = end.tap(Features::ALL);
        let mut memory = memory(8, 8, 8);
        let socket = broadcaster();
        let payload = pattern(65_521 - 28);
        broadcast(&socket, &payload);
        let packet = receive_datagram(&mut tap, &mut memory).expect("a datagram");
        assert_eq!(packet.len(), 14 + 65_521);
        assert!(packet.len() <= FRAME_BYTES_MAX);
        assert_eq!(packet.piece_count(), 5);
    });
}
