//! `sendfile` and `splice`: bytes between sockets of an instance and files of the kernel's.
//!
//! The kernel cannot lend its pages to a stack in a process, so both copy through a buffer of
//! [`CHUNK`] bytes.

use crate::errno::{Errno, Outcome};
use crate::instance::Instance;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::BorrowedFd;
use rustix::fs::SeekFrom;

/// Bytes moved at a time.
const CHUNK: usize = 64 << 10;

impl Instance {
    /// Sends up to `count` bytes of a file, from `offset` on, or from the file's own position,
    /// which moves then. Returns how many.
    pub fn send_file(
        &self,
        to: i32,
        file: BorrowedFd<'_>,
        offset: Option<u64>,
        count: usize,
    ) -> Outcome<usize> {
        self.lock().id(to)?;
        let own = match offset {
            Some(_) => 0,
            None => rustix::fs::seek(file, SeekFrom::Current(0))?,
        };
        let start = offset.unwrap_or(own);
        let mut buffer = vec![0; CHUNK.min(count)];
        let mut sent = 0;
        while sent < count {
            let wanted = buffer.len().min(count - sent);
            let read = rustix::io::pread(file, &mut buffer[..wanted], start + sent as u64)?;
            if read == 0 {
                break;
            }
            let more = if sent + read < count { libc::MSG_MORE } else { 0 };
            match self.send(to, &[&buffer[..read]], more) {
                Ok(taken) => {
                    sent += taken;
                    if taken < read {
                        break;
                    }
                }
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        if offset.is_none() {
            rustix::fs::seek(file, SeekFrom::Start(start + sent as u64))?;
        }
        Ok(sent)
    }

    /// Moves up to `count` received bytes into a pipe; waits for bytes as the descriptor says, and
    /// for room in the pipe unless `nonblocking`.
    pub fn splice_out(
        &self,
        from: i32,
        pipe: BorrowedFd<'_>,
        count: usize,
        nonblocking: bool,
    ) -> Outcome<usize> {
        wait_for(pipe, PollFlags::OUT, nonblocking)?;
        if self.is_at_mark(from)? {
            // Urgent data does not go into a pipe, and is not waited for, as in Linux.
            return Ok(0);
        }
        let held = rustix::io::ioctl_fionread(pipe)?;
        let room = rustix::pipe::fcntl_getpipe_size(pipe)?.saturating_sub(held as usize);
        let mut buffer = vec![0; CHUNK.min(count).min(room.max(1))];
        let flags = if nonblocking { libc::MSG_DONTWAIT } else { 0 };
        let received = self.receive(from, &mut [&mut buffer], flags)?;
        let mut written = 0;
        while written < received {
            written += rustix::io::write(pipe, &buffer[written..received])?;
        }
        Ok(received)
    }

    /// Sends up to `count` bytes from a pipe, as many as there is room for; waits for room as the
    /// descriptor says, and for bytes unless `nonblocking`.
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
            // There is room, unless another thread took it: then this waits for its own.
            match self.send(to, &[&buffer[sent..read]], 0) {
                Ok(taken) => sent += taken,
                Err(Errno::AGAIN) => {
                    self.wait_for_room(to, false)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    fn wait_for_room(&self, to: i32, nonblocking: bool) -> Outcome<usize> {
        let flags = if nonblocking { libc::MSG_DONTWAIT } else { 0 };
        let timeout = self.lock().timeout(to, flags, true)?;
        self.block(timeout, |state| {
            let (id, now) = (state.id(to)?, state.now());
            let room = state.sockets.send_room(id, now)?;
            if room == 0 { Err(Errno::AGAIN) } else { Ok(room) }
        })
    }
}

/// Waits until a file of the kernel's is ready.
fn wait_for(file: BorrowedFd<'_>, what: PollFlags, nonblocking: bool) -> Outcome<()> {
    let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    let timeout = nonblocking.then_some(&none);
    let ready = rustix::event::poll(&mut [PollFd::from_borrowed_fd(file, what)], timeout)?;
    if ready == 0 { Err(Errno::AGAIN) } else { Ok(()) }
}
