//! Operations on sockets of instances with one message each: sending or receiving a datagram, and
//! receiving without a copy.

use super::socket::{Place, READS, WRITES, over};
use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::memory::control::Control;
use crate::memory::pointers::{Message, TokenPlace};
use rustix::io::Errno as Kernel;
use std::sync::Arc;
use std::task::Waker;
use towpath::events::custom::{Step, Task};

/// The direction of a message.
pub(super) enum Way {
    /// Received, with these flags.
    In(i32),
    /// Sent.
    Out,
    /// Received without a copy, also from a stream; with the place for the token.
    Lent(TokenPlace),
}

/// An operation with one message.
pub(super) struct Operation {
    place: Place,
    message: Message,
    way: Way,
    /// Why it has to end.
    stopped: Option<Errno>,
}

impl Operation {
    /// Makes an operation on the socket `fd`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the socket is a stream, except for receiving without a copy.
    pub(super) fn new(
        instance: &Arc<Instance>,
        fd: i32,
        message: Message,
        way: Way,
    ) -> Outcome<Self> {
        let place = Place::new(instance, fd)?;
        let is_datagram = instance.is_datagram(fd);
        let is_right = is_datagram || matches!(way, Way::Lent(_));
        let operation = Self { place, message, way, stopped: None };
        if is_right { Ok(operation) } else { Err(Errno(libc::EOPNOTSUPP)) }
    }

    /// Makes the call. [`Errno::AGAIN`] if it has to wait.
    fn attempt(&mut self, state: &mut State, fd: i32) -> Outcome<usize> {
        let Self { message, way, .. } = self;
        match way {
            &mut Way::In(flags) => message.receive(|buffers, room| {
                state.receive_datagram(fd, buffers, &mut Control::new(room), (flags, true))
            }),
            Way::Out => message.send(|buffers, address, control| {
                state.send_datagram(fd, buffers, (0, address, control))
            }),
            Way::Lent(place) => {
                let with_room = state.reads_headers(fd);
                let (len, token) = message.receive_lent(with_room, |mut lending, piece| {
                    state.lend_received(fd, &mut lending, None, piece)
                })?;
                place.set(token);
                Ok(len)
            }
        }
    }
}

impl Task for Operation {
    fn poll(&mut self, waker: &Waker) -> Option<Step> {
        if let Some(why) = self.stopped {
            return Some(over(Err(why)));
        }
        let gone = || Some(over(Err(Errno(libc::ECANCELED))));
        let Some(instance) = self.place.instance() else { return gone() };
        let mut state = instance.lock();
        let Some(fd) = self.place.fd(&state) else { return gone() };
        let step = match self.attempt(&mut state, fd) {
            Err(Errno::AGAIN) => {
                let events = if let Way::Out = self.way { WRITES } else { READS };
                self.place.watch(&mut state, waker, events);
                None
            }
            // The program holds too much: the message stays in the queue until pieces are returned.
            Err(Errno(libc::ENOBUFS))
                if matches!(self.way, Way::Lent(_)) && state.wait_for_return(waker) =>
            {
                self.place.watch(&mut state, waker, READS);
                None
            }
            outcome => Some(over(outcome)),
        };
        instance.settle(&mut state);
        step
    }

    fn stop(&mut self, why: Kernel) {
        self.stopped.get_or_insert(why.into());
    }
}
