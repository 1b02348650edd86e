//! CNI: the environment of a call, its verbs and its results.
//!
//! Specification: Container Network Interface 1.1.0. Sections are cited as `CNI §N`.

use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::attach::{self, Attached, Wanted};
use super::configuration::{Configuration, Dns, is_identifier, is_interface_name};
use super::error::{self, Error};
use super::key::{Key, Prefix};
use super::network::Member;

/// The variable that makes the command a CNI plugin.
pub(super) const COMMAND: &str = "CNI_COMMAND";
/// Versions of the protocol, oldest first.
pub(super) const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The newest version, also that of errors where a configuration has none.
const NEWEST: &str = VERSIONS[VERSIONS.len() - 1];

/// The variables of a call.
#[derive(Clone, Debug, Default)]
pub(super) struct Environment {
    pub(super) command: Option<String>,
    pub(super) container: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) interface: Option<String>,
    pub(super) arguments: Option<String>,
}

impl Environment {
    /// Reads the variables with `variable`.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        Self {
            command: variable(COMMAND),
            container: variable("CNI_CONTAINERID"),
            namespace: variable("CNI_NETNS"),
            interface: variable("CNI_IFNAME"),
            arguments: variable("CNI_ARGS"),
        }
    }

    /// Returns the container and its interface.
    fn container(&self) -> Result<(&str, &str), Error> {
        let container = required("CNI_CONTAINERID", &self.container)?;
        if !is_identifier(container) {
            return Err(Error::new(
                error::ENVIRONMENT,
                format_args!("CNI_CONTAINERID: '{container}' is not the ID of a container"),
            ));
        }
        let interface = required("CNI_IFNAME", &self.interface)?;
        if !is_interface_name(interface) {
            return Err(Error::new(
                error::ENVIRONMENT,
                format_args!("CNI_IFNAME: '{interface}' cannot be the name of an interface"),
            ));
        }
        Ok((container, interface))
    }
}

fn required<'a>(name: &str, value: &'a Option<String>) -> Result<&'a str, Error> {
    value
        .as_deref()
        .ok_or_else(|| Error::new(error::ENVIRONMENT, format_args!("{name} is not set")))
}

/// Performs what the environment and the configuration ask for. Returns the result, if the verb has
/// one; the error is the result of a failure.
pub(super) fn perform(environment: &Environment, input: &[u8]) -> Result<Option<Value>, Value> {
    let value: Value = serde_json::from_slice(input).map_err(|error| {
        let message = format!("the configuration is not JSON: {error}");
        failure(NEWEST, &Error::new(error::DECODE, message))
    })?;
    // Without this key it is a configuration of the first version, which is not supported.
    let version = value["cniVersion"].as_str().unwrap_or("0.1.0").to_owned();
    let known = VERSIONS.iter().position(|known| *known == version);
    let done = match (environment.command.as_deref(), known) {
        (Some("VERSION"), _) => {
            return Ok(Some(json!({ "cniVersion": version, "supportedVersions": VERSIONS })));
        }
        (_, None) => Err(Error::new(
            error::VERSION,
            format_args!(
                "version {version} is not supported; expected one of {}",
                VERSIONS.join(", ")
            ),
        )),
        (Some(verb), Some(known)) => {
            verb_of(verb, known).and_then(|verb| verb(environment, &version, value))
        }
        (None, Some(_)) => Err(Error::new(error::ENVIRONMENT, "CNI_COMMAND is not set")),
    };
    done.map_err(|error| failure(&version, &error))
}

/// What performs a verb: with the version and the configuration.
type Verb = fn(&Environment, &str, Value) -> Result<Option<Value>, Error>;

/// Returns the verb of this name, if the version with this index has it.
fn verb_of(name: &str, version: usize) -> Result<Verb, Error> {
    let (verb, since): (Verb, _) = match name {
        "ADD" => (add, "0.3.1"),
        "DEL" => (del, "0.3.1"),
        "CHECK" => (check, "0.4.0"),
        "GC" => (gc, "1.1.0"),
        "STATUS" => (status, "1.1.0"),
        _ => {
            let message = "expected ADD, DEL, CHECK, GC, STATUS or VERSION".to_owned();
            return Err(Error::new(
                error::ENVIRONMENT,
                format_args!("CNI_COMMAND: '{name}': {message}"),
            ));
        }
    };
    match VERSIONS.iter().position(|known| *known == since) {
        Some(first) if first <= version => Ok(verb),
        _ => Err(Error::new(
            error::VERSION,
            format_args!("version {} of the protocol has no {name}", VERSIONS[version]),
        )),
    }
}

fn add(environment: &Environment, version: &str, value: Value) -> Result<Option<Value>, Error> {
    let mut configuration = parse(environment, value)?;
    let (_, interface) = environment.container()?;
    let namespace = required("CNI_NETNS", &environment.namespace)?;
    let previous = configuration.previous.take();
    let dns = std::mem::take(&mut configuration.dns);
    let wanted = wanted(environment, configuration)?;
    let attached = attach::attach(&wanted)?;
    let socket = wanted.member.socket;
    let result = Attachment { version, interface, namespace, attached, socket, dns };
    Ok(Some(result.with(previous)))
}

fn del(environment: &Environment, _: &str, value: Value) -> Result<Option<Value>, Error> {
    let configuration = Configuration::for_removal(value)?;
    let key = key(environment, &configuration)?;
    attach::detach(configuration.network.as_ref(), &key)?;
    Ok(None)
}

fn check(environment: &Environment, _: &str, value: Value) -> Result<Option<Value>, Error> {
    let mut configuration = parse(environment, value)?;
    let (_, interface) = environment.container()?;
    required("CNI_NETNS", &environment.namespace)?;
    let previous = configuration.previous.take().map(Value::Object).ok_or_else(|| {
        Error::new(error::CONFIGURATION, "'prevResult' is missing, which CHECK needs")
    })?;
    let addresses = addresses_of(&previous, interface)?;
    attach::check(&wanted(environment, configuration)?, &addresses)?;
    Ok(None)
}

fn gc(_: &Environment, _: &str, value: Value) -> Result<Option<Value>, Error> {
    let configuration = Configuration::for_removal(value)?;
    let Some(valid) = &configuration.valid else {
        return Err(Error::new(
            error::CONFIGURATION,
            "'cni.dev/valid-attachments' is missing, which GC needs",
        ));
    };
    let prefix = Prefix::of(&configuration.name);
    let ports = valid.iter().map(|(container, interface)| prefix.key(container, interface).port);
    let host = configuration.host.iter().map(|host| host.key.port.clone());
    attach::collect(configuration.network.as_ref(), &prefix, &ports.chain(host).collect())?;
    Ok(None)
}

fn status(environment: &Environment, _: &str, value: Value) -> Result<Option<Value>, Error> {
    attach::check_network(parse(environment, value)?.network.as_ref())?;
    Ok(None)
}

fn parse(environment: &Environment, value: Value) -> Result<Configuration, Error> {
    Configuration::parse(value, environment.arguments.as_deref())
}

fn key(environment: &Environment, configuration: &Configuration) -> Result<Key, Error> {
    let (container, interface) = environment.container()?;
    Ok(Prefix::of(&configuration.name).key(container, interface))
}

fn wanted(environment: &Environment, configuration: Configuration) -> Result<Wanted, Error> {
    let key = key(environment, &configuration)?;
    let (_, interface) = environment.container()?;
    let namespace = required("CNI_NETNS", &environment.namespace)?;
    let socket = configuration.sockets.map(|folder| folder.join(format!("{}.sock", key.port)));
    let has_interface = socket.is_none();
    Ok(Wanted {
        network: configuration.network,
        interface: has_interface.then(|| (PathBuf::from(namespace), interface.to_owned())),
        mac: configuration.mac,
        member: Member {
            addresses: configuration.addresses,
            name: configuration.container_name,
            settings: configuration.settings,
            socket,
            published: configuration.published,
        },
        host: configuration.host,
        key,
    })
}

/// What the result of ADD says (CNI §5).
struct Attachment<'a> {
    version: &'a str,
    interface: &'a str,
    namespace: &'a str,
    attached: Attached,
    socket: Option<PathBuf>,
    dns: Dns,
}

impl Attachment<'_> {
    /// Returns the result, with the previous one in front of it.
    fn with(self, previous: Option<Map<String, Value>>) -> Value {
        let Self { version, attached, dns, .. } = &self;
        let mut result = previous.unwrap_or_default();
        let at = extend(&mut result, "interfaces", [self.interface()]);
        let ips = attached.addresses.iter().map(|one| {
            let mut ip = json!({
                "address": format!("{}/{}", one.address, one.prefix_len),
                "gateway": one.gateway.to_string(),
                "interface": at,
            });
            if !has_plain_addresses(version) {
                ip["version"] = if one.address.is_ipv4() { "4" } else { "6" }.into();
            }
            ip
        });
        extend(&mut result, "ips", ips);
        let routes = attached.addresses.iter().map(|one| {
            let everywhere = if one.gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            json!({ "dst": everywhere, "gw": one.gateway.to_string() })
        });
        extend(&mut result, "routes", routes);
        let own = Dns {
            servers: attached.resolvers().map(|address| address.to_string()).collect(),
            domain: attached.network.domain.clone(),
            search: attached.network.search.clone(),
            options: Vec::new(),
        };
        let dns = dns.clone().or(own);
        result.insert(
            "dns".to_owned(),
            json!({
                "nameservers": dns.servers,
                "domain": dns.domain.unwrap_or_default(),
                "search": dns.search,
                "options": dns.options,
            }),
        );
        result.insert("cniVersion".to_owned(), (*version).into());
        Value::Object(result)
    }

    fn interface(&self) -> Value {
        let mut interface = json!({
            "name": self.interface,
            "mac": self.attached.mac.to_string(),
            "sandbox": self.namespace,
        });
        if self.version == NEWEST {
            interface["mtu"] = self.attached.mtu.into();
        }
        if let Some(socket) = &self.socket {
            interface["socketPath"] = socket.to_string_lossy().into();
        }
        interface
    }
}

/// Returns true if the addresses of a result do not name their IP version, as since 1.0.0.
fn has_plain_addresses(version: &str) -> bool {
    !version.starts_with("0.")
}

/// Appends to a list of a result; returns the index of the first one.
fn extend(
    result: &mut Map<String, Value>,
    name: &str,
    more: impl IntoIterator<Item = Value>,
) -> usize {
    let list = result.entry(name).or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    let list = list.as_array_mut().expect("it is one");
    let first = list.len();
    list.extend(more);
    first
}

/// Returns the addresses that a result has for an interface in a container.
fn addresses_of(result: &Value, interface: &str) -> Result<Vec<IpAddr>, Error> {
    let at = |index: &Value| &result["interfaces"][index.as_u64().unwrap_or(u64::MAX) as usize];
    let is_own =
        |ip: &&Value| ip["interface"].is_null() || at(&ip["interface"])["name"] == interface;
    let ips = result["ips"].as_array().into_iter().flatten().filter(is_own);
    let read = |ip: &Value| ip["address"].as_str()?.split('/').next()?.parse().ok();
    ips.map(|ip| {
        read(ip).ok_or_else(|| {
            Error::new(
                error::CONFIGURATION,
                format_args!("'prevResult': expected an address with a prefix length, got {ip}"),
            )
        })
    })
    .collect()
}

/// Returns the result of a failure.
fn failure(version: &str, error: &Error) -> Value {
    let Error { code, message } = error;
    json!({ "cniVersion": version, "code": code, "msg": message, "details": "" })
}

#[cfg(test)]
mod tests;
