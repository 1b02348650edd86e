//! The settings of a VXLAN port, and their text form.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use towpath_io::socket::path_mtu;
use towpath_net::switch::vlan::Vid;
use towpath_net::vxlan::{PORT, Vni, overhead};

/// MTU of a path that the kernel does not tell: that of Ethernet.
pub(super) const MTU_DEFAULT: u16 = 1500;

/// Settings of a VXLAN port: `VNI[:KEY=VALUE[,KEY=VALUE]...]` with the keys `remote` (may be
/// repeated), `local`, `port` and `learn`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VxlanSettings {
    /// The network.
    pub vni: Vni,
    /// Remotes that get floods, all of one IP version.
    pub remotes: Vec<IpAddr>,
    /// The address of this host that tunnels end at; `None` for all addresses.
    pub local: Option<IpAddr>,
    /// The UDP port, here and at remotes.
    pub port: u16,
    /// Stations are learned from the frames that remotes send.
    pub is_learning: bool,
}

/// A text that does not describe a VXLAN port; what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidVxlan(String);

impl fmt::Display for InvalidVxlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidVxlan {}

impl VxlanSettings {
    /// Settings of a network without remotes, at an address of this host.
    pub fn new(vni: Vni) -> Self {
        Self { vni, remotes: Vec::new(), local: None, port: PORT, is_learning: true }
    }

    /// Parses settings that may have the key `vlan`, the VLAN of the network at the switch.
    ///
    /// # Errors
    /// [`InvalidVxlan`].
    pub fn with_vlan(text: &str) -> Result<(Self, Option<Vid>), InvalidVxlan> {
        let (vni, rest) = text.split_once(':').unwrap_or((text, ""));
        let wrong = |message: String| InvalidVxlan(message);
        let vni = vni.parse().map_err(|error| wrong(format!("'{vni}': {error}")))?;
        let (mut settings, mut vlan) = (Self::new(vni), None);
        for part in rest.split(',').filter(|part| !part.is_empty()) {
            let Some((key, value)) = part.split_once('=') else {
                return Err(wrong(format!("'{part}': expected KEY=VALUE")));
            };
            let bad = |expected: &str| wrong(format!("{key} '{value}': expected {expected}"));
            let address = || value.parse().map_err(|_| bad("an IP address"));
            match key {
                "remote" => settings.remotes.push(address()?),
                "local" => settings.local = Some(address()?),
                "port" => {
                    let port = value.parse().ok().filter(|port| *port > 0);
                    settings.port = port.ok_or_else(|| bad("a UDP port from 1 to 65535"))?;
                }
                "learn" => {
                    settings.is_learning = match value {
                        "yes" => true,
                        "no" => false,
                        _ => return Err(bad("yes or no")),
                    };
                }
                "vlan" => {
                    let vid = value.parse().ok().and_then(Vid::new);
                    vlan = Some(vid.ok_or_else(|| bad("a VLAN from 1 to 4094"))?);
                }
                _ => {
                    return Err(wrong(format!(
                        "unknown key '{key}'; expected remote, local, port, vlan or learn"
                    )));
                }
            }
        }
        settings.check()?;
        Ok((settings, vlan))
    }

    /// Checks what the settings say about addresses.
    ///
    /// # Errors
    /// [`InvalidVxlan`].
    pub fn check(&self) -> Result<(), InvalidVxlan> {
        let mut all = self.local.iter().chain(&self.remotes);
        let Some(first) = all.next() else {
            return Err(InvalidVxlan(
                "neither remote nor local is given; give the remotes, or with a control plane the \
                 local address"
                    .to_owned(),
            ));
        };
        if let Some(other) = all.find(|other| other.is_ipv4() != first.is_ipv4()) {
            return Err(InvalidVxlan(format!(
                "{first} and {other} are of different IP versions; use a VXLAN port for each"
            )));
        }
        if let Some(local) = self.local
            && self.remotes.contains(&local)
        {
            return Err(InvalidVxlan(format!("{local} is both local and a remote")));
        }
        let is_host = |address: &&IpAddr| !address.is_unspecified() && !address.is_multicast();
        match self.local.iter().chain(&self.remotes).find(|address| !is_host(address)) {
            Some(wrong) => Err(InvalidVxlan(format!("{wrong} is not the address of one host"))),
            None => Ok(()),
        }
    }

    /// Returns the largest IP packet that reaches all remotes in one datagram now, at most that of
    /// Ethernet without a tunnel. For a path that the kernel does not tell, and without remotes:
    /// what an Ethernet path takes.
    pub fn inner_mtu(&self) -> u16 {
        let of_path = |to: &IpAddr| {
            let path = path_mtu(self.end(0), SocketAddr::new(*to, self.port));
            let path = path.map_or(MTU_DEFAULT, |mtu| u16::try_from(mtu).unwrap_or(u16::MAX));
            path.saturating_sub(overhead(to))
        };
        let least = self.remotes.iter().map(of_path).min();
        let without = || MTU_DEFAULT - overhead(&self.end(0).ip());
        least.unwrap_or_else(without).min(MTU_DEFAULT)
    }

    /// The address that tunnels end at, which may be unspecified, with this UDP port.
    pub(super) fn end(&self, port: u16) -> SocketAddr {
        let is_ipv4 = self.local.or(self.remotes.first().copied()).is_none_or(|any| any.is_ipv4());
        let any = if is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        SocketAddr::new(self.local.unwrap_or(any), port)
    }
}

impl FromStr for VxlanSettings {
    type Err = InvalidVxlan;

    fn from_str(text: &str) -> Result<Self, InvalidVxlan> {
        match Self::with_vlan(text)? {
            (settings, None) => Ok(settings),
            (_, Some(_)) => Err(InvalidVxlan(
                "the VLAN is a setting of the port here; leave out vlan, and set that of the port"
                    .to_owned(),
            )),
        }
    }
}

impl fmt::Display for VxlanSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:port={}", self.vni, self.port)?;
        for remote in &self.remotes {
            write!(f, ",remote={remote}")?;
        }
        if let Some(local) = self.local {
            write!(f, ",local={local}")?;
        }
        if self.is_learning { Ok(()) } else { f.write_str(",learn=no") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_their_text() {
        for text in [
            "100:port=4789,remote=192.0.2.11,remote=192.0.2.12",
            "0:port=8472,local=2001:db8::1,learn=no",
        ] {
            let settings: VxlanSettings = text.parse().expect(text);
            assert_eq!(settings.to_string(), text);
        }
        let (settings, vlan) =
            VxlanSettings::with_vlan("7:remote=192.0.2.1,vlan=10").expect("valid");
        assert_eq!((settings.port, vlan.map(Vid::number)), (PORT, Some(10)));
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, why) in [
            ("", "'': expected a VXLAN network identifier"),
            ("16777216:remote=192.0.2.1", "a number from 0 to 16777215"),
            ("1", "neither remote nor local"),
            ("1:remote", "'remote': expected KEY=VALUE"),
            ("1:remote=host", "remote 'host': expected an IP address"),
            ("1:remote=192.0.2.1,port=0", "port '0': expected a UDP port"),
            ("1:remote=192.0.2.1,learn=on", "learn 'on': expected yes or no"),
            ("1:remote=192.0.2.1,vlan=4095", "vlan '4095': expected a VLAN from 1 to 4094"),
            ("1:remote=192.0.2.1,remote=::1", "different IP versions"),
            ("1:remote=192.0.2.1,local=192.0.2.1", "both local and a remote"),
            ("1:remote=224.0.0.1", "224.0.0.1 is not the address of one host"),
            ("1:remot=192.0.2.1", "unknown key 'remot'; expected remote, local"),
        ] {
            let error = VxlanSettings::with_vlan(text).expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let vlan = "1:remote=192.0.2.1,vlan=2".parse::<VxlanSettings>();
        assert!(vlan.expect_err("no VLAN").to_string().contains("setting of the port"));
    }
}
