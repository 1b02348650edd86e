//! Reports for C: events, and results of operations.

use super::numbers::{CHANGED, DONE, EXITED, EXPIRED, NOTIFIED, OVER, PROGRESS, READY, SIGNALLED};
use crate::errno::{Errno, Outcome};
use std::sync::{Arc, Mutex, PoisonError};
use towpath::events::{Event, EventKind, Exit, Readiness, Token};

/// `struct towpath_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TowpathEvent {
    /// The registration or operation.
    pub id: u64,
    /// The program's data.
    pub data: u64,
    /// A count, a signal, an exit status, a number of bytes, or a descriptor.
    pub result: i64,
    /// The kind of the event.
    pub what: i32,
    /// Zero, or the error number of an operation that failed.
    pub error: i32,
    /// Details, by the kind of the event.
    pub detail: u32,
    /// `TOWPATH_OVER` and others.
    pub flags: u32,
}

/// The result of a transfer, for the queue that reports its end.
#[derive(Clone, Default)]
pub(super) struct Report(Arc<Mutex<Ended>>);

#[derive(Clone, Copy, Default)]
struct Ended {
    arrived: u64,
    error: i32,
    left_over: u32,
}

impl Report {
    /// Completes the last event of the operation with its result.
    pub(super) fn complete(&self, event: TowpathEvent) -> TowpathEvent {
        let Ended { arrived, error, left_over } = *self.lock();
        TowpathEvent { error, detail: left_over, ..over(event, arrived as i64) }
    }

    /// Sets the result.
    pub(super) fn end(&self, arrived: u64, failed: Option<Errno>, left_over: u32) {
        let error = failed.map_or(0, |Errno(number)| number);
        *self.lock() = Ended { arrived, error, left_over };
    }

    fn lock(&self) -> impl std::ops::DerefMut<Target = Ended> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn id(token: Token) -> u64 {
    token.bits() + 1
}

pub(super) fn token(id: u64) -> Outcome<Token> {
    id.checked_sub(1).map(Token::from_bits).ok_or(Errno(libc::ESTALE))
}

/// Converts an event for C.
pub(super) fn convert(Event { token, data, kind, is_over, .. }: Event) -> TowpathEvent {
    let flags = if is_over { OVER } else { 0 };
    let event = TowpathEvent { id: id(token), data, flags, ..TowpathEvent::default() };
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    match kind {
        EventKind::Ready(ready) => TowpathEvent { what: READY, detail: bits(ready), ..event },
        EventKind::Expired { count: times } => {
            TowpathEvent { what: EXPIRED, result: count(times), ..event }
        }
        EventKind::Notified { count: times } => {
            TowpathEvent { what: NOTIFIED, result: count(times), ..event }
        }
        EventKind::Signal { signal, sender } => {
            TowpathEvent { what: SIGNALLED, result: signal.into(), detail: sender, ..event }
        }
        EventKind::Exited(exit) => {
            let (detail, status) = match exit {
                Exit::Code(code) => (libc::CLD_EXITED, code),
                Exit::Signal(signal) => (libc::CLD_KILLED, signal),
                Exit::Unknown => (0, 0),
            };
            TowpathEvent { what: EXITED, result: status.into(), detail: detail as u32, ..event }
        }
        EventKind::Changed(changes) => {
            let bits = [
                changes.modified,
                changes.attributes,
                changes.written,
                changes.created,
                changes.deleted,
                changes.moved,
                changes.removed,
                changes.missed,
            ];
            let detail = bits.iter().rev().fold(0, |all, &bit| all << 1 | u32::from(bit));
            TowpathEvent { what: CHANGED, detail, ..event }
        }
        EventKind::Step { result } if is_over => over(event, result),
        EventKind::Step { result } => TowpathEvent { what: PROGRESS, result, ..event },
        EventKind::Connection => TowpathEvent { what: PROGRESS, ..event },
        EventKind::Accepted { bytes } => {
            TowpathEvent { what: PROGRESS, result: bytes as i64, ..event }
        }
        // C cannot add such sources.
        _ => event,
    }
}

/// The report of an operation's end: a number of bytes, or a negative error number.
pub(super) fn over(event: TowpathEvent, result: i64) -> TowpathEvent {
    let error = i32::try_from(-result).ok().filter(|error| *error > 0).unwrap_or(0);
    TowpathEvent { what: DONE, result: result.max(-1), error, flags: OVER, ..event }
}

fn bits(ready: Readiness) -> u32 {
    let bits = [
        (ready.readable, libc::EPOLLIN),
        (ready.writable, libc::EPOLLOUT),
        (ready.peer_closed, libc::EPOLLRDHUP),
        (ready.hangup, libc::EPOLLHUP),
        (ready.error, libc::EPOLLERR),
    ];
    bits.iter().filter(|(holds, _)| *holds).fold(0, |all, (_, bit)| all | *bit as u32)
}
