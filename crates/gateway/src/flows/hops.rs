//! Maps hop limits and ICMP errors between the program and the host's sockets.
//!
//! The gateway is one hop: packets of the program leave with a hop limit one lower, so that a probe
//! meant for the n-th router expires there. The router's error arrives in the error queue of the
//! host's socket, and is passed on in the router's name.

use std::num::NonZeroU8;
use towpath_io::socket::{ErrorKind, SocketErrorEvent};
use towpath_net::stack::{Report, Unreachable};

/// The hop limit of programs that do not set one. It is the host's default too, so such packets
/// leave with the host's own.
const HOPS_DEFAULT: u8 = 64;

/// Returns the hop limit for the packet on the host's side; `None` for the host's own.
pub(super) fn hops_left(ttl: u8) -> Option<NonZeroU8> {
    if ttl == HOPS_DEFAULT { None } else { NonZeroU8::new(ttl.saturating_sub(1)) }
}

/// Translates an error from the host into a report to the program; `None` if there is none to make.
pub(super) fn report(error: &SocketErrorEvent) -> Option<Report<'static>> {
    let why = match error.kind {
        ErrorKind::PortUnreachable => Unreachable::Port,
        ErrorKind::HostUnreachable => Unreachable::Host,
        ErrorKind::NetUnreachable => Unreachable::Network,
        ErrorKind::Unreachable => Unreachable::Because(error.code),
        ErrorKind::TimeExceeded => Unreachable::Expired(error.code),
        ErrorKind::MessageTooBig { mtu } => {
            Unreachable::TooBig(u16::try_from(mtu).unwrap_or(u16::MAX))
        }
        ErrorKind::Other => return None,
    };
    Some(Report { why, from: error.offender, data: &[] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateway_is_one_hop() {
        let left = |ttl| hops_left(ttl).map(NonZeroU8::get);
        assert_eq!([left(64), left(2), left(255), left(63)], [None, Some(1), Some(254), Some(62)]);
        assert_eq!([left(1), left(0)], [None, None], "the stack has expired these");
    }
}
