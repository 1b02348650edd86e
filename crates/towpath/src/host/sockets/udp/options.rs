//! Addresses and options of a UDP socket.

use crate::host::{UdpSocket, io_error};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use towpath_net::socket::{Options, Sockets};
use towpath_net::stack::TTL_DEFAULT;

impl UdpSocket {
    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.with_state(Sockets::local).map_err(io_error)
    }

    /// Returns the address of the connected peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.with_state(Sockets::remote).map_err(io_error)
    }

    /// Takes the pending error.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let error = self.inner.host.owner.core.lock().engine.protocols.take_error(self.inner.id);
        Ok(error.map_err(io_error)?.map(io_error))
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

    /// Returns the current options.
    pub fn options(&self) -> io::Result<Options> {
        self.with_state(|sockets, id| sockets.options(id).copied()).map_err(io_error)
    }

    /// Changes options.
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) -> io::Result<()> {
        let set = |sockets: &mut Sockets, id, now| sockets.set_options(id, now, change);
        self.with_sockets(set).map_err(io_error)
    }

    /// Sets how long a receiving call blocks; `None` for no limit.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.inner.shape.set_read_timeout(timeout)
    }

    /// Sets how long a sending call blocks; `None` for no limit.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.inner.shape.set_write_timeout(timeout)
    }

    /// Sets whether calls fail with `WouldBlock` instead of blocking.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.inner.shape.set_nonblocking(nonblocking);
        Ok(())
    }
}
