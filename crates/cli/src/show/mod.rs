//! Figures of instances that run, for people.

pub(crate) mod stats;
pub(crate) mod watch;
