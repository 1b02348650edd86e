//! What the command is told: arguments, files of networks, and what comes of both.

pub(crate) mod args;
pub(crate) mod document;
pub(crate) mod netfile;
pub(crate) mod plan;
pub(crate) mod settings;
