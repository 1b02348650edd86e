//! Asks the policy about messages to and from resolvers, and again about open flows when it
//! changes.

use super::destinations::contiguous;
use super::udp::for_each_part;
use super::{Gateway, Io};
use crate::egress::enforcer::Message;
use std::net::SocketAddr;
use towpath_net::stack::{Datagram, TcpHandle, Unreachable};
use towpath_net::time::Instant;
use towpath_packet::Packet;

/// Longest message to a resolver that is judged, in bytes; longer ones are dropped. Questions have
/// at most 300, with options.
pub(super) const QUESTION_BYTES_MAX: usize = 1232;

impl Gateway {
    /// Takes questions that came as a super-packet one by one. Programs ask for the addresses of
    /// both IP versions at once.
    pub(super) fn on_each_question(&mut self, datagram: &Datagram, io: &mut Io<'_>) {
        let Some(size) = datagram.segment_size else { return };
        let mut questions = Vec::new();
        for_each_part(
            || datagram.packet.pieces(),
            datagram.packet.payload_len(),
            size,
            |pieces| {
                let Some(mut packet) = io.memory.packet() else { return };
                packet.set_ingress(datagram.packet.ingress());
                for piece in pieces {
                    // A part of a packet has no more pieces than the packet.
                    let _ = packet.push_piece(piece);
                }
                questions.push(Datagram { packet, segment_size: None, ..*datagram });
            },
        );
        questions.into_iter().for_each(|question| self.on_datagram(question, io));
    }

    /// Judges a question of the program to a resolver. Returns false if it is not to be passed on;
    /// the program may have been answered.
    pub(super) fn admits_question(&mut self, datagram: &Datagram, io: &mut Io<'_>) -> bool {
        let Some(egress) = &self.egress else { return true };
        if datagram.packet.payload_len() > QUESTION_BYTES_MAX {
            self.counters.udp_refused += 1;
            return false;
        }
        let question = contiguous(&datagram.packet, io);
        match egress.enforcer.question(datagram.packet.ingress(), &question, io.now) {
            Message::Pass => return true,
            Message::Answer(answer) => {
                self.send_answer(&answer, datagram.local, datagram.remote, io);
            }
            Message::Drop => {}
        }
        self.counters.udp_refused += 1;
        false
    }

    /// Judges answers of a resolver, each of `size` bytes except the last, and sends them to the
    /// program.
    pub(super) fn send_judged_answers(
        &mut self,
        answers: &Packet,
        size: usize,
        guest: Option<u16>,
        (from, to): (SocketAddr, SocketAddr),
        io: &mut Io<'_>,
    ) {
        let bytes = contiguous(answers, io);
        for answer in bytes.chunks(size.max(1)) {
            let Some(egress) = &self.egress else { return };
            match egress.enforcer.answer(guest, answer, io.now) {
                Message::Pass => self.send_answer(answer, from, to, io),
                Message::Answer(instead) => self.send_answer(&instead, from, to, io),
                Message::Drop => self.counters.udp_filtered += 1,
            }
        }
    }

    fn send_answer(&mut self, answer: &[u8], from: SocketAddr, to: SocketAddr, io: &mut Io<'_>) {
        let Some(mut packet) = io.memory.packet() else {
            self.counters.udp_no_memory += 1;
            return;
        };
        let mut rest = answer;
        while !rest.is_empty() {
            let Some(mut frame) = io.memory.small.take() else {
                self.counters.udp_no_memory += 1;
                return;
            };
            let count = rest.len().min(frame.len());
            frame[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            if packet.push_piece(frame.freeze(count)).is_err() {
                self.counters.udp_no_memory += 1;
                return;
            }
        }
        self.counters.bytes_in += answer.len() as u64;
        let (stack, mut context) = io.stack_and_context();
        stack.udp_send(packet, from, to, None, &mut context);
    }

    /// All flows end, as the worker does: the audit gets their bytes.
    pub(crate) fn note_ends(&mut self, now: Instant) {
        self.note_tcp_ends(now);
        if let Some(egress) = &mut self.egress {
            egress.end_where(|_| true, now);
        }
    }

    /// Reports to the program that the policy denies a connection.
    pub(super) fn prohibit(&mut self, handle: TcpHandle, io: &mut Io<'_>) {
        self.counters.tcp_refused += 1;
        let (stack, mut context) = io.stack_and_context();
        stack.tcp_unreachable(handle, Unreachable::Prohibited, &mut context);
    }

    /// Forgets the verdicts about a guest whose port is gone: another one may get its number.
    pub(crate) fn forget_guest(&mut self, port: u16, now: Instant) {
        if let Some(egress) = &mut self.egress {
            egress.end_guest(Some(port), now);
            self.pings.forget_flows();
        }
    }

    /// Judges all open flows again if there is a new policy, and ends those that it denies.
    pub(super) fn review_flows(&mut self, io: &mut Io<'_>) {
        let Some(egress) = &mut self.egress else { return };
        let generation = egress.enforcer.generation();
        if egress.generation == generation {
            return;
        }
        egress.generation = generation;
        egress.review(io.now);
        let enforcer = egress.enforcer.clone();
        for handle in self.tcp.not_admitted(&enforcer, io.now) {
            self.abort(handle, io);
        }
        self.resume_all_streams(io);
        self.pings.forget_flows();
    }
}
