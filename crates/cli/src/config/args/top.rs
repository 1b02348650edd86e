//! The arguments of `towpath top`.

use std::path::PathBuf;

use clap::Args;

use crate::exit;

/// Show what a running towpath moves, on the whole screen.
///
/// Shows totals, the open flows or, of a `towpath up`, the ports, and what was dropped, by reason;
/// all of it anew in each interval. Only instances of the same user are found, as by `towpath
/// stats`. Without PID, the only instance is shown; if there are several, a list of them, to choose
/// from.
///
/// Of many flows, the 200 that have moved most bytes in the last interval are listed. `in` is from
/// the host to the program, `out` is from the program to the host; of a port, `in` is what its
/// machine has sent. Round trips, windows and retransmissions are those of the connection between
/// the program and towpath; the host's kernel has those of the other side (`ss -ti`).
///
/// Keys: arrows, PgUp and PgDn choose a line; Enter shows its details, Esc leaves them; < and >
/// choose the column to sort by, r reverses the order; / filters by text; p pauses; Tab changes
/// between ports and flows; i lists the instances; h shows help; q and Ctrl-C quit.
#[derive(Debug, Args)]
#[command(after_help = exit::help("top"))]
pub(crate) struct TopArguments {
    /// The process number of a towpath.
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..),
          conflicts_with = "socket")]
    pub(crate) pid: Option<i32>,

    /// Ask the towpath behind this socket.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Seconds between two updates.
    #[arg(long, value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) interval: u32,

    /// Write one interval to standard output, which need not be a terminal, and end.
    #[arg(long)]
    pub(crate) once: bool,

    /// With --once: write a JSON object. It has the rates of `towpath stats --watch --json`,
    /// `flow_list`, the flows with their rates, and `dropped_by_reason`.
    #[arg(long, requires = "once")]
    pub(crate) json: bool,
}
