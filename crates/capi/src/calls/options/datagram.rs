//! Options of datagram sockets that other sockets do not have, or not in the same way.

use super::{fragment_size, int};
use crate::errno::{Errno, Outcome};
use crate::instance::State;
use crate::table::ControlWanted;
use towpath::layers::net::socket::{Family, RECEIVE_BUFFER_DEFAULT, SEND_BUFFER_DEFAULT};
use towpath::layers::net::stack::TTL_DEFAULT;

/// Linux's error for an option that a protocol does not have.
const UNKNOWN: Errno = Errno(libc::ENOPROTOOPT);

/// A number; for options of IPv4 one byte suffices.
fn number(level: i32, value: &[u8]) -> Outcome<i32> {
    match *value {
        [byte] if level == libc::IPPROTO_IP => Ok(i32::from(byte)),
        _ => int(value),
    }
}

/// The field of [`ControlWanted`] that an option switches.
fn switch(wanted: &mut ControlWanted, level: i32, name: i32) -> Option<&mut bool> {
    Some(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => &mut wanted.dropped,
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => &mut wanted.packet_v4,
        (libc::IPPROTO_IP, libc::IP_RECVTTL) => &mut wanted.ttl,
        (libc::IPPROTO_IP, libc::IP_RECVTOS) => &mut wanted.tos,
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO) => &mut wanted.packet_v6,
        (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT) => &mut wanted.hop_limit,
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS) => &mut wanted.traffic_class,
        _ => return None,
    })
}

impl State {
    /// Sets an option. `None` if it is one of all sockets.
    pub(super) fn set_datagram_option(
        &mut self,
        fd: i32,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Option<Outcome<()>> {
        if !self.files.socket(fd).is_ok_and(|file| file.datagram) {
            return None;
        }
        if let Some(done) = self.set_packet_option(fd, (level, name), value) {
            return Some(done);
        }
        if let Err(error) = self.check_level(fd, level) {
            return Some(Err(error));
        }
        if let Some(done) = self.set_raw_option(fd, level, name, value) {
            return Some(done);
        }
        if let Some(done) = self.set_multicast_option(fd, level, name, value) {
            return Some(done);
        }
        let number = match number(level, value) {
            Ok(number) => number,
            Err(error) => return (level != libc::SOL_SOCKET).then_some(Err(error)),
        };
        self.set_datagram_number(fd, level, name, number).transpose()
    }

    /// Checks whether a datagram socket supports a level.
    fn check_level(&self, fd: i32, level: i32) -> Outcome<()> {
        let v6 = self.files.socket(fd)?.domain == libc::AF_INET6;
        let raw = self.engine.protocols.is_raw(self.id(fd)?);
        match level {
            libc::IPPROTO_TCP => Err(UNKNOWN),
            libc::SOL_UDP if raw => Err(UNKNOWN),
            libc::IPPROTO_IPV6 if !v6 => Err(UNKNOWN),
            _ => Ok(()),
        }
    }

    fn set_datagram_number(
        &mut self,
        fd: i32,
        level: i32,
        name: i32,
        number: i32,
    ) -> Outcome<Option<()>> {
        let on = number != 0;
        if let Some(option) = switch(&mut self.files.socket_mut(fd)?.control_wanted, level, name) {
            *option = on;
            return Ok(Some(()));
        }
        match (level, name) {
            (libc::SOL_UDP, libc::UDP_SEGMENT) => {
                let size = u16::try_from(number).map_err(|_| Errno::INVAL)?;
                self.change(fd, |options| options.datagram.segment_size = size)?;
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                self.change(fd, |options| options.datagram.coalesced = on)?;
            }
            (libc::SOL_UDP, libc::UDP_CORK) => {
                self.change(fd, |options| options.datagram.cork = on)?;
                let id = self.id(fd)?;
                if !on {
                    // As in Linux, errors of this send are not reported.
                    let _ = self.with(|sockets, cx| sockets.push_datagram(id, cx));
                }
            }
            (libc::SOL_UDP, _) => return Err(UNKNOWN),
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => {
                self.change(fd, |options| options.datagram.broadcast = on)?;
            }
            (libc::IPPROTO_IP, libc::IP_RECVERR) => {
                let id = self.id(fd)?;
                self.engine.protocols.set_receive_errors(id, Family::V4, on)?;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                let id = self.id(fd)?;
                self.engine.protocols.set_receive_errors(id, Family::V6, on)?;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) => {
                let ttl = or_default(number, 1)?;
                self.change(fd, |options| options.ttl = ttl)?;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
                let limit = or_default(number, 0)?;
                self.change(fd, |options| options.hop_limit = limit)?;
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                self.change(fd, |options| options.tos = number as u8)?;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let class = or_default(number, 0)?.unwrap_or(0);
                self.change(fd, |options| options.traffic_class = class)?;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG) => {
                self.change(fd, |options| options.datagram.dont_fragment_v6 = on)?;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_MTU) => {
                let size = fragment_size(number)?;
                self.change(fd, |options| options.datagram.fragment_size_v6 = size)?;
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    /// The value of an option. `None` if it is one of all sockets.
    pub(super) fn datagram_option(
        &mut self,
        fd: i32,
        level: i32,
        name: i32,
    ) -> Option<Outcome<Vec<u8>>> {
        if !self.files.socket(fd).is_ok_and(|file| file.datagram) {
            return None;
        }
        if let Some(outcome) = self.packet_option(fd, level, name) {
            return Some(outcome);
        }
        if let Some(outcome) = self.raw_option(fd, level, name) {
            return Some(outcome);
        }
        let number = self.check_level(fd, level).and_then(|()| self.number_of(fd, level, name));
        Some(number.transpose()?.map(|number: i32| number.to_ne_bytes().to_vec()))
    }

    fn number_of(&mut self, fd: i32, level: i32, name: i32) -> Outcome<Option<i32>> {
        if let Some(option) = switch(&mut self.files.socket_mut(fd)?.control_wanted, level, name) {
            return Ok(Some(i32::from(*option)));
        }
        let id = self.id(fd)?;
        let options = self.engine.protocols.options(id)?;
        let own = &options.datagram;
        let ttl = |ttl: Option<u8>| i32::from(ttl.unwrap_or(TTL_DEFAULT));
        Ok(Some(match (level, name) {
            (libc::SOL_UDP, libc::UDP_SEGMENT) => i32::from(own.segment_size),
            (libc::SOL_UDP, libc::UDP_GRO) => i32::from(own.coalesced),
            (libc::SOL_UDP, libc::UDP_CORK) => i32::from(own.cork),
            (libc::SOL_UDP, _) => return Err(UNKNOWN),
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_DGRAM,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_UDP,
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => i32::from(own.broadcast),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                options.send_buffer.unwrap_or(SEND_BUFFER_DEFAULT) as i32
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                options.receive_buffer.unwrap_or(RECEIVE_BUFFER_DEFAULT) as i32
            }
            (libc::IPPROTO_IP, libc::IP_RECVERR) => i32::from(own.receive_errors_v4),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => i32::from(own.receive_errors_v6),
            (libc::IPPROTO_IP, libc::IP_TTL) => ttl(options.ttl),
            (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => ttl(options.hop_limit),
            (libc::IPPROTO_IP, libc::IP_MTU) | (libc::IPPROTO_IPV6, libc::IPV6_MTU) => {
                let remote = self.engine.protocols.remote(id)?;
                let remote = remote.ip().to_canonical();
                i32::from(self.engine.protocols.stack().path(remote).mtu)
            }
            (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG) => i32::from(own.dont_fragment_v6),
            _ => return Ok(None),
        }))
    }
}

/// A number that fits a byte and is at least `least`. `None` for -1, which selects the default.
pub(super) fn or_default(number: i32, least: u8) -> Outcome<Option<u8>> {
    if number == -1 {
        return Ok(None);
    }
    let byte = u8::try_from(number).ok().filter(|byte| *byte >= least);
    byte.map(Some).ok_or(Errno::INVAL)
}
