//! Options about the policy for flows to the outside.

use std::path::PathBuf;

use clap::Args;

/// Which hosts outside may be reached.
#[derive(Debug, Default, Args)]
pub(crate) struct EgressArguments {
    /// Allow flows to DEST, and deny those that no --allow names; may be repeated.
    ///
    /// DEST is a name, `*.NAME` for all names below one, an address, a network or `*`, with or
    /// without a port or a range of ports: packages.example.org:443, '*.files.example.org',
    /// 192.0.2.0/24:8000-8099, [2001:db8::1]:443. A flow to a name must have an address of that
    /// name and name the host itself: in TLS, in QUIC or as HTTP's Host. Addresses of this host,
    /// private, link-local and metadata addresses stay closed; only a rule in a FILE of --egress
    /// opens them.
    #[arg(long, value_name = "DEST", help_heading = "Egress", conflicts_with = "egress")]
    pub(crate) allow: Vec<String>,

    /// Deny flows to DEST, also if --allow names it; without --allow, all others are allowed. May
    /// be repeated.
    #[arg(long, value_name = "DEST", help_heading = "Egress", conflicts_with = "egress")]
    pub(crate) deny: Vec<String>,

    /// Take the rules from FILE (TOML); `towpath policy check FILE` checks it.
    #[arg(long, value_name = "FILE", help_heading = "Egress")]
    pub(crate) egress: Option<PathBuf>,

    /// Allow everything, and write to FILE the policy that this would have needed.
    #[arg(long, value_name = "FILE", help_heading = "Egress",
          conflicts_with_all = ["allow", "deny", "egress"])]
    pub(crate) learn: Option<PathBuf>,

    /// Append a line of JSON to FILE for each verdict about a flow, and for its end.
    #[arg(long, value_name = "FILE", help_heading = "Egress")]
    pub(crate) audit: Option<PathBuf>,
}
