//! Options about the remotes of VXLAN ports.

use std::net::IpAddr;

use clap::Args;
use towpath_net::wire::MacAddr;

use super::{AddOrDel, WhichNetwork};

/// Add or remove a remote of a VXLAN port, or a station behind one.
///
/// Without --mac, the remote is added to or removed from the flood list: frames for several
/// stations and for unknown ones are sent to it, and it may send. With --mac, a station is
/// configured behind the remote, or no longer; no frame from another remote may use its address.
/// `towpath ls remotes` shows both.
#[derive(Debug, Args)]
#[command(after_help = crate::exit::help("remote"))]
pub(crate) struct RemoteArguments {
    /// What to do.
    #[arg(value_name = "ACTION")]
    pub(crate) action: AddOrDel,

    /// The VXLAN port, for example vxlan100.
    #[arg(value_name = "PORT")]
    pub(crate) port: String,

    /// The address of the remote host.
    #[arg(value_name = "REMOTE")]
    pub(crate) remote: IpAddr,

    /// The station behind it, instead of the remote itself.
    #[arg(long, value_name = "MAC", value_parser = parse_mac)]
    pub(crate) mac: Option<MacAddr>,

    /// An IP address of the station: towpath answers requests for it here, instead of sending them
    /// to all remotes. May be repeated.
    #[arg(long, value_name = "ADDR", requires = "mac")]
    pub(crate) address: Vec<IpAddr>,

    #[command(flatten)]
    pub(crate) which: WhichNetwork,
}

fn parse_mac(text: &str) -> Result<MacAddr, String> {
    text.parse().map_err(|error| format!("{error}"))
}
