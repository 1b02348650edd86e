//! Protocols and their device, driven together.
//!
//! # Theory of operation
//!
//! An [`Engine`] owns a stack, one queue of a device and the memory of both. Whoever drives it
//! sleeps until the device's file is readable or [`Engine::next_deadline`] has come, and then does
//! a turn: [`Engine::turn`], [`Engine::receive`], [`Engine::run_timers`], what the owner itself has
//! to do, [`Engine::send`]. Acknowledgements and windows so leave once for a burst, after the owner
//! took the data.
//!
//! Three kinds of owners drive one: the worker of a gateway, alone; a host and its C counterpart,
//! behind a lock, so that calls use the stack between two turns ([`Engine::with`]).
//!
//! When memory is short, the device is left alone for [`MEMORY_PAUSE`], and what it holds waits
//! there. What the device does not take waits in the engine, and the stack builds nothing more
//! meanwhile. After an error of the device the engine is *gone*: it receives nothing, and drops and
//! counts what is sent, as with the cable out.
//!
//! No call blocks, reads a clock or allocates. One thread at a time.

use crate::socket::Sockets;
use crate::stack::Stack;
use crate::time::{Duration, Instant, earliest};
use alloc::sync::Arc;
use towpath_packet::{Burst, Context, Device, Input, Ledger, Memory};

/// How long a device is left alone when memory is short, and when it took a part only.
pub const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// What an engine drives: a stack, or sockets over one.
pub trait Protocols {
    /// The stack.
    fn stack(&self) -> &Stack;

    /// The stack, to be changed.
    fn stack_mut(&mut self) -> &mut Stack;

    /// Takes received packets.
    fn input(&mut self, burst: &mut Burst, cx: &mut Context<'_>);

    /// Fills `burst` with packets to send; empty if there are none.
    fn output(&mut self, burst: &mut Burst, cx: &mut Context<'_>);

    /// Runs the timers that are due.
    fn on_deadline(&mut self, cx: &mut Context<'_>);

    /// When [`Protocols::on_deadline`] wants to be called next.
    fn next_deadline(&self) -> Option<Instant>;
}

/// A stack, its device and the memory of both. See the module text.
pub struct Engine<P, D> {
    /// The stack, or sockets over it.
    pub protocols: P,
    /// One queue of a device.
    pub device: D,
    /// Packets and frames.
    pub memory: Memory,
    /// Where copies of payload are counted.
    pub ledger: Arc<Ledger>,
    received: Burst,
    to_send: Burst,
    /// Receiving waits until then for memory.
    paused_until: Option<Instant>,
    /// Sending is tried again then: the device took a part only, or there was no memory.
    retry_at: Option<Instant>,
    is_gone: bool,
}

/// What one call of [`Engine::receive`] brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Packets for the stack.
    pub packets: usize,
    /// There may be more: as many came as were asked for.
    pub is_full: bool,
    /// Why the device stopped.
    pub input: Input,
}

impl<P: Protocols, D: Device> Engine<P, D> {
    /// An engine, which has the stack use what the device can do.
    pub fn new(mut protocols: P, device: D, memory: Memory, ledger: Arc<Ledger>) -> Self {
        protocols.stack_mut().set_caps(device.caps());
        Self {
            protocols,
            device,
            memory,
            ledger,
            received: Burst::new(),
            to_send: Burst::new(),
            paused_until: None,
            retry_at: None,
            is_gone: false,
        }
    }

    /// The stack, and what its calls work with.
    pub fn parts(&mut self, now: Instant) -> (&mut P, Context<'_>) {
        let Self { protocols, memory, ledger, .. } = self;
        (protocols, Context { memory, ledger, now })
    }

    /// Lets `act` use the stack with its memory.
    pub fn with<R>(&mut self, now: Instant, act: impl FnOnce(&mut P, &mut Context<'_>) -> R) -> R {
        let Self { protocols, memory, ledger, .. } = self;
        act(protocols, &mut Context { memory, ledger, now })
    }

    /// Lets `act` use the device with its memory.
    pub fn with_device<R>(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut D, &mut Context<'_>) -> R,
    ) -> R {
        let Self { device, memory, ledger, .. } = self;
        act(device, &mut Context { memory, ledger, now })
    }

    /// Lets the device do what is due beside packets. Its file is or may be readable, or its
    /// deadline has come.
    ///
    /// # Errors
    /// The device is of no further use.
    pub fn turn(&mut self, is_readable: bool, now: Instant) -> Result<(), D::Error> {
        if self.is_gone {
            return Ok(());
        }
        let turned = self.with_device(now, |device, cx| device.turn(is_readable, cx));
        self.is_gone = turned.is_err();
        self.protocols.stack_mut().set_caps(self.device.caps());
        turned
    }

    /// Receives at most `limit` packets, shows them to `see`, and gives them to the stack.
    ///
    /// # Errors
    /// The device is of no further use.
    pub fn receive(
        &mut self,
        limit: usize,
        now: Instant,
        see: impl FnOnce(&Burst),
    ) -> Result<Received, D::Error> {
        self.paused_until.take_if(|until| *until <= now);
        if !self.is_watched() {
            return Ok(Received { packets: 0, is_full: false, input: Input::Done });
        }
        let Self { protocols, device, memory, ledger, received, .. } = self;
        let cx = &mut Context { memory, ledger, now };
        received.limit(limit);
        let result = device.receive(received, cx);
        let (packets, is_full) = (received.len(), received.is_full());
        if packets > 0 {
            see(received);
            protocols.input(received, cx);
        }
        self.is_gone = result.is_err();
        let input = result?;
        if input == Input::NoMemory {
            self.paused_until = Some(now + MEMORY_PAUSE);
        }
        Ok(Received { packets, is_full, input })
    }

    /// Runs the stack's timers that are due.
    pub fn run_timers(&mut self, now: Instant) {
        if self.protocols.next_deadline().is_some_and(|at| at <= now) {
            self.with(now, |protocols, cx| protocols.on_deadline(cx));
        }
    }

    /// Sends what the stack has, `bursts` bursts at most, each of which is shown to `see` before.
    /// True if the device would take more.
    ///
    /// # Errors
    /// The device is of no further use. What it did not take is dropped by the next call.
    pub fn send(
        &mut self,
        bursts: usize,
        now: Instant,
        mut see: impl FnMut(&Burst),
    ) -> Result<bool, D::Error> {
        let Self { protocols, device, memory, ledger, to_send, retry_at, is_gone, .. } = self;
        let cx = &mut Context { memory, ledger, now };
        *retry_at = None;
        for _ in 0..bursts {
            if to_send.is_empty() {
                protocols.output(to_send, cx);
                if to_send.is_empty() {
                    // What is left then waits for memory.
                    *retry_at = protocols.stack().has_output().then(|| now + MEMORY_PAUSE);
                    return Ok(false);
                }
                see(to_send);
            }
            if *is_gone {
                protocols.stack_mut().count_gone(to_send.len());
                to_send.clear();
            } else {
                let result = device.transmit(to_send, cx);
                *is_gone = result.is_err();
                result?;
                protocols.stack_mut().set_caps(device.caps());
                protocols.stack_mut().count_gone(device.take_lost());
                if !to_send.is_empty() {
                    // A device without a file wakes its thread when it has room.
                    *retry_at = device.file().map(|_| now + MEMORY_PAUSE);
                    return Ok(false);
                }
            }
            if !protocols.stack().has_output() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// True if the device is to have a [turn](Engine::turn), whether its file is readable or not:
    /// its deadline has come, or it was left alone for long enough.
    pub fn is_due(&self, now: Instant) -> bool {
        let due = earliest([self.device_deadline(), self.paused_until]);
        due.is_some_and(|at| at <= now)
    }

    /// True while the device's file is to be watched: receiving waits for no memory, and the device
    /// is there.
    pub fn is_watched(&self) -> bool {
        !self.is_gone && self.paused_until.is_none()
    }

    /// True after an error of the device: nothing moves any more.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// True if something has left the stack, or is about to, and the device has not taken it.
    pub fn has_unsent(&self) -> bool {
        !self.to_send.is_empty() || self.protocols.stack().has_output()
    }

    /// To be called before a sleep. True if the device has work already; if not, its file becomes
    /// readable when there is some, until the next turn.
    pub fn arm(&mut self) -> bool {
        self.is_watched() && self.device.arm()
    }

    /// When there is something to do without news of the device or of the owner.
    pub fn next_deadline(&self) -> Option<Instant> {
        let protocols = self.protocols.next_deadline();
        earliest([protocols, self.device_deadline(), self.paused_until, self.retry_at])
    }

    fn device_deadline(&self) -> Option<Instant> {
        if self.is_gone { None } else { self.device.next_deadline() }
    }

    /// Gives back frames that the device keeps ready, and memory that a busier time has left
    /// behind: `unused` may give the bytes it is shown back to the system.
    pub fn rest(&mut self, unused: impl FnMut(&mut [u8])) {
        self.device.rest();
        self.memory.unused(unused);
    }
}

impl Protocols for Stack {
    fn stack(&self) -> &Stack {
        self
    }

    fn stack_mut(&mut self) -> &mut Stack {
        self
    }

    fn input(&mut self, burst: &mut Burst, cx: &mut Context<'_>) {
        Stack::input(self, burst, cx);
    }

    fn output(&mut self, burst: &mut Burst, cx: &mut Context<'_>) {
        Stack::output(self, burst, cx);
    }

    fn on_deadline(&mut self, cx: &mut Context<'_>) {
        Stack::on_deadline(self, cx);
    }

    fn next_deadline(&self) -> Option<Instant> {
        Stack::next_deadline(self)
    }
}

impl Protocols for Sockets {
    fn stack(&self) -> &Stack {
        Sockets::stack(self)
    }

    fn stack_mut(&mut self) -> &mut Stack {
        Sockets::stack_mut(self)
    }

    fn input(&mut self, burst: &mut Burst, cx: &mut Context<'_>) {
        Sockets::input(self, burst, cx);
    }

    fn output(&mut self, burst: &mut Burst, cx: &mut Context<'_>) {
        Sockets::output(self, burst, cx);
    }

    fn on_deadline(&mut self, cx: &mut Context<'_>) {
        Sockets::on_deadline(self, cx);
    }

    fn next_deadline(&self) -> Option<Instant> {
        Sockets::next_deadline(self)
    }
}
