//! How front ends connect to a device, or a device to them.

use super::super::channel::Channel;
use super::super::events::DeviceEvent;
use super::super::prepare;
use super::super::session::Session;
use super::{Endpoint, Peer, TOKEN_CHANNEL, VhostUser, VhostUserError};
use crate::endpoint::{self, RETRY_INTERVAL};
use crate::reactor::Interest;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io;
use towpath_packet::time::Instant;

impl VhostUser {
    /// Starts a session with a front end.
    pub(super) fn meet(&mut self, socket: OwnedFd) -> Result<(), VhostUserError> {
        prepare()?;
        self.reactor.add(&socket, TOKEN_CHANNEL, Interest::READ, false)?;
        let (channel, mut session) = (Channel::new(socket), Session::new(self.offer));
        session.set_link(self.is_up);
        self.peer = Some(Peer { channel, session, pending: None });
        self.counters.sessions += 1;
        self.event_log.put(DeviceEvent::Began);
        Ok(())
    }

    /// Accepts front ends that have connected, or disconnects them if there is a session already.
    pub(super) fn accept(&mut self, now: Instant) -> Result<(), VhostUserError> {
        self.accept_at = None;
        loop {
            if self.closing.is_full() {
                self.accept_at = Some(now + RETRY_INTERVAL);
                return Ok(());
            }
            let Endpoint::Server(Some(listener), _) = &self.endpoint else { return Ok(()) };
            match listener.accept() {
                Ok(Some(socket)) if self.peer.is_some() => {
                    self.counters.turned_away += 1;
                    self.closing.close(vec![socket]);
                }
                Ok(Some(socket)) => self.meet(socket)?,
                Ok(None) => return Ok(()),
                // Out of descriptors or memory: try again later.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    self.accept_at = Some(now + RETRY_INTERVAL);
                    return Ok(());
                }
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
    }

    /// As a client without a front end: connects when it is time. Returns the time of the next
    /// attempt.
    pub(super) fn call_again(&mut self, now: Instant) -> Result<Option<Instant>, VhostUserError> {
        let Endpoint::Client(path, at) = &mut self.endpoint else { return Ok(None) };
        if self.peer.is_some() || !self.is_up {
            return Ok(None);
        }
        if *at > now {
            return Ok(Some(*at));
        }
        *at = now + RETRY_INTERVAL;
        let at = *at;
        if self.closing.is_full() {
            return Ok(Some(at));
        }
        match endpoint::connect(path)? {
            Some(socket) => self.meet(socket).map(|()| None),
            None => Ok(Some(at)),
        }
    }
}
