//! The remotes of VXLAN ports, as JSON and as lines.

use serde_json::{Value, json};
use towpath_gateway::network::{Network, PortRemotes};
use towpath_gateway::worker::Worker;

use crate::control::ask::plain;

/// Returns the remotes of all VXLAN ports of a network, and the stations behind them.
pub(crate) fn list(worker: &Worker<Network>) -> Value {
    let mut all = Vec::new();
    for PortRemotes { port, remotes, stations } in worker.inside().remotes(worker.now()) {
        all.extend(remotes.iter().map(|remote| {
            json!({
                "port": port,
                "remote": remote.address.to_string(),
                "flood": remote.flood.map(|origin| origin.name()),
                "stations": remote.stations,
            })
        }));
        all.extend(stations.iter().map(|station| {
            json!({
                "port": port,
                "remote": station.remote.to_string(),
                "mac": station.mac.to_string(),
                "origin": station.origin.name(),
            })
        }));
    }
    json!({ "remotes": all })
}

/// Returns a line of `towpath ls remotes`.
pub(crate) fn line(pid: i32, one: &Value) -> String {
    let [port, remote] = ["port", "remote"].map(|key| plain(&one[key]));
    let what = match (&one["mac"], &one["flood"]) {
        (Value::String(mac), _) => format!("station {mac} {}", plain(&one["origin"])),
        (_, Value::String(origin)) => format!("flood {origin}"),
        _ => "no flood".to_owned(),
    };
    let stations = match &one["stations"] {
        Value::Number(count) => format!(", {count} stations"),
        _ => String::new(),
    };
    format!("{pid:>8} {port:<15} {remote:<39} {what}{stations}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_an_entry_is() {
        for (one, shown) in [
            (
                json!({ "port": "v", "remote": "192.0.2.1", "flood": "static", "stations": 2 }),
                "flood static, 2 stations",
            ),
            (
                json!({ "port": "v", "remote": "192.0.2.1", "flood": null, "stations": 1 }),
                "no flood",
            ),
            (
                json!({ "port": "v", "remote": "::1", "mac": "02:00", "origin": "learned" }),
                "station 02:00 learned",
            ),
        ] {
            assert!(line(7, &one).contains(shown), "{}", line(7, &one));
        }
    }
}
