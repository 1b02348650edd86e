//! What remotes of a VXLAN port send: datagrams, coalesced or not, and frames that it answers.
//!
//! Frames that are taken out go through a coalescer and to a switch, as a port's do. Input: VXLAN
//! header or not, heads apart or not, size of coalesced datagrams, lengths of heads and strides if
//! apart, bytes. A read with heads apart must yield what the same bytes in order do, and segments
//! that are joined before they are packets what those do that are packets first.

use std::net::IpAddr;
use std::num::NonZeroU16;

use towpath_net::gro::Coalescer;
use towpath_net::switch::{Config, Context, Egress, PortConfig, PortId, Role, Switch};
use towpath_net::time::Instant;
use towpath_net::vxlan::decapsulate::{
    Heads, Opened, Refused, TakeFrames, decapsulate, decapsulate_heads,
};
use towpath_net::vxlan::{HEADER_LEN, Vni, answers, header};
use towpath_net::wire::MacAddr;
use towpath_packet::packet::PEEK_BYTES;
use towpath_packet::{Burst, Caps, Ledger, Memory, Offload, Packet};

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
    let split = (choice & 2 != 0).then(|| {
        let (head, size) = (input.u8(), input.u16());
        // A stride has more bytes than a head.
        let size = size.max(PEEK_BYTES as u16 + 1);
        (1 + usize::from(head) % PEEK_BYTES, NonZeroU16::new(size).expect("not zero"))
    });
    let (vni, _) = network();
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
    let gro_size = NonZeroU16::new(size);
    if let Some(split) = split
        && bytes.len() <= usize::from(u16::MAX)
    {
        let in_order = read(&mut memory, &bytes, gro_size);
        let mut packets = Packets(Vec::new());
        let head = read_split(&mut memory, &ledger, &bytes, split, gro_size, &mut packets);
        assert_eq!((packets.0, head), in_order);
        let [joined, also_joined] = [true, false]
            .map(|extends| join_split(&mut memory, &ledger, &bytes, split, gro_size, extends));
        assert_eq!(joined, also_joined);
    }
    if let Some(mut read) = received(&mut memory, &bytes) {
        let pieces: Vec<_> = read.take_pieces().collect();
        drop(read);
        let mut coalescer = Coalescer::new(1);
        let mut out: Vec<Packet> = Vec::new();
        let mut total = 0;
        decapsulate(pieces.into_iter(), gro_size, network(), &mut memory, &mut |one, _| {
            let Ok((packet, headers)) = one else { return };
            total += packet.len() + HEADER_LEN;
            let mut keep = |packet, ()| out.push(packet);
            match headers {
                Some(headers) => coalescer.receive(packet, &headers, (), &ledger, &mut keep),
                None => keep(packet, ()),
            }
        });
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

/// What was taken out of a read: frames, and why others were refused; and which heads the next read
/// is to be prepared for.
type Outcome = (Vec<Result<Vec<u8>, Refused>>, Option<usize>);

fn network() -> (Vni, u16) {
    (Vni::new(100).expect("24 bits"), 1450)
}

/// Takes the frames out of a read.
fn read(memory: &mut Memory, bytes: &[u8], gro_size: Option<NonZeroU16>) -> Outcome {
    let Some(mut read) = received(memory, bytes) else { return Outcome::default() };
    let pieces: Vec<_> = read.take_pieces().collect();
    drop(read);
    let mut all = Vec::new();
    let head = decapsulate(pieces.into_iter(), gro_size, network(), memory, &mut |one, _| {
        all.push(one.map(|(packet, _)| frame_of(&packet)));
    });
    (all, head)
}

/// Takes each frame by itself.
struct Packets(Vec<Result<Vec<u8>, Refused>>);

impl TakeFrames for Packets {
    fn take(&mut self, frame: Opened, _: &mut Memory) {
        self.0.push(frame.map(|(packet, _)| frame_of(&packet)));
    }

    fn extend<'a>(
        &mut self,
        _: impl Iterator<Item = &'a [u8]> + Clone,
        _: usize,
        _: &mut Packet,
    ) -> usize {
        0
    }
}

/// Joins frames to super-packets, perhaps before they are packets.
struct Joined<'a> {
    coalescer: Coalescer<()>,
    ledger: &'a Ledger,
    packets: Vec<Packet>,
    extends: bool,
}

impl TakeFrames for Joined<'_> {
    fn take(&mut self, frame: Opened, _: &mut Memory) {
        let mut keep = |packet, ()| self.packets.push(packet);
        match frame {
            Ok((packet, Some(headers))) => {
                self.coalescer.receive(packet, &headers, (), self.ledger, &mut keep);
            }
            Ok((packet, None)) => keep(packet, ()),
            Err(_) => {}
        }
    }

    fn extend<'a>(
        &mut self,
        headers: impl Iterator<Item = &'a [u8]> + Clone,
        size: usize,
        payload: &mut Packet,
    ) -> usize {
        if !self.extends {
            return 0;
        }
        let mut keep = |packet, ()| self.packets.push(packet);
        self.coalescer.extend(headers, size, payload, self.ledger, &mut keep)
    }
}

/// The super-packets and packets of a read with heads apart.
fn join_split(
    memory: &mut Memory,
    ledger: &Ledger,
    bytes: &[u8],
    split: (usize, NonZeroU16),
    gro_size: Option<NonZeroU16>,
    extends: bool,
) -> Vec<(Vec<u8>, Offload)> {
    let mut joined = Joined { coalescer: Coalescer::new(1), ledger, packets: Vec::new(), extends };
    read_split(memory, ledger, bytes, split, gro_size, &mut joined);
    joined.coalescer.flush(&mut |packet, ()| joined.packets.push(packet));
    joined.packets.iter().map(|packet| (frame_of(packet), *packet.offload())).collect()
}

/// Takes the frames out of a read with heads apart. Returns which heads the next read is to be
/// prepared for.
fn read_split(
    memory: &mut Memory,
    ledger: &Ledger,
    bytes: &[u8],
    (head, size): (usize, NonZeroU16),
    gro_size: Option<NonZeroU16>,
    frames: &mut impl TakeFrames,
) -> Option<usize> {
    let (mut heads, mut behind) = (Vec::new(), Vec::new());
    for stride in bytes.chunks(size.get().into()) {
        let (front, rest) = stride.split_at(head.min(stride.len()));
        heads.extend(front);
        behind.extend(rest);
    }
    let mut read = received(memory, &behind)?;
    let pieces: Vec<_> = read.take_pieces().collect();
    drop(read);
    let (heads, pieces) = (Heads { bytes: &heads, head, size }, pieces.into_iter());
    decapsulate_heads(&heads, pieces, gro_size, network(), (memory, ledger), frames)
}

/// The bytes of a frame.
fn frame_of(packet: &Packet) -> Vec<u8> {
    let mut bytes = vec![0; packet.len()];
    assert_eq!(packet.copy_to(&mut bytes, &Ledger::new()), bytes.len());
    bytes
}
