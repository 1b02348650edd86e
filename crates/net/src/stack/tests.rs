//! The stack as its driver sees it: frames in, frames out, counters and owner's calls.

mod bench;
mod cookies;
mod fastopen;
mod hostile;
mod icmp;
mod listen;
mod neighbors;
mod routes;
mod tcp;
mod udp;
