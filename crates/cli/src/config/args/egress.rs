//! Options about the policy for flows to the outside.

use std::path::PathBuf;

use clap::Args;
use towpath_gateway::config::parse_size;
use towpath_gateway::egress::audit::FILE_BYTES_MIN;

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

    /// Begin another FILE of --audit once it has SIZE bytes, at least 64K; suffixes K, M, G. The
    /// one before becomes FILE.1, that one FILE.2, and so on [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = parse_audit_size, help_heading = "Egress",
          requires = "audit")]
    pub(crate) audit_size: Option<u64>,

    /// Keep N older files of --audit, 0 to 99 [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=99),
          help_heading = "Egress", requires = "audit")]
    pub(crate) audit_files: Option<u32>,
}

fn parse_audit_size(text: &str) -> Result<u64, String> {
    let size = parse_size(text).map_err(|error| error.to_string())? as u64;
    match size >= FILE_BYTES_MIN {
        true => Ok(size),
        false => {
            Err(format!("at least {FILE_BYTES_MIN} bytes are needed, more than is written at once"))
        }
    }
}
