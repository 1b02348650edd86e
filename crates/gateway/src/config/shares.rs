//! How many workers an instance may have, and how they divide the memory for packets.

use super::{ConfigError, MEMORY_BYTES_MIN, WORKERS_MAX};

/// Checks that `workers` workers can divide `bytes`.
///
/// # Errors
/// [`ConfigError::Workers`] and [`ConfigError::Memory`].
pub(crate) fn check(bytes: usize, workers: usize) -> Result<(), ConfigError> {
    if !(1..=WORKERS_MAX).contains(&workers) {
        return Err(ConfigError::Workers(workers));
    }
    if of_other(bytes, workers) < MEMORY_BYTES_MIN {
        return Err(ConfigError::Memory(bytes));
    }
    Ok(())
}

/// Returns the part of the first of `workers` workers.
pub(crate) fn of_first(bytes: usize, workers: usize) -> usize {
    bytes - of_other(bytes, workers) * (workers - 1)
}

/// Returns the part of each worker after the first, which has twice as much: it does for all what
/// only one can do. A worker alone has all.
pub(crate) fn of_other(bytes: usize, workers: usize) -> usize {
    match workers {
        1 => bytes,
        workers => bytes / (workers + 1),
    }
}

/// Returns a number of workers for so many processors: `most` at most, and as many as `bytes` are
/// enough for.
pub(crate) fn auto(bytes: usize, processors: usize, most: usize) -> usize {
    let by_memory = (bytes / MEMORY_BYTES_MIN).saturating_sub(1);
    processors.min(most).min(by_memory).max(1)
}

/// Returns the number of processors that this process may use.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
