//! Namespaces: creates new ones, enters existing ones, and configures a program's network in them.
//!
//! # Theory of operation
//!
//! [`Isolation::fork`] creates user, network, mount and PID namespaces as part of the fork. The
//! child is process 1 of the new PID namespace, so its end is the end of every process in it. The
//! child first calls [`Isolation::adopt`], then sets up its network and mounts, then becomes
//! [`init`]. A process with `CAP_SYS_ADMIN` and `CAP_NET_ADMIN` needs no user namespace and keeps
//! its identity. Any other process gets a user namespace in which only its own user and group
//! exist.
//!
//! [`enter`] does the reverse: it enters the network namespace of a running process.
//!
//! All of this is for a process with one thread; a fork fails if there are more.

use std::ffi::c_int;
use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::io::Errno;
use rustix::process::{Gid, Pid, Signal, Uid, WaitOptions, getegid, geteuid, waitpid};
use rustix::thread::{CapabilitySet, capabilities};

use crate::netlink::{LinkSettings, Netlink, NetlinkError, Route, link_local};
use crate::outside;
use crate::process_sys::{Forked, fork_into};

pub use child_guard::ChildGuard;

pub mod channel;
mod child_guard;
pub mod enter;
pub mod init;
pub mod listening;
pub mod mirror;
pub mod scratch;
pub mod signals;
pub mod sockets;
pub mod terminal;

/// Why namespaces could not be created or set up.
#[derive(Debug)]
pub enum NamespaceError {
    /// The system does not let this user make user namespaces.
    Forbidden(Forbidden),
    /// The kernel refused to create the namespaces for another reason.
    Fork(io::Error),
    /// The user's identity could not be set in the new user namespace.
    Identity {
        /// The file of /proc.
        file: &'static str,
        /// The error of writing it.
        source: io::Error,
    },
}

impl fmt::Display for NamespaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden(value) => write!(f, "user namespaces are forbidden here: {value}"),
            Self::Fork(..) => f.write_str("cannot create namespaces"),
            Self::Identity { file, .. } => {
                write!(f, "cannot set the user's identity in the new user namespace ({file})")
            }
        }
    }
}

impl std::error::Error for NamespaceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Fork(error) => Some(error),
            Self::Identity { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Why user namespaces are forbidden, as far as it can be determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// The sysctl `user.max_user_namespaces` is zero.
    LimitZero,
    /// A limit on the number of namespaces is reached.
    LimitReached,
    /// Debian's sysctl `kernel.unprivileged_userns_clone` is off.
    SwitchedOff,
    /// AppArmor restricts user namespaces to programs with a profile.
    AppArmor,
    /// Another cause: a seccomp filter or a security module.
    Sandbox,
    /// The kernel was built without user namespaces, or they are nested too deeply.
    Unsupported,
}

impl Forbidden {
    /// What forbids user namespaces, without [what to do](Self::remedy).
    pub fn problem(self) -> &'static str {
        match self {
            Self::LimitZero => "user.max_user_namespaces is 0",
            Self::LimitReached => "a limit on the number of namespaces is reached",
            Self::SwitchedOff => "kernel.unprivileged_userns_clone is 0",
            Self::AppArmor => "AppArmor restricts them",
            Self::Sandbox => "a container's seccomp filter or a security module refuses them",
            Self::Unsupported => "this kernel lacks them, or they are nested too deeply",
        }
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::LimitZero => {
                "run `sysctl user.max_user_namespaces=10000` as root, or run towpath as root"
            }
            Self::LimitReached => "see /proc/sys/user/max_*_namespaces",
            Self::SwitchedOff => {
                "run `sysctl kernel.unprivileged_userns_clone=1` as root, or run towpath as root"
            }
            Self::AppArmor => {
                "run `sysctl kernel.apparmor_restrict_unprivileged_userns=0` as root, or give \
                 towpath an AppArmor profile with `userns,`, or run towpath as root"
            }
            Self::Sandbox => {
                "in a container, allow the system calls clone and unshare (`--security-opt \
                 seccomp=unconfined`) or run towpath outside of it"
            }
            Self::Unsupported => "run towpath as root",
        }
    }
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem(), self.remedy())
    }
}

impl std::error::Error for Forbidden {}

/// How a program is separated from the host, and which user it runs as.
#[derive(Clone, Copy, Debug)]
pub struct Isolation {
    uid: Uid,
    gid: Gid,
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// This process has enough privilege to need no user namespace.
    Privileged,
    /// A user namespace in which the user keeps its number, or becomes 0.
    User { as_root: bool },
}

impl Isolation {
    /// Determines what this process is able to do. Without privilege, `as_root` makes the user
    /// appear as root inside; with privilege it has no effect.
    ///
    /// # Errors
    /// Those of capget(2).
    pub fn detect(as_root: bool) -> io::Result<Self> {
        let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
        let privileged = capabilities(None)?.effective.contains(needed);
        let mode = if privileged { Mode::Privileged } else { Mode::User { as_root } };
        Ok(Self { uid: geteuid(), gid: getegid(), mode })
    }

    /// Uses a user namespace in any case, in which a privileged user keeps its number. The program
    /// then has no rights over namespaces of the host, nor over their sockets.
    #[must_use]
    pub fn in_user_namespace(self) -> Self {
        match self.mode {
            Mode::Privileged => Self { mode: Mode::User { as_root: false }, ..self },
            Mode::User { .. } => self,
        }
    }

    /// True if no user namespace is needed.
    pub fn is_privileged(&self) -> bool {
        self.mode == Mode::Privileged
    }

    /// Forks a child that is process 1 of new namespaces. Once the child has called
    /// [`adopt`](Self::adopt), the kernel kills it when the thread that called this ends.
    ///
    /// # Errors
    /// [`NamespaceError::Forbidden`] or [`NamespaceError::Fork`].
    pub fn fork(&self) -> Result<Forked, NamespaceError> {
        let mut namespaces = libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWPID;
        if !self.is_privileged() {
            namespaces |= libc::CLONE_NEWUSER;
        }
        fork_into(namespaces).map_err(|error| self.explain(error))
    }

    /// In the child: takes the user's identity, and requests to die with the parent from now on.
    ///
    /// # Errors
    /// [`NamespaceError::Identity`], or [`NamespaceError::Forbidden`] if a security module permits
    /// to create user namespaces but not to use them.
    pub fn adopt(&self) -> Result<(), NamespaceError> {
        if let Mode::User { as_root } = self.mode {
            let (uid, gid) = (self.uid.as_raw(), self.gid.as_raw());
            let (uid_inside, gid_inside) = if as_root { (0, 0) } else { (uid, gid) };
            // user_namespaces(7): an unprivileged user may map its own group only after it has
            // given up setgroups.
            self.write_identity("/proc/self/setgroups", "deny")?;
            self.write_identity("/proc/self/gid_map", &format!("{gid_inside} {gid} 1"))?;
            self.write_identity("/proc/self/uid_map", &format!("{uid_inside} {uid} 1"))?;
        }
        // After the change of credentials, which clears this setting.
        die_with_parent().map_err(NamespaceError::Fork)
    }

    fn write_identity(&self, file: &'static str, text: &str) -> Result<(), NamespaceError> {
        fs::write(file, text).map_err(|source| {
            let denied = source.kind() == io::ErrorKind::PermissionDenied;
            match restricted_by_apparmor() {
                true if denied => NamespaceError::Forbidden(Forbidden::AppArmor),
                _ => NamespaceError::Identity { file, source },
            }
        })
    }

    fn explain(&self, error: io::Error) -> NamespaceError {
        if self.is_privileged() {
            return NamespaceError::Fork(error);
        }
        let forbidden = match Errno::from_io_error(&error) {
            Some(Errno::NOSPC) if sysctl_is_zero("user/max_user_namespaces") => {
                Forbidden::LimitZero
            }
            Some(Errno::NOSPC) => Forbidden::LimitReached,
            Some(Errno::USERS | Errno::INVAL | Errno::NOSYS) => Forbidden::Unsupported,
            Some(Errno::PERM | Errno::ACCESS) => {
                if sysctl_is_zero("kernel/unprivileged_userns_clone") {
                    Forbidden::SwitchedOff
                } else if restricted_by_apparmor() {
                    Forbidden::AppArmor
                } else {
                    Forbidden::Sandbox
                }
            }
            _ => return NamespaceError::Fork(error),
        };
        NamespaceError::Forbidden(forbidden)
    }
}

/// Configuration of a network interface for the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Packets that may wait in its transmit queue.
    pub tx_queue_len: u32,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// Its IPv4 network, if it has one.
    pub ipv4: Option<Addresses>,
    /// Its IPv6 network, if it has one.
    pub ipv6: Option<Addresses>,
    /// Further addresses, with the bits of their networks' prefixes.
    pub further: Vec<(IpAddr, u8)>,
    /// Routes besides the default ones. Those that the kernel refuses are left out, as the default
    /// routes lead to the same gateway.
    pub routes: Vec<Route>,
}

/// Addresses of one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The address of the interface.
    pub address: IpAddr,
    /// Bits of the network's prefix.
    pub prefix_len: u8,
    /// The default gateway.
    pub gateway: IpAddr,
}

impl Addresses {
    /// True if the kernel finds the gateway on the link by itself.
    fn has_gateway_inside(&self) -> bool {
        let shift = |bits: u32| bits.saturating_sub(u32::from(self.prefix_len));
        match (self.address, self.gateway) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                (a.to_bits() ^ b.to_bits()).checked_shr(shift(u32::BITS)).unwrap_or(0) == 0
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let differ = (a.to_bits() ^ b.to_bits()).checked_shr(shift(u128::BITS));
                b.is_unicast_link_local() || differ.unwrap_or(0) == 0
            }
            _ => true,
        }
    }
}

/// Result of configuring an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Configured {
    /// Everything was configured.
    Whole,
    /// The kernel does not support IPv6 here; only IPv4 is configured.
    WithoutIpv6(Errno),
}

impl Interface {
    /// Gives the existing link of this name its Ethernet address, and sets the loopback link up.
    /// Another process configures the rest.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn prepare(&self) -> Result<(), NetlinkError> {
        let mut netlink = Netlink::open()?;
        netlink.loopback_up()?;
        let index = netlink.link_index(&self.name)?;
        netlink.link_set(index, &LinkSettings { mac: Some(self.mac), ..LinkSettings::default() })
    }

    /// Gives the existing link of this name its IPv6 addresses and route, and sets it up, after
    /// [`prepare`](Self::prepare). Another process configures IPv4. What exists already stays.
    ///
    /// # Errors
    /// [`NetlinkError`]. A kernel without IPv6 is an error only if there is no IPv4.
    pub fn configure_ipv6(&self) -> Result<Configured, NetlinkError> {
        let Some(ipv6) = &self.ipv6 else { return Ok(Configured::Whole) };
        let mut netlink = Netlink::open()?;
        let index = netlink.link_index(&self.name)?;
        netlink.link_set(index, &LinkSettings { up: true, ..LinkSettings::default() })?;
        let local = link_local(self.mac).into();
        let added = unless_there(netlink.address_add(index, local, 64))
            .and_then(|()| unless_there(netlink.address_add(index, ipv6.address, ipv6.prefix_len)))
            .and_then(|()| {
                let on_link = !ipv6.has_gateway_inside();
                unless_there(netlink.route_add_default(index, ipv6.gateway, on_link))
            });
        self.outcome(added)
    }

    /// Gives the existing link of this name its addresses and routes and sets it up. The addresses
    /// are usable at once. Also sets the loopback link up.
    ///
    /// # Errors
    /// [`NetlinkError`]. A kernel without IPv6 is an error only if there is no IPv4.
    pub fn configure(&self) -> Result<Configured, NetlinkError> {
        let mut netlink = Netlink::open()?;
        netlink.loopback_up()?;
        let index = netlink.link_index(&self.name)?;
        let mut settings = LinkSettings {
            up: false,
            mtu: Some(self.mtu),
            tx_queue_len: Some(self.tx_queue_len),
            gso_max_size: None,
            mac: Some(self.mac),
            address_gen_mode_none: false,
        };
        netlink.link_set(index, &settings)?;
        settings = LinkSettings { address_gen_mode_none: true, ..LinkSettings::default() };
        // Fails on kernels without IPv6, which is handled below.
        let quiet = netlink.link_set(index, &settings);
        netlink.link_set(index, &LinkSettings { up: true, ..LinkSettings::default() })?;
        if let Some(ipv4) = &self.ipv4 {
            add_network(&mut netlink, index, ipv4)?;
            self.add_further(&mut netlink, index, true)?;
            self.add_routes(&mut netlink, index, true);
        }
        let Some(ipv6) = &self.ipv6 else { return Ok(Configured::Whole) };
        let added = quiet
            .and_then(|()| netlink.address_add(index, link_local(self.mac).into(), 64))
            .and_then(|()| add_network(&mut netlink, index, ipv6))
            .and_then(|()| self.add_further(&mut netlink, index, false));
        if added.is_ok() {
            self.add_routes(&mut netlink, index, false);
        }
        self.outcome(added)
    }

    /// Returns how the interface is configured after its IPv6 was.
    fn outcome(&self, added: Result<(), NetlinkError>) -> Result<Configured, NetlinkError> {
        match added {
            Ok(()) => Ok(Configured::Whole),
            Err(NetlinkError::Refused { errno, .. })
                if self.ipv4.is_some() && means_no_ipv6(errno) =>
            {
                Ok(Configured::WithoutIpv6(errno))
            }
            Err(error) => Err(error),
        }
    }

    fn add_further(
        &self,
        netlink: &mut Netlink,
        index: u32,
        is_ipv4: bool,
    ) -> Result<(), NetlinkError> {
        let mut of_version = self.further.iter().filter(|(ip, _)| ip.is_ipv4() == is_ipv4);
        of_version.try_for_each(|(address, bits)| netlink.address_add(index, *address, *bits))
    }

    /// Adds routes, first those to networks on the link, where gateways of others may be.
    fn add_routes(&self, netlink: &mut Netlink, index: u32, is_ipv4: bool) {
        for is_direct in [true, false] {
            let now = self.routes.iter().filter(|route| route.gateway.is_none() == is_direct);
            for route in now.filter(|route| route.destination.is_ipv4() == is_ipv4) {
                let _ = netlink.route_add(index, route);
            }
        }
    }
}

/// Lets unprivileged programs use ports below 1024 and ICMP echo in the current network namespace,
/// which must be the program's own. Returns false if /proc/sys cannot be written.
pub fn relax_network_limits(isolation: &Isolation) -> bool {
    let gid = match isolation.mode {
        Mode::Privileged | Mode::User { as_root: true } => 0,
        Mode::User { as_root: false } => isolation.gid.as_raw(),
    };
    let ports = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    let echo = fs::write("/proc/sys/net/ipv4/ping_group_range", format!("{gid} {gid}"));
    ports.and(echo).is_ok()
}

/// Makes the kernel kill this process when the thread that forked it ends. The caller must still
/// check whether that has happened already.
///
/// # Errors
/// Those of prctl(2).
pub fn die_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Forks a child that stays in this process's namespaces.
///
/// # Errors
/// Those of [`fork_into`].
pub fn fork() -> io::Result<Forked> {
    const NO_NAMESPACES: c_int = 0;
    fork_into(NO_NAMESPACES)
}

/// Waits for the end of a child.
///
/// # Errors
/// Those of waitpid(2).
pub fn reap(pid: Pid) -> io::Result<ExitStatus> {
    let waited = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()))?;
    let (_, status) = waited.expect("without NOHANG, waitpid returns a status");
    Ok(ExitStatus::from_raw(status.as_raw()))
}

/// Kills a child and waits for its end; one that has already ended is only waited for. If the
/// broker would have to kill it but is dead itself, the child is left alone: it [dies with this
/// process](die_with_parent).
pub fn kill_and_reap(pid: Pid) {
    match outside::end_child() {
        Some(Ok(())) => {}
        Some(Err(_)) => return,
        // Fails only if the child has been waited for already; then `reap` fails, too.
        None => drop(rustix::process::kill_process(pid, Signal::KILL)),
    }
    let _ = reap(pid);
}

/// Ignores that what was to be added exists.
fn unless_there(added: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    match added {
        Err(NetlinkError::Refused { errno: Errno::EXIST, .. }) => Ok(()),
        Err(NetlinkError::DefaultRouteExists) => Ok(()),
        added => added,
    }
}

fn add_network(netlink: &mut Netlink, index: u32, network: &Addresses) -> Result<(), NetlinkError> {
    netlink.address_add(index, network.address, network.prefix_len)?;
    netlink.route_add_default(index, network.gateway, !network.has_gateway_inside())
}

/// True for the errors of a kernel without IPv6, or with IPv6 disabled.
pub fn means_no_ipv6(errno: Errno) -> bool {
    matches!(errno, Errno::AFNOSUPPORT | Errno::OPNOTSUPP | Errno::ACCESS | Errno::INVAL)
}

fn restricted_by_apparmor() -> bool {
    const FILE: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
    fs::read_to_string(FILE).is_ok_and(|text| text.trim() == "1")
}

fn sysctl_is_zero(name: &str) -> bool {
    fs::read_to_string(format!("/proc/sys/{name}")).is_ok_and(|text| text.trim() == "0")
}
