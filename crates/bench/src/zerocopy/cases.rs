//! What `bench zerocopy` measures: points, and the cases whose figures they yield.
//!
//! A name consists of carrier, protocol, whose processor time, size, and buffers. The defaults are
//! left out: in process, TCP, cold. Examples: `process_4KiB`, `kernel_udp_system_1MiB_hot`.

use std::sync::LazyLock;

use crate::cases::{Better, Case, Selection};

/// The path of the packets from the sender to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// A link between two hosts of one process.
    Process,
    /// A TAP device, to the kernel's sockets.
    Tap,
    /// Kernel sockets over a veth pair.
    Kernel,
}

/// Transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

/// Whether the sent data is in the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buffers {
    Cold,
    Hot,
}

/// A combination that is measured together, by lending and by copying.
#[derive(Debug)]
pub(crate) struct Point {
    pub(crate) carrier: Carrier,
    pub(crate) protocol: Protocol,
    pub(crate) buffers: Buffers,
    /// Bytes of a send.
    pub(crate) size: usize,
    /// Processor time of the sending thread.
    pub(crate) process: Case,
    /// Processor time of everything that takes part.
    pub(crate) system: Case,
    /// Processor time of everything, for a socket that chooses, compared with the better of lending
    /// and copying. Kernel sockets have no such mode.
    pub(crate) auto: Option<Case>,
}

/// All sizes of one way to send, smallest first.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) carrier: Carrier,
    pub(crate) protocol: Protocol,
    pub(crate) buffers: Buffers,
    pub(crate) points: Vec<Point>,
    /// The size from which lending costs the sending thread less.
    pub(crate) break_even: Case,
}

impl Carrier {
    pub(crate) const ALL: [Self; 3] = [Self::Process, Self::Tap, Self::Kernel];

    fn prefix(self) -> &'static str {
        match self {
            Self::Process => "",
            Self::Tap => "tap_",
            Self::Kernel => "kernel_",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Process => "in process",
            Self::Tap => "over TAP to the kernel",
            Self::Kernel => "the kernel's sockets over veth",
        }
    }
}

impl Protocol {
    const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    fn prefix(self) -> &'static str {
        match self {
            Self::Tcp => "",
            Self::Udp => "udp_",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

impl Buffers {
    fn suffix(self) -> &'static str {
        match self {
            Self::Cold => "",
            Self::Hot => "_hot",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Cold => "cold buffers",
            Self::Hot => "hot buffers",
        }
    }
}

impl Point {
    fn new(carrier: Carrier, protocol: Protocol, buffers: Buffers, size: usize) -> Self {
        let (prefix, suffix) = (prefix(carrier, protocol), buffers.suffix());
        let case = |kind: &str| Case {
            name: format!("{prefix}{kind}_{}{suffix}", size_name(size)).into(),
            unit: "s/GiB",
            better: Better::Low,
        };
        let (process, system) = (case("process"), case("system"));
        let auto = (carrier != Carrier::Kernel).then(|| case("auto"));
        Self { carrier, protocol, buffers, size, process, system, auto }
    }

    pub(crate) fn is_selected(&self, selection: &Selection) -> bool {
        self.cases().any(|case| selection.has(case))
    }

    pub(crate) fn cases(&self) -> impl Iterator<Item = &Case> {
        [&self.process, &self.system].into_iter().chain(&self.auto)
    }
}

impl Group {
    fn new(carrier: Carrier, protocol: Protocol, buffers: Buffers) -> Self {
        let (prefix, suffix) = (prefix(carrier, protocol), buffers.suffix());
        let name = format!("{prefix}break_even{suffix}").into();
        let point = |size| Point::new(carrier, protocol, buffers, size);
        let points = SIZES.into_iter().map(point).collect();
        let break_even = Case { name, unit: "B", better: Better::Low };
        Self { carrier, protocol, buffers, points, break_even }
    }

    pub(crate) fn title(&self) -> String {
        let Self { carrier, protocol, buffers, .. } = self;
        format!("{}, {}, {}", protocol.title(), carrier.title(), buffers.title())
    }

    pub(crate) fn cases(&self) -> impl Iterator<Item = &Case> {
        self.points.iter().flat_map(Point::cases).chain([&self.break_even])
    }
}

/// All groups, in the order of the report.
pub(crate) fn groups() -> &'static [Group] {
    static GROUPS: LazyLock<Vec<Group>> = LazyLock::new(|| {
        let mut groups = Vec::new();
        for carrier in Carrier::ALL {
            for protocol in Protocol::ALL {
                for buffers in [Buffers::Cold, Buffers::Hot] {
                    groups.push(Group::new(carrier, protocol, buffers));
                }
            }
        }
        groups
    });
    &GROUPS
}

/// Instructions of calls of one size.
#[derive(Debug)]
pub(crate) struct Count {
    pub(crate) size: usize,
    /// Per call.
    pub(crate) call: Case,
    /// Per byte.
    pub(crate) byte: Case,
}

impl Count {
    fn new(size: usize) -> Self {
        let case = |per: &str, unit| {
            let name = format!("instructions_{per}_{}", size_name(size)).into();
            Case { name, unit, better: Better::Low }
        };
        Self { size, call: case("call", "/call"), byte: case("byte", "/B") }
    }
}

/// Instructions by size.
pub(crate) fn counts() -> &'static [Count] {
    static COUNTS: LazyLock<Vec<Count>> =
        LazyLock::new(|| SIZES.into_iter().map(Count::new).collect());
    &COUNTS
}

/// Instructions of a copied single packet: programs that do not lend must not pay for lending.
pub(crate) static PLAIN: Case = Case::low("instructions_plain_packet", "/packet");

/// All cases, in the order of the report.
pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    let counts = counts().iter().flat_map(|count| [&count.call, &count.byte]);
    groups().iter().flat_map(Group::cases).chain(counts).chain([&PLAIN])
}

/// A size as it appears in names.
pub(crate) fn size_name(size: usize) -> String {
    match size {
        _ if size >= 1 << 20 => format!("{}MiB", size >> 20),
        _ if size >= 1 << 10 => format!("{}KiB", size >> 10),
        _ => format!("{size}B"),
    }
}

fn prefix(carrier: Carrier, protocol: Protocol) -> String {
    format!("{}{}", carrier.prefix(), protocol.prefix())
}

/// Sizes of sends: powers of two, as the walk through the buffers requires.
pub(crate) const SIZES: [usize; 7] =
    [512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_as_agreed() {
        let mut names: Vec<_> = all().map(|case| &*case.name).collect();
        for name in [
            "process_4KiB",
            "tap_system_64KiB",
            "kernel_udp_process_1MiB_hot",
            "udp_process_512B",
            "tap_udp_system_64KiB_hot",
            "udp_auto_4KiB",
        ] {
            assert!(names.contains(&name), "{name}");
        }
        assert!(!names.iter().any(|name| name.contains("kernel_auto")), "no socket chooses");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
    }
}
