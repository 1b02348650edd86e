//! Hints for those who know Docker, pasta, passt or slirp4netns: an error about an option of theirs
//! says which option of towpath does the same, or that there is none.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What corresponds to options of other programs.
struct Hint {
    /// The options, as they are typed.
    foreign: &'static [&'static str],
    /// What to use instead.
    text: &'static str,
    /// Options of towpath that the text names, each with its command. A test looks for them.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests compare them with the definitions"))]
    named: &'static [(&'static str, &'static str)],
}

const fn hint(
    foreign: &'static [&'static str],
    named: &'static [(&'static str, &'static str)],
    text: &'static str,
) -> Hint {
    Hint { foreign, text, named }
}

const HINTS: &[Hint] = &[
    // Ports.
    hint(
        &["-p", "--publish"],
        &[("run", "--tcp-ports"), ("run", "--udp-ports"), ("run", "--pcap")],
        "for Docker's -p 8080:80 use --tcp-ports 8080:80 (-t), for 53:53/udp --udp-ports 53 (-u); \
         an address goes before a slash: -t 127.0.0.1/8080:80; for pasta's -p FILE use --pcap FILE",
    ),
    hint(
        &["-P", "--publish-all"],
        &[("run", "--tcp-ports"), ("run", "--udp-ports"), ("attach", "--pid-file")],
        "for Docker's -P use --tcp-ports all and --udp-ports all; for pasta's -P FILE use `towpath \
         attach --pid-file FILE`",
    ),
    hint(
        &["--expose"],
        &[("run", "--tcp-ports")],
        "nothing has to be exposed; --tcp-ports publishes ports",
    ),
    hint(&["--tcp-ns"], &[("run", "--host-tcp-ports")], "use --host-tcp-ports (-T)"),
    hint(&["--udp-ns"], &[("run", "--host-udp-ports")], "use --host-udp-ports (-U)"),
    hint(
        &["--host-lo-to-ns-lo", "--no-splice", "--splice-only"],
        &[("run", "--join-published")],
        "connections from the host's loopback bypass the interface with --join-published",
    ),
    // Which network.
    hint(
        &["--net", "--network", "--network-alias"],
        &[("attach", "--netns")],
        "`towpath run` always makes a network of its own; to serve a container's, use `towpath \
         attach PID` or `towpath attach --netns PATH`",
    ),
    hint(
        &["--netns", "--netns-only", "--netns-type", "--target-type", "--userns", "--userns-path"],
        &[("attach", "--netns"), ("attach", "--userns")],
        "to serve a namespace that exists use `towpath attach PID` or `towpath attach --netns \
         PATH`; the user namespace that owns it is found without an option, or named by --userns",
    ),
    hint(
        &["-s", "--socket", "-F", "--fd", "-1", "--one-off", "--vhost-user"],
        &[("up", "--stream"), ("up", "--vhost-user")],
        "for passt's sockets of virtual machines use `towpath up --stream NAME=PATH` or `towpath \
         up --vhost-user NAME=PATH`; `towpath as passt` takes all options of passt",
    ),
    hint(
        &["-c", "--configure", "--config-net"],
        &[("attach", "--no-config")],
        "not needed: towpath always configures the interface, except with `towpath attach \
         --no-config`",
    ),
    hint(&["-I", "--ns-ifname"], &[("run", "--ifname")], "use --ifname NAME"),
    // Addresses.
    hint(
        &["-a", "-n", "--netmask", "-g", "--cidr", "--ip", "--ip6"],
        &[("run", "--subnet"), ("run", "--address"), ("run", "--gateway")],
        "use --address ADDR/LEN and --gateway ADDR, or --subnet, from which both follow; \
         slirp4netns's -a, its API socket, has no counterpart: see `towpath stats`",
    ),
    hint(
        &["-M", "--mac-addr", "--ns-mac-addr", "--mac-address", "--macaddress"],
        &[("run", "--mac")],
        "use --mac for the program's interface; the gateway's Ethernet address is fixed",
    ),
    hint(
        &[
            "-i",
            "--interface",
            "-o",
            "--outbound",
            "--outbound-if4",
            "--outbound-if6",
            "--outbound-addr",
            "--outbound-addr6",
        ],
        &[("run", "--tcp-ports")],
        "there is no such option: connections leave by the host's routes; published ports are \
         limited to an interface by --tcp-ports %eth0/80; for Docker's -i and -t: standard streams \
         and terminal are the program's",
    ),
    hint(
        &["--no-copy-routes", "--no-copy-addrs", "--freebind"],
        &[
            ("run", "--subnet"),
            ("run", "--copy-host"),
            ("run", "--single-address"),
            ("run", "--single-route"),
        ],
        "not needed: addresses are those of --subnet unless --copy-host is given, which copies one \
         with --single-address, and the default route alone with --single-route",
    ),
    hint(
        &["--enable-ipv6"],
        &[("run", "--ipv4-only")],
        "not needed: there is IPv6 unless --ipv4-only (-4) is given",
    ),
    // The host's loopback.
    hint(
        &["--map-gw"],
        &[("run", "--map-host-loopback")],
        "use --map-host-loopback 10.0.2.2: that address, the gateway's, leads to the host's \
         loopback",
    ),
    hint(
        &["--no-map-gw", "--disable-host-loopback"],
        &[("run", "--map-host-loopback")],
        "not needed: the host's loopback cannot be reached unless --map-host-loopback is given",
    ),
    hint(&["--map-guest-addr"], &[("run", "--map-host")], "use --map-host ADDR"),
    // Names.
    hint(
        &["-D", "--dns-host"],
        &[("run", "--dns"), ("run", "--dns-forward")],
        "use --dns ADDR for the resolver outside, and --dns-forward ADDR for its address inside",
    ),
    hint(
        &[
            "-S",
            "--search",
            "--dns-search",
            "--dns-opt",
            "--dns-option",
            "--dhcp-search",
            "--no-dhcp-search",
            "--no-dhcp-dns",
            "--dhcp-dns",
        ],
        &[("up", "--search")],
        "`towpath run` keeps search domains and options of the host's resolv.conf; for virtual \
         machines there is `towpath up --search NAME`",
    ),
    hint(&["--disable-dns"], &[("run", "--no-dns")], "use --no-dns"),
    hint(
        &["-H", "--hostname", "--fqdn", "--add-host"],
        &[("up", "--domain")],
        "there is no such option: names of the host and /etc/hosts stay; virtual machines get \
         names in the domain of `towpath up --domain NAME`",
    ),
    // Protocols.
    hint(
        &["--no-tcp", "--no-udp", "--no-icmp", "--no-ndp", "--no-ra", "--no-dhcpv6", "--no-dhcp"],
        &[("up", "--no-dhcp")],
        "there is no such option: `towpath run` sets addresses without DHCP; for virtual machines \
         there is `towpath up --no-dhcp`, which stops router advertisements, too",
    ),
    // The process.
    hint(
        &["-f", "--foreground"],
        &[("attach", "--daemon")],
        "not needed: towpath stays in the foreground without `towpath attach --daemon`",
    ),
    hint(
        &["-d", "--debug", "--trace", "--detach"],
        &[("run", "--verbose"), ("attach", "--daemon")],
        "for debugging use --verbose (-v), for the background `towpath attach --daemon`",
    ),
    hint(
        &["-l", "--log-size", "--stderr"],
        &[("attach", "--log-file")],
        "messages go to standard error, or to the file of `towpath attach --log-file`",
    ),
    hint(&["-r"], &[("run", "--ready-fd")], "use --ready-fd N"),
    hint(
        &["-e", "--exit-fd"],
        &[("attach", "--exit-fd")],
        "`towpath run` ends with its program, `towpath attach` also by --exit-fd N; environment \
         variables are passed on",
    ),
    hint(
        &["--pid"],
        &[("run", "--ready-fd"), ("attach", "--pid-file")],
        "use `towpath attach --pid-file FILE`; --ready-fd N reports when towpath serves",
    ),
    hint(
        &["--api-socket"],
        &[("attach", "--port-socket")],
        "use `towpath attach --port-socket PATH`; `towpath publish` changes published ports of \
         every towpath while it runs",
    ),
    hint(
        &["--enable-sandbox", "--enable-seccomp", "--runas", "--chroot-fallback"],
        &[("run", "--no-confinement")],
        "not needed: towpath confines itself, with seccomp and Landlock, unless --no-confinement \
         is given",
    ),
    hint(
        &["--rm", "--name", "--volume", "--env", "--privileged", "--cap-add", "--device", "--user"],
        &[("run", "--map-root")],
        "towpath runs programs of this system, not images: files, user and environment are yours; \
         --map-root shows you as root inside",
    ),
];

/// Adds a hint to an error of the command line, if an option of another program caused it.
pub(crate) fn add(mut error: clap::Error) -> clap::Error {
    let cause = match error.kind() {
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        _ => return error,
    };
    let Some(ContextValue::String(typed)) = error.get(cause) else { return error };
    let tip = match cause {
        ContextKind::InvalidArg => of_option(typed).map(|hint| hint.text),
        _ => of_subcommand(typed),
    };
    let Some(tip) = tip else { return error };
    // Similar options would only distract from it.
    error.remove(ContextKind::SuggestedArg);
    let tip = ContextValue::StyledStrs(vec![StyledStr::from(tip)]);
    error.insert(ContextKind::Suggested, tip);
    error
}

/// Returns a hint about a value in an error message of towpath's own.
pub(crate) fn of_message(message: &str) -> Option<&'static str> {
    VALUES.iter().find(|(part, _)| message.contains(part)).map(|(_, hint)| *hint)
}

/// Parts of error messages, and hints about the values that they are about.
const VALUES: [(&str, &str); 2] = [
    ("/tcp'", "Docker's suffix /tcp is not needed: -t publishes ports of TCP"),
    ("/udp'", "for Docker's suffix /udp use -u, which publishes ports of UDP"),
];

fn of_option(typed: &str) -> Option<&'static Hint> {
    let name = typed.split('=').next().unwrap_or(typed);
    HINTS.iter().find(|hint| hint.foreign.contains(&name))
}

/// Returns a hint about a word in the place of a command.
fn of_subcommand(typed: &str) -> Option<&'static str> {
    let is_number = !typed.is_empty() && typed.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some("to serve the network namespace of a process use `towpath attach PID`")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::config::args::Arguments;

    /// Goal: each option that a hint names exists, and the hint's text has it.
    #[test]
    fn named_options_exist() {
        let command = Arguments::command();
        for hint in HINTS {
            for (action, option) in hint.named {
                let found = command.find_subcommand(action).expect("a command");
                let is_there = found.get_arguments().any(|argument| {
                    argument.get_long().is_some_and(|long| format!("--{long}") == *option)
                });
                assert!(is_there, "{action} has no {option}");
                assert!(hint.text.contains(option), "{option} is not in: {}", hint.text);
            }
        }
    }

    /// Goal: a hint's text names no option of towpath that is not checked.
    #[test]
    fn texts_name_no_other_options() {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        for hint in HINTS {
            let words = hint.text.split(|c: char| !is_part(c));
            for word in words.filter(|word| word.starts_with("--")) {
                let is_named = hint.named.iter().any(|(_, option)| *option == word);
                assert!(is_named, "{word} is not checked: {}", hint.text);
            }
        }
    }

    /// Goal: commands that the texts name exist.
    #[test]
    fn named_commands_exist() {
        let command = Arguments::command();
        let texts = HINTS.iter().map(|hint| hint.text);
        let texts = texts.chain(VALUES.iter().map(|(_, text)| *text)).chain(of_subcommand("1"));
        for text in texts {
            for after in text.split("`towpath ").skip(1) {
                let name = after.split([' ', '`']).next().unwrap_or_default();
                assert!(command.find_subcommand(name).is_some(), "{name}: {text}");
            }
        }
    }

    /// Goal: each foreign option is refused by `run`, with its hint. None has two hints.
    #[test]
    fn foreign_options_lead_to_their_hints() {
        let mut seen = HashSet::new();
        for hint in HINTS {
            for foreign in hint.foreign {
                assert!(seen.insert(foreign), "{foreign} is twice in the table");
                let refused = Arguments::try_parse_from(["towpath", "run", foreign]);
                let error = add(refused.expect_err(foreign)).render().to_string();
                let tip = format!("tip: {}", hint.text);
                assert!(error.contains(&tip), "{foreign}: {error}");
                assert!(!error.contains("similar"), "{foreign}: {error}");
            }
        }
    }

    #[test]
    fn values_and_commands() {
        let refused = |arguments: &[&str]| {
            let error = Arguments::try_parse_from(arguments).expect_err("refused");
            add(error).render().to_string()
        };
        assert!(refused(&["towpath", "--network=host"]).contains("tip: `towpath run` always"));
        assert!(refused(&["towpath", "run", "-p8080:80"]).contains("--tcp-ports 8080:80"));
        assert!(refused(&["towpath", "4711", "tap0"]).contains("`towpath attach PID`"));
        assert!(!refused(&["towpath", "no-such"]).contains("attach PID"));
        let unknown = refused(&["towpath", "run", "--verbos"]);
        assert!(unknown.contains("a similar argument exists: '--verbose'"), "{unknown}");
        assert!(of_message("port specification '80:80/udp': '80/udp' is not").is_some());
        assert!(of_message("port specification '80'").is_none());
    }
}
