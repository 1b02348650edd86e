//! slirp4netns(1): its options, and the command lines of towpath that do the same.
//!
//! Options are taken as getopt_long(3) parses them, before, between and behind the other arguments.
//! All calls become `towpath attach`. The addresses inside are those of slirp4netns: the network's
//! first address plus [`PROGRAM`], [`GATEWAY`] and [`DNS`].

use std::ffi::OsString;
use std::net::Ipv4Addr;

use anyhow::{Context, anyhow, bail};

use super::Translated;
use super::getopt::{self, Given, Known};

/// What an option means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// It is passed on under this name, with its argument.
    Same(&'static str),
    Cidr,
    Configure,
    DisableDns,
    DisableLoopback,
    EnableIpv6,
    Help,
    Mac,
    Mtu,
    NetnsType,
    TargetType,
    Userns,
    Version,
    /// It has no effect, for this reason.
    Ignored(&'static str),
    /// It is refused: this is what to do instead.
    Refused(&'static str),
}

use Meaning::{Ignored, Refused, Same};

const fn known(
    short: u8,
    long: &'static str,
    value: &'static str,
    meaning: Meaning,
) -> (Known<Meaning>, &'static str) {
    (Known { short, long, takes: !value.is_empty(), meaning }, value)
}

/// Why the options about protection have no effect.
const CONFINED: &str = "towpath always confines itself";
/// What to do about the source of connections.
const OUTBOUND: &str = "the host's routes choose interface and source address; change them";

/// All options: letter, name, argument, meaning.
const OPTIONS: [(Known<Meaning>, &str); 21] = [
    known(b'c', "configure", "", Meaning::Configure),
    known(b'e', "exit-fd", "FD", Same("--exit-fd")),
    known(b'r', "ready-fd", "FD", Same("--ready-fd")),
    known(b'm', "mtu", "MTU", Meaning::Mtu),
    known(b'6', "enable-ipv6", "", Meaning::EnableIpv6),
    known(b'a', "api-socket", "PATH", Same("--port-socket")),
    known(0, "cidr", "CIDR", Meaning::Cidr),
    known(0, "disable-host-loopback", "", Meaning::DisableLoopback),
    known(0, "no-host-loopback", "", Meaning::DisableLoopback),
    known(0, "netns-type", "TYPE", Meaning::NetnsType),
    known(0, "userns-path", "PATH", Meaning::Userns),
    known(0, "enable-sandbox", "", Ignored(CONFINED)),
    known(0, "create-sandbox", "", Ignored(CONFINED)),
    known(0, "enable-seccomp", "", Ignored(CONFINED)),
    known(0, "outbound-addr", "ADDR", Refused(OUTBOUND)),
    known(0, "outbound-addr6", "ADDR", Refused(OUTBOUND)),
    known(0, "disable-dns", "", Meaning::DisableDns),
    known(0, "macaddress", "MAC", Meaning::Mac),
    known(0, "target-type", "TYPE", Meaning::TargetType),
    known(b'h', "help", "", Meaning::Help),
    known(b'v', "version", "", Meaning::Version),
];

/// The definitions without the names of arguments.
const KNOWN: &[Known<Meaning>] = &{
    let mut known = [OPTIONS[0].0; OPTIONS.len()];
    let mut index = 0;
    while index < OPTIONS.len() {
        known[index] = OPTIONS[index].0;
        index += 1;
    }
    known
};

/// The network without `--cidr`.
const NETWORK: Cidr = Cidr { first: Ipv4Addr::new(10, 0, 2, 0), prefix_len: 24 };
/// Distances from the first address of the network.
const PROGRAM: u32 = 100;
const GATEWAY: u32 = 2;
const DNS: u32 = 3;
/// Longest prefix of a network in which all of them have a place.
const PREFIX_LEN_MAX: u8 = 25;
/// The IPv6 network: the program has its address 100, as in the IPv4 network. slirp4netns lets the
/// kernel form an address; a fixed one is usable at once, and the same after each start.
const IPV6: [&str; 3] = ["--address=fd00::64/64", "--gateway=fd00::2", "--dns-forward=fd00::3"];
/// Largest MTU of slirp4netns, and that of towpath.
const MTU_MAX: u16 = 65_521;
const OUR_MTU_MAX: u16 = 65_520;

/// The IPv4 network inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cidr {
    first: Ipv4Addr,
    prefix_len: u8,
}

/// Options that were seen.
#[derive(Default)]
struct Seen {
    /// Options that are passed on as they are.
    options: Vec<OsString>,
    cidr: Option<Cidr>,
    mtu: Option<u16>,
    mac: Option<OsString>,
    configures: bool,
    disables_dns: bool,
    disables_loopback: bool,
    enables_ipv6: bool,
    has_path: bool,
    userns: Option<OsString>,
    text: Option<String>,
}

/// Translates the arguments behind the program's name.
pub(super) fn translate(arguments: &[OsString]) -> anyhow::Result<Translated> {
    let mut seen = Seen::default();
    let others = getopt::parse_anywhere(KNOWN, arguments, |given| -> anyhow::Result<()> {
        // What follows --help and --version does not matter.
        if seen.text.is_some() { Ok(()) } else { seen.take(given) }
    })?;
    match seen.text {
        Some(text) => Ok(Translated::Text(text)),
        None => seen.command(&others).map(Translated::Command),
    }
}

impl Seen {
    fn take(&mut self, given: Given<Meaning>) -> anyhow::Result<()> {
        let Given { known, value } = given;
        let option = known.long;
        match known.meaning {
            Same(name) => {
                // The last one counts.
                self.options.retain(|before| !begins_with(before, name));
                self.options.push(joined(name, &value));
            }
            Ignored(_) => {}
            Refused(instead) => bail!("option --{option} is not supported; {instead}"),
            Meaning::Cidr => self.cidr = Some(Cidr::parse(&text(option, &value)?)?),
            Meaning::Configure => self.configures = true,
            Meaning::DisableDns => self.disables_dns = true,
            Meaning::DisableLoopback => self.disables_loopback = true,
            Meaning::EnableIpv6 => self.enables_ipv6 = true,
            Meaning::Mac => self.mac = Some(value),
            Meaning::Mtu => self.mtu = Some(mtu(&text(option, &value)?)?),
            Meaning::NetnsType => match text(option, &value)?.as_str() {
                "path" => self.has_path = true,
                "pid" => self.has_path = false,
                other => bail!("option --netns-type: '{other}' is not 'path' or 'pid'"),
            },
            Meaning::TargetType => match text(option, &value)?.as_str() {
                "netns" => {}
                "bess" => bail!(
                    "option --target-type bess is not supported; for virtual machines use `towpath \
                     up --stream` or `towpath up --vhost-user`"
                ),
                other => bail!("option --target-type: '{other}' is not 'netns'"),
            },
            Meaning::Userns => self.userns = Some(value),
            Meaning::Help => self.text = Some(help()),
            Meaning::Version => {
                let version = env!("CARGO_PKG_VERSION");
                self.text = Some(format!("slirp4netns (towpath {version})\n"));
            }
        }
        Ok(())
    }

    /// Returns towpath's command line. `others` are a PID or a path, and the interface; more are
    /// ignored, as slirp4netns does.
    fn command(mut self, others: &[&OsString]) -> anyhow::Result<Vec<OsString>> {
        let [target, interface, ..] = others else {
            bail!(
                "the {} is missing; expected for example: slirp4netns --configure PID tap0",
                if others.is_empty() { "PID or PATH" } else { "name of the interface" }
            );
        };
        let mut command = vec![OsString::from("attach")];
        self.add_network(&mut command)?;
        command.push(joined("--ifname", interface));
        command.append(&mut self.options);
        if let Some(userns) = &self.userns {
            command.push(joined("--userns", userns));
        }
        if self.has_path {
            command.push(joined("--netns", target));
        } else {
            let pid = target.to_str().and_then(|text| text.parse::<i32>().ok());
            let Some(pid) = pid.filter(|pid| *pid > 0) else {
                bail!(
                    "'{}' is not a PID; give a number from 1, or a path with --netns-type=path",
                    target.display()
                );
            };
            command.push(pid.to_string().into());
        }
        Ok(command)
    }

    /// Adds the options about addresses, MTU and what they lead to.
    fn add_network(&mut self, command: &mut Vec<OsString>) -> anyhow::Result<()> {
        let Cidr { prefix_len, .. } = self.cidr.unwrap_or(NETWORK);
        let at = |distance| self.cidr.unwrap_or(NETWORK).at(distance);
        command.push(format!("--address={}/{prefix_len}", at(PROGRAM)).into());
        command.push(format!("--gateway={}", at(GATEWAY)).into());
        match self.disables_dns {
            true => command.push("--no-dns".into()),
            false => command.push(format!("--dns-forward={}", at(DNS)).into()),
        }
        match self.enables_ipv6 {
            true => {
                let all = IPV6
                    .iter()
                    .filter(|option| !self.disables_dns || !option.starts_with("--dns-forward"));
                command.extend(all.map(OsString::from));
            }
            false => command.push("--ipv4-only".into()),
        }
        // Without DHCP, the caller configures IPv4; IPv6 needs nothing from it.
        match (self.configures, self.enables_ipv6) {
            (true, _) => {}
            (false, true) => command.push("--no-config=ipv4".into()),
            (false, false) => command.push("--no-config".into()),
        }
        if !self.disables_loopback {
            command.push("--map-gateway".into());
        }
        if let Some(mtu) = self.mtu {
            command.push(format!("--mtu={mtu}").into());
        }
        match self.mac.take() {
            Some(_) if !self.configures => bail!("option --macaddress needs --configure"),
            Some(mac) => command.push(joined("--mac", &mac)),
            None => {}
        }
        Ok(())
    }
}

impl Cidr {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let wrong = || {
            anyhow!(
                "option --cidr: '{text}' is not a network; expected for example 10.0.2.0/24, with \
                 a prefix of at most {PREFIX_LEN_MAX} bits"
            )
        };
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let first: Ipv4Addr = address.parse().map_err(|_| wrong())?;
        let prefix_len = bits.parse().ok().filter(|bits| (1..=PREFIX_LEN_MAX).contains(bits));
        let prefix_len: u8 = prefix_len.ok_or_else(wrong)?;
        let hosts = u32::MAX >> prefix_len;
        let network = Ipv4Addr::from(u32::from(first) & !hosts);
        if network != first {
            bail!(
                "option --cidr: '{text}' is not the first address of its network; give \
                 {network}/{prefix_len}"
            );
        }
        Ok(Self { first, prefix_len })
    }

    fn at(self, distance: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.first) | distance)
    }
}

/// Parses an MTU. One above towpath's largest becomes that.
fn mtu(text: &str) -> anyhow::Result<u16> {
    let mtu = text.parse().ok().filter(|mtu| (1..=MTU_MAX).contains(mtu));
    let mtu = mtu.ok_or_else(|| {
        anyhow!("option --mtu: '{text}' is not a number of bytes from 1 to {MTU_MAX}")
    })?;
    Ok(mtu.min(OUR_MTU_MAX))
}

/// Returns an option with its value as one argument, so that the value may begin with a dash.
fn joined(option: &str, value: &OsString) -> OsString {
    let mut both = OsString::from(option);
    both.push("=");
    both.push(value);
    both
}

/// True if the argument is this option with a value.
fn begins_with(argument: &OsString, name: &str) -> bool {
    let rest = argument.as_encoded_bytes().strip_prefix(name.as_bytes());
    rest.is_some_and(|rest| rest.starts_with(b"="))
}

fn text(option: &str, value: &OsString) -> anyhow::Result<String> {
    let text = value.to_str().map(str::to_owned);
    text.with_context(|| format!("option --{option}: '{}' is not valid", value.display()))
}

fn help() -> String {
    let mut text = String::from(
        "Usage: slirp4netns [OPTION]... PID|PATH TAPNAME\n\n\
         This is towpath, which acts as slirp4netns because it was started by that name.\n\
         `towpath as --explain slirp4netns ...` shows what it makes of these options:\n\n",
    );
    for (known, value) in &OPTIONS {
        let short = match known.short {
            0 => "    ".to_owned(),
            letter => format!("-{}, ", char::from(letter)),
        };
        let separator = if value.is_empty() { "" } else { "=" };
        let note = match known.meaning {
            Ignored(reason) => format!("    no effect: {reason}"),
            Refused(instead) => format!("    not supported: {instead}"),
            _ => String::new(),
        };
        text.push_str(&format!("  {short}--{}{separator}{value}{note}\n", known.long));
    }
    text
}

#[cfg(test)]
mod tests;
