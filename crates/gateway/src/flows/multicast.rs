//! Service discovery by multicast between the network and the host's: mDNS and SSDP.
//!
//! # Theory of operation
//!
//! For each chosen service, IP version and interface of the host there is one socket that is a
//! member of the service's group. Queries of the program leave by all interfaces; answers that
//! arrive by multicast are sent to the group inside, from the gateway. A query from another port
//! than the service's expects unicast answers (RFC 6762 §6.7, UPnP Device Architecture 2.0 §1.3):
//! it leaves by a mapping of its own, which takes datagrams from every host for
//! `ANSWERS_WITHIN`.
//!
//! Only queries leave, and only answers and announcements enter. So what the program announces
//! stays inside, where alone its addresses mean something, and no message passes two gateways in a
//! circle by both directions. A query could circle between gateways whose networks are interfaces
//! of the same host: the same text passes at most [`REPEATS_MAX`] times within [`REPEATED_WITHIN`].
//!
//! Bounds: [`QUERIES_PER_SECOND`] for each guest, [`ANSWERS_PER_SECOND`] for all,
//! [`RECENT_MAX`], [`MESSAGE_BYTES_MAX`], and the interfaces of
//! [`INTERFACES_MAX`](towpath_io::netlink::interfaces::INTERFACES_MAX), which are those that the
//! host has at the start.

mod message;

use super::listen::StartError;
use super::{Gateway, Io, Token};
use crate::bucket::Bucket;
use crate::config::MulticastService;
use message::{MESSAGE_BYTES_MAX, ask_for_multicast, is_answer, is_query};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{SocketAddr, SocketAddrV6};
use std::num::NonZeroU8;
use std::time::Duration;
use towpath_io::netlink::Netlink;
use towpath_io::netlink::interfaces::AddressedInterface;
use towpath_io::reactor::{Interest, Reactor};
use towpath_io::socket::{IpFields, UdpSocket};
use towpath_net::stack::{Datagram, Stack, UdpSend};
use towpath_net::time::Instant;
use towpath_packet::Site;

/// Queries per second that a guest may send in the long run, and at once.
const QUERIES_PER_SECOND: u32 = 16;
const QUERIES_BURST: u32 = 64;
/// Answers per second that enter in the long run, and at once.
const ANSWERS_PER_SECOND: u32 = 128;
const ANSWERS_BURST: u32 = 512;
/// Guests whose queries are counted; a switch has fewer ports.
const GUESTS_MAX: usize = 4096;
/// A query of the same text within this time may be one that has come back. mDNS repeats a query
/// after a second at the earliest (RFC 6762 §5.2).
const REPEATED_WITHIN: Duration = Duration::from_millis(900);
/// How often a query with unicast answers may be repeated within that time: SSDP sends it several
/// times, and other guests may ask the same. An mDNS query passes once, as all receive the answer.
const REPEATS_MAX: usize = 4;
/// Queries that are remembered.
const RECENT_MAX: usize = 256;
/// Messages read from one socket before others get their turn.
const READS_PER_TURN: usize = 16;

/// The sockets of the chosen services, and limits.
#[derive(Default)]
pub(super) struct Groups {
    sockets: Vec<GroupSocket>,
    services: Vec<MulticastService>,
    interfaces: Vec<AddressedInterface>,
    queries: HashMap<Option<u16>, Bucket>,
    answers: Option<Bucket>,
    recent: VecDeque<(Instant, u64)>,
    hash: RandomState,
    /// The message that is being passed on; kept for its memory.
    copied: Vec<u8>,
}

/// A member of a group on one interface.
struct GroupSocket {
    socket: UdpSocket,
    service: MulticastService,
    group: SocketAddr,
}

impl Groups {
    /// Opens the sockets.
    pub(super) fn open(
        services: &[MulticastService],
        families: [bool; 2],
        reactor: &Reactor,
    ) -> Result<Self, StartError> {
        let mut groups = Self { services: services.to_vec(), ..Self::default() };
        if services.is_empty() {
            return Ok(groups);
        }
        groups.interfaces = Netlink::open()
            .and_then(|mut netlink| netlink.interfaces())
            .map_err(io::Error::from)?;
        groups.copied = vec![0; MESSAGE_BYTES_MAX];
        for &service in services {
            for group in service.groups() {
                if !families[usize::from(group.is_ipv6())] {
                    continue;
                }
                for interface in &groups.interfaces {
                    if !interface.has(group.is_ipv4()) {
                        continue;
                    }
                    let socket = UdpSocket::join(group, interface.index, service.hops());
                    let socket =
                        socket.map_err(|source| StartError::Multicast { group, source })?;
                    let token = Token::Group(groups.sockets.len() as u32).encode();
                    reactor.add(&socket, token, Interest::READ, false)?;
                    groups.sockets.push(GroupSocket { socket, service, group });
                }
            }
        }
        Ok(groups)
    }

    /// Makes the stack a member of the groups, so that it takes the program's queries.
    pub(super) fn join(&self, stack: &mut Stack) {
        for group in self.services.iter().flat_map(|service| service.groups()) {
            // There are fewer groups than a stack may join.
            let _ = stack.join_group(group.ip(), Instant::START);
        }
    }

    /// The service of a group.
    fn service(&self, group: SocketAddr) -> Option<MulticastService> {
        self.services.iter().copied().find(|service| service.groups().contains(&group))
    }

    /// True if a query may pass: the guest has not sent too many, and it has not come back.
    fn admits(&mut self, guest: Option<u16>, hash: u64, most: usize, now: Instant) -> bool {
        if self.queries.len() >= GUESTS_MAX && !self.queries.contains_key(&guest) {
            self.queries.clear();
        }
        let bucket = self.queries.entry(guest).or_insert(Bucket::full(QUERIES_BURST, now));
        if !bucket.take(QUERIES_PER_SECOND, QUERIES_BURST, now) {
            return false;
        }
        while self.recent.len() >= RECENT_MAX
            || self.recent.front().is_some_and(|(at, _)| now.since(*at) >= REPEATED_WITHIN)
        {
            self.recent.pop_front();
        }
        if self.recent.iter().filter(|(_, seen)| *seen == hash).count() >= most {
            return false;
        }
        self.recent.push_back((now, hash));
        true
    }

    /// True if one more answer may enter.
    pub(super) fn admits_answer(&mut self, now: Instant) -> bool {
        let bucket = self.answers.get_or_insert(Bucket::full(ANSWERS_BURST, now));
        bucket.take(ANSWERS_PER_SECOND, ANSWERS_BURST, now)
    }

    /// Sends a query by all interfaces, from the service's port.
    fn send(&self, query: &[u8], group: SocketAddr) -> Result<(), io::Error> {
        let members = self.sockets.iter().filter(|member| member.group == group);
        sent_once(
            members.map(|member| member.socket.send_bytes(&IpFields::default(), query, group)),
        )
    }

    /// Sends a query by all interfaces, from another socket.
    pub(super) fn send_by(
        &self,
        socket: &UdpSocket,
        group: SocketAddr,
        mut send: impl FnMut(&UdpSocket, &IpFields, SocketAddr) -> io::Result<()>,
    ) -> io::Result<()> {
        let hops = self.service(group).and_then(|service| NonZeroU8::new(service.hops()));
        let members = self.interfaces.iter().filter(|one| one.has(group.is_ipv4()));
        sent_once(members.map(|interface| {
            // Over IPv4 the source selects the interface, over IPv6 the scope.
            let from = interface.ipv4.filter(|_| group.is_ipv4()).map(Into::into);
            let to = match group {
                SocketAddr::V4(_) => group,
                SocketAddr::V6(v6) => {
                    SocketAddrV6::new(*v6.ip(), v6.port(), 0, interface.index).into()
                }
            };
            send(socket, &IpFields { from, hops }, to)
        }))
    }
}

/// Returns success if one of several sends succeeded, else an error.
fn sent_once(all: impl Iterator<Item = io::Result<()>>) -> io::Result<()> {
    let mut result = Err(io::ErrorKind::NetworkUnreachable.into());
    for one in all {
        if one.is_ok() || result.is_err() {
            result = one;
        }
    }
    result
}

impl Gateway {
    /// Makes the stack a member of the groups whose queries are passed on.
    pub(crate) fn join_groups(&self, stack: &mut Stack) {
        self.groups.join(stack);
    }

    /// The program sent datagrams to a group.
    pub(super) fn on_group_datagram(&mut self, datagram: Datagram, io: &mut Io<'_>) {
        let Datagram { local: group, remote: program, packet, segment_size, .. } = datagram;
        let Some(service) = self.groups.service(group) else {
            self.counters.multicast_filtered += 1;
            return;
        };
        let mut bytes = vec![0; packet.payload_len()];
        let mut at = 0;
        for piece in packet.pieces() {
            io.ledger.copy(Site::Linearise, piece, &mut bytes[at..at + piece.len()]);
            at += piece.len();
        }
        let size = segment_size.map_or(bytes.len(), |size| usize::from(size.get()));
        for query in bytes.chunks_mut(size.max(1)) {
            if query.len() > MESSAGE_BYTES_MAX || !is_query(service, query) {
                self.counters.multicast_filtered += 1;
                continue;
            }
            let is_one_shot = program.port() != service.port();
            let most = if is_one_shot { REPEATS_MAX } else { 1 };
            let hash = self.groups.hash.hash_one((&*query, group));
            if !self.groups.admits(packet.ingress(), hash, most, io.now) {
                self.counters.multicast_limited += 1;
                continue;
            }
            let sent = if is_one_shot || service == MulticastService::Ssdp {
                self.send_one_shot(query, program, group, packet.ingress(), io)
            } else {
                ask_for_multicast(query);
                self.groups.send(query, group)
            };
            match sent {
                Ok(()) => {
                    self.counters.bytes_out += query.len() as u64;
                    io.ledger.carry(query.len());
                }
                Err(_) => self.counters.udp_dropped += 1,
            }
        }
    }

    /// A member of a group has messages.
    pub(super) fn group_ready(&mut self, index: u32, io: &mut Io<'_>) {
        let mut bytes = std::mem::take(&mut self.groups.copied);
        for _ in 0..READS_PER_TURN {
            let Some(member) = self.groups.sockets.get(index as usize) else { break };
            let (service, group) = (member.service, member.group);
            match member.socket.receive_bytes(&mut bytes) {
                Ok((len, from)) if is_answer(service, from.port(), &bytes[..len]) => {
                    if self.groups.admits_answer(io.now) {
                        self.enter(&bytes[..len], (service, group), from.port(), io);
                    } else {
                        self.counters.multicast_limited += 1;
                    }
                }
                // Queries of other hosts, and those of this one, have no answer inside.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.counters.multicast_filtered += 1;
                }
                Err(_) => break,
            }
        }
        self.groups.copied = bytes;
    }

    /// Sends an answer to the group inside, from the gateway.
    fn enter(
        &mut self,
        bytes: &[u8],
        (service, group): (MulticastService, SocketAddr),
        port: u16,
        io: &mut Io<'_>,
    ) {
        let Some(from) = io.stack.source_for(group.ip()) else { return };
        let frame =
            if bytes.len() <= SMALL { io.memory.small.take() } else { io.memory.large.take() };
        let (Some(mut frame), Some(mut packet)) = (frame, io.memory.packet()) else {
            self.counters.udp_no_memory += 1;
            return;
        };
        frame[..bytes.len()].copy_from_slice(bytes);
        if packet.push_piece(frame.freeze(bytes.len())).is_err() {
            self.counters.udp_no_memory += 1;
            return;
        }
        self.counters.bytes_in += bytes.len() as u64;
        io.ledger.carry(bytes.len());
        let how = UdpSend { ttl: service.hops(), multicast_loop: false, ..UdpSend::default() };
        let from = SocketAddr::new(from, port);
        let (stack, mut context) = io.stack_and_context();
        stack.udp_send_with(packet, from, group, &how, &mut context);
    }
}

/// Bytes of a small frame.
const SMALL: usize = towpath_packet::pool::SMALL_FRAME_BYTES;
const _: () = assert!(MESSAGE_BYTES_MAX <= towpath_packet::pool::LARGE_FRAME_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    /// Bounds: queries of one guest, and a query that comes back again and again.
    #[test]
    fn queries_are_limited() {
        let mut groups = Groups::default();
        let now = Instant::from_micros(1_000_000);
        let admitted = |groups: &mut Groups, guest, now| {
            (0..1000).filter(|hash| groups.admits(guest, *hash, 1, now)).count()
        };
        assert_eq!(admitted(&mut groups, Some(1), now), QUERIES_BURST as usize);
        assert_eq!(admitted(&mut groups, Some(2), now), 0, "the same text, of whichever guest");
        let later = now + Duration::from_secs(1);
        assert_eq!(admitted(&mut groups, Some(1), later), QUERIES_PER_SECOND as usize);
        assert!(groups.recent.len() <= RECENT_MAX);
        let much_later = later + Duration::from_secs(3600);
        let again = (0..100).filter(|_| groups.admits(None, 7, REPEATS_MAX, much_later)).count();
        assert_eq!(again, REPEATS_MAX);
        for guest in 0..=u16::MAX {
            groups.admits(Some(guest), guest.into(), 1, much_later);
        }
        assert!(groups.queries.len() <= GUESTS_MAX && groups.recent.len() <= RECENT_MAX);
    }

    #[test]
    fn answers_are_limited() {
        let mut groups = Groups::default();
        let now = Instant::from_micros(1_000_000);
        assert_eq!((0..1000).filter(|_| groups.admits_answer(now)).count(), ANSWERS_BURST as usize);
        let later = now + Duration::from_secs(1);
        let more = (0..1000).filter(|_| groups.admits_answer(later)).count();
        assert_eq!(more, ANSWERS_PER_SECOND as usize);
    }
}
