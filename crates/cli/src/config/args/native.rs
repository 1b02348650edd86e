//! The option `--native`.

use clap::Args;

/// Native sockets.
#[derive(Debug, Args)]
pub(crate) struct NativeArguments {
    /// Let CMD's TCP connections bypass the interface, at the kernel's speed.
    ///
    /// When CMD connects to a host outside, towpath decides as usual where the connection leads,
    /// and puts a connected socket of the host in the place of CMD's own. With --join-loopback, it
    /// does so when CMD listens at a port of --tcp-ports, too. A policy (--egress, --allow) judges
    /// each connection first; those whose greeting or bytes it needs use the interface, as do UDP
    /// and what cannot be replaced. `towpath stats` counts both, `towpath flows` lists and ends
    /// connections. CMD cannot gain privileges (set-user-ID programs), use io_uring or run 32-bit
    /// programs. A privileged user gets a user namespace, too. Needs Linux 6.7 with Landlock.
    #[arg(long, conflicts_with = "pcap")]
    pub(crate) native: bool,
}
