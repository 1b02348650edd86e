//! What becomes of hop limits and ICMP errors between the program and the host's sockets.
//!
//! The gateway is one hop: what the program sends leaves with one less, so that a probe that the
//! program means for the n-th router expires there. The router's error comes back by the error
//! queue of the host's socket and is passed on in the router's name.

use std::num::NonZeroU8;
use towpath_io::socket::{ErrorKind, SocketErrorEvent};
use towpath_net::stack::{Report, Unreachable};

/// The hop limit of programs that do not ask for one, which is the host's too: such packets leave
/// as the host sends its own.
const HOPS_DEFAULT: u8 = 64;

/// The hop limit that a packet is to leave with; `None` for the host's own.
pub(super) fn hops_left(ttl: u8) -> Option<NonZeroU8> {
    if ttl == HOPS_DEFAULT { None } else { NonZeroU8::new(ttl.saturating_sub(1)) }
}

/// What the program is told of an error that came back; `None` if there is nothing to tell.
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
        assert_eq!([left(1), left(0)], [None, None], "these expire before they come here");
    }
}
