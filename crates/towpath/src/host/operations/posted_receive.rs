//! Buffers that are posted to a stream, to be filled when bytes arrive.
//!
//! Only the worker places arriving bytes in posted buffers, so buffers are reported in the order in
//! which they are filled. The program takes a filled buffer without the host's lock. A buffer
//! belongs to its socket's entry until it is filled or withdrawn, then to its [`Slot`].

use crate::host::core::State;
use crate::host::core::posted_buffers::{Filled, PostedBuffers, Slot, Waiting};
use crate::host::lending::any::AnyBuffer;
use crate::host::sockets::stream::TcpStream;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::Context;
use towpath_net::socket::{ReceiveFlags, SocketId};
use towpath_net::time::Instant;

/// Result of a receive, and its buffer.
pub(crate) type Received = (io::Result<usize>, AnyBuffer);

/// A receive in progress.
pub(crate) enum Receiving {
    /// The receive is complete.
    Over(Received),
    Posted(Posted),
}

/// A buffer that waits for bytes or has some. When it is dropped, bytes that have not arrived stay
/// with the stream.
pub(crate) struct Posted {
    stream: TcpStream,
    slot: Arc<Slot>,
}

impl Posted {
    /// Receives available bytes into `buffer`. The buffer is posted if there are none, if they do
    /// not fill it although `all` is set, or if an earlier buffer has not been taken yet. `cx`'s
    /// waker is then woken when the receive should be polled again.
    pub(crate) fn receive(
        stream: TcpStream,
        buffer: AnyBuffer,
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
                // All earlier buffers are full, and there may be more bytes.
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

    /// Takes the result. Returns `None` if there is none yet: then `cx`'s waker is woken.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Option<Received> {
        let mut filled = self.slot.lock();
        filled.waker.clone_from(cx.waker());
        let (received, buffer) = filled.done.take()?;
        drop(filled);
        Some((self.stream.outcome(received), buffer))
    }

    /// Withdraws the buffer: returns its result, or the buffer alone if nothing was received.
    pub(crate) fn withdraw(&mut self) -> Result<Received, AnyBuffer> {
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
        // A slot that was filled or withdrawn has left the line, and then nothing else holds it.
        if Arc::strong_count(&self.slot) > 1 {
            drop(self.stream.with_core(|id, state, _| state.unpost(id, &self.slot)));
        }
    }
}

impl State {
    /// Places arrived bytes in the buffers that wait for them.
    pub(in crate::host) fn place(&mut self, now: Instant) {
        let Self { engine, table, wakers, to_place, .. } = self;
        let (sockets, mut cx) = engine.parts(now);
        for id in to_place.drain(..) {
            let Some(entry) = table.get_mut(&id) else { continue };
            let PostedBuffers { buffers, failure, .. } = &mut entry.posted;
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

    /// Takes back a buffer that is not complete.
    fn unpost(&mut self, id: SocketId, slot: &Arc<Slot>) -> Option<Waiting> {
        let line = &mut self.table.get_mut(&id)?.posted.buffers;
        let at = line.iter().position(|(_, known)| Arc::ptr_eq(known, slot))?;
        line.remove(at).map(|(waiting, _)| waiting)
    }
}
