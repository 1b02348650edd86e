//! Attaches a container to a network and detaches it: the operations that both protocols have.

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::Context;
use towpath_io::namespace::enter::NetworkNamespace;
use towpath_net::wire::MacAddr;

use super::error::{self, Error};
use super::key::{Host, Key, Prefix};
use super::namespace::{self, Address, Settings};
use super::network::{Description, Member, Network};

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
    let Wanted { key, interface, member, .. } = wanted;
    let network = Network::running(wanted.network.as_deref())?;
    let description = network.describe()?;
    let mac = wanted.mac.unwrap_or_else(|| key.mac(&Host::this(description.vtep)));
    let mtu = member.settings.get("mtu").and_then(|mtu| mtu.as_u64()?.try_into().ok());
    let mtu = mtu.unwrap_or(description.mtu);
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
    let settings = Settings { mac, mtu, gso_max_size, addresses };
    match namespace::configure(&container, name, &settings) {
        Ok(addresses) => Ok(Attached { mac, mtu, addresses, network: description }),
        Err(error) => {
            // Why it could not be configured is what matters. What stays is detached by the engine.
            let _ = network.remove(&key.port);
            Err(error.into())
        }
    }
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
