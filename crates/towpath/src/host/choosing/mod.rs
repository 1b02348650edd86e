//! Decides whether a send lends or copies its buffer, if the program leaves that to the host.

pub(crate) mod auto;
pub(crate) mod calibration;
pub(in crate::host) mod mode;
pub(crate) mod trials;
