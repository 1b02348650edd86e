//! What `bench gateway` measures: probes, and the cases whose figures they yield.
//!
//! "out" is from the program to the host, "in" the other way. Names are stable: other documents
//! and stored figures refer to them.

use super::iperf::{Direction, Test};

/// One kind of run, which yields one figure for each of its cases, in their order.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) kind: Kind,
    pub(super) cases: &'static [Case],
}

/// What a probe does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Time from start to the first byte that came back.
    Ready,
    /// Resident memory, and processor time while nothing happens.
    Idle,
    /// iperf3 in one direction: throughput; processor time of the gateway, and of all processes.
    Bulk(Test),
    /// iperf3 in both directions at once: throughput of both; share of the slower one.
    Both(Test),
    /// One byte there and back, all processes on one processor: median and 99th percentile.
    RoundTrips,
    /// Connections, one after the other, with one byte each way.
    Connections,
}

/// A figure with a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) better: Better,
}

/// Which figures are the better ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    High,
    Low,
}

/// The cases that the user wants.
#[derive(Debug)]
pub(super) struct Selection(Vec<&'static Case>);

impl Selection {
    /// Those with names that fit one of `globs`.
    pub(super) fn new(globs: &[String]) -> Self {
        let fits = |case: &&Case| globs.iter().any(|glob| matches(glob, case.name));
        Self(all().filter(fits).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The probes that are needed.
    pub(super) fn probes(&self) -> impl Iterator<Item = &'static Probe> {
        PROBES.iter().filter(|probe| probe.cases.iter().any(|case| self.has(case)))
    }

    pub(super) fn has(&self, case: &Case) -> bool {
        self.0.contains(&case)
    }

    pub(super) fn cases(&self) -> &[&'static Case] {
        &self.0
    }
}

impl Case {
    const fn high(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, better: Better::High }
    }

    const fn low(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, better: Better::Low }
    }
}

/// All cases, in the order of the report.
pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    PROBES.iter().flat_map(|probe| probe.cases)
}

const GBITS: &str = "Gbit/s";
const CPU: &str = "s/GiB";
const TCP: Test = Test { ipv6: false, udp: false, direction: Direction::Out, flows: 1 };
const TCP_IN: Test = Test { direction: Direction::In, ..TCP };
/// Enough to hide a stall of one of them.
const FLOWS: u32 = 8;

const PROBES: &[Probe] = &[
    Probe { kind: Kind::Ready, cases: &[Case::low("ready", "ms")] },
    Probe {
        kind: Kind::Idle,
        cases: &[Case::low("idle_rss", "MiB"), Case::low("idle_cpu", "ms/s")],
    },
    Probe {
        kind: Kind::Bulk(TCP),
        cases: &[
            Case::high("tcp_out_mtu1500_1flow", GBITS),
            Case::low("tcp_out_mtu1500_1flow_cpu_gateway", CPU),
            Case::low("tcp_out_mtu1500_1flow_cpu_all", CPU),
        ],
    },
    Probe {
        kind: Kind::Bulk(TCP_IN),
        cases: &[
            Case::high("tcp_in_mtu1500_1flow", GBITS),
            Case::low("tcp_in_mtu1500_1flow_cpu_gateway", CPU),
            Case::low("tcp_in_mtu1500_1flow_cpu_all", CPU),
        ],
    },
    Probe {
        kind: Kind::Bulk(Test { flows: FLOWS, ..TCP }),
        cases: &[Case::high("tcp_out_mtu1500_8flows", GBITS)],
    },
    Probe {
        kind: Kind::Bulk(Test { flows: FLOWS, ..TCP_IN }),
        cases: &[Case::high("tcp_in_mtu1500_8flows", GBITS)],
    },
    Probe {
        kind: Kind::Both(Test { direction: Direction::Both, ..TCP }),
        cases: &[
            Case::high("tcp_both_mtu1500", GBITS),
            Case::high("tcp_both_mtu1500_slower_share", "%"),
        ],
    },
    Probe {
        kind: Kind::Bulk(Test { ipv6: true, ..TCP }),
        cases: &[Case::high("tcp_out_ipv6_mtu1500_1flow", GBITS)],
    },
    Probe {
        kind: Kind::Bulk(Test { ipv6: true, ..TCP_IN }),
        cases: &[Case::high("tcp_in_ipv6_mtu1500_1flow", GBITS)],
    },
    Probe {
        kind: Kind::Bulk(Test { udp: true, ..TCP }),
        cases: &[Case::high("udp_out_mtu1500", GBITS)],
    },
    Probe {
        kind: Kind::Bulk(Test { udp: true, ..TCP_IN }),
        cases: &[Case::high("udp_in_mtu1500", GBITS)],
    },
    Probe {
        kind: Kind::RoundTrips,
        cases: &[Case::low("rr_p50_us", "us"), Case::low("rr_p99_us", "us")],
    },
    Probe { kind: Kind::Connections, cases: &[Case::high("connect_rate", "/s")] },
];

/// Whether `name` fits `glob`, in which `*` stands for any text.
fn matches(glob: &str, name: &str) -> bool {
    let Some((first, others)) = glob.split_once('*') else { return glob == name };
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<_> = others.split('*').collect();
    let last = parts.pop().expect("split yields one part at least");
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        assert!(matches("*", "rr_p50_us"));
        assert!(matches("rr_*", "rr_p50_us"));
        assert!(matches("*_us", "rr_p50_us"));
        assert!(matches("tcp_*_1flow", "tcp_out_mtu1500_1flow"));
        assert!(matches("tcp*out*1flow", "tcp_out_mtu1500_1flow"));
        assert!(!matches("tcp_*_1flow", "tcp_out_mtu1500_8flows"));
        assert!(!matches("*aba", "ba"));
        assert!(!matches("ab*ba", "aba"), "parts must not overlap");
        assert!(!matches("rr", "rr_p50_us"));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = all().map(|case| case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
    }

    #[test]
    fn a_selection_needs_only_its_probes() {
        let selection = Selection::new(&["rr_p99*".into(), "ready".into()]);
        assert_eq!(selection.cases().len(), 2);
        assert_eq!(selection.probes().count(), 2);
        assert!(Selection::new(&["nothing".into()]).is_empty());
    }
}
