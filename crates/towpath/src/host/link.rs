//! A link between two hosts in one process. Packets travel with their pieces and no payload is
//! copied: one host reads lent bytes where the other keeps them.
//!
//! Each direction is a bounded [ring](towpath_packet::ring) of packets without locks. A full ring
//! stops its sender's stack, as a device does; nothing is dropped. When one end goes, packets on
//! the link and later ones are dropped, and counted by the other end.
//!
//! Each worker sleeps with its bell as the doorbell of the ring that it reads. It announces that to
//! the ring before ([`Device::arm`]), and a sender that finds the ring full announces that it waits
//! for room. So an end that is awake is never rung.
//!
//! A packet stays in the ring until the receiver has memory for it. Its headers move into a frame
//! of the receiver, as if a device had written them. If it has no room for one more piece, its two
//! smallest neighbouring pieces are copied together.

use crate::driver::Bell;
use rustix::fd::BorrowedFd;
use std::convert::Infallible;
use std::sync::Arc;
use towpath_net::fragment::into_received;
use towpath_packet::packet::PIECES_MAX;
use towpath_packet::pool::{Frame, LARGE_FRAME_BYTES};
use towpath_packet::ring::{self, CapacityError, Closed, Consumer, Doorbell, Producer};
use towpath_packet::{Burst, Caps, Context, Device, Input, Ledger, Memory, Packet, Piece, Site};

/// Packets per direction: a burst, and some super-packets more.
pub(super) const RING_MAX: usize = 256;
/// Packets in a ring at which its waiting sender is woken: enough for the receiver to go on while
/// the sender begins.
const WAKE_LEN: usize = RING_MAX / 2;

/// One end of a link. The order of the fields is the order in which they end.
pub(super) struct LinkEnd {
    mtu: u16,
    out: Producer<Packet>,
    incoming: Consumer<Packet>,
    /// The ring had no room at the last attempt.
    is_full: bool,
    /// Packets that were lost since the other end went, apart from those that it purged, and not
    /// counted yet.
    lost: usize,
    /// Packets that the other end purged and that are counted.
    purged: u64,
    peer: Peer,
}

/// The bell of the worker at one end. As a doorbell it makes no barriers: this worker sleeps often,
/// and the other one moves its packets in bursts.
struct Wakes(Arc<Bell>);

impl Doorbell for Wakes {
    fn ring(&self) {
        self.0.ring();
    }
}

/// The bell of the other end's worker, which rings a last time when this end is gone.
struct Peer(Arc<Bell>);

impl Drop for Peer {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// Creates two ends, for hosts whose workers have these bells.
///
/// # Errors
/// [`CapacityError::NoMemory`].
pub(super) fn pair(mtus: [u16; 2], [a, b]: [Arc<Bell>; 2]) -> Result<[LinkEnd; 2], CapacityError> {
    let (to_b, from_a) = ring::single(RING_MAX, Wakes(b.clone()))?;
    let (to_a, from_b) = ring::single(RING_MAX, Wakes(a.clone()))?;
    // Each end must accept what the other sends.
    let mtu = mtus[0].min(mtus[1]);
    let end = |out, incoming, peer| LinkEnd {
        mtu,
        out,
        incoming,
        is_full: false,
        lost: 0,
        purged: 0,
        peer: Peer(peer),
    };
    Ok([end(to_b, from_b, b), end(to_a, from_a, a)])
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
    /// attempt has room. Otherwise the peer rings for both.
    fn arm(&mut self) -> bool {
        if !self.incoming.needs_wakeup() && !self.incoming.is_closed() {
            return true;
        }
        // Without this look, the wish of a sender could stay unseen.
        self.wake_sender();
        self.is_full && !self.out.needs_room()
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, Infallible> {
        if self.incoming.are_producers_gone() {
            self.lost += self.incoming.purge();
        }
        let mut input = Input::Done;
        while !burst.is_full()
            && let Some(next) = self.incoming.peek()
        {
            if !has_memory(next, cx.memory) {
                input = Input::NoMemory;
                break;
            }
            let packet = self.incoming.pop().expect("it was seen");
            // The loop has checked that there is room.
            drop(burst.push(arrive(packet, cx.memory, cx.ledger)));
        }
        if self.incoming.len() <= WAKE_LEN {
            self.wake_sender();
        }
        Ok(input)
    }

    /// Sends from the front of `burst` until the ring is full. If the other end is gone, all
    /// packets are lost.
    fn transmit(&mut self, burst: &mut Burst, _: &mut Context<'_>) -> Result<(), Infallible> {
        loop {
            if let Err(Closed) = self.out.enqueue(burst) {
                self.lost += burst.len();
                burst.clear();
            }
            self.is_full = !burst.is_empty();
            if !self.is_full || self.out.needs_room() {
                return Ok(());
            }
        }
    }

    fn take_lost(&mut self) -> usize {
        if !self.out.is_closed() {
            return 0;
        }
        let purged = self.out.control().counters().purged;
        let more = purged - std::mem::replace(&mut self.purged, purged);
        std::mem::take(&mut self.lost) + more as usize
    }
}

impl LinkEnd {
    /// Wakes the other end's worker if it waits for room.
    fn wake_sender(&self) {
        if self.incoming.is_room_wanted() {
            self.peer.0.ring();
        }
    }
}

/// Returns true if the receiver has memory to let `packet` [`arrive`].
fn has_memory(packet: &Packet, memory: &mut Memory) -> bool {
    memory.small.free_count() > 0
        && memory.packets.free_count() > 0
        && (packet.piece_count() < PIECES_MAX || memory.large.free_count() > 0)
}

/// Returns the packet as the receiver's device would have delivered it. The caller has checked that
/// there is memory.
fn arrive(mut packet: Packet, memory: &mut Memory, ledger: &Ledger) -> Packet {
    if packet.piece_count() == PIECES_MAX {
        let frame = memory.large.take().expect("the caller has looked");
        squeeze(&mut packet, frame, ledger);
    }
    into_received(packet, memory).expect("the caller has looked")
}

/// Copies the two neighbouring pieces with the smallest sum into `frame`, as one piece.
fn squeeze(packet: &mut Packet, mut frame: Frame, ledger: &Ledger) {
    let mut lens = packet.pieces().map(Piece::len);
    let mut before = lens.next().unwrap_or(0);
    // The two smallest neighbours of eighteen are at most a ninth of a packet, and fit.
    let sums = lens.map(|len| len + std::mem::replace(&mut before, len));
    let Some((at, _)) = sums.enumerate().min_by_key(|&(_, sum)| sum) else { return };
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
}

/// Largest super-packet: the largest IP packet and an Ethernet header.
const GSO_BYTES_MAX: u32 = 14 + u16::MAX as u32;
const _: () = assert!(GSO_BYTES_MAX as usize / (PIECES_MAX / 2) <= LARGE_FRAME_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_net::time::Instant;
    use towpath_packet::MemoryConfig;

    fn bells() -> [Arc<Bell>; 2] {
        [(); 2].map(|()| Arc::new(Bell::new().expect("a descriptor")))
    }

    fn has_rung(bell: &Bell) -> bool {
        rustix::io::read(bell, &mut [0; 8]).is_ok()
    }

    fn memory(small_frames: usize) -> Memory {
        Memory::new(MemoryConfig { packets: 1024, small_frames, large_frames: 1 })
    }

    /// Sends packets with a header, until the ring or `count` is full. Returns how many.
    fn send(end: &mut LinkEnd, memory: &mut Memory, count: usize) -> usize {
        let ledger = Ledger::new();
        for sent in 0..count {
            let mut burst = Burst::new();
            let mut packet = memory.packet().expect("a handle");
            packet.push_header(60).fill(7);
            burst.push(packet).expect("room");
            let cx = &mut Context { memory, ledger: &ledger, now: Instant::START };
            end.transmit(&mut burst, cx).expect("infallible");
            if !burst.is_empty() {
                return sent;
            }
        }
        count
    }

    /// Receives one burst of at most 32. Returns the number of packets.
    fn receive(end: &mut LinkEnd, memory: &mut Memory) -> (usize, Input) {
        let (ledger, mut burst) = (Ledger::new(), Burst::limited(32));
        let cx = &mut Context { memory, ledger: &ledger, now: Instant::START };
        let input = end.receive(&mut burst, cx).expect("infallible");
        (burst.len(), input)
    }

    /// Goal: a full ring stops its sender, whose worker is woken once, when half of it is free.
    #[test]
    fn a_sender_sleeps_until_there_is_room() {
        let bells = bells();
        let [mut a, mut b] = pair([1500; 2], bells.clone()).expect("memory");
        let (mut from, mut to) = (memory(1), memory(64));
        assert_eq!(send(&mut a, &mut from, 1000), RING_MAX);
        bells[0].going_to_sleep();
        assert!(!a.arm(), "it may sleep");
        for left in (0..RING_MAX).step_by(32).rev() {
            assert_eq!(receive(&mut b, &mut to), (32, Input::Done));
            assert_eq!(has_rung(&bells[0]), left == WAKE_LEN, "{left} are left");
        }
        assert_eq!(send(&mut a, &mut from, 1), 1);
    }

    /// Goal: a receiver that sleeps is woken for the first packet, and one that is awake is not.
    #[test]
    fn a_receiver_sleeps_until_there_is_a_packet() {
        let bells = bells();
        let [mut a, mut b] = pair([1500; 2], bells.clone()).expect("memory");
        let (mut from, mut to) = (memory(1), memory(64));
        assert_eq!(send(&mut a, &mut from, 1), 1);
        assert!(b.arm(), "there is a packet");
        assert_eq!(receive(&mut b, &mut to).0, 1);
        bells[1].going_to_sleep();
        assert!(!b.arm() && !has_rung(&bells[1]));
        assert_eq!(send(&mut a, &mut from, 2), 2);
        assert!(has_rung(&bells[1]) && b.arm());
    }

    /// Goal: packets for which the receiver has no memory stay in the ring, in order.
    #[test]
    fn packets_wait_for_memory_in_the_ring() {
        let [mut a, mut b] = pair([1500; 2], bells()).expect("memory");
        let (mut from, mut to) = (memory(1), memory(2));
        assert_eq!(send(&mut a, &mut from, RING_MAX), RING_MAX);
        for _ in 1..RING_MAX / 2 {
            assert_eq!(receive(&mut b, &mut to), (2, Input::NoMemory));
        }
        assert_eq!(receive(&mut b, &mut to), (2, Input::Done));
    }

    /// Goal: when an end goes, the other one wakes, and counts each packet that was on the link or
    /// is sent later.
    #[test]
    fn what_an_end_that_goes_leaves_is_counted() {
        let bells = bells();
        let [mut a, mut b] = pair([1500; 2], bells.clone()).expect("memory");
        let (mut from, mut to) = (memory(64), memory(64));
        assert_eq!((send(&mut a, &mut from, 3), send(&mut b, &mut to, 4)), (3, 4));
        bells[1].going_to_sleep();
        drop(a);
        assert!(has_rung(&bells[1]));
        assert_eq!(receive(&mut b, &mut to), (0, Input::Done));
        assert_eq!(b.take_lost(), 3 + 4);
        assert_eq!(send(&mut b, &mut to, 5), 5);
        assert_eq!((b.take_lost(), b.take_lost()), (5, 0));
        assert!(!b.arm(), "it may sleep");
        assert_eq!((from.packets.out_count(), to.packets.out_count()), (0, 0));
    }
}
