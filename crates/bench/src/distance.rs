//! How far two processors are from each other.
//!
//! The processors of a virtual machine are threads of the host, which moves them between its own
//! processors. So a cache line can take several times as long from one to the other as a second
//! before, and then what two threads share costs several times as much. [`steadily`] measures
//! two systems while this time stays the same.

use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure};
use rustix::thread::CpuSet;
use towpath_packet::sync::{AtomicU32, Ordering};

use super::ping_pong::Stopwatch;
use super::process::pin_thread;
use crate::say;

/// Measures two systems one after the other, up to `tries` times, until the distance of the
/// processors was about the same all the time. Returns the last figures, and the shortest and the
/// longest distance beside them. A failure is not tried again.
///
/// # Errors
/// The distance cannot be measured.
pub(super) fn steadily<S: Copy, T>(
    processors: &[CpuSet; 2],
    tries: u32,
    systems: [S; 2],
    measure: impl Fn(S) -> anyhow::Result<T>,
) -> anyhow::Result<([anyhow::Result<T>; 2], [Duration; 2])> {
    let mut left = tries;
    loop {
        let before = distance(processors)?;
        let [(first, between), (second, after)] =
            systems.map(|system| (measure(system), distance(processors)));
        let (figures, mut distances) = ([first, second], [before, between?, after?]);
        distances.sort();
        let [shortest, _, longest] = distances;
        left -= 1;
        if left == 0 || longest <= 2 * shortest || figures.iter().any(Result::is_err) {
            return Ok((figures, [shortest, longest]));
        }
    }
}

/// How often a case of a round is measured at most, if there are so many rounds.
pub(super) fn tries(rounds: u32) -> u32 {
    if rounds == 1 { 1 } else { TRIES_MAX }
}

/// Prints the distances beside figures.
pub(super) fn reported(distances: [Duration; 2]) {
    let [shortest, longest] = distances.map(|distance| distance.as_nanos());
    say::notice(format_args!("  a cache line there and back: {shortest} to {longest} ns"));
}

/// Measures how long a cache line takes from the first processor to the second, and back. Zero if
/// they are the same.
fn distance(processors: &[CpuSet; 2]) -> anyhow::Result<Duration> {
    let [one, other] = processors;
    if one == other {
        return Ok(Duration::ZERO);
    }
    let line = AtomicU32::new(0);
    // Acquire and Release: each side writes only after it saw what the other wrote.
    let turns = |place: &CpuSet, own: u32| {
        pin_thread(place)?;
        let started = Stopwatch::start();
        for turn in (own..2 * LINE_TURNS).step_by(2) {
            let came = (0..LOOKS_MAX).any(|_| line.load(Ordering::Acquire) == turn);
            ensure!(came, "a thread does not get its processor");
            line.store(turn + 1, Ordering::Release);
        }
        Ok(started.elapsed())
    };
    let (first, second) = thread::scope(|scope| {
        let second = scope.spawn(|| turns(other, 1));
        (scope.spawn(|| turns(one, 0)).join(), second.join())
    });
    let elapsed: anyhow::Result<Duration> = match (first, second) {
        (Ok(elapsed), Ok(other)) => elapsed.and_then(|elapsed| other.map(|_| elapsed)),
        _ => bail!("a thread panicked"),
    };
    Ok(elapsed? / LINE_TURNS)
}

/// Most times that a case of a round is measured, if there are several rounds.
const TRIES_MAX: u32 = 4;
/// How often a cache line goes there and back: for several milliseconds, as the second thread
/// starts later than the first.
const LINE_TURNS: u32 = 100_000;
/// A thread looks for the other's turn for about a second.
const LOOKS_MAX: u32 = 1 << 30;
