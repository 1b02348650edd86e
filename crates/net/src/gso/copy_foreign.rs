//! Copies foreign payload into pool frames.
//!
//! If foreign memory were read once for a checksum and once more by the device, a lender that
//! changes it in between would make the checksum wrong. So it is read once, here, and the summed
//! bytes are sent. Each retransmission copies again.

use towpath_packet::packet::PIECES_MAX;
use towpath_packet::pool::{LARGE_FRAME_BYTES, SMALL_FRAME_BYTES};
use towpath_packet::{Ledger, Memory, Packet, Piece, Site};

use super::header_layout::IP_BYTES_MAX;

// A packet has room for the maximum payload in large frames, and one more.
const _: () = assert!(IP_BYTES_MAX.div_ceil(LARGE_FRAME_BYTES) <= PIECES_MAX);

/// Copies the payload of a packet into frames if any of it is foreign memory, and marks its loans
/// as copied. False if no frames are free; nothing has changed then.
///
/// # Panics
/// If the payload is longer than [`IP_BYTES_MAX`].
pub(crate) fn own_payload(packet: &mut Packet, memory: &mut Memory, ledger: &Ledger) -> bool {
    replace_payload(packet, memory, ledger, Site::Checksum, Piece::is_foreign)
}

/// Copies the payload of a packet into frames if any of it is not in a pool frame, counted at the
/// switch's site. False if no frames are free; nothing has changed then.
///
/// # Panics
/// If the payload has more bytes than a packet of full frames.
pub(crate) fn orphan_payload(packet: &mut Packet, memory: &mut Memory, ledger: &Ledger) -> bool {
    replace_payload(packet, memory, ledger, Site::Orphan, |piece| !piece.is_frame())
}

fn replace_payload(
    packet: &mut Packet,
    memory: &mut Memory,
    ledger: &Ledger,
    site: Site,
    is_replaced: impl Fn(&Piece) -> bool,
) -> bool {
    if !packet.pieces().any(&is_replaced) {
        return true;
    }
    let Some(copies) = copy_payload(packet, memory, ledger, site) else { return false };
    packet.pieces().filter(|piece| is_replaced(piece)).for_each(Piece::mark_copied);
    packet.drop_front(packet.payload_len());
    for copy in copies.into_iter().flatten() {
        packet.push_piece(copy).expect("there are no more than a packet has");
    }
    true
}

fn copy_payload(
    packet: &Packet,
    memory: &mut Memory,
    ledger: &Ledger,
    site: Site,
) -> Option<[Option<Piece>; PIECES_MAX]> {
    let mut copies = [const { None }; PIECES_MAX];
    let mut pieces = packet.pieces();
    let (mut rest, mut left) = (None, packet.payload_len());
    for copy in &mut copies {
        if left == 0 {
            break;
        }
        let pool = if left <= SMALL_FRAME_BYTES { &mut memory.small } else { &mut memory.large };
        let mut frame = pool.take()?;
        let mut filled = 0;
        while left > 0 && filled < frame.len() {
            let mut next = || pieces.next().expect("pieces add up to the payload").clone();
            let mut piece: Piece = rest.take().unwrap_or_else(&mut next);
            let count = ledger.copy(site, &piece, &mut frame[filled..]);
            piece.advance(count);
            (filled, left) = (filled + count, left - count);
            rest = Some(piece).filter(|piece| !piece.is_empty());
        }
        *copy = Some(frame.freeze(filled));
    }
    assert_eq!(left, 0, "an IP packet has room in these frames");
    Some(copies)
}
