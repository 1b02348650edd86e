//! `towpath-cni`: attaches containers to a running network, as a plugin of CNI (1.1) and of
//! netavark.
//!
//! The plugin is the command itself, called by the name [`PLUGIN`]. An engine starts it for each
//! operation, and it ends after that: what it has made is held by the network, under names that
//! follow from those of the container ([`key`]).
//!
//! Each module uses only the modules before it: `error → key → namespace → network → attach →
//! configuration → protocol → netavark`.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use protocol::Environment;

mod attach;
mod configuration;
mod error;
mod key;
mod namespace;
mod netavark;
mod network;
mod protocol;

/// The name of the plugin.
pub(crate) const PLUGIN: &str = "towpath-cni";
/// Longest configuration: many times that of a container with thousands of ports.
const INPUT_BYTES_MAX: u64 = 4 << 20;

/// Returns true if the command was called by the name of the plugin.
pub(crate) fn is_meant(path: &OsStr) -> bool {
    Path::new(path).file_name() == Some(PLUGIN.as_ref())
}

/// Does what an engine asks for: by the environment (CNI) or by arguments (netavark). Answers and
/// errors go to standard output as JSON.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    let arguments: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    let arguments: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (answer, code) = match (arguments.as_slice(), variable(protocol::COMMAND)) {
        ([], Some(_)) => answer(|input| protocol::perform(&Environment::of(variable), input)),
        ([verb, rest @ ..], _) if netavark::VERBS.contains(verb) => {
            answer(|input| netavark::perform(verb, rest.first().copied(), input))
        }
        ([] | ["--version" | "--help"], None) => (Some(about().into()), ExitCode::SUCCESS),
        _ => (Some(about().into()), ExitCode::from(crate::exit::USAGE)),
    };
    let text = match answer {
        None => return code,
        Some(Value::String(text)) => text,
        Some(value) => format!("{value}\n"),
    };
    // An engine that has closed the pipe sees the exit code.
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Reads the input and performs an operation.
fn answer(
    perform: impl FnOnce(&[u8]) -> Result<Option<Value>, Value>,
) -> (Option<Value>, ExitCode) {
    let mut input = Vec::new();
    // Input that cannot be read is not JSON, which is reported.
    let _ = std::io::stdin().take(INPUT_BYTES_MAX).read_to_end(&mut input);
    match perform(&input) {
        Ok(answer) => (answer, ExitCode::SUCCESS),
        Err(error) => (Some(error), ExitCode::FAILURE),
    }
}

fn about() -> String {
    format!(
        "{PLUGIN} {}\n\
         Attaches containers to a running `towpath up`.\n\
         CNI plugin, versions {}: the engine sets CNI_COMMAND\n\
         netavark plugin, API {}: {PLUGIN} {}\n\
         See {PLUGIN}(8).\n",
        env!("CARGO_PKG_VERSION"),
        protocol::VERSIONS.join(", "),
        netavark::API,
        netavark::VERBS.join("|"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: engines that look for the version of a plugin find it, such as Nomad, which takes the
    /// first word of the output that is a version.
    #[test]
    fn the_version_is_a_word() {
        let about = about();
        let is_version = |word: &&str| word.split('.').all(|part| part.parse::<u32>().is_ok());
        assert_eq!(about.split_whitespace().find(is_version), Some(env!("CARGO_PKG_VERSION")));
    }
}
