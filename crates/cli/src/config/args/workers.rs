//! The option `--workers`.

use clap::Args;
use towpath_gateway::config::WORKERS_MAX;

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
    /// first worker. Each worker has a part of --memory. Changing the number needs a restart.
    #[arg(long = "workers", value_name = "N", value_parser = parse_workers,
          help_heading = "Network")]
    pub(crate) count: Option<Workers>,
}

pub(crate) fn parse_workers(text: &str) -> Result<Workers, String> {
    match text.parse() {
        Ok(most) if (1..=WORKERS_MAX).contains(&most) => Ok(Workers::Most(most)),
        _ if text == "auto" => Ok(Workers::Auto),
        _ => Err(format!("expected 1 to {WORKERS_MAX}, or 'auto'")),
    }
}
