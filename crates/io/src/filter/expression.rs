//! Expressions: a subset of the language of pcap-filter(7), with the same meaning.
//!
//! ```text
//! expression = term { ("and" | "or") term }           from left to right, both bind alike
//! term       = "not" term | "(" expression ")" | primitive
//! primitive  = "ip" | "ip6" | "arp" | "rarp" | "tcp" | "udp" | "icmp" | "icmp6"
//!            | ["ip" | "ip6" | "arp" | "rarp"] ["src" | "dst"] ["host"] ADDRESS
//!            | ["ip" | "ip6" | "arp" | "rarp"] ["src" | "dst"] "net" ADDRESS "/" LENGTH
//!            | "ether" ["src" | "dst"] ["host"] MAC
//!            | ["tcp" | "udp"] ["src" | "dst"] "port" NUMBER
//!            | "vlan" [NUMBER] | "less" NUMBER | "greater" NUMBER
//! ```
//!
//! `&&`, `||` and `!` are accepted too; `host` may be omitted only after `src` or `dst`. An empty
//! expression accepts every packet. After `vlan` all following primitives apply behind the tag.
//! Ports are those of TCP, UDP and SCTP, in first fragments only, and over IPv6 only directly
//! behind the IPv6 header. Names of hosts and services are not supported.
//!
//! Parsing yields a tree of [`Test`]s. Limits: [`EXPRESSION_BYTES_MAX`], [`TERMS_MAX`],
//! [`DEPTH_MAX`], [`VLAN_TAGS_MAX`]; an expression beyond a limit is rejected.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum length of an expression; far above that of handwritten ones.
pub const EXPRESSION_BYTES_MAX: usize = 4096;
/// Maximum number of primitives: with up to 31 instructions each (`port`), they about fill a
/// program.
pub const TERMS_MAX: usize = 128;
/// Maximum nesting of parentheses and `not`.
pub const DEPTH_MAX: usize = 32;
/// Maximum number of `vlan`s: frames have a service tag and a customer tag.
pub const VLAN_TAGS_MAX: u32 = 2;

/// Error in an expression, with its position. The language is the subset of pcap-filter(7) with
/// `and`, `or`, `not`, parentheses, `ip`, `ip6`, `arp`, `rarp`, `tcp`, `udp`, `icmp`, `icmp6`,
/// `vlan`, `less`, `greater`, and `host`, `net` and `port` with `src`, `dst` and a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// Byte offset in the expression at which the error was found.
    pub at: usize,
    /// Kind of error.
    pub problem: Problem,
}

/// Kinds of errors in an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A limit was exceeded.
    TooLarge,
    /// The word has no meaning at this position.
    Unknown,
    /// A token is missing.
    Missing(&'static str),
    /// There is more text after the end of the expression.
    Surplus,
    /// The words cannot be combined.
    Combination,
    /// The network address has bits set beyond the prefix length.
    HostBits,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at character {}: ", self.at + 1)?;
        match self.problem {
            Problem::TooLarge => write!(
                f,
                "the expression is too large; at most {EXPRESSION_BYTES_MAX} bytes, {TERMS_MAX} \
                 primitives, {DEPTH_MAX} levels and {VLAN_TAGS_MAX} vlan are possible"
            ),
            Problem::Unknown => f.write_str(PRIMITIVE_WANTED),
            Problem::Missing(what) => write!(f, "expected {what}"),
            Problem::Surplus => f.write_str("expected 'and', 'or' or the end"),
            Problem::Combination => {
                f.write_str("the words before this position cannot be combined")
            }
            Problem::HostBits => f.write_str("address bits beyond the prefix are set"),
        }
    }
}

impl std::error::Error for FilterError {}

const PRIMITIVE_WANTED: &str = "expected a primitive: ip, ip6, arp, rarp, tcp, udp, icmp, icmp6, \
    ether, src, dst, host, net, port, vlan, less or greater";

/// Value that a test loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// The length of the packet.
    Length,
    Byte(u32),
    Half(u32),
    Word(u32),
    /// Two bytes at offset `at` behind the IPv4 header that begins at `network`.
    BehindIpv4 {
        network: u32,
        at: u32,
    },
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Equal { load: Load, mask: u32, value: u32 },
    AnyBit { load: Load, bits: u32 },
    Greater { load: Load, than: u32 },
}

impl Test {
    pub(super) fn load(&self) -> Load {
        match *self {
            Self::Equal { load, .. } | Self::AnyBit { load, .. } | Self::Greater { load, .. } => {
                load
            }
        }
    }
}

/// A condition on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Test(Test),
    Not(Box<Node>),
    All(Vec<Node>),
    Any(Vec<Node>),
}

/// Parses an expression; `None` if it is empty.
pub(super) fn parse(text: &str) -> Result<Option<Node>, FilterError> {
    if text.len() > EXPRESSION_BYTES_MAX {
        return Err(FilterError { at: EXPRESSION_BYTES_MAX, problem: Problem::TooLarge });
    }
    let mut parser = Parser { text, at: 0, terms: 0, depth: 0, tags: 0 };
    if parser.peek().is_none() {
        return Ok(None);
    }
    let node = parser.expression()?;
    match parser.peek() {
        None => Ok(Some(node)),
        Some(_) => Err(parser.error(Problem::Surplus)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Source,
    Destination,
    Either,
}

struct Parser<'a> {
    text: &'a str,
    /// Position of the next word, or of whitespace before it.
    at: usize,
    terms: usize,
    depth: usize,
    /// VLAN tags before the headers that the next primitives check.
    tags: u32,
}

impl<'a> Parser<'a> {
    /// The next word or sign, without consuming it.
    fn peek(&mut self) -> Option<&'a str> {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        let sign = ["&&", "||", "(", ")", "!"].into_iter().find(|sign| trimmed.starts_with(sign));
        let is_end = |c: char| c.is_whitespace() || "()!&|".contains(c);
        let len = match sign {
            Some(sign) => sign.len(),
            // A single `&` or `|` is a word, and unknown.
            None => trimmed.find(is_end).map_or(trimmed.len(), |len| len.max(1)),
        };
        (!trimmed.is_empty()).then(|| &trimmed[..len])
    }

    /// Consumes the next word if it is one of these.
    fn take(&mut self, words: &[&str]) -> Option<&'a str> {
        let word = self.peek().filter(|word| words.contains(word))?;
        self.at += word.len();
        Some(word)
    }

    fn error(&self, problem: Problem) -> FilterError {
        FilterError { at: self.at, problem }
    }

    /// Consumes the next word as a value, which `what` describes.
    fn value<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, FilterError> {
        let word = self.peek().unwrap_or_default();
        let value = read(word).ok_or(self.error(Problem::Missing(what)))?;
        self.at += word.len();
        Ok(value)
    }

    fn expression(&mut self) -> Result<Node, FilterError> {
        let mut node = self.term()?;
        while let Some(word) = self.take(&["and", "&&", "or", "||"]) {
            let right = self.term()?;
            let is_and = matches!(word, "and" | "&&");
            node = match (node, is_and) {
                (Node::All(mut nodes), true) => {
                    nodes.push(right);
                    Node::All(nodes)
                }
                (Node::Any(mut nodes), false) => {
                    nodes.push(right);
                    Node::Any(nodes)
                }
                (left, true) => Node::All(vec![left, right]),
                (left, false) => Node::Any(vec![left, right]),
            };
        }
        Ok(node)
    }

    fn term(&mut self) -> Result<Node, FilterError> {
        if self.depth == DEPTH_MAX || self.terms == TERMS_MAX {
            return Err(self.error(Problem::TooLarge));
        }
        self.depth += 1;
        let node = if self.take(&["not", "!"]).is_some() {
            Node::Not(Box::new(self.term()?))
        } else if self.take(&["("]).is_some() {
            let node = self.expression()?;
            if self.take(&[")"]).is_none() {
                return Err(self.error(Problem::Missing("')'")));
            }
            node
        } else {
            self.terms += 1;
            self.primitive()?
        };
        self.depth -= 1;
        Ok(node)
    }

    fn primitive(&mut self) -> Result<Node, FilterError> {
        if self.take(&["vlan"]).is_some() {
            return self.vlan();
        }
        if let Some(word) = self.take(&["less", "greater"]) {
            let number = self.value("a number of bytes", |word| word.parse::<u32>().ok())?;
            let longer = |than| Node::Test(Test::Greater { load: Load::Length, than });
            return Ok(match (word, number.checked_sub(1)) {
                ("less", _) => Node::Not(Box::new(longer(number))),
                (_, Some(than)) => longer(than),
                // Every packet has at least zero bytes.
                (_, None) => Node::All(Vec::new()),
            });
        }
        let protocol = self.take(&PROTOCOLS);
        let direction = self.take(&["src", "dst"]);
        let kind = self.take(&["host", "net", "port"]);
        let direction_is = match direction {
            Some("src") => Direction::Source,
            Some(_) => Direction::Destination,
            None => Direction::Either,
        };
        match (protocol, kind) {
            (None, None) if direction.is_none() => Err(self.error(Problem::Unknown)),
            (Some("ether"), None | Some("host")) => self.station(direction_is),
            (Some(protocol), None) if direction.is_none() => Ok(self.protocol(protocol)),
            (None | Some("tcp" | "udp"), Some("port")) => self.port(protocol, direction_is),
            (None | Some("ip" | "ip6" | "arp" | "rarp"), Some("net")) => {
                let (address, len) = self.value("a network ADDRESS/LENGTH", read_network)?;
                let node = self.address(protocol, direction_is, address, len)?;
                if has_host_bits(address, len) {
                    return Err(self.error(Problem::HostBits));
                }
                Ok(node)
            }
            (None | Some("ip" | "ip6" | "arp" | "rarp"), None | Some("host")) => {
                let address: IpAddr = self
                    .value("an IP address (names are not supported)", |word| word.parse().ok())?;
                let len = if address.is_ipv4() { 32 } else { 128 };
                self.address(protocol, direction_is, address, len)
            }
            _ => Err(self.error(Problem::Combination)),
        }
    }

    fn vlan(&mut self) -> Result<Node, FilterError> {
        if self.tags == VLAN_TAGS_MAX {
            return Err(self.error(Problem::TooLarge));
        }
        let types = TAG_TYPES.map(|ethertype| self.ethertype(ethertype));
        let mut nodes = vec![Node::Any(types.into())];
        if self.peek().is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
            let vid = self.value("a VLAN ID from 0 to 4095", |word| {
                word.parse::<u32>().ok().filter(|&vid| vid <= VID_MASK)
            })?;
            nodes.push(equal(Load::Half(self.network()), VID_MASK, vid));
        }
        self.tags += 1;
        Ok(Node::All(nodes))
    }

    /// A protocol without a further condition.
    fn protocol(&self, name: &str) -> Node {
        match name {
            "ip" => self.ethertype(IPV4),
            "ip6" => self.ethertype(IPV6),
            "arp" => self.ethertype(ARP),
            "rarp" => self.ethertype(RARP),
            "icmp" => self.over_ipv4(ICMP),
            "icmp6" => self.over_ipv6(ICMPV6),
            "tcp" => Node::Any(vec![self.over_ipv6(TCP), self.over_ipv4(TCP)]),
            _ => Node::Any(vec![self.over_ipv6(UDP), self.over_ipv4(UDP)]),
        }
    }

    fn over_ipv4(&self, protocol: u8) -> Node {
        let is_it = equal(Load::Byte(self.network() + 9), u32::MAX, protocol.into());
        Node::All(vec![self.ethertype(IPV4), is_it])
    }

    /// The protocol is directly behind the IPv6 header, or behind a fragment header.
    fn over_ipv6(&self, protocol: u8) -> Node {
        let next = Load::Byte(self.network() + 6);
        let behind = Load::Byte(self.network() + IPV6_HEADER_BYTES);
        let is_fragment = equal(next, u32::MAX, IPV6_FRAGMENT.into());
        let is_behind = equal(behind, u32::MAX, protocol.into());
        let is_next = equal(next, u32::MAX, protocol.into());
        let either = Node::Any(vec![is_next, Node::All(vec![is_fragment, is_behind])]);
        Node::All(vec![self.ethertype(IPV6), either])
    }

    fn port(&mut self, protocol: Option<&str>, direction: Direction) -> Result<Node, FilterError> {
        let port = self
            .value("a port number from 0 to 65535 (names are not supported)", |word| {
                word.parse::<u16>().ok()
            })?;
        let protocols: &[u8] = match protocol {
            Some("tcp") => &[TCP],
            Some(_) => &[UDP],
            None => &[TCP, UDP, SCTP],
        };
        let network = self.network();
        let any_of = |at: u32| {
            let is_it = |&protocol: &u8| equal(Load::Byte(at), u32::MAX, protocol.into());
            Node::Any(protocols.iter().map(is_it).collect())
        };
        let ports = |load: &dyn Fn(u32) -> Load| {
            let at = |at| equal(load(at), u32::MAX, port.into());
            sides(direction, at(0), at(2))
        };
        let behind = network + IPV6_HEADER_BYTES;
        let later = Test::AnyBit { load: Load::Half(network + 6), bits: FRAGMENT_OFFSET_MASK };
        Ok(Node::Any(vec![
            Node::All(vec![
                self.ethertype(IPV6),
                any_of(network + 6),
                ports(&|at| Load::Half(behind + at)),
            ]),
            Node::All(vec![
                self.ethertype(IPV4),
                any_of(network + 9),
                Node::Not(Box::new(Node::Test(later))),
                ports(&|at| Load::BehindIpv4 { network, at }),
            ]),
        ]))
    }

    /// Addresses that begin with the first `len` bits of `address`.
    fn address(
        &self,
        protocol: Option<&str>,
        direction: Direction,
        address: IpAddr,
        len: u32,
    ) -> Result<Node, FilterError> {
        let network = self.network();
        let sides = |ethertype, source: Node, destination: Node| {
            let at = sides(direction, source, destination);
            Node::All(vec![self.ethertype(ethertype), at])
        };
        match (address, protocol) {
            (IpAddr::V4(address), None | Some("ip" | "arp" | "rarp")) => {
                let at = |at: u32| begins_v4(network + at, address, len);
                let kinds = [
                    ("ip", sides(IPV4, at(12), at(16))),
                    ("arp", sides(ARP, at(14), at(24))),
                    ("rarp", sides(RARP, at(14), at(24))),
                ];
                let wanted = |name: &str| protocol.is_none_or(|protocol| protocol == name);
                let kinds = kinds.into_iter().filter(|(name, _)| wanted(name));
                Ok(Node::Any(kinds.map(|(_, node)| node).collect()))
            }
            (IpAddr::V6(address), None | Some("ip6")) => {
                let at = |at: u32| begins_v6(network + at, address, len);
                Ok(sides(IPV6, at(8), at(24)))
            }
            _ => Err(self.error(Problem::Combination)),
        }
    }

    fn station(&mut self, direction: Direction) -> Result<Node, FilterError> {
        let [a, b, c, d, e, f] =
            self.value("a MAC address such as 02:00:00:00:00:01", read_station)?;
        let at = |at: u32| {
            Node::All(vec![
                equal(Load::Half(at), u32::MAX, u16::from_be_bytes([a, b]).into()),
                equal(Load::Word(at + 2), u32::MAX, u32::from_be_bytes([c, d, e, f])),
            ])
        };
        Ok(sides(direction, at(6), at(0)))
    }

    fn ethertype(&self, ethertype: u16) -> Node {
        equal(Load::Half(self.network() - 2), u32::MAX, ethertype.into())
    }

    /// Offset of the network header, behind the tags.
    fn network(&self) -> u32 {
        ETHERNET_HEADER_BYTES + TAG_BYTES * self.tags
    }
}

fn equal(load: Load, mask: u32, value: u32) -> Node {
    Node::Test(Test::Equal { load, mask, value })
}

fn sides(direction: Direction, source: Node, destination: Node) -> Node {
    match direction {
        Direction::Source => source,
        Direction::Destination => destination,
        Direction::Either => Node::Any(vec![source, destination]),
    }
}

fn begins_v4(at: u32, address: Ipv4Addr, len: u32) -> Node {
    equal(Load::Word(at), mask(len), address.to_bits())
}

fn begins_v6(at: u32, address: Ipv6Addr, len: u32) -> Node {
    let words = address.to_bits().to_be_bytes();
    let words = words.as_chunks::<4>().0.iter().zip(0_u32..);
    let words = words.map(|(word, index)| {
        let bits = len.saturating_sub(32 * index).min(32);
        equal(Load::Word(at + 4 * index), mask(bits), u32::from_be_bytes(*word))
    });
    Node::All(words.collect())
}

/// Mask of the first `len` bits of a word.
fn mask(len: u32) -> u32 {
    u32::MAX.checked_shl(32 - len).unwrap_or(0)
}

/// Reads six pairs of hexadecimal digits with colons between them.
fn read_station(word: &str) -> Option<[u8; 6]> {
    let is_pair = |pair: &&str| pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit());
    let octet = |pair| Some(pair).filter(is_pair).and_then(|p| u8::from_str_radix(p, 16).ok());
    let octets: Option<Vec<u8>> = word.split(':').map(octet).collect();
    octets?.try_into().ok()
}

fn read_network(word: &str) -> Option<(IpAddr, u32)> {
    let (address, len) = word.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let len = len.parse().ok().filter(|&len| len <= most)?;
    Some((address, len))
}

fn has_host_bits(address: IpAddr, len: u32) -> bool {
    match address {
        IpAddr::V4(address) => address.to_bits() & !mask(len) != 0,
        IpAddr::V6(address) => address.to_bits().checked_shl(len).unwrap_or(0) != 0,
    }
}

const PROTOCOLS: [&str; 9] = ["ether", "ip", "ip6", "arp", "rarp", "tcp", "udp", "icmp", "icmp6"];
/// Reverse ARP (RFC 903).
const RARP: u16 = libc::ETH_P_RARP as u16;
const ARP: u16 = libc::ETH_P_ARP as u16;
const IPV4: u16 = libc::ETH_P_IP as u16;
const IPV6: u16 = libc::ETH_P_IPV6 as u16;
/// Tags of 802.1Q, of 802.1ad, and of earlier provider bridges.
const TAG_TYPES: [u16; 3] = [libc::ETH_P_8021Q as u16, libc::ETH_P_8021AD as u16, 0x9100];
const ICMP: u8 = libc::IPPROTO_ICMP as u8;
const ICMPV6: u8 = libc::IPPROTO_ICMPV6 as u8;
const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;
/// SCTP (RFC 9260).
const SCTP: u8 = libc::IPPROTO_SCTP as u8;
const IPV6_FRAGMENT: u8 = libc::IPPROTO_FRAGMENT as u8;
const ETHERNET_HEADER_BYTES: u32 = libc::ETH_HLEN as u32;
const IPV6_HEADER_BYTES: u32 = 40;
/// The offset in the field of flags and fragment offset of an IPv4 header.
const FRAGMENT_OFFSET_MASK: u32 = 0x1fff;
const TAG_BYTES: u32 = 4;
const VID_MASK: u32 = 0x0fff;
