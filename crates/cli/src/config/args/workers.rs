//! The option `--workers`.

use towpath_gateway::config::WORKERS_MAX;

/// The number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workers {
    /// As many as processors and memory allow.
    Auto,
    Most(usize),
}

pub(super) fn parse_workers(text: &str) -> Result<Workers, String> {
    match text.parse() {
        Ok(most) if (1..=WORKERS_MAX).contains(&most) => Ok(Workers::Most(most)),
        _ if text == "auto" => Ok(Workers::Auto),
        _ => Err(format!("expected 1 to {WORKERS_MAX}, or 'auto'")),
    }
}
