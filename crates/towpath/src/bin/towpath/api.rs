//! What can be asked on a control socket, and the JSON of it.
//!
//! An instance that serves one program answers `GET` of [`STATS`] and [`METRICS`], a network more.
//! Requests: `GET` of [`PORTS`], [`STATS`] and [`METRICS`]; `POST` of [`TRANSACTION`] with
//! `{"operations": [...]}`, where an operation is one of
//! `{"add": NAME, "vhost-user": PATH, ...}` (or `"stream": PATH`, or `"tap": true`),
//! `{"del": NAME}` and `{"set": NAME, ...}`, and `...` are settings: `"queue-len": N`,
//! `"isolated": BOOL`, `"vlan": N`, or `"trunk": LIST` with or without `"native": N`, and for a new
//! port `"queue-pairs": N`. Names that are not known are refused.
//!
//! Limit: [`OPERATIONS_MAX`].

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use towpath::network::{
    Attachment, Change, Network, Operation, PortReport, PortSettings, TransactionError,
};
use towpath::worker::Worker;
use towpath_net::switch::vlan::{Vid, VlanSet};
use towpath_net::switch::{PortCounters, PortVlans, Role};

use crate::http::{Request, Response};
use crate::{metrics, stats};

pub(crate) const PORTS: &str = "/v1/ports";
pub(crate) const STATS: &str = "/v1/stats";
pub(crate) const TRANSACTION: &str = "/v1/transaction";
pub(crate) const METRICS: &str = "/metrics";
/// Operations of a transaction, during which no packet moves.
const OPERATIONS_MAX: usize = 128;
/// Most pairs of queues of a port, as for `towpath up`.
const QUEUE_PAIRS_MAX: u64 = 8;
/// Highest number of a VLAN (IEEE 802.1Q).
const VLAN_MAX: u64 = 4094;

/// Answers a request, changing the network if it says so.
pub(crate) fn answer(worker: &mut Worker<Network>, request: &Request<'_>) -> Response {
    match (request.method, request.path) {
        ("GET", PORTS) => {
            let report = worker.side().report(worker.now());
            let ports: Vec<_> = report.ports.iter().map(port).collect();
            Response::json(200, &json!({ "ports": ports }))
        }
        ("GET", STATS) => Response::json(200, &figures(worker)),
        ("GET", METRICS) => {
            let network = worker.side().report(worker.now());
            Response::metrics(metrics::text(&worker.report(), Some(&network)))
        }
        ("POST", TRANSACTION) => transaction(worker.side_mut(), request.body),
        (_, PORTS | STATS | METRICS | TRANSACTION) => {
            Response::error(405, "reading is GET, a transaction is POST")
        }
        _ => Response::error(404, "there is no such path"),
    }
}

/// Answers a request to an instance that serves one program: figures alone.
pub(crate) fn answer_gateway(worker: &Worker, request: &Request<'_>) -> Response {
    match (request.method, request.path) {
        ("GET", STATS) => Response::json(200, &stats::object(&worker.report())),
        ("GET", METRICS) => Response::metrics(metrics::text(&worker.report(), None)),
        (_, STATS | METRICS) => Response::error(405, "figures are read by GET"),
        _ => Response::error(404, "there is no such path"),
    }
}

fn transaction(network: &mut Network, body: &[u8]) -> Response {
    let operations = match read_transaction(body) {
        Ok(operations) => operations,
        Err(message) => return Response::error(400, &message),
    };
    let count = operations.len();
    match network.apply(operations) {
        Ok(()) => Response::json(200, &json!({ "applied": count })),
        Err(TransactionError { index, error }) => {
            let error = if count > 1 {
                format!("operation {}: {error}", index + 1)
            } else {
                error.to_string()
            };
            Response::json(409, &json!({ "error": error, "operation": index }))
        }
    }
}

fn read_transaction(body: &[u8]) -> Result<Vec<Operation>, String> {
    let body: Value = serde_json::from_slice(body).map_err(|error| format!("no JSON: {error}"))?;
    let only = body.as_object().filter(|object| object.len() == 1);
    let operations = only.and_then(|object| object.get("operations")).and_then(Value::as_array);
    let operations = operations.ok_or("an object with a list 'operations' alone is wanted")?;
    if operations.len() > OPERATIONS_MAX {
        return Err(format!("more than {OPERATIONS_MAX} operations"));
    }
    let read = |(index, value)| {
        operation(value).map_err(|error| format!("operation {}: {error}", index + 1))
    };
    operations.iter().enumerate().map(read).collect()
}

/// One operation; takes all fields of the object, or says which is wrong.
pub(crate) fn operation(value: &Value) -> Result<Operation, String> {
    let mut fields = value.as_object().ok_or("it is no object")?.clone();
    let operation = if let Some(name) = text(&mut fields, "add")? {
        let path = |path: Option<String>| match path.map(PathBuf::from) {
            Some(path) if !path.is_absolute() => Err("the path is not absolute".to_owned()),
            path => Ok(path),
        };
        let vhost_user = path(text(&mut fields, "vhost-user")?)?;
        let stream = path(text(&mut fields, "stream")?)?;
        let is_tap = yes_or_no(&mut fields, "tap")?.unwrap_or(false);
        let attachment = match (vhost_user, stream, is_tap) {
            (Some(path), None, false) => Attachment::VhostUser(path),
            (None, Some(path), false) => Attachment::Stream(path),
            (None, None, true) => Attachment::Tap(name.clone()),
            _ => return Err("one of vhost-user, stream and tap is wanted".to_owned()),
        };
        let mut settings = PortSettings::default();
        if let Some(pairs) = number(&mut fields, "queue-pairs", 1, QUEUE_PAIRS_MAX)? {
            settings.pairs = pairs as u16;
        }
        let settings = change(&mut fields)?.apply_to(settings);
        Operation::Add { name, attachment, settings }
    } else if let Some(name) = text(&mut fields, "del")? {
        Operation::Del(name)
    } else if let Some(name) = text(&mut fields, "set")? {
        Operation::Set(name, change(&mut fields)?)
    } else {
        return Err("one of add, del and set is wanted".to_owned());
    };
    match fields.keys().next() {
        Some(name) => Err(format!("'{name}' has no meaning here")),
        None => Ok(operation),
    }
}

fn change(fields: &mut Map<String, Value>) -> Result<Change, String> {
    let vid = |number: u64| u16::try_from(number).ok().and_then(Vid::new);
    let vlan = number(fields, "vlan", 1, VLAN_MAX)?.and_then(vid);
    let native = number(fields, "native", 1, VLAN_MAX)?.and_then(vid);
    let trunk = text(fields, "trunk")?.map(|list| read_vlans(&list)).transpose()?;
    let vlans = match (vlan, trunk, native) {
        (None, None, None) => None,
        (Some(vid), None, None) => Some(PortVlans::Access(vid)),
        (None, Some(allowed), native) => Some(PortVlans::Trunk { native, allowed }),
        _ => return Err("vlan goes alone, native with trunk".to_owned()),
    };
    let isolated = yes_or_no(fields, "isolated")?;
    Ok(Change {
        queue_len: number(fields, "queue-len", 0, u64::from(u32::MAX))?.map(|len| len as usize),
        vlans,
        role: isolated.map(|yes| if yes { Role::Isolated } else { Role::Station }),
    })
}

fn read_vlans(list: &str) -> Result<Box<VlanSet>, String> {
    if list == "all" {
        return Ok(Box::new(VlanSet::ALL));
    }
    let wrong = || format!("'{list}' is no list of VLANs from 1 to {VLAN_MAX}, as 10,20-30 or all");
    let vid = |text: &str| text.parse().ok().and_then(Vid::new).ok_or_else(wrong);
    let mut set = Box::new(VlanSet::NONE);
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (vid(first)?.number(), vid(last)?.number());
        if first > last {
            return Err(wrong());
        }
        (first..=last).filter_map(Vid::new).for_each(|vid| set.insert(vid));
    }
    Ok(set)
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

fn text(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match fields.remove(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("'{name}' wants a text")),
    }
}

fn yes_or_no(fields: &mut Map<String, Value>, name: &str) -> Result<Option<bool>, String> {
    match fields.remove(name) {
        None => Ok(None),
        Some(Value::Bool(is_so)) => Ok(Some(is_so)),
        Some(_) => Err(format!("'{name}' wants yes or no")),
    }
}

fn number(
    fields: &mut Map<String, Value>,
    name: &str,
    min: u64,
    max: u64,
) -> Result<Option<u64>, String> {
    match fields.remove(name) {
        None => Ok(None),
        Some(value) => match value.as_u64().filter(|number| (min..=max).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(format!("'{name}' wants a number from {min} to {max}")),
        },
    }
}

/// A port, without its counters.
fn port(report: &PortReport) -> Value {
    let (kind, at) = match &report.attachment {
        Attachment::VhostUser(path) => ("vhost-user", path.to_string_lossy()),
        Attachment::Stream(path) => ("stream", path.to_string_lossy()),
        Attachment::Tap(name) => ("tap", name.into()),
    };
    let settings = &report.settings;
    let mut object = json!({
        "name": report.name,
        "attachment": kind,
        "at": at,
        "connected": report.is_connected,
        "failure": report.failure,
        "waiting": report.waiting,
        "queue-len": settings.queue_len,
        "isolated": settings.role == Role::Isolated,
    });
    match &settings.vlans {
        PortVlans::Access(vid) => object["vlan"] = vid.number().into(),
        PortVlans::Trunk { native, allowed } => {
            object["trunk"] = vlan_list(allowed).into();
            object["native"] = native.map(Vid::number).into();
        }
    }
    object
}

/// The figures of an instance, and of its switch and ports.
fn figures(worker: &Worker<Network>) -> Value {
    let network = worker.side().report(worker.now());
    let mut object = stats::object(&worker.report());
    let with_device = |port: &PortReport| {
        let mut object = counters(&port.counters);
        object["dropped"]["device"] = port.device.dropped().into();
        (port.name.clone(), object)
    };
    object["stations"] = network.stations.into();
    object["ports"] = Value::Object(network.ports.iter().map(with_device).collect());
    if let Some(gateway) = &network.gateway {
        object["gateway"] = counters(gateway);
        object["gateway"]["dropped"]["no_memory"] = network.gateway_no_memory.into();
    }
    object
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
        for (list, told) in [("1-4094", "all"), ("all", "all"), ("30,10-12,13", "10-13,30")] {
            assert_eq!(vlan_list(&read_vlans(list).unwrap()), told);
        }
        for wrong in ["", "0", "4095", "3-2", "1,", "-", "a", "99999999999"] {
            assert!(read_vlans(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn operations_that_are_none_are_refused() {
        for (wrong, why) in [
            (json!([]), "no object"),
            (json!({}), "one of add, del and set"),
            (json!({ "add": "a" }), "one of vhost-user, stream and tap"),
            (json!({ "add": "a", "tap": true, "stream": "/x" }), "one of vhost-user"),
            (json!({ "add": "a", "stream": "x" }), "not absolute"),
            (json!({ "del": 1 }), "'del' wants a text"),
            (json!({ "del": "a", "vlan": 1 }), "'vlan' has no meaning here"),
            (json!({ "set": "a", "del": "b" }), "'set' has no meaning here"),
            (json!({ "set": "a", "vlan": 4095 }), "from 1 to 4094"),
            (json!({ "set": "a", "native": 1 }), "native with trunk"),
            (json!({ "set": "a", "isolated": 1 }), "yes or no"),
            (json!({ "set": "a", "queue-len": -1 }), "a number from"),
            (json!({ "set": "a", "queue-pairs": 2 }), "no meaning here"),
        ] {
            let error = operation(&wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
