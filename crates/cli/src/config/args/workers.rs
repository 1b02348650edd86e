//! The option `--workers`, and the command `towpath workers`.

use clap::{Args, ValueEnum};
use towpath_gateway::config::WORKERS_MAX;

use super::WhichNetwork;
use crate::exit;

/// The number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workers {
    /// As many as processors and memory allow.
    Auto,
    Most(usize),
}

/// The option of `up`.
#[derive(Debug, Args)]
pub(crate) struct NetworkWorkers {
    /// Worker threads, 1 to 8, over which the ports are distributed; 'auto': one for each processor
    /// that this process may use, 4 at most [default: 1]
    ///
    /// A new port goes to the worker with the fewest ports; the gateway counts as one port of the
    /// first worker. Each worker has a part of --memory. `towpath workers set` changes the number
    /// while the network runs.
    #[arg(long = "workers", value_name = "N", value_parser = parse_workers,
          help_heading = "Network")]
    pub(crate) count: Option<Workers>,
}

/// Change the number of workers of a running network.
///
/// Ports move to other workers so that all have the same number of ports, up to one; the gateway
/// counts as one port of the first worker. No packet is lost or reordered: all workers pause for
/// some milliseconds, and packets wait. Each worker has a part of --memory. If the change fails,
/// the former workers go on. `towpath ls` shows the worker of each port.
#[derive(Debug, Args)]
#[command(after_help = exit::help("workers"))]
pub(crate) struct WorkersArguments {
    /// What to do.
    #[arg(value_name = "ACTION")]
    pub(crate) action: WorkersAction,

    /// Worker threads, 1 to 8; 'auto': as many as `towpath up --workers auto` starts.
    #[arg(value_name = "N", value_parser = parse_workers)]
    pub(crate) count: Workers,

    #[command(flatten)]
    pub(crate) which: WhichNetwork,
}

/// What `towpath workers` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkersAction {
    Set,
}

pub(crate) fn parse_workers(text: &str) -> Result<Workers, String> {
    match text.parse() {
        Ok(most) if (1..=WORKERS_MAX).contains(&most) => Ok(Workers::Most(most)),
        _ if text == "auto" => Ok(Workers::Auto),
        _ => Err(format!("expected 1 to {WORKERS_MAX}, or 'auto'")),
    }
}
