//! Target: offload claims, segmentation, checksums and coalescing of arbitrary packets.
//!
//! Segmentation must turn a packet into correct frames that carry exactly its payload. Coalescing
//! must give back all packets that it holds or merges, byte for byte.

use towpath_net::gro::Coalescer;
use towpath_net::gso::{self, Checksums};
use towpath_net::wire::ethernet::HEADER_LEN as IP_AT;
use towpath_net::wire::headers::Headers;
use towpath_net::wire::udp;
use towpath_packet::packet::PEEK_BYTES;
use towpath_packet::{
    Checksum, GsoKind, Ledger, Memory, Offload, Packet, Tunnel, VirtioHeader, VirtioTunnelHeader,
};
use towpath_sim::oracle;

use crate::input::Input;
use crate::packets;

/// Most packets of one input.
const PACKETS_MAX: usize = 32;
/// Longest IP packet.
const IP_BYTES_MAX: usize = 65_535;

/// Reads packets: a byte of choices, a virtio-net header of either length, and a frame with its
/// length.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut memory = packets::memory();
    let ledger = Ledger::new();
    let mut coalescer = Coalescer::new(1);
    let (mut taken, mut given) = (0, 0);
    for _ in 0..PACKETS_MAX {
        if input.is_empty() {
            break;
        }
        let choice = input.u8();
        let Some((mut packet, headers)) = read(&mut input, choice, &mut memory) else { continue };
        if choice & 1 != 0 {
            segment(packet, &headers, &mut memory, &ledger);
            continue;
        }
        // The stack checks claims before it coalesces.
        if gso::check_offload(&mut packet, &headers).is_err() {
            continue;
        }
        taken += packet.payload_len();
        let mut out = |packet: Packet, ()| given += packet.payload_len();
        coalescer.receive(packet, &headers, (), &ledger, &mut out);
        if choice & 2 != 0 {
            coalescer.flush(&mut out);
        }
    }
    coalescer.flush(&mut |packet: Packet, ()| given += packet.payload_len());
    assert_eq!(coalescer.held_count(), 0);
    assert_eq!(taken, given, "payload bytes into and out of coalescing");
    drop(coalescer);
    packets::check_returned(memory);
}

/// Reads a packet whose headers are parsed as far as its length fields reach, as in the stack.
fn read(input: &mut Input<'_>, choice: u8, memory: &mut Memory) -> Option<(Packet, Headers)> {
    let offload = match choice & 16 {
        0 => VirtioHeader(input.array()).decode().ok()?,
        _ => VirtioTunnelHeader(input.array()).decode().ok()?,
    };
    let frame = input.counted();
    // A few bytes of input make a long packet.
    let repeat = if choice & 4 != 0 { usize::from(input.u16()) } else { 0 };
    let mut bytes = frame.to_vec();
    bytes.resize((frame.len() + repeat).min(IP_AT + IP_BYTES_MAX), 0x5a);
    let headers = Headers::read(&bytes[..bytes.len().min(PEEK_BYTES)], IP_AT)?;
    let headers_len = match tunnel_of(&offload) {
        Some(_) => inner_end(&bytes, &offload)?,
        None => headers.end,
    };
    if bytes.len() < headers_len {
        return None;
    }
    let (front, payload) = bytes.split_at(headers_len);
    let piece_max = if choice & 8 != 0 { 4096 } else { 16 << 10 };
    let mut packet = packets::parsed(memory, front, payload, piece_max)?;
    packet.set_offload(offload);
    Some((packet, headers))
}

fn tunnel_of(offload: &Offload) -> Option<Tunnel> {
    offload.gso.and_then(|gso| gso.tunnel)
}

/// Where the inner headers end, if the claims about a tunnel are true.
fn inner_end(bytes: &[u8], offload: &Offload) -> Option<usize> {
    let Checksum::Partial { start, .. } = offload.checksum else { return None };
    let start = usize::from(start);
    let end = match offload.gso?.kind {
        GsoKind::Udp => start + udp::HEADER_LEN,
        GsoKind::Tcp4 | GsoKind::Tcp6 => start + usize::from(*bytes.get(start + 12)? >> 4) * 4,
    };
    (end <= PEEK_BYTES).then_some(end)
}

fn segment(packet: Packet, headers: &Headers, memory: &mut Memory, ledger: &Ledger) {
    let whole = packets::payload(&packet);
    let size = packet.offload().gso.map(|gso| usize::from(gso.size.get()));
    let tunnel = tunnel_of(packet.offload());
    let mut segments = Vec::new();
    let mut out = |segment, _: &mut _| segments.push(segment);
    let done = gso::segment(packet, memory, ledger, headers, Checksums::Complete, &mut out);
    let count = match done {
        Ok(count) => count,
        Err((_, packet)) => {
            assert!(segments.is_empty(), "a refused packet makes no segments");
            assert_eq!(packets::payload(&packet), whole, "a refused packet is unchanged");
            return;
        }
    };
    assert_eq!(count, segments.len());
    if count > 1 {
        let payload: Vec<u8> = segments.iter().flat_map(packets::payload).collect();
        assert_eq!(payload, whole);
    }
    for segment in &segments {
        let partial = matches!(segment.offload().checksum, Checksum::Partial { .. });
        assert!(!partial && segment.offload().gso.is_none(), "{:?}", segment.offload());
        assert!(count == 1 || size.is_some_and(|size| segment.payload_len() <= size));
        if count > 1 {
            check(&oracle::flatten(segment), tunnel);
        }
    }
    if tunnel.is_none() {
        coalesce(segments, headers, &whole, ledger);
    }
}

/// Checks that coalescing the segments of one flow yields its payload in order.
fn coalesce(segments: Vec<Packet>, headers: &Headers, whole: &[u8], ledger: &Ledger) {
    if segments.len() < 2 {
        return;
    }
    let mut coalescer = Coalescer::new(1);
    let mut payload = Vec::new();
    let mut out = |packet: Packet, ()| payload.extend(packets::payload(&packet));
    for segment in segments {
        coalescer.receive(segment, headers, (), ledger, &mut out);
    }
    coalescer.flush(&mut out);
    assert_eq!(payload, whole);
}

/// Checks that a segment is a valid frame, and so is the packet in its tunnel.
fn check(frame: &[u8], tunnel: Option<Tunnel>) {
    let judge = |frame: &[u8]| {
        if let Err(problem) = oracle::check_frame(&as_ip(frame), IP_BYTES_MAX) {
            panic!("{problem} in {:02x?}", &frame[..frame.len().min(PEEK_BYTES)]);
        }
    };
    // An outer checksum that was not requested is unchanged.
    if tunnel.is_none_or(|tunnel| tunnel.checksum) {
        judge(frame);
    }
    if let Some(tunnel) = tunnel {
        judge(&frame[usize::from(tunnel.network_at) - IP_AT..]);
    }
}

/// The frame with the EtherType of its IP version, which the oracle relies on.
fn as_ip(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let ethertype: u16 = if frame[IP_AT] >> 4 == 4 { 0x0800 } else { 0x86dd };
    frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
    frame
}
