//! `splice`: bytes between sockets of an instance and pipes of the kernel.
//!
//! The kernel cannot lend its pages to a stack in a process, so they are copied through a buffer of
//! [`CHUNK`] bytes. Bytes for a pipe are peeked, written to the pipe, and removed from the socket
//! as far as the pipe accepted them: no byte is in transit when a call fails.

use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno as Kernel;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use towpath::layers::net::socket::{ReceiveFlags, SocketId};

/// Bytes moved at a time.
const CHUNK: usize = 64 << 10;

impl Instance {
    /// Moves up to `count` received bytes into a pipe, as many as it accepts at once. Waits for
    /// bytes if the descriptor blocks, and for room in the pipe unless the pipe or the call is
    /// `nonblocking`. Bytes that the pipe does not accept stay in the socket.
    pub fn splice_out(
        &self,
        from: i32,
        pipe: BorrowedFd<'_>,
        count: usize,
        nonblocking: bool,
    ) -> Outcome<usize> {
        self.lock().stream(from)?;
        if count == 0 {
            return Ok(0);
        }
        // Without this check the kernel would move bytes into files of any kind.
        rustix::pipe::fcntl_getpipe_size(pipe).map_err(|_| Errno::INVAL)?;
        let flags = rustix::fs::fcntl_getfl(pipe)?;
        let is_patient = !nonblocking && !flags.contains(OFlags::NONBLOCK);
        let flags = if nonblocking { libc::MSG_DONTWAIT } else { 0 };
        let timeout = self.lock().timeout(from, flags, false)?;
        let mut step = Step::new()?;
        loop {
            wait_for(pipe, PollFlags::OUT, !is_patient)?;
            if self.is_at_mark(from)? {
                // As in Linux, urgent data does not go into a pipe, and the call does not wait
                // behind it.
                return Ok(0);
            }
            let step = &mut step;
            match self
                .block_on(from, timeout, |state| state.splice_some(from, pipe, count, step))?
            {
                Some(moved) => return Ok(moved),
                // Another writer has filled the pipe meanwhile.
                None if is_patient => {}
                None => return Err(Errno::AGAIN),
            }
        }
    }

    /// Sends up to `count` bytes from a pipe, as many as there is room for. Waits for room if the
    /// descriptor blocks, and for bytes unless `nonblocking`.
    pub fn splice_in(
        &self,
        pipe: BorrowedFd<'_>,
        to: i32,
        count: usize,
        nonblocking: bool,
    ) -> Outcome<usize> {
        self.lock().id(to)?;
        wait_for(pipe, PollFlags::IN, nonblocking)?;
        let room = self.wait_for_room(to, nonblocking)?;
        let mut buffer = vec![0; CHUNK.min(count).min(room)];
        let read = rustix::io::read(pipe, &mut buffer)?;
        let mut sent = 0;
        while sent < read {
            // There is room, unless another thread has used it: then this call waits for more.
            match self.send(to, &[&buffer[sent..read]], 0) {
                Ok(taken) => sent += taken,
                Err(Errno::AGAIN) => {
                    self.wait_for_room(to, false)?;
                }
                // Bytes that were sent are reported. Further bytes that were read from the pipe are
                // lost with the connection.
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    fn wait_for_room(&self, to: i32, nonblocking: bool) -> Outcome<usize> {
        let flags = if nonblocking { libc::MSG_DONTWAIT } else { 0 };
        let timeout = self.lock().timeout(to, flags, true)?;
        self.block_on(to, timeout, |state| {
            let (id, now) = (state.id(to)?, state.now());
            let room = state.engine.protocols.send_room(id, now)?;
            if room == 0 { Err(Errno::AGAIN) } else { Ok(room) }
        })
    }
}

/// Our own pipe in front of a program's pipe. A write to the program's pipe might wait for room if
/// that pipe blocks. Between pipes the kernel moves only as many bytes as there is room for.
struct Step {
    from: OwnedFd,
    to: OwnedFd,
    buffer: Vec<u8>,
}

impl Step {
    fn new() -> Outcome<Self> {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { from, to, buffer: Vec::new() })
    }

    /// Moves the first `count` bytes of the buffer into `pipe`, as far as there is room. Returns
    /// their number.
    fn pass(&mut self, count: usize, pipe: BorrowedFd<'_>) -> Outcome<usize> {
        let written = rustix::io::write(&self.to, &self.buffer[..count])?;
        let moved = splice(&self.from, None, pipe, None, written, SpliceFlags::NONBLOCK);
        let moved = match moved {
            Err(Kernel::AGAIN) => 0,
            moved => moved?,
        };
        if moved < written {
            // Bytes left in our pipe still belong to the socket.
            let (from, to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            (self.from, self.to) = (from, to);
        }
        Ok(moved)
    }
}

impl State {
    /// Moves received bytes into a pipe. `None` if the pipe has no room. No other call can take the
    /// bytes meanwhile, because this one holds the lock.
    fn splice_some(
        &mut self,
        from: i32,
        pipe: BorrowedFd<'_>,
        count: usize,
        step: &mut Step,
    ) -> Outcome<Option<usize>> {
        let (id, now) = (self.stream(from)?, self.now());
        step.buffer.resize(CHUNK.min(count), 0);
        let peek = ReceiveFlags { peek: true, offset: 0 };
        let buffer = &mut step.buffer;
        let received = self.with(|sockets, cx| sockets.receive(id, buffer, peek, cx))?;
        if received == 0 {
            return Ok(Some(0));
        }
        let moved = step.pass(received, pipe)?;
        if moved == 0 {
            return Ok(None);
        }
        let taken = self.engine.protocols.discard(id, moved, now)?;
        assert_eq!(taken, moved, "peeked bytes can be taken");
        Ok(Some(moved))
    }

    /// The stream of a descriptor.
    fn stream(&self, fd: i32) -> Outcome<SocketId> {
        let file = self.files.socket(fd)?;
        if file.datagram { Err(Errno::INVAL) } else { Ok(file.id) }
    }
}

/// Waits until a file of the kernel is ready.
fn wait_for(file: BorrowedFd<'_>, what: PollFlags, nonblocking: bool) -> Outcome<()> {
    let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    let timeout = nonblocking.then_some(&none);
    let mut polled = [PollFd::from_borrowed_fd(file, what)];
    let ready = rustix::event::poll(&mut polled, timeout)?;
    // The pipe has no reader. A write would raise a signal.
    let is_broken = what == PollFlags::OUT && polled[0].revents().contains(PollFlags::ERR);
    match ready {
        0 => Err(Errno::AGAIN),
        _ if is_broken => Err(Errno(libc::EPIPE)),
        _ => Ok(()),
    }
}
