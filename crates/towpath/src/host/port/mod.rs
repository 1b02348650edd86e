//! What a host is attached to, and how packets get in and out.

pub(in crate::host) mod link;

use crate::host::port::link::LinkEnd;
use rustix::fd::{AsFd, BorrowedFd};
use towpath_io::tap::Tap;
use towpath_io::vhost_user::VhostUser;
use towpath_net::socket::Sockets;
use towpath_net::stack::Context;
use towpath_net::time::{Duration, Instant, earliest};
use towpath_packet::{Burst, Caps, Device};

/// Packets read at a time: few enough that calls get the lock soon.
const READ_BURST: usize = 32;
/// Bursts written at a time, for the same reason.
const SEND_BURSTS: usize = 4;
/// How long a device waits for memory, or a packet for room in the device.
pub(super) const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// The device.
pub(super) enum Line {
    Tap(Box<Tap>),
    VhostUser(Box<VhostUser>),
    Link(LinkEnd),
}

/// A device with what was read from it and what is to be written.
pub(super) struct Port {
    line: Line,
    received: Burst,
    to_send: Burst,
    /// The device took a part only: try again then.
    retry_at: Option<Instant>,
    /// The device has something to do by itself then.
    turn_at: Option<Instant>,
    /// Reading waits until then for memory.
    paused_until: Option<Instant>,
    /// The interface was deleted: nothing moves any more, as with the cable out.
    gone: bool,
}

impl Port {
    pub(super) fn new(line: Line) -> Self {
        Self {
            line,
            received: Burst::limited(READ_BURST),
            to_send: Burst::new(),
            retry_at: None,
            turn_at: None,
            paused_until: None,
            gone: false,
        }
    }

    /// What the device can do.
    pub(super) fn caps(&self) -> Caps {
        match &self.line {
            Line::Tap(tap) => tap.caps(),
            Line::VhostUser(device) => device.caps(),
            Line::Link(end) => end.caps(),
        }
    }

    /// A file that tells by being readable that packets came.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.line {
            Line::Tap(tap) => Some(tap.as_fd()),
            Line::VhostUser(device) => Some(device.as_fd()),
            Line::Link(_) => None,
        }
    }

    /// True if sending only hands packets on within the process.
    pub(super) fn is_link(&self) -> bool {
        matches!(self.line, Line::Link(_))
    }

    /// True while [`Port::fd`] is to be watched.
    pub(super) fn is_watched(&self) -> bool {
        !self.gone && self.paused_until.is_none()
    }

    /// True if there is something to do that no file tells of.
    pub(super) fn has_news(&self) -> bool {
        match &self.line {
            Line::Tap(_) | Line::VhostUser(_) => false,
            Line::Link(end) => {
                self.paused_until.is_none() && end.has_arrived() || end.has_room_again()
            }
        }
    }

    /// Reads a burst and gives it to the stack. True if there may be more.
    pub(super) fn receive(&mut self, sockets: &mut Sockets, cx: &mut Context<'_>) -> bool {
        self.paused_until.take_if(|until| *until <= cx.now);
        if !self.is_watched() {
            return false;
        }
        let fed = match &mut self.line {
            Line::Tap(tap) => {
                let starved = tap.counters().receive_paused;
                self.gone = tap.receive(cx.memory, &mut self.received).is_err();
                tap.counters().receive_paused == starved
            }
            Line::VhostUser(device) => {
                let starved = device.traffic().sent.paused;
                let turn = device.turn(Duration::from_micros(cx.now.micros()));
                sockets.stack_mut().set_caps(device.caps());
                self.gone = turn.is_err() || device.receive(cx.memory, &mut self.received).is_err();
                let due = [turn.unwrap_or_default(), device.next_deadline()];
                self.turn_at = due.into_iter().flatten().min().map(|at| Instant::START + at);
                device.traffic().sent.paused == starved
            }
            Line::Link(end) => end.receive(cx.memory, cx.ledger, &mut self.received),
        };
        if !fed {
            self.paused_until = Some(cx.now + MEMORY_PAUSE);
        }
        let full = self.received.is_full();
        if !self.received.is_empty() {
            sockets.input(&mut self.received, cx);
        }
        full
    }

    /// Sends what the stack has, a few bursts at most. True if the device would take more.
    pub(super) fn send(&mut self, sockets: &mut Sockets, cx: &mut Context<'_>) -> bool {
        self.retry_at = None;
        for _ in 0..SEND_BURSTS {
            if self.to_send.is_empty() {
                sockets.output(&mut self.to_send, cx);
            }
            if self.to_send.is_empty() {
                // What is left then waits for memory.
                self.retry_at = sockets.stack().has_output().then(|| cx.now + MEMORY_PAUSE);
                return false;
            }
            if self.gone {
                sockets.stack_mut().count_gone(self.to_send.len());
                self.to_send.clear();
            }
            match &mut self.line {
                Line::Tap(tap) => {
                    self.gone |= tap.transmit(&mut self.to_send).is_err();
                    sockets.stack_mut().set_caps(tap.caps());
                    if !self.to_send.is_empty() {
                        self.retry_at = Some(cx.now + MEMORY_PAUSE);
                        return false;
                    }
                }
                Line::VhostUser(device) => {
                    self.gone |= device.transmit(&mut self.to_send).is_err();
                    if !self.to_send.is_empty() {
                        self.retry_at = Some(cx.now + MEMORY_PAUSE);
                        return false;
                    }
                }
                Line::Link(end) => {
                    end.transmit(&mut self.to_send);
                    sockets.stack_mut().count_gone(end.take_lost());
                    if end.is_full() {
                        return false;
                    }
                }
            }
            if !sockets.stack().has_output() {
                return false;
            }
        }
        true
    }

    /// Gives back what was kept ready for reading.
    pub(super) fn rest(&mut self) {
        if let Line::Tap(tap) = &mut self.line {
            tap.release_frames();
        }
    }

    /// When there is something to do again.
    pub(super) fn due(&self) -> Option<Instant> {
        earliest([self.retry_at, self.turn_at, self.paused_until])
    }
}
