//! File blocks in memory, to be sent.

pub(in crate::host) mod cold;
pub(crate) mod file_cache;
pub(crate) mod file_source;
