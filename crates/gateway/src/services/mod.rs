//! The services of a network for its guests: addresses by DHCP, routers by advertisements, names by
//! DNS.
//!
//! # Theory of operation
//!
//! [`Services`] stand between the gateway's port and its stack. [`Services::intercept`] checks each
//! frame that a guest sends to the gateway or to all stations. The first bytes of a frame rule out
//! almost all. A message to a service is copied once, parsed and handled; the answer is a frame in
//! the outgoing burst. Queries about names outside of the network continue to the stack, and from
//! there to the host's resolvers.
//!
//! Guests are identified by the number of their port, which they cannot choose. Their own claims
//! count only as far as these cost others nothing.
//!
//! Nothing here does I/O or reads a clock. One thread owns it. Requests are rare, so handling them
//! may allocate; the requests of each port are rate-limited.

mod config;
mod dhcpv4;
mod dhcpv6;
mod elsewhere;
mod file;
mod frame;
mod guests;
mod hosts;
mod leases;
mod names;
mod router;
mod static_leases;
pub mod wire;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use towpath_net::stack::Context;
use towpath_net::time::Instant;
use towpath_net::wire::{MacAddr, icmpv6};
use towpath_packet::{Burst, Packet};

pub use config::{
    Automatic, Config, ConfigError, DNS_MAX, Disabled, Guest, Ipv4, Ipv6, LEASE_TIME_DEFAULT,
    LEASE_TIME_MAX, LEASE_TIME_MIN, LEASES_PER_PORT_DEFAULT, LEASES_PER_PORT_MAX, SEARCH_MAX,
    STATIC_LEASES_MAX, StaticLease, StaticLeaseError,
};

use crate::bucket::Bucket;
use crate::resolv::DNS_PORT;
use file::Line;
use frame::{Envelope, Request};
pub use frame::{asks_for_configuration, concerns};
pub(crate) use guests::Checkpoint;
pub use guests::Lent;
pub use hosts::Conflict;
use leases::Leases;
use names::Names;
use router::Schedule;
use static_leases::StaticLeases;

/// Requests that a port may make at once: enough for several guests behind it that boot together.
const REQUESTS_BURST: u32 = 32;
/// Requests per second that a port may make in the long run.
const REQUESTS_PER_SECOND: u32 = 8;
/// Most ports whose requests are limited; a switch has fewer.
const PORTS_MAX: usize = 4096;
/// Longest DHCP message that is sent, even if the client accepts more.
const MESSAGE_LEN_MAX: usize = 1400;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Counters of the services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Addresses offered, by DHCPOFFER and Advertise.
    pub offers: u64,
    /// Addresses leased or renewed, by DHCPACK and Reply.
    pub acks: u64,
    /// Requests refused by DHCPNAK.
    pub naks: u64,
    /// Leases released.
    pub releases: u64,
    /// Addresses quarantined because a client found them in use.
    pub declines: u64,
    /// Requests for parameters without an address.
    pub informs: u64,
    /// Router advertisements, solicited or not.
    pub advertisements: u64,
    /// Queries about names of the network, answered here.
    pub names_answered: u64,
    /// Names that belonged to another guest already.
    pub name_conflicts: u64,
    /// Dropped: truncated, contradictory, of a kind that only servers send, or with a wrong
    /// checksum.
    pub malformed: u64,
    /// Dropped: not from the station that the message names.
    pub spoofed: u64,
    /// Dropped: claimed to come through a relay; there are none.
    pub relayed: u64,
    /// Dropped: for another server.
    pub other_server: u64,
    /// Dropped: the address to release or decline was not the sender's.
    pub not_yours: u64,
    /// Dropped: the port sends too many requests.
    pub rate_limited: u64,
    /// Refused: the port has the greatest number of leases.
    pub port_full: u64,
    /// Refused: the only address that the client may have is leased to another port or at another
    /// host.
    pub elsewhere: u64,
    /// Refused: all addresses that this host may give are leased.
    pub pool_exhausted: u64,
    /// Refused: the addresses of other hosts are not known yet.
    pub settling: u64,
    /// Addresses that guests of another host were found to lease, too.
    pub conflicts: u64,
    /// Stations with a lease that moved to another host.
    pub moved_away: u64,
    /// Answers lost for lack of memory or room.
    pub no_memory: u64,
}

/// Result of restoring the leases of an earlier run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Leases that were restored.
    pub taken: usize,
    /// Leases that have expired.
    pub over: usize,
    /// Leases of addresses that are not, or no longer, in the pool.
    pub elsewhere: usize,
    /// Lines that are not leases.
    pub unusable: usize,
}

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
struct Origin {
    port: u32,
    mac: MacAddr,
}

/// The services of one network.
pub struct Services {
    config: Config,
    leases_v4: Option<Leases>,
    leases_v6: Option<Leases>,
    names: Names,
    static_leases: StaticLeases,
    /// Addresses that guests use without a lease, by port and IP version.
    unleased: HashMap<(u32, bool), IpAddr>,
    schedule: Option<Schedule>,
    /// Limits on the requests of each port.
    buckets: HashMap<u32, Bucket>,
    /// MTUs of ports that have one of their own.
    mtus: HashMap<u32, u16>,
    counters: Counters,
    /// The frame that is being parsed; kept for its memory.
    copied: Vec<u8>,
    changed: bool,
}

impl Services {
    /// Makes services that have leased nothing yet.
    pub fn new(config: Config) -> Self {
        let per_port = config.leases_per_port_max;
        let hosts: Vec<IpAddr> = config.hosts.iter().map(|(_, address)| *address).collect();
        let leases_v4 = config.ipv4.as_ref().map(|v4| {
            let network = Ipv4Addr::from(u32::from(v4.network) & u32::from(v4.netmask()));
            // RFC 3021: a prefix that long has no addresses for the network and for all hosts.
            let ends = [v4.broadcast(), network].into_iter().filter(|_| v4.prefix_len < 31);
            let reserved = ends.chain([v4.gateway]).chain(v4.dns.clone());
            let pool = (*v4.pool.start()).into()..=(*v4.pool.end()).into();
            let reserved = reserved.map(IpAddr::from).chain(hosts.iter().copied());
            Leases::new(pool, reserved.collect(), per_port)
        });
        let leases_v6 = config.ipv6.as_ref().and_then(|v6| {
            let pool = v6.pool.as_ref()?;
            // The prefix itself is the anycast address of routers (RFC 4291 §2.6.1).
            let reserved = [v6.gateway, v6.prefix()].into_iter().chain(v6.dns.clone());
            let reserved = reserved.map(IpAddr::from);
            let reserved = reserved.chain(hosts.iter().copied()).collect();
            Some(Leases::new((*pool.start()).into()..=(*pool.end()).into(), reserved, per_port))
        });
        let advertises = config.ipv6.is_some() && !config.disabled.advertisements;
        Self {
            names: Names::new(&config),
            static_leases: StaticLeases::default(),
            schedule: advertises.then(|| Schedule::new(config.seed)),
            leases_v4,
            leases_v6,
            unleased: HashMap::new(),
            buckets: HashMap::new(),
            mtus: HashMap::new(),
            counters: Counters::default(),
            copied: Vec::new(),
            changed: false,
            config,
        }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Handles a frame from the guest at `port`, if it is for a service. Returns true if it was;
    /// false leaves the frame to the stack, unchanged except for being peeked. Answers go into
    /// `replies`, for the same guest, or for all guests where the protocol requires that.
    pub fn intercept(
        &mut self,
        port: u32,
        packet: &mut Packet,
        cx: &mut Context<'_>,
        replies: &mut Burst,
    ) -> bool {
        if packet.headers().is_empty() {
            packet.peek_headers();
        }
        if !frame::concerns(packet.headers()) {
            return false;
        }
        let mut copied = std::mem::take(&mut self.copied);
        let done = frame::copy(packet, cx, &mut copied) && {
            let request = Request::parse(&copied, packet.offload().checksum);
            request.is_some_and(|request| self.serve(port, &request, cx, replies))
        };
        self.copied = copied;
        done
    }

    /// Returns when [`Services::on_deadline`] is next due.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.schedule.as_ref().map(Schedule::next_at)
    }

    /// Advertises the router to all guests, if that is due.
    pub fn on_deadline(&mut self, cx: &mut Context<'_>, replies: &mut Burst) {
        if let Some(schedule) = &mut self.schedule
            && schedule.next_at() <= cx.now
        {
            schedule.sent(cx.now);
            self.advertise(None, false, cx, replies);
        }
    }

    /// Advertises to all guests that the router is gone, as the last action (RFC 4861 §6.2.5).
    pub fn shut_down(&mut self, cx: &mut Context<'_>, replies: &mut Burst) {
        if self.schedule.take().is_some() {
            self.advertise(None, true, cx, replies);
        }
    }

    /// Sets the MTU of a port; `None`: that of the network. Guests learn it with their next lease,
    /// unless that of the network is smaller, which the gateway has.
    pub(crate) fn set_port_mtu(&mut self, port: u32, mtu: Option<u16>) {
        match mtu {
            Some(mtu) => self.mtus.insert(port, mtu),
            None => self.mtus.remove(&port),
        };
    }

    /// The guest at `port` is gone. Its leases continue, and go to the first client that asks for
    /// them from another port.
    pub fn forget_port(&mut self, port: u32) {
        self.buckets.remove(&port);
        self.mtus.remove(&port);
        self.unleased.retain(|(of, _), _| *of != port);
        self.static_leases.forget_port(port);
        self.names.forget_port(port);
        for leases in [&mut self.leases_v4, &mut self.leases_v6].into_iter().flatten() {
            leases.forget_port(port);
        }
    }

    /// Returns true once after leases have changed: it is time to write [`Services::leases`].
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Returns all leases as text. `now` corresponds to the time `wall` since 1970.
    pub fn leases(&self, now: Instant, wall: Duration) -> String {
        let mut text = String::new();
        for leases in [&self.leases_v4, &self.leases_v6].into_iter().flatten() {
            file::write(leases, &self.static_leases, now, wall, &mut text);
        }
        text
    }

    /// Restores the leases of an earlier run.
    pub fn restore(&mut self, text: &str, now: Instant, wall: Duration) -> Restored {
        let mut restored = Restored::default();
        for line in text.lines() {
            let (address, mut lease, port) = match file::read(line, now, wall) {
                Line::Lease(address, lease, port) => (address, lease, port),
                Line::Over => {
                    restored.over += 1;
                    continue;
                }
                Line::Unusable => {
                    restored.unusable += 1;
                    continue;
                }
            };
            let leases = if address.is_ipv4() { &mut self.leases_v4 } else { &mut self.leases_v6 };
            let Some(leases) = leases.as_mut().filter(|leases| leases.contains(address)) else {
                restored.elsewhere += 1;
                continue;
            };
            lease.port = port.and_then(|name| self.static_leases.port_named(name));
            let (client, until, names) = (&lease.client, lease.until, &mut self.names);
            let station = (lease.mac, lease.port);
            lease.name =
                lease.name.filter(|name| names.claim(name, client, station, address, until, now));
            leases.restore(address, lease);
            restored.taken += 1;
        }
        restored
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        let names = &self.names;
        let (names_answered, name_conflicts) = (names.answered, names.conflicts);
        Counters { names_answered, name_conflicts, ..self.counters }
    }

    /// Handles a message; returns false if it is not for a service.
    fn serve(
        &mut self,
        port: u32,
        request: &Request<'_>,
        cx: &mut Context<'_>,
        replies: &mut Burst,
    ) -> bool {
        let to_us = request.destination_mac == self.config.mac;
        if !to_us && !request.destination_mac.is_multicast() {
            return false;
        }
        if request.destination_port == DNS_PORT {
            return to_us && self.answer_name(request, cx, replies);
        }
        let concerned = match request.destination {
            IpAddr::V4(to) => self
                .config
                .ipv4
                .as_ref()
                .is_some_and(|v4| frame::is_for_server(to, v4.gateway, v4.broadcast())),
            IpAddr::V6(to) => self.config.ipv6.as_ref().is_some_and(|v6| {
                to.is_multicast() || to == v6.gateway || to == link_local(self.config.mac)
            }),
        };
        if !concerned {
            return false;
        }
        if !self.may_ask(port, cx.now) {
            self.counters.rate_limited += 1;
            return true;
        }
        let from = Origin { port, mac: request.mac };
        let disabled = self.config.disabled;
        match (request.destination_port, request.destination) {
            (wire::dhcpv4::SERVER_PORT, IpAddr::V4(_)) if !disabled.dhcpv4 => {
                self.serve_dhcpv4(request, &from, cx, replies);
            }
            (wire::dhcpv6::SERVER_PORT, IpAddr::V6(_)) if !disabled.dhcpv6 => {
                self.serve_dhcpv6(request, &from, cx, replies);
            }
            (0, IpAddr::V6(_)) if !disabled.advertisements => self.solicited(request, cx, replies),
            _ => return false,
        }
        true
    }

    fn serve_dhcpv4(
        &mut self,
        request: &Request<'_>,
        from: &Origin,
        cx: &mut Context<'_>,
        replies: &mut Burst,
    ) {
        let (Some(ipv4), Some(leases)) = (&self.config.ipv4, &mut self.leases_v4) else { return };
        let Ok(message) = wire::dhcpv4::Message::parse(request.payload) else {
            self.counters.malformed += 1;
            return;
        };
        let (config, names, counters) = (&self.config, &mut self.names, &mut self.counters);
        let before = counters.lease_changes();
        let static_leases = &self.static_leases;
        let mtu = self.mtus.get(&from.port).map_or(config.mtu, |mtu| config.mtu.min(*mtu));
        let mut server =
            dhcpv4::Server { config, ipv4, mtu, static_leases, leases, names, counters };
        let reply = server.input(&message, from, cx.now);
        self.changed |= counters.lease_changes() != before;
        let Some(reply) = reply else { return };
        let envelope = Envelope {
            mac: config.mac,
            to_mac: reply.to_mac,
            source: ipv4.gateway.into(),
            destination: reply.to.into(),
            ports: Some((wire::dhcpv4::SERVER_PORT, wire::dhcpv4::CLIENT_PORT)),
        };
        let mut bytes = reply.message.emit(reply.len_max);
        self.counters.no_memory += u64::from(!frame::send(&envelope, &mut bytes, cx, replies));
    }

    fn serve_dhcpv6(
        &mut self,
        request: &Request<'_>,
        from: &Origin,
        cx: &mut Context<'_>,
        replies: &mut Burst,
    ) {
        let Some(ipv6) = &self.config.ipv6 else { return };
        let message = wire::dhcpv6::Message::parse(request.payload).ok();
        // Clients ask from their link-local address (RFC 8415 §13.1), and answers reach them there.
        let message = message.filter(|_| is_link_local(request.source) && from.mac.is_unicast());
        let Some(message) = message else {
            self.counters.malformed += 1;
            return;
        };
        let (config, names, counters) = (&self.config, &mut self.names, &mut self.counters);
        let leases = self.leases_v6.as_mut();
        let before = counters.lease_changes();
        let static_leases = &self.static_leases;
        let mut server = dhcpv6::Server { config, ipv6, static_leases, leases, names, counters };
        let reply = server.input(&message, from, cx.now);
        self.changed |= counters.lease_changes() != before;
        let Some(reply) = reply else { return };
        let envelope = Envelope {
            mac: config.mac,
            to_mac: from.mac,
            source: link_local(config.mac).into(),
            destination: request.source,
            ports: Some((wire::dhcpv6::SERVER_PORT, wire::dhcpv6::CLIENT_PORT)),
        };
        let room = usize::from(config.mtu).saturating_sub(IPV6_UDP_LEN);
        let mut bytes = reply.emit(MESSAGE_LEN_MAX.min(room));
        self.counters.no_memory += u64::from(!frame::send(&envelope, &mut bytes, cx, replies));
    }

    /// Answers a router solicitation (RFC 4861 §6.1.1), to the sender alone and at once: there is
    /// no other router to collide with. A sender without an address gets the answer at the
    /// all-nodes group but its own link-layer address (RFC 6085).
    fn solicited(&mut self, request: &Request<'_>, cx: &mut Context<'_>, replies: &mut Burst) {
        let nameless = request.source == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        match icmpv6::Message::parse(request.payload) {
            Ok(icmpv6::Message::RouterSolicitation { source_link_layer })
                if (!nameless || source_link_layer.is_none()) && request.mac.is_unicast() =>
            {
                self.advertise(Some(request), false, cx, replies);
            }
            _ => self.counters.malformed += 1,
        }
    }

    /// Sends an advertisement, to one sender of a solicitation or to all guests.
    fn advertise(
        &mut self,
        to: Option<&Request<'_>>,
        is_last: bool,
        cx: &mut Context<'_>,
        replies: &mut Burst,
    ) {
        let Some(ipv6) = &self.config.ipv6 else { return };
        let (to_mac, destination) = match to {
            None => (frame::group_mac(ALL_NODES), ALL_NODES.into()),
            Some(request) if is_link_local(request.source) => (request.mac, request.source),
            Some(request) => (request.mac, ALL_NODES.into()),
        };
        let mac = self.config.mac;
        let source = link_local(mac).into();
        let envelope = Envelope { mac, to_mac, source, destination, ports: None };
        let mut bytes = router::advertisement(&self.config, ipv6, is_last);
        if frame::send(&envelope, &mut bytes, cx, replies) {
            self.counters.advertisements += 1;
        } else {
            self.counters.no_memory += 1;
        }
    }

    /// Answers a query about a name of the network; returns false if it is about another name.
    fn answer_name(
        &mut self,
        request: &Request<'_>,
        cx: &mut Context<'_>,
        replies: &mut Burst,
    ) -> bool {
        let asks_us = match request.destination {
            IpAddr::V4(to) => self.config.ipv4.as_ref().is_some_and(|v4| v4.dns.contains(&to)),
            IpAddr::V6(to) => self.config.ipv6.as_ref().is_some_and(|v6| v6.dns.contains(&to)),
        };
        if !asks_us || !request.mac.is_unicast() {
            return false;
        }
        let Some(mut answer) = self.names.answer(request.payload, cx.now) else { return false };
        let envelope = Envelope {
            mac: self.config.mac,
            to_mac: request.mac,
            source: request.destination,
            destination: request.source,
            ports: Some((DNS_PORT, request.source_port)),
        };
        self.counters.no_memory += u64::from(!frame::send(&envelope, &mut answer, cx, replies));
        true
    }

    /// Returns true if the port has a request left, and takes it.
    fn may_ask(&mut self, port: u32, now: Instant) -> bool {
        if self.buckets.len() >= PORTS_MAX && !self.buckets.contains_key(&port) {
            return false;
        }
        let bucket = self.buckets.entry(port).or_insert(Bucket::full(REQUESTS_BURST, now));
        bucket.take(REQUESTS_PER_SECOND, REQUESTS_BURST, now)
    }
}

impl Counters {
    /// A number that grows with each change of a lease.
    fn lease_changes(&self) -> u64 {
        self.acks + self.releases + self.declines
    }
}

/// Returns the address from which a gateway with this link-layer address sends advertisements and
/// serves DHCP for IPv6; its stack must have it too.
pub fn link_local(mac: MacAddr) -> Ipv6Addr {
    towpath_io::netlink::link_local(mac.0)
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

const IPV6_UDP_LEN: usize = 40 + 8;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
