//! Drives a stack and its device together.
//!
//! # Theory of operation
//!
//! An [`Engine`] owns a stack, one queue of a device and the memory of both. Its driver sleeps
//! until the device's file is readable or [`Engine::next_deadline`] has passed. Then it runs a
//! turn: [`Engine::turn`], [`Engine::receive`], [`Engine::run_timers`], the owner's own work,
//! [`Engine::send`]. So ACKs and window updates are sent once per burst, after the owner took the
//! data.
//!
//! There are three kinds of drivers: the worker of a gateway, alone; a host and its C counterpart,
//! behind a lock, so that calls use the stack between two turns ([`Engine::with`]).
//!
//! When memory is short, the device is not read for [`MEMORY_PAUSE`], and its packets wait there.
//! Packets that the device does not take wait in the engine, and the stack builds no others
//! meanwhile. After an error of the device the engine is *gone*: it receives nothing, and drops and
//! counts sent packets, as if the cable were unplugged.
//!
//! No call blocks, reads a clock or allocates. One thread at a time.

use crate::socket::Sockets;
use crate::stack::Stack;
use crate::time::{Duration, Instant, earliest};
use alloc::sync::Arc;
use towpath_packet::{Burst, Context, Device, Input, Ledger, Memory};

/// Pause of a device when memory is short, or when it took only part of a burst.
pub const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// What an engine drives: a stack, or sockets above one.
pub trait Protocols {
    /// The stack.
    fn stack(&self) -> &Stack;

    /// The stack, to change its settings.
    fn stack_mut(&mut self) -> &mut Stack;

    /// Processes received packets.
    fn input(&mut self, burst: &mut Burst, cx: &mut Context<'_>);

    /// Fills `burst` with packets to send; empty if there are none.
    fn output(&mut self, burst: &mut Burst, cx: &mut Context<'_>);

    /// Runs the timers that are due.
    fn on_deadline(&mut self, cx: &mut Context<'_>);

    /// When [`Protocols::on_deadline`] must be called next.
    fn next_deadline(&self) -> Option<Instant>;
}

/// A stack, its device and the memory of both. See the module documentation.
pub struct Engine<P, D> {
    /// The stack, or sockets above it.
    pub protocols: P,
    /// One queue of a device.
    pub device: D,
    /// Packets and frames.
    pub memory: Memory,
    /// Counts copies of payload.
    pub ledger: Arc<Ledger>,
    received: Burst,
    to_send: Burst,
    /// Time until which receiving pauses because memory is short.
    paused_until: Option<Instant>,
    /// Time of the next attempt to send: the device took only part of a burst, or memory was short.
    retry_at: Option<Instant>,
    is_gone: bool,
}

/// Result of [`Engine::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Number of packets passed to the stack.
    pub packets: usize,
    /// The limit was reached: there may be more packets.
    pub is_full: bool,
    /// Why the device stopped receiving.
    pub input: Input,
}

impl<P: Protocols, D: Device> Engine<P, D> {
    /// Creates an engine; the stack is set to the device's capabilities.
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

    /// The stack, and the context for its calls.
    pub fn parts(&mut self, now: Instant) -> (&mut P, Context<'_>) {
        let Self { protocols, memory, ledger, .. } = self;
        (protocols, Context { memory, ledger, now })
    }

    /// Runs `act` on the stack with its context.
    pub fn with<R>(&mut self, now: Instant, act: impl FnOnce(&mut P, &mut Context<'_>) -> R) -> R {
        let Self { protocols, memory, ledger, .. } = self;
        act(protocols, &mut Context { memory, ledger, now })
    }

    /// Runs `act` on the device with its context.
    pub fn with_device<R>(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut D, &mut Context<'_>) -> R,
    ) -> R {
        let Self { device, memory, ledger, .. } = self;
        act(device, &mut Context { memory, ledger, now })
    }

    /// Runs the device's work other than packets, when its file may be readable or its deadline has
    /// passed.
    ///
    /// # Errors
    /// The device has failed permanently.
    pub fn turn(&mut self, is_readable: bool, now: Instant) -> Result<(), D::Error> {
        if self.is_gone {
            return Ok(());
        }
        let turned = self.with_device(now, |device, cx| device.turn(is_readable, cx));
        self.is_gone = turned.is_err();
        self.protocols.stack_mut().set_caps(self.device.caps());
        turned
    }

    /// Receives at most `limit` packets, shows them to `see`, and passes them to the stack.
    ///
    /// # Errors
    /// The device has failed permanently.
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

    /// Sends the stack's packets, at most `bursts` bursts, each of which is first shown to `see`.
    /// True if the device can take more.
    ///
    /// # Errors
    /// The device has failed permanently. The next call drops what it did not take.
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
                    // If the stack still has output, it waits for memory.
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

    /// True if the device needs a [turn](Engine::turn) even if its file is not readable: its
    /// deadline has passed, or its pause is over.
    pub fn is_due(&self, now: Instant) -> bool {
        let due = earliest([self.device_deadline(), self.paused_until]);
        due.is_some_and(|at| at <= now)
    }

    /// True while the device's file must be watched: receiving is not paused and the device is not
    /// gone.
    pub fn is_watched(&self) -> bool {
        !self.is_gone && self.paused_until.is_none()
    }

    /// True after an error of the device: no packets move any more.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// True if packets have left the stack, or are about to, that the device has not taken.
    pub fn has_unsent(&self) -> bool {
        !self.to_send.is_empty() || self.protocols.stack().has_output()
    }

    /// Must be called before a sleep. True if the device already has work; otherwise its file
    /// becomes readable when it has, until the next turn.
    pub fn arm(&mut self) -> bool {
        self.is_watched() && self.device.arm()
    }

    /// When the engine has work without an event of the device or the owner.
    pub fn next_deadline(&self) -> Option<Instant> {
        let protocols = self.protocols.next_deadline();
        earliest([protocols, self.device_deadline(), self.paused_until, self.retry_at])
    }

    fn device_deadline(&self) -> Option<Instant> {
        if self.is_gone { None } else { self.device.next_deadline() }
    }

    /// Releases frames that the device keeps ready, and memory that is unused after a busier time:
    /// `unused` may return the bytes that it is shown to the system.
    pub fn rest(&mut self, unused: impl FnMut(&mut [u8])) {
        self.device.rest();
        self.memory.unused(unused);
    }
}

/// Implements [`Protocols`] by the methods of the same names.
macro_rules! protocols {
    ($of:ident, $self:ident, $stack:expr, $stack_mut:expr) => {
        impl Protocols for $of {
            fn stack(&$self) -> &Stack {
                $stack
            }

            fn stack_mut(&mut $self) -> &mut Stack {
                $stack_mut
            }

            fn input(&mut self, burst: &mut Burst, cx: &mut Context<'_>) {
                $of::input(self, burst, cx);
            }

            fn output(&mut self, burst: &mut Burst, cx: &mut Context<'_>) {
                $of::output(self, burst, cx);
            }

            fn on_deadline(&mut self, cx: &mut Context<'_>) {
                $of::on_deadline(self, cx);
            }

            fn next_deadline(&self) -> Option<Instant> {
                $of::next_deadline(self)
            }
        }
    };
}

protocols!(Stack, self, self, self);
protocols!(Sockets, self, Sockets::stack(self), Sockets::stack_mut(self));
