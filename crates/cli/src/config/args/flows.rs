//! The arguments of `towpath flows`.

use std::path::PathBuf;

use clap::Args;

use super::parse_pid;
use crate::exit;

/// List the open flows of a running towpath and the path that each takes, or end one.
///
/// PATH is `interface`: through CMD's interface and the stack; `joined`: from loopback to loopback,
/// past both; or `native`: over a socket of the host that CMD has itself (`run --native`). Of many
/// flows, the 200 that have moved most bytes lately are listed.
#[derive(Debug, Args)]
#[command(after_help = exit::help("flows"))]
pub(crate) struct FlowsArguments {
    /// The PID of a towpath [default: the only one]
    #[arg(value_name = "PID", value_parser = parse_pid, conflicts_with = "socket")]
    pub(crate) pid: Option<i32>,

    /// Ask the towpath with this control socket.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// End the native flow with this NAME: both sides see a reset. CMD can connect anew.
    #[arg(long, value_name = "NAME")]
    pub(crate) end: Option<String>,

    /// Write a JSON object for each flow.
    #[arg(long, conflicts_with = "end")]
    pub(crate) json: bool,
}
