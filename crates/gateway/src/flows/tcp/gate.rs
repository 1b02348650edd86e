//! The gate of a flow whose greeting the policy wants to read first.
//!
//! The host is connected already, as its address is allowed, but nothing leaves before the greeting
//! is whole and its name is allowed. If the server asks for a second hello of TLS, that one must
//! have the same name.

use super::{Flow, TcpFlows};
use crate::egress::enforcer::{Admission, Decision, Enforcer};
use crate::egress::greeting::{self, GREETING_MAX, Greeting};
use crate::egress::meter::{Direction, Grant};
use crate::egress::rule::{FlowTo, Transport};
use crate::flows::route::Target;
use crate::flows::{Gateway, Io};
use towpath_net::stack::TcpHandle;
use towpath_net::tcp::Connection;
use towpath_net::time::Instant;
use towpath_packet::{Ledger, Site};

/// A flow that the policy was asked about.
pub(super) struct Gate {
    pub(super) admission: Admission,
    stage: Stage,
    /// Bytes of the program that may pass, from the first on. Not all of them may be sent yet.
    approved: u64,
    /// Whether each direction waits for a bandwidth.
    pub(super) stands: [Stand; 2],
}

/// Whether one direction of a flow waits for a bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// It has tokens, as far as it knows.
    Free,
    /// It stands in line.
    Waits,
    /// Its turn has come: what it moves now was delayed.
    Resumed,
}

/// What is still to be read before bytes may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The greeting.
    Greeting,
    /// What follows a hello of TLS.
    AfterHello,
    /// Nothing.
    Open,
}

/// What becomes of the bytes that wait at the gate.
enum Passage {
    /// They wait for more.
    Wait,
    /// They pass, and the gate is in this stage afterwards.
    Pass(Stage),
    Denied,
}

impl Gate {
    pub(super) fn open(admission: Admission) -> Self {
        Self::new(admission, Stage::Open)
    }

    pub(super) fn shut(admission: Admission) -> Self {
        Self::new(admission, Stage::Greeting)
    }

    fn new(admission: Admission, stage: Stage) -> Self {
        Self { admission, stage, approved: 0, stands: [Stand::Free; 2] }
    }

    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Returns how many bytes may pass.
    pub(super) fn grant(&self, way: Direction, now: Instant) -> Grant {
        match self.stands[way as usize] {
            Stand::Waits => Grant::Wait,
            Stand::Free | Stand::Resumed => self.admission.meters().grant(way, now),
        }
    }

    /// Counts bytes that have passed.
    pub(super) fn has_moved(&mut self, way: Direction, bytes: usize, now: Instant) {
        let stand = std::mem::replace(&mut self.stands[way as usize], Stand::Free);
        self.admission.meters().take(way, bytes, stand == Stand::Resumed, now);
    }

    /// Reads what waits. With `is_last`, nothing follows.
    fn read(&mut self, bytes: &[u8], is_last: bool, by: &Enforcer, now: Instant) -> Passage {
        let is_last = is_last || bytes.len() >= GREETING_MAX;
        let rest = match self.stage {
            Stage::Open => return Passage::Pass(Stage::Open),
            Stage::AfterHello => bytes,
            Stage::Greeting => {
                let greeting = greeting::read(bytes);
                if greeting == Greeting::Partial && !is_last {
                    return Passage::Wait;
                }
                if !by.greeted(&mut self.admission, &greeting, now) {
                    return Passage::Denied;
                }
                match greeting::rest(bytes) {
                    None => return Passage::Pass(Stage::Open),
                    Some([]) => return Passage::Pass(Stage::AfterHello),
                    Some(rest) => rest,
                }
            }
        };
        match greeting::read_again(rest) {
            None => Passage::Pass(Stage::Open),
            // The client has sent what it has, and the program's end follows.
            Some(Greeting::Partial) if is_last && rest.is_empty() => Passage::Pass(Stage::Open),
            Some(Greeting::Partial) if !is_last => Passage::Wait,
            Some(greeting) => match by.greeted(&mut self.admission, &greeting, now) {
                true => Passage::Pass(Stage::Open),
                false => Passage::Denied,
            },
        }
    }
}

impl TcpFlows {
    /// Judges the open flows by a new policy, and returns those that it denies.
    pub(in crate::flows) fn not_admitted(&mut self, by: &Enforcer, now: Instant) -> Vec<TcpHandle> {
        let flows = self.flows.iter_mut().flatten();
        let denied = flows.filter_map(|flow| {
            let gate = flow.gate.as_mut()?;
            // One that is shut is judged by its greeting.
            (gate.stage != Stage::Greeting && !by.review(&mut gate.admission, now))
                .then_some(flow.handle)
        });
        denied.collect()
    }
}

/// The policy denies a flow.
pub(super) struct Denied;

impl Gateway {
    /// Asks the policy about a connection of the program to `target`. Questions to the resolver are
    /// judged one by one; those in TLS cannot be read.
    pub(super) fn judge_connection(
        &self,
        handle: TcpHandle,
        target: Target,
        io: &Io<'_>,
    ) -> Result<Option<Box<Gate>>, Denied> {
        let Some(egress) = &self.egress else { return Ok(None) };
        let guest = io.stack.tcp_account(handle).0;
        let to = match target {
            Target::Host(to) | Target::Mapped(to) => to,
            Target::DnsOverTls(_) | Target::Refused if egress.enforcer.has_policy(guest) => {
                return Err(Denied);
            }
            Target::Dns | Target::DnsOverTls(_) | Target::Refused => return Ok(None),
        };
        let flow = FlowTo { transport: Transport::Tcp, address: to.ip(), port: to.port() };
        match egress.enforcer.begin(guest, flow, io.now) {
            Decision::Allow(admission) => Ok(Some(Box::new(Gate::open(admission)))),
            Decision::Greeting(admission) => Ok(Some(Box::new(Gate::shut(admission)))),
            Decision::Deny => Err(Denied),
        }
    }

    /// Reads what waits at a flow's gate. Returns true if it may pass on; ends a flow that the
    /// policy denies.
    pub(super) fn pass_gate(&mut self, handle: TcpHandle, io: &mut Io<'_>) -> bool {
        let Some(egress) = &self.egress else { return true };
        let Some(flow) = self.tcp.get_mut(handle) else { return false };
        let Flow { over, passed, gate: Some(gate), .. } = flow else { return true };
        let Some(connection) = io.stack.tcp(handle) else { return false };
        let is_last = *over || connection.peer_closed();
        let unsent = usize::try_from(gate.approved.saturating_sub(*passed)).unwrap_or(usize::MAX);
        let bytes = first_bytes(connection, unsent, io.ledger);
        if bytes.is_empty() && !is_last {
            return unsent > 0;
        }
        if bytes.is_empty() && gate.stage == Stage::Greeting {
            // It says nothing, and ends.
            return true;
        }
        match gate.read(&bytes, is_last, &egress.enforcer, io.now) {
            Passage::Wait => false,
            Passage::Pass(stage) => {
                gate.stage = stage;
                gate.approved = *passed + connection.received_len() as u64;
                true
            }
            Passage::Denied => {
                self.abort(handle, io);
                false
            }
        }
    }

    /// All flows end.
    pub(in crate::flows) fn note_tcp_ends(&self, now: Instant) {
        self.tcp.flows.iter().flatten().for_each(|flow| self.note_end(flow, now));
    }

    /// A flow has ended: the audit gets its bytes.
    pub(super) fn note_end(&self, flow: &Flow, now: Instant) {
        if let (Some(egress), Some(gate)) = (&self.egress, &flow.gate)
            && gate.stage != Stage::Greeting
        {
            egress.enforcer.ended(&gate.admission, [flow.out.total(), flow.into.total()], now);
        }
    }
}

/// Copies the first bytes of the program that wait, without `skipped` before them.
fn first_bytes(connection: &Connection, skipped: usize, ledger: &Ledger) -> Vec<u8> {
    let waiting = connection.received_len().saturating_sub(skipped);
    let mut bytes = vec![0; waiting.min(GREETING_MAX)];
    let (mut at, mut skipped) = (0, skipped);
    for piece in connection.received() {
        let from = skipped.min(piece.len());
        skipped -= from;
        let part = piece.slice(from, (piece.len() - from).min(bytes.len() - at));
        at += ledger.copy(Site::Linearise, &part, &mut bytes[at..]);
        if at == bytes.len() {
            break;
        }
    }
    bytes.truncate(at);
    bytes
}
