//! The configuration of a network in CNI, as it comes on standard input, and `CNI_ARGS`.
//!
//! What is not known or not supported is refused, so that no engine believes in a limit or an
//! address that the container does not have.

use std::collections::HashSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Map, Value};
use towpath_gateway::control::egress::{BANDWIDTH_MAX, BANDWIDTH_MIN};
use towpath_gateway::control::fields::{Fields, Wrong};
use towpath_gateway::network::Bandwidth;
use towpath_net::wire::MacAddr;
use towpath_packet::tokens::DEPTH_MAX;

use super::attach::{HostInterface, specification};
use super::error::{self, Error};
use super::key::Prefix;
use super::network::{BANDWIDTHS, Published};

/// Longest name of an interface in bytes.
const INTERFACE_BYTES_MAX: usize = 15;
/// What stands for the host in the name of its port: no container has such an ID.
const HOST: &str = "";

/// A network, and what the runtime says about one container of it.
#[derive(Debug, Default)]
pub(super) struct Configuration {
    /// The name of the engine's network.
    pub(super) name: String,
    /// The control socket of the running network.
    pub(super) network: Option<PathBuf>,
    /// The folder of sockets for virtual machines, if containers are such.
    pub(super) sockets: Option<PathBuf>,
    /// Settings of each port.
    pub(super) settings: Map<String, Value>,
    pub(super) host: Option<HostInterface>,
    pub(super) dns: Dns,
    pub(super) published: Published,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) mac: Option<MacAddr>,
    /// The name of the container, if the runtime tells one.
    pub(super) container_name: Option<String>,
    pub(super) previous: Option<Map<String, Value>>,
    /// The attachments that are still valid, for GC.
    pub(super) valid: Option<HashSet<(String, String)>>,
}

/// Settings of resolvers; what is empty comes from the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dns {
    pub(super) servers: Vec<String>,
    pub(super) domain: Option<String>,
    pub(super) search: Vec<String>,
    pub(super) options: Vec<String>,
}

impl Configuration {
    /// Parses a configuration and the arguments of the runtime.
    pub(super) fn parse(value: Value, arguments: Option<&str>) -> Result<Self, Error> {
        let mut fields = Fields::of(value, "").map_err(invalid)?;
        let mut configuration = Self::of_network(&mut fields)?;
        let runtime = object(&mut fields, "runtimeConfig")?.map(Value::Object);
        fields.finish().map_err(unsupported)?;
        configuration.take_arguments(arguments.unwrap_or_default())?;
        if let Some(runtime) = runtime {
            let runtime = Fields::of(conventional(runtime), "runtimeConfig").map_err(invalid)?;
            configuration.take_runtime(runtime)?;
        }
        Ok(configuration)
    }

    /// Parses only what is needed to remove containers: a configuration with which none can be
    /// added must not keep others from being removed.
    pub(super) fn for_removal(value: Value) -> Result<Self, Error> {
        let mut fields = Fields::of(value, "").map_err(invalid)?;
        let name = name(&mut fields)?;
        Ok(Self {
            network: path(&mut fields, "network")?,
            host: host_interface(&mut fields, &name, &Map::new()).unwrap_or_default(),
            valid: valid(&mut fields)?,
            name,
            ..Self::default()
        })
    }

    /// Parses what is the same for all containers, and the previous result.
    fn of_network(fields: &mut Fields) -> Result<Self, Error> {
        // The protocol's own, which others have read or which change nothing here.
        for name in
            ["cniVersion", "cniVersions", "type", "capabilities", "disableCheck", "disableGC"]
        {
            fields.read(name, "", |_| Some(())).map_err(invalid)?;
        }
        let name = name(fields)?;
        let ipam = object(fields, "ipam")?;
        if let Some(ipam) = ipam.filter(|ipam| !ipam.is_empty()) {
            let ipam = Value::Object(ipam);
            return Err(Error::new(
                error::UNSUPPORTED,
                format_args!(
                    "'ipam' is not supported, got {ipam}; the network leases the addresses"
                ),
            ));
        }
        let kind = fields.text("device").map_err(invalid)?;
        let folder = path(fields, "socketDir")?;
        let sockets = match (kind.as_deref(), folder) {
            (None | Some("tap"), None) => None,
            (Some("vhost-user"), Some(folder)) => Some(folder),
            (None | Some("tap" | "vhost-user"), _) => {
                return Err(Error::new(
                    error::CONFIGURATION,
                    "'socketDir' and 'device' \"vhost-user\" need each other: the folder of the \
                     sockets",
                ));
            }
            (Some(other), _) => {
                return Err(Error::new(
                    error::CONFIGURATION,
                    format_args!("'device': expected tap or vhost-user, got '{other}'"),
                ));
            }
        };
        let arguments = object(fields, "args")?.unwrap_or_default();
        let arguments = arguments.get("cni").cloned().unwrap_or_default();
        let settings = object(fields, "settings")?.unwrap_or_default();
        Ok(Self {
            host: host_interface(fields, &name, &settings)?,
            name,
            network: path(fields, "network")?,
            sockets,
            settings,
            dns: Dns::of(fields.fields("dns").map_err(invalid)?, "nameservers", "search")?,
            addresses: addresses(arguments.get("ips").unwrap_or(&Value::Null), "args.cni.ips")?,
            previous: object(fields, "prevResult")?,
            valid: valid(fields)?,
            ..Self::default()
        })
    }

    /// Takes `CNI_ARGS`: `KEY=VALUE;KEY=VALUE`.
    fn take_arguments(&mut self, text: &str) -> Result<(), Error> {
        let wrong = |message: String| {
            Err(Error::new(error::ENVIRONMENT, "CNI_ARGS: ".to_owned() + &message))
        };
        let mut unknown = None;
        let mut ignores_unknown = false;
        for argument in text.split(';').filter(|argument| !argument.is_empty()) {
            let Some((name, value)) = argument.split_once('=') else {
                return wrong(format!("expected KEY=VALUE, got '{argument}'"));
            };
            match name {
                "IgnoreUnknown" => {
                    ignores_unknown = matches!(value, "1" | "true" | "True" | "TRUE")
                }
                "IP" => match value.split(',').map(address).collect() {
                    Some(addresses) => self.addresses = addresses,
                    None => return wrong(format!("IP: expected addresses, got '{value}'")),
                },
                "MAC" => match value.parse() {
                    Ok(mac) => self.mac = Some(mac),
                    Err(_) => return wrong(format!("MAC: expected an address, got '{value}'")),
                },
                "K8S_POD_NAME" => self.container_name = Some(value.to_owned()),
                _ if name.starts_with("K8S_") => {}
                _ => unknown = Some(name),
            }
        }
        match unknown {
            Some(name) if !ignores_unknown => {
                wrong(format!("unknown key '{name}'; expected IP, MAC and those with K8S_"))
            }
            _ => Ok(()),
        }
    }

    /// Takes what the runtime passes for the capabilities of the configuration.
    fn take_runtime(&mut self, mut fields: Fields) -> Result<(), Error> {
        if let Some(mappings) = list(&mut fields, "portMappings")? {
            for mapping in &mappings {
                publish(mapping, &mut self.published)?;
            }
        }
        let given = fields.read("ips", "", |value| Some(value.clone())).map_err(invalid)?;
        let given = addresses(&given.unwrap_or_default(), "runtimeConfig.ips")?;
        if !given.is_empty() {
            self.addresses = given;
        }
        if let Some(mac) = fields.parsed("mac").map_err(invalid)? {
            self.mac = Some(mac);
        }
        let dns = Dns::of(fields.fields("dns").map_err(invalid)?, "servers", "searches")?;
        self.dns = dns.or(std::mem::take(&mut self.dns));
        let bounds = object(&mut fields, "bandwidth")?.unwrap_or_default();
        self.take_bandwidth(Fields::of(Value::Object(bounds), "").map_err(invalid)?)?;
        fields.finish().map_err(|Wrong { message, .. }| {
            Error::new(error::UNSUPPORTED, format_args!("runtimeConfig: {message}"))
        })
    }

    /// Takes the bounds of bandwidth, in bits and bits per second, into the settings of the port.
    fn take_bandwidth(&mut self, mut fields: Fields) -> Result<(), Error> {
        for (setting, rate, burst) in [
            (BANDWIDTHS[0], "egressRate", "egressBurst"),
            (BANDWIDTHS[1], "ingressRate", "ingressBurst"),
        ] {
            let bits = bound(&mut fields, rate, BANDWIDTH_MIN, BANDWIDTH_MAX)?;
            let burst = (burst, bound(&mut fields, burst, 1, DEPTH_MAX * 8)?);
            let bandwidth = match (bits, burst) {
                (None, (_, None)) => continue,
                (None, (name, Some(bits))) => {
                    return Err(Error::new(
                        error::CONFIGURATION,
                        format_args!(
                            "'runtimeConfig.bandwidth.{name}': {bits} bits need a rate; give {rate}"
                        ),
                    ));
                }
                (Some(bits), (_, None)) => Bandwidth::new(bits),
                (Some(bits), (_, Some(burst))) => Bandwidth { bits, burst: burst.div_ceil(8) },
            };
            self.settings.insert(setting.to_owned(), bandwidth.to_string().into());
        }
        fields.finish().map_err(unsupported)
    }
}

impl Dns {
    fn of(
        fields: Option<Fields>,
        servers: &'static str,
        search: &'static str,
    ) -> Result<Self, Error> {
        let Some(mut fields) = fields else { return Ok(Self::default()) };
        let mut read = || {
            Ok(Self {
                servers: fields.texts(servers)?,
                domain: fields.text("domain")?,
                search: fields.texts(search)?,
                options: fields.texts("options")?,
            })
        };
        let dns = read().map_err(invalid)?;
        fields.finish().map_err(unsupported)?;
        Ok(dns)
    }

    /// Returns these settings, and others for those that are empty.
    pub(super) fn or(self, others: Self) -> Self {
        let or = |first: Vec<String>, others| if first.is_empty() { others } else { first };
        Self {
            servers: or(self.servers, others.servers),
            domain: self.domain.or(others.domain),
            search: or(self.search, others.search),
            options: or(self.options, others.options),
        }
    }
}

/// Returns true if a text is a name as containers and networks have it (CNI §1, §2).
pub(super) fn is_identifier(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.bytes().all(is_allowed)
}

/// Returns true if a text can be the name of an interface (CNI §2).
pub(super) fn is_interface_name(text: &str) -> bool {
    let is_allowed = |c: char| c != '/' && c != ':' && !c.is_whitespace() && !c.is_control();
    (1..=INTERFACE_BYTES_MAX).contains(&text.len())
        && !matches!(text, "." | "..")
        && text.chars().all(is_allowed)
}

/// Returns a value as the conventions of CNI have it: names begin with a small letter, and what is
/// absent is not there. containerd's CRI plugin writes `HostPort`, and `null` for an empty list
/// (observed: 1.6).
fn conventional(value: Value) -> Value {
    let small = |name: String| match name.chars().next() {
        Some(first) => first.to_ascii_lowercase().to_string() + &name[first.len_utf8()..],
        None => name,
    };
    match value {
        Value::Object(fields) => {
            let present = fields.into_iter().filter(|(_, value)| !value.is_null());
            present.map(|(name, value)| (small(name), conventional(value))).collect()
        }
        Value::Array(all) => all.into_iter().map(conventional).collect(),
        other => other,
    }
}

/// Adds a port mapping.
fn publish(mapping: &Value, published: &mut Published) -> Result<(), Error> {
    let wrong = |message: &dyn Display| {
        Error::new(
            error::CONFIGURATION,
            format_args!("runtimeConfig.portMappings: {mapping}: {message}"),
        )
    };
    let port = |name: &str| {
        let port = mapping[name].as_u64().and_then(|port| u16::try_from(port).ok());
        port.filter(|port| *port > 0)
            .ok_or_else(|| wrong(&format_args!("{name}: expected a number from 1 to 65535")))
    };
    let host = match mapping["hostIP"].as_str().unwrap_or_default() {
        "" => None,
        text => Some(text.parse().map_err(|_| wrong(&"hostIP: expected an address"))?),
    };
    let ports = (port("hostPort")?, port("containerPort")?);
    let spec = specification(host, ports, 1).map_err(|error| wrong(&error))?;
    match mapping["protocol"].as_str().unwrap_or("tcp").to_ascii_lowercase().as_str() {
        "" | "tcp" => published.tcp.push(spec),
        "udp" => published.udp.push(spec),
        _ => {
            let error = wrong(&"protocol: only tcp and udp are supported");
            return Err(Error { code: error::UNSUPPORTED, ..error });
        }
    }
    Ok(())
}

/// Parses a bound of bandwidth; `None` if there is none, or 0.
fn bound(
    fields: &mut Fields,
    name: &'static str,
    least: u64,
    most: u64,
) -> Result<Option<u64>, Error> {
    let what = format!("0, or a number from {least} to {most}");
    let read = fields.read(name, what, |value| {
        value.as_u64().filter(|number| *number == 0 || (least..=most).contains(number))
    });
    let wrong = |wrong: Wrong| {
        let message = format!("runtimeConfig.bandwidth: {}", wrong.message);
        Error::new(error::CONFIGURATION, message)
    };
    Ok(read.map_err(wrong)?.filter(|number| *number > 0))
}

/// Parses a list of addresses, each with or without the length of a prefix, which is that of the
/// network.
fn addresses(value: &Value, name: &str) -> Result<Vec<IpAddr>, Error> {
    let read = match value {
        Value::Null => Some(Vec::new()),
        Value::Array(all) => all.iter().map(|text| address(text.as_str()?)).collect(),
        _ => None,
    };
    read.ok_or_else(|| {
        Error::new(
            error::CONFIGURATION,
            format_args!("'{name}': expected a list of addresses, got {value}"),
        )
    })
}

fn address(text: &str) -> Option<IpAddr> {
    text.split_once('/').map_or(text, |(address, _)| address).parse().ok()
}

/// Parses the list of valid attachments.
fn attachments(value: &Value) -> Option<HashSet<(String, String)>> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let one = |value: &Value| Some((text(&value["containerID"])?, text(&value["ifname"])?));
    value.as_array()?.iter().map(one).collect()
}

/// Parses the name of the engine's network.
fn name(fields: &mut Fields) -> Result<String, Error> {
    let name = fields.text("name").map_err(invalid)?;
    name.filter(|name| is_identifier(name)).ok_or_else(|| {
        Error::new(
            error::CONFIGURATION,
            "'name': expected the name of the network, letters, digits, '_', '.' and '-'",
        )
    })
}

/// Parses the interface of the host. Those settings apply to its port without which it would not
/// reach the containers.
fn host_interface(
    fields: &mut Fields,
    network: &str,
    settings: &Map<String, Value>,
) -> Result<Option<HostInterface>, Error> {
    let Some(name) = fields.text("hostInterface").map_err(invalid)? else { return Ok(None) };
    // The kernel puts a number in the place of `%d`.
    if !is_interface_name(&name) || name.contains('%') {
        return Err(Error::new(
            error::CONFIGURATION,
            format_args!("'hostInterface': '{name}' cannot be the name of an interface"),
        ));
    }
    let of_network = settings.iter().filter(|(key, _)| matches!(key.as_str(), "vlan" | "mtu"));
    let settings = of_network.map(|(key, value)| (key.clone(), value.clone())).collect();
    Ok(Some(HostInterface { key: Prefix::of(network).key(HOST, &name), name, settings }))
}

fn valid(fields: &mut Fields) -> Result<Option<HashSet<(String, String)>>, Error> {
    fields.read("cni.dev/valid-attachments", "a list of objects", attachments).map_err(invalid)
}

fn object(fields: &mut Fields, name: &'static str) -> Result<Option<Map<String, Value>>, Error> {
    let read = fields.read(name, "an object", |value| match value {
        Value::Null => Some(Map::new()),
        value => value.as_object().cloned(),
    });
    read.map(|read| read.filter(|object| !object.is_empty())).map_err(invalid)
}

fn list(fields: &mut Fields, name: &'static str) -> Result<Option<Vec<Value>>, Error> {
    let read = fields.read(name, "a list", |value| match value {
        Value::Null => Some(Vec::new()),
        value => value.as_array().cloned(),
    });
    read.map_err(invalid)
}

fn path(fields: &mut Fields, name: &'static str) -> Result<Option<PathBuf>, Error> {
    let path = fields.text(name).map_err(invalid)?.map(PathBuf::from);
    match path {
        Some(path) if !path.is_absolute() => Err(Error::new(
            error::CONFIGURATION,
            format_args!("'{name}': expected an absolute path, got '{}'", path.display()),
        )),
        path => Ok(path),
    }
}

fn invalid(wrong: Wrong) -> Error {
    Error::new(error::CONFIGURATION, wrong)
}

/// The error of a key that is left over. Keys that are not known may be those of a later version.
fn unsupported(wrong: Wrong) -> Error {
    Error::new(error::UNSUPPORTED, wrong)
}

#[cfg(test)]
mod tests;
