//! File blocks in memory, to be sent.

pub(in crate::host) mod direct_read;
pub(crate) mod file_cache;
pub(crate) mod file_source;
