//! Throughput figures of one device.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use towpath_io::socket::UdpSocket;
use towpath_io::tap::Features;
use towpath_packet::{Burst, Device};

use crate::network::{End, ONE, isolated};
use crate::support::{broadcast, broadcaster_at, cx, memory, now, pattern, pieces};

/// Prints figures, tests nothing: the rate of one thread through a device, with 60,000-byte
/// payloads.
#[test]
#[ignore = "prints rates; run with --release --ignored --nocapture"]
fn rates() {
    isolated(|| {
        const ROUNDS: usize = 20_000;
        let mut tap = ONE.tap(Features::ALL);
        let mut memory = memory(64, 64, 64);
        let socket = UdpSocket::bind(SocketAddr::new(End::v4(1), 4000), None).expect("bound");
        let sender = broadcaster_at(4001);
        let payload = pattern(1400 * 42);
        let mut burst = Burst::new();
        let mut read = Duration::ZERO;
        let mut write = Duration::ZERO;
        let mut plain = Duration::ZERO;
        let everybody = SocketAddr::from(([10, 9, 8, 255], 4000));
        let lent = pieces(&mut memory, &payload);
        let sending = UdpSocket::bind(SocketAddr::new(End::v4(1), 4002), None).expect("bound");
        rustix::net::sockopt::set_socket_broadcast(&sending, true).expect("a datagram socket");
        for _ in 0..ROUNDS {
            let size = NonZeroU16::new(1400);
            sending.send_to(Some(everybody), lent.iter(), size).expect("sent");
            let begin = now();
            tap.receive(&mut burst, &mut cx(&mut memory)).expect("received");
            read += begin.elapsed();
            // Sent back to its sender, with the addresses swapped.
            while let Some(mut packet) = burst.pop() {
                if packet.len() < payload.len() {
                    continue;
                }
                packet.peek_headers();
                packet.pull(42);
                let headers = packet.headers_mut();
                headers[..6].copy_from_slice(&End::mac(1));
                headers[6..12].copy_from_slice(&End::mac(2));
                headers[26..34].copy_from_slice(&[10, 9, 8, 2, 10, 9, 8, 1]);
                let mut one = Burst::new();
                one.push(packet).expect("room");
                let begin = now();
                tap.transmit(&mut one, &mut cx(&mut memory)).expect("sent");
                write += begin.elapsed();
            }
            broadcast(&sender, &payload[..1000]);
            let begin = now();
            tap.receive(&mut burst, &mut cx(&mut memory)).expect("received");
            plain += begin.elapsed();
            burst.clear();
        }
        drop(socket);
        let rate = |time: Duration| (ROUNDS * payload.len()) as f64 / time.as_secs_f64() / 1e9;
        println!("read {:.1} GB/s, write {:.1} GB/s", rate(read), rate(write));
        println!("small packet and an empty read: {:?}", plain / ROUNDS as u32);
        println!("{:?}", tap.counters());
    });
}
