//! Requests on a control socket, and the JSON of the answers.
//!
//! An instance that serves one program answers `GET` of [`PUBLISHED`], [`STATS`], [`FLOWS`] and
//! [`METRICS`], and `POST` of [`TRANSACTION`] with changes of its published ports. A network
//! answers `GET` of [`NETWORK`], [`PORTS`], [`LEASES`], [`REMOTES`], [`EVPN`], [`PUBLISHED`],
//! [`STATS`], [`FLOWS`] and [`METRICS`], and `POST` of [`TRANSACTION`] with
//! `{"operations": [...]}`; see [`operations`]. `DELETE` of [`FLOWS`] ends a native flow. Both
//! answer `POST` of [`AUDIT`], and of [`EGRESS`] with a policy; see
//! [`egress`](towpath_gateway::control::egress).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_json::{Value, json};
use towpath_gateway::control::http::{Request, Response};
use towpath_gateway::control::operations::{self, VLAN_MAX};
use towpath_gateway::egress::enforcer::Enforcer;
use towpath_gateway::flows::{FlowPage, FlowQuery};
use towpath_gateway::native::Link;
use towpath_gateway::network::{
    Attachment, DeviceReport, Network, Operation, OperationError, PortReport, TransactionError,
    VxlanCounters,
};
use towpath_gateway::report::Report;
use towpath_gateway::services::{Guest, Services, StaticLease, StaticLeaseError};
use towpath_gateway::worker::Worker;
use towpath_net::switch::vlan::{Vid, VlanSet};
use towpath_net::switch::{PortCounters, PortVlans, Prefix, Role, StormRates};

use crate::control::content::Content;
use crate::control::figures;
use crate::control::flows::{self, FLOWS};
use crate::control::metrics;
use crate::control::policy::{self, AUDIT, EGRESS};
use crate::control::published::{self, Publishing, TRANSACTION};
use crate::control::socket::Asked;
use crate::control::super_packets::Taps;
use crate::control::{evpn, remotes};
use crate::messages::Messages;

pub(crate) const NETWORK: &str = "/v1/network";
pub(crate) const PORTS: &str = "/v1/ports";
pub(crate) const LEASES: &str = "/v1/leases";
pub(crate) const PUBLISHED: &str = "/v1/published";
pub(crate) const REMOTES: &str = "/v1/remotes";
pub(crate) const EVPN: &str = "/v1/evpn";
pub(crate) const STATS: &str = "/v1/stats";
pub(crate) const METRICS: &str = "/metrics";

/// An instance that serves one program, with one worker or several.
pub(crate) trait Serving: Publishing {
    /// Returns the counters so far.
    fn report(&self) -> Report;

    /// Returns the number of workers.
    fn worker_count(&self) -> usize;

    /// Returns what carries out the policy, if there is one.
    fn egress(&self) -> Option<&Arc<Enforcer>>;

    /// Returns a page of a worker's flows; `None` if that worker does not answer.
    fn flows(&mut self, worker: usize, query: &FlowQuery) -> Option<FlowPage>;
}

/// Answers a request; a transaction changes the network, and may take the TAP device whose
/// descriptor came with it.
pub(crate) fn answer(
    worker: &mut Worker<Network>,
    asked: Asked<'_>,
    messages: Messages,
) -> Response {
    let Asked { request, content, file, replaced, .. } = asked;
    match content {
        Content::Policy(policy) => return policy::replace(worker.egress(), policy, replaced),
        Content::Operations(operations) => {
            return transaction(worker, operations, file, messages);
        }
        Content::Other => {}
    }
    if flows::is_meant(request.path) && request.method == "GET" {
        return flows::answer(request.path, 1, |_, query| Some(worker.flows(query)));
    }
    match (request.method, request.path) {
        ("GET", PORTS) => {
            let report = worker.inside().report(worker.now());
            let ports: Vec<_> = report.ports.iter().map(port).collect();
            Response::json(200, &json!({ "workers": report.workers, "ports": ports }))
        }
        ("GET", NETWORK) => Response::json(200, &network(worker)),
        ("GET", STATS) => Response::json(200, &figures(worker)),
        ("GET", METRICS) => {
            let network = worker.inside().report(worker.now());
            Response::metrics(metrics::text(&worker.report(), Some(&network)))
        }
        ("GET", LEASES) => Response::json(200, &leases(worker)),
        ("GET", REMOTES) => Response::json(200, &remotes::list(worker)),
        ("GET", EVPN) => Response::json(200, &evpn::list(worker)),
        ("GET", PUBLISHED) => Response::json(200, &published::list(worker.published())),
        ("POST", AUDIT) => policy::reopen_audit(worker.egress()),
        (
            _,
            NETWORK | PORTS | LEASES | REMOTES | EVPN | PUBLISHED | STATS | FLOWS | METRICS
            | TRANSACTION | EGRESS | AUDIT,
        ) => wrong_method(&request, &format!("GET to read, or POST {TRANSACTION}")),
        _ => {
            let known = [
                NETWORK,
                PORTS,
                LEASES,
                REMOTES,
                EVPN,
                PUBLISHED,
                STATS,
                FLOWS,
                METRICS,
                TRANSACTION,
            ];
            unknown_path(&request, &known)
        }
    }
}

/// Answers a request to an instance that serves one program; a transaction changes its published
/// ports.
pub(crate) fn answer_gateway(
    serving: &mut impl Serving,
    mut native: Option<&mut Link>,
    asked: Asked<'_>,
) -> Response {
    let Asked { request, content, replaced, .. } = asked;
    match content {
        Content::Policy(policy) => return policy::replace(serving.egress(), policy, replaced),
        Content::Operations(operations) => return published::transaction(serving, operations),
        Content::Other => {}
    }
    let workers = serving.worker_count();
    let mut report = || {
        let native = native.as_deref_mut().map(Link::counters);
        Report { native, ..serving.report() }
    };
    match (request.method, request.path) {
        ("GET", STATS) => Response::json(200, &figures::object(&report())),
        ("GET", METRICS) => Response::metrics(metrics::text(&report(), None)),
        ("GET", target) if flows::is_meant(target) => {
            // Native flows are listed as those of one more worker.
            let lists = workers + usize::from(native.is_some());
            flows::answer(target, lists, |worker, query| match &mut native {
                Some(native) if worker == workers => native.flows(query),
                _ => serving.flows(worker, query),
            })
        }
        ("DELETE", target) if flows::is_meant(target) => flows::end(target, native),
        ("GET", PUBLISHED) => {
            Response::json(200, &published::list(serving.published().into_iter()))
        }
        ("POST", AUDIT) => policy::reopen_audit(serving.egress()),
        (_, PUBLISHED | STATS | FLOWS | METRICS | TRANSACTION | EGRESS | AUDIT) => {
            wrong_method(&request, &format!("GET to read, or POST {TRANSACTION}"))
        }
        _ => unknown_path(&request, &[PUBLISHED, STATS, FLOWS, METRICS, TRANSACTION]),
    }
}

fn wrong_method(request: &Request<'_>, expected: &str) -> Response {
    let Request { method, path, .. } = request;
    Response::error(405, &format!("{path} does not accept {method}; expected {expected}"))
}

/// Answers a request for a path that this kind of instance does not have.
fn unknown_path(request: &Request<'_>, known: &[&str]) -> Response {
    let path = request.path;
    Response::error(404, &format!("unknown path '{path}'; expected one of {}", known.join(", ")))
}

fn transaction(
    worker: &mut Worker<Network>,
    operations: Result<Vec<Operation>, String>,
    file: &mut Option<OwnedFd>,
    messages: Messages,
) -> Response {
    let operations = match operations {
        Ok(operations) => operations,
        Err(message) => return Response::error(400, &message),
    };
    let taps = operations.iter().filter_map(|operation| match operation {
        Operation::Add { attachment: Attachment::TapFd(tap), .. } => Some(tap),
        _ => None,
    });
    taps.zip(file.take()).for_each(|(tap, file)| tap.pass(file));
    let count = operations.len();
    let guests = operations.iter().filter_map(|operation| match operation {
        Operation::AddLease(lease, _) => Some(lease.guest.clone()),
        _ => None,
    });
    let guests: Vec<Guest> = guests.collect();
    let to_limit = Taps::of(worker.inside(), &operations);
    match worker.apply(operations) {
        Ok(()) => {
            to_limit.limit(worker, messages);
            let all = worker.inside().services().into_iter().flat_map(Services::static_leases);
            let added = all.filter(|lease| guests.contains(&lease.guest)).map(fixed_lease);
            let leases: Vec<_> = added.collect();
            Response::json(200, &json!({ "applied": count, "leases": leases }))
        }
        Err(TransactionError { index, error }) => {
            let status = match error {
                OperationError::Lease(StaticLeaseError::Settling) => 503,
                _ => 409,
            };
            published::refused(status, count, index, &error)
        }
    }
}

fn vlan_list(set: &VlanSet) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for number in 1..=VLAN_MAX as u16 {
        if Vid::new(number).is_some_and(|vid| set.contains(vid)) {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => ranges.push((number, number)),
            }
        }
    }
    if ranges == [(1, VLAN_MAX as u16)] {
        return "all".to_owned();
    }
    let range = |(first, last): &(u16, u16)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

/// Returns the packets per second if all kinds have the same limit; 0 without a limit.
fn flood_rate(storm: &StormRates) -> Value {
    let rates = [storm.broadcast, storm.multicast, storm.unknown].map(Option::unwrap_or_default);
    let [rate, ..] = rates;
    if rates == [rate; 3] { rate.into() } else { json!(rates) }
}

/// Returns a port as JSON, without its counters.
fn port(report: &PortReport) -> Value {
    let (kind, at) = match &report.attachment {
        Attachment::VhostUser(path) => ("vhost-user", path.to_string_lossy()),
        Attachment::VhostUserClient(path) => ("vhost-user-client", path.to_string_lossy()),
        Attachment::Stream(path) => ("stream", path.to_string_lossy()),
        Attachment::VhostUserFd(_) => ("vhost-user-fd", "".into()),
        Attachment::StreamFd(_) => ("stream-fd", "".into()),
        Attachment::Tap(name) => ("tap", name.into()),
        Attachment::TapFd(_) => ("tap-fd", "".into()),
        Attachment::Packet(interface) => ("packet", interface.into()),
        Attachment::Xdp(settings) => ("xdp", settings.to_string().into()),
        Attachment::Vxlan(settings) => ("vxlan", settings.to_string().into()),
    };
    let settings = &report.settings;
    let mut object = json!({
        "name": report.name,
        "attachment": kind,
        "at": at,
        "worker": report.worker,
        "connected": report.is_connected,
        "failure": report.failure,
        "waiting": report.waiting,
        "queue-len": settings.queue_len,
        "isolated": settings.role == Role::Isolated,
        "router": settings.is_router,
        "flood-rate": flood_rate(&settings.storm),
        "mtu": report.caps.mtu,
        "bandwidth-out": settings.bandwidth_out.map(|bound| bound.to_string()),
        "bandwidth-in": settings.bandwidth_in.map(|bound| bound.to_string()),
        "link": if settings.is_up { "up" } else { "down" },
        "macs": settings.guard.macs.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "addresses": settings.guard.addresses.iter().map(allowed).collect::<Vec<_>>(),
    });
    if let DeviceReport::Uplink(_, way) = &report.device {
        object["way"] = way.to_string().into();
    }
    match &settings.vlans {
        PortVlans::Access(vid) => object["vlan"] = vid.number().into(),
        PortVlans::Trunk { native, allowed } => {
            object["trunk"] = vlan_list(allowed).into();
            object["native"] = native.map(Vid::number).into();
        }
    }
    object
}

fn allowed(prefix: &Prefix) -> String {
    match prefix.address.is_ipv4() && prefix.len >= 32 || prefix.len >= 128 {
        true => prefix.address.to_string(),
        false => format!("{}/{}", prefix.address, prefix.len),
    }
}

/// Returns what the services tell guests about the network: `null` for an IP version that it does
/// not have, and no addresses at all without services. `vtep` is where VXLAN ports end here, and
/// `gso-max-size` for TAP devices beside them.
fn network(worker: &Worker<Network>) -> Value {
    let vtep = worker.inside().vtep().map(|vtep| vtep.to_string());
    let mut object = json!({
        "mtu": worker.inside().mtu(),
        "vtep": vtep,
        "gso-max-size": worker.inside().super_packet_max(),
        "ipv4": null,
        "ipv6": null,
    });
    let Some(config) = worker.inside().services().map(Services::config) else { return object };
    fn texts<T: ToString>(all: &[T]) -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    }
    if let Some(v4) = &config.ipv4 {
        object["ipv4"] = json!({
            "gateway": v4.gateway.to_string(),
            "prefix-len": v4.prefix_len,
            "dns": texts(&v4.dns),
            "pool": [v4.pool.start().to_string(), v4.pool.end().to_string()],
        });
    }
    if let Some(v6) = &config.ipv6 {
        let pool = v6.pool.as_ref();
        object["ipv6"] = json!({
            "gateway": v6.gateway.to_string(),
            "prefix-len": v6.prefix_len,
            "dns": texts(&v6.dns),
            "pool": pool.map(|pool| [pool.start().to_string(), pool.end().to_string()]),
        });
    }
    object["domain"] = config.domain.as_ref().map(|domain| domain.as_str()).into();
    object["search"] = config.search.iter().map(|domain| domain.as_str()).collect();
    object
}

/// Returns the current leases, and the static leases whether requested or not.
fn leases(worker: &Worker<Network>) -> Value {
    let services = worker.inside().services();
    let lent = services.map(|services| services.lent(worker.now())).unwrap_or_default();
    let lent = lent.iter().map(|lent| {
        json!({
            "address": lent.address.to_string(),
            "mac": lent.mac.to_string(),
            "port": lent.port,
            "name": lent.name.as_ref().map(|name| name.as_str()),
            "seconds": lent.left.as_secs(),
            "static": lent.is_static,
        })
    });
    let fixed = services.into_iter().flat_map(Services::static_leases).map(fixed_lease);
    json!({ "leases": lent.collect::<Vec<_>>(), "static": fixed.collect::<Vec<_>>() })
}

/// Returns a static lease as JSON.
fn fixed_lease(lease: &StaticLease) -> Value {
    let (kind, id) = match &lease.guest {
        Guest::Port(name) => ("port", name.clone()),
        Guest::Mac(mac) => ("mac", mac.to_string()),
        Guest::ClientId(id) => ("client-id", operations::hex(id)),
        Guest::Duid(id) => ("duid", operations::hex(id)),
    };
    json!({
        kind: id,
        "ipv4": lease.ipv4.map(|address| address.to_string()),
        "ipv6": lease.ipv6.map(|address| address.to_string()),
        "name": lease.name.as_ref().map(|name| name.as_str()),
        "station": lease.station.map(|mac| mac.to_string()),
    })
}

/// Returns the counters of an instance, and of its switch and ports.
fn figures(worker: &Worker<Network>) -> Value {
    let network = worker.inside().report(worker.now());
    let mut object = figures::object(&worker.report());
    let with_device = |port: &PortReport| {
        let mut object = counters(&port.counters);
        object["worker"] = port.worker.into();
        for (reason, count) in port.device.drops() {
            object["dropped"][reason] = count.into();
        }
        if let DeviceReport::Vxlan(counters) = &port.device {
            object["vxlan"] = tunnel(counters);
        }
        if let Some((packets, recalled)) = port.device.lent() {
            object["lent"] = json!({ "packets": packets, "recalled": recalled });
        }
        for (reason, count) in port.device.refused() {
            object["refused"][reason] = count.into();
        }
        (port.name.clone(), object)
    };
    object["stations"] = network.stations.into();
    if let Some(figures) = evpn::figures(&network) {
        object["evpn"] = figures;
    }
    object["ports"] = Value::Object(network.ports.iter().map(with_device).collect());
    if let Some(gateway) = &network.gateway {
        object["gateway"] = counters(gateway);
        object["gateway"]["dropped"]["no_memory"] = network.gateway_no_memory.into();
    }
    object
}

fn tunnel(counters: &VxlanCounters) -> Value {
    json!({
        "reads": counters.reads,
        "received": counters.received,
        "received_bytes": counters.received_bytes,
        "sends": counters.sends,
        "sent": counters.sent,
        "sent_bytes": counters.sent_bytes,
        "resolved": counters.resolved,
        "too_big": counters.too_big,
        "paused": counters.paused,
        "learned": counters.stations.learned,
        "moved": counters.stations.moved,
        "learn_refused": counters.stations.refused,
    })
}

fn counters(counters: &PortCounters) -> Value {
    let dropped = counters.drops().map(|(reason, count)| (reason.name().to_owned(), count.into()));
    json!({
        "packets_in": counters.packets_in,
        "bytes_in": counters.bytes_in,
        "super_packets_in": counters.super_packets_in,
        "packets_out": counters.packets_out,
        "bytes_out": counters.bytes_out,
        "super_packets_out": counters.super_packets_out,
        "cut": counters.cut,
        "dropped": Value::Object(dropped.collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_vlans() {
        for (list, reported) in [("1-4094", "all"), ("all", "all"), ("30,10-12,13", "10-13,30")] {
            assert_eq!(vlan_list(&operations::read_vlans(list).unwrap()), reported);
        }
        for wrong in ["", "0", "4095", "3-2", "1,", "-", "a", "99999999999"] {
            assert!(operations::read_vlans(wrong).is_err(), "{wrong}");
        }
    }
}
