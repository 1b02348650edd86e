//! The addresses at which the VXLAN ports of a network end, and who shares them.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use towpath_io::socket::{SharedPort, SharedSocket};
use towpath_net::vxlan::Vni;

use super::super::config::PortError;

/// Where VXLAN ports end: those at one address and UDP port have sockets that share it.
#[derive(Debug, Default)]
pub(crate) struct Ends(HashMap<SocketAddr, Weak<SharedPort>>);

impl Ends {
    /// Opens the socket of a network at an address. Port 0 stands for any free one, which is not
    /// shared.
    ///
    /// # Errors
    /// [`PortError::VxlanTaken`], [`PortError::VxlanSocket`].
    pub(super) fn open(&mut self, at: SocketAddr, vni: Vni) -> Result<SharedSocket, PortError> {
        self.0.retain(|_, port| port.strong_count() > 0);
        let known = self.0.get(&at).and_then(Weak::upgrade);
        let port = known.unwrap_or_else(|| SharedPort::new(at));
        let socket = port.open(vni.number()).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => PortError::VxlanTaken { vni, at },
            _ => PortError::VxlanSocket { at, error },
        })?;
        if at.port() != 0 {
            self.0.insert(at, Arc::downgrade(&port));
        }
        Ok(socket)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Goal: networks share an address, each once; port 0 is another one each time. What is closed
    /// is free again.
    #[test]
    fn networks_share_an_address() {
        let vni = |number| Vni::new(number).expect("24 bits");
        let mut ends = Ends::default();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let [one, two] = [(); 2].map(|()| ends.open(any, vni(1)).expect("a port of its own"));
        let at = one.local().expect("bound");
        assert_ne!(two.local().expect("bound"), at);
        drop(one);
        let first = ends.open(at, vni(1)).expect("free");
        let second = ends.open(at, vni(2)).expect("shared");
        assert_eq!(second.local().expect("bound"), at);
        let error = ends.open(at, vni(2)).expect_err("it has a port");
        assert!(matches!(error, PortError::VxlanTaken { .. }), "{error}");
        assert!(error.to_string().contains(&format!("VNI 2 at {at}")), "{error}");
        drop(second);
        drop(ends.open(at, vni(2)).expect("free again"));
        drop(first);
        let stranger = std::net::UdpSocket::bind(at).expect("free again");
        let error = ends.open(at, vni(1)).expect_err("taken");
        assert!(matches!(error, PortError::VxlanSocket { .. }), "{error}");
        drop(stranger);
    }
}
