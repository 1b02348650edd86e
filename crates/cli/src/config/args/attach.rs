//! Options of `towpath attach` and `towpath as`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::{NetworkArguments, parse_pid};
use crate::exit;

/// Connect an existing network namespace.
///
/// Creates an interface in the namespace, configures addresses and default routes, and serves it
/// until process PID ends, PATH is removed, or SIGINT or SIGTERM arrives. The interface disappears
/// when towpath ends. Mounts do not change, so the programs in the namespace keep their
/// resolv.conf: it should list 10.0.2.3, or another resolver that the host can reach.
#[derive(Debug, Args)]
#[command(
    after_help = exit::HELP,
    override_usage = "towpath attach [OPTIONS] PID\n       towpath attach [OPTIONS] --netns PATH",
    group(ArgGroup::new("target").required(true))
)]
pub(crate) struct AttachArguments {
    /// The PID of a process in the namespace.
    #[arg(value_name = "PID", group = "target", value_parser = parse_pid)]
    pub(crate) pid: Option<i32>,

    /// The file of the namespace, for example /run/netns/NAME.
    #[arg(long, value_name = "PATH", group = "target")]
    pub(crate) netns: Option<PathBuf>,

    /// Do not configure the interface: another process gives it addresses and routes. It may exist
    /// already, unused.
    #[arg(long, help_heading = "Network")]
    pub(crate) no_config: bool,

    /// Stay when PATH is removed.
    #[arg(long, requires = "netns", help_heading = "Process")]
    pub(crate) stay: bool,

    /// Continue in the background once the network is ready; this command then ends with 0, or with
    /// an error if the network cannot be served.
    #[arg(long, help_heading = "Process")]
    pub(crate) daemon: bool,

    /// Write the PID of the serving process to FILE when the network is ready.
    #[arg(long, value_name = "FILE", help_heading = "Process")]
    pub(crate) pid_file: Option<PathBuf>,

    /// Append messages to FILE instead of standard error once the network is ready.
    #[arg(long, value_name = "FILE", help_heading = "Process")]
    pub(crate) log_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) network: NetworkArguments,
}

/// Act as another program, with its options.
///
/// PROGRAM is `pasta` or `pesto`. The same happens if towpath is started by that name, for example
/// through a symbolic link: container engines then use it in place of that program. docs/engines.md
/// in the source says how, and lists the differences.
#[derive(Debug, Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct AsArguments {
    /// Print the equivalent towpath command instead of running it.
    #[arg(long)]
    pub(crate) explain: bool,

    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true,
          allow_hyphen_values = true, num_args = 1..)]
    pub(crate) command: Vec<OsString>,
}
