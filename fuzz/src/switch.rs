//! Target: frames with arbitrary claims through a switch whose ports are added, changed and
//! removed, by the owner alone or by a forwarder and then the owner.
//!
//! Goal, for any input: all memory is returned, each packet is forwarded or counted as dropped, and
//! each forwarded packet is within the port's capabilities: no super-packet, checksum, length or
//! tag that the port does not accept.

use std::net::IpAddr;

use towpath_net::switch::vlan::Vid;
use towpath_net::switch::{
    Config, Context, Egress, Forwarder, Guard, PortConfig, PortCounters, PortId, PortVlans, Prefix,
    Role, StormRates, Switch,
};
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::MacAddr;
use towpath_packet::packet::PEEK_BYTES;
use towpath_packet::{
    Burst, Caps, Checksum, GsoKind, Ledger, Memory, Offload, Packet, VirtioHeader,
    VirtioTunnelHeader,
};

use crate::input::Input;
use crate::packets;

/// Most steps of one input.
const STEPS_MAX: usize = 64;
/// Most frames of one burst.
const FRAMES_MAX: u8 = 8;
/// Number of ports: few, so that frames often reach a port.
const PORTS: usize = 6;
/// Longest frame, beyond the switch's limit.
const FRAME_BYTES_MAX: usize = 14 + 4 + 65_535 + 50;
/// Addresses of the table: few, so that inputs reach the bounds.
const ADDRESSES: u32 = 24;

/// Runs steps: a byte selects each, and its arguments follow.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let config = Config {
        addresses_max: ADDRESSES,
        age: Duration::from_secs(20),
        seed: u64::from(input.u8()),
        copies_payload: input.u8() & 1 != 0,
    };
    let switch = Switch::new(config);
    let mut net = Net {
        forwarder: switch.forwarder(),
        switch,
        memory: packets::memory(),
        ledger: Ledger::new(),
        now: Instant::from_micros(1),
        ports: Vec::new(),
        room: usize::MAX,
    };
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        net.step(&mut input);
        net.check_table();
    }
    let Net { switch, forwarder, memory, .. } = net;
    drop((switch, forwarder));
    packets::check_returned(memory);
}

struct Net {
    switch: Switch,
    forwarder: Forwarder,
    memory: Memory,
    ledger: Ledger,
    now: Instant,
    ports: Vec<PortId>,
    /// Packets of a burst that a port accepts.
    room: usize,
}

impl Net {
    fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.u8();
        match choice % 16 {
            0 => self.add_port(input),
            1 => self.change_port(input),
            2 => self.remove_port(input),
            3 => self.tell(input),
            4 => self.room = usize::from(input.u8()),
            5 => {
                self.now += Duration::from_millis(input.u16().into());
                self.switch.expire(self.now);
                assert!(self.switch.next_deadline().is_none_or(|at| at > self.now));
            }
            _ => self.send(input, choice & 16 != 0),
        }
    }

    fn port(&self, input: &mut Input<'_>) -> Option<PortId> {
        let place = usize::from(input.u8()).checked_rem(self.ports.len())?;
        Some(self.ports[place])
    }

    fn add_port(&mut self, input: &mut Input<'_>) {
        if self.ports.len() < PORTS
            && let Ok(id) = self.switch.add_port(port_config(input))
        {
            assert!(!self.ports.contains(&id));
            self.ports.push(id);
        }
    }

    fn change_port(&mut self, input: &mut Input<'_>) {
        let Some(id) = self.port(input) else { return };
        let before = self.switch.config_of(id).cloned();
        let config = port_config(input);
        let is_changed = self.switch.set_port(id, config.clone()).is_ok();
        let expected = if is_changed { Some(&config) } else { before.as_ref() };
        assert_eq!(self.switch.config_of(id), expected);
    }

    fn remove_port(&mut self, input: &mut Input<'_>) {
        let Some(id) = self.port(input) else { return };
        self.switch.remove_port(id).expect("it was there");
        self.ports.retain(|&port| port != id);
        self.refresh();
        self.switch.release_numbers(self.switch.oldest_generation());
    }

    fn refresh(&mut self) {
        assert_eq!(self.forwarder.refresh(), self.switch.generation());
    }

    fn tell(&mut self, input: &mut Input<'_>) {
        let Some(id) = self.port(input) else { return };
        let (mac, vid) = (MacAddr([2, 0, 0, 0, 0, input.u8() & 7]), vid(input));
        if input.u8() & 1 == 0 {
            self.switch.remove_station(mac, vid);
        } else if self.switch.add_station(mac, vid, id, self.now).is_ok() {
            let stations = self.switch.stations(self.now);
            let mut found = stations.filter(|station| (station.mac, station.vid) == (mac, vid));
            assert!(found.any(|station| station.port == id && station.is_static));
        }
    }

    fn send(&mut self, input: &mut Input<'_>, by_forwarder: bool) {
        let Some(from) = self.port(input) else { return };
        let mut burst = Burst::new();
        for _ in 0..=input.u8() % FRAMES_MAX {
            if let Some(packet) = frame(input, &mut self.memory) {
                burst.push(packet).expect("few");
            }
        }
        if by_forwarder {
            self.refresh();
        }
        let count = burst.len() as u64;
        let before = self.sums();
        let configs: Vec<_> = self.ports.iter().map(|&id| (id, self.config(id))).collect();
        let mut out = Sink { configs, room: self.room, taken: 0 };
        let (memory, ledger) = (&mut self.memory, &self.ledger);
        let mut cx = Context { memory, ledger, now: self.now };
        let mut rest = Burst::new();
        if by_forwarder {
            self.forwarder.forward(from, &mut burst, &mut cx, &mut out, &mut rest, false);
            assert!(burst.is_empty());
            std::mem::swap(&mut burst, &mut rest);
        }
        self.switch.forward(from, &mut burst, &mut cx, &mut out);
        assert!(burst.is_empty());
        let after = self.sums();
        assert_eq!(after.packets_in - before.packets_in, count);
        assert_eq!(after.packets_out - before.packets_out, out.taken);
        let gone = out.taken + after.drops - before.drops;
        assert!(gone >= count, "{gone} of {count} packets are accounted for");
    }

    fn config(&self, id: PortId) -> PortConfig {
        self.switch.config_of(id).expect("it is there").clone()
    }

    /// Counters of all ports together.
    fn sums(&self) -> Sums {
        let owner = self.ports.iter().map(|&id| self.switch.counters_of(id).expect("it is there"));
        let forwarder = self.ports.iter().filter_map(|&id| self.forwarder.counters_of(id));
        owner.chain(forwarder).fold(Sums::default(), |mut sums, counters: &PortCounters| {
            sums.packets_in += counters.packets_in;
            sums.packets_out += counters.packets_out;
            sums.drops += counters.drops().map(|(_, count)| count).sum::<u64>();
            sums
        })
    }

    fn check_table(&self) {
        let mut counts = [0; 256];
        for station in self.switch.stations(self.now) {
            assert!(station.mac.is_unicast() && self.ports.contains(&station.port));
            counts[station.port.index()] += 1;
        }
        for &id in &self.ports {
            assert!(counts[id.index()] <= self.config(id).addresses_max);
        }
    }
}

#[derive(Default)]
struct Sums {
    packets_in: u64,
    packets_out: u64,
    drops: u64,
}

/// Checks the packets that ports receive.
struct Sink {
    configs: Vec<(PortId, PortConfig)>,
    room: usize,
    taken: u64,
}

impl Egress for Sink {
    fn transmit(&mut self, port: PortId, burst: &mut Burst, _: &mut Context<'_>) {
        let (_, config) = self.configs.iter().find(|(id, _)| *id == port).expect("a port");
        assert!(config.is_up);
        for _ in 0..self.room.min(burst.len()) {
            let packet = burst.pop().expect("counted");
            check(&packet, config);
            // A packet that the device segments counts as its segments.
            self.taken += packet.frames() as u64;
        }
    }
}

fn check(packet: &Packet, config: &PortConfig) {
    let (headers, caps) = (packet.headers(), config.caps);
    let is_tagged = headers[12..14] == [0x81, 0];
    let network_at = if is_tagged { 18 } else { 14 };
    let vid = is_tagged.then(|| Vid::new(u16::from_be_bytes([headers[14], headers[15]]) & 0xfff));
    match (&config.vlans, vid) {
        (PortVlans::Access(_), tag) => assert_eq!(tag, None),
        (PortVlans::Trunk { native, .. }, None) => assert!(native.is_some()),
        (PortVlans::Trunk { native, allowed }, Some(vid)) => {
            let vid = vid.expect("a number of a VLAN");
            assert!(*native != Some(vid) && allowed.contains(vid));
        }
    }
    if let Some(cut) = packet.segmentation() {
        assert!(caps.segments && caps.checksum && packet.offload().gso.is_none());
        let segment = headers.len() + cut.size().min(packet.payload_len());
        assert!(segment - network_at <= usize::from(caps.mtu));
        return;
    }
    let Offload { checksum, gso } = *packet.offload();
    if !caps.checksum {
        assert_eq!((checksum, gso), (Checksum::None, None));
    }
    if let Checksum::Partial { start, offset } = checksum {
        assert!(usize::from(start) + usize::from(offset) + 2 <= packet.len());
        assert!(usize::from(start) >= network_at);
    }
    let Some(gso) = gso else {
        return assert!(packet.len() - network_at <= usize::from(caps.mtu));
    };
    assert!(packet.len() <= caps.gso_bytes_max as usize);
    assert!(matches!(checksum, Checksum::Partial { .. }));
    if let Some(tunnel) = gso.tunnel {
        let (outer, inner) = (usize::from(tunnel.transport_at), usize::from(tunnel.network_at));
        assert!(caps.tunnel && network_at < outer && outer < inner && inner < headers.len());
    }
    assert!(match gso.kind {
        GsoKind::Tcp4 => caps.tso4,
        GsoKind::Tcp6 => caps.tso6,
        GsoKind::Udp => caps.uso,
    });
}

fn vid(input: &mut Input<'_>) -> Vid {
    Vid::new(u16::from(input.u8() & 3)).unwrap_or(Vid::DEFAULT)
}

fn port_config(input: &mut Input<'_>) -> PortConfig {
    let bits = input.u8();
    let bit = |number: u8| bits >> number & 1 != 0;
    let caps = Caps {
        mtu: input.u16(),
        checksum: bit(0),
        tso4: bit(1),
        tso6: bit(2),
        uso: bit(3),
        tunnel: bit(7),
        gso_bytes_max: u32::from(input.u16()),
        segments: bit(0) && bit(5),
    };
    let vlans = match bit(4) {
        false => PortVlans::Access(vid(input)),
        true => {
            let native = Vid::new(u16::from(input.u8() & 3));
            let allowed = (0..input.u8() & 3).map(|_| vid(input)).collect();
            PortVlans::Trunk { native, allowed: Box::new(allowed) }
        }
    };
    let rate = |byte: u8| if byte & 1 == 0 { None } else { Some(u32::from(byte)) };
    let storm = StormRates {
        broadcast: rate(input.u8()),
        multicast: rate(input.u8()),
        unknown: rate(input.u8()),
    };
    let mut guard = Guard::default();
    if bit(6) {
        guard.macs = (0..input.u8() & 3).map(|last| MacAddr([2, 0, 0, 0, 0, last])).collect();
        let address = IpAddr::from([10, 0, 0, input.u8()]);
        guard.addresses = vec![Prefix { address, len: input.u8() }];
    }
    let role = input.u8();
    PortConfig {
        is_up: role < 0xe0,
        vlans,
        role: [Role::Station, Role::Isolated, Role::Uplink, Role::Tunnel][usize::from(role % 4)],
        guard,
        is_trusted: bit(5),
        storm,
        moves_per_second: u32::from(input.u8()),
        addresses_max: u32::from(input.u8() % 9),
        ..PortConfig::new(caps)
    }
}

/// Reads a virtio-net header and a frame: choices select addresses and tag, the other bytes are
/// arbitrary.
fn frame(input: &mut Input<'_>, memory: &mut Memory) -> Option<Packet> {
    let choice = input.u8();
    let station = |number: u8| match number {
        0 => [0xff; 6],
        number => [2, 0, 0, 0, 0, number],
    };
    let mut bytes = Vec::new();
    if choice & 1 == 0 {
        let stations = input.u8();
        bytes.extend(station(stations & 7));
        bytes.extend(station((stations >> 3 & 7).max(1)));
    }
    let mut offload = Offload::default();
    if choice & 8 != 0 {
        offload = VirtioTunnelHeader(input.array()).decode().ok()?;
    } else if choice & 2 != 0 {
        offload = VirtioHeader(input.array()).decode().ok()?;
    }
    bytes.extend(input.counted());
    if choice & 4 != 0 {
        // A few bytes of input make a long packet.
        bytes.resize((bytes.len() + usize::from(input.u16())).min(FRAME_BYTES_MAX), 0x5a);
    }
    // As rings pass frames to a switch: a short frame that is no super-packet may be inline.
    let is_inline = choice & 16 != 0 && bytes.len() <= PEEK_BYTES && offload.gso.is_none();
    let mut packet = if is_inline { memory.packet()? } else { packets::received(memory, &bytes)? };
    if is_inline {
        packet.fill_inline(bytes.len(), |frame| frame.copy_from_slice(&bytes));
    }
    packet.set_offload(offload);
    Some(packet)
}
