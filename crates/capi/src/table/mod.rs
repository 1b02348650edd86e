//! State that an instance keeps for its program: the table of descriptors, epoll sets, and pieces
//! handed out without a copy.

pub(crate) mod epoll;
mod files;
mod lent_pieces;

pub(crate) use files::{ControlWanted, Files, SocketFile, Watchers, What};
pub(crate) use lent_pieces::LentPieces;
