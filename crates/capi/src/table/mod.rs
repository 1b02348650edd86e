//! What an instance keeps for its program: the table of descriptors, with the sets of them that are
//! waited for, and what was handed out.

pub(crate) mod epoll;
mod files;
mod handed_out;

pub(crate) use files::{Files, SocketFile, Told, Watchers, What};
pub(crate) use handed_out::HandedOut;
