//! Which destinations a network may reach.
//!
//! Order of the modules: `name` and `address`, `rule`, `index`, `resolvers`, `own`, `pins`,
//! `policy`, `policies`, `places`, `meter`, `greeting`, `learned`, `audit`, `dns`, `summary`,
//! `enforcer`.

pub mod address;
pub mod audit;
mod dns;
pub mod enforcer;
pub mod greeting;
mod index;
mod learned;
pub mod meter;
pub mod name;
mod own;
pub mod pins;
mod places;
pub mod policies;
pub mod policy;
mod resolvers;
pub mod rule;
pub mod summary;
