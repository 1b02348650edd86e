//! Communication with running instances: their sockets, requests and answers.

pub(crate) mod api;
pub(crate) mod ask;
pub(crate) mod capture;
pub(crate) mod clients;
pub(crate) mod content;
pub(crate) mod evpn;
pub(crate) mod figures;
pub(crate) mod flows;
pub(crate) mod hostfwd;
pub(crate) mod instances;
pub(crate) mod metrics;
pub(crate) mod policy;
pub(crate) mod port_socket;
pub(crate) mod ports;
pub(crate) mod published;
pub(crate) mod remotes;
pub(crate) mod socket;
pub(crate) mod super_packets;
