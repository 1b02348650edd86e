//! TAP devices against the kernel: super-packets both ways, short memory, refusals, self-test.
//!
//! Each test runs on a thread of its own in a network namespace of its own; what has two ends joins
//! two namespaces by forwarding packets between two TAP devices. Without the privilege to make
//! namespaces a test says so and passes.

mod allocations;
mod faults;
mod network;
mod packets;
mod queues;
mod rates;
mod self_test;
mod sockets;
mod support;
