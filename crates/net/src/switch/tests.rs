//! Tests of the switch against a simple model, and of its single features.

mod forwarder;
mod forwarding;
mod guard;
mod harness;
mod model;
mod multicast;
mod offload;
mod orders;
mod router;
mod tunnel;
