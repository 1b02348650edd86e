//! Fragments of both IP versions.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{SIDES, end};
use crate::frame::{self, IP, TCP, UDP};
use crate::host::{HOSTILE, TRAP, WELCOME, WELCOMING};
use crate::injector::Injector;
use crate::random::Random;

/// Datagrams begun and never completed in a round: far more than reassembly keeps.
const UNFINISHED: usize = 1000;
/// More fragments than a datagram may have.
const TOO_MANY: usize = 140;
/// Most fragments that a datagram may have.
const ENOUGH: usize = 128;

/// The next identification.
static IDENT: AtomicU32 = AtomicU32::new(0x7000_fff0);

/// The fields of one fragment.
#[derive(Clone, Copy)]
struct Fragment {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ident: u32,
    offset: usize,
    more: bool,
}

impl Fragment {
    fn frame(self, payload: &[u8]) -> Vec<u8> {
        let Self { source, destination, protocol, ident, offset, more } = self;
        if source.is_ipv4() {
            let mut frame = frame::ip(source, destination, protocol, payload);
            frame::put(&mut frame, IP + 4, ident as u16);
            frame::put(&mut frame, IP + 6, (offset / 8) as u16 | if more { 0x2000 } else { 0 });
            frame::fix_ipv4(&mut frame);
            return frame;
        }
        let mut header = vec![protocol, 0, 0, 0];
        frame::put(&mut header, 2, offset as u16 | u16::from(more));
        header.extend(ident.to_be_bytes());
        header.extend(payload);
        frame::ip(source, destination, 44, &header)
    }

    fn at(self, offset: usize, more: bool) -> Self {
        Self { offset, more, ..self }
    }
}

/// Goal: fragments that overlap, lie, or never complete are dropped, hold bounded memory, and do
/// not prevent the reassembly of an honest datagram. Method: each kind of bad fragment, a flood of
/// beginnings, ends and middles, then honest ones in reverse order.
pub(super) fn round(injector: &mut Injector, random: &mut Random) {
    for (program, host, _) in SIDES {
        let mut next = || {
            // Sequential: a random one might be that of a datagram still in reassembly. Relaxed: a
            // counter.
            let ident = IDENT.fetch_add(1, Ordering::Relaxed);
            let (source, destination) = (program, host);
            Fragment { source, destination, protocol: UDP, ident, offset: 0, more: true }
        };
        conflicts(injector, &mut next);
        malformed(injector, &mut next);
        many_parts(injector, next());
        unfinished(injector, &mut next);
        honest(injector, &mut next, end(program, random).1);
    }
}

/// Returns the first fragment of a datagram that would reach a trap.
fn hostile_start(fragment: Fragment) -> Vec<u8> {
    let from = (fragment.source, 4000);
    let whole = frame::udp_bytes(from, (fragment.destination, TRAP), &HOSTILE.repeat(8));
    whole[..64].to_vec()
}

fn conflicts(injector: &mut Injector, next: &mut impl FnMut() -> Fragment) {
    // Variants of the teardrop attack: inside, across the end, the whole again with other bytes.
    let overlaps = [(24, 24, true), (56, 16, true), (32, 8, false), (8, 64, false), (0, 72, true)];
    for (offset, len, more) in overlaps {
        let fragment = next();
        injector.send(&fragment.frame(&hostile_start(fragment)));
        injector.drops("fragment", &fragment.at(offset, more).frame(&vec![0x58; len]));
        // The datagram is dropped: a fragment that would complete it does not.
        injector.drops("fragment", &fragment.at(64, false).frame(&[0; 8]));
        injector.drops("fragment", &fragment.frame(&hostile_start(fragment)));
    }
    let fragment = next();
    injector.send(&fragment.frame(&hostile_start(fragment)));
    injector.drops("fragment", &fragment.frame(&hostile_start(fragment)));
    // Two ends; data after the end; an end before data.
    let ends = [[(800, false), (1600, false)], [(800, false), (1600, true)]];
    for [first, second] in ends {
        let fragment = next();
        injector.send(&fragment.at(first.0, first.1).frame(&[0; 64]));
        injector.drops("fragment", &fragment.at(second.0, second.1).frame(&[0; 64]));
    }
    let fragment = next();
    injector.send(&fragment.at(1600, true).frame(&[0; 64]));
    injector.drops("fragment", &fragment.at(800, false).frame(&[0; 64]));
}

fn malformed(injector: &mut Injector, next: &mut impl FnMut() -> Fragment) {
    let v4 = next().source.is_ipv4();
    // IPv6 answers these with a Parameter Problem about the header.
    let reason = if v4 { "fragment" } else { "ip_malformed" };
    for len in [1, 7, 9, 63] {
        injector.drops(reason, &next().at(64, true).frame(&vec![0; len]));
    }
    // Without data.
    injector.drops("fragment", &next().at(64, true).frame(&[]));
    injector.drops("fragment", &next().at(64, false).frame(&[]));
    // Beyond the longest packet.
    for offset in [65_528, 65_520, 65_472] {
        injector.drops("ip_malformed", &next().at(offset, false).frame(&[0; 64]));
    }
    // A first fragment without its transport header.
    let tiny = Fragment { protocol: TCP, ..next() };
    injector.drops(reason, &tiny.frame(&[0; 8]));
    injector.drops(reason, &tiny.frame(&[0; 16]));
}

fn many_parts(injector: &mut Injector, fragment: Fragment) {
    for part in 0..TOO_MANY {
        let frame = fragment.at(64 + part * 16, true).frame(&[0; 8]);
        if part < ENOUGH {
            injector.send(&frame);
        } else {
            injector.drops("fragment", &frame);
        }
    }
}

fn unfinished(injector: &mut Injector, next: &mut impl FnMut() -> Fragment) {
    for count in 0..UNFINISHED {
        let fragment = next();
        let frame = match count % 4 {
            0 => fragment.frame(&hostile_start(fragment)),
            1 => fragment.at(1480, false).frame(&[0; 1000]),
            2 => fragment.at(64_000, true).frame(&[0; 1400]),
            _ => fragment.at(8 * (count % 4096), true).frame(&[0; 8]),
        };
        injector.send(&frame);
    }
}

/// Sends a datagram in three fragments, last first, and one whose reassembled checksum is wrong.
fn honest(injector: &mut Injector, next: &mut impl FnMut() -> Fragment, port: u16) {
    let fragment = next();
    let (from, to) = ((fragment.source, port), (fragment.destination, WELCOMING));
    let whole = frame::udp_bytes(from, to, &WELCOME.repeat(375));
    for (start, end) in [(2400, whole.len()), (1200, 2400), (0, 1200)] {
        let frame = fragment.at(start, end < whole.len()).frame(&whole[start..end]);
        injector.send(&frame);
    }
    injector.expects("welcome", 1);
    let fragment = next();
    let mut wrong = frame::udp_bytes(from, (to.0, TRAP), &HOSTILE.repeat(375));
    wrong[100] ^= 1;
    injector.send(&fragment.at(1200, false).frame(&wrong[1200..2400]));
    injector.send(&fragment.at(0, true).frame(&wrong[..1200]));
    // Its UDP header claims 3,008 bytes, its fragments hold 2,400.
    injector.expects("udp_malformed", 1);
    let fragment = next();
    injector.send(&fragment.at(2400, false).frame(&wrong[2400..]));
    injector.send(&fragment.at(1200, true).frame(&wrong[1200..2400]));
    injector.send(&fragment.at(0, true).frame(&wrong[..1200]));
    injector.expects("udp_checksum", 1);
}
