//! Running programs and networks, in confined processes.

pub(crate) mod attach;
pub(crate) mod child;
pub(crate) mod confine;
pub(crate) mod daemon;
mod follow;
pub(crate) mod notify;
pub(crate) mod parent;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod up;
