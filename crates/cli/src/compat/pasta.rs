//! pasta(1): its options, and the command lines of towpath that do the same.
//!
//! Options are taken as getopt_long(3) parses them. `pasta PID` and `pasta --netns PATH` become
//! `towpath attach`, and `pasta COMMAND` becomes `towpath run`. An option without an effect here is
//! accepted only if nothing is lost by it; [`KNOWN`] says why. All others are refused by name.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, anyhow, bail};

use super::Translated;
use super::getopt::{self, Given, Known};

/// What an option means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It is passed on under this name, with its argument.
    Same(&'static str),
    Address,
    ConfigNet,
    Dns,
    DnsForward,
    Foreground,
    Help,
    Interface,
    JoinLoopback,
    Ipv4Only,
    Ipv6Only,
    LogFile,
    MapGuestAddress,
    MapHostLoopback,
    Mtu,
    Netmask,
    Netns,
    NoDhcp,
    NoMapGateway,
    Pid,
    Ports(&'static str),
    Stay,
    Userns,
    Version,
    /// It has no effect, for this reason.
    Ignored(&'static str),
    /// It is refused: this is what to do instead.
    Refused(&'static str),
}

use Meaning::{Ignored, Ports, Refused, Same};

const fn known(short: u8, long: &'static str, takes: u8, meaning: Meaning) -> Known<Meaning> {
    Known { short, long, takes: takes != 0, meaning }
}

/// Why options of DHCP have no effect.
const NO_DHCP: &str = "the interface is configured directly: there is no DHCP or NDP service";
/// Why messages go where they go.
const MESSAGES: &str = "messages go to standard error until the network is ready";
/// Why the user namespace needs no option.
const USERNS: &str = "the user namespace that owns the network namespace is entered if necessary";
/// What to use for virtual machines.
const MACHINES: &str = "for virtual machines use the name passt, or `towpath up`";
/// What to do about sources of connections.
const OUTBOUND: &str = "the host's routes choose interface and source address; change them";

/// All options: letter, name, number of arguments, meaning.
pub(super) const KNOWN: &[Known<Meaning>] = &[
    known(b'd', "debug", 0, Same("--verbose")),
    known(0, "trace", 0, Same("--verbose")),
    known(b'q', "quiet", 0, Same("--quiet")),
    known(b'f', "foreground", 0, Meaning::Foreground),
    known(b'e', "stderr", 0, Ignored(MESSAGES)),
    known(b'l', "log-file", 1, Meaning::LogFile),
    known(0, "log-size", 1, Ignored("messages are few: the file does not grow without bound")),
    known(b'h', "help", 0, Meaning::Help),
    known(0, "version", 0, Meaning::Version),
    known(b'I', "ns-ifname", 1, Same("--ifname")),
    known(b'p', "pcap", 1, Same("--pcap")),
    known(b'P', "pid", 1, Meaning::Pid),
    known(b'm', "mtu", 1, Meaning::Mtu),
    known(b'a', "address", 1, Meaning::Address),
    known(b'n', "netmask", 1, Meaning::Netmask),
    known(0, "ns-mac-addr", 1, Same("--mac")),
    known(b'g', "gateway", 1, Same("--gateway")),
    known(b'i', "interface", 1, Meaning::Interface),
    known(b'D', "dns", 1, Meaning::Dns),
    known(0, "dns-host", 1, Meaning::Dns),
    known(0, "dns-forward", 1, Meaning::DnsForward),
    known(0, "map-host-loopback", 1, Meaning::MapHostLoopback),
    known(0, "map-guest-addr", 1, Meaning::MapGuestAddress),
    known(0, "no-map-gw", 0, Meaning::NoMapGateway),
    known(b'4', "ipv4-only", 0, Meaning::Ipv4Only),
    known(b'6', "ipv6-only", 0, Meaning::Ipv6Only),
    known(b't', "tcp-ports", 1, Ports("--tcp-ports")),
    known(b'u', "udp-ports", 1, Ports("--udp-ports")),
    known(b'T', "tcp-ns", 1, Ports("--host-tcp-ports")),
    known(b'U', "udp-ns", 1, Ports("--host-udp-ports")),
    known(0, "netns", 1, Meaning::Netns),
    known(0, "no-netns-quit", 0, Meaning::Stay),
    known(0, "config-net", 0, Meaning::ConfigNet),
    known(0, "userns", 1, Meaning::Userns),
    known(0, "netns-only", 0, Ignored(USERNS)),
    known(0, "no-dhcp", 0, Meaning::NoDhcp),
    known(0, "no-dhcpv6", 0, Ignored(NO_DHCP)),
    known(0, "no-ra", 0, Ignored(NO_DHCP)),
    known(0, "no-ndp", 0, Ignored("answers to neighbour discovery change nothing for others")),
    known(b'S', "search", 1, Ignored(NO_DHCP)),
    known(b'H', "hostname", 1, Ignored(NO_DHCP)),
    known(0, "fqdn", 1, Ignored(NO_DHCP)),
    known(0, "dhcp-dns", 0, Ignored(NO_DHCP)),
    known(0, "no-dhcp-dns", 0, Ignored(NO_DHCP)),
    known(0, "dhcp-search", 0, Ignored(NO_DHCP)),
    known(0, "no-dhcp-search", 0, Ignored(NO_DHCP)),
    known(0, "no-copy-routes", 0, Same("--single-route")),
    known(0, "no-copy-addrs", 0, Same("--single-address")),
    known(0, "no-splice", 0, Ignored("published ports use the interface in any case")),
    known(0, "chroot-fallback", 0, Ignored("towpath uses no chroot")),
    known(0, "host-lo-to-ns-lo", 0, Meaning::JoinLoopback),
    known(0, "splice-only", 0, Refused("use -t and -T for the ports that are needed")),
    known(b'M', "mac-addr", 1, Same("--gateway-mac")),
    known(b'o', "outbound", 1, Refused(OUTBOUND)),
    known(0, "outbound-if4", 1, Refused(OUTBOUND)),
    known(0, "outbound-if6", 1, Refused(OUTBOUND)),
    known(0, "freebind", 0, Refused("publish ports on addresses that the host has")),
    known(0, "no-tcp", 0, Refused("towpath cannot block a protocol")),
    known(0, "no-udp", 0, Refused("towpath cannot block a protocol")),
    known(0, "no-icmp", 0, Refused("towpath cannot block a protocol")),
    known(0, "runas", 1, Refused("start towpath as that user")),
    known(0, "stats", 1, Refused("use `towpath stats --watch`")),
    known(b'c', "conf-path", 1, Same("--control-socket")),
    known(0, "print-capabilities", 0, Refused(MACHINES)),
    known(b's', "socket", 1, Refused(MACHINES)),
    known(0, "socket-path", 1, Refused(MACHINES)),
    known(b'F', "fd", 1, Refused(MACHINES)),
    known(b'1', "one-off", 0, Refused(MACHINES)),
    known(0, "vhost-user", 0, Refused(MACHINES)),
    known(0, "repair-path", 1, Refused(MACHINES)),
    known(0, "migrate-exit", 0, Refused(MACHINES)),
    known(0, "migrate-no-linger", 0, Refused(MACHINES)),
];

/// Options of towpath that may be repeated.
const REPEATED: &[&str] = &["--gateway"];

/// pasta's default MTU.
const MTU: &str = "65520";

/// Options that were seen.
#[derive(Default)]
pub(super) struct Seen {
    /// Options that are passed on as they are.
    pub(super) options: Vec<OsString>,
    addresses: Vec<IpAddr>,
    prefix_len: Option<u8>,
    interface: Option<OsString>,
    mtu: Option<OsString>,
    netns: Option<OsString>,
    userns: Option<OsString>,
    pub(super) pid_file: Option<OsString>,
    pub(super) log_file: Option<OsString>,
    /// Addresses that count only if their IP version is on.
    by_family: Vec<(&'static str, IpAddr)>,
    configures: bool,
    has_no_dhcp: bool,
    pub(super) in_foreground: bool,
    joins_loopback: bool,
    has_tcp_ports: bool,
    has_udp_ports: bool,
    ipv4_only: bool,
    ipv6_only: bool,
    maps_no_gateway: bool,
    stays: bool,
    pub(super) text: Option<String>,
}

/// Translates the arguments behind the program's name.
pub(super) fn translate(arguments: &[OsString]) -> anyhow::Result<Translated> {
    let mut seen = Seen::default();
    let rest = getopt::parse(KNOWN, arguments, |given| -> anyhow::Result<()> {
        // What follows --help and --version does not matter.
        if seen.text.is_some() { Ok(()) } else { seen.take(given) }
    })?;
    if let Some(text) = seen.text {
        return Ok(Translated::Text(text));
    }
    seen.command(rest).map(Translated::Command)
}

impl Seen {
    pub(super) fn take(&mut self, given: Given<Meaning>) -> anyhow::Result<()> {
        let Given { known, value } = given;
        let option = known.long;
        match known.meaning {
            Same(name) => {
                // The last one counts, except where several add up.
                if !REPEATED.contains(&name) {
                    self.options.retain(|before| !is_option(before, name));
                }
                self.pass_on(name, known.takes.then_some(value));
            }
            Ports(name) => self.take_ports(name, value),
            Ignored(_) => {}
            Refused(instead) => bail!("option --{option} is not supported; {instead}"),
            Meaning::Address => self.take_address(&text(option, &value)?)?,
            Meaning::Netmask => self.prefix_len = Some(prefix_len(&text(option, &value)?)?),
            Meaning::ConfigNet => self.configures = true,
            Meaning::NoDhcp => self.has_no_dhcp = true,
            Meaning::Foreground => self.in_foreground = true,
            Meaning::JoinLoopback => self.joins_loopback = true,
            Meaning::Interface => self.interface = Some(value),
            Meaning::Ipv4Only => self.ipv4_only = true,
            Meaning::Ipv6Only => self.ipv6_only = true,
            Meaning::LogFile => self.log_file = Some(value),
            Meaning::Pid => self.pid_file = Some(value),
            Meaning::Mtu => self.mtu = Some(value),
            Meaning::Netns => self.netns = Some(value),
            Meaning::Userns => self.userns = Some(value),
            Meaning::NoMapGateway => self.maps_no_gateway = true,
            Meaning::Stay => self.stays = true,
            Meaning::Dns if value == "none" => {
                bail!("option --{option} none is not supported; leave out --dns-forward instead")
            }
            Meaning::Dns => self.pass_on("--dns", Some(value)),
            Meaning::DnsForward => self.take_mapped(option, "--dns-forward", &value)?,
            Meaning::MapGuestAddress => self.take_mapped(option, "--map-host", &value)?,
            Meaning::MapHostLoopback => {
                // It takes the place of the gateway.
                self.maps_no_gateway = true;
                self.take_mapped(option, "--map-host-loopback", &value)?;
            }
            Meaning::Help => self.text = Some(help()),
            Meaning::Version => {
                self.text = Some(format!("pasta (towpath {})\n", env!("CARGO_PKG_VERSION")));
            }
        }
        Ok(())
    }

    pub(super) fn pass_on(&mut self, option: &str, value: Option<OsString>) {
        match value {
            // As one argument, so that a value may begin with a dash.
            Some(value) => {
                let mut both = OsString::from(option);
                both.push("=");
                both.push(value);
                self.options.push(both);
            }
            None => self.options.push(option.into()),
        }
    }

    /// `none` is towpath's default.
    fn take_ports(&mut self, option: &str, value: OsString) {
        self.has_tcp_ports |= option == "--tcp-ports";
        self.has_udp_ports |= option == "--udp-ports";
        if value != "none" {
            self.pass_on(option, Some(value));
        }
    }

    fn take_address(&mut self, text: &str) -> anyhow::Result<()> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(prefix_len(length)?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| {
            anyhow!(
                "option --address: '{text}' is not an IP address; expected for example 10.0.0.2"
            )
        })?;
        self.prefix_len = length.or(self.prefix_len);
        self.addresses.push(address);
        Ok(())
    }

    /// Takes an address that is mapped; `none` maps nothing.
    fn take_mapped(
        &mut self,
        option: &str,
        name: &'static str,
        value: &OsString,
    ) -> anyhow::Result<()> {
        let value = text(option, value)?;
        if value == "none" {
            return Ok(());
        }
        let address = value.parse().map_err(|_| {
            anyhow!("option --{option}: '{value}' is not an IP address; expected one or 'none'")
        })?;
        self.by_family.push((name, address));
        Ok(())
    }

    /// Returns towpath's command line; `rest` is a PID or a command.
    fn command(mut self, rest: &[OsString]) -> anyhow::Result<Vec<OsString>> {
        // pasta's default.
        if !self.has_tcp_ports {
            self.pass_on("--tcp-ports", Some("auto".into()));
        }
        if !self.has_udp_ports {
            self.pass_on("--udp-ports", Some("auto".into()));
        }
        if self.joins_loopback && self.options.iter().any(|given| is_option(given, "--tcp-ports")) {
            self.pass_on("--join-loopback", None);
        }
        let pid = match rest {
            [only] => only.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit())),
            _ => None,
        };
        let pid = pid.filter(|text| !text.is_empty());
        if let (Some(_), [first, ..]) = (&self.netns, rest) {
            bail!("option --netns excludes '{}': give a namespace or a command", first.display());
        }
        let attaches = self.netns.is_some() || pid.is_some();
        let mut command = match attaches {
            true => vec![OsString::from("attach")],
            false => vec!["run".into(), "--map-root".into()],
        };
        self.add_link(&mut command)?;
        self.add_process(&mut command, attaches)?;
        command.append(&mut self.options);
        match (self.netns, pid) {
            (Some(netns), _) => command.push(netns_path(netns)),
            (None, Some(pid)) => command.push(pid.into()),
            (None, None) => {
                command.push("--".into());
                command.extend_from_slice(rest);
            }
        }
        Ok(command)
    }

    /// Adds the options about interface and addresses.
    pub(super) fn add_link(&mut self, command: &mut Vec<OsString>) -> anyhow::Result<()> {
        if self.ipv4_only && self.ipv6_only {
            bail!("options --ipv4-only and --ipv6-only exclude each other; give one");
        }
        match self.interface.take() {
            Some(name) => {
                let mut option = OsString::from("--copy-host=");
                option.push(name);
                command.push(option);
            }
            None => command.push("--copy-host".into()),
        }
        let mut mtu = OsString::from("--mtu=");
        mtu.push(self.mtu.take().unwrap_or(MTU.into()));
        command.push(mtu);
        let v4 = self.addresses.iter().filter(|address| address.is_ipv4()).count();
        if self.prefix_len.is_some() && v4 == 0 && self.addresses.is_empty() {
            bail!("option --netmask needs --address, whose network it describes");
        }
        for address in &self.addresses {
            let bits = if address.is_ipv4() || v4 == 0 { self.prefix_len } else { None };
            let address = match bits {
                Some(bits) => format!("--address={address}/{bits}"),
                None => format!("--address={address}"),
            };
            command.push(address.into());
        }
        for (option, address) in &self.by_family {
            let is_off = if address.is_ipv4() { self.ipv6_only } else { self.ipv4_only };
            if !is_off {
                command.push(format!("{option}={address}").into());
            }
        }
        if self.ipv4_only {
            command.push("--ipv4-only".into());
        }
        if self.ipv6_only {
            command.push("--ipv6-only".into());
        }
        if !self.maps_no_gateway {
            command.push("--map-gateway".into());
        }
        Ok(())
    }

    /// Adds the options about the process.
    fn add_process(&mut self, command: &mut Vec<OsString>, attaches: bool) -> anyhow::Result<()> {
        if !attaches {
            let of_attach =
                [("pid", &self.pid_file), ("log-file", &self.log_file), ("userns", &self.userns)];
            if let Some((option, _)) = of_attach.iter().find(|(_, value)| value.is_some()) {
                bail!("option --{option} is not supported with a command; give a PID or --netns");
            }
            return Ok(());
        }
        if let Some(userns) = self.userns.take() {
            let mut option = OsString::from("--userns=");
            option.push(userns);
            command.push(option);
        }
        // Without DHCP, the caller configures the interface, unless it asks for that here.
        if self.has_no_dhcp && !self.configures {
            command.push("--no-config".into());
        }
        if !self.in_foreground {
            command.push("--daemon".into());
        }
        if self.stays && self.netns.is_some() {
            command.push("--stay".into());
        }
        let files = [("--pid-file=", self.pid_file.take()), ("--log-file=", self.log_file.take())];
        for (option, file) in files {
            if let Some(file) = file {
                let mut option = OsString::from(option);
                option.push(file);
                command.push(option);
            }
        }
        Ok(())
    }
}

/// True if the argument is this option, with or without a value.
fn is_option(argument: &OsString, name: &str) -> bool {
    let rest = argument.as_encoded_bytes().strip_prefix(name.as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"="))
}

/// A name means a file as `ip netns` makes it.
fn netns_path(netns: OsString) -> OsString {
    let mut option = OsString::from("--netns=");
    if !netns.as_encoded_bytes().contains(&b'/') {
        option.push("/run/netns/");
    }
    option.push(netns);
    option
}

pub(super) fn text(option: &str, value: &OsString) -> anyhow::Result<String> {
    let text = value.to_str().map(str::to_owned);
    text.with_context(|| format!("option --{option}: '{}' is not valid", value.display()))
}

/// Parses a netmask: a number of bits, or the mask itself.
fn prefix_len(text: &str) -> anyhow::Result<u8> {
    let wrong = || {
        anyhow!(
            "option --netmask: '{text}' is not a netmask; expected for example 24 or \
                 255.255.255.0"
        )
    };
    if let Ok(mask) = text.parse::<Ipv4Addr>() {
        let bits = mask.to_bits();
        let is_mask = bits.leading_ones() + bits.trailing_zeros() == u32::BITS;
        return u8::try_from(bits.leading_ones()).ok().filter(|_| is_mask).ok_or_else(wrong);
    }
    let bits = text.parse().ok().filter(|bits| (1..=128).contains(bits));
    bits.ok_or_else(wrong)
}

fn help() -> String {
    let mut text = String::from(
        "Usage: pasta [OPTION]... [COMMAND [ARG]...]\n\
         \x20      pasta [OPTION]... PID\n\
         \x20      pasta [OPTION]... --netns PATH|NAME\n\n\
         This is towpath, which acts as pasta because it was started by that name.\n\
         `towpath as --explain pasta ...` shows what it makes of these options:\n\n",
    );
    KNOWN.iter().for_each(|known| text.push_str(&help_line(known, known.meaning)));
    text
}

/// Returns the line of the help text about an option, which is empty for one that is refused.
pub(super) fn help_line<T>(known: &Known<T>, meaning: Meaning) -> String {
    let note = match meaning {
        Refused(_) => return String::new(),
        Ignored(reason) => format!("    no effect: {reason}"),
        _ => String::new(),
    };
    let short = match known.short {
        0 => "    ".to_owned(),
        letter => format!("-{}, ", char::from(letter)),
    };
    let value = if known.takes { " VALUE" } else { "" };
    format!("  {short}--{}{value}{note}\n", known.long)
}

#[cfg(test)]
mod tests;
