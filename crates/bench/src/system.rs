//! The systems that are compared, and how each one starts.
//!
//! All systems join the same kind of network, which exists before them. Through them, the program
//! in it reaches servers on the host's loopback.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;

use super::lab::{IPERF_PORT, OUTSIDE_V4, OUTSIDE_V6};

/// What towpath can be compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Peer {
    /// This program with MTU 65520.
    Towpath,
    /// This program with one worker.
    OneWorker,
    /// This program, which lends what it sends to other machines.
    Lending,
    /// This program with a policy of a thousand rules.
    Policy,
    /// pasta, with MTU 1500 and 65520.
    Pasta,
    /// slirp4netns, with MTU 1500 and 65520.
    Slirp4netns,
    /// gvproxy with gvforwarder, with MTU 1500 over IPv4.
    Gvproxy,
    /// A veth pair: the kernel alone.
    Veth,
    /// Nothing: towpath's own figures.
    None,
}

/// A system and its MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) system: System,
    pub(super) mtu: u16,
}

/// A system that carries a program's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
    /// This program.
    Towpath,
    /// This program, set up in another way.
    Variant(Variant),
    Pasta,
    Slirp4netns,
    Gvproxy,
    Veth,
}

/// Another way to set up this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// With `--workers 1`.
    OneWorker,
    /// With `--lend-to-host always`.
    Lending,
    /// With a policy of [`RULES`] rules, of which the last allows the flows.
    Policy,
}

/// Rules of a policy: half of them for networks, half for names.
const RULES: usize = 1000;

/// The setups: towpath first, then the peers at the MTUs to compare.
pub(super) fn setups(peers: &[Peer]) -> Vec<Setup> {
    let mut setups = vec![Setup { system: System::Towpath, mtu: MTU_ORDINARY }];
    let mut add = |system, mtu| {
        let setup = Setup { system, mtu };
        if !setups.contains(&setup) {
            setups.push(setup);
        }
    };
    for peer in peers {
        let system = match peer {
            Peer::Towpath => {
                add(System::Towpath, MTU_LARGE);
                continue;
            }
            Peer::OneWorker => System::Variant(Variant::OneWorker),
            Peer::Lending => System::Variant(Variant::Lending),
            Peer::Policy => System::Variant(Variant::Policy),
            Peer::Pasta => System::Pasta,
            Peer::Slirp4netns => System::Slirp4netns,
            Peer::Gvproxy => System::Gvproxy,
            Peer::Veth => System::Veth,
            Peer::None => continue,
        };
        add(system, MTU_ORDINARY);
        // These peers are fast only at this MTU, with which the network is no longer Ethernet.
        if matches!(system, System::Pasta | System::Slirp4netns) {
            add(system, MTU_LARGE);
        }
    }
    setups
}

impl Setup {
    /// The command that joins the network held by process `holder`; `None` for the kernel. Sockets
    /// go to the folder `scratch`.
    ///
    /// # Errors
    /// The file of the policy cannot be written.
    pub(super) fn command(self, holder: i32, scratch: &Path) -> io::Result<Option<Command>> {
        let (mtu, joined) = (self.mtu.to_string(), IPERF_PORT.to_string());
        let netns = format!("/proc/{holder}/ns/net");
        Ok(Some(match self.system {
            System::Towpath | System::Variant(_) => {
                let mut command = self.attach();
                if self.system == System::Variant(Variant::Policy) {
                    let file = scratch.join(format!("policy-{holder}.toml"));
                    fs::write(&file, policy())?;
                    command.arg("--egress").arg(file);
                }
                command.args(["--map-host-loopback", &TOWPATH_V4.to_string()]);
                command.args(["--map-host-loopback", &TOWPATH_V6.to_string()]);
                command.args(["--host-tcp-ports", &joined]).arg(holder.to_string());
                command
            }
            System::Pasta => {
                let mut command = Command::new("pasta");
                command.args(["--foreground", "--config-net", "--runas", "0", "--mtu", &mtu]);
                command.args(["-t", "none", "-u", "none", "-T", &joined, "-U", "none"]);
                command.args(["--netns-only", "--netns", &netns]);
                command
            }
            System::Slirp4netns => {
                let mut command = Command::new("slirp4netns");
                command.args(["--configure", "--enable-ipv6", "--mtu", &mtu]);
                command.args(["--netns-type=path", &netns, "tap0"]);
                command
            }
            System::Gvproxy => {
                let socket = scratch.join(format!("gvproxy-{holder}"));
                let mut command = Command::new("sh");
                command.args(["-ec", GVPROXY, "sh"]).args([&netns, &mtu]).arg(socket);
                command
            }
            System::Veth => return Ok(None),
        }))
    }

    /// The command that joins another such network, with its port [`IPERF_PORT`] published on the
    /// host's loopback; `None` for systems without a shortcut between loopbacks.
    pub(super) fn publishing_command(self, holder: i32, port: u16) -> Option<Command> {
        let (mtu, spec) = (self.mtu.to_string(), format!("127.0.0.1/{port}:{IPERF_PORT}"));
        let netns = format!("/proc/{holder}/ns/net");
        Some(match self.system {
            System::Towpath | System::Variant(_) => {
                let mut command = self.attach();
                command.args(["--join-published", "-t", &spec]).arg(holder.to_string());
                command
            }
            System::Pasta => {
                let mut command = Command::new("pasta");
                command.args(["--foreground", "--config-net", "--runas", "0", "--mtu", &mtu]);
                command.args(["-t", &spec, "-u", "none", "-T", "none", "-U", "none"]);
                command.args(["--netns-only", "--netns", &netns]);
                command
            }
            System::Slirp4netns | System::Gvproxy | System::Veth => return None,
        })
    }

    /// The start of a command `towpath`; this program acts as it under that name.
    fn attach(self) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(towpath_cli::NAME).args(["attach", "--quiet", "--mtu", &self.mtu.to_string()]);
        match self.system {
            System::Variant(Variant::OneWorker) => command.args(["--workers", "1"]),
            System::Variant(Variant::Lending) => command.args(["--lend-to-host", "always"]),
            _ => &mut command,
        };
        command
    }

    /// The address at which its program reaches servers in the network outside; `None` if it does
    /// not.
    pub(super) fn outside(self, ipv6: bool) -> Option<IpAddr> {
        match self.system {
            System::Towpath | System::Variant(_) if ipv6 => Some(OUTSIDE_V6.into()),
            System::Towpath | System::Variant(_) => Some(OUTSIDE_V4.into()),
            // It maps this address to the host's loopback, or has no route to it.
            System::Pasta | System::Slirp4netns | System::Gvproxy | System::Veth => None,
        }
    }

    /// The address at which its program reaches the host's servers; `subnet` is that of a veth
    /// pair.
    pub(super) fn target(self, ipv6: bool, subnet: u8) -> Option<IpAddr> {
        Some(match (self.system, ipv6) {
            (System::Towpath | System::Variant(_), false) => TOWPATH_V4.into(),
            (System::Towpath | System::Variant(_), true) => TOWPATH_V6.into(),
            (System::Pasta, false) => OUTSIDE_V4.into(),
            (System::Pasta, true) => OUTSIDE_V6.into(),
            (System::Slirp4netns, false) => Ipv4Addr::new(10, 0, 2, 2).into(),
            (System::Slirp4netns, true) => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).into(),
            (System::Gvproxy, false) => Ipv4Addr::new(192, 168, 127, 254).into(),
            (System::Gvproxy, true) => return None,
            (System::Veth, false) => Ipv4Addr::new(10, 8, subnet, 1).into(),
            (System::Veth, true) => Ipv6Addr::new(0xfd08, subnet.into(), 0, 0, 0, 0, 0, 1).into(),
        })
    }
}

impl Setup {
    /// The address on the program's own loopback that leads to iperf3's server on the host.
    pub(super) fn loopback(self) -> Option<IpAddr> {
        match self.system {
            System::Towpath | System::Variant(_) | System::Pasta => {
                Some(Ipv4Addr::LOCALHOST.into())
            }
            System::Slirp4netns | System::Gvproxy | System::Veth => None,
        }
    }
}

/// Returns a policy whose last rule allows the flows of the benchmark.
fn policy() -> String {
    let mut text = String::from("[egress]\n");
    for number in 0..RULES - 1 {
        let (high, low) = (number / 256, number % 256);
        let to = match number % 2 {
            0 => format!("10.{high}.{low}.0/24"),
            _ => format!("*.host-{number}.example"),
        };
        text += &format!("[[egress.rule]]\naction = 'allow'\nto = '{to}'\nports = 'tcp/443'\n");
    }
    text + "[[egress.rule]]\naction = 'allow'\noverride-floor = true\n"
}

impl System {
    /// The program that must be installed.
    pub(super) fn program(self) -> Option<&'static str> {
        match self {
            System::Towpath | System::Variant(_) | System::Veth => None,
            System::Pasta => Some("pasta"),
            System::Slirp4netns => Some("slirp4netns"),
            System::Gvproxy => Some("gvproxy"),
        }
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.system {
            System::Towpath if self.mtu == MTU_ORDINARY => write!(f, "towpath"),
            System::Towpath => write!(f, "towpath@{}", self.mtu),
            System::Variant(Variant::OneWorker) => write!(f, "towpath@1worker"),
            System::Variant(Variant::Lending) => write!(f, "towpath@lending"),
            System::Variant(Variant::Policy) => write!(f, "towpath@policy"),
            System::Pasta => write!(f, "pasta@{}", self.mtu),
            System::Slirp4netns => write!(f, "slirp4netns@{}", self.mtu),
            System::Gvproxy => write!(f, "gvproxy@{}", self.mtu),
            System::Veth => write!(f, "veth@{}", self.mtu),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no peer is skipped");
        f.write_str(value.get_name())
    }
}

/// Path of an installed program.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = env::split_paths(&path).map(|place| place.join(OsStr::new(name)));
    places.find(|place| place.is_file())
}

/// An installed program's version text.
pub(super) fn version(name: &str) -> Option<String> {
    let output = Command::new(name).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words = text.lines().next()?.trim();
    Some(words.replacen(" version", "", 1))
}

/// Starts gvproxy, and gvforwarder in the network `$1` with MTU `$2`. They talk through the socket
/// `$3`. gvproxy ends with gvforwarder, whose parent it is made.
const GVPROXY: &str = r#"
rm -f "$3"
nsenter --net="$1" sh -ec '
    ip link del tap0 2>/dev/null || :
    ip tuntap add tap0 mode tap
    ip addr add 192.168.127.2/24 dev tap0
    ip link set tap0 mtu "$1" up
    ip route add default via 192.168.127.1
' sh "$2"
setpriv --pdeathsig KILL gvproxy -listen "unix://$3" -mtu "$2" &
while ! [ -S "$3" ]; do sleep 0.01; done
exec nsenter --net="$1" gvforwarder -url "unix://$3" -preexisting -iface tap0 -mtu $(($2 + 14))
"#;

/// Ethernet's MTU.
const MTU_ORDINARY: u16 = 1500;
/// The peers' default, chosen for speed.
const MTU_LARGE: u16 = 65520;
const TOWPATH_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const TOWPATH_V6: Ipv6Addr = Ipv6Addr::new(0xfd74, 0x6f77, 0x7061, 0x7468, 0, 0, 0, 2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn towpath_is_first_and_setups_are_unique() {
        use Peer::{Lending, None, OneWorker, Pasta, Policy, Towpath, Veth};
        let setups = setups(&[Veth, Towpath, Pasta, None, Pasta, OneWorker, Lending, Policy]);
        let names: Vec<_> = setups.iter().map(Setup::to_string).collect();
        let expected = ["towpath", "veth@1500", "towpath@65520", "pasta@1500", "pasta@65520"];
        assert_eq!(names[..5], expected);
        assert_eq!(names[5..], ["towpath@1worker", "towpath@lending", "towpath@policy"]);
    }
}
