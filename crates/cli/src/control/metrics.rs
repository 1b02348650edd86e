//! Counters in the text format of OpenMetrics 1.0.
//!
//! Labels are names of ports, reasons and sites; these have no characters that need escapes.

use std::fmt::{Display, Write as _};

use towpath_gateway::egress::summary::{Bound, Summary};
use towpath_gateway::native::NativeCounters;
use towpath_gateway::network::{Attachment, EvpnSummary, NetworkReport};
use towpath_gateway::report::{Report, WorkerShare};
use towpath_io::confine;
use towpath_net::switch::PortCounters;

use crate::control::evpn::resolved;

/// A metric family: samples with one name.
struct Family<'a> {
    out: &'a mut String,
    name: &'static str,
    suffix: &'static str,
}

/// Returns all metrics of an instance; `network` is its switch with ports, if it has one.
pub(crate) fn text(report: &Report, network: Option<&NetworkReport>) -> String {
    let mut out = String::new();
    if let Some(network) = network {
        ports(&mut out, network);
        let stations = "Stations in the address table of the switch.";
        Family::gauge(&mut out, "towpath_stations", stations).add("", network.stations);
        if let Some(summary) = &network.evpn {
            overlay(&mut out, network, summary);
        }
    }
    let help = "Layers of confinement of this process; 1 if in force.";
    let mut confinement = Family::gauge(&mut out, "towpath_confinement", help);
    for (layer, is_in_force) in confine::state().layers() {
        confinement.add(&format!("layer=\"{layer}\""), u8::from(is_in_force));
    }
    let (tcp, udp, echo) = report.flows;
    let mut flows = Family::gauge(&mut out, "towpath_flows", "Open flows of the gateway.");
    for (protocol, count) in [("tcp", tcp), ("udp", udp), ("echo", echo)] {
        flows.add(&format!("protocol=\"{protocol}\""), count);
    }
    let help = "Payload bytes that the gateway carried.";
    let mut payload = Family::counter(&mut out, "towpath_gateway_bytes", help);
    payload.add("direction=\"out\"", report.gateway.bytes_out);
    payload.add("direction=\"in\"", report.gateway.bytes_in);
    joined(&mut out, report);
    if let Some(counters) = &report.native {
        native(&mut out, counters);
    }
    if let Some(summary) = &report.egress {
        egress(&mut out, summary);
    }
    let mut copied = Family::counter(
        &mut out,
        "towpath_copied_bytes",
        "Payload bytes copied in user memory, by site.",
    );
    for (site, count) in report.copied.iter().copied() {
        copied.add(&format!("site=\"{site}\""), count);
    }
    let help = "Payload bytes lent: in frames, and not yet acknowledged or taken by the host.";
    Family::gauge(&mut out, "towpath_lent_bytes", help).add("", report.lent.bytes);
    let help = "Outstanding loans: frames in use.";
    Family::gauge(&mut out, "towpath_lent_loans", help).add("", report.loans());
    let help = "Age of the oldest lent payload.";
    let oldest = report.lent.oldest.map_or(0.0, |oldest| oldest.as_secs_f64());
    Family::gauge(&mut out, "towpath_lent_oldest_seconds", help).add("", oldest);
    let help =
        "Packets of guests that became copies when their term ended or their ring ran short.";
    Family::counter(&mut out, "towpath_recalled_packets", help).add("", report.recalled);
    let mut dropped = Family::counter(
        &mut out,
        "towpath_gateway_dropped",
        "Packets and flows that the gateway dropped, by reason.",
    );
    for (reason, count) in report.losses() {
        dropped.add(&format!("reason=\"{reason}\""), count);
    }
    if !report.workers.is_empty() {
        workers(&mut out, &report.workers);
    }
    out.push_str("# EOF\n");
    out
}

fn joined(out: &mut String, report: &Report) {
    let help = "Open joined connections, which bypass the stack.";
    Family::gauge(out, "towpath_joined_flows", help).add("", report.joined);
    let help = "Connections to joined ports, by result.";
    let mut joined = Family::counter(out, "towpath_joined_connections", help);
    let refused = report.gateway.joined_refused;
    joined.add("result=\"refused\"", refused);
    joined.add("result=\"taken\"", report.gateway.joined - refused);
    let help = "Open joined UDP flows, which bypass the stack.";
    Family::gauge(out, "towpath_joined_udp_flows", help).add("", report.joined_udp);
    let help = "Datagrams to joined ports that no program of the host received.";
    let mut refused = Family::counter(out, "towpath_joined_udp_refused", help);
    refused.add("", report.gateway.joined_udp_refused);
    let help = "Payload bytes of joined flows, which no other metric counts.";
    let mut bytes = Family::counter(out, "towpath_joined_bytes", help);
    bytes.add("direction=\"out\"", report.gateway.joined_bytes_out);
    bytes.add("direction=\"in\"", report.gateway.joined_bytes_in);
}

fn native(out: &mut String, counters: &NativeCounters) {
    let help = "Open connections over native sockets.";
    Family::gauge(out, "towpath_native_flows", help).add("", counters.open);
    let help = "Open native listeners.";
    Family::gauge(out, "towpath_native_listeners", help).add("", counters.listeners);
    let help = "Connections for native sockets, by result.";
    let mut connections = Family::counter(out, "towpath_native_connections", help);
    connections.add("result=\"denied\"", counters.denied);
    connections.add("result=\"refused\"", counters.refused);
    connections.add("result=\"taken\"", counters.begun);
    let help = "Native connections that were ended on request, or as a new policy denies them.";
    Family::counter(out, "towpath_native_ended", help).add("", counters.ended);
    let help = "Connections that took the interface instead of a native socket, by reason.";
    let mut kept = Family::counter(out, "towpath_native_interface", help);
    for (reason, count) in counters.interface() {
        kept.add(&format!("reason=\"{reason}\""), count);
    }
    let help = "Payload bytes of native sockets, which no other metric counts.";
    let mut bytes = Family::counter(out, "towpath_native_bytes", help);
    bytes.add("direction=\"out\"", counters.bytes_out);
    bytes.add("direction=\"in\"", counters.bytes_in);
}

fn egress(out: &mut String, summary: &Summary) {
    let Summary { generation, counters, by_rule, by_ports, bounds } = summary;
    let help = "Number of policies for flows so far.";
    Family::gauge(out, "towpath_egress_policy", help).add("", *generation);
    let help = "Flows that the rules of the present policy have judged, by rule and verdict.";
    let mut flows = Family::counter(out, "towpath_egress_flows", help);
    for (id, [allowed, denied]) in by_rule {
        flows.add(&format!("rule=\"{id}\",verdict=\"allow\""), *allowed);
        flows.add(&format!("rule=\"{id}\",verdict=\"deny\""), *denied);
    }
    let help = "The same, of ports that have a policy of their own.";
    let mut flows = Family::counter(out, "towpath_egress_port_flows", help);
    for (port, by_rule) in by_ports {
        for (id, [allowed, denied]) in by_rule {
            let label = format!("port=\"{port}\",rule=\"{id}\"");
            flows.add(&format!("{label},verdict=\"allow\""), *allowed);
            flows.add(&format!("{label},verdict=\"deny\""), *denied);
        }
    }
    let label = |Bound { port, id, .. }: &Bound| {
        port.as_ref().map_or_else(String::new, |port| format!("port=\"{port}\","))
            + &format!("rule=\"{id}\"")
    };
    let help = "Bytes of streams that waited for a bandwidth, by rule; * for all flows of a guest.";
    let mut delayed = Family::counter(out, "towpath_egress_delayed_bytes", help);
    bounds.iter().for_each(|bound| delayed.add(&label(bound), bound.done.delayed_bytes));
    let help = "Datagrams and echoes beyond a bandwidth, which were dropped, by rule.";
    let mut dropped = Family::counter(out, "towpath_egress_dropped_datagrams", help);
    bounds.iter().for_each(|bound| dropped.add(&label(bound), bound.done.dropped));
    let help = "Flows that a quota of bytes has ended or denied, by rule.";
    let mut over = Family::counter(out, "towpath_egress_over_quota", help);
    bounds.iter().for_each(|bound| over.add(&label(bound), bound.done.over_quota));
    let help = "Messages to and from resolvers that the policy refused.";
    let mut refused = Family::counter(out, "towpath_egress_dns_refused", help);
    refused.add("kind=\"answer\"", counters.answers_refused);
    refused.add("kind=\"question\"", counters.questions_refused);
    let help = "Records that are missing from the audit.";
    Family::counter(out, "towpath_egress_audit_lost", help).add("", counters.audit_lost);
}

fn overlay(out: &mut String, network: &NetworkReport, summary: &EvpnSummary) {
    let EvpnSummary { sessions, routes, counters } = summary;
    let help = "Sessions with BGP neighbours, by state.";
    let mut states = Family::gauge(out, "towpath_evpn_sessions", help);
    for (state, count) in summary.states() {
        states.add(&format!("state=\"{state}\""), count);
    }
    let help = "UPDATE messages of BGP neighbours.";
    let mut updates = Family::counter(out, "towpath_evpn_updates", help);
    for (neighbor, _, messages) in sessions {
        let label = |direction| format!("neighbor=\"{neighbor}\",direction=\"{direction}\"");
        updates.add(&label("in"), messages.updates_received);
        updates.add(&label("out"), messages.updates_sent);
    }
    let help = "Sessions that ended because of what the neighbor sent.";
    let mut errors = Family::counter(out, "towpath_evpn_errors", help);
    for (neighbor, _, messages) in sessions {
        errors.add(&format!("neighbor=\"{neighbor}\""), messages.errors);
    }
    let help = "EVPN routes in use, by route type.";
    let mut all = Family::gauge(out, "towpath_evpn_routes", help);
    all.add("direction=\"in\",type=\"2\"", routes.stations_received);
    all.add("direction=\"in\",type=\"3\"", routes.floods_received);
    all.add("direction=\"out\",type=\"2\"", routes.stations_announced);
    all.add("direction=\"out\",type=\"3\"", routes.floods_announced);
    let help = "Received EVPN routes that are not in use, by reason.";
    let mut unused = Family::counter(out, "towpath_evpn_unused_routes", help);
    for (reason, count) in summary.unused() {
        unused.add(&format!("reason=\"{reason}\""), count);
    }
    let help = "UPDATE messages with invalid attributes.";
    Family::counter(out, "towpath_evpn_malformed", help).add("", counters.malformed);
    let help = "Stations that moved to this host and away from it.";
    let mut moves = Family::counter(out, "towpath_evpn_moves", help);
    moves.add("direction=\"in\"", counters.moved_here);
    moves.add("direction=\"out\"", counters.moved_away);
    let help = "Stations found to be duplicates.";
    Family::counter(out, "towpath_evpn_duplicates", help).add("", counters.duplicates);
    let help = "Duplicates whose moves are not followed now.";
    Family::gauge(out, "towpath_evpn_frozen", help).add("", routes.frozen);
    let help = "Attempts to use a station here that another host announces as sticky.";
    Family::counter(out, "towpath_evpn_sticky", help).add("", counters.sticky);
    let help = "Connections to the BGP speaker that it did not accept.";
    Family::counter(out, "towpath_evpn_refused", help).add("", counters.refused);
    let help = "ARP requests and neighbor solicitations that VXLAN ports answered.";
    let mut answers = Family::counter(out, "towpath_evpn_resolved", help);
    for (port, count) in network.ports.iter().filter_map(|of| Some((of, resolved(of)?))) {
        answers.add(&format!("port=\"{}\"", port.name), count);
    }
    let leases = network.services.unwrap_or_default();
    let help = "Addresses that guests of this host and of another were found to lease.";
    Family::counter(out, "towpath_evpn_lease_conflicts", help).add("", leases.conflicts);
    let help = "Stations with a lease that moved to another host.";
    Family::counter(out, "towpath_evpn_leases_moved", help).add("", leases.moved_away);
    let help = "Requests for addresses before other hosts were known.";
    Family::counter(out, "towpath_evpn_leases_settling", help).add("", leases.settling);
}

fn workers(out: &mut String, shares: &[WorkerShare]) {
    let help = "Payload bytes that each worker carried.";
    let mut payload = Family::counter(out, "towpath_worker_bytes", help);
    for (index, share) in shares.iter().enumerate() {
        payload.add(&format!("worker=\"{index}\",direction=\"out\""), share.bytes_out);
        payload.add(&format!("worker=\"{index}\",direction=\"in\""), share.bytes_in);
    }
    let help = "Packets that this worker handed over to other workers.";
    let mut handed = Family::counter(out, "towpath_worker_handed_over_packets", help);
    for (index, share) in shares.iter().enumerate() {
        handed.add(&format!("worker=\"{index}\""), share.handed_over);
    }
}

fn ports(out: &mut String, network: &NetworkReport) {
    let kind = |attachment: &Attachment| match attachment {
        Attachment::VhostUser(_) => "vhost-user",
        Attachment::VhostUserClient(_) => "vhost-user-client",
        Attachment::Stream(_) => "stream",
        Attachment::VhostUserFd(_) => "vhost-user-fd",
        Attachment::StreamFd(_) => "stream-fd",
        Attachment::TapFd(_) => "tap-fd",
        Attachment::Tap(_) => "tap",
        Attachment::Packet(_) => "packet",
        Attachment::Xdp(_) => "xdp",
        Attachment::Vxlan(_) => "vxlan",
    };
    let label = |name: &str, kind: &str| format!("port=\"{name}\",attachment=\"{kind}\"");
    let of_ports = network
        .ports
        .iter()
        .map(|port| (label(&port.name, kind(&port.attachment)), &port.counters));
    let of_gateway = network.gateway.iter().map(|counters| (label("gateway", "gateway"), counters));
    let all: Vec<_> = of_ports.chain(of_gateway).collect();

    type Figure = fn(&PortCounters) -> u64;
    let figures: [(_, _, Figure, Figure); 3] = [
        ("towpath_port_packets", "Packets of each port.", |c| c.packets_in, |c| c.packets_out),
        ("towpath_port_bytes", "Bytes of these packets.", |c| c.bytes_in, |c| c.bytes_out),
        (
            "towpath_port_super_packets",
            "Super-packets of each port.",
            |c| c.super_packets_in,
            |c| c.super_packets_out,
        ),
    ];
    for (name, help, into, outward) in figures {
        let mut family = Family::counter(out, name, help);
        for (label, counters) in &all {
            family.add(&format!("{label},direction=\"in\""), into(counters));
            family.add(&format!("{label},direction=\"out\""), outward(counters));
        }
    }
    let help = "Packets dropped at each port, by reason.";
    let mut dropped = Family::counter(out, "towpath_port_dropped_packets", help);
    for (label, counters) in &all {
        for (reason, count) in counters.drops() {
            dropped.add(&format!("{label},reason=\"{}\"", reason.name()), count);
        }
    }
    for (port, (label, _)) in network.ports.iter().zip(&all) {
        for (reason, count) in port.device.drops() {
            dropped.add(&format!("{label},reason=\"{reason}\""), count);
        }
    }
    guests(out, network, &all);
}

/// Adds the metrics of the guests behind the ports; `all` has the labels of the ports.
fn guests(out: &mut String, network: &NetworkReport, all: &[(String, &PortCounters)]) {
    type OfLent = fn((u64, u64)) -> u64;
    let figures: [(_, _, OfLent); 2] = [
        ("towpath_port_lent_packets", "Packets in memory that the guest lent.", |lent| lent.0),
        ("towpath_port_recalled_packets", "Lent packets that became copies.", |lent| lent.1),
    ];
    for (name, help, figure) in figures {
        let mut family = Family::counter(out, name, help);
        for (port, (label, _)) in network.ports.iter().zip(all) {
            if let Some(lent) = port.device.lent() {
                family.add(label, figure(lent));
            }
        }
    }
    let help = "Requests of front ends that were rejected, by reason.";
    let mut refused = Family::counter(out, "towpath_port_refused_requests", help);
    for (port, (label, _)) in network.ports.iter().zip(all) {
        for (reason, count) in port.device.refused() {
            refused.add(&format!("{label},reason=\"{reason}\""), count);
        }
    }
    let help = "1 if a guest is connected to the port.";
    let mut connected = Family::gauge(out, "towpath_port_connected", help);
    for (port, (label, _)) in network.ports.iter().zip(all) {
        connected.add(label, u8::from(port.is_connected));
    }
    let help = "Packets in the queue of the port.";
    let mut waiting = Family::gauge(out, "towpath_port_waiting_packets", help);
    for (port, (label, _)) in network.ports.iter().zip(all) {
        waiting.add(label, port.waiting);
    }
}

impl<'a> Family<'a> {
    fn counter(out: &'a mut String, name: &'static str, help: &str) -> Self {
        Self { suffix: "_total", ..Self::new(out, name, "counter", help) }
    }

    fn gauge(out: &'a mut String, name: &'static str, help: &str) -> Self {
        Self::new(out, name, "gauge", help)
    }

    fn new(out: &'a mut String, name: &'static str, kind: &str, help: &str) -> Self {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# TYPE {name} {kind}\n# HELP {name} {help}");
        Self { out, name, suffix: "" }
    }

    fn add(&mut self, labels: &str, value: impl Display) {
        let Self { out, name, suffix } = self;
        let _ = match labels {
            "" => writeln!(out, "{name}{suffix} {value}"),
            labels => writeln!(out, "{name}{suffix}{{{labels}}} {value}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::{Ipv4Addr, TcpListener};
    use std::time::Duration;

    use serde_json::Value;
    use towpath_gateway::config::Config;
    use towpath_gateway::network::{
        EvpnSettings, Network, NetworkConfig, PortSettings, VxlanSettings,
    };
    use towpath_gateway::worker::Worker;
    use towpath_net::time::Instant;
    use towpath_net::vxlan::Vni;

    use super::*;
    use crate::control::evpn;

    /// The dashboard that the documentation offers.
    const DASHBOARD: &str = include_str!("../../../../docs/grafana.json");

    /// A network with a VXLAN port, whose other hosts EVPN has yet to find.
    fn network(neighbor: &TcpListener) -> Network {
        let config = NetworkConfig {
            mtu: 1500,
            gateway: None,
            gateway_addresses: Vec::new(),
            orphan: false,
            busy_poll: Duration::ZERO,
            seed: 0,
        };
        let mut network = Network::new(config).unwrap();
        let to = neighbor.local_addr().unwrap();
        let vni = Vni::new(100).unwrap();
        let tunnel = VxlanSettings { local: Some(to.ip()), port: 0, ..VxlanSettings::new(vni) };
        network.add_port("v", Attachment::Vxlan(tunnel), PortSettings::default()).unwrap();
        assert!(evpn::figures(&network.report(Instant::START)).is_none(), "it does not run");
        let settings = EvpnSettings {
            neighbors: vec![to.ip()],
            port: to.port(),
            ..EvpnSettings::new(65001, Ipv4Addr::LOCALHOST)
        };
        network.start_evpn(&settings, Box::new(|_, _| {})).unwrap();
        network
    }

    /// Returns all metrics that there are.
    fn all() -> String {
        let neighbor = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let network = network(&neighbor);
        let worker = Worker::serving(&Config::default(), network, Default::default()).unwrap();
        let mut report = worker.report();
        report.workers = vec![WorkerShare::default()];
        text(&report, Some(&worker.inside().report(worker.now())))
    }

    /// Returns the words of a text that begin like a metric.
    fn metrics_in(text: &str) -> impl Iterator<Item = &str> {
        let is_of_word = |char: char| char.is_ascii_alphanumeric() || char == '_';
        text.split(move |char| !is_of_word(char)).filter(|word| word.starts_with("towpath_"))
    }

    /// Goal: the dashboard is valid, and every metric that it shows is one of an instance.
    #[test]
    fn the_dashboard_shows_metrics_that_exist() {
        let text = all();
        let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let families: BTreeMap<&str, &str> =
            families.filter_map(|line| line.split_once(' ')).collect();
        let mut known: BTreeSet<String> = BTreeSet::new();
        for (name, kind) in &families {
            let suffix = if *kind == "counter" { "_total" } else { "" };
            known.insert(format!("{name}{suffix}"));
        }
        let dashboard: Value = serde_json::from_str(DASHBOARD).expect("it is JSON");
        let panels = dashboard["panels"].as_array().expect("panels");
        let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
        assert_eq!(ids.len(), panels.len(), "each panel has a number of its own");
        let mut shown = BTreeSet::new();
        for panel in panels.iter().filter(|panel| panel["type"] != "row") {
            let title = panel["title"].as_str().expect("a title");
            let targets = panel["targets"].as_array().expect(title);
            assert!(!targets.is_empty(), "{title}");
            for target in targets {
                let expression = target["expr"].as_str().expect(title);
                assert!(metrics_in(expression).next().is_some(), "{title}: {expression}");
                for metric in metrics_in(expression) {
                    assert!(known.contains(metric), "{title}: there is no {metric}");
                    shown.insert(metric);
                }
            }
        }
        for metric in metrics_in(&dashboard["templating"].to_string()) {
            assert!(known.contains(metric), "a variable uses {metric}, which does not exist");
        }
        let missing: Vec<&String> =
            known.iter().filter(|metric| !shown.contains(metric.as_str())).collect();
        assert!(missing.is_empty(), "the dashboard does not show {missing:?}");
    }

    /// Goal: the counters of EVPN are in both forms, with each session in one state.
    #[test]
    fn evpn_is_counted() {
        let neighbor = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let network = network(&neighbor);
        let report = network.report(Instant::START);
        let figures = evpn::figures(&report).expect("it runs");
        let sessions = figures["sessions"].as_object().expect("by state");
        assert_eq!(sessions.values().filter_map(Value::as_u64).sum::<u64>(), 1, "{figures}");
        assert_eq!(figures["neighbors"]["127.0.0.1"]["errors"], 0, "{figures}");
        assert_eq!(figures["resolved"], 0, "{figures}");
        let text = all();
        for sample in [
            "towpath_evpn_sessions{state=\"Established\"} 0",
            "towpath_evpn_updates_total{neighbor=\"127.0.0.1\",direction=\"out\"} 0",
            "towpath_evpn_routes{direction=\"in\",type=\"2\"} 0",
            "towpath_evpn_resolved_total{port=\"v\"} 0",
            "towpath_evpn_lease_conflicts_total 0",
        ] {
            assert!(text.lines().any(|line| line == sample), "{sample} in\n{text}");
        }
    }
}
