//! towpath.
