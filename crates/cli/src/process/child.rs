//! The child's side: everything that happens inside of the program's namespaces.
//!
//! The child reports errors to the user itself, and exits with the final exit code; the parent
//! passes that on.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use rustix::io::Errno;
use towpath_gateway::config::Config;
use towpath_gateway::publish::Protocol;
use towpath_io::mount::{self, MountError};
use towpath_io::namespace::channel::{Channel, Message};
use towpath_io::namespace::enter::{NetworkNamespace, UserNamespace};
use towpath_io::namespace::init::{self, InitError};
use towpath_io::namespace::listening::{self, Reach, Wanted};
use towpath_io::namespace::mirror::{self, HostTables};
use towpath_io::namespace::scratch::ScratchNetwork;
use towpath_io::namespace::signals::Signals;
use towpath_io::namespace::sockets;
use towpath_io::namespace::{self, Configured, Isolation, die_with_parent, relax_network_limits};
use towpath_io::native::{calls, socket};
use towpath_io::process_sys::{Forked, Inherited};
use towpath_io::socket::{TcpListener, UdpSocket};
use towpath_io::tap::{self, Features, Reason, SelfTest, Tap};

use crate::config::settings::RESOLV_CONF;
use crate::exit::{self, Ending, Failure};
use crate::messages::Messages;
use crate::process::serve::features_to_bits;
use towpath_gateway::resolv;

/// The message if the limits of the new network namespace cannot be relaxed.
pub(crate) const LIMITS_STAY: &str =
    "cannot write /proc/sys: inside, ports below 1024 and ping need root";

/// The parameters of the child.
pub(crate) struct Child<'a> {
    pub(crate) config: &'a Config,
    pub(crate) messages: Messages,
    pub(crate) channel: Channel,
    /// The host's table of sockets, if its ports are mirrored inside.
    pub(crate) host: Option<HostTables>,
    /// The program gets native sockets.
    pub(crate) native: bool,
}

impl Child<'_> {
    /// Runs as process 1 of new namespaces: sets them up and runs the program to its end.
    pub(crate) fn run(
        mut self,
        isolation: &Isolation,
        signals: Signals,
        command: &[OsString],
        inherited: Inherited,
    ) -> Result<Ending, Failure> {
        isolation.adopt()?;
        self.begin_opener()?;
        self.begin_watcher()?;
        self.begin_mirror()?;
        self.mount();
        let tap = self.interface()?;
        if !relax_network_limits(isolation) {
            self.messages.detail(LIMITS_STAY);
        }
        self.listen()?;
        self.report_calls()?;
        let command = prepare(command);
        let name = command.get_program().to_owned();
        self.channel.send(&tap)?;
        drop(tap);
        let mask = *signals.mask_before();
        drop(signals);
        match init::run(&self.channel, command, &mask, inherited) {
            Ok(status) => Ok(status.into()),
            Err(InitError::Execute(error)) => Err(not_executed(&name, error)),
            Err(error) => Err(error.into()),
        }
    }

    /// Enters an existing namespace, from the user namespace `user` if one is given, makes the
    /// interface there and ends.
    pub(crate) fn attach(
        mut self,
        namespace: &NetworkNamespace,
        user: Option<&UserNamespace>,
    ) -> Result<Ending, Failure> {
        die_with_parent()?;
        namespace.enter(user)?;
        // Entering a user namespace changes credentials, which clears the parent-death signal.
        die_with_parent()?;
        self.begin_watcher()?;
        self.begin_mirror()?;
        let tap = self.interface()?;
        self.listen()?;
        let opener = self.opener()?;
        self.channel.send(&tap)?;
        // Otherwise towpath would not notice the end of this process, and the device would outlive
        // it.
        drop((tap, self.channel));
        if let Some(opener) = opener {
            sockets::open_for(&opener)?;
        }
        Ok(Ending::Code(0))
    }

    /// If connections to published ports are joined, sends the channel of the socket opener to the
    /// parent; returns the opener's own end.
    fn opener(&self) -> anyhow::Result<Option<Channel>> {
        if !self.config.join_published {
            return Ok(None);
        }
        let (ours, theirs) = Channel::pair()?;
        self.channel.send(&Message::Opener(theirs.into()))?;
        Ok(Some(ours))
    }

    /// Starts the socket opener as a process of its own, which ends with its namespaces.
    fn begin_opener(&self) -> anyhow::Result<()> {
        let Some(opener) = self.opener()? else { return Ok(()) };
        if let Forked::Child =
            namespace::fork().context("cannot start the process that opens sockets inside")?
        {
            let done = sockets::open_for(&opener);
            std::process::exit(done.is_err().into());
        }
        Ok(())
    }

    /// If the program gets native sockets, makes the kernel report the calls of this process and of
    /// all that it starts from now on, and passes the listener to the parent.
    fn report_calls(&self) -> anyhow::Result<()> {
        if !self.native {
            return Ok(());
        }
        let [v4, v6] = socket::samples().context("option --native: cannot open a socket")?;
        let listener = calls::report_calls().context(
            "option --native: this needs Linux 6.7 with Landlock, and no filter that reports calls \
             already; leave the option out",
        )?;
        Ok(self.channel.send(&Message::Native([listener, v4, v6]))?)
    }

    /// If ports are followed, starts the process that watches them, and passes its channel to the
    /// parent.
    fn begin_watcher(&self) -> anyhow::Result<()> {
        let Config { followed, joined, joined_udp, join_loopback, .. } = self.config;
        if followed.is_empty() {
            return Ok(());
        }
        let (ours, theirs) = Channel::pair()?;
        let wanted = Wanted {
            tcp: followed.contains(&Protocol::Tcp),
            udp: followed.contains(&Protocol::Udp),
            reach: if *join_loopback { Reach::Any } else { Reach::Beyond },
            except: joined.iter().map(|port| port.inside).collect(),
            except_udp: joined_udp.iter().map(|port| port.inside).collect(),
        };
        listening::watch(&ours, &wanted)
            .context("cannot start the process that watches ports inside")?;
        drop(ours);
        Ok(self.channel.send(&Message::Watcher(theirs.into()))?)
    }

    /// If ports of the host are mirrored, starts the process that does it, and passes its channel
    /// to the parent.
    fn begin_mirror(&mut self) -> anyhow::Result<()> {
        let Some(host) = self.host.take() else { return Ok(()) };
        let (ours, theirs) = Channel::pair()?;
        mirror::start(&ours, &host)
            .context("cannot start the process that listens on ports of the host inside")?;
        drop((ours, host));
        Ok(self.channel.send(&Message::Mirror(theirs.into()))?)
    }

    /// Makes the program's interface; returns the message that passes it to the parent.
    fn interface(&self) -> anyhow::Result<Message> {
        let interface = Interface::make(self.config, 1)?;
        if let Configured::WithoutIpv6(errno) = interface.configured {
            self.messages.notice(no_ipv6(errno));
        }
        if interface.has_failures() {
            self.messages.notice(&interface.report);
        } else {
            self.messages.detail(&interface.report);
        }
        Ok(interface.into_message())
    }

    /// Listens on the program's loopback, and passes the sockets to the parent.
    fn listen(&self) -> anyhow::Result<()> {
        let Config { ipv4, ipv6, joined, joined_udp, .. } = self.config;
        let v4 = ipv4.is_some().then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let v6 = ipv6.is_some().then_some(IpAddr::V6(Ipv6Addr::LOCALHOST));
        let tcp = joined.iter().map(|port| (Protocol::Tcp, port));
        let udp = joined_udp.iter().map(|port| (Protocol::Udp, port));
        for (protocol, port) in tcp.chain(udp) {
            for address in v4.into_iter().chain(v6) {
                let at = SocketAddr::new(address, port.inside);
                let message = match protocol {
                    Protocol::Tcp => TcpListener::bind(at, None)
                        .map(|socket| Message::Listener(port.host, socket.into())),
                    Protocol::Udp => UdpSocket::bind(at, None)
                        .map(|socket| Message::Datagrams(port.host, socket.into())),
                };
                match message {
                    Ok(message) => self.channel.send(&message)?,
                    // Missing IPv6 was reported when the interface was configured.
                    Err(error) if v4.is_some() && address.is_ipv6() && is_missing(&error) => {}
                    Err(error) => return Err(not_listening(protocol, at, error)),
                }
            }
        }
        Ok(())
    }

    /// Replaces resolv.conf and /proc. A failure is reported to the user; the program can run
    /// without.
    fn mount(&self) {
        for unmounted in mount(self.config) {
            match unmounted {
                Unmounted::Notice(text) => self.messages.notice(text),
                Unmounted::Detail(text) => self.messages.detail(text),
            }
        }
    }
}

/// The program's interface.
pub(crate) struct Interface {
    tap: Tap,
    /// Whether it has IPv6.
    pub(crate) configured: Configured,
    /// Its offload features.
    pub(crate) report: tap::Report,
}

impl Interface {
    /// Makes and configures the interface in the network namespace of this process, and proves its
    /// offload features with time limits that are `patience` times as long as usual.
    pub(crate) fn make(config: &Config, patience: u32) -> anyhow::Result<Self> {
        let name = &config.interface;
        let mut tap =
            Tap::create(name).with_context(|| format!("cannot create interface {name}"))?;
        tap.set_mtu(config.mtu);
        let configured = match config.configures_interface {
            true => config.interface().configure(),
            false => config.interface().prepare().and_then(|()| match config.configures_ipv6 {
                true => config.interface().configure_ipv6(),
                false => Ok(Configured::Whole),
            }),
        };
        let configured =
            configured.with_context(|| format!("cannot configure interface {name}"))?;
        let report = match config.configures_interface {
            true => {
                tap.set_offload(Features::ALL)?;
                tap::self_test_patiently(&mut tap, &self_test(config), patience)
            }
            false => test_elsewhere(&mut tap, config, patience)?,
        };
        Ok(Self { tap, configured, report })
    }

    /// True if an offload feature failed. A disabled family could not be tried, which is no
    /// failure.
    pub(crate) fn has_failures(&self) -> bool {
        self.report.off.iter().any(|(_, reason)| *reason != Reason::NoAddress)
    }

    /// Returns the message that passes the interface to the parent.
    pub(crate) fn into_message(self) -> Message {
        let features = features_to_bits(self.report.features);
        Message::Ready(features, self.tap.into_fd())
    }
}

/// The message about a kernel without IPv6.
pub(crate) fn no_ipv6(errno: Errno) -> String {
    format!("IPv6 is not available inside: {errno}; only IPv4 is configured")
}

fn self_test(config: &Config) -> SelfTest {
    let (ipv4, ipv6) = (config.ipv4, config.ipv6);
    SelfTest {
        program_mac: config.program_mac,
        gateway_mac: config.gateway_mac,
        program_v4: ipv4.map(|ipv4| ipv4.address),
        program_v6: ipv6.map(|ipv6| ipv6.address),
        gateway_v4: ipv4.map(|ipv4| ipv4.gateway),
        gateway_v6: ipv6.map(|ipv6| ipv6.gateway),
        mtu: config.mtu,
    }
}

/// Sets the offload features of an interface that another process configures, and perhaps uses
/// already: those that an interface like it has proven elsewhere.
fn test_elsewhere(tap: &mut Tap, config: &Config, patience: u32) -> anyhow::Result<tap::Report> {
    let report = match ScratchNetwork::enter() {
        Ok(scratch) => {
            let (configures_interface, workers, routes) = (true, 1, Vec::new());
            let alike = Config { configures_interface, workers, routes, ..config.clone() };
            let made = Interface::make(&alike, patience);
            scratch.leave().context("cannot return to the network namespace")?;
            made.ok().map(|interface| interface.report)
        }
        Err(_) => None,
    };
    let report = report.unwrap_or_else(|| tap::Report::untested(Reason::NoNetwork));
    // Also none: an earlier towpath may have left some.
    let features = tap.set_offload(report.features)?;
    Ok(tap::Report { features, ..report })
}

/// A message about a mount that failed and without which the program can run.
pub(crate) enum Unmounted {
    /// The program may notice it.
    Notice(String),
    /// Few programs notice it.
    Detail(String),
}

/// Replaces resolv.conf and /proc in the mount namespace of this process; returns what failed.
pub(crate) fn mount(config: &Config) -> Vec<Unmounted> {
    let mut failed = Vec::new();
    if let Err(error) = mount::make_private() {
        let error = anyhow::Error::from(error);
        let text = format!("CMD sees the host's resolv.conf and /proc: {error:#}");
        return vec![Unmounted::Notice(text)];
    }
    if let Err(error) = mount_resolv_conf(config) {
        let hint = config.dns().map(|dns| format!("; the network's resolver is {dns}"));
        let hint = hint.unwrap_or_default();
        let error = anyhow::Error::from(error);
        let text = format!("cannot replace /etc/resolv.conf for CMD: {error:#}{hint}");
        failed.push(Unmounted::Notice(text));
    }
    if let Err(error) = mount::mount_proc() {
        let error = anyhow::Error::from(error);
        let text = format!("CMD's /proc shows the host's processes: {error:#}");
        failed.push(Unmounted::Detail(text));
    }
    failed
}

fn mount_resolv_conf(config: &Config) -> Result<(), MountError> {
    let Some(dns) = config.dns() else { return Ok(()) };
    let path = Path::new(RESOLV_CONF);
    let host_file = match read_start(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::Missing { path: path.into() });
        }
        // The name servers are towpath's in any case.
        Err(_) => String::new(),
    };
    mount::cover_file(path, resolv::generate(&host_file, dns).as_bytes())
}

/// True if the address is missing, or its whole family.
fn is_missing(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT))
}

fn not_listening(protocol: Protocol, at: SocketAddr, error: io::Error) -> anyhow::Error {
    let (option, name) = match protocol {
        Protocol::Tcp => ("--host-tcp-ports", "TCP"),
        Protocol::Udp => ("--host-udp-ports", "UDP"),
    };
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "in use inside; stop the program that uses it, or give another port (INSIDE:HOST)"
        }
        io::ErrorKind::PermissionDenied => {
            "no permission inside; give a port from 1024 up (INSIDE:HOST)"
        }
        _ => {
            return anyhow::Error::from(error)
                .context(format!("option {option}: cannot listen on {name} port {at} inside"));
        }
    };
    anyhow::anyhow!("option {option}: {name} port {at}: {why}")
}

/// Prepares the program, or the user's shell.
fn prepare(command: &[OsString]) -> Command {
    match command {
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
        [] => {
            let shell = env::var_os("SHELL").filter(|shell| !shell.is_empty());
            Command::new(shell.unwrap_or_else(|| "/bin/sh".into()))
        }
    }
}

fn not_executed(name: &std::ffi::OsStr, error: io::Error) -> Failure {
    let name = name.display().to_string();
    match error.kind() {
        io::ErrorKind::NotFound => Failure {
            code: exit::NOT_FOUND,
            error: Some(anyhow::anyhow!("{name}: command not found")),
        },
        _ => Failure {
            code: exit::NOT_EXECUTABLE,
            error: Some(anyhow::Error::from(error).context(format!("cannot execute {name}"))),
        },
    }
}

fn read_start(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(resolv::HOST_FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
