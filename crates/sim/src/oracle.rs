//! Oracles: the correct form of a frame on a wire, and the bytes of a stream.
//!
//! Written from the RFCs, without the stack's wire formats, checksums or offload code.

use towpath_packet::{Ledger, Packet};

/// Bytes of a stream that are made together.
const WORD_BYTES: u64 = 8;

/// Byte `offset` of stream `stream`. Neighbouring offsets and streams differ, so that moved,
/// repeated or foreign bytes are detected.
pub fn stream_byte(stream: u64, offset: u64) -> u8 {
    stream_word(stream, offset / WORD_BYTES)[(offset % WORD_BYTES) as usize]
}

/// The bytes of the stream from `WORD_BYTES * number` on.
fn stream_word(stream: u64, number: u64) -> [u8; WORD_BYTES as usize] {
    let mixed = (number ^ stream << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes()
}

/// Fills `bytes` with the stream from `offset` on.
pub fn fill(stream: u64, offset: u64, bytes: &mut [u8]) {
    let mut number = offset / WORD_BYTES;
    let head = (number * WORD_BYTES + WORD_BYTES - offset).min(bytes.len() as u64) as usize;
    let (head, rest) = bytes.split_at_mut(head);
    for (index, byte) in head.iter_mut().enumerate() {
        *byte = stream_byte(stream, offset + index as u64);
    }
    for word in rest.chunks_mut(WORD_BYTES as usize) {
        number += 1;
        word.copy_from_slice(&stream_word(stream, number)[..word.len()]);
    }
}

/// True if `bytes` are the stream from `offset` on.
pub fn matches(stream: u64, offset: u64, bytes: &[u8]) -> bool {
    let mut wanted = vec![0; bytes.len()];
    fill(stream, offset, &mut wanted);
    wanted == bytes
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
    // Sums of 32-bit words have the same fold: 2^16 is 1 modulo 2^16 - 1 (RFC 1071 §2).
    for word in bytes.chunks(4) {
        let mut padded = [0; 4];
        padded[..word.len()].copy_from_slice(word);
        total += u64::from(u32::from_be_bytes(padded));
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}
