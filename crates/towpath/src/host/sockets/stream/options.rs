//! Options of a connection.

use crate::host::{TcpStream, io_error};
use std::io;
use std::time::Duration;
use towpath_net::socket::{Linger, Options};
use towpath_net::stack::TTL_DEFAULT;

impl TcpStream {
    /// Returns the current options.
    pub fn options(&self) -> io::Result<Options> {
        self.inner
            .host
            .owner
            .core
            .lock()
            .engine
            .protocols
            .options(self.id())
            .copied()
            .map_err(io_error)
    }

    /// Changes options.
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) -> io::Result<()> {
        let id = self.id();
        let core = &self.inner.host.owner.core;
        core.call(|state, now| state.engine.protocols.set_options(id, now, change))
            .map_err(io_error)
    }

    /// Sets the hop limit of sent packets (`IP_TTL`, or `IPV6_UNICAST_HOPS`).
    pub fn set_ttl(&self, ttl: u8) -> io::Result<()> {
        self.set_options(|options| (options.ttl, options.hop_limit) = (Some(ttl), Some(ttl)))
    }

    /// Returns the hop limit of sent packets.
    pub fn ttl(&self) -> io::Result<u8> {
        let is_v4 = self.local_addr()?.is_ipv4();
        let options = self.options()?;
        let ttl = if is_v4 { options.ttl } else { options.hop_limit };
        Ok(ttl.unwrap_or(TTL_DEFAULT))
    }

    /// Sets what happens to unacknowledged data when the last handle is dropped: it is sent in the
    /// background (`None`), or the connection is reset at once (zero). Dropping never blocks: with
    /// a longer time the data is also sent in the background.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        let linger = match linger {
            None => Linger::Off,
            Some(Duration::ZERO) => Linger::Reset,
            Some(time) => Linger::Wait(time),
        };
        self.set_options(|options| options.linger = linger)
    }

    /// Returns the value set by [`TcpStream::set_linger`].
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(match self.options()?.linger {
            Linger::Off => None,
            Linger::Reset => Some(Duration::ZERO),
            Linger::Wait(time) => Some(time),
        })
    }

    /// Sets `TCP_NODELAY`: true sends small segments at once instead of waiting for ACKs.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.set_options(|options| options.nodelay = nodelay)
    }

    /// Returns `TCP_NODELAY`.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.options()?.nodelay)
    }
}
