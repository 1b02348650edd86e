//! The network file: what `towpath up` serves, as TOML tables. A single value on the command line
//! overrides the file; where several values are possible, those of the command line are added.
//!
//! Limit: [`FILE_BYTES_MAX`].

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use towpath_gateway::config::{
    FLOWS_MAX, LendToHost, MTU_MAX, MTU_MIN, MulticastService, Subnet4, Subnet6, parse_size,
};
use towpath_gateway::control::fields::{Fields, Wrong};
use towpath_gateway::control::operations;
use towpath_gateway::egress::policy::Policy;
use towpath_gateway::network::{
    BUSY_POLL_MAX, EvpnSettings, Operation, PortSettings, QUEUE_LEN_MAX,
};
use towpath_gateway::publish::{Existing, PortChange, Target};
use towpath_gateway::services::wire::domain::DomainName;
use towpath_gateway::services::{Automatic, LEASES_PER_PORT_MAX};
use towpath_net::switch::Role;
use towpath_net::tcp::congestion::Kind;

use crate::config::document::Document;
use crate::config::policy_file;
use crate::config::signature::{Signed, others_may};
use crate::messages::Messages;

/// Longest file in bytes: enough for a thousand ports with all settings.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Contents of a network file; `None` and empty lists for absent settings.
#[derive(Debug, Default)]
pub(crate) struct NetFile {
    pub(crate) mtu: Option<u16>,
    pub(crate) busy_poll: Option<Duration>,
    /// A number, or `None` for `auto`.
    pub(crate) workers: Option<Option<usize>>,
    pub(crate) domain: Option<DomainName>,
    pub(crate) gateway: Option<bool>,
    pub(crate) detect_duplicates: Option<bool>,
    pub(crate) memory: Option<usize>,
    pub(crate) max_flows: Option<usize>,
    pub(crate) congestion: Option<Kind>,
    pub(crate) lend_to_host: Option<LendToHost>,
    pub(crate) resolvers: Vec<IpAddr>,
    pub(crate) map_host_loopback: Vec<IpAddr>,
    pub(crate) multicast: Vec<MulticastService>,
    pub(crate) ipv4: Family<Subnet4, Ipv4Addr>,
    pub(crate) ipv6: Family<Subnet6, Ipv6Addr>,
    /// Guests may form IPv6 addresses by themselves, according to the advertisements.
    pub(crate) autonomous: Option<bool>,
    pub(crate) dhcp: Dhcp,
    pub(crate) ports: PortDefaults,
    /// Which hosts outside may be reached.
    pub(crate) egress: Option<Policy>,
    /// The control plane of the VXLAN ports.
    pub(crate) evpn: Option<EvpnSettings>,
    /// A secret is in this file, not in one of its own.
    has_secret: bool,
    /// Operations, each with its place in the file.
    pub(crate) operations: Vec<(String, Operation)>,
}

/// Default settings for ports.
#[derive(Debug, Default)]
pub(crate) struct PortDefaults {
    pub(crate) queue_len: Option<usize>,
    pub(crate) queue_pairs: Option<u16>,
    pub(crate) isolate: Option<bool>,
}

/// Settings for IPv4 or IPv6.
#[derive(Debug)]
pub(crate) struct Family<S, A> {
    pub(crate) is_off: bool,
    pub(crate) subnet: Option<S>,
    pub(crate) gateway: Option<A>,
    pub(crate) dns: Option<A>,
    pub(crate) pool: Option<Pool<A>>,
}

/// Settings for leases.
#[derive(Debug, Default)]
pub(crate) struct Dhcp {
    pub(crate) is_off: bool,
    pub(crate) lease_time: Option<Duration>,
    pub(crate) lease_file: Option<PathBuf>,
    pub(crate) leases_per_port: Option<usize>,
    pub(crate) search: Vec<DomainName>,
    /// DNS servers that guests get instead of the network's own.
    pub(crate) dns: Vec<IpAddr>,
}

/// A range of addresses to lease: `FIRST-LAST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool<A> {
    pub(crate) first: A,
    pub(crate) last: A,
}

impl<S, A> Default for Family<S, A> {
    fn default() -> Self {
        Self { is_off: false, subnet: None, gateway: None, dns: None, pool: None }
    }
}

impl<A: FromStr> FromStr for Pool<A> {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let addresses = text.split_once('-').and_then(|(first, last)| {
            Some(Self { first: first.trim().parse().ok()?, last: last.trim().parse().ok()? })
        });
        addresses.ok_or("expected two addresses as FIRST-LAST")
    }
}

impl NetFile {
    /// Parses the file at `path`. Defaults of ports come from `given`, else from the file. A notice
    /// says if other users may read secrets in it.
    pub(crate) fn open(
        path: &Path,
        given: &PortDefaults,
        messages: Messages,
    ) -> anyhow::Result<Self> {
        let mut text = String::new();
        let read = |text: &mut String| {
            let file = File::open(path)?;
            let others = others_may(&file)?;
            file.take(FILE_BYTES_MAX + 1).read_to_string(text).map(|_| others)
        };
        let others = read(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
        if text.len() as u64 > FILE_BYTES_MAX {
            bail!(
                "{} is larger than {FILE_BYTES_MAX} bytes, the limit of network files",
                path.display()
            );
        }
        let within = |message: String| anyhow::anyhow!("{}:{message}", path.display());
        let (document, fields) = Document::read(&text).map_err(within)?;
        let (mut file, operations) =
            Self::read(fields, given).map_err(|wrong| within(document.explain(&wrong)))?;
        let place = |at: String| format!("{}:{}", path.display(), document.place(&at));
        file.operations = operations.into_iter().map(|(at, made)| (place(at), made)).collect();
        if let Some(mode) = others.filter(|_| file.has_secret) {
            let path = path.display();
            messages.notice(format_args!(
                "{path} has a secret, and other users may read or change it (mode {mode:03o}); \
                 run: chmod o= {path}, or put the secret into a password-file or key-file"
            ));
        }
        Ok(file)
    }

    /// Returns the policies in the file, those of ports with the port's name.
    pub(crate) fn into_policies(self) -> Vec<(Option<String>, Arc<Policy>)> {
        let of_port = |(_, operation)| match operation {
            Operation::Add { name, settings, .. } => Some((Some(name), settings.egress?)),
            _ => None,
        };
        let all = self.egress.map(|policy| (None, Arc::new(policy)));
        all.into_iter().chain(self.operations.into_iter().filter_map(of_port)).collect()
    }

    /// Parses the tables, and the operations with their paths.
    fn read(
        mut fields: Fields,
        given: &PortDefaults,
    ) -> Result<(Self, Vec<(String, Operation)>), Wrong> {
        let mut file = Self {
            mtu: fields.number("mtu", MTU_MIN.into(), MTU_MAX.into())?.map(|mtu| mtu as u16),
            busy_poll: fields
                .number("busy-poll", 0, BUSY_POLL_MAX.as_micros() as u64)?
                .map(Duration::from_micros),
            domain: fields.parsed("domain")?,
            gateway: fields.yes_or_no("gateway")?,
            detect_duplicates: fields.yes_or_no("detect-duplicates")?,
            memory: fields
                .parsed_by("memory", |text| parse_size(text).map_err(|error| error.to_string()))?,
            workers: operations::workers(&mut fields)?,
            max_flows: fields.number("max-flows", 1, FLOWS_MAX as u64)?.map(|max| max as usize),
            congestion: fields.parsed_by("congestion", parse_congestion)?,
            lend_to_host: fields.parsed_by("lend-to-host", parse_lend_to_host)?,
            resolvers: fields.list("resolvers")?,
            map_host_loopback: fields.list("map-host-loopback")?,
            multicast: fields.list("multicast")?,
            egress: policy_file::of_table(&mut fields)?,
            ..Self::default()
        };
        let mut ipv4 = None;
        file.ipv4 = family(&mut fields, "ipv4", &mut ipv4)?;
        ipv4.map_or(Ok(()), Fields::finish)?;
        let mut ipv6 = None;
        file.ipv6 = family(&mut fields, "ipv6", &mut ipv6)?;
        if let Some(mut ipv6) = ipv6 {
            file.autonomous = ipv6.yes_or_no("autonomous")?;
            ipv6.finish()?;
        }
        file.dhcp = Dhcp::read(&mut fields)?;
        file.ports = PortDefaults {
            queue_len: fields.number("queue-len", 1, QUEUE_LEN_MAX as u64)?.map(|len| len as usize),
            queue_pairs: fields
                .number("queue-pairs", 1, operations::QUEUE_PAIRS_MAX)?
                .map(|pairs| pairs as u16),
            isolate: fields.yes_or_no("isolate")?,
        };
        let defaults = file.ports.after(given);
        let mut made = Vec::new();
        if let Some(vxlan) = fields.fields("vxlan")? {
            let at = vxlan.path().to_owned();
            made.push((at, operations::vxlan(vxlan, &defaults)?));
        }
        if let Some(table) = fields.fields("evpn")? {
            let (settings, has_secret) = evpn(table)?;
            (file.evpn, file.has_secret) = (Some(settings), has_secret);
        }
        for mut port in fields.all("port")? {
            let at = port.path().to_owned();
            let name =
                port.text("name")?.ok_or_else(|| port.all_wrong("the port has no 'name'"))?;
            made.push((at, operations::add(name, port, &defaults)?));
        }
        for lease in fields.all("lease")? {
            let at = lease.path().to_owned();
            let lease = operations::static_lease(lease)?;
            made.push((at, Operation::AddLease(lease, Automatic::default())));
        }
        for mut published in fields.all("publish")? {
            let at = published.path().to_owned();
            let guest = published.parsed_by("guest", |text| Ok(Target::guest(text)))?;
            let guest =
                guest.ok_or_else(|| published.all_wrong("the published port has no 'guest'"))?;
            let ports = operations::publish(&mut published, &guest)?;
            let change = PortChange::Publish(ports, Existing::Reject);
            made.push((at, Operation::Ports(change)));
            published.finish()?;
        }
        fields.finish()?;
        Ok((file, made))
    }
}

impl PortDefaults {
    /// Returns the settings of ports where `given` overrides these defaults.
    pub(crate) fn after(&self, given: &Self) -> PortSettings {
        let defaults = PortSettings::default();
        let is_isolated = given.isolate.or(self.isolate).unwrap_or(false);
        PortSettings {
            queue_len: given.queue_len.or(self.queue_len).unwrap_or(defaults.queue_len),
            pairs: given.queue_pairs.or(self.queue_pairs).unwrap_or(defaults.pairs),
            role: if is_isolated { Role::Isolated } else { Role::Station },
            ..defaults
        }
    }
}

impl Dhcp {
    fn read(fields: &mut Fields) -> Result<Self, Wrong> {
        if fields.is_off("dhcp") {
            return Ok(Self { is_off: true, ..Self::default() });
        }
        let Some(mut dhcp) = fields.fields("dhcp")? else { return Ok(Self::default()) };
        let read = Self {
            is_off: false,
            lease_time: dhcp.parsed_by("lease-time", parse_duration)?,
            lease_file: dhcp.text("lease-file")?.map(PathBuf::from),
            leases_per_port: dhcp
                .number("leases-per-port", 1, LEASES_PER_PORT_MAX as u64)?
                .map(|count| count as usize),
            search: dhcp.list("search")?,
            dns: dhcp.list("dns")?,
        };
        dhcp.finish()?;
        Ok(read)
    }
}

/// Parses the settings of EVPN, and returns whether a secret is among them.
fn evpn(mut table: Fields) -> Result<(EvpnSettings, bool), Wrong> {
    let path = table.path().to_owned();
    let signed = Signed::of_table(&mut table)?;
    let mut settings = operations::evpn(table)?;
    settings.signatures = signed.signatures(&settings.neighbors)?;
    let checked = settings.check();
    checked.map_err(|error| Wrong { path, message: error.to_string() })?;
    Ok((settings, signed.has_secret))
}

/// Parses the settings of a family; `table` parses the rest of its table.
fn family<S, A>(
    fields: &mut Fields,
    name: &'static str,
    table: &mut Option<Fields>,
) -> Result<Family<S, A>, Wrong>
where
    S: FromStr<Err: fmt::Display>,
    A: FromStr<Err: fmt::Display>,
{
    if fields.is_off(name) {
        return Ok(Family { is_off: true, ..Family::default() });
    }
    let Some(mut inner) = fields.fields(name)? else { return Ok(Family::default()) };
    let family = Family {
        is_off: false,
        subnet: inner.parsed("subnet")?,
        gateway: inner.parsed("gateway")?,
        dns: inner.parsed("dns")?,
        pool: inner.parsed("pool")?,
    };
    *table = Some(inner);
    Ok(family)
}

/// Parses the name of a congestion control.
pub(crate) fn parse_congestion(text: &str) -> Result<Kind, String> {
    Kind::from_name(text).ok_or_else(|| expected(Kind::ALL.iter().map(|kind| kind.name())))
}

/// Parses when to lend to the host's kernel.
pub(crate) fn parse_lend_to_host(text: &str) -> Result<LendToHost, String> {
    let names = LendToHost::ALL.iter().map(|when| when.name());
    LendToHost::from_name(text).ok_or_else(|| expected(names))
}

/// Returns what is wrong with a text that is none of these names.
fn expected(names: impl Iterator<Item = &'static str>) -> String {
    let names: Vec<&str> = names.collect();
    let (last, others) = names.split_last().unwrap_or((&"none", &[]));
    format!("expected {} or {last}", others.join(", "))
}

/// Parses a time: a number of seconds, or a number with the suffix `s`, `m`, `h` or `d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let (digits, seconds) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        Some((at, 'd')) => (&text[..at], 24 * 3600),
        _ => (text, 1),
    };
    let count: Option<u64> = digits.parse().ok();
    let seconds = count.and_then(|count| count.checked_mul(seconds));
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| "expected seconds, or a time such as 90s, 30m, 12h or 7d".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(NetFile, Vec<(String, Operation)>), String> {
        let (document, fields) = Document::read(text)?;
        NetFile::read(fields, &PortDefaults::default()).map_err(|wrong| document.explain(&wrong))
    }

    #[test]
    fn the_example_is_read() {
        let text = include_str!("../../examples/net.toml");
        let (file, operations) = read(text).unwrap();
        assert!(operations.len() >= 5);
        assert_eq!(file.dhcp.lease_time, Some(Duration::from_secs(12 * 3600)));
        // The settings in comments are valid as well.
        let all: Vec<_> = text
            .lines()
            .map(|line| line.strip_prefix("#: ").unwrap_or(line))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_ne!(all.concat(), text);
        read(&all.concat()).unwrap();
    }

    #[test]
    fn mistakes_are_reported_with_their_place() {
        for (text, expected) in [
            ("mtu = 'x'", "1:1: 'mtu': expected a number from 576 to 65520, got 'x'"),
            ("mtu = 100", "1:1: 'mtu': expected a number from 576 to 65520, got 100"),
            ("multicast = ['mdns', 'x']", "1:1: 'multicast': 'x': expected mdns or ssdp"),
            ("congestion = 'vegas'", "1:1: 'congestion': 'vegas': expected reno, cubic or bbr"),
            ("lend-to-host = 'yes'", "1:1: 'lend-to-host': 'yes': expected never, auto or always"),
            ("max-flows = 0", "1:1: 'max-flows': expected a number from 1 to 1048576, got 0"),
            ("queue-len = 0", "1:1: 'queue-len': expected a number from 1 to 1048576, got 0"),
            ("\n\nmtuu = 1", "3:1: unknown key 'mtuu'; did you mean 'mtu'?"),
            ("colour = 1", "1:1: unknown key 'colour'; expected mtu, busy-poll, domain, gateway,"),
            ("[ipv4]\nsubnet = '10.0.2.1/24'", "2:1: 'subnet': '10.0.2.1/24': address bits"),
            ("[ipv4]\nautonomous = true", "expected subnet, gateway, dns or pool"),
            ("busy-poll = 1001", "'busy-poll': expected a number from 0 to 1000, got 1001"),
            ("workers = 9", "1:1: 'workers': expected 'auto' or a number from 1 to 8, got 9"),
            ("ipv4 = true", "1:1: 'ipv4': expected a table, got true"),
            ("[ipv6]\npool = 'fd00::1'", "2:1: 'pool': 'fd00::1': expected two addresses"),
            ("[dhcp]\nlease-time = '1w'", "2:1: 'lease-time': '1w': expected seconds, or a time"),
            ("[dhcp]\nleases-per-port = 0", "expected a number from 1 to 4096, got 0"),
            ("[dhcp]\nsearch = ['a b']", "2:1: 'search': 'a b': "),
            ("port = 1", "'port': expected a list of tables, each under [[port]], got 1"),
            ("[port]\nname = 'a'", "each under [[port]], got a table"),
            ("[[port]]\ntap = true", "1:1: the port has no 'name'"),
            ("[[port]]\nname = 'a'\nvlan = 5000\ntap = true", "3:1: 'vlan': expected a number"),
            ("[[port]]\nname = 'a'\nstream = 'x'", "3:1: 'stream': the path 'x' is not absolute"),
            ("[[port]]\nname = 'a'", "one of vhost-user, vhost-user-client, stream"),
            ("[[lease]]\nipv4 = '10.0.2.9'", "expected one of port, mac, client-id and duid"),
            ("[[publish]]\ntcp = '80'", "1:1: the published port has no 'guest'"),
            ("[[publish]]\nguest = 'a'\ntcp = ['80', 'x']", "3:1: port specification 'x'"),
            ("domain = 2026-01-01", "1:1: 'domain': expected a string, got a value of another"),
        ] {
            let error = read(text).err().unwrap();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn neighbors_without_a_key_are_refused_beside_others() {
        let evpn = "[evpn]\nas = 65001\nrouter-id = '192.0.2.11'\n\
                    neighbors = ['192.0.2.1', '192.0.2.2']\n\
                    [[evpn.tcp-ao]]\nsend-id = 1\nalgorithm = 'hmac-sha-1-96'\nkey = 'hush'\n";
        let (file, _) = read(evpn).unwrap();
        assert_eq!(file.evpn.unwrap().signatures.len(), 2);
        let error = read(&format!("{evpn}neighbors = ['192.0.2.1']")).unwrap_err();
        assert!(
            error.starts_with("1:2: neighbour 192.0.2.2 has no key, and others have"),
            "{error}"
        );
    }

    #[test]
    fn options_go_before_the_file() {
        let text = "queue-len = 5\nisolate = true\n[[port]]\nname = 'a'\ntap = true\n\
                    [[port]]\nname = 'b'\ntap = true\nqueue-len = 9\nisolated = false";
        let given = PortDefaults { queue_len: Some(7), ..PortDefaults::default() };
        let (_, fields) = Document::read(text).unwrap();
        let (_, operations) = NetFile::read(fields, &given).unwrap();
        let settings = |at: usize| match &operations[at].1 {
            Operation::Add { settings, .. } => (settings.queue_len, settings.role),
            _ => panic!("no port"),
        };
        assert_eq!((settings(0), settings(1)), ((7, Role::Isolated), (9, Role::Station)));
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("2d"), Ok(Duration::from_secs(2 * 24 * 3600)));
        for wrong in ["", "h", "-1s", "1.5h", "99999999999999999999d", "999999999999999999d", "1é"]
        {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
