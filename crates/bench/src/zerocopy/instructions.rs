//! Instructions of a call, counted by valgrind's cachegrind while it runs the harness in a separate
//! process: the difference between N and 2N calls.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::harness::Way;
use crate::process::Running;

/// Instructions of a call of `bytes`, on both sides, including all consequences of the call.
pub(super) fn per_call(way: Way, bytes: usize) -> anyhow::Result<f64> {
    let calls = (BYTES / bytes).clamp(CALLS_MIN, CALLS_MAX);
    let (once, twice) = (count(way, bytes, calls)?, count(way, bytes, 2 * calls)?);
    ensure!(twice > once, "{once} instructions for {calls} calls, {twice} for twice as many");
    Ok((twice - once) as f64 / calls as f64)
}

fn count(way: Way, bytes: usize, calls: usize) -> anyhow::Result<u64> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(PROGRAM);
    command.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
    command.arg(program).args(["zerocopy", "--harness"]);
    command.arg(format!("{},{bytes},{calls}", way.name()));
    // A repeated instruction would count once for each byte that it copies.
    command.env("GLIBC_TUNABLES", "glibc.cpu.x86_rep_movsb_threshold=1073741824");
    let mut running = Running::start(&mut command)?;
    let ended = running.wait(LIMIT)?.context("valgrind takes too long")?;
    ensure!(ended.success(), "{}", running.last_words());
    instructions(&running.log()).context("valgrind reported no number of instructions")
}

/// Parses the end of cachegrind's output: `==7== I refs:        1,234,567`, with more spaces before
/// version 3.21.
fn instructions(log: &str) -> Option<u64> {
    let count = |line: &str| {
        let (what, count) = line.split_once("refs:")?;
        what.trim_end().ends_with(" I").then(|| count.replace(',', ""))?.trim().parse().ok()
    };
    log.lines().find_map(count)
}

/// The program that counts.
pub(super) const PROGRAM: &str = "valgrind";
/// Approximate number of bytes that a count sends.
const BYTES: usize = 8 << 20;
const CALLS_MIN: usize = 32;
const CALLS_MAX: usize = 1024;
const LIMIT: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found() {
        assert_eq!(instructions("==7== \n==7== I refs:        1,234,567\n"), Some(1_234_567));
        assert_eq!(instructions("==7== D   refs: 3\n==7== I   refs:   12\n"), Some(12));
        assert_eq!(instructions("==7== I refs: many"), None);
        assert_eq!(instructions(""), None);
    }
}
