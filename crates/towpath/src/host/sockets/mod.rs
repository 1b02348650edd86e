//! The sockets of a host.

pub(in crate::host) mod file;
#[cfg(feature = "futures")]
pub(in crate::host) mod futures;
pub(in crate::host) mod listener;
pub(in crate::host) mod raw;
pub(crate) mod readiness;
pub(in crate::host) mod settings;
pub(in crate::host) mod sniffer;
pub(in crate::host) mod stream;
pub(in crate::host) mod tcp_socket;
pub(in crate::host) mod udp;
