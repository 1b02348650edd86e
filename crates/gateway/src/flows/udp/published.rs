//! Sockets of published ports, and where they lead.
//!
//! A port that leads to a guest by name is looked up when datagrams arrive, as the guest's address
//! may change. While the guest has no address, the flow leads to [`NOBODY`].

use super::{Flow, Realm, UdpFlows};
use crate::flows::Slot;
use crate::flows::shares::Share;
use crate::flows::{Gateway, Io, Token};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use towpath_io::reactor::{Interest, Reactor};
use towpath_io::socket::UdpSocket;
use towpath_net::time::Instant;

/// How long a lookup of a published port's target remains valid.
const LED_FOR: Duration = Duration::from_secs(1);
/// The target of a published port while its guest has no address.
pub(super) const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The published port that a flow belongs to.
#[derive(Clone, Copy, Debug)]
pub(in crate::flows) struct PublishedBy {
    pub(in crate::flows) port: Slot,
    pub(in crate::flows) is_ipv4: bool,
}

impl UdpFlows {
    /// Adds a socket of a published port; `program` is its target, if known.
    pub(in crate::flows) fn publish(
        &mut self,
        socket: UdpSocket,
        by: PublishedBy,
        program: Option<SocketAddr>,
        reactor: &Reactor,
    ) -> io::Result<Slot> {
        let slot = self.slots.next_key();
        reactor.add(&socket, Token::Udp(slot).encode(), Interest::READ, true)?;
        let program = program.unwrap_or(NOBODY);
        let share = Share::Published(slot.index);
        let flow = Flow::new(socket, program, Realm::World, Instant::START, share, Some(by));
        self.slots.insert(flow);
        self.published += 1;
        self.claim(slot, program);
        Ok(slot)
    }

    /// Closes a socket of a published port.
    pub(in crate::flows) fn unpublish(&mut self, slot: Slot) {
        let Some(program) = self.slots.get(slot).map(|flow| flow.program) else { return };
        self.remove(slot);
        self.published -= 1;
        self.has_rivals &= self.published > 0;
        self.reclaim(program);
    }

    /// Makes the next datagram look up the target of the published port.
    pub(in crate::flows) fn look_again(&mut self, slot: Slot) {
        if let Some(flow) = self.slots.get_mut(slot) {
            flow.led_until = Instant::START;
        }
    }

    /// Leads a published port to this address until the given time.
    fn lead(&mut self, slot: Slot, program: SocketAddr, until: Instant) {
        let Some(flow) = self.slots.get_mut(slot) else { return };
        flow.led_until = until;
        let before = std::mem::replace(&mut flow.program, program);
        if before != program {
            if self.index.get(&(before, Realm::World)) == Some(&slot) {
                self.index.remove(&(before, Realm::World));
                self.reclaim(before);
            }
            self.claim(slot, program);
        }
    }

    /// Makes this published port the way out for datagrams from `program` that are not answers,
    /// unless another published port that leads there already is.
    fn claim(&mut self, slot: Slot, program: SocketAddr) {
        let key = (program, Realm::World);
        let holder = self.index.get(&key).and_then(|holder| self.slots.get(*holder));
        if program == NOBODY {
            return;
        }
        match holder {
            Some(holder) if holder.published.is_some() => self.has_rivals = true,
            _ => drop(self.index.insert(key, slot)),
        }
    }

    /// A port that led to `program` no longer does: another that does takes its place.
    ///
    /// All flows are searched, but only if any two ports lead to the same place: a range of many
    /// ports is closed in a time that is linear in their number.
    fn reclaim(&mut self, program: SocketAddr) {
        if !self.has_rivals {
            return;
        }
        let leads = |flow: &Flow| flow.program == program && flow.published.is_some();
        let other = self.slots.iter().find(|(_, flow)| leads(flow)).map(|(slot, _)| slot);
        if let Some(slot) = other {
            self.claim(slot, program);
        }
    }
}

impl Gateway {
    /// Looks up the current target of a published port.
    pub(super) fn lead_datagrams(&mut self, slot: Slot, io: &Io<'_>) {
        let due = |flow: &&Flow| flow.led_until <= io.now;
        let flow = self.udp.slots.get(slot).filter(due);
        let Some(by) = flow.and_then(|flow| flow.published) else { return };
        let Some(publish) = self.listeners.publish_of(by.port) else { return };
        let program = self.target_of(publish, by.is_ipv4, io);
        let program = program.map(|address| SocketAddr::new(address, publish.program_port));
        // A guest without an address is looked up each time.
        let until = program.map_or(io.now, |_| io.now + LED_FOR);
        self.udp.lead(slot, program.unwrap_or(NOBODY), until);
    }
}
