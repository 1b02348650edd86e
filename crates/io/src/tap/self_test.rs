//! Proves the features of a TAP device through the device itself.
//!
//! What the kernel agrees to does not always work: a container runtime may filter, and a kernel may
//! know a bit but lack the rest. So before any program runs, sockets in the namespace exchange
//! packets with this module, which acts as their peer on the other side of the device:
//!
//! - the kernel must send a datagram with a partial checksum, and accept one;
//! - it must send a `UDP_SEGMENT` send as one super-packet, and accept one;
//! - a TCP connection must send super-packets, and accept one.
//!
//! Each test runs over IPv4 and IPv6, as far as there are addresses, and compares bytes. A feature
//! that fails is switched off, and the report contains the reason. So is one that could not be
//! tested: nothing can use it either.
//!
//! The test runs on a thread inside the namespace, after the link is up and has its addresses. It
//! may wait without success for [`TIME_MAX`] in total. It leaves nothing behind: it deletes its
//! neighbour entries, closes its connections with RST, and reads and drops packets left in the
//! device. Its ports are above the kernel's ephemeral ports.

pub(crate) mod frame;
mod neighbour;
mod probe;
mod wire;

use super::{Features, Tap};
use frame::Path;
use neighbour::Neighbour;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use wire::Wire;

/// Longest time that a self-test waits without success, even if everything fails.
pub const TIME_MAX: Duration = Duration::from_millis(280);
/// Longest wait for one packet; a working device needs microseconds.
const STEP_TIME_MAX: Duration = Duration::from_millis(60);
/// Longest time for which the first packet of a family is repeated: the kernel's input learns of a
/// new IPv6 address from a work queue, some time after the call that added the address has
/// returned.
const SETTLE_TIME_MAX: Duration = Duration::from_millis(150);
/// Wait after each such repetition.
const SETTLE_STEP: Duration = Duration::from_millis(2);

/// What a self-test needs to know about the network inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelfTest {
    /// Ethernet address of the interface.
    pub program_mac: [u8; 6],
    /// Ethernet address of the gateway.
    pub gateway_mac: [u8; 6],
    /// IPv4 address of the interface.
    pub program_v4: Option<Ipv4Addr>,
    /// IPv6 address of the interface.
    pub program_v6: Option<Ipv6Addr>,
    /// IPv4 address of the gateway, on the link.
    pub gateway_v4: Option<Ipv4Addr>,
    /// IPv6 address of the gateway, on the link.
    pub gateway_v6: Option<Ipv6Addr>,
    /// MTU of the interface.
    pub mtu: u16,
}

/// Why a feature is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It was not requested, or the kernel did not agree.
    NotAgreed,
    /// There is no address to test it with.
    NoAddress,
    /// There is no network namespace to test it in.
    NoNetwork,
    /// It requires partial checksums, which do not work.
    NoChecksum,
    /// The device delivered no packet in time.
    Silent,
    /// A packet written to the device did not reach its socket in time.
    NotTaken,
    /// Packets arrived with complete checksums.
    Finished,
    /// A super-packet arrived as single segments.
    Segmentation,
    /// The bytes received differ from those sent.
    Altered,
    /// A call failed.
    Failed(&'static str, Errno),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAgreed => f.write_str("not agreed"),
            Self::NoAddress => f.write_str("no address to test it with"),
            Self::NoNetwork => f.write_str("no network namespace to test it in"),
            Self::NoChecksum => f.write_str("needs checksum"),
            Self::Silent => f.write_str("no packet came out in time"),
            Self::NotTaken => f.write_str("a packet was not taken in time"),
            Self::Finished => f.write_str("checksums came finished"),
            Self::Segmentation => f.write_str("came in single segments"),
            Self::Altered => f.write_str("bytes were altered"),
            Self::Failed(call, errno) => write!(f, "{call}: {errno}"),
        }
    }
}

/// Result of a self-test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Features that work and are on.
    pub features: Features,
    /// Features that are off, with the reasons, in the order checksum, tso4, tso6, uso.
    pub off: Vec<(&'static str, Reason)>,
    /// Duration of the self-test.
    pub elapsed: Duration,
}

impl Report {
    /// The report about a device that was not tested, for this reason.
    pub fn untested(reason: Reason) -> Self {
        let off = Verdicts::all(Some(reason)).failures().collect();
        Self { features: Features::NONE, off, elapsed: Duration::ZERO }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offload: {}", self.features)?;
        if self.features != Features::NONE {
            f.write_str(" (tested)")?;
        }
        for (index, (name, reason)) in self.off.iter().enumerate() {
            let separator = if index == 0 { "; off: " } else { ", " };
            write!(f, "{separator}{name} ({reason})")?;
        }
        Ok(())
    }
}

/// Proves the agreed features and switches off those that fail; see the module documentation.
pub fn self_test(tap: &mut Tap, setup: &SelfTest) -> Report {
    self_test_patiently(tap, setup, 1)
}

/// Runs [`self_test`] with time limits that are `patience` times as long, for callers that prefer
/// to wait over losing a feature because the machine is busy.
pub fn self_test_patiently(tap: &mut Tap, setup: &SelfTest, patience: u32) -> Report {
    let agreed = tap.features();
    let mut wire = Wire::new(tap.as_fd(), patience);
    let verdicts = match tap.name() {
        Ok(name) if agreed.checksum => Verdicts::try_all(&mut wire, &name, agreed, setup),
        _ => Verdicts::NOT_AGREED,
    };
    let elapsed = wire.elapsed();
    let working = verdicts.features();
    let features = match tap.set_offload(working) {
        Ok(features) => features,
        Err(_) => {
            tap.disable(Features::ALL);
            Features::NONE
        }
    };
    Report { features, off: verdicts.restrict(features).failures().collect(), elapsed }
}

/// The result for each feature: `None` if it works.
struct Verdicts {
    checksum: Option<Reason>,
    tso4: Option<Reason>,
    tso6: Option<Reason>,
    uso: Option<Reason>,
}

impl Verdicts {
    const NOT_AGREED: Self = Self::all(Some(Reason::NotAgreed));

    const fn all(verdict: Option<Reason>) -> Self {
        Self { checksum: verdict, tso4: verdict, tso6: verdict, uso: verdict }
    }

    fn try_all(wire: &mut Wire<'_>, name: &str, agreed: Features, setup: &SelfTest) -> Self {
        let paths = [setup.path_v4(), setup.path_v6()];
        let mut neighbours = [None, None];
        for (neighbour, path) in neighbours.iter_mut().zip(&paths) {
            let Some(path) = path else { continue };
            match Neighbour::add(name, path.gateway, path.gateway_mac) {
                Ok(added) => *neighbour = Some(added),
                Err(errno) => return Self::all(Some(Reason::Failed("add neighbour", errno))),
            }
        }
        let verdicts = Self::try_paths(wire, agreed, &paths);
        drop(neighbours);
        wire.drain();
        verdicts
    }

    fn try_paths(wire: &mut Wire<'_>, agreed: Features, paths: &[Option<Path>; 2]) -> Self {
        let mut tried = paths.iter().flatten().peekable();
        if tried.peek().is_none() {
            return Self::all(Some(Reason::NoAddress));
        }
        let checksum = tried.map(|path| probe::checksum(wire, path)).find_map(Result::err);
        if checksum.is_some() {
            return Self { checksum, ..Self::all(Some(Reason::NoChecksum)) };
        }
        let [v4, v6] = paths;
        let uso = if agreed.uso {
            paths.iter().flatten().map(|path| probe::uso(wire, path)).find_map(Result::err)
        } else {
            Some(Reason::NotAgreed)
        };
        let mut tso = |agreed: bool, path: &Option<Path>| match path {
            _ if !agreed => Some(Reason::NotAgreed),
            None => Some(Reason::NoAddress),
            Some(path) => probe::tso(wire, path).err(),
        };
        Self { checksum, tso4: tso(agreed.tso4, v4), tso6: tso(agreed.tso6, v6), uso }
    }

    /// A feature that was proved but is not in `features` in the end was not agreed.
    fn restrict(self, features: Features) -> Self {
        let restrict = |verdict: Option<Reason>, on: bool| {
            verdict.or(if on { None } else { Some(Reason::NotAgreed) })
        };
        Self {
            checksum: restrict(self.checksum, features.checksum),
            tso4: restrict(self.tso4, features.tso4),
            tso6: restrict(self.tso6, features.tso6),
            uso: restrict(self.uso, features.uso),
        }
    }

    fn features(&self) -> Features {
        Features {
            checksum: self.checksum.is_none(),
            tso4: self.tso4.is_none(),
            tso6: self.tso6.is_none(),
            uso: self.uso.is_none(),
            tunnel: false,
        }
    }

    fn failures(&self) -> impl Iterator<Item = (&'static str, Reason)> {
        let named = [
            ("checksum", self.checksum),
            ("tso4", self.tso4),
            ("tso6", self.tso6),
            ("uso", self.uso),
        ];
        named.into_iter().filter_map(|(name, verdict)| Some((name, verdict?)))
    }
}

impl SelfTest {
    fn path_v4(&self) -> Option<Path> {
        Some(self.path(IpAddr::V4(self.program_v4?), IpAddr::V4(self.gateway_v4?)))
    }

    fn path_v6(&self) -> Option<Path> {
        Some(self.path(IpAddr::V6(self.program_v6?), IpAddr::V6(self.gateway_v6?)))
    }

    fn path(&self, program: IpAddr, gateway: IpAddr) -> Path {
        let (program_mac, gateway_mac) = (self.program_mac, self.gateway_mac);
        Path { program, gateway, program_mac, gateway_mac, mtu: self.mtu }
    }
}
