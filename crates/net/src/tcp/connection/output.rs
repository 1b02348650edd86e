//! Choosing and building the next packet of a connection.

use super::{Connection, Events, Turn};
use crate::tcp::ecn::codepoint;
use crate::tcp::egress::Egress;
use crate::tcp::plan::{Kind, Plan};
use crate::tcp::receiver::AckOwed;
use crate::tcp::segment::MSS_MIN;
use crate::tcp::state::State;
use crate::time::Instant;
use crate::wire::tcp::{Flags, HEADER_LEN, Header, Options};
use core::num::NonZeroU16;
use towpath_packet::{Gso, GsoKind, Memory, Offload, Packet};

const _: () = assert!(MSS_MIN > 28, "a segment has room for SACK blocks and data");

impl Connection {
    /// True if [`Connection::output`] may have something to build; a cheap estimate.
    pub fn wants_output(&self) -> bool {
        self.reset_due
            || self.handshake.is_due()
            || self.receive.may_owe_ack()
            || self.send.wants_output()
    }

    /// Builds the next packet: TCP header and payload. The checksum field is still zero; a
    /// super-packet has its segment size set. Returns `None` if there is nothing to send, or if
    /// `memory` has no free packet.
    pub fn output(&mut self, egress: &Egress, memory: &mut Memory, now: Instant) -> Option<Packet> {
        let Some(mut plan) = self.plan(egress, now) else {
            if self.send.check_space(turn!(self, now)) {
                self.note(Events::WRITABLE);
            }
            return None;
        };
        if egress.stopped && self.send.is_refused(&plan, turn!(self, now)) {
            return None;
        }
        let mut packet = memory.packet()?;
        self.attach(&mut plan, &mut packet);
        self.write_header(&plan, egress, &mut packet, now);
        self.account(&plan, now);
        self.send.transmitted(now);
        Some(packet)
    }

    fn plan(&mut self, egress: &Egress, now: Instant) -> Option<Plan> {
        let next = self.send.nxt();
        if self.reset_due {
            if self.receive.ack_owed() == AckOwed::Now {
                return Some(Plan::bare(next, Flags::ACK, Kind::Ack));
            }
            return Some(Plan::bare(next, Flags::RST | Flags::ACK, Kind::Reset));
        }
        if self.handshake.is_due() {
            let (ecn, queued) = (self.receive.ecn().enabled(), self.send.queue().len() as u32);
            let (flags, len) = self.handshake.next_syn(self.state, ecn, queued);
            return Some(Plan { len, ..Plan::bare(self.send.iss(), flags, Kind::Syn) });
        }
        if self.may_send()
            && let Some(plan) = self.send.next(egress, turn!(self, now))
        {
            return Some(plan);
        }
        if let Some(seq) = self.send.next_probe() {
            return Some(Plan::bare(seq, Flags::ACK, Kind::Probe));
        }
        let ack_due = self.receive.ack_due(egress.pressure);
        let early = self.handshake.fast_open().is_accepted();
        (ack_due && (!self.state.is_opening() || early))
            .then(|| Plan::bare(next, Flags::ACK, Kind::Ack))
    }

    /// True if data may be sent: the handshake is over, or Fast Open need not wait for it.
    fn may_send(&self) -> bool {
        let early = self.handshake.fast_open().is_accepted();
        self.state.can_send() || (self.state == State::SynReceived && early)
    }

    /// Adds the payload. A packet that can take no more pieces ends the segment early.
    fn attach(&mut self, plan: &mut Plan, packet: &mut Packet) {
        if plan.len > 0 {
            let len = self.send.attach(plan.seq, plan.len, packet);
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
        let syn = plan.kind == Kind::Syn;
        let mut flags = plan.flags | if plan.fin { Flags::FIN } else { Flags::NONE };
        flags |= self.mark(plan);
        let urgent = if syn { None } else { self.send.urgent_pointer(plan.seq) };
        if urgent.is_some() {
            flags |= Flags::URG;
        }
        let options = self.options(plan, now);
        let window = if syn {
            self.receive.syn_window(self.state != State::SynSent, egress.pressure)
        } else {
            self.receive.window_field(egress.pressure)
        };
        let ack = flags.contains(Flags::ACK);
        let header = Header {
            source_port: self.local.port(),
            destination_port: self.remote.port(),
            sequence: plan.seq.0,
            acknowledgment: if ack { self.receive.ack_point().0 } else { 0 },
            flags,
            window,
            checksum: 0,
            urgent: urgent.unwrap_or(0),
            header_len: 0,
        };
        let header_len = HEADER_LEN + options.emitted_len(flags.contains(Flags::SYN));
        header.emit(&options, packet.push_header(header_len));
        if !syn {
            packet.set_offload(self.offload(plan, flags.contains(Flags::CWR), now));
        }
        // The peer treats a probe as old and ignores its acknowledgment: no ACK was sent.
        if plan.kind != Kind::Probe && ack {
            self.receive.ack_sent(plan.len > 0, now);
        }
    }

    /// Sets the ECN codepoint of a packet (RFC 3168 §6.1.2, §6.1.3, §6.1.5). Returns its flags.
    fn mark(&mut self, plan: &Plan) -> Flags {
        self.ip.codepoint = codepoint::NOT_ECT;
        if plan.kind == Kind::Syn || !self.receive.ecn().enabled() {
            return Flags::NONE;
        }
        let mut flags = if self.receive.ecn().is_due() { Flags::ECE } else { Flags::NONE };
        if matches!(plan.kind, Kind::New | Kind::MtuProbe) && plan.len > 0 {
            self.ip.codepoint = codepoint::ECT0;
            if self.send.loss_mut().take_cwr() {
                flags |= Flags::CWR;
            }
        }
        flags
    }

    fn offload(&self, plan: &Plan, ecn: bool, now: Instant) -> Offload {
        let kind = if self.remote.is_ipv4() { GsoKind::Tcp4 } else { GsoKind::Tcp6 };
        let segment = self.send.segment_size(turn!(self, now));
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
            let ours = (self.receive.mss_max(), self.receive.scale());
            let Self { handshake, settings, timestamps, state, .. } = self;
            return handshake.options(*state, settings, ours, timestamps, now);
        }
        let mut options = Options::default();
        if self.timestamps.enabled() {
            options.timestamps = Some(self.timestamps.option(now));
        }
        options.sack_count = self.receive.write_sack(&mut options.sack);
        options
    }

    fn account(&mut self, plan: &Plan, now: Instant) {
        // A SYN-ACK counts for the listener and not for the connection
        // (`tests/scripts/info_*.pkt`).
        if !(plan.kind == Kind::Syn && self.handshake.is_passive()) {
            let segments = self.send.count_sent(plan, turn!(self, now));
            self.counters.sent(segments);
        }
        match plan.kind {
            Kind::Ack => {}
            Kind::Probe => self.send.probe_sent(),
            Kind::Reset => self.reset_due = false,
            Kind::Syn => {
                self.syn_sent(plan.len, now);
                let events = self.send.sent_payload(plan.seq, plan.len, now);
                self.note(events);
            }
            Kind::New | Kind::MtuProbe | Kind::Again | Kind::Tail => {
                let events = self.send.sent(plan, turn!(self, now));
                self.note(events);
            }
        }
    }

    /// Type of service or traffic class, with the ECN codepoint, for the IP header of the packet
    /// that [`Connection::output`] built last.
    pub fn codepoint(&self) -> u8 {
        self.ip.traffic_class | self.ip.codepoint
    }

    /// Sets the type of service (`IP_TOS`) or traffic class (`IPV6_TCLASS`) of the IP header,
    /// except the two ECN bits (RFC 3168 §5).
    pub fn set_traffic_class(&mut self, class: u8) {
        self.ip.traffic_class = class & !codepoint::MASK;
    }

    /// Hop limit of the connection's packets; `None` for the default.
    pub fn ttl(&self) -> Option<u8> {
        self.ip.ttl
    }

    /// Sets the hop limit (`IP_TTL`, `IPV6_UNICAST_HOPS`); `None` for the default.
    pub fn set_ttl(&mut self, ttl: Option<u8>) {
        self.ip.ttl = ttl;
    }
}
