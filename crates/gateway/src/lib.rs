//! The gateway of towpath: connects networks of programs and virtual machines to sockets of the
//! host.
//!
//! This package joins the protocols of `towpath-net` with the operating-system layer of
//! `towpath-io`. [`worker::Worker`] is the thread that moves packets; [`worker_group`] runs several
//! of them. [`flows`] maps the flows of a program's own network onto host sockets. [`config`] holds
//! what is served and the limits. [`native`] gives sockets of the host to a program. [`services`]
//! gives the guests of a network their configuration: addresses, routers and names. `control`, a
//! feature, parses requests on a control socket and network files. [`egress`] decides which
//! destinations a network may reach.
//!
//! Each module uses only the modules before it: `{bucket, capture, egress, publish, resolv} →
//! {config, owners, services} → flows → native → report → worker → {network, worker_group} →
//! control`.
#![forbid(unsafe_code)]

mod bucket;
pub mod capture;
pub mod config;
#[cfg(feature = "control")]
pub mod control;
pub mod egress;
pub mod flows;
pub mod native;
pub mod network;
mod owners;
pub mod publish;
pub mod report;
pub mod resolv;
pub mod services;
pub mod worker;
pub mod worker_group;
