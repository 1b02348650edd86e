//! Socket calls in scripts.

use super::Error;
use super::cursor::Cursor;

/// A descriptor with the script's number.
pub type Fd = i64;

/// A socket call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// `socket(..., SOCK_STREAM, IPPROTO_TCP) = fd`, optionally with `SOCK_NONBLOCK`.
    Socket {
        /// The descriptor that the script expects.
        fd: Fd,
        /// Calls on it return instead of waiting.
        nonblocking: bool,
    },
    /// `bind(fd, ..., ...)`, to the script's local port.
    Bind(Fd),
    /// `listen(fd, backlog)`.
    Listen(Fd, i32),
    /// `accept(fd, ..., ...) = new`; accept4 optionally with `SOCK_NONBLOCK`.
    Accept {
        /// The listening descriptor.
        listener: Fd,
        /// The descriptor that the script expects.
        fd: Fd,
        /// Calls on the new descriptor return instead of waiting.
        nonblocking: bool,
    },
    /// `connect(fd, ..., ...)`, to the script's remote endpoint.
    Connect(Fd),
    /// `read` and `recv`.
    Read {
        /// The descriptor.
        fd: Fd,
        /// Most bytes.
        len: usize,
        /// `MSG_*`.
        flags: i64,
        /// All bytes have this value, instead of the stream's pattern.
        fill: Option<u8>,
    },
    /// `write`, `send`, and `sendto` to the script's remote endpoint.
    Write {
        /// The descriptor.
        fd: Fd,
        /// Bytes.
        len: usize,
        /// `MSG_*`.
        flags: i64,
        /// The call has an address.
        to_remote: bool,
    },
    /// `shutdown(fd, how)`.
    Shutdown(Fd, i64),
    /// `close(fd)`.
    Close(Fd),
    /// `setsockopt(fd, level, name, [value], size)`.
    SetOption {
        /// The descriptor.
        fd: Fd,
        /// `SOL_*` or `IPPROTO_*`.
        level: i64,
        /// The option.
        name: i64,
        /// Its value.
        value: Value,
    },
    /// `getsockopt(fd, level, name, [value], [size])`, with the required value.
    GetOption {
        /// The descriptor.
        fd: Fd,
        /// `SOL_*` or `IPPROTO_*`.
        level: i64,
        /// The option.
        name: i64,
        /// The required value.
        value: i64,
    },
    /// `fcntl(fd, F_SETFL, flags)`: sets whether calls return instead of waiting.
    SetNonblocking(Fd, bool),
    /// `fcntl(fd, F_GETFL)`, with the required result.
    GetFlags(Fd),
    /// `ioctl(fd, SIOCATMARK, [value])`, with the required value.
    AtMark {
        /// The descriptor.
        fd: Fd,
        /// The required value.
        value: i64,
    },
    /// `poll([{fd=, events=, revents=}], 1, 0)`.
    Poll {
        /// The descriptor.
        fd: Fd,
        /// The requested events.
        events: i64,
        /// The required events.
        revents: i64,
    },
}

/// The value of a socket option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `[n]`.
    Number(i64),
    /// `{onoff=a, linger=b}`.
    Linger(bool, u16),
    /// `"name"`.
    Text(String),
}

/// A parsed argument, before its meaning is known.
#[derive(Clone, Debug)]
enum Argument {
    Any,
    Number(i64),
    Text(String),
    List(Vec<Argument>),
    Fields(Vec<(String, Argument)>),
}

/// Connects, with data in the SYN (RFC 7413).
pub(super) const MSG_FASTOPEN: i64 = 0x2000_0000;
/// Deepest nesting of arguments.
const DEPTH_MAX: usize = 4;
/// Most arguments of a call, or elements of a list.
const ARGUMENTS_MAX: usize = 16;

impl Call {
    /// Parses `name(arguments)`. `result` is the value after the `=`, which names new descriptors.
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<(Self, Expected), Error> {
        let start = *cursor;
        let Some(name) = cursor.word() else { return start.wanted("a call") };
        cursor.expect("(")?;
        let arguments = parse_arguments(cursor, ")", 0)?;
        cursor.expect("=")?;
        let expected = Expected::parse(cursor)?;
        match Self::of(name, &arguments, expected.value) {
            Some(call) => Ok((call, expected)),
            None => start.fail(format!("`{name}` is not known with such arguments")),
        }
    }

    /// True if the call starts a connection: `connect`, and `sendto` with `MSG_FASTOPEN`.
    pub(super) fn connects(&self) -> bool {
        match self {
            Call::Connect(_) => true,
            Call::Write { flags, to_remote, .. } => *to_remote && flags & MSG_FASTOPEN != 0,
            _ => false,
        }
    }

    fn of(name: &str, arguments: &[Argument], result: i64) -> Option<Self> {
        use Argument::{Any, Number};
        let nonblock = |flags: i64| flags & SOCK_NONBLOCK != 0;
        Some(match (name, arguments) {
            ("socket", [_, Number(kind), Number(_)]) => {
                Call::Socket { fd: result, nonblocking: nonblock(*kind) }
            }
            ("bind", [Number(fd), Any, Any]) => Call::Bind(*fd),
            ("listen", [Number(fd), Number(backlog)]) => {
                Call::Listen(*fd, i32::try_from(*backlog).ok()?)
            }
            ("accept", [Number(listener), Any, Any]) => {
                Call::Accept { listener: *listener, fd: result, nonblocking: false }
            }
            ("accept4", [Number(listener), Any, Any, Number(flags)]) => {
                Call::Accept { listener: *listener, fd: result, nonblocking: nonblock(*flags) }
            }
            ("connect", [Number(fd), Any, Any]) => Call::Connect(*fd),
            ("shutdown", [Number(fd), Number(how)]) => Call::Shutdown(*fd, *how),
            ("close", [Number(fd)]) => Call::Close(*fd),
            ("fcntl", [Number(fd), Number(F_GETFL)]) => Call::GetFlags(*fd),
            ("fcntl", [Number(fd), Number(F_SETFL), Number(flags)]) => {
                Call::SetNonblocking(*fd, flags & O_NONBLOCK != 0)
            }
            ("setsockopt", [Number(fd), Number(level), Number(name), value, Number(_)]) => {
                let (fd, level, name, value) = (*fd, *level, *name, value.as_value()?);
                Call::SetOption { fd, level, name, value }
            }
            ("getsockopt", [Number(fd), Number(level), Number(name), value, _]) => {
                let Value::Number(value) = value.as_value()? else { return None };
                Call::GetOption { fd: *fd, level: *level, name: *name, value }
            }
            ("ioctl", [Number(fd), Number(SIOCATMARK), value]) => {
                let Value::Number(value) = value.as_value()? else { return None };
                Call::AtMark { fd: *fd, value }
            }
            ("poll", [Argument::List(list), Number(1), Number(_)]) => Self::poll(list)?,
            _ => return Self::transfer(name, arguments),
        })
    }

    /// Parses calls that move data.
    fn transfer(name: &str, arguments: &[Argument]) -> Option<Self> {
        use Argument::{Any, Number};
        let (fd, data, len, flags, to_remote) = match (name, arguments) {
            ("read" | "write", [Number(fd), data, Number(len)]) => (fd, data, len, 0, false),
            ("recv" | "send", [Number(fd), data, Number(len), Number(flags)]) => {
                (fd, data, len, *flags, false)
            }
            ("sendto", [Number(fd), data, Number(len), Number(flags), Any, Any]) => {
                (fd, data, len, *flags, true)
            }
            _ => return None,
        };
        let len = usize::try_from(*len).ok().filter(|len| *len <= TRANSFER_MAX)?;
        let fill = match data {
            Any => None,
            Argument::List(list) => match &list[..] {
                [Number(value)] => Some(u8::try_from(*value).ok()?),
                _ => return None,
            },
            _ => return None,
        };
        match name {
            "read" | "recv" => Some(Call::Read { fd: *fd, len, flags, fill }),
            _ if fill.is_none() => Some(Call::Write { fd: *fd, len, flags, to_remote }),
            _ => None,
        }
    }

    fn poll(list: &[Argument]) -> Option<Self> {
        let [Argument::Fields(fields)] = list else { return None };
        let field = |name: &str| match fields.iter().find(|(known, _)| known == name)? {
            (_, Argument::Number(value)) => Some(*value),
            _ => None,
        };
        let (fd, events, revents) = (field("fd")?, field("events")?, field("revents")?);
        Some(Call::Poll { fd, events, revents })
    }
}

impl Argument {
    fn as_value(&self) -> Option<Value> {
        match self {
            Argument::Text(text) => Some(Value::Text(text.clone())),
            Argument::List(list) => match &list[..] {
                [Argument::Number(value)] => Some(Value::Number(*value)),
                _ => None,
            },
            Argument::Fields(fields) => match &fields[..] {
                [(on, Argument::Number(onoff)), (time, Argument::Number(linger))]
                    if on == "onoff" && time == "linger" =>
                {
                    Some(Value::Linger(*onoff != 0, u16::try_from(*linger).ok()?))
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn parse(cursor: &mut Cursor<'_>, depth: usize) -> Result<Self, Error> {
        if depth > DEPTH_MAX {
            return cursor.fail("nested too deeply");
        }
        if cursor.eat("...") {
            return Ok(Argument::Any);
        }
        if cursor.eat("[") {
            return Ok(Argument::List(parse_arguments(cursor, "]", depth + 1)?));
        }
        if cursor.eat("{") {
            return Self::parse_fields(cursor, depth + 1);
        }
        if cursor.eat("\"") {
            return Ok(Argument::Text(cursor.until("\"")?.into()));
        }
        let mut value = parse_term(cursor)?;
        while cursor.eat("|") {
            value |= parse_term(cursor)?;
        }
        Ok(Argument::Number(value))
    }

    fn parse_fields(cursor: &mut Cursor<'_>, depth: usize) -> Result<Self, Error> {
        let mut fields = Vec::new();
        loop {
            let Some(name) = cursor.word() else { return cursor.wanted("a field") };
            cursor.expect("=")?;
            fields.push((name.to_string(), Self::parse(cursor, depth)?));
            if cursor.eat("}") {
                return Ok(Argument::Fields(fields));
            }
            cursor.expect(",")?;
            if fields.len() >= ARGUMENTS_MAX {
                return cursor.fail("too many fields");
            }
        }
    }
}

fn parse_arguments(
    cursor: &mut Cursor<'_>,
    end: &str,
    depth: usize,
) -> Result<Vec<Argument>, Error> {
    let mut arguments = Vec::new();
    while !cursor.eat(end) {
        if !arguments.is_empty() {
            cursor.expect(",")?;
        }
        arguments.push(Argument::parse(cursor, depth)?);
        if arguments.len() > ARGUMENTS_MAX {
            return cursor.fail("too many arguments");
        }
    }
    Ok(arguments)
}

/// A number, or a name of a constant.
fn parse_term(cursor: &mut Cursor<'_>) -> Result<i64, Error> {
    let start = *cursor;
    let Some(name) = cursor.word() else { return cursor.integer() };
    match CONSTANTS.iter().find(|(known, _)| *known == name) {
        Some((_, value)) => Ok(*value),
        None => start.fail(format!("`{name}` is not a known constant")),
    }
}

/// The required result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The result.
    pub value: i64,
    /// The error, for a result of -1.
    pub errno: Option<i32>,
}

impl Expected {
    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, Error> {
        let mut value = parse_term(cursor)?;
        while cursor.eat("|") {
            value |= parse_term(cursor)?;
        }
        if value != -1 {
            return Ok(Self { value, errno: None });
        }
        let start = *cursor;
        let name = cursor.word().unwrap_or("");
        let Some((_, errno)) = ERRNOS.iter().find(|(known, _)| *known == name) else {
            return start.wanted("the name of an error");
        };
        if cursor.eat("(") {
            cursor.until(")")?;
        }
        Ok(Self { value, errno: Some(*errno) })
    }
}

/// The name of an error, or its number if it has no name here.
pub fn errno_name(errno: i32) -> String {
    let known = ERRNOS.iter().find(|(_, value)| *value == errno);
    known.map_or_else(|| format!("error {errno}"), |(name, _)| (*name).into())
}

/// Most bytes of one call.
const TRANSFER_MAX: usize = 16 << 20;

const SOCK_NONBLOCK: i64 = 0o4000;
const O_NONBLOCK: i64 = 0o4000;
const F_GETFL: i64 = 3;
const F_SETFL: i64 = 4;
const SIOCATMARK: i64 = 0x8905;

/// Errors by name, with Linux's numbers.
const ERRNOS: [(&str, i32); 24] = [
    ("EINTR", 4),
    ("EBADF", 9),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EFAULT", 14),
    ("EINVAL", 22),
    ("EPIPE", 32),
    ("EDESTADDRREQ", 89),
    ("EMSGSIZE", 90),
    ("ENOPROTOOPT", 92),
    ("EPROTONOSUPPORT", 93),
    ("EOPNOTSUPP", 95),
    ("EADDRINUSE", 98),
    ("ENETUNREACH", 101),
    ("ECONNABORTED", 103),
    ("ECONNRESET", 104),
    ("ENOBUFS", 105),
    ("EISCONN", 106),
    ("ENOTCONN", 107),
    ("ETIMEDOUT", 110),
    ("ECONNREFUSED", 111),
    ("EHOSTUNREACH", 113),
    ("EALREADY", 114),
    ("EINPROGRESS", 115),
];

/// Constants by name, with Linux's values for x86-64 and arm64.
const CONSTANTS: [(&str, i64); 60] = [
    ("SIOCATMARK", SIOCATMARK),
    ("AF_INET", 2),
    ("AF_INET6", 10),
    ("SOCK_STREAM", 1),
    ("SOCK_NONBLOCK", SOCK_NONBLOCK),
    ("IPPROTO_IP", 0),
    ("IPPROTO_TCP", 6),
    ("IPPROTO_IPV6", 41),
    ("SOL_IP", 0),
    ("SOL_SOCKET", 1),
    ("SOL_TCP", 6),
    ("SOL_IPV6", 41),
    ("SO_REUSEADDR", 2),
    ("SO_ERROR", 4),
    ("SO_SNDBUF", 7),
    ("SO_RCVBUF", 8),
    ("SO_KEEPALIVE", 9),
    ("SO_OOBINLINE", 10),
    ("SO_LINGER", 13),
    ("SO_RCVLOWAT", 18),
    ("TCP_NODELAY", 1),
    ("TCP_MAXSEG", 2),
    ("TCP_CORK", 3),
    ("TCP_KEEPIDLE", 4),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 6),
    ("TCP_SYNCNT", 7),
    ("TCP_LINGER2", 8),
    ("TCP_DEFER_ACCEPT", 9),
    ("TCP_WINDOW_CLAMP", 10),
    ("TCP_QUICKACK", 12),
    ("TCP_CONGESTION", 13),
    ("TCP_USER_TIMEOUT", 18),
    ("TCP_FASTOPEN", 23),
    ("TCP_NOTSENT_LOWAT", 25),
    ("TCP_FASTOPEN_CONNECT", 30),
    ("TCP_INQ", 36),
    ("MSG_OOB", 1),
    ("MSG_PEEK", 2),
    ("MSG_TRUNC", 0x20),
    ("MSG_DONTWAIT", 0x40),
    ("MSG_EOR", 0x80),
    ("MSG_WAITALL", 0x100),
    ("MSG_NOSIGNAL", 0x4000),
    ("MSG_MORE", 0x8000),
    ("MSG_FASTOPEN", MSG_FASTOPEN),
    ("SHUT_RD", 0),
    ("SHUT_WR", 1),
    ("SHUT_RDWR", 2),
    ("F_GETFL", F_GETFL),
    ("F_SETFL", F_SETFL),
    ("O_RDWR", 2),
    ("O_NONBLOCK", O_NONBLOCK),
    ("POLLIN", 1),
    ("POLLPRI", 2),
    ("POLLOUT", 4),
    ("POLLERR", 8),
    ("POLLHUP", 16),
    ("POLLRDHUP", 0x2000),
    ("IP_MTU_DISCOVER", 10),
];
