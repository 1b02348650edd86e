//! State that an instance keeps for its program: the table of descriptors, epoll sets, pieces
//! handed out without a copy, and measured costs.

mod choosing;
pub(crate) mod epoll;
mod files;
mod lent_pieces;

pub(crate) use choosing::Choosing;
pub(crate) use files::{ControlWanted, Files, SocketFile, Watchers, What};
pub(crate) use lent_pieces::LentPieces;
