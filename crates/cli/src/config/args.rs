//! The command line.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use towpath_gateway::config::{Subnet4, Subnet6, WORKERS_MAX, parse_size};
use towpath_gateway::network::BUSY_POLL_MAX;
use towpath_net::wire::domain::DomainName;

use crate::config::netfile::{Pool, parse_duration};
use crate::exit;

pub(crate) use capture::CaptureArguments;
pub(crate) use top::TopArguments;

mod capture;
mod top;

/// Run a program's whole network through a user-space Ethernet, IP, UDP and TCP.
#[derive(Debug, Parser)]
#[command(name = crate::NAME, version, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) action: Action,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    Run(RunArguments),
    Attach(AttachArguments),
    Up(Box<UpArguments>),
    Ls(LsArguments),
    Port(PortArguments),
    Lease(LeaseArguments),
    Publish(PublishArguments),
    Capture(CaptureArguments),
    Stats(StatsArguments),
    Top(TopArguments),
    /// Write the manual page to standard output.
    #[command(hide = true)]
    Man,
}

/// Run a program in its own network.
///
/// CMD gets its own network, process numbers and mounts. Its network has one interface, whose
/// packets go through towpath; towpath reaches the outside with ordinary sockets of the host. No
/// privilege is needed where the system lets users make user namespaces.
///
/// Exit status, standard streams, terminal and signals are CMD's: SIGTERM, SIGHUP, SIGINT,
/// SIGQUIT, SIGUSR1, SIGUSR2 and SIGWINCH sent to towpath are passed on. When CMD ends, all
/// processes that it left behind are killed. When towpath is killed, so are CMD and all of them.
#[derive(Debug, Args)]
#[command(after_help = exit::HELP, override_usage = "towpath run [OPTIONS] [--] [CMD [ARG]...]")]
pub(crate) struct RunArguments {
    /// The program and its arguments; without it, your shell ($SHELL, else /bin/sh).
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,

    /// Let CMD see you as root; for ordinary users, who gain no right outside of its namespaces.
    #[arg(long)]
    pub(crate) map_root: bool,

    #[command(flatten)]
    pub(crate) network: NetworkArguments,
}

/// Serve a network namespace that exists.
///
/// Makes an interface in the namespace, gives it addresses and default routes, and serves it until
/// process PID ends, until PATH is removed, or until SIGINT or SIGTERM. The interface goes when
/// towpath ends. Mounts are left alone, so the namespace's programs use the resolv.conf that they
/// have: for DNS it should name 10.0.2.3, or any resolver that the host can reach.
#[derive(Debug, Args)]
#[command(
    after_help = exit::HELP,
    override_usage = "towpath attach [OPTIONS] PID\n       towpath attach [OPTIONS] --netns PATH",
    group(ArgGroup::new("target").required(true))
)]
pub(crate) struct AttachArguments {
    /// A process in the namespace.
    #[arg(value_name = "PID", group = "target", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Option<i32>,

    /// The namespace's file, for example /run/netns/NAME.
    #[arg(long, value_name = "PATH", group = "target")]
    pub(crate) netns: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) network: NetworkArguments,
}

/// Serve a network of virtual machines.
///
/// Makes a switch with the ports that are named, and serves it until SIGINT or SIGTERM. One port
/// leads to a gateway, which reaches the outside with ordinary sockets of the host, as for `run`.
/// No privilege is needed, but for TAP devices, which are made in this network namespace.
///
/// NAME has at most 15 letters, digits, '-', '_' and '.'. Sockets are made at PATH; machines
/// connect to them and may go and come again.
///
/// FILE describes the network; options go before it where there can be one value, and are added to
/// it where there can be several. examples/net.toml in the source has all that it can say.
#[derive(Debug, Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct UpArguments {
    /// A file that describes the network (TOML).
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Only tell whether file and options are right.
    #[arg(long)]
    pub(crate) check: bool,

    /// A virtual machine by vhost-user: its memory is shared, and payload is copied once from one
    /// machine to another. May be repeated.
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_named, help_heading = "Ports")]
    pub(crate) vhost_user: Vec<(String, PathBuf)>,

    /// The same with sides exchanged: the machine's monitor makes the socket at PATH, as QEMU does
    /// with `server=on`. It is connected to as soon as it is there, and again when it was away. May
    /// be repeated.
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_named, help_heading = "Ports")]
    pub(crate) vhost_user_client: Vec<(String, PathBuf)>,

    /// A virtual machine by frames on a stream socket, as with QEMU's `-netdev stream`. May be
    /// repeated.
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_named, help_heading = "Ports")]
    pub(crate) stream: Vec<(String, PathBuf)>,

    /// A TAP device, made with this name. May be repeated.
    #[arg(long, value_name = "NAME", help_heading = "Ports")]
    pub(crate) tap: Vec<String>,

    /// Packets that may wait for each port [default: 1000]
    #[arg(long, value_name = "N", help_heading = "Ports")]
    pub(crate) queue_len: Option<usize>,

    /// Pairs of queues that virtual machines are offered by vhost-user [default: 1]
    #[arg(long, value_name = "N", help_heading = "Ports",
          value_parser = clap::value_parser!(u16).range(1..=8))]
    pub(crate) queue_pairs: Option<u16>,

    /// Let ports talk to the gateway only, not to each other.
    #[arg(long, help_heading = "Ports")]
    pub(crate) isolate: bool,

    /// Publish TCP ports of the host for a machine; may be repeated.
    ///
    /// GUEST is the name of a port, a name that a machine tells by DHCP, or an address; SPEC is as
    /// for `towpath run`: 8080:80, 22,25, 2000-2010:3000-3010, 127.0.0.1/80.
    #[arg(short, long, value_name = "GUEST=SPEC", value_parser = parse_published,
          help_heading = "Ports")]
    pub(crate) tcp_ports: Vec<(String, String)>,

    /// Publish UDP ports of the host for a machine; GUEST=SPEC as for TCP.
    #[arg(short, long, value_name = "GUEST=SPEC", value_parser = parse_published,
          help_heading = "Ports")]
    pub(crate) udp_ports: Vec<(String, String)>,

    /// A switch alone: nothing leads outside.
    #[arg(long, help_heading = "Network")]
    pub(crate) no_gateway: bool,

    /// Domain of the machines, which have the names that they tell by DHCP
    /// [default: towpath.internal]
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    pub(crate) domain: Option<DomainName>,

    /// Neither DHCP nor router advertisements nor names: machines choose their own addresses.
    #[arg(long, help_heading = "Network")]
    pub(crate) no_dhcp: bool,

    /// Lend a known machine an address of its own or give it a name; may be repeated.
    ///
    /// LEASE is a list as port=vm1,ipv4=10.0.2.20,ipv6=fd74:6f77:7061:7468::20,name=web: one of
    /// `port`, `mac`, `client-id` and `duid`, and some of `ipv4`, `ipv6` and `name`.
    #[arg(long, value_name = "LEASE", help_heading = "Leases")]
    pub(crate) lease: Vec<String>,

    /// Keep leases in FILE, so that machines have their addresses again after a restart. No other
    /// network can keep its leases there meanwhile.
    #[arg(long, value_name = "FILE", help_heading = "Leases")]
    pub(crate) lease_file: Option<PathBuf>,

    /// For how long addresses are lent: seconds, or as 30m, 12h, 7d [default: 12h]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Leases")]
    pub(crate) lease_time: Option<Duration>,

    /// Lend these addresses to machines that are not known, IPv4 or IPv6; once for each
    /// [default: from 10.0.2.16 and from fd74:6f77:7061:7468::1000 on]
    #[arg(long, value_name = "FIRST-LAST", help_heading = "Leases")]
    pub(crate) pool: Vec<Pool<IpAddr>>,

    /// A domain to look for names in, besides that of --domain; may be repeated.
    #[arg(long, value_name = "NAME", help_heading = "Leases")]
    pub(crate) search: Vec<DomainName>,

    /// Look for packets for so many microseconds before going to sleep, where that pays, so that
    /// machines need not wake towpath for each of them; 0 to 1000 [default: 50]
    ///
    /// It pays as long as packets come in that time. Else nothing is looked for.
    #[arg(long, value_name = "MICROSECONDS", value_parser = parse_busy_poll,
          help_heading = "Network")]
    pub(crate) busy_poll: Option<Duration>,

    /// Copy payload out of the machines' memory at the switch, to measure what is gained by not
    /// doing so.
    #[arg(long, help_heading = "Diagnosis")]
    pub(crate) orphan: bool,

    #[command(flatten)]
    pub(crate) gateway: GatewayArguments,
}

fn parse_named(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !path.is_empty() => Ok((name.to_owned(), path.into())),
        _ => Err("a name, '=' and the path of a socket are wanted".to_owned()),
    }
}

fn parse_busy_poll(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().map(Duration::from_micros);
    let max = BUSY_POLL_MAX.as_micros();
    time.filter(|time| *time <= BUSY_POLL_MAX)
        .ok_or_else(|| format!("a number of microseconds from 0 to {max} is wanted"))
}

fn parse_published(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((guest, spec)) if !guest.is_empty() => Ok((guest.to_owned(), spec.to_owned())),
        _ => Err("a guest, '=' and ports are wanted, as vm1=8080:80".to_owned()),
    }
}

/// List the ports of running networks, or the addresses that they have lent.
///
/// Each line is a port of a `towpath up` of this user: its process number, name, attachment,
/// whether somebody is there, packets that wait and the queue's length, VLANs, and what it may
/// reach. With `leases`, each line is an address that is lent: for how many seconds, to which
/// station, at which port, under which name, and `static` if the machine is known. Static leases
/// that nobody has taken come behind them, and say so; their time is null in JSON. With
/// `published`, each line is a port of the host, and the machine and port that it leads to.
#[derive(Debug, Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct LsArguments {
    /// What to list.
    #[arg(value_name = "WHAT", default_value = "ports")]
    pub(crate) what: LsWhat,

    #[command(flatten)]
    pub(crate) which: WhichNetwork,

    /// Write JSON, an object on a line for each.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `towpath ls` lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LsWhat {
    Ports,
    Leases,
    Published,
}

/// Publish ports of the host for a machine of a running network, or no more.
///
/// GUEST is the name of a port, a name that a machine tells by DHCP, or an address; SPEC is as for
/// `towpath run`. `del` without ports ends all of the machine's. What is open goes on.
#[derive(Debug, Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct PublishArguments {
    /// What to do.
    #[arg(value_name = "ACTION")]
    pub(crate) action: AddOrDel,

    /// The machine.
    #[arg(value_name = "GUEST")]
    pub(crate) guest: String,

    /// Ports of TCP; may be repeated.
    #[arg(short, long, value_name = "SPEC")]
    pub(crate) tcp_ports: Vec<String>,

    /// Ports of UDP; may be repeated.
    #[arg(short, long, value_name = "SPEC")]
    pub(crate) udp_ports: Vec<String>,

    #[command(flatten)]
    pub(crate) which: WhichNetwork,
}

/// Add or remove a static lease of a running network.
///
/// LEASE is a list as port=vm1,ipv4=10.0.2.20,ipv6=fd74:6f77:7061:7468::20,name=web: one of `port`,
/// `mac`, `client-id` and `duid`, by which the machine is known, and with `add` some of `ipv4`,
/// `ipv6` and `name`, which are its own from now on.
#[derive(Debug, Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct LeaseArguments {
    /// What to do.
    #[arg(value_name = "ACTION")]
    pub(crate) action: AddOrDel,

    /// Which machine, and what it gets.
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

/// Add, remove or change a port of a running network.
///
/// `add` makes a port with one of --vhost-user, --vhost-user-client, --stream and --tap; `del`
/// removes it; `set` changes it while packets flow. Settings are pairs of words: `queue-len N`,
/// packets that may wait; `isolated yes|no`, to reach the gateway only; `vlan N`, the VLAN of
/// frames without a tag; `trunk LIST`, VLANs with tags, for example 10,20-30 or all; `native N`,
/// with `trunk`, the VLAN of frames without a tag; `macs LIST` and `addresses LIST`, which the
/// machine may have, all others are dropped as forged; `router yes|no`, whether the machine may
/// announce itself as a router and answer DHCP; `flood-rate N`, packets a second that the machine
/// may send to all stations, to groups and to unknown stations, each, 0 for any number (without it
/// 10000, 20000 and 20000); `queue-pairs N`, with `add`. What is not given stays as it is.
#[derive(Debug, Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct PortArguments {
    /// What to do.
    #[arg(value_name = "ACTION")]
    pub(crate) action: PortAction,

    /// The port, or several with commas between them: what is impossible for one is done to none.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Settings and their values.
    #[arg(value_name = "SETTING VALUE", num_args = 0..)]
    pub(crate) settings: Vec<String>,

    /// With add: a virtual machine by vhost-user, which connects to a socket at PATH.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["vhost_user_client", "stream", "tap"])]
    pub(crate) vhost_user: Option<PathBuf>,

    /// With add: a virtual machine by vhost-user, whose monitor makes the socket at PATH.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["stream", "tap"])]
    pub(crate) vhost_user_client: Option<PathBuf>,

    /// With add: a virtual machine by frames on a stream socket at PATH.
    #[arg(long, value_name = "PATH", conflicts_with = "tap")]
    pub(crate) stream: Option<PathBuf>,

    /// With add: a TAP device with the port's name.
    #[arg(long)]
    pub(crate) tap: bool,

    #[command(flatten)]
    pub(crate) which: WhichNetwork,
}

/// What `towpath port` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PortAction {
    Add,
    Del,
    Set,
}

/// Which network is meant; without it, the one that runs.
#[derive(Debug, Args)]
pub(crate) struct WhichNetwork {
    /// The process number of its `towpath up`.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..),
          conflicts_with = "socket")]
    pub(crate) pid: Option<i32>,

    /// Its control socket.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

/// Tell the counters of a running towpath, or list all of them.
///
/// Only instances of the same user are found, by sockets in $XDG_RUNTIME_DIR/towpath, else in
/// /run/user/UID/towpath, and for root else in /run/towpath. An instance without such a folder is
/// not found; it says so with -v.
///
/// With --json there is one object on a line for each instance: `pid`, `version` and `command`;
/// `bytes_out` and `bytes_in`, payload from and to the program; `carried`, both; `copied`, bytes of
/// payload copied in user memory, by site; `copies_per_byte`, all of these for each byte carried;
/// `lent`: `bytes` now in frames between the two sides, for the program that has not acknowledged
/// them or for hosts that have not taken them, `loans`, the frames in use, `oldest_us`, how long
/// the oldest have waited, `total`, lent so far, `copied_after_all`, `hit_rate`, the part that was
/// not, and `recalled`, packets of guests that were copied for their term or ring; `flows`, open
/// now, by protocol; `joined`, connections by --host-tcp-ports and --join-published, which are in
/// no other figure: `flows`, open now, `begun`, `refused` by the other side, `bytes_out` and
/// `bytes_in`; `packets`, `from_program`, `to_program`, the super-packets among them and
/// `retransmitted`; `taken`, packets and frames of memory in use; `dropped`, what did not get
/// through, by reason; with several workers `workers`, by number, what of this each did, and
/// packets `handed_over`. An instance of `up` also tells `stations`, known to its switch, and
/// `ports`, by name, with what passed and what was dropped. Later versions may add names.
#[derive(Debug, Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct StatsArguments {
    /// The process number of a towpath; without it, all are listed.
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..),
          conflicts_with = "socket")]
    pub(crate) pid: Option<i32>,

    /// Ask the towpath behind this socket.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Tell what passes in each interval, a second or as many as SECONDS, until the instance ends
    /// or SIGINT arrives. With --json, one object on a line for each interval: rates per second.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) watch: Option<u32>,

    /// Write JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `run` and `attach` have in common.
#[derive(Debug, Args)]
pub(crate) struct NetworkArguments {
    /// Publish TCP ports on the host; may be repeated.
    ///
    /// SPEC is a comma-separated list of PORT[-PORT][:PORT[-PORT]]: a port or range of the host
    /// and, after the colon, of the program if it differs. A prefix ADDR/, ADDR%IF/ or %IF/ limits
    /// the list to an address and a network interface of the host. ~PORT[-PORT] excludes ports; a
    /// list of exclusions alone means all other ports. `none` publishes nothing; `all` publishes
    /// all ports that are free, except for those that the host hands out by itself.
    /// Examples: 8080:80 · 22,25 · 2000-2010:3000-3010 · 127.0.0.1/80 · %eth0/53 · 20-30,~25
    #[arg(short, long, value_name = "SPEC", help_heading = "Ports")]
    pub(crate) tcp_ports: Vec<String>,

    /// Publish UDP ports on the host; SPEC as for TCP. Independent of --tcp-ports.
    #[arg(short, long, value_name = "SPEC", help_heading = "Ports")]
    pub(crate) udp_ports: Vec<String>,

    /// Lead TCP ports of the program's own loopback to the host's; may be repeated.
    ///
    /// CMD's connections to these ports of 127.0.0.1 and ::1 reach the same ports of the host's,
    /// past the interface and at the speed of the kernel. SPEC is a list as for --tcp-ports, the
    /// program's port first and without addresses; all ports at once cannot be meant. Programs
    /// inside cannot listen on them. A port that the host refuses shows as a connection that is
    /// reset. Examples: 5432 · 8080:80 · 9000-9009,~9005
    #[arg(short = 'T', long, value_name = "SPEC", help_heading = "Ports")]
    pub(crate) host_tcp_ports: Vec<String>,

    /// Lead connections of the host's own loopback to ports of --tcp-ports past the interface.
    ///
    /// They are made anew inside, to CMD's own address, and bytes go at the speed of the kernel
    /// from one to the other. CMD sees its own address as the client's instead of the gateway's,
    /// and they are in no capture. All others, and those in a burst too large to be joined, go
    /// through the interface as without it.
    #[arg(long, requires = "tcp_ports", help_heading = "Ports")]
    pub(crate) join_published: bool,

    /// Name of the network interface.
    #[arg(long, value_name = "NAME", default_value = "tap0", help_heading = "Network")]
    pub(crate) ifname: String,

    /// Threads that serve the program, 1 to 8. Beyond the first they take over TCP connections,
    /// each with an equal part of --memory and --max-flows.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Network",
          value_parser = clap::value_parser!(u8).range(1..=WORKERS_MAX as i64))]
    pub(crate) workers: u8,

    /// Write packets to FILE (pcapng), by a thread of its own: traffic never waits for it. Packets
    /// for which the file or its reader is too slow are left out and counted.
    #[arg(long, value_name = "FILE", help_heading = "Diagnosis")]
    pub(crate) pcap: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) gateway: GatewayArguments,
}

/// What every gateway has.
#[derive(Debug, Args)]
pub(crate) struct GatewayArguments {
    /// Largest IP packet that the program sees: 576 to 65520; below 1280 without IPv6.
    /// [default: 1500]
    #[arg(short, long, value_name = "BYTES", help_heading = "Network")]
    pub(crate) mtu: Option<u16>,

    /// IPv4 network: its addresses 2, 3 and 15 are gateway, DNS and program [default: 10.0.2.0/24]
    #[arg(long, value_name = "ADDR/LEN", help_heading = "Network", conflicts_with = "ipv6_only")]
    pub(crate) subnet: Option<Subnet4>,

    /// IPv6 network: ::2 is the gateway, ::3 DNS, ::15 the program
    /// [default: fd74:6f77:7061:7468::/64]
    #[arg(long, value_name = "ADDR/LEN", help_heading = "Network", conflicts_with = "ipv4_only")]
    pub(crate) subnet6: Option<Subnet6>,

    /// IPv4 only.
    #[arg(short = '4', long, help_heading = "Network", conflicts_with = "ipv6_only")]
    pub(crate) ipv4_only: bool,

    /// IPv6 only.
    #[arg(short = '6', long, help_heading = "Network")]
    pub(crate) ipv6_only: bool,

    /// Relay DNS to this resolver instead of those of the host's /etc/resolv.conf; may be repeated.
    #[arg(long, value_name = "ADDR", help_heading = "Network")]
    pub(crate) dns: Vec<IpAddr>,

    /// Make ADDR, inside, lead to the host's loopback (127.0.0.1, ::1), for example 10.0.2.2; may
    /// be repeated. Without it, the program cannot reach services that listen there only.
    #[arg(long, value_name = "ADDR", help_heading = "Network")]
    pub(crate) map_host_loopback: Vec<IpAddr>,

    /// Most memory that packets may take; suffixes K, M, G [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    pub(crate) memory: Option<usize>,

    /// Most TCP flows at once, and a quarter as many UDP flows; beyond it new connections wait, and
    /// the UDP flow idle longest ends [default: 16384]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub(crate) max_flows: Option<usize>,

    /// Print counters to standard error at the end.
    #[arg(long, help_heading = "Diagnosis")]
    pub(crate) stats: bool,

    /// Write "1" to file descriptor N and close it once the network is served.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(3..),
          help_heading = "Diagnosis")]
    pub(crate) ready_fd: Option<i32>,

    /// Keep all rights of the user while serving, for debuggers and for systems on which confining
    /// fails. A fault in towpath then has these rights. `towpath stats` shows what is in force.
    #[arg(long, help_heading = "Diagnosis")]
    pub(crate) no_confinement: bool,

    /// Say what is done.
    #[arg(short, long, help_heading = "Diagnosis", conflicts_with = "quiet")]
    pub(crate) verbose: bool,

    /// Say nothing but errors.
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
