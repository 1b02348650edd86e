//! Multicast options (`ip(7)`, `ipv6(7)`), with the checks that Linux makes and in its order.

use super::datagram::or_default;
use super::int;
use crate::errno::{Errno, Outcome};
use crate::instance::State;
use std::net::{IpAddr, Ipv4Addr};

/// The index of the only interface.
const INTERFACE: u32 = 1;
/// `IP_MULTICAST_ALL` and `IPV6_MULTICAST_ALL` of `linux/in.h` and `linux/in6.h`.
const MULTICAST_ALL_V4: i32 = 49;
const MULTICAST_ALL_V6: i32 = 29;
/// Linux's error for an interface that does not exist.
const NO_DEVICE: Errno = Errno(libc::ENODEV);
/// Default of `IP_MULTICAST_TTL` and `IPV6_MULTICAST_HOPS`.
const TTL_DEFAULT: u8 = 1;

/// A group and an interface, from a `struct ip_mreq`, `ip_mreqn` or `ipv6_mreq`.
struct Membership {
    group: IpAddr,
    /// Address of the interface; unspecified for any.
    address: Ipv4Addr,
    /// Index of the interface; zero for any.
    index: u32,
}

impl Membership {
    /// Parses a `struct ip_mreqn`, or the shorter `struct ip_mreq`.
    fn v4(value: &[u8]) -> Outcome<Self> {
        let (group, rest) = value.split_first_chunk::<4>().ok_or(Errno::INVAL)?;
        let (address, rest) = rest.split_first_chunk::<4>().ok_or(Errno::INVAL)?;
        let index = rest.first_chunk::<4>().map_or(0, |index| u32::from_ne_bytes(*index));
        Ok(Self { group: IpAddr::from(*group), address: Ipv4Addr::from(*address), index })
    }

    /// Parses a `struct ipv6_mreq`.
    fn v6(value: &[u8]) -> Outcome<Self> {
        let (group, rest) = value.split_first_chunk::<16>().ok_or(Errno::INVAL)?;
        let index = u32::from_ne_bytes(*rest.first_chunk::<4>().ok_or(Errno::INVAL)?);
        let group = IpAddr::from(*group);
        Ok(Self { group, address: Ipv4Addr::UNSPECIFIED, index })
    }

    /// True if the interface is the only one.
    fn is_ours(&self, state: &State) -> bool {
        match self.index {
            0 => self.address.is_unspecified() || state.is_local(self.address),
            index => index == INTERFACE,
        }
    }
}

impl State {
    fn is_local(&self, address: Ipv4Addr) -> bool {
        self.engine.protocols.stack().is_local(address.into())
    }

    /// Sets an option. `None` if it is not a multicast option.
    pub(super) fn set_multicast_option(
        &mut self,
        fd: i32,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Option<Outcome<()>> {
        let file = self.files.socket(fd).ok()?;
        let (is_stream, v6) = (!file.datagram, file.domain == libc::AF_INET6);
        let set = match (level, name) {
            (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP | libc::IP_DROP_MEMBERSHIP) if is_stream => {
                Err(Errno(libc::EPROTO))
            }
            (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP) => self.join(fd, Membership::v4(value)),
            (libc::IPPROTO_IP, libc::IP_DROP_MEMBERSHIP) => self.leave(fd, Membership::v4(value)),
            (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL | libc::IP_MULTICAST_IF) if is_stream => {
                Err(Errno::INVAL)
            }
            (libc::IPPROTO_IP, libc::IP_MULTICAST_IF) => self.set_interface(fd, value),
            (
                libc::IPPROTO_IP,
                libc::IP_MULTICAST_TTL | libc::IP_MULTICAST_LOOP | MULTICAST_ALL_V4,
            ) => {
                let number = value.first().map(|byte| i32::from(*byte)).ok_or(Errno::INVAL);
                number.and_then(|byte| self.set_number_v4(fd, name, int(value).unwrap_or(byte)))
            }
            (libc::IPPROTO_IPV6, _) if !v6 => return None,
            (libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP | libc::IPV6_DROP_MEMBERSHIP) => {
                match Membership::v6(value) {
                    Ok(_) if is_stream => Err(Errno(libc::EPROTO)),
                    given if name == libc::IPV6_ADD_MEMBERSHIP => self.join(fd, given),
                    given => self.leave(fd, given),
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS | libc::IPV6_MULTICAST_IF)
                if is_stream =>
            {
                Err(Errno(libc::ENOPROTOOPT))
            }
            (
                libc::IPPROTO_IPV6,
                libc::IPV6_MULTICAST_HOPS
                | libc::IPV6_MULTICAST_LOOP
                | libc::IPV6_MULTICAST_IF
                | MULTICAST_ALL_V6,
            ) => int(value).and_then(|number| self.set_number_v6(fd, name, number)),
            _ => return None,
        };
        Some(set)
    }

    fn join(&mut self, fd: i32, given: Outcome<Membership>) -> Outcome<()> {
        let (given, id, now) = (given?, self.id(fd)?, self.now());
        if given.group.is_multicast() && !given.is_ours(self) {
            return Err(NO_DEVICE);
        }
        Ok(self.engine.protocols.join_group(id, given.group, now)?)
    }

    fn leave(&mut self, fd: i32, given: Outcome<Membership>) -> Outcome<()> {
        let (given, id, now) = (given?, self.id(fd)?, self.now());
        let is_group = given.group.is_ipv4() || given.group.is_multicast();
        if is_group && !given.is_ours(self) {
            return Err(Errno(libc::EADDRNOTAVAIL));
        }
        Ok(self.engine.protocols.leave_group(id, given.group, now)?)
    }

    /// Sets `IP_MULTICAST_IF` from a `struct ip_mreqn`, `ip_mreq` or `in_addr`.
    fn set_interface(&mut self, fd: i32, value: &[u8]) -> Outcome<()> {
        let given = match Membership::v4(value) {
            Ok(given) => given,
            Err(_) => {
                let address = Ipv4Addr::from(*value.first_chunk::<4>().ok_or(Errno::INVAL)?);
                Membership { group: Ipv4Addr::UNSPECIFIED.into(), address, index: 0 }
            }
        };
        if !given.is_ours(self) {
            return Err(Errno(libc::EADDRNOTAVAIL));
        }
        let source = Some(given.address).filter(|address| self.is_local(*address));
        self.change(fd, |options| options.datagram.multicast.source = source)
    }

    fn set_number_v4(&mut self, fd: i32, name: i32, number: i32) -> Outcome<()> {
        let ttl = or_default(number, 0);
        let on = number != 0;
        match name {
            libc::IP_MULTICAST_TTL => {
                let ttl = ttl?.unwrap_or(TTL_DEFAULT);
                self.change(fd, |options| options.datagram.multicast.ttl = ttl)
            }
            libc::IP_MULTICAST_LOOP => {
                self.change(fd, |options| options.datagram.multicast.loops_v4 = on)
            }
            _ if number == i32::from(on) => {
                self.change(fd, |options| options.datagram.multicast.all_v4 = on)
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn set_number_v6(&mut self, fd: i32, name: i32, number: i32) -> Outcome<()> {
        let limit = or_default(number, 0);
        let on = number != 0;
        match name {
            libc::IPV6_MULTICAST_HOPS => {
                let limit = limit?.unwrap_or(TTL_DEFAULT);
                self.change(fd, |options| options.datagram.multicast.hop_limit = limit)
            }
            libc::IPV6_MULTICAST_IF => {
                let index = u32::try_from(number).ok().filter(|index| *index <= INTERFACE);
                let index = index.ok_or(NO_DEVICE)?;
                self.change(fd, |options| options.datagram.multicast.interface_v6 = index)
            }
            libc::IPV6_MULTICAST_LOOP if number != i32::from(on) => Err(Errno::INVAL),
            libc::IPV6_MULTICAST_LOOP => {
                self.change(fd, |options| options.datagram.multicast.loops_v6 = on)
            }
            _ => self.change(fd, |options| options.datagram.multicast.all_v6 = on),
        }
    }

    /// The value of an option. `None` if it is not a multicast option.
    pub(super) fn multicast_option(
        &self,
        fd: i32,
        level: i32,
        name: i32,
    ) -> Option<Outcome<Vec<u8>>> {
        let v6 = self.files.socket(fd).ok()?.domain == libc::AF_INET6;
        let options = self.engine.protocols.options(self.id(fd).ok()?).ok()?;
        let multicast = &options.datagram.multicast;
        let number = match (level, name) {
            (libc::IPPROTO_IP, libc::IP_MULTICAST_IF) => {
                let source = multicast.source.unwrap_or(Ipv4Addr::UNSPECIFIED);
                return Some(Ok(source.octets().to_vec()));
            }
            (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL) => i32::from(multicast.ttl),
            (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP) => i32::from(multicast.loops_v4),
            (libc::IPPROTO_IP, MULTICAST_ALL_V4) => i32::from(multicast.all_v4),
            (libc::IPPROTO_IPV6, _) if !v6 => return None,
            (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF) => multicast.interface_v6 as i32,
            (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS) => i32::from(multicast.hop_limit),
            (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP) => i32::from(multicast.loops_v6),
            (libc::IPPROTO_IPV6, MULTICAST_ALL_V6) => i32::from(multicast.all_v6),
            _ => return None,
        };
        Some(Ok(number.to_ne_bytes().to_vec()))
    }
}
