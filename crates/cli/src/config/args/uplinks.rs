//! Options about interfaces of the host, and ways to other hosts, that are ports.

use clap::Args;
use towpath_gateway::network::VxlanSettings;
use towpath_io::uplink::XdpSettings;
use towpath_net::switch::vlan::Vid;

/// Ports of `towpath up` on interfaces of the host.
#[derive(Debug, Args)]
pub(crate) struct UplinkArguments {
    /// Add a port for an Ethernet interface of the host, through a packet socket: frames that
    /// arrive there enter the network, and frames for others leave by it. Super-packets pass whole.
    /// Needs CAP_NET_RAW; CAP_NET_ADMIN for large buffers. May be repeated.
    #[arg(long, value_name = "NAME=IFACE", value_parser = parse_packet, help_heading = "Ports")]
    pub(crate) packet: Vec<(String, String)>,

    /// Add a port for a queue of an Ethernet interface of the host, through an AF_XDP socket, past
    /// the host's own stack. SETTINGS is IFACE[,queue=N][,mode=auto|native|generic]: the XDP
    /// program runs in the driver (native), in the kernel (generic), or in the driver if that
    /// supports it (auto) [default: queue 0, auto]. Needs Linux 5.9, and CAP_NET_RAW, CAP_NET_ADMIN
    /// and CAP_BPF in the initial user namespace. May be repeated.
    #[arg(long, value_name = "NAME=SETTINGS", value_parser = parse_xdp, help_heading = "Ports")]
    pub(crate) xdp: Vec<(String, XdpSettings)>,

    /// Add a port that leads to other hosts in UDP datagrams (VXLAN, RFC 7348); its name is
    /// `vxlanVNI`. SETTINGS is VNI:remote=ADDR[,remote=ADDR]...[,local=ADDR][,port=N][,vlan=N]
    /// [,learn=yes|no]: the network identifier, the addresses of the other hosts, that of this one,
    /// the UDP port, the VLAN here, and whether to learn which stations are behind a remote from
    /// what it sends [default: all addresses of this host, port 4789, VLAN 1, learn=yes]. Without
    /// --mtu, the MTU of the network is what passes to all remotes. No privilege is needed. May be
    /// repeated.
    #[arg(long, value_name = "SETTINGS", value_parser = VxlanSettings::with_vlan,
          help_heading = "Ports")]
    pub(crate) vxlan: Vec<(VxlanSettings, Option<Vid>)>,
}

/// Kinds of a port of `towpath port add` on an interface of the host.
#[derive(Debug, Args)]
pub(crate) struct PortUplink {
    /// With add: a port for the Ethernet interface IFACE of the host, through a packet socket. A
    /// confined network opens only interfaces that it was started with.
    #[arg(long, value_name = "IFACE",
          conflicts_with_all = ["vhost_user", "vhost_user_client", "stream", "tap", "xdp"])]
    pub(crate) packet: Option<String>,

    /// With add: a port for a queue of an Ethernet interface of the host, through an AF_XDP socket:
    /// IFACE[,queue=N][,mode=auto|native|generic]. A confined network opens only interfaces that it
    /// was started with.
    #[arg(long, value_name = "SETTINGS",
          conflicts_with_all = ["vhost_user", "vhost_user_client", "stream", "tap"])]
    pub(crate) xdp: Option<XdpSettings>,

    /// With add: a port that leads to other hosts in UDP datagrams (VXLAN):
    /// VNI:remote=ADDR[,remote=ADDR]... [,local=ADDR][,port=N][,learn=yes|no], without the space.
    #[arg(long, value_name = "SETTINGS",
          conflicts_with_all = ["vhost_user", "vhost_user_client", "stream", "tap", "xdp",
                                "packet"])]
    pub(crate) vxlan: Option<VxlanSettings>,
}

fn parse_packet(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, interface)) if !interface.is_empty() => Ok((name.into(), interface.into())),
        _ => Err("expected NAME=IFACE, for example lan=eth1".to_owned()),
    }
}

fn parse_xdp(text: &str) -> Result<(String, XdpSettings), String> {
    let (name, settings) = text
        .split_once('=')
        .ok_or("expected NAME=IFACE[,queue=N][,mode=auto|native|generic], for example lan=eth1")?;
    Ok((name.to_owned(), settings.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_named() {
        assert_eq!(parse_packet("lan=eth1"), Ok(("lan".to_owned(), "eth1".to_owned())));
        let (name, settings) = parse_xdp("lan=eth1,queue=2").expect("valid");
        assert_eq!((name.as_str(), settings.queue), ("lan", 2));
        for wrong in ["eth1", "lan="] {
            assert!(parse_packet(wrong).is_err() && parse_xdp(wrong).is_err(), "{wrong}");
        }
    }
}
