//! Forwarded ports: published ports lead from the host to the program, joined ports from the
//! program's loopback to the host's.
//!
//! The text form of published ports is that of pasta's `-t` and `-u`: a comma-separated list of
//! `PORT[-PORT][:[ADDR/]PORT[-PORT]]` and `PORT[-PORT]:ADDR`, optionally prefixed as a whole by
//! `ADDR/`, `ADDR%IF/` or `%IF/`, with exclusions `~PORT[-PORT]`; or `ADDR:PORT:PORT` as Docker
//! writes it, an IPv6 address in brackets; or one of the words `none` and `all[:ADDR]`. A list of
//! exclusions alone means all ports except those. An address behind the colon is one inside. The
//! text form of joined ports is that of pasta's `-T` and `-U`: a list of the same form, the
//! program's port first, without addresses and without a form for all ports.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Most published ports: every port of both protocols once.
pub const PUBLISH_MAX: usize = 2 * u16::MAX as usize;
/// Most joined ports of both protocols: with one socket for each loopback address, they take half
/// of a usual limit of 1,024 descriptors.
pub const JOINED_PORTS_MAX: usize = 256;
/// Longest name of a network interface in bytes (`IFNAMSIZ` less the final NUL).
pub const INTERFACE_NAME_BYTES_MAX: usize = 15;

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A port of the host that leads to a port of the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Publish {
    /// Protocol on both sides.
    pub protocol: Protocol,
    /// Address of the host; `None`: all IPv4 and IPv6 addresses.
    pub host: Option<IpAddr>,
    /// Network interface of the host; `None`: all interfaces.
    pub interface: Option<String>,
    /// Port on the host.
    pub host_port: u16,
    /// Port of the program, or of the guest.
    pub program_port: u16,
    /// Which program or guest that port belongs to.
    pub target: Target,
    /// The port is one of "all": it is not an error if it cannot be bound on the host.
    pub optional: bool,
}

/// A TCP port of the program's loopback that leads to a port of the host's loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JoinedPort {
    /// Port of the program's loopback.
    pub inside: u16,
    /// Port of the host's loopback.
    pub host: u16,
}

/// Where a published port leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The program.
    Program,
    /// The guest with this address.
    Address(IpAddr),
    /// The guest at the port with this name, else the guest with this host name.
    Guest(String),
}

/// Identifies a published port of a gateway. A port that is published again has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublishId(pub u64);

/// A change of published ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortChange {
    /// Publishes ports of the host.
    Publish(Vec<Publish>, Existing),
    /// Unpublishes these ports of a target, or all of them.
    Unpublish(Target, Option<Vec<HostPort>>),
}

/// The name in requests of the program that an instance serves, in place of a guest's name.
pub const PROGRAM: &str = "program";

/// What to do with a port that is to be published and is published already, to the same port of the
/// same target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Reject it.
    #[default]
    Reject,
    /// Leave it as it is.
    Keep,
}

/// The port of the host that a published port occupies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// The protocol.
    pub protocol: Protocol,
    /// The address; `None`: all addresses.
    pub address: Option<IpAddr>,
    /// The network interface; `None`: all interfaces.
    pub interface: Option<String>,
    /// The port number.
    pub port: u16,
}

impl Publish {
    /// Returns the port of the host that it occupies.
    pub fn host_port(&self) -> HostPort {
        HostPort {
            protocol: self.protocol,
            address: self.host,
            interface: self.interface.clone(),
            port: self.host_port,
        }
    }
}

impl Target {
    /// Parses a guest: its address or its name.
    pub fn guest(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Guest(text.to_owned()), Self::Address)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program => f.write_str("the program"),
            Self::Address(address) => write!(f, "{address}"),
            Self::Guest(name) => f.write_str(name),
        }
    }
}

/// The form of a specification, after the protocol.
impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.protocol {
            Protocol::Tcp => "TCP ",
            Protocol::Udp => "UDP ",
        })?;
        match (&self.address, &self.interface) {
            (Some(address), Some(interface)) => write!(f, "{address}%{interface}/")?,
            (Some(address), None) => write!(f, "{address}/")?,
            (None, Some(interface)) => write!(f, "%{interface}/")?,
            (None, None) => {}
        }
        write!(f, "{}", self.port)
    }
}

/// A specification that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("port specification '{spec}': {problem}")]
pub struct PublishError {
    /// The text of the specification.
    pub spec: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// `auto`, for a network or a change.
    #[error("'auto' is not supported here, only by `run` and `attach`; list the ports")]
    Auto,
    /// `auto` in a list or behind an address.
    #[error(
        "'auto' stands alone, without an address; for further ports repeat the option, as in \
         -t auto -t 8080:80"
    )]
    AutoAmong,
    /// An empty item, or an empty specification.
    #[error("a port is missing; expected for example 8080:80")]
    Empty,
    /// Not a number from 1 to 65535.
    #[error("'{0}' is not a port; expected a number from 1 to 65535")]
    Port(String),
    /// A range whose end comes before its start.
    #[error("'{0}' is not a range of ports; the first must not be above the last")]
    Range(String),
    /// Ranges of different lengths on both sides of a colon.
    #[error("'{0}' has ranges of different lengths before and after ':'")]
    Lengths(String),
    /// An exclusion with a colon.
    #[error("'{0}' excludes ports and cannot have ':'")]
    ExclusionTarget(String),
    /// Not an IP address.
    #[error("'{0}' before '/' is not an IP address")]
    Address(String),
    /// An address that is followed by a colon, as other tools write it. Contains the form that was
    /// meant.
    #[error("separate the address by '/': {0}")]
    AddressByColon(String),
    /// Not an address inside that ports can lead to.
    #[error("'{0}' is not the unicast address of a network; ports cannot lead there")]
    Target(String),
    /// Datagrams that would have to change their IP version.
    #[error("datagrams at {0} cannot reach {1}: the IP versions differ")]
    Families(IpAddr, IpAddr),
    /// Not the name of a network interface.
    #[error("'{0}' after '%' is not a valid name for a network interface")]
    Interface(String),
    /// A port that would lead to two others.
    #[error("port {0} is given twice")]
    Twice(u16),
    /// `none` or `all` together with other specifications.
    #[error("'{0}' cannot be combined with other specifications of the same protocol")]
    Alone(&'static str),
    /// A joined port with an address or an interface.
    #[error("'{0}' has an address or interface; give ports only, which are those of the loopback")]
    LoopbackOnly(String),
    /// All ports, where every port has to be listed.
    #[error("'{0}' means all ports; list the ports to forward to the host's loopback")]
    AllJoined(String),
    /// No port remains.
    #[error("the exclusions leave no port")]
    NothingLeft,
}

/// Parses all specifications of one protocol. A specification that means all ports leaves out
/// `ephemeral`, the ports that the host assigns by itself.
///
/// # Errors
/// [`PublishError`] for the first specification that cannot be parsed.
pub fn parse(
    protocol: Protocol,
    specs: &[String],
    ephemeral: &RangeInclusive<u16>,
) -> Result<Vec<Publish>, PublishError> {
    let mut published = Vec::new();
    let mut taken = HashSet::new();
    for spec in specs {
        let error = |problem| PublishError { spec: spec.clone(), problem };
        for word in ["none", "all"] {
            if spec == word && specs.len() > 1 {
                return Err(error(Problem::Alone(word)));
            }
        }
        for publish in parse_one(protocol, spec, ephemeral).map_err(error)? {
            let key = (publish.host, publish.interface.clone(), publish.host_port);
            if !taken.insert(key) {
                return Err(error(Problem::Twice(publish.host_port)));
            }
            published.push(publish);
        }
    }
    Ok(published)
}

/// Parses all specifications of joined ports.
///
/// # Errors
/// [`PublishError`] for the first specification that cannot be parsed.
pub fn parse_joined(specs: &[String]) -> Result<Vec<JoinedPort>, PublishError> {
    let mut joined: Vec<JoinedPort> = Vec::new();
    let mut taken = HashSet::new();
    for spec in specs {
        let error = |problem| PublishError { spec: spec.clone(), problem };
        if spec == "none" && specs.len() > 1 {
            return Err(error(Problem::Alone("none")));
        }
        for port in parse_one_joined(spec).map_err(error)? {
            if !taken.insert(port.inside) {
                return Err(error(Problem::Twice(port.inside)));
            }
            joined.push(port);
        }
    }
    Ok(joined)
}

fn parse_one_joined(spec: &str) -> Result<Vec<JoinedPort>, Problem> {
    match spec {
        "auto" => return Err(Problem::Auto),
        "none" => return Ok(Vec::new()),
        _ if spec.contains(['/', '%']) => return Err(Problem::LoopbackOnly(spec.into())),
        _ => {}
    }
    let Mapping { wanted, excluded, .. } = parse_list(spec)?;
    if wanted.is_empty() {
        return Err(Problem::AllJoined(spec.into()));
    }
    if wanted.iter().any(|wanted| wanted.target.is_some()) {
        return Err(Problem::LoopbackOnly(spec.into()));
    }
    let is_left = |port: &Wanted| !excluded.iter().any(|range| range.contains(&port.from));
    let ports = wanted.into_iter().filter(is_left);
    let joined: Vec<_> =
        ports.map(|Wanted { from, to, .. }| JoinedPort { inside: from, host: to }).collect();
    if joined.is_empty() { Err(Problem::NothingLeft) } else { Ok(joined) }
}

fn parse_one(
    protocol: Protocol,
    spec: &str,
    ephemeral: &RangeInclusive<u16>,
) -> Result<Vec<Publish>, Problem> {
    match spec {
        "auto" => return Err(Problem::Auto),
        "none" => return Ok(Vec::new()),
        _ => {}
    }
    let (prefix, list) = match spec.split_once('/') {
        Some((prefix, _)) if ends_with_target(prefix) => (None, spec),
        Some((prefix, list)) => (Some(prefix), list),
        None => address_by_colon(spec)?,
    };
    let (host, interface) = parse_prefix(prefix)?;
    let Mapping { wanted, excluded, all_to } = parse_list(list)?;
    let all = wanted.is_empty();
    let candidates = if all {
        let is_free = |port: &u16| !ephemeral.contains(port);
        let all = (1..=u16::MAX).filter(is_free);
        all.map(|port| Wanted { from: port, to: port, target: all_to }).collect()
    } else {
        wanted
    };
    let changes_version = |port: &Wanted| match (protocol, host, port.target) {
        (Protocol::Udp, Some(host), Some(target)) if host.is_ipv4() != target.is_ipv4() => {
            Some(Problem::Families(host, target))
        }
        _ => None,
    };
    if let Some(problem) = candidates.iter().find_map(changes_version) {
        return Err(problem);
    }
    let published: Vec<Publish> = candidates
        .into_iter()
        .filter(|wanted| !excluded.iter().any(|range| range.contains(&wanted.from)))
        .map(|Wanted { from, to, target }| Publish {
            protocol,
            host,
            interface: interface.clone(),
            host_port: from,
            program_port: to,
            target: target.map_or(Target::Program, Target::Address),
            optional: all,
        })
        .collect();
    if published.is_empty() { Err(Problem::NothingLeft) } else { Ok(published) }
}

/// True if what precedes the first slash of a specification ends with the address of a target,
/// behind a port and a colon, and so is not the prefix. An address such as `80:1::2` is a prefix: a
/// target needs brackets there.
fn ends_with_target(text: &str) -> bool {
    let last = text.rsplit_once(',').map_or(text, |(_, last)| last);
    let target = last.split_once(':').filter(|(ports, _)| parse_range(ports).is_ok());
    target.is_some_and(|(_, address)| unbracketed(address).parse::<IpAddr>().is_ok())
        && text.parse::<IpAddr>().is_err()
}

fn parse_prefix(prefix: Option<&str>) -> Result<(Option<IpAddr>, Option<String>), Problem> {
    let Some(prefix) = prefix else { return Ok((None, None)) };
    let (address, interface) = match prefix.split_once('%') {
        Some((address, interface)) => (address, Some(parse_interface(interface)?)),
        None => (prefix, None),
    };
    let host = match (unbracketed(address).parse(), &interface) {
        (Ok(host), _) => Some(host),
        (Err(_), Some(_)) if address.is_empty() => None,
        (Err(_), _) => return Err(Problem::Address(address.into())),
    };
    Ok((host, interface))
}

/// Returns an address without the brackets around it, if it has some.
fn unbracketed(address: &str) -> &str {
    address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address)
}

/// Splits `ADDR:PORT:PORT`, as Docker writes it, into address and ports. An IPv6 address needs
/// brackets: `::1:80:80` is an address by itself.
fn address_by_colon(spec: &str) -> Result<(Option<&str>, &str), Problem> {
    let ports = |(at, _): (usize, &str)| spec[..at].rfind(':');
    let Some(at) = spec.rmatch_indices(':').next().and_then(ports) else { return Ok((None, spec)) };
    let (address, list) = (&spec[..at], &spec[at + 1..]);
    let inner = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match inner.unwrap_or(address).parse() {
        Ok(IpAddr::V4(_)) if inner.is_none() => Ok((Some(address), list)),
        Ok(IpAddr::V6(_)) if inner.is_some() => Ok((Some(address), list)),
        Ok(address) => Err(Problem::AddressByColon(format!("{address}/{list}"))),
        Err(_) => Ok((None, spec)),
    }
}

fn parse_interface(name: &str) -> Result<String, Problem> {
    if is_interface_name(name) { Ok(name.into()) } else { Err(Problem::Interface(name.into())) }
}

/// Returns true if the kernel accepts `name` for a network interface.
pub fn is_interface_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let fits = (1..=INTERFACE_NAME_BYTES_MAX).contains(&bytes.len());
    let allowed = |byte: &u8| !matches!(byte, b'/' | b':' | 0) && !byte.is_ascii_whitespace();
    fits && name != "." && name != ".." && bytes.iter().all(allowed)
}

/// The ports of a list: those before and after the colon, and the excluded ones. No wanted port
/// means all.
struct Mapping {
    wanted: Vec<Wanted>,
    excluded: Vec<RangeInclusive<u16>>,
    /// Where all ports lead.
    all_to: Option<IpAddr>,
}

/// A port before the colon, the port after it, and the address there.
struct Wanted {
    from: u16,
    to: u16,
    target: Option<IpAddr>,
}

fn parse_list(list: &str) -> Result<Mapping, Problem> {
    let mut mapping = Mapping { wanted: Vec::new(), excluded: Vec::new(), all_to: None };
    let all_to = list.strip_prefix("all").and_then(|rest| rest.strip_prefix(':'));
    mapping.all_to = all_to.map(parse_target).transpose()?;
    if list == "all" || all_to.is_some() {
        return Ok(mapping);
    }
    for item in list.split(',') {
        if item == "auto" {
            return Err(Problem::AutoAmong);
        }
        if let Some(range) = item.strip_prefix('~') {
            if range.contains(':') {
                return Err(Problem::ExclusionTarget(item.into()));
            }
            mapping.excluded.push(parse_range(range)?);
            continue;
        }
        let (before, after) = item.split_once(':').unwrap_or((item, item));
        let before = parse_range(before)?;
        let (target, after) = match after.rsplit_once('/') {
            Some((address, ports)) => (Some(parse_target(address)?), parse_range(ports)?),
            None if unbracketed(after).parse::<IpAddr>().is_ok() => {
                (Some(parse_target(after)?), before.clone())
            }
            None => (None, parse_range(after)?),
        };
        if before.len() != after.len() {
            return Err(Problem::Lengths(item.into()));
        }
        if mapping.wanted.len() + before.len() > usize::from(u16::MAX) {
            return Err(Problem::Twice(*before.start()));
        }
        let both = before.zip(after);
        mapping.wanted.extend(both.map(|(from, to)| Wanted { from, to, target }));
    }
    Ok(mapping)
}

/// Parses an address inside that ports lead to.
fn parse_target(text: &str) -> Result<IpAddr, Problem> {
    let address: Option<IpAddr> = unbracketed(text).parse().ok();
    address.filter(|ip| is_target(*ip)).ok_or_else(|| Problem::Target(text.into()))
}

/// Returns true if ports can lead to this address inside: it is a unicast address of a network.
pub fn is_target(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_loopback()
}

fn parse_range(text: &str) -> Result<RangeInclusive<u16>, Problem> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = parse_port(first)?..=parse_port(last)?;
    if range.is_empty() { Err(Problem::Range(text.into())) } else { Ok(range) }
}

fn parse_port(text: &str) -> Result<u16, Problem> {
    if text.is_empty() {
        return Err(Problem::Empty);
    }
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(port) if port > 0 && digits => Ok(port),
        _ => Err(Problem::Port(text.into())),
    }
}

#[cfg(test)]
mod tests;
