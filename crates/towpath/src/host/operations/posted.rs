//! Buffers that are posted to a stream, to be filled when bytes come.
//!
//! The worker places bytes as they come, and he alone, so that buffers are told in the order in
//! which they are filled; the program takes one that is filled without the lock of the host. A
//! buffer is with the entry of its socket until it is filled or withdrawn, then with its [`Slot`].

use crate::host::core::State;
use crate::host::core::line::{Filled, Line, Slot, Waiting};
use crate::host::sockets::stream::TcpStream;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::Context;
use towpath_net::socket::{ReceiveFlags, SocketId};
use towpath_net::time::Instant;

/// What came of a receive, and its buffer.
pub(crate) type Received = (io::Result<usize>, Vec<u8>);

/// A receive under way.
pub(crate) enum Receiving {
    /// Nothing is to be waited for.
    Over(Received),
    Posted(Posted),
}

/// A buffer that waits for bytes, or has some. Dropping it leaves with the stream what has not come
/// yet.
pub(crate) struct Posted {
    stream: TcpStream,
    slot: Arc<Slot>,
}

impl Posted {
    /// Receives into `buffer` what is there. If there is nothing, or not `all` that it has room
    /// for, or an earlier buffer was not taken yet, it is posted, and `cx`'s waker is woken when it
    /// is worth trying again.
    pub(crate) fn receive(
        stream: TcpStream,
        buffer: Vec<u8>,
        all: bool,
        cx: &mut Context<'_>,
    ) -> Receiving {
        let mut waiting = Waiting { buffer, filled: 0, all };
        let posted = stream.with_core(|id, state, now| {
            let is_first = state.entry(id).posted.is_empty();
            if is_first {
                let mut failure = state.entry(id).posted.failure.take();
                let received = state.engine.with(now, |sockets, cx| {
                    let flags = ReceiveFlags::default();
                    waiting.fill(&mut failure, |into| sockets.receive(id, into, flags, cx))
                });
                state.entry(id).posted.failure = failure;
                if let Some(received) = received {
                    return Err((received, waiting.buffer));
                }
            }
            let filled = Filled { waker: cx.waker().clone(), done: None };
            let slot = Arc::new(Slot(Mutex::new(filled)));
            let line = &mut state.entry(id).posted;
            line.last = Arc::downgrade(&slot);
            if line.buffers.is_empty() && !is_first {
                // All earlier ones are full, and there may be more.
                state.to_place.push(id);
            }
            state.entry(id).posted.buffers.push_back((waiting, slot.clone()));
            Ok(slot)
        });
        match posted {
            Ok(slot) => Receiving::Posted(Self { stream, slot }),
            Err((received, buffer)) => Receiving::Over((stream.outcome(received), buffer)),
        }
    }

    /// What came of it. `None` if nothing has: then `cx`'s waker is woken.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Option<Received> {
        let mut filled = self.slot.lock();
        filled.waker.clone_from(cx.waker());
        let (received, buffer) = filled.done.take()?;
        drop(filled);
        Some((self.stream.outcome(received), buffer))
    }

    /// Asks for the buffer: what came of it, or the buffer alone.
    pub(crate) fn withdraw(&mut self) -> Result<Received, Vec<u8>> {
        let waiting = self.stream.with_core(|id, state, _| state.unpost(id, &self.slot));
        match waiting {
            Some(Waiting { buffer, filled: 0, .. }) => Err(buffer),
            Some(Waiting { buffer, filled, .. }) => Ok((Ok(filled), buffer)),
            None => {
                let (received, buffer) = self.slot.lock().done.take().expect("it is filled");
                Ok((self.stream.outcome(received), buffer))
            }
        }
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        // One that was filled or withdrawn has left the line; nothing else holds its slot.
        if Arc::strong_count(&self.slot) > 1 {
            drop(self.stream.with_core(|id, state, _| state.unpost(id, &self.slot)));
        }
    }
}

impl State {
    /// Places what has come for sockets in the buffers that wait for it.
    pub(in crate::host) fn place(&mut self, now: Instant) {
        let Self { engine, table, wakers, to_place, .. } = self;
        let (sockets, mut cx) = engine.parts(now);
        for id in to_place.drain(..) {
            let Some(entry) = table.get_mut(&id) else { continue };
            let Line { buffers, failure, .. } = &mut entry.posted;
            while let Some((mut waiting, slot)) = buffers.pop_front() {
                let flags = ReceiveFlags::default();
                let received =
                    waiting.fill(failure, |into| sockets.receive(id, into, flags, &mut cx));
                let Some(received) = received else {
                    buffers.push_front((waiting, slot));
                    break;
                };
                let mut filled = slot.lock();
                filled.done = Some((received, waiting.buffer));
                wakers.push(filled.waker.clone());
            }
        }
    }

    /// Takes back a buffer that is not told of.
    fn unpost(&mut self, id: SocketId, slot: &Arc<Slot>) -> Option<Waiting> {
        let line = &mut self.table.get_mut(&id)?.posted.buffers;
        let at = line.iter().position(|(_, known)| Arc::ptr_eq(known, slot))?;
        line.remove(at).map(|(waiting, _)| waiting)
    }
}
