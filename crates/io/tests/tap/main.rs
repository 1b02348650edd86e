//! TAP devices against the kernel: super-packets both ways, short memory, refusals, self-test.
//!
//! Each test runs on a thread of its own in a network namespace of its own. A test with two ends
//! joins two namespaces by forwarding packets between two TAP devices. A test that lacks the
//! privilege to create namespaces prints a message and passes.

mod allocations;
mod faults;
mod network;
mod packets;
mod rates;
mod self_test;
mod sockets;
mod support;
