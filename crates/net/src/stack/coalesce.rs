//! Coalesces received segments that the device did not coalesce, within one burst.
//!
//! A packet costs connections and the owner of datagrams as much as a super-packet. A device that
//! takes UDP super-packets delivers datagrams as they were sent. In a transparent stack, whose
//! owner forwards datagrams, these are coalesced anyway. Nothing waits: at the end of its burst,
//! [`Stack::input`](super::Stack::input) delivers what is held.

use super::ingress::IpInfo;
use super::{Context, Stack};
use crate::gro::Coalescer;
use crate::wire::headers::{Transport, Version};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use towpath_packet::{Caps, Packet};

/// The coalescer, if needed, and its output.
pub(super) struct Coalescing {
    coalescer: Option<Box<Coalescer<IpInfo>>>,
    up: VecDeque<(Packet, IpInfo)>,
    /// Datagrams are coalesced regardless of the device.
    datagrams: bool,
    /// Seed of the coalescer's hash.
    seed: u64,
}

impl Coalescing {
    pub(super) fn new(datagrams: bool, seed: u64) -> Self {
        Self { coalescer: None, up: VecDeque::new(), datagrams, seed }
    }

    /// Adapts to a device. Called between bursts, when nothing is held.
    pub(super) fn set_caps(&mut self, caps: &Caps) {
        let needed = self.datagrams || !(caps.tso4 && caps.tso6 && caps.uso);
        if needed != self.coalescer.is_some() {
            self.coalescer = needed.then(|| Box::new(Coalescer::new(self.seed)));
        }
    }
}

impl Stack {
    /// Coalesces a TCP or UDP packet whose headers have been pulled. Returns it if it is looped, or
    /// the device coalesces such packets itself.
    pub(super) fn coalesce(
        &mut self,
        info: &IpInfo,
        packet: Packet,
        looped: bool,
        cx: &mut Context<'_>,
    ) -> Option<Packet> {
        let done = looped
            || match (info.transport, info.version) {
                (Some(Transport::Tcp), Version::V4) => self.caps.tso4,
                (Some(Transport::Tcp), Version::V6) => self.caps.tso6,
                _ => self.caps.uso && !self.coalescing.datagrams,
            };
        let Coalescing { coalescer, up, .. } = &mut self.coalescing;
        let Some(coalescer) = coalescer.as_mut().filter(|_| !done) else { return Some(packet) };
        let mut out = |packet, info| up.push_back((packet, info));
        coalescer.receive(packet, info, *info, cx.ledger, &mut out);
        self.deliver_coalesced(cx);
        None
    }

    /// Delivers what is held at the end of a burst.
    pub(super) fn flush_coalesced(&mut self, cx: &mut Context<'_>) {
        let Coalescing { coalescer, up, .. } = &mut self.coalescing;
        if let Some(coalescer) = coalescer {
            coalescer.flush(&mut |packet, info| up.push_back((packet, info)));
            self.deliver_coalesced(cx);
        }
    }

    fn deliver_coalesced(&mut self, cx: &mut Context<'_>) {
        while let Some((packet, info)) = self.coalescing.up.pop_front() {
            let done = match info.transport {
                Some(Transport::Tcp) => self.deliver_tcp(&info, packet, cx),
                _ => self.deliver_udp(&info, packet, cx),
            };
            if let Err(reason) = done {
                self.counters.drop(reason);
            }
        }
    }
}
