//! One direction of a joined flow, and the pipes that directions share.
//!
//! A direction has a pipe only while bytes lie in it: as long as its sink takes what comes, one
//! pipe serves all of them in turn. So a flow that rests has two descriptors, its sockets.

use std::io;
use towpath_io::socket::{Pipe, TcpSocket};

/// Empty pipes that are kept for the next direction that moves.
const PIPES_KEPT_MAX: usize = 8;

/// Pipes that nobody uses. All of them are empty.
#[derive(Default)]
pub(super) struct Pipes(Vec<Pipe>);

impl Pipes {
    /// Sees to it that there is one: flows that take all other descriptors can move and end.
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

/// One direction: from a source to a sink. What is ready is remembered until a call says otherwise,
/// since sockets are watched for edges.
#[derive(Default)]
pub(super) struct Lane {
    /// With what was read and not taken by the sink yet.
    pipe: Option<Pipe>,
    /// The source may have something.
    pub(super) readable: bool,
    /// The sink may take something.
    pub(super) writable: bool,
    /// The source's FIN was read: nothing follows.
    ended: bool,
    /// It was passed on.
    closed: bool,
}

/// How far a direction came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// An event tells when there is more to do.
    Waits,
    /// It had its turn; there may be more to do.
    More,
}

/// Why a direction did not move on.
#[derive(Debug)]
pub(super) enum LaneError {
    /// There is no pipe for it; nothing is lost.
    NoPipe,
    /// One of the connections broke.
    Broken,
}

impl Lane {
    /// True once the source's FIN was passed on, after all bytes before it.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Bytes that the sink has not taken yet.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.pipe.as_ref().map_or(0, Pipe::held)
    }

    /// Moves on until the source has no more, the sink takes no more or `most` bytes are moved, and
    /// what was in the pipe with the last of them; adds to `moved` what the sink took, whatever the
    /// result.
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
                // One that holds bytes may be full: the source is asked again when it is empty.
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
