//! Decides whether a send lends or copies its buffer, if the program leaves that to the host.

pub(in crate::host) mod auto;
pub(in crate::host) mod calibration;
pub(in crate::host) mod mode;
pub(in crate::host) mod trials;
