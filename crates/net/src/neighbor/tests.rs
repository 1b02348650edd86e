//! Tests of neighbours: the table of states, eviction, routers and detection of duplicates.

mod cache;
mod detection;
mod routers;
mod states;
