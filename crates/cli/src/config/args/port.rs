//! The options of `towpath port`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{PortUplink, WhichNetwork};
use crate::exit;

/// Add, remove or change a port of a running network.
///
/// `add` creates a port with one of --vhost-user, --vhost-user-client, --stream, --tap, --packet,
/// --xdp and --vxlan; `del` removes it; `set` changes it while packets flow. Settings are pairs of
/// words:
///
/// `queue-len N`: queue length in packets. `isolated yes|no`: whether the port reaches only the
/// gateway and interfaces of the host. `vlan N`: access port, the VLAN of its untagged frames.
/// `trunk LIST`: VLANs of tagged frames, for example 10,20-30 or all. `native N`: with `trunk`, the
/// VLAN of untagged frames. `macs LIST` and `addresses LIST`: source addresses that the machine may
/// use; packets with other addresses are dropped as spoofed; an empty list allows all. `router
/// yes|no`: whether the machine may send router advertisements and DHCP replies. `flood-rate N`:
/// packets per second that the machine may send as broadcast, as multicast and to unknown
/// addresses, each; 0 for no limit [default: 10000, 20000 and 20000]. `mtu N`: largest IP packet to
/// the machine, which gets a smaller one than the network's by DHCP. `link up|down`: with the link
/// down, no packet passes, and a vhost-user port has no connection; QEMU, with `reconnect=1`,
/// reports that to the machine. `egress no`: the policy of the network is for the machine, not one
/// of its own. `bandwidth-out RATE` and `bandwidth-in RATE`: most bits per second of frames from
/// the machine and to it, for example 10Mbit or, with a burst of bytes, 10Mbit/256K; `no` for no
/// limit. `queue-pairs N`: with `add` only. `set` leaves others unchanged.
#[derive(Debug, Args)]
#[command(after_help = exit::help("port"))]
pub(crate) struct PortArguments {
    /// What to do.
    #[arg(value_name = "ACTION")]
    pub(crate) action: PortAction,

    /// The port, or several separated by commas; if the change fails for one, no port changes.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Settings and their values, as pairs.
    #[arg(value_name = "SETTING VALUE", num_args = 0..)]
    pub(crate) settings: Vec<String>,

    /// With add: a vhost-user port that listens on the socket PATH.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["vhost_user_client", "stream", "tap"])]
    pub(crate) vhost_user: Option<PathBuf>,

    /// With add: a vhost-user port that connects to the socket PATH of the virtual machine monitor.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["stream", "tap"])]
    pub(crate) vhost_user_client: Option<PathBuf>,

    /// With add: a port for frames on the stream socket PATH, on which it listens.
    #[arg(long, value_name = "PATH", conflicts_with = "tap")]
    pub(crate) stream: Option<PathBuf>,

    /// With add: a port with a new TAP device of the port's name.
    #[arg(long)]
    pub(crate) tap: bool,

    /// With add and set: the policy in FILE (TOML) says which hosts outside the machine may reach,
    /// in place of the one of the network; `towpath policy check FILE` checks it.
    #[arg(long, value_name = "FILE")]
    pub(crate) egress: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) uplink: PortUplink,

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
