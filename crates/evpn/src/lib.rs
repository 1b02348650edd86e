//! A BGP speaker for EVPN over VXLAN: it announces the stations of this host, and learns those of
//! other hosts.
//!
//! [`Speaker`] is the whole of it. This crate does no I/O and reads no clock: bytes of neighbours,
//! stations of this host and `now` go in; bytes for neighbours, changes for the data plane and the
//! next deadline come out. The owner has the TCP connections.
//!
//! Of RFC 7432 and RFC 8365 it speaks what VXLAN with one VTEP per station needs: route types 2
//! (stations) and 3 (flooding by ingress replication). Routes of other types are ignored. All
//! neighbours are in the same autonomous system, as route reflectors are, or a full mesh of hosts.
//!
//! Modules form a line; each uses only those before it: `message → session → table → speaker`.
#![forbid(unsafe_code)]

pub mod message;
pub mod session;
mod speaker;
mod table;

pub use speaker::{Config, NEIGHBORS_MAX, NeighborReport, Speaker};
pub use table::{Counters, LearnError, NETWORKS_MAX, PATHS_MAX, RouteCounts, StationReport};
