//! Choosing and building the next packet of a connection.

use super::connection::{Connection, MSS_MIN, Segment};
use super::receiver::AckOwed;
use super::seq::Seq;
use crate::time::Instant;
use crate::wire::tcp::{Flags, HEADER_LEN, Header, Options};
use core::num::NonZeroU16;
use towpath_packet::{Gso, GsoKind, Memory, Offload, Packet};

const _: () = assert!(MSS_MIN > 28, "a segment has room for SACK blocks and data");

/// How short the stack's memory is; limits the offered windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Pressure {
    /// More than three eighths are free: buffers may grow.
    #[default]
    None,
    /// Less than three eighths are free: windows open by at most 64 KiB, and out-of-order data is
    /// not kept.
    Some,
    /// Less than an eighth is free: windows open by two segments, and data beyond
    /// [`DATA_UNDER_PRESSURE`] unread bytes is dropped.
    High,
    /// Less than a thirty-second is free: all data is dropped; ACKs still pass.
    Critical,
}

/// Largest window offered when memory is short.
pub(super) const WINDOW_UNDER_PRESSURE: u32 = 64 << 10;

/// Unread bytes of one connection that are accepted while memory is nearly exhausted.
pub const DATA_UNDER_PRESSURE: usize = 64 << 10;

/// What the egress path allows.
#[derive(Clone, Copy, Debug)]
pub struct Egress {
    /// Bytes of IP header in front of the TCP header.
    pub ip_header_len: u32,
    /// State of the stack's memory.
    pub pressure: Pressure,
    /// The device's queue is full: it drops what it is given.
    pub stopped: bool,
}

/// One segment or super-packet to be sent.
pub(super) struct Plan {
    pub(super) seq: Seq,
    /// Bytes of payload.
    pub(super) len: u32,
    /// A FIN follows the payload.
    pub(super) fin: bool,
    pub(super) flags: Flags,
    pub(super) kind: Kind,
}

impl Plan {
    pub(super) fn bare(seq: Seq, flags: Flags, kind: Kind) -> Self {
        Self { seq, len: 0, fin: false, flags, kind }
    }

    pub(super) fn end(&self) -> Seq {
        self.seq + self.len + u32::from(self.fin)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Syn,
    /// Data or FIN, sent for the first time.
    New,
    /// New data in one segment that is larger than others: a probe of the path MTU.
    MtuProbe,
    /// Data or FIN, retransmitted.
    Again,
    /// The last segment, retransmitted as a tail loss probe.
    Tail,
    Ack,
    Probe,
    Reset,
}

impl Connection {
    /// True if [`Connection::output`] may have something to build; a cheap estimate.
    pub fn wants_output(&self) -> bool {
        self.reset_due
            || self.send.syn_due
            || self.receive.ack_owed == AckOwed::Now
            || self.receive.update_due
            || self.send.probe_due
            || self.wants_to_resend()
            || self.send.has_unsent_numbers()
            || (self.send.space_check_due && self.send.no_space.get())
            || self.send.awaits_peer && self.timers.persist.is_none()
    }

    /// Builds the next packet: TCP header and payload. The checksum field is still zero; a
    /// super-packet has its segment size set. Returns `None` if there is nothing to send, or if
    /// `memory` has no free packet.
    pub fn output(&mut self, egress: &Egress, memory: &mut Memory, now: Instant) -> Option<Packet> {
        let Some(mut plan) = self.plan(egress, now) else {
            self.check_space(now);
            return None;
        };
        if egress.stopped && self.is_refused(&plan, now) {
            return None;
        }
        let mut packet = memory.packet()?;
        self.attach(&mut plan, &mut packet);
        self.write_header(&plan, egress, &mut packet, now);
        self.account(&plan, now);
        self.send.transmitted_at = now;
        Some(packet)
    }

    fn plan(&mut self, egress: &Egress, now: Instant) -> Option<Plan> {
        if self.reset_due {
            if self.receive.ack_owed == AckOwed::Now {
                return Some(Plan::bare(self.send.nxt, Flags::ACK, Kind::Ack));
            }
            return Some(Plan::bare(self.send.nxt, Flags::RST | Flags::ACK, Kind::Reset));
        }
        if self.send.syn_due {
            let (flags, len) = self.syn_to_send();
            return Some(Plan { len, ..Plan::bare(self.send.iss, flags, Kind::Syn) });
        }
        if self.may_send()
            && let Some(plan) = self.plan_data(egress, now)
        {
            return Some(plan);
        }
        if self.send.probe_due {
            // A segment with an old number makes the peer answer with its window.
            let before = u32::from(!self.send.urgent_probe_due);
            let seq = Seq(self.send.una.0.wrapping_sub(before));
            return Some(Plan::bare(seq, Flags::ACK, Kind::Probe));
        }
        let update_due = core::mem::take(&mut self.receive.update_due)
            && (self.receive.refused
                || self.window_to_offer(egress.pressure) > self.receive.window());
        let ack_due = self.receive.ack_owed == AckOwed::Now || update_due;
        (ack_due && (!self.state.is_opening() || self.fast_open.accepted))
            .then(|| Plan::bare(self.send.nxt, Flags::ACK, Kind::Ack))
    }

    /// Plans data to send: lost data before new data, except where recovery asks for new data
    /// first.
    fn plan_data(&mut self, egress: &Egress, now: Instant) -> Option<Plan> {
        if let Some(plan) = self.plan_tail().or_else(|| self.plan_again(egress, now)) {
            return Some(plan);
        }
        let plan = self.plan_new(egress, now);
        if plan.is_none() {
            self.send.loss_probe = None;
            self.give_up_frto();
            return self.plan_again(egress, now);
        }
        plan
    }

    /// Payload of a full segment sent now. SACK blocks reduce it (RFC 6691 §2).
    pub(super) fn segment_size(&self) -> u32 {
        let blocks = self.receive.sack_blocks(self.timestamps.enabled);
        let blocks = if self.sack { blocks as u32 } else { 0 };
        let options = if blocks == 0 { 0 } else { 4 + 8 * blocks };
        self.send.mss - options
    }

    /// Adds the payload. A packet that can take no more pieces ends the segment early.
    fn attach(&mut self, plan: &mut Plan, packet: &mut Packet) {
        if plan.len > 0 {
            // The data of a SYN follows the SYN's number.
            let offset = (plan.seq.max(self.send.base) - self.send.base) as usize;
            let len = self.send.queue.slice(offset, plan.len as usize, packet) as u32;
            if len < plan.len {
                if plan.kind == Kind::MtuProbe {
                    plan.kind = Kind::New;
                }
                plan.fin = false;
                plan.flags.remove(Flags::PSH);
            }
            plan.len = len;
        }
    }

    fn write_header(&mut self, plan: &Plan, egress: &Egress, packet: &mut Packet, now: Instant) {
        let mut flags = plan.flags;
        if plan.fin {
            flags |= Flags::FIN;
        }
        if plan.kind == Kind::Syn {
            self.codepoint = 0;
        } else {
            let fresh = matches!(plan.kind, Kind::New | Kind::MtuProbe) && plan.len > 0;
            let (mark, codepoint) = self.ecn.mark(fresh);
            flags |= mark;
            self.codepoint = codepoint;
        }
        let syn = plan.kind == Kind::Syn;
        let urgent = if syn { None } else { self.urgent_pointer(plan.seq) };
        if urgent.is_some() {
            flags |= Flags::URG;
        }
        let options = self.options(plan, now);
        let window = self.window_field(syn, egress);
        let acknowledgment =
            if flags.contains(Flags::ACK) { self.receive.ack_point().0 } else { 0 };
        let header = Header {
            source_port: self.local.port(),
            destination_port: self.remote.port(),
            sequence: plan.seq.0,
            acknowledgment,
            flags,
            window,
            checksum: 0,
            urgent: urgent.unwrap_or(0),
            header_len: 0,
        };
        let header_len = HEADER_LEN + options.emitted_len(flags.contains(Flags::SYN));
        header.emit(&options, packet.push_header(header_len));
        if plan.kind != Kind::Syn {
            packet.set_offload(self.offload(plan, flags.contains(Flags::CWR)));
        }
        // The peer treats a probe as old and ignores its acknowledgment: no ACK was sent.
        if plan.kind != Kind::Probe && flags.contains(Flags::ACK) {
            self.ack_sent(plan.len > 0, now);
        }
    }

    fn offload(&self, plan: &Plan, ecn: bool) -> Offload {
        let kind = if self.remote.is_ipv4() { GsoKind::Tcp4 } else { GsoKind::Tcp6 };
        let segment = self.segment_size();
        let size = u16::try_from(segment).ok().and_then(NonZeroU16::new);
        let gso = match size {
            Some(size) if plan.len > segment && plan.kind != Kind::MtuProbe => {
                Some(Gso { kind, size, ecn, tunnel: None })
            }
            _ => None,
        };
        Offload { gso, ..Offload::default() }
    }

    fn options(&mut self, plan: &Plan, now: Instant) -> Options {
        if plan.kind == Kind::Syn {
            return self.syn_options(now);
        }
        let mut options = Options::default();
        if self.timestamps.enabled {
            options.timestamps = Some((self.timestamps.value(now), self.timestamps.recent));
        }
        if self.sack {
            options.sack_count = self.receive.write_sack(&mut options.sack);
        }
        options
    }

    fn account(&mut self, plan: &Plan, now: Instant) {
        // As on Linux, a SYN-ACK counts for the listener and not for the connection.
        if !(plan.kind == Kind::Syn && self.passive) {
            let again = matches!(plan.kind, Kind::Again | Kind::Tail);
            let probe = plan.kind == Kind::MtuProbe;
            let size = if probe { plan.len } else { self.segment_size() };
            self.counters.sent(plan.len, size, again);
        }
        self.path.note_sent();
        match plan.kind {
            Kind::Ack => return,
            Kind::Probe => {
                if !core::mem::take(&mut self.send.urgent_probe_due) {
                    self.send.probe_due = false;
                }
                return;
            }
            Kind::Reset => {
                self.reset_due = false;
                return;
            }
            Kind::Syn => {
                self.syn_sent(plan.len, now);
            }
            Kind::New | Kind::MtuProbe => {
                self.note_transmission(now);
                self.account_new(plan, now);
            }
            Kind::Again | Kind::Tail => {
                self.note_transmission(now);
                if plan.kind == Kind::Again {
                    self.after_resending(plan, now);
                } else {
                    self.after_tail(plan, now);
                    self.tail_probes += 1;
                }
                self.retransmitted += 1;
            }
        }
        if plan.len > 0 {
            // The data of a SYN follows the SYN's number.
            self.stamp_sent(plan.seq.max(self.send.base), plan.len, now);
            self.pace(plan.len, now);
        }
    }

    /// Type of service or traffic class, with the ECN codepoint, for the IP header of the packet
    /// that [`Connection::output`] built last.
    pub fn codepoint(&self) -> u8 {
        self.traffic_class | self.codepoint
    }

    /// Sets the type of service (`IP_TOS`) or traffic class (`IPV6_TCLASS`) of the IP header,
    /// except the two ECN bits (RFC 3168 §5).
    pub fn set_traffic_class(&mut self, class: u8) {
        self.traffic_class = class & !super::ecn::codepoint::MASK;
    }

    /// Hop limit of the connection's packets; `None` for the default.
    pub fn ttl(&self) -> Option<u8> {
        self.ttl
    }

    /// Sets the hop limit (`IP_TTL`, `IPV6_UNICAST_HOPS`); `None` for the default.
    pub fn set_ttl(&mut self, ttl: Option<u8>) {
        self.ttl = ttl;
    }
}

impl Segment {
    /// Header of the reset that answers this segment if no connection matches it (RFC 9293
    /// §3.10.7.1). `None` if the segment is a reset itself.
    pub fn reset(&self) -> Option<Header> {
        if self.has(Flags::RST) {
            return None;
        }
        let (sequence, acknowledgment, flags) = if self.has(Flags::ACK) {
            (self.ack().0, 0, Flags::RST)
        } else {
            (0, self.end().0, Flags::RST | Flags::ACK)
        };
        Some(Header {
            source_port: self.header.destination_port,
            destination_port: self.header.source_port,
            sequence,
            acknowledgment,
            flags,
            window: 0,
            checksum: 0,
            urgent: 0,
            header_len: 0,
        })
    }
}
