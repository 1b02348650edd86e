//! Path MTU discovery modes: the values of `IP_MTU_DISCOVER` and `IPV6_MTU_DISCOVER`, and their
//! meaning.
//!
//! The modes are not ordered by strictness (ip(7), `IP_MTU_DISCOVER`): `Probe` neither respects the
//! known path MTU nor allows fragmentation.

/// Path MTU discovery mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMtu {
    /// Fragmentation is allowed, here and by routers (`IP_PMTUDISC_DONT`).
    Dont = 0,
    /// Packets that fit must not be fragmented by routers; larger ones are fragmented here
    /// (`IP_PMTUDISC_WANT`).
    #[default]
    Want = 1,
    /// No fragmentation (`IP_PMTUDISC_DO`).
    Do = 2,
    /// No fragmentation, and only the device's MTU applies (`IP_PMTUDISC_PROBE`).
    Probe = 3,
    /// Only the device's MTU applies, larger packets are rejected, and ICMP errors about the MTU
    /// are ignored (`IP_PMTUDISC_INTERFACE`).
    Interface = 4,
    /// Only the device's MTU applies, larger packets are fragmented here, and ICMP errors about the
    /// MTU are ignored (`IP_PMTUDISC_OMIT`).
    Omit = 5,
}

impl PathMtu {
    /// True if packets respect the path MTU, not only the device's.
    pub fn follows_path(self) -> bool {
        matches!(self, Self::Dont | Self::Want | Self::Do)
    }

    /// True if larger packets are fragmented here.
    pub fn fragments(self) -> bool {
        matches!(self, Self::Dont | Self::Want | Self::Omit)
    }

    /// True if ICMP errors about the MTU update the path MTU.
    pub fn believes_errors(self) -> bool {
        !matches!(self, Self::Interface | Self::Omit)
    }

    /// True if packets that fit must not be fragmented by routers. `locked`: ICMP errors do not
    /// change the known path MTU, so routers may have to fragment.
    pub fn forbids_fragments(self, locked: bool) -> bool {
        self == Self::Do || self == Self::Want && !locked
    }
}
