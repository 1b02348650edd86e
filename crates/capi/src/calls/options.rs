//! `getsockopt`, `setsockopt` and `ioctl`, with Linux's numbers.

mod datagram;
mod multicast;
mod raw;
mod tcp_info;
mod timers;

use super::{choosing, lending};
use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::memory::control::TOWPATH_SO_ZEROCOPY_TERM;
use towpath::layers::net::pmtu_mode::PathMtu;
use towpath::layers::net::socket::{Linger, Options, Timestamping};
use towpath::layers::net::stack::TTL_DEFAULT;
use towpath::layers::net::tcp::State as TcpState;
use towpath::layers::net::tcp::congestion::Kind;
use towpath::layers::net::tcp::fastopen::{CLIENT, FastOpenKeys, KEY_LEN};
use towpath::layers::net::time::Duration;

/// The `int` in an option's value.
fn int(value: &[u8]) -> Outcome<i32> {
    let bytes = value.first_chunk::<4>().ok_or(Errno::INVAL)?;
    Ok(i32::from_ne_bytes(*bytes))
}

/// A timeout from a `struct timeval`; zero is none.
fn timeval(value: &[u8]) -> Outcome<Option<Duration>> {
    let (seconds, rest) = value.split_first_chunk::<8>().ok_or(Errno::INVAL)?;
    let micros = rest.first_chunk::<8>().ok_or(Errno::INVAL)?;
    let (seconds, micros) = (i64::from_ne_bytes(*seconds), i64::from_ne_bytes(*micros));
    let micros = u32::try_from(micros).ok().filter(|micros| *micros < 1_000_000);
    let micros = micros.ok_or(Errno(libc::EDOM))?;
    let seconds = u64::try_from(seconds).unwrap_or(0);
    let timeout = Duration::from_secs(seconds) + Duration::from_micros(u64::from(micros));
    Ok(Some(timeout).filter(|timeout| !timeout.is_zero()))
}

fn timeval_bytes(timeout: Option<Duration>) -> Vec<u8> {
    let timeout = timeout.unwrap_or_default();
    let mut bytes = (timeout.as_secs() as i64).to_ne_bytes().to_vec();
    bytes.extend(i64::from(timeout.subsec_micros()).to_ne_bytes());
    bytes
}

/// The size of a buffer as Linux stores it: twice the requested size, within bounds.
fn doubled(asked: i32, least: u32) -> u32 {
    (u32::try_from(asked).unwrap_or(u32::MAX).min(BUFFER_MAX) * 2).max(least)
}

/// Largest buffer that a program can request (sysctl `net.core.wmem_max` in Linux).
const BUFFER_MAX: u32 = 4 << 20;
/// Smallest send buffer, as in Linux.
const SEND_BUFFER_LEAST: u32 = 4608;
/// Smallest receive buffer, as in Linux.
const RECEIVE_BUFFER_LEAST: u32 = 2304;
/// Smallest `TCP_MAXSEG`, as in Linux.
const MAXSEG_LEAST: u16 = 88;
/// Largest `TCP_MAXSEG`, as in Linux.
const MAXSEG_MOST: u16 = 32_767;
/// Value of `TCP_MAXSEG` before there is a connection (RFC 9293 §3.7.1).
const MAXSEG_DEFAULT: u16 = 536;
/// Bytes of the name of a congestion control, as in Linux.
const CONGESTION_NAME_LEN: usize = 16;
/// Highest priority that needs no privilege.
const PRIORITY_MAX: i32 = 6;
/// Smallest `IPV6_MTU` (RFC 8200 §5).
const IPV6_MTU_LEAST: i32 = 1280;
/// The ECN bits of `IP_TOS`, which a program cannot set on a stream.
const ECN_BITS: u8 = 3;
/// `SO_MEMINFO`, which not all headers of C libraries define.
const SO_MEMINFO: i32 = 55;

/// One or two keys of 16 bytes each.
fn fastopen_keys(value: &[u8]) -> Outcome<FastOpenKeys> {
    let key = |bytes: &[u8]| bytes.try_into().map_err(|_| Errno::INVAL);
    match value.len() {
        KEY_LEN => Ok(FastOpenKeys { primary: key(value)?, backup: None }),
        len if len == 2 * KEY_LEN => {
            let (primary, backup) = value.split_at(KEY_LEN);
            Ok(FastOpenKeys { primary: key(primary)?, backup: Some(key(backup)?) })
        }
        _ => Err(Errno::INVAL),
    }
}

impl Instance {
    /// Sets an option.
    pub fn set_option(&self, fd: i32, level: i32, name: i32, value: &[u8]) -> Outcome<()> {
        self.call(|state| {
            state.id(fd)?;
            if let Some(done) = state.set_datagram_option(fd, level, name, value) {
                return done;
            }
            if let Some(done) = state.set_multicast_option(fd, level, name, value) {
                return done;
            }
            match level {
                libc::SOL_SOCKET => state.set_socket_option(fd, name, value),
                libc::IPPROTO_TCP => state.set_tcp_option(fd, name, value),
                libc::IPPROTO_IP => state.set_ip_option(fd, name, value),
                libc::IPPROTO_IPV6 => state.set_ipv6_option(fd, name, value),
                _ => Err(Errno(libc::ENOPROTOOPT)),
            }
        })
    }

    /// The value of an option, truncated to `room` bytes.
    pub fn option(&self, fd: i32, level: i32, name: i32, room: usize) -> Outcome<Vec<u8>> {
        self.call(|state| {
            state.id(fd)?;
            let own = state.datagram_option(fd, level, name);
            let own = own.or_else(|| state.multicast_option(fd, level, name));
            let value = match level {
                _ if let Some(own) = own => own,
                libc::SOL_SOCKET => state.socket_option(fd, name),
                libc::IPPROTO_TCP => state.tcp_option(fd, name),
                libc::IPPROTO_IPV6 => state.ipv6_option(fd, name),
                libc::IPPROTO_IP => state.ip_option(fd, name),
                _ => Err(Errno(libc::EOPNOTSUPP)),
            };
            let mut value = value?;
            value.truncate(room);
            Ok(value)
        })
    }

    /// `ioctl` requests that return or set one number.
    pub fn ioctl(&self, fd: i32, request: u64, argument: i32) -> Outcome<i32> {
        let mut state = self.lock();
        let id = state.id(fd)?;
        match request {
            FIONBIO => {
                state.files.socket_mut(fd)?.nonblocking = argument != 0;
                Ok(argument)
            }
            FIONREAD => {
                if state.engine.protocols.is_listening(id) {
                    return Err(Errno::INVAL);
                }
                Ok(state.engine.protocols.available(id)? as i32)
            }
            SIOCATMARK => Ok(i32::from(state.engine.protocols.is_at_mark(id))),
            SIOCOUTQ | SIOCOUTQNSD => {
                if state.engine.protocols.is_listening(id) {
                    return Err(Errno::INVAL);
                }
                let count = state.connection(fd)?.map_or(0, |connection| match request {
                    SIOCOUTQ => connection.unacknowledged(),
                    _ => connection.unsent(),
                });
                Ok(count as i32)
            }
            _ => Err(Errno(libc::ENOTTY)),
        }
    }
}

/// `FIONBIO`: sets whether the descriptor blocks.
pub(crate) const FIONBIO: u64 = 0x5421;
/// `FIONREAD`, also `SIOCINQ`: bytes that can be received.
pub(crate) const FIONREAD: u64 = 0x541b;
/// `SIOCATMARK`: whether the next byte is urgent.
pub(crate) const SIOCATMARK: u64 = 0x8905;
/// `SIOCOUTQ`: bytes sent and not acknowledged.
pub(crate) const SIOCOUTQ: u64 = 0x5411;
/// `SIOCOUTQNSD`: bytes not sent yet.
pub(crate) const SIOCOUTQNSD: u64 = 0x894b;

impl State {
    fn change(&mut self, fd: i32, change: impl FnOnce(&mut Options)) -> Outcome<()> {
        let (id, now) = (self.id(fd)?, self.now());
        Ok(self.engine.protocols.set_options(id, now, change)?)
    }

    fn set_socket_option(&mut self, fd: i32, name: i32, value: &[u8]) -> Outcome<()> {
        match name {
            libc::SO_LINGER => {
                let (on, time) = (int(value)?, int(value.get(4..).unwrap_or_default())?);
                let linger = match (on, u64::try_from(time).unwrap_or(0)) {
                    (0, _) => Linger::Off,
                    (_, 0) => Linger::Reset,
                    (_, seconds) => Linger::Wait(Duration::from_secs(seconds)),
                };
                return self.change(fd, |options| options.linger = linger);
            }
            libc::SO_RCVTIMEO => {
                self.files.socket_mut(fd)?.receive_timeout = timeval(value)?;
                return Ok(());
            }
            libc::SO_SNDTIMEO => {
                self.files.socket_mut(fd)?.send_timeout = timeval(value)?;
                return Ok(());
            }
            libc::SO_MAX_PACING_RATE => {
                let rate = match value.first_chunk::<8>() {
                    Some(rate) => u64::from_ne_bytes(*rate),
                    None if int(value)? == -1 => u64::MAX,
                    None => u64::from(int(value)? as u32),
                };
                let rate = Some(rate).filter(|rate| *rate != u64::MAX);
                return self.change(fd, |options| options.max_pacing_rate = rate);
            }
            _ => {}
        }
        let number = int(value)?;
        if let Some(done) = self.set_lending_option(fd, name, number) {
            return done;
        }
        let on = number != 0;
        match name {
            libc::SO_TIMESTAMPING => {
                let id = self.id(fd)?;
                Ok(self.engine.protocols.set_timestamping(id, Timestamping(number as u32))?)
            }
            libc::SO_REUSEADDR => self.change(fd, |options| options.reuse_address = on),
            libc::SO_REUSEPORT => self.change(fd, |options| options.reuse_port = on),
            libc::SO_KEEPALIVE => self.change(fd, |options| options.keepalive = on),
            libc::SO_OOBINLINE => self.change(fd, |options| options.urgent_inline = on),
            libc::SO_RCVLOWAT => {
                let low_water = usize::try_from(number).unwrap_or(i32::MAX as usize).max(1);
                self.change(fd, |options| options.receive_low_water = low_water)
            }
            libc::SO_SNDBUF => {
                let bytes = doubled(number, SEND_BUFFER_LEAST);
                self.change(fd, |options| options.send_buffer = Some(bytes))
            }
            libc::SO_MARK => self.change(fd, |options| options.mark = number as u32),
            libc::SO_PRIORITY if (0..=PRIORITY_MAX).contains(&number) => {
                self.change(fd, |options| options.priority = number)
            }
            libc::SO_PRIORITY => Err(Errno(libc::EPERM)),
            libc::SO_RCVBUF => {
                let bytes = doubled(number, RECEIVE_BUFFER_LEAST);
                self.change(fd, |options| options.receive_buffer = Some(bytes))
            }
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    }

    /// Sets an option of sends that lend; `None` if it is none of these.
    fn set_lending_option(&mut self, fd: i32, name: i32, number: i32) -> Option<Outcome<()>> {
        let on = number != 0;
        Some(match name {
            // As in Linux, only 0 and 1 are valid.
            libc::SO_ZEROCOPY if (0..=1).contains(&number) => {
                self.change(fd, |options| options.zerocopy = on)
            }
            libc::SO_ZEROCOPY => Err(Errno::INVAL),
            TOWPATH_SO_ZEROCOPY_TERM => lending::term(number)
                .and_then(|term| self.change(fd, |options| options.lent_term = term)),
            lending::TOWPATH_SO_ZEROCOPY_PART => lending::part(number)
                .and_then(|part| self.change(fd, |options| options.lent_part = part)),
            choosing::TOWPATH_SO_ZEROCOPY_AUTO if (0..=1).contains(&number) => {
                self.change(fd, |options| options.lent_auto = on)
            }
            choosing::TOWPATH_SO_ZEROCOPY_AUTO => Err(Errno::INVAL),
            _ => return None,
        })
    }

    /// Sizes of the send buffer and the receive buffer, in bytes with overhead.
    fn buffers(&self, fd: i32) -> Outcome<(u32, u32)> {
        let options = self.engine.protocols.options(self.id(fd)?)?;
        let settings = self.engine.protocols.stack().tcp_settings();
        let current = self.connection(fd)?.map(|connection| connection.send_buffer());
        let send = current.or(options.send_buffer).unwrap_or(settings.send_buffer);
        let current = self.connection(fd)?.map(|connection| connection.receive_buffer());
        let receive = current.or(options.receive_buffer).unwrap_or(settings.receive_buffer);
        Ok((send, receive))
    }

    fn pacing_rate(&self, fd: i32) -> Outcome<Vec<u8>> {
        let rate = self.engine.protocols.options(self.id(fd)?)?.max_pacing_rate;
        Ok(rate.unwrap_or(u64::MAX).to_ne_bytes().to_vec())
    }

    /// `SO_MEMINFO`: nine numbers (`linux/sock_diag.h`); those without a meaning here are zero.
    fn memory_info(&self, fd: i32) -> Outcome<Vec<u8>> {
        let (send, receive) = self.buffers(fd)?;
        let id = self.id(fd)?;
        let held = self.engine.protocols.available(id).unwrap_or(0) as u32;
        let queued = self.connection(fd)?.map_or(0, |connection| connection.unacknowledged());
        let queued = queued as u32;
        let numbers = [held, receive, queued, send, 0, queued, 0, 0, 0];
        Ok(numbers.iter().flat_map(|number| number.to_ne_bytes()).collect())
    }

    fn socket_option(&mut self, fd: i32, name: i32) -> Outcome<Vec<u8>> {
        let id = self.id(fd)?;
        let file = self.files.socket(fd)?;
        let options = self.engine.protocols.options(id)?;
        let number = match name {
            libc::SO_ERROR => {
                self.engine.protocols.take_error(id)?.map_or(0, |error| error.errno())
            }
            libc::SO_MAX_PACING_RATE => return self.pacing_rate(fd),
            libc::SO_TYPE => libc::SOCK_STREAM,
            libc::SO_PROTOCOL => libc::IPPROTO_TCP,
            libc::SO_DOMAIN => file.domain,
            libc::SO_ACCEPTCONN => i32::from(self.engine.protocols.is_listening(id)),
            libc::SO_REUSEADDR => i32::from(options.reuse_address),
            libc::SO_ZEROCOPY => i32::from(options.zerocopy),
            TOWPATH_SO_ZEROCOPY_TERM => options.lent_term.map_or(0, |term| term.as_millis() as i32),
            lending::TOWPATH_SO_ZEROCOPY_PART => options.lent_part.unwrap_or(0) as i32,
            choosing::TOWPATH_SO_ZEROCOPY_AUTO => i32::from(options.lent_auto),
            libc::SO_REUSEPORT => i32::from(options.reuse_port),
            libc::SO_KEEPALIVE => i32::from(options.keepalive),
            libc::SO_OOBINLINE => i32::from(options.urgent_inline),
            libc::SO_MARK => options.mark as i32,
            libc::SO_PRIORITY => options.priority,
            libc::SO_RCVLOWAT => options.receive_low_water as i32,
            libc::SO_TIMESTAMPING => options.timestamping.0 as i32,
            libc::SO_SNDBUF => self.buffers(fd)?.0 as i32,
            libc::SO_RCVBUF => self.buffers(fd)?.1 as i32,
            SO_MEMINFO => return self.memory_info(fd),
            libc::SO_RCVTIMEO => return Ok(timeval_bytes(file.receive_timeout)),
            libc::SO_SNDTIMEO => return Ok(timeval_bytes(file.send_timeout)),
            libc::SO_LINGER => {
                let (on, seconds) = match options.linger {
                    Linger::Off => (0, 0),
                    Linger::Reset => (1, 0),
                    Linger::Wait(time) => (1, time.as_secs() as i32),
                };
                return Ok([i32::to_ne_bytes(on), i32::to_ne_bytes(seconds)].concat());
            }
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        };
        Ok(number.to_ne_bytes().to_vec())
    }

    fn set_tcp_option(&mut self, fd: i32, name: i32, value: &[u8]) -> Outcome<()> {
        match name {
            libc::TCP_FASTOPEN_KEY => {
                let keys = fastopen_keys(value)?;
                return self.change(fd, |options| options.fastopen_key = Some(keys));
            }
            libc::TCP_CONGESTION => {
                let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
                let kind = std::str::from_utf8(name).ok().and_then(Kind::from_name);
                let kind = kind.ok_or(Errno(libc::ENOENT))?;
                return self.change(fd, |options| options.congestion = Some(kind));
            }
            _ => {}
        }
        let number = int(value)?;
        let on = number != 0;
        match name {
            libc::TCP_MAXSEG => {
                let max = u16::try_from(number).ok();
                let max = max.filter(|max| *max == 0 || (MAXSEG_LEAST..=MAXSEG_MOST).contains(max));
                let max = max.ok_or(Errno::INVAL)?;
                self.change(fd, |options| options.max_segment = Some(max).filter(|max| *max > 0))
            }
            libc::TCP_QUICKACK => self.change(fd, |options| options.quickack = on),
            libc::TCP_CORK => self.change(fd, |options| options.cork = on),
            libc::TCP_NOTSENT_LOWAT => {
                self.change(fd, |options| options.notsent_lowat = number as u32)
            }
            libc::TCP_SYNCNT => {
                let count = u8::try_from(number).ok().filter(|count| (1..=127).contains(count));
                let count = count.ok_or(Errno::INVAL)?;
                self.change(fd, |options| options.syn_count = Some(count))
            }
            libc::TCP_DEFER_ACCEPT => self.change(fd, |options| options.set_defer_accept(number)),
            libc::TCP_NODELAY => {
                let (id, now) = (self.id(fd)?, self.now());
                Ok(self.engine.protocols.set_nodelay(id, on, now)?)
            }
            libc::TCP_INQ => {
                self.files.socket_mut(fd)?.reports_unread = on;
                Ok(())
            }
            libc::TCP_WINDOW_CLAMP
                if number == 0
                    && (self.connection(fd)?.is_some()
                        || self.engine.protocols.is_listening(self.id(fd)?)) =>
            {
                Err(Errno::INVAL)
            }
            _ => match timers::change(name, number)? {
                Some(change) => self.change(fd, |options| change.apply(options)),
                None => self.set_fastopen_option(fd, name, number),
            },
        }
    }

    fn set_fastopen_option(&mut self, fd: i32, name: i32, number: i32) -> Outcome<()> {
        let on = number != 0;
        match name {
            libc::TCP_FASTOPEN => {
                let length = u32::try_from(number).map_err(|_| Errno::INVAL)?;
                if self.connection(fd)?.is_some() {
                    return Err(Errno::INVAL);
                }
                self.change(fd, |options| options.fastopen_queue = length)
            }
            libc::TCP_FASTOPEN_NO_COOKIE => {
                if !(0..=1).contains(&number) || self.connection(fd)?.is_some() {
                    return Err(Errno::INVAL);
                }
                self.change(fd, |options| options.fastopen_no_cookie = on)
            }
            libc::TCP_FASTOPEN_CONNECT => {
                if !(0..=1).contains(&number) {
                    return Err(Errno::INVAL);
                }
                if self.engine.protocols.stack().tcp_settings().fastopen & CLIENT == 0 {
                    return Err(Errno(libc::EOPNOTSUPP));
                }
                if self.connection(fd)?.is_some() {
                    return Err(Errno::INVAL);
                }
                self.change(fd, |options| options.fastopen_connect = on)
            }
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    }

    fn tcp_option(&mut self, fd: i32, name: i32) -> Outcome<Vec<u8>> {
        let id = self.id(fd)?;
        let options = self.engine.protocols.options(id)?;
        let number = match name {
            libc::TCP_NODELAY => i32::from(options.nodelay),
            libc::TCP_INQ => i32::from(self.files.socket(fd)?.reports_unread),
            libc::TCP_MAXSEG => match self.connection(fd)? {
                Some(connection) if connection.state() != TcpState::Closed => {
                    connection.info(self.now()).snd_mss as i32
                }
                _ => i32::from(options.max_segment.unwrap_or(MAXSEG_DEFAULT)),
            },
            libc::TCP_SYNCNT => {
                let settings = self.engine.protocols.stack().tcp_settings();
                i32::from(options.syn_count.unwrap_or(settings.syn_retries))
            }
            libc::TCP_FASTOPEN_CONNECT => i32::from(options.fastopen_connect),
            libc::TCP_DEFER_ACCEPT => options.defer_accept_seconds(),
            libc::TCP_WINDOW_CLAMP => {
                let current = self.connection(fd)?.map(|connection| connection.window_clamp());
                current.or(options.window_clamp).unwrap_or(0) as i32
            }
            libc::TCP_KEEPIDLE
            | libc::TCP_KEEPINTVL
            | libc::TCP_KEEPCNT
            | libc::TCP_LINGER2
            | libc::TCP_USER_TIMEOUT => {
                timers::value(name, options, self.engine.protocols.stack().tcp_settings())
            }
            libc::TCP_QUICKACK => i32::from(options.quickack),
            libc::TCP_CORK => i32::from(options.cork),
            libc::TCP_NOTSENT_LOWAT => options.notsent_lowat as i32,
            libc::TCP_FASTOPEN => options.fastopen_queue as i32,
            libc::TCP_FASTOPEN_NO_COOKIE => i32::from(options.fastopen_no_cookie),
            libc::TCP_FASTOPEN_KEY => {
                let keys = options.fastopen_key;
                let keys =
                    keys.unwrap_or(self.engine.protocols.stack().tcp_settings().fastopen_key);
                let mut bytes = keys.primary.to_vec();
                bytes.extend(keys.backup.iter().flatten());
                return Ok(bytes);
            }
            libc::TCP_CONGESTION => {
                let settings = self.engine.protocols.stack().tcp_settings();
                let name = options.congestion.unwrap_or(settings.congestion).name();
                let mut bytes = name.as_bytes().to_vec();
                bytes.resize(CONGESTION_NAME_LEN, 0);
                return Ok(bytes);
            }
            libc::TCP_INFO => return Ok(tcp_info::bytes(self, id)),
            libc::TCP_CC_INFO => return Ok(Vec::new()),
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        };
        Ok(number.to_ne_bytes().to_vec())
    }

    /// `IP_MTU` and `IPV6_MTU`. Only a connection has a path.
    fn path_mtu(&mut self, fd: i32) -> Outcome<Vec<u8>> {
        let connection = self.connection(fd)?.filter(|c| c.state() != TcpState::Closed);
        let mtu = connection.ok_or(Errno(libc::ENOTCONN))?.path_mtu();
        Ok((mtu as i32).to_ne_bytes().to_vec())
    }

    fn set_ip_option(&mut self, fd: i32, name: i32, value: &[u8]) -> Outcome<()> {
        let number = match *value {
            [byte] => i32::from(byte),
            _ => int(value)?,
        };
        match name {
            libc::IP_FREEBIND => self.change(fd, |options| options.free_bind = number != 0),
            libc::IP_BIND_ADDRESS_NO_PORT => {
                self.change(fd, |options| options.bind_no_port = number != 0)
            }
            libc::IP_MTU_DISCOVER => {
                let path_mtu = path_mtu(number)?;
                self.change(fd, |options| options.path_mtu = path_mtu)
            }
            libc::IP_TOS => self.change(fd, |options| options.tos = number as u8 & !ECN_BITS),
            libc::IP_TTL => {
                let ttl = datagram::or_default(number, 1)?;
                self.change(fd, |options| options.ttl = ttl)
            }
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    }

    fn ip_option(&mut self, fd: i32, name: i32) -> Outcome<Vec<u8>> {
        let options = self.engine.protocols.options(self.id(fd)?)?;
        match name {
            libc::IP_FREEBIND => Ok(i32::from(options.free_bind).to_ne_bytes().to_vec()),
            libc::IP_BIND_ADDRESS_NO_PORT => {
                Ok(i32::from(options.bind_no_port).to_ne_bytes().to_vec())
            }
            libc::IP_MTU => self.path_mtu(fd),
            libc::IP_MTU_DISCOVER => Ok((options.path_mtu as i32).to_ne_bytes().to_vec()),
            libc::IP_TOS => Ok(i32::from(options.tos).to_ne_bytes().to_vec()),
            libc::IP_TTL => {
                Ok(i32::from(options.ttl.unwrap_or(TTL_DEFAULT)).to_ne_bytes().to_vec())
            }
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    }

    fn set_ipv6_option(&mut self, fd: i32, name: i32, value: &[u8]) -> Outcome<()> {
        let number = int(value)?;
        match name {
            libc::IPV6_V6ONLY => self.change(fd, |options| options.v6_only = number != 0),
            libc::IPV6_MTU_DISCOVER => {
                let path_mtu = path_mtu(number)?;
                self.change(fd, |options| options.path_mtu_v6 = path_mtu)
            }
            // Checked as in Linux; has an effect for datagrams only.
            libc::IPV6_MTU => fragment_size(number).map(|_| ()),
            libc::IPV6_TCLASS => {
                // -1 selects the default.
                let class = u8::try_from(number.max(0)).map_err(|_| Errno::INVAL)?;
                self.change(fd, |options| options.traffic_class = class & !ECN_BITS)
            }
            libc::IPV6_UNICAST_HOPS => {
                let limit = datagram::or_default(number, 0)?;
                self.change(fd, |options| options.hop_limit = limit)
            }
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    }

    fn ipv6_option(&mut self, fd: i32, name: i32) -> Outcome<Vec<u8>> {
        let options = self.engine.protocols.options(self.id(fd)?)?;
        match name {
            libc::IPV6_V6ONLY => Ok(i32::from(options.v6_only).to_ne_bytes().to_vec()),
            libc::IPV6_MTU => self.path_mtu(fd),
            libc::IPV6_MTU_DISCOVER => Ok((options.path_mtu_v6 as i32).to_ne_bytes().to_vec()),
            libc::IPV6_TCLASS => Ok(i32::from(options.traffic_class).to_ne_bytes().to_vec()),
            libc::IPV6_UNICAST_HOPS => {
                Ok(i32::from(options.hop_limit.unwrap_or(TTL_DEFAULT)).to_ne_bytes().to_vec())
            }
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    }
}

/// The mode for a value of `IP_MTU_DISCOVER` or `IPV6_MTU_DISCOVER`.
fn path_mtu(number: i32) -> Outcome<PathMtu> {
    PATH_MTU.into_iter().find(|kind| *kind as i32 == number).ok_or(Errno::INVAL)
}

/// The bound for a value of `IPV6_MTU`: none for zero.
fn fragment_size(number: i32) -> Outcome<Option<u16>> {
    match number {
        0 => Ok(None),
        ..IPV6_MTU_LEAST => Err(Errno::INVAL),
        size => Ok(Some(u16::try_from(size).unwrap_or(u16::MAX))),
    }
}

/// In the order of Linux's numbers.
const PATH_MTU: [PathMtu; 6] =
    [PathMtu::Dont, PathMtu::Want, PathMtu::Do, PathMtu::Probe, PathMtu::Interface, PathMtu::Omit];
const _: () = assert!(PathMtu::Dont as i32 == libc::IP_PMTUDISC_DONT);
const _: () = assert!(PathMtu::Omit as i32 == libc::IP_PMTUDISC_OMIT);
const _: () = assert!(PathMtu::Omit as i32 == libc::IPV6_PMTUDISC_OMIT);
