//! Sockets of two stacks on one link: errors in every state, readiness, ports, closing; datagrams.

mod bench;
mod datagram;
mod datagram_errors;
mod datagram_lending;
mod errors;
mod frames;
mod gotchas;
mod ledger;
mod lending;
mod lent_receive;
mod link;
mod local;
mod multicast;
mod path_mtu;
mod ports;
mod raw;
mod readiness;
mod terms;
mod unreachable;
