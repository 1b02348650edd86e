//! Internet checksum.
