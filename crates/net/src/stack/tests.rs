//! The stack as its driver sees it: frames in, frames out, counters and owner's calls.

mod bench;
mod hostile;
mod icmp;
mod neighbors;
mod tcp;
mod udp;
