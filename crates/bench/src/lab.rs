//! The networks of a measurement: the host, the outside, and one per program.
//!
//! ```text
//!  outside ── veth ── host (own loopback, servers, gateways) ── gateway ── program
//! ```
//!
//! The host's network is that of process 1, where everything starts. Each other network is held by
//! an idle process. Networks have no names, so they disappear with their processes. Work in another
//! network is done by a thread that enters it and ends there. Limits: networks must be created
//! before the first thread, because that takes a fork.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::panic::resume_unwind;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, bail};
use rustix::net::sockopt;
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities};
use towpath_io::namespace::die_with_parent;
use towpath_io::namespace::enter::NetworkNamespace;
use towpath_io::netlink::Netlink;
use towpath_io::process_sys::{Forked, fork_into};

use towpath_io::namespace::ChildGuard;

/// The outside's address on its link to the host. pasta uses it as the gateway and maps it to the
/// host's loopback.
pub(super) const OUTSIDE_V4: [u8; 4] = [10, 9, 0, 1];
pub(super) const OUTSIDE_V6: [u16; 8] = [0xfd09, 0, 0, 0, 0, 0, 0, 1];

/// Below [`LOCAL_PORTS`], so that no client socket uses it.
pub(super) const IPERF_PORT: u16 = 5201;

/// A separate network.
pub(super) struct Network {
    namespace: NetworkNamespace,
    holder: i32,
    _holder: ChildGuard,
}

impl Network {
    /// Creates an empty network. No thread may run yet.
    pub(super) fn new() -> anyhow::Result<Self> {
        let flags = i32::try_from(UnshareFlags::NEWNET.bits()).expect("it is bit 30");
        match fork_into(flags).context("cannot create a network namespace")? {
            Forked::Child => hold(),
            Forked::Parent(child) => {
                let holder = child.pid.as_raw_pid();
                let kept = ChildGuard::new(child);
                let (namespace, _) = NetworkNamespace::of_process(holder)?;
                Ok(Self { namespace, holder, _holder: kept })
            }
        }
    }

    /// Process ID of the holder, for the gateways' command lines.
    pub(super) fn holder(&self) -> i32 {
        self.holder
    }

    /// Runs `work` inside the network, on a new thread, whose child processes start inside too.
    pub(super) fn inside<T: Send>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.namespace.enter(None)?;
                work()
            });
            inside.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }
}

/// Runs a holder, without privilege: otherwise only equally privileged processes could open its
/// namespace, and pasta drops most of its privileges before it does.
fn hold() -> ! {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    // If it fails, pasta fails too, and reports it.
    let _ = set_capabilities(None, none);
    // For a holder that no process 1 takes along, as in a harness. It cannot fail.
    let _ = die_with_parent();
    loop {
        thread::park();
    }
}

/// Prepares the host's network, where this process is, and the outside. Returns the congestion
/// control algorithm in use.
pub(super) fn prepare_host(outside: &Network) -> anyhow::Result<String> {
    let algorithm = prepare()?;
    outside.inside(prepare)?;
    let holder = outside.holder();
    ip(&format!("link add up0 type veth peer name up0 netns {holder}"))?;
    // The largest MTU that the kernel allows, so that it does not limit pasta, which copies it.
    ip("link set up0 mtu 65520 up")?;
    ip("addr add 10.9.0.2/24 dev up0")?;
    ip("addr add fd09::2/64 dev up0 nodad")?;
    outside.inside(|| {
        ip("link set up0 mtu 65520 up")?;
        ip("addr add 10.9.0.1/24 dev up0")?;
        ip("addr add fd09::1/64 dev up0 nodad")
    })?;
    ip("route add default via 10.9.0.1")?;
    ip("-6 route add default via fd09::1")?;
    outside.inside(name_by_routes)?;
    name_by_routes()?;
    Ok(algorithm)
}

/// Prepares a network for a program and its gateway.
pub(super) fn prepare_program(program: &Network) -> anyhow::Result<()> {
    program.inside(prepare).map(drop)
}

/// Joins a program's network to the host's with a veth pair; the host is 10.8.`subnet`.1.
pub(super) fn join_by_veth(program: &Network, subnet: u8, mtu: u16) -> anyhow::Result<()> {
    let (holder, name) = (program.holder(), format!("veth{subnet}"));
    ip(&format!("link add {name} type veth peer name veth0 netns {holder}"))?;
    ip(&format!("addr add 10.8.{subnet}.1/24 dev {name}"))?;
    ip(&format!("addr add fd08:{subnet}::1/64 dev {name} nodad"))?;
    ip(&format!("link set {name} mtu {mtu} up"))?;
    program.inside(|| {
        ip(&format!("addr add 10.8.{subnet}.2/24 dev veth0"))?;
        ip(&format!("addr add fd08:{subnet}::2/64 dev veth0 nodad"))?;
        ip(&format!("link set veth0 mtu {mtu} up"))?;
        name_by_routes()
    })?;
    name_by_routes()
}

/// Sets the address of the kernel's side of a TAP device in the network.
pub(super) fn join_by_tap(
    program: &Network,
    name: &str,
    address: Ipv4Addr,
    prefix_len: u8,
) -> anyhow::Result<()> {
    program.inside(|| {
        ip(&format!("addr add {address}/{prefix_len} dev {name}"))?;
        ip(&format!("link set {name} up"))
    })
}

/// Enough for the connections of one probe; each port is blocked for a minute.
const LOCAL_PORTS: &str = "10000 65535";
/// The default of most systems. Some machines have another default, which would distort the
/// figures.
const CONGESTION_CONTROL: &str = "cubic";

/// Prepares the network of this thread. Returns the congestion control algorithm in use.
pub(super) fn prepare() -> anyhow::Result<String> {
    Netlink::open()?.loopback_up()?;
    let set = |name: &str, value: &str| {
        let path = format!("/proc/sys/net/ipv4/{name}");
        fs::write(&path, value).with_context(|| format!("cannot write {path}"))
    };
    set("ip_local_port_range", LOCAL_PORTS)?;
    set("tcp_tw_reuse", "1")?;
    // Refused where the first namespace does not list it among the allowed algorithms; routes may
    // still name it.
    let _ = set("tcp_congestion_control", CONGESTION_CONTROL);
    name_by_routes()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    sockopt::tcp_congestion(&stream).context("cannot read the congestion control algorithm")
}

/// Sets [`CONGESTION_CONTROL`] in all routes that this thread's network has now, for connections
/// that use them.
pub(super) fn name_by_routes() -> anyhow::Result<()> {
    for family in ["-4", "-6"] {
        let mut command = Command::new("ip");
        let output = command.args([family, "route", "show", "table", "all"]).output();
        let output = output.context("cannot execute ip (package iproute2)")?;
        let routes = String::from_utf8_lossy(&output.stdout);
        let is_unicast = |route: &&str| {
            !["broadcast", "multicast", "anycast"].iter().any(|kind| route.starts_with(kind))
        };
        let is_unnamed = |route: &&str| is_unicast(route) && !route.contains("congctl");
        for route in routes.lines().filter(is_unnamed) {
            let route = route.replace(" linkdown", "");
            // If a route cannot be changed, the algorithm in use shows it.
            let made = ip(&format!("{family} route replace {route} congctl {CONGESTION_CONTROL}"));
            // In IPv6, metric 0 stands for the default metric: the new route is an additional one,
            // in second place.
            if made.is_ok() && route.contains(" metric 0 ") {
                let _ = ip(&format!("{family} route del {route}"));
            }
        }
    }
    Ok(())
}

/// A notice for the user if another algorithm is in use.
pub(super) fn congestion_control_notice(used: &str) -> Option<String> {
    (used != CONGESTION_CONTROL).then(|| {
        format!(
            "TCP uses {used} here, not {CONGESTION_CONTROL}: figures may differ from those of \
             other machines; add {CONGESTION_CONTROL} to the sysctl \
             net.ipv4.tcp_allowed_congestion_control to change that"
        )
    })
}

/// Runs ip (iproute2) in the network of this thread.
pub(super) fn ip(arguments: &str) -> anyhow::Result<()> {
    let mut command = Command::new("ip");
    command.args(arguments.split_ascii_whitespace()).stdin(Stdio::null());
    let output = command.output().context("cannot execute ip (package iproute2)")?;
    if !output.status.success() {
        bail!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(())
}
