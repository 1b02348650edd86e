//! Options of `towpath publish`.

use clap::Args;

use super::{AddOrDel, WhichNetwork};
use crate::exit;

/// Publish or unpublish ports of the host while a network, `run` or `attach` is running.
///
/// GUEST is the PID of a `towpath run` or `towpath attach`, or a machine of a network: the name of
/// a port, a host name that a machine sends by DHCP, or an address. With --pid or --socket of a
/// `run` or `attach`, GUEST is `program`. SPEC is as for `towpath run`, except `auto`. All ports
/// are published, or none. `del` without ports unpublishes all ports. Open connections continue.
///
/// A confined `run` or `attach` publishes a port below 1024 only if it was started with that port,
/// or if every user may bind it.
#[derive(Debug, Args)]
#[command(after_help = exit::help("publish"))]
pub(crate) struct PublishArguments {
    /// What to do.
    #[arg(value_name = "ACTION")]
    pub(crate) action: AddOrDel,

    /// The machine, or the PID of a `towpath run` or `towpath attach`.
    #[arg(value_name = "GUEST")]
    pub(crate) guest: String,

    /// With add: leave ports that are published already and lead to the same port; without this,
    /// they are an error.
    #[arg(long)]
    pub(crate) if_absent: bool,

    /// TCP ports; may be repeated.
    #[arg(short, long, value_name = "SPEC")]
    pub(crate) tcp_ports: Vec<String>,

    /// UDP ports; may be repeated.
    #[arg(short, long, value_name = "SPEC")]
    pub(crate) udp_ports: Vec<String>,

    #[command(flatten)]
    pub(crate) which: WhichNetwork,
}
