//! Operations on streams of instances, as tasks of an event queue.
//!
//! Each operation is a call that would block, with the program's memory. The waits of the queue try
//! it when its socket has events. The memory belongs to the operation until its last step is
//! reported.

use super::messages::{self, Way};
use super::pending::Pending;
use super::sending::Sending;
use super::socket::{Place, READS, over};
use super::work::SocketWork;
use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::memory::address::{self, Given};
use crate::memory::pointers::Posted;
use rustix::io::Errno as Kernel;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use towpath::events::custom::{Step, Task};
use towpath::layers::net::socket::{Error, ReceiveFlags, SocketId};

/// Makes an operation on the socket `fd`, and the state that the queue keeps of it.
///
/// # Errors
/// An argument is invalid.
pub(super) fn task(
    (instance, fd): (&Arc<Instance>, i32),
    work: SocketWork<'_>,
) -> Outcome<(Box<dyn Task>, Pending)> {
    let message = |message, way| messages::Operation::new(instance, fd, message, way);
    let mut pending = Pending::Task;
    let task: Box<dyn Task> = match work {
        SocketWork::ReceiveMessage(into, flags) => Box::new(message(into, Way::In(flags))?),
        SocketWork::SendMessage(from) => Box::new(message(from, Way::Out)?),
        SocketWork::ReceiveLent(into, token) => Box::new(message(into, Way::Lent(token))?),
        work => {
            let operation = Operation::new(instance, fd, work)?;
            if let Work::Send(sending) = &operation.work {
                pending = Pending::Lent(sending.loans().clone());
            }
            Box::new(operation)
        }
    };
    Ok((task, pending))
}

/// An operation on a stream.
pub(super) struct Operation {
    place: Place,
    work: Work,
    /// Why it has to end.
    stopped: Option<Errno>,
}

/// The kind of an operation, and its progress.
enum Work {
    Connect(SocketAddr),
    Accept(i32),
    /// The buffer, the number of bytes received, and whether to fill all of it.
    Receive(Posted, usize, bool),
    Send(Sending),
}

impl Operation {
    /// Makes an operation on the stream `fd`.
    ///
    /// # Errors
    /// An argument is invalid.
    fn new(instance: &Arc<Instance>, fd: i32, work: SocketWork<'_>) -> Outcome<Self> {
        let place = Place::new(instance, fd)?;
        let (family, datagram) = {
            let state = instance.lock();
            (state.family(fd)?, state.files.socket(fd)?.datagram)
        };
        if datagram {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let work = match work {
            SocketWork::Connect(to) => match address::parse(to, family)? {
                Given::Address(remote) => Work::Connect(remote),
                Given::Unspecified => return Err(Errno::INVAL),
            },
            SocketWork::Accept(flags) => Work::Accept(flags),
            SocketWork::Receive(into, flags) => Work::Receive(into, 0, flags != 0),
            SocketWork::Send(memory, _) => Work::Send(Sending::new(memory.into())),
            // These are separate tasks.
            SocketWork::ReceiveMessage(..)
            | SocketWork::SendMessage(_)
            | SocketWork::ReceiveLent(..)
            | SocketWork::ReceiveMultishot(_)
            | SocketWork::Move(..) => return Err(Errno(libc::EOPNOTSUPP)),
        };
        Ok(Self { place, work, stopped: None })
    }
}

impl Task for Operation {
    fn poll(&mut self, waker: &Waker) -> Option<Step> {
        let Self { place, work, stopped } = self;
        if let Work::Send(sending) = work {
            return sending.poll(place, waker, *stopped);
        }
        if let Some(why) = *stopped {
            return Some(work.end(why));
        }
        let gone = Errno(libc::ECANCELED);
        let Some(instance) = place.instance() else { return Some(work.end(gone)) };
        let mut state = instance.lock();
        let Some(fd) = place.fd(&state) else { return Some(work.end(gone)) };
        let step = match work.attempt(&mut state, fd) {
            Err(Errno::AGAIN) => {
                let events = if let Work::Connect(_) = work { u32::MAX } else { READS };
                place.watch(&mut state, waker, events);
                None
            }
            Err(error) => Some(work.end(error)),
            Ok(step) => Some(step),
        };
        instance.settle(&mut state);
        step
    }

    fn stop(&mut self, why: Kernel) {
        self.stopped.get_or_insert(why.into());
    }
}

impl Work {
    /// The last step for this reason, unless there is a result.
    fn end(&self, why: Errno) -> Step {
        match self {
            Self::Receive(_, done @ 1.., _) => over(Ok(*done)),
            _ => over(Err(why)),
        }
    }

    /// Continues. [`Errno::AGAIN`] if it has to wait.
    fn attempt(&mut self, state: &mut State, fd: i32) -> Outcome<Step> {
        let (id, now) = (state.id(fd)?, state.now());
        match self {
            Self::Connect(remote) => match state.engine.protocols.connect(id, *remote, now) {
                Err(Error::InProgress | Error::Already) => Err(Errno::AGAIN),
                outcome => Ok(outcome.map(|()| over(Ok(0)))?),
            },
            Self::Accept(flags) => {
                let domain = state.files.socket(fd)?.domain;
                let (accepted, _) = state.engine.protocols.accept(id, now)?;
                match state.add_socket(accepted, domain, *flags) {
                    Ok(fd) => Ok(Step::Progress(fd.into())),
                    Err(error) => {
                        state.engine.protocols.close(accepted, now)?;
                        Err(error)
                    }
                }
            }
            Self::Receive(into, done, all) => receive(state, id, into, done, *all),
            // Sends do not come here.
            Self::Send(_) => Err(Errno::INVAL),
        }
    }
}

/// Receives available bytes behind the first `done` ones.
fn receive(
    state: &mut State,
    id: SocketId,
    into: &mut Posted,
    done: &mut usize,
    all: bool,
) -> Outcome<Step> {
    loop {
        let rest = into.rest(*done);
        if rest.is_empty() {
            return Ok(over(Ok(*done)));
        }
        let how = ReceiveFlags { peek: false, offset: 0 };
        let received = state.with(|sockets, cx| sockets.receive(id, rest, how, cx))?;
        *done += received;
        if received == 0 || !all {
            return Ok(over(Ok(*done)));
        }
    }
}
