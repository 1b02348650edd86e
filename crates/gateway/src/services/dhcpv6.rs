//! The DHCP server for IPv6 (RFC 8415): one message in, at most one message out.
//!
//! Like the server for IPv4, it is the only server of its network. It leases addresses (IA_NA). It
//! does not delegate prefixes or lease temporary addresses.

use std::net::IpAddr;

use super::wire::dhcpv6::{
    AddressLease, IdentityAssociation, Message, MessageType, Options, Status, duid_of, option,
};
use super::wire::domain;
use towpath_net::time::Instant;

use super::config::{Config, Ipv6};
use super::dhcpv4::OFFER_HOLD;
use super::leases::{Asker, Client, Leases, Refusal, State};
use super::names::Names;
use super::static_leases::StaticLeases;
use super::{Counters, Origin};

/// Identity associations of one message that are handled; clients have one for each interface.
const ASSOCIATIONS_MAX: usize = 4;

/// The state that an answer depends on.
pub(super) struct Server<'a> {
    pub(super) config: &'a Config,
    pub(super) ipv6: &'a Ipv6,
    pub(super) static_leases: &'a StaticLeases,
    /// `None` if the server only gives information.
    pub(super) leases: Option<&'a mut Leases>,
    pub(super) names: &'a mut Names,
    pub(super) counters: &'a mut Counters,
}

impl Server<'_> {
    /// Handles a message of a client.
    pub(super) fn input(
        &mut self,
        message: &Message,
        from: &Origin,
        now: Instant,
    ) -> Option<Message> {
        use MessageType::{
            Advertise, Confirm, Decline, InformationRequest, Rebind, Reconfigure, Release, Renew,
            Reply, Request, Solicit,
        };
        let ours = duid_of(self.config.mac);
        let server = message.options.get(option::SERVER_ID);
        let client = message.options.duid(option::CLIENT_ID);
        // RFC 8415 §16: which identifiers each message must have.
        let valid = match message.kind {
            Solicit | Confirm | Rebind => client.is_some() && server.is_none(),
            Request | Renew | Release | Decline => client.is_some() && server.is_some(),
            InformationRequest => true,
            Advertise | Reply | Reconfigure => false,
        };
        if !valid {
            self.counters.malformed += 1;
            return None;
        }
        if server.is_some_and(|server| server != ours) {
            self.counters.other_server += 1;
            return None;
        }
        let mut reply = self.reply(message);
        match message.kind {
            Solicit => {
                if message.options.get(option::RAPID_COMMIT).is_some() {
                    reply.options.push(option::RAPID_COMMIT, &[]);
                    self.lend(message, from, State::Bound, now, &mut reply)?;
                } else {
                    reply.kind = Advertise;
                    // RFC 8415 §18.2.1: with the highest preference the client waits for no other
                    // server.
                    reply.options.push(option::PREFERENCE, &[u8::MAX]);
                    self.lend(message, from, State::Offered, now, &mut reply)?;
                }
            }
            Request | Renew | Rebind => self.lend(message, from, State::Bound, now, &mut reply)?,
            Confirm => self.confirm(message, &mut reply)?,
            Release | Decline => self.give_back(message, from, now, &mut reply)?,
            InformationRequest => self.counters.informs += 1,
            Advertise | Reply | Reconfigure => return None,
        }
        if !matches!(message.kind, Confirm | Release | Decline) {
            self.add_parameters(&message.options, &mut reply.options);
        }
        Some(reply)
    }

    /// Returns an answer with the options that every answer has.
    fn reply(&self, request: &Message) -> Message {
        let mut options = Options::default();
        if let Some(client) = request.options.get(option::CLIENT_ID) {
            options.push(option::CLIENT_ID, client);
        }
        options.push(option::SERVER_ID, &duid_of(self.config.mac));
        let transaction_id = request.transaction_id;
        Message { kind: MessageType::Reply, transaction_id, options }
    }

    /// Returns the associations of a message. If one is malformed, the message is.
    fn associations(&mut self, message: &Message) -> Option<Vec<IdentityAssociation>> {
        let all = message.options.all(option::IA_NA).take(ASSOCIATIONS_MAX);
        let read: Result<Vec<_>, _> = all.map(IdentityAssociation::parse).collect();
        self.counters.malformed += u64::from(read.is_err());
        read.ok()
    }

    /// Returns the client: for the first association the guest of a static lease, if there is one;
    /// else an association of the client that the message identifies.
    fn asker(&self, message: &Message, from: &Origin, ia: u32, is_first: bool) -> Asker {
        let duid = message.options.duid(option::CLIENT_ID).unwrap_or_default();
        let known = self.static_leases.of_ipv6(from.port, from.mac, duid).filter(|_| is_first);
        let client = match known {
            Some((number, _)) => Client::Static(number),
            None => Client::Identifier([duid, &ia.to_be_bytes()].concat().into()),
        };
        let fixed = known.and_then(|(_, lease)| lease.ipv6);
        Asker { client, mac: from.mac, port: from.port, fixed: fixed.map(Into::into) }
    }

    /// Leases an address for each association, with zero lifetimes for addresses that the client
    /// should no longer use (RFC 8415 §18.3.1, §18.3.2, §18.3.4, §18.3.5). Returns `None` if the
    /// message is malformed, or if it is not known yet which addresses are this host's.
    fn lend(
        &mut self,
        message: &Message,
        from: &Origin,
        state: State,
        now: Instant,
        reply: &mut Message,
    ) -> Option<()> {
        for (index, asked) in self.associations(message)?.iter().enumerate() {
            let asker = self.asker(message, from, asked.id, index == 0);
            let answer = self.lend_one(message, asked, &asker, state, now)?;
            reply.options.push(option::IA_NA, &answer.emit());
        }
        if state == State::Bound {
            self.counters.acks += 1;
        } else {
            self.counters.offers += 1;
        }
        Some(())
    }

    fn lend_one(
        &mut self,
        message: &Message,
        asked: &IdentityAssociation,
        asker: &Asker,
        state: State,
        now: Instant,
    ) -> Option<IdentityAssociation> {
        let (renew_s, rebind_s) = (0, 0);
        let mut answer = IdentityAssociation {
            id: asked.id,
            renew_s,
            rebind_s,
            addresses: vec![],
            status: None,
        };
        let wanted = asked.addresses.first().map(|lease| lease.address);
        // RFC 8415 §18.3.2: a client that comes from another link gets NotOnLink.
        if message.kind == MessageType::Request
            && wanted.is_some_and(|wanted| !self.ipv6.contains(wanted))
        {
            answer.status = Some(Status::NOT_ON_LINK);
            return Some(answer);
        }
        let Some(leases) = &mut self.leases else {
            answer.status = Some(Status::NO_ADDRESSES);
            return Some(answer);
        };
        let address = match leases.choose(asker, wanted.map(Into::into), now) {
            Ok(IpAddr::V6(address)) => address,
            Ok(_) => return Some(answer),
            Err(refusal) => {
                self.counters.refused(refusal);
                // The client asks again.
                if refusal == Refusal::Settling {
                    return None;
                }
                answer.status = Some(Status::NO_ADDRESSES);
                return Some(answer);
            }
        };
        let valid = self.config.lease_time;
        if state == State::Bound {
            let until = now + valid;
            let given = self.static_leases.name_of(&asker.client);
            let name = given.or_else(|| name_in(&message.options));
            let name = name.filter(|name| {
                let station = (asker.mac, Some(asker.port));
                self.names.claim(name, &asker.client, station, address.into(), until, now)
            });
            leases.hold(asker, address.into(), state, until, name);
        } else if !leases.is_bound_to(asker, address.into(), now) {
            leases.hold(asker, address.into(), state, now + OFFER_HOLD, None);
        }
        let valid_s = u32::try_from(valid.as_secs()).unwrap_or(u32::MAX);
        let preferred_s = valid_s - valid_s / 4;
        // RFC 8415 §21.4: one half and four fifths of the shortest preferred lifetime.
        (answer.renew_s, answer.rebind_s) = (preferred_s / 2, preferred_s / 5 * 4);
        answer.addresses.push(AddressLease { address, preferred_s, valid_s });
        let others = asked.addresses.iter().filter(|lease| lease.address != address);
        answer.addresses.extend(others.take(ASSOCIATIONS_MAX).map(|lease| AddressLease {
            address: lease.address,
            preferred_s: 0,
            valid_s: 0,
        }));
        Some(answer)
    }

    /// Answers Confirm: whether the addresses are right for this link (RFC 8415 §18.3.3).
    fn confirm(&mut self, message: &Message, reply: &mut Message) -> Option<()> {
        let asked = self.associations(message)?;
        let mut addresses = asked.iter().flat_map(|ia| &ia.addresses).peekable();
        // RFC 8415 §18.3.3: a message without an address gets no answer.
        addresses.peek()?;
        let on_link = addresses.all(|lease| self.ipv6.contains(lease.address));
        let status = if on_link { Status::SUCCESS } else { Status::NOT_ON_LINK };
        reply.options.push(option::STATUS, &status.emit());
        Some(())
    }

    /// Handles Release and Decline (RFC 8415 §18.3.7, §18.3.8).
    fn give_back(
        &mut self,
        message: &Message,
        from: &Origin,
        now: Instant,
        reply: &mut Message,
    ) -> Option<()> {
        let declined = message.kind == MessageType::Decline;
        reply.options.push(option::STATUS, &Status::SUCCESS.emit());
        for (index, asked) in self.associations(message)?.into_iter().enumerate() {
            let asker = self.asker(message, from, asked.id, index == 0);
            let mut done = false;
            for lease in asked.addresses.iter().take(ASSOCIATIONS_MAX) {
                let Some(leases) = &mut self.leases else { continue };
                let address = lease.address.into();
                let ended = if declined {
                    leases.decline(&asker, address, now)
                } else {
                    leases.release(&asker, address, now)
                };
                if ended {
                    self.names.release(address);
                    self.counters.declines += u64::from(declined);
                    self.counters.releases += u64::from(!declined);
                }
                done |= ended;
            }
            if !done {
                self.counters.not_yours += 1;
                let status = Some(Status::NO_BINDING);
                let (renew_s, rebind_s) = (0, 0);
                let answer = IdentityAssociation {
                    addresses: vec![],
                    status,
                    renew_s,
                    rebind_s,
                    id: asked.id,
                };
                reply.options.push(option::IA_NA, &answer.emit());
            }
        }
        Some(())
    }

    /// Adds the parameters that the client asks for.
    fn add_parameters(&self, asked: &Options, options: &mut Options) {
        if asked.wants(option::DNS_SERVERS) && !self.ipv6.dns.is_empty() {
            let dns: Vec<u8> = self.ipv6.dns.iter().flat_map(|server| server.octets()).collect();
            options.push(option::DNS_SERVERS, &dns);
        }
        if asked.wants(option::DOMAIN_LIST) && !self.config.search.is_empty() {
            options.push(option::DOMAIN_LIST, &domain::emit_list(&self.config.search));
        }
    }
}

/// Returns the name that the client sends (RFC 4704 §4), without its domain.
fn name_in(options: &Options) -> Option<domain::DomainName> {
    let name = options.get(option::FQDN)?.get(1..)?;
    Some(domain::parse_partial(name)?.first_label())
}

#[cfg(test)]
mod tests;
