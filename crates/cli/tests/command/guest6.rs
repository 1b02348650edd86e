//! The IPv6 part of a guest.

use std::net::Ipv6Addr;
use std::time::Duration;

use towpath_gateway::services::wire::dhcpv6::{
    self, IdentityAssociation, Message, MessageType, option,
};

use super::guest::{Guest, checksum, ethernet};
use super::support::*;

const IPV6: [u8; 2] = [0x86, 0xdd];
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Length of the Ethernet and IPv6 headers.
const BODY: usize = 54;
const ROUTER_ADVERTISEMENT: u8 = 134;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

impl Guest {
    fn link_local(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, self.mac[5].into())
    }

    /// Gets a lease by rapid commit (RFC 8415 §18.2.1), as the client with this DUID.
    pub(super) fn lease6(&mut self, duid: &[u8]) -> Option<Ipv6Addr> {
        let mut options = dhcpv6::Options::default();
        options.push(option::CLIENT_ID, duid);
        options.push(option::RAPID_COMMIT, &[]);
        let asked =
            IdentityAssociation { id: 1, renew_s: 0, rebind_s: 0, addresses: vec![], status: None };
        options.push(option::IA_NA, &asked.emit());
        let solicit = Message { kind: MessageType::Solicit, transaction_id: 7, options };
        let (from, to) = ((self.link_local(), 546), (ALL_SERVERS, 547));
        let frame =
            udp6_frame(([0x33, 0x33, 0, 1, 0, 2], to), (self.mac, from), &solicit.emit(1000));
        self.send(&frame);
        let own = self.link_local();
        let frame = self.receive_at6(own, PATIENCE, |frame| datagram6(frame, 546).is_some())?;
        let reply = Message::parse(datagram6(&frame, 546)?.1).unwrap();
        assert_eq!(
            (reply.kind, reply.options.get(option::CLIENT_ID)),
            (MessageType::Reply, Some(duid))
        );
        let lent = IdentityAssociation::parse(reply.options.get(option::IA_NA)?).unwrap();
        Some(lent.addresses.first()?.address)
    }

    /// Returns the next frame for which `is` returns true, unless nothing arrives for `patience`;
    /// answers neighbour solicitations for `own` meanwhile.
    pub(super) fn receive_at6(
        &mut self,
        own: Ipv6Addr,
        patience: Duration,
        is: impl Fn(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        self.receive_and_answer(patience, is, |guest, frame| {
            if is_solicitation(frame, own) {
                let asker = <[u8; 16]>::try_from(&frame[22..38]).unwrap().into();
                guest.advertise(own, (frame[6..12].try_into().unwrap(), asker));
            }
        })
    }

    /// Sends a solicited, overriding neighbour advertisement for `target` (RFC 4861 §4.4).
    pub(super) fn advertise(&mut self, target: Ipv6Addr, (to_mac, to): ([u8; 6], Ipv6Addr)) {
        let mut message = [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &target.octets(), &[2, 1]].concat();
        message.extend(self.mac);
        let packet = ipv6(self.link_local(), to, ICMPV6, message, 2);
        self.send(&ethernet(to_mac, self.mac, IPV6, &packet));
    }

    /// Asks whether another station has `target`, before using it (RFC 4862 §5.4.2).
    pub(super) fn detect_duplicates(&mut self, target: Ipv6Addr) {
        let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
        let [.., a, b, c] = target.octets();
        let group =
            Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
        let packet = ipv6(Ipv6Addr::UNSPECIFIED, group, ICMPV6, message, 2);
        self.send(&ethernet([0x33, 0x33, 0xff, a, b, c], self.mac, IPV6, &packet));
    }

    /// Sends a router advertisement to all (RFC 4861 §4.2).
    pub(super) fn announce_router(&mut self) {
        let message = [&[ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0, 7, 8][..], &[0; 8]].concat();
        let packet = ipv6(self.link_local(), ALL_NODES, ICMPV6, message, 2);
        self.send(&ethernet([0x33, 0x33, 0, 0, 0, 1], self.mac, IPV6, &packet));
    }
}

/// Returns true for a router advertisement.
pub(super) fn is_router_announced(frame: &[u8]) -> bool {
    frame.len() > BODY
        && frame[12..14] == IPV6
        && (frame[20], frame[BODY]) == (ICMPV6, ROUTER_ADVERTISEMENT)
}

/// Returns true for a neighbour solicitation for `target`.
fn is_solicitation(frame: &[u8], target: Ipv6Addr) -> bool {
    frame.len() >= BODY + 24
        && frame[12..14] == IPV6
        && (frame[20], frame[BODY]) == (ICMPV6, 135)
        && frame[BODY + 8..BODY + 24] == target.octets()
}

/// Returns true for a neighbour advertisement for `target`.
pub(super) fn is_advertisement(frame: &[u8], target: Ipv6Addr) -> bool {
    frame.len() >= BODY + 24
        && frame[12..14] == IPV6
        && (frame[20], frame[BODY]) == (ICMPV6, 136)
        && frame[BODY + 8..BODY + 24] == target.octets()
}

/// Returns a frame with a datagram.
pub(super) fn udp6_frame(
    (to_mac, to): ([u8; 6], (Ipv6Addr, u16)),
    (from_mac, from): ([u8; 6], (Ipv6Addr, u16)),
    payload: &[u8],
) -> Vec<u8> {
    let len = 8 + payload.len() as u16;
    let mut datagram: Vec<u8> =
        [from.1, to.1, len, 0].iter().flat_map(|n| n.to_be_bytes()).collect();
    datagram.extend(payload);
    ethernet(to_mac, from_mac, IPV6, &ipv6(from.0, to.0, UDP, datagram, 6))
}

/// Returns the sender and payload of a datagram to `port`.
pub(super) fn datagram6(frame: &[u8], port: u16) -> Option<((Ipv6Addr, u16), &[u8])> {
    let is_it = frame.len() >= BODY + 8 && frame[12..14] == IPV6 && frame[20] == UDP;
    if !is_it || frame[BODY + 2..BODY + 4] != port.to_be_bytes() {
        return None;
    }
    let number = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let from = <[u8; 16]>::try_from(&frame[22..38]).unwrap().into();
    Some(((from, number(BODY)), &frame[BODY + 8..BODY + usize::from(number(BODY + 4))]))
}

/// Returns a packet, with the checksum at `sum_at` of the body filled in.
fn ipv6(from: Ipv6Addr, to: Ipv6Addr, next: u8, mut body: Vec<u8>, sum_at: usize) -> Vec<u8> {
    let len = body.len() as u16;
    let addresses = [from.octets(), to.octets()].concat();
    let mut summed =
        [&addresses[..], &[0, 0], &len.to_be_bytes(), &[0, 0, 0, next], &body].concat();
    summed.resize(summed.len().next_multiple_of(2), 0);
    body[sum_at..sum_at + 2].copy_from_slice(&checksum(&summed).to_be_bytes());
    [&[0x60, 0, 0, 0], &len.to_be_bytes()[..], &[next, 255], &addresses, &body].concat()
}
