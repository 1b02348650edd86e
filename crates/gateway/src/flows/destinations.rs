//! What a gateway remembers of verdicts about datagrams.
//!
//! Of UDP, a flow is a port of the program and a destination. Those that were allowed are
//! remembered until they have been idle as long as a mapping may be, so the policy is asked once.
//! Their bytes are counted for the audit. How greetings are read is in `crate::egress`.

use super::udp::IDLE;
use super::{Gateway, Io};
use crate::egress::enforcer::{Admission, Decision, Enforcer};
use crate::egress::greeting::quic::{self, Conversation, Reading};
use crate::egress::meter::{Direction, Meters, Pass};
use crate::egress::policy::Reason;
use crate::egress::rule::{FlowTo, Transport};
use crate::owners::{Buckets, of_port};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use towpath_net::stack::{Datagram, Unreachable};
use towpath_net::time::Instant;
use towpath_packet::sync::{AtomicUsize, Ordering};
use towpath_packet::{Ledger, Packet, Site};

/// Most destinations of datagrams that are remembered, about 220 bytes each. At the bound those of
/// the guest that wants another one are forgotten.
const REMEMBERED_MAX: usize = 65_536;
/// Most memory of a guest's conversations, in bytes: what their clients have said, and datagrams
/// that wait for a greeting. A usual one needs 5 KiB. Beyond, another one is denied.
const TALKS_BYTES_MAX: usize = 4 << 20;
/// What a datagram that waits counts for, in bytes. It keeps a frame, which all guests need for
/// their packets, so it counts for several: a guest has 256 small or 16 large ones.
const HELD_BYTES: usize = 16 << 10;
const HELD_LARGE_BYTES: usize = 256 << 10;
/// Longest payload that is in a small frame.
const SMALL_MAX: usize = 2 << 10;
/// Longest time for a greeting. Clients send it at once, and again within a second.
pub(super) const GREETING_WITHIN: Duration = Duration::from_secs(10);
/// Datagrams that wait until the greeting of their conversation is whole. A hello fits two.
const HELD_MAX: usize = 4;

/// A guest, the source of its datagrams and their destination. Another guest that sends from the
/// same source has verdicts of its own.
pub(super) type Way = (Option<u16>, SocketAddr, SocketAddr);

/// The policy, and what a gateway remembers of its verdicts.
pub(super) struct Egress {
    pub(super) enforcer: Arc<Enforcer>,
    destinations: HashMap<Way, Destination>,
    /// When idle ones are looked for; `None` without destinations.
    sweep_at: Option<Instant>,
    /// Memory of the conversations of each guest.
    memory: HashMap<Option<u16>, Arc<AtomicUsize>>,
    latest: Option<Latest>,
    /// The policy that the open flows were judged by.
    pub(super) generation: u64,
}

/// The destination of the last datagram, if none of its datagrams is read or metered: most
/// datagrams have the same as the one before.
struct Latest {
    way: Way,
    /// Bytes out and in that its destination does not have yet.
    bytes: [u64; 2],
}

/// A destination of datagrams that is allowed, or greeted.
pub(super) struct Destination {
    admission: Admission,
    /// Bytes of payload from and to the program.
    bytes: [u64; 2],
    /// What was said there, if the greeting decides.
    talk: Option<Box<Talk>>,
    used_at: Instant,
}

/// A conversation over QUIC.
struct Talk {
    conversation: Conversation,
    is_allowed: bool,
    /// Datagrams that wait until the greeting is whole.
    held: Vec<Datagram>,
    /// Memory of the guest's conversations, and the part of this one.
    memory: Arc<AtomicUsize>,
    charged: usize,
}

impl Talk {
    fn new(memory: Arc<AtomicUsize>) -> Self {
        let (conversation, held) = (Conversation::default(), Vec::new());
        Self { conversation, is_allowed: false, held, memory, charged: 0 }
    }

    /// Charges the guest for what the conversation keeps. Returns false if the guest has too much.
    fn charge(&mut self) -> bool {
        let frame = |datagram: &Datagram| match datagram.packet.payload_len() {
            0..=SMALL_MAX => HELD_BYTES,
            _ => HELD_LARGE_BYTES,
        };
        let held = self.held.iter().map(frame).sum::<usize>();
        let needed = self.conversation.memory() + held;
        // The sum orders nothing else. It may be shared: a conversation that moves to another
        // worker still counts for the sum of the one before.
        self.memory.fetch_add(needed, Ordering::Relaxed);
        let before = self.memory.fetch_sub(self.charged, Ordering::Relaxed);
        let all = before - self.charged;
        self.charged = needed;
        all <= TALKS_BYTES_MAX
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.memory.fetch_sub(self.charged, Ordering::Relaxed);
    }
}

/// Destinations between two workers.
pub(super) type MovedDestinations = Vec<(Way, Destination)>;

/// What becomes of a datagram.
enum Passage {
    Pass,
    Hold,
    Drop,
    Denied,
}

impl Destination {
    /// Reads a datagram, if its destination is greeted.
    fn read(&mut self, datagram: &Datagram, by: &Enforcer, io: &Io<'_>) -> Passage {
        let Some(talk) = &mut self.talk else { return Passage::Pass };
        let len = datagram.packet.payload_len();
        let size = datagram.segment_size.map_or(len, |size| usize::from(size.get())).max(1);
        let is_long = |at| quic::has_long_header(byte_at(&datagram.packet, at, io.ledger));
        let has_long = (0..len).step_by(size).any(is_long);
        if talk.is_allowed && !has_long {
            return Passage::Pass;
        }
        if !talk.is_allowed && !has_long {
            // It is not QUIC.
            by.refuse(&self.admission, Reason::NoName, io.now);
            return Passage::Denied;
        }
        let bytes = contiguous(&datagram.packet, io);
        let mut passage = if talk.is_allowed { Passage::Pass } else { Passage::Hold };
        for segment in bytes.chunks(size) {
            match talk.conversation.read(segment) {
                Reading::Clear => {}
                Reading::Partial => passage = Passage::Hold,
                Reading::Invalid => {
                    // What came before it is kept, and charged.
                    passage = Passage::Drop;
                    break;
                }
                Reading::Greetings(greetings) => {
                    let is_named = |greeting| by.greeted(&mut self.admission, greeting, io.now);
                    if !greetings.iter().all(is_named) {
                        return Passage::Denied;
                    }
                    talk.is_allowed = true;
                    passage = Passage::Pass;
                }
            }
        }
        if !talk.charge() {
            by.refuse(&self.admission, Reason::TooMuchQuic, io.now);
            return Passage::Denied;
        }
        passage
    }
}

impl Egress {
    pub(super) fn new(enforcer: Arc<Enforcer>) -> Self {
        let generation = enforcer.generation();
        let (destinations, memory) = (HashMap::new(), HashMap::new());
        Self { enforcer, destinations, sweep_at: None, memory, latest: None, generation }
    }

    /// Returns what becomes of a datagram of the program to this destination, as far as that is
    /// known without reading it.
    fn judge(&mut self, way: Way, now: Instant) -> Option<&mut Destination> {
        let (guest, _, to) = way;
        if !self.destinations.contains_key(&way) {
            let flow = FlowTo { transport: Transport::Udp, address: to.ip(), port: to.port() };
            let (admission, talk) = match self.enforcer.begin(guest, flow, now) {
                Decision::Allow(admission) => (admission, None),
                Decision::Greeting(admission) => {
                    let memory = self.memory.entry(guest).or_default().clone();
                    (admission, Some(Box::new(Talk::new(memory))))
                }
                Decision::Deny => return None,
            };
            if self.destinations.len() >= REMEMBERED_MAX {
                self.end_where(|known| known.admission.guest() == guest, now);
            }
            if self.destinations.len() >= REMEMBERED_MAX {
                return None;
            }
            let destination = Destination { admission, bytes: [0; 2], talk, used_at: now };
            self.destinations.insert(way, destination);
            self.sweep_at = self.sweep_at.or(Some(now + GREETING_WITHIN));
        }
        self.settle(now);
        let destination = self.destinations.get_mut(&way)?;
        destination.used_at = now;
        let is_plain = destination.talk.is_none() && destination.admission.meters().is_none();
        self.latest = is_plain.then_some(Latest { way, bytes: [0; 2] });
        Some(destination)
    }

    /// Gives the latest destination the bytes that were counted for it.
    fn settle(&mut self, now: Instant) {
        let Some(Latest { way, bytes: [out, into] }) = self.latest.take() else { return };
        if let Some(destination) = self.destinations.get_mut(&way)
            && out + into > 0
        {
            destination.used_at = now;
            destination.bytes[0] += out;
            destination.bytes[1] += into;
        }
    }

    /// Counts bytes out and in of a flow.
    fn count(&mut self, way: Way, [out, into]: [u64; 2], now: Instant) {
        let bytes = match &mut self.latest {
            Some(latest) if latest.way == way => &mut latest.bytes,
            _ => {
                let Some(destination) = self.destinations.get_mut(&way) else { return };
                destination.used_at = now;
                &mut destination.bytes
            }
        };
        bytes[0] += out;
        bytes[1] += into;
    }

    /// Counts bytes of a host to the program, if a datagram with them passes its bounds.
    pub(super) fn count_in(&mut self, way: Way, bytes: usize, now: Instant) -> Pass {
        let passes = self.meter(way, Direction::In, bytes, now);
        if passes == Pass::Passes {
            self.count(way, [0, bytes as u64], now);
        }
        passes
    }

    /// Judges a datagram by the bounds of its flow, and ends a flow whose quota it does not fit.
    fn meter(&mut self, way: Way, direction: Direction, bytes: usize, now: Instant) -> Pass {
        if self.latest.as_ref().is_some_and(|latest| latest.way == way) {
            return Pass::Passes;
        }
        let Some(destination) = self.destinations.get_mut(&way) else { return Pass::Passes };
        let meters = destination.admission.meters();
        if meters.is_none() {
            return Pass::Passes;
        }
        let passes = meters.pass(direction, bytes, now);
        if passes == Pass::Over {
            destination.admission.exhaust(bytes);
            if let Some(Destination { admission, bytes, .. }) = self.destinations.remove(&way) {
                self.enforcer.ended(&admission, bytes, now);
            }
        }
        passes
    }

    /// Ends the flows that `is_over` is true for.
    pub(super) fn end_where(&mut self, is_over: impl Fn(&Destination) -> bool, now: Instant) {
        self.settle(now);
        let ended = self.destinations.extract_if(|_, destination| is_over(destination));
        for (_, Destination { admission, bytes, talk, .. }) in ended {
            if talk.is_none_or(|talk| talk.is_allowed) {
                self.enforcer.ended(&admission, bytes, now);
            }
        }
    }

    /// Returns what bounds the echoes that the program asks this address for; `None` if it may not.
    pub(super) fn admits_echo(
        &self,
        guest: Option<u16>,
        to: IpAddr,
        now: Instant,
    ) -> Option<Meters> {
        let flow = FlowTo { transport: Transport::Icmp, address: to, port: 0 };
        match self.enforcer.begin(guest, flow, now) {
            Decision::Allow(admission) => Some(admission.meters().clone()),
            Decision::Greeting(_) | Decision::Deny => None,
        }
    }

    /// Keeps a datagram until the greeting is whole; returns false if there is no room.
    fn hold(&mut self, way: Way, datagram: Datagram) -> bool {
        let talk = self.destinations.get_mut(&way).and_then(|it| it.talk.as_mut());
        let Some(talk) = talk.filter(|talk| talk.held.len() < HELD_MAX) else { return false };
        talk.held.push(datagram);
        let has_room = talk.charge();
        if !has_room {
            talk.held.pop();
            talk.charge();
        }
        has_room
    }

    fn take_held(&mut self, way: Way) -> Vec<Datagram> {
        let talk = self.destinations.get_mut(&way).and_then(|it| it.talk.as_mut());
        let Some(talk) = talk else { return Vec::new() };
        let held = std::mem::take(&mut talk.held);
        talk.charge();
        held
    }

    /// Returns when [`expire`](Self::expire) is next due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.sweep_at
    }

    /// Forgets destinations that have been idle too long.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.sweep_at.is_none_or(|at| at > now) {
            return;
        }
        let is_over = |destination: &Destination| {
            let is_greeting = destination.talk.as_ref().is_some_and(|talk| !talk.is_allowed);
            let most = if is_greeting { GREETING_WITHIN } else { IDLE };
            now.since(destination.used_at) >= most
        };
        self.end_where(is_over, now);
        self.sweep_at = (!self.destinations.is_empty()).then_some(now + GREETING_WITHIN);
    }

    /// Judges the destinations of datagrams by a new policy.
    pub(super) fn review(&mut self, now: Instant) {
        self.settle(now);
        let enforcer = &self.enforcer;
        self.destinations.retain(|_, Destination { admission, talk, .. }| {
            let is_greeting = talk.as_ref().is_some_and(|talk| !talk.is_allowed);
            !is_greeting && enforcer.review(admission, now)
        });
    }
}

impl Gateway {
    /// Judges a datagram of the program that leads `to` a host. Returns it if it may be sent;
    /// otherwise it waits, or the program gets an error.
    pub(super) fn admit_datagram(
        &mut self,
        datagram: Datagram,
        to: SocketAddr,
        io: &mut Io<'_>,
    ) -> Option<Datagram> {
        let Some(egress) = &mut self.egress else { return Some(datagram) };
        let way = (datagram.packet.ingress(), datagram.remote, to);
        let len = datagram.packet.payload_len() as u64;
        if let Some(latest) = egress.latest.as_mut().filter(|latest| latest.way == way) {
            latest.bytes[0] += len;
            return Some(datagram);
        }
        let enforcer = egress.enforcer.clone();
        let destination = egress.judge(way, io.now);
        let passage = destination.map_or(Passage::Denied, |it| it.read(&datagram, &enforcer, io));
        match passage {
            Passage::Pass => {
                let mut held = egress.take_held(way);
                held.push(datagram);
                return self.pass_datagrams(held, way, io);
            }
            Passage::Hold => {
                let has_room = egress.hold(way, datagram);
                self.counters.udp_filtered += u64::from(!has_room);
            }
            Passage::Drop => self.counters.udp_filtered += 1,
            Passage::Denied => {
                egress.destinations.remove(&way);
                self.prohibit_datagram(&datagram, io);
            }
        }
        None
    }

    /// Sends datagrams that are allowed, as far as they pass their bounds, and returns the last one
    /// if it does.
    fn pass_datagrams(
        &mut self,
        mut datagrams: Vec<Datagram>,
        way: Way,
        io: &mut Io<'_>,
    ) -> Option<Datagram> {
        let last = datagrams.pop()?;
        for earlier in datagrams {
            if let Some(earlier) = self.pass_datagram(earlier, way, io) {
                self.forward_datagram(earlier, io);
            }
        }
        self.pass_datagram(last, way, io)
    }

    /// Returns a datagram that is allowed if it passes its bounds.
    fn pass_datagram(&mut self, datagram: Datagram, way: Way, io: &mut Io<'_>) -> Option<Datagram> {
        let egress = self.egress.as_mut()?;
        let len = datagram.packet.payload_len();
        match egress.meter(way, Direction::Out, len, io.now) {
            Pass::Passes => {
                egress.count(way, [len as u64, 0], io.now);
                return Some(datagram);
            }
            Pass::TooFast => self.counters.over_bandwidth += 1,
            Pass::Over => self.prohibit_datagram(&datagram, io),
        }
        None
    }

    /// Reports to the program that the policy denies a datagram.
    fn prohibit_datagram(&mut self, datagram: &Datagram, io: &mut Io<'_>) {
        self.counters.udp_refused += 1;
        let (inside, program) = (datagram.local, datagram.remote);
        let (stack, mut context) = io.stack_and_context();
        stack.udp_unreachable(inside, program, Unreachable::Prohibited, &mut context);
    }

    /// Takes out the destinations of these buckets.
    pub(super) fn take_destinations(
        &mut self,
        buckets: &Buckets,
        now: Instant,
    ) -> MovedDestinations {
        let Some(egress) = &mut self.egress else { return Vec::new() };
        egress.settle(now);
        let is_wanted = |way: &Way, _: &mut Destination| buckets.contains(of_port(way.1.port()));
        egress.destinations.extract_if(is_wanted).collect()
    }

    /// Continues with destinations of another worker.
    pub(super) fn put_destinations(&mut self, destinations: MovedDestinations, now: Instant) {
        if let Some(egress) = &mut self.egress
            && !destinations.is_empty()
        {
            egress.sweep_at = egress.sweep_at.or(Some(now + GREETING_WITHIN));
            egress.destinations.extend(destinations);
        }
    }
}

/// Returns a byte of a packet's payload.
fn byte_at(packet: &Packet, mut at: usize, ledger: &Ledger) -> u8 {
    let mut byte = [0];
    for piece in packet.pieces() {
        if at < piece.len() {
            ledger.copy(Site::Linearise, &piece.slice(at, 1), &mut byte);
            break;
        }
        at -= piece.len();
    }
    byte[0]
}

/// Copies the payload of a packet.
pub(super) fn contiguous(packet: &Packet, io: &Io<'_>) -> Vec<u8> {
    let mut bytes = vec![0; packet.payload_len()];
    let mut at = 0;
    for piece in packet.pieces() {
        at += io.ledger.copy(Site::Linearise, piece, &mut bytes[at..]);
    }
    bytes.truncate(at);
    bytes
}
