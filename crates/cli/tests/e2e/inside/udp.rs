//! Programs that speak UDP.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr, UdpGsoSegment};

use super::Outcome;
use crate::support::{Pattern, now};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The message that reports that the last datagrams have arrived.
pub(crate) const ALL_CAME: &[u8] = b"all came";
/// Length of a receiver's other messages: the number of datagrams that have arrived.
pub(crate) const WORD_BYTES: u64 = 8;

fn socket(address: &str) -> Result<UdpSocket, Box<dyn std::error::Error>> {
    let address: SocketAddr = address.parse()?;
    let socket = UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Prints the result of a datagram to a closed port.
pub(super) fn refused(address: &str) -> Outcome {
    let socket = socket(address)?;
    // Without the option, Linux does not report transient errors to the socket.
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

/// Echoes everything, and prints the sender's address.
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

/// Sends `count` datagrams of `size` bytes, `segments` of them in one call, and waits until the
/// receiver reports that all have arrived.
pub(super) fn send(address: &str, size: u64, count: u64, segments: u64) -> Outcome {
    let socket = socket(address)?;
    send_numbered(&socket, size, count, segments)?;
    expect_word(&socket, ALL_CAME)
}

/// Sends numbered datagrams over the caller's socket, `segments` of them in one call; each has its
/// own content. The datagrams of one call fit a socket's usual buffer, and the next call waits
/// until they have arrived, so no kernel loses any, however late the receiver runs.
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

/// Sends a greeting, and expects numbered datagrams in order.
pub(super) fn receive(address: &str, size: u64, count: u64, segments: u64) -> Outcome {
    let socket = socket(address)?;
    socket.send(b"greeting")?;
    receive_numbered(&socket, size, count, segments)?;
    println!("received {count}");
    Ok(())
}

/// Expects what [`send_numbered`] sends, and confirms the datagrams of each call, except the last:
/// the sender may have ended by then. Returns the sender's address.
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

/// Sends to each address, from sockets that may broadcast; prints the answers.
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
