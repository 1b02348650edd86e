//! The DHCP server for IPv4 (RFC 2131): one message in, at most one message out.
//!
//! It is authoritative: the only server of its network. So it refuses a request at once for an
//! address that it would not lease, and grants a free address that it has no record of, as after a
//! restart. With other hosts in the network, it is one server for each of them, and they divide the
//! addresses ([`super::elsewhere`]). Messages that do not come from the station that they name, or
//! that came through a relay, are dropped and counted.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::wire::dhcpv4::{
    MESSAGE_LEN_ANY_CLIENT, MESSAGE_LEN_MIN, Message, MessageType, Options, option,
};
use super::wire::domain::{self, DomainName};
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;

use super::config::{Config, Ipv4};
use super::leases::{Asker, Client, Leases, Refusal, State};
use super::names::Names;
use super::static_leases::StaticLeases;
use super::{Counters, Origin};

/// How long an offer is held; clients request it within seconds.
pub(super) const OFFER_HOLD: Duration = Duration::from_secs(30);

/// Flags of the FQDN option (RFC 4702 §2.1).
mod fqdn {
    pub(super) const SERVER_UPDATES: u8 = 0x01;
    pub(super) const OVERRIDDEN: u8 = 0x02;
    pub(super) const ENCODED: u8 = 0x04;
    pub(super) const NO_UPDATE: u8 = 0x08;
    /// Flags and two deprecated codes.
    pub(super) const HEADER_LEN: usize = 3;
}

/// The state that an answer depends on.
pub(super) struct Server<'a> {
    pub(super) config: &'a Config,
    pub(super) ipv4: &'a Ipv4,
    /// MTU that the client gets.
    pub(super) mtu: u16,
    pub(super) static_leases: &'a StaticLeases,
    pub(super) leases: &'a mut Leases,
    pub(super) names: &'a mut Names,
    pub(super) counters: &'a mut Counters,
}

/// An answer and its destination.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) message: Message,
    /// Most bytes that it may have.
    pub(super) len_max: usize,
    pub(super) to_mac: MacAddr,
    pub(super) to: Ipv4Addr,
}

impl Server<'_> {
    /// Handles a message of a client.
    pub(super) fn input(
        &mut self,
        message: &Message,
        from: &Origin,
        now: Instant,
    ) -> Option<Reply> {
        let kind = MessageType::of(&message.options).filter(|_| !message.is_reply);
        let Some(kind) = kind else {
            self.counters.malformed += 1;
            return None;
        };
        if !message.relay.is_unspecified() {
            self.counters.relayed += 1;
            return None;
        }
        if message.client_mac != from.mac || !message.client_mac.is_unicast() {
            self.counters.spoofed += 1;
            return None;
        }
        let asker = self.asker(message, from);
        match kind {
            MessageType::Discover => self.discover(message, &asker, now),
            MessageType::Request => self.request(message, &asker, now),
            MessageType::Inform => Some(self.inform(message, &asker)),
            MessageType::Decline | MessageType::Release => {
                self.give_back(kind, message, &asker, now);
                None
            }
            MessageType::Offer | MessageType::Ack | MessageType::Nak => {
                self.counters.malformed += 1;
                None
            }
        }
    }

    /// Returns the client: the guest of a static lease, or the client that the message identifies
    /// (RFC 2131 §4.2).
    fn asker(&self, message: &Message, from: &Origin) -> Asker {
        let id = message.options.get(option::CLIENT_ID).filter(|id| id.len() >= CLIENT_ID_LEN_MIN);
        let known = self.static_leases.of_ipv4(from.port, from.mac, id);
        let client = match (known, id) {
            (Some((number, _)), _) => Client::Static(number),
            (None, Some(id)) => Client::Identifier(id.into()),
            (None, None) => Client::Mac(from.mac),
        };
        let fixed = known.and_then(|(_, lease)| lease.ipv4);
        Asker { client, mac: from.mac, port: from.port, fixed: fixed.map(Into::into) }
    }

    /// Answers DHCPDISCOVER (RFC 2131 §4.3.1).
    fn discover(&mut self, message: &Message, asker: &Asker, now: Instant) -> Option<Reply> {
        let wanted = message.options.address(option::REQUESTED_ADDRESS).map(Into::into);
        let address = match self.leases.choose(asker, wanted, now) {
            Ok(std::net::IpAddr::V4(address)) => address,
            Ok(_) => return None,
            Err(refusal) => {
                self.counters.refused(refusal);
                return None;
            }
        };
        // RFC 4039 §4: the only server of a network may answer at once.
        if message.options.get(option::RAPID_COMMIT).is_some_and(<[u8]>::is_empty) {
            let mut reply = self.acknowledge(message, asker, address, now);
            reply.message.options.set(option::RAPID_COMMIT, &[]);
            return Some(reply);
        }
        // An address that the client already has keeps its lease time.
        if !self.leases.is_bound_to(asker, address.into(), now) {
            let until = now + OFFER_HOLD;
            self.leases.hold(asker, address.into(), State::Offered, until, None);
        }
        self.counters.offers += 1;
        let mut reply = self.reply(message, MessageType::Offer);
        reply.message.your_address = address;
        self.add_lease_times(&mut reply.message.options);
        self.add_parameters(message, asker, &mut reply.message.options);
        Some(address_to(message, address, reply))
    }

    /// Answers DHCPREQUEST. The fields of the message show the state of the client (RFC 2131
    /// §4.3.2).
    fn request(&mut self, message: &Message, asker: &Asker, now: Instant) -> Option<Reply> {
        let server = message.options.address(option::SERVER_ID);
        let requested = message.options.address(option::REQUESTED_ADDRESS);
        if server.is_some_and(|server| server != self.ipv4.gateway) {
            self.leases.withdraw(asker, now);
            self.counters.other_server += 1;
            return None;
        }
        let address = match requested {
            Some(requested) => requested,
            None if !message.client_address.is_unspecified() => message.client_address,
            None => {
                self.counters.malformed += 1;
                return None;
            }
        };
        if self.ipv4.contains(address) {
            match self.leases.allows(asker, address.into(), now) {
                Some(true) => return Some(self.acknowledge(message, asker, address, now)),
                Some(false) => {}
                // The client asks again.
                None => {
                    self.counters.refused(Refusal::Settling);
                    return None;
                }
            }
        }
        self.counters.naks += 1;
        let mut reply = self.reply(message, MessageType::Nak);
        reply.message.options.set(option::ERROR_MESSAGE, b"this address is not yours");
        // RFC 2131 §4.3.2: the client may be able to receive broadcasts only.
        (reply.to, reply.to_mac) = (Ipv4Addr::BROADCAST, MacAddr::BROADCAST);
        Some(reply)
    }

    fn acknowledge(
        &mut self,
        message: &Message,
        asker: &Asker,
        address: Ipv4Addr,
        now: Instant,
    ) -> Reply {
        let until = now + self.config.lease_time;
        let name =
            self.static_leases.name_of(&asker.client).or_else(|| requested_name(&message.options));
        let name = name.filter(|name| {
            let station = (asker.mac, Some(asker.port));
            self.names.claim(name, &asker.client, station, address.into(), until, now)
        });
        self.leases.hold(asker, address.into(), State::Bound, until, name.clone());
        self.counters.acks += 1;
        let mut reply = self.reply(message, MessageType::Ack);
        reply.message.your_address = address;
        reply.message.client_address = message.client_address;
        self.add_lease_times(&mut reply.message.options);
        self.add_parameters(message, asker, &mut reply.message.options);
        self.add_whole_name(message, name.as_ref(), &mut reply.message.options);
        address_to(message, address, reply)
    }

    /// Answers DHCPINFORM: parameters without an address or times (RFC 2131 §4.3.5).
    fn inform(&mut self, message: &Message, asker: &Asker) -> Reply {
        self.counters.informs += 1;
        let mut reply = self.reply(message, MessageType::Ack);
        reply.message.client_address = message.client_address;
        self.add_parameters(message, asker, &mut reply.message.options);
        address_to(message, message.client_address, reply)
    }

    /// Handles DHCPDECLINE and DHCPRELEASE, which have no answer (RFC 2131 §4.3.3, §4.3.4).
    fn give_back(&mut self, kind: MessageType, message: &Message, asker: &Asker, now: Instant) {
        let options = &message.options;
        let declined = kind == MessageType::Decline;
        let address = if declined {
            options.address(option::REQUESTED_ADDRESS)
        } else {
            Some(message.client_address)
        };
        if options.address(option::SERVER_ID).is_some_and(|server| server != self.ipv4.gateway) {
            self.counters.other_server += 1;
            return;
        }
        let Some(address) = address.map(Into::into) else {
            self.counters.malformed += 1;
            return;
        };
        let done = if declined {
            self.leases.decline(asker, address, now)
        } else {
            self.leases.release(asker, address, now)
        };
        if !done {
            self.counters.not_yours += 1;
            return;
        }
        self.names.release(address);
        if declined {
            self.counters.declines += 1;
        } else {
            self.counters.releases += 1;
        }
    }

    /// Returns an answer with the fields that every answer has, the most needed first.
    fn reply(&self, request: &Message, kind: MessageType) -> Reply {
        let mut message = Message::reply_to(request);
        message.options.set(option::MESSAGE_TYPE, &[kind as u8]);
        message.options.set(option::SERVER_ID, &self.ipv4.gateway.octets());
        // RFC 6842 §3: the answer contains the client's own identifier.
        if let Some(id) = request.options.get(option::CLIENT_ID) {
            message.options.set(option::CLIENT_ID, id);
        }
        let room = usize::from(self.mtu).saturating_sub(IP_AND_UDP_LEN);
        let asked = request.options.u16(option::MAX_MESSAGE_LEN).map_or(0, usize::from);
        let asked = asked.saturating_sub(IP_AND_UDP_LEN).max(MESSAGE_LEN_ANY_CLIENT);
        let len_max = asked.min(room).clamp(MESSAGE_LEN_MIN, super::MESSAGE_LEN_MAX);
        Reply { message, len_max, to_mac: request.client_mac, to: Ipv4Addr::BROADCAST }
    }

    fn add_lease_times(&self, options: &mut Options) {
        let seconds = u32::try_from(self.config.lease_time.as_secs()).unwrap_or(u32::MAX);
        options.set(option::LEASE_TIME, &seconds.to_be_bytes());
        // RFC 2131 §4.4.5: one half and seven eighths.
        options.set(option::RENEWAL_TIME, &(seconds / 2).to_be_bytes());
        options.set(option::REBINDING_TIME, &(seconds - seconds / 8).to_be_bytes());
    }

    /// Adds the parameters that the client lists; a client without a list gets all (RFC 2131
    /// §4.3.1).
    fn add_parameters(&self, message: &Message, asker: &Asker, options: &mut Options) {
        let list = message.options.get(option::PARAMETER_LIST);
        let config = self.config;
        let mut add = |code: u8, value: &[u8]| {
            if !value.is_empty() && list.is_none_or(|list| list.contains(&code)) {
                options.set(code, value);
            }
        };
        let dns: Vec<u8> = self.ipv4.dns.iter().flat_map(Ipv4Addr::octets).collect();
        // RFC 2132 §3.3: the netmask comes before the routers.
        add(option::SUBNET_MASK, &self.ipv4.netmask().octets());
        add(option::ROUTERS, &self.ipv4.gateway.octets());
        add(option::CLASSLESS_ROUTES, &self.routes());
        add(option::DNS_SERVERS, &dns);
        add(option::MTU, &self.mtu.to_be_bytes());
        let domain = config.domain.as_ref().map_or("", DomainName::as_str);
        add(option::DOMAIN_NAME, domain.as_bytes());
        add(option::BROADCAST_ADDRESS, &self.ipv4.broadcast().octets());
        if let Some(name) = self.static_leases.name_of(&asker.client) {
            add(option::HOST_NAME, name.as_str().as_bytes());
        }
        add(option::SEARCH_LIST, &domain::emit_compressed_list(&config.search));
    }

    /// Returns the routes of a client whose router is outside of the network (RFC 3442): the router
    /// on the link, and the default route.
    fn routes(&self) -> Vec<u8> {
        let router = self.ipv4.gateway;
        match self.ipv4.contains(router) {
            true => Vec::new(),
            false => [&[32], &router.octets()[..], &[0; 4], &[0], &router.octets()].concat(),
        }
    }

    /// Answers the FQDN option with what became of the name (RFC 4702 §3).
    fn add_whole_name(&self, message: &Message, name: Option<&DomainName>, options: &mut Options) {
        let Some([asked, ..]) = message.options.get(option::FQDN) else { return };
        let wants_server = asked & fqdn::SERVER_UPDATES != 0;
        let mut flags = asked & fqdn::ENCODED;
        match name {
            Some(_) if wants_server => flags |= fqdn::SERVER_UPDATES,
            Some(_) => flags |= fqdn::SERVER_UPDATES | fqdn::OVERRIDDEN,
            None if wants_server => flags |= fqdn::NO_UPDATE | fqdn::OVERRIDDEN,
            None => flags |= fqdn::NO_UPDATE,
        }
        let whole = name.and_then(|name| match &self.config.domain {
            Some(domain) => name.below(domain),
            None => Some(name.clone()),
        });
        // RFC 4702 §2.2: the deprecated codes are all ones.
        let mut value = vec![flags, u8::MAX, u8::MAX];
        match whole {
            Some(whole) if flags & fqdn::ENCODED != 0 => whole.emit(&mut value),
            Some(whole) => value.extend_from_slice(whole.as_str().as_bytes()),
            None => {}
        }
        options.set(option::FQDN, &value);
    }
}

/// Sets the destination of an answer: the client's address if it has one, else broadcast if the
/// client asks for that, else the address that it is given (RFC 2131 §4.1).
fn address_to(request: &Message, given: Ipv4Addr, mut reply: Reply) -> Reply {
    if !request.client_address.is_unspecified() {
        reply.to = request.client_address;
    } else if request.broadcast || given.is_unspecified() {
        (reply.to, reply.to_mac) = (Ipv4Addr::BROADCAST, MacAddr::BROADCAST);
    } else {
        reply.to = given;
    }
    reply
}

/// Returns the name that the client sends, without its domain.
fn requested_name(options: &Options) -> Option<DomainName> {
    let whole = options.get(option::FQDN).and_then(|value| {
        let flags = *value.first()?;
        let name = value.get(fqdn::HEADER_LEN..)?;
        if flags & fqdn::ENCODED != 0 { domain::parse_partial(name) } else { text(name) }
    });
    let name = whole.or_else(|| text(options.get(option::HOST_NAME)?))?;
    Some(name.first_label())
}

fn text(bytes: &[u8]) -> Option<DomainName> {
    // Some clients end the name with NUL (RFC 2132 §2).
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

impl Counters {
    pub(super) fn refused(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Exhausted => self.pool_exhausted += 1,
            Refusal::PortFull => self.port_full += 1,
            Refusal::Elsewhere => self.elsewhere += 1,
            Refusal::Settling => self.settling += 1,
        }
    }
}

/// A type and one byte (RFC 2132 §9.14).
const CLIENT_ID_LEN_MIN: usize = 2;
const IP_AND_UDP_LEN: usize = 20 + 8;

#[cfg(test)]
mod tests;
