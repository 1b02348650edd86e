//! Counters and flows of running instances, for people.

pub(crate) mod flows;
pub(crate) mod stats;
pub(crate) mod top;
pub(crate) mod watch;
