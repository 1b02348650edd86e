//! Which destinations a network may reach.
//!
//! Order of the modules: `name` and `address`, `rule`, `resolvers`, `pins`, `policy`, `places`,
//! `meter`, `greeting`, `learned`, `audit`, `dns`, `enforcer`.

pub mod address;
pub mod audit;
mod dns;
pub mod enforcer;
pub mod greeting;
mod learned;
pub mod meter;
pub mod name;
pub mod pins;
mod places;
pub mod policy;
mod resolvers;
pub mod rule;
