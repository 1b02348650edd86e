//! What an instance keeps for its program: the table of descriptors.

mod files;

pub(crate) use files::{Files, SocketFile, Watchers, What};
