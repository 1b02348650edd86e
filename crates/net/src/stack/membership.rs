//! Multicast groups of the stack: membership, and reports to routers and snooping switches (RFC
//! 3376, RFC 3810).
//!
//! # Theory of operation
//!
//! A group has as many members as sockets have joined it; the solicited-node group of a local
//! address has the address as a member too. Memberships have no source filters, so all records say
//! "exclude no source".
//!
//! The first join and the last leave are reported at once, and again at random times within
//! [`UNSOLICITED_V3`], as often as the querier's robustness variable says (RFC 3376 §5.1). A group
//! that has been left stays in the table until that is done. A query is answered once, after a
//! random part of its response time; a pending answer that is sooner serves further queries too
//! (RFC 3376 §5.2). A query for certain sources is answered like one for the group.
//!
//! While a querier of an older version is present, reports and leaves have its version, and another
//! host's report of a group replaces ours (RFC 3376 §7, RFC 3810 §8).
//!
//! Solicited-node groups are reported without a query only if the owner asks for it
//! ([`Stack::announce_groups`]): without a querier, switches do not snoop (RFC 4541 §3).
//!
//! Queries must come from the link, with a TTL of 1, and a router alert if their version has one.
//!
//! Bound: [`GROUPS_MAX`]; each group has at most one pending report and one pending answer.

use super::egress::Marks;
use super::ingress::{IP_AT, IpInfo, is_solicited_node, solicited_node};
use super::{Address, Context, Stack};
use crate::checksum;
use crate::counters::DropReason;
use crate::gso;
use crate::random::Random;
use crate::time::{Duration, Instant};
use crate::wire::Protocol;
use crate::wire::membership::{
    CHECKSUM_OFFSET, QUERY_LEN_MAX, Query, RECORDS_MAX, ROUTER_ALERT_V4, ROUTER_ALERT_V6, Received,
    RecordKind, Report, Version, has_router_alert, is_reported,
};
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_packet::{Checksum, Packet};

/// Maximum number of groups of one stack, those included whose leave is still reported.
pub const GROUPS_MAX: usize = 512;

/// Error of [`Stack::join_group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// The address is not a multicast address.
    NotMulticast,
    /// There are [`GROUPS_MAX`] groups.
    TooMany,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMulticast => f.write_str("the address is not a multicast address"),
            Self::TooMany => {
                write!(f, "the host is a member of {GROUPS_MAX} multicast groups: leave one first")
            }
        }
    }
}

impl core::error::Error for JoinError {}

/// Default robustness variable (RFC 3376 §8.1, RFC 3810 §9.1).
const ROBUSTNESS: u8 = 2;
/// Default time between general queries (RFC 3376 §8.2, RFC 3810 §9.2).
const QUERY_INTERVAL: Duration = Duration::from_secs(125);
/// Longest time between reports of one change (RFC 3376 §8.11, RFC 3810 §9.11).
const UNSOLICITED_V3: u32 = 1000;
/// Longest time between reports of one change in older versions (RFC 2236 §8.10, RFC 2710 §7.10).
const UNSOLICITED_OLDER: u32 = 10_000;

/// A group with members, or one whose leave is still reported.
struct Group {
    address: IpAddr,
    members: u32,
    /// Reports of the last change that are yet to be sent, and when the next one is due.
    changes: u8,
    change_at: Option<Instant>,
    /// When a query is answered for this group.
    answer_at: Option<Instant>,
}

/// What is known about the queriers of one family.
struct Querier {
    robustness: u8,
    interval: Duration,
    /// Until when queriers of version 1 and of version 2 count as present.
    present_until: [Option<Instant>; 2],
    /// When a general query is answered for all groups.
    answer_at: Option<Instant>,
}

impl Querier {
    const fn new() -> Self {
        let present_until = [None; 2];
        Self { robustness: ROBUSTNESS, interval: QUERY_INTERVAL, present_until, answer_at: None }
    }

    /// Version of reports: that of the oldest querier that is present.
    fn version(&self, now: Instant) -> Version {
        match self.present_until.map(|until| until.is_some_and(|until| now < until)) {
            [true, _] => Version::V1,
            [_, true] => Version::V2,
            _ => Version::V3,
        }
    }
}

/// The groups of a stack, sorted by address.
pub(super) struct Memberships {
    groups: Vec<Group>,
    v4: Querier,
    v6: Querier,
    random: Random,
    deadline: Option<Instant>,
}

impl Memberships {
    /// The solicited-node groups of these addresses. `key` seeds the random delays.
    pub(super) fn new(addresses: &[Address], key: [u64; 2]) -> Self {
        let (v4, v6) = (Querier::new(), Querier::new());
        let random = Random::new(key);
        let mut new = Self { groups: Vec::new(), v4, v6, random, deadline: None };
        for ours in addresses {
            if let IpAddr::V6(address) = ours.address {
                // Addresses beyond the bound answer solicitations all the same, but do not report
                // their group.
                new.add(solicited_node(address).into());
            }
        }
        new
    }

    /// Joins the solicited-node group of a new local address. Beyond the bound it reports none.
    pub(super) fn begin_address(&mut self, address: IpAddr, now: Instant) {
        if let IpAddr::V6(address) = address {
            _ = self.join(solicited_node(address).into(), now);
        }
    }

    /// Leaves the solicited-node group of an address that is no longer local.
    pub(super) fn end_address(&mut self, address: IpAddr, now: Instant) {
        if let IpAddr::V6(address) = address {
            self.leave(solicited_node(address).into(), now);
        }
    }

    /// When [`Stack::report_groups`] must be called next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// True if the group has members.
    pub(super) fn contains(&self, group: IpAddr) -> bool {
        self.find(group).is_ok_and(|index| self.groups[index].members > 0)
    }

    fn find(&self, group: IpAddr) -> Result<usize, usize> {
        self.groups.binary_search_by_key(&group, |group| group.address)
    }

    /// Adds a member and returns the group's index, or `None` if there are too many groups.
    fn add(&mut self, address: IpAddr) -> Option<usize> {
        if self.groups.len() >= GROUPS_MAX
            && self.find(address).is_err()
            && let Some(left) = self.groups.iter().position(|group| group.members == 0)
        {
            self.groups.remove(left);
        }
        let index = match self.find(address) {
            Ok(index) => index,
            Err(_) if self.groups.len() >= GROUPS_MAX => return None,
            Err(index) => {
                let (change_at, answer_at) = (None, None);
                let group = Group { address, members: 0, changes: 0, change_at, answer_at };
                self.groups.insert(index, group);
                index
            }
        };
        self.groups[index].members += 1;
        Some(index)
    }

    fn join(&mut self, group: IpAddr, now: Instant) -> Result<(), JoinError> {
        let index = self.add(group).ok_or(JoinError::TooMany)?;
        if self.groups[index].members == 1 {
            self.report_change(index, now);
        }
        Ok(())
    }

    fn leave(&mut self, group: IpAddr, now: Instant) -> bool {
        let Ok(index) = self.find(group) else { return false };
        let group = &mut self.groups[index];
        let was_member = group.members > 0;
        group.members = group.members.saturating_sub(1);
        if was_member && group.members == 0 {
            group.answer_at = None;
            self.report_change(index, now);
            self.forget_left();
        }
        was_member
    }

    /// Starts to report that a group was joined or left.
    fn report_change(&mut self, index: usize, now: Instant) {
        let group = &mut self.groups[index];
        if is_reported(group.address) {
            let querier = if group.address.is_ipv4() { &self.v4 } else { &self.v6 };
            group.changes = querier.robustness;
            group.change_at = Some(now);
        }
        self.schedule();
    }

    fn forget_left(&mut self) {
        self.groups.retain(|group| group.members > 0 || group.change_at.is_some());
        self.schedule();
    }

    fn schedule(&mut self) {
        let queriers = [self.v4.answer_at, self.v6.answer_at];
        let groups = self.groups.iter().flat_map(|group| [group.change_at, group.answer_at]);
        self.deadline = queriers.into_iter().chain(groups).flatten().min();
    }

    /// Groups of one family that have members and report them.
    fn reported(groups: &mut [Group], v4: bool) -> impl Iterator<Item = &mut Group> {
        groups.iter_mut().filter(move |group| {
            group.members > 0 && group.address.is_ipv4() == v4 && is_reported(group.address)
        })
    }

    fn on_query(&mut self, query: &Query, v4: bool, now: Instant) {
        let Self { groups, random, .. } = self;
        let querier = if v4 { &mut self.v4 } else { &mut self.v6 };
        let before = querier.version(now);
        let response_max = Duration::from_millis(query.response_max_ms.into());
        let present = querier.interval * querier.robustness.into() + response_max;
        match query.version {
            Version::V1 => querier.present_until[0] = Some(now + present),
            Version::V2 => querier.present_until[1] = Some(now + present),
            Version::V3 => {
                querier.robustness = match query.robustness {
                    0 => ROBUSTNESS,
                    robustness => robustness,
                };
                querier.interval = match query.interval_s {
                    0 => QUERY_INTERVAL,
                    interval => Duration::from_secs(interval.into()),
                };
            }
        }
        let version = querier.version(now);
        if version != before {
            // RFC 3376 §7.2.1: a change of version cancels what is pending.
            querier.answer_at = None;
            for group in groups.iter_mut().filter(|group| group.address.is_ipv4() == v4) {
                (group.changes, group.change_at, group.answer_at) = (0, None, None);
            }
        }
        let mut draw = |waiting: Option<Instant>| {
            let delay = random.below(query.response_max_ms + 1);
            let at = now + Duration::from_millis(delay.into());
            Some(waiting.map_or(at, |waiting| waiting.min(at)))
        };
        match query.group {
            None if version == Version::V3 => querier.answer_at = draw(querier.answer_at),
            None => {
                for group in Self::reported(groups, v4) {
                    group.answer_at = draw(group.answer_at);
                }
            }
            Some(asked) => {
                let asked = Self::reported(groups, v4).find(|group| group.address == asked);
                if let Some(group) = asked {
                    let at = draw(group.answer_at);
                    let is_later = querier.answer_at.is_some_and(|general| Some(general) <= at);
                    group.answer_at = if is_later { group.answer_at } else { at };
                }
            }
        }
        self.forget_left();
    }

    /// Another host reports this group.
    fn on_report(&mut self, address: IpAddr, now: Instant) {
        let querier = if address.is_ipv4() { &self.v4 } else { &self.v6 };
        if querier.version(now) == Version::V3 {
            return;
        }
        let mut reported = Self::reported(&mut self.groups, address.is_ipv4());
        if let Some(group) = reported.find(|group| group.address == address) {
            (group.changes, group.change_at, group.answer_at) = (0, None, None);
        }
        drop(reported);
        self.schedule();
    }

    /// Takes the reports of one family that are due, and schedules those that follow.
    fn take_due(&mut self, v4: bool, now: Instant) -> (Version, Vec<(RecordKind, IpAddr)>) {
        let Self { groups, random, .. } = self;
        let querier = if v4 { &mut self.v4 } else { &mut self.v6 };
        let version = querier.version(now);
        let is_due = |at: &mut Option<Instant>| at.take_if(|at| *at <= now).is_some();
        let answers_all = is_due(&mut querier.answer_at);
        let mut due = Vec::new();
        for group in groups.iter_mut().filter(|group| group.address.is_ipv4() == v4) {
            let answers = is_due(&mut group.answer_at) || answers_all;
            let joined = group.members > 0;
            if is_due(&mut group.change_at) {
                group.changes = group.changes.saturating_sub(1);
                // Older versions report a leave once.
                if group.changes > 0 && (joined || version == Version::V3) {
                    let most = match version {
                        Version::V3 => UNSOLICITED_V3,
                        _ => UNSOLICITED_OLDER,
                    };
                    let delay = Duration::from_millis(u64::from(random.below(most)) + 1);
                    group.change_at = Some(now + delay);
                }
                let kind = if joined { RecordKind::ToExclude } else { RecordKind::ToInclude };
                due.push((kind, group.address));
            } else if answers && joined && is_reported(group.address) {
                due.push((RecordKind::IsExclude, group.address));
            }
        }
        self.forget_left();
        (version, due)
    }
}

impl Stack {
    /// Adds a member to a multicast group and receives packets for it. Each call needs a call of
    /// [`Stack::leave_group`].
    ///
    /// # Errors
    /// If the stack has [`GROUPS_MAX`] groups, or the address is not multicast.
    pub fn join_group(&mut self, group: IpAddr, now: Instant) -> Result<(), JoinError> {
        if !group.is_multicast() {
            return Err(JoinError::NotMulticast);
        }
        self.memberships.join(group, now)
    }

    /// Removes a member of a multicast group. Returns false if it had none.
    pub fn leave_group(&mut self, group: IpAddr, now: Instant) -> bool {
        self.memberships.leave(group, now)
    }

    /// Reports all groups without a query, as a host does that appears on a link.
    pub fn announce_groups(&mut self, now: Instant) {
        for index in 0..self.memberships.groups.len() {
            self.memberships.report_change(index, now);
        }
    }

    /// True if datagrams to a multicast group go to the owner. For a transparent stack, only those
    /// to groups that the owner has joined.
    pub(super) fn takes_datagrams_to(&self, group: IpAddr) -> bool {
        let is_solicited = matches!(group, IpAddr::V6(v6) if is_solicited_node(v6));
        !self.config.transparent || self.memberships.contains(group) && !is_solicited
    }

    /// Processes a received IGMP message or a message of multicast listener discovery, whose
    /// checksum has been verified.
    pub(super) fn receive_membership(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let v4 = info.source.is_ipv4();
        let (at, len) = (info.transport_at, packet.len() - info.transport_at);
        let more = QUERY_LEN_MAX.min(len).saturating_sub(packet.headers().len() - at);
        if info.ttl != 1 || !self.is_on_our_link(info.source) || !packet.pull_more(more) {
            return Err(DropReason::MembershipMalformed);
        }
        let headers = packet.headers();
        let received = Received::parse(&headers[at..], len, v4)
            .map_err(|_| DropReason::MembershipMalformed)?;
        match received {
            Received::Query(query) => {
                if query.version != Version::V1 && !has_router_alert(&headers[IP_AT..at]) {
                    return Err(DropReason::MembershipMalformed);
                }
                self.memberships.on_query(&query, v4, cx.now);
            }
            Received::Report(group) => self.memberships.on_report(group, cx.now),
            Received::Other => return Err(DropReason::IcmpIgnored),
        }
        Ok(())
    }

    /// Processes a received IGMP packet.
    pub(super) fn receive_igmp(
        &mut self,
        info: &IpInfo,
        packet: Packet,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let vouched = packet.offload().checksum != Checksum::None;
        if !vouched && gso::transport_sum(&packet, info.transport_at, cx.ledger).finish() != 0 {
            return Err(DropReason::MembershipMalformed);
        }
        self.receive_membership(info, packet, cx)
    }

    /// True if `source` may send queries: a link-local IPv6 address (RFC 3810 §5.1.14), or an IPv4
    /// address of the link, a router, or a switch without an address (RFC 4541 §2.1.1).
    fn is_on_our_link(&self, source: IpAddr) -> bool {
        match source {
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
            IpAddr::V4(v4) => {
                v4.is_unspecified()
                    || self.is_on_link(source)
                    || self.config.next_hops.contains(&source)
            }
        }
    }

    /// Sends the reports that are due.
    pub(super) fn report_groups(&mut self, cx: &mut Context<'_>) {
        if self.memberships.deadline().is_none_or(|deadline| deadline > cx.now) {
            return;
        }
        for v4 in [true, false] {
            let (version, due) = self.memberships.take_due(v4, cx.now);
            if version == Version::V3 {
                for records in due.chunks(RECORDS_MAX) {
                    self.send_report(&Report::Records(records), cx);
                }
                continue;
            }
            for (kind, group) in due {
                match kind {
                    RecordKind::ToInclude if version == Version::V1 => {}
                    RecordKind::ToInclude => self.send_report(&Report::Leave(group), cx),
                    _ => self.send_report(&Report::Member(version, group), cx),
                }
            }
        }
    }

    fn send_report(&mut self, report: &Report<'_>, cx: &mut Context<'_>) {
        let Some(to) = report.destination() else { return };
        let (Some(mut packet), Some(mut frame)) = (cx.memory.packet(), cx.memory.small.take())
        else {
            return self.counters.drop(DropReason::NoMemory);
        };
        let ours = self.config.addresses.iter().map(|ours| ours.address);
        let (from, header): (IpAddr, &[u8]) = match to {
            // RFC 3376 §4.2.13: from the unspecified address if there is none yet.
            IpAddr::V4(_) => {
                let mut ours = ours.filter(IpAddr::is_ipv4);
                (ours.next().unwrap_or(Ipv4Addr::UNSPECIFIED.into()), &IGMP_HEADER)
            }
            // RFC 3810 §5.2.13: from a link-local address, or from the unspecified address if there
            // is none.
            IpAddr::V6(_) => {
                let mut ours = ours
                    .filter(|ours| matches!(ours, IpAddr::V6(v6) if v6.is_unicast_link_local()));
                (ours.next().unwrap_or(Ipv6Addr::UNSPECIFIED.into()), &ROUTER_ALERT_V6)
            }
        };
        let at = header.len();
        frame[..at].copy_from_slice(header);
        let len = report.emit(&mut frame[at..]);
        let mut sum = match to {
            IpAddr::V4(_) => checksum::Sum::new(),
            IpAddr::V6(_) => checksum::pseudo_header(from, to, Protocol::ICMPV6, len as u32),
        };
        sum.add(&frame[at..at + len]);
        let sum = sum.finish().to_be_bytes();
        frame[at + CHECKSUM_OFFSET..][..2].copy_from_slice(&sum);
        if let IpAddr::V4(to) = to {
            frame[IGMP_DESTINATION_AT..][..4].copy_from_slice(&to.octets());
        }
        if packet.push_piece(frame.freeze(at + len)).is_err() {
            return self.counters.drop(DropReason::NoMemory);
        }
        match from {
            // This cannot fail: the header is consistent.
            IpAddr::V4(from) => _ = self.send_with_header(packet, (from, to), cx),
            IpAddr::V6(_) => {
                let marks =
                    Marks { ttl: 1, tos: 0, dont_fragment: true, mtu: u16::MAX, loops: false };
                self.send_ip(packet, Protocol::HOP_BY_HOP, (from, to), marks, cx);
            }
        }
    }
}

/// IPv4 header of IGMP messages (RFC 3376 §4): precedence of internetwork control, TTL 1, router
/// alert. Length, identification, addresses and checksum are filled in later.
const IGMP_HEADER: [u8; 24] = {
    let mut header = [0; 24];
    (header[0], header[1], header[8], header[9]) = (0x46, 0xc0, 1, Protocol::IGMP.0);
    let [a, b, c, d] = ROUTER_ALERT_V4;
    (header[20], header[21], header[22], header[23]) = (a, b, c, d);
    header
};
/// Offset of the destination in an IPv4 header.
const IGMP_DESTINATION_AT: usize = 16;
