//! The ports as one thread has them: their configurations, its counters, and its packets on the
//! way.

use alloc::boxed::Box;
use alloc::vec::Vec;

use towpath_packet::{Burst, Context, Packet};

use super::PORTS_MAX;
use super::ingress::Verdict;
use super::port::{Egress, Port, PortConfig, PortId, Traffic};
use super::vlan::Vid;
use crate::counters::PortDrop;

/// Configurations of all ports by number; `None` for numbers without a port.
pub(super) type Configs = Box<[Option<PortConfig>]>;

/// All ports.
#[derive(Default)]
pub(super) struct Ports {
    /// Indexed by port number; `None` for numbers without a port.
    list: Vec<Option<Port>>,
    /// Ports with packets that are not handed out yet. Empty between calls.
    touched: PortSet,
}

impl Ports {
    pub(super) fn insert(&mut self, id: PortId, config: PortConfig) {
        if self.list.len() <= id.index() {
            self.list.resize_with(id.index() + 1, || None);
        }
        self.list[id.index()] = Some(Port::new(config));
    }

    pub(super) fn remove(&mut self, id: PortId) -> Option<Port> {
        self.list.get_mut(id.index())?.take()
    }

    /// Takes over all configurations. The counters of ports that stay continue.
    pub(super) fn follow(&mut self, configs: &Configs) {
        self.list.resize_with(configs.len(), || None);
        for (place, config) in self.list.iter_mut().zip(configs) {
            match (place, config) {
                (Some(port), Some(config)) if port.config == *config => {}
                (Some(port), Some(config)) => port.configure(config.clone()),
                (place, config) => *place = config.clone().map(Port::new),
            }
        }
    }

    /// Queues a packet at port `to` in the form that the port takes, or drops it.
    #[inline]
    pub(super) fn emit(
        &mut self,
        packet: Packet,
        verdict: &Verdict,
        to: PortId,
        cx: &mut Context<'_>,
        out: &mut impl Egress,
    ) {
        let port = self.port_mut(to);
        match port.send(to, packet, verdict, cx, out) {
            Ok(()) => self.touched.insert(to),
            Err(reason) => port.counters.drop(reason),
        }
    }

    /// Drops a burst that was received on a port whose link is down. Returns its bytes.
    #[cold]
    pub(super) fn refuse(&mut self, from: PortId, burst: &mut Burst) -> u64 {
        let counters = &mut self.port_mut(from).counters;
        let mut traffic = Traffic::default();
        while let Some(packet) = burst.pop() {
            traffic.add(&packet);
            counters.drop(PortDrop::LinkDown);
        }
        counters.count_in(&traffic);
        traffic.bytes
    }

    /// Hands out the queued packets port by port.
    pub(super) fn hand_out(&mut self, cx: &mut Context<'_>, out: &mut impl Egress) {
        for id in core::mem::take(&mut self.touched).iter() {
            self.port_mut(id).flush(id, cx, out);
        }
    }

    /// Whether port `from` may send to port `to` in a VLAN; `None` if there is no port `to`.
    #[inline]
    pub(super) fn route(
        &self,
        from: PortId,
        to: PortId,
        vid: Vid,
    ) -> Option<Result<PortId, PortDrop>> {
        if to == from {
            return Some(Err(PortDrop::SamePort));
        }
        let other = &self.get(to)?.config;
        let may_talk = self.port(from).config.role.reaches(other.role);
        if !may_talk || other.vlans.leaves(vid).is_none() {
            return Some(Err(PortDrop::Isolated));
        }
        Some(Ok(to))
    }

    /// Ports that port `from` may send to in some VLAN.
    pub(super) fn reached_from(&self, from: PortId) -> PortSet {
        let Some(own) = self.get(from) else { return PortSet::default() };
        let reached = |id: &PortId| own.config.role.reaches(self.port(*id).config.role);
        let mut reach = PortSet::default();
        self.ids().filter(|&id| id != from).filter(reached).for_each(|id| reach.insert(id));
        reach
    }

    pub(super) fn configs(&self) -> Configs {
        self.list.iter().map(|port| port.as_ref().map(|port| port.config.clone())).collect()
    }

    /// Numbers of all ports.
    pub(super) fn ids(&self) -> impl Iterator<Item = PortId> + '_ {
        let numbers = (0..=u8::MAX).zip(&self.list);
        numbers.filter_map(|(number, port)| port.as_ref().map(|_| PortId(number)))
    }

    #[inline]
    pub(super) fn get(&self, id: PortId) -> Option<&Port> {
        self.list.get(id.index())?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: PortId) -> Option<&mut Port> {
        self.list.get_mut(id.index())?.as_mut()
    }

    #[inline]
    pub(super) fn port(&self, id: PortId) -> &Port {
        self.list[id.index()].as_ref().expect("ports in use and in the table are there")
    }

    #[inline]
    pub(super) fn port_mut(&mut self, id: PortId) -> &mut Port {
        self.list[id.index()].as_mut().expect("ports in use and in the table are there")
    }

    #[cfg(test)]
    pub(super) fn holds_packets(&self) -> bool {
        self.touched != PortSet::default()
    }
}

/// A set of ports.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PortSet([u64; PORTS_MAX / 64]);

impl PortSet {
    fn insert(&mut self, id: PortId) {
        self.0[id.index() / 64] |= 1 << (id.index() % 64);
    }

    /// Ports of the set in numerical order.
    pub(super) fn iter(self) -> impl Iterator<Item = PortId> {
        self.0.into_iter().enumerate().flat_map(|(index, mut word)| {
            core::iter::from_fn(move || {
                let bit = word.trailing_zeros() as usize;
                word &= word.checked_sub(1)?;
                Some(PortId((index * 64 + bit) as u8))
            })
        })
    }
}
