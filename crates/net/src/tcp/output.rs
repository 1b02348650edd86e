//! What a connection sends next, and building it.

use super::connection::{Connection, MSS_MIN, Segment, TIMESTAMPS_LEN};
use super::seq::Seq;
use super::sides::AckOwed;
use super::state::State;
use crate::gso::TCP_SEGMENTS_MAX;
use crate::time::Instant;
use crate::wire::tcp::{Flags, HEADER_LEN, Header, Options};
use core::num::NonZeroU16;
use towpath_packet::{Gso, GsoKind, Memory, Offload, Packet};

/// Largest IP packet: its length field has 16 bits.
const IP_PACKET_MAX: u32 = 65_535;

const _: () = assert!(MSS_MIN > 28, "a segment has room for SACK blocks and data");

/// Largest value of the window field.
const WINDOW_FIELD_MAX: u32 = 65_535;

/// How short the stack's memory is: bounds what windows offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Pressure {
    /// More than half is free: buffers may grow.
    #[default]
    None,
    /// Less than half is free: windows open by at most 64 KiB.
    Some,
    /// Less than an eighth is free: windows open by two segments, and data beyond
    /// [`DATA_UNDER_PRESSURE`] unread bytes is dropped.
    High,
    /// Less than a thirty-second is free: all data is dropped; ACKs still pass.
    Critical,
}

/// Window offered when memory is short.
pub(super) const WINDOW_UNDER_PRESSURE: u32 = 64 << 10;

/// Unread data of one connection that may grow when memory is nearly gone.
pub const DATA_UNDER_PRESSURE: usize = 64 << 10;

/// What the way out allows.
#[derive(Clone, Copy, Debug)]
pub struct Egress {
    /// Bytes of IP header in front of the TCP header.
    pub ip_header_len: u32,
    /// State of the stack's memory.
    pub pressure: Pressure,
}

/// One segment or super-packet to be sent.
struct Plan {
    seq: Seq,
    /// Bytes of payload.
    len: u32,
    /// A FIN follows them.
    fin: bool,
    flags: Flags,
    kind: Kind,
}

impl Plan {
    fn bare(seq: Seq, flags: Flags, kind: Kind) -> Self {
        Self { seq, len: 0, fin: false, flags, kind }
    }

    fn end(&self) -> Seq {
        self.seq + self.len + u32::from(self.fin)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Syn,
    /// Data or FIN for the first time.
    New,
    /// Data or FIN again.
    Again,
    Ack,
    Probe,
    Reset,
}

impl Connection {
    /// True if [`Connection::output`] has something to build, as far as can be told cheaply.
    pub fn wants_output(&self) -> bool {
        self.reset_due
            || self.send.syn_due
            || self.receive.ack_owed == AckOwed::Now
            || self.receive.update_due
            || self.send.probe_due
            || self.send.board.has_lost()
            || self.send.unsent() > 0
            || (self.send.fin_queued && !self.send.fin_sent)
    }

    /// Builds the next packet: TCP header and payload, its checksum field still zero, with the
    /// segment size set if it is a super-packet. `None` when there is nothing to send, or
    /// `memory` has no packet.
    pub fn output(&mut self, egress: &Egress, memory: &mut Memory, now: Instant) -> Option<Packet> {
        let mut plan = self.plan(egress, now)?;
        let mut packet = memory.packet()?;
        self.attach(&mut plan, &mut packet);
        self.write_header(&plan, egress, &mut packet, now);
        self.account(&plan, now);
        Some(packet)
    }

    fn plan(&mut self, egress: &Egress, now: Instant) -> Option<Plan> {
        if self.reset_due {
            return Some(Plan::bare(self.send.nxt, Flags::RST | Flags::ACK, Kind::Reset));
        }
        if self.send.syn_due {
            let answer = self.state == State::SynReceived;
            let flags = if answer { Flags::SYN | Flags::ACK } else { Flags::SYN };
            return Some(Plan::bare(self.send.iss, flags, Kind::Syn));
        }
        if self.state.can_send()
            && let Some(plan) = self.plan_again(egress).or_else(|| self.plan_new(egress, now))
        {
            return Some(plan);
        }
        if self.send.probe_due {
            // An old number makes the peer answer with its window.
            let seq = Seq(self.send.una.0.wrapping_sub(1));
            return Some(Plan::bare(seq, Flags::ACK, Kind::Probe));
        }
        let update_due = core::mem::take(&mut self.receive.update_due)
            && self.window_to_offer(egress.pressure) > self.receive.window();
        let ack_due = self.receive.ack_owed == AckOwed::Now || update_due;
        (ack_due && !self.state.is_opening())
            .then(|| Plan::bare(self.send.nxt, Flags::ACK, Kind::Ack))
    }

    /// Payload of a full segment sent now: SACK blocks take from it (RFC 6691 §2).
    fn segment_size(&self) -> u32 {
        let blocks = if self.sack { self.receive.waiting.block_count() as u32 } else { 0 };
        let options = if blocks == 0 { 0 } else { 4 + 8 * blocks };
        self.send.mss - options
    }

    /// Payload of the largest super-packet, in whole segments.
    fn super_len(&self, egress: &Egress) -> u32 {
        let headers = egress.ip_header_len + HEADER_LEN as u32 + TIMESTAMPS_LEN + 28;
        let (room, size) = (IP_PACKET_MAX - headers, self.segment_size());
        let room = room.min(TCP_SEGMENTS_MAX as u32 * size);
        (room - room % size).max(size)
    }

    fn plan_again(&mut self, egress: &Egress) -> Option<Plan> {
        if !self.send.board.has_lost() {
            return None;
        }
        let window = self.congestion.window();
        let room = window.saturating_sub(self.pipe());
        // The first hole goes out when recovery begins, whatever the window says.
        let front_lost = self
            .send
            .board
            .first()
            .is_some_and(|first| first.mark == super::scoreboard::Mark::Lost);
        let size = self.segment_size();
        let room = match room.checked_sub(size) {
            Some(_) => room - room % size,
            None if front_lost => size,
            None => return None,
        };
        let (seq, count) = self.send.board.next_lost(room.min(self.super_len(egress)))?;
        let len = count.min(self.send.queue_end() - seq);
        let flags = self.push_flag(seq + len);
        Some(Plan { seq, len, fin: count > len, flags, kind: Kind::Again })
    }

    fn plan_new(&mut self, egress: &Egress, now: Instant) -> Option<Plan> {
        let unsent = self.send.unsent();
        let fin_due = self.send.fin_queued && !self.send.fin_sent;
        if unsent == 0 {
            let fin = Plan { fin: true, ..Plan::bare(self.send.nxt, Flags::ACK, Kind::New) };
            return fin_due.then_some(fin);
        }
        if self.send.board.is_full() {
            return None;
        }
        let edge = self.send.una + self.send.wnd;
        let window_room = if edge.after(self.send.nxt) { edge - self.send.nxt } else { 0 };
        let room = self.congestion.window().saturating_sub(self.pipe());
        let len = self.sendable(unsent, window_room, room.min(self.super_len(egress)), fin_due);
        if len == 0 {
            if window_room < unsent && self.send.board.is_empty() && self.timers.persist.is_none() {
                self.timers.persist = Some(now + self.rtt.rto());
            }
            return None;
        }
        let flags = self.push_flag(self.send.nxt + len);
        let fin = len == unsent && fin_due;
        Some(Plan { seq: self.send.nxt, len, fin, flags, kind: Kind::New })
    }

    /// RFC 9293 §3.8.4: PSH with the last byte that there is.
    fn push_flag(&self, end: Seq) -> Flags {
        if end == self.send.queue_end() { Flags::ACK | Flags::PSH } else { Flags::ACK }
    }

    /// Bytes of new data to send now: whole segments, or the rest if Nagle's algorithm
    /// (RFC 9293 §3.7.4) and silly-window avoidance (§3.8.6.2.1) let it go.
    fn sendable(&mut self, unsent: u32, window_room: u32, room: u32, fin_due: bool) -> u32 {
        let mss = self.segment_size();
        let idle = self.send.board.is_empty();
        let allowed = unsent.min(window_room).min(room);
        if allowed == unsent {
            let tail = unsent % mss;
            let may_end_short = tail == 0 || self.send.nodelay || idle || fin_due;
            return if may_end_short { unsent } else { unsent - tail };
        }
        if allowed >= mss {
            return allowed - allowed % mss;
        }
        // Less than a segment fits the peer's window: wait for more unless nothing else can make
        // it open, and not for ever.
        let narrow = window_room <= room && allowed > 0 && idle;
        if narrow && (self.send.partial_allowed || allowed >= self.send.wnd_max / 2) {
            self.send.partial_allowed = false;
            return allowed;
        }
        0
    }

    /// Sequence numbers on the way. Without SACK each duplicate ACK in recovery tells that one
    /// more segment has left the network (RFC 6582 §3.2).
    fn pipe(&self) -> u32 {
        let pipe = self.send.board.pipe();
        if self.sack || self.send.recovery.is_none() {
            return pipe;
        }
        pipe.saturating_sub(self.send.duplicate_acks * self.send.mss)
    }

    /// Adds the payload; a packet that can take no more pieces ends the segment early.
    fn attach(&mut self, plan: &mut Plan, packet: &mut Packet) {
        if plan.len > 0 {
            let offset = (plan.seq - self.send.base) as usize;
            let len = self.send.queue.cut(offset, plan.len as usize, packet) as u32;
            if len < plan.len {
                plan.fin = false;
                plan.flags.remove(Flags::PSH);
            }
            plan.len = len;
        }
    }

    fn write_header(&mut self, plan: &Plan, egress: &Egress, packet: &mut Packet, now: Instant) {
        let mut flags = plan.flags;
        if plan.fin {
            flags |= Flags::FIN | Flags::PSH;
        }
        let options = self.options(plan, now);
        let window = self.window_field(plan.kind == Kind::Syn, egress);
        let acknowledgment = if flags.contains(Flags::ACK) { self.receive.nxt.0 } else { 0 };
        let header = Header {
            source_port: self.local.port(),
            destination_port: self.remote.port(),
            sequence: plan.seq.0,
            acknowledgment,
            flags,
            window,
            checksum: 0,
            urgent: 0,
            header_len: 0,
        };
        let header_len = HEADER_LEN + options.emitted_len(flags.contains(Flags::SYN));
        header.emit(&options, packet.push_header(header_len));
        packet.set_offload(self.offload(plan.len));
        if plan.kind != Kind::Probe {
            self.after_header(flags);
        }
    }

    fn offload(&self, len: u32) -> Offload {
        let kind = if self.remote.is_ipv4() { GsoKind::Tcp4 } else { GsoKind::Tcp6 };
        let segment = self.segment_size();
        let size = u16::try_from(segment).ok().and_then(NonZeroU16::new);
        let gso = match size {
            Some(size) if len > segment => Some(Gso { kind, size, ecn: false }),
            _ => None,
        };
        Offload { gso, ..Offload::default() }
    }

    fn options(&self, plan: &Plan, now: Instant) -> Options {
        let mut options = Options::default();
        if plan.kind == Kind::Syn {
            // A SYN offers all; the answer to a SYN only what was offered.
            let offer = self.state == State::SynSent;
            let settings = &self.settings;
            options.mss = u16::try_from(self.mss_local).ok();
            options.sack_permitted = if offer { settings.sack } else { self.sack };
            let scales = if offer { settings.window_scaling } else { self.scaled };
            options.window_scale = scales.then_some(self.receive.window_scale);
            if if offer { settings.timestamps } else { self.timestamps.enabled } {
                options.timestamps = Some((self.timestamps.value(now), self.timestamps.recent));
            }
            return options;
        }
        if self.timestamps.enabled {
            options.timestamps = Some((self.timestamps.value(now), self.timestamps.recent));
        }
        if self.sack && !self.receive.waiting.is_empty() {
            options.sack_count = self.receive.waiting.blocks(&mut options.sack);
        }
        options
    }

    /// What every segment with an ACK settles, except probes: their number is old, so their
    /// receiver answers and does not look at the rest.
    fn after_header(&mut self, flags: Flags) {
        if flags.contains(Flags::ACK) {
            self.receive.ack_owed = AckOwed::No;
            self.receive.acked = self.receive.nxt;
            self.receive.quick_acks = self.receive.quick_acks.saturating_sub(1);
            self.timers.delayed_ack = None;
        }
    }

    fn account(&mut self, plan: &Plan, now: Instant) {
        match plan.kind {
            Kind::Ack => return,
            Kind::Probe => {
                self.send.probe_due = false;
                return;
            }
            Kind::Reset => {
                self.reset_due = false;
                return;
            }
            Kind::Syn => {
                self.send.syn_due = false;
                self.send.syn_sent_at = now;
                self.send.nxt = self.send.nxt.max(self.send.iss + 1);
                self.timers.retransmit = None;
            }
            Kind::New => {
                self.send.fin_sent |= plan.fin;
                self.send.board.sent(plan.seq, plan.end(), now);
                self.send.nxt = plan.end();
                self.timers.persist = None;
            }
            Kind::Again => {
                self.send.board.sent_again(plan.seq, plan.end(), now);
                self.retransmitted += 1;
            }
        }
        if self.timers.retransmit.is_none() {
            self.timers.retransmit = Some(now + self.rtt.rto());
        }
    }

    /// The window field; remembers what was promised.
    fn window_field(&mut self, syn: bool, egress: &Egress) -> u16 {
        let window = self.window_to_offer(egress.pressure);
        // RFC 7323 §2.2: the window of a SYN is not scaled.
        let scale = if syn { 0 } else { self.receive.window_scale };
        let unit = 1u32 << scale;
        // Rounded up, so that the right edge never moves back.
        let field = window.div_ceil(unit).min(WINDOW_FIELD_MAX);
        let edge = self.receive.nxt + (field << scale);
        if !self.state.is_opening() || self.state == State::SynReceived {
            self.receive.advertised = self.receive.advertised.max(edge);
            self.receive.offered = self.receive.advertised - self.receive.nxt;
        }
        field as u16
    }

    fn window_to_offer(&self, pressure: Pressure) -> u32 {
        let receive = &self.receive;
        let offered = receive.window();
        let mut room = receive.buffer.saturating_sub(receive.queue.len() as u32);
        // What is promised must fit the memory that it will come in; two segments always may come.
        let free = receive.memory_max().saturating_sub(receive.queue.held());
        room = room.min(receive.density.fit(free as u64).max(2 * receive.mss));
        room = room.min(WINDOW_FIELD_MAX << receive.window_scale);
        match pressure {
            Pressure::None => {}
            Pressure::Some => room = room.min(WINDOW_UNDER_PRESSURE),
            Pressure::High | Pressure::Critical => room = room.min(2 * receive.mss),
        }
        // RFC 9293 §3.8.6.2.2: no small steps, and never back.
        let step = receive.mss.min(receive.buffer / 2);
        if room < offered + step { offered } else { room }
    }

    /// The reader took data: tell the peer if that changes its window much.
    pub(super) fn offer_window(&mut self) {
        if !self.state.can_receive() {
            return;
        }
        let offered = self.receive.window();
        let room = self.window_to_offer(Pressure::None);
        if room >= offered.saturating_mul(2) && room > offered {
            self.receive.update_due = true;
        }
    }
}

impl Segment {
    /// The reset that answers this segment when there is no connection for it (RFC 9293
    /// §3.10.7.1): header only. `None` for a reset.
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
