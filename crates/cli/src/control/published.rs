//! Published ports of running instances: changes, and the JSON that lists them.
//!
//! [`Publishing`] changes the ports of an instance that serves one program. In requests, the guest
//! of such an instance has the name [`PROGRAM`].

use std::fmt::Display;

use anyhow::anyhow;
use serde_json::{Value, json};
use towpath_gateway::control::http::Response;
use towpath_gateway::flows::StartError;
use towpath_gateway::network::Operation;
use towpath_gateway::publish::{
    HostPort, PROGRAM, PortChange, Protocol, Publish, PublishId, Target,
};

/// Path of transactions: operations of which all are done, or none.
pub(crate) const TRANSACTION: &str = "/v1/transaction";

/// An instance that serves one program, whose published ports change while it runs.
///
/// A port is bound, or its sockets are closed, when the call returns. Open connections continue.
pub(crate) trait Publishing {
    /// Publishes one port of the host, and returns its ID.
    fn publish(&mut self, publish: &Publish) -> Result<PublishId, StartError>;

    /// Closes one published port; returns false if none has this ID.
    fn unpublish(&mut self, id: PublishId) -> bool;

    /// Makes all changes, in order, or none. The error contains the index of the change that
    /// failed.
    fn change_ports(&mut self, changes: Vec<PortChange>) -> Result<(), (usize, StartError)>;

    /// Returns the published ports with their IDs.
    fn published(&self) -> Vec<(PublishId, &Publish)>;
}

/// Answers a transaction of an instance that serves one program.
pub(crate) fn transaction(
    instance: &mut impl Publishing,
    operations: Result<Vec<Operation>, String>,
) -> Response {
    let operations = match operations {
        Ok(operations) => operations,
        Err(message) => return Response::error(400, &message),
    };
    let count = operations.len();
    let changes = operations.into_iter().map(of_program).enumerate();
    let changes = changes.map(|(index, change)| change.ok_or_else(|| (index, anyhow!(OTHERS))));
    let done = changes.collect::<Result<Vec<_>, _>>().and_then(|changes| {
        let changed = instance.change_ports(changes);
        changed.map_err(|(index, error)| (index, error.into()))
    });
    match done {
        Ok(()) => Response::json(200, &json!({ "applied": count })),
        Err((index, error)) => refused(409, count, index, &error),
    }
}

/// The error of an operation on something else than the program's ports.
const OTHERS: &str = "this towpath serves one program and is not a network: only publish and \
                      unpublish of 'program' are possible";

/// Returns the change of the program's ports; `None` if the operation is about something else.
fn of_program(operation: Operation) -> Option<PortChange> {
    let is_program = |target: &Target| matches!(target, Target::Guest(name) if name == PROGRAM);
    match operation {
        Operation::Ports(PortChange::Publish(mut ports, existing)) => {
            for publish in &mut ports {
                match &publish.target {
                    target if is_program(target) => publish.target = Target::Program,
                    // The specification has named an address inside.
                    Target::Address(_) => {}
                    _ => return None,
                }
            }
            Some(PortChange::Publish(ports, existing))
        }
        Operation::Ports(PortChange::Unpublish(target, only)) => {
            let target = if is_program(&target) { Target::Program } else { target };
            let is_its = matches!(target, Target::Program | Target::Address(_));
            is_its.then_some(PortChange::Unpublish(target, only))
        }
        _ => None,
    }
}

/// Returns the answer to a transaction of `count` operations of which the one at `index` failed.
pub(crate) fn refused(status: u16, count: usize, index: usize, error: &dyn Display) -> Response {
    let error = match count {
        0..=1 => format!("{error:#}"),
        _ => format!("operation {}: {error:#}", index + 1),
    };
    Response::json(status, &json!({ "error": error, "operation": index }))
}

/// Returns the published ports as JSON, in the order in which they were published; an entry for
/// each range.
pub(crate) fn list<'a>(published: impl Iterator<Item = (PublishId, &'a Publish)>) -> Value {
    let mut published: Vec<_> = published.collect();
    published.sort_unstable_by_key(|(id, _)| *id);
    let mut ranges: Vec<(HostPort, &Publish, u16)> = Vec::new();
    for (_, publish) in published {
        match ranges.last_mut() {
            Some((_, first, count)) if continues(first, *count, publish) => *count += 1,
            _ => ranges.push((publish.host_port(), publish, 1)),
        }
    }
    let range = |(host, first, count): &(HostPort, &Publish, u16)| {
        json!({
            "protocol": match host.protocol {
                Protocol::Tcp => "tcp",
                Protocol::Udp => "udp",
            },
            "address": host.address.map(|address| address.to_string()),
            "interface": host.interface,
            "host-port": host.port,
            "guest": match &first.target {
                Target::Program => PROGRAM.to_owned(),
                target => target.to_string(),
            },
            "guest-port": first.program_port,
            "count": count,
        })
    };
    json!({ "published": ranges.iter().map(range).collect::<Vec<_>>() })
}

/// True if `next` is the port behind a range of `count` ports that begins with `first`.
fn continues(first: &Publish, count: u16, next: &Publish) -> bool {
    let is_behind = |first: u16, next: u16| first.checked_add(count) == Some(next);
    is_behind(first.host_port, next.host_port)
        && is_behind(first.program_port, next.program_port)
        && (first.protocol, first.host) == (next.protocol, next.host)
        && (&first.interface, &first.target) == (&next.interface, &next.target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_gateway::publish;

    fn parse(specs: &[&str]) -> Vec<Publish> {
        let specs: Vec<String> = specs.iter().map(|spec| (*spec).to_owned()).collect();
        publish::parse(Protocol::Tcp, &specs, &(1..=1)).unwrap()
    }

    #[test]
    fn ranges_are_one_entry() {
        let ports = parse(&["80", "2000-2009:3000-3009", "2010:4000", "127.0.0.1/2011-2012"]);
        // The table of a gateway has another order.
        let listed = list((0..).map(PublishId).zip(&ports).collect::<Vec<_>>().into_iter().rev());
        let ranges = listed["published"].as_array().unwrap();
        let of = |key: &str| ranges.iter().map(|range| range[key].to_string()).collect::<Vec<_>>();
        assert_eq!(of("host-port"), ["80", "2000", "2010", "2011"]);
        assert_eq!(of("guest-port"), ["80", "3000", "4000", "2011"]);
        assert_eq!(of("count"), ["1", "10", "1", "2"]);
        assert_eq!(of("guest"), ["\"program\""; 4]);
    }

    /// Goal: an instance that serves one program takes only operations on that program's ports.
    #[test]
    fn operations_of_networks_are_rejected() {
        for (operation, is_its) in [
            (json!({ "publish": "program", "tcp": "80" }), true),
            (json!({ "unpublish": "program" }), true),
            (json!({ "publish": "a", "tcp": "80" }), false),
            // An address inside.
            (json!({ "publish": "10.0.2.20", "tcp": "80" }), true),
            (json!({ "unpublish": "10.0.2.20" }), true),
            (json!({ "del": "program" }), false),
            (json!({ "workers": 2 }), false),
        ] {
            let body = json!({ "operations": [operation] }).to_string();
            let [operation] = towpath_gateway::control::operations::transaction(body.as_bytes())
                .unwrap()
                .try_into()
                .unwrap();
            let text = format!("{operation:?}");
            assert_eq!(of_program(operation).is_some(), is_its, "{text}");
        }
    }
}
