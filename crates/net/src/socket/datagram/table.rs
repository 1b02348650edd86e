//! Lookup of the datagram socket that receives a packet.
//!
//! The most specific one gets it: a socket connected to the flow comes first, then one bound to the
//! address, then one bound to all addresses; IPv4 sockets before IPv6 sockets that receive IPv4
//! too. Among equals, the socket that was bound last wins, or the hash of the flow chooses within a
//! `SO_REUSEPORT` group.
//!
//! Bound: one entry for each socket.

use super::super::{Family, Socket, SocketId, Sockets};
use crate::random::{Purpose, Secret};
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::net::{IpAddr, SocketAddr};
use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// Sockets by port and flow, and totals over all of them.
pub(in crate::socket) struct Table {
    /// Sockets with a port and no peer, in the order in which they were bound.
    by_port: HashMap<u16, Vec<SocketId>, FixedState>,
    /// Sockets with a peer, by local and remote address.
    by_flow: HashMap<(SocketAddr, SocketAddr), Vec<SocketId>, FixedState>,
    /// Distributes flows among the sockets of a `SO_REUSEPORT` group.
    hash: FixedState,
    /// Raw sockets.
    pub(super) raw: Vec<SocketId>,
    /// Packet sockets.
    pub(super) link: Vec<SocketId>,
    /// Packets and bytes queued at all sockets.
    pub(super) queued: usize,
    pub(super) held: usize,
    /// Number of pending datagrams of all sockets.
    pub(super) pending: usize,
    /// Sockets to wake when the device has taken all packets.
    pub(super) full: Vec<SocketId>,
    /// [`crate::stack::Stack::emptied_count`] when sockets were last woken.
    pub(super) emptied: u64,
}

impl Table {
    /// No sockets.
    pub(in crate::socket) fn new(secret: &Secret) -> Self {
        Self {
            by_port: HashMap::with_hasher(secret.table(Purpose::DatagramPortTable)),
            by_flow: HashMap::with_hasher(secret.table(Purpose::DatagramFlowTable)),
            hash: secret.table(Purpose::ReusePort),
            raw: Vec::new(),
            link: Vec::new(),
            queued: 0,
            held: 0,
            pending: 0,
            full: Vec::new(),
            emptied: 0,
        }
    }

    /// The socket with this index among those that may receive a packet to several sockets.
    pub(super) fn candidate(
        &self,
        index: usize,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<SocketId> {
        let flow = self.by_flow.get(&(local, remote)).map(Vec::as_slice).unwrap_or_default();
        let port = self.by_port.get(&local.port()).map(Vec::as_slice).unwrap_or_default();
        flow.get(index).or_else(|| port.get(index - flow.len())).copied()
    }

    /// Removes `count` queued packets of `held` bytes from the totals.
    pub(super) fn release(&mut self, count: usize, held: usize) {
        self.queued -= count;
        self.held -= held;
    }

    fn enter(&mut self, id: SocketId, local: SocketAddr, remote: Option<SocketAddr>) {
        match remote {
            Some(remote) => self.by_flow.entry((local, remote)).or_default().push(id),
            None => self.by_port.entry(local.port()).or_default().push(id),
        }
    }

    fn leave(&mut self, id: SocketId, local: SocketAddr, remote: Option<SocketAddr>) {
        let ids = match remote {
            Some(remote) => self.by_flow.get_mut(&(local, remote)),
            None => self.by_port.get_mut(&local.port()),
        };
        let Some(ids) = ids else { return };
        ids.retain(|other| *other != id);
        if ids.is_empty() {
            match remote {
                Some(remote) => _ = self.by_flow.remove(&(local, remote)),
                None => _ = self.by_port.remove(&local.port()),
            }
        }
    }
}

impl Sockets {
    /// Adds a socket to the table, so that it receives packets.
    pub(in crate::socket) fn enter_table(&mut self, id: SocketId) {
        let Ok(socket) = self.socket(id) else { return };
        if socket.used.is_some() {
            let (local, remote) = (socket.local, socket.remote);
            self.datagrams.enter(id, local, remote);
        }
    }

    /// Removes a socket from the table.
    pub(super) fn leave_table(&mut self, id: SocketId) {
        let Ok(socket) = self.socket(id) else { return };
        if socket.used.is_some() {
            let (local, remote) = (socket.local, socket.remote);
            self.datagrams.leave(id, local, remote);
        }
    }

    /// The socket for packets from `remote` to `local`.
    pub(super) fn find_datagram(&self, local: SocketAddr, remote: SocketAddr) -> Option<SocketId> {
        if let Some(ids) = self.datagrams.by_flow.get(&(local, remote)) {
            return ids.last().copied();
        }
        let ids = self.datagrams.by_port.get(&local.port())?;
        let scored = |id: &SocketId| {
            let socket = self.socket(*id).ok()?;
            Some((score(socket, local.ip())?, *id, socket))
        };
        let best = ids.iter().filter_map(scored).max_by_key(|(score, ..)| *score)?;
        if !best.2.options.reuse_port {
            return Some(best.1);
        }
        let alike = |(score, _, socket): &(u8, SocketId, &Socket)| {
            *score == best.0 && socket.options.reuse_port
        };
        let group = || ids.iter().filter_map(scored).filter(alike);
        let hash = self.datagrams.hash.hash_one((local, remote)) as u32;
        let index = (u64::from(hash) * group().count() as u64) >> 32;
        group().nth(index as usize).map(|(_, id, _)| id)
    }
}

/// How specifically a socket is bound to `address`; `None` if it does not match.
pub(super) fn score(socket: &Socket, address: IpAddr) -> Option<u8> {
    let bound = socket.local.ip();
    let dual = socket.used.is_some_and(|used| !used.v6_only);
    let exact = bound == address;
    let fits = bound.is_ipv4() == address.is_ipv4() || (bound.is_ipv6() && dual);
    if !(exact || bound.is_unspecified() && fits) {
        return None;
    }
    let own = u8::from(socket.family == Family::V4);
    Some(u8::from(exact) * 2 + own)
}
