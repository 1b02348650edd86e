//! The control socket of an instance: requests and answers as HTTP, at one or two paths.
//!
//! A handler that takes a connection over ([`Asked`]) answers by itself, at any time. Long requests
//! are taken and parsed one at a time, by a thread of their own: see [`Reader`].
//!
//! Limit: [`CONNECTIONS_MAX`]; see [`Clients`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use towpath_gateway::control::http::{
    BODY_BYTES_MAX, BodyRoom, HEAD_BYTES_MAX, LONG_BODY_BYTES_MAX, Request, Response,
};
use towpath_gateway::egress::policy::Policy;
use towpath_io::endpoint::Listener;

use crate::control::clients::{Answer, Arrived, Clients, Limits, Listeners};
use crate::control::content::{Content, Parsed, Reader};
use crate::control::instances::Announced;

/// Most concurrent connections: commands, and a metrics collector.
const CONNECTIONS_MAX: usize = 16;

/// A control socket.
pub(crate) struct Control {
    clients: Clients<Sockets>,
    /// Parses long requests, if this instance takes any.
    reader: Option<Reader>,
}

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
    /// Its body, parsed.
    pub(crate) content: Content,
    /// The descriptor that came with it.
    pub(crate) file: &'a mut Option<OwnedFd>,
    /// Its connection, which is non-blocking.
    pub(crate) stream: &'a UnixStream,
    /// Takes the policies that the answer replaces: another thread frees them.
    pub(crate) replaced: &'a mut Vec<Arc<Policy>>,
}

impl Control {
    /// Serves these sockets.
    pub(crate) fn new(
        announced: Option<Announced>,
        named: Option<Listener>,
    ) -> anyhow::Result<Self> {
        let limits = Limits {
            connections: CONNECTIONS_MAX,
            request_bytes: HEAD_BYTES_MAX + BODY_BYTES_MAX,
            long_bytes: HEAD_BYTES_MAX + LONG_BODY_BYTES_MAX,
        };
        let clients = Clients::new(Sockets { announced, named }, limits)?;
        Ok(Self { clients, reader: None })
    }

    /// Takes long requests from now on, which policies may be.
    ///
    /// # Errors
    /// Those of [`Reader::start`].
    pub(crate) fn take_long(&mut self) -> io::Result<()> {
        let reader = Reader::start()?;
        self.clients.wake_by(reader.bell())?;
        self.reader = Some(reader);
        Ok(())
    }

    /// Returns the names that the sockets' files may have, each with the file's inode.
    pub(crate) fn files(&self) -> Vec<(PathBuf, u64)> {
        let Sockets { announced, named } = &self.clients.listeners;
        let named = named.as_ref().and_then(Listener::file);
        let named = named.map(|(path, (_, inode))| (path, inode));
        let announced = announced.as_ref().map(Announced::files).unwrap_or_default();
        announced.into_iter().chain(named).collect()
    }

    /// Gives the socket the name by which others find it.
    pub(crate) fn announce(&self) -> anyhow::Result<()> {
        self.clients.listeners.announced.as_ref().map_or(Ok(()), Announced::announce)
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
        let Self { clients, reader } = self;
        let mut replaced = Vec::new();
        if let Some(Parsed { number, bytes, content }) = reader.as_mut().and_then(Reader::take) {
            clients.finish(number, |stream, file| {
                let request = Request::parse(&bytes, BodyRoom::LONG).ok().flatten()?;
                let asked = Asked { request, content, file, stream, replaced: &mut replaced };
                answer(asked).map(|response| response.to_bytes())
            })?;
        }
        let served =
            clients.serve(|Arrived { number, bytes, is_end, may_be_long, file, stream }| {
                if is_end {
                    return Answer::None;
                }
                let room = match reader {
                    None => BodyRoom::SHORT,
                    Some(reader) if reader.is_busy() || !may_be_long => BodyRoom::ONE_LONG,
                    Some(_) => BodyRoom::LONG,
                };
                let request = match Request::parse(bytes, room) {
                    Ok(None) => return Answer::Incomplete,
                    Ok(Some(request)) => request,
                    Err(response) => return Answer::Bytes(response.to_bytes()),
                };
                if let Some(reader) =
                    reader.as_mut().filter(|_| request.body.len() > BODY_BYTES_MAX)
                {
                    reader.begin(number, std::mem::take(bytes));
                    return Answer::Later;
                }
                let content = Content::of(&request);
                answer(Asked { request, content, file, stream, replaced: &mut replaced })
                    .map_or(Answer::None, |response| Answer::Bytes(response.to_bytes()))
            });
        if let Some(reader) = reader {
            replaced.into_iter().for_each(|policy| reader.free(policy));
        }
        // This fails while descriptors are short, and is repeated when the timer ticks.
        let _ = self.clients.listeners.announced.as_mut().map(Announced::keep_spare);
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
        self.clients.as_fd()
    }
}

#[cfg(test)]
mod tests;
