//! Whether bytes for hosts are lent to the host's kernel or copied by it.

/// Whether TCP flows lend what they send to hosts (`MSG_ZEROCOPY`). Otherwise the kernel copies it
/// into its own memory. Flows to addresses of this machine never lend, as the kernel copies what
/// stays on the machine in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LendToHost {
    /// The kernel copies everything.
    #[default]
    Never,
    /// Flows lend where trials find that this costs the worker's thread less, and where the kernel
    /// does not copy after all.
    Auto,
    /// Flows lend all super-packets, within the bounds of memory.
    Always,
}

impl LendToHost {
    /// All values.
    pub const ALL: &[Self] = &[Self::Never, Self::Auto, Self::Always];

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Auto => "auto",
            Self::Always => "always",
        }
    }

    /// The value with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|value| value.name() == name)
    }
}
