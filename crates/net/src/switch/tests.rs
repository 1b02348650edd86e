//! The switch against a plain model of it, and one by one what it is told to do.

mod forwarding;
mod guard;
mod harness;
mod model;
mod multicast;
mod offload;
mod router;
mod tunnel;
