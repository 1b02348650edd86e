//! Whether a send lends its buffer or copies it, where the program leaves that to the host.

pub(in crate::host) mod auto;
pub(in crate::host) mod calibration;
pub(in crate::host) mod mode;
pub(in crate::host) mod trials;
