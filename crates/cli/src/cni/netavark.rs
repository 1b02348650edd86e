//! Plugins of netavark (API 1.0.0): `create`, `setup`, `teardown` and `info`.
//!
//! podman keeps a network with its options; those of this plugin are `network`, the path of the
//! control socket, and the settings of ports. The running network leases the addresses, so podman's
//! networks have no subnets.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use serde_json::{Map, Value, json};
use towpath_gateway::control::fields::Fields;
use towpath_gateway::control::operations;

use super::attach::{self, Attached, Wanted, specification};
use super::error::Error;
use super::key::{Key, Prefix};
use super::network::{Member, Published};

/// The verbs, each the first argument of a call.
pub(super) const VERBS: [&str; 4] = ["create", "setup", "teardown", "info"];
/// Version of the interface between netavark and its plugins.
pub(super) const API: &str = "1.0.0";
/// The option that names the control socket.
const NETWORK: &str = "network";

/// Performs a verb. `namespace` is the file of the container's network namespace.
pub(super) fn perform(
    verb: &str,
    namespace: Option<&str>,
    input: &[u8],
) -> Result<Option<Value>, Value> {
    let read = || serde_json::from_slice::<Value>(input).context("the input is not JSON");
    let there = || namespace.context("expected the path of a network namespace");
    let done = match verb {
        "info" => Ok(Some(json!({ "version": env!("CARGO_PKG_VERSION"), "api_version": API }))),
        "create" => read().and_then(create).map(Some),
        "setup" => read().and_then(|value| setup(there()?, &value)).map(Some),
        _ => read().and_then(|value| teardown(&value)).map(|()| None),
    };
    done.map_err(|error| json!({ "error": format!("{error:#}") }))
}

/// Checks the configuration of a network; returns it as podman keeps it.
fn create(mut network: Value) -> anyhow::Result<Value> {
    let (_, settings) = options(&network)?;
    let mut port = Value::Object(settings);
    (port["add"], port["tap-fd"]) = ("a".into(), true.into());
    let checked = Fields::of(port, "").and_then(operations::operation);
    checked.map_err(|wrong| anyhow!("option (-o): {wrong}"))?;
    if network["subnets"].as_array().is_some_and(|subnets| !subnets.is_empty()) {
        bail!("the running network leases the addresses; leave out --subnet");
    }
    if network["internal"] == true {
        bail!("an internal network is one of `towpath up --no-gateway`; leave out --internal");
    }
    if !network["network_dns_servers"].is_null() {
        bail!("the running network has its own resolvers (--dns of `towpath up`); leave out --dns");
    }
    if network["routes"].as_array().is_some_and(|routes| !routes.is_empty()) {
        bail!("routes are not supported; leave out --route");
    }
    // podman leaves the addresses to the plugin, and its own resolver out.
    network["ipam_options"] = json!({ "driver": "none" });
    network["dns_enabled"] = false.into();
    Ok(network)
}

fn setup(namespace: &str, value: &Value) -> anyhow::Result<Value> {
    let wanted = wanted(namespace, value)?;
    let attached = attach::attach(&wanted).map_err(plain)?;
    let (_, interface) = wanted.interface.expect("it was given");
    Ok(status(&attached, &interface))
}

fn teardown(value: &Value) -> anyhow::Result<()> {
    // What cannot be set up must still be torn down.
    let (path, _) = options(&value["network"])?;
    let (key, _) = key(value)?;
    attach::detach(path.as_ref(), &key).map_err(plain)
}

fn plain(error: Error) -> anyhow::Error {
    anyhow!(error.message)
}

/// Parses the description of a container.
fn wanted(namespace: &str, value: &Value) -> anyhow::Result<Wanted> {
    let own = &value["network_options"];
    let (path, settings) = options(&value["network"])?;
    let (key, interface) = key(value)?;
    let addresses = own["static_ips"].as_array().into_iter().flatten().map(|address| {
        address
            .as_str()
            .and_then(|text| text.parse().ok())
            .with_context(|| format!("'static_ips': expected an address, got {address}"))
    });
    let mac = own["static_mac"].as_str().filter(|text| !text.is_empty());
    let mac =
        mac.map(|text| text.parse().map_err(|_| anyhow!("'static_mac': not an address: '{text}'")));
    let member = Member {
        addresses: addresses.collect::<anyhow::Result<_>>()?,
        name: value["container_name"].as_str().map(str::to_owned),
        settings,
        socket: None,
        published: published(&value["port_mappings"])?,
    };
    let interface = Some((PathBuf::from(namespace), interface));
    Ok(Wanted { network: path, key, interface, mac: mac.transpose()?, member, host: None })
}

/// Returns the key of a container, and the name of its interface.
fn key(value: &Value) -> anyhow::Result<(Key, String)> {
    let text = |value: &Value, name: &str| -> anyhow::Result<String> {
        let text = value[name].as_str().filter(|text| !text.is_empty());
        Ok(text.with_context(|| format!("'{name}': expected a text"))?.to_owned())
    };
    let interface = text(&value["network_options"], "interface_name")?;
    let prefix = Prefix::of(&text(&value["network"], "name")?);
    Ok((prefix.key(&text(value, "container_id")?, &interface), interface))
}

/// Returns the control socket and the settings of ports in the options of a network. Options are
/// texts, as on a command line.
fn options(network: &Value) -> anyhow::Result<(Option<PathBuf>, Map<String, Value>)> {
    let mut settings = network["options"].as_object().cloned().unwrap_or_default();
    let path =
        match settings.remove(NETWORK) {
            None => None,
            Some(path) => {
                let path = path.as_str().map(PathBuf::from).filter(|path| path.is_absolute());
                Some(path.context(
                    "option (-o) network: expected the absolute path of a control socket",
                )?)
            }
        };
    for value in settings.values_mut() {
        let read = match value.as_str() {
            Some("yes" | "true") => Some(true.into()),
            Some("no" | "false") => Some(false.into()),
            Some(text) => text.parse::<u64>().ok().map(Value::from),
            None => None,
        };
        *value = read.unwrap_or_else(|| value.take());
    }
    Ok((path, settings))
}

/// Parses port mappings.
fn published(mappings: &Value) -> anyhow::Result<Published> {
    let mut published = Published::default();
    for mapping in mappings.as_array().into_iter().flatten() {
        let number = |name: &str, default: u64| {
            let number = mapping[name].as_u64().unwrap_or(default);
            u16::try_from(number)
                .with_context(|| format!("port_mappings: {name}: {number} is no port"))
        };
        let ports = (number("host_port", 0)?, number("container_port", 0)?);
        let address = match mapping["host_ip"].as_str().unwrap_or_default() {
            "" => None,
            text => Some(text.parse::<IpAddr>().with_context(|| format!("host_ip: '{text}'"))?),
        };
        let spec =
            specification(address, ports, number("range", 1)?.max(1)).context("port_mappings")?;
        let protocols = mapping["protocol"].as_str().filter(|text| !text.is_empty());
        for protocol in protocols.unwrap_or("tcp").split(',') {
            match protocol {
                "tcp" => published.tcp.push(spec.clone()),
                "udp" => published.udp.push(spec.clone()),
                _ => bail!("port_mappings: protocol '{protocol}'; only tcp and udp are supported"),
            }
        }
    }
    Ok(published)
}

/// Returns the status block of a container.
fn status(attached: &Attached, interface: &str) -> Value {
    let subnets = attached.addresses.iter().map(|one| {
        json!({
            "ipnet": format!("{}/{}", one.address, one.prefix_len),
            "gateway": one.gateway.to_string(),
        })
    });
    let resolvers = attached.resolvers().map(|address| address.to_string());
    json!({
        "dns_search_domains": attached.network.search,
        "dns_server_ips": resolvers.collect::<Vec<_>>(),
        "interfaces": {
            interface: {
                "mac_address": attached.mac.to_string(),
                "subnets": subnets.collect::<Vec<_>>(),
            },
        },
    })
}

#[cfg(test)]
mod tests;
