//! Sockets that need a namespace.

use std::net::IpAddr;

use rustix::fd::AsFd;
use towpath_io::receive::ReceiveBuffer;
use towpath_io::socket::{PingKind, PingSocket};
use towpath_io::tap::Features;

use crate::network::{ONE, isolated};
use crate::support::{memory, pieces, ready};

/// Goal: ping datagram sockets work where they are permitted. Method: permits them in a namespace.
#[test]
fn ping_by_datagram_socket() {
    isolated(|| {
        ONE.tap(Features::NONE);
        if let Err(error) = std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647") {
            println!("skipped: ping_group_range: {error}");
            return;
        }
        for host in ["127.0.0.1", "::1"] {
            let host: IpAddr = host.parse().expect("an address");
            let socket = PingSocket::connect(host, 77).expect("permitted");
            assert_eq!(socket.kind(), PingKind::Datagram);
            let (mut memory, mut buffer) = (memory(1, 4, 8), ReceiveBuffer::new());
            let payload = pieces(&mut memory, b"towpath");
            socket.send(3, payload.iter()).expect("sent");
            ready(socket.as_fd());
            let echo = socket.receive(&mut buffer, &mut memory).expect("received");
            let echo = echo.expect("memory");
            assert_eq!((echo.ident, echo.sequence, echo.len), (77, 3, 7));
        }
    });
}
