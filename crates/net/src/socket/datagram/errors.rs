//! ICMP errors about datagrams: pending errors, and the error queue of sockets with `IP_RECVERR` or
//! `IPV6_RECVERR`.
//!
//! A socket without these options gets only fatal errors, and only if it is connected
//! (observed on Linux 6.18).

use super::super::{Error, Family, Notice, Readiness, SocketId, Sockets, to_family};
use super::Socket;
use super::receive::{held, scatter};
use crate::counters::DropReason;
use crate::pmtu_mode::PathMtu;
use crate::stack::{Context, UdpError};
use crate::wire::{icmpv4, icmpv6};
use core::net::{IpAddr, SocketAddr};
use towpath_packet::{Ledger, Packet};

/// Origin of an error (`SO_EE_ORIGIN_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This host.
    Local,
    /// An ICMP message.
    Icmp,
    /// An ICMPv6 message.
    Icmpv6,
}

/// An entry of the error queue: Linux's `struct sock_extended_err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorNotice {
    /// The error.
    pub error: Error,
    /// What reported it.
    pub origin: Origin,
    /// Type of the ICMP message.
    pub kind: u8,
    /// Code of the ICMP message.
    pub code: u8,
    /// The MTU, if the error is about the MTU.
    pub info: u32,
    /// Sender of the ICMP message.
    pub offender: Option<IpAddr>,
    /// Destination of the datagram, in the socket's family.
    pub remote: SocketAddr,
}

/// What a queued error quotes.
pub(super) struct Quote {
    packet: Option<Packet>,
    held: usize,
}

impl Sockets {
    /// Sets whether ICMP errors of a family are put into the error queue. Switching this off drops
    /// the queued errors.
    pub fn set_receive_errors(
        &mut self,
        id: SocketId,
        family: Family,
        on: bool,
    ) -> Result<(), Error> {
        let socket = self.socket_mut(id)?;
        match family {
            Family::V4 => socket.options.datagram.receive_errors_v4 = on,
            Family::V6 => socket.options.datagram.receive_errors_v6 = on,
        }
        if !on {
            self.socket_mut(id)?.notices.forget_failed();
            let Ok(datagrams) = self.socket_mut(id).and_then(Socket::datagrams_mut) else {
                return Ok(());
            };
            let count = datagrams.errors.len();
            let held = datagrams.errors.drain(..).map(|quote| quote.held).sum();
            datagrams.held -= held;
            self.datagrams.release(count, held);
        }
        Ok(())
    }

    /// Takes the oldest notice of the error queue. What an error quotes of a datagram is copied to
    /// `into`, as far as there is room. Also returns the number of bytes copied and the number
    /// quoted.
    pub fn take_notice_into(
        &mut self,
        id: SocketId,
        into: &mut [&mut [u8]],
        ledger: &Ledger,
    ) -> Result<(Notice, usize, usize), Error> {
        let (notice, packet) = self.pop_notice(id)?;
        let Some(packet) = packet else { return Ok((notice, 0, 0)) };
        let len = packet.payload_len();
        let copied = scatter(&[], packet.pieces(), len, into, ledger);
        Ok((notice, copied, len))
    }

    /// Takes what the oldest error quotes.
    pub(in crate::socket) fn take_quote(&mut self, id: SocketId) -> Option<Packet> {
        let datagrams = self.socket_mut(id).and_then(Socket::datagrams_mut).ok()?;
        let quote = datagrams.errors.pop_front()?;
        datagrams.held -= quote.held;
        self.datagrams.release(1, quote.held);
        quote.packet
    }

    pub(super) fn on_udp_error(&mut self, error: UdpError, cx: &mut Context<'_>) {
        let UdpError { local, remote, from, kind, code, mtu, packet } = error;
        let Some(id) = self.find_datagram(local, remote) else {
            return self.stack.count_drop(DropReason::IcmpOutOfWindow);
        };
        let Ok(socket) = self.socket(id) else { return };
        let (too_big, discovery) = match from {
            IpAddr::V4(_) => {
                let needed = kind == UNREACHABLE && code == icmpv4::FRAGMENTATION_NEEDED;
                (needed, socket.options.path_mtu)
            }
            IpAddr::V6(_) => (kind == TOO_BIG_V6, socket.options.path_mtu_v6),
        };
        let (error, fatal) = match from {
            _ if too_big => (Error::MessageSize, discovery != PathMtu::Dont),
            IpAddr::V4(_) => meaning_v4(kind, code),
            IpAddr::V6(_) => meaning_v6(kind, code),
        };
        if too_big && discovery.believes_errors() {
            self.stack.learn_path_mtu(remote.ip(), mtu, cx.now);
        }
        // The error is reported over IPv4 unless path MTU discovery is off, and over IPv6 if ICMP
        // errors are trusted (ip(7), IP_MTU_DISCOVER; observed on Linux 6.18).
        let is_believed = if from.is_ipv4() { fatal } else { discovery.believes_errors() };
        if too_big && !is_believed {
            return;
        }
        let Ok(socket) = self.socket(id) else { return };
        if wants_errors(socket, remote) {
            let notice = ErrorNotice {
                error,
                origin: if from.is_ipv4() { Origin::Icmp } else { Origin::Icmpv6 },
                kind,
                code,
                info: mtu,
                offender: Some(to_family(SocketAddr::new(from, 0), socket.family).ip()),
                remote: to_family(remote, socket.family),
            };
            let held = held(&packet);
            if self.charge(id, held, cx) {
                self.keep(id, notice, Quote { packet: Some(packet), held });
            }
        } else if !fatal || socket.remote.is_none() {
            return;
        }
        if let Ok(socket) = self.socket_mut(id) {
            socket.error = Some(error);
        }
        self.wake(id, Readiness::ERR);
    }

    /// Queues a local error, if the socket has asked for errors.
    pub(super) fn keep_own(&mut self, id: SocketId, remote: SocketAddr, notice: ErrorNotice) {
        let Ok(socket) = self.socket(id) else { return };
        let room = self.datagrams.queued < super::QUEUED_MAX
            && socket.datagrams().is_ok_and(|datagrams| {
                datagrams.errors.len() + datagrams.queue.len() < super::DATAGRAMS_MAX
            });
        if wants_errors(socket, remote) && room {
            // No packet is kept with it, so only the entry is counted.
            self.datagrams.queued += 1;
            self.keep(id, notice, Quote { packet: None, held: 0 });
            self.wake(id, Readiness::ERR);
        }
    }

    fn keep(&mut self, id: SocketId, notice: ErrorNotice, quote: Quote) {
        let Ok(socket) = self.socket_mut(id) else { return };
        if let Ok(datagrams) = socket.datagrams_mut() {
            datagrams.errors.push_back(quote);
            socket.notices.push_failed(notice);
        }
    }
}

fn wants_errors(socket: &Socket, remote: SocketAddr) -> bool {
    let options = &socket.options.datagram;
    if remote.is_ipv4() { options.receive_errors_v4 } else { options.receive_errors_v6 }
}

/// Returns the error of an ICMP message, and whether it is fatal (observed on Linux 6.18).
fn meaning_v4(kind: u8, code: u8) -> (Error, bool) {
    match (kind, code) {
        (PARAMETER_PROBLEM, _) => (Error::Protocol, true),
        (UNREACHABLE, icmpv4::NETWORK_UNREACHABLE | 11) => (Error::NetworkUnreachable, false),
        (UNREACHABLE, icmpv4::PROTOCOL_UNREACHABLE) => (Error::NoSuchOption, true),
        (UNREACHABLE, icmpv4::PORT_UNREACHABLE) => (Error::ConnectionRefused, true),
        (UNREACHABLE, icmpv4::SOURCE_ROUTE_FAILED) => (Error::NotSupported, false),
        (UNREACHABLE, 6 | 9) => (Error::NetworkUnreachable, true),
        (UNREACHABLE, 7) => (Error::HostDown, true),
        (UNREACHABLE, 8) => (Error::NotOnNetwork, true),
        (UNREACHABLE, 10 | icmpv4::ADMINISTRATIVELY_PROHIBITED | 14 | 15) => {
            (Error::HostUnreachable, true)
        }
        _ => (Error::HostUnreachable, false),
    }
}

/// Returns the error of an ICMPv6 message, and whether it is fatal (observed on Linux 6.18).
fn meaning_v6(kind: u8, code: u8) -> (Error, bool) {
    match (kind, code) {
        (PARAMETER_PROBLEM_V6, _) => (Error::Protocol, true),
        (UNREACHABLE_V6, icmpv6::NO_ROUTE) => (Error::NetworkUnreachable, false),
        (UNREACHABLE_V6, icmpv6::PORT_UNREACHABLE) => (Error::ConnectionRefused, true),
        // Prohibited, source address failed policy, route rejects.
        (UNREACHABLE_V6, icmpv6::ADMINISTRATIVELY_PROHIBITED | 5 | 6) => {
            (Error::AccessDenied, true)
        }
        _ => (Error::HostUnreachable, false),
    }
}

/// ICMP types (RFC 792).
const UNREACHABLE: u8 = 3;
const PARAMETER_PROBLEM: u8 = 12;
/// ICMPv6 types (RFC 4443).
const UNREACHABLE_V6: u8 = 1;
const TOO_BIG_V6: u8 = 2;
const PARAMETER_PROBLEM_V6: u8 = 4;
