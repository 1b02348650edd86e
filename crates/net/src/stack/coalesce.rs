//! Received segments that the device did not coalesce are coalesced here, within one burst.
//!
//! Connections and the owner of datagrams cost as much per packet as per super-packet. A device
//! that takes super-packets of UDP passes on what was sent as it was sent; in a transparent stack,
//! whose owner sends datagrams on, those are coalesced all the same. Nothing waits: what is held
//! when [`Stack::input`](super::Stack::input) has seen its burst goes up then.

use super::ingress::{FragmentOf, IP_AT, IpInfo};
use super::{Context, Stack};
use crate::counters::DropReason;
use crate::gro::Coalescer;
use crate::wire::{Protocol, ethernet, ipv4, ipv6};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use towpath_packet::{Caps, Packet};

/// The coalescer, if there is anything for it, and what it has sent up.
pub(super) struct Coalescing {
    coalescer: Option<Box<Coalescer>>,
    up: VecDeque<Packet>,
    /// Datagrams are coalesced whatever the device does.
    datagrams: bool,
}

impl Coalescing {
    pub(super) fn new(datagrams: bool) -> Self {
        Self { coalescer: None, up: VecDeque::new(), datagrams }
    }

    /// Suits a device. Between bursts: nothing is held.
    pub(super) fn set_caps(&mut self, caps: &Caps) {
        let needed = self.datagrams || !(caps.tso4 && caps.tso6 && caps.uso);
        if needed != self.coalescer.is_some() {
            self.coalescer = needed.then(Box::default);
        }
    }
}

impl Stack {
    /// Takes a TCP or UDP packet whose headers have been pulled; hands it back if the device
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

    /// Sends up what is held: the burst is over.
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

/// What the headers of a packet say that was parsed before; lengths may have grown since.
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
