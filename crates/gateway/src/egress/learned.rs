//! The policy that would have allowed what was seen: written while everything is allowed.

use crate::egress::address::floor_of;
use crate::egress::name::Name;
use crate::egress::rule::{FlowTo, HTTPS, Transport};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Most destinations that are noted, about 200 bytes each.
const DESTINATIONS_MAX: usize = 10_000;
/// Port of HTTP.
const HTTP: u16 = 80;

/// Destinations that flows had.
#[derive(Default)]
pub(super) struct Learned {
    seen: BTreeMap<Destination, BTreeSet<(&'static str, u16)>>,
    /// Flows that are not noted for lack of room.
    missed: u64,
}

/// A destination: its name or its address, and how it has to be allowed.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Destination {
    to: String,
    has_name: bool,
    /// Its greetings are understood.
    has_greeting: bool,
    is_closed: bool,
}

impl Learned {
    /// Notes a flow to an address that has these names. All of them: which one the flow means is
    /// in its greeting, and that is not read while everything is allowed.
    pub(super) fn note<'a>(&mut self, flow: FlowTo, names: impl Iterator<Item = &'a Name>) {
        let mut names = names.peekable();
        if names.peek().is_none() {
            self.note_as(flow, None);
        }
        names.for_each(|name| self.note_as(flow, Some(name)));
    }

    fn note_as(&mut self, flow: FlowTo, name: Option<&Name>) {
        let has_greeting = match (flow.transport, flow.port) {
            (Transport::Tcp, HTTP) | (Transport::Tcp | Transport::Udp, HTTPS) => name.is_some(),
            _ => false,
        };
        let destination = Destination {
            to: name.map_or_else(|| flow.address.to_string(), Name::to_string),
            has_name: name.is_some(),
            has_greeting,
            is_closed: floor_of(flow.address).is_some(),
        };
        if self.seen.len() >= DESTINATIONS_MAX && !self.seen.contains_key(&destination) {
            self.missed += 1;
            return;
        }
        let transport = match flow.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
            Transport::Icmp => "icmp",
        };
        self.seen.entry(destination).or_default().insert((transport, flow.port));
    }

    /// Returns the policy as a file.
    pub(super) fn policy(&self) -> String {
        let mut text = "[egress]\ndefault = \"deny\"\n".to_owned();
        for ((destination, ports), number) in self.seen.iter().zip(1..) {
            let port = |(transport, port): &(&str, u16)| match port {
                0 => format!("\"{transport}\""),
                port => format!("\"{transport}/{port}\""),
            };
            let ports = ports.iter().map(port).collect::<Vec<_>>().join(", ");
            let Destination { to, has_name, has_greeting, is_closed } = destination;
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "\n[[egress.rule]]\nid = \"learned-{number}\"\naction = \"allow\"\n\
                 to = \"{to}\"\nports = [{ports}]\n"
            );
            if *has_name && !has_greeting {
                text.push_str("check = \"dns\"\n");
            }
            if *is_closed {
                text.push_str("override-floor = true\n");
            }
        }
        if self.missed > 0 {
            let _ = write!(text, "\n# {} more flows had no room here.\n", self.missed);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> impl Iterator<Item = &'static Name> {
        std::iter::empty()
    }

    /// Goal: each flow becomes a rule, for each name of its address.
    #[test]
    fn flows_become_rules() {
        let mut learned = Learned::default();
        let flow = |text: &str| text.parse::<FlowTo>().unwrap();
        let name: Name = "a.example".parse().unwrap();
        for port in [443, 80, 443] {
            learned.note(flow(&format!("tcp://192.0.2.1:{port}")), [&name].into_iter());
        }
        let other: Name = "b.example".parse().unwrap();
        learned.note(flow("tcp://192.0.2.1:22"), [&name, &other].into_iter());
        learned.note(flow("udp://10.0.0.1:5000"), none());
        learned.note(flow("icmp://192.0.2.7"), none());
        assert_eq!(
            learned.policy(),
            r#"[egress]
default = "deny"

[[egress.rule]]
id = "learned-1"
action = "allow"
to = "10.0.0.1"
ports = ["udp/5000"]
override-floor = true

[[egress.rule]]
id = "learned-2"
action = "allow"
to = "192.0.2.7"
ports = ["icmp"]

[[egress.rule]]
id = "learned-3"
action = "allow"
to = "a.example"
ports = ["tcp/22"]
check = "dns"

[[egress.rule]]
id = "learned-4"
action = "allow"
to = "a.example"
ports = ["tcp/80", "tcp/443"]

[[egress.rule]]
id = "learned-5"
action = "allow"
to = "b.example"
ports = ["tcp/22"]
check = "dns"
"#
        );
        for number in 0..DESTINATIONS_MAX as u32 + 7 {
            let address = std::net::Ipv4Addr::from_bits(0x0b00_0000 + number);
            learned.note(flow(&format!("tcp://{address}:1")), none());
        }
        assert_eq!(learned.seen.len(), DESTINATIONS_MAX);
        assert!(learned.policy().ends_with("\n# 12 more flows had no room here.\n"));
    }
}
