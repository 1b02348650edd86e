//! The attacks, one file for each layer, and their list.

mod connection;
mod flood;
mod fragment;
mod hoard;
mod ipv4;
mod ipv6;
mod link;
mod mutation;
mod neighbour;
mod offload;
mod transport;

use std::net::{IpAddr, Ipv4Addr};

use crate::frame::{End, PROGRAM, PROGRAM6};
use crate::host::{HOST, HOST6, NOBODY, NOBODY6};
use crate::injector::Injector;
use crate::random::Random;

/// One attack.
pub(super) struct Attack {
    pub(super) name: &'static str,
    /// Options of `towpath run`.
    pub(super) options: &'static [&'static str],
    /// Sends everything once. Called again while the honest flow lasts, if `repeat`.
    pub(super) round: fn(&mut Injector, &mut Random),
    pub(super) repeat: bool,
    /// Sends what is to be sent when the honest flow is over.
    pub(super) finish: fn(&mut Injector),
    /// Most memory that towpath may use. The honest flow itself needs some of it.
    pub(super) memory_mib: u64,
    /// How much slower the honest flow may be than beside harmless frames, if that is judged.
    pub(super) slower_max: Option<f64>,
}

const PLAIN: Attack = Attack {
    name: "",
    options: &[],
    round: |_, _| {},
    repeat: true,
    finish: |_| {},
    memory_mib: 64,
    slower_max: None,
};

const ONCE: Attack = Attack { repeat: false, ..PLAIN };

/// Floods may take half of the gateway's thread, and something of the machine beside it.
const FLOOD: Attack = Attack { slower_max: Some(3.0), ..ONCE };

/// What these attacks take is what they are about: the honest flow's 64 MiB come on top.
const HOARD: Attack = Attack { memory_mib: 256 + 64, ..ONCE };

/// Options that leave little memory to fight for.
const LITTLE: &[&str] = &["--memory", "32M"];

/// All attacks.
pub(super) const ALL: &[Attack] = &[
    Attack { name: "link", round: link::round, ..PLAIN },
    Attack { name: "ipv4_headers", round: ipv4::round, ..PLAIN },
    Attack { name: "ipv6_headers", round: ipv6::round, ..PLAIN },
    Attack { name: "transport_headers", round: transport::round, ..PLAIN },
    Attack { name: "fragments", round: fragment::round, ..PLAIN },
    Attack { name: "neighbour_spoofing", round: neighbour::round, ..PLAIN },
    Attack { name: "established_connection", round: connection::round, ..PLAIN },
    Attack { name: "hoard_with_holes", round: hoard::holes, ..HOARD },
    Attack { name: "hoard_unread", round: hoard::unread, options: LITTLE, ..HOARD },
    Attack { name: "hoard_unacknowledged", round: hoard::unacknowledged, ..HOARD },
    Attack {
        name: "hoard_with_holes_in_little_memory",
        round: hoard::holes,
        options: LITTLE,
        ..HOARD
    },
    Attack {
        name: "hoard_unacknowledged_in_little_memory",
        round: hoard::unacknowledged,
        options: LITTLE,
        ..HOARD
    },
    Attack { name: "syn_flood_outside", round: flood::syn_outside, ..FLOOD },
    Attack { name: "syn_flood_inside", round: flood::syn_inside, ..FLOOD },
    Attack { name: "stray_segments", round: flood::strays, ..PLAIN },
    Attack { name: "datagram_flood", round: flood::datagrams, ..FLOOD },
    Attack { name: "checked_virtio_headers", round: offload::round, ..PLAIN },
    Attack { name: "random_frames", round: mutation::random, ..PLAIN },
    Attack { name: "mutated_frames", round: mutation::mutated, ..PLAIN },
];

/// Has the connections that attacks make come from this address of the network.
pub(super) fn connections_come_from(address: Ipv4Addr) {
    connection::come_from(address);
}

/// Program, host, and an address where nobody answers, for each IP version.
const SIDES: [(IpAddr, IpAddr, IpAddr); 2] = [
    (IpAddr::V4(PROGRAM), IpAddr::V4(HOST), IpAddr::V4(NOBODY)),
    (IpAddr::V6(PROGRAM6), IpAddr::V6(HOST6), IpAddr::V6(NOBODY6)),
];

/// A random port of the program that its kernel does not use by itself.
fn port(random: &mut Random) -> u16 {
    1024 + (random.word() % 30_000)
}

/// A random port at `address`.
fn end(address: impl Into<IpAddr>, random: &mut Random) -> End {
    (address.into(), port(random))
}
