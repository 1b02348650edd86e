//! Segments and ICMP messages in scripts.

use super::Error;
use super::cursor::Cursor;
use std::fmt;

/// A TCP segment with the numbers of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The two ECN bits of the IP header. `None` accepts any and sends 0.
    pub ecn: Option<u8>,
    /// Control bits, as on the wire.
    pub flags: u8,
    /// Sequence number of the first byte.
    pub seq: u32,
    /// Bytes of payload.
    pub len: u32,
    /// The acknowledgment, if the ACK bit is set.
    pub ack: Option<u32>,
    /// The window, as on the wire. `None` accepts any.
    pub window: Option<u16>,
    /// The urgent pointer.
    pub urgent: u16,
    /// Options in order. `None` accepts any.
    pub options: Option<Vec<TcpOption>>,
    /// All payload bytes have this value, instead of the pattern of their position.
    pub fill: Option<u8>,
    /// The PSH bit may be set or not, because the boundaries of writes do not matter.
    pub push_optional: bool,
}

/// An option of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpOption {
    /// End of the list.
    Eol,
    /// No operation, used as padding.
    Nop,
    /// Maximum segment size.
    Mss(u16),
    /// Window scale.
    WindowScale(u8),
    /// SACK permitted.
    SackPermitted,
    /// SACK blocks.
    Sack(Vec<(u32, u32)>),
    /// Timestamps. A value of `None` accepts any.
    Timestamps(Option<u32>, u32),
    /// Fast Open cookie, without bytes for a request.
    FastOpen(Vec<u8>),
    /// Other options as bytes, including kind and length: for malformed ones.
    Raw(Vec<u8>),
}

/// An ICMP error about a segment of the subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// The message.
    pub kind: IcmpKind,
    /// Sequence number of the first byte of the quoted segment.
    pub seq: u32,
    /// Bytes of payload of the quoted segment.
    pub len: u32,
}

/// The message of an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpKind {
    /// The network is unreachable.
    NetUnreachable,
    /// The host is unreachable.
    HostUnreachable,
    /// The protocol is unreachable.
    ProtocolUnreachable,
    /// The port is unreachable.
    PortUnreachable,
    /// A packet is too big: the next link has this MTU.
    TooBig(u16),
    /// The hop limit was exceeded.
    TimeExceeded,
}

/// Letters of the control bits in scripts, from the lowest bit.
const FLAG_LETTERS: [char; 8] = ['F', 'S', 'R', 'P', '.', 'U', 'E', 'W'];

/// The ACK bit.
pub(super) const ACK: u8 = 0x10;
/// The PSH bit.
pub(super) const PSH: u8 = 0x08;
/// The SYN bit.
pub(super) const SYN: u8 = 0x02;

/// Largest payload of a script's segment.
const LEN_MAX: u32 = 65_000;
/// Most bytes of options.
const OPTIONS_LEN_MAX: usize = 40;

impl Segment {
    /// Parses a segment after its direction.
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, Error> {
        let ecn = parse_ecn(cursor)?;
        let push_optional = cursor.eat("p");
        let flags = parse_flags(cursor)?;
        let (seq, len) = parse_range(cursor)?;
        let mut segment = Self {
            ecn,
            flags,
            seq,
            len,
            ack: None,
            window: None,
            urgent: 0,
            options: Some(Vec::new()),
            fill: None,
            push_optional,
        };
        if cursor.eat_word("ack") {
            segment.ack = Some(cursor.number()?);
        }
        if segment.ack.is_some() != (flags & ACK != 0) {
            return cursor.fail("`.` among the flags and `ack` go together");
        }
        if cursor.eat_word("win") {
            segment.window = Some(cursor.number()?);
        }
        if cursor.eat_word("urg") {
            segment.urgent = cursor.number()?;
        }
        if cursor.eat_word("fill") {
            segment.fill = Some(cursor.number()?);
        }
        cursor.blanks();
        if cursor.eat("<") {
            segment.options = parse_options(cursor)?;
        }
        Ok(segment)
    }
}

fn parse_ecn(cursor: &mut Cursor<'_>) -> Result<Option<u8>, Error> {
    if !cursor.eat("[") {
        return Ok(None);
    }
    let ecn = match cursor.word() {
        Some("noecn") => 0,
        Some("ect1") => 1,
        Some("ect0") => 2,
        Some("ce") => 3,
        _ => return cursor.wanted("noecn, ect0, ect1 or ce"),
    };
    cursor.expect("]")?;
    Ok(Some(ecn))
}

fn parse_flags(cursor: &mut Cursor<'_>) -> Result<u8, Error> {
    cursor.blanks();
    let start = *cursor;
    let mut flags = 0;
    let letters = cursor.run(|c| !c.is_whitespace());
    for letter in letters.chars() {
        match FLAG_LETTERS.iter().position(|known| *known == letter) {
            Some(bit) => flags |= 1 << bit,
            None if letters == "-" => {}
            None => {
                return start.wanted("flags of FSRP.UEW, p in front for perhaps P, or - for none,");
            }
        }
    }
    if letters.is_empty() { start.wanted("flags") } else { Ok(flags) }
}

/// `first:end(len)`.
fn parse_range(cursor: &mut Cursor<'_>) -> Result<(u32, u32), Error> {
    let start = *cursor;
    let first: u32 = cursor.number()?;
    cursor.expect(":")?;
    let end: u32 = cursor.number()?;
    cursor.expect("(")?;
    let len: u32 = cursor.number()?;
    cursor.expect(")")?;
    if end != first.wrapping_add(len) || len > LEN_MAX {
        return start.fail(format!("{first}:{end} is not {len} bytes, or too many"));
    }
    Ok((first, len))
}

fn parse_options(cursor: &mut Cursor<'_>) -> Result<Option<Vec<TcpOption>>, Error> {
    if cursor.eat("...") {
        cursor.expect(">")?;
        return Ok(None);
    }
    let mut options = Vec::new();
    while !cursor.eat(">") {
        if !options.is_empty() {
            cursor.expect(",")?;
        }
        options.push(parse_option(cursor)?);
        if options.iter().map(TcpOption::len).sum::<usize>() > OPTIONS_LEN_MAX {
            return cursor.fail("options of more than 40 bytes");
        }
    }
    Ok(Some(options))
}

fn parse_option(cursor: &mut Cursor<'_>) -> Result<TcpOption, Error> {
    let start = *cursor;
    Ok(match cursor.word() {
        Some("eol") => TcpOption::Eol,
        Some("nop") => TcpOption::Nop,
        Some("mss") => TcpOption::Mss(cursor.number()?),
        Some("wscale") => TcpOption::WindowScale(cursor.number()?),
        Some("sackOK") => TcpOption::SackPermitted,
        Some("sack") => {
            let mut blocks = Vec::new();
            while blocks.is_empty() || cursor.sees_digit() {
                let from = cursor.number()?;
                cursor.expect(":")?;
                blocks.push((from, cursor.number()?));
            }
            TcpOption::Sack(blocks)
        }
        Some("TS") => {
            cursor.expect("val")?;
            let value = if cursor.eat("*") { None } else { Some(cursor.number()?) };
            cursor.expect("ecr")?;
            TcpOption::Timestamps(value, cursor.number()?)
        }
        Some("FO") => TcpOption::FastOpen(parse_hex(cursor)?),
        Some("hex") => TcpOption::Raw(parse_hex(cursor)?),
        _ => return start.wanted("a TCP option"),
    })
}

/// Parses bytes as pairs of digits. No bytes for a lone `0` or nothing.
fn parse_hex(cursor: &mut Cursor<'_>) -> Result<Vec<u8>, Error> {
    cursor.blanks();
    let start = *cursor;
    let digits = cursor.run(|c| c.is_ascii_hexdigit());
    if !digits.len().is_multiple_of(2) {
        return start.wanted("an even number of hexadecimal digits");
    }
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16);
    let bytes: Result<Vec<u8>, _> = (0..digits.len()).step_by(2).map(byte).collect();
    bytes.or_else(|_| start.wanted("hexadecimal digits"))
}

impl TcpOption {
    /// Length on the wire.
    pub(super) fn len(&self) -> usize {
        match self {
            TcpOption::Eol | TcpOption::Nop => 1,
            TcpOption::Mss(_) => 4,
            TcpOption::WindowScale(_) => 3,
            TcpOption::SackPermitted => 2,
            TcpOption::Sack(blocks) => 2 + 8 * blocks.len(),
            TcpOption::Timestamps(..) => 10,
            TcpOption::FastOpen(cookie) => 2 + cookie.len(),
            TcpOption::Raw(bytes) => bytes.len(),
        }
    }
}

impl Icmp {
    /// Parses an ICMP error after `icmp`.
    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, Error> {
        let start = *cursor;
        let kind = match (cursor.word(), cursor.word()) {
            (Some("unreachable"), Some("net")) => IcmpKind::NetUnreachable,
            (Some("unreachable"), Some("host")) => IcmpKind::HostUnreachable,
            (Some("unreachable"), Some("protocol")) => IcmpKind::ProtocolUnreachable,
            (Some("unreachable"), Some("port")) => IcmpKind::PortUnreachable,
            (Some("unreachable"), Some("too_big")) => {
                if !cursor.eat_word("mtu") {
                    return cursor.wanted("`mtu`");
                }
                IcmpKind::TooBig(cursor.number()?)
            }
            (Some("time"), Some("exceeded")) => IcmpKind::TimeExceeded,
            _ => {
                return start.wanted("unreachable net|host|protocol|port|too_big or time exceeded");
            }
        };
        cursor.expect("[")?;
        let (seq, len) = parse_range(cursor)?;
        cursor.expect("]")?;
        Ok(Self { kind, seq, len })
    }
}

/// The control bits in the letters of scripts.
pub(super) fn flag_letters(flags: u8) -> String {
    let set = FLAG_LETTERS.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 != 0);
    let mut text: String = set.map(|(_, letter)| *letter).filter(|letter| *letter != '.').collect();
    if flags & ACK != 0 {
        text.push('.');
    }
    if text.is_empty() { "-".into() } else { text }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ecn) = self.ecn.filter(|ecn| *ecn != 0) {
            write!(f, "[{}] ", ["noecn", "ect1", "ect0", "ce"][usize::from(ecn & 3)])?;
        }
        let (flags, end) = (flag_letters(self.flags), self.seq.wrapping_add(self.len));
        let optional = if self.push_optional { "p" } else { "" };
        write!(f, "{optional}{flags} {}:{end}({})", self.seq, self.len)?;
        if let Some(ack) = self.ack {
            write!(f, " ack {ack}")?;
        }
        if let Some(window) = self.window {
            write!(f, " win {window}")?;
        }
        if self.urgent != 0 {
            write!(f, " urg {}", self.urgent)?;
        }
        match self.options.as_deref() {
            None => write!(f, " <...>"),
            Some([]) => Ok(()),
            Some(options) => {
                let options: Vec<String> = options.iter().map(ToString::to_string).collect();
                write!(f, " <{}>", options.join(","))
            }
        }
    }
}

impl fmt::Display for TcpOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        match self {
            TcpOption::Eol => write!(f, "eol"),
            TcpOption::Nop => write!(f, "nop"),
            TcpOption::Mss(mss) => write!(f, "mss {mss}"),
            TcpOption::WindowScale(scale) => write!(f, "wscale {scale}"),
            TcpOption::SackPermitted => write!(f, "sackOK"),
            TcpOption::Sack(blocks) => {
                write!(f, "sack")?;
                blocks.iter().try_for_each(|(from, to)| write!(f, " {from}:{to}"))
            }
            TcpOption::Timestamps(Some(value), echo) => write!(f, "TS val {value} ecr {echo}"),
            TcpOption::Timestamps(None, echo) => write!(f, "TS val * ecr {echo}"),
            TcpOption::FastOpen(cookie) => write!(f, "FO {}", hex(cookie)),
            TcpOption::Raw(bytes) => write!(f, "hex {}", hex(bytes)),
        }
    }
}
