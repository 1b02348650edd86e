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
    /// Sends everything once. It is called again while the honest flow lasts, if `repeat`.
    pub(super) round: fn(&mut Injector, &mut Random),
    pub(super) repeat: bool,
    /// Sends what must follow the end of the honest flow.
    pub(super) finish: fn(&mut Injector),
    /// Most memory that towpath may use, including what the honest flow needs.
    pub(super) memory_mib: u64,
    /// How much slower the honest flow may be than beside harmless frames; `None` if speed is not
    /// judged.
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

/// Floods may take half of the gateway's thread, and part of the machine in addition.
const FLOOD: Attack = Attack { slower_max: Some(3.0), ..ONCE };

/// These attacks take all the memory; the honest flow's 64 MiB come on top.
const HOARD: Attack = Attack { memory_mib: 256 + 64, ..ONCE };

/// Options that leave little memory.
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

/// Makes the connections of attacks come from this address of the network.
pub(super) fn connections_come_from(address: Ipv4Addr) {
    connection::come_from(address);
}

/// Program, host, and an address that does not answer, for each IP version.
const SIDES: [(IpAddr, IpAddr, IpAddr); 2] = [
    (IpAddr::V4(PROGRAM), IpAddr::V4(HOST), IpAddr::V4(NOBODY)),
    (IpAddr::V6(PROGRAM6), IpAddr::V6(HOST6), IpAddr::V6(NOBODY6)),
];

/// Returns a random port of the program that its kernel does not use by itself.
fn port(random: &mut Random) -> u16 {
    1024 + (random.word() % 30_000)
}

/// Returns a random port at `address`.
fn end(address: impl Into<IpAddr>, random: &mut Random) -> End {
    (address.into(), port(random))
}
