//! What is done about the MTU of a path: the numbers of `IP_MTU_DISCOVER` and
//! `IPV6_MTU_DISCOVER`, and what each of them means.
//!
//! One kind is no more careful than another in all respects, as on Linux: who searches for the
//! MTU (`Probe`) neither keeps to what is known nor is cut.

/// What is done about the MTU of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMtu {
    /// Packets may be cut to it, here and on the way (`IP_PMTUDISC_DONT`).
    Dont = 0,
    /// Packets that fit may not be cut on the way, larger ones are cut here (`IP_PMTUDISC_WANT`).
    #[default]
    Want = 1,
    /// Nothing is cut (`IP_PMTUDISC_DO`).
    Do = 2,
    /// Nothing is cut, and only the device's MTU counts (`IP_PMTUDISC_PROBE`).
    Probe = 3,
    /// Only the device's MTU counts, and errors about smaller ones do not
    /// (`IP_PMTUDISC_INTERFACE`).
    Interface = 4,
    /// The same, and larger packets are cut here (`IP_PMTUDISC_OMIT`).
    Omit = 5,
}

impl PathMtu {
    /// Packets keep to the MTU of the path, not only to the device's (Linux's ip_sk_use_pmtu).
    pub fn follows_path(self) -> bool {
        matches!(self, Self::Dont | Self::Want | Self::Do)
    }

    /// What is larger is cut here (Linux's ip_sk_ignore_df).
    pub fn fragments(self) -> bool {
        matches!(self, Self::Dont | Self::Want | Self::Omit)
    }

    /// Errors about packets of such a socket tell of the path (Linux's ip_sk_accept_pmtu).
    pub fn believes_errors(self) -> bool {
        !matches!(self, Self::Interface | Self::Omit)
    }

    /// Packets that fit may not be cut on the way (Linux's ip_dont_fragment). `locked`: no error
    /// changes what is known of the path, so that it must be cut by somebody.
    pub fn forbids_fragments(self, locked: bool) -> bool {
        self == Self::Do || self == Self::Want && !locked
    }
}
