//! `towpath ls evpn`: BGP neighbours and what they have announced; and the counters of EVPN.

use serde_json::{Value, json};
use towpath_gateway::network::{DeviceReport, Network, NetworkReport, PortReport};
use towpath_gateway::worker::Worker;

use crate::control::ask::plain;

/// Returns neighbours, stations and counters of a network's EVPN; an empty list without it.
pub(crate) fn list(worker: &Worker<Network>) -> Value {
    let Some(report) = worker.inside().evpn().map(|evpn| evpn.report()) else {
        return json!({ "evpn": [] });
    };
    let mut all = Vec::new();
    all.extend(report.neighbors.iter().map(|(address, neighbor, since)| {
        json!({
            "neighbor": address.ip().to_string(),
            "state": neighbor.state.name(),
            "seconds": since.as_secs(),
            "router_id": neighbor.router_id.map(|id| id.to_string()),
            "reason": neighbor.reason,
            "routes": neighbor.routes,
            "stale": neighbor.stale,
            "updates_received": neighbor.messages.updates_received,
            "updates_sent": neighbor.messages.updates_sent,
            "established": neighbor.messages.established,
        })
    }));
    all.extend(report.stations.iter().map(|station| {
        let addresses: Vec<_> = station.addresses.iter().map(ToString::to_string).collect();
        json!({
            "vni": station.vni.number(),
            "mac": station.mac.to_string(),
            "vtep": station.vtep.map(|vtep| vtep.to_string()),
            "addresses": addresses,
            "moves": station.mobility.sequence,
            "sticky": station.mobility.is_sticky,
            "duplicate": station.is_duplicate,
        })
    }));
    let counters = report.counters;
    let counters = [
        ("ignored", counters.ignored),
        ("malformed", counters.malformed),
        ("own", counters.own),
        ("foreign", counters.foreign),
        ("unusable", counters.unusable),
        ("full", counters.full),
        ("moved_here", counters.moved_here),
        ("moved_away", counters.moved_away),
        ("duplicates", counters.duplicates),
        ("sticky", counters.sticky),
        ("refused", counters.refused),
    ];
    all.extend(counters.map(|(counter, count)| json!({ "counter": counter, "count": count })));
    json!({ "evpn": all })
}

/// Returns the counters of a network's EVPN for `towpath stats`; `None` without it.
pub(crate) fn figures(network: &NetworkReport) -> Option<Value> {
    let summary = network.evpn.as_ref()?;
    let neighbors = summary.sessions.iter().map(|(address, state, messages)| {
        let object = json!({
            "state": state.name(),
            "established": messages.established,
            "errors": messages.errors,
            "updates_received": messages.updates_received,
            "updates_sent": messages.updates_sent,
        });
        (address.to_string(), object)
    });
    let sessions = summary.states().map(|(state, count)| (state.to_owned(), count.into()));
    let unused = summary.unused().map(|(why, count)| (why.to_owned(), count.into()));
    let (counters, routes) = (&summary.counters, &summary.routes);
    let services = network.services.unwrap_or_default();
    Some(json!({
        "sessions": Value::Object(sessions.into_iter().collect()),
        "neighbors": Value::Object(neighbors.collect()),
        "received": { "type2": routes.stations_received, "type3": routes.floods_received },
        "announced": { "type2": routes.stations_announced, "type3": routes.floods_announced },
        "unused": Value::Object(unused.into_iter().collect()),
        "malformed": counters.malformed,
        "moved_here": counters.moved_here,
        "moved_away": counters.moved_away,
        "duplicates": counters.duplicates,
        "frozen": routes.frozen,
        "sticky": counters.sticky,
        "refused": counters.refused,
        "resolved": network.ports.iter().filter_map(resolved).sum::<u64>(),
        "leases": {
            "conflicts": services.conflicts,
            "moved_away": services.moved_away,
            "settling": services.settling,
        },
    }))
}

/// Returns how many ARP requests and neighbour solicitations a VXLAN port has answered.
pub(crate) fn resolved(port: &PortReport) -> Option<u64> {
    match &port.device {
        DeviceReport::Vxlan(counters) => Some(counters.resolved),
        _ => None,
    }
}

/// Returns a line of `towpath ls evpn`.
pub(crate) fn line(pid: i32, one: &Value) -> String {
    let of = |key: &str| plain(&one[key]);
    if let Value::String(neighbor) = &one["neighbor"] {
        let reason = match &one["reason"] {
            Value::String(reason) => format!(", last end: {reason}"),
            _ => String::new(),
        };
        return format!(
            "{pid:>8} neighbor {neighbor} {} for {} s, {} routes, {} stale, {} updates received, \
             {} sent{reason}",
            of("state"),
            of("seconds"),
            of("routes"),
            of("stale"),
            of("updates_received"),
            of("updates_sent"),
        );
    }
    if let Value::String(mac) = &one["mac"] {
        let place = match &one["vtep"] {
            Value::String(vtep) => vtep,
            _ => "here",
        };
        let addresses = one["addresses"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut shown = format!("{pid:>8} station {mac} VNI {} at {place}", of("vni"));
        for address in addresses {
            shown = shown + " " + &plain(address);
        }
        if one["moves"] != 0 {
            shown += &format!(", {} moves", of("moves"));
        }
        for key in ["sticky", "duplicate"] {
            if one[key] == true {
                shown = shown + ", " + key;
            }
        }
        return shown;
    }
    format!("{pid:>8} counter {} {}", of("counter"), of("count"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_an_entry_is() {
        let neighbor = json!({
            "neighbor": "192.0.2.1", "state": "Idle", "seconds": 3, "reason": "hold time expired",
            "routes": 2, "stale": 1, "updates_received": 5, "updates_sent": 4,
        });
        let shown = line(7, &neighbor);
        assert!(shown.contains("neighbor 192.0.2.1 Idle for 3 s, 2 routes, 1 stale"), "{shown}");
        assert!(shown.ends_with("last end: hold time expired"), "{shown}");
        let station = json!({
            "vni": 100, "mac": "02:00:00:00:00:01", "vtep": null, "addresses": ["10.0.2.7"],
            "moves": 2, "sticky": true, "duplicate": false,
        });
        let expected =
            "       7 station 02:00:00:00:00:01 VNI 100 at here 10.0.2.7, 2 moves, sticky";
        assert_eq!(line(7, &station), expected);
        let counter = json!({ "counter": "own", "count": 3 });
        assert_eq!(line(7, &counter), "       7 counter own 3");
    }
}
