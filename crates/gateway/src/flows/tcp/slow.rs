//! Flows whose host or program takes bytes slowly; `fair` computes how much they may hold.

use super::{Flow, TcpFlows};
use crate::flows::fair::{MOMENT, ReadAhead, window_limit};
use crate::flows::{Gateway, Io, Token};
use rustix::net::SendFlags;
use std::io;
use towpath_io::reactor::{Interest, Reactor};
use towpath_net::stack::TcpHandle;
use towpath_net::tcp::Connection;
use towpath_net::time::Instant;
use towpath_packet::{Ledger, Site};

/// A period in which a flow may hold more than its allowance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    until: Instant,
    /// Bytes that the flow had passed on when the period began. It gets another period if it has
    /// passed on as much as it holds by the end.
    passed: u64,
}

impl Moment {
    /// Returns true if a flow may continue to hold `held` bytes. `passed` is what it has passed on
    /// in all. Either the period is not over, or the flow has passed on as much in it as it holds,
    /// so it keeps no byte for much longer than one period.
    fn goes_on(self, held: usize, passed: u64, now: Instant) -> bool {
        now < self.until || passed - self.passed >= held as u64
    }
}

impl TcpFlows {
    /// Returns when the next moment of [`Gateway::end_moments`] ends.
    pub(in crate::flows) fn deadline(&self) -> Option<Instant> {
        self.moments.front().map(|(until, _)| *until)
    }

    /// Parks a flow that could read if its guest had less in flight.
    pub(super) fn park(&mut self, handle: TcpHandle) {
        if let Some(flow) = self.get_mut(handle)
            && !flow.queued
        {
            flow.queued = true;
            self.parked.push_back(handle.index() as u32);
        }
    }

    /// Puts some of the parked flows back in line.
    pub(super) fn unpark(&mut self) {
        for _ in 0..PARKED_PER_TURN.min(self.parked.len()) {
            self.waiting.extend(self.parked.pop_front());
        }
    }
}

impl Flow {
    /// Watches the host socket for room. Room that has appeared meanwhile triggers an event too.
    pub(super) fn watch_room(&mut self, reactor: &Reactor) -> io::Result<()> {
        if self.watches_room {
            return Ok(());
        }
        self.watches_room = true;
        let token = Token::Tcp(self.handle.key()).encode();
        reactor.modify(&self.socket, token, Interest::BOTH.and_urgent(), true)
    }

    /// Sends the kept bytes; returns how many of them the host took.
    pub(super) fn send_kept(&mut self) -> io::Result<usize> {
        let count = rustix::net::send(&self.socket, &self.kept, SendFlags::NOSIGNAL)?;
        self.kept.drain(..count);
        if self.kept.is_empty() {
            self.kept = Vec::new();
        }
        Ok(count)
    }
}

impl Gateway {
    /// Limits the window of a new connection to what it may advertise before it has passed anything
    /// on.
    pub(super) fn limit_first_window(&self, handle: TcpHandle, io: &mut Io<'_>) {
        let flow = self.tcp.flows.get(handle.index()).and_then(Option::as_deref);
        let most = flow.map_or(usize::MAX, Flow::window);
        let limit = window_limit(io.equal_window(self.tcp.count).min(most));
        if limit != u32::MAX {
            io.stack.with_tcp(handle, io.now, |connection| connection.limit_window(limit));
        }
    }

    /// The host took `sent` bytes. Of the bytes that it did not take, the flow keeps as many as it
    /// may hold. The rest goes back to the program.
    pub(super) fn hold_off_or_resume(&mut self, handle: TcpHandle, sent: usize, io: &mut Io<'_>) {
        let (all_brief, flows) = (self.tcp.brief, self.tcp.count);
        let Some(flow) = self.tcp.get_mut(handle) else { return };
        flow.passed += sent as u64;
        let Some(connection) = io.stack.tcp(handle) else { return };
        let (mut left, limit) = (connection.received_len(), connection.window_limit());
        let is_plain = !flow.held_off && flow.moment.is_none() && flow.kept.is_empty();
        if left == 0 && is_plain && limit == u32::MAX {
            // A flow that moves nothing changes nothing.
            if sent == 0 || io.holds_little_for_hosts(handle, flows) {
                return flow.out.went(sent, 0, io.now);
            }
        }
        let share = io.held_for_host(handle, all_brief - flow.brief);
        let resumes = left == 0 && flow.kept.is_empty() && flow.held_off && flow.host_writable;
        let is_over = left > 0 && share.held > share.allowance && !flow.over;
        let passed = flow.passed;
        let moment = flow.moment.filter(|moment| io.now < moment.until);
        let in_time = flow.moment.is_none_or(|moment| moment.goes_on(share.held, passed, io.now));
        let is_brief = is_over && share.held <= share.briefly && in_time && !flow.held_off;
        let holds_off = is_over && !is_brief;
        let was_brief = flow.moment.is_some();
        let wanted = share.window_limit(passed, io.equal_window(flows));
        let wanted = wanted.min(window_limit(flow.window()));
        flow.held_off = (flow.held_off && !resumes) || holds_off;
        if holds_off && flow.kept.is_empty() {
            let most = (io.memory.capacity_bytes() / KEPT_DIVISOR).saturating_sub(self.tcp.kept);
            let Some(flow) = self.tcp.get_mut(handle) else { return };
            flow.kept = first_segment(connection, most, io.ledger);
            self.tcp.kept += flow.kept.len();
        }
        let Some(flow) = self.tcp.get_mut(handle) else { return };
        if resumes || holds_off || was_brief != is_brief || wanted != limit {
            let after = io.stack.with_tcp(handle, io.now, |connection| {
                connection.limit_window(wanted);
                connection.ack_only_consumed(is_brief);
                if holds_off {
                    connection.hold_off();
                } else if resumes {
                    connection.resume();
                }
                connection.received_len()
            });
            left = after.unwrap_or(left);
        }
        flow.out.went(sent + left, left, io.now);
        let begins = is_brief && moment.is_none();
        let begun = Moment { until: io.now + MOMENT, passed };
        flow.moment = if begins { Some(begun) } else { moment.filter(|_| is_brief) };
        let brief = if is_brief { share.held } else { 0 };
        let before = std::mem::replace(&mut flow.brief, brief);
        self.tcp.brief = all_brief - before + brief;
        if begins {
            self.tcp.moments.push_back((begun.until, handle));
        }
    }

    /// Ends moments that are over: bytes that host sockets have not taken by now go back.
    pub(in crate::flows) fn end_moments(&mut self, io: &mut Io<'_>) {
        while let Some(&(until, handle)) = self.tcp.moments.front()
            && until <= io.now
        {
            self.tcp.moments.pop_front();
            self.hold_off_or_resume(handle, 0, io);
        }
    }
}

/// Copies the first segment that is about to go back, if it has no more than `most` bytes. Without
/// the copy its sender would retransmit in vain, with a doubled timeout each time. Once
/// acknowledged, the sender continues at once.
fn first_segment(connection: &Connection, most: usize, ledger: &Ledger) -> Vec<u8> {
    let back = connection.received_unacknowledged();
    let mut count = back.min(connection.arriving_segment());
    let mut skipped = connection.received_len() - back;
    if let Some(mark) = connection.urgent_mark() {
        // A marked byte is sent again, with its mark.
        count = count.min(mark.saturating_sub(skipped));
    }
    if count > most {
        return Vec::new();
    }
    let mut kept = vec![0; count];
    let mut done = 0;
    for piece in connection.received() {
        let from = skipped.min(piece.len());
        skipped -= from;
        let part = piece.slice(from, piece.len() - from);
        done += ledger.copy(Site::Squeeze, &part, &mut kept[done..]);
    }
    kept.truncate(done);
    kept
}

/// Divisor of the memory: the part that copies of returned bytes may take, in addition to pool
/// memory.
const KEPT_DIVISOR: usize = 8;

/// Returns the bytes to read from the host socket now. With 0, `Events::WRITABLE` will follow; with
/// `None`, no event will.
pub(super) fn room_for_program(
    connection: &mut Connection,
    ahead: ReadAhead,
    now: Instant,
) -> Option<usize> {
    let room = connection.send_room();
    if room == 0 {
        return Some(0);
    }
    // Room is for one super-packet at most, perhaps for a few bytes. Each read is a call, so
    // another super-packet is read with it.
    let room = room + connection.size_goal() as usize;
    let ReadAhead::Within(most) = ahead else { return Some(room) };
    let (on_way, window) = (connection.unacknowledged(), connection.window_left());
    let left = most.saturating_sub(on_way).min(window);
    if left == 0 {
        if on_way == 0 && window > 0 {
            return None;
        }
        connection.await_peer(now);
    }
    Some(room.min(left))
}

/// Parked flows that are tried again in a turn.
const PARKED_PER_TURN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_renewed_for_flows_that_move() {
        let at = Instant::from_micros;
        let moment = Moment { until: at(100), passed: 5000 };
        for (held, passed, now, expected) in [
            (usize::MAX, 5000, 99, true),
            (1, 5000, 100, false),
            (3000, 7999, 100, false),
            (3000, 8000, 100, true),
        ] {
            let goes_on = moment.goes_on(held, passed, at(now));
            assert_eq!(goes_on, expected, "{held} held, {passed} passed on, at {now}");
        }
    }
}
