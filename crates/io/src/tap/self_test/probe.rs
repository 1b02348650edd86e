//! The probes of a self-test, one per feature and IP version.

use super::Reason;
use super::frame::{ACK, PSH, Path, SYN, Tcp, Transport};
use super::wire::Wire;
use crate::sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::net::SocketAddr;
use std::time::Duration;
use towpath_packet::{Checksum, GsoKind, Offload};

/// Above the kernel's ephemeral ports (32768 to 60999 unless configured).
const PROGRAM_PORT: u16 = 61_007;
const GATEWAY_PORT: u16 = 61_008;
/// Segments of a UDP super-packet: together just below 64 KiB.
const USO_SEGMENTS: usize = 44;
/// Segments that TCP sends before the first acknowledgement: fewer than its initial window of 10.
const TSO_SEGMENTS_OUT: usize = 8;
/// Segments sent to TCP: far fewer than its initial receive window.
const TSO_SEGMENTS_IN: usize = 20;
/// Our initial sequence number.
const ISS: u32 = 0x7fff_f000;

const UDP_SEGMENT: i32 = 103;
const UDP_GRO: i32 = 104;

/// Expects the kernel to send a datagram with a partial checksum, and to accept one.
pub(super) fn checksum(wire: &mut Wire<'_>, path: &Path) -> Result<(), Reason> {
    let socket = udp_socket(path)?;
    let payload = pattern(usize::from(path.segment_bytes()));
    send(&socket, &payload)?;
    let offload = wire.read(|offload, frame| {
        let (transport, _) = path.parse(frame)?;
        (transport == udp_out()).then_some(*offload)
    })?;
    expect_partial(path, &offload, 6)?;
    let (frame, offload) = path.build(&udp_in(), &payload);
    wire.settle(&frame, &offload, socket.as_fd())?;
    expect_bytes(wire, &socket, &payload)
}

/// Expects the kernel to send a segmented send as one super-packet, and to accept a super-packet.
pub(super) fn uso(wire: &mut Wire<'_>, path: &Path) -> Result<(), Reason> {
    let socket = udp_socket(path)?;
    let size = path.segment_bytes();
    let payload = pattern(usize::from(size) * USO_SEGMENTS);
    for (option, value) in [(UDP_SEGMENT, i32::from(size)), (UDP_GRO, 1)] {
        sys::set_option(socket.as_fd(), libc::IPPROTO_UDP, option, &value.to_ne_bytes())
            .map_err(|errno| Reason::Failed("set UDP option", errno))?;
    }
    send(&socket, &payload)?;
    let (offload, intact) = wire.read(|offload, frame| {
        let (transport, bytes) = path.parse(frame)?;
        (transport == udp_out()).then_some((*offload, bytes == payload))
    })?;
    expect_super(&offload, GsoKind::Udp, size)?;
    expect_partial(path, &offload, 6)?;
    if !intact {
        return Err(Reason::Altered);
    }
    let (frame, offload) = path.build(&udp_in(), &payload);
    wire.write(&frame, &offload)?;
    expect_bytes(wire, &socket, &payload)
}

/// Expects a TCP connection to send super-packets, and to accept one.
pub(super) fn tso(wire: &mut Wire<'_>, path: &Path) -> Result<(), Reason> {
    let socket = tcp_socket(path)?;
    let mut peer = Peer::accept(wire, path)?;
    peer.receive(wire, path, &socket)?;
    let payload = pattern(usize::from(path.segment_bytes()) * TSO_SEGMENTS_IN);
    peer.send(wire, path, PSH | ACK, &payload)?;
    expect_bytes(wire, &socket, &payload)
}

/// The peer of a TCP connection. It never retransmits, because nothing is lost.
struct Peer {
    port: u16,
    snd_nxt: u32,
    rcv_nxt: u32,
}

impl Peer {
    /// Accepts the connection in progress: answers its SYN.
    fn accept(wire: &mut Wire<'_>, path: &Path) -> Result<Self, Reason> {
        let (port, syn) = wire.read(|_, frame| {
            let (transport, _) = path.parse(frame)?;
            let tcp = transport.tcp.filter(|tcp| tcp.flags & SYN != 0)?;
            (transport.destination == GATEWAY_PORT).then_some((transport.source, tcp))
        })?;
        let mut peer = Self { port, snd_nxt: ISS, rcv_nxt: syn.sequence.wrapping_add(1) };
        peer.send(wire, path, SYN | ACK, &[])?;
        peer.snd_nxt = ISS.wrapping_add(1);
        Ok(peer)
    }

    /// Lets the program send, and checks that it sends super-packets.
    fn receive(&mut self, wire: &mut Wire<'_>, path: &Path, from: &OwnedFd) -> Result<(), Reason> {
        let size = path.segment_bytes();
        let payload = pattern(usize::from(size) * TSO_SEGMENTS_OUT);
        send(from, &payload)?;
        let mut left = &payload[..];
        let mut whole = Err(Reason::Segmentation);
        while !left.is_empty() {
            let (offload, intact, bytes) = wire.read(|offload, frame| {
                let (transport, bytes) = path.parse(frame)?;
                let tcp = transport.tcp.filter(|_| transport.source == self.port)?;
                let is_next = tcp.sequence == self.rcv_nxt && !bytes.is_empty();
                is_next.then_some((*offload, left.starts_with(bytes), bytes.len()))
            })?;
            if !intact {
                return Err(Reason::Altered);
            }
            if offload.gso.is_some() {
                let tcp = Transport { tcp: Some(Tcp::default()), ..Transport::default() };
                expect_super(&offload, path.gso_kind(&tcp), size)?;
                expect_partial(path, &offload, 16)?;
                whole = Ok(());
            }
            left = &left[bytes..];
            self.rcv_nxt = self.rcv_nxt.wrapping_add(bytes as u32);
        }
        whole
    }

    fn send(&self, wire: &Wire<'_>, path: &Path, flags: u8, payload: &[u8]) -> Result<(), Reason> {
        let mss = (flags & SYN != 0).then_some(path.segment_bytes());
        let (sequence, acknowledged) = (self.snd_nxt, self.rcv_nxt);
        let tcp = Some(Tcp { sequence, acknowledged, flags, mss });
        let transport = Transport { source: GATEWAY_PORT, destination: self.port, tcp };
        let (frame, offload) = path.build(&transport, payload);
        wire.write(&frame, &offload)
    }
}

/// Receives as many bytes as `payload` has, and compares them.
fn expect_bytes(wire: &Wire<'_>, socket: &OwnedFd, payload: &[u8]) -> Result<(), Reason> {
    let mut buffer = vec![0; payload.len()];
    let mut filled = 0;
    while filled < payload.len() {
        wire.wait_taken(socket.as_fd())?;
        let (bytes, _) = rustix::net::recv(socket, &mut buffer[filled..], RecvFlags::DONTWAIT)
            .map_err(|errno| Reason::Failed("receive", errno))?;
        if bytes == 0 {
            return Err(Reason::Altered);
        }
        filled += bytes;
    }
    if buffer == payload { Ok(()) } else { Err(Reason::Altered) }
}

fn expect_partial(path: &Path, offload: &Offload, offset: u16) -> Result<(), Reason> {
    let start = path.transport_at() as u16;
    let expected = Checksum::Partial { start, offset };
    if offload.checksum == expected { Ok(()) } else { Err(Reason::Finished) }
}

fn expect_super(offload: &Offload, kind: GsoKind, size: u16) -> Result<(), Reason> {
    match offload.gso {
        Some(gso) if gso.kind == kind && gso.size.get() == size => Ok(()),
        _ => Err(Reason::Segmentation),
    }
}

fn udp_out() -> Transport {
    Transport { source: PROGRAM_PORT, destination: GATEWAY_PORT, tcp: None }
}

fn udp_in() -> Transport {
    Transport { source: GATEWAY_PORT, destination: PROGRAM_PORT, tcp: None }
}

fn udp_socket(path: &Path) -> Result<OwnedFd, Reason> {
    open(path, SocketType::DGRAM, PROGRAM_PORT)
}

fn tcp_socket(path: &Path) -> Result<OwnedFd, Reason> {
    let socket = open(path, SocketType::STREAM, 0)?;
    // Closing then sends a RST and leaves no connection behind in any state.
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))
        .map_err(|errno| Reason::Failed("set linger", errno))?;
    Ok(socket)
}

fn open(path: &Path, kind: SocketType, port: u16) -> Result<OwnedFd, Reason> {
    let family = if path.program.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, kind, flags, None)
        .map_err(|errno| Reason::Failed("open socket", errno))?;
    rustix::net::bind(&socket, &SocketAddr::new(path.program, port))
        .map_err(|errno| Reason::Failed("bind", errno))?;
    match rustix::net::connect(&socket, &SocketAddr::new(path.gateway, GATEWAY_PORT)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(Reason::Failed("connect", errno)),
    }
}

fn send(socket: &OwnedFd, payload: &[u8]) -> Result<(), Reason> {
    match rustix::net::send(socket, payload, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(bytes) if bytes == payload.len() => Ok(()),
        Ok(_) => Err(Reason::Failed("send", Errno::AGAIN)),
        Err(errno) => Err(Reason::Failed("send", errno)),
    }
}

/// Pseudo-random bytes, in which no two ranges of a segment's length are equal.
fn pattern(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..bytes).map(next).collect()
}
