//! The settings of EVPN.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use towpath_evpn::NEIGHBORS_MAX;
use towpath_evpn::session::{HOLD_SECONDS, HOLD_SECONDS_MIN};
use towpath_io::socket::{Signature, SignatureError};

use super::super::VxlanSettings;

/// TCP port of BGP.
const BGP_PORT: u16 = 179;

/// Settings of EVPN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvpnSettings {
    /// Number of the autonomous system, which is that of all neighbours, too.
    pub as_number: u32,
    /// BGP identifier of this host: one of its IPv4 addresses, or any number in that form that no
    /// other host has.
    pub router_id: Ipv4Addr,
    /// Reflectors, or all other hosts.
    pub neighbors: Vec<IpAddr>,
    /// TCP port of the neighbours.
    pub port: u16,
    /// Where neighbours may connect to this host, if they may.
    pub listen: Option<SocketAddr>,
    /// Neighbours connect, and this host never does.
    pub is_passive: bool,
    /// Seconds of silence after which a neighbour is given up; zero: never.
    pub hold_seconds: u16,
    /// What signs the segments of a session, by neighbour: for all neighbours or for none. The
    /// neighbour must have the same keys.
    pub signatures: HashMap<IpAddr, Signature>,
    /// The hosts have the same IPv4 addresses to lease, and each leases its share. False if they
    /// have pools that do not overlap.
    pub shares_ipv4_pool: bool,
    /// The hosts have the same IPv6 addresses to lease, and each leases its share.
    pub shares_ipv6_pool: bool,
}

/// Why EVPN cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EvpnError {
    /// There is no VXLAN port to control.
    #[error("there is no VXLAN port; add a [vxlan] table with 'vni' and 'local'")]
    NoTunnel,
    /// Tunnels do not say where they end, or not all at the same address.
    #[error("the VXLAN ports have no common local address, which other hosts send to; set 'local'")]
    NoVtep,
    /// A setting is invalid.
    #[error("{0}")]
    Setting(&'static str),
    /// Sessions with this neighbour are not signed, and those with others are.
    #[error(
        "neighbour {0} has no key, and others have: sessions are signed with all neighbours or \
         with none; add a key for it"
    )]
    Unsigned(IpAddr),
    /// The kernel lacks what signs the sessions.
    #[error("the sessions with BGP neighbours cannot be signed: {0}")]
    Signature(SignatureError),
    /// No connections can be accepted.
    #[error(
        "cannot listen at {at} for BGP neighbours: {error}; 'listen' takes an address of this \
         host, and a port from 1024 up if this process may not have lower ones (the neighbours \
         name it as their 'port')"
    )]
    Listen {
        /// The local address and port.
        at: SocketAddr,
        /// The error.
        error: io::Error,
    },
    /// There is one already, or a system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl EvpnSettings {
    /// Settings with the usual port and hold time, and without neighbours.
    pub fn new(as_number: u32, router_id: Ipv4Addr) -> Self {
        let neighbors = Vec::new();
        Self {
            as_number,
            router_id,
            neighbors,
            port: BGP_PORT,
            listen: None,
            is_passive: false,
            hold_seconds: HOLD_SECONDS,
            signatures: HashMap::new(),
            shares_ipv4_pool: true,
            shares_ipv6_pool: true,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`EvpnError::Setting`], [`EvpnError::Unsigned`].
    pub fn check(&self) -> Result<(), EvpnError> {
        let wrong = |text| Err(EvpnError::Setting(text));
        if self.as_number == 0 || self.as_number == u32::MAX {
            return wrong(
                "the number of the autonomous system is reserved; private ones are 64512 to 65534",
            );
        }
        if self.router_id.is_unspecified() {
            return wrong("the router ID is 0.0.0.0; give an IPv4 address of this host");
        }
        if self.neighbors.is_empty() || self.neighbors.len() > NEIGHBORS_MAX {
            return wrong("expected 1 to 16 neighbours; with more hosts, use route reflectors");
        }
        if self.is_passive && self.listen.is_none() {
            return wrong("'passive' waits for neighbours and nothing listens; set 'listen', too");
        }
        if self.listen.is_some_and(|at| at.port() == 0 || at.ip().is_multicast()) {
            return wrong("'listen' is no address and port of this host, such as 192.0.2.11:179");
        }
        if (1..HOLD_SECONDS_MIN).contains(&self.hold_seconds) {
            return wrong("the hold time is 1 or 2 seconds; expected at least 3, or 0 for none");
        }
        let mut neighbors = self.neighbors.iter();
        match neighbors.find(|neighbor| !self.signatures.contains_key(neighbor)) {
            Some(unsigned) if !self.signatures.is_empty() => Err(EvpnError::Unsigned(*unsigned)),
            _ => Ok(()),
        }
    }
}

/// Returns where all VXLAN ports end here.
///
/// # Errors
/// [`EvpnError::NoTunnel`], [`EvpnError::NoVtep`].
pub fn vtep<'a>(tunnels: impl IntoIterator<Item = &'a VxlanSettings>) -> Result<IpAddr, EvpnError> {
    let mut tunnels = tunnels.into_iter();
    let vtep = tunnels.next().ok_or(EvpnError::NoTunnel)?.local.ok_or(EvpnError::NoVtep)?;
    match tunnels.all(|tunnel| tunnel.local == Some(vtep)) {
        true => Ok(vtep),
        false => Err(EvpnError::NoVtep),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_io::socket::Secret;

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let good = EvpnSettings {
            neighbors: vec![Ipv4Addr::LOCALHOST.into()],
            ..EvpnSettings::new(65001, Ipv4Addr::new(192, 0, 2, 11))
        };
        good.check().expect("valid");
        let wrong = [
            EvpnSettings { as_number: 0, ..good.clone() },
            EvpnSettings { router_id: Ipv4Addr::UNSPECIFIED, ..good.clone() },
            EvpnSettings { neighbors: Vec::new(), ..good.clone() },
            EvpnSettings { neighbors: vec![Ipv4Addr::LOCALHOST.into(); 17], ..good.clone() },
            EvpnSettings { hold_seconds: 2, ..good.clone() },
            EvpnSettings { is_passive: true, ..good.clone() },
            EvpnSettings { listen: Some((Ipv4Addr::LOCALHOST, 0).into()), ..good.clone() },
        ];
        for settings in wrong {
            settings.check().expect_err(&format!("{settings:?}"));
        }
    }

    #[test]
    fn neighbors_are_signed_all_or_none() {
        let [one, two] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let signature = Signature::Md5(Secret::new("hush").expect("short"));
        let mut settings = EvpnSettings {
            neighbors: vec![one, two],
            ..EvpnSettings::new(65001, Ipv4Addr::new(192, 0, 2, 11))
        };
        settings.check().expect("none");
        settings.signatures.insert(one, signature.clone());
        let error = settings.check().expect_err("one of two");
        assert!(matches!(error, EvpnError::Unsigned(neighbor) if neighbor == two), "{error}");
        settings.signatures.insert(two, signature);
        settings.check().expect("all");
    }
}
