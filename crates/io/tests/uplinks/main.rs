//! Uplinks against the kernel: both ends of a veth pair, in a network namespace of the test. A test
//! that lacks the privilege prints a message and passes.

#[path = "../../../packet/tests/support/allocations.rs"]
mod allocations;
mod network;
mod packet;
mod xdp;
