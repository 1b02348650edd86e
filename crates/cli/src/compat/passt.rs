//! passt(1): its options, and the command lines of towpath that do the same.
//!
//! A command line becomes `towpath up` without a file, with one port, [`PORT`], for the machine.
//! Options that pasta has with the same meaning are taken from its table. An option without an
//! effect here is accepted only if nothing is lost by it; all others are refused by name.

use std::ffi::OsString;
use std::sync::LazyLock;

use anyhow::bail;

use super::Translated;
use super::getopt::{self, Given, Known};
use super::pasta::{self, Meaning as Shared, help_line, text};

/// What an option means.
#[derive(Clone, Copy, Debug)]
enum Meaning {
    /// What it means for pasta.
    AsPasta(&'static Known<Shared>),
    /// It is passed on under this name.
    Flag(&'static str),
    Capabilities,
    Dns,
    Fd,
    FullName,
    Help,
    HostName,
    NoSearch,
    OneOff,
    Ports(&'static str),
    Search,
    Socket,
    Version,
    VhostUser,
    /// It has no effect, for this reason.
    Ignored(&'static str),
    /// It is refused: this is what to do instead.
    Refused(&'static str),
}

use Meaning::{AsPasta, Flag, Ignored, Ports, Refused};

const fn known(short: u8, long: &'static str, takes: u8, meaning: Meaning) -> Known<Meaning> {
    Known { short, long, takes: takes != 0, meaning }
}

/// Why options about what DHCP gives by default have no effect.
const BY_DEFAULT: &str = "this is the default";
/// Why migration needs no option.
const MIGRATION: &str = "connections do not move with a machine; towpath has no migration of them";

/// Options that pasta lacks, or that mean something else there.
const OWN: &[Known<Meaning>] = &[
    known(b'h', "help", 0, Meaning::Help),
    known(0, "version", 0, Meaning::Version),
    known(b's', "socket", 1, Meaning::Socket),
    known(0, "socket-path", 1, Meaning::Socket),
    known(b'F', "fd", 1, Meaning::Fd),
    known(b'1', "one-off", 0, Meaning::OneOff),
    known(0, "vhost-user", 0, Meaning::VhostUser),
    known(0, "print-capabilities", 0, Meaning::Capabilities),
    known(b't', "tcp-ports", 1, Ports("--tcp-ports")),
    known(b'u', "udp-ports", 1, Ports("--udp-ports")),
    known(b'D', "dns", 1, Meaning::Dns),
    known(b'S', "search", 1, Meaning::Search),
    known(b'H', "hostname", 1, Meaning::HostName),
    known(0, "fqdn", 1, Meaning::FullName),
    known(0, "no-dhcp", 0, Flag("--no-dhcpv4")),
    known(0, "no-dhcpv6", 0, Flag("--no-dhcpv6")),
    known(0, "no-ra", 0, Flag("--no-ra")),
    known(0, "no-dhcp-dns", 0, Flag("--no-dhcp-dns")),
    known(0, "no-dhcp-search", 0, Meaning::NoSearch),
    known(0, "dhcp-dns", 0, Ignored(BY_DEFAULT)),
    known(0, "dhcp-search", 0, Ignored(BY_DEFAULT)),
    known(b'p', "pcap", 1, Refused("use `towpath capture vm --write FILE`")),
    known(b'c', "conf-path", 1, Refused("use `towpath publish` to change ports")),
    known(0, "repair-path", 1, Refused(MIGRATION)),
    known(0, "migrate-exit", 0, Refused(MIGRATION)),
    known(0, "migrate-no-linger", 0, Refused(MIGRATION)),
];

/// Options of pasta about namespaces, which passt lacks.
const OF_NAMESPACES: &[&str] = &[
    "config-net",
    "host-lo-to-ns-lo",
    "netns",
    "netns-only",
    "no-copy-addrs",
    "no-copy-routes",
    "no-netns-quit",
    "no-splice",
    "ns-ifname",
    "ns-mac-addr",
    "splice-only",
    "tcp-ns",
    "udp-ns",
    "userns",
];

/// All options.
static KNOWN: LazyLock<Vec<Known<Meaning>>> = LazyLock::new(|| {
    let is_own = |name: &str| OWN.iter().any(|own| own.long == name);
    let shared = pasta::KNOWN
        .iter()
        .filter(|shared| !OF_NAMESPACES.contains(&shared.long) && !is_own(shared.long));
    let shared = shared.map(|shared| {
        let Known { short, long, takes, .. } = *shared;
        Known { short, long, takes, meaning: AsPasta(shared) }
    });
    OWN.iter().copied().chain(shared).collect()
});

/// The name of the machine's port.
const PORT: &str = "vm";
/// The socket if none is given; `%i` is a number that is free.
const SOCKET: &str = "/tmp/passt_%i.socket";
/// The answer to --print-capabilities, as QEMU's vhost-user back ends give it.
const CAPABILITIES: &str = "{\n  \"type\": \"net\"\n}\n";

/// Options that were seen.
#[derive(Default)]
struct Seen {
    /// Those of pasta, and what is passed on.
    shared: pasta::Seen,
    socket: Option<OsString>,
    fd: Option<OsString>,
    /// Name and domain of the machine.
    name: Option<String>,
    domain: Option<String>,
    search: Vec<String>,
    has_no_search: bool,
    is_one_off: bool,
    is_vhost_user: bool,
}

/// Translates the arguments behind the program's name.
pub(super) fn translate(arguments: &[OsString]) -> anyhow::Result<Translated> {
    let mut seen = Seen::default();
    let rest = getopt::parse(&KNOWN, arguments, |given| -> anyhow::Result<()> {
        // What follows --help and --version does not matter.
        if seen.shared.text.is_some() { Ok(()) } else { seen.take(given) }
    })?;
    if let Some(text) = seen.shared.text {
        return Ok(Translated::Text(text));
    }
    if let [first, ..] = rest {
        bail!("unexpected argument '{}'; expected options only", first.display());
    }
    seen.command().map(Translated::Command)
}

impl Seen {
    fn take(&mut self, given: Given<Meaning>) -> anyhow::Result<()> {
        let Given { known, value } = given;
        let option = known.long;
        match known.meaning {
            AsPasta(known) => return self.shared.take(Given { known, value }),
            Meaning::NoSearch => self.has_no_search = true,
            Flag(name) => self.flag(name),
            Ports(_) if value == "none" => {}
            Ports(name) => {
                let mut published = OsString::from(format!("{PORT}="));
                published.push(value);
                self.shared.pass_on(name, Some(published));
            }
            Ignored(_) => {}
            Refused(instead) => bail!("option --{option} is not supported; {instead}"),
            Meaning::Dns if value == "none" => self.flag("--no-dhcp-dns"),
            Meaning::Dns => self.shared.pass_on("--dns", Some(value)),
            Meaning::Search => self.take_search(&text(option, &value)?),
            Meaning::HostName => self.take_name(&text(option, &value)?),
            Meaning::FullName => match text(option, &value)?.split_once('.') {
                Some((name, domain)) if !name.is_empty() && !domain.is_empty() => {
                    self.domain = Some(domain.to_owned());
                    self.name.get_or_insert_with(|| name.to_owned());
                }
                _ => bail!(
                    "option --fqdn: '{}' has no domain; expected for example vm.example.org",
                    value.display()
                ),
            },
            Meaning::Socket => self.socket = Some(value),
            Meaning::Fd => {
                let number = text(option, &value)?.parse::<i32>().ok();
                let number = number.filter(|number| *number > 2).ok_or_else(|| {
                    anyhow::anyhow!(
                        "option --fd: '{}' is not a file descriptor; expected a number from 3",
                        value.display()
                    )
                })?;
                self.fd = Some(number.to_string().into());
            }
            Meaning::OneOff => self.is_one_off = true,
            Meaning::VhostUser => self.is_vhost_user = true,
            Meaning::Capabilities => self.shared.text = Some(CAPABILITIES.to_owned()),
            Meaning::Help => self.shared.text = Some(help()),
            Meaning::Version => {
                self.shared.text = Some(format!("passt (towpath {})\n", env!("CARGO_PKG_VERSION")));
            }
        }
        Ok(())
    }

    /// Passes on an option without a value, once.
    fn flag(&mut self, name: &'static str) {
        if !self.has(name) {
            self.shared.pass_on(name, None);
        }
    }

    fn has(&self, name: &str) -> bool {
        self.shared.options.iter().any(|given| given == name)
    }

    /// Takes domains that are separated by spaces; no domain, or `none`, removes all.
    fn take_search(&mut self, domains: &str) {
        if domains == "none" || domains.trim().is_empty() {
            self.has_no_search = true;
        } else {
            self.search.extend(domains.split_whitespace().map(str::to_owned));
        }
    }

    /// A name with dots has a domain.
    fn take_name(&mut self, name: &str) {
        let (name, domain) = name.split_once('.').map_or((name, None), |(n, d)| (n, Some(d)));
        self.name = Some(name.to_owned());
        if let Some(domain) = domain {
            self.domain.get_or_insert_with(|| domain.to_owned());
        }
    }

    /// Returns towpath's command line.
    fn command(mut self) -> anyhow::Result<Vec<OsString>> {
        let mut command = vec![OsString::from("up"), self.attachment()?];
        if self.is_one_off || self.fd.is_some() {
            command.push("--one-off".into());
        }
        self.shared.add_link(&mut command)?;
        if let Some(name) = &self.name {
            command.push(format!("--lease=port={PORT},name={name}").into());
        }
        if let Some(domain) = &self.domain {
            command.push(format!("--domain={domain}").into());
        }
        match self.has_no_search {
            true => command.push("--no-dhcp-search".into()),
            false => {
                command.extend(self.search.iter().map(|name| format!("--search={name}").into()));
            }
        }
        if !self.has("--quiet") {
            command.push("--print-addresses".into());
        }
        if !self.shared.in_foreground {
            command.push("--daemon".into());
        }
        let files = [
            ("--pid-file=", self.shared.pid_file.take()),
            ("--log-file=", self.shared.log_file.take()),
        ];
        for (option, file) in files {
            if let Some(file) = file {
                let mut option = OsString::from(option);
                option.push(file);
                command.push(option);
            }
        }
        command.append(&mut self.shared.options);
        Ok(command)
    }

    /// Returns the option that makes the machine's port.
    fn attachment(&self) -> anyhow::Result<OsString> {
        let (option, value) = match (&self.fd, &self.socket) {
            (Some(_), Some(_)) => bail!("options --fd and --socket exclude each other; give one"),
            (Some(fd), None) if self.is_vhost_user => ("--vhost-user-fd", fd.clone()),
            (Some(fd), None) => ("--stream-fd", fd.clone()),
            (None, socket) => {
                let option = if self.is_vhost_user { "--vhost-user" } else { "--stream" };
                (option, socket.clone().unwrap_or(SOCKET.into()))
            }
        };
        let mut attachment = OsString::from(format!("{option}={PORT}="));
        attachment.push(value);
        Ok(attachment)
    }
}

fn help() -> String {
    let mut text = String::from(
        "Usage: passt [OPTION]...\n\n\
         This is towpath, which acts as passt because it was started by that name.\n\
         `towpath as --explain passt ...` shows what it makes of these options:\n\n",
    );
    for known in KNOWN.iter() {
        text.push_str(&help_line(
            known,
            match known.meaning {
                AsPasta(shared) => shared.meaning,
                Refused(instead) => Shared::Refused(instead),
                Ignored(reason) => Shared::Ignored(reason),
                _ => Shared::Foreground,
            },
        ));
    }
    text
}

#[cfg(test)]
mod tests;
