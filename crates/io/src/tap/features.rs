//! Offload features of a TAP device, and their negotiation with the kernel.
//!
//! The kernel refuses a mask with any bit that it does not know or allow. So masks are tried in
//! steps, largest first. Rules of `TUNSETOFFLOAD`: every bit requires the checksum bit; the two UDP
//! bits must be set together; those of tunnels (Linux 6.17) require one for super-packets without a
//! tunnel.

use rustix::io::Errno;
use std::fmt;

/// Offload features of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Features {
    /// Partial checksums.
    pub checksum: bool,
    /// TCP super-packets over IPv4.
    pub tso4: bool,
    /// TCP super-packets over IPv6.
    pub tso6: bool,
    /// UDP super-packets over IPv4 and IPv6.
    pub uso: bool,
    /// Super-packets of these kinds in UDP tunnels, with or without an outer checksum.
    pub tunnel: bool,
}

impl Features {
    /// All features, for a switch: a caller that requests tunnels must segment tunnelled
    /// super-packets.
    pub const WITH_TUNNELS: Self = Self { tunnel: true, ..Self::ALL };
    /// All features that a stack uses.
    pub const ALL: Self = Self { checksum: true, tso4: true, tso6: true, uso: true, tunnel: false };
    /// No feature.
    pub const NONE: Self =
        Self { checksum: false, tso4: false, tso6: false, uso: false, tunnel: false };

    /// The features that are in both sets.
    pub fn and(self, other: Self) -> Self {
        Self {
            checksum: self.checksum && other.checksum,
            tso4: self.tso4 && other.tso4,
            tso6: self.tso6 && other.tso6,
            uso: self.uso && other.uso,
            tunnel: self.tunnel && other.tunnel,
        }
    }

    /// The features of `self` that are not in `other`. Removing checksums removes everything, and
    /// removing super-packets removes tunnels.
    pub fn without(self, other: Self) -> Self {
        Self {
            checksum: self.checksum && !other.checksum,
            tso4: self.tso4 && !other.tso4,
            tso6: self.tso6 && !other.tso6,
            uso: self.uso && !other.uso,
            tunnel: self.tunnel && !other.tunnel,
        }
        .consistent()
    }

    /// The features that are in either set.
    pub fn or(self, other: Self) -> Self {
        Self {
            checksum: self.checksum || other.checksum,
            tso4: self.tso4 || other.tso4,
            tso6: self.tso6 || other.tso6,
            uso: self.uso || other.uso,
            tunnel: self.tunnel || other.tunnel,
        }
    }

    /// True if the set contains super-packets of any kind.
    pub fn any_gso(self) -> bool {
        self.tso4 || self.tso6 || self.uso
    }

    /// Drops features that lack checksums, and tunnels without a kind of super-packet.
    pub(super) fn consistent(self) -> Self {
        let tunnel = self.tunnel && self.any_gso();
        if self.checksum { Self { tunnel, ..self } } else { Self::NONE }
    }

    /// Negotiates the largest part of `wanted` that `set` (`TUNSETOFFLOAD`) accepts. Fails only if
    /// the device does not even accept an empty mask, or with an error other than `EINVAL`.
    pub(super) fn negotiate(
        wanted: Self,
        mut set: impl FnMut(u32) -> Result<(), Errno>,
    ) -> Result<Self, Errno> {
        // A device that outlived an earlier owner still has that owner's mask.
        set(0)?;
        let steps = [
            Self::WITH_TUNNELS,
            Self::ALL,
            Self { uso: false, ..Self::ALL },
            Self { checksum: true, tso4: true, ..Self::NONE },
            Self { checksum: true, ..Self::NONE },
        ];
        let mut refused = Self::NONE;
        for step in steps {
            let candidate = wanted.and(step).consistent();
            if candidate == Self::NONE || candidate == refused {
                continue;
            }
            match set(candidate.mask()) {
                Ok(()) => return Ok(candidate),
                Err(Errno::INVAL) => refused = candidate,
                Err(errno) => return Err(errno),
            }
        }
        Ok(Self::NONE)
    }

    fn mask(self) -> u32 {
        let mut mask = 0;
        if self.checksum {
            mask |= libc::TUN_F_CSUM;
        }
        if self.tso4 {
            mask |= libc::TUN_F_TSO4;
        }
        if self.tso6 {
            mask |= libc::TUN_F_TSO6;
        }
        if self.tso4 || self.tso6 {
            mask |= libc::TUN_F_TSO_ECN;
        }
        if self.uso {
            mask |= libc::TUN_F_USO4 | libc::TUN_F_USO6;
        }
        if self.tunnel {
            mask |= TUN_F_UDP_TUNNEL_GSO | TUN_F_UDP_TUNNEL_GSO_CSUM;
        }
        mask
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (self.checksum, "checksum"),
            (self.tso4, "tso4"),
            (self.tso6, "tso6"),
            (self.uso, "uso"),
            (self.tunnel, "tunnel"),
        ];
        let mut separator = "";
        for (_, name) in names.iter().filter(|(on, _)| *on) {
            write!(f, "{separator}{name}")?;
            separator = " ";
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

/// Super-packets in UDP tunnels (`linux/if_tun.h`; missing in libc).
const TUN_F_UDP_TUNNEL_GSO: u32 = 0x080;
/// Super-packets in UDP tunnels whose outer checksum is partial.
const TUN_F_UDP_TUNNEL_GSO_CSUM: u32 = 0x100;

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that knows the bits of `known` and enforces Linux's rules.
    fn kernel(known: u32) -> impl FnMut(u32) -> Result<(), Errno> {
        move |mask| {
            let uso = libc::TUN_F_USO4 | libc::TUN_F_USO6;
            let tso = libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
            let valid = mask & !known == 0
                && (mask == 0 || mask & libc::TUN_F_CSUM != 0)
                && (mask & uso == 0 || mask & uso == uso)
                && (mask & libc::TUN_F_TSO_ECN == 0 || mask & tso != 0)
                && (mask & TUN_F_UDP_TUNNEL_GSO == 0 || mask & (tso | uso) != 0)
                && (mask & TUN_F_UDP_TUNNEL_GSO_CSUM == 0 || mask & TUN_F_UDP_TUNNEL_GSO != 0);
            if valid { Ok(()) } else { Err(Errno::INVAL) }
        }
    }

    #[test]
    fn falls_back_step_by_step() {
        let (csum, tso4, tso6) = (libc::TUN_F_CSUM, libc::TUN_F_TSO4, libc::TUN_F_TSO6);
        let (ecn, uso) = (libc::TUN_F_TSO_ECN, libc::TUN_F_USO4 | libc::TUN_F_USO6);
        let tunnel = TUN_F_UDP_TUNNEL_GSO | TUN_F_UDP_TUNNEL_GSO_CSUM;
        let cases = [
            (csum | tso4 | tso6 | ecn | uso | tunnel, "checksum tso4 tso6 uso tunnel"),
            (csum | tso4 | tso6 | ecn | uso, "checksum tso4 tso6 uso"),
            (csum | tso4 | tso6 | ecn, "checksum tso4 tso6"),
            (csum | tso4 | ecn, "checksum tso4"),
            (csum, "checksum"),
            (0, "none"),
        ];
        for (known, expected) in cases {
            let got = Features::negotiate(Features::WITH_TUNNELS, kernel(known));
            assert_eq!(got.expect("mask 0 is accepted").to_string(), expected);
        }
    }

    #[test]
    fn asks_for_no_more_than_wanted_and_resets_first() {
        let mut asked = Vec::new();
        let wanted = Features { tso4: false, tso6: false, ..Features::ALL };
        let got = Features::negotiate(wanted, |mask| {
            asked.push(mask);
            kernel(u32::MAX)(mask)
        });
        assert_eq!(got.expect("accepted"), wanted);
        assert_eq!(asked, [0, libc::TUN_F_CSUM | libc::TUN_F_USO4 | libc::TUN_F_USO6]);
    }

    #[test]
    fn nothing_goes_without_checksums() {
        let wanted = Features { checksum: false, ..Features::ALL };
        let got = Features::negotiate(wanted, kernel(u32::MAX)).expect("mask 0 is accepted");
        assert_eq!(got, Features::NONE);
        let checksum = Features { checksum: true, ..Features::NONE };
        assert_eq!(Features::ALL.without(checksum), Features::NONE);
        let tunnel = Features { tunnel: true, ..checksum };
        let got = Features::negotiate(tunnel, kernel(u32::MAX)).expect("mask 0 is accepted");
        assert_eq!(got, checksum, "no super-packets");
        assert_eq!(Features::WITH_TUNNELS.without(Features::ALL), Features::NONE);
    }

    #[test]
    fn other_errors_are_not_taken_for_a_missing_feature() {
        let mut calls = 0;
        let got = Features::negotiate(Features::ALL, |_| {
            calls += 1;
            if calls == 1 { Ok(()) } else { Err(Errno::BADFD) }
        });
        assert_eq!(got, Err(Errno::BADFD));
    }
}
