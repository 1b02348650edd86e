//! The ports whose packets one thread moves, and the files that it waits for.
//!
//! Ready ports are read in turn, one burst at a time. Each burst is passed on before the next one
//! is read. What a device does not take at once waits in a queue of its port.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use towpath_io::doorbell::EventDoorbell;
use towpath_io::reactor::{Events, Interest, Reactor};
use towpath_io::thread::Rest;
use towpath_net::time::{Duration, Instant};
use towpath_packet::under_way::UnderWay;
use towpath_packet::{Burst, Context, Input};

use super::BURSTS_PER_TURN;
use super::port::{Port, Returned};
use super::report::PortState;
use crate::capture::{CaptureSettings, Sniffer};

/// Token of the doorbell that captures ring when their readers are gone; tokens of ports are
/// smaller.
const CAPTURE_ENDED: u64 = u64::MAX;
/// Token of the doorbell that other threads ring.
const BELL: u64 = u64::MAX - 1;
/// Token of the doorbell that a control plane rings.
const CONTROL: u64 = u64::MAX - 2;

/// The ports of one thread.
pub(super) struct Ports {
    /// The ports, by their numbers in the switch.
    places: Vec<Option<Port>>,
    reactor: Reactor,
    events: Box<Events>,
    received: Burst,
    /// The port to be read first, which changes so that none is always last.
    first: usize,
    /// Rung by captures that end; made with the first capture.
    capture_ended: Option<EventDoorbell>,
}

/// What became of a burst that was received.
pub(super) struct Forwarded {
    pub(super) bytes: u64,
    /// Packets of it that wait for the gateway.
    pub(super) to_gateway: usize,
    /// Packets of it that wait for another thread to judge them.
    pub(super) to_judge: usize,
}

/// Which of the files are readable.
#[derive(Clone, Copy)]
pub(super) struct Heard {
    /// One or more.
    pub(super) any: bool,
    /// The doorbell that other threads ring.
    pub(super) bell: bool,
    /// That of captures.
    pub(super) capture_ended: bool,
    /// That of a control plane.
    pub(super) control: bool,
}

impl Ports {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            places: Vec::new(),
            reactor: Reactor::new()?,
            events: Box::default(),
            received: Burst::new(),
            first: 0,
            capture_ended: None,
        })
    }

    /// Watches the doorbell that other threads ring.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub(super) fn watch(&self, bell: &EventDoorbell) -> io::Result<()> {
        self.reactor.add(bell, BELL, Interest::READ, false)
    }

    /// Watches the doorbell that a control plane rings.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub(super) fn watch_control(&self, bell: &EventDoorbell) -> io::Result<()> {
        self.reactor.add(bell, CONTROL, Interest::READ, false)
    }

    /// Ends [`Ports::watch`] and [`Ports::watch_control`].
    pub(super) fn unwatch(&self, bell: &EventDoorbell) {
        // It is registered and still open.
        let _ = self.reactor.remove(bell);
    }

    /// Adds a port, which has this number.
    ///
    /// # Errors
    /// Its file cannot be watched; nothing was changed.
    pub(super) fn add(&mut self, index: usize, port: Port) -> io::Result<()> {
        self.await_port(index, &port)?;
        self.put(index, port);
        Ok(())
    }

    /// Watches the file of a port that another thread still has, so that [`Ports::put`] cannot
    /// fail.
    ///
    /// # Errors
    /// Its file cannot be watched; nothing was changed.
    pub(super) fn await_port(&self, index: usize, port: &Port) -> io::Result<()> {
        self.reactor.add(port, index as u64, Interest::READ, false)
    }

    /// Takes back [`Ports::await_port`].
    pub(super) fn forgo_port(&self, port: &Port) {
        // It is registered and still open.
        let _ = self.reactor.remove(port);
    }

    /// Takes over a port, whose file is watched.
    pub(super) fn put(&mut self, index: usize, port: Port) {
        if self.places.len() <= index {
            self.places.resize_with(index + 1, || None);
        }
        self.places[index] = Some(port);
    }

    /// Takes a port out.
    pub(super) fn remove(&mut self, index: usize) -> Option<Port> {
        let port = self.places.get_mut(index)?.take()?;
        // The port is registered and still open.
        let _ = self.reactor.remove(&port);
        Some(port)
    }

    pub(super) fn get(&self, index: usize) -> Option<&Port> {
        self.places.get(index)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Port> {
        self.places.get_mut(index)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Port> + Clone {
        self.places.iter().flatten()
    }

    /// The ports, by their numbers in the switch.
    pub(super) fn places_mut(&mut self) -> &mut [Option<Port>] {
        &mut self.places
    }

    /// Checks each port for work, and marks those that have some for the next turn. Returns true if
    /// there are any. Ports that are [held](Ports::hold) do not count.
    pub(super) fn look(&mut self, has_work: impl Fn(&mut Port) -> bool) -> bool {
        let mut any = false;
        for port in self.places.iter_mut().flatten() {
            if has_work(port) {
                (port.is_ready, any) = (true, any | !port.is_held);
            }
        }
        any
    }

    /// Collects which files are readable.
    pub(super) fn hear(&mut self) -> io::Result<Heard> {
        self.reactor.wait(Some(Duration::ZERO), &mut self.events)?;
        Ok(self.sort())
    }

    /// Sleeps until a file is readable, for `timeout` at most. Also returns true if the rest
    /// begins, see [`Rest::wait`].
    pub(super) fn sleep(
        &mut self,
        rest: &mut Rest,
        timeout: Option<Duration>,
    ) -> io::Result<(bool, Heard)> {
        let rests = rest.wait(&mut self.reactor, timeout, &mut self.events)?;
        Ok((rests, self.sort()))
    }

    /// Notes which files are readable.
    fn sort(&mut self) -> Heard {
        let Self { places, reactor, events, .. } = self;
        let mut heard =
            Heard { any: !events.is_empty(), bell: false, capture_ended: false, control: false };
        for event in events.iter() {
            match event.token {
                CAPTURE_ENDED => heard.capture_ended = true,
                BELL => heard.bell = true,
                CONTROL => heard.control = true,
                token => {
                    let Some(Some(port)) = places.get_mut(token as usize) else { continue };
                    let is_of_use = !port.has_failed();
                    (port.has_news, port.is_ready) = (is_of_use, is_of_use);
                    if event.ready.hangup || event.ready.error {
                        port.hung_up();
                    }
                    if !is_of_use {
                        // The file of a failed port stays readable. It is registered and still
                        // open.
                        let _ = reactor.remove(&*port);
                    }
                }
            }
        }
        if heard.capture_ended {
            self.reap_captures();
        }
        heard
    }

    /// Gives devices that need one a turn, and shows each to `turned` afterwards.
    pub(super) fn turn(&mut self, cx: &mut Context<'_>, mut turned: impl FnMut(usize, &mut Port)) {
        let Self { places, reactor, .. } = self;
        for (index, port) in places.iter_mut().enumerate() {
            let Some(port) = port else { continue };
            if port.resumes(cx.now) {
                watch(reactor, index, port, Interest::READ);
            }
            let is_due = port.deadline.is_some_and(|at| at <= cx.now);
            if (port.has_news || is_due) && port.turn(cx) {
                turned(index, port);
            }
        }
    }

    /// Returns how many ports use the gateway now.
    pub(super) fn gateway_users(&self, now: Instant) -> usize {
        self.iter().filter(|port| port.share.is_used(now)).count()
    }

    /// Reads all ports that are ready, and passes each burst on by `forward`, which takes all of
    /// it. `is_shared`: several ports use the gateway.
    pub(super) fn read<F>(&mut self, is_shared: bool, cx: &mut Context<'_>, mut forward: F) -> Input
    where
        F: FnMut(&mut [Option<Port>], usize, &mut Burst, &mut Context<'_>) -> Forwarded,
    {
        let mut input = Input::Done;
        let count = self.places.len();
        for step in 0..count {
            let index = (self.first + step) % count;
            if self.read_one(index, is_shared, cx, &mut forward) == Input::NoMemory {
                input = Input::NoMemory;
                self.first = index;
                break;
            }
        }
        self.first = (self.first + 1) % count.max(1);
        input
    }

    fn read_one<F>(
        &mut self,
        index: usize,
        is_shared: bool,
        cx: &mut Context<'_>,
        forward: &mut F,
    ) -> Input
    where
        F: FnMut(&mut [Option<Port>], usize, &mut Burst, &mut Context<'_>) -> Forwarded,
    {
        let Self { places, received, reactor, .. } = self;
        for _ in 0..BURSTS_PER_TURN {
            let Some(port) = &mut places[index] else { return Input::Done };
            if !port.is_ready {
                return Input::Done;
            }
            let room = port.share.room(is_shared, cx.now);
            if room == 0 {
                // There is a next turn as long as packets wait for the gateway.
                return Input::Done;
            }
            let allowed = port.allowance(cx.now);
            if allowed == 0 {
                watch(reactor, index, port, Interest::NONE);
                return Input::Done;
            }
            received.limit(room.min(allowed));
            let input = port.receive(received, cx);
            // A burst that is not full has emptied the port; its file reports when there is more.
            port.is_ready = received.is_full();
            if received.is_empty() {
                return input;
            }
            let packets = received.len();
            let forwarded = forward(places, index, received, cx);
            if let Some(port) = &mut places[index] {
                let Forwarded { bytes, to_gateway, to_judge } = forwarded;
                port.share.came(packets, bytes as usize, to_gateway, cx.now);
                port.share.wait_for(to_judge);
            }
            if input == Input::NoMemory {
                return input;
            }
        }
        Input::Done
    }

    /// Offers waiting packets to the devices again.
    pub(super) fn flush(&mut self, cx: &mut Context<'_>) {
        for port in self.places.iter_mut().flatten() {
            port.flush(cx);
        }
    }

    /// Holds ports back of whose packets the first worker has not finished enough, as `under_way`
    /// says for each port: they are not read before the bell rings, which it does once fewer are
    /// left.
    pub(super) fn hold<'a>(
        &mut self,
        is_shared: bool,
        now: Instant,
        under_way: impl Fn(usize) -> &'a UnderWay,
    ) {
        for (index, port) in self.places.iter_mut().enumerate() {
            if let Some(port) = port
                && port.is_ready
            {
                port.is_held = port.share.hold(is_shared, now, under_way(index));
            }
        }
    }

    /// Lets ports that are held be read again.
    pub(super) fn release_held(&mut self) {
        self.places.iter_mut().flatten().for_each(|port| port.is_held = false);
    }

    /// When a device needs a turn, or a port is to be read or tried again.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if self.iter().any(|port| port.is_ready && !port.is_held) {
            return Some(Instant::START);
        }
        self.device_deadline()
    }

    /// When a device needs a turn, or is tried again.
    pub(super) fn device_deadline(&self) -> Option<Instant> {
        self.iter().filter_map(|port| port.deadline).min()
    }

    /// Returns the states of the ports, by their numbers.
    pub(super) fn states(&self) -> impl Iterator<Item = (usize, (PortState, Returned))> {
        let ports = self.places.iter().enumerate();
        ports.filter_map(|(index, port)| {
            let port = port.as_ref()?;
            Some((index, (port.state(), port.returned)))
        })
    }

    /// Releases what is kept ready for reads.
    pub(super) fn rest(&mut self) {
        self.places.iter_mut().flatten().for_each(Port::rest);
    }

    /// Begins a capture of a port of this thread, which rings `ended` when its reader is gone.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub(super) fn capture(
        &mut self,
        index: usize,
        settings: CaptureSettings,
        frame_bytes: usize,
        ended: EventDoorbell,
    ) -> io::Result<Sniffer> {
        let port = self.get_mut(index).expect("a port of this thread");
        port.mirrors.add(settings, frame_bytes, Some(ended))
    }

    /// Returns the doorbell for the captures of a network to ring when their readers are gone. The
    /// first worker hears it: ports move between workers with their captures.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub(super) fn capture_bell(&mut self) -> io::Result<EventDoorbell> {
        if let Some(ended) = &self.capture_ended {
            return Ok(ended.clone());
        }
        let ended = EventDoorbell::new().map_err(io::Error::from)?;
        self.reactor.add(&ended, CAPTURE_ENDED, Interest::READ, false)?;
        Ok(self.capture_ended.insert(ended).clone())
    }

    /// Removes captures whose readers are gone. Returns the number of the others.
    pub(super) fn reap_captures(&mut self) -> usize {
        self.capture_ended.iter().for_each(EventDoorbell::clear);
        let mirrors = self.places.iter_mut().flatten().map(|port| &mut port.mirrors);
        mirrors
            .map(|mirrors| {
                mirrors.reap();
                mirrors.len()
            })
            .sum()
    }
}

/// Changes what the file of a port reports.
fn watch(reactor: &Reactor, index: usize, port: &Port, interest: Interest) {
    // It is registered and still open, unless the port has failed: nothing is read then.
    let _ = reactor.modify(port, index as u64, interest, false);
}

impl AsFd for Ports {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reactor.as_fd()
    }
}
