//! A switch whose ports collect packets in lists, and frames to send through it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::IpAddr;

use towpath_packet::packet::PEEK_BYTES;
use towpath_packet::{Burst, Caps, Ledger, Memory, Offload, Packet, Site};

use crate::counters::PortDrop;
use crate::gso::testing::{assert_all_back, bytes_of, memory, received};
use crate::switch::*;
use crate::time::Instant;
use crate::wire::MacAddr;

/// A device with all capabilities.
pub(super) const ABLE: Caps = Caps {
    mtu: 1500,
    checksum: true,
    tso4: true,
    tso6: true,
    uso: true,
    tunnel: true,
    gso_bytes_max: 65_549,
    segments: false,
};

/// Packets handed to the ports.
#[derive(Default)]
pub(super) struct Lists {
    pub(super) packets: BTreeMap<usize, Vec<Packet>>,
    /// Maximum number of packets for ports with a limit.
    pub(super) room: BTreeMap<usize, usize>,
    /// Owners of addresses in the default VLAN.
    pub(super) owners: BTreeMap<IpAddr, PortId>,
    /// Home ports of stations in the default VLAN.
    pub(super) homes: Vec<(MacAddr, PortId)>,
}

impl Egress for Lists {
    fn transmit(&mut self, port: PortId, burst: &mut Burst, _: &mut Context<'_>) {
        assert!(!burst.is_empty(), "called with an empty burst");
        let list = self.packets.entry(port.index()).or_default();
        let room = self.room.get(&port.index()).copied().unwrap_or(usize::MAX);
        while list.len() < room
            && let Some(packet) = burst.pop()
        {
            list.push(packet);
        }
    }

    fn owner(&self, vid: vlan::Vid, address: IpAddr) -> Option<PortId> {
        self.owners.get(&address).copied().filter(|_| vid == vlan::Vid::DEFAULT)
    }

    fn home(&self, vid: vlan::Vid, station: MacAddr) -> Option<PortId> {
        let found = self.homes.iter().find(|(other, _)| *other == station);
        found.map(|(_, port)| *port).filter(|_| vid == vlan::Vid::DEFAULT)
    }
}

pub(super) struct Harness {
    pub(super) switch: Switch,
    pub(super) memory: Memory,
    pub(super) ledger: Ledger,
    pub(super) now: Instant,
    pub(super) out: Lists,
    pub(super) ports: Vec<PortId>,
    /// Every other frame that may be inline is inline.
    is_inline: bool,
    /// Of every four packets that are sent alone, the last two meet a forwarder first.
    sent_alone: usize,
}

impl Harness {
    pub(super) fn new(ports: impl IntoIterator<Item = PortConfig>) -> Self {
        Self::with(Config::default(), ports)
    }

    pub(super) fn with(config: Config, ports: impl IntoIterator<Item = PortConfig>) -> Self {
        let mut switch = Switch::new(config);
        let ports = ports.into_iter().map(|port| switch.add_port(port).expect("room")).collect();
        let now = Instant::from_micros(5_000_000);
        let (memory, ledger, out) = (memory(), Ledger::new(), Lists::default());
        Self { switch, memory, ledger, now, out, ports, is_inline: false, sent_alone: 0 }
    }

    /// Sends a packet into the switch by a port.
    pub(super) fn send_packet(&mut self, from: usize, packet: Packet) {
        let mut burst = Burst::new();
        burst.push(packet).expect("room");
        self.send_burst(from, &mut burst);
    }

    pub(super) fn send_burst(&mut self, from: usize, burst: &mut Burst) {
        if burst.len() == 1 {
            self.sent_alone += 1;
            if self.sent_alone % 4 >= 2 {
                self.send_elsewhere(from, burst);
            }
        }
        let Self { switch, memory, ledger, now, out, ports, .. } = self;
        switch.forward(ports[from], burst, &mut Context { memory, ledger, now: *now }, out);
        assert!(burst.is_empty());
        assert!(!switch.ports.holds_packets());
    }

    /// Sends packets through a forwarder. Those that it leaves to the owner stay in the burst.
    fn send_elsewhere(&mut self, from: usize, burst: &mut Burst) {
        let Self { switch, memory, ledger, now, out, ports, .. } = self;
        let (mut forwarder, mut rest) = (switch.forwarder(), Burst::new());
        let mut cx = Context { memory, ledger, now: *now };
        forwarder.forward(ports[from], burst, &mut cx, out, &mut rest, false);
        assert!(burst.is_empty());
        for &id in ports.iter() {
            if let Some(counters) = forwarder.take_counters(id) {
                switch.add_counters(id, &counters);
            }
        }
        core::mem::swap(burst, &mut rest);
    }

    /// Sends a frame by a port; returns the ports that it left by, and its form there.
    pub(super) fn send(&mut self, from: usize, frame: &[u8]) -> BTreeMap<usize, Vec<Vec<u8>>> {
        self.send_with(from, frame, Offload::default())
    }

    pub(super) fn send_with(
        &mut self,
        from: usize,
        frame: &[u8],
        offload: Offload,
    ) -> BTreeMap<usize, Vec<Vec<u8>>> {
        let mut packet = self.packet(frame, offload.gso.is_none());
        packet.set_offload(offload);
        self.send_packet(from, packet);
        self.frames()
    }

    /// A packet as a device delivers it: alternately in pieces and inline, if it may be inline.
    pub(super) fn packet(&mut self, frame: &[u8], may_inline: bool) -> Packet {
        if !may_inline || frame.len() > PEEK_BYTES {
            return received(&mut self.memory, frame, &[33]);
        }
        self.is_inline = !self.is_inline;
        if !self.is_inline {
            return received(&mut self.memory, frame, &[33]);
        }
        let mut packet = self.memory.packet().expect("free");
        packet.fill_inline(frame.len(), |place| place.copy_from_slice(frame));
        packet
    }

    /// Takes the packets handed to the ports, as bytes.
    pub(super) fn frames(&mut self) -> BTreeMap<usize, Vec<Vec<u8>>> {
        let packets = core::mem::take(&mut self.out.packets);
        let bytes = |list: Vec<Packet>| list.iter().map(bytes_of).collect();
        packets.into_iter().map(|(port, list)| (port, bytes(list))).collect()
    }

    /// Ports that a frame leaves by.
    pub(super) fn leaves_by(&mut self, from: usize, frame: &[u8]) -> Vec<usize> {
        self.send(from, frame).into_keys().collect()
    }

    /// Asserts that a received frame is dropped for a reason.
    pub(super) fn expect_drop(&mut self, from: usize, frame: &[u8], reason: PortDrop) {
        self.expect_drop_with(from, frame, Offload::default(), reason);
    }

    pub(super) fn expect_drop_with(
        &mut self,
        from: usize,
        frame: &[u8],
        offload: Offload,
        reason: PortDrop,
    ) {
        // In both forms, and through a forwarder.
        for _ in 0..4 {
            let before = self.counters(from).dropped(reason);
            let out = self.send_with(from, frame, offload);
            assert!(out.is_empty(), "{reason:?} expected, left by {:?}", out.keys());
            let drops: Vec<_> = self.counters(from).drops().collect();
            assert_eq!(self.counters(from).dropped(reason), before + 1, "{reason:?}: {drops:?}");
        }
    }

    pub(super) fn counters(&self, port: usize) -> &PortCounters {
        self.switch.counters_of(self.ports[port]).expect("a port")
    }

    /// Asserts that no memory is held, and that nothing was copied but inline frames for several
    /// ports.
    pub(super) fn end(self) {
        drop(self.out);
        assert_all_back(&self.memory, &Ledger::new());
        assert_eq!(self.ledger.copied(), self.ledger.copied_at(Site::GuestSmall));
    }
}

pub(super) fn mac(station: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, station])
}

pub(super) const BROADCAST: MacAddr = MacAddr::BROADCAST;

pub(super) fn vid(number: u16) -> vlan::Vid {
    vlan::Vid::new(number).expect("a number of a VLAN")
}

/// VLANs of a port that may be in several.
pub(super) fn trunk(native: Option<u16>, allowed: &[u16]) -> PortVlans {
    let allowed = allowed.iter().map(|&number| vid(number)).collect();
    PortVlans::Trunk { native: native.map(vid), allowed: alloc::boxed::Box::new(allowed) }
}

pub(super) fn access(number: u16) -> PortVlans {
    PortVlans::Access(vid(number))
}

pub(super) fn port() -> PortConfig {
    PortConfig::new(ABLE)
}

pub(super) fn in_vlans(vlans: PortVlans) -> PortConfig {
    PortConfig { vlans, ..port() }
}

/// A frame of an unknown protocol, with tags.
pub(super) fn frame(to: MacAddr, from: MacAddr, tags: &[u16], payload: &[u8]) -> Vec<u8> {
    let mut frame = [to.0, from.0].concat();
    for tag in tags {
        frame.extend([0x81, 0x00]);
        frame.extend(tag.to_be_bytes());
    }
    frame.extend([0x88, 0xb5]);
    frame.extend(payload);
    frame
}

/// The frame with other addresses, and optionally a tag.
pub(super) fn readdressed(bytes: &[u8], to: MacAddr, from: MacAddr, tag: Option<u16>) -> Vec<u8> {
    let mut frame = [to.0, from.0].concat();
    if let Some(tag) = tag {
        frame.extend([0x81, 0x00]);
        frame.extend(tag.to_be_bytes());
    }
    frame.extend(&bytes[12..]);
    frame
}
