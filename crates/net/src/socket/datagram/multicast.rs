//! Multicast groups of datagram sockets (ip(7), `IP_ADD_MEMBERSHIP`, `IP_MULTICAST_ALL`).
//!
//! A socket receives datagrams to a group if it is bound to the port and to the group or to all
//! addresses, and if it has joined the group or [`MulticastOptions::all`] is set: then those of
//! every group that any socket of the stack has joined. Each such socket gets a share of the
//! datagram, without a copy of the payload.
//!
//! There is one link, so a membership has no interface. Source filters are not supported.
//!
//! Bounds: [`MEMBERSHIPS_MAX`] for each socket over IPv4, and those of the stack.

use super::super::{Error, Family, Socket, SocketId, Sockets};
use super::receive::Waiting;
use super::table::score;
use crate::counters::DropReason;
use crate::stack::{Context, Datagram, JoinError, share};
use crate::time::Instant;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Maximum number of IPv4 groups of one socket (Linux's `igmp_max_memberships`).
pub const MEMBERSHIPS_MAX: usize = 20;

/// Options for multicast datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastOptions {
    /// Time to live of IPv4 datagrams (`IP_MULTICAST_TTL`). With zero they do not leave the host.
    pub ttl: u8,
    /// Hop limit of IPv6 datagrams (`IPV6_MULTICAST_HOPS`). With zero they do not leave the host.
    pub hop_limit: u8,
    /// Sockets of this host receive IPv4 datagrams that this socket sends (`IP_MULTICAST_LOOP`).
    pub loops_v4: bool,
    /// Sockets of this host receive IPv6 datagrams that this socket sends (`IPV6_MULTICAST_LOOP`).
    pub loops_v6: bool,
    /// Receives datagrams to IPv4 groups that other sockets have joined (`IP_MULTICAST_ALL`). Off
    /// for new IPv6 sockets.
    pub all_v4: bool,
    /// Receives datagrams to IPv6 groups that other sockets have joined (`IPV6_MULTICAST_ALL`).
    pub all_v6: bool,
    /// Source of IPv4 datagrams of a socket that is not bound to an address (`IP_MULTICAST_IF`).
    pub source: Option<Ipv4Addr>,
    /// Can be set and read (`IPV6_MULTICAST_IF`); there is one link.
    pub interface_v6: u32,
}

impl Default for MulticastOptions {
    fn default() -> Self {
        Self {
            ttl: 1,
            hop_limit: 1,
            loops_v4: true,
            loops_v6: true,
            all_v4: true,
            all_v6: true,
            source: None,
            interface_v6: 0,
        }
    }
}

impl Sockets {
    /// Joins a multicast group (`IP_ADD_MEMBERSHIP`, `IPV6_JOIN_GROUP`).
    ///
    /// # Errors
    /// [`Error::Protocol`] for stream sockets, [`Error::NoSuchOption`] for packet sockets and for
    /// IPv6 groups of IPv4 sockets, [`Error::Invalid`] if the address is not multicast,
    /// [`Error::AddressInUse`] if the socket is a member, and [`Error::NoBuffers`] or, for IPv6,
    /// [`Error::NoMemory`] beyond the bounds.
    pub fn join_group(&mut self, id: SocketId, group: IpAddr, now: Instant) -> Result<(), Error> {
        self.check_group_call(id, group)?;
        if !group.is_multicast() {
            return Err(Error::Invalid);
        }
        let joined = &self.socket(id)?.datagrams()?.memberships;
        if joined.contains(&group) {
            return Err(Error::AddressInUse);
        }
        if group.is_ipv4()
            && joined.iter().filter(|group| group.is_ipv4()).count() >= MEMBERSHIPS_MAX
        {
            return Err(Error::NoBuffers);
        }
        self.stack.join_group(group, now).map_err(|error| match error {
            JoinError::NotMulticast => Error::Invalid,
            JoinError::TooMany if group.is_ipv4() => Error::NoBuffers,
            JoinError::TooMany => Error::NoMemory,
        })?;
        self.socket_mut(id)?.datagrams_mut()?.memberships.push(group);
        Ok(())
    }

    /// Leaves a multicast group (`IP_DROP_MEMBERSHIP`, `IPV6_LEAVE_GROUP`). Closing a socket leaves
    /// all its groups.
    ///
    /// # Errors
    /// [`Error::AddressNotAvailable`] if the socket is not a member, [`Error::Invalid`] for an IPv6
    /// address that is not multicast, and those of [`Sockets::join_group`] for other kinds of
    /// sockets.
    pub fn leave_group(&mut self, id: SocketId, group: IpAddr, now: Instant) -> Result<(), Error> {
        self.check_group_call(id, group)?;
        if group.is_ipv6() && !group.is_multicast() {
            return Err(Error::Invalid);
        }
        let joined = &mut self.socket_mut(id)?.datagrams_mut()?.memberships;
        let found = joined.iter().position(|other| *other == group);
        joined.swap_remove(found.ok_or(Error::AddressNotAvailable)?);
        self.stack.leave_group(group, now);
        Ok(())
    }

    fn check_group_call(&self, id: SocketId, group: IpAddr) -> Result<(), Error> {
        let socket = self.socket(id)?;
        let datagrams = socket.datagrams().map_err(|_| Error::Protocol)?;
        let is_foreign = socket.family == Family::V4 && group.is_ipv6();
        if datagrams.link.is_some() || is_foreign { Err(Error::NoSuchOption) } else { Ok(()) }
    }

    /// Leaves all groups of a socket that is closed.
    pub(in crate::socket) fn leave_groups(&mut self, id: SocketId, now: Instant) {
        let Ok(datagrams) = self.socket_mut(id).and_then(Socket::datagrams_mut) else { return };
        for group in core::mem::take(&mut datagrams.memberships) {
            self.stack.leave_group(group, now);
        }
    }

    /// Gives a share of a multicast datagram to each socket that receives it, and the datagram
    /// itself to the last one.
    pub(super) fn take_in_group(&mut self, datagram: Datagram, cx: &mut Context<'_>) {
        let Datagram { local, remote, packet, segment_size, tos, ttl } = datagram;
        let waiting = |packet| Waiting {
            local,
            remote,
            segment_size,
            tos,
            ttl,
            ..Waiting::new(packet, local)
        };
        let mut found = None;
        let mut index = 0;
        while let Some(id) = self.datagrams.candidate(index, local, remote) {
            index += 1;
            if !self.receives_group(id, local) {
                continue;
            }
            if let Some(earlier) = found.replace(id) {
                match share(&packet, &[], cx) {
                    Some(packet) => self.enqueue(earlier, waiting(packet), cx),
                    None => self.stack.count_drop(DropReason::NoMemory),
                }
            }
        }
        match found {
            Some(id) => self.enqueue(id, waiting(packet), cx),
            None => self.stack.count_drop(DropReason::UdpNoSocket),
        }
    }

    fn receives_group(&self, id: SocketId, local: SocketAddr) -> bool {
        self.socket(id)
            .is_ok_and(|socket| score(socket, local.ip()).is_some() && hears(socket, local.ip()))
    }
}

/// True if the socket receives what is sent to a group, wherever it is bound.
pub(super) fn hears(socket: &Socket, group: IpAddr) -> bool {
    let options = &socket.options.datagram.multicast;
    let all = if group.is_ipv4() { options.all_v4 } else { options.all_v6 };
    all || socket.datagrams().is_ok_and(|datagrams| datagrams.memberships.contains(&group))
}
