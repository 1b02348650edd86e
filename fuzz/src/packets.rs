//! Memory and packets for targets, and the check that all of it was returned.

use std::cell::Cell;

use towpath_packet::{Memory, MemoryConfig, Packet, Piece};

/// Few enough that an input can exhaust them.
const CONFIG: MemoryConfig = MemoryConfig { packets: 256, small_frames: 256, large_frames: 64 };

thread_local! {
    /// Pools of the last input, all free. Creating new ones takes longer than most inputs.
    static SPARE: Cell<Option<Memory>> = const { Cell::new(None) };
}

/// Pools whose packets and frames are all free.
pub fn memory() -> Memory {
    SPARE.take().unwrap_or_else(|| Memory::new(CONFIG))
}

/// `bytes` as a device would receive them: in a small frame, then large ones.
pub fn received(memory: &mut Memory, bytes: &[u8]) -> Option<Packet> {
    let mut packet = memory.packet()?;
    let mut rest = bytes;
    let mut pool = &mut memory.small;
    while !rest.is_empty() {
        let mut frame = pool.take()?;
        let count = rest.len().min(frame.len());
        frame[..count].copy_from_slice(&rest[..count]);
        packet.push_piece(frame.freeze(count)).ok()?;
        rest = &rest[count..];
        pool = &mut memory.large;
    }
    Some(packet)
}

/// A parsed packet: private headers, and payload in pieces of at most `piece_max` bytes.
pub fn parsed(
    memory: &mut Memory,
    headers: &[u8],
    payload: &[u8],
    piece_max: usize,
) -> Option<Packet> {
    let mut packet = memory.packet()?;
    packet.push_header(headers.len()).copy_from_slice(headers);
    for part in payload.chunks(piece_max) {
        packet.push_piece(piece(memory, part)?).ok()?;
    }
    Some(packet)
}

/// `bytes` as pool memory; at most as many as a large frame holds.
pub fn piece(memory: &mut Memory, bytes: &[u8]) -> Option<Piece> {
    let fits_small = bytes.len() <= memory.small.frame_bytes();
    let mut frame = if fits_small { memory.small.take()? } else { memory.large.take()? };
    frame[..bytes.len()].copy_from_slice(bytes);
    Some(frame.freeze(bytes.len()))
}

/// The payload bytes of a packet.
pub fn payload(packet: &Packet) -> Vec<u8> {
    packet.pieces().flat_map(|piece| piece.bytes().expect("pool memory").to_vec()).collect()
}

/// Panics unless all packets and frames were returned; then keeps the pools for the next input.
pub fn check_returned(memory: Memory) {
    let out = (memory.packets.out_count(), memory.small.out_count(), memory.large.out_count());
    assert_eq!(out, (0, 0, 0), "packets, small and large frames that were not returned");
    SPARE.set(Some(memory));
}
