//! Why a request of a front end is refused.

use std::fmt;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such ring.
    NoRing(u32),
    /// Features that were not offered.
    Features(u64),
    /// The request belongs to a protocol feature that was not negotiated.
    NotAgreed(u64),
    /// The ring is running.
    Running(u32),
    /// A base that is impossible in the ring's layout.
    Base(u32, u32),
    /// An MTU that the network does not support.
    Mtu(u16),
    /// The driver may not write the configuration space.
    ReadOnly,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRing(value) => write!(f, "there is no ring {value}"),
            Self::Features(value) => write!(f, "features {value:#x} were not offered"),
            Self::NotAgreed(value) => {
                write!(f, "it needs protocol feature {value:#x}, which was not negotiated")
            }
            Self::Running(value) => write!(f, "ring {value} is running"),
            Self::Base(ring, base) => write!(f, "ring {ring} cannot start at index {base}"),
            Self::Mtu(value) => write!(f, "MTU {value} is not supported by this network"),
            Self::ReadOnly => f.write_str("the configuration space is read-only"),
        }
    }
}

impl std::error::Error for Refusal {}
