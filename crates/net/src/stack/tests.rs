//! The stack from its driver's side: frames in, frames out, counters and the owner's calls.

mod addresses;
mod bench;
mod cookies;
mod fastopen;
mod hostile;
mod icmp;
mod listen;
mod membership;
mod moved;
mod neighbors;
mod reachability;
mod routes;
mod tcp;
mod udp;
