//! Forwarding on further threads: packets between known stations.
//!
//! # Theory of operation
//!
//! A [`Forwarder`] does what [`Switch`](super::Switch) does, as far as reading is enough: it judges
//! a packet, finds sender and destination in the address table, and hands the packet out. Whatever
//! else a packet needs is done by one thread, the owner of the switch: learning, moves, floods and
//! their rates, claims of addresses. The forwarder leaves such packets untouched, except that their
//! first bytes are private, and the owner forwards them like packets that it received itself.
//!
//! What the forwarder knows of the ports is a copy of the newest generation at its last
//! [`Forwarder::refresh`]. The table is shared, and may already be newer.
//!
//! # Order
//!
//! Packets of one sender to one destination stay in order, although some take the way through the
//! owner. While such packets may be under way there, all packets of the same port to the same
//! destination follow them. The destinations of a port are kept as 64 bits, so another destination
//! may have to follow, too, until the owner has forwarded all packets of the port.

use core::cell::Cell;
use core::net::IpAddr;

use towpath_packet::snapshot::Subscriber;
use towpath_packet::{Burst, Packet};

use super::fdb::FdbReader;
use super::ingress::{Arrival, Recent, Verdict};
use super::port::{Egress, PortConfig, PortCounters, PortId, Traffic};
use super::ports::{Configs, Ports};
use super::{Config, Context, PORTS_MAX};
use crate::counters::PortDrop;
use crate::time::Instant;

/// Forwards packets between known stations, on another thread than the owner of the switch. See
/// [`Switch::forwarder`](super::Switch::forwarder).
///
/// Its counters are its own: the counters of a port are those of the switch and of all forwarders
/// together.
pub struct Forwarder {
    config: Config,
    ports: Ports,
    stations: FdbReader,
    configs: Subscriber<Configs>,
    /// For each port, the destinations of its packets that may be under way through the owner
    /// (`Key::bit`).
    under_way: [u64; PORTS_MAX],
}

impl Forwarder {
    pub(super) fn new(stations: FdbReader, configs: Subscriber<Configs>, config: Config) -> Self {
        let (ports, under_way) = (Ports::default(), [0; PORTS_MAX]);
        let mut forwarder = Self { config, ports, stations, configs, under_way };
        forwarder.refresh();
        forwarder
    }

    /// Takes over changes of ports; returns the generation that the forwarder works with from now
    /// on. Costs one load if there are none, and otherwise allocates. The counters of ports that
    /// were removed are gone.
    pub fn refresh(&mut self) -> u64 {
        let ports = &mut self.ports;
        self.configs.refresh(|configs| ports.follow(configs))
    }

    /// Forwards the packets of a burst that was received on port `from`, as far as reading is
    /// enough, and hands them out port by port before it returns. Puts the other packets into
    /// `rest`, in order and not counted, for [`Switch::forward`](super::Switch::forward) with the
    /// same port, which is their [`Packet::ingress`]. Stops when `rest` is full; further packets
    /// stay in `burst`. Returns the bytes of all packets that it took from `burst`.
    ///
    /// `rest_is_pending`: there are packets that an earlier call for this port put into `rest`, and
    /// that the owner has not forwarded yet.
    ///
    /// Calls only [`Egress::transmit`]. The port may have been removed from the switch after the
    /// last [`Forwarder::refresh`].
    ///
    /// Packets are as for [`Switch::forward`](super::Switch::forward).
    pub fn forward(
        &mut self,
        from: PortId,
        burst: &mut Burst,
        cx: &mut Context<'_>,
        out: &mut impl Egress,
        rest: &mut Burst,
        rest_is_pending: bool,
    ) -> u64 {
        if self.config_of(from).is_some_and(|config| !config.is_up) {
            return self.ports.refuse(from, burst);
        }
        if !rest_is_pending {
            self.under_way[from.index()] = 0;
        }
        let (mut bytes, mut traffic) = (0, Traffic::default());
        let (mut recent, mut verdict) = (Recent::NOTHING, Verdict::NONE);
        while !rest.is_full()
            && let Some(mut packet) = burst.pop()
        {
            packet.set_ingress(Some(from.0.into()));
            bytes += packet.len() as u64;
            let before = traffic;
            traffic.add(&packet);
            match self.classify(from, &mut packet, (&mut recent, &mut verdict), cx) {
                Ok(Some(to)) => self.ports.emit(packet, &verdict, to, cx, out),
                Ok(None) => {
                    traffic = before;
                    rest.push(packet).expect("it was not full");
                }
                Err(reason) => self.ports.port_mut(from).counters.drop(reason),
            }
        }
        self.ports.hand_out(cx, out);
        if let Some(port) = self.ports.get_mut(from) {
            port.counters.count_in(&traffic);
        }
        bytes
    }

    /// Counts a received packet that the thread of the forwarder dropped for this reason.
    pub fn count_drop(&mut self, id: PortId, reason: PortDrop) {
        if let Some(port) = self.ports.get_mut(id) {
            port.counters.drop(reason);
        }
    }

    /// Takes the counters of a port, which begin again at zero, for
    /// [`Switch::add_counters`](super::Switch::add_counters).
    pub fn take_counters(&mut self, id: PortId) -> Option<PortCounters> {
        Some(core::mem::take(&mut self.ports.get_mut(id)?.counters))
    }

    /// Counters of a port, of this forwarder only.
    pub fn counters_of(&self, id: PortId) -> Option<&PortCounters> {
        Some(&self.ports.get(id)?.counters)
    }

    /// Configuration of a port, as the forwarder knows it.
    pub fn config_of(&self, id: PortId) -> Option<&PortConfig> {
        Some(&self.ports.get(id)?.config)
    }

    /// Judges a packet received on port `from` and finds its port. `None` if it is for the owner.
    fn classify(
        &mut self,
        from: PortId,
        packet: &mut Packet,
        (recent, verdict): (&mut Recent, &mut Verdict),
        cx: &mut Context<'_>,
    ) -> Result<Option<PortId>, PortDrop> {
        let Some(port) = self.ports.get(from) else {
            // A new port: its packets could be for any destination.
            self.under_way[from.index()] = u64::MAX;
            return Ok(None);
        };
        let mut arrival = port.config.read(packet)?;
        if arrival.frame.destination.is_multicast() {
            return Ok(None);
        }
        let bit = arrival.destination().bit();
        if self.under_way[from.index()] & bit != 0 {
            return Ok(None);
        }
        let Some(found) = self.find(from, &arrival, recent, cx.now) else {
            self.under_way[from.index()] |= bit;
            return Ok(None);
        };
        // Refused, so that the packet is not changed if its owner has to be asked for.
        let asks = Cell::new(false);
        let refuse = |_: IpAddr| {
            asks.set(true);
            false
        };
        let judged = port.config.judge(packet, &mut arrival, &refuse, verdict);
        if asks.get() {
            self.under_way[from.index()] |= bit;
            return Ok(None);
        }
        judged?;
        let to = found?;
        self.config.copy_payload(packet, cx)?;
        Ok(Some(to))
    }

    /// Finds sender and destination. Returns the port of the destination, or the drop reason;
    /// `None` if one of them has to be learned, or may have changed.
    fn find(
        &self,
        from: PortId,
        arrival: &Arrival,
        recent: &mut Recent,
        now: Instant,
    ) -> Option<Result<PortId, PortDrop>> {
        let (source, destination) = (arrival.source(), arrival.destination());
        let found = recent.look_up(destination, || {
            let entry = self.stations.find(destination, now)?;
            self.ports.route(from, PortId(entry.port), arrival.vid)
        })?;
        if recent.source != Some(source) {
            if !self.stations.refresh(source, from.0, now) {
                return None;
            }
            recent.source = Some(source);
        }
        Some(found)
    }
}
