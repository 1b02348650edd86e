//! Options of `towpath policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use towpath_gateway::egress::name::Name;
use towpath_gateway::egress::rule::FlowTo;

use super::parse_pid;
use crate::exit;

/// Check a policy for flows to the outside, explain its verdicts, or give it to a running instance.
///
/// A policy is the table `[egress]` of a file: see docs/policy.md. A network file may have the same
/// table, and one in each `[[port]]`.
#[derive(Debug, Args)]
#[command(after_help = exit::help("policy"))]
pub(crate) struct PolicyArguments {
    #[command(subcommand)]
    pub(crate) action: PolicyAction,
}

/// What `towpath policy` does.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyAction {
    /// Check a policy file, or the policies of a network file: print the rules, or what is wrong
    /// and where.
    #[command(after_help = exit::help("policy"))]
    Check {
        /// The file (TOML).
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },

    /// Explain what a policy decides about a flow, and which rule does.
    ///
    /// Without NAME, no name has resolved to the address. With several, the greeting of the flow
    /// has the first one.
    #[command(after_help = exit::help("policy"))]
    Explain {
        /// The file (TOML).
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// The flow, for example tcp://192.0.2.4:443, udp://[2001:db8::1]:443 or icmp://192.0.2.4.
        #[arg(value_name = "FLOW")]
        flow: FlowTo,

        /// Names that have resolved to the address.
        #[arg(value_name = "NAME")]
        names: Vec<Name>,
    },

    /// Convert a policy of another program, and write it to standard output.
    ///
    /// FILE has settings of sandbox-runtime, a policy of OpenSandbox or lists of E2B (JSON), or a
    /// destination in each line, with `!` before those that are denied. What cannot be converted is
    /// an error.
    #[command(after_help = exit::help("policy"))]
    Import {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },

    /// Make a running instance open the file of its --audit again, after you have moved it.
    #[command(after_help = exit::help("policy"))]
    Reopen {
        /// The instance: the PID of a `towpath run`, `attach` or `up`.
        #[arg(value_name = "PID", value_parser = parse_pid)]
        pid: i32,
    },

    /// Replace the policy of a running instance, which must have one. Open flows that the new
    /// policy denies end; the others continue. `towpath port set NAME egress no` takes the own
    /// policy of a port away.
    #[command(after_help = exit::help("policy"))]
    Set {
        /// The instance: the PID of a `towpath run`, `attach` or `up`.
        #[arg(value_name = "PID", value_parser = parse_pid)]
        pid: i32,

        /// The file (TOML).
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Replace the policy of this port of a network alone, or give it one of its own.
        #[arg(long, value_name = "NAME")]
        port: Option<String>,
    },
}
