//! A port: its device, and a lane for each queue of the device.

use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use towpath_io::pcapng::Direction;
use towpath_net::switch::{PortCounters, PortId};
use towpath_net::time::{Instant, earliest};
use towpath_packet::burst::BURST_MAX;
use towpath_packet::{Burst, Caps, Context, Device, Input, Memory};

use super::RETRY;
use super::config::{self, Attachment, NetworkConfig, PortError, PortSettings};
use super::device::PortDevice;
use super::lane::{Driver, Lane};
use super::pace::{self, Bandwidth, Pace};
use super::report::PortState;
use super::share::PortShare;
use super::vxlan::{Ends, Vxlan};
use crate::capture::Mirrors;

/// Packets that may wait for a port while memory is short. With as many ports as a switch has, they
/// are half of all packets.
pub(super) const QUEUE_LEN_SHORT: usize = 16;

/// Longest pause of a port with a bound. What its file reports otherwise waits so long, such as
/// requests of a front end.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// What the settings of a port say about the part that moves packets.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Packets that may wait for each queue.
    pub(super) queue_len: usize,
    pub(super) mtu: u16,
    pub(super) is_up: bool,
    /// Bounds of the frames from the guest, and to it.
    pub(super) bandwidths: [Option<Bandwidth>; 2],
}

impl Shape {
    /// Returns the shape of a port in a network of this MTU.
    pub(super) fn of(settings: &PortSettings, mtu: u16) -> Self {
        Self {
            queue_len: settings.queue_len,
            mtu: settings.mtu.unwrap_or(mtu),
            is_up: settings.is_up,
            bandwidths: [settings.bandwidth_out, settings.bandwidth_in],
        }
    }
}

/// The part of a port that moves packets. What the network knows about the port besides is a
/// [`Member`](super::member::Member).
pub(super) struct Port {
    pub(super) id: Option<PortId>,
    /// The packets that wait, for each queue of the device.
    lanes: Box<[Lane]>,
    /// Packets that may wait for each queue.
    queue_len: usize,
    device: PortDevice,
    /// The link of the device is up, and should be. It follows in the next turn.
    is_up: bool,
    wants_up: bool,
    /// Guests connect to it, one after the other.
    is_listening: bool,
    /// Its file was readable, and it has had no turn since.
    pub(super) has_news: bool,
    /// There may be packets to receive, or room for waiting packets.
    pub(super) is_ready: bool,
    /// It is not read: enough of its packets wait for another thread.
    pub(super) is_held: bool,
    pub(super) share: PortShare,
    /// Bounds of the frames from the guest, and to it.
    pace_out: Option<Pace>,
    pace_in: Option<Pace>,
    /// It is not read before, as the bound says.
    paused_until: Option<Instant>,
    /// The other side has gone or failed: it is read without regard to the bound.
    has_hung_up: bool,
    /// When its device needs a turn, or is tried again.
    pub(super) deadline: Option<Instant>,
    /// Why it has failed.
    failure: Option<String>,
    /// Captures of its packets.
    pub(super) mirrors: Mirrors,
    /// What the device takes, as another worker has last reported it to the first one.
    pub(super) reported: Option<Caps>,
    /// Packets that another thread's forwarder counted as sent, and that found no room.
    pub(super) returned: Returned,
}

/// Packets that count as sent and were not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Returned {
    pub(super) packets: u64,
    pub(super) super_packets: u64,
    pub(super) bytes: u64,
}

impl Returned {
    /// Counts the packets in a burst.
    pub(super) fn of(burst: &Burst) -> Self {
        let mut counts = Self { packets: burst.frames() as u64, ..Self::default() };
        for packet in burst.iter() {
            counts.super_packets += u64::from(packet.offload().gso.is_some());
            counts.bytes += packet.frame_bytes() as u64;
        }
        counts
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.super_packets += other.super_packets;
        self.bytes += other.bytes;
    }

    /// Subtracts them from what counts as sent. The counters of several threads are not from the
    /// same moment.
    pub(super) fn take_from(&self, counters: &mut PortCounters) {
        counters.packets_out = counters.packets_out.saturating_sub(self.packets);
        counters.super_packets_out = counters.super_packets_out.saturating_sub(self.super_packets);
        counters.bytes_out = counters.bytes_out.saturating_sub(self.bytes);
    }
}

/// Free share of frames, in 1/256, below which memory is short. Packets that wait for ports leave
/// this share to others.
const SHORT_SHARE: u32 = 160;

/// Returns true if packets that wait for ports must leave the rest of the memory to others.
pub(super) fn is_short(memory: &mut Memory) -> bool {
    memory.packets.free_count() < memory.packets.capacity() / 2 || !memory.has_free(SHORT_SHARE)
}

impl Port {
    /// Opens the device, with `ends` for all tunnels of the network. The port does not belong to a
    /// switch yet.
    pub(super) fn open(
        attachment: &Attachment,
        settings: &PortSettings,
        network: &NetworkConfig,
        ends: &mut Ends,
    ) -> Result<Self, PortError> {
        config::check_mtu(attachment, settings)?;
        let device = PortDevice::open(attachment, settings, network, ends)?;
        let queues = 0..device.queue_count(settings);
        let [mut pace_out, mut pace_in] = [None, None];
        Pace::follow(&mut pace_out, settings.bandwidth_out);
        Pace::follow(&mut pace_in, settings.bandwidth_in);
        let lanes = queues.map(|_| Lane::new(settings.queue_len)).collect::<Result<_, _>>()?;
        Ok(Self {
            id: None,
            lanes,
            queue_len: settings.queue_len,
            device,
            is_up: true,
            wants_up: settings.is_up,
            is_listening: !matches!(
                attachment,
                Attachment::VhostUserFd(_) | Attachment::StreamFd(_)
            ),
            // It may have been readable before it was watched.
            has_news: true,
            is_ready: true,
            is_held: false,
            share: PortShare::new(),
            pace_out,
            pace_in,
            paused_until: None,
            has_hung_up: false,
            deadline: None,
            failure: None,
            mirrors: Mirrors::default(),
            reported: None,
            returned: Returned::default(),
        })
    }

    /// Returns what its device takes now.
    pub(super) fn caps(&self) -> Caps {
        self.device.caps()
    }

    /// Changes its shape. A link that goes down stays up for its device until the next turn, so
    /// that until then the change can be taken back.
    ///
    /// # Errors
    /// [`PortError`]; the shape is the former one.
    pub(super) fn change(&mut self, shape: Shape) -> Result<(), PortError> {
        (self.has_news, self.deadline) = (true, Some(Instant::START));
        if shape.is_up && !self.is_up {
            self.device.set_link(true)?;
            self.is_up = true;
        }
        self.resize(shape.queue_len)?;
        self.device.set_mtu(shape.mtu);
        self.wants_up = shape.is_up;
        let [from_guest, to_guest] = shape.bandwidths;
        Pace::follow(&mut self.pace_out, from_guest);
        Pace::follow(&mut self.pace_in, to_guest);
        // The next turn reads it again, if the new bound allows that.
        self.paused_until = self.paused_until.map(|_| Instant::START);
        Ok(())
    }

    /// Changes how many packets may wait for each queue.
    fn resize(&mut self, queue_len: usize) -> Result<(), PortError> {
        let result = self.lanes.iter_mut().try_for_each(|lane| lane.resize(queue_len));
        match result {
            Ok(()) => self.queue_len = queue_len,
            // Each had room for as many before.
            Err(_) => self.lanes.iter_mut().for_each(|lane| drop(lane.resize(self.queue_len))),
        }
        result
    }

    /// Returns the number of packets that wait for its device.
    pub(super) fn waiting(&self) -> usize {
        self.lanes.iter().map(Lane::waiting).sum()
    }

    /// Returns its device if that is a tunnel.
    pub(super) fn tunnel(&self) -> Option<&Vxlan> {
        match &self.device {
            PortDevice::Vxlan(tunnel) => Some(tunnel),
            _ => None,
        }
    }

    /// Returns its device if that is a tunnel, to change it.
    pub(super) fn tunnel_mut(&mut self) -> Option<&mut Vxlan> {
        match &mut self.device {
            PortDevice::Vxlan(tunnel) => Some(tunnel),
            _ => None,
        }
    }

    /// Prepares the port for another worker, while `waiting` of its packets wait for the gateway.
    /// That worker looks at all its queues once.
    pub(super) fn take_over(&mut self, waiting: usize) {
        (self.has_news, self.is_ready, self.is_held) = (true, true, false);
        self.share.take_over(waiting);
        self.reported = None;
    }

    /// Polls the device; returns true if there is work.
    pub(super) fn poll(&mut self) -> bool {
        self.failure.is_none() && self.paused_until.is_none() && self.device.poll()
    }

    /// Makes the file report new work. Returns true if there is work already.
    pub(super) fn arm(&mut self) -> bool {
        self.failure.is_none() && self.paused_until.is_none() && self.device.arm()
    }

    /// Does the device's pending work other than packets. Returns true if the device's caps may
    /// have changed.
    pub(super) fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        (self.deadline, self.has_news) = (None, false);
        if self.failure.is_some() {
            return false;
        }
        let link = self.follow_link();
        let result = self.device.turn(true, cx);
        self.deadline = earliest([self.device.next_deadline(), self.paused_until]);
        self.note(link.and(result));
        true
    }

    /// Sets the link of the device down if it should be.
    fn follow_link(&mut self) -> Result<(), PortError> {
        if self.is_up && !self.wants_up {
            self.is_up = false;
            self.device.set_link(false)?;
        }
        Ok(())
    }

    /// Returns how many packets may be read from it now. If none may, the port pauses: it is not
    /// ready before [`Port::resumes`].
    pub(super) fn allowance(&mut self, now: Instant) -> usize {
        let Some(pace) = &self.pace_out else { return BURST_MAX };
        if std::mem::take(&mut self.has_hung_up) {
            return BURST_MAX;
        }
        let packets = pace.packets(now);
        if packets == 0 {
            self.is_ready = false;
            self.paused_until = Some(pace.resumes_at().min(now + PAUSE_MAX));
            self.deadline = earliest([self.deadline, self.paused_until]);
        }
        packets
    }

    /// Its file reports that the other side has gone or failed, and would do so until that is read.
    pub(super) fn hung_up(&mut self) {
        self.has_hung_up = true;
        self.paused_until = self.paused_until.map(|_| Instant::START);
    }

    /// Returns true if a pause ends now.
    pub(super) fn resumes(&mut self, now: Instant) -> bool {
        let resumes = self.paused_until.take_if(|at| *at <= now).is_some();
        self.is_ready |= resumes;
        resumes
    }

    /// Adds received packets to `burst`, which must be empty.
    pub(super) fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Input {
        if self.failure.is_some() {
            return Input::Done;
        }
        let result = self.device.receive(burst, cx);
        if let Some(pace) = &self.pace_out {
            pace.take(pace::bytes(burst), cx.now);
        }
        self.deadline = earliest([self.deadline, self.device.next_deadline()]);
        self.mirrors.see(Direction::Inbound, burst.iter());
        self.note(result).unwrap_or(Input::Done)
    }

    /// Passes packets from the front of `burst` to the device, each to the queue of its flow. What
    /// a queue does not take waits, as far as there is room; the rest stays in `burst`. `is_short`:
    /// memory is short.
    pub(super) fn transmit(&mut self, burst: &mut Burst, is_short: bool, cx: &mut Context<'_>) {
        if self.failure.is_some() {
            return burst.clear();
        }
        let open = self.device.open_queues();
        let most = if is_short { QUEUE_LEN_SHORT } else { usize::MAX };
        if open.len() <= 1 {
            let queue = open.first().unwrap_or(0);
            return self.transmit_by(queue, burst, most, cx);
        }
        while let Some(packet) = burst.pop() {
            let queue = open.of_flow(&packet).expect("a queue is open");
            let arriving = &mut self.lanes[usize::from(queue)].arriving;
            arriving.push(packet).expect("it has room for a burst");
        }
        for queue in 0..self.lanes.len() {
            if self.lanes[queue].arriving.is_empty() {
                continue;
            }
            let mut arriving = std::mem::take(&mut self.lanes[queue].arriving);
            self.transmit_by(queue as u16, &mut arriving, most, cx);
            while let Some(packet) = arriving.pop() {
                burst.push(packet).expect("it came from this burst");
            }
        }
    }

    /// Passes packets that came from another thread on, as [`Port::transmit`] does. Drops those
    /// without room, and returns the number of their frames.
    pub(super) fn deliver(
        &mut self,
        burst: &mut Burst,
        is_short: bool,
        cx: &mut Context<'_>,
    ) -> usize {
        self.transmit(burst, is_short, cx);
        let refused = Returned::of(burst);
        self.returned.add(&refused);
        burst.clear();
        refused.packets as usize
    }

    /// Passes packets from the front of `burst` to one queue. At most `most` packets wait for the
    /// port before no more may, and no longer than its bound allows.
    fn transmit_by(&mut self, queue: u16, burst: &mut Burst, most: usize, cx: &mut Context<'_>) {
        let Some(pace) = &self.pace_in else { return self.offer(queue, burst, most, cx) };
        let waiting = self.lanes.iter().map(Lane::waiting_bytes).sum();
        let room = pace.room(waiting, cx.now);
        pace::pass_front(burst, room, |front| self.offer(queue, front, most, cx));
    }

    fn offer(&mut self, queue: u16, burst: &mut Burst, most: usize, cx: &mut Context<'_>) {
        let Self { device, mirrors, lanes, pace_in, .. } = self;
        let index = usize::from(queue);
        let of_others: usize =
            lanes.iter().map(Lane::waiting).sum::<usize>() - lanes[index].waiting();
        let most = most.saturating_sub(of_others);
        let mut driver = Driver { device, queue, mirrors, pace: pace_in.as_ref() };
        let result = lanes[index].transmit(burst, most, &mut driver, cx);
        self.transmitted(result, cx.now);
    }

    /// Offers waiting packets to the device again.
    pub(super) fn flush(&mut self, cx: &mut Context<'_>) {
        if self.waiting() == 0 {
            return;
        }
        let open = self.device.open_queues();
        let Self { device, mirrors, lanes, pace_in, .. } = self;
        let mut result = Ok(());
        for (queue, lane) in (0..).zip(lanes) {
            // What waits for a queue that the guest no longer uses goes to another one.
            let used = if open.contains(queue) { queue } else { open.first().unwrap_or(queue) };
            let pace = pace_in.as_ref();
            let mut driver = Driver { device, queue: used, mirrors, pace };
            result = result.and(lane.flush(&mut driver, cx).map(drop));
        }
        self.transmitted(result, cx.now);
    }

    /// Notes the result of an attempt to transmit.
    fn transmitted(&mut self, result: Result<(), PortError>, now: Instant) {
        self.note(result);
        self.deadline = earliest([self.deadline, self.device.next_deadline()]);
        if self.waiting() > 0 {
            self.deadline = earliest([self.deadline, self.retry_at(now)]);
        }
    }

    /// Returns when to offer waiting packets again, unless the file of the device reports that.
    fn retry_at(&self, now: Instant) -> Option<Instant> {
        match &self.pace_in {
            Some(pace) if pace.left(now) == 0 => Some(pace.resumes_at()),
            // While the port pauses, its file is not watched.
            _ if self.device.reports_room() && self.paused_until.is_none() => None,
            _ => Some(now + RETRY),
        }
    }

    /// Passes each event of the device since the last call to `tell`.
    pub(super) fn take_events(&mut self, tell: impl FnMut(&dyn Display)) {
        self.device.take_events(tell);
    }

    /// Releases what is kept ready for reads.
    pub(super) fn rest(&mut self) {
        self.device.rest();
    }

    pub(super) fn state(&self) -> PortState {
        PortState {
            caps: self.caps(),
            is_connected: self.device.is_connected() && self.failure.is_none(),
            failure: self.failure.clone(),
            waiting: self.waiting(),
            device: self.device.report(),
        }
    }

    /// Returns true if the port has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Returns true if a machine was connected and has gone, or the port has failed.
    pub(super) fn has_ended(&self) -> bool {
        self.has_failed() || self.device.has_ended(self.is_listening)
    }

    /// Records an error, which ends this port's traffic and nothing else. Waiting packets are
    /// dropped.
    fn note<T>(&mut self, result: Result<T, PortError>) -> Option<T> {
        if let Err(error) = &result {
            self.failure = Some(error.to_string());
            self.is_ready = false;
            self.lanes.iter_mut().for_each(Lane::clear);
        }
        result.ok()
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.file().expect("the devices of ports have files")
    }
}
