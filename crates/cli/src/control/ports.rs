//! `towpath ls`, `port`, `workers`, `lease`, `remote` and `publish`: showing and changing running
//! networks.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use towpath_gateway::control::fields::Fields;
use towpath_gateway::control::operations;
use towpath_gateway::publish::PROGRAM;

use crate::config::args::{
    AddOrDel, LeaseArguments, LsArguments, LsWhat, PortAction, PortArguments, PublishArguments,
    RemoteArguments, WhichNetwork, Workers, WorkersAction, WorkersArguments,
};
use crate::config::{policy_file, settings};
use crate::control::api;
use crate::control::ask::{self, plain};
use crate::control::{evpn, instances, published, remotes};
use crate::exit::{Ending, Failure};
use crate::messages::Messages;

/// Lists the ports, leases or published ports of one network, or of all.
pub(crate) fn list(arguments: &LsArguments) -> Result<Ending, Failure> {
    if arguments.what == LsWhat::Published {
        return list_published(arguments);
    }
    let which = &arguments.which;
    let networks = match (which.pid, &which.socket) {
        (None, None) => networks()?,
        (pid, _) => {
            let path = one(which)?;
            let answer = ask::ask(&path, "GET", api::PORTS, None)?;
            vec![(pid.unwrap_or(0), path, answer)]
        }
    };
    if networks.is_empty() {
        Messages::Normal.notice("no network is running");
    }
    let mut text = String::new();
    for (pid, path, ports) in networks {
        let (answer, list, line): (_, _, fn(i32, &Value) -> String) = match arguments.what {
            LsWhat::Ports => (ports, "ports", port_line),
            LsWhat::Remotes => {
                (ask::ask(&path, "GET", api::REMOTES, None)?, "remotes", remotes::line)
            }
            LsWhat::Evpn => (ask::ask(&path, "GET", api::EVPN, None)?, "evpn", evpn::line),
            _ => (ask::ask(&path, "GET", api::LEASES, None)?, "leases", lease_line),
        };
        let mut listed = answer[list].as_array().cloned().unwrap_or_default();
        if arguments.what == LsWhat::Leases {
            listed.extend(not_taken(&answer));
        }
        for one in &listed {
            // Writing to a string cannot fail.
            let _ = match arguments.json {
                true => writeln!(text, "{one}"),
                false => writeln!(text, "{}", line(pid, one)),
            };
        }
    }
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(Ending::Code(0))
}

/// Lists the published ports of networks and of instances that serve one program.
fn list_published(arguments: &LsArguments) -> Result<Ending, Failure> {
    let which = &arguments.which;
    let running = match (which.pid, &which.socket) {
        (None, None) => instances::running()?,
        (pid, _) => vec![(pid.unwrap_or(0), one(which)?)],
    };
    if running.is_empty() {
        Messages::Normal.notice("no towpath is running");
    }
    let mut text = String::new();
    for (pid, path) in running {
        // Another version may have no list.
        let Some(answer) = ask::ask_if_any(&path, "GET", api::PUBLISHED, None)? else { continue };
        for one in answer["published"].as_array().into_iter().flatten() {
            // Writing to a string cannot fail.
            let _ = match arguments.json {
                true => writeln!(text, "{one}"),
                false => writeln!(text, "{}", published_line(pid, one)),
            };
        }
    }
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(Ending::Code(0))
}

/// Adds, removes or changes a port.
pub(crate) fn change(arguments: &PortArguments) -> Result<Ending, Failure> {
    let names = arguments.name.split(',');
    let operations = names.map(|name| operation(name, arguments)).collect();
    perform(checked(operations), &one(&arguments.which)?)
}

/// Changes the number of workers.
pub(crate) fn set_workers(arguments: &WorkersArguments) -> Result<Ending, Failure> {
    let operation = match arguments.action {
        WorkersAction::Set => match arguments.count {
            Workers::Auto => json!({ "workers": "auto" }),
            Workers::Most(count) => json!({ "workers": count }),
        },
    };
    perform(vec![operation], &one(&arguments.which)?)
}

/// Adds or removes a static lease.
pub(crate) fn lease(arguments: &LeaseArguments) -> Result<Ending, Failure> {
    let verb = match arguments.action {
        AddOrDel::Add => "add-lease",
        AddOrDel::Del => "del-lease",
    };
    let settings = Fields::of_settings(&arguments.lease).map(Fields::into_value);
    let operation = settings.map_err(|wrong| wrong.to_string()).and_then(|settings| {
        let operation = json!({ verb: settings });
        understood(operation)
    });
    let operations = checked(operation.map(|operation| vec![operation]));
    perform(operations, &one(&arguments.which)?)
}

/// Adds or removes a remote, or a station behind one.
pub(crate) fn remote(arguments: &RemoteArguments) -> Result<Ending, Failure> {
    let RemoteArguments { action, port, remote, mac, address, which } = arguments;
    let (remote, mac) = (remote.to_string(), mac.map(|mac| mac.to_string()));
    let of_address = |address: &IpAddr| match action {
        AddOrDel::Add => {
            json!({ "add-remote": { "port": port, "mac": mac, "address": address.to_string() } })
        }
        AddOrDel::Del => json!({ "del-remote": { "port": port, "address": address.to_string() } }),
    };
    let first = match (action, &mac) {
        (AddOrDel::Add, None) => json!({ "add-remote": { "port": port, "remote": remote } }),
        (AddOrDel::Del, None) => json!({ "del-remote": { "port": port, "remote": remote } }),
        (AddOrDel::Add, Some(mac)) => {
            json!({ "add-remote": { "port": port, "remote": remote, "mac": mac } })
        }
        (AddOrDel::Del, Some(mac)) => json!({ "del-remote": { "port": port, "mac": mac } }),
    };
    let operations = [first].into_iter().chain(address.iter().map(of_address)).collect();
    perform(operations, &one(which)?)
}

/// Publishes or unpublishes ports.
pub(crate) fn publish(arguments: &PublishArguments) -> Result<Ending, Failure> {
    let verb = match arguments.action {
        AddOrDel::Add => "publish",
        AddOrDel::Del => "unpublish",
    };
    let mut operation = json!({ verb: arguments.guest });
    match (arguments.action, arguments.if_absent) {
        (AddOrDel::Add, true) => operation["if-absent"] = true.into(),
        (AddOrDel::Del, true) => settings::usage_error(&anyhow!(
            "option --if-absent is for 'add' only; leave it out, or use 'add'"
        )),
        (_, false) => {}
    }
    for (name, specs) in [("tcp", &arguments.tcp_ports), ("udp", &arguments.udp_ports)] {
        if !specs.is_empty() {
            operation[name] = specs.as_slice().into();
        }
    }
    let program = program(arguments)?;
    if program.is_some() {
        operation[verb] = PROGRAM.into();
    }
    let operation = checked(understood(operation));
    let path = match program {
        Some(path) => path,
        None => one(&arguments.which).with_context(|| no_instance(&arguments.guest))?,
    };
    perform(vec![operation], &path)
}

/// Returns the control socket of the instance that serves one program and whose PID is given in
/// place of a guest.
fn program(arguments: &PublishArguments) -> anyhow::Result<Option<PathBuf>> {
    let PublishArguments { guest, which, .. } = arguments;
    let is_chosen = which.pid.is_some() || which.socket.is_some();
    let Some(number) = guest.parse::<i32>().ok().filter(|_| !is_chosen) else { return Ok(None) };
    if !instances::running()?.iter().any(|(pid, _)| *pid == number) {
        return Ok(None);
    }
    let path = instances::of_process(number)?;
    let is_network = ask::ask_if_any(&path, "GET", api::PORTS, None)?.is_some();
    Ok((!is_network).then_some(path))
}

/// Returns what was looked for in vain.
fn no_instance(guest: &str) -> String {
    match guest.parse::<i32>() {
        Ok(number) => format!("no `towpath run` or `towpath attach` has PID {number}"),
        Err(_) => format!("cannot find guest '{guest}'"),
    }
}

/// Sends operations to an instance, which makes all or none.
fn perform(operations: Vec<Value>, path: &Path) -> Result<Ending, Failure> {
    let body = json!({ "operations": operations });
    ask::ask(path, "POST", published::TRANSACTION, Some(&body))?;
    Ok(Ending::Code(0))
}

/// Ends the process with code 2 if the command line is not valid.
fn checked<T>(read: Result<T, String>) -> T {
    read.unwrap_or_else(|message| settings::usage_error(&anyhow!(message)))
}

/// Returns the operation if networks understand it.
fn understood(operation: Value) -> Result<Value, String> {
    match Fields::of(operation.clone(), "").and_then(operations::operation) {
        Ok(_) => Ok(operation),
        Err(wrong) => Err(wrong.to_string()),
    }
}

/// Returns the control socket of the selected network.
pub(crate) fn one(which: &WhichNetwork) -> anyhow::Result<PathBuf> {
    match (which.pid, &which.socket) {
        (_, Some(path)) => Ok(path.clone()),
        (Some(pid), None) => instances::of_process(pid),
        (None, None) => match networks()?.as_slice() {
            [(_, path, _)] => Ok(path.clone()),
            [] => bail!("no network is running; start one with `towpath up`"),
            several => bail!(
                "several networks are running, with PIDs {}; choose one with --pid",
                listed(several.iter().map(|(pid, ..)| *pid))
            ),
        },
    }
}

/// Lists process numbers for a message.
pub(crate) fn listed(pids: impl Iterator<Item = i32>) -> String {
    pids.map(|pid| pid.to_string()).collect::<Vec<_>>().join(", ")
}

/// Returns the running networks: process number, control socket and ports of each.
pub(crate) fn networks() -> anyhow::Result<Vec<(i32, PathBuf, Value)>> {
    let mut networks = Vec::new();
    for (pid, path) in instances::running()? {
        if let Some(ports) = ask::ask_if_any(&path, "GET", api::PORTS, None)? {
            networks.push((pid, path, ports));
        }
    }
    Ok(networks)
}

/// Returns the operation on one port, checked as the network would.
fn operation(name: &str, arguments: &PortArguments) -> Result<Value, String> {
    let PortArguments {
        action,
        settings,
        vhost_user,
        vhost_user_client,
        stream,
        tap,
        uplink,
        egress,
        ..
    } = arguments;
    let verb = match action {
        PortAction::Add => "add",
        PortAction::Del => "del",
        PortAction::Set => "set",
    };
    let mut operation = json!({ verb: name });
    for (kind, path) in
        [("vhost-user", vhost_user), ("vhost-user-client", vhost_user_client), ("stream", stream)]
    {
        if let Some(path) = path {
            operation[kind] = absolute(path).map_err(|error| format!("{error:#}"))?.into();
        }
    }
    if *tap {
        operation["tap"] = true.into();
    }
    if let Some(interface) = &uplink.packet {
        operation["packet"] = interface.as_str().into();
    }
    if let Some(settings) = &uplink.xdp {
        operation["xdp"] = settings.to_string().into();
    }
    if let Some(settings) = &uplink.vxlan {
        operation["vxlan"] = settings.to_string().into();
    }
    let (pairs, rest) = settings.as_chunks::<2>();
    if let [setting] = rest {
        return Err(format!("setting '{setting}' has no value"));
    }
    if let Some(path) = egress {
        let read = policy_file::read(path).and_then(|_| policy_file::as_request(path));
        operation["egress"] = read.map_err(|error| format!("option --egress: {error:#}"))?;
    }
    if pairs.is_empty() && egress.is_none() && *action == PortAction::Set {
        return Err("expected settings and their values, for example queue-len 2000".to_owned());
    }
    for [setting, value] in pairs {
        operation[setting] = match (setting.as_str(), value.as_str()) {
            ("trunk" | "macs" | "addresses", list) => list.into(),
            (_, "yes") => true.into(),
            (_, "no") => false.into(),
            (_, text) => text.parse::<u64>().map_or_else(|_| text.into(), Value::from),
        };
    }
    understood(operation)
}

/// Returns an absolute path, as the network's working directory may differ.
fn absolute(path: &Path) -> anyhow::Result<String> {
    let absolute = std::path::absolute(path)?;
    Ok(absolute
        .to_str()
        .with_context(|| format!("the path {} is not UTF-8", path.display()))?
        .to_owned())
}

fn port_line(pid: i32, port: &Value) -> String {
    let state = match (&port["failure"], port["connected"].as_bool()) {
        (Value::String(_), _) => plain(&port["failure"]),
        _ if port["link"] == "down" => "link down".to_owned(),
        (_, Some(true)) => "connected".to_owned(),
        _ => "disconnected".to_owned(),
    };
    let vlans = match port["trunk"].as_str() {
        Some(list) => format!("trunk {}", list.escape_debug()),
        None => format!("vlan {}", plain(&port["vlan"])),
    };
    let reach = if port["isolated"] == true { "isolated" } else { "open" };
    let [name, kind, at] = ["name", "attachment", "at"].map(|key| plain(&port[key]));
    let worker = plain(&port["worker"]);
    let [waiting, len] = ["waiting", "queue-len"].map(|key| plain(&port[key]));
    format!(
        "{pid:>8} {name:<15} {state:<12} {waiting:>5}/{len:<5} {vlans:<10} {reach:<8} \
         worker {worker} {kind} {at}"
    )
}

/// Returns the addresses and names of static leases that no guest has leased, as leases without a
/// time. Those with a station are configured there.
fn not_taken(answer: &Value) -> Vec<Value> {
    let all = |list: &str| answer[list].as_array().into_iter().flatten();
    let is_lent = |key, value: &Value| all("leases").any(|lease| lease[key] == *value);
    let mut left = Vec::new();
    for fixed in all("static") {
        let lease = |address: &Value| {
            let mut lease = fixed.clone();
            if let Value::Object(fields) = &mut lease {
                fields.retain(|key, _| key != "ipv4" && key != "ipv6");
            }
            lease["address"] = address.clone();
            lease["static"] = true.into();
            lease["seconds"] = Value::Null;
            lease
        };
        let addresses = [&fixed["ipv4"], &fixed["ipv6"]];
        let addresses = addresses.into_iter().filter(|address| !address.is_null());
        if addresses.clone().next().is_none() && !is_lent("name", &fixed["name"]) {
            left.push(lease(&Value::Null));
        }
        left.extend(addresses.filter(|address| !is_lent("address", address)).map(lease));
    }
    left
}

fn lease_line(pid: i32, lease: &Value) -> String {
    let station = if lease["station"].is_string() { "station" } else { "mac" };
    let keys = ["address", "seconds", station, "port", "name"];
    let [address, seconds, mac, port, name] = keys.map(|key| match &lease[key] {
        Value::Null => "-".to_owned(),
        value => plain(value),
    });
    let kind = match (&lease["static"], &lease["seconds"]) {
        (Value::Bool(true), Value::Null) if station == "mac" => " static, not taken",
        (Value::Bool(true), _) => " static",
        _ => "",
    };
    format!("{pid:>8} {address:<39} {seconds:>8} {mac:<17} {port:<15} {name}{kind}")
}

/// Formats a published port like an option: address and interface only if it has them.
fn published_line(pid: i32, published: &Value) -> String {
    let protocol = plain(&published["protocol"]);
    let count = published["count"].as_u64().unwrap_or(1);
    let [port, to] = ["host-port", "guest-port"].map(|key| {
        let first = published[key].as_u64().unwrap_or_default();
        let last = first.saturating_add(count.saturating_sub(1));
        if last > first { format!("{first}-{last}") } else { first.to_string() }
    });
    let part = |key, before: &str| match &published[key] {
        Value::Null => String::new(),
        value => format!("{before}{}", plain(value)),
    };
    let place = part("address", "") + &part("interface", "%");
    let slash = if place.is_empty() { "" } else { "/" };
    let mut guest = plain(&published["guest"]);
    if guest.contains(':') {
        guest = format!("[{guest}]");
    }
    format!("{pid:>8} {protocol} {place}{slash}{port} {guest}:{to}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: of a guest with two addresses, the one that is not leased is listed; of guests with
    /// only a name, the one whose name is not taken; and one that is configured, with its station.
    #[test]
    fn static_leases_that_were_never_used() {
        let answer = json!({
            "leases": [
                { "address": "10.0.2.20", "mac": "02:00:00:00:00:01", "port": "a", "name": "web",
                  "seconds": 9, "static": true },
                { "address": "10.0.2.77", "mac": "02:00:00:00:00:07", "port": "a", "name": "x",
                  "seconds": 9, "static": true },
            ],
            "static": [
                { "port": "a", "ipv4": "10.0.2.20", "ipv6": "fd00::20", "name": "web" },
                { "mac": "02:00:00:00:00:03", "ipv4": "10.0.2.30", "ipv6": null, "name": null },
                { "port": "c", "ipv4": null, "ipv6": null, "name": "x" },
                { "client-id": "0102", "ipv4": null, "ipv6": null, "name": "y" },
                { "port": "d", "ipv4": "10.0.2.40", "station": "02:00:00:00:00:04" },
            ],
        });
        let left = not_taken(&answer);
        let short = |lease: &Value| {
            let words: Vec<_> = lease_line(7, lease).split(' ').map(str::to_owned).collect();
            words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
        };
        let lines: Vec<_> = left.iter().map(short).collect();
        assert_eq!(
            lines,
            [
                "7 fd00::20 - - a web static, not taken",
                "7 10.0.2.30 - 02:00:00:00:00:03 - - static, not taken",
                "7 - - - - y static, not taken",
                "7 10.0.2.40 - 02:00:00:00:00:04 d - static",
            ]
        );
        assert_eq!(left[2]["client-id"], "0102");
        assert!(left[0].get("ipv4").is_none());
    }
}
