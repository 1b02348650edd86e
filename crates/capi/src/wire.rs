//! Instances whose packets the caller moves: IP packets, without Ethernet headers, which are put on
//! and taken off here.

use rustix::fd::BorrowedFd;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath::layers::net::time::Instant;
use towpath::layers::net::wire::MacAddr;
use towpath::layers::packet::{Burst, Caps, Context, Device, Input, Ledger, Memory, Packet, Site};

/// Bytes of an Ethernet header.
const ETHERNET_LEN: usize = 14;
/// Our link-layer address on a wire that has none.
pub(crate) const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// The one neighbour's.
pub(crate) const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// Next hops of a wire without addresses: from the ranges for documentation, so that they are
/// nobody's.
pub(crate) const PEERS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 254)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0xfffe)),
];
/// Packets that may wait for whoever moves them, so that the stack's own queues fill up, and calls
/// wait or fail, where nobody takes any: more than a window of 4 MiB in segments of 1,448 bytes.
const PACKETS_MAX: usize = 4096;

/// A packet that left, and when.
pub(crate) type Departed = (Instant, Vec<u8>);

/// What the caller has of a wire. Clones are of the same wire.
#[derive(Clone)]
pub(crate) struct Wire(Arc<Mutex<Line>>);

struct Line {
    /// Packets that left and were not taken yet.
    out: VecDeque<Departed>,
    caps: Caps,
}

impl Wire {
    /// A wire that takes what such a device would.
    pub(crate) fn new(caps: Caps) -> Self {
        Self(Arc::new(Mutex::new(Line { out: VecDeque::new(), caps })))
    }

    /// From the next packets on the wire takes what such a device would.
    #[cfg(feature = "packetdrill")]
    pub(crate) fn set_caps(&self, caps: Caps) {
        self.lock().caps = caps;
    }

    /// The next packet that waits for the caller.
    pub(crate) fn take(&self) -> Option<Departed> {
        self.lock().out.pop_front()
    }

    /// Nothing more is taken from the stack until the caller has taken what waits.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().out.len() >= PACKETS_MAX
    }

    /// True if packets wait for the caller.
    pub(crate) fn has_packets(&self) -> bool {
        !self.lock().out.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stack's end of a wire.
pub(crate) struct WireEnd(pub(crate) Wire);

impl Device for WireEnd {
    type Error = Infallible;

    fn caps(&self) -> Caps {
        self.0.lock().caps
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The caller hands packets to the stack itself.
    fn receive(&mut self, _: &mut Burst, _: &mut Context<'_>) -> Result<Input, Infallible> {
        Ok(Input::Done)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), Infallible> {
        let out = &mut self.0.lock().out;
        while out.len() < PACKETS_MAX
            && let Some(packet) = burst.pop()
        {
            out.push_back((cx.now, flatten(&packet, cx.ledger)));
        }
        Ok(())
    }
}

/// The bytes of a packet without its Ethernet header.
fn flatten(packet: &Packet, ledger: &Ledger) -> Vec<u8> {
    let mut bytes = packet.headers()[ETHERNET_LEN..].to_vec();
    for piece in packet.pieces() {
        let start = bytes.len();
        bytes.resize(start + piece.len(), 0);
        ledger.copy(Site::Linearise, piece, &mut bytes[start..]);
    }
    bytes
}

/// An IP packet as a device would have received it; `None` without memory.
pub(crate) fn packet(bytes: &[u8], memory: &mut Memory) -> Option<Packet> {
    let kind: [u8; 2] = if bytes.first()? >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    let mut packet = memory.packet()?;
    let mut frame = memory.small.take()?;
    frame[..6].copy_from_slice(&OUR_MAC.0);
    frame[6..12].copy_from_slice(&PEER_MAC.0);
    frame[12..ETHERNET_LEN].copy_from_slice(&kind);
    let count = bytes.len().min(frame.len() - ETHERNET_LEN);
    frame[ETHERNET_LEN..ETHERNET_LEN + count].copy_from_slice(&bytes[..count]);
    packet.push_piece(frame.freeze(ETHERNET_LEN + count)).ok()?;
    let mut rest = &bytes[count..];
    while !rest.is_empty() {
        let mut frame = memory.large.take()?;
        let count = rest.len().min(frame.len());
        frame[..count].copy_from_slice(&rest[..count]);
        packet.push_piece(frame.freeze(count)).ok()?;
        rest = &rest[count..];
    }
    Some(packet)
}

/// A wire that takes super-packets whole.
#[cfg(feature = "packetdrill")]
pub(crate) const fn wire_caps(mtu: u16) -> Caps {
    Caps {
        mtu,
        checksum: true,
        tso4: true,
        tso6: true,
        uso: true,
        tunnel: false,
        gso_bytes_max: ETHERNET_LEN as u32 + 65_535,
        cuts: false,
    }
}

#[cfg(all(test, feature = "packetdrill"))]
mod tests {
    use super::*;

    /// Goal: the device tells the engine, which asks after each turn, what was switched off.
    #[test]
    fn offloads_stay_off() {
        let wire = Wire::new(wire_caps(1500));
        let end = WireEnd(wire.clone());
        assert_eq!(end.caps(), wire_caps(1500));
        let off = Caps { tso4: false, tso6: false, ..wire_caps(1500) };
        wire.set_caps(off);
        assert_eq!(end.caps(), off);
    }
}
