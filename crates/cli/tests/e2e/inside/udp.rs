//! Programs that speak UDP.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr, UdpGsoSegment};

use super::Outcome;
use crate::support::{Pattern, now};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is said when the last datagrams have come.
pub(crate) const ALL_CAME: &[u8] = b"all came";
/// Length of the other words that a receiver says: how many datagrams have come.
pub(crate) const WORD_BYTES: u64 = 8;

fn socket(address: &str) -> Result<UdpSocket, Box<dyn std::error::Error>> {
    let address: SocketAddr = address.parse()?;
    let socket = UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Prints what comes of a datagram to a port where nobody listens.
pub(super) fn refused(address: &str) -> Outcome {
    let socket = socket(address)?;
    // Without it, Linux keeps errors that may pass from its users.
    if socket.peer_addr()?.is_ipv4() {
        setsockopt(&socket, Ipv4RecvErr, &true)?;
    } else {
        setsockopt(&socket, Ipv6RecvErr, &true)?;
    }
    let begun = now();
    socket.send(b"anybody?")?;
    let answer = socket.recv(&mut [0; 16]);
    let took = begun.elapsed().as_millis();
    match answer {
        Ok(_) => println!("{address} answered {took}"),
        Err(error) => println!("{address} {:?} {took}", error.kind()),
    }
    Ok(())
}

/// Sends a datagram of each size, and expects it back.
pub(super) fn echo(address: &str, sizes: &[&str]) -> Outcome {
    let socket = socket(address)?;
    let mut buffer = vec![0; 1 << 16];
    for size in sizes {
        let sent = Pattern::seeded(size.parse()?, 1).bytes();
        socket.send(&sent)?;
        let count = socket.recv(&mut buffer).map_err(|error| format!("{size} bytes: {error}"))?;
        if buffer[..count] != sent {
            return Err(format!("another answer to {size} bytes: {count}").into());
        }
    }
    println!("answered {}", sizes.len());
    Ok(())
}

/// Sends everything back, and tells who sent it.
pub(super) fn server(port: u16) -> Outcome {
    let socket = UdpSocket::bind(("::", port))?;
    println!("listening");
    let mut buffer = vec![0; 1 << 16];
    loop {
        let (count, peer) = socket.recv_from(&mut buffer)?;
        println!("from {}", peer.ip().to_canonical());
        socket.send_to(&buffer[..count], peer)?;
    }
}

/// Sends `count` datagrams of `size` bytes, `segments` of them in one call, and waits until it is
/// told that all have come.
pub(super) fn send(address: &str, size: u64, count: u64, segments: u64) -> Outcome {
    let socket = socket(address)?;
    send_numbered(&socket, size, count, segments)?;
    expect_word(&socket, ALL_CAME)
}

/// As [`send`], over a socket of the caller's; each datagram has its own content. What is sent in
/// one call fits into a socket's usual buffer, and the next call waits until it has come, so that
/// no kernel loses any, however late the receiver runs.
pub(crate) fn send_numbered(socket: &UdpSocket, size: u64, count: u64, segments: u64) -> Outcome {
    socket.set_read_timeout(Some(PATIENCE))?;
    if segments > 1 {
        setsockopt(socket, UdpGsoSegment, &i32::try_from(size)?)?;
    }
    for first in (0..count).step_by(usize::try_from(segments)?) {
        if first > 0 {
            expect_word(socket, &first.to_be_bytes())?;
        }
        let together = (first..(first + segments).min(count)).flat_map(|n| datagram(size, n));
        socket.send(&together.collect::<Vec<u8>>())?;
    }
    Ok(())
}

fn expect_word(socket: &UdpSocket, word: &[u8]) -> Outcome {
    let mut said = [0; 64];
    let count =
        socket.recv(&mut said).map_err(|error| format!("waiting for {word:x?}: {error}"))?;
    if &said[..count] == word {
        Ok(())
    } else {
        Err(format!("{:x?} is said", &said[..count]).into())
    }
}

fn datagram(size: u64, number: u64) -> Vec<u8> {
    Pattern::seeded(size, number + 1).bytes()
}

/// Greets, and expects numbered datagrams in their order.
pub(super) fn receive(address: &str, size: u64, count: u64, segments: u64) -> Outcome {
    let socket = socket(address)?;
    socket.send(b"greeting")?;
    receive_numbered(&socket, size, count, segments)?;
    println!("received {count}");
    Ok(())
}

/// Expects what [`send_numbered`] sends, and tells when what was sent together has come: all but
/// the last, for who is told last may have ended. Who sent it.
pub(crate) fn receive_numbered(
    socket: &UdpSocket,
    size: u64,
    count: u64,
    segments: u64,
) -> Result<SocketAddr, Box<dyn std::error::Error>> {
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut buffer = vec![0; 1 << 16];
    let mut number = 0;
    loop {
        let (len, peer) =
            socket.recv_from(&mut buffer).map_err(|error| format!("datagram {number}: {error}"))?;
        if buffer[..len] != datagram(size, number) {
            return Err(format!("datagram {number} is another, of {len} bytes").into());
        }
        number += 1;
        if number == count {
            return Ok(peer);
        }
        if number % segments == 0 {
            socket.send_to(&number.to_be_bytes(), peer)?;
        }
    }
}

/// Sends to each address, from sockets that may broadcast; prints what is answered.
pub(super) fn silent(addresses: &[&str]) -> Outcome {
    for address in addresses {
        let to: SocketAddr = address.parse()?;
        let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
        socket.set_broadcast(true)?;
        socket.set_read_timeout(Some(Duration::from_millis(300)))?;
        let answer = socket.send_to(b"question", to).and_then(|_| socket.recv(&mut [0; 16]));
        match answer {
            Ok(_) => println!("{address} answered"),
            Err(error) => println!("{address} {:?}", error.kind()),
        }
    }
    Ok(())
}
