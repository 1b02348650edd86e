//! Translates the command line into a checked configuration.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use clap::CommandFactory;
use clap::error::ErrorKind;
use towpath_gateway::config::{CaptureFile, Config, Subnet4, Subnet6};
use towpath_gateway::publish::{self, JoinedPort, Protocol, Publish};
use towpath_gateway::resolv;
use towpath_io::namespace::listening::ephemeral_ports;

use crate::config::args::{Arguments, GatewayArguments, NetworkArguments, Workers};
use crate::config::{egress, hints, link, routes};
use crate::exit;
use crate::messages::Messages;

/// The host's file of resolvers.
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The word for ports on which programs inside listen, or those of the host.
const AUTO: &str = "auto";
/// What to do if there is no resolver.
pub(crate) const NAME_A_RESOLVER: &str = "add one there, or use --dns";

/// Returns which messages to print.
pub(crate) fn messages(arguments: &GatewayArguments) -> Messages {
    match (arguments.quiet, arguments.verbose) {
        (true, _) => Messages::Quiet,
        (false, true) => Messages::Verbose,
        (false, false) => Messages::Normal,
    }
}

/// Returns the configuration that the arguments describe. Ends the process with code 2 if they are
/// not valid; returns an error if the capture file cannot be made.
pub(crate) fn config(arguments: &NetworkArguments) -> anyhow::Result<Config> {
    let mut config = Config {
        publish: publish(arguments).unwrap_or_else(|error| usage_error(&error)),
        joined: joined(&arguments.host_tcp_ports, "--host-tcp-ports")
            .unwrap_or_else(|error| usage_error(&error)),
        joined_udp: joined(&arguments.host_udp_ports, "--host-udp-ports")
            .unwrap_or_else(|error| usage_error(&error)),
        mirrors_host_udp: arguments.host_udp_ports.iter().any(|spec| spec == AUTO),
        mirrors_host: arguments.host_tcp_ports.iter().any(|spec| spec == AUTO),
        join_published: arguments.join_published || arguments.join_loopback,
        join_loopback: arguments.join_loopback,
        followed: followed(arguments),
        ..describe(&arguments.gateway)
    };
    config.workers = match arguments.workers {
        Workers::Auto => config.workers_for_a_program(),
        Workers::Most(most) => most,
    };
    let copied = link::apply(&mut config, &arguments.link, messages(&arguments.gateway))
        .unwrap_or_else(|error| usage_error(&error));
    routes::copy(&mut config, &arguments.link, messages(&arguments.gateway))
        .unwrap_or_else(|error| usage_error(&error));
    config.program_mac = arguments.interface.mac.unwrap_or(config.program_mac);
    if let Some(name) = arguments.interface.ifname.clone().or(copied) {
        config.interface = name;
    }
    check(&mut config, &arguments.gateway);
    config.egress = egress::enforcer(&arguments.gateway.egress, None, false)
        .unwrap_or_else(|error| usage_error(&error));
    look_for_resolvers(&config, messages(&arguments.gateway));
    if let Some(path) = &arguments.pcap {
        let file = Arc::new(create_capture(path)?);
        config.capture = Some(CaptureFile { file, path: path.clone() });
    }
    Ok(config)
}

/// Checks the configuration. Ends the process with code 2 if it is not valid.
pub(crate) fn check(config: &mut Config, arguments: &GatewayArguments) {
    match config.check() {
        Ok(Some(notice)) => messages(arguments).notice(notice),
        Ok(None) => {}
        Err(error) => usage_error(&error.into()),
    }
}

/// Warns the user if no resolver is configured, so that names cannot be resolved.
pub(crate) fn look_for_resolvers(config: &Config, messages: Messages) {
    if config.dns().is_some() && config.resolvers.is_none() && host_resolvers().is_empty() {
        messages.notice(format_args!(
            "{RESOLV_CONF} lists no resolver, so names cannot be resolved; {NAME_A_RESOLVER}"
        ));
    }
}

/// Returns the resolvers that the host's file names; none if it cannot be read.
pub(crate) fn host_resolvers() -> Vec<SocketAddr> {
    let text = fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    // The index does not matter: whether an interface exists is checked when it is used.
    resolv::name_servers(&text, |_| Some(1))
}

fn publish(arguments: &NetworkArguments) -> anyhow::Result<Vec<Publish>> {
    let ephemeral = ephemeral_ports();
    let [tcp, udp] = [&arguments.tcp_ports, &arguments.udp_ports]
        .map(|specs| specs.iter().filter(|spec| *spec != AUTO).cloned().collect::<Vec<String>>());
    let mut publish =
        publish::parse(Protocol::Tcp, &tcp, &ephemeral).context("option --tcp-ports")?;
    publish.extend(publish::parse(Protocol::Udp, &udp, &ephemeral).context("option --udp-ports")?);
    Ok(publish)
}

/// Returns the protocols for which the ports are those on which programs inside listen.
fn followed(arguments: &NetworkArguments) -> Vec<Protocol> {
    let all = [(Protocol::Tcp, &arguments.tcp_ports), (Protocol::Udp, &arguments.udp_ports)];
    let is_followed = |specs: &[String]| specs.iter().any(|spec| spec == AUTO);
    all.iter().filter(|(_, specs)| is_followed(specs)).map(|(protocol, _)| *protocol).collect()
}

fn joined(specs: &[String], option: &str) -> anyhow::Result<Vec<JoinedPort>> {
    let specs: Vec<String> = specs.iter().filter(|spec| *spec != AUTO).cloned().collect();
    publish::parse_joined(&specs).with_context(|| format!("option {option}"))
}

/// Returns the configuration of a gateway alone, unchecked.
pub(crate) fn describe(arguments: &GatewayArguments) -> Config {
    let defaults = Config::default();
    let ipv4 = arguments.subnet.unwrap_or(Subnet4::DEFAULT).config();
    let ipv6 = arguments.subnet6.unwrap_or(Subnet6::DEFAULT).config();
    Config {
        mtu: arguments.mtu.unwrap_or(defaults.mtu),
        ipv4: (!arguments.ipv6_only).then_some(ipv4),
        ipv6: (!arguments.ipv4_only).then_some(ipv6),
        host_loopback: arguments.map_host_loopback.clone(),
        resolvers: (!arguments.dns.is_empty()).then(|| arguments.dns.clone()),
        gateway_mac: arguments.gateway_mac.unwrap_or(defaults.gateway_mac),
        memory_bytes: arguments.memory.unwrap_or(defaults.memory_bytes),
        flows_max: arguments.max_flows.unwrap_or(defaults.flows_max),
        congestion: arguments.congestion.unwrap_or(defaults.congestion),
        lend_to_host: arguments.lend_to_host.unwrap_or(defaults.lend_to_host),
        ..defaults
    }
}

/// Creates an empty capture file.
pub(crate) fn create_capture(path: &Path) -> anyhow::Result<File> {
    open_capture(path, OpenOptions::new().create(true).truncate(true))
}

/// Opens a capture file without truncating it, as the capture may still be refused; returns whether
/// the file is new.
pub(crate) fn find_capture(path: &Path) -> anyhow::Result<(File, bool)> {
    match open_capture(path, OpenOptions::new().create_new(true)) {
        Ok(file) => Ok((file, true)),
        // The file exists, or this call fails for the same reason.
        Err(_) => Ok((open_capture(path, &mut OpenOptions::new())?, false)),
    }
}

/// Opens a capture file; a new one is readable only by its user.
fn open_capture(path: &Path, options: &mut OpenOptions) -> anyhow::Result<File> {
    let opened = options.write(true).mode(0o600).open(path);
    opened.with_context(|| format!("cannot open {} for writing", path.display()))
}

/// Ends the process with code 2, after the usage of the command that was given. While towpath acts
/// as another program, the message is a line, and the code that program's.
pub(crate) fn usage_error(error: &anyhow::Error) -> ! {
    if exit::name() != crate::NAME {
        Messages::Quiet.error(format_args!("{error:#}"));
        std::process::exit(exit::failure_code(exit::USAGE).into());
    }
    let mut all = Arguments::command();
    all.build();
    let given = env::args_os().skip(1).find(|argument| all.find_subcommand(argument).is_some());
    let command = given.and_then(|name| all.find_subcommand(name).cloned());
    let mut text = format!("{error:#}");
    if let Some(hint) = hints::of_message(&text) {
        text.push_str(&format!("\n\n  tip: {hint}"));
    }
    command.unwrap_or(all).error(ErrorKind::ValueValidation, text).exit()
}
