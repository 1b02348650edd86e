//! Oracles: the correct form of a frame on a wire, and the bytes of a stream.
//!
//! Written from the RFCs, without the stack's wire formats, checksums or offload code.

use towpath_packet::{Ledger, Packet};

/// Byte `offset` of stream `stream`. Neighbouring offsets and streams differ, so that moved,
/// repeated or foreign bytes are detected.
pub fn stream_byte(stream: u64, offset: u64) -> u8 {
    let mixed = (offset ^ stream << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as u8
}

/// Fills `bytes` with the stream from `offset` on.
pub fn fill(stream: u64, offset: u64, bytes: &mut [u8]) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = stream_byte(stream, offset + index as u64);
    }
}

/// True if `bytes` are the stream from `offset` on.
pub fn matches(stream: u64, offset: u64, bytes: &[u8]) -> bool {
    let mut wanted = bytes.iter().enumerate();
    wanted.all(|(index, byte)| *byte == stream_byte(stream, offset + index as u64))
}

/// All bytes of a packet, headers first.
pub fn flatten(packet: &Packet) -> Vec<u8> {
    // This copy belongs to the link; no host counts it.
    let ledger = Ledger::new();
    let mut bytes = vec![0; packet.len()];
    packet.copy_to(&mut bytes, &ledger);
    bytes
}

/// Checks a complete frame on a wire of `mtu`.
pub fn check_frame(frame: &[u8], mtu: usize) -> Result<(), String> {
    if frame.len() < 14 || frame.len() > mtu + 14 {
        return Err(format!("{} bytes on a wire of MTU {mtu}", frame.len()));
    }
    let ip = &frame[14..];
    match word(frame, 12) {
        0x0800 => check_ipv4(ip),
        0x86dd => check_ipv6(ip),
        0x0806 if ip.len() == 28 => Ok(()),
        other => Err(format!("EtherType {other:04x} with {} bytes", ip.len())),
    }
}

fn check_ipv4(ip: &[u8]) -> Result<(), String> {
    let header_len = usize::from(ip[0] & 15) * 4;
    if ip[0] >> 4 != 4 || header_len < 20 || usize::from(word(ip, 2)) != ip.len() {
        return Err("IPv4 version or length".into());
    }
    if sum(0, &ip[..header_len]) != 0xffff {
        return Err("IPv4 header checksum".into());
    }
    let fragment = word(ip, 6);
    if fragment & 0x3fff != 0 {
        return Ok(());
    }
    let pseudo = sum(u64::from(ip[9]) + (ip.len() - header_len) as u64, &ip[12..20]);
    check_transport(ip[9], pseudo, &ip[header_len..], true)
}

fn check_ipv6(ip: &[u8]) -> Result<(), String> {
    if ip[0] >> 4 != 6 || usize::from(word(ip, 4)) + 40 != ip.len() {
        return Err("IPv6 version or length".into());
    }
    let protocol = ip[6];
    let pseudo = sum(u64::from(protocol) + (ip.len() - 40) as u64, &ip[8..40]);
    check_transport(protocol, pseudo, &ip[40..], false)
}

fn check_transport(protocol: u8, pseudo: u16, bytes: &[u8], v4: bool) -> Result<(), String> {
    let right = match protocol {
        1 => sum(0, bytes) == 0xffff,
        17 if v4 && word(bytes, 6) == 0 => true,
        17 => usize::from(word(bytes, 4)) == bytes.len() && sum(pseudo.into(), bytes) == 0xffff,
        6 | 58 => sum(pseudo.into(), bytes) == 0xffff,
        _ => true,
    };
    if right { Ok(()) } else { Err(format!("checksum of protocol {protocol}")) }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The Internet checksum sum (RFC 1071), folded, from a start value.
fn sum(start: u64, bytes: &[u8]) -> u16 {
    let mut total = start;
    for pair in bytes.chunks(2) {
        total += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}
