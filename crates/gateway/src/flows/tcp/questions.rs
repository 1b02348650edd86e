//! Questions to a resolver over TCP (RFC 7766), each judged as a datagram would be.
//!
//! # Theory of operation
//!
//! With a policy, a connection to the resolver is a *dialogue*: the gateway takes the program's
//! messages apart, judges each, and sends those that are allowed to the host's resolver over TCP.
//! It judges each answer before the program gets it. Questions that are refused are answered here,
//! so answers may come in another order than questions (RFC 7766 §7).
//!
//! The program cannot make a dialogue hold much. What it sends is taken at once. A message that
//! claims to be longer than [`QUESTION_BYTES_MAX`], that is none, or that comes while more than
//! [`WAITING_MAX`] waits on either side, resets the connection. While answers wait for the program,
//! none is read from the resolver. A dialogue without a whole message for [`IDLE`] is closed, and
//! reset if that does not end it.
//!
//! Bounds: [`OF_GUEST_MAX`] and [`ALL_MAX`] dialogues; further connections are refused. A dialogue
//! has at most 64 KiB of an answer that is not whole, [`ANSWERS_MAX`] of whole ones, and
//! [`WAITING_MAX`] twice: 240 KiB, and all have 60 MiB.

use super::{Flow, Phase, TcpFlows};
use crate::egress::enforcer::{Enforcer, Message};
use crate::egress::pins::Guest;
use crate::flows::egress::QUESTION_BYTES_MAX;
use crate::flows::{Gateway, Io};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, ErrorKind};
use std::time::Duration;
use towpath_net::stack::TcpHandle;
use towpath_net::time::Instant;
use towpath_packet::Site;

/// Most dialogues of a guest. A resolver of a program has one or two.
const OF_GUEST_MAX: usize = 16;
/// Most dialogues of all guests.
const ALL_MAX: usize = 256;
/// Longest time without a whole message: as a mapping for DNS lives.
const IDLE: Duration = Duration::from_secs(20);
/// Interval of the search for idle dialogues.
const SWEEP: Duration = Duration::from_secs(5);
/// Most bytes of questions that wait for the resolver, and of answers to refused ones that wait for
/// the program: those of 500 questions of usual length, which a guest may ask at once.
const WAITING_MAX: usize = 48 << 10;
/// Bytes that are read from the resolver before other flows get their turn.
const READ_MAX: usize = 16 << 10;
/// Most bytes of the resolver's answers that wait for the program: what is read at once completes
/// one that had begun before.
const ANSWERS_MAX: usize = READ_MAX + MESSAGE_MAX + PREFIX_LEN;
/// Bytes that are copied at a time.
const COPIED_MAX: usize = 4096;
/// Length of the length before each message (RFC 7766 §8).
const PREFIX_LEN: usize = 2;
/// Length of the header of a message.
const HEADER_LEN: usize = 12;
/// Longest message.
const MESSAGE_MAX: usize = u16::MAX as usize;

/// The questions and answers of a connection.
pub(super) struct Dialogue {
    asked: Messages,
    answered: Messages,
    /// Questions that the resolver has not taken, each after its length.
    to_host: Vec<u8>,
    /// Answers that the connection has not taken, each after its length.
    to_program: Vec<u8>,
    /// When the last message was whole.
    used_at: Instant,
    /// Its half towards the program is closed: no answer follows.
    is_closed: bool,
}

/// The part of a stream that is no whole message yet.
#[derive(Default)]
struct Messages(Vec<u8>);

/// The other side does not keep to the format, or to a bound.
struct Broken;

/// The connections of all dialogues.
#[derive(Default)]
pub(super) struct Dialogues {
    handles: Vec<TcpHandle>,
    sweep_at: Option<Instant>,
}

impl Messages {
    /// Takes bytes, and hands over each message that is whole. `most` is the length of the longest.
    fn take(
        &mut self,
        bytes: &[u8],
        most: usize,
        mut each: impl FnMut(&[u8]) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        self.0.extend_from_slice(bytes);
        let mut rest = &self.0[..];
        while let [high, low, after @ ..] = rest {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            if !(HEADER_LEN..=most).contains(&len) {
                return Err(Broken);
            }
            let Some((message, behind)) = after.split_at_checked(len) else { break };
            each(message)?;
            rest = behind;
        }
        let taken = self.0.len() - rest.len();
        match rest.is_empty() {
            true => self.0 = Vec::new(),
            false => drop(self.0.drain(..taken)),
        }
        Ok(())
    }
}

impl Dialogue {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            asked: Messages::default(),
            answered: Messages::default(),
            to_host: Vec::new(),
            to_program: Vec::new(),
            used_at: now,
            is_closed: false,
        }
    }

    /// Takes bytes of the program, and judges the questions in them.
    fn ask(
        &mut self,
        bytes: &[u8],
        guest: Guest,
        by: &Enforcer,
        now: Instant,
    ) -> Result<(), Broken> {
        let Self { asked, to_host, to_program, used_at, .. } = self;
        asked.take(bytes, QUESTION_BYTES_MAX, |question| {
            *used_at = now;
            match by.question(guest, question, now) {
                Message::Pass => append(to_host, question),
                Message::Answer(answer) => append(to_program, &answer),
                Message::Drop => return Err(Broken),
            }
            let fits =
                to_host.len() <= WAITING_MAX && to_program.len() <= WAITING_MAX + ANSWERS_MAX;
            if fits { Ok(()) } else { Err(Broken) }
        })
    }

    /// Takes bytes of the resolver, and judges the answers in them.
    fn answer(
        &mut self,
        bytes: &[u8],
        guest: Guest,
        by: &Enforcer,
        now: Instant,
    ) -> Result<(), Broken> {
        let Self { answered, to_program, used_at, .. } = self;
        answered.take(bytes, MESSAGE_MAX, |answer| {
            *used_at = now;
            match by.answer(guest, answer, now) {
                Message::Pass => append(to_program, answer),
                Message::Answer(instead) => append(to_program, &instead),
                Message::Drop => {}
            }
            Ok(())
        })
    }
}

/// Appends a message after its length. None is longer than [`MESSAGE_MAX`].
fn append(messages: &mut Vec<u8>, message: &[u8]) {
    messages.extend_from_slice(&(message.len() as u16).to_be_bytes());
    messages.extend_from_slice(message);
}

impl Dialogues {
    /// Notes a new flow, which may be a dialogue.
    pub(super) fn insert(&mut self, flow: &Flow) {
        if let Some(dialogue) = &flow.dialogue {
            self.handles.push(flow.handle);
            self.sweep_at.get_or_insert(dialogue.used_at + SWEEP);
        }
    }

    /// Forgets a flow that has ended, or leaves this worker.
    pub(super) fn remove(&mut self, flow: &Flow) {
        if flow.dialogue.is_some() {
            self.handles.retain(|handle| *handle != flow.handle);
        }
    }
}

impl TcpFlows {
    /// Returns when [`Gateway::end_silent_dialogues`] is due.
    pub(in crate::flows) fn dialogues_due(&self) -> Option<Instant> {
        self.dialogues.sweep_at
    }
}

impl Gateway {
    /// Returns true if a connection to the resolver may be a dialogue, or need not be one.
    pub(super) fn has_room_for_dialogue(&self, handle: TcpHandle, io: &Io<'_>) -> bool {
        let handles = &self.tcp.dialogues.handles;
        let guest = |handle| io.stack.tcp_account(handle).0;
        let of_guest = handles.iter().filter(|other| guest(**other) == guest(handle)).count();
        self.egress.is_none() || (of_guest < OF_GUEST_MAX && handles.len() < ALL_MAX)
    }

    /// Does all that a dialogue can do now: judges and passes on what the program and the resolver
    /// have sent.
    pub(super) fn converse(&mut self, handle: TcpHandle, io: &mut Io<'_>) {
        let done = self.ask_resolver(handle, io).and_then(|()| {
            self.tell_program(handle, io);
            self.hear_resolver(handle, io)
        });
        if done.is_err() {
            return self.abort(handle, io);
        }
        self.tell_program(handle, io);
        let Some(flow) = self.tcp.get_mut(handle) else { return };
        let Some(dialogue) = &mut flow.dialogue else { return };
        let (is_asked, is_told) = (dialogue.to_host.is_empty(), dialogue.to_program.is_empty());
        if flow.host_closed && is_told && !dialogue.is_closed {
            dialogue.is_closed = true;
            io.stack.with_tcp(handle, io.now, |connection| connection.close_send());
        }
        if is_told {
            self.tcp.queue(handle);
        }
        if is_asked {
            self.end_out(handle, io);
        }
    }

    /// Takes what the program has sent, and sends the questions that are allowed.
    fn ask_resolver(&mut self, handle: TcpHandle, io: &mut Io<'_>) -> Result<(), Broken> {
        let Some(egress) = &self.egress else { return Ok(()) };
        let guest = io.stack.tcp_account(handle).0;
        let Some(flow) = self.tcp.get_mut(handle) else { return Ok(()) };
        let Some(connection) = io.stack.tcp(handle) else { return Ok(()) };
        let Some(dialogue) = &mut flow.dialogue else { return Ok(()) };
        let mut buffer = [0; COPIED_MAX];
        let mut taken = 0;
        for piece in connection.received() {
            for from in (0..piece.len()).step_by(COPIED_MAX) {
                let part = piece.slice(from, (piece.len() - from).min(COPIED_MAX));
                let count = io.ledger.copy(Site::Linearise, &part, &mut buffer);
                dialogue.ask(&buffer[..count], guest, &egress.enforcer, io.now)?;
                taken += count;
            }
        }
        if taken > 0 {
            io.stack.with_tcp(handle, io.now, |connection| connection.consume(taken));
        }
        let (mut sent, mut failed) = (0, false);
        while flow.host_writable && sent < dialogue.to_host.len() && !failed {
            let unsent = &dialogue.to_host[sent..];
            match rustix::net::send(&flow.socket, unsent, SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::WOULDBLOCK) => flow.host_writable = false,
                Err(_) => failed = true,
            }
        }
        dialogue.to_host.drain(..sent);
        let left = dialogue.to_host.len();
        flow.passed += sent as u64;
        flow.out.went(left + sent, left, io.now);
        self.counters.bytes_out += sent as u64;
        let watched = left == 0 || flow.watch_room(io.reactor).is_ok();
        if watched && !failed { Ok(()) } else { Err(Broken) }
    }

    /// Reads from the resolver, unless answers wait for the program.
    fn hear_resolver(&mut self, handle: TcpHandle, io: &mut Io<'_>) -> Result<(), Broken> {
        let Some(egress) = &self.egress else { return Ok(()) };
        let guest = io.stack.tcp_account(handle).0;
        let Some(flow) = self.tcp.get_mut(handle) else { return Ok(()) };
        let Some(dialogue) = &mut flow.dialogue else { return Ok(()) };
        if !dialogue.to_program.is_empty() {
            return Ok(());
        }
        let mut buffer = [0; COPIED_MAX];
        let mut read = 0;
        while flow.host_readable && !flow.host_closed && read < READ_MAX {
            match rustix::net::recv(&flow.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => flow.host_closed = true,
                Ok((count, _)) => {
                    dialogue.answer(&buffer[..count], guest, &egress.enforcer, io.now)?;
                    read += count;
                }
                Err(Errno::WOULDBLOCK) => flow.host_readable = false,
                Err(_) => return Err(Broken),
            }
        }
        self.counters.bytes_in += read as u64;
        Ok(())
    }

    /// Sends answers to the program, as far as there is room. An event reports more room; without
    /// memory, the flow is tried again after a while.
    fn tell_program(&mut self, handle: TcpHandle, io: &mut Io<'_>) {
        let Some(flow) = self.tcp.get_mut(handle) else { return };
        let Some(dialogue) = &mut flow.dialogue else { return };
        let (mut sent, mut parks) = (0, false);
        io.stack.with_tcp(handle, io.now, |connection| {
            while sent < dialogue.to_program.len() && connection.send_room() > 0 {
                let Some(mut frame) = io.memory.small.take() else {
                    parks = true;
                    break;
                };
                let count = (dialogue.to_program.len() - sent).min(frame.len());
                frame[..count].copy_from_slice(&dialogue.to_program[sent..sent + count]);
                connection.send(frame.freeze(count));
                sent += count;
            }
            if sent > 0 {
                flow.into.came(sent, connection.unacknowledged(), io.now);
            }
        });
        dialogue.to_program.drain(..sent);
        if dialogue.to_program.is_empty() {
            dialogue.to_program = Vec::new();
        }
        if parks {
            self.tcp.park(handle);
        }
    }

    /// Closes dialogues without a message for [`IDLE`], and resets those that are still there after
    /// as long again. A resolver that has not answered the connection is given up.
    pub(in crate::flows) fn end_silent_dialogues(&mut self, io: &mut Io<'_>) {
        if self.tcp.dialogues.sweep_at.is_none_or(|at| at > io.now) {
            return;
        }
        for handle in self.tcp.dialogues.handles.clone() {
            let Some(flow) = self.tcp.get_mut(handle) else { continue };
            let phase = flow.phase;
            let Some(dialogue) = &mut flow.dialogue else { continue };
            if io.now.since(dialogue.used_at) < IDLE {
                continue;
            }
            match phase {
                Phase::HostConnecting { dns } => {
                    self.tcp.remove(handle);
                    let error = io::Error::from(ErrorKind::TimedOut);
                    self.connect_failed(handle, dns, &error, io);
                }
                _ if dialogue.is_closed => self.abort(handle, io),
                _ => {
                    dialogue.is_closed = true;
                    dialogue.used_at = io.now;
                    io.stack.with_tcp(handle, io.now, |connection| connection.close_send());
                }
            }
        }
        let dialogues = &mut self.tcp.dialogues;
        dialogues.sweep_at = (!dialogues.handles.is_empty()).then(|| io.now + SWEEP);
    }
}

#[cfg(test)]
mod tests;
