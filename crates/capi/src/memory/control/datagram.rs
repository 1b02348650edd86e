//! Control messages of datagrams: those that come with received datagrams, and those that control a
//! send.

use super::{Control, TOWPATH_SO_ZEROCOPY_TERM, each_message, extended_error};
use crate::errno::{Errno, Outcome};
use crate::memory::address;
use crate::table::ControlWanted;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath::layers::net::socket::{ErrorNotice, Origin, ReceivedDatagram, SendTo};

/// The index of the one interface that an instance has.
const INTERFACE: u32 = 1;
/// Bytes of `struct in_pktinfo` and of `struct in6_pktinfo`.
const PKTINFO_V4: usize = size_of::<libc::in_pktinfo>();
const PKTINFO_V6: usize = size_of::<libc::in6_pktinfo>();

/// Adds the control messages of a received datagram, in Linux's order. `own` is the address from
/// which a datagram to an IPv4 group is answered.
pub(crate) fn push_datagram(
    control: &mut Control<'_>,
    asked: &ControlWanted,
    received: &ReceivedDatagram,
    own: Option<Ipv4Addr>,
) {
    if let Some(size) = received.segment_size {
        let size = i32::from(size.get());
        control.push(libc::SOL_UDP, libc::UDP_GRO, &size.to_ne_bytes());
    }
    let to = received.to.ip();
    if asked.packet_v6
        && let IpAddr::V6(v6) = to
    {
        let data = [&v6.octets()[..], &INTERFACE.to_ne_bytes()].concat();
        control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data);
    }
    let (ttl, class) = (i32::from(received.ttl), i32::from(received.tos));
    match to.to_canonical() {
        IpAddr::V4(v4) => {
            if asked.packet_v4 {
                let own = own.filter(|_| v4.is_multicast()).unwrap_or(v4);
                let data = [&INTERFACE.to_ne_bytes()[..], &own.octets(), &v4.octets()].concat();
                control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &data);
            }
            if asked.ttl {
                control.push(libc::IPPROTO_IP, libc::IP_TTL, &ttl.to_ne_bytes());
            }
            if asked.tos {
                control.push(libc::IPPROTO_IP, libc::IP_TOS, &[received.tos]);
            }
        }
        IpAddr::V6(_) => {
            if asked.hop_limit {
                control.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &ttl.to_ne_bytes());
            }
            if asked.traffic_class {
                control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class.to_ne_bytes());
            }
        }
    }
}

/// Adds a `struct sock_extended_err` and the address of the node that reported the error.
pub(crate) fn push_error(control: &mut Control<'_>, domain: i32, notice: &ErrorNotice) {
    let (level, kind, room) = match domain {
        libc::AF_INET => (libc::IPPROTO_IP, libc::IP_RECVERR, size_of::<libc::sockaddr_in>()),
        _ => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, size_of::<libc::sockaddr_in6>()),
    };
    let offender = notice.offender.map(|ip| address::write(SocketAddr::new(ip, 0).into()));
    let error = extended_error(
        notice.error.errno(),
        [origin(notice), notice.kind, notice.code],
        (notice.info, 0),
        (offender.as_deref().unwrap_or_default(), room),
    );
    control.push(level, kind, &error);
}

/// `SO_EE_ORIGIN_*` of `linux/errqueue.h`.
fn origin(notice: &ErrorNotice) -> u8 {
    match notice.origin {
        Origin::Local => 1,
        Origin::Icmp => 2,
        Origin::Icmpv6 => 3,
    }
}

/// Parses the control messages of a send, with the checks that Linux makes.
pub(crate) fn parse(bytes: &[u8], over_v4: bool, send: &mut SendTo) -> Outcome<()> {
    each_message(bytes, |level, kind, data| message(level, kind, data, over_v4, send))
}

fn message(level: i32, kind: i32, data: &[u8], over_v4: bool, send: &mut SendTo) -> Outcome<()> {
    match (level, kind) {
        (libc::SOL_UDP, libc::UDP_SEGMENT) => {
            let size: [u8; 2] = data.try_into().map_err(|_| Errno::INVAL)?;
            send.segment_size = Some(u16::from_ne_bytes(size));
        }
        // There are no rules, queues or clocks that these options could select. A call that lends
        // has read the term before.
        (
            libc::SOL_SOCKET,
            libc::SO_MARK | libc::SO_TIMESTAMPING | libc::SO_PRIORITY | TOWPATH_SO_ZEROCOPY_TERM,
        ) if data.len() == size_of::<i32>() => {}
        (libc::SOL_UDP | libc::SOL_SOCKET, _) => return Err(Errno::INVAL),
        (libc::IPPROTO_IP, _) if over_v4 => match kind {
            libc::IP_PKTINFO if data.len() == PKTINFO_V4 => {
                interface(&data[..4])?;
                let from: [u8; 4] = data[4..8].try_into().map_err(|_| Errno::INVAL)?;
                send.from = Some(Ipv4Addr::from(from).into());
            }
            libc::IP_TTL => send.ttl = Some(byte(data, 1).ok_or(Errno::INVAL)?),
            libc::IP_TOS => {
                let tos = if let &[tos] = data { Some(tos) } else { byte(data, 0) };
                send.tos = Some(tos.ok_or(Errno::INVAL)?);
            }
            _ => return Err(Errno::INVAL),
        },
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if data.len() >= PKTINFO_V6 => {
            interface(&data[16..20])?;
            let from: [u8; 16] = data[..16].try_into().map_err(|_| Errno::INVAL)?;
            let from = Ipv6Addr::from(from);
            send.from = Some(match from.to_ipv4_mapped() {
                Some(v4) if over_v4 => v4.into(),
                None if !over_v4 => from.into(),
                _ => return Err(Errno::INVAL),
            });
        }
        (libc::IPPROTO_IPV6, _) if !over_v4 => match kind {
            libc::IPV6_HOPLIMIT => send.ttl = byte_or_default(data)?,
            libc::IPV6_TCLASS => send.tos = byte_or_default(data)?,
            _ => return Err(Errno::INVAL),
        },
        // Messages for another protocol are ignored.
        _ => {}
    }
    Ok(())
}

/// Checks the interface of a send: the only one, or any.
fn interface(index: &[u8]) -> Outcome<()> {
    let known = [0, INTERFACE].iter().any(|known| known.to_ne_bytes() == *index);
    if known { Ok(()) } else { Err(Errno(libc::ENODEV)) }
}

/// An `int` that is at least `least` and fits a byte.
fn byte(data: &[u8], least: u8) -> Option<u8> {
    let number = i32::from_ne_bytes(data.try_into().ok()?);
    u8::try_from(number).ok().filter(|byte| *byte >= least)
}

/// An `int` that fits a byte; `None` for -1, which selects the default.
fn byte_or_default(data: &[u8]) -> Outcome<Option<u8>> {
    if data == (-1_i32).to_ne_bytes() {
        return Ok(None);
    }
    byte(data, 0).map(Some).ok_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::super::HEADER;
    use super::*;

    fn cmsg(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER + data.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    fn parsed(bytes: &[u8], over_v4: bool) -> Outcome<SendTo> {
        let mut send = SendTo::default();
        parse(bytes, over_v4, &mut send).map(|()| send)
    }

    #[test]
    fn control_messages_say_how_to_send() {
        let bytes = [
            cmsg(libc::SOL_UDP, libc::UDP_SEGMENT, &1000_u16.to_ne_bytes()),
            cmsg(libc::IPPROTO_IP, libc::IP_TTL, &9_i32.to_ne_bytes()),
            cmsg(libc::IPPROTO_IP, libc::IP_TOS, &[4]),
            cmsg(libc::IPPROTO_IP, libc::IP_PKTINFO, &[0, 0, 0, 0, 192, 0, 2, 7, 0, 0, 0, 0]),
        ];
        let send = parsed(&bytes.concat(), true).expect("right");
        assert_eq!((send.segment_size, send.ttl, send.tos), (Some(1000), Some(9), Some(4)));
        assert_eq!(send.from, Some([192, 0, 2, 7].into()));
        let default = cmsg(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &(-1_i32).to_ne_bytes());
        assert_eq!(parsed(&default, false), Ok(SendTo::default()));
        assert_eq!(parsed(&[7; HEADER - 1], true), Ok(SendTo::default()), "too short for any");
    }

    #[test]
    fn wrong_control_messages_are_refused() {
        let short = cmsg(libc::SOL_UDP, libc::UDP_SEGMENT, &[1]);
        let int = cmsg(libc::SOL_UDP, libc::UDP_SEGMENT, &1000_i32.to_ne_bytes());
        let unknown = cmsg(libc::SOL_UDP, 99, &[0; 4]);
        let zero = cmsg(libc::IPPROTO_IP, libc::IP_TTL, &[0; 4]);
        let large = cmsg(libc::IPPROTO_IP, libc::IP_TOS, &256_i32.to_ne_bytes());
        let pktinfo = cmsg(libc::IPPROTO_IP, libc::IP_PKTINFO, &[0; 11]);
        for wrong in [short, int, unknown, zero, large, pktinfo] {
            assert_eq!(parsed(&wrong, true).err(), Some(Errno::INVAL));
        }
        for len in [0, 15, 33, usize::MAX] {
            let mut bytes = cmsg(libc::IPPROTO_IP, libc::IP_TTL, &[1; 4]);
            bytes[..8].copy_from_slice(&len.to_ne_bytes());
            bytes.truncate(32);
            assert_eq!(parsed(&bytes, true).err(), Some(Errno::INVAL), "{len}");
        }
        let elsewhere = cmsg(libc::IPPROTO_IP, libc::IP_PKTINFO, &[9; 12]);
        assert_eq!(parsed(&elsewhere, true).err(), Some(Errno(libc::ENODEV)));
    }
}
