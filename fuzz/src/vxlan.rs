//! What remotes of a VXLAN port send: datagrams, coalesced or not, and frames that it answers.
//!
//! Frames that are taken out go through a coalescer and to a switch, as a port's do. Input: VXLAN
//! header or not, size of coalesced datagrams, bytes.

use std::net::IpAddr;
use std::num::NonZeroU16;

use towpath_net::gro::Coalescer;
use towpath_net::switch::{Config, Context, Egress, PortConfig, PortId, Role, Switch};
use towpath_net::time::Instant;
use towpath_net::vxlan::decapsulate::decapsulate;
use towpath_net::vxlan::{HEADER_LEN, Vni, answers, header};
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Caps, Ledger, Packet};

use crate::input::Input;
use crate::packets::{check_returned, memory, received};

struct Taken;

impl Egress for Taken {
    fn transmit(&mut self, _: PortId, burst: &mut Burst, _: &mut Context<'_>) {
        burst.clear();
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (choice, size) = (input.u8(), input.u16());
    let vni = Vni::new(100).expect("24 bits");
    let mut bytes = Vec::new();
    if choice & 1 != 0 {
        bytes.extend(header(vni));
    }
    bytes.extend(input.bytes(1 << 16));
    if let Some(frame) = bytes.get(HEADER_LEN..) {
        let frame = &frame[..frame.len().min(184)];
        let mac = MacAddr([2, 0, 0, 0, 0, 7]);
        let _ = answers::resolve(frame, |_: IpAddr| Some(mac));
        if let Some(error) = answers::too_big(frame, size) {
            assert!(answers::too_big(error.bytes(), size).is_none(), "an error about an error");
        }
    }
    let mut memory = memory();
    let ledger = Ledger::new();
    let mut burst = Burst::new();
    if let Some(mut read) = received(&mut memory, &bytes) {
        let pieces: Vec<_> = read.take_pieces().collect();
        drop(read);
        let mut coalescer = Coalescer::new(1);
        let mut out: Vec<Packet> = Vec::new();
        let mut total = 0;
        decapsulate(
            pieces.into_iter(),
            NonZeroU16::new(size),
            (vni, 1450),
            &mut memory,
            &mut |one, _| {
                let Ok((packet, headers)) = one else { return };
                total += packet.len() + HEADER_LEN;
                let mut keep = |packet, ()| out.push(packet);
                match headers {
                    Some(headers) => coalescer.receive(packet, &headers, (), &ledger, &mut keep),
                    None => keep(packet, ()),
                }
            },
        );
        assert!(total <= bytes.len(), "frames of {total} bytes from {}", bytes.len());
        coalescer.flush(&mut |packet, ()| out.push(packet));
        for packet in out {
            if let Err(packet) = burst.push(packet) {
                drop(packet);
            }
        }
    }
    let mut switch = Switch::new(Config::default());
    let tunnel = PortConfig { role: Role::Tunnel, ..PortConfig::new(Caps::plain(1500)) };
    let from = switch.add_port(tunnel).expect("room");
    switch.add_port(PortConfig::new(Caps::plain(1500))).expect("room");
    let mut cx = Context { memory: &mut memory, ledger: &ledger, now: Instant::START };
    switch.forward(from, &mut burst, &mut cx, &mut Taken);
    drop(burst);
    check_returned(memory);
}
