//! Coalesces received segments that the device did not coalesce, within one burst.
//!
//! A packet costs connections and the owner of datagrams as much as a super-packet. A device that
//! takes UDP super-packets delivers datagrams as they were sent. In a transparent stack, whose
//! owner forwards datagrams, these are coalesced anyway. Nothing waits: at the end of its burst,
//! [`Stack::input`](super::Stack::input) delivers what is held.

use super::ingress::{FragmentOf, IP_AT, IpInfo};
use super::{Context, Stack};
use crate::counters::DropReason;
use crate::gro::Coalescer;
use crate::wire::{Protocol, ethernet, ipv4, ipv6};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use towpath_packet::{Caps, Packet};

/// The coalescer, if needed, and its output.
pub(super) struct Coalescing {
    coalescer: Option<Box<Coalescer>>,
    up: VecDeque<Packet>,
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
    /// Coalesces a TCP or UDP packet whose headers have been pulled. Returns it if the device
    /// coalesces such packets itself.
    pub(super) fn coalesce(
        &mut self,
        info: &IpInfo,
        packet: Packet,
        cx: &mut Context<'_>,
    ) -> Option<Packet> {
        let done = match (info.protocol, info.source.is_ipv4()) {
            (Protocol::TCP, true) => self.caps.tso4,
            (Protocol::TCP, false) => self.caps.tso6,
            _ => self.caps.uso && !self.coalescing.datagrams,
        };
        let Coalescing { coalescer, up, .. } = &mut self.coalescing;
        let Some(coalescer) = coalescer.as_mut().filter(|_| !done) else { return Some(packet) };
        let mut out = |packet| up.push_back(packet);
        coalescer.receive(packet, info.layout(), cx.now, cx.ledger, &mut out);
        self.deliver_coalesced(cx);
        None
    }

    /// Delivers what is held at the end of a burst.
    pub(super) fn flush_coalesced(&mut self, cx: &mut Context<'_>) {
        let Coalescing { coalescer, up, .. } = &mut self.coalescing;
        if let Some(coalescer) = coalescer {
            coalescer.flush(&mut |packet| up.push_back(packet));
            self.deliver_coalesced(cx);
        }
    }

    fn deliver_coalesced(&mut self, cx: &mut Context<'_>) {
        while let Some(packet) = self.coalescing.up.pop_front() {
            let Some(info) = parsed(&packet) else {
                self.counters.drop(DropReason::IpMalformed);
                continue;
            };
            let done = match info.protocol {
                Protocol::TCP => self.deliver_tcp(&info, packet, cx),
                _ => self.deliver_udp(&info, packet, cx),
            };
            if let Err(reason) = done {
                self.counters.drop(reason);
            }
        }
    }
}

/// Parses the headers of a packet again; its lengths may have grown by coalescing.
pub(super) fn parsed(packet: &Packet) -> Option<IpInfo> {
    let headers = packet.headers();
    let source_mac = ethernet::Header::parse(headers).ok()?.source;
    let (bytes, len) = (&headers[IP_AT..], packet.len() - IP_AT);
    let fragment = FragmentOf::None;
    if bytes[0] >> 4 == 4 {
        let ip = ipv4::Header::parse(bytes, len).ok()?;
        return Some(IpInfo {
            source: ip.source.into(),
            destination: ip.destination.into(),
            protocol: ip.protocol,
            transport_at: IP_AT + usize::from(ip.header_len),
            ttl: ip.ttl,
            tos: ip.tos,
            source_mac,
            fragment,
            dont_fragment: ip.dont_fragment,
        });
    }
    let ip = ipv6::Header::parse(bytes, len).ok()?;
    let rest = &bytes[ipv6::HEADER_LEN..];
    let walked = ipv6::Extensions::walk(ip.next_header, rest, len - ipv6::HEADER_LEN).ok()?;
    Some(IpInfo {
        source: ip.source.into(),
        destination: ip.destination.into(),
        protocol: walked.protocol,
        transport_at: IP_AT + ipv6::HEADER_LEN + walked.len,
        ttl: ip.hop_limit,
        tos: ip.traffic_class,
        source_mac,
        fragment,
        dont_fragment: true,
    })
}
