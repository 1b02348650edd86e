//! The control socket of an instance: requests and answers as HTTP, at one or two paths.
//!
//! A handler that takes a connection over ([`Asked`]) answers by itself, at any time.
//!
//! Limit: [`CONNECTIONS_MAX`]; see [`Clients`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use towpath_gateway::control::http::{BODY_BYTES_MAX, HEAD_BYTES_MAX, Request, Response};
use towpath_io::endpoint::Listener;

use crate::control::clients::{Answer, Arrived, Clients, Limits, Listeners};
use crate::control::instances::Announced;

/// Most concurrent connections: commands, and a metrics collector.
const CONNECTIONS_MAX: usize = 16;

/// A control socket.
pub(crate) struct Control(Clients<Sockets>);

/// Where it listens.
struct Sockets {
    /// The one by which others find this process, if the user has a folder for it.
    announced: Option<Announced>,
    /// The one at a path that the user chose.
    named: Option<Listener>,
}

/// A request, and what came with it.
pub(crate) struct Asked<'a> {
    pub(crate) request: Request<'a>,
    /// The descriptor that came with it.
    pub(crate) file: &'a mut Option<OwnedFd>,
    /// Its connection, which is non-blocking.
    pub(crate) stream: &'a UnixStream,
}

impl Control {
    /// Serves these sockets.
    pub(crate) fn new(
        announced: Option<Announced>,
        named: Option<Listener>,
    ) -> anyhow::Result<Self> {
        let limits =
            Limits { connections: CONNECTIONS_MAX, request_bytes: HEAD_BYTES_MAX + BODY_BYTES_MAX };
        Ok(Self(Clients::new(Sockets { announced, named }, limits)?))
    }

    /// Returns the names that the sockets' files may have, each with the file's inode.
    pub(crate) fn files(&self) -> Vec<(PathBuf, u64)> {
        let Sockets { announced, named } = &self.0.listeners;
        let named = named.as_ref().and_then(Listener::file);
        let named = named.map(|(path, (_, inode))| (path, inode));
        let announced = announced.as_ref().map(Announced::files).unwrap_or_default();
        announced.into_iter().chain(named).collect()
    }

    /// Gives the socket the name by which others find it.
    pub(crate) fn announce(&self) -> anyhow::Result<()> {
        self.0.listeners.announced.as_ref().map_or(Ok(()), Announced::announce)
    }

    /// Does all work that needs no waiting. `answer` handles requests, and returns `None` if it has
    /// taken the connection over.
    ///
    /// # Errors
    /// A system call that worked before failed; the socket is unusable from now on.
    pub(crate) fn serve(
        &mut self,
        mut answer: impl FnMut(Asked<'_>) -> Option<Response>,
    ) -> io::Result<()> {
        let served = self.0.serve(|Arrived { bytes, is_end, file, stream }| {
            if is_end {
                return Answer::None;
            }
            match Request::parse(bytes) {
                Ok(None) => Answer::Incomplete,
                Ok(Some(request)) => answer(Asked { request, file, stream })
                    .map_or(Answer::None, |response| Answer::Bytes(response.to_bytes())),
                Err(response) => Answer::Bytes(response.to_bytes()),
            }
        });
        // This fails while descriptors are short, and is repeated when the timer ticks.
        let _ = self.0.listeners.announced.as_mut().map(Announced::keep_spare);
        served
    }
}

impl Listeners for Sockets {
    fn files(&self) -> Vec<BorrowedFd<'_>> {
        let announced = self.announced.as_ref().map(AsFd::as_fd);
        announced.into_iter().chain(self.named.as_ref().map(AsFd::as_fd)).collect()
    }

    fn accept(&mut self) -> io::Result<Option<UnixStream>> {
        let announced = self.announced.as_mut().map(Announced::accept);
        if let Some(stream) = announced.transpose()?.flatten() {
            return Ok(Some(stream));
        }
        let named = self.named.as_ref().map(Listener::accept).transpose()?.flatten();
        Ok(named.map(UnixStream::from))
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
