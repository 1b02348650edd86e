//! Counters of running instances, for people.

pub(crate) mod stats;
pub(crate) mod top;
pub(crate) mod watch;
