//! Finds the rules that are for a name or an address.
//!
//! # Networks
//!
//! Two networks of one IP version are disjoint, or one is inside the other. So if they are sorted
//! by their first address, and large before small, each one follows those that it is inside. The
//! last one whose first address is not above an address is the smallest that may contain it, and
//! all others that do are around that one. Each network knows the smallest one around it. A lookup
//! is a binary search, and at most as many steps outwards as a prefix has lengths.
//!
//! # Cost
//!
//! A lookup takes no memory. It compares about `log2(n)` networks of `n` for each
//! [form](crate::egress::address::forms) of the address, and looks up each part of the name.

use crate::egress::address::{Net, forms};
use crate::egress::name::{Name, NamePattern};
use crate::egress::rule::{Destination, Rule};
use std::collections::HashMap;
use std::iter::{once, successors};
use std::net::IpAddr;
use std::ops::Range;

/// The rules of a policy by their destinations. Lists of rules have their numbers, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// Rules for one name.
    exact: HashMap<Name, Vec<u32>>,
    /// Rules for the names below one.
    below: HashMap<Name, Vec<u32>>,
    v4: Nets,
    v6: Nets,
    anywhere: Vec<u32>,
}

/// Networks of one IP version. See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Nets {
    nodes: Vec<Node>,
    /// The rules of all nodes, one node after the other.
    rules: Vec<u32>,
}

/// A network.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    net: Net,
    first: u128,
    /// The smallest network around it.
    around: Option<u32>,
    /// Where its rules are.
    rules: Range<u32>,
}

impl Index {
    /// Makes an index of at most `u32::MAX` destinations.
    pub(super) fn new(rules: &[Rule]) -> Self {
        let mut index = Self::default();
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (number, rule) in (0..).zip(rules) {
            for destination in &rule.to {
                match destination {
                    Destination::Anywhere => index.anywhere.push(number),
                    Destination::Net(net) if net.first().is_ipv4() => v4.push((*net, number)),
                    Destination::Net(net) => v6.push((*net, number)),
                    Destination::Name(NamePattern::Exact(name)) => {
                        index.exact.entry(name.clone()).or_default().push(number);
                    }
                    Destination::Name(NamePattern::Below(name)) => {
                        index.below.entry(name.clone()).or_default().push(number);
                    }
                }
            }
        }
        Self { v4: Nets::new(v4), v6: Nets::new(v6), ..index }
    }

    /// Returns the rules that are for exactly this name.
    pub(super) fn for_exactly(&self, name: &Name) -> &[u32] {
        self.exact.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns lists of the rules that are for this name.
    pub(super) fn for_name<'a>(&'a self, name: &'a Name) -> impl Iterator<Item = &'a [u32]> {
        let below = name.parents().filter_map(|parent| self.below.get(parent));
        once(self.for_exactly(name)).chain(below.map(Vec::as_slice))
    }

    /// Returns lists of the rules that are for this address, in any of its forms.
    pub(super) fn for_address(&self, address: IpAddr) -> impl Iterator<Item = &[u32]> {
        let nets = forms(address).flat_map(|form| match form {
            IpAddr::V4(_) => self.v4.containing(form),
            IpAddr::V6(_) => self.v6.containing(form),
        });
        nets.chain(once(self.for_anywhere()))
    }

    /// Returns the rules that are for every address.
    pub(super) fn for_anywhere(&self) -> &[u32] {
        &self.anywhere
    }
}

impl Nets {
    fn new(mut nets: Vec<(Net, u32)>) -> Self {
        nets.sort_unstable_by_key(|(net, rule)| (bits(net.first()), net.prefix_len(), *rule));
        let (mut nodes, mut rules) = (Vec::<Node>::new(), Vec::new());
        for (net, rule) in nets {
            let begin = rules.len() as u32;
            rules.push(rule);
            if let Some(last) = nodes.last_mut().filter(|last| last.net == net) {
                last.rules.end = begin + 1;
                continue;
            }
            let outwards = |at: &u32| nodes[*at as usize].around;
            let mut outer = successors((nodes.len() as u32).checked_sub(1), outwards);
            let around = outer.find(|at| nodes[*at as usize].net.contains(net.first()));
            let first = bits(net.first());
            nodes.push(Node { net, first, around, rules: begin..begin + 1 });
        }
        Self { nodes, rules }
    }

    /// Returns the rules of each network that contains an address of their IP version.
    fn containing(&self, address: IpAddr) -> impl Iterator<Item = &[u32]> {
        let wanted = bits(address);
        let behind = self.nodes.partition_point(|node| node.first <= wanted);
        let last = self.nodes[..behind].last();
        let outer = successors(last, |node| node.around.map(|at| &self.nodes[at as usize]));
        let containing = outer.filter(move |node| node.net.contains(address));
        containing.map(|node| &self.rules[node.rules.start as usize..node.rules.end as usize])
    }
}

/// Returns the first rule in the lists that `matches`.
pub(super) fn first_rule<'a>(
    lists: impl Iterator<Item = &'a [u32]>,
    matches: impl Fn(u32) -> bool,
) -> Option<u32> {
    lists.fold(None, |first: Option<u32>, list| {
        let mut before = list.iter().take_while(|rule| first.is_none_or(|it| **rule < it));
        before.find(|rule| matches(**rule)).copied().or(first)
    })
}

/// Returns an address as a number.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::address::NetError;
    use crate::egress::rule::{Action, Check, Limits, Ports, Transport};
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// Returns the rules for a destination that match, compared one by one.
    fn naive(rules: &[Rule], is_its: impl Fn(&Destination) -> bool) -> Vec<usize> {
        let numbered = rules.iter().enumerate().filter(|(_, rule)| rule.to.iter().any(&is_its));
        numbered.map(|(number, _)| number).collect()
    }

    /// Addresses that share prefixes of all lengths, in all forms.
    fn address() -> impl Strategy<Value = IpAddr> {
        let v4 = (0..4u32, 0..4u32, 0..3u32).prop_map(|(high, middle, low)| {
            Ipv4Addr::from_bits(0x0a00_0000 ^ high << 30 ^ middle << 15 ^ low)
        });
        let inside = (v4, 0..7).prop_map(|(v4, form)| {
            let [a, b, c, d] = v4.octets().map(u16::from);
            let (high, low) = (a << 8 | b, c << 8 | d);
            match form {
                0 => IpAddr::V6(v4.to_ipv6_mapped()),
                1 => Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low).into(),
                2 => Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low).into(),
                3 => Ipv6Addr::new(0x64, 0xff9b, 1, high, c, d << 8, 0, 0).into(),
                4 => Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1).into(),
                _ => IpAddr::V4(v4),
            }
        });
        let v6 = (0..4u128, 0..4u128, 0..3u128)
            .prop_map(|(a, b, c)| Ipv6Addr::from_bits(a << 126 ^ b << 64 ^ c).into());
        prop_oneof![2 => inside, 1 => v6]
    }

    fn destination() -> impl Strategy<Value = Destination> {
        let net = (address(), 0..=128u8).prop_map(|(address, len)| {
            let len = if address.is_ipv4() { len % 33 } else { len };
            match format!("{address}/{len}").parse() {
                Ok(net) | Err(NetError::Host(net)) => Destination::Net(net),
                Err(error) => panic!("{error}"),
            }
        });
        let name = prop_oneof!["[ab](\\.[ab]){0,2}", "\\*\\.[ab](\\.[ab]){0,1}"]
            .prop_map(|text| text.parse().unwrap());
        prop_oneof![8 => net, 3 => name, 1 => Just(Destination::Anywhere)]
    }

    fn rule() -> impl Strategy<Value = Rule> {
        let ports = ["tcp", "tcp/22", "udp/1-30", "icmp", "udp", "tcp/1-22"];
        let ports = ports.map(|text| text.parse::<Ports>().unwrap());
        let ports = proptest::collection::vec(proptest::sample::select(ports.to_vec()), 0..3);
        let to = proptest::collection::vec(destination(), 1..4);
        (to, ports, proptest::option::of(0..4u64)).prop_map(|(to, ports, expires)| Rule {
            id: String::new(),
            action: Action::Allow,
            to,
            ports,
            check: Check::Greeting,
            overrides_floor: false,
            expires,
            limits: Limits::default(),
        })
    }

    proptest! {
        /// Goal: the first rule that matches is the one that a search through all rules finds, for
        /// nested, equal and disjoint networks of both versions, addresses inside addresses, names,
        /// ports, protocols and rules that expire.
        #[test]
        fn the_first_rule_is_found(
            rules in proptest::collection::vec(rule(), 0..20),
            addresses in proptest::collection::vec(address(), 8),
            name in "[ab](\\.[ab]){0,3}",
            (port, time) in (21..24u16, 0..5u64),
        ) {
            let index = Index::new(&rules);
            let name: Name = name.parse().unwrap();
            let transports = [Transport::Tcp, Transport::Udp, Transport::Icmp];
            let for_name = naive(&rules, |to| match to {
                Destination::Name(NamePattern::Exact(exact)) => *exact == name,
                Destination::Name(NamePattern::Below(above)) => {
                    name.as_str().ends_with(&format!(".{above}"))
                }
                _ => false,
            });
            for transport in transports {
                let matches = |rule: u32| rules[rule as usize].is_for(transport, port, time);
                let first = |all: &[usize]| {
                    all.iter().map(|number| *number as u32).find(|number| matches(*number))
                };
                prop_assert_eq!(first_rule(index.for_name(&name), matches), first(&for_name));
                for address in &addresses {
                    let all = naive(&rules, |to| match to {
                        Destination::Net(net) => forms(*address).any(|form| net.contains(form)),
                        Destination::Anywhere => true,
                        Destination::Name(_) => false,
                    });
                    let found = first_rule(index.for_address(*address), matches);
                    prop_assert_eq!(found, first(&all), "{}", address);
                }
            }
        }
    }
}
