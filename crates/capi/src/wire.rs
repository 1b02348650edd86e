//! The device of instances whose packets the caller moves. It carries IP packets; Ethernet headers
//! are added and removed here.

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
/// The instance's link-layer address on a wire, which has none.
pub(crate) const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// The link-layer address of the only neighbour.
pub(crate) const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// Next hops on a wire without addresses. They are from the documentation ranges, so no host has
/// them.
pub(crate) const PEERS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 254)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0xfffe)),
];
/// Most packets that wait for the caller: more than a window of 4 MiB in segments of 1,448 bytes.
/// If the caller takes none, the stack's own queues fill up, and calls wait or fail.
const PACKETS_MAX: usize = 4096;

/// A packet that left, and the time when it left.
pub(crate) type Departed = (Instant, Vec<u8>);

/// The caller's end of a wire. Clones belong to the same wire.
#[derive(Clone)]
pub(crate) struct Wire(Arc<Mutex<Line>>);

struct Line {
    /// Packets that left and that the caller has not taken.
    out: VecDeque<Departed>,
    caps: Caps,
}

impl Wire {
    /// A wire with the capabilities `caps`.
    pub(crate) fn new(caps: Caps) -> Self {
        Self(Arc::new(Mutex::new(Line { out: VecDeque::new(), caps })))
    }

    /// Changes the capabilities for later packets.
    #[cfg(feature = "packetdrill")]
    pub(crate) fn set_caps(&self, caps: Caps) {
        self.lock().caps = caps;
    }

    /// Takes the next packet that waits for the caller.
    pub(crate) fn take(&self) -> Option<Departed> {
        self.lock().out.pop_front()
    }

    /// True if the stack must not send until the caller has taken a packet.
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

    /// The caller passes packets to the stack directly.
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

/// An IP packet in the form in which a device would have received it. `None` without memory.
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

/// Capabilities of a wire that accepts super-packets.
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
        segments: false,
    }
}

#[cfg(all(test, feature = "packetdrill"))]
mod tests {
    use super::*;

    /// Goal: the device reports to the engine, which asks after each turn, what was switched off.
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
