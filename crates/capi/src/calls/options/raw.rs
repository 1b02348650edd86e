//! Options of raw IP sockets (`raw(7)`, and `ipv6(7)` for ICMPv6).

use super::int;
use crate::errno::{Errno, Outcome};
use crate::instance::State;
use towpath::layers::net::socket::RawOptions;
use towpath::layers::net::wire::Protocol;

/// `SOL_RAW` of `linux/socket.h`.
const SOL_RAW: i32 = 255;
/// `ICMP_FILTER` of `linux/icmp.h`: types of ICMP messages that are not received.
const ICMP_FILTER: i32 = 1;
/// `ICMPV6_FILTER` of `linux/icmpv6.h`.
const ICMPV6_FILTER: i32 = 1;
/// `IPV6_HDRINCL`, which is not supported.
const IPV6_HDRINCL: i32 = 36;

impl State {
    /// Sets an option that only raw sockets have. `None` for other options or other sockets.
    pub(super) fn set_raw_option(
        &mut self,
        fd: i32,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Option<Outcome<()>> {
        let id = self.id(fd).ok()?;
        let raw = *self.engine.protocols.raw_options(id)?;
        let changed = self.changed_raw(fd, raw, (level, name), value).transpose()?;
        Some(changed.and_then(|changed| {
            Ok(self.engine.protocols.set_raw_options(id, |options| *options = changed)?)
        }))
    }

    fn changed_raw(
        &self,
        fd: i32,
        mut raw: RawOptions,
        option: (i32, i32),
        value: &[u8],
    ) -> Outcome<Option<RawOptions>> {
        let v6 = self.files.socket(fd)?.domain == libc::AF_INET6;
        match option {
            (libc::IPPROTO_IP, libc::IP_HDRINCL) if !v6 => {
                raw.header_included = match *value {
                    [byte] => byte != 0,
                    _ => int(value)? != 0,
                };
            }
            (libc::IPPROTO_IPV6, IPV6_HDRINCL) => return Err(Errno(libc::ENOPROTOOPT)),
            (SOL_RAW | libc::IPPROTO_IPV6, libc::IPV6_CHECKSUM) if v6 => {
                let at = int(value)?;
                // RFC 3542 §3.1: the offset of the ICMPv6 checksum is fixed.
                if raw.protocol == Protocol::ICMPV6 {
                    return Err(Errno::INVAL);
                }
                let place = u16::try_from(at).ok().filter(|at| at % 2 == 0);
                if at >= 0 && place.is_none() {
                    return Err(Errno::INVAL);
                }
                raw.checksum_at = place;
            }
            (SOL_RAW, ICMP_FILTER) if !v6 => {
                if raw.protocol != Protocol::ICMP {
                    return Err(Errno(libc::EOPNOTSUPP));
                }
                fill(&mut raw.blocked[..1], value);
            }
            (libc::IPPROTO_ICMPV6, ICMPV6_FILTER) if v6 && raw.protocol == Protocol::ICMPV6 => {
                fill(&mut raw.blocked, value);
            }
            (SOL_RAW | libc::IPPROTO_ICMPV6, _) => return Err(Errno(libc::ENOPROTOOPT)),
            _ => return Ok(None),
        }
        Ok(Some(raw))
    }

    /// The value of an option that only raw sockets have. `None` for other options or other
    /// sockets.
    pub(super) fn raw_option(
        &mut self,
        fd: i32,
        level: i32,
        name: i32,
    ) -> Option<Outcome<Vec<u8>>> {
        let raw = self.engine.protocols.raw_options(self.id(fd).ok()?)?;
        let v6 = self.files.socket(fd).ok()?.domain == libc::AF_INET6;
        let words = |count: usize| {
            raw.blocked[..count].iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>()
        };
        let number = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_RAW,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => i32::from(raw.protocol.0),
            (libc::IPPROTO_IP, libc::IP_HDRINCL) if !v6 => i32::from(raw.header_included),
            (SOL_RAW | libc::IPPROTO_IPV6, libc::IPV6_CHECKSUM) if v6 => {
                raw.checksum_at.map_or(-1, i32::from)
            }
            (SOL_RAW, ICMP_FILTER) if !v6 && raw.protocol == Protocol::ICMP => {
                return Some(Ok(words(1)));
            }
            (SOL_RAW, ICMP_FILTER) if !v6 => return Some(Err(Errno(libc::EOPNOTSUPP))),
            (libc::IPPROTO_ICMPV6, ICMPV6_FILTER) if raw.protocol == Protocol::ICMPV6 => {
                return Some(Ok(words(raw.blocked.len())));
            }
            (SOL_RAW | libc::IPPROTO_ICMPV6, _) => return Some(Err(Errno(libc::ENOPROTOOPT))),
            _ => return None,
        };
        Some(Ok(number.to_ne_bytes().to_vec()))
    }
}

/// Overwrites as much of a filter as `value` contains.
fn fill(words: &mut [u32], value: &[u8]) {
    for (word, bytes) in words.iter_mut().zip(value.chunks(4)) {
        let mut whole = word.to_ne_bytes();
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u32::from_ne_bytes(whole);
    }
}
