//! One direction of a joined flow, and the pipes that directions share.
//!
//! A direction has a pipe only while the pipe holds bytes. As long as the sinks take the bytes, one
//! pipe serves all directions in turn. So an idle flow has two descriptors, its sockets.

use std::io;
use towpath_io::socket::{Pipe, TcpSocket};

/// Empty pipes that are kept for the next direction that moves.
const PIPES_KEPT_MAX: usize = 8;

/// Unused pipes. All of them are empty.
#[derive(Default)]
pub(super) struct Pipes(Vec<Pipe>);

impl Pipes {
    /// Makes sure that there is a pipe, so that flows that take all other descriptors can move and
    /// end.
    pub(super) fn prepare(&mut self) -> io::Result<()> {
        let pipe = self.take()?;
        self.give_back(pipe);
        Ok(())
    }

    fn take(&mut self) -> io::Result<Pipe> {
        self.0.pop().map_or_else(Pipe::new, Ok)
    }

    fn give_back(&mut self, pipe: Pipe) {
        debug_assert_eq!(pipe.held(), 0);
        if self.0.len() < PIPES_KEPT_MAX {
            self.0.push(pipe);
        }
    }
}

/// One direction: from a source to a sink. It remembers readiness until a call returns otherwise,
/// since sockets are watched edge-triggered.
#[derive(Default)]
pub(super) struct Lane {
    /// The pipe, with bytes that were read and that the sink has not taken yet.
    pipe: Option<Pipe>,
    /// The source may have bytes.
    pub(super) readable: bool,
    /// The sink may take bytes.
    pub(super) writable: bool,
    /// The source's FIN was read: nothing follows.
    ended: bool,
    /// The FIN was passed on.
    closed: bool,
}

/// How a call of [`Lane::advance`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// An event reports when there is more to do.
    Waits,
    /// It reached the limit of its turn; there may be more to do.
    More,
}

/// Why a direction could not move.
#[derive(Debug)]
pub(super) enum LaneError {
    /// No pipe is available; no byte is lost.
    NoPipe,
    /// One of the connections broke.
    Broken,
}

impl Lane {
    /// Returns true once the source's FIN was passed on, after all bytes before it.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the bytes that the sink has not taken yet.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.pipe.as_ref().map_or(0, Pipe::held)
    }

    /// Moves bytes until the source has none, the sink takes none or `most` bytes are moved; also
    /// moves the bytes that share the pipe with the last of them. Adds the bytes that the sink took
    /// to `moved`, whatever the result.
    pub(super) fn advance(
        &mut self,
        from: &TcpSocket,
        to: &TcpSocket,
        pipes: &mut Pipes,
        moved: &mut u64,
        most: u64,
    ) -> Result<Progress, LaneError> {
        let until = *moved + most;
        while self.writable && (self.pipe.is_some() || self.readable) {
            if *moved >= until {
                return Ok(Progress::More);
            }
            let mut pipe = match self.pipe.take() {
                Some(pipe) => pipe,
                None => pipes.take().map_err(|_| LaneError::NoPipe)?,
            };
            let stepped = self.step(&mut pipe, from, to);
            if pipe.held() > 0 {
                self.pipe = Some(pipe);
            } else {
                pipes.give_back(pipe);
            }
            *moved += stepped.map_err(|_| LaneError::Broken)? as u64;
        }
        if self.ended && self.pipe.is_none() && !self.closed {
            self.closed = true;
            to.shutdown_write().map_err(|_| LaneError::Broken)?;
        }
        Ok(Progress::Waits)
    }

    /// Fills the pipe once and drains it once.
    fn step(&mut self, pipe: &mut Pipe, from: &TcpSocket, to: &TcpSocket) -> io::Result<usize> {
        if self.readable {
            match pipe.fill(from) {
                Ok(0) => (self.ended, self.readable) = (true, false),
                Ok(_) => {}
                // A pipe that holds bytes may be full: the source is asked again when the pipe is
                // empty.
                Err(error) if is_would_block(&error) => self.readable = pipe.held() > 0,
                Err(error) => return Err(error),
            }
        }
        match pipe.drain(to) {
            Err(error) if is_would_block(&error) => {
                self.writable = false;
                Ok(0)
            }
            result => result,
        }
    }
}

fn is_would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
