//! Sockets of two stacks on one link: errors in every state, readiness, ports, ends; datagrams.

mod bench;
mod datagram;
mod datagram_errors;
mod errors;
mod lending;
mod ports;
mod readiness;
