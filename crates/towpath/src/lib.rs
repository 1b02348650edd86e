//! towpath: a user-space network for Linux in which payload bytes stay where they are.
//!
//! This package binds the protocols of `towpath-net` to the operating system of `towpath-io`:
//! [`worker::Worker`] is the thread that moves packets, [`workers`] are several, [`gateway`] maps
//! the flows of a program's own network onto host sockets, [`config`] says what is served and with
//! which limits.
//! [`services`] are what a network of several guests tells them: addresses, routers, names.
//! `control`, a feature, reads what a control socket and a network's file say.
//! [`host`] is for programs that want a stack of their own, with sockets whose sends lend;
//! [`events`] is where they wait for all that can happen.
#![forbid(unsafe_code)]

pub mod capture;
pub mod config;
#[cfg(feature = "control")]
pub mod control;
pub mod events;
pub mod gateway;
pub mod host;
pub mod network;
pub mod publish;
pub mod report;
pub mod resolv;
pub mod services;
pub mod worker;
pub mod workers;
