//! Options of `towpath attach` and `towpath as`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};

use super::{DaemonArguments, NetworkArguments, parse_pid};
use crate::exit;

/// Connect an existing network namespace.
///
/// Creates an interface in the namespace, configures addresses and default routes, and serves it
/// until process PID ends, PATH is removed, or SIGINT or SIGTERM arrives; a namespace that is given
/// as a descriptor, also as /proc/self/fd/N, is served until a signal arrives. The interface
/// disappears when towpath ends. Mounts do not change, so the programs in the namespace keep their
/// resolv.conf: it should list 10.0.2.3, or another resolver that the host can reach.
#[derive(Debug, Args)]
#[command(
    after_help = exit::help("attach"),
    override_usage = "towpath attach [OPTIONS] PID\n       towpath attach [OPTIONS] --netns PATH\n\
                      \x20      towpath attach [OPTIONS] --netns-fd N",
    group(ArgGroup::new("target").required(true))
)]
pub(crate) struct AttachArguments {
    /// The PID of a process in the namespace.
    #[arg(value_name = "PID", group = "target", value_parser = parse_pid)]
    pub(crate) pid: Option<i32>,

    /// The file of the namespace, for example /run/netns/NAME.
    #[arg(long, value_name = "PATH", group = "target")]
    pub(crate) netns: Option<PathBuf>,

    /// The namespace as an open file descriptor.
    #[arg(long, value_name = "N", group = "target",
          value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) netns_fd: Option<i32>,

    /// The file of a user namespace to enter first [default: the one that owns the network
    /// namespace, if it is not towpath's own]
    #[arg(long, value_name = "PATH")]
    pub(crate) userns: Option<PathBuf>,

    /// The user namespace of --userns as an open file descriptor.
    #[arg(long, value_name = "N", conflicts_with = "userns",
          value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) userns_fd: Option<i32>,

    /// Do not configure the interface, or with `ipv4` not its IPv4: another process gives it
    /// addresses and routes.
    ///
    /// It may exist already, unused.
    #[arg(long, value_name = "VERSION", num_args = 0..=1, require_equals = true,
          default_missing_value = "all", hide_possible_values = true, help_heading = "Network")]
    pub(crate) no_config: Option<NoConfig>,

    /// Listen on the socket PATH for requests that publish ports and close them again, in the form
    /// of slirp4netns's API socket.
    #[arg(long, value_name = "PATH", help_heading = "Ports")]
    pub(crate) port_socket: Option<PathBuf>,

    /// Stay when PATH is removed.
    #[arg(long, conflicts_with_all = ["pid", "netns_fd"], help_heading = "Process")]
    pub(crate) stay: bool,

    /// End when file descriptor N, for example that of a pipe, is closed at its other end or has
    /// something to read.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(3..),
          help_heading = "Process")]
    pub(crate) exit_fd: Option<i32>,

    #[command(flatten)]
    pub(crate) process: DaemonArguments,

    #[command(flatten)]
    pub(crate) network: NetworkArguments,
}

/// What `--no-config` leaves to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NoConfig {
    All,
    Ipv4,
}

/// Act as another program, with its options.
///
/// PROGRAM is `pasta`, `passt`, `pesto` or `slirp4netns`. The same happens if towpath is started by
/// that name, for example through a symbolic link: container engines, QEMU and libvirt then use it
/// in place of that program. docs/engines.md in the source says how, and lists the differences.
#[derive(Debug, Args)]
#[command(after_help = exit::help("as"))]
pub(crate) struct AsArguments {
    /// Print the equivalent towpath command instead of running it.
    #[arg(long)]
    pub(crate) explain: bool,

    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true,
          allow_hyphen_values = true, num_args = 1..)]
    pub(crate) command: Vec<OsString>,
}
