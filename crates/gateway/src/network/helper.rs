//! A thread that moves packets of some ports of a network, beside the first one.
//!
//! # Theory of operation
//!
//! A [`Helper`] has ports, memory and a [`Forwarder`], and no stack. It forwards what the table of
//! the switch already knows by itself: to its own ports, or through the rings to the threads of
//! other ports. Everything else goes to the first worker, which judges it: unknown stations,
//! broadcasts, multicasts.
//!
//! The first worker gives it ports, and asks about them, by commands, which are carried out between
//! two turns. What its ports report goes back as news. A helper never waits for the first worker,
//! except while that changes the number of workers: then the thread lends its whole state.
//!
//! # Order
//!
//! While packets of a port are under way to be judged, others to the same destinations go the same
//! way ([`Forwarder::forward`]). In each turn the helper first reads how many were handed out, then
//! empties its ring, and only then reads its ports. So what the first worker handed out to a port
//! of this helper is ahead of what this helper sends to it. While a third worker is interrupted
//! that puts packets into the ring, those behind cannot be taken; then the former number counts.

use std::hint::spin_loop;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, Sender, SyncSender, TryRecvError};

use towpath_io::doorbell::EventDoorbell;
use towpath_io::thread::{Rest, release_unused};
use towpath_net::counters::PortDrop;
use towpath_net::engine::MEMORY_PAUSE;
use towpath_net::switch::{Egress, Forwarder, PORTS_MAX, PortCounters, PortId};
use towpath_net::time::{Duration, Instant, earliest};
use towpath_packet::burst::BURST_MAX;
use towpath_packet::ring::{Consumer, Doorbell};
use towpath_packet::{Burst, Caps, Context, Input, Ledger, Memory, Packet};

use super::config::PortError;
use super::links::{Errand, Links};
use super::port::{Port, Returned, Shape, is_short};
use super::ports::{Forwarded, Ports};
use super::report::PortState;
use crate::capture::{CaptureSettings, Sniffer};
use crate::worker::{BusyPoll, Clock, LOOKS};

/// What the first worker wants from a helper. Each answer has a channel of its own; the receiver of
/// an answer may be gone.
pub(super) enum Command {
    /// Move the packets of this port, which has this number.
    Add(usize, Box<Port>, Sender<io::Result<()>>),
    /// End this port.
    Remove(usize, Sender<()>),
    /// Change the shape of a port. The answer is what its device takes now.
    Change(usize, Shape, Sender<Result<Caps, PortError>>),
    /// Take note of the newest configuration of the switch, and empty the ring.
    Settle(Sender<()>),
    /// Capture a port. The capture rings this bell when its reader is gone.
    Capture(usize, CaptureSettings, EventDoorbell, Sender<io::Result<Sniffer>>),
    /// Tell when the machine of a port has gone, once.
    TellDeparture(Sender<()>),
    /// Count the running captures.
    CountCaptures(Sender<usize>),
    /// Report all counters, and those of the switch for these ports.
    Report(Arc<[PortId]>, Sender<HelperReport>),
    /// Lend the helper to the first worker. The channel has no room, so the helper is never between
    /// the two: if the first worker has given up, the thread keeps it.
    Lend(SyncSender<Box<Helper>>),
}

/// Why a helper has stopped.
pub(super) enum Stopped {
    /// The first worker has it.
    Lent,
    /// The first worker has dropped its end of the commands.
    Over,
}

/// What a helper tells the first worker by itself.
pub(super) enum News {
    /// The device of a port has changed, or reports events.
    Turned {
        index: usize,
        /// What it takes now.
        caps: Caps,
        events: Vec<String>,
    },
    /// The machine of a port has gone, or a port has failed.
    Departed,
    /// The thread has ended.
    Ended(io::Result<()>),
}

/// Counters of a helper.
#[derive(Clone, Default)]
pub(super) struct HelperReport {
    /// Its ports, by their numbers.
    pub(super) ports: Vec<(usize, (PortState, Returned))>,
    /// Counters of its forwarder, for the ports that were asked for.
    pub(super) counters: Vec<(PortId, PortCounters)>,
    pub(super) packets_taken: usize,
    pub(super) frames_taken: (usize, usize),
}

/// What a helper is made of.
pub(super) struct Parts {
    pub(super) forwarder: Forwarder,
    pub(super) links: Links,
    pub(super) ring: Consumer<Packet>,
    /// Rings for packets and commands.
    pub(super) bell: EventDoorbell,
    pub(super) commands: Receiver<Command>,
    /// Where news go, and the bell of the first worker.
    pub(super) news: (Sender<News>, EventDoorbell),
    pub(super) memory: Memory,
    pub(super) ledger: Arc<Ledger>,
    pub(super) gateway: Option<PortId>,
    pub(super) busy_poll: Duration,
    /// Tell when the machine of a port has gone, once.
    pub(super) tells_departure: bool,
}

/// A helper.
pub(super) struct Helper {
    parts: Parts,
    ports: Ports,
    /// Packets may be in the ring.
    has_packets: bool,
    /// The bell has rung: there may be a command, or fewer packets may be under way.
    has_rung: bool,
    /// Packets from the ring, and those of them that are for one port. Empty between calls.
    taken: Burst,
    run: Burst,
    /// Packets that the first worker is to judge. Empty between calls.
    rest: Burst,
    /// Number of packets that were handed out of those that were sent to be judged, all of which
    /// have left the ring if they are for ports of this helper.
    judged: u64,
    /// Number of packets that were sent to be judged, and its value after the last one of each
    /// port.
    sent: u64,
    last: Box<[u64; PORTS_MAX]>,
    /// Memory is short: no port is read until then.
    paused_until: Option<Instant>,
    /// Where the helper goes before its next turn.
    lend_to: Option<SyncSender<Box<Helper>>>,
}

impl Helper {
    pub(super) fn new(parts: Parts) -> io::Result<Self> {
        let ports = Ports::new()?;
        ports.watch(&parts.bell)?;
        Ok(Self {
            parts,
            ports,
            has_packets: false,
            has_rung: false,
            taken: Burst::new(),
            run: Burst::new(),
            rest: Burst::new(),
            judged: 0,
            sent: 0,
            last: Box::new([0; PORTS_MAX]),
            paused_until: None,
            lend_to: None,
        })
    }

    /// Returns where its news go.
    pub(super) fn news(&self) -> (Sender<News>, EventDoorbell) {
        self.parts.news.clone()
    }

    /// Serves until the first worker wants it back, or has dropped its end of the commands.
    ///
    /// # Errors
    /// The files cannot be waited for.
    pub(super) fn run(mut self: Box<Self>, clock: &Clock) -> io::Result<Stopped> {
        let (mut rest, mut poll) = (Rest::new(), BusyPoll::new(self.parts.busy_poll));
        loop {
            self.wait(clock, &mut rest, &mut poll)?;
            let now = clock.now();
            let is_over = !self.obey_all(now);
            if let Some(to) = self.lend_to.take() {
                match to.send(self) {
                    Ok(()) => return Ok(Stopped::Lent),
                    Err(SendError(kept)) => self = kept,
                }
            }
            // At the end, what the first worker sent last.
            self.turn(now);
            if is_over {
                return Ok(Stopped::Over);
            }
        }
    }

    /// Runs a turn, after it looked for work without waiting.
    ///
    /// # Errors
    /// The files cannot be waited for.
    pub(super) fn step(&mut self, now: Instant) -> io::Result<()> {
        self.look();
        self.hear()?;
        self.obey_all(now);
        self.turn(now);
        Ok(())
    }

    /// Carries out a command.
    pub(super) fn obey(&mut self, command: Command, now: Instant) {
        // Where sending fails, the receiver has given up.
        let _ = match command {
            Command::Add(index, port, answer) => {
                self.last[index] = 0;
                answer.send(self.ports.add(index, *port)).is_ok()
            }
            Command::Remove(index, answer) => {
                drop(self.ports.remove(index));
                answer.send(()).is_ok()
            }
            Command::Change(index, shape, answer) => {
                let port = self.ports.get_mut(index).expect("a port of this helper");
                answer.send(port.change(shape).map(|()| port.caps())).is_ok()
            }
            Command::Settle(answer) => {
                self.parts.forwarder.refresh();
                self.take_packets(now);
                answer.send(()).is_ok()
            }
            Command::Capture(index, settings, ended, answer) => {
                let bytes = self.parts.memory.capacity_bytes();
                answer.send(self.ports.capture(index, settings, bytes, ended)).is_ok()
            }
            Command::TellDeparture(answer) => {
                self.parts.tells_departure = true;
                answer.send(()).is_ok()
            }
            Command::CountCaptures(answer) => answer.send(self.ports.reap_captures()).is_ok(),
            Command::Report(ids, answer) => answer.send(self.report(&ids)).is_ok(),
            Command::Lend(to) => self.lend_to.replace(to).is_none(),
        };
    }

    /// Returns its ports.
    pub(super) fn ports(&mut self) -> &mut Ports {
        &mut self.ports
    }

    /// Takes the counters of its forwarder for a port of the network.
    pub(super) fn take_counters(&mut self, id: PortId) -> Option<PortCounters> {
        self.parts.forwarder.take_counters(id)
    }

    /// Carries out all commands if the bell has rung. Returns false if no more will come.
    fn obey_all(&mut self, now: Instant) -> bool {
        if !std::mem::take(&mut self.has_rung) {
            return true;
        }
        self.ports.release_held();
        loop {
            match self.parts.commands.try_recv() {
                Ok(command) => self.obey(command, now),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn turn(&mut self, now: Instant) {
        // First this, then the ring, then the ports: see the module's text.
        let judged = self.parts.links.judged();
        if self.parts.ring.is_published() {
            self.judged = judged;
        }
        self.parts.forwarder.refresh();
        self.take_packets(now);
        let Self { parts, ports, .. } = self;
        let mut cx = Context { memory: &mut parts.memory, ledger: &parts.ledger, now };
        let (news, bell) = &parts.news;
        ports.turn(&mut cx, |index, port| {
            let mut events = Vec::new();
            port.take_events(|event| events.push(event.to_string()));
            let caps = port.caps();
            if port.reported.replace(caps) != Some(caps) || !events.is_empty() {
                // A failure means that the first worker has ended.
                let _ = news.send(News::Turned { index, caps, events });
                bell.ring();
            }
        });
        self.paused_until.take_if(|until| *until <= now);
        if self.paused_until.is_none() && self.read(now) == Input::NoMemory {
            self.paused_until = Some(now + MEMORY_PAUSE);
        }
        let Parts { memory, ledger, news: (news, bell), tells_departure, .. } = &mut self.parts;
        self.ports.flush(&mut Context { memory, ledger, now });
        if *tells_departure && self.ports.iter().any(Port::has_ended) {
            *tells_departure = false;
            // A failure means that the first worker has ended.
            let _ = news.send(News::Departed);
            bell.ring();
        }
    }

    /// Reads the ports that are ready, and forwards their packets.
    fn read(&mut self, now: Instant) -> Input {
        let Self { parts, ports, rest, sent, last, judged, .. } = self;
        let Parts { forwarder, links, memory, ledger, gateway, .. } = parts;
        let is_shared = links.share_gateway(ports.gateway_users(now));
        ports.hold(is_shared, now, |index| links.under_way(index));
        let mut cx = Context { memory, ledger, now };
        ports.read(is_shared, &mut cx, |ports, index, burst, cx| {
            let Some(id) = ports[index].as_ref().and_then(|port| port.id) else {
                unreachable!("a port that was read has an ID")
            };
            let is_short = links.share_shortage(is_short(cx.memory));
            let gateway = *gateway;
            let mut out = Outlet { ports, links, from: id, gateway, to_gateway: 0, is_short };
            let is_pending = *judged < last[index];
            let bytes = forwarder.forward(id, burst, cx, &mut out, rest, is_pending);
            let (to_gateway, mut to_judge) = (out.to_gateway, 0);
            if !rest.is_empty() {
                to_judge = links.judge(id, rest);
                *sent += to_judge as u64;
                last[index] = *sent;
                for _ in 0..rest.len() {
                    forwarder.count_drop(id, PortDrop::QueueFull);
                }
                rest.clear();
            }
            Forwarded { bytes, to_gateway, to_judge }
        })
    }

    /// Gives the packets that are in the ring now to the ports that they leave by.
    pub(super) fn take_packets(&mut self, now: Instant) {
        let mut left = self.parts.ring.len();
        while left > 0 {
            self.taken.limit(left.min(BURST_MAX));
            let count = self.parts.ring.dequeue(&mut self.taken);
            left = if count == 0 { 0 } else { left - count };
            self.taken.prefetch();
            while let Some(packet) = self.taken.pop() {
                let Errand::Deliver(port) = Errand::of(&packet) else {
                    unreachable!("only the first worker judges")
                };
                let is_last = self.taken.first().map(Errand::of) != Some(Errand::Deliver(port));
                self.run.push(packet).expect("there is room for what was taken");
                if is_last {
                    self.deliver(port.into(), now);
                }
            }
        }
        self.has_packets = !self.parts.ring.is_empty();
    }

    /// Gives the packets of `run` to a port.
    fn deliver(&mut self, index: usize, now: Instant) {
        let Self { parts, ports, run, .. } = self;
        let Parts { forwarder, links, memory, ledger, .. } = parts;
        // A port that is not here has been removed.
        if let Some(port) = ports.get_mut(index) {
            let is_short = links.share_shortage(is_short(memory));
            let frames = port.deliver(run, is_short, &mut Context { memory, ledger, now });
            if let Some(id) = port.id {
                (0..frames).for_each(|_| forwarder.count_drop(id, PortDrop::QueueFull));
            }
        }
        run.clear();
    }

    fn wait(&mut self, clock: &Clock, rest: &mut Rest, poll: &mut BusyPoll) -> io::Result<()> {
        let began = clock.now();
        let timeout = self.next_deadline().map(|at| at.since(began));
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            // Only polling finds work of guests here.
            self.look();
            return self.hear();
        }
        // While memory is short, packets of guests have to wait.
        if self.paused_until.is_none() && self.poll(timeout, clock, poll)? {
            return Ok(());
        }
        if self.arm() {
            return self.hear();
        }
        let began = clock.now();
        let (rests, heard) = self.ports.sleep(rest, timeout)?;
        if rests {
            self.ports.rest();
            self.parts.memory.unused(release_unused);
        }
        if heard.any {
            poll.slept(clock.now().since(began));
        }
        self.note(heard.bell);
        Ok(())
    }

    /// Polls for work for as long as that pays, for `timeout` at most. Returns true if there is
    /// some, or a file is readable.
    fn poll(
        &mut self,
        timeout: Option<Duration>,
        clock: &Clock,
        poll: &mut BusyPoll,
    ) -> io::Result<bool> {
        let window = poll.window().min(timeout.unwrap_or(Duration::MAX));
        if window.is_zero() {
            return Ok(false);
        }
        let began = clock.now();
        let was_there = self.look();
        loop {
            let found = was_there
                || (0..LOOKS).any(|_| {
                    spin_loop();
                    self.look()
                });
            let spent = clock.now().since(began);
            if found {
                poll.found((!was_there).then_some(spent));
            } else if spent >= window {
                poll.missed();
                return Ok(false);
            }
            let heard = self.ports.hear()?;
            self.note(heard.bell);
            if found || heard.any {
                return Ok(true);
            }
        }
    }

    /// Collects which files are readable.
    fn hear(&mut self) -> io::Result<()> {
        let heard = self.ports.hear()?;
        self.note(heard.bell);
        Ok(())
    }

    fn note(&mut self, has_rung: bool) {
        if has_rung {
            // Cleared first: what is sent later rings again.
            self.parts.bell.clear();
            self.has_rung = true;
        }
    }

    /// Returns true if there is work of guests or in the ring.
    fn look(&mut self) -> bool {
        self.has_packets = !self.parts.ring.is_empty();
        self.ports.look(Port::poll) || self.has_packets
    }

    /// Makes files report new work. Returns true if there is some already.
    fn arm(&mut self) -> bool {
        self.has_packets = !self.parts.ring.needs_wakeup();
        let has_work = self.ports.look(Port::arm);
        has_work && self.paused_until.is_none() || self.has_packets
    }

    fn next_deadline(&self) -> Option<Instant> {
        let packets = self.has_packets.then_some(Instant::START);
        match self.paused_until {
            Some(until) => earliest([packets, Some(until), self.ports.device_deadline()]),
            None => earliest([packets, self.ports.next_deadline()]),
        }
    }

    fn report(&self, ids: &[PortId]) -> HelperReport {
        let Parts { forwarder, memory: Memory { packets, small, large }, .. } = &self.parts;
        let counted = |id: &PortId| Some((*id, forwarder.counters_of(*id)?.clone()));
        HelperReport {
            ports: self.ports.states().collect(),
            counters: ids.iter().filter_map(counted).collect(),
            packets_taken: packets.out_count(),
            frames_taken: (small.out_count(), large.out_count()),
        }
    }
}

/// Where packets of a helper's port leave.
struct Outlet<'a> {
    ports: &'a mut [Option<Port>],
    links: &'a Links,
    from: PortId,
    gateway: Option<PortId>,
    /// Packets that were handed over to the gateway.
    to_gateway: usize,
    is_short: bool,
}

impl Egress for Outlet<'_> {
    fn transmit(&mut self, id: PortId, burst: &mut Burst, cx: &mut Context<'_>) {
        // The forwarder drops and counts the packets left in the burst.
        if let Some(port) = self.ports.get_mut(id.index()).and_then(Option::as_mut) {
            port.transmit(burst, self.is_short, cx);
        } else if self.gateway == Some(id) {
            self.to_gateway += self.links.deliver_to_gateway(self.from, burst);
        } else {
            self.links.deliver(id, burst);
        }
    }
}
