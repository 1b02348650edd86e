//! Segments that belong to no connection: a gateway's stack takes bursts of a switch, and answers
//! each segment with a reset. No device takes part.
//!
//! A stack limits the resets for a switch port in a second, so the bursts are some time apart.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use towpath_net::checksum;
use towpath_net::stack::{self, Address, Limits, Stack};
use towpath_net::tcp::Settings;
use towpath_net::time::Instant;
use towpath_net::wire::ethernet::{self, EtherType};
use towpath_net::wire::tcp::{self, Flags, Options};
use towpath_net::wire::{MacAddr, Protocol, ipv4};
use towpath_packet::{Burst, Caps, Context, Ledger, Memory, MemoryConfig};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const GATEWAY_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const GUEST: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 15), 40_000);
const GUEST_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 15]);
/// Number of the guest's port of the switch.
const PORT: u16 = 1;
const OUTSIDE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 80);

/// Segments of a burst: what the gateway reads from a port at a time while others use it too.
const TOGETHER: u32 = 16;
/// Time from one burst to the next: 1,600 resets are due in a second, fewer than a port may get.
const APART: Duration = Duration::from_millis(10);

/// Lets a stack answer `count` segments.
pub(super) fn answer(count: u32) -> anyhow::Result<()> {
    let config = stack::Config {
        mac: GATEWAY_MAC,
        addresses: vec![Address { address: GATEWAY.into(), prefix_len: 24 }],
        next_hops: Vec::new(),
        transparent: true,
        secret: [1, 2],
        tcp: Settings::default(),
        limits: Limits::default(),
    };
    let caps = Caps { checksum: true, tso4: true, tso6: true, uso: true, ..Caps::plain(1500) };
    let mut stack = Stack::new(config, caps);
    stack.set_neighbor((*GUEST.ip()).into(), GUEST_MAC);
    let segment = segment();
    let mut memory = Memory::new(MemoryConfig { packets: 64, small_frames: 64, large_frames: 0 });
    let ledger = Ledger::new();
    let (mut burst, mut left, mut now) = (Burst::new(), count, Instant::START);
    while left > 0 {
        let batch = left.min(TOGETHER);
        for _ in 0..batch {
            let mut frame = memory.small.take().context("no frame")?;
            frame[..segment.len()].copy_from_slice(&segment);
            let mut packet = memory.packet().context("no packet")?;
            let pushed = packet.push_piece(frame.freeze(segment.len()));
            pushed.ok().context("a piece too many")?;
            packet.set_ingress(Some(PORT));
            burst.push(packet).ok().context("a packet too many")?;
        }
        let cx = &mut Context { memory: &mut memory, ledger: &ledger, now };
        stack.input(&mut burst, cx);
        stack.output(&mut burst, cx);
        ensure!(burst.len() == batch as usize, "{batch} segments, {} answers", burst.len());
        burst.clear();
        left -= batch;
        now += APART;
    }
    Ok(())
}

/// Returns the frame of a segment of the guest, which has no connection.
fn segment() -> Vec<u8> {
    let header = tcp::Header {
        source_port: GUEST.port(),
        destination_port: OUTSIDE.port(),
        sequence: 1,
        acknowledgment: 1,
        flags: Flags::ACK,
        window: 65_535,
        checksum: 0,
        urgent: 0,
        header_len: 0,
    };
    let mut segment = [0; tcp::HEADER_LEN];
    header.emit(&Options::default(), &mut segment);
    let (from, to) = ((*GUEST.ip()).into(), (*OUTSIDE.ip()).into());
    let mut sum = checksum::pseudo_header(from, to, Protocol::TCP, tcp::HEADER_LEN as u32);
    sum.add(&segment);
    let at = tcp::CHECKSUM_OFFSET;
    segment[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
    let ip = ipv4::Header {
        tos: 0,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: Protocol::TCP,
        source: *GUEST.ip(),
        destination: *OUTSIDE.ip(),
        total_len: (ipv4::HEADER_LEN + tcp::HEADER_LEN) as u16,
        header_len: 0,
        has_source_route: false,
    };
    let mut frame = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN];
    let (destination, source) = (GATEWAY_MAC, GUEST_MAC);
    ethernet::Header { destination, source, ethertype: EtherType::IPV4 }.emit(&mut frame);
    ip.emit(&mut frame[ethernet::HEADER_LEN..]);
    frame.extend_from_slice(&segment);
    frame
}
