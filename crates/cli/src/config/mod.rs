//! The configuration of the command: arguments, network files, and the result of both.

pub(crate) mod args;
pub(crate) mod document;
pub(crate) mod egress;
pub(crate) mod hints;
pub(crate) mod host;
pub(crate) mod imported;
pub(crate) mod link;
pub(crate) mod machine;
pub(crate) mod netfile;
pub(crate) mod plan;
pub(crate) mod policy_file;
pub(crate) mod routes;
pub(crate) mod settings;
pub(crate) mod signature;
