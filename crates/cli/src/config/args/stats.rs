//! The options of `towpath stats`.

use std::path::PathBuf;

use clap::Args;

use super::parse_pid;
use crate::exit;

/// Show the counters of a running towpath, or list all that run.
///
/// Finds only instances of the same user, by their control sockets in $XDG_RUNTIME_DIR/towpath, or
/// else in /run/user/UID/towpath, or else, for root, in /run/towpath. An instance without such a
/// directory cannot be found; with -v it says so.
///
/// --json writes one object per line for each instance. `pid`, `version`, `command`,
/// `confinement`: the instance. `bytes_out`, `bytes_in`: payload bytes from and to the program;
/// `carried`: both. `copied`: payload bytes copied in user memory, by site; `copies_per_byte`:
/// their sum per byte carried. `lent`: `bytes` in frames that the program has not acknowledged or
/// the host has not taken yet, `loans` (frames in use), `oldest_us` (age of the oldest), `total`
/// (bytes lent so far), `copied_after_all` (bytes), `hit_rate` (share that was not copied) and
/// `recalled` (packets of guests that became copies when their term ended or their ring ran short).
/// `lent_to_host`, with --lend-to-host: `bytes` and `calls` that lent them to the kernel,
/// `copied_after_all` and `refused` calls, and `frame_bytes` that the kernel has now.
/// `flows`: open flows by protocol. `joined`: connections of --host-tcp-ports and
/// --join-published, which no other counter includes: `flows` (open), `begun`, `refused` by the
/// other side; flows of --host-udp-ports: `udp_flows`, `udp_begun`, and `udp_refused` datagrams;
/// `bytes_out` and `bytes_in` of all of them. `native`, with --native: connections whose socket is
/// one of the host, which no other counter includes: `flows` (open), `listeners`, `begun`,
/// `refused`, `denied` (by the policy), `ended` (by `towpath flows --end` or a new policy),
/// `bytes_out`, `bytes_in`, and `interface`: connections that took the interface, by reason.
/// `egress`, with a policy: `allowed` and `denied` flows, of each of its `rules`, too,
/// `questions_refused` and `answers_refused` of resolvers, `policy` (the number of policies so
/// far), `audit_lost` (records), and `bounds`: for each rule with a bandwidth or quota, and for all
/// flows of a guest (`*`), `delayed_bytes`, `dropped` datagrams, and flows that were `over_quota`.
/// `packets`: `from_program`, `to_program`, the super-packets among them, and `retransmitted`.
/// `taken`: packets and frames of memory in use. `dropped`: by reason. `workers`, with several
/// workers: these counters for each, `handed_over` packets, `flows_taken` over from other workers,
/// and `parked`: it serves no flow until those before it are full. For `up` also `stations` (in the
/// address table of the switch), `ports`: for each, packets, bytes and drops, and, with BGP EVPN,
/// `evpn`: `sessions` by state and `neighbors`,
/// routes `received` and `announced` by type and those that are `unused` by reason, `malformed`
/// messages, stations that `moved_here` and `moved_away`, `duplicates` and those that are `frozen`
/// now, `sticky` ones, `refused` connections, requests for addresses that were answered here
/// (`resolved`), and `leases`: `conflicts` with other hosts, guests that `moved_away`, and requests
/// while hosts were `settling`. Later versions may add names.
#[derive(Debug, Args)]
#[command(after_help = exit::help("stats"))]
pub(crate) struct StatsArguments {
    /// The PID of a towpath [default: list all]
    #[arg(value_name = "PID", value_parser = parse_pid, conflicts_with = "socket")]
    pub(crate) pid: Option<i32>,

    /// Show the towpath with this control socket.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Show rates in intervals of SECONDS, or of one second, until the instance ends or SIGINT
    /// arrives. With --json, one object per line for each interval: rates per second.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) watch: Option<u32>,

    /// Write JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
