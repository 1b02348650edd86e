//! The gateway of towpath: networks of programs and virtual machines, on sockets of the host.
//!
//! This package binds the protocols of `towpath-net` to the operating system of `towpath-io`:
//! [`worker::Worker`] is the thread that moves packets, [`workers`] are several, [`flows`] maps
//! the flows of a program's own network onto host sockets, [`config`] says what is served and with
//! which limits.
//! [`services`] are what a network of several guests tells them: addresses, routers, names.
//! `control`, a feature, reads what a control socket and a network's file say.
//!
//! Modules form a line, and each uses only those before it: `{capture, publish, resolv} → {config,
//! owners, services} → flows → report → worker → {network, workers} → control`.
#![forbid(unsafe_code)]

pub mod capture;
pub mod config;
#[cfg(feature = "control")]
pub mod control;
pub mod flows;
pub mod network;
mod owners;
pub mod publish;
pub mod report;
pub mod resolv;
pub mod services;
pub mod worker;
pub mod workers;
