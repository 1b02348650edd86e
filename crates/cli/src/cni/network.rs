//! The running network, by its control socket: which addresses it has, and changes of it.
//!
//! A container is a port of the network with a static lease and published ports. They are added by
//! one transaction, so the network has all of them or none. The network chooses the addresses, as
//! it alone knows those of its guests and of other hosts.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};
use towpath_gateway::control::operations;
use towpath_gateway::network::{Bandwidth, NETWORK_PORTS_MAX};
use towpath_gateway::services::wire::domain::DomainName;
use towpath_net::wire::MacAddr;

use super::error::{self, Error};
use super::key::{Key, Prefix};
use super::namespace::Address;
use crate::control::{api, ask, instances, ports, published};

/// Most attempts to remove a container: the network refuses one only if something else of the
/// container was removed in the same moment.
const REMOVALS_MAX: usize = 16;
/// Pause before a network that does not know the other hosts yet is asked again, and how often:
/// longer than any network waits for them.
const PAUSE: Duration = Duration::from_secs(1);
const ATTEMPTS_MAX: usize = 75;
/// The network cannot choose an address yet.
const NOT_YET: u16 = 503;
/// Settings of a port that bound its frames: from the container, and to it.
pub(super) const BANDWIDTHS: [&str; 2] = ["bandwidth-out", "bandwidth-in"];

/// A running network.
#[derive(Debug)]
pub(super) struct Network {
    path: PathBuf,
}

/// What guests learn about a network by DHCP and router advertisements, and where it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Description {
    pub(super) mtu: u16,
    /// Where its VXLAN ports end on this host.
    pub(super) vtep: Option<IpAddr>,
    /// Bytes of the super-packets that they send in one call.
    pub(super) gso_max_size: Option<u32>,
    pub(super) versions: Vec<Version>,
    pub(super) domain: Option<String>,
    pub(super) search: Vec<String>,
}

/// The addresses of one IP version.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) gateway: IpAddr,
    pub(super) prefix_len: u8,
    pub(super) dns: Vec<IpAddr>,
    /// Addresses are leased; otherwise guests form their own.
    pub(super) is_leased: bool,
}

/// What a container is in the network.
#[derive(Debug, Default)]
pub(super) struct Member {
    /// Addresses that it must have, at most one of each IP version.
    pub(super) addresses: Vec<IpAddr>,
    /// A name for it, which it gets if no other guest has it.
    pub(super) name: Option<String>,
    /// Settings of its port.
    pub(super) settings: Map<String, Value>,
    /// The socket of its port, for a virtual machine; otherwise it has a TAP device.
    pub(super) socket: Option<PathBuf>,
    pub(super) published: Published,
}

/// Ports of the host that lead to a container, in the form of `--tcp-ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) tcp: Vec<String>,
    pub(super) udp: Vec<String>,
}

/// What a network has now.
struct State {
    ports: Value,
    leases: Value,
    published: Value,
}

impl Network {
    /// Finds the network whose control socket is at `path`, or without a path the only one that
    /// this user runs. Returns `None` if it does not run.
    pub(super) fn find(path: Option<&Path>) -> anyhow::Result<Option<Self>> {
        if let Some(path) = path {
            return Ok(instances::answers(path)?.then(|| Self { path: path.to_owned() }));
        }
        match ports::networks()?.as_slice() {
            [] => Ok(None),
            [(_, path, _)] => Ok(Some(Self { path: path.clone() })),
            several => bail!(
                "several networks are running, with PIDs {}; name the control socket of one with \
                 the key 'network'",
                ports::listed(several.iter().map(|(pid, ..)| *pid))
            ),
        }
    }

    /// Finds the network, which must run.
    pub(super) fn running(path: Option<&Path>) -> Result<Self, Error> {
        Self::find(path)?.ok_or_else(|| {
            let at = path.map(|path| format!(" at {}", path.display())).unwrap_or_default();
            Error::new(
                error::LATER,
                format_args!("no network is running{at}; start it with `towpath up`"),
            )
        })
    }

    /// Returns what guests learn about it.
    pub(super) fn describe(&self) -> Result<Description, Error> {
        let value = ask::ask(&self.path, "GET", api::NETWORK, None)?;
        let read = describe(&value);
        let description = read.with_context(|| {
            format!("cannot understand the answer of the network: {value}; is it older?")
        })?;
        match description.versions.as_slice() {
            [] => Err(Error::new(
                error::REFUSED,
                "the network leases no addresses; start it without --no-dhcp and --no-gateway",
            )),
            _ => Ok(description),
        }
    }

    /// Checks that it has room for another container.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        self.describe()?;
        let ports = ask::ask(&self.path, "GET", api::PORTS, None)?;
        match all(&ports, "ports").count() {
            count if count >= NETWORK_PORTS_MAX => Err(Error::new(
                error::REFUSED,
                format_args!("the network has {count} ports, the maximum"),
            )),
            _ => Ok(()),
        }
    }

    /// Adds a container, whose interface has the address `mac`, and whose TAP device is `tap`;
    /// returns its addresses. A network that does not know the other hosts yet is waited for. A
    /// port of the container whose interface has ended makes room: an engine may make the namespace
    /// anew without detaching the container, as Nomad does when CHECK fails.
    pub(super) fn add(
        &self,
        description: &Description,
        key: &Key,
        mac: MacAddr,
        member: &Member,
        tap: Option<BorrowedFd<'_>>,
    ) -> Result<Vec<Address>, Error> {
        let operations = [lease(description, key, mac, member)?, add(key, member)];
        let operations: Vec<_> =
            operations.into_iter().chain(publish(key, &member.published)).collect();
        for attempt in 1.. {
            match self.change(&operations, tap)? {
                Ok(answer) => return Ok(addresses(description, &answer)?),
                Err((NOT_YET, _)) if attempt < ATTEMPTS_MAX => thread::sleep(PAUSE),
                Err((NOT_YET, reason)) => return Err(Error::new(error::LATER, reason)),
                Err(_) if attempt < ATTEMPTS_MAX && self.has_ended(&key.port)? == Some(true) => {
                    self.remove(&key.port)?;
                }
                Err((_, reason)) => return Err(Error::new(error::REFUSED, reason)),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Returns whether the interface of a port has ended; `None` if there is no such port.
    pub(super) fn has_ended(&self, port: &str) -> anyhow::Result<Option<bool>> {
        let ports = ask::ask(&self.path, "GET", api::PORTS, None)?;
        Ok(find(&ports, port).map(|found| found["failure"].is_string()))
    }

    /// Removes a container; one that is not there is no error.
    pub(super) fn remove(&self, port: &str) -> Result<(), Error> {
        for attempt in 1.. {
            let operations = self.state()?.removal(port);
            if operations.is_empty() {
                return Ok(());
            }
            match self.change(&operations, None)? {
                Ok(_) => return Ok(()),
                Err(_) if attempt < REMOVALS_MAX => {}
                Err((_, reason)) => return Err(Error::new(error::REFUSED, reason)),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Removes the containers with this prefix whose ports are not in `valid`. All are tried; the
    /// error is the first one.
    pub(super) fn collect(&self, prefix: &Prefix, valid: &HashSet<String>) -> Result<(), Error> {
        let stale = self.state()?.names();
        let stale = stale.iter().filter(|name| prefix.is_of(name) && !valid.contains(*name));
        stale.map(|name| self.remove(name)).fold(Ok(()), Result::and)
    }

    /// Checks that a container is there with these addresses, published ports and bandwidths.
    pub(super) fn check(
        &self,
        port: &str,
        addresses: &[IpAddr],
        member: &Member,
    ) -> Result<(), Error> {
        self.state()?.check(port, addresses, member)
    }

    /// Makes all changes or none. The inner error is the status of the network's answer, and why
    /// it has refused.
    fn change(
        &self,
        operations: &[Value],
        file: Option<BorrowedFd<'_>>,
    ) -> anyhow::Result<Result<Value, (u16, String)>> {
        let body = json!({ "operations": operations });
        match ask::exchange(&self.path, "POST", published::TRANSACTION, Some(&body), file)? {
            (200, answer) => Ok(Ok(answer)),
            (status, value) => Ok(Err((status, ask::reason(&value)))),
        }
    }

    fn state(&self) -> anyhow::Result<State> {
        let get = |what| ask::ask(&self.path, "GET", what, None);
        Ok(State {
            ports: get(api::PORTS)?,
            leases: get(api::LEASES)?,
            published: get(api::PUBLISHED)?,
        })
    }
}

impl State {
    /// Checks that a container is there as [`Network::check`] says.
    fn check(&self, port: &str, addresses: &[IpAddr], member: &Member) -> Result<(), Error> {
        let wrong = |message: String| Err(Error::new(error::NOT_AS_EXPECTED, message));
        let Some(found) = find(&self.ports, port) else {
            return wrong(format!("the network has no port {port} for the container"));
        };
        if let Some(failure) = found["failure"].as_str() {
            return wrong(format!("port {port} of the container has failed: {failure}"));
        }
        for name in BANDWIDTHS {
            let wanted = member.settings.get(name).and_then(bandwidth);
            if let Some(wanted) = wanted.filter(|wanted| bandwidth(&found[name]) != Some(*wanted)) {
                return wrong(format!(
                    "{name} of port {port} of the container is {}; expected {wanted}",
                    found[name]
                ));
            }
        }
        let lease = all(&self.leases, "static").find(|lease| lease["port"] == port);
        let lease = lease.cloned().unwrap_or_default();
        for address in addresses {
            if lease[family(*address)] != address.to_string() {
                return wrong(format!(
                    "{address} is not reserved for port {port} of the container"
                ));
            }
        }
        let count = |protocol: &str| {
            let of_port = all(&self.published, "published")
                .filter(|one| one["guest"] == port && one["protocol"] == protocol);
            of_port.filter_map(|one| one["count"].as_u64()).sum::<u64>()
        };
        let Published { tcp, udp } = &member.published;
        for (protocol, specs) in [("tcp", tcp), ("udp", udp)] {
            let (wanted, is) = (specs.len() as u64, count(protocol));
            if is < wanted {
                return wrong(format!(
                    "{is} {protocol} ports are published for port {port} of the container; \
                     expected {wanted}"
                ));
            }
        }
        Ok(())
    }

    /// Returns the operations that remove a port with its leases and published ports.
    fn removal(&self, port: &str) -> Vec<Value> {
        let has = |of: &Value, list: &str, key: &str| all(of, list).any(|one| one[key] == port);
        let mut operations = Vec::new();
        if has(&self.published, "published", "guest") {
            operations.push(json!({ "unpublish": port }));
        }
        if has(&self.leases, "static", "port") {
            operations.push(json!({ "del-lease": { "port": port } }));
        }
        if has(&self.ports, "ports", "name") {
            operations.push(json!({ "del": port }));
        }
        operations
    }

    /// Returns the names of all ports that are there, or of which something is left.
    fn names(&self) -> BTreeSet<String> {
        let lists = [
            (&self.published, "published", "guest"),
            (&self.leases, "static", "port"),
            (&self.ports, "ports", "name"),
        ];
        let names = lists.into_iter().flat_map(|(of, list, key)| {
            all(of, list).filter_map(move |one| one[key].as_str().map(str::to_owned))
        });
        names.collect()
    }
}

/// Returns the operation that reserves the container's addresses: the given ones, and others that
/// the network chooses.
fn lease(
    description: &Description,
    key: &Key,
    mac: MacAddr,
    member: &Member,
) -> Result<Value, Error> {
    let mut lease = json!({ "port": key.port, "station": mac.to_string() });
    let mut given = member.addresses.clone();
    for version in &description.versions {
        let is_ipv4 = version.gateway.is_ipv4();
        let own = given.iter().position(|address| address.is_ipv4() == is_ipv4);
        let own = own.map(|at| given.remove(at).to_string());
        let chosen = version.is_leased.then(|| "auto".to_owned());
        if let Some(address) = own.or(chosen) {
            lease[family(version.gateway)] = address.into();
        }
    }
    if let Some(other) = given.first() {
        return Err(Error::new(
            error::CONFIGURATION,
            format_args!(
                "the address {other} cannot be used: the network lacks this IP version, or another \
                 address of this version is given, too"
            ),
        ));
    }
    // Others are no names.
    if let Some(name) = member.name.as_deref().and_then(|name| name.parse::<DomainName>().ok()) {
        lease["name-if-free"] = name.as_str().into();
    }
    Ok(json!({ "add-lease": lease }))
}

/// Returns the addresses that the container has, as the network answered.
fn addresses(description: &Description, answer: &Value) -> anyhow::Result<Vec<Address>> {
    let lease = &answer["leases"][0];
    let mut addresses = Vec::new();
    for Version { gateway, prefix_len, .. } in &description.versions {
        if let Some(text) = lease[family(*gateway)].as_str() {
            let address =
                text.parse().ok().filter(|one: &IpAddr| one.is_ipv4() == gateway.is_ipv4());
            let address = address
                .with_context(|| format!("the network has answered '{text}' for an address"))?;
            addresses.push(Address { address, prefix_len: *prefix_len, gateway: *gateway });
        }
    }
    Ok(addresses)
}

/// Returns the key of addresses of this IP version.
fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "ipv4" } else { "ipv6" }
}

/// Returns the operation that adds the port.
fn add(key: &Key, member: &Member) -> Value {
    let mut add = Value::Object(member.settings.clone());
    add["add"] = key.port.as_str().into();
    match &member.socket {
        Some(path) => add["vhost-user"] = path.to_string_lossy().into(),
        None => add["tap-fd"] = true.into(),
    }
    add
}

/// Returns the operation that publishes ports, if there are any.
fn publish(key: &Key, published: &Published) -> Option<Value> {
    let mut publish = json!({ "publish": key.port });
    for (protocol, specs) in [("tcp", &published.tcp), ("udp", &published.udp)] {
        if !specs.is_empty() {
            publish[protocol] = specs.as_slice().into();
        }
    }
    (*published != Published::default()).then_some(publish)
}

/// Parses a description; `None` if it is not one. It may come from another user, and ends in files
/// of the container.
fn describe(value: &Value) -> Option<Description> {
    let name = |text: &Value| Some(text.as_str()?.parse::<DomainName>().ok()?.to_string());
    let address = |text: &Value| text.as_str()?.parse::<IpAddr>().ok();
    let mut versions = Vec::new();
    for version in [&value["ipv4"], &value["ipv6"]].into_iter().filter(|one| !one.is_null()) {
        versions.push(Version {
            gateway: address(&version["gateway"])?,
            prefix_len: version["prefix-len"].as_u64()?.try_into().ok()?,
            dns: version["dns"].as_array()?.iter().map(address).collect::<Option<_>>()?,
            is_leased: !version["pool"].is_null(),
        });
    }
    Some(Description {
        mtu: value["mtu"].as_u64()?.try_into().ok()?,
        vtep: match &value["vtep"] {
            Value::Null => None,
            vtep => Some(address(vtep)?),
        },
        gso_max_size: match &value["gso-max-size"] {
            Value::Null => None,
            bytes => Some(bytes.as_u64()?.try_into().ok()?),
        },
        versions,
        domain: match &value["domain"] {
            Value::Null => None,
            domain => Some(name(domain)?),
        },
        search: match &value["search"] {
            Value::Null => Vec::new(),
            search => search.as_array()?.iter().map(name).collect::<Option<_>>()?,
        },
    })
}

/// Parses a bound of bandwidth, in settings or in a listing; `None` if it is none.
fn bandwidth(value: &Value) -> Option<Bandwidth> {
    operations::read_bandwidth(value.as_str()?).ok()
}

/// Returns the port with this name in a listing of ports.
fn find<'a>(ports: &'a Value, name: &str) -> Option<&'a Value> {
    all(ports, "ports").find(|port| port["name"] == name)
}

fn all<'a>(of: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    of[list].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn description() -> Description {
        let answer = json!({
            "mtu": 1500,
            "ipv4": {
                "gateway": "10.0.2.2", "prefix-len": 24, "dns": ["10.0.2.18"],
                "pool": ["10.0.2.16", "10.0.2.19"],
            },
            "ipv6": { "gateway": "fd00::2", "prefix-len": 64, "dns": [], "pool": null },
            "domain": "lab.example", "search": ["lab.example"],
        });
        describe(&answer).unwrap()
    }

    #[test]
    fn descriptions() {
        let description = description();
        assert_eq!(description.mtu, 1500);
        let leased: Vec<_> = description.versions.iter().map(|one| one.is_leased).collect();
        assert_eq!(leased, [true, false]);
        // Without services.
        let mut bare = json!({ "mtu": 1400, "vtep": "192.0.2.11", "ipv4": null, "ipv6": null });
        bare["gso-max-size"] = 60_000.into();
        let bare = describe(&bare).unwrap();
        assert_eq!((bare.mtu, bare.versions.len(), bare.search.len()), (1400, 0, 0));
        assert_eq!((description.vtep, bare.vtep), (None, Some(ip("192.0.2.11"))));
        assert_eq!((description.gso_max_size, bare.gso_max_size), (None, Some(60_000)));
        for wrong in [
            json!({}),
            json!({ "mtu": 70_000 }),
            json!({ "mtu": 1500, "vtep": "here" }),
            json!({ "mtu": 1500, "gso-max-size": -1 }),
            json!({ "mtu": 1500, "ipv4": { "gateway": "x" } }),
            json!({ "mtu": 1500, "domain": "a\nnameserver 192.0.2.1" }),
            json!({ "mtu": 1500, "search": ["a b"] }),
        ] {
            assert_eq!(describe(&wrong), None);
        }
    }

    /// Goal: the network is asked for the given addresses and chooses the others, if it leases any
    /// of that version; what it answers is what the container gets.
    #[test]
    fn the_network_chooses_what_is_not_given() {
        let key = Prefix::of("lab").key("c1", "eth0");
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        let of = |given: &[&str], name: Option<&str>| {
            let addresses = given.iter().map(|text| ip(text)).collect();
            let name = name.map(str::to_owned);
            let member = Member { addresses, name, ..Member::default() };
            lease(&description(), &key, mac, &member).map(|mut lease| lease["add-lease"].take())
        };
        let station = mac.to_string();
        assert_eq!(
            of(&[], Some("web")).unwrap(),
            json!({ "port": key.port, "station": station, "ipv4": "auto", "name-if-free": "web" })
        );
        assert_eq!(
            of(&["fd00::9", "10.0.2.200"], Some("c d")).unwrap(),
            json!({ "port": key.port, "station": station, "ipv4": "10.0.2.200", "ipv6": "fd00::9" })
        );
        let two = of(&["10.0.2.200", "10.0.2.201"], None).unwrap_err();
        assert!(two.message.contains("10.0.2.201 cannot be used"), "{two:?}");

        let answered = |ipv4: &str| {
            let answer = json!({ "applied": 2, "leases": [{ "ipv4": ipv4, "ipv6": null }] });
            addresses(&description(), &answer)
        };
        let address = Address { address: ip("10.0.2.17"), prefix_len: 24, gateway: ip("10.0.2.2") };
        assert_eq!(answered("10.0.2.17").unwrap(), [address]);
        for wrong in ["10.0.2", "fd00::1"] {
            assert!(answered(wrong).unwrap_err().to_string().contains(wrong));
        }
    }

    /// Goal: CHECK finds each thing that is not as ADD has left it. Method: a container that is as
    /// wanted, and then one change each.
    #[test]
    fn checks() {
        let state = |bandwidth: Value, address: &str, count: u64| State {
            ports: json!({ "ports": [
                { "name": "c", "failure": null, "bandwidth-out": bandwidth, "bandwidth-in": null },
            ] }),
            leases: json!({ "static": [{ "port": "c", "ipv4": address, "ipv6": null }] }),
            published: json!({
                "published": [{ "guest": "c", "protocol": "tcp", "count": count }],
            }),
        };
        let mut member = Member::default();
        member.published.tcp.push("8080:80".to_owned());
        let addresses = [ip("10.0.2.20")];
        let check = |state: State, member: &Member| state.check("c", &addresses, member);
        let found = json!("1000000bit/65536");
        assert_eq!(check(state(found.clone(), "10.0.2.20", 1), &member), Ok(()), "not asked for");
        member.settings.insert("bandwidth-out".to_owned(), "1Mbit".into());
        assert_eq!(check(state(found.clone(), "10.0.2.20", 1), &member), Ok(()));
        for (state, why) in [
            (
                state(json!(null), "10.0.2.20", 1),
                "bandwidth-out of port c of the container is null",
            ),
            (state(json!("1000000bit/1"), "10.0.2.20", 1), "expected 1000000bit/65536"),
            (state(found.clone(), "10.0.2.21", 1), "10.0.2.20 is not reserved for port c"),
            (state(found, "10.0.2.20", 0), "0 tcp ports are published"),
        ] {
            let error = check(state, &member).unwrap_err();
            assert_eq!(error.code, error::NOT_AS_EXPECTED);
            assert!(error.message.contains(why), "{error:?}");
        }
    }

    /// Goal: only what is there is removed, and in an order that leaves nothing behind.
    #[test]
    fn removals() {
        let state = State {
            ports: json!({ "ports": [{ "name": "a" }, { "name": "b" }] }),
            leases: json!({ "leases": [], "static": [{ "port": "a" }, { "port": "c" }] }),
            published: json!({ "published": [{ "guest": "a" }] }),
        };
        let all = [
            json!({ "unpublish": "a" }),
            json!({ "del-lease": { "port": "a" } }),
            json!({ "del": "a" }),
        ];
        assert_eq!(state.removal("a"), all);
        assert_eq!(state.removal("c"), [json!({ "del-lease": { "port": "c" } })]);
        assert!(state.removal("d").is_empty());
        assert_eq!(state.names(), ["a", "b", "c"].map(str::to_owned).into());
    }
}
