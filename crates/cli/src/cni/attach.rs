//! Attaches a container to a network and detaches it: the operations that both protocols have.

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value};
use towpath_io::namespace::enter::NetworkNamespace;
use towpath_net::wire::MacAddr;

use super::error::{self, Error};
use super::key::{Host, Key, Prefix};
use super::namespace::{self, Address, Settings};
use super::network::{Description, Member, Network};

/// How often, and after which pauses, a call looks whether another one has made the host's
/// interface, which takes that one some milliseconds.
const LOOKS_MAX: usize = 150;
const PAUSE: Duration = Duration::from_millis(20);

/// A container that is to be attached.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The control socket of the network; `None`: of the only one that runs.
    pub(super) network: Option<PathBuf>,
    pub(super) key: Key,
    /// The file of its network namespace, and the name of its interface there; `None` for a virtual
    /// machine, which has a socket.
    pub(super) interface: Option<(PathBuf, String)>,
    pub(super) mac: Option<MacAddr>,
    pub(super) member: Member,
    /// The interface of the host, which is to be there before the container.
    pub(super) host: Option<HostInterface>,
}

/// An interface by which the host of the engine is in the network, too: a station like a container,
/// without default routes. The first container makes it, and it ends with the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostInterface {
    pub(super) key: Key,
    /// Its name in the network namespace of the plugin.
    pub(super) name: String,
    /// Settings of its port.
    pub(super) settings: Map<String, Value>,
}

/// An attached container.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) mac: MacAddr,
    pub(super) mtu: u16,
    /// Its addresses, each with a default route.
    pub(super) addresses: Vec<Address>,
    pub(super) network: Description,
}

impl Attached {
    /// Returns the addresses of the network's resolvers that it can reach.
    pub(super) fn resolvers(&self) -> impl Iterator<Item = IpAddr> {
        let has = |is_ipv4| self.addresses.iter().any(|one| one.address.is_ipv4() == is_ipv4);
        let versions = self.network.versions.iter();
        let versions = versions.filter(move |version| has(version.gateway.is_ipv4()));
        versions.flat_map(|version| version.dns.iter().copied())
    }
}

/// Attaches a container. If this fails, nothing of it is left in the network; a process that may
/// not return from the container's namespaces leaves that to the engine, which detaches what could
/// not be attached.
pub(super) fn attach(wanted: &Wanted) -> Result<Attached, Error> {
    let Wanted { key, interface, member, host, .. } = wanted;
    let network = Network::running(wanted.network.as_deref())?;
    let description = network.describe()?;
    let this = Host::this(description.vtep);
    if let Some(host) = host {
        attach_host(&network, &description, host, &this)?;
    }
    let mac = wanted.mac.unwrap_or_else(|| key.mac(&this));
    let mtu = mtu(&member.settings, &description);
    let Some((path, name)) = interface else {
        let addresses = network.add(&description, key, mac, member, None)?;
        return Ok(Attached { mac, mtu, addresses, network: description });
    };
    let container = NetworkNamespace::open(path);
    let container = container.map_err(|error| {
        let error = anyhow::Error::from(error);
        Error::new(error::ENVIRONMENT, format_args!("{error:#}"))
    })?;
    let tap = namespace::make(&container, name)?;
    let addresses = network.add(&description, key, mac, member, Some(tap.as_fd()))?;
    let gso_max_size = description.gso_max_size;
    let settings = Settings { mac, mtu, gso_max_size, addresses, leads_out: true };
    match namespace::configure(&container, name, &settings) {
        Ok(addresses) => Ok(Attached { mac, mtu, addresses, network: description }),
        Err(error) => {
            // Why it could not be configured is what matters. What stays is detached by the engine.
            let _ = network.remove(&key.port);
            Err(error.into())
        }
    }
}

/// Attaches the host, unless it is attached. Of calls at the same time, the one that makes the
/// device does it, and the others wait.
fn attach_host(
    network: &Network,
    description: &Description,
    host: &HostInterface,
    this: &Host,
) -> Result<(), Error> {
    let HostInterface { key, name, settings } = host;
    for _ in 0..LOOKS_MAX {
        if network.has_ended(&key.port)? == Some(false) {
            return Ok(());
        }
        let Some(tap) = namespace::make_here(name)? else {
            thread::sleep(PAUSE);
            continue;
        };
        let (mac, mtu) = (key.mac(this), mtu(settings, description));
        let member = Member { settings: settings.clone(), ..Member::default() };
        let addresses = network.add(description, key, mac, &member, Some(tap.as_fd()))?;
        let gso_max_size = description.gso_max_size;
        let settings = Settings { mac, mtu, gso_max_size, addresses, leads_out: false };
        return match namespace::configure_here(name, &settings) {
            Ok(_) => Ok(()),
            Err(error) => {
                let _ = network.remove(&key.port);
                Err(error.into())
            }
        };
    }
    Err(Error::new(
        error::LATER,
        format_args!(
            "'hostInterface': this host has an interface {name}, which does not lead to the \
             network; choose another name, or remove it with `ip link del {name}`"
        ),
    ))
}

/// Returns the MTU of a port with these settings.
fn mtu(settings: &Map<String, Value>, description: &Description) -> u16 {
    let mtu = settings.get("mtu").and_then(|mtu| mtu.as_u64()?.try_into().ok());
    mtu.unwrap_or(description.mtu)
}

/// Detaches a container. One that is not attached is no error, and neither is a network that does
/// not run: its ports have ended with it.
pub(super) fn detach(network: Option<&PathBuf>, key: &Key) -> Result<(), Error> {
    match Network::find(network.map(PathBuf::as_path))? {
        Some(network) => network.remove(&key.port),
        None => Ok(()),
    }
}

/// Detaches all containers of an engine's network except these.
pub(super) fn collect(
    network: Option<&PathBuf>,
    prefix: &Prefix,
    valid: &HashSet<String>,
) -> Result<(), Error> {
    match Network::find(network.map(PathBuf::as_path))? {
        Some(network) => network.collect(prefix, valid),
        None => Ok(()),
    }
}

/// Checks that a container is attached as it was, with these addresses.
pub(super) fn check(wanted: &Wanted, addresses: &[IpAddr]) -> Result<(), Error> {
    let network = Network::running(wanted.network.as_deref())?;
    network.check(&wanted.key.port, addresses, &wanted.member)?;
    let Some((path, name)) = &wanted.interface else { return Ok(()) };
    namespace::check(path, name, addresses)
        .map_err(|error| Error::new(error::NOT_AS_EXPECTED, format_args!("{error:#}")))
}

/// Checks that a network runs and has room.
pub(super) fn check_network(network: Option<&PathBuf>) -> Result<(), Error> {
    let ready =
        Network::running(network.map(PathBuf::as_path)).and_then(|network| network.check_room());
    ready.map_err(|error| Error { code: error::NOT_AVAILABLE, ..error })
}

/// Parses a port mapping into the form of `--tcp-ports`.
pub(super) fn specification(
    address: Option<IpAddr>,
    (host, container): (u16, u16),
    count: u16,
) -> anyhow::Result<String> {
    let range = |first: u16| -> anyhow::Result<String> {
        let last = count.checked_sub(1).and_then(|more| first.checked_add(more));
        let last = last.filter(|_| first > 0).with_context(|| {
            format!("{count} ports from {first} on are not between 1 and 65535")
        })?;
        Ok(if last > first { format!("{first}-{last}") } else { first.to_string() })
    };
    let place = address.map(|address| format!("{address}/")).unwrap_or_default();
    Ok(format!("{place}{}:{}", range(host)?, range(container)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications() {
        let of = |address: &str, ports, count| {
            specification(address.parse().ok(), ports, count).map_err(|error| error.to_string())
        };
        assert_eq!(of("", (8080, 80), 1).unwrap(), "8080:80");
        assert_eq!(of("127.0.0.1", (8080, 80), 10).unwrap(), "127.0.0.1/8080-8089:80-89");
        assert_eq!(of("::1", (1, 65_535), 1).unwrap(), "::1/1:65535");
        for (ports, count) in [((0, 80), 1), ((80, 0), 1), ((80, 65_535), 2), ((80, 80), 0)] {
            assert!(of("", ports, count).is_err(), "{ports:?} {count}");
        }
    }
}
