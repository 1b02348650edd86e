//! Segments without a connection: SYNs for listeners, and resets.

use super::handles::ListenerHandle;
use super::listeners::Listener;
use super::{Context, Stack};
use crate::counters::DropReason;
use crate::tcp::fastopen::{CookieCheck, SERVER};
use crate::tcp::{Connection, Opening, Segment, Seq};
use crate::time::Instant;
use crate::wire::tcp::{FastOpenCookie, Flags};
use core::net::SocketAddr;
use towpath_packet::Packet;

/// Endpoints of a connection that does not exist yet.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// Our last sequence number in an earlier connection between the same endpoints.
    pub(super) past: Option<Seq>,
}

/// Chooses an initial sequence number beyond the previous connection's numbers between the same
/// endpoints (RFC 6191 §2), so that its old segments are not accepted.
pub(super) fn continued(opening: Opening, past: Option<Seq>) -> Opening {
    match past {
        Some(past) if Seq(opening.iss).at_or_before(past + REOPEN_GAP) => {
            Opening { iss: (past + REOPEN_GAP).0, ..opening }
        }
        _ => opening,
    }
}

/// An unscaled window, and the sequence numbers of SYN and FIN.
const REOPEN_GAP: u32 = 65_535 + 2;

impl Stack {
    /// Processes a segment that belongs to no connection.
    pub(super) fn receive_unknown(
        &mut self,
        ends: Ends,
        segment: &Segment,
        mut packet: Packet,
        cx: &mut Context<'_>,
    ) {
        let (local, remote) = (ends.local, ends.remote);
        let flags = segment.header.flags;
        let opens =
            flags.contains(Flags::SYN) && !flags.intersects(Flags::ACK | Flags::RST | Flags::FIN);
        if opens && self.tcp.transparent {
            return self.receive_syn(ends, segment, packet.ingress(), cx);
        }
        match self.tcp.listeners.find(local) {
            Some(to) if opens => self.receive_request(to, ends, segment, packet, cx),
            // RFC 9293 §3.10.7.2: a listener drops segments that have neither SYN nor ACK.
            Some(_) if !flags.contains(Flags::ACK) => {
                self.counters.drop(DropReason::TcpUnacceptable);
            }
            listener => {
                let completes = !flags.intersects(Flags::SYN | Flags::RST);
                if let Some(to) = listener
                    && completes
                    && self.receive_cookie(to, ends, segment, &mut packet, cx)
                {
                    return;
                }
                self.counters.drop(DropReason::TcpNoConnection);
                self.send_reset(local, remote, segment, packet.ingress(), cx);
            }
        }
    }

    /// Processes a SYN about which the owner decides.
    fn receive_syn(
        &mut self,
        ends: Ends,
        syn: &Segment,
        ingress: Option<u16>,
        cx: &mut Context<'_>,
    ) {
        let Some(opening) = self.opening_for(ends, ingress, cx) else { return };
        let settings = self.routed(ends.remote.ip(), self.tcp.settings);
        let connection = Connection::incoming(opening, syn, &settings, cx.now);
        let index = self.tcp.insert(connection);
        self.tcp.accounts.assign(&mut self.tcp.slots[index as usize].share, ingress);
        self.tcp.begin_half_open(index);
        self.counters.connections += 1;
        self.tcp.settle(index, cx.now);
    }

    /// Processes a SYN for a listener: makes a request, if the limits allow it. A full queue of
    /// requests counts before a full queue of children (`stack/tests/listen.rs`).
    fn receive_request(
        &mut self,
        to: ListenerHandle,
        ends: Ends,
        syn: &Segment,
        mut packet: Packet,
        cx: &mut Context<'_>,
    ) {
        let Some(listener) = self.tcp.listeners.get_mut(to) else { return };
        let config = listener.config;
        let crowded = !listener.has_request_room();
        if crowded && config.settings.syncookies == 0 {
            return self.counters.drop(DropReason::TcpRequestLimit);
        }
        if !listener.has_room() {
            return self.counters.drop(DropReason::TcpAcceptQueueFull);
        }
        if crowded || config.settings.syncookies > 1 {
            return self.answer_with_cookie(to, ends, syn, cx);
        }
        let fast = fast_open(listener, ends, syn, cx.now);
        let Some(mut opening) = self.opening_for(ends, None, cx) else { return };
        opening.sizes = opening.sizes.with_owner(config.max_segment);
        let settings = &self.routed(ends.remote.ip(), config.settings);
        let mut connection = if fast.open {
            Connection::fast_opened(opening, syn, &mut packet, settings, cx.now)
        } else {
            Connection::requested(opening, syn, settings, cx.now)
        };
        connection.defer_accept(config.defer_accept);
        if let Some(cookie) = fast.give {
            connection.give_cookie(cookie);
        }
        let index = self.tcp.insert(connection);
        self.counters.connections += 1;
        if fast.open {
            self.tcp.begin_fastopen(to, index);
        } else {
            self.tcp.begin_request(to, index);
        }
        self.tcp.settle(index, cx.now);
    }

    /// Initial state of a connection whose SYN arrived at a port; `None` at a limit.
    fn opening_for(
        &mut self,
        ends: Ends,
        ingress: Option<u16>,
        cx: &mut Context<'_>,
    ) -> Option<Opening> {
        for _ in 0..self.tcp.limit_half_open(cx.now) {
            self.counters.drop(DropReason::TcpHalfOpenEvicted);
        }
        let free = self.tcp.connections_max.saturating_sub(self.tcp.count());
        if self.tcp.accounts.is_crowded(ingress, free) {
            self.counters.drop(DropReason::TcpConnectionLimit);
            return None;
        }
        let sizes = self.segment_sizes(ends.remote.ip());
        Some(continued(self.tcp.opening(ends.local, ends.remote, sizes, cx.now), ends.past))
    }
}

/// Effect of Fast Open on a SYN for a listener.
#[derive(Default)]
struct FastOpenSyn {
    /// The SYN opens the connection.
    open: bool,
    /// Cookie that the SYN-ACK carries.
    give: Option<FastOpenCookie>,
}

/// RFC 7413 §4.2.2: with a full queue the SYN is handled without Fast Open, and
/// the SYN-ACK carries no cookie.
fn fast_open(listener: &mut Listener, ends: Ends, syn: &Segment, now: Instant) -> FastOpenSyn {
    let given = syn.options.fast_open;
    let asks = syn.len > 0 || given.is_some();
    let serves = listener.config.settings.fastopen & SERVER != 0;
    if !(asks && serves && listener.has_fastopen_room(now)) {
        return FastOpenSyn::default();
    }
    if listener.config.takes_no_cookie() {
        return FastOpenSyn { open: true, give: None };
    }
    let Some(given) = given else { return FastOpenSyn::default() };
    let (client, server) = (ends.remote.ip(), ends.local.ip());
    let keys = listener.config.keys();
    let fresh = Some(keys.cookie(client, server).in_option(given.experimental));
    if given.len == 0 {
        return FastOpenSyn { open: false, give: fresh };
    }
    match keys.check(&given, client, server) {
        CookieCheck::Good => FastOpenSyn { open: true, give: None },
        CookieCheck::Old => FastOpenSyn { open: true, give: fresh },
        CookieCheck::Bad => FastOpenSyn { open: false, give: fresh },
    }
}
