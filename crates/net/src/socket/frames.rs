//! Memory for what programs send by copy: how much a socket may have, and who waits for it.
//!
//! # Theory of operation
//!
//! The pools serve what is received, what answers it and what programs send. Were sends to take
//! the last frame, no ACK would find one, and nothing would ever give a frame back. So a part of
//! each pool, and of the packet handles, is not for sends ([`RESERVE_DIVISOR`]): input, ACKs,
//! questions to neighbours and errors have it.
//!
//! What sends may have is shared by a threshold that moves: a socket gets another frame only while
//! it holds less than is free. So one socket gets half of it, and each of *n* greedy ones one part
//! of *n* + 1; the last part stays free for the next, and shares grow back as others end. A socket
//! that holds less than [`SHARE_MIN`] gets a frame in any case, as long as there is one: a
//! super-packet of it keeps moving, however many there are.
//!
//! A socket that found no frame *waits*: it is not writable, and is told when there is one for it.
//! So is one that was asked for its readiness meanwhile. Each burst in or out looks, and so does a
//! timer, as frames come back on other threads too. Who has waited longest is told first, and as
//! many are told as there are frames.

use super::{Phase, Readiness, Socket, SocketId, Sockets};
use crate::stack::Context;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use core::cell::RefCell;
use towpath_packet::pool::{Frame, LARGE_FRAME_BYTES, Pool, SMALL_FRAME_BYTES};
use towpath_packet::{Memory, Packet};

/// One part in so many of each pool and of the packet handles is not for sends.
const RESERVE_DIVISOR: usize = 4;
/// Bytes of frames that a socket may hold however many others there are: a super-packet.
const SHARE_MIN: usize = 64 << 10;
/// Sockets that wait that are looked at together: so many are few beside a burst of packets.
const LOOK_MAX: usize = 64;
/// Time from one look to the next where nothing else happens, at first.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The same after many that found nothing.
const PAUSE_MAX: Duration = Duration::from_millis(128);

/// Who waits for memory to send.
#[derive(Default)]
pub(super) struct Frames {
    /// There was none for sends at the last look.
    gone: bool,
    /// Those that wait, the longest first: each whose `waits_for_frame` is set once, and some that
    /// are gone, never more than all sockets. To be asked for readiness is reason enough to wait.
    waiting: RefCell<VecDeque<SocketId>>,
    /// The next look.
    look_at: Option<Instant>,
    /// Time to the one after it.
    pause: Duration,
}

impl Frames {
    /// True if there was no memory at the last look, or somebody waits for some.
    #[inline]
    pub(super) fn are_awaited(&mut self) -> bool {
        self.gone || !self.waiting.get_mut().is_empty()
    }

    /// When somebody who waits is to be looked at.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.look_at
    }

    /// Entries of the list.
    #[cfg(test)]
    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Sets the next look unless there is one to come.
    fn arm(&mut self, now: Instant) {
        if self.look_at.is_none_or(|at| at <= now) {
            let pause = self.pause.max(PAUSE_MIN);
            self.look_at = Some(now + pause);
            self.pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

impl Sockets {
    /// A call found no frame: the socket is told when there is one for it.
    pub(super) fn wait_for_frame(&mut self, id: SocketId, now: Instant) {
        let Ok(socket) = self.socket(id) else { return };
        self.begin_wait(id, socket);
        self.frames.arm(now);
    }

    /// True if a socket that has room cannot send for want of memory. It waits from now on.
    pub(super) fn lacks_frame(&self, id: SocketId, socket: &Socket) -> bool {
        if self.frames.gone {
            self.begin_wait(id, socket);
        }
        socket.waits_for_frame.get()
    }

    fn begin_wait(&self, id: SocketId, socket: &Socket) {
        if socket.waits_for_frame.replace(true) {
            return;
        }
        let mut waiting = self.frames.waiting.borrow_mut();
        if waiting.len() >= 2 * self.count().max(LOOK_MAX) {
            // More than half of them are gone: each socket that is there is in it once.
            waiting.retain(|id| self.socket(*id).is_ok());
        }
        waiting.push_back(id);
    }

    /// Looks for memory, and tells those who may have some now.
    #[inline]
    pub(super) fn tell_frames(&mut self, cx: &mut Context<'_>) {
        if self.frames.are_awaited() || !is_plenty(cx.memory) {
            self.look_for_frames(cx);
        }
    }

    #[cold]
    fn look_for_frames(&mut self, cx: &mut Context<'_>) {
        let mut left = spare(&mut cx.memory.small) + spare(&mut cx.memory.large);
        self.frames.gone = left == 0 || spare_packets(cx.memory) == 0;
        let mut told = false;
        let count = self.frames.waiting.get_mut().len().min(LOOK_MAX);
        for _ in 0..count {
            if left == 0 || self.frames.gone {
                break;
            }
            let Some(id) = self.frames.waiting.get_mut().pop_front() else { break };
            let Some(held) = self.held_to_send(id) else { continue };
            if !has_frame(held, cx.memory) {
                self.frames.waiting.get_mut().push_back(id);
                continue;
            }
            (left, told) = (left - 1, true);
            self.end_wait(id);
        }
        if told {
            self.frames.pause = PAUSE_MIN;
        }
        if self.frames.waiting.get_mut().is_empty() {
            (self.frames.look_at, self.frames.pause) = (None, PAUSE_MIN);
        } else {
            self.frames.arm(cx.now);
        }
    }

    fn end_wait(&mut self, id: SocketId) {
        let Ok(socket) = self.socket(id) else { return };
        socket.waits_for_frame.set(false);
        let datagrams = matches!(socket.phase, Phase::Datagram(_));
        let band = if datagrams { Readiness::WRITE_BAND } else { Readiness::NONE };
        self.wake(id, Readiness::WRITABLE | band);
    }

    /// Bytes that a socket holds of what it sends; `None` if it is gone.
    fn held_to_send(&self, id: SocketId) -> Option<usize> {
        let socket = self.socket(id).ok()?;
        Some(match &socket.phase {
            Phase::Datagram(datagrams) => self.sent_waiting(datagrams),
            _ => self.connection(socket).map_or(0, |connection| connection.send_held()),
        })
    }
}

/// True if no datagram could be sent, however small.
pub(super) fn lacks_memory(memory: &mut Memory) -> bool {
    !has_frame(0, memory) || spare_packets(memory) == 0
}

/// Whether a socket that holds `held` bytes of what it sends may take a frame.
fn has_frame(held: usize, memory: &mut Memory) -> bool {
    let bytes = |pool: &mut Pool| spare(pool) * pool.frame_bytes();
    let free = bytes(&mut memory.small) + bytes(&mut memory.large);
    free > 0 && held < free.max(SHARE_MIN)
}

/// A frame for `len` bytes of a socket that holds `held`, or the next best.
pub(super) fn frame_to_send(len: usize, held: usize, memory: &mut Memory) -> Option<Frame> {
    let is_small = len <= SMALL_FRAME_BYTES;
    let first = if is_small { &mut memory.small } else { &mut memory.large };
    // Most times there are enough of these, without a look at others and those given back.
    if beyond_reserve(first, first.free_at_least()) * first.frame_bytes() > held {
        return first.take();
    }
    if !has_frame(held, memory) {
        return None;
    }
    let Memory { small, large, .. } = memory;
    let (first, second) = if is_small { (small, large) } else { (large, small) };
    let take = |pool: &mut Pool| if spare(pool) > 0 { pool.take() } else { None };
    take(first).or_else(|| take(second))
}

/// Bytes of the frame that a copy of `len` bytes takes, which one holds.
pub(super) fn frame_bytes(len: usize) -> usize {
    match len {
        0 => 0,
        1..=SMALL_FRAME_BYTES => SMALL_FRAME_BYTES,
        _ => LARGE_FRAME_BYTES,
    }
}

/// A packet for what a program sends.
pub(super) fn packet_to_send(memory: &mut Memory) -> Option<Packet> {
    let has_spare = packets_are_plenty(memory) || spare_packets(memory) > 0;
    if has_spare { memory.packet() } else { None }
}

/// True if there is certainly memory for sends.
fn is_plenty(memory: &Memory) -> bool {
    let is_plenty = |pool: &Pool| pool.free_at_least() > pool.capacity() / RESERVE_DIVISOR;
    is_plenty(&memory.small) && is_plenty(&memory.large) && packets_are_plenty(memory)
}

fn packets_are_plenty(memory: &Memory) -> bool {
    memory.packets.free_at_least() > memory.packets.capacity() / RESERVE_DIVISOR
}

/// Frames of a pool that sends may still take.
fn spare(pool: &mut Pool) -> usize {
    let free = pool.free_count();
    beyond_reserve(pool, free)
}

/// The same if so many are free.
fn beyond_reserve(pool: &Pool, free: usize) -> usize {
    free.saturating_sub(pool.capacity() / RESERVE_DIVISOR)
}

fn spare_packets(memory: &mut Memory) -> usize {
    let reserve = memory.packets.capacity() / RESERVE_DIVISOR;
    memory.packets.free_count().saturating_sub(reserve)
}
