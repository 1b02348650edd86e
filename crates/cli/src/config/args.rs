//! The command line.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use towpath_gateway::config::{LendToHost, MTU_MAX, MTU_MIN, Subnet4, Subnet6, parse_size};
use towpath_gateway::network::{BUSY_POLL_MAX, QUEUE_LEN_MAX};
use towpath_gateway::services::wire::domain::DomainName;
use towpath_net::tcp::congestion::Kind;

use crate::config::netfile::{Pool, parse_congestion, parse_duration, parse_lend_to_host};
use crate::exit;

pub(crate) use attach::{AsArguments, AttachArguments, NoConfig};
pub(crate) use capture::CaptureArguments;
pub(crate) use doctor::{CompletionsArguments, DoctorArguments, ManArguments};
pub(crate) use egress::EgressArguments;
pub(crate) use engines::{Engine, EnginesAction, EnginesArguments};
pub(crate) use flows::FlowsArguments;
pub(crate) use link::{Address, InterfaceArguments, LinkArguments};
pub(crate) use machine::{DaemonArguments, MachineArguments};
pub(crate) use native::NativeArguments;
pub(crate) use policy::{PolicyAction, PolicyArguments};
pub(crate) use port::{PortAction, PortArguments};
pub(crate) use publish::PublishArguments;
pub(crate) use remote::RemoteArguments;
pub(crate) use stats::StatsArguments;
pub(crate) use top::TopArguments;
pub(crate) use uplinks::{PortUplink, UplinkArguments};
pub(crate) use workers::{NetworkWorkers, Workers, WorkersAction, WorkersArguments, parse_workers};

mod attach;
mod capture;
mod doctor;
mod egress;
mod engines;
mod flows;
mod link;
mod machine;
mod native;
mod policy;
mod port;
mod publish;
mod remote;
mod stats;
mod top;
mod uplinks;
mod workers;

/// Run programs and virtual machines on a user-space network.
#[derive(Debug, Parser)]
#[command(name = crate::NAME, version, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) action: Action,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    Run(Box<RunArguments>),
    Attach(Box<AttachArguments>),
    Up(Box<UpArguments>),
    Ls(LsArguments),
    Port(PortArguments),
    Workers(WorkersArguments),
    Lease(LeaseArguments),
    Remote(RemoteArguments),
    Publish(PublishArguments),
    Policy(PolicyArguments),
    Capture(CaptureArguments),
    Stats(StatsArguments),
    Flows(FlowsArguments),
    Top(TopArguments),
    As(AsArguments),
    Engines(EnginesArguments),
    Doctor(DoctorArguments),
    Completions(CompletionsArguments),
    #[command(hide = true)]
    Man(ManArguments),
}

/// Run a program in its own network.
///
/// CMD runs in its own network, PID and mount namespaces. Its network has one interface, whose
/// packets towpath handles; towpath reaches the outside through ordinary sockets of the host. No
/// privilege is needed if the system allows users to create user namespaces.
///
/// CMD has the standard streams and the terminal, and its exit status becomes that of towpath.
/// towpath passes on SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2 and SIGWINCH. When CMD
/// ends, all processes that it left behind are killed. When towpath is killed, CMD and these
/// processes are killed too.
#[derive(Debug, Args)]
#[command(after_help = exit::help("run"))]
#[command(override_usage = "towpath run [OPTIONS] [--] [CMD [ARG]...]")]
pub(crate) struct RunArguments {
    /// The program and its arguments [default: your shell, $SHELL or else /bin/sh]
    #[arg(value_name = "CMD", trailing_var_arg = true,
          value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,

    /// Map your user to root inside; this gives no rights outside CMD's namespaces. No effect for
    /// privileged users.
    #[arg(long)]
    pub(crate) map_root: bool,

    #[command(flatten)]
    pub(crate) native: NativeArguments,

    #[command(flatten)]
    pub(crate) network: NetworkArguments,
}

/// Run a network of virtual machines.
///
/// Creates a switch with the given ports and runs it until SIGINT or SIGTERM arrives. One more
/// port leads to a gateway, which reaches the outside through ordinary sockets of the host, as for
/// `run`. No privilege is needed, except for TAP devices, which are created in this network
/// namespace, and for interfaces of the host.
///
/// NAME is a port name of at most 15 letters, digits, '-', '_' and '.'. towpath listens on the
/// socket PATH; a machine can disconnect and connect again. The first `%i` in PATH stands for the
/// first number from 1 on for which no process listens there.
///
/// A service manager that sets NOTIFY_SOCKET, as systemd does for services of Type=notify, learns
/// when the network is ready.
///
/// FILE describes the network. An option overrides a single value in FILE, and adds to a list.
/// examples/net.toml in the source shows all settings.
#[derive(Debug, Args)]
#[command(after_help = exit::help("up"))]
pub(crate) struct UpArguments {
    /// A file that describes the network (TOML).
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Only check FILE and the options.
    #[arg(long)]
    pub(crate) check: bool,

    /// Add a port for a virtual machine that connects by vhost-user: the machine shares its memory,
    /// and payload is copied once from machine to machine. May be repeated.
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_named, help_heading = "Ports")]
    pub(crate) vhost_user: Vec<(String, PathBuf)>,

    /// Add a vhost-user port that connects to a socket on which the virtual machine monitor
    /// listens, as QEMU does with `server=on`. towpath connects when the socket exists, and
    /// reconnects later. May be repeated.
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_named, help_heading = "Ports")]
    pub(crate) vhost_user_client: Vec<(String, PathBuf)>,

    /// Add a port for a virtual machine that sends frames on a stream socket, as QEMU does with
    /// `-netdev stream`. May be repeated.
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_named, help_heading = "Ports")]
    pub(crate) stream: Vec<(String, PathBuf)>,

    /// Add a port with a new TAP device of this name. May be repeated.
    #[arg(long, value_name = "NAME", help_heading = "Ports")]
    pub(crate) tap: Vec<String>,

    #[command(flatten)]
    pub(crate) uplinks: UplinkArguments,

    /// Queue length of each port, in packets: 1 to 1048576 [default: 1000]
    #[arg(long, value_name = "N", help_heading = "Ports", value_parser = parse_queue_len)]
    pub(crate) queue_len: Option<usize>,

    /// Queue pairs offered to each virtual machine by vhost-user: 1 to 8 [default: 1]
    #[arg(long, value_name = "N", help_heading = "Ports",
          value_parser = clap::value_parser!(u16).range(1..=8))]
    pub(crate) queue_pairs: Option<u16>,

    /// Isolate the ports from each other: they reach only the gateway and interfaces of the host.
    #[arg(long, help_heading = "Ports")]
    pub(crate) isolate: bool,

    /// Publish TCP ports of the host for a machine; may be repeated.
    ///
    /// GUEST is the name of a port, a host name that a machine sends by DHCP, or an address; SPEC
    /// is as for `towpath run`: 8080:80, 22,25, 2000-2010:3000-3010, 127.0.0.1/80.
    #[arg(short, long, value_name = "GUEST=SPEC", value_parser = parse_published,
          help_heading = "Ports")]
    pub(crate) tcp_ports: Vec<(String, String)>,

    /// Publish UDP ports of the host for a machine; GUEST=SPEC as for --tcp-ports.
    #[arg(short, long, value_name = "GUEST=SPEC", value_parser = parse_published,
          help_heading = "Ports")]
    pub(crate) udp_ports: Vec<(String, String)>,

    /// Run the switch without a gateway: nothing leads outside, and there is no DHCP.
    #[arg(long, help_heading = "Network")]
    pub(crate) no_gateway: bool,

    /// Domain of the machines, whose names are those that they send by DHCP
    /// [default: towpath.internal]
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    pub(crate) domain: Option<DomainName>,

    /// Disable DHCP, router advertisements and DNS names of machines: machines configure their own
    /// addresses.
    #[arg(long, help_heading = "Network")]
    pub(crate) no_dhcp: bool,

    /// Add a static lease: fixed addresses or a name for one machine; may be repeated.
    ///
    /// LEASE is for example port=vm1,ipv4=10.0.2.20,ipv6=fd74:6f77:7061:7468::20,name=web: one of
    /// `port`, `mac`, `client-id` and `duid`, and at least one of `ipv4`, `ipv6` and `name`.
    #[arg(long, value_name = "LEASE", help_heading = "Leases")]
    pub(crate) lease: Vec<String>,

    /// Keep leases in FILE, so that machines keep their addresses across restarts. No other running
    /// network can use FILE.
    #[arg(long, value_name = "FILE", help_heading = "Leases")]
    pub(crate) lease_file: Option<PathBuf>,

    /// Lease time: seconds, or for example 30m, 12h, 7d [default: 12h]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Leases")]
    pub(crate) lease_time: Option<Duration>,

    /// Lease these addresses to machines without a static lease; once for IPv4, once for IPv6
    /// [default: from 10.0.2.16 and from fd74:6f77:7061:7468::1000 on]
    #[arg(long, value_name = "FIRST-LAST", help_heading = "Leases")]
    pub(crate) pool: Vec<Pool<IpAddr>>,

    /// Advertise a DNS search domain in addition to --domain; may be repeated.
    #[arg(long, value_name = "NAME", help_heading = "Leases")]
    pub(crate) search: Vec<DomainName>,

    /// Busy-poll up to MICROSECONDS before sleeping, so that machines need not wake towpath for
    /// each packet; 0 to 1000 [default: 50]
    ///
    /// towpath busy-polls only while packets arrive within that time.
    #[arg(long, value_name = "MICROSECONDS", value_parser = parse_busy_poll,
          help_heading = "Network")]
    pub(crate) busy_poll: Option<Duration>,

    #[command(flatten)]
    pub(crate) workers: NetworkWorkers,

    /// Copy payload out of the machines' memory at the switch, to measure the cost of the copy.
    #[arg(long, help_heading = "Diagnosis")]
    pub(crate) orphan: bool,

    #[command(flatten)]
    pub(crate) machine: MachineArguments,

    #[command(flatten)]
    pub(crate) process: DaemonArguments,

    #[command(flatten)]
    pub(crate) link: LinkArguments,

    #[command(flatten)]
    pub(crate) gateway: GatewayArguments,
}

fn parse_named(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !path.is_empty() => Ok((name.to_owned(), path.into())),
        _ => Err("expected NAME=PATH, for example vm1=/run/vm1.sock".to_owned()),
    }
}

fn parse_queue_len(text: &str) -> Result<usize, String> {
    let len = text.parse().ok().filter(|len| (1..=QUEUE_LEN_MAX).contains(len));
    len.ok_or_else(|| format!("expected a number of packets from 1 to {QUEUE_LEN_MAX}"))
}

fn parse_pid(text: &str) -> Result<i32, &'static str> {
    text.parse().ok().filter(|pid| *pid > 0).ok_or("expected a PID, a number from 1")
}

fn parse_busy_poll(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().map(Duration::from_micros);
    let max = BUSY_POLL_MAX.as_micros();
    time.filter(|time| *time <= BUSY_POLL_MAX)
        .ok_or_else(|| format!("expected a number of microseconds from 0 to {max}"))
}

fn parse_published(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((guest, spec)) if !guest.is_empty() => Ok((guest.to_owned(), spec.to_owned())),
        _ => Err("expected GUEST=SPEC, for example vm1=8080:80".to_owned()),
    }
}

/// List the ports, leases, published ports, remotes or BGP neighbours of running instances.
///
/// With `ports`, each line is a port of a `towpath up` of this user: PID of towpath, name of the
/// port, `connected` or `disconnected` (of an interface: up or down), queued packets and queue
/// length, VLANs, `open` or `isolated`, the worker, and the attachment. With `leases`, each line is
/// a leased address: PID, address, seconds left, MAC address, port, name, and `static` for a static
/// lease. Static leases that are not taken follow; their `seconds` are null in JSON. With
/// `published`, each line is a port or a range of ports of the host, with the machine and port that
/// it leads to; `program` is the program of a `towpath run` or `towpath attach`. With `remotes`,
/// each line is a remote of a VXLAN port, or a station behind one, and where that comes from:
/// `static`, `pushed` or `learned`. With `evpn`, each line is a BGP neighbour with the state of its
/// session, a station that is here or that a neighbour has announced, or a count.
#[derive(Debug, Args)]
#[command(after_help = exit::help("ls"))]
pub(crate) struct LsArguments {
    /// What to list.
    #[arg(value_name = "WHAT", default_value = "ports")]
    pub(crate) what: LsWhat,

    #[command(flatten)]
    pub(crate) which: WhichNetwork,

    /// Write JSON: one object for each line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `towpath ls` lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LsWhat {
    Ports,
    Leases,
    Published,
    Remotes,
    Evpn,
}

/// Add or remove a static lease of a running network.
///
/// LEASE is for example port=vm1,ipv4=10.0.2.20,ipv6=fd74:6f77:7061:7468::20,name=web: one of
/// `port`, `mac`, `client-id` and `duid`, which identifies the machine, and with `add` at least one
/// of `ipv4`, `ipv6` and `name`, which it gets.
#[derive(Debug, Args)]
#[command(after_help = exit::help("lease"))]
pub(crate) struct LeaseArguments {
    /// What to do.
    #[arg(value_name = "ACTION")]
    pub(crate) action: AddOrDel,

    /// The machine, and its addresses and name.
    #[arg(value_name = "LEASE")]
    pub(crate) lease: String,

    #[command(flatten)]
    pub(crate) which: WhichNetwork,
}

/// What `towpath lease` and `towpath publish` do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AddOrDel {
    Add,
    Del,
}

/// Selects a network; without it, the only one that runs.
#[derive(Debug, Args)]
pub(crate) struct WhichNetwork {
    /// Choose the instance by its PID [default: the only network that runs]
    #[arg(long, value_name = "PID", value_parser = parse_pid, conflicts_with = "socket")]
    pub(crate) pid: Option<i32>,

    /// Choose the instance by the path of its control socket.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

/// Options of `run` and `attach`.
#[derive(Debug, Args)]
pub(crate) struct NetworkArguments {
    /// Publish TCP ports on the host; may be repeated.
    ///
    /// SPEC is a comma-separated list of PORT[-PORT][:[ADDR/]PORT[-PORT]]: a port or range of the
    /// host and, after the colon, of the program if it differs, or of another address inside. A
    /// prefix ADDR/, ADDR%IF/ or %IF/ limits the list to an address and a network interface of the
    /// host. ~PORT[-PORT] excludes ports; a list of exclusions alone means all other ports. `none`
    /// publishes nothing; `all` publishes all free ports except the host's ephemeral ports; `auto`
    /// publishes each port while a program inside listens on it. It stands alone: repeat the option
    /// for other ports. Examples: 8080:80 · 22,25 · 2000-2010:3000-3010 · 127.0.0.1/80 · %eth0/53 ·
    /// 20-30,~25 · 5000:10.88.0.5/6000
    #[arg(short, long, value_name = "SPEC", help_heading = "Ports")]
    pub(crate) tcp_ports: Vec<String>,

    /// Publish UDP ports on the host; SPEC as for TCP. Independent of --tcp-ports.
    #[arg(short, long, value_name = "SPEC", help_heading = "Ports")]
    pub(crate) udp_ports: Vec<String>,

    /// Forward TCP ports of CMD's loopback to the host's loopback; may be repeated.
    ///
    /// CMD's connections to these ports of 127.0.0.1 and ::1 reach the same ports of the host's
    /// loopback; the kernel moves the bytes, and they bypass the interface. SPEC is a list as for
    /// --tcp-ports, but with CMD's port first, without addresses, and not `all`; `auto` forwards
    /// each port while a program of the host listens on it, alone or beside other SPECs.
    /// Programs inside cannot listen on these ports. If the host refuses a connection, CMD sees it
    /// reset. Examples: 5432 · 8080:80 · 9000-9009,~9005 · auto
    #[arg(short = 'T', long, value_name = "SPEC", help_heading = "Ports")]
    pub(crate) host_tcp_ports: Vec<String>,

    /// Forward UDP ports of CMD's loopback to the host's loopback; may be repeated.
    ///
    /// Datagrams that CMD sends to these ports of 127.0.0.1 and ::1 reach the same ports of the
    /// same address of the host, and answers come back; they bypass the interface. SPEC is a list
    /// as for --host-tcp-ports, `auto` included. Programs inside cannot use these ports. If no
    /// program of the host uses a port, datagrams to it are lost without an error.
    /// Examples: 53 · 5300:53 · 9000-9009,~9005 · auto
    #[arg(short = 'U', long, value_name = "SPEC", help_heading = "Ports")]
    pub(crate) host_udp_ports: Vec<String>,

    /// Let connections from the host's loopback to ports of --tcp-ports bypass the interface.
    ///
    /// towpath opens a second connection inside, to CMD's own address, and the kernel moves the
    /// bytes between the two. CMD sees its own address as the client's, not the gateway's, and
    /// captures do not contain these connections. Other connections use the interface, and so do
    /// excess connections of a large burst.
    #[arg(long, requires = "tcp_ports", help_heading = "Ports")]
    pub(crate) join_published: bool,

    /// Let these connections reach CMD's loopback instead of its own address; implies
    /// --join-published.
    #[arg(long, requires = "tcp_ports", help_heading = "Ports")]
    pub(crate) join_loopback: bool,

    /// Serve the control socket at PATH, too, for this user alone. A socket that no process listens
    /// on is replaced; towpath removes the socket when it ends.
    #[arg(long, value_name = "PATH", help_heading = "Process")]
    pub(crate) control_socket: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) interface: InterfaceArguments,

    #[command(flatten)]
    pub(crate) link: LinkArguments,

    /// Most worker threads, 1 to 8; 'auto': 2 if this process may use two processors or more, by
    /// its affinity and the quota of its control group, and --memory is 48M or more; else 1. A
    /// further one serves only while those before it are busy all the time, and if it makes traffic
    /// faster. Until then it is a thread that waits; while it serves, it has a part of --memory.
    #[arg(long, value_name = "N", default_value = "auto", value_parser = parse_workers,
          help_heading = "Network")]
    pub(crate) workers: Workers,

    /// Write packets to FILE (pcapng). A separate thread writes, so traffic never waits. If the
    /// file or its reader is too slow, packets are missing from FILE and are counted.
    #[arg(long, value_name = "FILE", help_heading = "Diagnosis")]
    pub(crate) pcap: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) gateway: GatewayArguments,
}

/// Options of every gateway.
#[derive(Debug, Args)]
pub(crate) struct GatewayArguments {
    /// MTU, the largest IP packet: 576 to 65520; below 1280 without IPv6 [default: 1500]
    #[arg(short, long, value_name = "BYTES", help_heading = "Network",
          value_parser = clap::value_parser!(u16).range(i64::from(MTU_MIN)..=i64::from(MTU_MAX)))]
    pub(crate) mtu: Option<u16>,

    /// IPv4 network; its addresses 2, 3 and 15 are the gateway, DNS and the program
    /// [default: 10.0.2.0/24]
    #[arg(long, value_name = "ADDR/LEN", help_heading = "Network", conflicts_with = "ipv6_only")]
    pub(crate) subnet: Option<Subnet4>,

    /// IPv6 network; its addresses ::2, ::3 and ::15 are the gateway, DNS and the program
    /// [default: fd74:6f77:7061:7468::/64]
    #[arg(long, value_name = "ADDR/LEN", help_heading = "Network", conflicts_with = "ipv4_only")]
    pub(crate) subnet6: Option<Subnet6>,

    /// Disable IPv6.
    #[arg(short = '4', long, help_heading = "Network", conflicts_with = "ipv6_only")]
    pub(crate) ipv4_only: bool,

    /// Disable IPv4.
    #[arg(short = '6', long, help_heading = "Network")]
    pub(crate) ipv6_only: bool,

    /// Ethernet address of the gateway inside [default: 02:74:6f:77:70:02]
    #[arg(long, value_name = "MAC", help_heading = "Network", value_parser = link::parse_mac)]
    pub(crate) gateway_mac: Option<[u8; 6]>,

    /// Relay DNS to this resolver instead of those in the host's /etc/resolv.conf; may be repeated.
    #[arg(long, value_name = "ADDR", help_heading = "Network")]
    pub(crate) dns: Vec<IpAddr>,

    /// Congestion control of TCP towards the inside: reno, cubic or bbr [default: cubic]
    #[arg(long, value_name = "NAME", value_parser = parse_congestion, help_heading = "Network")]
    pub(crate) congestion: Option<Kind>,

    /// Lend what TCP sends to other machines to the kernel instead of having it copied: never,
    /// always, or auto: where it costs less [default: never]
    #[arg(long, value_name = "WHEN", value_parser = parse_lend_to_host, help_heading = "Network")]
    pub(crate) lend_to_host: Option<LendToHost>,

    /// Map the inside address ADDR, for example 10.0.2.2, to the host's loopback (127.0.0.1, ::1);
    /// may be repeated. Without it, services that listen only there are unreachable.
    #[arg(long, value_name = "ADDR", help_heading = "Network")]
    pub(crate) map_host_loopback: Vec<IpAddr>,

    #[command(flatten)]
    pub(crate) egress: EgressArguments,

    /// Memory limit for packets; suffixes K, M, G [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    pub(crate) memory: Option<usize>,

    /// Limit of concurrent TCP flows; that of UDP flows is a quarter. At the limit, new connections
    /// wait, and a new UDP flow evicts the one idle longest [default: 16384]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub(crate) max_flows: Option<usize>,

    /// Print counters to standard error when towpath ends.
    #[arg(long, help_heading = "Diagnosis")]
    pub(crate) stats: bool,

    /// Write "1" to file descriptor N and close it when the network is ready.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(3..),
          help_heading = "Diagnosis")]
    pub(crate) ready_fd: Option<i32>,

    /// Do not confine this process: for debuggers, and for systems on which confinement fails. An
    /// exploit of a bug in towpath then has all rights of the user. `towpath stats` shows which
    /// layers of confinement are in force.
    #[arg(long, help_heading = "Diagnosis")]
    pub(crate) no_confinement: bool,

    /// Print more messages.
    #[arg(short, long, help_heading = "Diagnosis", conflicts_with = "quiet")]
    pub(crate) verbose: bool,

    /// Print only errors.
    #[arg(short, long, help_heading = "Diagnosis")]
    pub(crate) quiet: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn everything_after_the_program_is_the_programs() {
        let arguments =
            Arguments::try_parse_from(["towpath", "run", "-v", "ls", "-q", "--", "x"]).unwrap();
        let Action::Run(run) = arguments.action else { panic!("not run") };
        assert_eq!(run.command, ["ls", "-q", "--", "x"]);
        assert!(run.network.gateway.verbose && !run.network.gateway.quiet);
    }
}
