//! A rule of a policy.

use crate::egress::address::{Net, NetError};
use crate::egress::name::{Name, NameError, NamePattern};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// What a rule, or the policy without a matching rule, decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The flow is allowed.
    Allow,
    /// The flow is denied.
    Deny,
}

/// Protocols of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP, including QUIC.
    Udp,
    /// Echo requests of ICMP and ICMPv6.
    Icmp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        })
    }
}

/// How a name of a rule is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The name must have resolved to the address, and the client's greeting must have it: the
    /// server name of TLS or QUIC, or HTTP's Host.
    Greeting,
    /// The name must have resolved to the address. For protocols whose greeting has no name, such
    /// as SSH: every other name of that address is reached as well.
    Dns,
}

/// Ports of a protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The protocol.
    pub transport: Transport,
    /// The ports; all of them for ICMP, which has none.
    pub range: RangeInclusive<u16>,
}

impl Ports {
    fn contain(&self, transport: Transport, port: u16) -> bool {
        self.transport == transport && self.range.contains(&port)
    }
}

impl FromStr for Ports {
    type Err = PortsError;

    fn from_str(text: &str) -> Result<Self, PortsError> {
        let (transport, ports) = match text.split_once('/') {
            Some((transport, ports)) => (transport, Some(ports)),
            None => (text, None),
        };
        let transport = match transport {
            "tcp" => Transport::Tcp,
            "udp" => Transport::Udp,
            "icmp" => Transport::Icmp,
            _ => return Err(PortsError::Protocol),
        };
        let range = match ports {
            None => 0..=u16::MAX,
            Some(_) if transport == Transport::Icmp => return Err(PortsError::Icmp),
            Some(ports) => {
                let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
                let port = |text: &str| {
                    let is_number = text.bytes().all(|c| c.is_ascii_digit());
                    text.parse::<u16>().ok().filter(|port| is_number && *port > 0)
                };
                let (first, last) = port(first).zip(port(last)).ok_or(PortsError::Port)?;
                if first > last {
                    return Err(PortsError::Order);
                }
                first..=last
            }
        };
        Ok(Self { transport, range })
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.range.start(), self.range.end());
        match (first, last) {
            (0, &u16::MAX) => write!(f, "{}", self.transport),
            (first, last) if first == last => write!(f, "{}/{first}", self.transport),
            (first, last) => write!(f, "{}/{first}-{last}", self.transport),
        }
    }
}

/// Why a text names no ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortsError {
    /// The protocol is unknown.
    #[error("expected tcp, udp or icmp, and ports such as tcp/443 or udp/5000-5100")]
    Protocol,
    /// A port is out of range.
    #[error("a port must be a number from 1 to 65535")]
    Port,
    /// The range ends before it begins.
    #[error("the range ends before it begins")]
    Order,
    /// ICMP has no ports.
    #[error("icmp has no ports; write icmp")]
    Icmp,
}

/// Port of HTTPS.
pub(super) const HTTPS: u16 = 443;

/// A destination of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Every address.
    Anywhere,
    /// The addresses that names resolve to.
    Name(NamePattern),
    /// Addresses.
    Net(Net),
}

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(text: &str) -> Result<Self, DestinationError> {
        let is_scheme = text.contains("://");
        let is_v6 = text.matches(':').count() > 1;
        let begins_as_v4 = text.split('.').next().is_some_and(|part| part.parse::<u8>().is_ok());
        match text {
            "*" => Ok(Self::Anywhere),
            _ if is_scheme => Err(DestinationError::Scheme),
            _ if text.contains('/') || is_v6 || begins_as_v4 => Ok(Self::Net(text.parse()?)),
            _ if text.contains(':') => Err(DestinationError::Port),
            _ => Ok(Self::Name(text.parse()?)),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anywhere => f.write_str("*"),
            Self::Name(pattern) => write!(f, "{pattern}"),
            Self::Net(net) => write!(f, "{net}"),
        }
    }
}

/// Why a text is no destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    /// It is a URL.
    #[error("expected a name without a scheme such as https://")]
    Scheme,
    /// It has a port.
    #[error("it ends with a port; give ports in 'ports', such as tcp/443")]
    Port,
    /// It is no name.
    #[error("{0}")]
    Name(#[from] NameError),
    /// It is no network.
    #[error("{0}")]
    Net(#[from] NetError),
}

/// Bounds of the flows of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most flows at once.
    pub flows: Option<u32>,
    /// Most flows that begin in a second. As many may begin at once after a quiet second.
    pub new_flows: Option<u32>,
    /// Most bits of payload in a second from the guest.
    pub bandwidth_out: Option<u64>,
    /// Most bits of payload in a second to the guest.
    pub bandwidth_in: Option<u64>,
    /// Most bytes of payload in all, both ways together.
    pub quota: Option<u64>,
}

impl Limits {
    /// Returns true if nothing is bounded.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if the number of flows is bounded, at once or in a second.
    pub(super) fn bound_flows(&self) -> bool {
        self.flows.is_some() || self.new_flows.is_some()
    }

    /// Returns true if bytes are bounded, in a second or in all.
    pub(super) fn bound_bytes(&self) -> bool {
        self.bandwidth_out.is_some() || self.bandwidth_in.is_some() || self.quota.is_some()
    }
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Names the rule in reports and audits.
    pub id: String,
    /// What it decides.
    pub action: Action,
    /// Destinations; a flow to one of them matches.
    pub to: Vec<Destination>,
    /// Protocols and ports; a flow of one of them matches. Every flow matches an empty list.
    pub ports: Vec<Ports>,
    /// How names of `to` are checked.
    pub check: Check,
    /// It also allows addresses that have a [floor](crate::egress::address::Floor).
    pub overrides_floor: bool,
    /// The rule matches nothing from then on, in seconds since 1970-01-01 UTC.
    pub expires: Option<u64>,
    /// Bounds of the flows that the rule allows to each guest.
    pub limits: Limits,
}

impl Rule {
    /// Returns true if the rule is meant for this resolver: it names its port, and for HTTPS its
    /// name or its address as well.
    pub(super) fn names_resolver(&self, flow: FlowTo, name: Option<&Name>) -> bool {
        let is_its = |to: &Destination| match to {
            Destination::Name(NamePattern::Exact(exact)) => Some(exact) == name,
            Destination::Net(net) => net.is_host(),
            Destination::Anywhere | Destination::Name(NamePattern::Below(_)) => false,
        };
        let is_dns = flow.port != HTTPS;
        is_dns && !self.ports.is_empty() || self.to.iter().any(is_its)
    }

    /// Returns true if the rule is for this protocol and port, at this time.
    pub(super) fn is_for(&self, transport: Transport, port: u16, unix_time: u64) -> bool {
        self.expires.is_none_or(|end| unix_time < end)
            && (self.ports.is_empty() || self.ports.iter().any(|p| p.contain(transport, port)))
    }
}

/// A flow to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTo {
    /// Its protocol.
    pub transport: Transport,
    /// Its destination.
    pub address: IpAddr,
    /// Its destination's port; 0 for ICMP.
    pub port: u16,
}

impl FromStr for FlowTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected a flow such as tcp://192.0.2.1:443, udp://[2001:db8::1]:53 or \
                        icmp://192.0.2.1";
        let (transport, to) = text.split_once("://").ok_or(expected)?;
        let transport = match transport {
            "tcp" => Transport::Tcp,
            "udp" => Transport::Udp,
            "icmp" => Transport::Icmp,
            _ => return Err(expected.to_owned()),
        };
        if transport == Transport::Icmp {
            let address = to.parse().map_err(|_| expected)?;
            return Ok(Self { transport, address, port: 0 });
        }
        let to: SocketAddr = to.parse().map_err(|_| expected)?;
        Ok(Self { transport, address: to.ip(), port: to.port() })
    }
}

impl fmt::Display for FlowTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.transport, self.address) {
            (Transport::Icmp, address) => write!(f, "icmp://{address}"),
            (transport, IpAddr::V4(v4)) => write!(f, "{transport}://{v4}:{}", self.port),
            (transport, IpAddr::V6(v6)) => write!(f, "{transport}://[{v6}]:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_written_as_they_were_read() {
        for text in ["tcp://192.0.2.1:443", "udp://[2001:db8::1]:53", "icmp://2001:db8::1"] {
            assert_eq!(text.parse::<FlowTo>().unwrap().to_string(), text);
        }
        for text in ["", "192.0.2.1:443", "tcp://192.0.2.1", "icmp://192.0.2.1:8", "sctp://[::]:1"]
        {
            assert!(text.parse::<FlowTo>().is_err(), "{text}");
        }
    }

    #[test]
    fn ports_are_written_as_they_were_read() {
        for text in ["tcp", "udp", "icmp", "tcp/443", "udp/5000-5100", "tcp/1-65535"] {
            assert_eq!(text.parse::<Ports>().unwrap().to_string(), text);
        }
    }

    /// Bad input: unknown protocols, ports out of range, signs, spaces, ranges backwards.
    #[test]
    fn other_texts_are_refused() {
        for (text, error) in [
            ("", PortsError::Protocol),
            ("443", PortsError::Protocol),
            ("TCP/443", PortsError::Protocol),
            ("sctp/1", PortsError::Protocol),
            ("tcp/", PortsError::Port),
            ("tcp/0", PortsError::Port),
            ("tcp/65536", PortsError::Port),
            ("tcp/+1", PortsError::Port),
            ("tcp/ 1", PortsError::Port),
            ("tcp/1-", PortsError::Port),
            ("tcp/9-1", PortsError::Order),
            ("icmp/8", PortsError::Icmp),
        ] {
            assert_eq!(text.parse::<Ports>(), Err(error), "{text:?}");
        }
    }
}
