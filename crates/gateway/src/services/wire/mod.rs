//! Wire formats that only the services use: DHCP, router advertisements, and names
//! in both.
//!
//! They follow the rules of [`towpath_net::wire`], but allocate, at most the size of the message.
//! They keep no state; any thread may call them.

pub mod advertisement;
pub mod dhcpv4;
pub mod dhcpv6;
pub mod domain;
