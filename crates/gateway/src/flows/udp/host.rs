//! Host sockets of mappings, and sending by them.

use super::Realm;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use towpath_io::socket::{IpFields, Sent, UdpSocket};
use towpath_packet::{Packet, Piece};

/// Opens a socket for a new mapping.
pub(super) fn open(realm: Realm, to: SocketAddr) -> io::Result<UdpSocket> {
    if let Realm::Dns(_) = realm {
        return UdpSocket::connect(to);
    }
    let any: IpAddr = match (realm, to) {
        // Bound to the loopback or the host's own address, so that other hosts cannot reach this
        // mapping by the loopback.
        (Realm::Mapped(_), to) => to.ip(),
        (_, SocketAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
        (_, SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
    };
    UdpSocket::bind(SocketAddr::new(any, 0), None)
}

/// Sends a datagram, or each segment by itself where the host does not take super-packets.
pub(super) fn send(
    socket: &UdpSocket,
    fields: &IpFields,
    to: Option<SocketAddr>,
    packet: &Packet,
    segment_size: Option<NonZeroU16>,
) -> io::Result<()> {
    if socket.send_from(fields, to, packet.pieces(), segment_size)? == Sent::Whole {
        return Ok(());
    }
    let Some(size) = segment_size else { return Ok(()) };
    let mut result = Ok(());
    for_each_segment(packet, size, |pieces| {
        if result.is_ok() {
            let pieces: Vec<Piece> = pieces.collect();
            result = socket.send_from(fields, to, pieces.iter(), None).map(|_| ());
        }
    });
    result
}

/// Calls `act` with the pieces of each segment of `size` bytes.
pub(super) fn for_each_segment(
    packet: &Packet,
    size: NonZeroU16,
    act: impl FnMut(&mut dyn Iterator<Item = Piece>),
) {
    for_each_part(|| packet.pieces(), packet.payload_len(), size, act);
}

/// Calls `act` with the pieces of each part of `size` bytes; the `pieces` have `total` bytes.
pub(in crate::flows) fn for_each_part<'a, I: Iterator<Item = &'a Piece>>(
    pieces: impl Fn() -> I,
    total: usize,
    size: NonZeroU16,
    mut act: impl FnMut(&mut dyn Iterator<Item = Piece>),
) {
    let size = usize::from(size.get());
    for start in (0..total).step_by(size) {
        let end = (start + size).min(total);
        let mut at = 0;
        let mut parts = pieces().filter_map(|piece| {
            let (from, to) = (at, at + piece.len());
            at = to;
            let (from_cut, to_cut) = (from.max(start), to.min(end));
            (from_cut < to_cut).then(|| piece.slice(from_cut - from, to_cut - from_cut))
        });
        act(&mut parts);
    }
}
