//! SYN cookies of listeners (RFC 4987 §3.6): when they are sent, and how their ACKs are handled.
//!
//! A listener with too many requests answers SYNs without keeping state. While such an answer may
//! be in flight, an ACK that belongs to no connection is checked as the ACK of a cookie.

use super::egress::Marks;
use super::handles::ListenerHandle;
use super::handshake::Ends;
use super::listeners::Listen;
use super::{Context, Stack};
use crate::counters::DropReason;
use crate::tcp::syncookie::{self, Bound};
use crate::tcp::{Connection, Egress, Opening, Pressure, Segment, Verdict};
use crate::wire::{Protocol, ipv4, ipv6};
use towpath_packet::Packet;

impl Stack {
    /// Answers a SYN with a cookie.
    pub(super) fn answer_with_cookie(
        &mut self,
        to: ListenerHandle,
        ends: Ends,
        syn: &Segment,
        cx: &mut Context<'_>,
    ) {
        let Some(listener) = self.tcp.listeners.get_mut(to) else { return };
        listener.cookie_at = Some(cx.now);
        let config = listener.config;
        let mut opening = self.opening_of(&config, ends, cx);
        let bound = Bound { local: ends.local, remote: ends.remote, irs: syn.header.sequence };
        opening.iss = self.tcp.cookies.number(&bound, syn.options.mss, cx.now);
        let mut answer = Connection::answering(opening, syn, &config.settings, cx.now);
        let ip = if ends.local.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        let egress =
            Egress { ip_header_len: ip as u32, pressure: Pressure::None, stopped: self.stopped };
        let Some(packet) = answer.output(&egress, cx.memory, cx.now) else {
            return self.counters.drop(DropReason::NoMemory);
        };
        self.counters.syn_cookies_sent += 1;
        let addresses = (ends.local.ip(), ends.remote.ip());
        let marks = Marks::of_tcp(&answer);
        self.send_marked(packet, Protocol::TCP, addresses, marks, cx);
    }

    /// Processes a segment that may acknowledge a cookie. Returns false if it does not.
    pub(super) fn receive_cookie(
        &mut self,
        to: ListenerHandle,
        ends: Ends,
        segment: &Segment,
        packet: &mut Packet,
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(listener) = self.tcp.listeners.get(to) else { return false };
        let config = listener.config;
        let gave = |at| cx.now.since(at) < syncookie::LIFETIME;
        let looks = match config.settings.syncookies {
            0 => false,
            1 => listener.cookie_at.is_some_and(gave),
            _ => true,
        };
        if !looks {
            return false;
        }
        let has_room = listener.has_room();
        let number = segment.header.acknowledgment.wrapping_sub(1);
        let irs = segment.header.sequence.wrapping_sub(1);
        let bound = Bound { local: ends.local, remote: ends.remote, irs };
        let Some(mss) = self.tcp.cookies.check(&bound, number, cx.now) else {
            self.counters.syn_cookies_failed += 1;
            return false;
        };
        self.counters.syn_cookies_received += 1;
        if !has_room {
            self.counters.drop(DropReason::TcpAcceptQueueFull);
            return !config.settings.abort_on_overflow;
        }
        if self.tcp.count() >= self.tcp.connections_max {
            self.counters.drop(DropReason::TcpConnectionLimit);
            return true;
        }
        let opening = Opening { iss: number, ..self.opening_of(&config, ends, cx) };
        let settings = self.routed(ends.remote.ip(), config.settings);
        let mut child = Connection::remembered(opening, segment, mss, &settings, cx.now);
        let verdict = child.input(segment, packet, cx.now);
        if child.is_request() {
            // This segment did not complete the handshake, and no state remains to complete it
            // later.
            self.counters.drop(DropReason::TcpUnacceptable);
            return verdict != Verdict::Reset;
        }
        let index = self.tcp.insert(child);
        self.counters.connections += 1;
        self.tcp.begin_request(to, index);
        self.tcp.settle(index, cx.now);
        true
    }

    /// Initial state of a listener's connection.
    fn opening_of(&self, config: &Listen, ends: Ends, cx: &Context<'_>) -> Opening {
        let sizes = self.segment_sizes(ends.remote.ip()).with_owner(config.max_segment);
        self.tcp.opening(ends.local, ends.remote, sizes, cx.now)
    }
}
