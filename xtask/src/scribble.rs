//! Runs the test of a front end that writes arbitrary data to shared memory, with the address
//! sanitizer.
//!
//! The compiler accepts the sanitizer's flag only in nightly builds, hence `RUSTC_BOOTSTRAP`. If
//! the sanitizer's runtime is missing, the command says so and fails. `cargo xtask ci` runs the
//! test without the sanitizer.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{cargo, fuzz, target_folder};

const SECONDS_DEFAULT: &str = "60";

/// `cargo xtask scribble [SECONDS]`. The seed differs each time, unless `TOWPATH_SEED` is set.
pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    let seconds = arguments.first().copied().unwrap_or(SECONDS_DEFAULT);
    seconds.parse::<u32>().map_err(|_| format!("'{seconds}' is not a number of seconds"))?;
    let (host, has_sanitizer) = fuzz::compiler()?;
    if !has_sanitizer {
        return Err("this compiler has no runtime of the address sanitizer".into());
    }
    let seed = std::env::var("TOWPATH_SEED").unwrap_or_else(|_| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_nanos().to_string()
    });
    let mut command = cargo(["test", "--release", "--locked", "--package", "towpath-io"]);
    command
        .args(["--test", "scribble", "--target", &host, "--", "--nocapture"])
        .env("CARGO_TARGET_DIR", target_folder("scribble"))
        .env("CARGO_PROFILE_RELEASE_LTO", "false")
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env("TOWPATH_SEED", seed)
        .env("TOWPATH_SCRIBBLE_SECONDS", seconds);
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("scribbling: {status}")) }
}
