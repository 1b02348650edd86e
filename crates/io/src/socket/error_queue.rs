//! The error queue of datagram sockets: ICMP errors that datagrams caused.
//!
//! Reading an entry never blocks and never fails; without an entry there is no event.
//! Specification: `ip(7)`, `IP_RECVERR`; the codes are those of RFC 792 and RFC 4443.

use super::message::{ADDRESS_BYTES, Control, array, control_messages, decode_address};
use crate::sys;
use rustix::fd::BorrowedFd;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};

/// What happened to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// No socket is bound to the port.
    PortUnreachable,
    /// The host cannot be reached.
    HostUnreachable,
    /// The network cannot be reached.
    NetUnreachable,
    /// The datagram exceeds the path MTU and may not be fragmented.
    MessageTooBig {
        /// Largest packet that passes, in bytes; 0 if unknown.
        mtu: u32,
    },
    /// The hop limit reached zero.
    TimeExceeded,
    /// Unreachable for another reason; see `code`.
    Unreachable,
    /// Another error; see `icmp_type` and `code`.
    Other,
}

/// One entry of an error queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketErrorEvent {
    /// What happened.
    pub kind: ErrorKind,
    /// ICMP type; 0 if this host itself caused the error.
    pub icmp_type: u8,
    /// ICMP code; 0 if this host itself caused the error.
    pub code: u8,
    /// Destination of the datagram.
    pub to: Option<SocketAddr>,
    /// Sender of the ICMP error, if it was one.
    pub offender: Option<IpAddr>,
    /// The start of the datagram's payload, as far as the error quotes it.
    pub quote: Quote,
}

/// Most bytes kept of a quoted datagram: the least that IPv4 routers quote, and what programs put
/// into probes to recognise them.
const QUOTE_BYTES_MAX: usize = 64;

/// The start of a datagram's payload; on a ping socket, of its ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quote {
    bytes: [u8; QUOTE_BYTES_MAX],
    len: usize,
}

impl Quote {
    const NONE: Self = Self { bytes: [0; QUOTE_BYTES_MAX], len: 0 };

    /// The quoted bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Enables the error queue.
pub(super) fn enable(fd: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    let (level, name) = if v6 {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    } else {
        (libc::IPPROTO_IP, libc::IP_RECVERR)
    };
    super::set_int(fd, level, name, 1)
}

/// Takes the oldest entry, if there is one.
pub(super) fn take(fd: BorrowedFd<'_>) -> Option<SocketErrorEvent> {
    let mut address = [0; ADDRESS_BYTES];
    let mut control = Control::new();
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    let mut quote = Quote::NONE;
    let slices = &mut [IoSliceMut::new(&mut quote.bytes)];
    let received = sys::receive_message(fd, slices, &mut address, &mut control.0, flags).ok()?;
    quote.len = received.bytes.min(QUOTE_BYTES_MAX);
    let to = decode_address(&address[..received.address_len]);
    Some(SocketErrorEvent { quote, ..event(to, &control.0[..received.control_len]) })
}

/// Decodes the entry that `control` messages carry, for a datagram sent to `to`.
pub(super) fn event(to: Option<SocketAddr>, control: &[u8]) -> SocketErrorEvent {
    let mut event = SocketErrorEvent {
        kind: ErrorKind::Other,
        icmp_type: 0,
        code: 0,
        to,
        offender: None,
        quote: Quote::NONE,
    };
    for message in control_messages(control) {
        let ours = (message.level, message.kind) == (libc::IPPROTO_IP, libc::IP_RECVERR)
            || (message.level, message.kind) == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
        if ours {
            decode(message.data, &mut event);
        }
    }
    event
}

/// Decodes a `sock_extended_err` and the offender's address after it.
fn decode(data: &[u8], event: &mut SocketErrorEvent) -> Option<()> {
    let errno = i32::from_ne_bytes(array(data, 0)?);
    let [origin, icmp_type, code, _] = array(data, 4)?;
    let info = u32::from_ne_bytes(array(data, 8)?);
    (event.icmp_type, event.code) = (icmp_type, code);
    event.kind = match (origin, icmp_type, code) {
        // RFC 792.
        (libc::SO_EE_ORIGIN_ICMP, 3, 0) => ErrorKind::NetUnreachable,
        (libc::SO_EE_ORIGIN_ICMP, 3, 1) => ErrorKind::HostUnreachable,
        (libc::SO_EE_ORIGIN_ICMP, 3, 3) => ErrorKind::PortUnreachable,
        (libc::SO_EE_ORIGIN_ICMP, 3, 4) => ErrorKind::MessageTooBig { mtu: info },
        (libc::SO_EE_ORIGIN_ICMP, 3, _) => ErrorKind::Unreachable,
        (libc::SO_EE_ORIGIN_ICMP, 11, _) => ErrorKind::TimeExceeded,
        // RFC 4443.
        (libc::SO_EE_ORIGIN_ICMP6, 1, 0) => ErrorKind::NetUnreachable,
        (libc::SO_EE_ORIGIN_ICMP6, 1, 3) => ErrorKind::HostUnreachable,
        (libc::SO_EE_ORIGIN_ICMP6, 1, 4) => ErrorKind::PortUnreachable,
        (libc::SO_EE_ORIGIN_ICMP6, 1, _) => ErrorKind::Unreachable,
        (libc::SO_EE_ORIGIN_ICMP6, 2, _) => ErrorKind::MessageTooBig { mtu: info },
        (libc::SO_EE_ORIGIN_ICMP6, 3, _) => ErrorKind::TimeExceeded,
        (libc::SO_EE_ORIGIN_LOCAL, ..) => match errno {
            libc::EMSGSIZE => ErrorKind::MessageTooBig { mtu: info },
            libc::EHOSTUNREACH => ErrorKind::HostUnreachable,
            libc::ENETUNREACH => ErrorKind::NetUnreachable,
            _ => ErrorKind::Other,
        },
        _ => ErrorKind::Other,
    };
    if origin != libc::SO_EE_ORIGIN_LOCAL {
        event.offender = decode_address(data.get(16..)?).map(|address| address.ip());
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(errno: i32, origin: u8, icmp_type: u8, code: u8, info: u32) -> ErrorKind {
        let mut data = Vec::from((errno as u32).to_ne_bytes());
        data.extend([origin, icmp_type, code, 0]);
        data.extend(info.to_ne_bytes());
        data.extend([0; 4]);
        let mut event = SocketErrorEvent {
            kind: ErrorKind::Other,
            icmp_type: 0,
            code: 0,
            to: None,
            offender: None,
            quote: Quote::NONE,
        };
        decode(&data, &mut event);
        for cut in 0..data.len() {
            // Goal: a short entry is not read past its end.
            let mut short = event;
            decode(&data[..cut], &mut short);
        }
        assert_eq!((event.icmp_type, event.code), (icmp_type, code));
        event.kind
    }

    #[test]
    fn each_icmp_error_is_distinguished() {
        let (v4, v6) = (libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6);
        assert_eq!(decoded(111, v4, 3, 3, 0), ErrorKind::PortUnreachable);
        assert_eq!(decoded(113, v4, 3, 1, 0), ErrorKind::HostUnreachable);
        assert_eq!(decoded(101, v4, 3, 0, 0), ErrorKind::NetUnreachable);
        assert_eq!(decoded(90, v4, 3, 4, 1280), ErrorKind::MessageTooBig { mtu: 1280 });
        assert_eq!(decoded(113, v4, 11, 0, 0), ErrorKind::TimeExceeded);
        assert_eq!(decoded(111, v4, 3, 13, 0), ErrorKind::Unreachable);
        assert_eq!(decoded(111, v4, 12, 0, 0), ErrorKind::Other);
        assert_eq!(decoded(13, v6, 1, 1, 0), ErrorKind::Unreachable);
        assert_eq!(decoded(111, v6, 1, 4, 0), ErrorKind::PortUnreachable);
        assert_eq!(decoded(90, v6, 2, 0, 1400), ErrorKind::MessageTooBig { mtu: 1400 });
        assert_eq!(decoded(113, v6, 3, 0, 0), ErrorKind::TimeExceeded);
        let local = decoded(90, libc::SO_EE_ORIGIN_LOCAL, 0, 0, 1500);
        assert_eq!(local, ErrorKind::MessageTooBig { mtu: 1500 });
    }
}
