//! A link between two hosts in one process. Packets travel with their pieces and no payload is
//! copied: one host reads lent bytes where the other keeps them.
//!
//! Each direction is a bounded ring of packets behind a lock that is taken once per burst. A full
//! ring stops its sender's stack, as a device does; nothing is dropped. When one end goes, packets
//! on the link and later ones are dropped, and counted by the other end.
//!
//! Headers move into a frame of the receiver, as if a device had written them. If a packet has no
//! room for one more piece, its two smallest neighbouring pieces are copied together.

use crate::driver::Bell;
use rustix::fd::BorrowedFd;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_net::fragment::into_received;
use towpath_packet::packet::PIECES_MAX;
use towpath_packet::{Burst, Caps, Context, Device, Input, Ledger, Memory, Packet, Piece, Site};

/// Packets per direction: a burst, and some super-packets more.
pub(super) const RING_MAX: usize = 256;

/// One direction of a link.
struct Ring {
    packets: Mutex<Packets>,
}

#[derive(Default)]
struct Packets {
    queue: VecDeque<Packet>,
    /// The sender found the ring full, and must be notified when it is not.
    full: bool,
    /// An end is gone: nothing arrives any more.
    cut: bool,
    /// Packets dropped for that reason and not counted yet.
    lost: usize,
}

/// One end of a link.
pub(super) struct LinkEnd {
    mtu: u16,
    out: Arc<Ring>,
    incoming: Arc<Ring>,
    /// Bell of the peer's worker.
    peer: Arc<Bell>,
    /// Packets taken from the ring and not received yet, because there was no memory.
    taken: VecDeque<Packet>,
    full: bool,
    /// The other end was gone at the last attempt.
    cut: bool,
}

/// Creates two ends, for hosts whose workers have these bells.
pub(super) fn pair(mtus: [u16; 2], [a, b]: [Arc<Bell>; 2]) -> [LinkEnd; 2] {
    let ring = || Arc::new(Ring { packets: Mutex::default() });
    let rings = [ring(), ring()];
    // Each end must accept what the other sends.
    let mtu = mtus[0].min(mtus[1]);
    let end = |out: usize, peer| LinkEnd {
        mtu,
        out: rings[out].clone(),
        incoming: rings[1 - out].clone(),
        peer,
        taken: VecDeque::with_capacity(RING_MAX),
        full: false,
        cut: false,
    };
    [end(0, b), end(1, a)]
}

impl Device for LinkEnd {
    type Error = Infallible;

    /// Accepts whole packets with any offload.
    fn caps(&self) -> Caps {
        Caps {
            mtu: self.mtu,
            checksum: true,
            tso4: true,
            tso6: true,
            uso: true,
            tunnel: false,
            gso_bytes_max: GSO_BYTES_MAX,
            segments: false,
        }
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns true if there are packets to receive, or if the ring that was full at the last
    /// attempt has room. The peer rings for both.
    fn arm(&mut self) -> bool {
        !self.taken.is_empty()
            || !self.incoming.lock().queue.is_empty()
            || self.full && !self.out.lock().full
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, Infallible> {
        if self.taken.is_empty() {
            let mut packets = self.incoming.lock();
            std::mem::swap(&mut packets.queue, &mut self.taken);
            let was_full = std::mem::take(&mut packets.full);
            drop(packets);
            if was_full {
                self.peer.ring();
            }
        }
        while !burst.is_full()
            && let Some(packet) = self.taken.pop_front()
        {
            match arrive(packet, cx.memory, cx.ledger) {
                // The loop has checked that there is room.
                Ok(packet) => drop(burst.push(packet)),
                Err(packet) => {
                    self.taken.push_front(packet);
                    return Ok(Input::NoMemory);
                }
            }
        }
        Ok(Input::Done)
    }

    /// Sends from the front of `burst` until the ring is full. If the other end is gone, all
    /// packets are lost.
    fn transmit(&mut self, burst: &mut Burst, _: &mut Context<'_>) -> Result<(), Infallible> {
        let mut packets = self.out.lock();
        while !burst.is_empty() && (packets.cut || packets.queue.len() < RING_MAX) {
            let packet = burst.pop();
            if packets.cut {
                packets.lost += 1;
            } else {
                packets.queue.extend(packet);
            }
        }
        packets.full = !burst.is_empty();
        (self.full, self.cut) = (packets.full, packets.cut);
        drop(packets);
        self.peer.ring();
        Ok(())
    }

    fn take_lost(&mut self) -> usize {
        if !self.cut {
            return 0;
        }
        [&self.out, &self.incoming].map(|ring| std::mem::take(&mut ring.lock().lost)).iter().sum()
    }
}

impl Drop for LinkEnd {
    fn drop(&mut self) {
        let not_received = self.taken.len();
        for (ring, more) in [(&self.out, 0), (&self.incoming, not_received)] {
            let mut packets = ring.lock();
            packets.cut = true;
            let left = std::mem::take(&mut packets.queue);
            packets.lost += left.len() + more;
            drop(packets);
            drop(left);
        }
        self.peer.ring();
    }
}

impl Ring {
    fn lock(&self) -> std::sync::MutexGuard<'_, Packets> {
        self.packets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the packet as the receiver's device would have delivered it; hands it back without
/// memory for that.
fn arrive(mut packet: Packet, memory: &mut Memory, ledger: &Ledger) -> Result<Packet, Packet> {
    if packet.piece_count() == PIECES_MAX && !squeeze(&mut packet, memory, ledger) {
        return Err(packet);
    }
    into_received(packet, memory)
}

/// Copies the two neighbouring pieces with the smallest sum into one. Returns false without memory.
fn squeeze(packet: &mut Packet, memory: &mut Memory, ledger: &Ledger) -> bool {
    let mut lens = packet.pieces().map(Piece::len);
    let mut before = lens.next().unwrap_or(0);
    let sums = lens.map(|len| len + std::mem::replace(&mut before, len));
    let Some((at, sum)) = sums.enumerate().min_by_key(|&(_, sum)| sum) else { return false };
    // The two smallest neighbours of eighteen are at most an eighth of a packet.
    let Some(mut frame) = memory.large.take().filter(|frame| sum <= frame.len()) else {
        return false;
    };
    let mut pieces: Vec<Piece> = packet.take_pieces().collect();
    let mut filled = 0;
    for piece in &pieces[at..at + 2] {
        filled += ledger.copy(Site::Squeeze, piece, &mut frame[filled..]);
        piece.mark_copied();
    }
    pieces.splice(at..at + 2, [frame.freeze(filled)]);
    for piece in pieces {
        // They fitted before, and are fewer now.
        let pushed = packet.push_piece(piece);
        debug_assert!(pushed.is_ok(), "a packet holds what it held");
    }
    true
}

/// Largest super-packet: the largest IP packet and an Ethernet header.
const GSO_BYTES_MAX: u32 = 14 + u16::MAX as u32;
