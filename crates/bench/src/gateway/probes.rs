//! The probes of `towpath-bench gateway`, and the cases that they measure.
//!
//! "out" is from the program to the host, "in" the other direction.

use crate::cases::{Case, Selection};
use crate::datagrams::Flood;
use crate::iperf::{Direction, Test};

/// One kind of run, which yields one figure for each of its cases, in their order.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) kind: Kind,
    pub(super) cases: &'static [Case],
}

/// The work of a probe.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Time from start to the first byte that came back.
    Ready,
    /// Resident memory and processor time while idle.
    Idle,
    /// iperf3 in one direction: throughput; processor time of the gateway, and of all processes.
    Bulk(Test),
    /// The same with a server on another machine, over a veth pair.
    Outside(Test),
    /// iperf3 between two loopbacks, past the gateway's TCP.
    Loopback(Test),
    /// iperf3 through a published port, from the host's loopback.
    Published(Test),
    /// iperf3 in both directions at once: total throughput; share of the slower direction.
    Both(Test),
    /// Datagrams at full speed: throughput of those that arrive.
    Bytes(Flood),
    /// Datagrams at full speed: thousands per second that arrive.
    Packets(Flood),
    /// Round trips of one byte, with all processes on one processor: median and percentiles.
    RoundTrips,
    /// Connections, one after the other, with one byte each way.
    Connections,
    /// wrk sends requests to nginx on the host: requests per second, with many requests per
    /// connection or one.
    Http { is_kept: bool },
    /// Resident memory with [`OPEN_FLOWS`] connections.
    Flows,
}

/// The probes that the selection needs.
pub(super) fn probes(selection: &Selection) -> impl Iterator<Item = &'static Probe> {
    PROBES.iter().filter(|probe| probe.cases.iter().any(|case| selection.has(case)))
}

/// All cases, in the order of the report.
pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    PROBES.iter().flat_map(|probe| probe.cases)
}

const GBITS: &str = "Gbit/s";
const CPU: &str = "s/GiB";
const TCP: Test = Test { ipv6: false, udp: false, direction: Direction::Out, flows: 1 };
const TCP_IN: Test = Test { direction: Direction::In, ..TCP };
/// Enough to hide a stall of one of them.
const FLOWS: u32 = 8;
/// Datagrams that fit an MTU of 1500, as many per call as one message can hold.
const SEGMENTS: Flood = Flood { direction: Direction::Out, bytes: 1472, per_call: 44 };
const SMALL: Flood = Flood { direction: Direction::Out, bytes: 64, per_call: 1 };
/// Numbers of open connections at which memory is measured.
pub(super) const OPEN_FLOWS: [usize; 2] = [1000, 10_000];

static PROBES: &[Probe] = &[
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
        cases: &[
            Case::high("tcp_out_mtu1500_8flows", GBITS),
            Case::low("tcp_out_mtu1500_8flows_cpu_gateway", CPU),
            Case::low("tcp_out_mtu1500_8flows_cpu_all", CPU),
        ],
    },
    Probe {
        kind: Kind::Bulk(Test { flows: FLOWS, ..TCP_IN }),
        cases: &[
            Case::high("tcp_in_mtu1500_8flows", GBITS),
            Case::low("tcp_in_mtu1500_8flows_cpu_gateway", CPU),
            Case::low("tcp_in_mtu1500_8flows_cpu_all", CPU),
        ],
    },
    Probe {
        kind: Kind::Outside(TCP),
        cases: &[
            Case::high("outside_out_1flow", GBITS),
            Case::low("outside_out_1flow_cpu_gateway", CPU),
            Case::low("outside_out_1flow_cpu_all", CPU),
        ],
    },
    Probe {
        kind: Kind::Loopback(TCP),
        cases: &[
            Case::high("loopback_out_1flow", GBITS),
            Case::low("loopback_out_1flow_cpu_gateway", CPU),
            Case::low("loopback_out_1flow_cpu_all", CPU),
        ],
    },
    Probe {
        kind: Kind::Loopback(TCP_IN),
        cases: &[
            Case::high("loopback_in_1flow", GBITS),
            Case::low("loopback_in_1flow_cpu_gateway", CPU),
            Case::low("loopback_in_1flow_cpu_all", CPU),
        ],
    },
    Probe {
        kind: Kind::Published(TCP),
        cases: &[
            Case::high("published_out_1flow", GBITS),
            Case::low("published_out_1flow_cpu_gateway", CPU),
            Case::low("published_out_1flow_cpu_all", CPU),
        ],
    },
    Probe {
        kind: Kind::Published(TCP_IN),
        cases: &[
            Case::high("published_in_1flow", GBITS),
            Case::low("published_in_1flow_cpu_gateway", CPU),
            Case::low("published_in_1flow_cpu_all", CPU),
        ],
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
        cases: &[
            Case::high("tcp_out_ipv6_mtu1500_1flow", GBITS),
            Case::low("tcp_out_ipv6_mtu1500_1flow_cpu_gateway", CPU),
            Case::low("tcp_out_ipv6_mtu1500_1flow_cpu_all", CPU),
        ],
    },
    Probe {
        kind: Kind::Bulk(Test { ipv6: true, ..TCP_IN }),
        cases: &[
            Case::high("tcp_in_ipv6_mtu1500_1flow", GBITS),
            Case::low("tcp_in_ipv6_mtu1500_1flow_cpu_gateway", CPU),
            Case::low("tcp_in_ipv6_mtu1500_1flow_cpu_all", CPU),
        ],
    },
    Probe {
        kind: Kind::Bulk(Test { ipv6: true, flows: FLOWS, ..TCP }),
        cases: &[Case::high("tcp_out_ipv6_mtu1500_8flows", GBITS)],
    },
    Probe {
        kind: Kind::Bulk(Test { ipv6: true, flows: FLOWS, ..TCP_IN }),
        cases: &[Case::high("tcp_in_ipv6_mtu1500_8flows", GBITS)],
    },
    Probe {
        kind: Kind::Bulk(Test { udp: true, ..TCP }),
        cases: &[Case::high("udp_out_mtu1500", GBITS)],
    },
    Probe {
        kind: Kind::Bulk(Test { udp: true, ..TCP_IN }),
        cases: &[Case::high("udp_in_mtu1500", GBITS)],
    },
    Probe { kind: Kind::Bytes(SEGMENTS), cases: &[Case::high("udp_out_segmented_mtu1500", GBITS)] },
    Probe {
        kind: Kind::Bytes(Flood { direction: Direction::In, ..SEGMENTS }),
        cases: &[Case::high("udp_in_segmented_mtu1500", GBITS)],
    },
    Probe { kind: Kind::Packets(SMALL), cases: &[Case::high("udp_out_64B", "1000/s")] },
    Probe {
        kind: Kind::Packets(Flood { direction: Direction::In, ..SMALL }),
        cases: &[Case::high("udp_in_64B", "1000/s")],
    },
    Probe {
        kind: Kind::RoundTrips,
        cases: &[
            Case::low("rr_p50_us", "us"),
            Case::low("rr_p99_us", "us"),
            Case::low("rr_p999_us", "us"),
        ],
    },
    Probe { kind: Kind::Connections, cases: &[Case::high("connect_rate", "/s")] },
    Probe { kind: Kind::Http { is_kept: true }, cases: &[Case::high("http_keep_alive", "/s")] },
    Probe {
        kind: Kind::Http { is_kept: false },
        cases: &[Case::high("http_connection_per_request", "/s")],
    },
    Probe {
        kind: Kind::Flows,
        cases: &[Case::low("rss_1000_flows", "MiB"), Case::low("rss_10000_flows", "MiB")],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = all().map(|case| &case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
    }

    #[test]
    fn a_selection_needs_only_its_probes() {
        let selection = Selection::new(all(), &["rr_p99_*".into(), "ready".into()]);
        assert_eq!(selection.cases().len(), 2);
        assert_eq!(probes(&selection).count(), 2);
        assert!(Selection::new(all(), &["nothing".into()]).is_empty());
    }
}
