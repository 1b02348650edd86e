//! Sockets of two stacks on one link: errors in every state, readiness, ports, ends.

mod bench;
mod errors;
mod ports;
mod readiness;
