//! Operations of a network as objects: in requests of the control socket, in network files and, as
//! lists of settings, on the command line.
//!
//! An operation is one of:
//! - `{"add": NAME, KIND, SETTINGS}`, where `KIND` is one of `"vhost-user": PATH`,
//!   `"vhost-user-client": PATH`, `"stream": PATH`, `"tap": true`, `"tap-fd": true`, `"packet":
//!   IFACE`, `"xdp": SETTINGS` and `"vxlan": SETTINGS`. `"tap-fd"` is a TAP device whose descriptor
//!   comes with the request (SCM_RIGHTS), which can have one.
//! - `{"del": NAME}`
//! - `{"set": NAME, SETTINGS}`
//! - `{"add-lease": {CLIENT, ...}}`, where `CLIENT` is one of `"port": NAME`, `"mac": MAC`,
//!   `"client-id": HEX` and `"duid": HEX`, with some of `"ipv4"`, `"ipv6"` and `"name"`. An address
//!   `"auto"` is chosen by the network. `"name-if-free"` instead of `"name"` is left out if another
//!   guest has it. `"station": MAC` says that the guest at the port has this link-layer address and
//!   is configured with the addresses.
//! - `{"del-lease": {CLIENT}}`
//! - `{"publish": GUEST, "tcp": SPEC, "udp": SPEC}`: one of the two is enough, and each may be a
//!   list. With `"if-absent": true`, ports that are published already and lead there stay.
//! - `{"unpublish": GUEST}`, with or without `"tcp"` and `"udp"`.
//! - `{"workers": N}`, or `"auto"` instead of a number
//!
//! Settings are `"queue-len": N`, `"isolated": BOOL`, `"vlan": N` or `"trunk": LIST` with or
//! without `"native": N`, `"macs": [MAC]` and `"addresses": [ADDR]` (what the station may use;
//! none: any), `"router": BOOL`, `"flood-rate": N` (packets per second of each kind that it may
//! send to more than one station; 0: no limit), `"mtu": N` (largest IP packet to the station),
//! `"link": "up"` or `"down"`, `"egress": {...}` (a policy of its own, see
//! [`egress`]) or `false`, `"bandwidth-out": RATE` and `"bandwidth-in": RATE` (most bits per second
//! of frames from the station and to it, such as `"10Mbit"` or, with a burst in bytes,
//! `"10Mbit/256K"`) or `false`, and for a new port `"queue-pairs": N`.
//!
//! Limit: [`OPERATIONS_MAX`].

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::Value;
use towpath_io::namespace::listening::ephemeral_ports;
use towpath_net::switch::vlan::{Vid, VlanSet};
use towpath_net::switch::{PortVlans, Prefix, Role, StormRates};
use towpath_net::vxlan::{VNI_MAX, Vni, remotes};
use towpath_net::wire::MacAddr;
use towpath_packet::tokens::DEPTH_MAX;

use super::egress;
use super::fields::{Fields, Wrong};
use crate::config::{MTU_MAX, MTU_MIN, WORKERS_MAX, parse_size};
use crate::egress::policy::Policy;
use crate::network::{
    Attachment, Bandwidth, Change, EvpnSettings, Operation, PassedTap, PortSettings, QUEUE_LEN_MAX,
    VxlanSettings,
};
use crate::publish::{self, Existing, PROGRAM, PortChange, Protocol, Publish, Target};
use crate::services::{Automatic, Guest, StaticLease};

/// Most operations of a transaction, during which the worker moves no packets.
pub const OPERATIONS_MAX: usize = 128;

/// Most queue pairs of a port, also for `towpath up`.
pub const QUEUE_PAIRS_MAX: u64 = 8;
/// Highest VLAN ID (IEEE 802.1Q).
pub const VLAN_MAX: u64 = 4094;
/// Longest client identifier in bytes: the length of an option.
const ID_BYTES_MAX: usize = 255;

/// Parses the operations of a transaction, the JSON object `{"operations": [...]}`.
///
/// # Errors
/// A message for the sender.
pub fn transaction(body: &[u8]) -> Result<Vec<Operation>, String> {
    let body: Value =
        serde_json::from_slice(body).map_err(|error| format!("the body is not JSON: {error}"))?;
    let operations = match body {
        Value::Object(mut only) if only.len() == 1 => only.remove("operations"),
        _ => None,
    };
    let Some(Value::Array(operations)) = operations else {
        return Err("expected an object with exactly one key, 'operations' (array)".to_owned());
    };
    if operations.len() > OPERATIONS_MAX {
        let count = operations.len();
        return Err(format!(
            "{count} operations are too many; at most {OPERATIONS_MAX} are allowed"
        ));
    }
    let read = |(value, number): (Value, usize)| {
        let read = Fields::of(value, "").and_then(operation);
        read.map_err(|error| format!("operation {number}: {error}"))
    };
    operations.into_iter().zip(1..).map(read).collect()
}

/// Parses one operation from all fields of the object.
pub fn operation(mut fields: Fields) -> Result<Operation, Wrong> {
    if let Some(name) = fields.text("add")? {
        return add(name, fields, &PortSettings::default());
    }
    let operation = if let Some(name) = fields.text("del")? {
        fields.forget_known();
        Operation::Del(name)
    } else if let Some(name) = fields.text("set")? {
        if fields.has("queue-pairs") {
            let message = "'queue-pairs' can be set only when the port is added";
            return Err(fields.wrong("queue-pairs", message.to_owned()));
        }
        fields.forget_known();
        Operation::Set(name, change(&mut fields)?)
    } else if let Some(lease) = fields.fields("add-lease")? {
        added_lease(lease)?
    } else if let Some(mut lease) = fields.fields("del-lease")? {
        let guest = guest(&mut lease)?;
        lease.finish()?;
        Operation::DelLease(guest)
    } else if let Some(remote) = fields.fields("add-remote")? {
        added_remote(remote)?
    } else if let Some(remote) = fields.fields("del-remote")? {
        removed_remote(remote)?
    } else if let Some(guest) = fields.parsed_by("publish", |text| Ok(Target::guest(text)))? {
        let existing = match fields.yes_or_no("if-absent")? {
            Some(true) => Existing::Keep,
            _ => Existing::Reject,
        };
        Operation::Ports(PortChange::Publish(publish(&mut fields, &guest)?, existing))
    } else if let Some(guest) = fields.parsed_by("unpublish", |text| Ok(Target::guest(text)))? {
        let is_all = !fields.has("tcp") && !fields.has("udp");
        let only = if is_all { Vec::new() } else { publish(&mut fields, &guest)? };
        let only = only.iter().map(Publish::host_port).collect();
        Operation::Ports(PortChange::Unpublish(guest, (!is_all).then_some(only)))
    } else if let Some(count) = workers(&mut fields)? {
        fields.forget_known();
        Operation::Workers(count)
    } else {
        return Err(fields.all_wrong(
            "expected one of add, del, set, add-lease, del-lease, add-remote, del-remote, publish, \
             unpublish and workers",
        ));
    };
    fields.finish()?;
    Ok(operation)
}

/// Takes a number of workers, which is `None` for `auto`; `None` if the field is absent.
pub fn workers(fields: &mut Fields) -> Result<Option<Option<usize>>, Wrong> {
    let expected = format_args!("'auto' or a number from 1 to {WORKERS_MAX}").to_string();
    fields.read("workers", expected, |value| match value.as_str() {
        Some(word) => (word == "auto").then_some(None),
        None => {
            let count = usize::try_from(value.as_u64()?).ok()?;
            (1..=WORKERS_MAX).contains(&count).then_some(Some(count))
        }
    })
}

/// Parses a port to be added from the remaining fields; `defaults` supplies absent settings.
pub fn add(name: String, mut fields: Fields, defaults: &PortSettings) -> Result<Operation, Wrong> {
    let attachment = attachment(&name, &mut fields)?;
    let mut settings = defaults.clone().for_device(&attachment);
    if let Some(pairs) = fields.number("queue-pairs", 1, QUEUE_PAIRS_MAX)? {
        settings.pairs = pairs as u16;
    }
    let settings = change(&mut fields)?.apply_to(settings);
    fields.finish()?;
    Ok(Operation::Add { name, attachment, settings })
}

/// Parses the device of a port: exactly one of its kinds.
fn attachment(name: &str, fields: &mut Fields) -> Result<Attachment, Wrong> {
    let is_tap = fields.yes_or_no("tap")?.unwrap_or(false);
    let is_passed = fields.yes_or_no("tap-fd")?.unwrap_or(false);
    let all = [
        ("vhost-user", path(fields, "vhost-user")?.map(Attachment::VhostUser)),
        ("vhost-user-client", path(fields, "vhost-user-client")?.map(Attachment::VhostUserClient)),
        ("stream", path(fields, "stream")?.map(Attachment::Stream)),
        ("tap", is_tap.then(|| Attachment::Tap(name.to_owned()))),
        ("tap-fd", is_passed.then(|| Attachment::TapFd(PassedTap::default()))),
        ("packet", fields.text("packet")?.map(Attachment::Packet)),
        ("xdp", fields.parsed("xdp")?.map(Attachment::Xdp)),
        ("vxlan", fields.parsed("vxlan")?.map(Attachment::Vxlan)),
    ];
    let given = given(&all.each_ref().map(|(kind, found)| (*kind, found.is_some())));
    let mut found = all.into_iter().filter_map(|(_, found)| found);
    match (found.next(), found.next()) {
        (Some(attachment), None) => Ok(attachment),
        _ => Err(fields.all_wrong(format!(
            "port '{name}': expected one of vhost-user, vhost-user-client, stream, tap, \
             tap-fd, packet, xdp and vxlan, got {given}"
        ))),
    }
}

/// Parses the table of a VXLAN port; `defaults` supplies absent settings.
pub fn vxlan(mut fields: Fields, defaults: &PortSettings) -> Result<Operation, Wrong> {
    let vni = fields.number("vni", 0, VNI_MAX.into())?.and_then(|vni| Vni::new(vni as u32));
    let vni = vni.ok_or_else(|| fields.all_wrong("the table has no 'vni'"))?;
    let mut settings = VxlanSettings::new(vni);
    settings.local = fields.parsed("local")?;
    settings.remotes = fields.list("remotes")?;
    if let Some(port) = fields.number("port", 1, u16::MAX.into())? {
        settings.port = port as u16;
    }
    settings.is_learning = fields.yes_or_no("learn")?.unwrap_or(settings.is_learning);
    let vlan = fields.number("vlan", 1, VLAN_MAX)?.and_then(|vid| Vid::new(vid as u16));
    settings.check().map_err(|error| fields.all_wrong(error.to_string()))?;
    fields.finish()?;
    Ok(tunnel(settings, vlan, defaults))
}

/// Parses the table of EVPN, but for what signs the sessions.
pub fn evpn(mut fields: Fields) -> Result<EvpnSettings, Wrong> {
    let as_number = fields.number("as", 1, u32::MAX.into())?;
    let as_number = as_number.ok_or_else(|| fields.all_wrong("the table has no 'as'"))?;
    let router_id = fields.parsed("router-id")?;
    let router_id = router_id.ok_or_else(|| fields.all_wrong("the table has no 'router-id'"))?;
    let mut settings = EvpnSettings::new(as_number as u32, router_id);
    settings.neighbors = fields.list("neighbors")?;
    if let Some(port) = fields.number("port", 1, u16::MAX.into())? {
        settings.port = port as u16;
    }
    settings.listen = fields.parsed("listen")?;
    settings.is_passive = fields.yes_or_no("passive")?.unwrap_or(false);
    if let Some(seconds) = fields.number("hold-time", 0, u16::MAX.into())? {
        settings.hold_seconds = seconds as u16;
    }
    settings.check().map_err(|error| fields.all_wrong(error.to_string()))?;
    fields.finish()?;
    Ok(settings)
}

/// Returns the operation that adds a VXLAN port, named `vxlanVNI`.
pub fn tunnel(vxlan: VxlanSettings, vlan: Option<Vid>, defaults: &PortSettings) -> Operation {
    let name = format!("vxlan{}", vxlan.vni);
    let attachment = Attachment::Vxlan(vxlan);
    let mut settings = defaults.clone().for_device(&attachment);
    if let Some(vid) = vlan {
        settings.vlans = PortVlans::Access(vid);
    }
    Operation::Add { name, attachment, settings }
}

/// Parses a remote to add to a VXLAN port: to its flood list, with a station behind it, or an
/// address of a station.
fn added_remote(mut fields: Fields) -> Result<Operation, Wrong> {
    let port = remote_port(&mut fields)?;
    let (mac, remote, address) =
        (fields.parsed("mac")?, fields.parsed("remote")?, fields.parsed("address")?);
    let change = match (mac, remote, address) {
        (None, Some(remote), None) => remotes::Change::AddFlood(remote),
        (Some(mac), Some(remote), None) => remotes::Change::AddStation { mac, remote },
        (Some(mac), None, Some(address)) => remotes::Change::AddAddress { address, mac },
        _ => {
            return Err(
                fields.all_wrong("expected 'remote', 'remote' and 'mac', or 'mac' and 'address'")
            );
        }
    };
    fields.finish()?;
    Ok(Operation::Remote(port, change))
}

/// Parses what to remove from the remotes of a VXLAN port.
fn removed_remote(mut fields: Fields) -> Result<Operation, Wrong> {
    let port = remote_port(&mut fields)?;
    let (mac, remote, address) =
        (fields.parsed("mac")?, fields.parsed("remote")?, fields.parsed("address")?);
    let change = match (mac, remote, address) {
        (None, Some(remote), None) => remotes::Change::DelFlood(remote),
        (Some(mac), None, None) => remotes::Change::DelStation(mac),
        (None, None, Some(address)) => remotes::Change::DelAddress(address),
        _ => return Err(fields.all_wrong("expected one of 'remote', 'mac' and 'address'")),
    };
    fields.finish()?;
    Ok(Operation::Remote(port, change))
}

fn remote_port(fields: &mut Fields) -> Result<String, Wrong> {
    let port = fields.text("port")?;
    port.ok_or_else(|| fields.all_wrong("'port', the name of a VXLAN port, is missing"))
}

/// Parses a static lease.
pub fn static_lease(mut fields: Fields) -> Result<StaticLease, Wrong> {
    let lease = StaticLease {
        guest: guest(&mut fields)?,
        ipv4: fields.parsed("ipv4")?,
        ipv6: fields.parsed("ipv6")?,
        name: fields.parsed("name")?,
        station: None,
    };
    fields.finish()?;
    Ok(lease)
}

/// Parses a static lease of which the network may choose parts.
fn added_lease(mut fields: Fields) -> Result<Operation, Wrong> {
    let (ipv4, ipv6) = (fields.is_automatic("ipv4"), fields.is_automatic("ipv6"));
    let name = fields.parsed("name-if-free")?;
    let station = fields.parsed_by("station", station)?;
    if station.is_some() && !fields.has("port") {
        return Err(fields.all_wrong("'station' needs 'port', the name of the guest's port"));
    }
    if name.is_some() && fields.has("name") {
        return Err(fields.all_wrong("expected one of 'name' and 'name-if-free'"));
    }
    let auto = Automatic { ipv4, ipv6, name: name.is_some() };
    let lease = static_lease(fields)?;
    Ok(Operation::AddLease(StaticLease { name: name.or(lease.name), station, ..lease }, auto))
}

fn station(text: &str) -> Result<MacAddr, String> {
    let mac: MacAddr = text.parse().map_err(|error| format!("{error}"))?;
    match mac.is_unicast() {
        true => Ok(mac),
        false => Err("expected the address of one station".to_owned()),
    }
}

/// Parses the ports of the host to publish for a guest: lists of specifications for TCP and UDP.
pub fn publish(fields: &mut Fields, guest: &Target) -> Result<Vec<Publish>, Wrong> {
    let ephemeral = ephemeral_ports();
    let mut all = Vec::new();
    for (name, protocol) in [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)] {
        let specs = fields.texts(name)?;
        let parsed = publish::parse(protocol, &specs, &ephemeral);
        let parsed = parsed.map_err(|error| fields.wrong(name, error.to_string()))?;
        for one in parsed {
            let is_programs = matches!(guest, Target::Guest(name) if name == PROGRAM);
            let target = match one.target {
                Target::Program => guest.clone(),
                target if is_programs => target,
                other => {
                    let message = format!("the port leads to {other} or to {guest}; name one");
                    return Err(fields.wrong(name, message));
                }
            };
            all.push(Publish { target, ..one });
        }
    }
    match all.is_empty() {
        true => Err(fields.all_wrong(
            "no ports are given; expected tcp or udp (options --tcp-ports, --udp-ports)",
        )),
        false => Ok(all),
    }
}

/// Parses how a guest is identified.
pub fn guest(fields: &mut Fields) -> Result<Guest, Wrong> {
    let port = fields.text("port")?.map(Guest::Port);
    let mac = fields.parsed("mac")?.map(Guest::Mac);
    let client_id = fields.parsed_by("client-id", bytes)?.map(Guest::ClientId);
    let duid = fields.parsed_by("duid", bytes)?.map(Guest::Duid);
    let given = given(&[
        ("port", port.is_some()),
        ("mac", mac.is_some()),
        ("client-id", client_id.is_some()),
        ("duid", duid.is_some()),
    ]);
    let mut known = [port, mac, client_id, duid].into_iter().flatten();
    match (known.next(), known.next()) {
        (Some(guest), None) => Ok(guest),
        _ => Err(fields.all_wrong(format!(
            "expected one of port, mac, client-id and duid to identify the guest, got {given}"
        ))),
    }
}

/// Returns the names that are given, for a message.
fn given(all: &[(&str, bool)]) -> String {
    let given = all.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name);
    let given: Vec<_> = given.collect();
    if given.is_empty() { "none".to_owned() } else { given.join(" and ") }
}

fn path(fields: &mut Fields, name: &'static str) -> Result<Option<PathBuf>, Wrong> {
    let path = fields.text(name)?.map(PathBuf::from);
    match path {
        Some(path) if !path.is_absolute() => {
            let path = path.display();
            let message = format!("'{name}': the path '{path}' is not absolute; begin it with '/'");
            Err(fields.wrong(name, message))
        }
        path => Ok(path),
    }
}

fn change(fields: &mut Fields) -> Result<Change, Wrong> {
    let vid = |number: u64| u16::try_from(number).ok().and_then(Vid::new);
    let vlan = fields.number("vlan", 1, VLAN_MAX)?.and_then(vid);
    let native = fields.number("native", 1, VLAN_MAX)?.and_then(vid);
    let trunk = fields.parsed_by("trunk", read_vlans)?;
    let vlans = match (vlan, trunk, native) {
        (None, None, None) => None,
        (Some(vid), None, None) => Some(PortVlans::Access(vid)),
        (None, Some(allowed), native) => Some(PortVlans::Trunk { native, allowed }),
        (None, None, Some(_)) => {
            let message = "'native' needs 'trunk', the list of the VLANs with tags";
            return Err(fields.wrong("native", message.to_owned()));
        }
        (Some(_), _, _) => {
            let message = "'vlan' cannot be combined with 'trunk' and 'native'";
            return Err(fields.wrong("vlan", message.to_owned()));
        }
    };
    let isolated = fields.yes_or_no("isolated")?;
    let macs = fields.has("macs").then(|| fields.list("macs")).transpose()?;
    let addresses =
        fields.has("addresses").then(|| fields.list::<Allowed>("addresses")).transpose()?;
    Ok(Change {
        macs,
        addresses: addresses.map(|all| all.into_iter().map(|Allowed(prefix)| prefix).collect()),
        queue_len: fields.number("queue-len", 1, QUEUE_LEN_MAX as u64)?.map(|len| len as usize),
        vlans,
        is_router: fields.yes_or_no("router")?,
        storm: fields.number("flood-rate", 0, u64::from(u32::MAX))?.map(flood_rate),
        mtu: fields.number("mtu", MTU_MIN.into(), MTU_MAX.into())?.map(|mtu| mtu as u16),
        is_up: fields.parsed_by("link", link)?,
        egress: policy(fields)?,
        bandwidth_out: bandwidth(fields, "bandwidth-out")?,
        bandwidth_in: bandwidth(fields, "bandwidth-in")?,
        role: isolated.map(|yes| if yes { Role::Isolated } else { Role::Station }),
    })
}

/// Parses a port's own policy, or that it has none.
fn policy(fields: &mut Fields) -> Result<Option<Option<Arc<Policy>>>, Wrong> {
    if fields.is_off("egress") {
        return Ok(Some(None));
    }
    let policy = fields.fields("egress")?.map(egress::policy).transpose()?;
    Ok(policy.map(|policy| Some(Arc::new(policy))))
}

/// Parses a bound of a port's frames, or that it has none.
fn bandwidth(fields: &mut Fields, name: &'static str) -> Result<Option<Option<Bandwidth>>, Wrong> {
    if fields.is_off(name) {
        return Ok(Some(None));
    }
    Ok(fields.parsed_by(name, read_bandwidth)?.map(Some))
}

/// Parses bits per second, with or without a burst in bytes: `10Mbit`, `10Mbit/256K`.
///
/// # Errors
/// What is wrong, for the user.
pub fn read_bandwidth(text: &str) -> Result<Bandwidth, String> {
    let (rate, burst) =
        text.split_once('/').map_or((text, None), |(rate, burst)| (rate, Some(burst)));
    let bits = egress::bandwidth(rate).ok_or_else(|| {
        "expected bits per second such as 10Mbit, from 8bit to 1000Gbit".to_owned()
    })?;
    let Some(burst) = burst else { return Ok(Bandwidth::new(bits)) };
    let bytes = parse_size(burst).ok().and_then(|bytes| u64::try_from(bytes).ok());
    let bytes = bytes.filter(|bytes| (1..=DEPTH_MAX).contains(bytes));
    let burst = bytes.ok_or_else(|| {
        format!("expected a burst from 1 to {DEPTH_MAX} bytes behind '/', such as 10Mbit/256K")
    })?;
    Ok(Bandwidth { bits, burst })
}

/// Parses the state of a link; true if it is up.
fn link(text: &str) -> Result<bool, String> {
    match text {
        "up" => Ok(true),
        "down" => Ok(false),
        _ => Err("expected up or down".to_owned()),
    }
}

/// Returns the same limit for all kinds of packets that go to more than one station; 0 means no
/// limit.
fn flood_rate(number: u64) -> StormRates {
    StormRates::all(u32::try_from(number).ok().filter(|rate| *rate > 0))
}

/// An IP address that a station may use, or all addresses of a network as `ADDR/LEN`.
struct Allowed(Prefix);

impl FromStr for Allowed {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, len) = text.split_once('/').map_or((text, None), |(a, len)| (a, Some(len)));
        let wrong = "expected an IP address or ADDR/LEN";
        let address: IpAddr = address.parse().map_err(|_| wrong)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let len = len.map_or(Ok(bits), |len| len.parse().map_err(|_| wrong))?;
        if len > bits { Err(wrong) } else { Ok(Self(Prefix { address, len })) }
    }
}

/// Parses tagged VLANs: `10,20-30` or `all`.
pub fn read_vlans(list: &str) -> Result<Box<VlanSet>, String> {
    if list == "all" {
        return Ok(Box::new(VlanSet::ALL));
    }
    let wrong = || format!("expected all, or VLANs from 1 to {VLAN_MAX} such as 10,20-30");
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

/// Formats bytes as two hexadecimal digits each.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Parses hexadecimal digits, with or without colons between bytes.
fn bytes(text: &str) -> Result<Vec<u8>, String> {
    let digits = text.replace(':', "");
    let wrong = || format!("expected 1 to {ID_BYTES_MAX} bytes, each as two hexadecimal digits");
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if !is_hex || pairs.is_empty() || pairs.len() > ID_BYTES_MAX || !rest.is_empty() {
        return Err(wrong());
    }
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect::<Option<_>>().ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: &Value) -> Result<Operation, Wrong> {
        operation(Fields::of(value.clone(), "")?)
    }

    /// Goal: defaults that isolate machines leave the interfaces that they should reach.
    #[test]
    fn interfaces_are_not_isolated_by_default() {
        let isolated = PortSettings { role: Role::Isolated, ..PortSettings::default() };
        let role = |port: Value| {
            let fields = Fields::of(port, "").expect("an object");
            match add("a".to_owned(), fields, &isolated).expect("valid") {
                Operation::Add { attachment, settings, .. } => (attachment, settings.role),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(role(json!({ "tap": true })).1, Role::Isolated);
        let packet = Attachment::Packet("eth1".to_owned());
        assert_eq!(role(json!({ "packet": "eth1" })), (packet, Role::Station));
        let (attachment, own) = role(json!({ "xdp": "eth1,queue=2", "isolated": true }));
        assert_eq!(
            (attachment.to_string().as_str(), own),
            ("xdp eth1,queue=2,mode=auto", Role::Isolated)
        );
    }

    /// Goal: bounds of bandwidth are read, with and without a burst, and taken away; what a listing
    /// shows can be given.
    #[test]
    fn bandwidths() {
        let change = |setting: Value| match read(&json!({ "set": "a", "bandwidth-out": setting })) {
            Ok(Operation::Set(_, change)) => change.bandwidth_out,
            other => panic!("{other:?}"),
        };
        let bounded = |bits, burst| Some(Some(Bandwidth { bits, burst }));
        assert_eq!(change(json!("10Mbit")), bounded(10_000_000, 64 << 10));
        assert_eq!(change(json!("10mbit/256K")), bounded(10_000_000, 256 << 10));
        let listed = Bandwidth { bits: 8, burst: DEPTH_MAX };
        assert_eq!(change(json!(listed.to_string())), Some(Some(listed)));
        assert_eq!(change(json!(false)), Some(None));
    }

    #[test]
    fn operations_that_are_none_are_refused() {
        for (wrong, why) in [
            (json!([]), "expected an object, got a list"),
            (json!({}), "one of add, del, set"),
            (json!({ "add": "a" }), "port 'a': expected one of vhost-user, vhost-user-client"),
            (json!({ "add": "a" }), "packet, xdp and vxlan, got none"),
            (json!({ "add": "a", "tap": true, "stream": "/x" }), "got stream and tap"),
            (json!({ "add": "a", "tap": true, "tap-fd": true }), "got tap and tap-fd"),
            (json!({ "add": "a", "tap-fd": "tap0" }), "'tap-fd': expected true or false"),
            (json!({ "add": "a", "vhost-user": "/x", "vhost-user-client": "/x" }), "one of"),
            (json!({ "add": "a", "stream": "x" }), "'stream': the path 'x' is not absolute"),
            (json!({ "del": 1 }), "'del': expected a string, got 1"),
            (json!({ "del": "a", "vlan": 1 }), "unknown key 'vlan'"),
            (json!({ "set": "a", "del": "b" }), "unknown key 'set'"),
            (json!({ "set": "a", "vlan": 4095 }), "expected a number from 1 to 4094, got 4095"),
            (json!({ "set": "a", "vlan": 1, "native": 1 }), "'vlan' cannot be combined"),
            (json!({ "set": "a", "native": 1 }), "'native' needs 'trunk'"),
            (json!({ "set": "a", "trunk": "3-2" }), "'trunk': '3-2': expected all, or VLANs"),
            (json!({ "set": "a", "isolated": 1 }), "yes or no"),
            (json!({ "set": "a", "router": "maybe" }), "yes or no"),
            (json!({ "set": "a", "queue-len": -1 }), "a number from"),
            (json!({ "set": "a", "queue-pairs": 2 }), "only when the port is added"),
            (json!({ "set": "a", "colour": 2 }), "expected vlan, native, trunk, isolated, macs"),
            (json!({ "set": "a", "queue-lne": 2 }), "did you mean 'queue-len'?"),
            (json!({ "set": "a", "addresses": "10.0.2.9/33" }), "expected an IP address"),
            (json!({ "set": "a", "macs": ["2"] }), "'macs': '2'"),
            (json!({ "set": "a", "mtu": 575 }), "expected a number from 576 to 65520, got 575"),
            (json!({ "set": "a", "egress": true }), "'egress': expected a table, got true"),
            (json!({ "set": "a", "egress": { "default": 1 } }), "'default': expected a string"),
            (json!({ "set": "a", "bandwidth-in": 5 }), "'bandwidth-in': expected a string, got 5"),
            (json!({ "set": "a", "bandwidth-in": "5" }), "'5': expected bits per second such as"),
            (json!({ "set": "a", "bandwidth-in": "7bit" }), "from 8bit to 1000Gbit"),
            (json!({ "set": "a", "bandwidth-out": "1Mbit/" }), "'1Mbit/': expected a burst from 1"),
            (json!({ "set": "a", "bandwidth-out": "1Mbit/0" }), "expected a burst from 1"),
            (json!({ "set": "a", "bandwidth-out": "1Mbit/2048G" }), "expected a burst from 1"),
            (json!({ "set": "a", "bandwidth-out": true }), "expected a string, got true"),
            (json!({ "set": "a", "link": "on" }), "'link': 'on': expected up or down"),
            (json!({ "publish": "a" }), "expected tcp or udp"),
            (json!({ "publish": "a", "tcp": "0" }), "'0' is not a port"),
            (json!({ "publish": "a", "tcp": ["80", "80"] }), "given twice"),
            (json!({ "publish": "a", "tcp": 80 }), "a string or a list of strings, got 80"),
            (json!({ "unpublish": "a", "ports": "80" }), "unknown key 'ports'"),
            (json!({ "workers": 0 }), "'workers': expected 'auto' or a number from 1 to 8, got 0"),
            (json!({ "workers": 9 }), "'workers': expected 'auto' or a number from 1 to 8, got 9"),
            (
                json!({ "workers": "many" }),
                "'workers': expected 'auto' or a number from 1 to 8, got",
            ),
            (json!({ "workers": 2, "port": "a" }), "unknown key 'port'"),
            (json!({ "add-lease": 1 }), "expected a table, got 1"),
            (json!({ "add-lease": { "ipv4": "10.0.2.9" } }), "one of port, mac"),
            (json!({ "add-lease": { "port": "a", "mac": "02:00:00:00:00:01" } }), "port and mac"),
            (json!({ "add-lease": { "port": "a", "ipv4": "10.0.2" } }), "'10.0.2'"),
            (json!({ "add-lease": { "mac": "02:00" } }), "'mac'"),
            (json!({ "add-lease": { "duid": "0" } }), "hexadecimal"),
            (json!({ "add-lease": { "port": "a", "name": "a b" } }), "'name'"),
            (json!({ "del-lease": { "port": "a", "ipv4": "10.0.2.9" } }), "unknown key 'ipv4'"),
        ] {
            let error = read(&wrong).unwrap_err();
            assert!(error.message.contains(why), "{wrong}: {error}");
        }
    }

    /// Goal: the network chooses only what it is asked to choose, and a station is one of a port.
    #[test]
    fn leases_leave_parts_to_the_network() {
        let of = |lease: Value| read(&json!({ "add-lease": lease }));
        let mac = "02:00:00:00:00:01";
        let Operation::AddLease(lease, auto) =
            of(json!({ "port": "a", "station": mac, "ipv6": "auto", "name-if-free": "b" }))
                .unwrap()
        else {
            panic!("another operation")
        };
        assert_eq!((lease.ipv4, lease.ipv6, lease.station), (None, None, mac.parse().ok()));
        assert_eq!(lease.name.unwrap().as_str(), "b");
        assert_eq!(auto, Automatic { ipv4: false, ipv6: true, name: true });
        for (wrong, why) in [
            (json!({ "port": "a", "ipv4": "automatic" }), "'automatic'"),
            (json!({ "mac": mac, "station": mac }), "'station' needs 'port'"),
            (json!({ "port": "a", "station": "03:00:00:00:00:01" }), "the address of one station"),
            (json!({ "port": "a", "name": "a", "name-if-free": "b" }), "'name' and 'name-if-free'"),
        ] {
            let error = of(wrong.clone()).unwrap_err();
            assert!(error.message.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn leases_of_all_kinds() {
        let text = "client-id=01:02ff,ipv4=10.0.2.9,ipv6=fd00::9,name=web";
        let lease = static_lease(Fields::of_settings(text).unwrap()).unwrap();
        assert_eq!(lease.guest, Guest::ClientId(vec![1, 2, 255]));
        assert_eq!(lease.ipv4, Some([10, 0, 2, 9].into()));
        assert_eq!((lease.ipv6, lease.name.unwrap().as_str()), ("fd00::9".parse().ok(), "web"));
        let del = read(&json!({ "del-lease": { "duid": "0102" } })).unwrap();
        assert_eq!(del, Operation::DelLease(Guest::Duid(vec![1, 2])));
    }
}
